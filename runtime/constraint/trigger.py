"""Constraints that switch on: free text, until a trigger stands in it; then a value; with `repeat`, free text again.

Free text is not masked, but for two things: tokens that end the output, where it may not end yet; and tokens that
complete a trigger and go on in a way that no value can begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from banyan.runtime.constraint.guide import Compiled, Guide, Row, Rows, clear_bits, fill_chain, fill_tree
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.wire import ConstraintSpec


class Hit(NamedTuple):
    """A trigger was completed. rest: the bytes of the token behind it."""

    rest: bytes


class Triggered:
    """A compiled value behind its triggers."""

    def __init__(self, spec: ConstraintSpec, value: Compiled, vocabulary: Vocabulary) -> None:
        self.value, self.scope, self.vocabulary = value, spec.scope, vocabulary
        self.triggers = tuple(trigger.encode() for trigger in spec.after)
        self.reach = max(map(len, self.triggers)) - 1  # bytes that may begin a trigger
        self._forbidden: dict[bytes, list[int]] = {}
        self._begins: dict[bytes, bool] = {b"": True}

    @property
    def n_bytes(self) -> int:
        return self.value.n_bytes

    def guide(self) -> TriggerGuide:
        return TriggerGuide(self)

    def find(self, tail: bytes, spelled: bytes) -> Hit | None:
        """The first trigger that `spelled` completes behind `tail`."""
        window, best = tail + spelled, -1
        for trigger in self.triggers:
            at = window.find(trigger, max(0, len(tail) - len(trigger) + 1))
            if at >= 0 and (best < 0 or at + len(trigger) < best):
                best = at + len(trigger)
        return None if best < 0 else Hit(window[best:])

    def begin(self, rest: bytes) -> Guide | None:
        """A value's guide behind its first bytes; None where no value begins so."""
        guide = self.value.guide()
        tokens = self.vocabulary.llg.tokenize_bytes(rest) if rest else []
        return guide if guide.accept(tokens) == len(tokens) else None

    def forbidden(self, tail: bytes) -> list[int]:
        """Tokens that complete a trigger behind `tail`, and go on as no value begins."""
        tail = self._live(tail)
        if tail not in self._forbidden:
            found = set()
            for trigger in self.triggers:
                found.update(self.vocabulary.containing(trigger))
                for n in range(1, len(trigger)):
                    if tail.endswith(trigger[:n]):
                        found.update(self.vocabulary.starting(trigger[n:]))
            self._forbidden[tail] = [token for token in sorted(found) if self._is_wrong(tail, token)]
        return self._forbidden[tail]

    def _is_wrong(self, tail: bytes, token: int) -> bool:
        hit = self.find(tail, self.vocabulary.spelling[token])
        assert hit is not None
        if hit.rest not in self._begins:
            self._begins[hit.rest] = self.begin(hit.rest) is not None
        return not self._begins[hit.rest]

    def _live(self, tail: bytes) -> bytes:
        """The longest end of `tail` that begins a trigger: all that matters of it."""
        for at in range(max(0, len(tail) - self.reach), len(tail)):
            if any(trigger.startswith(tail[at:]) for trigger in self.triggers):
                return tail[at:]
        return b""


class _Place(NamedTuple):
    """In a value, with its guide; or in free text, whose last bytes are `tail`."""

    value: Guide | None
    tail: bytes = b""


class TriggerGuide:
    """See `guide.Guide`."""

    def __init__(self, compiled: Triggered) -> None:
        self._compiled = compiled
        self._place = _Place(None)
        self._before: list[_Place] = []  # one place per accepted token: where it was accepted

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
        return clear_bits(out, self._compiled.forbidden(self._place.tail))

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

    def _after(self, token: int) -> _Place | None:
        """Where a token leads; None where it is not allowed. A value's guide moves."""
        compiled, (value, tail) = self._compiled, self._place
        if value is not None:
            if not value.accept((token,)):
                return None
            return _Place(None) if compiled.scope == "repeat" and value.must_stop else self._place
        spelling = compiled.vocabulary.spelling
        spelled = spelling[token] if token < len(spelling) else b""
        hit = compiled.find(tail, spelled)
        if hit is None:
            return _Place(None, (tail + spelled)[-compiled.reach :] if compiled.reach else b"")
        begun = compiled.begin(hit.rest)
        return None if begun is None else _Place(begun)

    def rollback(self, n: int) -> None:
        if n > len(self._before):
            raise IndexError(f"{n} tokens to take back, of {len(self._before)}")
        for _ in range(n):
            self._place = self._before.pop()
            if self._place.value is not None:
                self._place.value.rollback(1)

    def forced_tokens(self, limit: int) -> list[int]:
        return [] if self._place.value is None else self._place.value.forced_tokens(limit)
