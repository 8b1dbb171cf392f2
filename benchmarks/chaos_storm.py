"""For chaos.py and tests: runs programs on real processes while their engine is killed and stopped, and clients
vanish."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))
from banyan.runtime import config, launch
from banyan.runtime.client import client as clients
from banyan.runtime.errors import BanyanError
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, ConstraintSpec, Fork, Gen, Join, Read, Sampling, Select
from waits import wait_until

VANISHING = """
import sys, time
from pathlib import Path
from banyan.runtime.client import client
from banyan.runtime.protocol import wire
c = client.connect(Path(sys.argv[1]), timeout=100)  # the engine may still be loading
for k in range(20):
    endless = wire.Sampling(max_tokens=300, ignore_eos=True, temperature=0.0)
    c.program("gone").submit([wire.Append(0, (f"gone {k}",)), wire.Gen(0, 0, endless, stream=True)])
print("here", flush=True)
time.sleep(1000)
"""


ERROR = "\0error "
"""If a value failed, this prefix and the error's code stand in place of its text."""


class Faults(NamedTuple):
    """How often each fault happens in a run. Their times and order are random."""

    kills: int = 20
    stops: int = 5
    vanishing: int = 3


def ops(kind: int, k: int) -> tuple[list[wire.Op], tuple[int, ...]]:
    """A greedy program of one of six kinds, and the refs of its values."""
    greedy = Sampling(temperature=0.0, max_tokens=24, ignore_eos=True)
    start = Append(0, (f"the {k} dog jumps over",))
    match kind % 6:
        case 0:
            return [start, Gen(0, 0, greedy), Append(0, (" and",)), Gen(0, 1, greedy)], (0, 1)
        case 1:
            tree: list[wire.Op] = [start, Fork(0, (1, 2, 3))]
            for child in (1, 2, 3):
                tree += [Append(child, (f" {child}",)), Gen(child, child, greedy)]
            return [*tree, Join(0, (1, 2, 3)), Gen(0, 4, greedy), Read(0, 5)], (1, 2, 3, 4, 5)
        case 2:
            return [start, Select(0, 0, (" yes", " no", " quick")), Gen(0, 1, greedy)], (0, 1)
        case 3:
            digits = msgspec.structs.replace(greedy, ignore_eos=False, constraint=ConstraintSpec("regex", "[a-f]{20}"))
            return [start, Gen(0, 0, digits)], (0,)
        case 4:
            return [start, Gen(0, 0, greedy, stream=True), Append(0, (wire.Ref(0),)), Gen(0, 1, greedy)], (0, 1)
    penalties = msgspec.structs.replace(greedy, repetition_penalty=1.3, stop=("zz",))
    return [Append(0, ("the quick brown fox " * 6,)), start, Gen(0, 0, penalties), Gen(0, 1, greedy)], (0, 1)


class Outcome(NamedTuple):
    """texts: for each program the texts of its values, or ERROR and a code. n_starts: how many engines were started
    during the run. seconds: of the whole run. left: programs, requests and pages that were not released. grown: MiB by
    which the server's memory has grown."""

    texts: list[tuple[str, ...]]
    n_starts: int
    seconds: float
    left: dict[str, Any]
    grown: float


def run(
    server: launch.ServerProcess,
    n: int,
    faults: Faults | None,
    seed: int = 0,
    patience: float = 600.0,
) -> Outcome:
    """Run n programs. TimeoutError if a value does not arrive within `patience` seconds."""
    began, before = time.monotonic(), psutil.Process(server.pid).memory_info().rss
    with contextlib.closing(clients.connect(server.socket, timeout=100)) as c:
        watch = clients.connect(server.socket, timeout=100)
        first = starts(watch)
        with contextlib.ExitStack() as stack:
            stack.callback(watch.close)
            storm = None
            if faults is not None:
                storm = threading.Thread(target=_storm, args=(server, watch, faults, seed))
                storm.start()
                stack.callback(storm.join)
            texts = list(_play(c, n, patience))
            if storm is not None:
                storm.join()
            left = _left(watch)
            n_starts = starts(watch) - first
    grown = (psutil.Process(server.pid).memory_info().rss - before) / 2**20
    return Outcome(texts, n_starts, time.monotonic() - began, left, grown)


def _play(c: clients.Client, n: int, patience: float) -> Iterator[tuple[str, ...]]:
    """Submit n programs, then yield the values of each."""
    programs: list[tuple[clients.ProgramHandle, Sequence[int]]] = []
    for k in range(n):
        body, refs = ops(k, k)
        program = c.program(f"p{k}")
        program.submit(body, last=True)
        programs.append((program, refs))
    for program, refs in programs:
        values = []
        for ref in refs:
            try:
                values.append(program.future(ref).result(patience).samples[0].text)
            except BanyanError as e:
                values.append(f"{ERROR}{e.code}")
        yield tuple(values)


def starts(c: clients.Client) -> int:
    def ask() -> Any:
        with contextlib.suppress(BanyanError):  # the engine died before it answered
            return c.ask("stats", timeout=60)
        return None

    n: int = wait_until(ask, "the server's statistics", seconds=300)["server"]["engine_starts"]
    return n


def _storm(server: launch.ServerProcess, c: clients.Client, faults: Faults, seed: int) -> None:
    chance = Random(seed)
    events = ["kill"] * faults.kills + ["stop"] * faults.stops + ["vanish"] * faults.vanishing
    chance.shuffle(events)
    for event in events:
        time.sleep(chance.uniform(0.05, 0.6))
        pid = _engine(c)
        with contextlib.suppress(ProcessLookupError):
            if event == "kill":
                os.kill(pid, signal.SIGKILL)
            elif event == "stop":
                os.kill(pid, signal.SIGSTOP)
                wait_until(lambda pid=pid: _engine(c) != pid, "an engine in place of the stopped one", seconds=300)
            else:
                _vanish(server)


def _engine(c: clients.Client) -> int:
    pid: int = c.ask("info", timeout=60)["engine_pid"]
    return pid


def _vanish(server: launch.ServerProcess) -> None:
    process = subprocess.Popen([sys.executable, "-c", VANISHING, str(server.socket)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()


def _left(c: clients.Client) -> dict[str, Any]:
    """Wait until nothing of the ended programs is left, for 60 s at most, and run the server's check. Returns what is
    left."""
    deadline = time.monotonic() + 60
    while True:
        try:
            stats = c.ask("stats", timeout=60)
            server, engine, cache = stats["server"], stats["engine"], stats.get("cache", {})
            found = {"programs": server["programs"], "requests": server["requests"]}
            found |= {name: engine[name] for name in ("running", "waiting") if name in engine}
            found["leased pages"] = cache.get("n_leased", 0)
            lost = cache.get("n_pages", 0) - sum(
                cache.get(name, 0) for name in ("n_free", "n_leased", "n_cached", "n_quarantined")
            )
            found |= {"lost pages": lost, "withdrawn pages": cache.get("n_quarantined", 0)}
            found = {name: n for name, n in found.items() if n}
            if not found or time.monotonic() > deadline:
                c.ask("check", timeout=60)
                return found
        except BanyanError:  # the engine died before it answered
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def serve(model: Path, command: Sequence[str] = launch.SERVER, **options: Any) -> launch.ServerProcess:
    """Start a server of a small model in float32."""
    settings = config.make(model=str(model), threads=1, device="cpu", dtype="float32", kv_memory="32MB", **options)
    return launch.start(settings, timeout=200, command=command)
