"""Decides which requests get a draft, from which drafters, and how long. This is the model of gain and cost:

Gain. The probability that a drafted token is right, given that those before it are, is estimated from the request's own
drafts by the same drafter, and from all requests' drafts of the same kind (how the drafter found it):

    chance = (own.n_right + TRUST * kind.rate) / (own.n_judged + TRUST)

A token is accepted with p = the product of the chances along its path, and then adds one token to the step's output.

Cost. A step with R requests that sample and E draft tokens takes T(R, E) = a + b R + c E seconds, with coefficients
fitted to measured steps (`step_cost`).

Choice. The chains of all drafters are merged into one tree per request (`draft_tree`). All trees are cut at the same
probability: the threshold out of LEVELS that maximizes tokens per second,

    (R + sum of p over the E draft tokens with p >= threshold) / T(R, E)

If the maximum is not above MIN_SPEEDUP times R / T(R, 0), nothing is drafted.

A drafter that runs a model is asked after the others. Its depth is the one out of DEPTHS that maximizes the same
quotient, with the time of its passes and of the rows that it must catch up with added to the seconds. It is asked if
this quotient is above MIN_MODEL_SPEEDUP times the quotient without it. If not, it may use SHARE of the time for a short
draft of one request, so that its acceptance rate stays known. For the same reason, proposals of the other drafters are
judged even when they are not computed. If no proposal for a request is worth computing, drafters are asked about it
less and less often.

Drafts only use what is left: the token budget after all prompts, and pages that are free or can be evicted."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from operator import attrgetter, mul

from banyan.runtime.engine.scheduling.request import MAX_TREE, Plan, Request, Work
from banyan.runtime.engine.speculation.draft import Drafter, PagesLost
from banyan.runtime.engine.speculation.draft_tree import SURE, Chain, DraftBranch, flatten, merge, trim
from banyan.runtime.engine.speculation.step_cost import Cost

MAX_DEPTH = 64
FIRST_RATE, FIRST_OTHER_RATE = 0.7, 0.2
"""FIRST_RATE: the initial acceptance rate of a token. FIRST_OTHER_RATE: the same for a token that is an alternative to
another drafter's token."""
TRUST = 1.0  # weight of the rate of a kind, in tokens of the request's own record
MEMORY, LONG_MEMORY = 0.9, 0.998
"""Before a judged draft is added, the counts of its request are multiplied by MEMORY, and the counts of its kind by
LONG_MEMORY."""
MAX_CREDIT = 4
"""Maximum number of correct tokens that one draft counts for, if all its tokens are uncertain. Otherwise one long draft
would dominate the rate."""
LEVELS = 0.9, 0.75, 0.6, 0.45, 0.3, 0.2, 0.1, 0.05  # thresholds that are tried
# see the module; more for a model: its cost is certain, its gain a guess
MIN_SPEEDUP, MIN_MODEL_SPEEDUP = 1.03, 1.1
MAX_MISSES = 4  # after so many proposals in a row that were not worth computing, drafters are asked less often
MAX_PAUSE = 32
"""Maximum number of steps in which no drafter is asked about a request. `can_skip` may add as many, so that steps can
be planned ahead."""
RARE_HITS = 0.05
"""An ask is a step in which drafters are asked about a request. If a smaller share of recent asks led to a draft,
pauses between asks are twice as long, and a new request starts with a pause."""
RECENT = 0.04  # weight of one ask in that share, and of one step in the mean length of drafts
DEPTHS = (1, 2, 3, 4, 6, 8)
MAX_PROMPT_ROWS = 4
"""A step is used to fit `Cost` only if it has at most this many rows per sampled token, not counting drafts: rows of
prompts cost less."""
SHARE = 0.01
CATCH_UP_STEPS = 8  # steps over which the cost of catching up is spread; few, since outputs may be short


class AcceptanceRate:
    """Counts of judged and of right draft tokens, with exponential decay."""

    def __init__(self, n_judged: float = 0.0, n_right: float = 0.0) -> None:
        self.n_judged, self.n_right = n_judged, n_right

    def add(self, n_right: int, is_whole: bool, memory: float) -> None:
        """Count a draft. n_right: how many of its tokens were right, up to the first wrong one. is_whole: no token was
        wrong. memory: the factor by which all earlier counts are multiplied first."""
        self.n_judged = memory * self.n_judged + n_right + (not is_whole)
        self.n_right = memory * self.n_right + n_right

    @property
    def rate(self) -> float:
        return self.n_right / self.n_judged


class _DraftHistory:
    """The acceptance counts of one request, by drafter, and what the drafters propose for its current step."""

    def __init__(self, n_drafters: int, max_length: int, n_misses: int) -> None:
        self.own = [AcceptanceRate() for _ in range(n_drafters)]
        self.counts = [[0, 0] for _ in range(n_drafters)]  # drafted, accepted
        self.n_misses = n_misses  # asks in a row that led to no draft
        self.failed = set[int]()  # drafters that failed on it, and are not asked again
        self.max_length = max_length  # most tokens of a draft without certain tokens; grows and shrinks with acceptance
        self.clear()

    def clear(self) -> None:
        self.chains: list[Chain] = []
        self.branches: list[DraftBranch] = []
        self.drafters: Sequence[int] = ()  # the drafter of each draft token that is computed


_Ask = tuple[_DraftHistory, Request, int]
"""A request that a drafter may be asked about, and the maximum number of tokens it may propose."""


class DepthController:
    """Decides which requests get drafts, and keeps the acceptance rates of the drafters; see the module. The scheduler
    calls it when it plans and when it commits a step."""

    def __init__(self, drafters: Sequence[Drafter] = (), jumps: bool = True, cost: Cost | None = None,
                 max_depth: int = MAX_DEPTH, max_tree: int = MAX_TREE,
                 check_device: Callable[[], object] = lambda: None) -> None:  # fmt: skip
        """jumps: tokens that a constraint forces are appended without sampling. max_depth: maximum number of tokens of
        a draft. max_tree: maximum number of rows of one request in a step, if its draft branches. check_device: called
        after a drafter failed; raises if the device is lost."""
        self.drafters, self.jumps, self.max_depth, self.max_tree = tuple(drafters), jumps, max_depth, max_tree
        self.cost = cost or Cost()
        self._check_device = check_device
        self._histories: dict[int, _DraftHistory] = {}  # by rid
        # rid -> history; requests with proposals to be judged after this step
        self.proposed: dict[int, _DraftHistory] = {}
        self._n_steps = 0  # planned
        self._next_ask: dict[int, int] = {}  # rid -> the first step in which drafters are asked again
        self._kind_rates, self._other_rates = (  # by drafter and kind
            [[AcceptanceRate(TRUST, TRUST * first) for _ in range(d.n_kinds)] for d in drafters]
            for first in (FIRST_RATE, FIRST_OTHER_RATE)
        )
        self._hit_rate = 1.0  # the share of asks that led to a draft; recent ones weigh more
        self._mean_length = 0.0  # mean draft tokens of a sampling request, in recent steps with room for them
        self._allowance = [0.0] * len(self.drafters)  # drafter -> seconds that it may spend although it does not pay
        self.counts = {d.name: [0, 0] for d in self.drafters}  # drafted, accepted
        self.n_failures = dict.fromkeys(self.counts, 0)

    def set_vocabulary(self, spelling: Sequence[bytes], control: Collection[int]) -> None:
        """Tell all drafters the tokenizer's vocabulary. spelling: the bytes of each token, by id. control: the ids that
        are not text."""
        self._tell_all(lambda drafter: drafter.set_vocabulary(spelling, control))

    # ---- plan ------------------------------------------------------------------------------------------------------

    def add_drafts(self, works: list[Work], budget: int) -> None:
        """Add drafts to the entries of `works` that sample a token, of at most `budget` tokens in all."""
        self._n_steps += 1
        for history in self.proposed.values():  # left over from a step that failed
            history.clear()
        self.proposed.clear()
        if not self.drafters or budget <= 0:
            return
        due, step = self._next_ask, self._n_steps
        turns: list[tuple[int, _DraftHistory, int]] = []  # index in `works`, history, most draft tokens
        for i, work in enumerate(works):
            if work.draws and due.get(work.request.rid, 0) <= step and (n := self._max_tokens(work.request)):
                turns.append((i, self._histories[work.request.rid], n))
        if not turns:
            self._mean_length *= 1 - RECENT
            return
        n_draws = sum(work.draws for work in works)
        seconds = self.cost.step(n_draws, 0)  # without rows of prompts, which are computed in any case
        for d, drafter in enumerate(self.drafters):
            asks = [(history, works[i].request, n) for i, history, n in turns if d not in history.failed]
            try:
                if drafter.cost is not None:
                    asks = self._worth_asking(d, asks, n_draws, seconds)
                if asks:
                    self._ask(d, asks)
            except PagesLost:
                raise
            except Exception as e:
                self._fail(d, asks, e)
        asked = [turn for turn in turns if turn[1].chains]
        for i, history, _ in asked:
            history.chains.sort(key=attrgetter("chance"), reverse=True)
            history.branches = merge(history.chains)
            self.proposed[works[i].request.rid] = history
        threshold = self._threshold([history.branches for _, history, _ in asked], n_draws, seconds)
        n_drafted = 0
        for i, history, n in asked:
            lengths = self._lengths(history.branches, threshold, n, seconds / n_draws) if threshold else ()
            n_drafted += self._add_draft(works, i, history, lengths, budget - n_drafted)
        if n_drafted < budget or n_drafted > self._mean_length * n_draws:
            self._mean_length += RECENT * (n_drafted / n_draws - self._mean_length)
        for _, history, _ in turns:
            self._hit_rate += RECENT * (bool(history.drafters) - self._hit_rate)

    def expected_tokens(self, n_decoding: int) -> int:
        """How many rows prompts should leave to the drafts of n_decoding requests: twice the mean length of recent
        drafts, for each request. Drafts are worth more in steps with prompts: a draft row costs the same as in other
        steps, but these steps are longer, so each accepted token saves more time."""
        return int(2 * self._mean_length * n_decoding)

    def note(self, plan: Plan, n_rows: int, seconds: float) -> None:
        """Learn that a step of n_rows rows, drafts included, took `seconds` from its plan to its commit."""
        n_works = len(plan.works)
        n_extra = n_rows - n_works
        if not n_extra or plan.n_rows - n_works <= MAX_PROMPT_ROWS * sum(work.draws for work in plan.works):
            self.cost.note(n_works, n_extra, seconds)

    def _max_tokens(self, request: Request) -> int:
        """How many tokens drafters may propose for the request. 0: they are not asked. Each call counts as a miss,
        until `_add_draft` adds a draft and resets the count. After MAX_MISSES misses in a row, drafters are asked less
        and less often."""
        n = min(self.max_depth, request.max_total - request.n_total - 1)
        if n <= 0:
            return 0
        rid, is_rare = request.rid, self._hit_rate < RARE_HITS
        max_pause = 2 * MAX_PAUSE if is_rare else MAX_PAUSE
        history = self._histories.get(rid)
        if history is None:
            n_misses = max_pause.bit_length() if is_rare else 0
            history = self._histories[rid] = _DraftHistory(len(self.drafters), self.max_depth, n_misses)
        history.n_misses += 1
        if history.n_misses > MAX_MISSES:
            self._next_ask[rid] = self._n_steps + 1 + min(1 << history.n_misses - 1, max_pause)
        return n

    def can_skip(self, request: Request) -> bool:
        """Whether the request may go without a draft in the next step, so that the step can be planned ahead. True if
        there are no drafters, or if drafters are asked about the request less often because their proposals have
        missed. When they are due to be asked again, up to MAX_PAUSE more steps may go without a draft; so they are
        asked about many requests in one step."""
        return not self.drafters or self._n_steps + 1 < self._next_ask.get(request.rid, -MAX_PAUSE) + MAX_PAUSE

    def skip_step(self) -> None:
        """Record that the step that is planned now has no drafts."""
        self._n_steps += 1

    def _ask(self, d: int, asks: Sequence[_Ask]) -> None:
        drafter = self.drafters[d]
        drafter.prepare([(request, n) for _, request, n in asks])
        for history, request, n in asks:
            is_first = True
            for tokens, kind, uncertain in drafter.propose(request, n):
                if uncertain is None:
                    tokens = tokens[: history.max_length]
                if tokens and min(tokens) < 0:  # rows of an image, which no output has
                    tokens = tokens[: next(i for i, token in enumerate(tokens) if token < 0)]
                    if not tokens:
                        continue
                    uncertain = uncertain and [i for i in uncertain if i < len(tokens)]
                chance = self._chance(history, d, kind if is_first else 0)
                other = self._other_rates[d][kind].rate
                history.chains.append(Chain(tokens, d, kind, chance, other, is_first, uncertain))
                is_first = False

    def _fail(self, d: int, asks: Sequence[_Ask], error: Exception) -> None:
        """Record that a drafter failed. It is not asked again about the requests in `asks`, and its proposals for them
        are dropped; the requests continue, because no output depends on drafts. Raises if the device itself is lost. d:
        index of the drafter."""
        self._count_failure(self.drafters[d], error, f"{len(asks)} requests continue without its drafts")
        for history, *_ in asks:
            history.failed.add(d)
            history.chains = [chain for chain in history.chains if chain.drafter != d]

    def _count_failure(self, drafter: Drafter, error: Exception, effect: str) -> None:
        name = drafter.name
        if not self.n_failures[name]:
            traceback.print_exception(error, file=sys.stderr)
            print(
                f"banyan: the drafter {name!r} failed, as above; {effect}. Later failures are only counted",
                file=sys.stderr,
                flush=True,
            )
        self.n_failures[name] += 1
        self._check_device()

    def _tell_all(self, tell: Callable[[Drafter], None]) -> None:
        """Call `tell` with each drafter. An exception of a drafter is only counted, unless the device or pages are
        lost."""
        for drafter in self.drafters:
            try:
                tell(drafter)
            except PagesLost:
                raise
            except Exception as e:
                self._count_failure(drafter, e, "it is asked as before")

    def _chance(self, history: _DraftHistory, d: int, kind: int) -> float:
        own = history.own[d]
        return (own.n_right + TRUST * self._kind_rates[d][kind].rate) / (own.n_judged + TRUST)

    def _worth_asking(self, d: int, asks: list[_Ask], n_draws: int, seconds: float) -> list[_Ask]:
        """Choose the requests about which a drafter that runs a model is asked, and how many tokens it may propose
        for each; see the module. asks: the candidates. n_draws: how many requests sample a token. seconds: expected
        time of the step without drafts."""
        drafter, cost = self.drafters[d], self.cost
        assert drafter.cost is not None
        asks = [(history, r, min(n, history.max_length)) for history, r, n in asks if drafter.can_draft(r)]
        if not asks:
            return []
        free = [max((sum(accumulate(c.chances(), mul)) for c in history.chains), default=0.0) for history, _, _ in asks]
        chances = [min(self._chance(history, d, 0), SURE) for history, _, _ in asks]
        behind = [drafter.n_behind(request) for _, request, _ in asks]
        base = n_draws + sum(free)
        seconds += cost.per_row * sum(min(len(c[0].tokens), 8) for history, _, _ in asks if (c := history.chains))
        best, best_rate = list[_Ask](), MIN_MODEL_SPEEDUP * base / seconds
        for depth in DEPTHS:
            # c (1 - c^n) / (1 - c) tokens of a chain of n are expected to be right.
            gains = [
                c * (1 - c ** min(depth, n)) / (1 - c) - was
                for c, was, (_, _, n) in zip(chances, free, asks, strict=True)
            ]
            at = [i for i, gain in enumerate(gains) if gain > 0]
            n_late = sum(behind[i] for i in at) / CATCH_UP_STEPS
            own = depth * drafter.cost.step(len(at), 0) + n_late * drafter.cost.per_row
            rate = (base + sum(gains[i] for i in at)) / (seconds + own + depth * len(at) * cost.per_row)
            if at and rate > best_rate:
                best, best_rate = [(*asks[i][:2], min(depth, asks[i][2])) for i in at], rate
        if best:
            return best
        self._allowance[d] += SHARE * seconds
        i = min(range(len(asks)), key=behind.__getitem__)
        price = drafter.cost.step(1, behind[i]) + cost.per_row
        if self._allowance[d] < price:
            return []
        self._allowance[d] -= price
        return [(*asks[i][:2], 1)]

    def _threshold(self, trees: Sequence[list[DraftBranch]], n_draws: int, seconds: float) -> float:
        """Choose the threshold: draft tokens whose probability is at least this high are computed. Returns 0.0 if no
        draft is worth computing. n_draws: how many requests sample a token. seconds: expected time of the step without
        drafts."""
        best, best_rate = 0.0, MIN_SPEEDUP * n_draws / seconds
        for threshold in LEVELS:
            n_tokens, n_rows = float(n_draws), 0
            for branches in trees:
                for branch in branches:
                    if n := branch.length(threshold):
                        n_tokens += branch.gain(n)
                        n_rows += n
            rate = n_tokens / (seconds + n_rows * self.cost.per_row)
            if rate > best_rate:
                best, best_rate = threshold, rate
        return best

    def _lengths(self, branches: Sequence[DraftBranch], threshold: float, n: int, share: float) -> list[int]:
        """How many tokens of each branch to compute: those whose probability is at least `threshold`.

        The most likely branch is extended to its end if two things hold. First, the drafter proposed fewer tokens than
        the limit n, so it has no more to propose. Second, p * share > (1 - p) * cost of the extra rows, where p is the
        probability that the whole branch is right, and share is the step's seconds per output token without drafts.
        """
        lengths = [branch.length(threshold) for branch in branches]
        first = branches[0]
        n_left = len(first.tokens) - lengths[0]
        if n_left and len(first.tokens) < n:
            chance = first.chance_at(len(first.tokens) - 1)
            if (1 - chance) * n_left * self.cost.per_row < chance * share:
                lengths[0] += n_left
        return lengths

    def _add_draft(self, works: list[Work], i: int, history: _DraftHistory, lengths: Sequence[int], budget: int) -> int:
        """Add a draft to works[i], if the budget allows. Returns the number of draft tokens."""
        if not any(lengths):
            return 0
        if budget <= 0:
            history.n_misses -= 1  # the draft would have been worth computing
            return 0
        work = works[i]
        if work.n_new + sum(lengths) > self.max_tree:
            lengths = [lengths[0], *[0] * (len(lengths) - 1)]
        draft = trim(work.request, flatten(history.branches, lengths), budget)
        if draft.tokens:
            history.drafters, history.n_misses = draft.drafters, 0
            self._next_ask.pop(work.request.rid, None)
            works[i] = work._replace(draft=draft.tokens, parents=draft.parents)
        return len(draft.tokens)

    # ---- commit ----------------------------------------------------------------------------------------------------

    def judge(self, request: Request, sampled: Sequence[int], path: Sequence[int]) -> None:
        """Compare the proposals for a request with the sampled tokens, and update the acceptance rates. `sampled` and
        `path` come from `accept_path`."""
        history = self.proposed.pop(request.rid, None)
        if history is None:
            return
        if history.drafters:
            if history.branches[0].chain.uncertain is None:
                was_wrong = len(path) < len(history.drafters)
                longest = max(2 * len(path) + 2, 0 if was_wrong else history.max_length)
                history.max_length = min(longest, self.max_depth)
            for d in set(history.drafters):
                n, n_right = history.drafters.count(d), sum(history.drafters[i] == d for i in path)
                for counts in (history.counts[d], self.counts[self.drafters[d].name]):
                    counts[0], counts[1] = counts[0] + n, counts[1] + n_right
        for chain in history.chains:
            if chain.is_first:
                n_right, is_whole = chain.n_right(sampled)
                if chain.uncertain is None:
                    n_right = min(n_right, MAX_CREDIT)
                history.own[chain.drafter].add(n_right, is_whole, MEMORY)
                self._kind_rates[chain.drafter][chain.kind].add(n_right, is_whole, LONG_MEMORY)
        for branch in history.branches:
            at, chain = branch.at, branch.chain
            if branch.is_other and at < len(sampled) and list(chain.tokens[:at]) == sampled[:at]:
                is_right = branch.tokens[0] == sampled[at]
                self._other_rates[chain.drafter][chain.kind].add(is_right, is_right, LONG_MEMORY)
        history.clear()

    def end(self, request: Request) -> dict[str, tuple[int, int]]:
        """Forget a request that has ended. Returns the numbers of its drafted and accepted tokens by drafter."""
        self._tell_all(lambda drafter: drafter.end(request))
        self._next_ask.pop(request.rid, None)
        self.proposed.pop(request.rid, None)
        history = self._histories.pop(request.rid, None)
        if history is None:
            return {}
        return {d.name: (n[0], n[1]) for d, n in zip(self.drafters, history.counts, strict=True) if n[0]}

    def stats(self) -> dict[str, int]:
        """Drafted and accepted tokens by drafter, and how often it failed."""
        out: dict[str, int] = {}
        for name, (n_drafted, n_accepted) in self.counts.items():
            out |= {f"drafted_{name}": n_drafted, f"accepted_{name}": n_accepted}
            if n_failures := self.n_failures[name]:
                out[f"failed_{name}"] = n_failures
        return out

    def check(self, alive: set[int]) -> None:
        """Raises AssertionError if something is kept for a request that has ended."""
        kept = self._histories.keys() | self._next_ask.keys() | self.proposed.keys()
        assert kept <= alive, "drafts of a request that has ended"
