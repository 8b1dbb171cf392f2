"""Memory of the client, the server and the engine over many mixed programs on a small KV cache.

    python benchmarks/soak.py [--quick] [--minutes 15] [--json FILE]

Threads run programs of all kinds, each with its own prompt, so the cache evicts all the time. Memory is the
anonymous pages of a process, without file pages, which other processes share. Without --quick, prompts first fill the
server's token cache. The first fifth of the time is the warm-up. Growth is the median of the last fifth over that of
the second, both without the bytes in bounded caches (`kept_by_server` and `kept_by_engine` in the counters), which may
fill for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, parser

import banyan as bn

KV = "24MiB"
"""192 pages of the pocket model."""
N_THREADS = 4
MIB = 1 << 20
MOST, MOST_QUICK = "<= 1.02", "<= 1.1"


@bn.tool
def look(subject: str) -> str:
    "Look a subject up."
    return f"{subject} is fine"


@bn.tool
def broken(subject: str) -> str:
    "Look a subject up."
    raise ValueError(subject)


@bn.function
def chat(s: bn.State, i: int) -> None:
    for turn in range(3):
        s += bn.user(f"Question {i}, part {turn}: what is {i * turn}?")
        s += bn.assistant(bn.gen("answer", max_tokens=12))


@bn.function
def choose(s: bn.State, i: int) -> None:
    s += f"Case {i} is " + bn.select("verdict", ["good", "bad", "open"]) + bn.gen("n", regex=r"[0-9]{3}")


@bn.function
def branch(s: bn.State, i: int) -> None:
    s += f"A tale of {i} friends. " * 8
    forks = s.fork(4)
    forks += lambda k: f"Chapter {k}:" + bn.gen("text", max_tokens=16, temperature=1.0)
    forks[3].drop()
    forks.join()
    s += bn.gen("end", max_tokens=8)


@bn.function
def use_tools(s: bn.State, i: int) -> None:
    s += bn.user(f"Look up {i}.") + bn.assistant(bn.gen("a", tools=[look, broken], max_tokens=48, max_rounds=2))


@bn.function
def fail(s: bn.State, i: int) -> None:
    s += f"Case {i}" + bn.gen("x", max_tokens=4)
    raise ValueError(s["x"])


@bn.function
async def chat_async(s: bn.AsyncState, i: int) -> None:
    s += bn.user(f"Question {i}?") + bn.assistant(bn.gen("a", max_tokens=12))
    await s.value("a")


def stream(i: int) -> None:
    for _ in chat.run(i, stream=True).text_iter():
        pass


def abandon(i: int) -> None:
    for _ in chat.run(i, stream=True).text_iter():
        break
    chat.run(i).cancel()


def limit(i: int) -> None:
    chat.run(i, timeout=0.01).sync()


def run_async(i: int) -> None:
    async def main() -> None:
        await asyncio.gather(*(chat_async.run_async(k) for k in (i, i)))
        async with asyncio.timeout(0.01):
            await chat_async.run_async(i)

    asyncio.run(main())


KINDS: tuple[Callable[[int], object], ...] = (
    lambda i: chat.run(i).text(),
    lambda i: choose.run(i).text(),
    lambda i: branch.run(i).text(),
    lambda i: use_tools.run(i).text(),
    lambda i: fail.run(i),
    lambda i: bn.compile(choose).run(i).text(),
    lambda i: chat.run_batch([(i,), (i + 1,)], timeout=60.0),
    lambda i: chat.run(i, n=2, budget=40).text(),
    stream,
    abandon,
    limit,
    run_async,
)


@bn.function
def recite(s: bn.State, i: int) -> None:
    for part in range(100):
        s += bn.user(f"Fact {i}.{part}")
    s += bn.gen("x", max_tokens=1)


def fill(runtime: bn.Runtime) -> None:
    """Run prompts until the server's token cache is full of short texts, like those that the programs leave in it. If
    it were full of longer texts, it would evict these for shorter ones during the run, and malloc would keep their
    pages."""
    for start in count(0, 64):
        now, most = runtime.ask("stats")["kept_by_server"]["token_ids"]
        if now > 0.9 * most:
            return
        recite.run_batch([(i,) for i in range(start, start + 64)], on_error="return")


class Memory(NamedTuple):
    """Memory of one process in MiB. kept: name of a bounded cache -> (what it holds, its limit)."""

    allocated: float
    kept: dict[str, tuple[float, float]]

    @property
    def rest(self) -> float:
        """Allocated memory without the bounded caches."""
        return self.allocated - sum(now for now, _ in self.kept.values())


def allocated(pid: int) -> float:
    """MiB of anonymous pages of a process; a page shared by k processes counts as 1/k."""
    found = re.search(r"^Pss_Anon: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def measure(runtime: bn.Runtime, pids: dict[str, int]) -> dict[str, Memory]:
    """The memory of each process now."""
    counters = runtime.ask("stats")
    kept = {name: counters.get(f"kept_by_{name}", {}) for name in pids}
    return {
        name: Memory(allocated(pid), {of: (now / MIB, most / MIB) for of, (now, most) in kept[name].items()})
        for name, pid in pids.items()
    }


def soak(runtime: bn.Runtime, seconds: float) -> tuple[int, list[dict[str, Memory]]]:
    """Runs programs for `seconds`. Returns their number, and about 100 measurements of the memory of each process."""
    numbers, end = count(), time.monotonic() + seconds

    def work() -> None:
        while time.monotonic() < end:
            i = next(numbers)
            with contextlib.suppress(bn.BanyanError, ValueError, TimeoutError):
                KINDS[i % len(KINDS)](i)

    info = runtime.get_server_info()
    pids = {"client": os.getpid(), "server": info["pid"], "engine": info["engine_pid"]}
    threads = [threading.Thread(target=work, name=f"soak-{k}") for k in range(N_THREADS)]
    for thread in threads:
        thread.start()
    sizes: list[dict[str, Memory]] = []
    while time.monotonic() < end:
        time.sleep(seconds / 100)
        gc.collect()
        sizes.append(measure(runtime, pids))
    for thread in threads:
        thread.join()
    assert runtime.get_server_info()["engine_pid"] == pids["engine"], "the engine died"
    return next(numbers), sizes


def growth(sizes: list[dict[str, Memory]]) -> dict[str, tuple[float, float]]:
    """MiB of each process without its bounded caches: the median of the second fifth of the measurements, and that of
    the last."""
    fifth = len(sizes) // 5
    parts = sizes[fifth : 2 * fifth], sizes[-fifth:]
    first, last = ({name: statistics.median(size[name].rest for size in part) for name in sizes[0]} for part in parts)
    return {name: (first[name], last[name]) for name in first}


def main() -> int:
    options = parser(__doc__, quick="a minute, with a wider target, because the warm-up takes longer")
    options.add_argument("--minutes", type=float, default=15.0, help="how long programs run (15)")
    args = options.parse_args()
    minutes = 1.0 if args.quick else args.minutes
    logging.getLogger("banyan").setLevel(logging.CRITICAL)  # no logs of errors that no program reads
    report = Report("soak", f"{minutes:g} min of mixed programs on {N_THREADS} threads, KV of {KV}")
    with bn.Runtime(log="quiet", kv_memory=KV) as runtime:
        bn.set_default_backend(runtime)
        if not args.quick:
            fill(runtime)
        n, sizes = soak(runtime, 60.0 * minutes)
    report.row("programs", "programs", n)
    for name, (first, last) in growth(sizes).items():
        report.row(f"{name} without caches, after the warm-up", "MiB", first)
        report.row(f"{name}, at the end to that", "times", last / first, target=MOST_QUICK if args.quick else MOST)
        for of, (now, most) in sizes[-1][name].kept.items():
            state = "filling" if now > 1.05 * sizes[len(sizes) // 5][name].kept[of][0] else "steady"
            report.row(f"{name}, {of}: {state}, most {most:.1f}", "MiB", now)
    return report.end(args.json)


if __name__ == "__main__":
    sys.exit(main())
