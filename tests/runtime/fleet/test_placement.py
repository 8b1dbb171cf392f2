"""Which replicas get which programs, and what the fleet remembers of their work and prefixes."""

from __future__ import annotations

import random

import pytest

from banyan.radix_cache.cache import Cache
from banyan.runtime.fleet.index import BLOCK, PrefixIndex, block_digests, blocks_of
from banyan.runtime.fleet.placement import (
    Branch,
    CoreShare,
    Demand,
    Fleet,
    NoReplica,
    PlannedPull,
    ProgramPlacement,
    PullSeconds,
    StepSeconds,
)
from cache_support import open_published

WEIGHTS = b"weights"
NAMESPACE = b"tenant"


def text(n: int, seed: int = 0) -> bytes:
    """n random tokens."""
    return random.Random(seed).randbytes(4 * n)


def fleet(n: int, cores: CoreShare | None = None) -> Fleet:
    made = Fleet(StepSeconds(1e-3, 4e-5, 1e-4))
    for i in range(n):
        made.add(f"r{i}", WEIGHTS, cores)
    return made


def demand(ids: bytes, n: int = 1, n_out: int = 50, namespace: bytes = NAMESPACE, weights: bytes = WEIGHTS) -> Demand:
    """n branches behind the text `ids`."""
    return Demand(block_digests(namespace, ids), len(ids) // 4, [Branch(10, n_out, n_out)] * n, weights)


def n_on_device(cache: Cache, ids: bytes) -> int:
    return cache.tree.match(cache.tree.root(b""), ids, len(ids) // 4)[1]


def used(placement: ProgramPlacement) -> set[str]:
    return set(placement.replicas)


def test_a_prefix_brings_programs_to_its_replica_and_work_drives_them_away() -> None:
    replicas = fleet(4)
    home = replicas.place(demand(text(1000)))
    assert home.replicas == [home.home]
    others = [replicas.place(demand(text(1000, seed))) for seed in (1, 2, 3)]
    assert len({one.home for one in (home, *others)}) == 4, "what shares nothing goes where nothing is queued"
    for one in (home, *others):
        replicas.end(one)
    again = [replicas.place(demand(text(1000))) for _ in range(40)]
    assert [one.home for one in again[:5]] == [home.home] * 5
    assert len({one.home for one in again}) > 1, "a hot prefix is computed elsewhere once the queue takes longer"


def test_a_prefix_is_not_computed_again_for_little() -> None:
    replicas = fleet(2)
    home = replicas.place(demand(text(1000)))
    replicas.end(home)
    replicas.keep(demand(text(860, 1)), home.home)  # the queue takes 3.5 ms longer than the prefill elsewhere
    assert replicas.place(demand(text(1000))).home == home.home
    replicas.keep(demand(text(200, 2)), home.home)
    assert replicas.place(demand(text(1000))).home != home.home


def after_a_turn(replicas: Fleet) -> list[str]:
    """Two conversations on each of two replicas have ended their turn. Where the two of one replica had it, and where
    they have the next."""
    turns = [replicas.place(demand(text(164, seed))) for seed in range(10, 14)]
    for one in turns:
        replicas.end(one)
    mine = [i for i, one in enumerate(turns) if one.home == turns[0].home]
    assert len(mine) == 2
    again = [replicas.place(demand(text(164, 10 + i) + text(100, i))) for i in mine]
    return [turns[0].home, *(one.home for one in again)]


def test_a_replica_between_two_turns_is_not_free() -> None:
    assert len(set(after_a_turn(fleet(2)))) == 1, "the other replica waits for its own conversations"


def test_texts_that_do_not_go_on_are_no_work() -> None:
    replicas = fleet(2)
    for seed in range(100, 200):
        replicas.end(replicas.place(demand(text(164, seed))))
    home, first, second = after_a_turn(replicas)
    assert home == first != second
    assert len(replicas._resting) <= 8
    assert sum(one.resting for one in replicas._replicas.values()) < 0.1


def test_texts_that_go_on_at_home_rest_no_longer() -> None:
    replicas, ids = fleet(2), text(164)
    one = replicas.place(demand(ids))
    for seed in (1, 2, 3):
        replicas.end(one)
        assert replicas._replicas[one.home].resting > 0
        ids += text(100, seed)
        one = replicas.keep(demand(ids), one.home)
        assert replicas._replicas[one.home].resting == 0


def test_finished_work_counts_no_more() -> None:
    replicas = fleet(2)
    first = replicas.place(demand(text(1000)))
    second = replicas.place(demand(text(1000, 1)))
    replicas.computed(first, 0, n_prompt=1010, n_out=20)
    third = replicas.place(demand(text(700, 2)))
    assert third.home == first.home
    replicas.computed(second, 0, n_prompt=5000, n_out=5000)  # more than was expected
    for one in (first, second, third, third):
        replicas.end(one)
    assert [(one.prompt, one.out, one.rows) for one in replicas._replicas.values()] == [(0, 0, 0)] * 2


def test_work_of_other_servers_counts_until_it_has_ended() -> None:
    two = fleet(2)
    two.set_others("r0", prompt=500, out=300, rows=3)
    placed = [two.place(demand(text(200, k))) for k in range(3)]
    assert [one.home for one in placed] == ["r1"] * 3
    two.set_others("r0", prompt=0, out=100, rows=1)
    assert two.queued("r0") == pytest.approx(100 * 1e-4)
    two.set_others("r0", 0, 0, 0)
    assert two.queued("r0") == 0
    placed.append(two.place(demand(text(200, 9))))
    assert placed[-1].home == "r0"
    for one in placed:
        two.end(one)
    assert two.queued_seconds == 0


def test_work_of_other_servers_on_a_machine_leaves_with_the_replica() -> None:
    cores = CoreShare("there", 1, 8)
    replicas = fleet(1, cores)
    for _ in range(5):
        replicas.set_others("r0", prompt=500, out=300, rows=2)
        replicas.remove("r0")
        replicas.add("r0", WEIGHTS, cores)
    machine = replicas._machines["there"]
    assert (machine.n_busy, machine.n_groups) == (0, 0)
    assert replicas.queued_seconds == 0


def test_a_fork_splits_when_it_ends_sooner() -> None:
    short = text(100)
    wide = fleet(8).place(demand(short, n=64, n_out=100))
    assert len(used(wide)) == 8
    assert [wide.replicas.count(name) for name in used(wide)] == [8] * 8
    assert wide.replicas == sorted(wide.replicas, key=wide.replicas.index), "neighbours stay together"
    assert wide.home in used(wide)
    busy = fleet(8)
    for seed in range(8):
        busy.place(demand(text(1000, seed)))
    assert len(used(busy.place(demand(text(20_000), n=16, n_out=20)))) == 1, "the trunks would delay others"


@pytest.mark.parametrize(("n_cores", "most"), [(1, 1), (2, 2), (4, 4)])
def test_a_fork_is_split_over_as_many_engines_as_cores(n_cores: int, most: int) -> None:
    replicas = fleet(4, CoreShare("", 1, n_cores))
    assert len(used(replicas.place(demand(text(100), 32)))) == most


def test_engines_on_other_machines_share_no_cores() -> None:
    replicas = fleet(0)
    for i in range(4):
        replicas.add(f"r{i}", WEIGHTS, CoreShare(f"machine {i}", 1, 1))
    assert len(used(replicas.place(demand(text(100), 32)))) == 4


@pytest.mark.parametrize(("n_cores", "n_used"), [(4, 4), (1, 1)])
def test_a_prefix_is_computed_again_only_where_that_delays_no_others(n_cores: int, n_used: int) -> None:
    """Each of 16 programs on four engines is short, and has the same prefix."""
    replicas = fleet(4, CoreShare("", 1, n_cores))
    placed = [replicas.place(demand(text(1000), n_out=100)) for _ in range(16)]
    assert len({one.home for one in placed}) == n_used


def test_cores_are_free_when_work_has_ended() -> None:
    rng, replicas = random.Random(0), fleet(4, CoreShare("", 1, 2))
    placed: list[ProgramPlacement] = []
    for k in range(300):
        if placed and rng.random() < 0.5:
            one = placed.pop(rng.randrange(len(placed)))
            replicas.end(one, rng.choice([None, rng.randrange(len(one.replicas))]))
            replicas.end(one)
        else:
            placed.append(replicas.place(demand(text(200, k), rng.choice([1, 4, 32]))))
        if k == 200:
            replicas.remove("r3")
    for one in placed:
        replicas.end(one)
    (machine,) = {replica.machine for replica in replicas._replicas.values()}
    assert machine is not None
    assert (machine.n_busy, machine.n_groups) == (0, 0)


def test_branches_may_end_one_by_one() -> None:
    replicas = fleet(2)
    placement = replicas.place(demand(text(100), n=8))
    replicas.end(placement, 0)
    replicas.end(placement, 0)
    assert sum(one.rows for one in replicas._replicas.values()) == 7
    replicas.end(placement)
    assert sum(one.rows for one in replicas._replicas.values()) == 0


def test_tenants_and_weights_share_nothing() -> None:
    replicas = fleet(2)
    home = replicas.place(demand(text(1000)))
    assert replicas.place(demand(text(1000), namespace=b"other")).home != home.home
    replicas.add("new", b"new weights")
    assert {replicas.place(demand(text(1000), weights=b"new weights")).home for _ in range(5)} == {"new"}
    with pytest.raises(NoReplica):
        replicas.place(demand(text(1000), weights=b"unknown"))


def test_a_replica_drains_leaves_and_comes_back_empty() -> None:
    replicas = fleet(2)
    home = replicas.place(demand(text(1000)))
    replicas.drain(home.home)
    replicas.drain(home.home)
    other = replicas.place(demand(text(1000)))
    assert other.home != home.home
    replicas.end(other)
    replicas.remove(home.home)
    replicas.end(home)
    replicas.add(home.home, WEIGHTS)
    assert replicas.place(demand(text(1000))).home == other.home, "what the old process had is gone"
    for name in ("r0", "r1"):
        replicas.drain(name)
    with pytest.raises(NoReplica):
        replicas.place(demand(text(10)))


def test_index_follows_the_events_of_a_tree() -> None:
    """After any order of stored and removed, the index has exactly the tree's blocks."""
    cache = Cache(40, 16)
    events = cache.listen()
    index, position, rng = PrefixIndex(), -1, random.Random(0)
    texts = [text(rng.randint(20, 400), seed % 3) + text(rng.randint(0, 200), seed) for seed in range(20)]
    for ids in texts:
        open_published(cache, ids).close()
        page = events.since(position)
        position = page.next
        for event in page.events:
            change = index.stored if event.kind == "stored" else index.removed
            change(1, [bytes.fromhex(one) for one in blocks_of(event.digests, event.first, 16)])
        for one in texts:
            n_cached = n_on_device(cache, one)
            found = index.holders(block_digests(b"", one), 1)
            assert (found[0][0] if found else 0) == n_cached // BLOCK


def test_index_is_bounded_and_forgets_the_longest_unused_from_the_end() -> None:
    index = PrefixIndex(n_blocks=20)
    digests = [block_digests(b"", text(10 * BLOCK, seed)) for seed in range(3)]
    index.stored(0b01, digests[0])
    index.stored(0b10, digests[1])
    index.stored(0b10, digests[0][:4])
    assert index.holders(digests[0], 0b11) == [(10, 0b01), (4, 0b11)]
    index.stored(0b01, digests[2][:6])
    assert len(index) == 20
    assert index.holders(digests[0], 0b11) == [(4, 0b11)]
    index.removed(0b10, digests[1])
    index.removed(0b11, digests[0])
    assert len(index) == 6


# ---- pulls ---------------------------------------------------------------------------------------------------------


def pulling(n: int, pull: PullSeconds, n_trunk: int = 1024) -> tuple[Fleet, str]:
    """A fleet, and the replica that has computed a trunk."""
    replicas = fleet(n)
    replicas.pull_time = pull
    home = replicas.place(demand(text(n_trunk)))
    replicas.end(home)
    return replicas, home.home


@pytest.mark.parametrize(("pull", "is_pulled"), [(PullSeconds(1e-3, 1e-6), True), (PullSeconds(1.0, 1e-6), False)])
def test_groups_of_a_fork_pull_their_trunk_where_that_is_faster(pull: PullSeconds, is_pulled: bool) -> None:
    replicas, home = pulling(4, pull)
    placement = replicas.place(demand(text(1024), n=64))
    others = used(placement) - {home}
    assert others, "it is split"
    expected = {PlannedPull(home, other, 0, 1024) for other in others} if is_pulled else set()
    assert set(placement.pulls) == expected
    work = sum(one.prompt for one in replicas._replicas.values())
    assert work == 64 * 10 + (0 if is_pulled else 1024 * len(others)), "what is pulled is not computed"


def test_pulls_split_forks_that_would_stay_together() -> None:
    alone = fleet(4)
    alone.end(alone.place(demand(text(1024))))
    replicas, _ = pulling(4, PullSeconds(1e-3, 1e-6))
    n_groups = [len(used(one.place(demand(text(1024), n=4, n_out=20)))) for one in (alone, replicas)]
    assert n_groups[0] < n_groups[1]


def test_only_what_is_missing_is_pulled() -> None:
    replicas, home = pulling(2, PullSeconds(1e-3, 1e-6), n_trunk=640)
    (other,) = {"r0", "r1"} - {home}
    busy = replicas.keep(demand(text(3000, 1)), home)
    replicas.computed(busy, 0, n_prompt=3010)  # it decodes
    more = text(640) + text(384, 5)
    replicas.stored(other, block_digests(NAMESPACE, text(640))[:4])
    placements = [replicas.place(demand(more)) for _ in range(3)]
    (pull,) = [pull for one in placements for pull in one.pulls]
    assert pull == PlannedPull(home, other, 4 * BLOCK, 640)


def test_drained_replica_gives_what_it_has_and_one_that_left_does_not() -> None:
    replicas, home = pulling(2, PullSeconds(1e-3, 1e-6))
    (other,) = {"r0", "r1"} - {home}
    replicas.drain(home)
    placement = replicas.place(demand(text(1024)))
    assert placement.pulls == [PlannedPull(home, other, 0, 1024)]
    replicas, home = pulling(2, PullSeconds(1e-3, 1e-6))
    replicas.remove(home)
    assert replicas.place(demand(text(1024))).pulls == []


def test_replicas_of_other_weights_give_nothing() -> None:
    replicas, _ = pulling(1, PullSeconds(1e-3, 1e-6))
    replicas.add("new", b"new weights")
    assert replicas.place(demand(text(1024), weights=b"new weights")).pulls == []


def test_queue_of_the_source_comes_before_the_pull() -> None:
    """Else a trunk that is being computed would seem to be there already."""
    replicas = fleet(2)
    replicas.pull_time = PullSeconds(1e-3, 1e-6)
    first = replicas.place(demand(text(1024)))
    placement = replicas.place(demand(text(1024), n=64))
    assert placement.pulls == []
    replicas.end(first)


def test_estimate_of_a_pull_follows_what_pulls_take_and_forgets_it() -> None:
    replicas, _ = pulling(2, PullSeconds())
    for _ in range(60):
        replicas.pulled(0.5, 1e-3)
    assert replicas.pull_time == pytest.approx(PullSeconds(0.5, 1e-3), rel=1e-3)
    replicas.pulled(0.5, 0.0)
    assert replicas.pull_time is not None
    assert replicas.pull_time.token == pytest.approx(1e-3, rel=1e-3), "a pull that failed says nothing of copying"
    for _ in range(400):
        replicas.refused()
    assert replicas.pull_time.wait < 1e-4
