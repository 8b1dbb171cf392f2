"""What the engine asks of a constraint, whatever engine is underneath.

A `CompiledConstraint` is made once per constraint and shared; a `Guide` is one output's state in it, O(1) to make. A
mask is a row of int32 words: bit t & 31 of word t >> 5 says whether token t may come next. A guide never sets tokens
that end an output (eos, stop ids): the caller sets them, exactly where `can_stop`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.int32]
"""int32 [n_words]."""
Rows = npt.NDArray[np.int32]
"""int32 [n, n_words]."""


class Guide(Protocol):
    """One output's place in its constraint. It has one owner: two threads never use it at once."""

    @property
    def can_stop(self) -> bool:
        """Whether what was accepted so far is whole."""

    @property
    def must_stop(self) -> bool:
        """Whether nothing may follow what was accepted so far. Implies `can_stop`."""

    @property
    def error(self) -> str:
        """Why it can go no further; "" while it can. A limit that was met, never the output's fault."""

    def give_up(self, why: str) -> None:
        """Go no further: `error` is `why` from here on."""

    def fill(self, out: Row) -> None:
        """Write the mask of what may come next, all words of it; of a forced run, its first token alone. All zeros only
        where `must_stop`, or with `error`."""

    def take(self, tokens: Sequence[int]) -> int:
        """Go on by tokens, as far as the masks that `fill` would write have them; how many. Quicker than the masks."""

    def fill_chain(self, draft: Sequence[int], out: Rows) -> int:
        """The masks before draft[0], draft[1], ... and behind the last; out is [len(draft) + 1, n_words].

        Returns how many tokens of the draft are allowed; rows behind the first that is not are all ones. The state
        stays where it is.
        """

    def fill_tree(self, parent: Sequence[int], draft: Sequence[int], out: Rows) -> list[bool]:
        """The masks *behind* each node of a tree of tokens, out[i] for node i; [len(draft), n_words].

        parent[i] < i is the node before i, -1 for those that follow the state itself. Returns which nodes are
        reachable; the row of one that is not is all ones. The state stays where it is.
        """

    def accept(self, tokens: Sequence[int]) -> int:
        """Go on by tokens, as far as they are allowed; how many were."""

    def rollback(self, n: int) -> None:
        """Take back the last n accepted tokens. IndexError if there are not as many."""

    def forced_tokens(self, limit: int) -> list[int]:
        """Tokens that must come next, at most `limit`; not accepted yet. Those that drawing would give: canonical
        tokens, and only as far as no other token could begin inside them."""


class CompiledConstraint(Protocol):
    """A constraint, ready for any number of outputs. Immutable; threads may share it."""

    @property
    def n_bytes(self) -> int:
        """Memory it holds, roughly."""

    def guide(self) -> Guide: ...


def set_bits(row: Row, tokens: Sequence[int]) -> None:
    """Allow the tokens."""
    words = row.view(np.uint32)
    for token in tokens:
        words[token >> 5] |= np.uint32(1 << (token & 31))


def clear_bits(row: Row, tokens: Sequence[int]) -> None:
    """Forbid the tokens."""
    words = row.view(np.uint32)
    for token in tokens:
        words[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)


def take(guide: Guide, tokens: Sequence[int], ends: Collection[int] = ()) -> int:
    """`Guide.take` by what is forced, and else by `accept`. ends: tokens that no mask has, accepted or not."""
    for n, token in enumerate(tokens):
        forced = guide.forced_tokens(1)
        if (token != forced[0] if forced else token in ends) or not guide.accept((token,)):
            return n
    return len(tokens)


def fill_chain(guide: Guide, draft: Sequence[int], out: Rows) -> int:
    """`Guide.fill_chain` by walking the chain and back."""
    out[:] = -1
    guide.fill(out[0])
    n = 0
    while n < len(draft) and guide.accept(draft[n : n + 1]):
        n += 1
        guide.fill(out[n])
    guide.rollback(n)
    return n


def fill_tree(guide: Guide, parent: Sequence[int], draft: Sequence[int], out: Rows) -> list[bool]:
    """`Guide.fill_tree` by walking the tree from node to node, with the fewest steps forth and back."""
    reached = [False] * len(draft)
    path: list[int] = []  # nodes that are accepted now
    for node in _depth_first(parent):
        while path and path[-1] != parent[node]:
            guide.rollback(1)
            path.pop()
        above = parent[node] < 0 or reached[parent[node]]
        if above and guide.accept(draft[node : node + 1]):
            path.append(node)
            reached[node] = True
            guide.fill(out[node])
        else:
            out[node] = -1
    guide.rollback(len(path))
    return reached


def _depth_first(parent: Sequence[int]) -> list[int]:
    below: dict[int, list[int]] = {}
    for node in range(len(parent) - 1, -1, -1):  # backwards, so that the first child is on top of the stack
        below.setdefault(parent[node], []).append(node)
    order: list[int] = []
    stack = list(below.get(-1, ()))
    while stack:
        order.append(node := stack.pop())
        stack += below.get(node, ())
    return order
