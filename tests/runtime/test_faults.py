"""Whatever happens to a program, it ends in time, with its values or with an error that names the cause.

Random programs, run in every way there is, against a server whose engine speaks by a rule; at a random step something
happens: the server dies or stands still, its engine dies, the connection is cut, or the body raises.
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

DEADLINE = 15.0
"""Seconds of each run. The tests' machine may be slow; what is to be seen at once is measured apart."""

LIMITS = {"stop_engine": 3.0}
"""The same, where nothing else ends a run."""

N_WORLDS = 3
"""Servers that the long form plays with at once."""

N_MISSED = 15
"""Heartbeats after which a server that stands still is given up."""

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
    '<tool_call>{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Of a model that knows tools."""
TURN = "<|im_end|>\n<|im_start|>assistant\n"
SAY = {
    f"call{TURN}": '<tool_call>{"name": "fails", "arguments": {}}</tool_call><|im_end|>',
    f"no luck{TURN}": "So be it.<|im_end|>",
}

Step = tuple[Any, ...]


class Mine(Exception):
    """What a body raises."""


@pytest.fixture(scope="module")
def faults(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).with_name("faults.py"))


class Trial:
    """One program, and what happens at one of its steps. A body that runs on after its end counts here, not for the
    next."""

    def __init__(self, client: Client, at: int, strike: Callable[[], None]) -> None:
        self.client, self._at, self._strike = client, at, strike
        self._n_steps, self.has_struck, self._is_over = 0, False, False
        self._lock = threading.Lock()

    def step(self) -> None:
        """Called by bodies before each of their steps."""
        with self._lock:
            self._n_steps += 1
            if self._n_steps == self._at and not self._is_over:
                self.has_struck = True
                self._strike()

    def end(self) -> None:
        """From here on nothing strikes; what does now is waited for."""
        with self._lock:
            self._is_over = True


class World:
    """A server, a client of it behind a proxy, and what may happen to them.

    Everything is there again before the next program, if the last one broke it.
    """

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
        """`fault` strikes at step `at`, counted over all bodies."""
        if self._server is None or self._server.process.poll() is not None:
            self._end()
            self._server = self._start()
        if self._proxy is None:
            self._n += 1
            self._proxy = self._faults.Proxy(self._folder / f"p{self._n}", self._server.socket)
        self.client = connect(self._proxy.path)
        self.client.ask("stats")  # answered by the engine: it is there
        self._trial = Trial(self.client, at, getattr(self, f"_{fault}"))
        return self._trial

    def _kill_server(self) -> None:
        assert self._server is not None
        os.kill(self._server.pid, signal.SIGKILL)
        self._server.process.wait(10)  # else the next program may still find it

    def _kill_engine(self) -> None:
        os.kill(self.client.ask("info")["engine_pid"], signal.SIGKILL)

    def _stop_server(self) -> None:
        assert self._server is not None
        pid = self._server.pid
        os.kill(pid, signal.SIGSTOP)
        self._undo.callback(_go_on, pid)
        self._undo.enter_context(pytest.MonkeyPatch.context()).setattr(ipc, "MAX_MISSED", N_MISSED)

    def _stop_engine(self) -> None:
        pid = self.client.ask("info")["engine_pid"]
        os.kill(pid, signal.SIGSTOP)
        self._undo.callback(_go_on, pid)

    def _cut(self) -> None:
        self._proxy.cut()
        self._proxy = None

    def _raise(self) -> None:
        raise Mine

    def recover(self) -> None:
        """After a program: nothing of it is left, neither here nor, if it lives, in the server."""
        self._trial.end()
        self._undo.close()
        wait_until(self._is_clean, "the end of the program", seen=lambda: self.client._programs, seconds=DEADLINE)
        if self.client.lost is not None and self._proxy is not None:
            self._proxy.cut()
            self._proxy = None
        assert not self.client._programs

    def _is_clean(self) -> bool:
        gc.collect()  # a handle closes itself once it is collected: a thread may have held one until just now
        return self.client.lost is not None or not (self.client._programs or self._left())

    def _left(self) -> bool:
        with suppress(bn.RuntimeLost):
            stats = self.client.ask("stats", timeout=5.0)
            return bool(stats["server"]["programs"] or stats["server"]["requests"])
        return False

    def _end(self) -> None:
        if self._proxy is not None:
            self._proxy.cut()
            self._proxy = None
        if self._server is not None:
            self._server.close()

    close = _end


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):  # somebody killed it for standing still
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def _quick_heart() -> Iterator[None]:
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
    _quick_heart: None,
) -> Iterator[list[World]]:
    """With an engine that speaks by a rule."""
    folder = tmp_path_factory.mktemp("world")
    tiny.make_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "fake.json").write_text(json.dumps({"say": SAY, "step_ms": 1, "context": 1 << 16}))
    options, sockets = config.make(model=str(folder)), tmp_path_factory.mktemp("s")
    made = [
        World(lambda: launch.start(options, timeout=60.0, command=boot), sockets / str(k), faults)
        for k in range(N_WORLDS)
    ]
    yield made
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def world(worlds: list[World]) -> World:
    return worlds[0]


@pytest.fixture(scope="module")
def real_world(
    tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, faults: ModuleType, _quick_heart: None
) -> Iterator[World]:
    """With a tiny model."""
    options = config.make(model=str(tiny_model()), threads=1, kv_memory="16MB", device="cpu")
    made = World(lambda: launch.start(options, timeout=200.0), tmp_path_factory.mktemp("s") / "0", faults)
    yield made
    made.close()


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
            simple(s, step[0], trial)
    trial.step()


def simple(s: Any, kind: str, trial: Trial) -> None:
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
            simple(s, step[0], trial)
            if step[0] == "look":
                assert all([await s.value(name) is not None for name in ("x", "t") if name in s])
    await asyncio.to_thread(trial.step)
    return await s.text()


async def _branch(s: bn.AsyncState, trial: Trial, steps: list[Step]) -> None:
    s += "["
    await awaited.func(s, trial, steps)


Way = Callable[[Trial, list[Step], float], list[Any]]


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


WAYS = [run, run_async, run_batch, stream]

CAUSES: dict[str, tuple[type[BaseException], ...]] = {
    "kill_engine": (),
    "kill_server": (bn.RuntimeLost,),
    "cut": (bn.RuntimeLost,),
    "stop_engine": (bn.DeadlineExceeded,),
    "stop_server": (bn.DeadlineExceeded, bn.RuntimeLost),
    "raise": (Mine,),
}
WORDS = {
    "kill_server": "is gone",
    "cut": "is gone",
    "stop_engine": "timeout of",
    "stop_server": "timeout of|stopped answering",
    "raise": "",
}


def play(
    world: World, way: Way, steps: list[Step], fault: str, at: int, timeout: float = DEADLINE
) -> tuple[bool, bool]:
    """Run it, and look at its end. Returns whether the fault struck and whether the program failed."""
    trial = world.prepare(fault, at)
    timeout = LIMITS.get(fault, timeout)
    start, error = time.monotonic(), None
    try:
        texts = way(trial, steps, timeout)
        assert all(isinstance(text, str) for text in texts)
    except bn.BatchError as e:
        error = next((one for one in e.errors.values() if isinstance(one, Mine)), e.__cause__)
    except Exception as e:
        error = e
    assert time.monotonic() - start < timeout + 5, "it ends in time"
    while isinstance(error, bn.ForkError):
        error = error.__cause__
    if error is not None:
        assert isinstance(error, CAUSES[fault]), f"{fault} at {at}, {way.__name__}: {error!r}"
        assert re.search(WORDS[fault], str(error))
    has_failed = error is not None
    del error  # it holds the run
    world.recover()
    return trial.has_struck, has_failed


QUIET = ["kill_engine", "raise", "cut"]
"""Faults after which the server lives on."""


_TALL: list[Step] = [("fork", [[("tool",), ("select",)]] * 3, "concate_and_append")] * 3
"""Its prompt grows over 512 tokens."""


@example(steps=_TALL, way=run, fault="kill_engine", at=1)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=PROGRAMS, way=st.sampled_from(WAYS), fault=st.sampled_from(QUIET), at=st.integers(1, 20))
def test_random_programs_end_well(world: World, steps: list[Step], way: Any, fault: str, at: int) -> None:
    play(world, way, steps, fault, at)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=PROGRAMS, way=st.sampled_from(WAYS), fault=st.sampled_from(sorted(CAUSES)), at=st.integers(1, 30))
def test_random_programs_end_well_at_length(world: World, steps: list[Step], way: Any, fault: str, at: int) -> None:
    play(world, way, steps, fault, at)


TWO_STAGES: list[Step] = [
    ("text",),
    ("fork", [[("gen",), ("look",), ("gen",), ("look",)], [("gen",), ("tool",), ("look",)]], "gather_variable"),
    ("fork", [[("gen",)], [("gen",), ("look",)]], "concate_and_append"),
    ("gen",),
    ("look",),
]
N_POINTS = 21
"""Steps of TWO_STAGES in one run: 6 of its own, 9 and 5 of its forks' branches, 1 of its tool. (A batch of 3 has three
times that.)"""


REAL = [step for step in TWO_STAGES if step[0] != "fork"] + [
    ("fork", [[("gen",), ("look",)]] * 2, "gather_variable"),
    ("fork", [[("gen",)], [("gen",), ("look",)]], "concate_and_append"),
    ("look",),
]
"""The same for a model that knows no tools."""


@pytest.mark.parametrize("fault", sorted(CAUSES))
def test_a_two_stage_fork(world: World, fault: str) -> None:
    has_struck, _ = play(world, run, TWO_STAGES, fault, at=9)
    assert has_struck


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", sorted(CAUSES))
def test_a_two_stage_fork_at_every_point(worlds: list[World], fault: str) -> None:
    """Each point in a plain run, and in one of the other ways; several at once, as most of the time they wait."""
    todo = deque((way, at) for at in range(1, N_POINTS + 1) for way in (run, WAYS[1 + at % 3]))
    failed: list[BaseException] = []

    def work(world: World) -> None:
        with suppress(IndexError):
            while not failed:
                way, at = todo.popleft()
                try:
                    has_struck, has_failed = play(world, way, TWO_STAGES, fault, at)
                    assert has_struck or has_failed, f"{fault} at {at}, {way.__name__}: nothing happened"
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
@pytest.mark.parametrize("fault", sorted(CAUSES))
def test_the_real_engine(real_world: World, fault: str) -> None:
    for at in (3, 9, 15):
        play(real_world, run, REAL, fault, at, timeout=60.0)  # an engine takes seconds to start


@pytest.mark.parametrize("fault", ["kill_server", "cut"])
def test_a_loss_is_known_by_the_connection(world: World, fault: str) -> None:
    """Not by a deadline and not by heartbeats, which would say "stopped answering"."""
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
