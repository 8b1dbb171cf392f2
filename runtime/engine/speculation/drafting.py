"""Who gets a draft, from whom, and how long: as long as the next token of it is expected to pay.

The chance of a draft's token is learned: per drafter and kind from all requests, per request from its own. A token at
depth k comes with the chance that it and all before it are right. Drafts end at the chance at which a step, as it was
measured, gives the most tokens a second; so they are deep where outputs are foreseen and rows are cheap, and there are
none where neither is so. What a drafter says is compared with what comes also where it is not computed, so that it can
earn its way back.

Drafts take what is left: the budget behind all prompts, pages that are there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import log

from banyan.runtime.engine.request import Request, Work
from banyan.runtime.engine.speculation.cost import Cost
from banyan.runtime.engine.speculation.draft import Drafter, Proposal

MAX_DEPTH = 24
HOPE = 0.7
"""The chance of a token of which nothing is known."""
TRUST = 1.0
"""What is known of a kind counts as so many tokens of the request's own."""
MEMORY, LONG_MEMORY = 0.9, 0.998
"""How much of the own record, and of a kind's, counts when another draft is judged."""
ENOUGH = 4
"""So many right tokens count of one draft: a long one shall not outweigh all that come after it."""
LEVELS = tuple(map(log, (0.9, 0.75, 0.6, 0.45, 0.3, 0.2, 0.1, 0.05)))
"""Chances at which drafts may end."""
SURE = 0.99
"""No token's chance is higher."""
EDGE = 1.03
"""Times what a second gives without drafts it has to give with them: chances and costs are guesses."""
PATIENCE = 16
"""Steps, at most, in which nobody is asked, where for long nothing was worth computing."""


class Record:
    """How many tokens were judged, and how many were right; both fade."""

    __slots__ = ("n_judged", "n_right")

    def __init__(self, n_judged: float = 0.0, n_right: float = 0.0) -> None:
        self.n_judged, self.n_right = n_judged, n_right

    def add(self, n_right: int, is_whole: bool, memory: float) -> None:
        """A draft was judged, up to the first wrong token, if there was one."""
        n_right = min(n_right, ENOUGH)
        self.n_judged = memory * self.n_judged + n_right + (not is_whole)
        self.n_right = memory * self.n_right + n_right


class _Trail:
    """What was proposed for one request."""

    __slots__ = ("counts", "drafter", "idle", "is_computed", "kind", "own", "reach", "skip", "tokens")

    def __init__(self, n_drafters: int, reach: int) -> None:
        self.own = [Record() for _ in range(n_drafters)]
        self.counts = [[0, 0] for _ in range(n_drafters)]  # drafted, accepted
        self.tokens: Sequence[int] = ()  # what was proposed for this step: all of the draft, or one token, to be judged
        self.drafter = self.kind = 0
        self.is_computed = False
        self.idle = self.skip = 0
        self.reach = reach  # no draft is longer: twice what was right of the last


class Drafting:
    """Drafters, and what is known of them. Counts and time are the scheduler's and the engine's to tell."""

    def __init__(self, drafters: Sequence[Drafter] = (), jumps: bool = True, cost: Cost | None = None,
                 max_depth: int = MAX_DEPTH) -> None:  # fmt: skip
        """jumps: what a constraint forces is appended without being drawn. max_depth: tokens of a draft."""
        self.drafters, self.jumps, self.max_depth = tuple(drafters), jumps, max_depth
        self.cost = cost or Cost()
        self._trails: dict[int, _Trail] = {}  # by rid
        hope = TRUST * HOPE
        self._kinds = [[Record(TRUST, hope) for _ in range(d.n_kinds)] for d in self.drafters]
        self.counts = {d.name: [0, 0] for d in self.drafters}  # drafted, accepted; of all requests

    # ---- plan ------------------------------------------------------------------------------------------------------

    def widen(self, works: list[Work], budget: int) -> None:
        """Give drafts to the works that draw, in place, of at most `budget` tokens together."""
        if not self.drafters or budget <= 0:
            return
        asked: list[tuple[int, Proposal, float]] = []
        n_rows = 0
        for i, work in enumerate(works):
            n_rows += work.n_new
            if work.draws and (proposal := self._ask(work.request)):
                trail = self._trails[work.request.rid]
                asked.append((i, proposal, self._chance(trail)))
        if not asked:
            return
        depths = self._depths(asked, len(works), n_rows - len(works), sum(work.draws for work in works))
        for (i, proposal, _), depth in zip(asked, depths, strict=True):
            work = works[i]
            trail = self._trails[work.request.rid]
            draft = _fit(work.request, proposal.tokens[: min(depth, budget)]) if depth and budget > 0 else ()
            trail.is_computed = bool(draft)
            if draft:
                trail.tokens, trail.idle = draft, 0
                works[i] = work._replace(draft=draft)
                budget -= len(draft)
            else:
                trail.tokens = proposal.tokens[:1]

    def _ask(self, request: Request) -> Proposal | None:
        """The proposal that is most likely right, and the trail that says whose it is."""
        trail = self._trails.get(request.rid)
        if trail is None:
            trail = self._trails[request.rid] = _Trail(len(self.drafters), self.max_depth)
        trail.tokens = ()
        n = min(trail.reach, request.end - request.n_total - 1)
        if n <= 0:
            return None
        if trail.skip:
            trail.skip -= 1
            return None
        best, best_chance = None, 0.0
        for i, drafter in enumerate(self.drafters):
            proposal = drafter.propose(request, n)
            if proposal is None or not proposal.tokens:
                continue
            chance = self._chance_of(trail, i, proposal.kind)
            if chance > best_chance:
                best, best_chance = proposal, chance
                trail.drafter, trail.kind = i, proposal.kind
        trail.idle += 1
        if trail.idle > 8:  # nothing was worth it for a while: look less often
            trail.skip = min(trail.idle // 4, PATIENCE)
        return best

    def _chance(self, trail: _Trail) -> float:
        return self._chance_of(trail, trail.drafter, trail.kind)

    def _chance_of(self, trail: _Trail, drafter: int, kind: int) -> float:
        own, all_ = trail.own[drafter], self._kinds[drafter][kind]
        usual = all_.n_right / all_.n_judged
        return (own.n_right + TRUST * usual) / (own.n_judged + TRUST)

    def _depths(self, asked: list[tuple[int, Proposal, float]], n_works: int, n_extra: int, n_draws: int) -> list[int]:
        """How many tokens of each proposal: all that come with more than some chance, the same for all requests; and of
        such chances the one at which a second gives the most. None at all where that is hardly more than without."""
        cost = self.cost
        seconds = cost.step(n_works, n_extra)
        best, best_rate = [0] * len(asked), EDGE * n_draws / seconds
        most = [(len(proposal.tokens), min(chance, SURE)) for _, proposal, chance in asked]
        logs = [log(chance) for _, chance in most]
        for least in LEVELS:
            depths = [min(int(least / x), n) for (n, _), x in zip(most, logs, strict=True)]
            n_tokens = n_draws + sum(c * (1 - c**d) / (1 - c) for (_, c), d in zip(most, depths, strict=True))
            rate = n_tokens / (seconds + sum(depths) * cost.per_row)
            if rate > best_rate:
                best, best_rate = depths, rate
        return best

    # ---- commit ----------------------------------------------------------------------------------------------------

    def judge(self, request: Request, drawn: Sequence[int]) -> None:
        """Compare what was proposed with what was drawn: drawn[k] behind the first k tokens of the draft."""
        trail = self._trails.get(request.rid)
        if trail is None or not trail.tokens:
            return
        n = len(trail.tokens)
        n_right = next((k for k, token in enumerate(trail.tokens) if token != drawn[k]), n)
        if trail.is_computed:
            trail.reach = min(2 * n_right + 2, self.max_depth)
            for counts in (trail.counts[trail.drafter], self.counts[self.drafters[trail.drafter].name]):
                counts[0], counts[1] = counts[0] + n, counts[1] + n_right
        trail.tokens = ()
        trail.own[trail.drafter].add(n_right, n_right == n, MEMORY)
        self._kinds[trail.drafter][trail.kind].add(n_right, n_right == n, LONG_MEMORY)

    def end(self, request: Request) -> dict[str, tuple[int, int]]:
        """It has ended: what was (drafted, accepted) for it, by drafter. All that was kept for it goes."""
        for drafter in self.drafters:
            drafter.end(request)
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
        assert self._trails.keys() <= living, "drafts of a request that has ended"


def _fit(request: Request, tokens: Sequence[int]) -> array[int]:
    """The tokens for which there are pages, up to the first that can be no part of the output, as it ends it or as the
    constraint forbids it."""
    draft = array("i", tokens)
    for i, token in enumerate(draft):
        if token in request.stop_ids:
            del draft[i:]
            break
    assert request.lease is not None
    if not request.lease.grow(request.n_total + len(draft)):
        del draft[request.lease.n_slots - request.n_total :]
    guide = request.guide
    if guide is not None and draft:
        n = guide.accept(draft)
        guide.rollback(n)
        del draft[n:]
    return draft
