"""After any local fault a program ends in time, with its values or with an error that names the cause.

Random programs run on a Mock with latency: its script raises, tools raise or never end, the body raises at any step,
the state is cancelled, or the time is up. (Dead servers and lost messages: tests/runtime/test_faults.py.)
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import banyan as bn
from forms import in_short

pytestmark = pytest.mark.filterwarnings("ignore:join")  # branches generate names that their parent has

TIME_LIMIT = 20.0
"""Seconds in which each run must end, also on a slow machine."""

Step = tuple[Any, ...]


class BodyError(Exception):
    """Raised by a body."""


@bn.tool
def raises() -> int:
    """Raises."""
    raise OSError("no luck in the tool")


@bn.tool
def never_ends() -> None:
    """Waits."""
    NEVER_SET.wait(TIME_LIMIT)


@bn.tool
async def awaits() -> None:
    """Waits asynchronously."""
    await asyncio.sleep(TIME_LIMIT)


NEVER_SET = threading.Event()
TOOLS = {"raises": raises, "never_ends": never_ends, "awaits": awaits}
KINDS = ["text", "gen", "gen", "bad", "many", "select", "typed", "read", "scope", *TOOLS]
OPS = st.recursive(
    st.sampled_from([(kind,) for kind in KINDS]),
    lambda inner: st.tuples(
        st.just("fork"),
        st.lists(st.lists(inner, max_size=3), min_size=1, max_size=3),
        st.sampled_from(["gather_variable", "concate_and_append", ""]),
    ),
    max_leaves=8,
)
PROGRAMS = st.lists(OPS, min_size=1, max_size=5)
FAULTS = ["nothing", "raise", "cancel", "timeout"]


class FaultInjector:
    """Injects one fault at one step."""

    def __init__(self, fault: str, fault_step: int) -> None:
        self.fault, self.fault_step, self.n = fault, fault_step, 0
        self._lock = threading.Lock()

    def step(self, s: Any) -> None:
        with self._lock:
            self.n += 1
            is_due = self.n == self.fault_step
        if is_due and self.fault == "raise":
            raise BodyError
        if is_due and self.fault == "cancel":
            threading.Timer(0.005, s.cancel).start()


def script(prompt: str, name: str) -> Any:
    if name == "bad":
        raise OSError("no luck in the script")
    if name in TOOLS:
        return "done" if prompt.split("<|im_start|>")[-2].startswith("tool") else {name: {}}
    return {"c": "yes", "n": "[1, 2]"}.get(name, "some words")


def backend() -> bn.Mock:
    return bn.Mock(script, latency=lambda call: 0.003 * (len(call.prompt) % 3))


def append_step(s: Any, kind: str) -> None:
    match kind:
        case "text":
            s += " some text"
        case "gen":
            s += bn.gen("x")
        case "bad":
            s += bn.gen("bad")
        case "many":
            s += bn.gen("m", n=2)
        case "select":
            s += bn.select("c", ["yes", "no"])
        case "typed":
            s += bn.gen("n", type=list[int], retries=1)
        case "scope":
            with s.var_scope("v"):
                s += " in scope " + bn.gen("y")
        case _ if kind in TOOLS:
            s += bn.assistant(bn.gen(kind, tools=[TOOLS[kind]], tool_timeout=0.05))


def body(s: bn.State, injector: FaultInjector, steps: list[Step]) -> None:
    for step in steps:
        injector.step(s)
        if step[0] == "fork":
            forks = s.fork(len(step[1]))
            for branch, inner in zip(forks, step[1], strict=True):
                body(branch, injector, inner)
            if step[2]:
                forks.join(step[2])
        elif step[0] == "read":
            assert "x" not in s or s["x"]
        else:
            append_step(s, step[0])


@bn.function
def program(s: bn.State, injector: FaultInjector, steps: list[Step]) -> str:
    body(s, injector, steps)
    return s.text()


async def async_body(s: bn.AsyncState, injector: FaultInjector, steps: list[Step]) -> None:
    for step in steps:
        injector.step(s)
        if step[0] == "fork":
            forks = s.fork(len(step[1]))
            await asyncio.gather(*(async_body(*pair) for pair in zip(forks, [injector] * 3, step[1], strict=False)))
            if step[2]:
                forks.join(step[2])
        elif step[0] == "read":
            assert "x" not in s or await s.value("x")
        else:
            append_step(s, step[0])


@bn.function
async def async_program(s: bn.AsyncState, injector: FaultInjector, steps: list[Step]) -> str:
    await async_body(s, injector, steps)
    return await s.text()


def run(arguments: Any, options: Any) -> None:
    program.run(*arguments, **options).sync()


def run_async(arguments: Any, options: Any) -> None:
    asyncio.run(async_program.run_async(*arguments, **options))


def run_on_thread(arguments: Any, options: Any) -> None:
    asyncio.run(program.run_async(*arguments, **options))


def run_batch(arguments: Any, options: Any) -> None:
    for state in program.run_batch([arguments] * 3, **options, on_error="return"):
        if (error := state.error()) is not None:
            raise error


def run_batch_async(arguments: Any, options: Any) -> None:
    async def main() -> None:
        async for state in async_program.run_batch_async([arguments] * 3, **options, on_error="return", ordered=False):
            if (error := await state.error()) is not None:
                raise error

    asyncio.run(main())


def stream(arguments: Any, options: Any) -> None:
    with bn.stream(program, *arguments, **options) as st:
        for _ in st.events():
            pass


def stream_async(arguments: Any, options: Any) -> None:
    async def main() -> None:
        async with bn.stream(async_program, *arguments, **options) as st:
            async for _ in st.events():
                pass

    asyncio.run(main())


RUNNERS = [run, run_async, run_on_thread, run_batch, run_batch_async, stream, stream_async]
CAUSES: dict[str, tuple[type[BaseException], ...]] = {
    "nothing": (),
    "raise": (BodyError,),
    "cancel": (bn.Cancelled,),
    "timeout": (bn.DeadlineExceeded,),
}


def check_run(runner: Callable[..., None], steps: list[Step], fault: str, fault_step: int) -> None:
    start = time.monotonic()
    error: BaseException | None = None
    options = {"backend": backend(), "timeout": 0.01 if fault == "timeout" else TIME_LIMIT}
    try:
        runner((FaultInjector(fault, fault_step), steps), options)
    except Exception as e:
        error = e
    assert time.monotonic() - start < TIME_LIMIT, "the run must end in time"
    while isinstance(error, bn.ForkError):
        error = error.__cause__
    if isinstance(error, bn.ProgramError) and "no luck in the script" in str(error):
        assert error.gen == "bad"
        assert isinstance(error.__cause__, OSError)
    else:
        assert error is None or isinstance(error, CAUSES[fault]), repr(error)


TWO_STAGES: list[Step] = [
    ("text",),
    ("fork", [[("gen",), ("read",), ("raises",)], [("never_ends",), ("gen",), ("read",)]], "gather_variable"),
    ("fork", [[("select",)], [("typed",), ("read",)]], "concate_and_append"),
    ("gen",),
    ("read",),
]
N_STEPS = 14
"""Steps of TWO_STAGES in one run: 5 in its body, 6 and 3 in the branches of its forks."""


@pytest.mark.parametrize("fault_step", in_short(range(1, N_STEPS + 1, 3), range(1, N_STEPS + 1)))
@pytest.mark.parametrize("fault", FAULTS)
def test_two_stage_fork_ends_correctly_after_a_fault_at_each_step(fault: str, fault_step: int) -> None:
    check_run(RUNNERS[fault_step % len(RUNNERS)], TWO_STAGES, fault, fault_step)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=PROGRAMS, runner=st.sampled_from(RUNNERS), fault=st.sampled_from(FAULTS), fault_step=st.integers(1, 12))
def test_random_programs_end_correctly(steps: list[Step], runner: Any, fault: str, fault_step: int) -> None:
    check_run(runner, steps, fault, fault_step)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=PROGRAMS, runner=st.sampled_from(RUNNERS), fault=st.sampled_from(FAULTS), fault_step=st.integers(1, 20))
def test_random_programs_end_correctly_long(steps: list[Step], runner: Any, fault: str, fault_step: int) -> None:
    check_run(runner, steps, fault, fault_step)
