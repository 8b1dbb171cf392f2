"""A mixture-of-experts layer beside transformers' own: `python benchmarks/moe.py [--shape 64,8,1024,768] [--threads 1]`

Both compute the same rows with the same weights in one process, in turns: transformers' loop over the experts, its
default (torch's grouped product, `grouped_mm`), and ours with weights in the rows' dtype, in 8 bits and in 4. Each row
chooses its experts at random, anew in each turn. CPU seconds of the calling thread are measured, so with one thread
other processes matter little; with more threads, wall time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
from report import Report, correct, parser
from torch import Tensor
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from banyan.kernels import ops
from banyan.kernels.linear.grouped import quantise
from banyan.kernels.moe.cpu import pack
from banyan.kernels.moe.experts import Experts, Gate
from banyan.kernels.native import threads

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BITS = {"int8": 8, "int4": 4}
BATCHES = (1, 4, 16, 64, 512)
LOOP, GROUPED = "transformers' loop", "transformers' grouped_mm"


def layers(module: Any, dtype: torch.dtype) -> dict[str, Callable[..., Tensor]]:
    """Name -> implementation of the same layer. "": ours with weights in dtype."""

    def transformers(way: str, *arguments: Tensor) -> Tensor:
        module.config._experts_implementation_internal = way
        out: Tensor = module(*arguments)
        return out

    found: dict[str, Callable[..., Tensor]] = {
        LOOP: partial(transformers, "eager"),
        GROUPED: partial(transformers, "grouped_mm"),
    }
    for name, n_bits in {"": 0, **BITS}.items():
        stacks = (module.gate_up_proj.data, module.down_proj.data)
        gate_up, down = (pack([quantise(w, n_bits) if n_bits else w for w in stack], dtype) for stack in stacks)
        all_experts = Experts(gate_up, down, None, None, Gate(), module.num_experts)
        found[name] = lambda x, index, weights, all_experts=all_experts: ops.experts(x, all_experts, index, weights)
    return found


def main() -> None:
    options = parser(__doc__, quick="fewer repetitions")
    options.add_argument("--shape", default="64,8,1024,768", help="experts, experts per row, hidden size, expert width")
    options.add_argument("--threads", type=int, default=1)
    args = options.parse_args()
    correct("tests/runtime/model/test_moe.py", "tests/kernels/test_small_ops.py")
    torch.set_num_threads(args.threads)
    threads.use(args.threads)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    n_experts, n_each, hidden, width = map(int, args.shape.split(","))
    report = Report("moe", f"{n_experts} experts, {n_each} of a row, {hidden} x {width}; {args.threads} threads")
    config = Qwen3MoeConfig(num_experts=n_experts, num_experts_per_tok=n_each, hidden_size=hidden,
                            moe_intermediate_size=width)  # fmt: skip
    torch.manual_seed(0)
    for dtype_name, dtype in DTYPES.items():
        module = Qwen3MoeExperts(config).requires_grad_(False)
        for p in module.parameters():
            p.data = torch.randn(p.shape).mul_(p.shape[-1] ** -0.5).to(dtype)
        ways = layers(module, dtype)
        for n in BATCHES:
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(5 if args.quick else 21):
                x = torch.randn(n, hidden).to(dtype)
                weights, index = torch.rand(n, n_experts).softmax(-1).topk(n_each)
                for name, layer in ways.items():
                    started = clock()
                    layer(x, index, weights)
                    times[name].append(1e3 * (clock() - started))
            best = {name: statistics.median(found) for name, found in times.items()}
            for name in ("", *BITS):
                title = f"{n} rows, {dtype_name}{', ' * bool(name)}{name}"
                target = f"ratio >= {3 if n == 16 and name else 1}"  # in floats, reading the weights takes over a third
                report.row(title, "ms", best[name], best[LOOP], LOOP, target)
                report.row(title, "ms", best[name], best[GROUPED], GROUPED, "ratio >= 1")
    raise SystemExit(report.end(args.json))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
