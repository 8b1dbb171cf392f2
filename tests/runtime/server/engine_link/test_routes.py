"""Two fake engines behind one server: where programs go, and what happens to them when an engine dies or is drained."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from fake_link import add_engine, set_ready

from banyan.radix_cache.digests import prefix_digests
from banyan.runtime.fleet.placement import CoreShare
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, CacheHint, Fork, Gen, Join, Select
from banyan.runtime.server.engine_link.recovery import Death

Sampler = Callable[..., wire.Sampling]


class Pair:
    """A Bench with a second engine."""

    def __init__(self, bench: Any, fake: ModuleType) -> None:
        self.bench = bench
        self.engines = [bench.engine, fake.FakeEngine(bench._speak)]
        self.replicas = [bench.replica, add_engine(bench.requests, self.engines[1].take, "1")]

    def submit(self, n: int, greedy: Sampler, first: int = 0) -> None:
        """Programs with one gen each, from number `first` on."""
        for k in range(first, first + n):
            self.bench.submit(Append(0, (f"p{k}",)), Gen(0, 0, greedy(max_tokens=40)), program=k, last=True)

    def step(self, n: int = 1) -> None:
        """Both engines compute n steps."""
        for _ in range(n):
            for engine, replica in zip(self.engines, self.replicas, strict=True):
                for report in engine.step():
                    if isinstance(report, wire.Step):
                        deque(self.bench.requests.take(report, replica), 0)

    def run(self) -> None:
        for _ in range(1000):
            self.step()
        assert not len(self.bench.requests)
        assert [one.n_running for one in self.replicas] == [0, 0]

    def running(self) -> list[int]:
        return [len(engine.running) for engine in self.engines]

    def die(self, k: int, rids: Any = (), is_blameless: bool = False) -> None:
        """Engine k dies with these requests in hand, and another starts in its place."""
        self.engines[k].running.clear()
        self.engines[k].reports.clear()
        self.engines[k].finished.clear()
        set_ready(self.replicas[k], False)
        self.bench.requests.replay(self.replicas[k], Death("in a test", is_blameless, frozenset(rids)))

    def text(self, n: int) -> list[str]:
        return [self.bench.text(0, program=k) for k in range(n)]


@pytest.fixture
def pair(bench: Any, fake_engine: ModuleType) -> Pair:
    return Pair(bench({"p": "x"}), fake_engine)


def test_programs_are_spread_and_stay_where_they_are(pair: Pair, greedy: Sampler) -> None:
    pair.submit(6, greedy)
    assert pair.running() == [3, 3]
    pair.bench.submit(Append(0, ("again",)), Gen(0, 0, greedy()), Gen(0, 1, greedy()), program=9)
    pair.run()
    pair.submit(3, greedy, first=20)
    pair.bench.submit(Gen(0, 2, greedy()), program=9, last=True)
    pair.run()
    homes = [{run.order[0] for run in engine.runs} for engine in pair.engines]
    assert not homes[0] & homes[1]


def test_programs_avoid_an_engine_on_which_other_servers_have_work(pair: Pair, greedy: Sampler) -> None:
    routes = pair.bench.requests.routes
    routes.set_others(pair.replicas[0], wire.OtherWork(n_prompt=400, n_running=8))
    pair.submit(4, greedy)
    assert pair.running() == [0, 4]
    pair.die(0)
    set_ready(pair.replicas[0], True)
    pair.submit(4, greedy, first=10)
    assert pair.running() == [4, 4], "the next engine has no such work"
    pair.run()


@pytest.mark.parametrize(("n_cores", "running"), [(2, [4, 4]), (1, [8, 0])])
def test_engines_that_share_a_core_share_no_fork(pair: Pair, greedy: Sampler, n_cores: int, running: list[int]) -> None:
    for replica in pair.replicas:
        replica.cores = CoreShare("", 1, n_cores)
    pair.bench.requests.routes.measured(1e-3, 4e-5)  # as an engine learned it
    states = tuple(range(1, 9))
    pair.bench.submit(
        Append(0, ("p",)), Fork(0, states), *(Gen(state, state, greedy(max_tokens=40)) for state in states), last=True
    )
    assert sorted(pair.running(), reverse=True) == running
    pair.run()


def test_what_an_engine_that_died_had_goes_on_elsewhere(pair: Pair, greedy: Sampler) -> None:
    pair.submit(6, greedy)
    pair.step(5)
    pair.die(0, is_blameless=True)
    assert pair.running() == [0, 6], "the new engine is not ready"
    assert sorted(run.n_done for run, _ in pair.engines[1].running.values()) == [0, 0, 0, 5, 5, 5]
    pair.submit(1, greedy, first=6)
    assert pair.running() == [0, 7]
    pair.run()
    assert len(set(map(len, pair.text(7)))) == 1
    set_ready(pair.replicas[0], True)
    pair.submit(1, greedy, first=7)
    assert pair.running() == [1, 0]


def test_suspects_are_tried_by_the_new_engine_and_harm_no_other(pair: Pair, greedy: Sampler) -> None:
    pair.submit(6, greedy)
    poison = next(iter(pair.engines[0].running))
    pair.die(0, {poison})
    assert (list(pair.engines[0].running), pair.running()[1]) == ([poison], 5)
    set_ready(pair.replicas[0], True)
    pair.submit(1, greedy, first=6)
    assert pair.running() == [1, 6], "nothing is placed beside a suspect"
    pair.die(0, {poison})
    assert pair.bench.failed(0, program=0).code == "quarantined"
    pair.run()
    assert all(pair.bench.text(0, program=k) for k in range(1, 7))


def test_request_that_kills_an_engine_here_and_one_there_is_given_up(pair: Pair, greedy: Sampler) -> None:
    pair.submit(2, greedy)
    (poison,) = pair.engines[0].running
    pair.die(0, {poison})
    pair.bench.requests.remove_engine(pair.replicas[0])
    poison = max(pair.engines[1].running)
    pair.die(1, {poison})
    assert pair.bench.failed(0, program=0).code == "quarantined"


def test_drained_engine_keeps_what_has_output_until_it_ends(pair: Pair, greedy: Sampler) -> None:
    pair.submit(4, greedy)
    pair.step(3)
    pair.submit(2, greedy, first=4)
    pair.bench.requests.vacate(pair.replicas[0])
    pair.submit(2, greedy, first=6)
    pair.step()
    assert pair.running() == [2, 6]
    assert pair.replicas[0].n_running == 2
    pair.run()
    assert len(set(map(len, pair.text(8)))) == 1
    assert not [one for one in pair.engines[0].runs if one.order[0] >= 6]


def test_only_outputs_count_for_the_expected_length(pair: Pair, greedy: Sampler) -> None:
    """With many requests that score choices, or that are moved, it fell to nothing."""
    routes = pair.bench.requests.routes
    before = routes._n_out
    pair.submit(4, greedy)
    pair.bench.submit(Append(0, ("q",)), Select(0, 0, ("a", "b c")), program=9, last=True)
    pair.bench.requests.vacate(pair.replicas[0])
    assert pair.running()[0] == 0
    pair.bench.programs.cancel(b"me", wire.Cancel(0, 0))
    assert routes._n_out == before
    pair.run()
    assert routes._n_out < before, "three outputs are shorter than that"


def test_drained_engine_that_dies_loses_nothing(pair: Pair, greedy: Sampler) -> None:
    pair.submit(4, greedy)
    pair.step(3)
    pair.bench.requests.vacate(pair.replicas[0])
    pair.die(0, is_blameless=True)
    assert pair.replicas[0].n_running == 0
    pair.bench.requests.remove_engine(pair.replicas[0])
    pair.run()
    assert len(set(map(len, pair.text(4)))) == 1


def test_hints_go_where_the_program_is(pair: Pair, greedy: Sampler) -> None:
    pair.submit(1, greedy)
    pair.bench.submit(Append(0, ("q",)), Gen(0, 0, greedy(max_tokens=2)), program=1)
    pair.step(5)
    pair.bench.submit(CacheHint(0, pin=60.0), program=1)
    holds = [[one for one in engine.steered if isinstance(one, wire.Hold) and one.seconds] for engine in pair.engines]
    assert [len(one) for one in holds] == [0, 1]


def test_program_goes_on_elsewhere_after_its_engine_was_drained(pair: Pair, greedy: Sampler) -> None:
    pair.bench.submit(Append(0, ("q",)), Gen(0, 0, greedy(max_tokens=2)), program=0)
    pair.step(5)
    pair.bench.requests.vacate(pair.replicas[0])
    pair.bench.requests.remove_engine(pair.replicas[0])
    commands: list[Any] = []
    send = pair.replicas[1].send
    pair.replicas[1].send = lambda command: (commands.append(command), send(command))  # type: ignore[func-returns-value]
    pair.bench.submit(Gen(0, 1, greedy(max_tokens=2)), program=0, last=True)
    assert pair.running() == [0, 1]
    pair.run()
    assert wire.ProgramEnded(client=0, program=0) in commands


def test_branches_are_split_where_that_is_sooner_and_the_join_returns_home(pair: Pair, greedy: Sampler) -> None:
    children = tuple(range(1, 9))
    gens = [op for k in children for op in (Append(k, (f"b{k}",)), Gen(k, k, greedy(max_tokens=40)))]
    ops = (Append(0, ("p",)), Gen(0, 0, greedy(max_tokens=4)), Fork(0, children), *gens, Join(0, children))
    pair.bench.submit(*ops, Gen(0, 9, greedy(max_tokens=4)), last=True)
    pair.run()
    routes = {run.order[1]: [run.order[1] for run in engine.runs] for engine in pair.engines for run in engine.runs}
    assert [engine.runs.count(run) for engine in pair.engines for run in engine.runs] == [1] * 10
    split = [[run.order[1] for run in engine.runs if run.order[1]] for engine in pair.engines]
    assert sorted(map(len, split)) == [4, 4], routes
    home = [[run.order[1] for run in engine.runs].count(0) for engine in pair.engines]
    assert sorted(home) == [0, 2], "state 0 stays at home"
    assert not pair.bench.requests.routes._booked


def test_programs_with_a_prefix_go_where_it_is(pair: Pair, greedy: Sampler) -> None:
    for k in range(12):
        prefix = f"{k % 2} " + "the quick brown fox " * 20
        pair.bench.submit(Append(0, (prefix + str(k),)), Gen(0, 0, greedy(max_tokens=2)), program=k, last=True)
        pair.run()
    homes = [{run.order[0] % 2 for run in engine.runs} for engine in pair.engines]
    assert homes in ([{0}, {1}], [{1}, {0}])


def test_what_engines_report_of_their_trees_decides_where_programs_go(pair: Pair, greedy: Sampler) -> None:
    prefix = "the quick brown fox " * 40
    pair.bench.submit(Append(0, (prefix,)), Gen(0, 0, greedy(max_tokens=2)), program=0, last=True)
    (run,) = pair.engines[0].runs
    pair.run()
    digests = prefix_digests(run.namespace, run.ids, 0, 64)[1:]
    routes = pair.bench.requests.routes
    gone = wire.TreeEvent(b"".join(digests), is_removed=True)
    there = wire.TreeEvent(b"".join(digests))
    deque(routes.heard(pair.replicas[0], wire.TreeEvents((gone,)), 16), 0)
    deque(routes.heard(pair.replicas[1], wire.TreeEvents((there,), is_all=True), 16), 0)
    for k in (1, 2):
        pair.bench.submit(Append(0, (prefix,)), Gen(0, 0, greedy(max_tokens=2)), program=k, last=True)
        pair.run()
    assert [len(engine.runs) for engine in pair.engines] == [1, 2]
