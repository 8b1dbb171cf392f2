"""Deadlines and budgets over a real socket: who keeps them, what goes on, and what is left."""

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


def idle(client: Client) -> None:
    """Soon, the server does nothing any more."""
    wait_until(lambda: not client.ask("stats")["server"]["requests"], "the end of the requests")


def test_the_server_keeps_the_time_of_a_gen_and_goes_on_with_the_rest(join: Join) -> None:
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
    assert raised.value.prompt_tail.endswith("a"), "the server said so"
    assert raised.value.usage.generated == 5
    idle(client)


def test_the_server_keeps_budgets_to_the_token(join: Join) -> None:
    client = join(step_ms=1)
    with pytest.raises(bn.BudgetExceeded, match="the gen's budget of 7 tokens"):
        endless.bind(budget=7).run(backend=client)["x"]
    with pytest.raises(bn.BudgetExceeded, match="the run's budget of 9 tokens"):
        endless.run(backend=client, opts=bn.Options(budget=9))["x"]
    idle(client)


def test_a_batch_shares_its_budget_on_the_server(join: Join) -> None:
    client = join(step_ms=5)
    states = endless.run_batch([(i,) for i in range(4)], backend=client, budget=60, on_error="return")
    assert {str(state.error()).split(" [")[0] for state in states} == {"the batch's budget of 60 tokens ran out"}
    idle(client)


OPTS = bn.Options(timeout=0.3)
WAYS: dict[str, Callable[[Client], Any]] = {
    "run": lambda client: endless.run(backend=client, opts=OPTS)["x"],
    "batch": lambda client: endless.run_batch([(i,) for i in range(4)], backend=client, timeout=0.3),
    "async": lambda client: asyncio.run(endless.run_async(backend=client, opts=OPTS)),
}


@pytest.mark.parametrize("how", WAYS)
def test_what_is_late_ends_here_and_there(join: Join, how: str) -> None:
    client = join(step_ms=20)
    start = time.monotonic()
    with pytest.raises((bn.DeadlineExceeded, bn.BatchError), match=r"timeout of 0\.3 s"):
        WAYS[how](client)
    idle(client)
    assert time.monotonic() - start < 5


def test_the_server_keeps_a_deadline_of_which_the_client_does_nothing(join: Join) -> None:
    client = join(step_ms=20)
    program = client.program("alone")
    program.limit(wire.ProgramLimits(timeout=0.2, left=0.2))
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(max_tokens=400, ignore_eos=True))])
    with pytest.raises(bn.DeadlineExceeded, match="the run's timeout"):
        program.future(0).result(10)
    idle(client)
