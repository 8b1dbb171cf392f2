"""Tensor parallel: the cost of a step's message to the ranks, and the time of a step with 1, 2 and 4 ranks.

    python benchmarks/tensor_parallel.py [MODEL] [--quick] [--json FILE]

Message: rank 0 encodes and sends the message of a step, and another rank receives and decodes it, here both in one
thread, in CPU time. Steps: real processes over gloo, with one thread each and no speculation. Default MODEL: the pocket
model. With more ranks than idle cores, a step waits for the scheduler of the operating system.
"""

from __future__ import annotations

import statistics
import sys
import time
from array import array
from pathlib import Path
from socket import socketpair

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report, correct, parser

from banyan.kernels.ops import ragged
from banyan.runtime import config as configs
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.process import build
from banyan.runtime.engine.step_message import StepMessage, batch_of, layout_of, pack, receive
from banyan.runtime.model.pocket import path
from banyan.runtime.protocol.wire import Run, Sampling

PAGE = 16
RUNS = ("tp 1", 1), ("tp 1, op by op", 1), ("tp 2", 2), ("tp 4", 4)


def message(n_requests: int, n_tokens: int, times: int) -> tuple[float, float, int]:
    """For a step of n_requests decodes: median microseconds to encode and send its message, and to receive and decode
    it; and the message's bytes."""
    per_request = -(-n_tokens // PAGE)
    pages = [range(i * per_request, (i + 1) * per_request) for i in range(n_requests)]
    batch = ragged([1] * n_requests, [n_tokens] * n_requests, pages, PAGE)
    ids = rows = torch.arange(n_requests)
    sends, reads, size = [], [], 0
    ours, theirs = socketpair()
    with ours, theirs:
        for _ in range(times):
            started = time.thread_time()
            data = pack(StepMessage([], layout_of(batch), len(rows), torch.cat([ids, rows]).numpy()))
            ours.sendall(data)
            sent = time.thread_time()
            received = receive(theirs)
            assert received is not None
            batch_of(received.layout, torch.device("cpu"))
            sends.append(sent - started)
            reads.append(time.thread_time() - sent)
            size = len(data)
    return 1e6 * statistics.median(sends), 1e6 * statistics.median(reads), size


def decode_step(engine: EngineLoop, n_requests: int, n_steps: int) -> tuple[float, float]:
    """For a step of n_requests decodes after prompts of 200 tokens: median milliseconds of wall time, and of this
    process's CPU."""
    sampling = Sampling(temperature=0.0, max_tokens=n_steps + 8, ignore_eos=True)
    for i in range(n_requests):
        ids = array("i", [300 + (i * 37 + k * k) % 1000 for k in range(200)])
        engine.take(Run(i, ids.tobytes(), sampling, order=(i,)))
    while any(request.n_out < 2 for request in engine.scheduler.requests.values()):
        engine.step()
    seconds, cpu = [], []
    while len(engine.scheduler.running) == n_requests:
        started, cpu_started = time.perf_counter(), time.process_time()
        engine.step()
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - cpu_started)
    while not engine.scheduler.is_idle:
        engine.step()
    return 1e3 * statistics.median(seconds), 1e3 * statistics.median(cpu)


def main() -> int:
    options = parser(__doc__, quick="fewer messages and steps")
    options.add_argument("model", type=Path, nargs="?", default=path())
    args = options.parse_args()
    correct("tests/runtime/model/test_parallel.py", "tests/runtime/engine/test_ranks.py")
    report = Report("tensor_parallel", f"{args.model.name}, float32, one thread per rank")
    for n_requests, n_tokens in ((1, 500), (16, 500), (64, 500), (64, 2000)):
        send, read, size = message(n_requests, n_tokens, 300 if args.quick else 3000)
        name = f"{n_requests} decodes, {n_tokens} tokens each, {size / 1024:.1f} KiB"
        report.row(f"message: encode and send, {name}", "us", send)
        report.row(f"message: receive and decode, {name}", "us", read)
        report.row(f"message: both, {name}", "us", send + read, target="<= 100")
    alone: dict[tuple[int, str], float] = {}
    engines = list[EngineLoop]()  # kept: an engine without its ranks ends this process
    for name, tp in RUNS[:3] if args.quick else RUNS:
        config = configs.make(
            model=str(args.model), device="cpu", threads=1, tp=tp, kv_memory="40000 tokens", speculate="off"
        )
        engines.append(build(config))
        if name == "tp 1, op by op":
            engines[-1].model.model.fused = None  # type: ignore[attr-defined]
        for n in (1, 16):
            both = decode_step(engines[-1], n, 40 if args.quick else 150)
            for kind, ms in zip(("", ", CPU of rank 0"), both, strict=True):
                baseline = alone.setdefault((n, kind), ms)
                report.row(f"a step of {n} decodes, {name}{kind}", "ms", ms, baseline, "tp 1")
    return report.end(args.json)


if __name__ == "__main__":
    sys.exit(main())
