"""Runs programs of all kinds while engines are killed, drained and added, and checks that no value changes by it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from typing import Any

import msgspec

from banyan.runtime.client import client
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


def ready_engines(c: client.Client) -> int:
    return sum(engine["state"] == "ready" for engine in c.ask("info", 60)["replicas"].values())


def disturb(
    c: client.Client, n_engines: int, n_kills: int, n_drains: int, n_joins: int, add: Callable[[], Any],
    at_end: Callable[[], Any] = lambda: None,
) -> None:  # fmt: skip
    """Kill, drain and add engines while programs run, and check their values. If all programs end before an event, more
    are started. add: starts one more engine, and waits until it is ready. at_end: ends other work on the engines."""
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
        wait_until(lambda n=least: is_done(disturbed[-1]) or n_done(disturbed[-1]) >= n, "values", seconds=300)
        engines = c.ask("info", 60)["replicas"]
        name = rng.choice([name for name, engine in engines.items() if engine["state"] == "ready"])
        n_interrupted += not is_done(disturbed[-1])
        if event == "kill":
            os.kill(pid := engines[name]["pid"], signal.SIGKILL)
            wait_until(lambda name=name, pid=pid: c.ask("info", 60)["replicas"][name]["pid"] != pid, "another engine")
        elif event == "drain":
            c.ask("drain", 300, name=name)
        else:
            add()
    assert n_interrupted >= (n_kills + n_drains + n_joins) // 2
    for programs in disturbed:
        for expected, actual in zip(calm, read_values(programs), strict=True):
            assert actual == expected
    wait_until(lambda: ready_engines(c) == n_left, f"{n_left} engines", seconds=300)
    at_end()
    stats = c.ask("stats", timeout=60)
    assert stats["server"]["requests"] == stats["cache"]["n_leased"] == 0
    assert stats["server"]["engine_starts"] == n_engines + n_kills + n_joins
    assert c.ask("check", timeout=60) == {}
