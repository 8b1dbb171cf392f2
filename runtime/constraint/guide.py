"""The interface between the engine and a constraint, whichever library compiled it.

A `CompiledConstraint` is made once per constraint and shared by all requests that have it. A `Guide` is the grammar
state of one output and is cheap to create. A mask is a row of int32 words: bit `t & 31` of word `t >> 5` says whether
token t may come next. A guide never allows tokens that end an output (eos, stop ids); the caller allows those if
`can_stop`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.int32]
"""One mask, int32 [n_words]."""


class Guide(ABC):
    """The grammar state of one output. It is not thread-safe."""

    _ends: Collection[int] = ()
    """Tokens that no mask allows although `accept` may take them."""

    @property
    @abstractmethod
    def can_stop(self) -> bool:
        """Whether the accepted tokens are a complete match."""

    @property
    @abstractmethod
    def must_stop(self) -> bool:
        """Whether the accepted tokens are a complete match that nothing can extend. Implies `can_stop`."""

    @property
    @abstractmethod
    def error(self) -> str:
        """Why the guide cannot continue, for example because it exceeded a limit; "" if it can. A token that is not
        allowed is no error."""

    def find_failure(self) -> None:  # noqa: B027 (most guides report each failure themselves)
        """Called when the guide has refused a token that its mask allowed. If the reason is a failure of the guide that
        it has not noticed, `error` tells it from now on."""

    @abstractmethod
    def give_up(self, why: str) -> None:
        """Stop the guide for good: from now on `error` is `why`."""

    @abstractmethod
    def fill(self, out: Row) -> None:
        """Write the mask of the next token to `out`. If tokens are forced, only the first of them is allowed. The mask
        is all zeros only if `must_stop` is true or `error` is not empty."""

    @abstractmethod
    def accept(self, tokens: Sequence[int]) -> int:
        """Advance by the tokens up to the first one that is not allowed. Returns how many were accepted."""

    @abstractmethod
    def rollback(self, n: int) -> None:
        """Undo the last n accepted tokens. Raises IndexError if fewer were accepted."""

    @abstractmethod
    def forced_tokens(self, limit: int) -> list[int]:
        """The tokens that the constraint forces next, at most `limit`. Does not accept them. They are the canonical
        tokens of the forced text, as `fill` would allow them one by one. The list ends before the first position at
        which an allowed token could reach beyond the forced text."""

    def accept_masked(self, tokens: Sequence[int]) -> int:
        """Advance by the tokens up to the first one that a mask of `fill` would not allow. Returns how many were
        accepted. Faster than filling the masks."""
        for n, token in enumerate(tokens):
            forced = self.forced_tokens(1)
            if (token != forced[0] if forced else token in self._ends) or not self.accept((token,)):
                return n
        return len(tokens)


class CompiledConstraint(Protocol):
    """A compiled constraint, for any number of outputs. Threads may share it."""

    @property
    def n_bytes(self) -> int:
        """Approximate memory use, in bytes."""

    @property
    def is_spent(self) -> bool:
        """Whether its outputs have used up a limit, as the `error` of one of its guides has told: running outputs fail,
        and new ones need the constraint compiled anew."""

    def guide(self) -> Guide:
        """A guide at the start of an output."""


def set_bits(row: Row, tokens: Sequence[int]) -> None:
    """Allow the tokens in a mask."""
    words = row.view(np.uint32)
    for token in tokens:
        words[token >> 5] |= np.uint32(1 << (token & 31))


def clear_bits(row: Row, tokens: Sequence[int]) -> None:
    """Forbid the tokens in a mask."""
    words = row.view(np.uint32)
    for token in tokens:
        words[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
