"""One generation in the engine, and what a step passes between scheduler and model. No torch.

A request has no phase, only counts: of its `n_total` tokens, `n_computed` have their keys and values in its pages, and
a step computes `n_new` more. Prefill, chunked prefill, decode and a cached prefix differ only in these counts. A step
that reaches the last token also samples the next one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import nan
from typing import Any, NamedTuple

from banyan.radix_cache.cache import Lease
from banyan.radix_cache.host_tier import Move
from banyan.runtime.constraint.guide import Guide
from banyan.runtime.protocol.wire import Run, TopLogprobs

NO_TOKEN = -1  # in place of a sampled token: the logits were NaN, or all tokens were forbidden
MAX_TREE = 64  # most rows of a request whose draft branches: a row's mask of ancestors has 64 bits


class ServiceAccount:
    """Tokens computed so far for one client or program, and how many of its requests are in the scheduler. has_ended:
    no more requests of the program will come."""

    def __init__(self, n_served: int) -> None:
        self.n_served, self.n_requests, self.has_ended = n_served, 0, False


class Request:
    """One generation in the engine, made from a `Run` message. Only the scheduler changes it."""

    __slots__ = (
        "client", "drafted", "end_ids", "fork_points", "guide", "has_edits", "ids", "images", "is_plain", "is_waiting",
        "key", "lease", "max_total", "n_cached", "n_computed", "n_forced", "n_inflight", "n_pending", "n_prompt",
        "n_published", "n_submitted", "n_unreported", "program", "rid", "run", "sampling", "scores", "start_time",
        "stop_ids", "token_counts", "tops", "turn", "waiting_since",
    )  # fmt: skip

    client: ServiceAccount
    program: ServiceAccount
    key: tuple[Any, ...]
    """The key by which requests are ordered, set by the queue; the smallest goes first. When pages are short, the
    running request with the largest key is retracted first."""

    def __init__(self, run: Run, max_total: int, guide: Guide | None = None, end_ids: tuple[int, ...] = ()) -> None:
        """run: the message with the prompt and the parameters. max_total: the request ends at the latest when prompt
        and output together have this many tokens. guide: the grammar state of its constraint, if any. end_ids: those
        stop ids that are control tokens, not text; the engine allows them in a mask where the output may end."""
        self.rid, self.run, self.sampling = run.rid, run, run.sampling
        self.max_total, self.guide, self.end_ids = max_total, guide, end_ids
        self.ids = array("i", run.ids)
        self.stop_ids = frozenset(array("i", run.stop_ids))
        self.n_submitted = len(self.ids)  # tokens that came with the Run
        self.n_prompt = self.n_submitted - run.n_done
        self.n_computed = self.n_published = 0
        # While a step is planned ahead: tokens that the step in flight computes, and whether it samples a token that
        # the text continues from. Otherwise 0.
        self.n_inflight = self.n_pending = 0
        self.turn = 0  # the last step in which it had a row while other decodes of its client had none
        self.is_waiting = False
        self.waiting_since = nan  # nan while it does not wait, and until the first plan after it was added
        self.start_time = 0.0  # time of the request's first step
        self.lease: Lease | None = None  # held while it runs
        self.n_cached = -1  # prompt tokens found in the tree at its first start; -1 before
        self.fork_points: set[int] = set()  # positions at which other texts branch off; see `Scheduler._keep_states`
        self.images: dict[bytes, Any] = {}  # digest -> image that it holds; see `Scheduler._lacks_images`
        self.drafted = array("i")  # positions in the output whose tokens were drafted or forced
        self.n_forced = 0  # output tokens that the constraint forced
        self.n_unreported = 0  # last output tokens, which no report has yet
        self.scores = array("f")  # computed logprobs of the prompt tokens, starting at score_from
        self.tops: list[TopLogprobs] = []  # the same with alternatives, where requested
        s = self.sampling
        has_penalties = bool(s.frequency_penalty or s.presence_penalty or s.repetition_penalty != 1.0)
        self.has_edits = has_penalties or bool(s.logit_bias or s.min_tokens)
        # The next token is the argmax of the row, and no logprobs are needed.
        self.is_plain = not (self.has_edits or s.temperature or s.logprobs or guide)
        # How often each token of the text occurs in the output. None without penalties.
        self.token_counts: dict[int, int] | None = None
        if has_penalties:
            self.token_counts = dict.fromkeys((i for i in self.ids if i >= 0), 0)  # rows of images are not counted
            _count(self.token_counts, self.ids[self.n_prompt :])

    def extend(self, tokens: Sequence[int]) -> None:
        """Append output tokens."""
        self.ids.extend(tokens)
        self.n_unreported += len(tokens)
        if self.token_counts is not None:
            _count(self.token_counts, tokens)

    @property
    def pages(self) -> array[int]:
        """The request's block table. Only a running request has one."""
        assert self.lease is not None
        return self.lease.pages

    def slot(self, i: int) -> int:
        """The slot of the request's i-th token: page * page_size + offset. Only while the request runs."""
        assert self.lease is not None
        page = self.lease.cache.page
        return self.lease.pages[i // page] * page + i % page

    def window_slot(self, i: int) -> int:
        """The slot of the i-th token in the pages of windowed layers."""
        assert self.lease is not None
        assert self.lease.window is not None
        page = self.lease.cache.page
        return self.lease.window.pages[i // page] * page + i % page

    @property
    def serial(self) -> int:
        """The serial number of the request's program; -1 if the request belongs to no program."""
        return self.run.order[0] if self.run.order else -1

    @property
    def n_total(self) -> int:
        return len(self.ids)

    @property
    def n_out(self) -> int:
        """Tokens generated so far, including those of a previous engine."""
        return len(self.ids) - self.n_prompt

    @property
    def n_reusable(self) -> int:
        """How many tokens may at most be taken from the tree instead of computed. The last token must be computed,
        because its row samples the next token. If logprobs of prompt tokens are still missing, the token before the
        first of these is computed too."""
        n_scored = self.run.score_from + len(self.scores)
        return n_scored - 1 if 0 < n_scored < self.n_prompt else len(self.ids) - 1

    @property
    def n_left(self) -> int:
        """How many tokens have still to be computed, not counting those that the step in flight computes. 0: the step
        in flight is the request's last."""
        return len(self.ids) + self.n_pending - self.n_computed - self.n_inflight


def _count(counts: dict[int, int], tokens: Sequence[int]) -> None:
    for token in tokens:
        counts[token] = counts.get(token, 0) + 1


class Work(NamedTuple):
    """What one request does in one step: compute tokens start .. start + n_new into the pages of its lease.

    draws     whether the last of these rows samples the next token
    n_scored  number of prompt tokens, starting at index `score_at`, of which this step returns the logprob
    draft     draft tokens, computed after the last token; each of their rows samples a token too
    parents   for each draft token, the index of the draft token that it follows, which is lower than its own; -1: it
              follows the text. (): the draft is a chain
    kept      (n, slot) pairs: copy the recurrent state after the step's first n tokens to this slot"""

    request: Request
    lease: Lease
    start: int
    n_new: int
    draws: bool
    score_at: int = 0
    n_scored: int = 0
    draft: Sequence[int] = ()
    parents: Sequence[int] = ()
    kept: Sequence[tuple[int, int]] = ()

    @property
    def n_pending(self) -> int:
        """1 if this step samples a token and the output may continue after it. 0 if the step samples no token, or if
        that token reaches the length limit."""
        return int(self.draws and self.request.n_total + 1 < self.request.max_total)

    @property
    def is_current(self) -> bool:
        """False if the request has ended or was retracted since the plan was made. Then the result is discarded."""
        return self.request.lease is self.lease


def make_work(request: Request, n_new: int) -> Work:
    """A `Work` that computes a request's next n_new tokens."""
    lease, score_from = request.lease, request.run.score_from
    assert lease is not None
    start = request.n_computed + request.n_inflight
    end = start + n_new
    draws = end == len(request.ids) + request.n_pending < request.max_total
    if score_from < 0:
        return Work(request, lease, start, n_new, draws)
    score_at = score_from + len(request.scores)
    n_scored = max(0, min(end + 1, request.n_prompt) - score_at)
    return Work(request, lease, start, n_new, draws, score_at, n_scored)


class Plan(NamedTuple):
    """One step of the engine. The engine executes the fields in this order: `moves` of pages between device and host
    memory; `copies` of pages (see `Lease.take_copies`); `states`, which are copies of recurrent states (source slot,
    destination slot); then the forward pass of `works`. is_ahead: the plan was made while the previous step was still
    running. Then the first token of a work may be one that the previous step has not sampled yet."""

    works: tuple[Work, ...]
    copies: tuple[tuple[int, int, int], ...] = ()
    moves: tuple[Move, ...] = ()
    is_ahead: bool = False
    states: tuple[tuple[int, int], ...] = ()

    @property
    def n_rows(self) -> int:
        """How many rows the step has, without drafts."""
        return sum(work.n_new for work in self.works)


class Result(NamedTuple):
    """What the model returned for a plan. ids: the sampled tokens of the works that sample, in the plan's order; a work
    with n draft tokens has 1 + n sampled tokens, one per row. logprobs: rid -> one entry per sampled token, for
    requests that asked for them. scores: rid -> the logprobs of the prompt tokens that this step scored. tops: as
    scores, with the most likely alternatives, for requests that asked for them."""

    ids: list[int]
    logprobs: dict[int, list[TopLogprobs]]
    scores: dict[int, list[float]]
    tops: dict[int, list[TopLogprobs]]
