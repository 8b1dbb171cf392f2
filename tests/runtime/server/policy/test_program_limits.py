"""Timeouts and budgets over a real socket: what they end, and that nothing is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.client.client import Client
from banyan.runtime.protocol import wire
from waits import wait_until

Join = Callable[..., Client]


@pytest.fixture
def join(join_shared: Callable[..., Client]) -> Callable[..., Client]:
    return join_shared


@bn.function
def endless(s: bn.State, i: int = 0, **options: Any) -> None:
    s += f"item {i}" + bn.gen("x", max_tokens=400, ignore_eos=True, **options)


def wait_until_idle(client: Client) -> None:
    """Waits until the server has no requests."""
    wait_until(lambda: not client.ask("stats")["server"]["requests"], "the end of the requests")


def test_gen_timeout_fails_only_its_branch(join: Join) -> None:
    client = join(step_ms=5)

    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks[0].user("a" + bn.gen("x", max_tokens=400, ignore_eos=True, timeout=0.2))
        forks[1].user("b" + bn.gen("y", max_tokens=5))
        assert forks[1]["y"]
        forks[0]["x"]

    with pytest.raises(bn.DeadlineExceeded, match=r"the gen's timeout of 0\.2 s ran out") as raised:
        program.run(backend=client)
    assert raised.value.prompt_tail.endswith("a"), "the error is the server's"
    assert raised.value.usage.generated == 5
    wait_until_idle(client)


def test_budgets_are_exact_to_the_token(join: Join) -> None:
    client = join(step_ms=1)
    with pytest.raises(bn.BudgetExceeded, match="the gen's budget of 7 tokens"):
        endless.bind(budget=7).run(backend=client)["x"]
    with pytest.raises(bn.BudgetExceeded, match="the run's budget of 9 tokens"):
        endless.run(backend=client, opts=bn.Options(budget=9))["x"]
    wait_until_idle(client)


def test_programs_of_a_batch_share_its_budget(join: Join) -> None:
    client = join(step_ms=5)
    states = endless.run_batch([(i,) for i in range(4)], backend=client, budget=60, on_error="return")
    assert {str(state.error()).split(" [")[0] for state in states} == {"the batch's budget of 60 tokens ran out"}
    wait_until_idle(client)


OPTS = bn.Options(timeout=0.3)
RUNNERS: dict[str, Callable[[Client], Any]] = {
    "run": lambda client: endless.run(backend=client, opts=OPTS)["x"],
    "batch": lambda client: endless.run_batch([(i,) for i in range(4)], backend=client, timeout=0.3),
    "async": lambda client: asyncio.run(endless.run_async(backend=client, opts=OPTS)),
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_run_timeout_ends_the_run_and_its_requests(join: Join, runner: str) -> None:
    client = join(step_ms=20)
    start = time.monotonic()
    with pytest.raises((bn.DeadlineExceeded, bn.BatchError), match=r"timeout of 0\.3 s"):
        RUNNERS[runner](client)
    wait_until_idle(client)
    assert time.monotonic() - start < 5


def test_server_enforces_the_timeout_without_the_client(join: Join) -> None:
    client = join(step_ms=20)
    program = client.program("alone")
    program.limit(wire.ProgramLimits(timeout=0.2, left=0.2))
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(max_tokens=400, ignore_eos=True))])
    with pytest.raises(bn.DeadlineExceeded, match="the run's timeout"):
        program.future(0).result(10)
    wait_until_idle(client)
