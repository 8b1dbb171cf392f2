"""Start-up time, memory, and large batches.

    python benchmarks/serving_use.py [--model models/M2-bfloat16] [--items 10000] [--page docs/performance.md]

start: from `banyan serve` to the first token, with the files in the page cache. memory: the peak of server and engine
after prompts that filled a small KV cache; pages that both processes map count twice. items: the few-shot example and
the example of an agent with tools run through `run_batch`, 500 items and then many, on the pocket model. Rates are per
second of wall time, and per second of CPU time of all three processes, which does not depend on other load.
"""

from __future__ import annotations

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
from report import Report, parser
from serving import Ours, first_token

import banyan as bn

KV = "256MiB"
FEW = 500
STARTS = {"pocket": "<= 3", "other": "<= 5"}


def start(model: str, *options: str) -> float:
    """Seconds from the start of the command until a client has the first token."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "s")
        banyan = Path(sys.executable).with_name("banyan")
        started = time.perf_counter()
        server = subprocess.Popen(
            [str(banyan), "serve", "--model", model, "--socket", str(socket), *options], stdout=subprocess.DEVNULL
        )
        try:
            deadline = started + 120  # then `connect` says that there is no server
            while not socket.exists() and server.poll() is None and time.perf_counter() < deadline:
                time.sleep(0.002)
            with bn.connect(socket, timeout=60) as backend:
                first_token.run(backend=backend).sync()
                return time.perf_counter() - started
        finally:
            server.terminate()
            server.wait()


def starts(report: Report, model: Path | None, n: int) -> None:
    for name, options in [("pocket", ()), *([(str(model), ("--dtype", _dtype(model)))] if model else [])]:
        start(name, *options)  # builds kernels and fills the page cache
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
    """One run_batch. wall, cpu: seconds; memory: MiB of all processes after a tenth of the items and at the end."""

    n: int
    wall: float
    cpu: float
    memory: tuple[float, float]


def _cpu(processes: Iterable[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _memory(processes: Iterable[psutil.Process]) -> float:
    return sum(process.memory_info().rss for process in processes) / 2**20


def run(program: Any, item: Callable[[int], dict[str, Any]], first: int, n: int, backend: bn.Runtime) -> Pass:
    """Runs n items, starting at number `first`, with a progress bar. Drops each state when it arrives."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    early, cpu, started = 0.0, _cpu(processes), time.perf_counter()
    states = program.run_batch(
        map(item, range(first, first + n)), backend=backend, progress_bar=True, generator_style=True, ordered=False
    )
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # output of the programs
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
            run(program, item, next(first), FEW, backend)  # fills caches and length statistics
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
    options = parser(__doc__, quick="1,000 items, and one start of each model")
    options.add_argument("--model", type=Path, help="a folder made by random_models.py, for its start and memory")
    options.add_argument("--items", type=int, default=10_000)
    options.add_argument("--times", type=int, default=5, help="starts of each model")
    options.add_argument("--page", type=Path, help="also write a table here")
    args = options.parse_args()
    if args.quick:
        args.items, args.times = 1000, 1
    report = Report("serving use", f"{args.items} items, {args.times} starts")
    starts(report, args.model, args.times)
    if args.model:
        memory(report, args.model)
    items(report, args.items)
    if args.page:
        report.fill_page(args.page)
    raise SystemExit(report.end(args.json))


if __name__ == "__main__":
    main()
