"""Draft depth, chosen from past acceptance and the cost of a row."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.engine.scheduling.request import Plan, Request, Work
from banyan.runtime.engine.speculation.depth_control import MAX_MISSES, DepthController
from banyan.runtime.engine.speculation.draft import Drafter, PagesLost, Proposal, accept_path
from banyan.runtime.engine.speculation.draft_tree import Chain, merge
from banyan.runtime.engine.speculation.ngram import NgramDrafter
from banyan.runtime.engine.speculation.step_cost import Cost
from banyan.runtime.engine.speculation.tree import TreeDrafter
from banyan.runtime.protocol.wire import ConstraintSpec, Sampling, SetVocabulary


class Always(Drafter):
    """Always proposes the same token."""

    n_kinds = 2

    def __init__(self, name: str = "always", token: int = 1) -> None:
        self.name, self.token, self.n_asked, self.kind, self.max_tokens = name, token, 0, 0, 1000

    def propose(self, request: Request, n: int) -> list[Proposal]:
        self.n_asked += 1
        return [Proposal(array("i", [self.token] * min(n, self.max_tokens)), self.kind)]

    def end(self, request: Request) -> None:
        pass


class PartlyUncertain(Always):
    """Every sixth proposed token is uncertain; `reports` whether proposals say so."""

    def __init__(self, reports: bool) -> None:
        super().__init__()
        self.reports = reports

    def propose(self, request: Request, n: int) -> list[Proposal]:
        (one,) = super().propose(request, n)
        return [one._replace(uncertain=range(0, n, 6) if self.reports else None)]


class Endless:
    """A lease with unlimited pages."""

    n_slots = 1 << 30

    def grow(self, n: int) -> bool:
        return True


class Bench:
    """Requests that each draw a token in each step, and a scripted model."""

    def __init__(self, fake: ModuleType, drafting: DepthController, n: int = 1) -> None:
        self.drafting = drafting
        self.requests: list[Request] = []
        self.begin(fake, *range(n))

    def begin(self, fake: ModuleType, *rids: int) -> None:
        """Replace the current requests by new ones."""
        for r in self.requests:
            self.drafting.end(r)
        self.requests = [Request(fake.run(rid, [5, 6, 7], Sampling(max_tokens=100_000)), 100_000) for rid in rids]
        for r in self.requests:
            r.lease = Endless()  # type: ignore[assignment]

    def step(self, model: Any, budget: int = 512) -> list[int]:
        """Run one step; return each draft's length. model(k): its k-th token after the current end."""
        works = [Work(r, r.lease, r.n_total - 1, 1, True) for r in self.requests]
        self.drafting.add_drafts(works, budget)
        for work in works:
            depth = [0]
            for parent in work.parents or range(-1, len(work.draft) - 1):
                depth.append(depth[parent + 1] + 1)
            drawn = [model(k) for k in depth]
            path, output = accept_path(work.draft, work.parents, drawn)
            self.drafting.judge(work.request, output, path)
            work.request.extend(drawn[:1])
        return [len(work.draft) for work in works]


def test_correct_drafts_grow_and_wrong_drafts_stop(fake: ModuleType) -> None:
    b = Bench(fake, DepthController([Always()], cost=Cost(16, 1, 1), max_depth=24))
    first = b.step(lambda k: 1)[0]
    for _ in range(30):
        last = b.step(lambda k: 1)[0]
    assert 0 < first < last == 24
    assert b.step(lambda k: 2) == [24]
    assert b.step(lambda k: 2)[0] <= 2, "a draft wrong at its first token shortens the next"
    for _ in range(60):
        last = b.step(lambda k: 2)[0]
    assert last == 0
    depths = [b.step(lambda k: 1)[0] for _ in range(400)]
    assert depths[-1] == 24, "periodic probes restore a drafter that is correct again"


def test_depth_counts_only_uncertain_tokens(fake: ModuleType) -> None:
    """A draft extends up to its next uncertain token, which is judged once for the whole part it begins."""
    depths = {}
    for reports in (True, False):
        b = Bench(fake, DepthController([PartlyUncertain(reports)], cost=Cost(16, 1, 1), max_depth=24))
        for i in range(80):
            (depths[reports],) = b.step(
                lambda k, i=i: 1 if k < 6 or i % 2 else 2
            )  # wrong at every other draft's second uncertain token
    assert depths[True] > depths[False]


@pytest.mark.parametrize("drafter", [NgramDrafter, TreeDrafter])
@pytest.mark.parametrize("is_guided", [True, False])
def test_rows_of_images_are_never_drafted(fake: ModuleType, drafter: type[Drafter], is_guided: bool) -> None:
    """A repeated text is drafted up to the image that followed it, with a penalty, and with and without a regex."""
    end = fake.int32([31])
    vocabulary = Vocabulary(SetVocabulary(bytes(range(64, 96)), fake.int32(range(1, 33)), end, end, end, b""), 32)
    regex = build(canonical(ConstraintSpec("regex", "[A-Z]+", engine="outlines_core")), vocabulary)
    text, rows = [1, 2, 3, 4, 5, 6], [*range(-(10**9), 40 - 10**9)]
    for n, want in ((5, [6]), (6, [])):
        drafting = DepthController([drafter()], cost=Cost(16, 1, 1))
        r = Request(fake.run(0, text + rows + text[:n], Sampling(max_tokens=99, frequency_penalty=0.5)), 1 << 10)
        r.n_cached, r.lease, r.guide = 0, Endless(), regex.guide() if is_guided else None  # type: ignore[assignment]
        works = [Work(r, r.lease, r.n_total - 1, 1, True)]
        drafting.add_drafts(works, 64)
        assert list(works[0].draft) == want


def test_draft_with_uncertain_tokens_ends_before_an_image(fake: ModuleType) -> None:
    class Quotes(Always):
        def propose(self, request: Request, n: int) -> list[Proposal]:
            return [Proposal([1, 1, -7, 1], 0, [1, 3])]

    assert Bench(fake, DepthController([Quotes()], cost=Cost(16, 1, 1))).step(lambda k: 1) == [2]


def test_short_remainder_of_a_chain_is_drafted_if_it_may_save_a_step(fake: ModuleType) -> None:
    """Every other draft is wrong at its second token."""
    depths = {}
    for per_row, most in ((2.0, 8), (2.0, 1000), (4.0, 8)):
        always = Always()
        b = Bench(fake, DepthController([always], cost=Cost(16, 1, per_row), max_depth=24))
        for i in range(100):
            b.step(lambda k, i=i: 1 if k < 1 or i % 2 else 2)
        always.max_tokens = most
        (depths[per_row, most],) = b.step(lambda k: 1)
    assert depths[2.0, 8] == 8, "the whole chain"
    assert depths[2.0, 1000] == 7, "part of an endless chain"
    assert depths[4.0, 8] < 7, "rows cost more than the saved step"


def test_one_wrong_uncertain_token_keeps_the_next_depth(fake: ModuleType) -> None:
    for reports in (True, False):
        b = Bench(fake, DepthController([PartlyUncertain(reports)], cost=Cost(16, 1, 1), max_depth=24))
        for _ in range(30):
            (before,) = b.step(lambda k: 1)
        b.step(lambda k: 2)
        (after,) = b.step(lambda k: 1)
        assert (after == before) == reports, "a draft of only uncertain tokens restarts"


def test_uncertain_parts_are_judged_against_the_output() -> None:
    chain = Chain([1, 2, 3, 4, 5, 6], 0, 0, 0.5, 0.1, uncertain=(1, 4))
    assert chain.chances() == [1, 0.5, 1, 1, 0.5, 1], "certain tokens have chance 1"
    for output, n_right, is_whole in (
        ([], 0, True),
        ([1], 0, True),
        ([1, 2], 1, True),
        ([1, 2, 3, 4], 1, True),
        ([1, 2, 3, 4, 5, 6, 7], 2, True),
        ([9], 0, False),
        ([1, 9], 0, False),
        ([1, 2, 9], 0, False),  # a token of its part was wrong
        ([1, 2, 3, 4, 9], 1, False),
        ([1, 2, 3, 4, 5, 9], 1, False),
    ):
        assert chain.n_right(output) == (n_right, is_whole), output


def test_branch_is_cut_where_its_chance_is_too_low() -> None:
    first = Chain([1, 2, 3, 4], 0, 0, 0.5, 0.1, uncertain=(0, 2))
    other = Chain([1, 2, 9], 1, 0, 0.4, 0.3)
    stem, leaf = merge([first, other])
    assert [stem.length(least) for least in (0.6, 0.5, 0.26, 0.24)] == [0, 2, 2, 4]
    assert stem.gain(2) == 0.5 + 0.5
    assert (leaf.above, leaf.at, leaf.is_other) == (0, 2, True)
    assert leaf.chance_at(2) == pytest.approx(0.5 * 0.3)


def test_short_correct_draft_keeps_the_next_depth(fake: ModuleType) -> None:
    always = Always()
    b = Bench(fake, DepthController([always], cost=Cost(16, 1, 1), max_depth=24))
    for _ in range(30):
        b.step(lambda k: 1)
    always.max_tokens = 1
    assert b.step(lambda k: 1) == [1]
    always.max_tokens = 1000
    assert b.step(lambda k: 1) == [24]
    assert b.step(lambda k: 1 if k < 5 else 2) == [24]
    assert b.step(lambda k: 1) == [12], "unlike a draft with 5 correct tokens"


@pytest.mark.parametrize(
    ("n", "per_row", "is_deep"), [(1, 0.1, True), (64, 0.02, True), (1, 40.0, False), (64, 9.0, False)]
)
def test_row_cost_decides_the_depth(fake: ModuleType, n: int, per_row: float, is_deep: bool) -> None:
    """Every other draft is wrong at its second token."""
    b = Bench(fake, DepthController([Always()], cost=Cost(16, 0.1, per_row)), n)
    for i in range(60):
        depths = b.step(lambda k, i=i: 1 if k == 0 or i % 2 else 2)
    assert (max(depths) > 1) == is_deep
    assert is_deep or max(depths) <= 1


def test_prompt_in_the_batch_does_not_make_drafts_cheaper(fake: ModuleType) -> None:
    """A step that is long because of prompt rows does not justify unlikely drafts."""
    b = Bench(fake, DepthController([Always()], cost=Cost(16, 0.1, 9.0)), 8)
    for i in range(60):
        b.step(lambda k, i=i: 1 if k == 0 and i % 4 else 2)
    prompt = Request(fake.run(99, range(500), Sampling(max_tokens=1)), 501)
    for rows in (0, 200, 500):
        works = [Work(r, r.lease, r.n_total - 1, 1, True) for r in b.requests]
        works += [Work(prompt, Endless(), 0, rows, rows == 500)] if rows else []  # type: ignore[arg-type]
        b.drafting.add_drafts(works, 4096)
        assert sum(len(work.draft) for work in works) == 0


def test_prompt_steps_do_not_change_the_decode_cost(fake: ModuleType) -> None:
    """A prompt row costs less: the last layer skips it and nothing is drawn."""
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


def test_better_of_two_drafters_is_used(fake: ModuleType) -> None:
    b = Bench(fake, DepthController([Always("bad", 9), Always("good", 1)], cost=Cost(16, 1, 1)))
    for _ in range(50):
        b.step(lambda k: 1)
    stats = b.drafting.stats()
    assert stats["drafted_bad"] < 30 < 500 < stats["accepted_good"] == stats["drafted_good"]
    assert b.drafting.end(b.requests[0])["good"] == (stats["drafted_good"], stats["accepted_good"])
    b.drafting.check(set())


def test_useless_drafter_is_rarely_asked(fake: ModuleType) -> None:
    drafter = Always()
    b = Bench(fake, DepthController([drafter], cost=Cost(16, 1, 1)))
    for _ in range(600):
        b.step(lambda k: 2)
    assert drafter.n_asked < 150


def after_useless_requests(fake: ModuleType) -> tuple[Bench, Always]:
    """A bench after thirty consecutive requests whose drafts were all wrong."""
    drafter = Always()
    b = Bench(fake, DepthController([drafter], cost=Cost(16, 1, 1)))
    for rid in range(30):
        b.begin(fake, rid)
        for _ in range(96):
            b.step(lambda k: 2)
    return b, drafter


def test_drafts_of_a_failed_step_are_not_judged(fake: ModuleType) -> None:
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


def test_drafter_that_fails_outside_of_a_step_ends_nothing(fake: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(Always):
        def set_vocabulary(self, spelling: Sequence[bytes], control: Collection[int]) -> None:
            raise ValueError("a bug of the drafter")

        def end(self, request: Request) -> None:
            raise ValueError("a bug of the drafter")

    class Sound(Always):
        ended: Request | None = None

        def end(self, request: Request) -> None:
            self.ended = request

    sound = Sound("sound")
    b = Bench(fake, DepthController([Broken("broken"), sound], cost=Cost(16, 1, 1)))
    b.drafting.set_vocabulary([b"a"], ())
    b.step(lambda k: 1)
    assert b.drafting.end(b.requests[0])
    b.drafting.check(set())
    assert sound.ended is b.requests[0]
    assert b.drafting.stats()["failed_broken"] == 2
    assert capfd.readouterr().err.count("ValueError: a bug of the drafter") == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_failure_that_loses_pages_or_the_device_is_raised(fake: ModuleType, is_lost: bool) -> None:
    class Broken(Always):
        def propose(self, request: Request, n: int) -> list[Proposal]:
            raise PagesLost if not is_lost else ValueError

    def check_device() -> None:
        raise OSError("the device is lost")

    b = Bench(fake, DepthController([Broken()], cost=Cost(16, 1, 1), check_device=check_device))
    with pytest.raises(OSError if is_lost else PagesLost):
        b.step(lambda k: 1)


def test_new_requests_are_rarely_drafted_after_useless_ones(fake: ModuleType) -> None:
    b, drafter = after_useless_requests(fake)
    before = drafter.n_asked
    for rid in range(100, 110):
        b.begin(fake, rid)
        for _ in range(96):
            b.step(lambda k: 2)
    assert drafter.n_asked - before <= 20


def test_new_kind_of_match_is_drafted_at_once(fake: ModuleType) -> None:
    """A request after many useless ones is drafted from its first step."""
    b, drafter = after_useless_requests(fake)
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
    assert drafter.n_asked - before >= 3, "new requests are drafted eagerly again"


def test_expected_draft_tokens_are_reserved(fake: ModuleType) -> None:
    drafting = DepthController([Always()], cost=Cost(16, 1, 1))
    b = Bench(fake, drafting, 4)
    assert drafting.expected_tokens(4) == 0
    for _ in range(60):
        n_drafted = sum(b.step(lambda k: 1))
    assert n_drafted <= drafting.expected_tokens(4) <= 2 * n_drafted
    for _ in range(200):
        b.step(lambda k: 2)
    assert drafting.expected_tokens(4) <= 2


def test_rows_for_drafts_leave_some_to_prompts(fake: ModuleType) -> None:
    """Decodes take most rows. Without the limit, their drafts would take the others for as long as the decodes last."""
    e = fake.engine_with_drafts(lambda request, n: fake.greedy(request.ids.tolist(), n), max_running=8, step_tokens=8)
    sampling = Sampling(temperature=0.0, max_tokens=60)
    for rid in range(7):
        e.take(fake.run(rid, [rid], sampling))
    outputs: dict[int, Any] = {}
    for _ in range(20):
        fake.step(e, outputs)
    assert e.drafting.expected_tokens(7) > 0
    e.take(fake.run(7, [7], sampling))
    for _ in range(2):
        fake.step(e, outputs)
    assert 7 in outputs
    fake.drive(e, [], outputs)
    assert {rid: output.ids for rid, output in outputs.items()} == {rid: fake.greedy([rid], 60) for rid in range(8)}


def test_drafts_without_budget_are_not_misses(fake: ModuleType) -> None:

    b = Bench(fake, DepthController([Always()], cost=Cost(16, 1, 1)), 8)
    for _ in range(3 * MAX_MISSES):
        b.step(lambda k: 1, budget=8)
    assert all(b.step(lambda k: 1))


def test_no_drafters_leave_the_plan_unchanged(fake: ModuleType) -> None:
    assert Bench(fake, DepthController()).step(lambda k: 1) == [0]


# ---- step cost -----------------------------------------------------------------------------------------------------


def fitted(*, noise: float = 0.0) -> Cost:
    import random

    rng = random.Random(1)
    cost = Cost()
    for i in range(600):
        n, extra = 1 + i % 8, (i * 7) % 30
        seconds = 2e-3 + 1e-4 * n + 3e-5 * extra
        cost.note(n, extra, seconds * (1 + (10 * noise if rng.random() < noise else 0.0)))
    return cost


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_cost_is_fitted_despite_noise(noise: float) -> None:
    cost = fitted(noise=noise)
    assert cost.per_row == pytest.approx(3e-5, rel=0.5)
    assert cost.step(4, 10) == pytest.approx(2.7e-3, rel=0.3)


def test_cost_stays_positive_and_finite() -> None:
    cost = Cost()
    cost.note(1, 0, 0.0)  # a zero time is ignored
    for _ in range(500):
        cost.note(1, 0, 1e-3)
    assert cost.per_row > 0
    assert cost.step(1, 0) == pytest.approx(1e-3, rel=0.1)
    for extra in (500, 0) * 50:
        cost.note(1, extra, 1e-3)
    assert 0 < cost.per_row < 1e-4
