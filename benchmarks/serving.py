"""Whole programs on a CPU, beside other runtimes on the same model, texts and machine.

    python benchmarks/random_models.py models
    python benchmarks/serving.py models/M2-bfloat16 --vllm ~/vllm/bin/python --transformers .venv/bin/python

The six workloads of serving_work.py run through the whole path (language, socket, server, engine), each peer in its own
environment with the settings that are best for it, all of them alive at once and taking turns; every run begins with
an empty cache. Greedy, end-of-sequence ignored. A row is of the run with the median wall time. `--page FILE` writes the
table as Markdown and a plot beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from random_models import words
from report import Report, commit, machine
from serving_work import WORKLOADS, Call, every, work

import banyan as bn

HERE = Path(__file__).resolve().parent
PEERS = ("vllm", "transformers")
BOUNDS = {"W1": 0.67, "W2": 0.85, "W3": 0.8, "W4": 0.75, "W5": 1.0, "W6": 0.67}
"""Of vLLM's wall time."""


class Run(NamedTuple):
    """One workload, once. wall, ttft, itl: seconds; itl is a call's mean between its first and last token."""

    wall: float
    n_out: int
    computed: int
    ttft: list[float]
    itl: list[float]
    out: list[str]


@bn.function
def grow(s: bn.State, call: Call, made: dict[int, tuple[bn.State, str]], depth: int = 0) -> None:
    """A tree of calls. Where one call follows another, its text comes when the last is known, as a user's would."""
    while True:
        name = f"out{depth}"
        s += call.text + bn.gen(name, max_tokens=call.n_out, ignore_eos=True, temperature=0)
        made[id(call)] = s, name
        if len(call.children) != 1:
            break
        s[name]
        (call,), depth = call.children, depth + 1
    if call.children:
        branches = s.fork(len(call.children))
        for branch, child in zip(branches, call.children, strict=True):
            grow.inline(branch, child, made, depth + 1)
        branches.join()


@bn.function
def say_one(s: bn.State) -> None:
    s += "Hello" + bn.gen(max_tokens=1)


class Ours:
    """Banyan's server and engine with their client in this process."""

    def __init__(self, model: Path, dtype: str, **options: Any) -> None:
        started = time.perf_counter()
        self._runtime = bn.Runtime(str(model), dtype=dtype, device="cpu", **options)
        say_one.run(backend=self._runtime).sync()
        self.startup = time.perf_counter() - started
        self._vocabulary = words(json.loads((model / "config.json").read_text())["vocab_size"])

    def run(self, name: str, seed: int) -> Run:
        calls = work(name, self._vocabulary, seed)
        self._runtime.flush_cache()
        made: dict[int, tuple[bn.State, str]] = {}
        started = time.perf_counter()
        grow.run_batch([{"call": call, "made": made} for call in calls], backend=self._runtime)
        wall = time.perf_counter() - started
        metas, out = [], []
        for call in every(calls):
            state, name = made[id(call)]
            metas.append(state.get_meta_info(name))
            out.append(state[name])
        return Run(
            wall,
            sum(meta["completion_tokens"] for meta in metas),
            sum(meta["prompt_tokens"] - meta["cached_tokens"] for meta in metas),
            [meta["time_to_first_token"] for meta in metas],
            [(meta["e2e_latency"] - meta["time_to_first_token"]) / (meta["completion_tokens"] - 1) for meta in metas],
            out,
        )

    def close(self) -> None:
        self._runtime.shutdown()


class Peer:
    """A peer in its own environment."""

    def __init__(self, name: str, python: Path, model: Path, dtype: str) -> None:
        from transformers import AutoTokenizer

        command = [str(python), str(HERE / "serving_peers.py"), name, str(model.resolve()), dtype]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self.startup: float = self._read()["startup"]

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise SystemExit(f"the peer ended with status {self._process.wait()}; what it said stands above")
        return json.loads(line)  # type: ignore[no-any-return]

    def run(self, name: str, seed: int) -> Run:
        self._process.stdin.write(f"{name} {seed}\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        result = self._read()
        calls = result["calls"]
        return Run(
            result["wall"],
            sum(len(call["out"]) for call in calls),
            sum(call["prompt"] - call["cached"] for call in calls),
            [call["times"][0] for call in calls],
            [(call["times"][-1] - call["times"][0]) / (len(call["out"]) - 1) for call in calls],
            [self._tokenizer.decode(call["out"]) for call in calls],
        )

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(timeout=60)


def median(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.wall)[(len(runs) - 1) // 2]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


def measure(systems: dict[str, Ours | Peer], names: list[str], n_times: int) -> dict[str, dict[str, list[Run]]]:
    """workload -> system -> runs. The systems take turns; their runs of one turn have the same texts."""
    for system in systems.values():
        for seed in range(2):
            system.run("warm-up", seed)
    runs: dict[str, dict[str, list[Run]]] = {}
    for name in names:
        runs[name] = {system: [] for system in systems}
        for seed in range(n_times):
            for system, driver in systems.items():
                runs[name][system].append(driver.run(name, seed))
                print(f"{name} {system} {runs[name][system][-1].wall:.2f} s", file=sys.stderr, flush=True)
    return runs


def tell(report: Report, runs: dict[str, dict[str, list[Run]]]) -> None:
    for name, by_system in runs.items():
        ours = median(by_system["banyan"])
        for peer, theirs in ((peer, median(by_system[peer])) for peer in by_system if peer != "banyan"):
            bound = 1 / BOUNDS[name] if peer == "vllm" else 1
            report.row(f"{name} wall", "s", ours.wall, theirs.wall, peer, f"ratio >= {bound:.3g}")
            report.row(
                f"{name} output",
                "tokens/s",
                ours.n_out / ours.wall,
                theirs.n_out / theirs.wall,
                peer,
                more_is_better=True,
            )
            report.row(f"{name} prompt tokens computed", "", ours.computed, theirs.computed, peer)
            for what, mine, other in (
                ("first token", ours.ttft, theirs.ttft),
                ("between tokens", ours.itl, theirs.itl),
            ):
                for share in (0.5, 0.99):
                    label = f"{name} {what}, p{100 * share:.0f}"
                    report.row(label, "ms", 1e3 * percentile(mine, share), 1e3 * percentile(other, share), peer)
            same = statistics.mean(a == b for a, b in zip(ours.out, theirs.out, strict=True))
            report.row(f"{name} outputs that are {peer}'s", "%", 100 * same)
    for peer in next(iter(runs.values())):
        if peer != "banyan":
            ratios = [
                median(by_system[peer].copy()).wall / median(by_system["banyan"]).wall for by_system in runs.values()
            ]
            bound = 1.25 if peer == "vllm" else 1
            report.row(
                f"times as fast as {peer}, geometric mean", "x", statistics.geometric_mean(ratios), target=f">= {bound}"
            )


def write_page(file: Path, model: str, runs: dict[str, dict[str, list[Run]]]) -> None:
    """The walls as a Markdown table, and as bars in an SVG beside it."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    systems = list(next(iter(runs.values())))
    walls = {name: [median(by_system[system]).wall for system in systems] for name, by_system in runs.items()}
    lines = ["| workload | " + " | ".join(systems) + " |", "|---" * (len(systems) + 1) + "|"]
    lines += [
        f"| {name}: {(WORKLOADS[name].__doc__ or '').rstrip('.')} | " + " | ".join(f"{wall:.2f}" for wall in row) + " |"
        for name, row in walls.items()
    ]
    plot = file.with_suffix(".svg")
    figure, axes = pyplot.subplots(figsize=(8, 3.2), layout="constrained")
    width = 0.8 / len(systems)
    for i, system in enumerate(systems):
        axes.bar(
            [x + i * width for x in range(len(walls))], [row[i] / row[0] for row in walls.values()], width, label=system
        )
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(walls))], list(walls))
    axes.set_ylabel("wall time, banyan = 1")
    axes.legend()
    figure.savefig(plot)
    head = f"{model}, {machine()}, commit {commit()}. Wall seconds, medians."
    file.write_text(f"{head}\n\n" + "\n".join(lines) + f"\n\n![wall times]({plot.name})\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder made by random_models.py")
    for peer in PEERS:
        parser.add_argument(f"--{peer}", type=Path, help="the Python of an environment that has it")
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--page", type=Path, help="also write a table and a plot here")
    args = parser.parse_args()
    dtype = args.model.name.rpartition("-")[2]
    systems: dict[str, Ours | Peer] = {"banyan": Ours(args.model, dtype)}
    report = Report("serving", f"{args.model.name}, {os.cpu_count()} cores, median of {args.times}")
    try:
        for peer in PEERS:
            if python := getattr(args, peer):
                systems[peer] = Peer(peer, python, args.model, dtype)
        runs = measure(systems, args.workloads, args.times)
    finally:
        for system in systems.values():
            system.close()
    for system, driver in systems.items():
        report.row(f"start to first token, {system}" if system == "banyan" else f"start, {system}", "s", driver.startup)
    tell(report, runs)
    if args.page:
        write_page(args.page, args.model.name, runs)
    raise SystemExit(report.end(args.json) > 0)


if __name__ == "__main__":
    main()
