"""Constraints that switch on: free text, until a trigger stands in it; then a value; with `repeat`, free text again.

Free text is not masked, but for two things: tokens that end the output, where it may not end yet; and tokens that
complete a trigger and go on in a way that no value can begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from banyan.runtime.constraint.guide import (
    CompiledConstraint,
    Guide,
    Row,
    Rows,
    clear_bits,
    fill_chain,
    fill_tree,
    take,
)
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.protocol.wire import ConstraintSpec


class Hit(NamedTuple):
    """A trigger was completed. rest: the bytes of the token behind it."""

    rest: bytes


class _Watch:
    """Free text in which some strings are waited for."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self.strings = tuple(one.encode() for one in strings)
        self._reach = max(map(len, self.strings)) - 1  # bytes that may begin one

    def find(self, tail: bytes, spelled: bytes) -> Hit | None:
        """The first string that `spelled` completes behind `tail`."""
        window, best = tail + spelled, -1
        for one in self.strings:
            at = window.find(one, max(0, len(tail) - len(one) + 1))
            if at >= 0 and (best < 0 or at + len(one) < best):
                best = at + len(one)
        return None if best < 0 else Hit(window[best:])

    def live(self, text: bytes) -> bytes:
        """The longest end of the text that begins a string: all that matters of it."""
        for at in range(max(0, len(text) - self._reach), len(text)):
            if any(one.startswith(text[at:]) for one in self.strings):
                return text[at:]
        return b""

    def completing(self, tail: bytes, vocabulary: Vocabulary) -> list[int]:
        """Tokens that complete a string behind `tail`."""
        found = set()
        for one in self.strings:
            found.update(vocabulary.containing(one))
            for n in range(1, len(one)):
                if tail.endswith(one[:n]):
                    found.update(vocabulary.starting(one[n:]))
        return sorted(found)


class TriggerState(NamedTuple):
    """In a value, with its guide; or in free text: the last bytes of it that matter, and what is waited for."""

    value: Guide | None
    tail: bytes = b""
    stage: int = 0


class Triggered:
    """A compiled value behind its triggers. stages: what free text waits for, one after the other."""

    def __init__(self, spec: ConstraintSpec, value: CompiledConstraint, vocabulary: Vocabulary) -> None:
        self.value, self.scope, self.vocabulary = value, spec.scope, vocabulary
        self.stages = [_Watch(strings) for strings in ((spec.since,), spec.after) if strings != ("",)]
        self._forbidden: dict[tuple[int, bytes], list[int]] = {}
        self._begins: dict[bytes, bool] = {b"": True}

    @property
    def n_bytes(self) -> int:
        return self.value.n_bytes

    def guide(self) -> TriggerGuide:
        return TriggerGuide(self)

    def free(self) -> TriggerState:
        """Free text in which the triggers count."""
        return TriggerState(None, b"", len(self.stages) - 1)

    def go_on(self, place: TriggerState, spelled: bytes) -> TriggerState | None:
        """Where bytes lead from free text; None where they complete a trigger and go on as no value begins."""
        watch = self.stages[place.stage]
        if (hit := watch.find(place.tail, spelled)) is None:
            return place._replace(tail=watch.live(place.tail + spelled))
        if place.stage < len(self.stages) - 1:
            return self.go_on(self.free(), hit.rest)
        guide = self.value.guide()
        tokens = self.vocabulary.tokenize(hit.rest) if hit.rest else []
        return TriggerState(guide) if tokens is not None and guide.accept(tokens) == len(tokens) else None

    def forbidden(self, place: TriggerState) -> list[int]:
        """Tokens that may not come next in free text."""
        key = place.stage, place.tail
        if key not in self._forbidden:
            found = self.stages[place.stage].completing(place.tail, self.vocabulary)
            self._forbidden[key] = [token for token in found if not self._is_right(place, token)]
        return self._forbidden[key]

    def _is_right(self, place: TriggerState, token: int) -> bool:
        spelled = self.vocabulary.spelling[token]
        hit = self.stages[place.stage].find(place.tail, spelled)
        assert hit is not None
        if place.stage < len(self.stages) - 1:
            return self.go_on(place, spelled) is not None
        if hit.rest not in self._begins:
            self._begins[hit.rest] = self.go_on(place, spelled) is not None
        return self._begins[hit.rest]


class TriggerGuide:
    """See `guide.Guide`."""

    def __init__(self, compiled: Triggered) -> None:
        self._compiled = compiled
        self._place = TriggerState(None)
        self._before: list[TriggerState] = []  # one place per accepted token: where it was accepted

    @property
    def can_stop(self) -> bool:
        value = self._place.value
        return self._compiled.scope != "must" if value is None else value.can_stop

    @property
    def must_stop(self) -> bool:
        return self._place.value is not None and self._place.value.must_stop

    @property
    def error(self) -> str:
        return "" if self._place.value is None else self._place.value.error

    def give_up(self, why: str) -> None:
        if self._place.value is not None:  # free text has nothing to give up
            self._place.value.give_up(why)

    def fill(self, out: Row) -> None:
        if self._place.value is not None:
            return self._place.value.fill(out)
        out[:] = -1
        clear_bits(out, self._compiled.vocabulary.eos)
        return clear_bits(out, self._compiled.forbidden(self._place))

    def take(self, tokens: Sequence[int]) -> int:
        return take(self, tokens, self._compiled.vocabulary.eos)

    def fill_chain(self, draft: Sequence[int], out: Rows) -> int:
        return fill_chain(self, draft, out)

    def fill_tree(self, parent: Sequence[int], draft: Sequence[int], out: Rows) -> list[bool]:
        return fill_tree(self, parent, draft, out)

    def accept(self, tokens: Sequence[int]) -> int:
        for n, token in enumerate(tokens):
            place = self._after(int(token))
            if place is None:
                return n
            self._before.append(self._place)
            self._place = place
        return len(tokens)

    def _after(self, token: int) -> TriggerState | None:
        """Where a token leads; None where it is not allowed. A value's guide moves."""
        compiled, value = self._compiled, self._place.value
        if value is None:
            spelling = compiled.vocabulary.spelling
            return compiled.go_on(self._place, spelling[token] if token < len(spelling) else b"")
        if not value.accept((token,)):
            return None
        return compiled.free() if compiled.scope == "repeat" and value.must_stop else self._place

    def rollback(self, n: int) -> None:
        if n > len(self._before):
            raise IndexError(f"{n} tokens to take back, of {len(self._before)}")
        for _ in range(n):
            self._place = self._before.pop()
            if self._place.value is not None:
                self._place.value.rollback(1)

    def forced_tokens(self, limit: int) -> list[int]:
        return [] if self._place.value is None else self._place.value.forced_tokens(limit)
