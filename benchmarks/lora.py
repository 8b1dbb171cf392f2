"""What adapters cost a decode step: `python benchmarks/lora.py [models/M2-bfloat16] [--quick]`

Engines in this process, on one thread: one decodes a batch of 32 requests without adapters, the others the same batch
with adapters, in turns. CPU seconds are measured, so that other processes matter little. Without a model: the pocket
model.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))
import lora_files
from report import Report, correct, parser

from banyan.runtime import config as configs
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.process import build, settle
from banyan.runtime.model.pocket import path
from banyan.runtime.protocol.wire import Run, Sampling
from banyan.runtime.server.policy.tenants import adapted

BATCH, N_PROMPT, N_OUT = 32, 64, 400


class Case(NamedTuple):
    """n adapters of rank r for the projections `targets`."""

    n: int
    r: int
    targets: tuple[str, ...]

    def __str__(self) -> str:
        what = "all linear layers" if self.targets == lora_files.ALL else "q and v"
        return f"{self.n} adapters, rank {self.r}, {what}" if self.n else "no adapters"


QV = "self_attn.q_proj", "self_attn.v_proj"
NONE = Case(0, 0, ())
CASES = (Case(1, 16, lora_files.ALL), Case(16, 8, QV), Case(16, 16, lora_files.ALL))
TARGETS = dict.fromkeys(CASES[1:], "ratio >= 0.87")  # 1 / 1.15


def decoding(model: Path, dtype: str, case: Case, folder: Path) -> EngineLoop:
    """Start an engine with the adapters of a case, and BATCH requests that decode in it."""
    engine = build(configs.make(model=str(model), dtype=dtype, device="cpu", threads=1, kv_memory="20000 tokens",
                                context=N_PROMPT + N_OUT, speculate="off", step_tokens=16 * BATCH))  # fmt: skip
    digests = []
    for k in range(case.n):
        directory = folder / f"{case.r}-{len(case.targets)}-{k}"
        lora_files.write(directory, model, case.targets, r=case.r, seed=k)
        digests.append(engine.adapters.load(str(directory), str(k)))
    chance = random.Random(0)
    for i in range(BATCH):
        ids = array("i", chance.choices(range(300, engine.spec.vocab_size), k=N_PROMPT)).tobytes()
        adapter = digests[i % case.n] if case.n else b""
        sampling = Sampling(temperature=0.0, max_tokens=N_OUT, ignore_eos=True)
        engine.take(Run(i, ids, sampling, namespace=adapted(b"t", adapter), adapter=adapter, order=(i,)))
    while len(engine.scheduler.running) < BATCH or any(request.n_out == 0 for request in engine.scheduler.running):
        engine.step()
    return engine


def main() -> None:
    options = parser(__doc__, quick="fewer steps")
    options.add_argument("model", type=Path, nargs="?", default=path(), help="a folder made by random_models.py")
    args = options.parse_args()
    correct("tests/runtime/model/test_lora.py", "tests/runtime/engine/test_lora.py")
    dtype = args.model.name.rpartition("-")[2] if args.model != path() else "float32"
    report = Report("lora", f"{args.model.name}, {dtype}, one thread, a decode step of {BATCH} requests, CPU time")
    with tempfile.TemporaryDirectory() as folder:
        engines = {case: decoding(args.model, dtype, case, Path(folder)) for case in (NONE, *CASES)}
    settle()
    times: dict[Case, list[float]] = {case: [] for case in engines}
    for _ in range(20 if args.quick else 200):
        for case, engine in engines.items():
            before = time.thread_time()
            engine.step()
            times[case].append(1000 * (time.thread_time() - before))
            assert len(engine.scheduler.running) == BATCH, f"{case}: only {len(engine.scheduler.running)} still decode"
    for case in CASES:
        ours, baseline = statistics.median(times[case]), statistics.median(times[NONE])
        report.row(str(case), "ms", ours, baseline, str(NONE), TARGETS.get(case, ""))
    raise SystemExit(report.end(args.json))


if __name__ == "__main__":
    main()
