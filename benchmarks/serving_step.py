"""The cost of a decode step, part by part: `python benchmarks/serving_step.py [models/M2-bfloat16] [--quick]`

An engine runs in this process on one thread, with prompts of 300 tokens. CPU seconds are measured, so that other
processes matter little. "model" is the forward pass, from a step's batch to its logits. Its layers are one native call;
the rows "op by op" are measured with one call per op. Without a model: the pocket model. --deterministic measures only
what `deterministic` costs: decodes and prompts with it and without, in turns; `shared`: after a prompt that all
requests share.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, correct, parser
from serving_floor import Shape, ceilings

from banyan.kernels import ops
from banyan.runtime import config as configs
from banyan.runtime.engine import loop
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.process import build, settle
from banyan.runtime.model.linear import Linear
from banyan.runtime.model.pocket import path
from banyan.runtime.protocol.wire import Run, Sampling

N_PROMPT, N_OUT = 300, 64
OPS = ("attention", "rms_norm", "rope_kv", "silu_mul")
BOUNDS = {1: 300, 64: 1500}  # us outside the model


class Clock:
    """Measures the CPU seconds of each part."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Add the CPU seconds of each call of `owner`.`name` to `part`. Nested calls count for their own part and the
        outer one's."""
        call: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                self.seconds[part] += time.thread_time() - started

        setattr(owner, name, timed)


def engine_of(model: Path, dtype: str, **options: Any) -> EngineLoop:
    options = {"device": "cpu", "threads": 1, "kv_memory": "1GiB", "speculate": "off", **options}
    return build(configs.make(model=str(model), dtype=dtype, **options))


def submit(engine: EngineLoop, n: int, n_prompt: int, n_shared: int = 0, n_out: int = N_OUT, seed: int = 0) -> None:
    """Start n requests whose prompts begin with the same n_shared tokens."""
    chance = random.Random(seed)
    vocabulary = range(300, engine.spec.vocab_size)
    shared = chance.choices(vocabulary, k=n_shared)
    for i in range(n):
        ids = array("i", shared + chance.choices(vocabulary, k=n_prompt - n_shared))
        sampling = Sampling(temperature=0.0, max_tokens=n_out, ignore_eos=True)
        engine.take(Run(seed * 1000 + i, ids.tobytes(), sampling, b"", seed=i, order=(i,)))


def decode(engine: EngineLoop, clock: Clock, batch: int, seed: int) -> dict[str, float]:
    """Run decode steps of `batch` requests. Returns CPU microseconds per step, by part."""
    submit(engine, batch, N_PROMPT, seed=seed)
    while any(request.n_out < 2 for request in engine.scheduler.requests.values()):
        engine.step()
    clock.seconds.clear()
    n, started = 0, time.thread_time()
    while len(engine.scheduler.running) == batch:
        engine.step()
        n += 1
    seconds = clock.seconds | {"step": time.thread_time() - started}
    return {part: 1e6 * each / n for part, each in seconds.items()}


def deterministic(report: Report, model: Path, dtype: str, n_steps: int) -> None:
    correct("tests/runtime/engine/test_deterministic.py", "tests/runtime/engine/scheduling/test_scheduler.py")

    def medians(run: Callable[[EngineLoop], object], n: int, engines: dict[bool, EngineLoop]) -> list[float]:
        """Median CPU ms of `run` on each engine, with deterministic mode and without."""
        times: dict[bool, list[float]] = {key: [] for key in engines}
        for _ in range(n):
            for key, engine in engines.items():
                before = time.thread_time()
                run(engine)
                times[key].append(1000 * (time.thread_time() - before))
        return [statistics.median(each) for each in times.values()]

    def prompt(engine: EngineLoop) -> None:
        submit(engine, 1, 1500, n_out=1)
        while not engine.scheduler.is_idle:
            engine.step()

    for name, n, n_prompt, n_shared in (("1 decode", 1, 100, 0), ("16 decodes", 16, 100, 0),
                                        ("16 decodes, 500 back", 16, 500, 0), ("16 decodes, 500 shared", 16, 520, 500),
                                        ("64 decodes, 500 shared", 64, 520, 500)):  # fmt: skip
        engines = {key: engine_of(model, dtype, deterministic=key, max_running=n) for key in (True, False)}
        for engine in engines.values():
            submit(engine, n, n_prompt, n_shared, n_out=400)
            while len(engine.scheduler.running) < n or any(r.n_out == 0 for r in engine.scheduler.running):
                engine.step()
        ours, baseline = medians(EngineLoop.step, n_steps, engines)
        report.row(f"deterministic, {name}", "ms", ours, baseline, "without it")
    engines = {key: engine_of(model, dtype, deterministic=key, cache=False) for key in (True, False)}
    ours, baseline = medians(prompt, max(3, n_steps // 20), engines)
    report.row("deterministic, a prompt of 1,500", "ms", ours, baseline, "without it")


def main() -> None:
    options = parser(__doc__, quick="one run of each batch")
    options.add_argument("model", type=Path, nargs="?", default=path(), help="a folder made by random_models.py")
    options.add_argument("--times", type=int, default=5)
    options.add_argument("--deterministic", action="store_true", help="measure what deterministic mode costs")
    options.add_argument("--page", type=Path, help="also write a table here")
    args = options.parse_args()
    args.times = 1 if args.quick else args.times
    dtype = args.model.name.rpartition("-")[2] if args.model != path() else "float32"
    if args.deterministic:
        report = Report("deterministic", f"{args.model.name}, {dtype}, one thread")
        deterministic(report, args.model, dtype, 40 if args.quick else 200)
        raise SystemExit(report.end(args.json))
    engine = engine_of(args.model, dtype)
    settle()
    reading = Shape.read(args.model, dtype).weights / ceilings(dtype).bytes
    clock = Clock()
    for op in OPS:
        clock.watch(ops, op, op)
    clock.watch(Linear, "__call__", "linear")
    clock.watch(engine.model.model, "forward", "model")
    for name in ("assemble", "sample"):
        clock.watch(loop, name, name)
    for name in ("plan", "commit", "report"):
        clock.watch(engine.scheduler, name, name)
    report = Report("serving step", f"{args.model.name}, one thread, the quickest of {args.times}")
    for batch in (1, 16, 64):
        runs = [decode(engine, clock, batch, batch * 100 + i) for i in range(args.times)]
        best = min(runs, key=lambda run: run["step"])
        target = f"<= {BOUNDS[batch]}" if batch in BOUNDS else ""
        report.row(f"batch {batch}: step", "us", best["step"])
        report.row(f"batch {batch}: outside the model", "us", min(run["step"] - run["model"] for run in runs),
                   target=target)  # fmt: skip
        of_model = {*OPS, "linear"}
        for part in sorted(best.keys() - {"step", *of_model}, key=lambda part: -best[part]):
            report.row(f"batch {batch}: {part}", "us", best[part])
        if batch == 1:
            report.row("batch 1: step, beside reading the weights", "x", best["step"] / 1e6 / reading, target="<= 1.25")
        decoder: Any = engine.model.model
        fused, decoder.fused = decoder.fused, None
        apart = min(
            (decode(engine, clock, batch, batch * 100 + 50 + i) for i in range(args.times)),
            key=lambda run: run["model"],
        )
        decoder.fused = fused
        for part in sorted(apart.keys() & {"model", *of_model}, key=lambda part: -apart[part]):
            report.row(f"batch {batch}, op by op: {part}", "us", apart[part])
    if args.page:
        report.fill_page(args.page, f"{args.model.name}, ")
    raise SystemExit(report.end(args.json))


if __name__ == "__main__":
    main()
