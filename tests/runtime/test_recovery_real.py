"""A real engine killed under all kinds of programs: every value equals that of an undisturbed run, to the token."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.errors import BanyanError
from disturbance import SAMPLINGS, disturb, is_done, read_values, start_programs
from waits import wait_until


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


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("n_kills", [2, 8])
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
    """`deterministic`, because one in about 10,000 draws otherwise depends on how float32 is rounded in a batch."""
    options = config.make(
        dtype="float32", deterministic=True, context=512, replicas=n_engines, threads=n_engines,
        kv_memory=f"{n_engines * 4096} tokens", device="cpu", max_running=12,
    )  # fmt: skip
    server = launch.start(options, timeout=300)
    try:
        c = client.connect(server.socket, timeout=60)
        disturb(c, n_engines, n_kills, n_drains, n_joins, lambda: c.ask("add", 300))
    finally:
        server.close()
