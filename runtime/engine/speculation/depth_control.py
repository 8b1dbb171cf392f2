"""Who gets a draft, from whom, and how large: as long as the next token of it is expected to pay.

The chance of a draft's token is learned: per drafter and kind from all requests, per request from its own. A token at
depth k comes with the chance that it and all before it are right, and what all drafters say is one tree. Drafts end at
the chance at which a step, as it was measured, gives the most tokens a second; so they are deep where outputs are
foreseen and rows are cheap, wide where nobody is sure, and there are none where neither is so. What a drafter says is
compared with what comes also where it is not computed, so that it can earn its way back; and one that computes is asked
where that pays itself, and now and then.

Drafts take what is left: the budget behind all prompts, pages that are there.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import mul

from banyan.runtime.engine.scheduling.request import MAX_TREE, Plan, Request, Work
from banyan.runtime.engine.speculation.draft import Drafter
from banyan.runtime.engine.speculation.draft_tree import SURE, Chain, DraftBranch, Laid, lay, merge, prune
from banyan.runtime.engine.speculation.step_cost import Cost

MAX_DEPTH = 64
HOPE, OTHER_HOPE = 0.7, 0.2
"""The chance of a token of which nothing is known, and of one that another drafter contradicts."""
TRUST = 1.0
"""What is known of a kind counts as so many tokens of the request's own."""
MEMORY, LONG_MEMORY = 0.9, 0.998
"""How much of the own record, and of a kind's, counts when another draft is judged."""
ENOUGH = 4
"""So many right tokens count of one draft that is all in doubt: a long one shall not outweigh all that come after."""
LEVELS = 0.9, 0.75, 0.6, 0.45, 0.3, 0.2, 0.1, 0.05
"""Chances at which drafts may end."""
EDGE = 1.03
"""Times what a second gives without drafts it has to give with them: chances and costs are guesses."""
PATIENCE = 32
"""Steps, at most, in which nobody is asked, where for long nothing was worth computing; and so many more where that
spares the device a pause, see `can_rest`."""
IDLE = 4
"""Asked so often in a row, and nothing was worth computing: look less often."""
RARELY, RECENTLY = 0.05, 0.04
"""Where a smaller share of all asks led to a draft, patience is twice as long, and a new request begins with it after
its first ask. The weight of an ask in this share, and of a step in how long drafts are."""
DEPTHS = (1, 2, 3, 4, 6, 8)
"""How deep a drafter that computes may look."""
FEW = 4
"""Rows for each token drawn, drafts not counted, up to which a step says what decodes cost: one of prompts does not."""
SHARE = 0.01
"""Of all time, that such a drafter gets where it does not pay."""
AHEAD = 8
"""Steps that pay together what it has to catch up with: outputs may be short."""
GAIN = 1.1
"""Times what a second gives without it that it has to give: unlike a row more, it takes its time for certain."""


class AcceptanceRate:
    """How many tokens were judged, and how many were right; both fade."""

    __slots__ = ("n_judged", "n_right")

    def __init__(self, n_judged: float = 0.0, n_right: float = 0.0) -> None:
        self.n_judged, self.n_right = n_judged, n_right

    def add(self, n_right: int, is_whole: bool, memory: float) -> None:
        """A draft was judged, up to the first wrong token, if there was one."""
        self.n_judged = memory * self.n_judged + n_right + (not is_whole)
        self.n_right = memory * self.n_right + n_right

    @property
    def share(self) -> float:
        return self.n_right / self.n_judged


class _Trail:
    """What was proposed for one request."""

    __slots__ = ("branches", "chains", "counts", "drafters", "idle", "own", "reach")

    def __init__(self, n_drafters: int, reach: int, idle: int) -> None:
        self.own = [AcceptanceRate() for _ in range(n_drafters)]
        self.counts = [[0, 0] for _ in range(n_drafters)]  # drafted, accepted
        self.clear()
        self.idle = idle  # asks in vain, one behind the other
        # No draft that is all in doubt is longer: twice what was right of the last such, or as before if all was.
        self.reach = reach

    def clear(self) -> None:
        """Nothing is proposed for the next step yet."""
        self.chains: list[Chain] = []
        self.branches: list[DraftBranch] = []
        self.drafters: Sequence[int] = ()  # of what is computed, token by token


class DepthController:
    """Drafters, and what is known of them. Counts and time are the scheduler's and the engine's to tell."""

    def __init__(self, drafters: Sequence[Drafter] = (), jumps: bool = True, cost: Cost | None = None,
                 max_depth: int = MAX_DEPTH) -> None:  # fmt: skip
        """jumps: what a constraint forces is appended without being drawn. max_depth: tokens of a draft."""
        self.drafters, self.jumps, self.max_depth = tuple(drafters), jumps, max_depth
        self.cost = cost or Cost()
        self.max_tree = MAX_TREE  # rows of a work whose draft branches
        self._trails: dict[int, _Trail] = {}  # by rid
        self._n_steps = 0  # that were planned
        self._due: dict[int, int] = {}  # by rid: the step before which nobody is asked for it
        self.proposed: dict[int, _Trail] = {}  # by rid: for whom something was proposed in this step, to be judged
        self._kinds = [[AcceptanceRate(TRUST, TRUST * HOPE) for _ in range(d.n_kinds)] for d in self.drafters]
        self._others = [[AcceptanceRate(TRUST, TRUST * OTHER_HOPE) for _ in range(d.n_kinds)] for d in self.drafters]
        self._paid = 1.0  # the share of asks, of all requests, that led to a draft; it fades
        self._n_laid = 0.0  # tokens of drafts for each who draws, where there is room; it fades
        self._saved = [0.0] * len(self.drafters)  # seconds that each may spend, where it does not pay
        self.counts = {d.name: [0, 0] for d in self.drafters}  # drafted, accepted; of all requests

    def warm_up(self, n_rows: int) -> None:
        """See `Drafter.warm_up`."""
        for drafter in self.drafters:
            drafter.warm_up(n_rows)

    def learn(self, spelling: Sequence[bytes], marks: Collection[int]) -> None:
        """See `Drafter.learn`."""
        for drafter in self.drafters:
            drafter.learn(spelling, marks)

    # ---- plan ------------------------------------------------------------------------------------------------------

    def widen(self, works: list[Work], budget: int) -> None:
        """Give drafts to the works that draw, in place, of at most `budget` tokens together."""
        self._n_steps = step = self._n_steps + 1
        for trail in self.proposed.values():  # in a step of which nothing came
            trail.clear()
        self.proposed.clear()
        if not self.drafters or budget <= 0:
            return
        due, trails = self._due, self._trails
        turns: list[tuple[int, _Trail, int]] = []  # work, trail, most tokens
        for i, work in enumerate(works):
            if work.draws and due.get(work.request.rid, 0) <= step and (n := self._turn(work.request)):
                turns.append((i, trails[work.request.rid], n))
        if not turns:
            self._n_laid *= 1 - RECENTLY
            return
        n_draws = sum(work.draws for work in works)
        # Rows of prompts are computed in any case: a token is worth what it costs in a step of decodes.
        seconds = self.cost.step(n_draws, 0)
        for d, drafter in enumerate(self.drafters):
            asks = [(trail, works[i].request, n) for i, trail, n in turns]
            if drafter.cost is not None:
                asks = self._worth(d, asks, n_draws, seconds)
            if asks:
                self._ask(d, asks)
        asked = [turn for turn in turns if turn[1].chains]
        for i, trail, _ in asked:
            trail.chains.sort(key=_minus_chance)
            trail.branches = merge(trail.chains)
            self.proposed[works[i].request.rid] = trail
        least = self._least([trail.branches for _, trail, _ in asked], n_draws, seconds)
        n_laid = 0
        for i, trail, n in asked:
            counts = self._counts(trail.branches, least, n, seconds / n_draws) if least else ()
            n_laid += self._draft(works, i, trail, counts, budget - n_laid)
        if n_laid < budget or n_laid > self._n_laid * n_draws:
            self._n_laid += RECENTLY * (n_laid / n_draws - self._n_laid)
        for _, trail, _ in turns:
            self._paid += RECENTLY * (bool(trail.drafters) - self._paid)

    def appetite(self, n_decoding: int) -> int:
        """How many tokens the drafts of so many requests may have, that prompts in the same step should leave to them.
        They cost the same there, and where prompts are many a step is long: who draws one token waits long for it."""
        return int(2 * self._n_laid * n_decoding)

    def note(self, plan: Plan, n_rows: int, seconds: float) -> None:
        """A step took so long, from its plan to its commit. It had n_rows rows with its drafts."""
        n_works = len(plan.works)
        n_extra = n_rows - n_works
        if not n_extra or plan.n_rows - n_works <= FEW * sum(work.draws for work in plan.works):
            self.cost.note(n_works, n_extra, seconds)

    def _turn(self, request: Request) -> int:
        """How many tokens may be proposed for it; 0: nobody is asked."""
        rid, is_rare = request.rid, self._paid < RARELY
        patience = 2 * PATIENCE if is_rare else PATIENCE
        trail = self._trails.get(rid)
        if trail is None:
            idle = patience.bit_length() if is_rare else 0
            trail = self._trails[rid] = _Trail(len(self.drafters), self.max_depth, idle)
        n = min(self.max_depth, request.end - request.n_total - 1)
        if n <= 0:
            return 0
        trail.idle += 1
        if trail.idle > IDLE:
            self._due[rid] = self._n_steps + 1 + min(1 << trail.idle - 1, patience)
        return n

    def can_rest(self, request: Request) -> bool:
        """Whether the next step may do without a draft for it, so that it is planned before the last token is known.

        Who is looked at less often waits up to PATIENCE steps longer for its turn, and has it together with others: in
        a large batch it would always be the turn of some."""
        return not self.drafters or self._n_steps + 1 < self._due.get(request.rid, -PATIENCE) + PATIENCE

    def rest(self) -> None:
        """Nobody is asked for anybody in the step that is planned now."""
        self._n_steps += 1

    def _ask(self, d: int, asks: Sequence[tuple[_Trail, Request, int]]) -> None:
        drafter = self.drafters[d]
        drafter.prepare([(request, n) for _, request, n in asks])
        for trail, request, n in asks:
            is_first = True
            for tokens, kind, doubts in drafter.propose(request, n):
                if doubts is None:
                    tokens = tokens[: trail.reach]
                chance = self._chance(trail, d, kind if is_first else 0)
                trail.chains.append(Chain(tokens, d, kind, chance, self._others[d][kind].share, is_first, doubts))
                is_first = False

    def _chance(self, trail: _Trail, d: int, kind: int) -> float:
        own = trail.own[d]
        return (own.n_right + TRUST * self._kinds[d][kind].share) / (own.n_judged + TRUST)

    def _worth(self, d: int, asks: list[tuple[_Trail, Request, int]], n_draws: int,
               seconds: float) -> list[tuple[_Trail, Request, int]]:  # fmt: skip
        """For whom a drafter that computes is asked, and how deep: where it foresees more than those that cost nothing,
        and as deep as a second gives the most tokens. Where that is nowhere, for one request, when it has saved for it.
        """
        drafter, cost = self.drafters[d], self.cost
        assert drafter.cost is not None
        asks = [(trail, request, min(n, trail.reach)) for trail, request, n in asks if drafter.can_draft(request)]
        if not asks:
            return []
        free = [max((sum(accumulate(c.chances(), mul)) for c in trail.chains), default=0.0) for trail, _, _ in asks]
        chances = [self._chance(trail, d, 0) for trail, _, _ in asks]
        behind = [drafter.n_behind(request) for _, request, _ in asks]
        base = n_draws + sum(free)
        seconds += cost.per_row * sum(min(len(c[0].tokens), 8) for trail, _, _ in asks if (c := trail.chains))
        best, best_rate = [], GAIN * base / seconds
        for depth in DEPTHS:
            gains = [_gain(c, min(depth, n)) - was for c, was, (_, _, n) in zip(chances, free, asks, strict=True)]
            at = [i for i, gain in enumerate(gains) if gain > 0]
            late = sum(behind[i] for i in at) / AHEAD
            spent = depth * drafter.cost.step(len(at), 0) + late * drafter.cost.per_row + depth * len(at) * cost.per_row
            rate = (base + sum(gains[i] for i in at)) / (seconds + spent)
            if at and rate > best_rate:
                best, best_rate = [(asks[i][0], asks[i][1], min(depth, asks[i][2])) for i in at], rate
        if best:
            return best
        self._saved[d] += SHARE * seconds
        i = min(range(len(asks)), key=behind.__getitem__)
        price = drafter.cost.step(1, behind[i]) + cost.per_row
        if self._saved[d] < price:
            return []
        self._saved[d] -= price
        return [(asks[i][0], asks[i][1], 1)]

    def _least(self, trees: Sequence[list[DraftBranch]], n_draws: int, seconds: float) -> float:
        """The chance down to which tokens are computed, the same for all requests: of some such chances the one at
        which a second gives the most. 0.0 where that is hardly more than without any."""
        best, best_rate = 0.0, EDGE * n_draws / seconds
        for least in LEVELS:
            n_tokens, n_rows = float(n_draws), 0
            for branches in trees:
                for branch in branches:
                    if n := branch.upto(least):
                        n_tokens += branch.gain(n)
                        n_rows += n
            rate = n_tokens / (seconds + n_rows * self.cost.per_row)
            if rate > best_rate:
                best, best_rate = least, rate
        return best

    def _counts(self, branches: Sequence[DraftBranch], least: float, n: int, share: float) -> list[int]:
        """How many tokens of each branch are computed: down to the chance `least`; and of the likeliest all, where that
        is as far as anybody knows (n could have been said), and the rest costs less, if it is wrong, than the step that
        it spares, if it is right. share: one request's, of the seconds of such a step."""
        counts = [branch.upto(least) for branch in branches]
        first = branches[0]
        n_left = len(first.tokens) - counts[0]
        if n_left and len(first.tokens) < n:
            chance = first.chance_at(len(first.tokens) - 1)
            if (1 - chance) * n_left * self.cost.per_row < chance * share:
                counts[0] += n_left
        return counts

    def _draft(self, works: list[Work], i: int, trail: _Trail, counts: Sequence[int], budget: int) -> int:
        """Give a work its draft, so many tokens of each branch. Returns how many it has."""
        if not any(counts):
            return 0
        if budget <= 0:
            trail.idle -= 1  # it is not that nothing was worth computing
            return 0
        work = works[i]
        if work.n_new + sum(counts) > self.max_tree:
            counts = [counts[0], *[0] * (len(counts) - 1)]
        laid = lay(trail.branches, counts)
        laid = _fit(work.request, laid, budget)
        if laid.tokens:
            trail.drafters, trail.idle = laid.drafters, 0
            self._due.pop(work.request.rid, None)
            works[i] = work._replace(draft=laid.tokens, parents=laid.parents)
        return len(laid.tokens)

    # ---- commit ----------------------------------------------------------------------------------------------------

    def judge(self, request: Request, said: Sequence[int], path: Sequence[int]) -> None:
        """Compare what was proposed with what was drawn: see `draft.follow`, which gives both."""
        trail = self.proposed.pop(request.rid, None)
        if trail is None:
            return
        if trail.drafters:
            if trail.branches[0].chain.doubts is None:
                was_wrong = len(path) < len(trail.drafters)
                trail.reach = min(max(2 * len(path) + 2, 0 if was_wrong else trail.reach), self.max_depth)
            for d in set(trail.drafters):
                n, n_right = trail.drafters.count(d), sum(trail.drafters[i] == d for i in path)
                for counts in (trail.counts[d], self.counts[self.drafters[d].name]):
                    counts[0], counts[1] = counts[0] + n, counts[1] + n_right
        for chain in trail.chains:
            if chain.is_first:
                n_right, is_whole = chain.n_right(said)
                if chain.doubts is None:
                    n_right = min(n_right, ENOUGH)
                trail.own[chain.drafter].add(n_right, is_whole, MEMORY)
                self._kinds[chain.drafter][chain.kind].add(n_right, is_whole, LONG_MEMORY)
        for branch in trail.branches:
            if (
                branch.is_other
                and branch.at < len(said)
                and list(branch.chain.tokens[: branch.at]) == said[: branch.at]
            ):
                is_right = branch.tokens[0] == said[branch.at]
                self._others[branch.chain.drafter][branch.chain.kind].add(is_right, is_right, LONG_MEMORY)
        trail.clear()

    def end(self, request: Request) -> dict[str, tuple[int, int]]:
        """It has ended: what was (drafted, accepted) for it, by drafter. All that was kept for it goes."""
        for drafter in self.drafters:
            drafter.end(request)
        for kept in (self._due, self.proposed):
            kept.pop(request.rid, None)
        trail = self._trails.pop(request.rid, None)
        if trail is None:
            return {}
        return {d.name: (n[0], n[1]) for d, n in zip(self.drafters, trail.counts, strict=True) if n[0]}

    def stats(self) -> dict[str, int]:
        """Tokens that were drafted, and those that were right, by drafter."""
        out: dict[str, int] = {}
        for name, (n_drafted, n_accepted) in self.counts.items():
            out |= {f"drafted_{name}": n_drafted, f"accepted_{name}": n_accepted}
        return out

    def check(self, living: set[int]) -> None:
        """Raises AssertionError where something is kept of a request that is not `living`."""
        kept = self._trails.keys() | self._due.keys() | self.proposed.keys()
        assert kept <= living, "drafts of a request that has ended"


def _minus_chance(chain: Chain) -> float:
    return -chain.chance


def _gain(chance: float, n: int) -> float:
    """How many of n tokens in a row will be right."""
    chance = min(chance, SURE)
    return chance * (1 - chance**n) / (1 - chance)


def _fit(request: Request, laid: Laid, budget: int) -> Laid:
    """The tokens for which there is room, without those that can be no part of the output, as they end it or as the
    constraint forbids them, and all below them."""
    tokens, parents = laid.tokens, laid.parents
    assert request.lease is not None
    n = min(budget, len(tokens))
    if n > 0 and not request.lease.grow(request.n_total + n):
        n = request.lease.n_slots - request.n_total
    if n <= 0:
        return Laid(array("i"), [], [])
    del tokens[n:], parents[n:], laid.drafters[n:]
    if not parents:
        return _cut(request, laid)
    stops, guide = request.stop_ids, request.guide
    kept = [token not in stops for token in tokens]
    if guide is not None:
        depth = [0] * n  # with those above it that the guide accepted; of one that it did not, -1
        n_in = 0
        for i, token in enumerate(tokens):
            above = depth[parents[i]] if parents[i] >= 0 else 0
            depth[i] = -1
            if kept[i] and above >= 0:
                guide.rollback(n_in - above)
                n_in = above
                if guide.accept((token,)):
                    n_in = depth[i] = above + 1
            kept[i] = depth[i] >= 0
        guide.rollback(n_in)
    return laid if all(kept) else prune(laid, kept)


def _cut(request: Request, laid: Laid) -> Laid:
    """`_fit` for a chain."""
    draft = laid.tokens
    for i, token in enumerate(draft):
        if token in request.stop_ids:
            del draft[i:]
            break
    if request.guide is not None and draft:
        n = request.guide.accept(draft)
        request.guide.rollback(n)
        del draft[n:]
    del laid.drafters[len(draft) :]
    return laid
