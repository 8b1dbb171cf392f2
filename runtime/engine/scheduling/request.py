"""One generation in the engine, and what a step passes between the scheduler and the model. No torch.

A request has no phase, only counts: of its `n_total` tokens, `n_computed` have their keys and values in its pages, and
a step computes `n_new` more. Prefill, a chunk of it, decode and a prefix found in the tree are this one case; where a
step reaches the last token, it also draws the next.

A step may be planned while the one before it is still computed: by counts, as `n_flying` and `n_pending` say what will
have become of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import nan
from typing import Any, NamedTuple

from banyan.radix_cache.cache import Lease
from banyan.radix_cache.host_tier import Move
from banyan.runtime.constraint.guide import Guide
from banyan.runtime.protocol.wire import Run, TopLogprobs

NO_TOKEN = -1
"""In a Result: there was nothing to choose from, as the model gave NaN or all tokens are forbidden."""


MAX_TREE = 64
"""Rows of a work whose draft branches: as many as a row's mask of ancestors has bits, and no more than a window."""


class ServiceAccount:
    """What a client, or a program, was given: tokens computed for it. n_here: its requests in the scheduler."""

    __slots__ = ("n_here", "n_served")

    def __init__(self, n_served: int) -> None:
        self.n_served, self.n_here = n_served, 0


class Request:
    """The state of one Run. Only the scheduler changes it."""

    __slots__ = (
        "client",
        "drafted",
        "end",
        "ends",
        "guide",
        "has_edits",
        "ids",
        "is_plain",
        "is_waiting",
        "key",
        "lease",
        "n_cached",
        "n_computed",
        "n_flying",
        "n_forced",
        "n_given",
        "n_pending",
        "n_prompt",
        "n_published",
        "program",
        "rid",
        "run",
        "sampling",
        "scores",
        "seen",
        "since",
        "started",
        "stop_ids",
        "tops",
    )

    client: ServiceAccount
    program: ServiceAccount
    key: tuple[Any, ...]
    """Its rank, by the queue: minus its priority, and more. Of two, the smaller goes first when pages are short."""

    def __init__(self, run: Run, end: int, guide: Guide | None = None, ends: tuple[int, ...] = ()) -> None:
        """`end`: the n_total at which its length ends it. `guide`: of its constraint, where it stands now. `ends`: its
        stop ids that are no text, which a guide leaves to us."""
        self.rid = run.rid
        self.run = run
        self.sampling = run.sampling
        self.is_waiting = False
        self.since = nan  # when it began to wait; nan while it does not, or no step was planned since
        self.ids = array("i", run.ids)
        self.stop_ids = frozenset(array("i", run.stop_ids))
        self.n_given = len(self.ids)  # tokens that came with the Run
        self.n_prompt = self.n_given - run.n_done
        self.end = end
        self.n_computed = 0
        self.n_published = 0
        # While a step is planned behind one that is still computed: tokens that this one computes of it, and whether it
        # draws one that the text goes on from. Else 0.
        self.n_flying = self.n_pending = 0
        self.started = 0.0  # when it was first planned
        self.drafted = array("i")  # which tokens of its output were there before they were computed
        self.n_forced = 0  # so many of them because the constraint leaves no other
        self.n_cached = -1  # prompt tokens found in the tree at its first start; -1 before
        self.scores = array("f")  # logprobs of the prompt tokens from score_from on, as far as computed
        self.tops: list[TopLogprobs] = []  # the same with alternatives, where they are asked for
        self.lease: Lease | None = None  # held while it runs
        self.guide, self.ends = guide, ends
        s = self.sampling
        has_penalties = bool(s.frequency_penalty or s.presence_penalty or s.repetition_penalty != 1.0)
        self.has_edits = has_penalties or bool(s.logit_bias or s.min_tokens)
        self.is_plain = not (
            self.has_edits or s.temperature or s.logprobs or guide
        )  # its next token is the argmax of its row
        # How often each token of the text is in its output. Only with penalties, and None without: few have them.
        self.seen: dict[int, int] | None = dict.fromkeys(self.ids, 0) if has_penalties else None
        for token in self.ids[self.n_prompt :] if has_penalties else ():
            self.count(token)

    def extend(self, tokens: Sequence[int]) -> None:
        """More tokens of output."""
        self.ids.extend(tokens)
        for token in tokens if self.seen is not None else ():
            self.count(token)

    def count(self, token: int) -> None:
        assert self.seen is not None
        self.seen[token] = self.seen.get(token, 0) + 1

    @property
    def pages(self) -> list[int]:
        """Where its tokens stand, while it runs."""
        assert self.lease is not None
        return self.lease.pages

    def slot(self, i: int) -> int:
        """Where its i-th token stands, counted over all pages, while it runs."""
        assert self.lease is not None
        page = self.lease.cache.page
        return self.lease.pages[i // page] * page + i % page

    @property
    def n_total(self) -> int:
        return len(self.ids)

    @property
    def n_out(self) -> int:
        """Tokens generated so far, those of an engine before this one included."""
        return len(self.ids) - self.n_prompt

    @property
    def n_reusable(self) -> int:
        """How long a prefix from the tree may be. The last token is always computed: its row draws the next one. So is
        what stands before a token whose logprob is still to be given."""
        n_scored = self.run.score_from + len(self.scores)
        return n_scored - 1 if 0 < n_scored < self.n_prompt else len(self.ids) - 1

    @property
    def n_left(self) -> int:
        """Tokens that no step has computed or computes now. 0: the one that computes now is its last."""
        return len(self.ids) + self.n_pending - self.n_computed - self.n_flying

    @property
    def is_prefilling(self) -> bool:
        return self.n_left > 1


class Work(NamedTuple):
    """What one request does in one step: compute tokens start .. start + n_new, into the pages of a lease.

    draws: its last row gives the next token. n_scored: so many tokens from `score_at` on get their logprob. draft: of
    one that draws, computed behind them; each of its rows draws too. parents: of each token of the draft, which of its
    tokens it follows, a lower number, or -1: the text; (): each follows the one before it.
    """

    request: Request
    lease: Lease
    start: int
    n_new: int
    draws: bool
    score_at: int = 0
    n_scored: int = 0
    draft: Sequence[int] = ()
    parents: Sequence[int] = ()

    @property
    def n_pending(self) -> int:
        """1: it draws a token that its text goes on from, unless that ends it. 0: none, or the last by length."""
        return int(self.draws and self.request.n_total + 1 < self.request.end)

    @property
    def is_wanted(self) -> bool:
        """Whether the request still goes on from here: it has not ended since, and does not begin anew."""
        return self.request.lease is self.lease


def work_of(request: Request, n_new: int) -> Work:
    """What computing its next n_new tokens is."""
    assert request.lease is not None
    start = request.n_computed + request.n_flying
    reach = start + n_new
    draws = reach == request.n_total + request.n_pending < request.end
    if request.run.score_from < 0:
        return Work(request, request.lease, start, n_new, draws)
    score_at = request.run.score_from + len(request.scores)
    n_scored = max(0, min(reach + 1, request.n_prompt) - score_at)
    return Work(request, request.lease, start, n_new, draws, score_at, n_scored)


class Plan(NamedTuple):
    """One step. moves: between the device and host memory, to be done first, in order. copies: (source page,
    destination page, n_slots), to be done next, before anything is written. is_ahead: it was made while the step before
    it was computed; where that one draws a token, a work may start with it, unseen."""

    works: tuple[Work, ...]
    copies: tuple[tuple[int, int, int], ...] = ()
    moves: tuple[Move, ...] = ()
    is_ahead: bool = False

    @property
    def n_rows(self) -> int:
        """Without drafts."""
        return sum(work.n_new for work in self.works)


class Result(NamedTuple):
    """What the model gave for a plan.

    ids: of each work that draws, in order, one, and one per token of its draft. logprobs: by rid, of each of these, for
    those that asked. scores: by rid, the logprobs of the
    scored tokens of this step; tops: with the alternatives to each, for those that asked.
    """

    ids: list[int]
    logprobs: dict[int, list[TopLogprobs]]
    scores: dict[int, list[float]]
    tops: dict[int, list[TopLogprobs]]
