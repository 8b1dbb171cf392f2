"""Under any fault a program ends in time, with its values or with an error that names the cause.

Random programs run by every runner against a server with the fake engine. At a random step a fault occurs: the server
or its engine is killed or stopped, the connection is cut, or the body raises.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import banyan as bn
from banyan.runtime import config, launch
from banyan.runtime.client.client import Client, connect
from banyan.runtime.protocol import ipc
from waits import join, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:join")  # branches generate names that their parent has

TIMEOUT = 15.0
"""Seconds of each run, generous for a slow machine."""

TIMEOUTS = {"stop_engine": 3.0}
"""Seconds of runs that only the timeout ends."""

N_WORLDS = 3
"""Servers that the long form uses in parallel."""

MAX_MISSED_STOPPED = 15
"""Missed heartbeats after which a stopped server is given up."""

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
    '<tool_call>{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The chat template of a model with tools."""
TURN_END = "<|im_end|>\n<|im_start|>assistant\n"
SAY = {
    f"call{TURN_END}": '<tool_call>{"name": "fails", "arguments": {}}</tool_call><|im_end|>',
    f"no luck{TURN_END}": "So be it.<|im_end|>",
}

Step = tuple[Any, ...]


class BodyError(Exception):
    """Raised by a program's body."""


@pytest.fixture(scope="module")
def faults(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).with_name("faults.py"))


class Trial:
    """One program and the fault at one of its steps. Steps of a body that outlives its run count here, not for the next
    trial."""

    def __init__(self, client: Client, at: int, inject: Callable[[], None]) -> None:
        self.client, self._at, self._inject = client, at, inject
        self._n_steps, self.is_injected, self._is_over = 0, False, False
        self._lock = threading.Lock()

    def step(self) -> None:
        """Called by bodies before each of their steps."""
        with self._lock:
            self._n_steps += 1
            if self._n_steps == self._at and not self._is_over:
                self.is_injected = True
                self._inject()

    def end(self) -> None:
        """Waits for a fault that is being injected and prevents later ones."""
        with self._lock:
            self._is_over = True


class World:
    """A server, its client behind a proxy, and the faults of both. `prepare` replaces what the last fault broke."""

    def __init__(self, start: Callable[[], launch.ServerProcess], folder: Path, faults: ModuleType) -> None:
        self._start, self._folder, self._faults = start, folder, faults
        folder.mkdir()
        self._server: launch.ServerProcess | None = None
        self._proxy: Any = None
        self._n = 0
        self._undo = ExitStack()
        self.client: Client
        self._trial: Trial

    def prepare(self, fault: str, at: int) -> Trial:
        """A trial with `fault` at step `at`, counted over all bodies."""
        if self._server is None or self._server.process.poll() is not None:
            self._end()
            self._server = self._start()
        if self._proxy is None:
            self._n += 1
            self._proxy = self._faults.Proxy(self._folder / f"p{self._n}", self._server.socket)
        self.client = connect(self._proxy.path)
        self.client.ask("stats")  # answered by the engine: it is ready
        self._trial = Trial(self.client, at, getattr(self, f"_{fault}"))
        return self._trial

    def _kill_server(self) -> None:
        assert self._server is not None
        os.kill(self._server.pid, signal.SIGKILL)
        self._server.process.wait(10)  # else the next program may still connect to it

    def _kill_engine(self) -> None:
        os.kill(self.client.ask("info")["engine_pid"], signal.SIGKILL)

    def _stop_server(self) -> None:
        assert self._server is not None
        pid = self._server.pid
        os.kill(pid, signal.SIGSTOP)
        self._undo.callback(_resume, pid)
        self._undo.enter_context(pytest.MonkeyPatch.context()).setattr(ipc, "MAX_MISSED", MAX_MISSED_STOPPED)

    def _stop_engine(self) -> None:
        pid = self.client.ask("info")["engine_pid"]
        os.kill(pid, signal.SIGSTOP)
        self._undo.callback(_resume, pid)

    def _cut(self) -> None:
        self._proxy.cut()
        self._proxy = None

    def _raise(self) -> None:
        raise BodyError

    def recover(self) -> None:
        """Ends the trial and checks that nothing of its program is left in the client or in a live server."""
        self._trial.end()
        self._undo.close()
        wait_until(self._is_clean, "the end of the program", seen=lambda: self.client._programs, seconds=TIMEOUT)
        if self.client.lost is not None and self._proxy is not None:
            self._proxy.cut()
            self._proxy = None
        assert not self.client._programs

    def _is_clean(self) -> bool:
        gc.collect()  # collected handles close themselves: a thread may have held one until now
        return self.client.lost is not None or not (self.client._programs or self._has_work())

    def _has_work(self) -> bool:
        try:
            stats = self.client.ask("stats", timeout=5.0)
        except bn.RuntimeLost:
            return False
        except bn.BanyanError as e:
            if "the engine process died" not in e.message:  # it may die during the query
                raise
            return True
        return bool(stats["server"]["programs"] or stats["server"]["requests"])

    def _end(self) -> None:
        if self._proxy is not None:
            self._proxy.cut()
            self._proxy = None
        if self._server is not None:
            self._server.close()

    close = _end


def _resume(pid: int) -> None:
    with suppress(ProcessLookupError):  # it was killed as unresponsive
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def fast_heartbeat() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ipc, "HEARTBEAT", 0.1)
        patch.setattr(ipc, "MAX_MISSED", 50)
        yield


@pytest.fixture(scope="module")
def worlds(
    boot: tuple[str, ...],
    tiny: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
    faults: ModuleType,
    fast_heartbeat: None,
) -> Iterator[list[World]]:
    """Worlds with the fake engine."""
    folder = tmp_path_factory.mktemp("world")
    tiny.make_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "fake.json").write_text(json.dumps({"say": SAY, "step_ms": 1, "context": 1 << 16}))
    options, sockets = config.make(model=str(folder)), tmp_path_factory.mktemp("s")
    created = [
        World(lambda: launch.start(options, timeout=60.0, command=boot), sockets / str(k), faults)
        for k in range(N_WORLDS)
    ]
    yield created
    for world in created:
        world.close()


@pytest.fixture(scope="module")
def world(worlds: list[World]) -> World:
    return worlds[0]


@pytest.fixture(scope="module")
def real_world(
    tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, faults: ModuleType, fast_heartbeat: None
) -> Iterator[World]:
    """A world with the real engine and a tiny model."""
    options = config.make(model=str(tiny_model()), threads=1, kv_memory="16MB", device="cpu")
    world = World(lambda: launch.start(options, timeout=200.0), tmp_path_factory.mktemp("s") / "0", faults)
    yield world
    world.close()


# ---- programs ------------------------------------------------------------------------------------------------------

OPS = st.recursive(
    st.sampled_from([("text",), ("gen",), ("gen",), ("select",), ("look",), ("scope",), ("tool",)]),
    lambda inner: st.tuples(
        st.just("fork"),
        st.lists(st.lists(inner, max_size=3), min_size=1, max_size=3),
        st.sampled_from(["gather_variable", "concate_and_append", ""]),
    ),
    max_leaves=10,
)
PROGRAMS = st.lists(OPS, min_size=1, max_size=6)


def body(s: bn.State, trial: Trial, steps: list[Step]) -> None:
    for step in steps:
        trial.step()
        if step[0] == "fork":
            forks = s.fork(len(step[1]))
            for branch, inner in zip(forks, step[1], strict=True):
                branch += "["
                body(branch, trial, inner)
            if step[2]:
                forks.join(step[2])
        else:
            run_step(s, step[0], trial)
    trial.step()


def run_step(s: Any, kind: str, trial: Trial) -> None:
    if kind == "text":
        s += " some text"
    elif kind == "gen":
        s += bn.gen("x", max_tokens=5)
    elif kind == "select":
        s += "?" + bn.select("c", ["yes", "no"])
    elif kind == "look" and isinstance(s, bn.State):
        assert all(s[name] is not None for name in ("x", "t") if name in s)
    elif kind == "scope":
        with s.var_scope("v"):
            s += " in scope " + bn.gen("y", max_tokens=3)
    elif kind == "tool":

        @bn.tool
        def fails() -> None:
            """Fails."""
            trial.step()
            raise OSError("no luck")

        s += bn.user("call") + bn.assistant(bn.gen("t", tools=[fails], max_tokens=200))


@bn.function
def plain(s: bn.State, trial: Trial, steps: list[Step]) -> str:
    body(s, trial, steps)
    return s.text()


@bn.function
async def awaited(s: bn.AsyncState, trial: Trial, steps: list[Step]) -> str:
    for step in steps:
        await asyncio.to_thread(trial.step)
        if step[0] == "fork":
            forks = s.fork(len(step[1]))
            await asyncio.gather(*(_branch(one, trial, inner) for one, inner in zip(forks, step[1], strict=True)))
            if step[2]:
                forks.join(step[2])
        else:
            run_step(s, step[0], trial)
            if step[0] == "look":
                assert all([await s.value(name) is not None for name in ("x", "t") if name in s])
    await asyncio.to_thread(trial.step)
    return await s.text()


async def _branch(s: bn.AsyncState, trial: Trial, steps: list[Step]) -> None:
    s += "["
    await awaited.func(s, trial, steps)


Runner = Callable[[Trial, list[Step], float], list[Any]]


def run(trial: Trial, steps: list[Step], timeout: float) -> list[Any]:
    return [plain.run(trial, steps, backend=trial.client, timeout=timeout).ret_value]


def run_async(trial: Trial, steps: list[Step], timeout: float) -> list[Any]:
    return [asyncio.run(awaited.run_async(trial, steps, backend=trial.client, timeout=timeout)).ret_value]


def run_batch(trial: Trial, steps: list[Step], timeout: float) -> list[Any]:
    states = plain.run_batch([(trial, steps)] * 3, backend=trial.client, timeout=timeout)
    return [state.ret_value for state in states]


def stream(trial: Trial, steps: list[Step], timeout: float) -> list[Any]:
    with bn.stream(plain, trial, steps, backend=trial.client, timeout=timeout) as st:
        for _ in st.events():
            pass
        return [st.state.ret_value]


RUNNERS = [run, run_async, run_batch, stream]

EXPECTED_ERRORS: dict[str, tuple[type[BaseException], ...]] = {
    "kill_engine": (),
    "kill_server": (bn.RuntimeLost,),
    "cut": (bn.RuntimeLost,),
    "stop_engine": (bn.DeadlineExceeded,),
    "stop_server": (bn.DeadlineExceeded, bn.RuntimeLost),
    "raise": (BodyError,),
}
MESSAGES = {
    "kill_server": "is gone",
    "cut": "is gone",
    "stop_engine": "timeout of",
    "stop_server": "timeout of|stopped answering",
    "raise": "",
}


def run_with_fault(
    world: World, runner: Runner, steps: list[Step], fault: str, at: int, timeout: float = TIMEOUT
) -> tuple[bool, bool]:
    """Runs the program and checks its end. Returns whether the fault was injected and whether the program failed."""
    trial = world.prepare(fault, at)
    timeout = TIMEOUTS.get(fault, timeout)
    start, error = time.monotonic(), None
    try:
        texts = runner(trial, steps, timeout)
        assert all(isinstance(text, str) for text in texts)
    except bn.BatchError as e:
        error = next((one for one in e.errors.values() if isinstance(one, BodyError)), e.__cause__)
    except Exception as e:
        error = e
    assert time.monotonic() - start < timeout + 30, "the run must end in time"
    while isinstance(error, bn.ForkError):
        error = error.__cause__
    if error is not None:
        assert isinstance(error, EXPECTED_ERRORS[fault]), f"{fault} at {at}, {runner.__name__}: {error!r}"
        assert re.search(MESSAGES[fault], str(error))
    has_failed = error is not None
    del error  # it references the run
    world.recover()
    return trial.is_injected, has_failed


SERVER_SURVIVES = ["kill_engine", "raise", "cut"]
"""Faults that the server survives."""

LONG_PROMPT: list[Step] = [("fork", [[("tool",), ("select",)]] * 3, "concate_and_append")] * 3
"""A program whose prompt exceeds 512 tokens."""


@example(steps=LONG_PROMPT, runner=run, fault="kill_engine", at=1)
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=PROGRAMS, runner=st.sampled_from(RUNNERS), fault=st.sampled_from(SERVER_SURVIVES), at=st.integers(1, 20))
def test_random_programs_end_with_values_or_the_expected_error(
    world: World, steps: list[Step], runner: Any, fault: str, at: int
) -> None:
    run_with_fault(world, runner, steps, fault, at)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=PROGRAMS,
    runner=st.sampled_from(RUNNERS),
    fault=st.sampled_from(sorted(EXPECTED_ERRORS)),
    at=st.integers(1, 30),
)
def test_random_programs_end_with_values_or_the_expected_error_long(
    world: World, steps: list[Step], runner: Any, fault: str, at: int
) -> None:
    run_with_fault(world, runner, steps, fault, at)


TWO_STAGES: list[Step] = [
    ("text",),
    ("fork", [[("gen",), ("look",), ("gen",), ("look",)], [("gen",), ("tool",), ("look",)]], "gather_variable"),
    ("fork", [[("gen",)], [("gen",), ("look",)]], "concate_and_append"),
    ("gen",),
    ("look",),
]
N_STEPS = 21
"""Steps of TWO_STAGES in one run: 6 of its own, 9 and 5 of its forks' branches, 1 of its tool. A batch of 3 has three
times as many."""

TWO_STAGES_WITHOUT_TOOLS = [step for step in TWO_STAGES if step[0] != "fork"] + [
    ("fork", [[("gen",), ("look",)]] * 2, "gather_variable"),
    ("fork", [[("gen",)], [("gen",), ("look",)]], "concate_and_append"),
    ("look",),
]
"""The same for a model without tools."""


@pytest.mark.parametrize("fault", sorted(EXPECTED_ERRORS))
def test_fault_in_a_two_stage_fork(world: World, fault: str) -> None:
    is_injected, _ = run_with_fault(world, run, TWO_STAGES, fault, at=9)
    assert is_injected


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", sorted(EXPECTED_ERRORS))
def test_fault_at_every_step_of_a_two_stage_fork(worlds: list[World], fault: str) -> None:
    """Each step with `run` and with one other runner; several at once, because they mostly wait."""
    cases = deque((runner, at) for at in range(1, N_STEPS + 1) for runner in (run, RUNNERS[1 + at % 3]))
    failed: list[BaseException] = []

    def work(world: World) -> None:
        with suppress(IndexError):
            while not failed:
                runner, at = cases.popleft()
                try:
                    is_injected, has_failed = run_with_fault(world, runner, TWO_STAGES, fault, at)
                    assert is_injected or has_failed, f"{fault} at {at}, {runner.__name__}: nothing happened"
                except BaseException as e:
                    failed.append(e)

    threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in worlds]
    for thread in threads:
        thread.start()
    join(*threads, seconds=110)
    if failed:
        raise failed[0]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", sorted(EXPECTED_ERRORS))
def test_fault_with_the_real_engine(real_world: World, fault: str) -> None:
    for at in (3, 9, 15):
        # an engine takes seconds to start
        run_with_fault(real_world, run, TWO_STAGES_WITHOUT_TOOLS, fault, at, timeout=60.0)


@pytest.mark.parametrize("fault", ["kill_server", "cut"])
def test_lost_server_is_detected_by_the_connection(world: World, fault: str) -> None:
    """Not by the timeout and not by heartbeats, whose message is "stopped answering"."""
    trial = world.prepare(fault, at=2)

    @bn.function
    def program(s: bn.State) -> str:
        s += bn.gen("x", max_tokens=400, ignore_eos=True)
        trial.step()
        s._record.flush()
        trial.step()
        with pytest.raises(bn.RuntimeLost, match="is gone"):
            s["x"]
        return "caught"

    assert program.run(backend=world.client).ret_value == "caught"
    world.recover()
