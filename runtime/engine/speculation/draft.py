"""Drafts: tokens proposed before the model has drawn them, and what the sampler has to know of a request inside one.

A draft is a tree: each of its tokens follows another of them, or the text. One forward pass computes the last token of
a request and, behind it, all tokens of its draft, each of which sees the text and its own ancestors alone; and gives
logits for each of these rows. The sampler draws from all of them. From the last token's row on, the draft is followed:
where one of the tokens that come next in it is the one that was drawn, its row says what follows that; where none is,
the draw counts and the draft ends there. What lies beside the path was computed for nothing. So every token of an
output is one that the model drew, with the uniform number of its position, and whoever proposed it has no say: with a
seed, outputs are the same with drafts and without.

For one chain this is rejection sampling (Leviathan et al., Fast inference from transformers via speculative decoding,
2023): token x is accepted with probability p(x), and what comes in its place is distributed as p without x; for a tree,
that of SpecInfer (Miao et al., 2024) where drafts are certain of what they say. That one uniform number does it all is
the coupling of Daliri et al., Coupling without communication and drafter-invariant speculative decoding, 2024.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.step_cost import Cost


class Proposal(NamedTuple):
    """One chain. kind: how the drafter came by it, 0 .. Drafter.n_kinds - 1; each kind's record is kept apart. doubts:
    the tokens, by number and ascending, at which it may go wrong, where the others follow from those before them; None:
    each may."""

    tokens: Sequence[int]
    kind: int = 0
    doubts: Sequence[int] | None = None


class Drafter:
    """Proposes how outputs go on. What it keeps of a request it forgets at `end`.

    cost: of one that computes: seconds of a pass for one token more of each request, and of the rows that it has to
    catch up with; it is asked only where that pays. None: next to nothing.
    """

    name: str
    n_kinds: int
    cost: Cost | None = None

    def warm_up(self, n_rows: int) -> None:
        """Before anybody is served: have all memory; and who computes, computes n_rows rows and fewer that no one asked
        for, while pages hold nothing: that shows what they cost."""

    def learn(self, spelling: Sequence[bytes], marks: Collection[int]) -> None:
        """What the tokens spell, and which are no text. Told once, or never."""

    def can_draft(self, request: Request) -> bool:
        """Whether it could say something of this request now."""
        return True

    def n_behind(self, request: Request) -> int:
        """Rows that it would have to catch up with before it can say something of this request."""
        return 0

    def prepare(self, asks: Sequence[tuple[Request, int]]) -> None:
        """`propose` will be called for these requests in this step, with this n: for who computes or looks up for
        all of them together."""

    def propose(self, request: Request, n: int) -> Sequence[Proposal]:
        """Chains of at most n tokens that may follow those of the request, the likeliest first. Changes no output."""
        raise NotImplementedError

    def end(self, request: Request) -> None:
        """The request has ended, or failed; it may have never been proposed for."""


class DraftPosition:
    """A request as it stands behind a token of its draft: a `Request` as far as the sampler asks."""

    __slots__ = ("ends", "guide", "has_edits", "is_plain", "n_back", "n_out", "n_total", "rid", "run", "sampling",
                 "seen", "stop_ids", "token")  # fmt: skip

    def __init__(self, request: Request, n: int, token: int, seen: dict[int, int] | None, n_back: int = 0) -> None:
        """n: tokens of the draft up to here, with `token`, the last. n_back: the row before stands so many tokens
        behind the one that `token` follows."""
        self.token, self.n_back = token, n_back
        self.n_total, self.n_out = request.n_total + n, request.n_out + n
        self.rid, self.run, self.sampling, self.seen = request.rid, request.run, request.sampling, seen
        self.stop_ids, self.guide, self.ends = request.stop_ids, request.guide, request.ends
        self.is_plain, self.has_edits = request.is_plain, request.has_edits


def rows_of(draft: Sequence[int], parents: Sequence[int], request: Request) -> list[Request | DraftPosition]:
    """Who draws from the rows of a request's draft, one for each of its tokens. For `parents` see `Work`."""
    if request.is_plain:
        return [request] * len(draft)  # the argmax, wherever it stands
    out: list[Request | DraftPosition] = []
    seen = [request.seen]  # at the last token, then behind each of the draft's
    depth = [0]
    for i, token in enumerate(draft):
        above = parents[i] + 1 if parents else i
        n = depth[above] + 1
        was = seen[above]
        seen.append(None if was is None else was | {token: was.get(token, 0) + 1})
        out.append(DraftPosition(request, n, token, seen[-1], depth[-1] - n + 1))
        depth.append(n)
    return out


def follow(draft: Sequence[int], parents: Sequence[int], drawn: list[int]) -> tuple[Sequence[int], list[int]]:
    """The tokens of a draft that were drawn, as numbers in it; and what was drawn, these tokens and one more.

    drawn[0]: what was drawn behind the text, drawn[1 + i]: behind draft[i]."""
    if not draft:
        return (), drawn
    if not parents:
        n = next((k for k, token in enumerate(draft) if token != drawn[k]), len(draft))
        return range(n), list(drawn[: n + 1])
    below = {(parent, token): i for i, (parent, token) in enumerate(zip(parents, draft, strict=True))}
    path: list[int] = []
    said = [drawn[0]]
    at = below.get((-1, drawn[0]))
    while at is not None:
        path.append(at)
        said.append(drawn[1 + at])
        at = below.get((at, drawn[1 + at]))
    return path, said


def moved(request: Request, parents: Sequence[int], path: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Where the tokens of a draft's path were computed, and where they belong, if that is not the same. To be moved
    before others may find them, as they are published."""
    if not parents or path == list(range(len(path))):
        return []
    end = request.n_total
    return [([request.slot(end + i) for i in path], [request.slot(end + k) for k in range(len(path))])]
