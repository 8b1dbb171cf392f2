"""What a user meets besides speed: how long a server takes to start, what memory it holds, and ten thousand items.

    python benchmarks/serving_use.py [--model models/M2-bfloat16] [--items 10000] [--page docs/performance.md]

start: from `banyan serve` to the first token, files in the page cache. memory: of server and engine, at its peak, after
prompts that filled every page of a small KV; pages that both processes map count twice. items: the examples of few-shot
labels and of agents with tools through `run_batch`, 500 of them and then many, on the pocket model; a rate by CPU time
of all three processes stands beside the one by the clock, as that does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "agents"))
from report import Report, commit, fill, machine
from serving import Ours, say_one

import banyan as bn

KV = "256MiB"
FEW = 500
STARTS = {"pocket": "<= 3", "other": "<= 5"}


def start(model: str, *options: str) -> float:
    """Seconds from the start of the command to the first token in a client's hands."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "s")
        banyan = Path(sys.executable).with_name("banyan")
        started = time.perf_counter()
        server = subprocess.Popen(
            [str(banyan), "serve", "--model", model, "--socket", str(socket), *options], stdout=subprocess.DEVNULL
        )
        try:
            while not socket.exists() and server.poll() is None:
                time.sleep(0.002)
            with bn.connect(socket, timeout=60) as backend:
                say_one.run(backend=backend).sync()
                return time.perf_counter() - started
        finally:
            server.terminate()
            server.wait()


def starts(report: Report, model: Path | None, n: int) -> None:
    for name, options in [("pocket", ()), *([(str(model), ("--dtype", _dtype(model)))] if model else [])]:
        start(name, *options)  # kernels are built, and files come into memory
        seconds = statistics.median(start(name, *options) for _ in range(n))
        target = STARTS["pocket" if name == "pocket" else "other"]
        report.row(f"start to first token, {Path(name).name}", "s", seconds, target=target)


def memory(report: Report, model: Path) -> None:
    ours = Ours(model, _dtype(model), kv_memory=KV)
    try:
        for seed in range(2):
            ours.run("W5", seed)
        peak = ours.peak / 2**20
    finally:
        ours.close()
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors")) / 2**20
    report.row(f"peak memory, {model.name}", "MiB", peak)
    report.row("of it neither weights nor KV", "MiB", peak - weights - 256, target="<= 600")


def _dtype(model: Path) -> str:
    return model.name.rpartition("-")[2]


class Pass(NamedTuple):
    """One run_batch. wall, cpu: seconds; memory: MiB of server, engine and client, a tenth into it and at its end."""

    n: int
    wall: float
    cpu: float
    memory: tuple[float, float]


def _cpu(processes: Iterable[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _memory(processes: Iterable[psutil.Process]) -> float:
    return sum(process.memory_info().rss for process in processes) / 2**20


def run(program: Any, item: Callable[[int], dict[str, Any]], first: int, n: int, backend: bn.Runtime) -> Pass:
    """n items from number `first` on, with progress; each state is dropped when it has come."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    early, cpu, started = 0.0, _cpu(processes), time.perf_counter()
    states = program.run_batch(
        map(item, range(first, first + n)), backend=backend, progress_bar=True, generator_style=True, ordered=False
    )
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # what the bodies print
        for i, state in enumerate(states):
            if state.error() is not None:
                raise SystemExit(f"an item failed: {state.error()}")
            if i == n // 10:
                early = _memory(processes)
    return Pass(n, time.perf_counter() - started, _cpu(processes) - cpu, (early, _memory(processes)))


def items(report: Report, n_items: int) -> None:
    import few_shot
    import react_tools

    def note(i: int) -> dict[str, Any]:
        return {"text": f"{few_shot.REST[i % len(few_shot.REST)]['text']} No. {i}"}

    def question(i: int) -> dict[str, Any]:
        return {"question": f"What is {i % 97}.5 times {i}?"}

    for name, program, item in (("few-shot", few_shot.label, note), ("agents", react_tools.agent, question)):
        with bn.Runtime(kv_memory=KV) as backend:
            first = itertools.count(step=FEW)
            run(program, item, next(first), FEW, backend)  # caches fill, and what was learned of lengths is known
            few = run(program, item, next(first), FEW, backend)
            many = run(program, item, next(first), n_items, backend)
        rates = many.n / many.wall, few.n / few.wall
        row = f"{name}, {n_items} items, beside {FEW}"
        report.row(row, "items/s", *rates, f"{FEW} items", "ratio >= 0.9", more_is_better=True)
        rates = many.n / many.cpu, few.n / few.cpu
        report.row(f"{row}: of CPU", "items/s", *rates, f"{FEW} items", "ratio >= 0.9", more_is_better=True)
        early, late = many.memory
        report.row(f"{name}, memory at the end, beside a tenth", "MiB", late, early, "a tenth in", "ratio >= 0.9")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder made by random_models.py, for its start and memory")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=5, help="starts of each model")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--page", type=Path, help="also write a table here")
    args = parser.parse_args()
    report = Report("serving use", f"{args.items} items, {args.times} starts")
    starts(report, args.model, args.times)
    if args.model:
        memory(report, args.model)
    items(report, args.items)
    if args.page:
        fill(args.page, report.name, f"{machine()}, commit {commit()}.\n\n{report.table()}")
    raise SystemExit(report.end(args.json) > 0)


if __name__ == "__main__":
    main()
