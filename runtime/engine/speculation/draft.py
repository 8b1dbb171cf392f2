"""Drafts: tokens proposed before the model has drawn them, and what the sampler has to know of a request inside one.

One forward pass computes the last token of a request and the tokens of its draft behind it, as any chunk, and gives
logits for each of these rows. The sampler draws from all of them; a draft's token is right where it is the one that was
drawn before it. The first that is not ends it: the token drawn there counts, and what stands behind was computed for
nothing. So every token of an output is one that the model drew, with the uniform number of its position, and whoever
proposed it has no say: with a seed, outputs are the same with drafts and without.

For a drafter that proposes one chain this is rejection sampling (Leviathan et al., Fast inference from transformers via
speculative decoding, 2023): token x is accepted with probability p(x), and what comes in its place is distributed as p
without x. That one uniform number does both is the coupling of Daliri et al., Coupling without communication and
drafter-invariant speculative decoding, 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from banyan.runtime.engine.request import Request


class Proposal(NamedTuple):
    """kind: how the drafter came by the tokens, 0 .. Drafter.n_kinds - 1; each kind's record is kept apart."""

    tokens: Sequence[int]
    kind: int = 0


class Drafter(Protocol):
    """Proposes how outputs go on. What it keeps of a request it forgets at `end`."""

    name: str
    n_kinds: int

    def propose(self, request: Request, n: int) -> Proposal | None:
        """At most n tokens that may follow those of the request; None where it knows none. Changes no output."""

    def end(self, request: Request) -> None:
        """The request has ended, or failed; it may have never been proposed for."""


class Ahead:
    """A request as it stands behind the first `n` tokens of its draft: a `Request` as far as the sampler asks."""

    __slots__ = ("ends", "guide", "has_edits", "is_plain", "n_out", "n_total", "rid", "run", "sampling", "seen",
                 "stop_ids", "token")  # fmt: skip

    def __init__(self, request: Request, n: int, token: int, seen: dict[int, int] | None) -> None:
        """token: the last of the n."""
        self.token = token
        self.n_total, self.n_out = request.n_total + n, request.n_out + n
        self.rid, self.run, self.sampling, self.seen = request.rid, request.run, request.sampling, seen
        self.stop_ids, self.guide, self.ends = request.stop_ids, request.guide, request.ends
        self.is_plain, self.has_edits = request.is_plain, request.has_edits


def rows_of(draft: Sequence[int], request: Request) -> list[Request | Ahead]:
    """Who draws from the rows of a request's draft, one for each of its tokens."""
    if request.is_plain:
        return [request] * len(draft)  # the argmax, wherever it stands
    out: list[Request | Ahead] = []
    seen = request.seen
    for n, token in enumerate(draft, 1):
        if seen is not None:
            seen = seen | {token: seen.get(token, 0) + 1}
        out.append(Ahead(request, n, token, seen))
    return out
