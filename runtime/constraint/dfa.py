"""Guides that walk an automaton over bytes. A state's mask is found by walking all tokens from it, and cached."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from banyan.runtime.constraint.automaton import build_automaton
from banyan.runtime.constraint.guide import Guide, Row, set_bits
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.protocol.wire import ConstraintSpec

ROWS = 16 << 20
"""Maximum number of bytes of masks that one constraint caches."""
_MAX_FORCED = 64
"""`DfaConstraint.forced` looks at most this many bytes ahead."""


class DfaConstraint:
    """A regex or list of choices, compiled into an automaton by outlines_core."""

    def __init__(self, spec: ConstraintSpec, vocabulary: Vocabulary) -> None:
        self.next, self.final = build_automaton(spec)
        self.is_end = self.final & (self.next < 0).all(1)  # final states that no byte may follow
        self.vocabulary = vocabulary
        self._masks: dict[int, Row] = {}
        self._longest: dict[int, int] = {}
        self._unique: dict[bytes, Row] = {}
        self._forced: dict[int, list[int]] = {}

    @property
    def n_bytes(self) -> int:
        return self.next.nbytes + ROWS

    @property
    def is_spent(self) -> bool:
        return False

    def guide(self) -> DfaGuide:
        return DfaGuide(self)

    def walk(self, state: int, text: bytes) -> int:
        """The state after `text`; -1 if `text` is not allowed."""
        for byte in text:
            if state >= 0:
                state = int(self.next[state, byte])
        return state

    def mask(self, state: int) -> Row:
        """The mask of the next token. States with equal masks share one row."""
        if state not in self._masks:
            row = self._compute(state)
            if 4 * len(row) * len(self._unique) > ROWS:
                self._masks.clear()
                self._unique.clear()
            self._masks[state] = self._unique.setdefault(row.tobytes(), row)
        return self._masks[state]

    def _compute(self, state: int) -> Row:
        """Computes the mask of a state. Walks the bytes of all tokens in parallel; a token drops out at the first byte
        that is not allowed."""
        tokens = self.vocabulary.token_bytes
        allowed = np.zeros(32 * self.vocabulary.n_words, bool)
        first_bytes = np.flatnonzero(self.next[state] >= 0)
        ids = np.concatenate([tokens.by_first[byte] for byte in first_bytes] or [tokens.by_first[0][:0]])
        at, depth = np.full(len(ids), state, np.int32), 0
        while len(ids):
            at = self.next[at, tokens.text[tokens.starts[ids] + depth]]
            fits, depth = at >= 0, depth + 1
            ids, at = ids[fits], at[fits]
            is_whole = tokens.lengths[ids] == depth
            allowed[ids[is_whole]] = True
            ids, at = ids[~is_whole], at[~is_whole]
        self._longest[state] = int(tokens.lengths[np.flatnonzero(allowed)].max(initial=0))
        return np.packbits(allowed, bitorder="little").view(np.int32)

    def forced(self, state: int) -> list[int]:
        """The canonical tokens of the bytes that must come next. The list ends before the first position at which an
        allowed token could reach beyond these bytes."""
        if state not in self._forced:
            run, path, at = bytearray(), list[int](), state
            while len(run) < _MAX_FORCED and not self.final[at] and len(b := np.flatnonzero(self.next[at] >= 0)) == 1:
                run.append(int(b[0]))
                path.append(at)
                at = int(self.next[at, b[0]])
            safe = next((i for i, s in enumerate(path) if i + self._longest_token(s) > len(run)), len(run))
            found, end = list[int](), 0
            for token in (self.vocabulary.tokenize(bytes(run)) or ()) if safe else ():
                end += len(self.vocabulary.spelling[token])
                if end > safe or not self.vocabulary.token_bytes.is_text[token]:
                    break
                found.append(token)
            self._forced[state] = found
        return self._forced[state]

    def _longest_token(self, state: int) -> int:
        """The length in bytes of the longest token that may come next."""
        if state not in self._longest:
            self.mask(state)
        return self._longest[state]


class DfaGuide(Guide):
    """A guide that keeps the automaton's state after each accepted token."""

    error = ""

    def __init__(self, compiled: DfaConstraint) -> None:
        self._dfa, self._states = compiled, [0]

    @property
    def can_stop(self) -> bool:
        return bool(self._dfa.final[self._states[-1]])

    @property
    def must_stop(self) -> bool:
        return bool(self._dfa.is_end[self._states[-1]])

    def give_up(self, why: str) -> None:
        self.error = why

    def fill(self, out: Row) -> None:
        forced = self.forced_tokens(1)
        out[:] = 0 if forced else self._dfa.mask(self._states[-1])
        set_bits(out, forced)

    def accept(self, tokens: Sequence[int]) -> int:
        dfa, vocabulary = self._dfa, self._dfa.vocabulary
        is_text = vocabulary.token_bytes.is_text
        for n, token in enumerate(tokens):
            is_allowed = token < len(is_text) and is_text[token]
            state = dfa.walk(self._states[-1], vocabulary.spelling[token]) if is_allowed else -1
            if state < 0:
                return n
            self._states.append(state)
        return len(tokens)

    def rollback(self, n: int) -> None:
        if n >= len(self._states):
            raise IndexError(f"cannot roll back {n} tokens: only {len(self._states) - 1} were accepted")
        if n:
            del self._states[-n:]

    def forced_tokens(self, limit: int) -> list[int]:
        return self._dfa.forced(self._states[-1])[:limit]
