"""Chains of several drafters as one tree: what they have in common stands once, and where they differ it branches.

A tree is kept as its branches, runs of tokens, since nearly all are one or two, with the chance that each is right as
far as each of its tokens.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul, neg
from typing import NamedTuple

SURE = 0.99
"""The chance of no token in doubt is higher."""


class Chain(NamedTuple):
    """A proposal, and the chances of its tokens, behind the ones before them: of those in doubt; and `other`, of one
    that is proposed beside another. is_first: it is what its drafter thinks likeliest."""

    tokens: Sequence[int]
    drafter: int
    kind: int
    chance: float
    other: float
    is_first: bool = True
    doubts: Sequence[int] | None = None  # see `draft.Proposal`

    def chances(self) -> list[float]:
        """Of each token, behind the one before. What follows from that is certain: a long draft with little in doubt
        would end early for it."""
        chance = min(self.chance, SURE)
        if self.doubts is None:
            return [chance] * len(self.tokens)
        out = [1.0] * len(self.tokens)
        for i in self.doubts:
            out[i] = chance
        return out

    def n_right(self, said: Sequence[int]) -> tuple[int, bool]:
        """How many of its doubts came out right, of those that what was said decides; and whether none was wrong."""
        n = next((k for k, (a, b) in enumerate(zip(self.tokens, said, strict=False)) if a != b), -1)
        is_whole = n < 0
        n = min(len(self.tokens), len(said)) if is_whole else n
        if self.doubts is None:
            return n, is_whole
        n_met = bisect_right(self.doubts, n - is_whole)
        return (n_met if is_whole else max(0, n_met - 1)), is_whole


class DraftBranch:
    """A run of tokens: `at` tokens deep it leaves the branch number `above` (-1: the text), or goes on from its end."""

    __slots__ = ("_gains", "_negated", "above", "at", "chain", "chances", "is_other", "tokens")

    def __init__(self, chain: Chain, chances: list[float], above: int, at: int, first: float, is_other: bool) -> None:
        """chances: of its tokens, behind the ones before. first: that its first token is right, and with it all before.
        is_other: another token is proposed in the same place, and is likelier."""
        self.chain, self.tokens, self.chances = chain, chain.tokens[at:] if at else chain.tokens, chances
        self.above, self.at, self.is_other = above, at, is_other
        upto: list[float] = list(accumulate((first, *chances[1:]), mul))
        self._negated: list[float] = list(map(neg, upto))  # ascending
        self._gains: list[float] = list(accumulate(upto))

    def upto(self, least: float) -> int:
        """How many of its tokens have at least that chance."""
        return bisect_right(self._negated, -least)

    def gain(self, n: int) -> float:
        """How many of its first n tokens will be right. n >= 1."""
        return self._gains[n - 1]

    def chance_at(self, depth: int) -> float:
        """That the draft is right up to its token at that depth."""
        return -self._negated[depth - self.at]


def merge(chains: Sequence[Chain]) -> list[DraftBranch]:
    """The branches of a tree that holds all chains, those first that others leave."""
    branches: list[DraftBranch] = []
    for chain in chains:
        tokens, n = chain.tokens, len(chain.tokens)
        above, k = -1, 0
        while k < n:
            i = _find(branches, above, k, tokens[k])
            if i < 0:
                break
            above, branch = i, branches[i]
            start = k
            while k < n and k - start < len(branch.tokens) and tokens[k] == branch.tokens[k - start]:
                k += 1
        if k == n:
            continue
        before = branches[above].chance_at(k - 1) if above >= 0 else 1.0
        beside = [b.chances[0] for b in branches if b.above == above and b.at == k]
        if above >= 0 and k - branches[above].at < len(branches[above].tokens):
            beside.append(branches[above].chances[k - branches[above].at])
        chances = chain.chances()[k:]
        chance = min(chain.other, 1 - max(beside)) if beside else chances[0]
        branches.append(DraftBranch(chain, chances, above, k, before * chance, bool(beside)))
    return branches


def _find(branches: Sequence[DraftBranch], above: int, at: int, token: int) -> int:
    return next((i for i, b in enumerate(branches) if b.above == above and b.at == at and b.tokens[0] == token), -1)


class Laid(NamedTuple):
    """A tree as it is computed: each token's parent before it, the tokens below one behind the other. parents: () where
    each follows the one before it. drafters: whose token each is."""

    tokens: array[int]
    parents: list[int]
    drafters: list[int]


def lay(branches: Sequence[DraftBranch], counts: Sequence[int]) -> Laid:
    """Of each branch its first `counts` tokens. The likeliest branch comes first: what is accepted of it stands where
    it belongs already."""
    if not any(counts[1:]):
        tokens = array("i", branches[0].tokens[: counts[0]])
        return Laid(tokens, [], [branches[0].chain.drafter] * len(tokens))
    out = Laid(array("i"), [], [])
    ends: dict[tuple[int, int], int] = {}  # (branch, depth) -> token's number

    def put(i: int) -> None:
        branch = branches[i]
        last = ends.get((branch.above, branch.at - 1), -1)
        for k in range(counts[i]):
            out.parents.append(last)
            last = ends[i, branch.at + k] = len(out.tokens)
            out.tokens.append(branch.tokens[k])
            out.drafters.append(branch.chain.drafter)
        below = [j for j, b in enumerate(branches) if b.above == i and counts[j]]
        for j in sorted(below, key=lambda j: -branches[j].at):  # the deepest first, so that the way back is short
            put(j)

    for i, branch in enumerate(branches):
        if branch.above < 0 and counts[i]:
            put(i)
    return out


def prune(laid: Laid, is_kept: Sequence[bool]) -> Laid:
    """Without the tokens that are not kept, and what stands below them."""
    number: dict[int, int] = {-1: -1}
    out = Laid(array("i"), [], [])
    for i, token in enumerate(laid.tokens):
        above = number.get(laid.parents[i])
        if is_kept[i] and above is not None:
            number[i] = len(out.tokens)
            out.tokens.append(token)
            out.parents.append(above)
            out.drafters.append(laid.drafters[i])
    is_chain = all(parent == i - 1 for i, parent in enumerate(out.parents))
    return Laid(out.tokens, [], out.drafters) if is_chain else out
