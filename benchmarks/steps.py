"""What a step of the engine costs beside the model, and what `deterministic` costs, on the pocket model.

    python benchmarks/steps.py [--quick] [--json FILE]

outside   the time of a step, its report encoded too, less that of the model's forward pass: plan, tensors, sampling,
          commit. Greedy decodes without drafts
parts     what could be done while a device computes, and what could not: the next plan and the last report could
exact     decodes and prompts with `deterministic` and without, turn by turn; `shared`: behind one prompt of all

A second is one of CPU of the engine's one thread, so that what else the machine does counts for neither side.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, correct

from banyan.runtime import config as configs
from banyan.runtime.engine import loop
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.process import build
from banyan.runtime.protocol.wire import Run, Sampling, Step, encode

TESTS = ("tests/runtime/engine/test_deterministic.py", "tests/runtime/engine/scheduling/test_scheduler.py")
MOST = {1: 0.3, 64: 1.5}
"""ms outside the model, by the size of the batch."""


def engine(n_running: int, **options: Any) -> EngineLoop:
    made = configs.make(device="cpu", threads=1, kv_memory="512MB", max_running=n_running, speculate="off", **options)
    return build(made)


def send(e: EngineLoop, n: int, n_prompt: int, n_shared: int = 0, n_out: int = 400) -> None:
    """n requests, whose prompts begin with the same n_shared tokens."""
    chance = random.Random(0)
    shared = chance.choices(range(3, e.spec.vocab_size), k=n_shared)
    for rid in range(n):
        ids = array("i", shared + chance.choices(range(3, e.spec.vocab_size), k=n_prompt - n_shared))
        sampling = Sampling(max_tokens=n_out, temperature=0.0, ignore_eos=True)
        e.take(Run(rid, ids.tobytes(), sampling, order=(rid,)))


def decodes(e: EngineLoop, n: int, n_prompt: int, n_shared: int = 0) -> None:
    """The same, and compute the prompts."""
    send(e, n, n_prompt, n_shared)
    while len(e.scheduler.running) < n or any(r.n_left > 1 for r in e.scheduler.running):
        e.step()


class Laps:
    """CPU seconds of the parts of each step."""

    def __init__(self, e: EngineLoop) -> None:
        self.of: dict[str, list[float]] = defaultdict(list)
        for owner, name in ((e.scheduler, "plan"), (e.scheduler, "commit"), (e.model.model, "forward"),
                            (loop, "assemble"), (loop, "sample")):  # fmt: skip
            setattr(owner, name, self._timed(getattr(owner, name), name))

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            before = time.thread_time()
            result = function(*args, **options)
            self.of[name].append(time.thread_time() - before)
            return result

        return timed

    def ms(self, name: str) -> float:
        return 1000 * statistics.median(self.of[name])


def outside(report: Report, n_steps: int) -> None:
    plain = loop.assemble, loop.sample
    for n in (1, 16, 64):
        e = engine(n)
        decodes(e, n, 100)
        laps = Laps(e)
        for _ in range(n_steps):
            before = time.thread_time()
            step = e.step()
            between = time.thread_time()
            for message in e.reports(step):
                encode(message)
            after = time.thread_time()
            laps.of["report"].append(after - between)
            laps.of["outside"].append(after - before - laps.of["forward"][-1])
        loop.assemble, loop.sample = plain
        target = f"<= {MOST[n]}" if n in MOST else ""
        report.row(f"outside the model, {n} decode{'s' * (n > 1)}", "ms", laps.ms("outside"), laps.ms("forward"),
                   "the model", target)  # fmt: skip
        for name in ("plan", "assemble", "sample", "commit", "report"):
            report.row(f"  {name}", "ms", laps.ms(name))


def exact(report: Report, n_steps: int) -> None:
    for what, n, n_prompt, n_shared in (("1 decode", 1, 100, 0), ("16 decodes", 16, 100, 0),
                                        ("16 decodes, 500 back", 16, 500, 0), ("16 decodes, 500 shared", 16, 520, 500),
                                        ("64 decodes, 500 shared", 64, 520, 500)):  # fmt: skip
        found: dict[bool, list[float]] = {True: [], False: []}
        engines = {is_exact: engine(n, deterministic=is_exact) for is_exact in found}
        for e in engines.values():
            decodes(e, n, n_prompt, n_shared)
        for _ in range(n_steps):
            for is_exact, e in engines.items():
                found[is_exact].append(_seconds(e.step))
        report.row(f"deterministic, {what}", "ms", *_medians(found), "without it")
    engines = {is_exact: engine(64, deterministic=is_exact, cache=False) for is_exact in (True, False)}
    found = {True: [], False: []}
    for _ in range(max(3, n_steps // 20)):
        for is_exact, e in engines.items():
            found[is_exact].append(_seconds(lambda e=e: _prompt(e)))  # type: ignore[misc]
    report.row("deterministic, a prompt of 1,500", "ms", *_medians(found), "without it")


def _prompt(e: EngineLoop) -> None:
    send(e, 1, 1500, n_out=1)
    while not e.scheduler.is_idle:
        e.step()


def _seconds(work: Callable[[], Step | None]) -> float:
    before = time.thread_time()
    work()
    return time.thread_time() - before


def _medians(found: dict[bool, list[float]]) -> tuple[float, float]:
    return 1000 * statistics.median(found[True]), 1000 * statistics.median(found[False])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    correct(*TESTS)
    report = Report("steps", "pocket model, float32, 1 thread")
    n_steps = 40 if options.quick else 200
    outside(report, n_steps)
    exact(report, n_steps)
    return report.end(options.json)


if __name__ == "__main__":
    sys.exit(main())
