"""A real engine killed under all kinds of programs: every value equals that of an undisturbed run, to the token."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.errors import BanyanError
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, ConstraintSpec, Fork, Gen, Join, Read, Sampling, Select
from waits import wait_until

SAMPLINGS: dict[str, Sampling] = {
    "greedy": Sampling(temperature=0.0),
    "sampled": Sampling(temperature=1.3, seed=1),
    "four": Sampling(temperature=1.0, seed=2, n=4),
    "nucleus": Sampling(top_p=0.8, top_k=20, min_p=0.01, seed=3),
    "penalties": Sampling(temperature=0.7, frequency_penalty=0.6, presence_penalty=0.4, seed=4),
    "repetition": Sampling(temperature=0.0, repetition_penalty=1.4, min_tokens=40),
    "logprobs": Sampling(temperature=1.0, seed=5, logprobs=True, top_logprobs=3),
    "prompt_logprobs": Sampling(temperature=0.0, logprobs=True, logprob_start=0),
    "bias": Sampling(temperature=1.0, seed=6, logit_bias={70: 3.0, 71: -100.0}),
    "stop": Sampling(temperature=1.0, seed=7, stop=("e", "zz")),
    "regex": Sampling(temperature=1.0, seed=8, constraint=ConstraintSpec("regex", r"([a-f]{3}-){30}[0-9]+!")),
    "json": Sampling(
        temperature=1.0,
        seed=9,
        constraint=ConstraintSpec(
            "json_schema", '{"type": "array", "items": {"type": "integer"}, "minItems": 12, "maxItems": 20}'
        ),
    ),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param({"dtype": "float32"}, marks=pytest.mark.long),
        {"dtype": "bfloat16", "deterministic": True},
    ],
    ids=str,
)
def real(request: pytest.FixtureRequest, tiny_model: Callable[..., Path]) -> Iterator[client.Client]:
    """In bfloat16, rounding depends on the batch unless `deterministic` is set."""
    if "deterministic" in request.param:
        request.getfixturevalue("native")
    model = str(tiny_model("llama"))
    options = config.make(model=model, threads=1, kv_memory="16MB", device="cpu", max_running=12, **request.param)
    server = launch.start(options, timeout=100)
    yield client.connect(server.socket, timeout=60)
    server.close()


def start_programs(c: client.Client) -> list[tuple[client.Program, tuple[int, ...]]]:
    """One program per sampling, and one that forks, joins and selects; each with its refs."""
    programs: list[tuple[client.Program, tuple[int, ...]]] = []
    for name, sampling in SAMPLINGS.items():
        program = c.program(name)
        whole = msgspec.structs.replace(sampling, max_tokens=120, ignore_eos=name not in ("regex", "json"))
        program.submit([Append(0, (f"the {name} dog",)), Gen(0, 0, whole), Append(0, (" and",)), Gen(0, 1, whole)])
        programs.append((program, (0, 1)))
    tree = c.program("tree")
    tree_sampling = Sampling(temperature=1.0, seed=11, max_tokens=60, ignore_eos=True)
    ops: list[wire.Op] = [Append(0, ("the quick brown fox. ",)), Fork(0, (1, 2, 3))]
    for k in (1, 2, 3):
        ops += [Append(k, (f" {k}",)), Gen(k, k, tree_sampling)]
    tree.submit([*ops, Join(0, (1, 2, 3)), Select(0, 4, (" yes", " no")), Gen(0, 5, tree_sampling), Read(0, 6)])
    return [*programs, (tree, (1, 2, 3, 4, 5, 6))]


def read_values(programs: list[tuple[client.Program, tuple[int, ...]]]) -> list[Any]:
    """The samples, scores and prompt logprobs of each value, without times, cache use and drafts."""
    results: list[Any] = []
    for program, refs in programs:
        for ref in refs:
            value: wire.Value = program.future(ref).result(100)
            samples = [msgspec.structs.replace(sample, drafted=b"", drafts={}) for sample in value.samples]
            results.append((program.name, ref, samples, value.scores, repr(value.prompt)))
    return results


def is_done(programs: list[tuple[client.Program, tuple[int, ...]]]) -> bool:
    return all(program.future(ref).done() for program, refs in programs for ref in refs)


def n_done(programs: list[tuple[client.Program, tuple[int, ...]]]) -> int:
    return sum(program.future(ref).done() for program, refs in programs for ref in refs)


def n_steps_of(c: client.Client, n_starts: int) -> int:
    """The number of steps of the n_starts-th engine; -1 before it runs."""
    try:
        stats = c.ask("stats", timeout=60)
    except BanyanError as e:
        if "the engine process died" not in e.message:  # it may die during the query
            raise
        return -1
    assert stats["server"]["engine_starts"] <= n_starts, f"an engine ended without being killed: {stats['server']}"
    n: int = stats["engine"]["steps"] if stats["server"]["engine_starts"] == n_starts else -1
    return n


@pytest.mark.timeout(600)
@pytest.mark.parametrize("n_kills", [2, pytest.param(8, marks=pytest.mark.long)])
def test_values_after_engine_kills_equal_those_of_an_undisturbed_run(real: client.Client, n_kills: int) -> None:
    """A kill counts if it interrupts work. If the work ended before the kill, more programs are started."""
    undisturbed = read_values(start_programs(real))
    assert len({repr(entry[2]) for entry in undisturbed}) > len(SAMPLINGS), "the samplings give different values"
    rng = random.Random(0)
    n_starts = n_first = real.ask("stats", timeout=60)["server"]["engine_starts"]
    n_interrupted, disturbed = 0, [start_programs(real)]
    while n_interrupted < n_kills:
        assert n_starts < n_first + 4 * n_kills, f"only {n_interrupted} of {n_starts - n_first} kills interrupted work"
        if is_done(disturbed[-1]):
            disturbed.append(start_programs(real))
        n_steps = n_steps_of(real, n_starts) + rng.randrange(1, 100)
        wait_until(
            lambda n=n_starts, least=n_steps: is_done(disturbed[-1]) or n_steps_of(real, n) >= least,
            f"step {n_steps} of engine {n_starts}, or the end of the work",
        )
        os.kill(real.ask("info")["engine_pid"], signal.SIGKILL)
        n_starts += 1
        wait_until(lambda n=n_starts: n_steps_of(real, n) >= 0, f"engine {n_starts}")
        n_interrupted += not is_done(disturbed[-1])
    for programs in disturbed:
        for expected, actual in zip(undisturbed, read_values(programs), strict=True):
            assert actual == expected
    stats = real.ask("stats", timeout=60)
    assert stats["server"]["engine_starts"] == n_starts
    assert stats["server"]["requests"] == stats["cache"]["n_leased"] == 0
    assert real.ask("check", timeout=60) == {}


# ---- several engines -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("n_engines", "n_kills", "n_drains", "n_joins"),
    [pytest.param(n, 10, 5, 5, marks=pytest.mark.long) for n in (2, 4)],
)
def test_values_after_kills_drains_and_joins_equal_those_of_calm_engines(
    native: object, n_engines: int, n_kills: int, n_drains: int, n_joins: int
) -> None:
    """Each event interrupts work: if the work has ended before it, more programs are started. `deterministic`, because
    one in about 10,000 draws otherwise depends on how float32 is rounded in another batch."""
    options = config.make(
        dtype="float32", deterministic=True, context=512, replicas=n_engines, threads=n_engines,
        kv_memory=f"{n_engines * 4096} tokens", device="cpu", max_running=12,
    )  # fmt: skip
    server = launch.start(options, timeout=300)
    try:
        c = client.connect(server.socket, timeout=60)
        calm = read_values(start_programs(c))
        rng, disturbed, n_interrupted = random.Random(0), [start_programs(c)], 0
        events = ["kill"] * n_kills + ["drain"] * n_drains + ["add"] * n_joins
        n_left = n_engines
        while events:
            event = rng.choice([event for event in events if event != "drain" or n_left > 1])
            events.remove(event)
            n_left += {"kill": 0, "drain": -1, "add": 1}[event]
            n_ready = 2 if event == "drain" else 1
            wait_until(lambda n=n_ready: ready_engines(c) >= n, f"{n_ready} engines that are ready", seconds=300)
            if is_done(disturbed[-1]):
                disturbed.append(start_programs(c))
            least = n_done(disturbed[-1]) + rng.randrange(1, 12)
            wait_until(lambda n=least: is_done(disturbed[-1]) or n_done(disturbed[-1]) >= n, f"{least} values")
            engines = c.ask("info", 60)["replicas"]
            name = rng.choice([name for name, engine in engines.items() if engine["state"] == "ready"])
            n_interrupted += not is_done(disturbed[-1])
            if event == "kill":
                os.kill(pid := engines[name]["pid"], signal.SIGKILL)
                wait_until(
                    lambda name=name, pid=pid: c.ask("info", 60)["replicas"][name]["pid"] != pid, "another engine"
                )
            else:
                c.ask(event, 300, name=name if event == "drain" else "")
        assert n_interrupted >= (n_kills + n_drains + n_joins) // 2
        for programs in disturbed:
            for expected, actual in zip(calm, read_values(programs), strict=True):
                assert actual == expected
        wait_until(lambda: ready_engines(c) == n_left, f"{n_left} engines", seconds=300)
        stats = c.ask("stats", timeout=60)
        assert stats["server"]["requests"] == stats["cache"]["n_leased"] == 0
        assert stats["server"]["engine_starts"] == n_engines + n_kills + n_joins
        assert c.ask("check", timeout=60) == {}
    finally:
        server.close()


def ready_engines(c: client.Client) -> int:
    return sum(engine["state"] == "ready" for engine in c.ask("info", 60)["replicas"].values())
