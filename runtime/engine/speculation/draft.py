"""Drafts: tokens proposed before the model has sampled them, and how they are verified.

A draft is a tree: each of its tokens follows another of them, or the text. One forward pass computes the last token of
a request and all tokens of its draft; each draft token sees the text and its own ancestors, and the sampler samples
from every row. A draft token is accepted if it equals the token that was sampled after its accepted parent. So the
model has sampled each output token, with the random number of its position: with a seed, outputs are the same with
drafts and without.

For one chain this is rejection sampling (Leviathan et al., Fast inference from transformers via speculative decoding,
2023); for a tree, it is the sampling of SpecInfer (Miao et al., 2024) with deterministic drafts. One uniform number per
position is the coupling of Daliri et al., Coupling without communication and drafter-invariant speculative decoding,
2024."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.step_cost import Cost


class Proposal(NamedTuple):
    """One proposed chain. kind: how the drafter found it, 0 .. Drafter.n_kinds - 1; acceptance is measured per kind.
    uncertain: ascending indexes of the tokens that may be wrong; each other token is right if all tokens before it are.
    None: any token may be wrong."""

    tokens: Sequence[int]
    kind: int = 0
    uncertain: Sequence[int] | None = None


class PagesLost(Exception):
    """A drafter could not move pages that the cache had ordered to move: the tree is wrong, and the engine must end."""


class Drafter:
    """Proposes continuations of outputs. cost: for a drafter that runs a model, the predicted seconds of one pass, from
    the number of requests and the number of rows that it must catch up with. The controller asks such a drafter only if
    it expects to save time. None: a proposal costs next to nothing."""

    name: str
    n_kinds: int
    cost: Cost | None = None

    def warm_up(self, n_rows: int) -> None:
        """Allocate all memory. A drafter with a model also computes up to n_rows rows, which measures their cost.
        Called before the first request, while the pages hold nothing."""

    def set_vocabulary(self, spelling: Sequence[bytes], control: Collection[int]) -> None:
        """Receives the tokens' bytes, and the tokens that are not text. Called at most once."""

    def can_draft(self, request: Request) -> bool:
        """Whether the drafter can propose something for this request now."""
        return True

    def n_behind(self, request: Request) -> int:
        """How many rows the drafter must compute before it can propose something for this request."""
        return 0

    def prepare(self, asks: Sequence[tuple[Request, int]]) -> None:
        """Prepare the proposals of a step, for drafters that compute them as a batch. asks: the requests and limits of
        the `propose` calls that follow."""

    def propose(self, request: Request, n: int) -> Sequence[Proposal]:
        """Return chains of at most n tokens that may follow the request's last token, the most likely chain first. A
        chain may contain rows of an image (ids below 0), if it was copied from a prompt; the caller cuts the chain
        before them."""
        raise NotImplementedError

    def end(self, request: Request) -> None:
        """Release what is kept for a request that has ended or failed. Called even if nothing was ever proposed for
        it."""

    def kept(self) -> dict[str, tuple[int, int]]:
        """Memory that is kept after requests have ended, by name: (its approximate bytes, the maximum)."""
        return {}


class DraftPosition:
    """A request as it would be after a token of its draft. Has the fields of `Request` that the sampler reads."""

    __slots__ = ("end_ids", "guide", "has_edits", "is_plain", "n_back", "n_out", "n_total", "rid", "run", "sampling",
                 "stop_ids", "token", "token_counts")  # fmt: skip

    def __init__(self, request: Request, n: int, token: int, counts: dict[int, int] | None, n_back: int = 0) -> None:
        """n: the number of draft tokens up to and including `token`, along its path in the tree. counts: see
        Request.token_counts. n_back: how many tokens the path of the previous row must go back to reach this token's
        parent; 0: the previous row is the parent."""
        self.token, self.n_back = token, n_back
        self.n_total, self.n_out = request.n_total + n, request.n_out + n
        self.rid, self.run, self.sampling, self.token_counts = request.rid, request.run, request.sampling, counts
        self.stop_ids, self.guide, self.end_ids = request.stop_ids, request.guide, request.end_ids
        self.is_plain, self.has_edits = request.is_plain, request.has_edits


def draft_rows(draft: Sequence[int], parents: Sequence[int], request: Request) -> list[Request | DraftPosition]:
    """For each draft token, the object from which the sampler reads the sampling parameters, position and token counts
    of its row: a DraftPosition, or the request itself if each row only needs the argmax of its logits (`is_plain`).
    parents: as in `Work`."""
    if request.is_plain:
        return [request] * len(draft)  # the argmax, whatever its position
    out: list[Request | DraftPosition] = []
    counts = [request.token_counts]  # after the last token of the text, then after each draft token
    depth = [0]
    for i, token in enumerate(draft):
        above = parents[i] + 1 if parents else i
        n = depth[above] + 1
        before = counts[above]
        counts.append(None if before is None else before | {token: before.get(token, 0) + 1})
        out.append(DraftPosition(request, n, token, counts[-1], depth[-1] - n + 1))
        depth.append(n)
    return out


def accept_path(draft: Sequence[int], parents: Sequence[int], sampled: list[int]) -> tuple[Sequence[int], list[int]]:
    """Returns the indexes in `draft` of the accepted tokens, and the new output tokens: the accepted tokens and one
    more.

    parents: as in `Work`. sampled: the token that the model sampled in each row. sampled[0] follows the last token of
    the text, sampled[1 + i] follows draft[i].
    """
    if not parents:
        n = next((k for k, token in enumerate(draft) if token != sampled[k]), len(draft))
        return range(n), list(sampled[: n + 1])
    below = {(parent, token): i for i, (parent, token) in enumerate(zip(parents, draft, strict=True))}
    path: list[int] = []
    tokens = [sampled[0]]
    at = below.get((-1, sampled[0]))
    while at is not None:
        path.append(at)
        tokens.append(sampled[1 + at])
        at = below.get((at, sampled[1 + at]))
    return path, tokens


def slot_moves(request: Request, parents: Sequence[int], path: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the copies of KV that accepted draft tokens need, because a token of a branch was not computed in its
    final slot. Each entry is (source slots, destination slots), lists of equal length. A slot s of windowed layers is
    given as ~s. The copies must be made before the next step."""
    if not parents or path == list(range(len(path))):
        return []
    end = request.n_total
    sources, to = [end + i for i in path], range(end, end + len(path))
    moves = [([*map(request.slot, sources)], [*map(request.slot, to)])]
    if request.lease is not None and request.lease.window is not None:
        moves.append(([~request.window_slot(i) for i in sources], [~request.window_slot(i) for i in to]))
    return moves
