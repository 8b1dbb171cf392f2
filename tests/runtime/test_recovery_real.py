"""A real engine killed under programs of all kinds: every value is what it was in a calm run, to the token."""

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

KINDS: dict[str, Sampling] = {
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


@pytest.fixture(scope="module", params=[{"dtype": "float32"}, {"dtype": "bfloat16", "deterministic": True}], ids=str)
def real(request: pytest.FixtureRequest, tiny_model: Callable[..., Path]) -> Iterator[client.Client]:
    """In bfloat16 a batch of others would round otherwise; `deterministic` does not."""
    if "deterministic" in request.param:
        request.getfixturevalue("native")
    model = str(tiny_model("llama"))
    options = config.make(model=model, threads=1, kv_memory="16MB", device="cpu", max_running=12, **request.param)
    server = launch.start(options, timeout=100)
    yield client.connect(server.socket, timeout=60)
    server.close()


def start(c: client.Client) -> list[tuple[client.Program, tuple[int, ...]]]:
    """One program of each kind, and one that forks, joins and selects. With the refs to read."""
    made: list[tuple[client.Program, tuple[int, ...]]] = []
    for name, sampling in KINDS.items():
        program = c.program(name)
        whole = msgspec.structs.replace(sampling, max_tokens=120, ignore_eos=name not in ("regex", "json"))
        program.submit([Append(0, (f"the {name} dog",)), Gen(0, 0, whole), Append(0, (" and",)), Gen(0, 1, whole)])
        made.append((program, (0, 1)))
    tree = c.program("tree")
    s = Sampling(temperature=1.0, seed=11, max_tokens=60, ignore_eos=True)
    ops: list[wire.Op] = [Append(0, ("the quick brown fox. ",)), Fork(0, (1, 2, 3))]
    for k in (1, 2, 3):
        ops += [Append(k, (f" {k}",)), Gen(k, k, s)]
    tree.submit([*ops, Join(0, (1, 2, 3)), Select(0, 4, (" yes", " no")), Gen(0, 5, s), Read(0, 6)])
    return [*made, (tree, (1, 2, 3, 4, 5, 6))]


def values(made: list[tuple[client.Program, tuple[int, ...]]]) -> list[Any]:
    """Of each value its samples, scores and prompt logprobs, without what tells of time, cache and drafts."""
    found: list[Any] = []
    for program, refs in made:
        for ref in refs:
            value: wire.Value = program.future(ref).result(100)
            samples = [msgspec.structs.replace(sample, drafted=b"", drafts={}) for sample in value.samples]
            found.append((program.name, ref, samples, value.scores, repr(value.prompt)))
    return found


def is_done(made: list[tuple[client.Program, tuple[int, ...]]]) -> bool:
    return all(program.future(ref).done() for program, refs in made for ref in refs)


def n_steps_of(c: client.Client, n_starts: int) -> int:
    """So many did the n_starts-th engine; -1 where it is still to come."""
    try:
        stats = c.ask("stats", timeout=60)
    except BanyanError as e:
        if "the engine process died" not in e.message:  # it may, under the question
            raise
        return -1
    assert stats["server"]["engine_starts"] <= n_starts, f"an engine ended that nobody killed: {stats['server']}"
    n: int = stats["engine"]["steps"] if stats["server"]["engine_starts"] == n_starts else -1
    return n


@pytest.mark.timeout(600)
@pytest.mark.parametrize("n_kills", [2, pytest.param(8, marks=pytest.mark.long)])
def test_killed_at_random_points_all_is_as_in_a_calm_run(real: client.Client, n_kills: int) -> None:
    """A kill counts if it cut off work. Who is late, on a busy machine, finds the work done and starts more."""
    calm = values(start(real))
    assert len({repr(entry[2]) for entry in calm}) > len(KINDS), "the kinds differ"
    chance = random.Random(0)
    n_starts = n_first = real.ask("stats", timeout=60)["server"]["engine_starts"]
    n_hits, stormy = 0, [start(real)]
    while n_hits < n_kills:
        assert n_starts < n_first + 4 * n_kills, f"only {n_hits} of {n_starts - n_first} kills cut off work"
        if is_done(stormy[-1]):
            stormy.append(start(real))
        n_steps = n_steps_of(real, n_starts) + chance.randrange(1, 100)
        wait_until(
            lambda n=n_starts, least=n_steps: is_done(stormy[-1]) or n_steps_of(real, n) >= least,
            f"step {n_steps} of engine {n_starts}, or the end of the work",
        )
        os.kill(real.ask("info")["engine_pid"], signal.SIGKILL)
        n_starts += 1
        wait_until(lambda n=n_starts: n_steps_of(real, n) >= 0, f"engine {n_starts}")
        n_hits += not is_done(stormy[-1])
    for made in stormy:
        for was, now in zip(calm, values(made), strict=True):
            assert now == was
    stats = real.ask("stats", timeout=60)
    assert stats["server"]["engine_starts"] == n_starts
    assert stats["server"]["requests"] == stats["cache"]["n_leased"] == 0
    assert real.ask("check", timeout=60) == {}
