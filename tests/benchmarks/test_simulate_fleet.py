"""The simulated fleet: its engines take the expected times, and our placement beats the others in a small run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import msgspec
import pytest

import banyan as bn
from banyan.runtime.fleet.placement import StepSeconds
from forms import in_short

FOLDER = Path(__file__).parents[2] / "benchmarks"
TIME = StepSeconds(1e-3, 1e-4, 1e-4)


@pytest.fixture(scope="module")
def fleet(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(FOLDER / "simulate_fleet.py")


class Ends:
    """A virtual engine, and the times at which its requests got their first token and ended."""

    def __init__(self, modules: Any, n_pages: int = 100, max_running: int = 64) -> None:
        self.first: dict[int, tuple[float, int]] = {}
        self.ended: dict[int, float] = {}
        self.removed: list[bytes] = []
        self.engine = modules.VirtualEngine(
            0,
            modules.Size(n_pages, max_running, 512),
            TIME,
            lambda request, now, n: self.first.update({request.number: (now, n)}),
            lambda request, now: self.ended.update({request.number: now}),
            lambda engine, digests, first: None,
            lambda engine, digests: self.removed.extend(digests),
        )

    def run(self, *requests: Any) -> None:
        for number, request in enumerate(requests):
            request.number = number
            self.engine.take(request)
        while (when := self.engine.next_event()) < float("inf"):
            self.engine.advance(when)


@pytest.fixture(scope="module")
def modules(fleet: ModuleType) -> Any:
    return sys.modules["simulate_fleet_engine"]


def blocks(text: str, n: int) -> list[bytes]:
    return [f"{text} {i}".encode() for i in range(n)]


def test_an_engine_shares_steps_and_finds_prefixes(modules: Any) -> None:
    one = Ends(modules)
    # 512 tokens a step: 512 x 0.1 ms + 1 ms; then 10 decodes of 1.1 ms.
    one.run(modules.Request(0, blocks("a", 8), 512, 512, 10))
    assert one.first == {0: (pytest.approx(0.0522), 512)}
    assert one.ended == {0: pytest.approx(0.0522 + 10 * 1.1e-3)}
    two = Ends(modules)
    # The second computes one token of its prompt, then both decode together.
    two.run(*(modules.Request(0, blocks("a", 8), 512, 512, 10) for _ in range(2)))
    assert [n for _, n in two.first.values()] == [512, 1]
    assert two.ended[1] == pytest.approx(0.0522 + 10 * 1.2e-3, rel=0.02)


def test_an_engine_evicts_the_longest_unused_blocks_and_runs_so_many(modules: Any) -> None:
    small = Ends(modules, n_pages=10, max_running=1)
    texts = ["a", "b", "a", "c"]
    small.run(*(modules.Request(0, blocks(text, 4), 256, 256, 5) for text in texts))
    assert [n for _, n in small.first.values()] == [256, 256, 1, 256]
    assert small.removed == blocks("b", 4)[:1:-1], "from the end of the text that was used first"
    assert list(small.ended) == [0, 1, 2, 3]
    assert small.first[1][0] > small.ended[0]


@pytest.mark.long
def test_our_placement_is_better_in_small(fleet: ModuleType) -> None:
    """Compares fork programs and cached tokens as `--quick` does, with 1 seed and fewer policies."""
    work = fleet.programs(0, 160, 6.0 * 20, 20, fleet.POCKET.fixed)
    settings = fleet.policies(20, fleet.POCKET)
    run = {
        name: fleet.FleetRun(work, settings[name][setting](), 20, fleet.Size(), fleet.POCKET).figures()
        for name, setting in (("ours", ""), ("least loaded", ""), ("SGLang's router", "0.3, 64, 1.5"))
    }
    ours = run.pop("ours")
    assert ours.of_oracle > 0.9
    for other in run.values():
        assert ours.forks < other.forks
        assert ours.of_oracle > other.of_oracle
    assert fleet.interval([2.0, 2.0, 2.0]) == pytest.approx((2.0, 2.0, 2.0))


# ---- recorded programs ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recording(fleet: ModuleType) -> Any:
    return sys.modules["simulate_fleet_recording"]


SYSTEM, PAGE = tuple(range(200)), 16


def agent(module: Any, question: int) -> list[Any]:
    """A request of 300 tokens, a tool that takes 0.5 s, and a second request."""
    first = (*SYSTEM, *(question + i for i in range(100)))
    second = (*first, *(question + 200 + i for i in range(20 + 30)))
    return [
        module.Generated(1.0, 2.0, (*second[:320],), 300, 20),
        module.Generated(2.5, 3.0, (*second, *(question + 300 + i for i in range(10))), 350, 10),
    ]


def tree(module: Any) -> list[Any]:
    """A fork into 3 branches, 0.25 s after its end a fork into 2, and 0.125 s after that one's end another fork into 2.
    The second branch of the first fork goes on, without its client, when its first request has ended."""
    root = tuple(range(5000, 5300))
    branches = [(*root, *(6000 + 100 * k + i for i in range(20))) for k in range(3)]
    more = (*branches[1], *range(7000, 7010))
    asked = [(*branches[k], *range(8000, 8010)) for k in (0, 2)]
    return [
        *(module.Generated(0.0, 1.0 + k / 10, text, 300, 20) for k, text in enumerate(branches)),
        module.Generated(0.0, 2.0, (*more, 1, 2, 3), 330, 4),
        *(module.Generated(2.25, 3.0 + k, (*asked[0], 9000 + k), 330, 1) for k in range(2)),
        *(module.Generated(4.125, 5.0 + k, (*asked[1], 9100 + k), 330, 1) for k in range(2)),
    ]


@pytest.fixture(scope="module")
def small(recording: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A recording of two agents and a tree, written and read."""
    runs = [("agent", agent(recording, 1000)), ("agent", agent(recording, 2000)), ("tree", tree(recording))]
    pieces, ends = recording.pieces_of(one.ids for _, program in runs for one in program)
    made = recording.Recording("", pieces, [(kind, [recording.program_of(one, ends)]) for kind, one in runs])
    path = tmp_path_factory.mktemp("fleet") / "recording.json"
    path.write_bytes(msgspec.json.encode(made))
    return recording.Recording.read(path)


def n_common(a: Sequence[Any], b: Sequence[Any]) -> int:
    return next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def test_a_recording_keeps_what_texts_have_in_common(recording: Any) -> None:
    random = Random(0)
    for _ in range(200):
        texts = [tuple(random.choices((1, 2), k=random.randrange(9))) for _ in range(random.randrange(1, 8))]
        pieces, ends = recording.pieces_of(texts)
        made = recording.Recording("", pieces, [])
        for a in texts:
            assert sum(pieces[piece][1] for piece in made.path(ends[a])) == len(a)
            for b in texts:
                common = set(made.path(ends[a])) & set(made.path(ends[b]))
                assert sum(pieces[piece][1] for piece in common) == n_common(a, b)


def test_a_recording_keeps_turns_forks_and_waits(recording: Any, small: Any) -> None:
    (_, (one,)), _, (_, (three,)) = small.runs
    assert one.turns == [(0, 0.0), (1, 0.5)]
    assert [request[0] for request in one.requests] == [0, 1]
    assert three.turns == [(0, 0.0), (4, 0.25), (6, 0.125)]
    assert [request[0] for request in three.requests] == [0, 0, 0, ~1, 1, 1, 2, 2]
    assert [request[2:] for request in three.requests[2:5]] == [(300, 20), (330, 4), (330, 1)]


@pytest.mark.long
def test_programs_are_drawn_with_the_same_common_and_new_private_text(fleet: ModuleType, small: Any) -> None:
    work = fleet.recorded(small, 0, 24, 10.0)
    assert {program.kind for program in work} == {"agent", "tree"}
    for i, program in enumerate(work):
        assert program.is_fork is (program.kind == "tree")
        requests = list(requests_of(program))
        n_first = 300 // PAGE if program.is_fork else 200 // PAGE
        for one in requests:
            for other in requests:
                assert n_common(one.digests, other.digests) >= n_first, "of one program"
            for before in work[:i]:
                n_shared = 200 // PAGE if program.kind == before.kind == "agent" else 0
                assert all(n_common(one.digests, other.digests) == n_shared for other in requests_of(before))
    turns = next(program.turns for program in work if program.kind == "tree")
    assert [len(turn.requests) for turn in turns] == [3, 2, 2]
    assert [turn.wait for turn in turns] == [0.0, 0.25, 0.125]
    assert [one.n_prompt - one.n_own for turn in turns for one in turn.requests] == [300] * 3 + [330] * 4
    ((after,),) = (one.children for one in turns[0].requests if one.children)
    assert (after.n_prompt, after.n_own) == (330, 10)
    work = [program.turns for program in fleet.recorded(small, 1, 12, 10.0) if program.kind == "agent"]
    assert [(one.n_prompt, one.n_own) for turn in work[0] for one in turn.requests] == [(300, 0), (350, 30)]


def requests_of(program: Any) -> Iterator[Any]:
    yield from sys.modules["simulate_fleet_work"].every_request([program])


def test_a_turn_begins_when_all_that_it_waits_for_has_ended(fleet: ModuleType, small: Any) -> None:
    """Programs run one at a time, and their requests end in any order."""
    small = msgspec.structs.replace(small, runs=small.runs[2:])
    work = fleet.recorded(small, 0, 4, 1e-3)
    run = fleet.FleetRun(work, fleet.Ours(3, TIME, PAGE), 3, fleet.Size(), TIME)
    ended: list[tuple[Any, float]] = []
    end = run._ended
    run._ended = lambda request, now: (ended.append((request, now)), end(request, now))
    for engine in run._engines:
        engine.on_end = run._ended
    run.figures()
    assert len(ended) == 4 * 8
    at = dict(ended)
    for program in work:
        first, second, third = program.turns
        requests = [*first.requests, *(child for one in first.requests for child in one.children)]
        assert {one.started for one in first.requests} == {program.arrival}
        assert {one.started for one in second.requests} == {max(at[one] for one in requests) + 0.25}
        assert {one.started for one in third.requests} == {max(at[one] for one in second.requests) + 0.125}
        assert {at[one] for one in first.requests for child in one.children} == {requests[-1].started}


@pytest.mark.parametrize("path", in_short([None], [None, FOLDER / "simulate_fleet_recording.json"]))
def test_all_recorded_programs_end_under_each_policy(
    path: Path | None, fleet: ModuleType, recording: Any, small: Any
) -> None:
    work = fleet.recorded(small if path is None else recording.Recording.read(path), 0, 24, 40.0)
    for settings in fleet.policies(4, fleet.POCKET, PAGE).values():
        run = fleet.FleetRun(work, next(iter(settings.values()))(), 4, fleet.Size(), fleet.POCKET)
        figures = run.figures()
        assert all(took > 0 for took in run._took)
        assert not +run._n_left
        assert 0 < figures.of_oracle <= 1


@pytest.mark.long
def test_a_run_of_the_examples_is_recorded(module_at: Callable[[Path], ModuleType]) -> None:
    module = module_at(FOLDER / "simulate_fleet_record.py")
    with bn.Runtime(threads=1) as runtime:
        made, n_failed = module.record(runtime, 0, 2)
    assert not n_failed
    kinds: dict[str, list[Any]] = {}
    for kind, programs in made.runs:
        kinds.setdefault(kind, []).append(programs)
    assert {kind: len(runs) for kind, runs in kinds.items()} == dict.fromkeys(module.N_RUNS, 2)
    for (program,) in kinds["agent"]:
        assert [one.start for one in program.requests] == list(range(len(program.turns))), "each waits for a tool"
        assert all(n_ended == k and (wait > 0) is (k > 0) for k, (n_ended, wait) in enumerate(program.turns))
    for (program,) in kinds["tree of thought"]:
        assert all(sum(one.start == k for one in program.requests) == 16 for k in range(len(program.turns)))
    for programs in kinds["few-shot"]:
        assert len(programs) >= 4
        assert all(len(program.requests) == 1 for program in programs)
    for (program,) in kinds["chat"]:
        assert program.turns == [(0, 0.0)]
        assert [one.start for one in program.requests] == [0, *(~i for i in range(len(program.requests) - 1))]
    first = {kind: made.path(runs[0][0].requests[0].text)[0] for kind, runs in kinds.items()}
    assert len(set(first.values())) == 1, "all begin with the same marker"
