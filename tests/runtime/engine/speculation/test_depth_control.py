"""How long drafts are: as long as they pay, by what was right before and what a row costs."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.engine.scheduling.request import Plan, Request, Work
from banyan.runtime.engine.speculation.depth_control import MAX_MISSES, DepthController
from banyan.runtime.engine.speculation.draft import Drafter, Proposal, accept_path
from banyan.runtime.engine.speculation.draft_tree import Chain, merge
from banyan.runtime.engine.speculation.step_cost import Cost
from banyan.runtime.protocol.wire import Sampling


class Always(Drafter):
    """Proposes the same token again and again."""

    n_kinds = 2

    def __init__(self, name: str = "always", token: int = 1) -> None:
        self.name, self.token, self.n_asked, self.kind, self.most = name, token, 0, 0, 1000

    def propose(self, request: Request, n: int) -> list[Proposal]:
        self.n_asked += 1
        return [Proposal(array("i", [self.token] * min(n, self.most)), self.kind)]

    def end(self, request: Request) -> None:
        pass


class Parts(Always):
    """Of what it says, every sixth token is in doubt, where `knows` that."""

    def __init__(self, knows: bool) -> None:
        super().__init__()
        self.knows = knows

    def propose(self, request: Request, n: int) -> list[Proposal]:
        (one,) = super().propose(request, n)
        return [one._replace(uncertain=range(0, n, 6) if self.knows else None)]


class Endless:
    """A lease with as many pages as one wants."""

    n_slots = 1 << 30

    def grow(self, n: int) -> bool:
        return True


class Bench:
    """Requests that draw in each step, and a model that says what it is told."""

    def __init__(self, fake: ModuleType, drafting: DepthController, n: int = 1) -> None:
        self.drafting = drafting
        self.requests: list[Request] = []
        self.begin(fake, *range(n))

    def begin(self, fake: ModuleType, *rids: int) -> None:
        """These in place of those before, which end."""
        for r in self.requests:
            self.drafting.end(r)
        self.requests = [Request(fake.run(rid, [5, 6, 7], Sampling(max_tokens=100_000)), 100_000) for rid in rids]
        for r in self.requests:
            r.lease = Endless()  # type: ignore[assignment]

    def step(self, model: Any, budget: int = 512) -> list[int]:
        """The depth of each draft. model: its k-th token behind the present end."""
        works = [Work(r, r.lease, r.n_total - 1, 1, True) for r in self.requests]
        self.drafting.add_drafts(works, budget)
        for work in works:
            depth = [0]
            for parent in work.parents or range(-1, len(work.draft) - 1):
                depth.append(depth[parent + 1] + 1)
            drawn = [model(k) for k in depth]
            path, said = accept_path(work.draft, work.parents, drawn)
            self.drafting.judge(work.request, said, path)
            work.request.extend(drawn[:1])
        return [len(work.draft) for work in works]


def test_what_is_right_gets_longer_and_what_is_wrong_stops(fake: ModuleType) -> None:
    b = Bench(fake, DepthController([Always()], cost=Cost(16, 1, 1), max_depth=24))
    first = b.step(lambda k: 1)[0]
    for _ in range(30):
        last = b.step(lambda k: 1)[0]
    assert 0 < first < last == 24
    assert b.step(lambda k: 2) == [24]
    assert b.step(lambda k: 2)[0] <= 2, "one that was wrong from its start makes the next short"
    for _ in range(60):
        last = b.step(lambda k: 2)[0]
    assert last == 0
    depths = [b.step(lambda k: 1)[0] for _ in range(400)]
    assert depths[-1] == 24, "what it says is looked at now and then, and it earns its way back"


def test_only_what_is_in_doubt_counts(fake: ModuleType) -> None:
    """A draft goes on behind a doubt as far as nothing can go wrong; a doubt is judged once, however long its part."""
    depths = {}
    for knows in (True, False):
        b = Bench(fake, DepthController([Parts(knows)], cost=Cost(16, 1, 1), max_depth=24))
        for i in range(80):
            (depths[knows],) = b.step(lambda k, i=i: 1 if k < 6 or i % 2 else 2)  # at every other draft's second doubt
    assert depths[True] > depths[False]


def test_what_is_left_of_a_chain_that_ends_is_computed_where_that_may_spare_a_step(fake: ModuleType) -> None:
    """With every other draft wrong at its second token."""
    depths = {}
    for per_row, most in ((2.0, 8), (2.0, 1000), (4.0, 8)):
        always = Always()
        b = Bench(fake, DepthController([always], cost=Cost(16, 1, per_row), max_depth=24))
        for i in range(100):
            b.step(lambda k, i=i: 1 if k < 1 or i % 2 else 2)
        always.most = most
        (depths[per_row, most],) = b.step(lambda k: 1)
    assert depths[2.0, 8] == 8, "all that it says"
    assert depths[2.0, 1000] == 7, "of what goes on and on"
    assert depths[4.0, 8] < 7, "where rows cost more than the step"


def test_one_wrong_doubt_makes_the_next_draft_no_shorter(fake: ModuleType) -> None:
    for knows in (True, False):
        b = Bench(fake, DepthController([Parts(knows)], cost=Cost(16, 1, 1), max_depth=24))
        for _ in range(30):
            (before,) = b.step(lambda k: 1)
        b.step(lambda k: 2)
        (after,) = b.step(lambda k: 1)
        assert (after == before) == knows, "what is all in doubt begins anew"


def test_doubts_by_what_was_said() -> None:
    chain = Chain([1, 2, 3, 4, 5, 6], 0, 0, 0.5, 0.1, uncertain=(1, 4))
    assert chain.chances() == [1, 0.5, 1, 1, 0.5, 1], "what is not in doubt is no reason to end a draft"
    for said, n_right, is_whole in (
        ([], 0, True),
        ([1], 0, True),
        ([1, 2], 1, True),
        ([1, 2, 3, 4], 1, True),
        ([1, 2, 3, 4, 5, 6, 7], 2, True),
        ([9], 0, False),
        ([1, 9], 0, False),
        ([1, 2, 9], 0, False),  # of its part a token was wrong
        ([1, 2, 3, 4, 9], 1, False),
        ([1, 2, 3, 4, 5, 9], 1, False),
    ):
        assert chain.n_right(said) == (n_right, is_whole), said


def test_of_a_branch_the_tokens_that_are_likely_enough() -> None:
    first = Chain([1, 2, 3, 4], 0, 0, 0.5, 0.1, uncertain=(0, 2))
    other = Chain([1, 2, 9], 1, 0, 0.4, 0.3)
    stem, leaf = merge([first, other])
    assert [stem.length(least) for least in (0.6, 0.5, 0.26, 0.24)] == [0, 2, 2, 4]
    assert stem.gain(2) == 0.5 + 0.5
    assert (leaf.above, leaf.at, leaf.is_other) == (0, 2, True)
    assert leaf.chance_at(2) == pytest.approx(0.5 * 0.3)


def test_a_short_draft_that_was_right_makes_the_next_no_shorter(fake: ModuleType) -> None:
    always = Always()
    b = Bench(fake, DepthController([always], cost=Cost(16, 1, 1), max_depth=24))
    for _ in range(30):
        b.step(lambda k: 1)
    always.most = 1
    assert b.step(lambda k: 1) == [1]
    always.most = 1000
    assert b.step(lambda k: 1) == [24]
    assert b.step(lambda k: 1 if k < 5 else 2) == [24]
    assert b.step(lambda k: 1) == [12], "as opposed to one of which 5 were right"


@pytest.mark.parametrize(
    ("n", "per_row", "is_deep"), [(1, 0.1, True), (64, 0.02, True), (1, 40.0, False), (64, 9.0, False)]
)
def test_the_price_of_a_row_decides(fake: ModuleType, n: int, per_row: float, is_deep: bool) -> None:
    """With every other draft wrong at its second token."""
    b = Bench(fake, DepthController([Always()], cost=Cost(16, 0.1, per_row)), n)
    for i in range(60):
        depths = b.step(lambda k, i=i: 1 if k == 0 or i % 2 else 2)
    assert (max(depths) > 1) == is_deep
    assert is_deep or max(depths) <= 1


def test_a_prompt_beside_them_makes_drafts_no_cheaper(fake: ModuleType) -> None:
    """Its rows are computed in any case, and a step that is long for them is no reason to compute what is unlikely."""
    b = Bench(fake, DepthController([Always()], cost=Cost(16, 0.1, 9.0)), 8)
    for i in range(60):
        b.step(lambda k, i=i: 1 if k == 0 and i % 4 else 2)
    prompt = Request(fake.run(99, range(500), Sampling(max_tokens=1)), 501)
    for rows in (0, 200, 500):
        works = [Work(r, r.lease, r.n_total - 1, 1, True) for r in b.requests]
        works += [Work(prompt, Endless(), 0, rows, rows == 500)] if rows else []  # type: ignore[arg-type]
        b.drafting.add_drafts(works, 4096)
        assert sum(len(work.draft) for work in works) == 0


def test_steps_of_prompts_say_nothing_of_decodes(fake: ModuleType) -> None:
    """A row of theirs costs less: a last layer leaves it out, and nobody draws there."""
    drafting = DepthController([Always()])
    requests = [Request(fake.run(rid, range(500), Sampling(max_tokens=99)), 600) for rid in range(9)]
    decodes = tuple(Work(r, Endless(), 499, 1, True) for r in requests[:8])  # type: ignore[arg-type]
    prompt = Work(requests[8], Endless(), 0, 400, False)  # type: ignore[arg-type]
    forced = decodes[0]._replace(start=490, n_new=10)
    for _ in range(50):
        drafting.note(Plan((*decodes, prompt)), 408, 9e-3)
        drafting.note(Plan(decodes), 8 + 16, 1e-3 + 16e-4)
        drafting.note(Plan((forced, *decodes[1:])), 17, 1e-3 + 9e-4)
        drafting.note(Plan(decodes), 8, 1e-3)
    assert drafting.cost.per_row == pytest.approx(1e-4, rel=0.1)
    assert drafting.cost.step(8, 0) == pytest.approx(1e-3, rel=0.1)


def test_of_two_drafters_the_better_is_taken(fake: ModuleType) -> None:
    b = Bench(fake, DepthController([Always("bad", 9), Always("good", 1)], cost=Cost(16, 1, 1)))
    for _ in range(50):
        b.step(lambda k: 1)
    stats = b.drafting.stats()
    assert stats["drafted_bad"] < 30 < 500 < stats["accepted_good"] == stats["drafted_good"]
    assert b.drafting.end(b.requests[0])["good"] == (stats["drafted_good"], stats["accepted_good"])
    b.drafting.check(set())


def test_a_drafter_that_says_nothing_worth_it_is_seldom_asked(fake: ModuleType) -> None:
    drafter = Always()
    b = Bench(fake, DepthController([drafter], cost=Cost(16, 1, 1)))
    for _ in range(600):
        b.step(lambda k: 2)
    assert drafter.n_asked < 150


def in_vain(fake: ModuleType) -> tuple[Bench, Always]:
    """Thirty requests, one behind the other, of which nothing could be foreseen."""
    drafter = Always()
    b = Bench(fake, DepthController([drafter], cost=Cost(16, 1, 1)))
    for rid in range(30):
        b.begin(fake, rid)
        for _ in range(96):
            b.step(lambda k: 2)
    return b, drafter


def test_what_is_of_a_step_that_failed_is_not_judged(fake: ModuleType) -> None:
    b = Bench(fake, DepthController([Always()], cost=Cost(16, 1, 1)), 2)
    works = [Work(r, r.lease, r.n_total - 1, 1, True) for r in b.requests]
    b.drafting.add_drafts(works, 512)
    assert b.drafting.proposed.keys() == {0, 1}
    b.drafting.end(b.requests.pop())
    b.drafting.check({0})
    b.drafting.add_drafts([works[0]._replace(draws=False)], 0)
    b.drafting.judge(b.requests[0], [2], ())
    assert not b.drafting.proposed
    assert b.drafting.stats() == {"drafted_always": 0, "accepted_always": 0}
    assert b.step(lambda k: 1)[0] > 0


def test_where_nothing_is_foreseen_new_requests_are_seldom_asked_about(fake: ModuleType) -> None:
    b, drafter = in_vain(fake)
    before = drafter.n_asked
    for rid in range(100, 110):
        b.begin(fake, rid)
        for _ in range(96):
            b.step(lambda k: 2)
    assert drafter.n_asked - before <= 20


def test_what_can_be_foreseen_again_is_found_at_once(fake: ModuleType) -> None:
    """A request behind many in vain is asked about in its first step, and goes on from there."""
    b, drafter = in_vain(fake)
    drafter.kind = 1  # another kind of match
    b.begin(fake, 100)
    assert all(b.step(lambda k: 1)[0] for _ in range(20))
    for rid in range(101, 110):
        b.begin(fake, rid)
        b.step(lambda k: 1)
    b.begin(fake, 110)
    before = drafter.n_asked
    for _ in range(4):
        b.step(lambda k: 2)
    assert drafter.n_asked - before >= 3, "and nobody is patient any more"


def test_prompts_leave_room_to_drafts_that_come(fake: ModuleType) -> None:
    drafting = DepthController([Always()], cost=Cost(16, 1, 1))
    b = Bench(fake, drafting, 4)
    assert drafting.expected_tokens(4) == 0
    for _ in range(60):
        n_laid = sum(b.step(lambda k: 1))
    assert n_laid <= drafting.expected_tokens(4) <= 2 * n_laid
    for _ in range(200):
        b.step(lambda k: 2)
    assert drafting.expected_tokens(4) <= 2


def test_who_finds_no_room_is_asked_again(fake: ModuleType) -> None:
    """Drafts that a step full of prompts has no room for are not drafts that were not worth it."""
    b = Bench(fake, DepthController([Always()], cost=Cost(16, 1, 1)), 8)
    for _ in range(3 * MAX_MISSES):
        b.step(lambda k: 1, budget=8)
    assert all(b.step(lambda k: 1))


def test_without_drafters_works_stay_as_they_are(fake: ModuleType) -> None:
    assert Bench(fake, DepthController()).step(lambda k: 1) == [0]


# ---- what a step costs ---------------------------------------------------------------------------------------------


def fitted(*, noise: float = 0.0) -> Cost:
    import random

    chance = random.Random(1)
    cost = Cost()
    for i in range(600):
        n, extra = 1 + i % 8, (i * 7) % 30
        seconds = 2e-3 + 1e-4 * n + 3e-5 * extra
        cost.note(n, extra, seconds * (1 + (10 * noise if chance.random() < noise else 0.0)))
    return cost


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_costs_are_learned_also_on_a_busy_machine(noise: float) -> None:
    cost = fitted(noise=noise)
    assert cost.per_row == pytest.approx(3e-5, rel=0.5)
    assert cost.step(4, 10) == pytest.approx(2.7e-3, rel=0.3)


def test_costs_stay_above_zero_and_finite() -> None:
    cost = Cost()
    cost.note(1, 0, 0.0)  # a clock that stands still says nothing
    for _ in range(500):
        cost.note(1, 0, 1e-3)
    assert cost.per_row > 0
    assert cost.step(1, 0) == pytest.approx(1e-3, rel=0.1)
    for extra in (500, 0) * 50:
        cost.note(1, extra, 1e-3)
    assert 0 < cost.per_row < 1e-4
