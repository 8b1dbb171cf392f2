"""Ctrl-C ends every kind of wait at once, and with it the work of the server."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from banyan.runtime import launch
from banyan.runtime.client.client import connect
from forms import in_short
from waits import wait_until

SCRIPT = """
import asyncio, sys, threading
import banyan as bn

@bn.function
def endless(s, i=0):
    s += f"item {i}" + bn.gen("x", max_tokens=400, ignore_eos=True)
    s += bn.user(s["x"])

@bn.function
async def awaited(s, i=0):
    s += f"item {i}" + bn.gen("x", max_tokens=400, ignore_eos=True)
    await s.value("x")

backend = bn.connect(sys.argv[1])
print("started", flush=True)
try:
    CALL
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
print("threads", threading.current_thread().name, threading.active_count(), flush=True)
"""

CALLS = {
    "run": "endless.run(backend=backend)",
    "run_batch": "endless.run_batch([(i,) for i in range(8)], backend=backend)",
    "one by one": "list(endless.run_batch([(i,) for i in range(8)], backend=backend, ordered=False))",
    "run_async": "asyncio.run(awaited.run_async(backend=backend))",
    "on a thread": "asyncio.run(endless.run_async(backend=backend))",
    "run_batch_async": "asyncio.run(asyncio.wait_for(awaited.run_batch_async([(i,) for i in range(8)], "
    "backend=backend)._all(), 60))",
    "stream": "[st for st in [bn.stream(endless, backend=backend)] for event in st.events()]",
}


@pytest.mark.parametrize("call", in_short(["run", "stream", "run_batch_async"], CALLS))
def test_interrupt_ends_the_wait_and_the_requests(serve_once: Callable[..., launch.ServerProcess], call: str) -> None:
    server = serve_once(step_ms=20)
    observer = connect(server.socket)
    code = SCRIPT.replace("CALL", CALLS[call])
    command = [sys.executable, "-c", code, str(server.socket)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as user:  # type: ignore[call-overload]
        assert user.stdout.readline() == "started\n"
        wait_until(
            lambda: observer.ask("stats")["server"]["requests"],
            "the user's requests",
            alive=lambda: user.poll() is None,
        )
        user.send_signal(signal.SIGINT)
        assert user.stdout.readline() == "interrupted\n", user.stderr.read()
        wait_until(
            lambda: not observer.ask("stats")["server"]["requests"],
            "the end of the requests before their 8 s of work",
            seconds=6,
        )
        out, err = user.communicate("\n", timeout=20)
        assert err == ""
        assert user.returncode == 0
        assert out.startswith("threads MainThread ")
