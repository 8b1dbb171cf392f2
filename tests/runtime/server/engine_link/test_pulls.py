"""KV between engines as the server sees it: fake engines that export and pull what they are told to, or do not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from fake_link import add_engine, set_ready

from banyan.runtime.fleet.placement import PullSeconds
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, Fork, Gen
from banyan.runtime.server.engine_link.pulls import AT_ONCE
from banyan.runtime.server.engine_link.recovery import Death
from banyan.runtime.server.engine_link.requests import EngineRequests

KV = wire.KVFormat(1, b"weights", "cpu", "float32", "auto", 16, 1, 1, 2, 4096, False)
Sampler = Callable[..., wire.Sampling]
LONG = "word " * 40


class Engines:
    """A Bench with several engines. `orders`: what each was told about pulls; `answer` answers for an engine."""

    def __init__(self, bench: Any, fake: ModuleType, n: int = 2, n_prefill: int = 0) -> None:
        self.bench = bench
        self.requests: EngineRequests = bench.requests
        self.requests._n_prefill = n_prefill
        self.requests.routes.pulls._call_in = bench.timers.call
        self.requests.routes.pulls._clock = lambda: bench.now
        self.orders: list[list[Any]] = [[] for _ in range(n)]
        self.engines = [bench.engine, *(fake.FakeEngine(bench._speak, 4096) for _ in range(n - 1))]
        self.engines[0].max_context = 4096
        self.requests.routes.all.clear()
        self.replicas = [add_engine(self.requests, self._taker(k), str(k)) for k in range(n)]
        for replica in self.replicas:
            replica.kv = KV
        self.requests.routes.measured(0.0, 0.01)  # slow enough that a pull of a block is worth its while

    def _taker(self, k: int) -> Callable[[wire.EngineCommand], None]:
        def take(command: wire.EngineCommand) -> None:
            if isinstance(command, wire.Export | wire.Pull | wire.EndPull):
                self.orders[k].append(command)
            else:
                self.engines[k].take(command)

        return take

    def submit(self, text: str, n_out: int = 2, program: int = 0, **fields: Any) -> None:
        sampling = wire.Sampling(max_tokens=n_out, temperature=0.0, ignore_eos=True)
        self.bench.submit(Append(0, (text,)), Gen(0, 0, sampling), program=program, **fields)

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            for engine, replica in zip(self.engines, self.replicas, strict=True):
                for report in engine.step():
                    if isinstance(report, wire.Step):
                        deque(self.requests.take(report, replica), 0)

    def running(self) -> list[int]:
        return [len(engine.running) for engine in self.engines]

    def answer(self, k: int, **fields: Any) -> None:
        """Engine k answers its last order about pulls as if it had done what it was told."""
        order = self.orders[k][-1]
        if isinstance(order, wire.Export):
            n = (len(order.run.ids) // 4 - 1) // 16 * 16
            self.requests.routes.pulls.exported(
                wire.Exported(**{"pull": order.pull, "n_tokens": n, "places": ("there",), "seconds": 0.001} | fields)
            )
        else:
            assert isinstance(order, wire.Pull)
            self.requests.routes.pulls.pulled(
                wire.Pulled(**{"pull": order.pull, "n_tokens": len(order.ids) // 4, "seconds": 0.001} | fields)
            )

    def kinds(self, k: int) -> list[str]:
        return [type(order).__name__ for order in self.orders[k]]

    def fork(self, n: int = 8) -> None:
        """Submit a program whose trunk runs on engine 0, and then n branches, which are too many for one engine."""
        self.submit(LONG)
        self.step(10)
        ops: list[wire.Op] = [Fork(0, tuple(range(1, n + 1)))]
        for k in range(1, n + 1):
            ops += [Append(k, (f" {k}",)), Gen(k, k, wire.Sampling(max_tokens=50, temperature=0.0, ignore_eos=True))]
        self.bench.submit(*ops)


@pytest.fixture
def engines(bench: Any, fake_engine: ModuleType) -> Engines:
    return Engines(bench({}), fake_engine)


def finish(engines: Engines) -> None:
    engines.step(200)
    pulls = engines.requests.routes.pulls
    assert not len(engines.requests)
    assert not pulls._pending
    assert [one.n_pulls for one in engines.replicas] == [0, 0]
    assert not +pulls._running


def test_split_fork_pulls_its_trunk(engines: Engines) -> None:
    engines.fork()
    assert engines.kinds(0) == ["Export"]
    export = engines.orders[0][0]
    assert (export.first, export.compute, len(export.run.ids) // 4 % 64) == (0, False, 1)
    assert engines.running() == [4, 0], "the branches there wait for their trunk"
    engines.answer(0)
    assert engines.kinds(1) == ["Pull"]
    pull = engines.orders[1][0]
    assert (pull.ids, pull.kv, pull.places) == (export.run.ids[:-4], KV, ("there",))
    engines.answer(1)
    assert engines.running() == [4, 4]
    assert engines.kinds(0)[-1] == engines.kinds(1)[-1] == "EndPull"
    finish(engines)
    assert engines.requests.routes.pulls.counts == {"pulls": 1, "pulled_tokens": len(pull.ids) // 4, "failed_pulls": 0}


@pytest.mark.parametrize("who", [0, 1])
def test_requests_run_without_a_pull_that_fails(engines: Engines, who: int) -> None:
    engines.fork()
    if who:
        engines.answer(0)
    engines.answer(who, n_tokens=0, why="evicted")
    assert engines.running() == [4, 4]
    finish(engines)


def test_requests_run_when_a_pull_takes_too_long(engines: Engines) -> None:
    engines.fork()
    engines.bench.now = 1000.0
    engines.bench.timers.run()
    assert engines.running() == [4, 4]
    assert engines.kinds(0) == ["Export", "EndPull"]
    engines.requests.routes.pulls.exported(wire.Exported(engines.orders[0][0].pull, 192, ("there",)))
    assert engines.kinds(1) == []
    finish(engines)


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("phase", [0, 1])
def test_death_of_either_engine_loses_no_request(engines: Engines, who: int, phase: int) -> None:
    engines.fork()
    if phase:
        engines.answer(0)
    engines.engines[who].running.clear()
    set_ready(engines.replicas[who], False)
    engines.requests.replay(engines.replicas[who], Death("in a test", True, frozenset()))
    assert sum(engines.running()) == 8
    assert len({run.rid for engine in engines.engines for run, _ in engine.running.values()}) == 8
    finish(engines)


def test_engine_that_leaves_loses_no_request(engines: Engines) -> None:
    engines.fork()
    engines.requests.remove_engine(engines.replicas[1])
    assert engines.running() == [8, 0]
    engines.step(200)
    assert not len(engines.requests)


def test_cancelled_requests_are_not_sent_after_the_pull(engines: Engines) -> None:
    engines.fork()
    engines.requests.abort(*[request for request in engines.requests._living.values() if request.pull is not None])
    engines.answer(0)
    engines.answer(1)
    assert engines.running() == [4, 0]
    engines.requests.abort(*engines.requests._living.values())
    finish(engines)


def test_engines_of_other_formats_pull_nothing(engines: Engines) -> None:
    engines.replicas[1].kv = wire.KVFormat(1, b"other weights", "cpu", "float32", "auto", 16, 1, 1, 2, 4096, False)
    engines.fork()
    assert engines.orders == [[], []]
    assert sum(engines.running()) == 8


def test_pull_that_takes_longer_than_the_prefill_is_not_made(engines: Engines) -> None:
    fleet = engines.requests.routes.fleet
    fleet.pull_time = PullSeconds(wait=1000.0)
    engines.fork()
    assert engines.orders == [[], []]
    assert fleet.pull_time.wait < 1000.0, "it is tried again some time"


def test_seconds_of_pulls_are_learned(engines: Engines) -> None:
    engines.fork()
    engines.bench.now += 2.0
    engines.answer(0)
    engines.bench.now += 6.0
    engines.answer(1)
    learned = engines.requests.routes.fleet.pull_time
    assert learned is not None
    assert learned.wait == pytest.approx((8.0 - 0.002) / 8)
    assert learned.token == pytest.approx(0.002 / (len(engines.orders[1][0].ids) // 4) / 8)


def test_ways_that_do_not_exist_are_used_less(engines: Engines) -> None:
    engines.fork()
    engines.answer(0)
    engines.answer(1, n_tokens=0, why="no transport of this engine reaches the other engine's buffer")
    learned = engines.requests.routes.fleet.pull_time
    assert learned is not None
    assert learned.wait > 0
    assert learned.token == 0


def test_drained_engine_hands_over_what_rests(engines: Engines) -> None:
    engines.submit(LONG)
    engines.step(10)
    engines.requests.vacate(engines.replicas[0])
    assert engines.kinds(0) == ["Export"]
    assert engines.replicas[0].n_pulls == 1, "it does not end before"
    engines.answer(0)
    engines.answer(1)
    assert engines.replicas[0].n_pulls == 0
    engines.bench.submit(Gen(0, 9, wire.Sampling(max_tokens=2, temperature=0.0, ignore_eos=True)))
    assert engines.running() == [0, 1]
    finish(engines)


def test_engine_that_was_added_pulls_what_is_placed_there(engines: Engines) -> None:
    set_ready(engines.replicas[1], False)
    engines.submit(LONG)
    engines.step(10)
    for k in range(1, 5):
        engines.submit(f"{k} {k} {k}", n_out=400, program=k)
    assert engines.running() == [4, 0]
    engines.step(1)
    set_ready(engines.replicas[1], True)
    engines.submit(LONG + "and more", program=9)
    assert engines.kinds(0) == ["Export"]
    engines.answer(0)
    engines.answer(1)
    assert engines.running() == [4, 1]


def test_few_pulls_at_once_leave_one_engine(engines: Engines) -> None:
    for k in range(AT_ONCE + 3):
        engines.submit(f"{k} {k} {k} " + LONG, program=k)
        engines.step(10)
    home = max((0, 1), key=lambda k: len(engines.engines[k].runs))
    count = len(engines.engines[home].runs)
    engines.requests.vacate(engines.replicas[home])
    assert engines.kinds(home) == ["Export"] * min(AT_ONCE, count)
    while engines.replicas[home].n_pulls:
        for order in [one for one in engines.orders[home] if isinstance(one, wire.Export)]:
            engines.requests.routes.pulls.exported(wire.Exported(order.pull, why="no"))
    assert engines.kinds(home).count("Export") == count


class TestPrefill:
    """Engine 0 takes prompts only."""

    @pytest.fixture
    def engines(self, bench: Any, fake_engine: ModuleType) -> Engines:
        return Engines(bench({}), fake_engine, n_prefill=1)

    def test_long_prompts_are_computed_elsewhere_and_pulled(self, engines: Engines) -> None:
        engines.submit(LONG)
        (export,) = engines.orders[0]
        assert export.compute
        assert engines.running() == [0, 0]
        engines.answer(0)
        engines.answer(1)
        assert engines.running() == [0, 1]
        finish(engines)

    def test_short_prompts_are_computed_where_they_run(self, engines: Engines) -> None:
        engines.submit("few words")
        assert engines.running() == [0, 1]
        assert engines.orders == [[], []]

    def test_prompt_whose_pull_fails_is_computed_where_it_runs(self, engines: Engines) -> None:
        engines.submit(LONG)
        engines.answer(0, n_tokens=0, why="no")
        assert engines.running() == [0, 1]
        finish(engines)

    def test_prompt_that_nobody_waits_for_is_not_computed(self, engines: Engines) -> None:
        engines.submit(LONG)
        engines.requests.abort(*engines.requests._living.values())
        assert engines.kinds(0) == ["Export", "EndPull"]
        finish(engines)

    def test_engine_for_prompts_takes_programs_if_there_is_no_other(self, engines: Engines) -> None:
        set_ready(engines.replicas[1], False)
        engines.submit(LONG)
        assert engines.running() == [1, 0]

    def test_scored_prompts_are_computed_where_they_run(self, engines: Engines) -> None:
        sampling = wire.Sampling(max_tokens=2, temperature=0.0, logprobs=True, logprob_start=0)
        engines.bench.submit(Append(0, (LONG,)), Gen(0, 0, sampling))
        assert engines.orders == [[], []]
        assert engines.running() == [0, 1]
