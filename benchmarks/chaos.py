"""The engine under load and faults: throughput, fairness, latency, and what is lost.

    python benchmarks/chaos.py [--quick] [--only PART] [--model DIR [--vllm PYTHON]] [--json FILE]

chaos     real processes run mixed greedy programs in float32 while the engine is killed and stopped, and clients
          vanish; compared with an undisturbed run
fuzz      the tests that send invalid messages to the sockets of real processes
memory    Python's memory after 100,000 steps, compared with 10,000

These run the engine's scheduler and tree in virtual time (simulate.py):

overload  10,000 programs at once
fairness  a client with few programs while another has many
latency   decodes beside long prompts; with --model also on real engines (chaos_latency.py)
agents    agents that wait for tools, with a cache of half their working set; the scheduler's parts are added in turn
policies  agents and fairness again, with each value of `schedule`
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import chaos_load as load
import chaos_storm as storm
from chaos_latency import DTYPE, Latency, measure
from report import Report, correct, parser, passes

GATE = (
    "tests/runtime/engine/scheduling/test_pressure.py",
    "tests/runtime/engine/scheduling/test_admission.py",
    "tests/runtime/test_recovery.py",
)


def chaos(report: Report, is_quick: bool) -> None:
    n, faults = (120, storm.Faults(kills=4, stops=1)) if is_quick else (1000, storm.Faults())
    with contextlib.closing(storm.serve(Path("pocket"))) as server:
        storm.run(server, n, None)  # fills caches and buffers, so that the next runs show leaks
        calm = storm.run(server, n, None)
        stormy = storm.run(server, n, faults)
    n_changed = sum(was != now for was, now in zip(calm.texts, stormy.texts, strict=True))
    what = f"chaos, {n} programs, {faults.kills} kills, {faults.stops} stops"
    report.row(f"{what}: changed by it", "programs", n_changed, target="<= 0")
    n_failed = sum(text.startswith(storm.ERROR) for texts in stormy.texts for text in texts)
    report.row("chaos: values that failed", "", n_failed, target="<= 0")
    report.row("chaos: engines started", "", stormy.n_starts, target=f">= {faults.stops + faults.kills // 2}")
    report.row("chaos: left behind (pages, requests)", "", sum(stormy.left.values()), target="<= 0")
    report.row("chaos: the server's memory has grown by", "MiB", stormy.grown, target="<= 32")
    report.row("chaos: seconds", "s", stormy.seconds, calm.seconds, "calm")


def overload(report: Report, is_quick: bool) -> None:
    n = 1000 if is_quick else 10_000
    found = load.overload(n)
    report.row(f"overload, {n} at once: throughput", "tokens/s", found.overloaded, found.peak, "32 at a time",
               "ratio >= 0.95", more_is_better=True)  # fmt: skip
    report.row("overload: worst program over the median", "x", found.worst, target="<= 3")
    for n_waiting, limit in ((1000, 1), (10_000, 2)):
        for has_turnover in (False, True):
            name = f"scheduler, 64 run, {n_waiting:,} wait{', starts and ends' * has_turnover}"
            report.row(name, "ms a step", load.cpu_of_a_step(n_waiting, has_turnover), target=f"<= {limit}")


def fairness(report: Report, is_quick: bool) -> None:
    n = 200 if is_quick else 2000
    ours, fcfs = load.fairness("dfs", n), load.fairness("fcfs", n)
    report.row(f"fairness, 20 programs beside {n}: mean time", "s", ours, fcfs, "fcfs", "ratio >= 2")


def latency(report: Report, is_quick: bool) -> None:
    gaps = load.latency()
    report.row("latency: p99 gap beside long prompts", "ms", 1000 * gaps.beside)
    report.row("latency: rise of it, over a chunk's time", "", (gaps.beside - gaps.alone) / gaps.chunk, target="<= 1.0")


def real(report: Report, model: Path, vllm: Path | None, is_quick: bool) -> None:
    ours, theirs = measure(model, vllm, 1 if is_quick else 3)
    for name, mine, peers in zip(Latency._fields[:2], ours, theirs or (None, None), strict=False):
        report.row(
            f"latency, {model.name} in {DTYPE}: p99 gap, {name}", "ms", 1000 * mine, peers and 1000 * peers,
            "vLLM, with its default chunks" if peers else "",
        )  # fmt: skip
    report.row(f"latency, {model.name} in {DTYPE}: its rise, over a chunk's, CPU", "", ours.rise, target="<= 1.0")


def agents(report: Report, is_quick: bool) -> None:
    n, n_present = (48, 32) if is_quick else (200, 48)
    base, *parts = load.PARTS
    found = {part: load.agents(part, n, n_present, 0.5) for part in load.PARTS}
    for part in parts:
        is_whole = part == parts[-1]
        report.row(f"agents, {part}: mean", "s", found[part].mean, found[base].mean, base,
                   "ratio >= 1.3" if is_whole else "")  # fmt: skip
        report.row("  p99", "s", found[part].p99, found[base].p99, base, "ratio >= 1" if is_whole else "")
        report.row("  computed", "tokens", found[part].computed, found[base].computed, base)


def policies(report: Report, is_quick: bool) -> None:
    n, n_present, n_many = (48, 32, 200) if is_quick else (200, 48, 2000)
    default, *others = load.POLICIES
    agents = {name: load.agents(name, n, n_present, 0.5) for name in load.POLICIES}
    fair = {name: load.fairness(name.partition("=")[2], n_many) for name in load.POLICIES}
    for name in others:
        report.row(f"{default}, agents: mean", "s", agents[default].mean, agents[name].mean, name)
        report.row("  p99", "s", agents[default].p99, agents[name].p99, name)
        report.row(f"  20 programs beside {n_many}: mean", "s", fair[default], fair[name], name)
    best = min(others, key=lambda name: agents[name].mean)
    report.row(f"{default}, agents: mean, beside the best", "s", agents[default].mean, agents[best].mean, best,
               "ratio >= 0.99")  # fmt: skip


def fuzz(report: Report, is_quick: bool) -> None:
    n, marks = (6000, "not long") if is_quick else (100_000, "long")
    for where in ("server", "engine"):
        before = time.monotonic()
        is_green = passes(f"tests/runtime/test_fuzz.py::test_fuzzed_messages_at_the_{where}", marks=marks)
        report.row(f"fuzz, {n:,} messages at the {where}: tests failed", "", float(not is_green), target="<= 0")
        report.row("  took", "s", time.monotonic() - before)


def memory(report: Report, is_quick: bool) -> None:
    n_first, n_last = (5000, 20_000) if is_quick else (10_000, 100_000)
    first, last = load.memory(n_first, n_last)
    report.row(f"memory after {n_last:,} steps over {n_first:,}", "x", last / first, target="<= 1.01")


PARTS: dict[str, Callable[[Report, bool], None]] = {
    "chaos": chaos, "fuzz": fuzz, "overload": overload, "fairness": fairness, "latency": latency, "agents": agents,
    "policies": policies, "memory": memory,
}  # fmt: skip


def main() -> int:
    arguments = parser(__doc__, quick="fewer programs, faults and steps")
    arguments.add_argument("--only", choices=PARTS, action="append", help="only this part; may be repeated")
    arguments.add_argument("--model", type=Path, help="a model of random_models.py: latency also runs on a real engine")
    arguments.add_argument("--vllm", type=Path, metavar="PYTHON", help="latency also runs in this vLLM environment")
    options = arguments.parse_args()
    correct(*(GATE if "chaos" in (options.only or PARTS) else GATE[:2]))
    report = Report("chaos", "pocket model, float32, for chaos; the others in virtual time, 10 ms a step")
    for part in options.only or PARTS:
        PARTS[part](report, options.quick)
        if part == "latency" and options.model:
            real(report, options.model, options.vllm, options.quick)
    return report.end(options.json)


if __name__ == "__main__":
    sys.exit(main())
