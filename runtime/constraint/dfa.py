"""Guides over an automaton: the mask of a state is computed once, by walking all tokens through it, and then a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from banyan.runtime.constraint.automaton import Automaton
from banyan.runtime.constraint.guide import Row, Rows, fill_chain, fill_tree, set_bits, take
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.protocol.wire import ConstraintSpec

ROWS = 16 << 20
"""Bytes of masks that one constraint keeps."""
_LOOK = 64
"""Bytes that a forced run is followed for at once."""


class VocabularyArrays(NamedTuple):
    """The vocabulary for arrays. ids: of tokens that are text, by their first byte. text, starts, lengths: what all ids
    spell."""

    ids: list[npt.NDArray[np.int64]]
    text: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


def tokens_of(vocabulary: Vocabulary) -> VocabularyArrays:
    ends = np.frombuffer(vocabulary.message.ends, np.int32)[: vocabulary.n_vocab].astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    lengths = ends - starts
    is_text = lengths > 0
    marks = vocabulary.special | vocabulary.control | set(vocabulary.eos)
    is_text[[i for i in marks if i < len(is_text)]] = False
    text, ids = np.frombuffer(vocabulary.message.text, np.uint8), np.flatnonzero(is_text)
    return VocabularyArrays([ids[text[starts[ids]] == byte] for byte in range(256)], text, starts, lengths)


class Dfa:
    """A compiled regex or list of choices: see `guide.Compiled`."""

    def __init__(self, spec: ConstraintSpec, vocabulary: Vocabulary) -> None:
        automaton = Automaton(spec)
        self.next, self.final = automaton.next, automaton.final
        self.is_end = self.final & (self.next < 0).all(1)  # nothing may follow
        self.vocabulary, self._tokens = vocabulary, tokens_of(vocabulary)
        self.is_text = np.zeros(vocabulary.n_vocab, bool)
        self.is_text[np.concatenate(self._tokens.ids)] = True
        self._masks: dict[int, Row] = {}
        self._longest: dict[int, int] = {}
        self._unique: dict[bytes, Row] = {}
        self._forced: dict[int, list[int]] = {}

    @property
    def n_bytes(self) -> int:
        return self.next.nbytes + ROWS

    def guide(self) -> DfaGuide:
        return DfaGuide(self)

    def walk(self, state: int, spelled: bytes) -> int:
        """The state behind some bytes, -1 where they do not fit."""
        for byte in spelled:
            if state >= 0:
                state = int(self.next[state, byte])
        return state

    def mask(self, state: int) -> Row:
        """Tokens that may come next."""
        if state not in self._masks:
            row = self._compute(state)
            if 4 * len(row) * len(self._unique) > ROWS:
                self._masks.clear()
                self._unique.clear()
            self._masks[state] = self._unique.setdefault(row.tobytes(), row)
        return self._masks[state]

    def _compute(self, state: int) -> Row:
        by_first, text, starts, lengths = self._tokens
        allowed = np.zeros(32 * self.vocabulary.n_words, bool)
        ids = np.concatenate([by_first[byte] for byte in np.flatnonzero(self.next[state] >= 0)] or [by_first[0][:0]])
        at, depth = np.full(len(ids), state, np.int32), 0
        while len(ids):
            at = self.next[at, text[starts[ids] + depth]]
            fits, depth = at >= 0, depth + 1
            ids, at = ids[fits], at[fits]
            is_whole = lengths[ids] == depth
            allowed[ids[is_whole]] = True
            ids, at = ids[~is_whole], at[~is_whole]
        self._longest[state] = int(lengths[np.flatnonzero(allowed)].max(initial=0))
        return np.packbits(allowed, bitorder="little").view(np.int32)

    def forced(self, state: int) -> list[int]:
        """Tokens that must come next: the canonical ones of the bytes that must, up to where a token could begin that
        goes on behind those bytes."""
        if state not in self._forced:
            run, path, at = bytearray(), list[int](), state
            while len(run) < _LOOK and not self.final[at] and len(only := np.flatnonzero(self.next[at] >= 0)) == 1:
                run.append(int(only[0]))
                path.append(at)
                at = int(self.next[at, only[0]])
            safe = next((i for i, one in enumerate(path) if i + self.longest(one) > len(run)), len(run))
            found, end = list[int](), 0
            for token in (self.vocabulary.tokenize(bytes(run)) or ()) if safe else ():
                end += len(self.vocabulary.spelling[token])
                if end > safe or not self.is_text[token]:
                    break
                found.append(token)
            self._forced[state] = found
        return self._forced[state]

    def longest(self, state: int) -> int:
        """Bytes of the longest token that may come next."""
        if state not in self._longest:
            self.mask(state)
        return self._longest[state]


class DfaGuide:
    """See `guide.Guide`."""

    def __init__(self, compiled: Dfa) -> None:
        self._dfa, self._states, self.error = compiled, [0], ""

    @property
    def can_stop(self) -> bool:
        return bool(self._dfa.final[self._states[-1]])

    @property
    def must_stop(self) -> bool:
        return bool(self._dfa.is_end[self._states[-1]])

    def give_up(self, why: str) -> None:
        self.error = why

    def fill(self, out: Row) -> None:
        state = self._states[-1]
        if forced := self._dfa.forced(state):
            out[:] = 0
            return set_bits(out, forced[:1])
        out[:] = self._dfa.mask(state)
        return None

    def take(self, tokens: Sequence[int]) -> int:
        return take(self, tokens)

    def fill_chain(self, draft: Sequence[int], out: Rows) -> int:
        return fill_chain(self, draft, out)

    def fill_tree(self, parent: Sequence[int], draft: Sequence[int], out: Rows) -> list[bool]:
        return fill_tree(self, parent, draft, out)

    def accept(self, tokens: Sequence[int]) -> int:
        dfa = self._dfa
        for n, token in enumerate(tokens):
            is_text = token < len(dfa.is_text) and dfa.is_text[token]
            state = dfa.walk(self._states[-1], dfa.vocabulary.spelling[token]) if is_text else -1
            if state < 0:
                return n
            self._states.append(state)
        return len(tokens)

    def rollback(self, n: int) -> None:
        if n >= len(self._states):
            raise IndexError(f"{n} tokens to take back, of {len(self._states) - 1}")
        if n:
            del self._states[-n:]

    def forced_tokens(self, limit: int) -> list[int]:
        return self._dfa.forced(self._states[-1])[:limit]
