"""Constraints with a trigger: free text until a trigger string appears, then a value; with `repeat`, free text again.

Free text allows all tokens but two kinds: tokens that end the output where it may not end yet, and tokens that
complete a trigger and continue in a way that no value can begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from banyan.runtime.constraint.guide import CompiledConstraint, Guide, Row, clear_bits
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.protocol.wire import ConstraintSpec


class _StringSearch:
    """Searches text that arrives token by token for any of several strings."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self.strings = tuple(string.encode() for string in strings)
        self._max_tail = max(map(len, self.strings)) - 1

    def find(self, tail: bytes, new: bytes) -> bytes | None:
        """Search `tail` + `new` for the first string that `new` completes. Returns the bytes after the string; None if
        `new` completes none. tail: the end of the text before `new`."""
        window = tail + new
        found = [(string, window.find(string, max(0, len(tail) - len(string) + 1))) for string in self.strings]
        end = min((at + len(string) for string, at in found if at >= 0), default=None)
        return None if end is None else window[end:]

    def tail(self, text: bytes) -> bytes:
        """The longest suffix of the text that is a prefix of one of the strings."""
        suffixes = (text[at:] for at in range(max(0, len(text) - self._max_tail), len(text)))
        return next((end for end in suffixes if any(string.startswith(end) for string in self.strings)), b"")

    def completing(self, tail: bytes, vocabulary: Vocabulary) -> list[int]:
        """The tokens that complete one of the strings if they follow `tail`, the end of the text so far."""
        found = set()
        for string in self.strings:
            found.update(vocabulary.containing(string))
            for n in range(1, len(string)):
                if tail.endswith(string[:n]):
                    found.update(vocabulary.starting(string[n:]))
        return sorted(found)


class TriggerState(NamedTuple):
    """The state of a TriggerGuide. value: the guide of the value (the constrained text after a trigger) that the output
    is in; None: the output is in free text. tail: the end of the free text, as far as a searched string may begin with
    it. stage: index of the current string search in `TriggeredConstraint.stages`."""

    value: Guide | None
    tail: bytes = b""
    stage: int = 0


class TriggeredConstraint:
    """The compiled constraint of a value that follows a trigger string in free text. stages: the string searches in
    free text, one after the other. The first one is for `since`, the mark that ends the model's reasoning, if the
    constraint has it. The last one is for a trigger."""

    def __init__(self, spec: ConstraintSpec, value: CompiledConstraint, vocabulary: Vocabulary) -> None:
        self.value, self.scope, self.vocabulary = value, spec.scope, vocabulary
        self.stages = [_StringSearch(strings) for strings in ((spec.since,), spec.after) if strings != ("",)]
        self._forbidden: dict[tuple[int, bytes], list[int]] = {}
        self._can_begin: dict[bytes, bool] = {b"": True}  # text after a trigger -> whether a value can begin with it

    @property
    def n_bytes(self) -> int:
        return self.value.n_bytes

    @property
    def is_spent(self) -> bool:
        return self.value.is_spent

    def guide(self) -> TriggerGuide:
        return TriggerGuide(self)

    def free_text(self) -> TriggerState:
        """The state at the beginning of free text in which a trigger is searched for. Any search for `since`, the mark
        that ends the model's reasoning, is over."""
        return TriggerState(None, b"", len(self.stages) - 1)

    def advance(self, state: TriggerState, text: bytes) -> TriggerState | None:
        """Return the state after `text` was appended to free text. If `text` completes `since` (the mark that ends the
        model's reasoning), the rest of `text` is searched for a trigger. If `text` completes a trigger, the rest must
        be the start of a value. Returns None if no value can begin with that rest."""
        search = self.stages[state.stage]
        if (rest := search.find(state.tail, text)) is None:
            return state._replace(tail=search.tail(state.tail + text))
        if state.stage < len(self.stages) - 1:
            return self.advance(self.free_text(), rest)
        guide = self.value.guide()
        tokens = self.vocabulary.tokenize(rest) if rest else []
        return TriggerState(guide) if tokens is not None and guide.accept(tokens) == len(tokens) else None

    def forbidden(self, state: TriggerState) -> list[int]:
        """The tokens that must not come next in free text."""
        key = state.stage, state.tail
        if key not in self._forbidden:
            found = self.stages[state.stage].completing(state.tail, self.vocabulary)
            self._forbidden[key] = [token for token in found if not self._is_allowed(state, token)]
        return self._forbidden[key]

    def _is_allowed(self, state: TriggerState, token: int) -> bool:
        """Whether free text may continue with a token that completes the string of the current search. It may not if
        the rest of the token's text cannot be the start of a value."""
        text = self.vocabulary.spelling[token]
        rest = self.stages[state.stage].find(state.tail, text)
        assert rest is not None
        if state.stage < len(self.stages) - 1:
            return self.advance(state, text) is not None
        if rest not in self._can_begin:
            self._can_begin[rest] = self.advance(state, text) is not None
        return self._can_begin[rest]


class TriggerGuide(Guide):
    """The guide of an output that begins as free text. A trigger string in the text begins a constrained value, in
    which the value's own guide decides which tokens are allowed. With scope "repeat", free text follows the value."""

    def __init__(self, compiled: TriggeredConstraint) -> None:
        self._compiled, self._ends = compiled, compiled.vocabulary.eos
        self._state = TriggerState(None)
        self._history: list[TriggerState] = []  # the state before each accepted token

    @property
    def can_stop(self) -> bool:
        value = self._state.value
        return self._compiled.scope != "must" if value is None else value.can_stop

    @property
    def must_stop(self) -> bool:
        return self._state.value is not None and self._state.value.must_stop

    @property
    def error(self) -> str:
        return "" if self._state.value is None else self._state.value.error

    def find_failure(self) -> None:
        if self._state.value is not None:
            self._state.value.find_failure()

    def give_up(self, why: str) -> None:
        if self._state.value is not None:  # masks of free text are never slow
            self._state.value.give_up(why)

    def fill(self, out: Row) -> None:
        if self._state.value is not None:
            return self._state.value.fill(out)
        out[:] = -1
        clear_bits(out, self._compiled.vocabulary.eos)
        return clear_bits(out, self._compiled.forbidden(self._state))

    def accept(self, tokens: Sequence[int]) -> int:
        for n, token in enumerate(tokens):
            state = self._after(int(token))
            if state is None:
                return n
            self._history.append(self._state)
            self._state = state
        return len(tokens)

    def _after(self, token: int) -> TriggerState | None:
        """Return the state after a token; None: the token is not allowed. If the output is inside a value (the
        constrained text after a trigger), this also advances the guide of the value in place."""
        compiled, value = self._compiled, self._state.value
        if value is None:
            spelling = compiled.vocabulary.spelling
            return compiled.advance(self._state, spelling[token] if token < len(spelling) else b"")
        if not value.accept((token,)):
            return None
        return compiled.free_text() if compiled.scope == "repeat" and value.must_stop else self._state

    def rollback(self, n: int) -> None:
        if n > len(self._history):
            raise IndexError(f"cannot roll back {n} tokens: only {len(self._history)} were accepted")
        for _ in range(n):
            self._state = self._history.pop()
            if self._state.value is not None:
                self._state.value.rollback(1)

    def forced_tokens(self, limit: int) -> list[int]:
        return [] if self._state.value is None else self._state.value.forced_tokens(limit)
