"""Placement in a fleet of virtual engines: ours compared with other routers' policies.

    python benchmarks/simulate_fleet.py [--quick] [--replicas 1000] [--seeds 5] [--rate 6] [--h100] [--json FILE]
                                        [--recorded [FILE]]

The index and the placement are those of the server (runtime/fleet); the engines are virtual (simulate_fleet_engine.py)
and the programs those of serving_work.py (simulate_fleet_work.py), or with --recorded those of real runs
(simulate_fleet_recording.py; FILE is one that simulate_fleet_record.py wrote). All policies get the same programs, and
all but round robin the same index, which is always up to date. Every policy runs with each seed; a ratio is the
geometric mean of other / ours over the seeds, with its 95 % interval (paired, of the logarithms, by Student's t). A
pilot run with a tenth of the replicas and another seed runs all settings of each policy. The main run has the settings
that were best there for a figure, and each figure is compared at the setting that is best for it.

An engine's step takes 0.97 ms, 0.04 ms for each token of a prompt and 0.1 ms for each decode: CPU seconds of the pocket
model in float32 on one core of an Intel Xeon, fitted to decodes of 1, 16 and 64 requests of 300 tokens (1.07, 2.84 and
7.37 ms) and to prompts of 300 and 2,000 tokens. --h100 takes 8 ms, 0.025 and 0.03 ms instead: roughly a model of 8
billion parameters on an H100, not measured.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, correct, parser
from simulate_fleet_engine import Size
from simulate_fleet_policies import Gate, LeastLoaded, Ours, Preble, RoundRobin, Router, SGLang
from simulate_fleet_recording import PAGE, Recording, recorded
from simulate_fleet_work import Figures, FleetRun, programs

from banyan.runtime.fleet.index import BLOCK
from banyan.runtime.fleet.placement import StepSeconds

POCKET, H100 = StepSeconds(9.7e-4, 4e-5, 1e-4), StepSeconds(8e-3, 2.5e-5, 3e-5)
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Number of seeds -> half the width of a 95 % interval, in standard errors."""
PER_REPLICA = 8
"""Programs per replica in a run. The first quarter is a warm-up."""
RECORDING = Path(__file__).with_name("simulate_fleet_recording.json")
GATES, IMBALANCES = (8, 16, 32, 64, 128), (3, 8, 32)
LOWER = {"forks": "time of a fork program", "ttft_p99": "TTFT p99"}
"""Figures that are compared -> their names in rows. Less is better."""


def policies(n: int, step_time: StepSeconds, page: int = BLOCK) -> dict[str, dict[str, Callable[[], Ours | Router]]]:
    """Name of a policy -> setting -> function that makes the policy. n: number of engines."""
    return {
        "ours": {"": partial(Ours, n, step_time, page)},
        "ours, without the DAG": {"": partial(Ours, n, step_time, page, "next")},
        "round robin": {"": partial(RoundRobin, n)},
        "least loaded": {"": partial(LeastLoaded, n)},
        "SGLang's router": {
            "0.5, 32, 1.0001": partial(SGLang, n, 0.5, 32, 1.0001),
            "0.3, 64, 1.5": partial(SGLang, n, 0.3, 64, 1.5),
        },
        "per-request gate": {str(gate): partial(Gate, n, gate) for gate in GATES},
        "Preble's rule": {str(most): partial(Preble, n, step_time, most) for most in IMBALANCES},
    }


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean of paired ratios, and the ends of its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    most = STUDENT[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return math.exp(mean), math.exp(mean - most), math.exp(mean + most)


Settings = dict[str, dict[str, list[Figures]]]
"""Policy -> setting -> the figures of each seed."""


def simulate(
    n: int,
    rate: float,
    seeds: list[int],
    step_time: StepSeconds,
    run: Settings | None = None,
    recording: Recording | None = None,
) -> Settings:
    """Run the policies with all seeds, and print their figures. run: the settings to run; None: all. recording: draw
    programs from it; None: the programs of simulate_fleet_work.py."""
    found: Settings = {}
    heads = "".join(f"{head:>9}" for head in ("cached", "/oracle", "forks s", "all s", "TTFT s", "p99 s", "busy", "us"))
    print(f"{f'{n} replicas':36}{heads}")
    for seed in seeds:
        if recording is None:
            work, page = programs(seed, PER_REPLICA * n, rate * n, n, step_time.fixed), BLOCK
        else:
            work, page = recorded(recording, seed, PER_REPLICA * n, rate * n), PAGE
        size = Size(Size().n_pages * BLOCK // page)
        for name, settings in policies(n, step_time, page).items():
            for setting, policy in settings.items():
                if run is not None and setting not in run[name]:
                    continue
                figures = FleetRun(work, policy(), n, size, step_time).figures()
                found.setdefault(name, {}).setdefault(setting, []).append(figures)
                cells = "".join(f"{figure:9.3f}" for figure in figures)
                print(f"{f'{name} {setting}':36}{cells}", flush=True)
    return found


def best(settings: dict[str, list[Figures]], field: str) -> str:
    """The setting with the lowest mean of a figure."""
    return min(settings, key=lambda setting: mean(settings[setting], field))


def mean(seeds: list[Figures], field: str) -> float:
    return statistics.fmean(getattr(one, field) for one in seeds)


def main() -> None:
    options = parser(__doc__, quick="20 replicas, 2 seeds")
    options.add_argument("--replicas", type=int, default=1000)
    options.add_argument("--seeds", type=int, default=5, choices=STUDENT)
    options.add_argument("--rate", type=float, default=6.0, help="programs per second and replica")
    options.add_argument("--h100", action="store_true", help="the step time of an H100 (see above)")
    options.add_argument("--recorded", type=Path, nargs="?", const=RECORDING, metavar="FILE", help="draw programs here")
    args = options.parse_args()
    if args.quick:
        args.replicas, args.seeds = 20, 2
    correct("tests/runtime/fleet", "tests/benchmarks/test_simulate_fleet.py")
    gc.disable()  # nothing here has cycles; a run has millions of objects
    n, step_time = args.replicas, H100 if args.h100 else POCKET
    recording = Recording.read(args.recorded) if args.recorded else None
    pilot = simulate(max(20, n // 10), args.rate, [args.seeds], step_time, None, recording)
    chosen = {
        name: {best(settings, field): settings[best(settings, field)] for field in LOWER}
        for name, settings in pilot.items()
    }
    found = simulate(n, args.rate, list(range(args.seeds)), step_time, chosen, recording)
    what = f"{'recorded' if recording else 'defined'} programs"
    report = Report("fleet", f"{n} virtual replicas, {args.rate} {what}/s each, {args.seeds} seeds, {step_time}")
    (ours,) = found.pop("ours").values()
    report.row("tokens cached, of an infinite cache", "", mean(ours, "of_oracle"), target=">= 0.95")
    report.row("a placement, CPU time", "us", mean(ours, "us"), target="<= 100")
    for field, what in LOWER.items():
        for name, settings in found.items():
            setting = best(settings, field)
            pairs = zip(settings[setting], ours, strict=True)
            ratio, low, high = interval([getattr(one, field) / getattr(our, field) for one, our in pairs])
            other, value = f"{name} {setting}".strip(), mean(ours, field)
            report.row(f"{what}, {low:.3f}-{high:.3f} x", "s", value, value * ratio, other)
            if "ours" not in name:
                report.row("  the lower end", "x", low, target="> 1")
    sys.exit(report.end(args.json))


if __name__ == "__main__":
    main()
