"""Threads and memory of a process that runs many programs at once, with a server that answers at once.

    python benchmarks/concurrency.py [--quick] [--json FILE]

SGLang 0.5.23 has 193 threads for 32 programs with 4 branches each (2 cores of an AMD EPYC), and no async programs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from instant import server
from report import Report, correct, parser, resident

import banyan as bn

LONGEST = 300.0
"""Seconds that the measurement of one figure may take."""
N_PROGRAMS, N_BRANCHES, N_THREADS = 32, 4, 32
TESTS = (
    "tests/frontend/lang/test_async_state.py",
    "tests/frontend/execution/test_async_batch.py",
    "tests/frontend/execution/test_batch.py",
)


@bn.function
def branches(s: bn.State, i: int, seen: list[int]) -> None:
    s += bn.user(f"question {i}")
    forks = s.fork(N_BRANCHES)
    forks += lambda k: bn.assistant(f"branch {k}" + bn.gen("x", max_tokens=16))
    for branch in forks:
        assert branch["x"]
        seen.append(threading.active_count())
    forks.join()


@bn.function
async def ask(s: bn.AsyncState, i: int, begun: set[int]) -> str:
    s += bn.user(f"question {i}")
    s += bn.assistant(bn.gen("a", max_tokens=16))
    begun.add(i)
    return await s.value("a")  # type: ignore[no-any-return]


def threads() -> int:
    """The maximum number of this process's threads while N_PROGRAMS programs with branches run on a thread pool, and
    all wait at the same time."""
    seen: list[int] = []
    with server(hold=N_PROGRAMS) as path, bn.connect(path) as backend:
        branches.run_batch(
            [(i, seen) for i in range(N_PROGRAMS)], backend=backend, num_threads=N_THREADS, timeout=LONGEST
        )
    return max(seen)


def memory(n: int) -> dict[str, float]:
    """Of n async programs that all wait at the same time, each one's share: resident KB while they wait, and CPU
    microseconds from start to end."""
    with server(hold=n + 1) as path, bn.connect(path) as backend:
        return asyncio.run(_memory(n, backend))


async def _memory(n: int, backend: bn.RuntimeEndpoint) -> dict[str, float]:
    begun: set[int] = set()
    batch = ask.run_batch_async([(i, begun) for i in range(n)], backend=backend, concurrency=n)
    gc.collect()
    before, start = resident(), time.process_time()
    running = asyncio.create_task(_all(batch))
    async with asyncio.timeout(LONGEST):
        while len(begun) < n:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)  # until everything is sent and memory is freed
    each = (resident() - before) / n
    last = await ask.run_async(n, begun, backend=backend)  # the program for which the server withholds its answers
    assert last["a"] == "an answer of a few words"
    states = await running
    assert all(state.ret_value == last.ret_value for state in states)
    return {"KB": each / 1000, "us": (time.process_time() - start) / n * 1e6}


async def _all(batch: Any) -> list[bn.AsyncState]:
    return await batch  # type: ignore[no-any-return]


def apart(what: str, n: int = 0) -> Any:
    """Runs `threads` or `memory` in a new process."""
    done = subprocess.run([sys.executable, __file__, "--measure", what, str(n)], capture_output=True, text=True,
                          timeout=LONGEST)  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def rows(report: Any, quick: bool = False, baseline: float | None = None, baseline_name: str = "") -> None:
    """Measure, and add the rows to the report. baseline: a peer's number of threads."""
    n = 1000 if quick else 10_000
    name = f"threads, {N_PROGRAMS} programs x fork({N_BRANCHES}), pool {N_THREADS}"
    report.row(name, "threads", apart("threads"), baseline, baseline_name, target=f"<= {N_THREADS + 4}")
    found = apart("memory", n)
    report.row(f"memory of each of {n} async programs", "KB", found["KB"], target="< 20")
    report.row(f"client CPU of each of {n} async programs", "us", found["us"])


def main() -> int:
    arguments = parser(__doc__, quick="1,000 async programs, not 10,000, and no tests first")
    arguments.add_argument("--measure", nargs=2, metavar=("WHAT", "N"), help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.measure:
        what, n = options.measure
        print(json.dumps(threads() if what == "threads" else memory(int(n))))
        return 0
    if not options.quick:
        correct(*TESTS)
    report = Report("concurrency", "a server that answers at once")
    rows(report, options.quick)
    return report.end(options.json)


if __name__ == "__main__":
    sys.exit(main())
