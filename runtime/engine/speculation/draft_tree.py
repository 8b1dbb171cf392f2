"""Merges the chains of several drafters into one tree: shared tokens occur once, and it branches where they differ.

A tree is stored as branches, which are runs of tokens, because nearly all trees have one or two."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul, neg
from typing import NamedTuple

from banyan.runtime.engine.scheduling.request import Request

SURE = 0.99  # upper bound of the probability of an uncertain token


class Chain(NamedTuple):
    """A proposal with probabilities. A token is *right* if it equals the sampled one. drafter: index of the drafter.
    chance: the probability that an uncertain token is right, if all tokens before it are. other: the same for a token
    at a position where another chain has a more likely token. is_first: this is the drafter's most likely chain.
    uncertain: see `draft.Proposal`."""

    tokens: Sequence[int]
    drafter: int
    kind: int
    chance: float
    other: float
    is_first: bool = True
    uncertain: Sequence[int] | None = None

    def chances(self) -> list[float]:
        """The probability of each token, given those before it. A token that is not uncertain has probability 1."""
        chance = min(self.chance, SURE)
        if self.uncertain is None:
            return [chance] * len(self.tokens)
        out = [1.0] * len(self.tokens)
        for i in self.uncertain:
            out[i] = chance
        return out

    def n_right(self, sampled: Sequence[int]) -> tuple[int, bool]:
        """Compare the chain with the sampled tokens. Returns (how many uncertain tokens are right, whether no token is
        wrong). If the first wrong token is not itself uncertain, the last uncertain token before it counts as wrong."""
        n = next((k for k, (a, b) in enumerate(zip(self.tokens, sampled, strict=False)) if a != b), -1)
        is_whole = n < 0
        n = min(len(self.tokens), len(sampled)) if is_whole else n
        if self.uncertain is None:
            return n, is_whole
        n_decided = bisect_right(self.uncertain, n - is_whole)
        return (n_decided if is_whole else max(0, n_decided - 1)), is_whole


class DraftBranch:
    """A run of draft tokens in a tree. above: the index of the branch from which this one branches off, or which it
    extends; -1: it follows the text. at: how many draft tokens are between the text and the branch's first token."""

    __slots__ = ("_gains", "_negated", "above", "at", "chain", "chances", "is_other", "tokens")

    def __init__(self, chain: Chain, chances: list[float], above: int, at: int, first: float, is_other: bool) -> None:
        """The branch has the tokens of `chain` starting at depth `at`. chances: for each token, the probability that it
        is accepted if all before it are. first: the probability that the first token is accepted. is_other: another
        branch has a more likely token in the first token's place."""
        self.chain, self.tokens, self.chances = chain, chain.tokens[at:] if at else chain.tokens, chances
        self.above, self.at, self.is_other = above, at, is_other
        cumulative: list[float] = list(accumulate((first, *chances[1:]), mul))
        self._negated: list[float] = list(map(neg, cumulative))  # ascending
        self._gains: list[float] = list(accumulate(cumulative))

    def length(self, threshold: float) -> int:
        """How many of the branch's first tokens to keep: those that are accepted with a probability of at least
        `threshold`."""
        return bisect_right(self._negated, -threshold)

    def gain(self, n: int) -> float:
        """The expected number of accepted tokens among the first n of the branch. n >= 1."""
        return self._gains[n - 1]

    def chance_at(self, depth: int) -> float:
        """The probability that the branch's token at this depth of the tree is accepted."""
        return -self._negated[depth - self.at]


def merge(chains: Sequence[Chain]) -> list[DraftBranch]:
    """Build a tree that contains all chains. Returns its branches; a branch comes after the one from which it branches
    off."""
    branches: list[DraftBranch] = []
    for chain in chains:
        tokens, n = chain.tokens, len(chain.tokens)
        above, k = -1, 0
        while k < n:
            token = tokens[k]
            starts = (i for i, b in enumerate(branches) if b.above == above and b.at == k and b.tokens[0] == token)
            i = next(starts, -1)
            if i < 0:
                break
            above, branch = i, branches[i]
            start = k
            while k < n and k - start < len(branch.tokens) and tokens[k] == branch.tokens[k - start]:
                k += 1
        if k == n:
            continue
        before = branches[above].chance_at(k - 1) if above >= 0 else 1.0
        alternatives = [b.chances[0] for b in branches if b.above == above and b.at == k]
        if above >= 0 and k - branches[above].at < len(branches[above].tokens):
            alternatives.append(branches[above].chances[k - branches[above].at])
        chances = chain.chances()[k:]
        chance = min(chain.other, 1 - max(alternatives)) if alternatives else chances[0]
        branches.append(DraftBranch(chain, chances, above, k, before * chance, bool(alternatives)))
    return branches


class DraftTokens(NamedTuple):
    """A draft in the order in which it is computed. parents: as in `Work`. drafters: the drafter that proposed each
    token, by index."""

    tokens: array[int]
    parents: list[int]
    drafters: list[int]


def flatten(branches: Sequence[DraftBranch], counts: Sequence[int]) -> DraftTokens:
    """Put the first counts[i] tokens of each branch i into one draft. The most likely branch comes first, because the
    KV of its tokens then needs no move when they are accepted."""
    if not any(counts[1:]):
        tokens = array("i", branches[0].tokens[: counts[0]])
        return DraftTokens(tokens, [], [branches[0].chain.drafter] * len(tokens))
    out = DraftTokens(array("i"), [], [])
    ends: dict[tuple[int, int], int] = {}  # (branch, depth) -> index in out

    def put(i: int) -> None:
        branch = branches[i]
        last = ends.get((branch.above, branch.at - 1), -1)
        for k in range(counts[i]):
            out.parents.append(last)
            last = ends[i, branch.at + k] = len(out.tokens)
            out.tokens.append(branch.tokens[k])
            out.drafters.append(branch.chain.drafter)
        below = [j for j, b in enumerate(branches) if b.above == i and counts[j]]
        for j in sorted(below, key=lambda j: -branches[j].at):  # the deepest first: a guide rolls back the least
            put(j)

    for i, branch in enumerate(branches):
        if branch.above < 0 and counts[i]:
            put(i)
    return out


def trim(request: Request, draft: DraftTokens, budget: int) -> DraftTokens:
    """Shorten a draft to the budget and to the pages that the request can claim, and claim these pages. Drops tokens
    that end the output or that the constraint forbids, with all tokens that follow them. Returns the remaining draft;
    may change `draft`."""
    tokens, parents = draft.tokens, draft.parents
    assert request.lease is not None
    n = min(budget, len(tokens))
    if n > 0 and not request.lease.grow(request.n_total + n):
        n = request.lease.n_slots - request.n_total
    n = max(n, 0)
    del tokens[n:], parents[n:], draft.drafters[n:]
    stops, guide = request.stop_ids, request.guide
    if not parents:
        n = next((i for i, token in enumerate(tokens) if token in stops), n)
        if guide is not None and n:
            n = guide.accept(tokens[:n])
            guide.rollback(n)
        del tokens[n:], draft.drafters[n:]
        return draft
    out = DraftTokens(array("i"), [], [])
    index, depth = {-1: -1}, {-1: 0}  # index in `draft` -> (index in `out`, depth), for the tokens that are kept
    n_in = 0  # tokens that the guide has accepted
    for i, (token, parent, drafter) in enumerate(zip(*draft, strict=True)):
        if token in stops or parent not in index:
            continue
        if guide is not None:
            guide.rollback(n_in - depth[parent])
            n_in = depth[parent]
            if not guide.accept((token,)):
                continue
            n_in += 1
        index[i], depth[i] = len(out.tokens), depth[parent] + 1
        out.tokens.append(token)
        out.parents.append(index[parent])
        out.drafters.append(drafter)
    if guide is not None:
        guide.rollback(n_in)
    is_chain = all(parent == i - 1 for i, parent in enumerate(out.parents))
    return out._replace(parents=[]) if is_chain else out
