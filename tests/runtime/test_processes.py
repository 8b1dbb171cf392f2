"""Forks and other processes of the user: none touches what another owns, and each can run programs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import banyan as bn
from banyan.runtime import launch
from forks import in_child, start_child
from forms import in_short
from waits import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of Python 3.12 and later

SAY = {"say": {"a": "b"}}

HEAD = """
import asyncio, gc, multiprocessing, os, signal, subprocess, sys, warnings
import banyan as bn
from banyan.runtime import launch

warnings.filterwarnings("ignore", ".*fork.*")  # of Python 3.12 and later

@bn.function
def ask(s: bn.State, text: str) -> None:
    s += text + bn.gen("x")

@bn.function
async def ask_async(s: bn.AsyncState, text: str) -> None:
    s += text + bn.gen("x")
    return await s.value("x")

def end(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def works(backend: object = None) -> bool:
    return ask.run("a", backend=backend)["x"] == "b"

def child(pipe, backend):
    pipe.send((works(backend), asyncio.run(ask_async.run_async("a", backend=backend)).ret_value))
    backend.close()
    sys.exit(3)

if __name__ == "__main__":
    launch.start.__defaults__ = (600.0, %r)  # a server with a fake engine
    runtime = bn.Runtime(%r, log="quiet")
    server = runtime._server.process
    assert works(runtime)
"""


@pytest.fixture
def run_script(boot: tuple[str, ...], fake_model: Callable[..., Path], tmp_path: Path) -> Callable[[str], None]:
    """`run_script(lines)`: run these lines in a new process, after HEAD and with a `runtime`. They end with exit code 0
    and write nothing to stderr."""

    def run(lines: str) -> None:
        file = tmp_path / "script.py"
        body = "".join(f"    {line}\n" for line in lines.splitlines())
        file.write_text(HEAD % (boot, str(fake_model(**SAY))) + body)
        command = [sys.executable, "-W", "error", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")

    return run


@pytest.mark.long
def test_child_that_exits_leaves_the_server_of_its_parent(run_script: Callable[[str], None]) -> None:
    run_script("""
def close():
    with runtime:
        runtime.close()
    os._exit(5)

def fail():
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raise ValueError

for way, code in ((lambda: sys.exit(3), 3), (fail, 1), (lambda: os._exit(4), 4), (close, 5),
                  (lambda: os.kill(os.getpid(), signal.SIGKILL), -9)):
    if not (pid := os.fork()):
        gc.collect()
        way()
    assert end(pid) == code
    assert works(runtime) and server.poll() is None and runtime.socket.exists()
runtime.close()
assert server.returncode == 0 and not runtime.socket.parent.exists()
""")


@pytest.mark.long
def test_close_ends_the_server_while_children_live(run_script: Callable[[str], None]) -> None:
    run_script("""
wait, go = os.pipe()
if not (pid := os.fork()):
    os.close(go)
    os.read(wait, 1)  # EOF
    os._exit(0)
sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], close_fds=False)
runtime.close()
assert server.returncode == 0, "it was not killed"
os.close(go)
assert end(pid) == 0
sleeper.kill()
sleeper.wait()
""")


@pytest.mark.parametrize("method", in_short(["spawn"], ["fork", "spawn", "forkserver"]))
def test_multiprocessing_passes_a_runtime_on(run_script: Callable[[str], None], method: str) -> None:
    run_script(f"""
context = multiprocessing.get_context({method!r})
here, there = context.Pipe()
process = context.Process(target=child, args=(there, runtime))
process.start()
there.close()  # so that the end of a child that fails is seen
assert here.recv() == (True, "b")
process.join()
assert process.exitcode == 3
assert works(runtime) and server.poll() is None
runtime.close()
assert server.returncode == 0 and not runtime.socket.parent.exists()
""")


def test_workers_of_a_prefork_server_use_the_default_of_their_master(run_script: Callable[[str], None]) -> None:
    run_script("""
bn.set_default_backend(runtime)
compiled = bn.compile(ask)
assert compiled.run("a")["x"] == "b"

def worker() -> None:
    for program in (ask, compiled):
        assert [s["x"] for s in program.run_batch([("a",)] * 4)] == ["b"] * 4
    assert list(ask.run("a", stream=True).text_iter("x")) == ["b"]
    os.kill(os.getpid(), signal.SIGSTOP)
    assert works()
    sys.exit(0)

workers = [pid for _ in range(3) if (pid := os.fork() or worker())]
for pid in workers:
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]), "it has run its programs"
os.kill(workers[0], signal.SIGKILL)
assert compiled.run("a")["x"] == "b"
for pid in workers[1:]:
    os.kill(pid, signal.SIGCONT)
assert [end(pid) for pid in workers] == [-9, 0, 0]
assert works()
""")


@pytest.mark.long
def test_subprocess_finds_the_server_in_the_environment(run_script: Callable[[str], None]) -> None:
    run_script("""
os.environ["BANYAN_SOCKET"] = str(runtime.socket)
code = "import script; assert script.works()"
assert subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=os.path.dirname(__file__)).returncode == 0
assert works(runtime) and server.poll() is None
""")


# ---- one server, and children of this process ----------------------------------------------------------------------


@bn.function
def ask(s: bn.State, text: str) -> None:
    s += text + bn.gen("x")


@pytest.fixture
def endpoint(serve_once: Callable[..., launch.ServerProcess]) -> Iterator[bn.RuntimeEndpoint]:
    with bn.connect(serve_once(**SAY).socket) as endpoint:
        yield endpoint


def test_child_reads_what_was_known_and_runs_programs_of_its_own(endpoint: bn.RuntimeEndpoint) -> None:
    known, unsent = ask.run("a", backend=endpoint), ask.run("a", backend=endpoint)
    assert known["x"] == "b"
    unsent += bn.gen("y")

    def work() -> list[Any]:
        texts: list[Any] = [known["x"]]
        try:
            unsent.text()
        except bn.RuntimeLost as e:
            texts.append(str(e))
        texts += [s["x"] for s in ask.run_batch([("a",)] * 3, backend=endpoint)]
        endpoint.close()
        try:
            ask.run("a", backend=endpoint)["x"]
        except bn.RuntimeLost as e:
            texts.append(str(e))
        return texts

    text, lost, *own, closed = in_child(work)
    assert text == "b"
    assert "is its fork" in lost
    assert "here" in lost
    assert own == ["b"] * 3
    assert "was closed" in closed
    assert unsent["y"] is not None, "the parent goes on"


def test_server_sees_the_end_of_a_parent_whose_fork_lives(serve: Callable[..., launch.ServerProcess]) -> None:
    observer = bn.connect(serve(**SAY).socket)

    def parent() -> None:
        endpoint = bn.connect(observer.client.path)
        ask.run("a", backend=endpoint).sync()
        grandchild, _ = start_child(signal.pause)
        os.write(write, b"%d" % grandchild)
        os.kill(os.getpid(), signal.SIGKILL)

    def n_clients() -> int:
        return int(observer.ask("stats")["server"]["clients"])

    read, write = os.pipe()
    pid, _ = start_child(parent)
    grandchild = int(os.read(read, 32))
    os.waitpid(pid, 0)
    try:
        wait_until(lambda: n_clients() == 1, "the end of the killed client", seen=n_clients, seconds=10)
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_child_of_a_body_leaves_the_batch_to_its_parent() -> None:
    read, write = os.pipe()

    @bn.function
    def body(s: bn.State, i: int) -> None:
        os.write(write, b"%d\n" % os.getpid())
        if i == 0 and not (pid := os.fork()):
            sys.exit(0)  # ends the body only: its thread goes on, in the child
        if i == 0:
            os.waitpid(pid, 0)
        s += "a" + bn.gen("x")

    states = body.run_batch([(i,) for i in range(4)], backend=bn.Mock(lambda prompt, name: name), num_threads=1)
    assert [s["x"] for s in states] == ["x"] * 4
    os.close(write)
    with os.fdopen(read) as f:
        assert f.read().split() == [str(os.getpid())] * 4


def test_child_is_told_that_what_it_iterates_runs_in_its_parent() -> None:
    goes_on = threading.Event()

    @bn.function
    def body(s: bn.State, i: int) -> None:
        s += "a" + bn.gen("x")
        if i:
            goes_on.wait()

    options: dict[str, Any] = {"backend": bn.Mock(lambda prompt, name: name)}
    batch = body.run_batch([(0,), (1,)], generator_style=True, **options)
    next(batch)
    streamed = bn.stream(body, 1, **options)
    events = iter(streamed.events())
    next(events)

    try:
        for waits in (lambda: list(batch), lambda: [str(event) for event in events]):
            assert "and this is its fork" in in_child(waits)
    finally:
        goes_on.set()
    assert [s["x"] for s in batch] == ["x"]
    assert list(events)


def test_child_is_told_that_an_asynchronous_batch_runs_in_its_parent() -> None:
    @bn.function
    async def body(s: bn.AsyncState, i: int) -> None:
        s += "a" + bn.gen("x")

    async def main() -> tuple[str, int]:
        states = aiter(body.run_batch_async([(i,) for i in range(3)], backend=bn.Mock(lambda prompt, name: name)))
        await anext(states)
        lost: str = in_child(lambda: asyncio.run(count(states)))
        return lost, await count(states)

    async def count(states: Any) -> int:
        return len([state async for state in states])

    lost, n_left = asyncio.run(main())
    assert "RuntimeLost: the batch runs in process" in lost
    assert n_left == 2
