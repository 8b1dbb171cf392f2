"""The CPU kernels: attention, shared reads, linear layers and a whole decode step, compared with torch.

    python benchmarks/kernels.py [--quick] [--json FILE] [--threads N]

Memory bandwidth and matrix throughput are measured in the same run. Targets were set on 2 cores of an AMD EPYC Zen 5
(40 GB/s from memory, 150 from L3, 458 GFLOP/s in float32) and scale with this machine's figures. Functions that are
compared take turns, and the best time counts, as other programs only slow a run down. On a busy machine use --threads
1, because torch's threads wait for each other.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
from gpu_work import PAGE, RMS_EPS, ROPE_THETA, Attend, Text, alone, assign_pages, branches, random_model
from report import Report, correct, parser
from serving_floor import SIDE, products
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels import ops
from banyan.kernels.attention import cpu, native
from banyan.kernels.attention import plan as planner
from banyan.kernels.attention.plan import Subtree, Tiles
from banyan.kernels.attention.ragged import AttentionOptions, Ragged
from banyan.kernels.kv_layout import KV_KINDS, Quantized, quantize
from banyan.runtime.engine.batch import assemble
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.engine.sampler import sample
from banyan.runtime.engine.scheduling.request import Plan, Request, Work
from banyan.runtime.protocol.wire import Run, Sampling

HEADS, KV_HEADS, DIM = 32, 8, 64
N_STEPS = 10  # equal decode steps in a row, as in use: small weights stay in L3
CEILINGS = {"memory": 40.0, "L3": 150.0, "matrix": 458.0}  # of the machine on which the targets were set
TESTS = (
    "tests/kernels/test_attention_cpu.py",
    "tests/kernels/test_small_ops.py",
    "tests/runtime/model/test_decoder.py",
)


def best(*functions: Callable[[], object], seconds: float) -> list[float]:
    """The fastest time of each function, in seconds. The functions take turns, for about `seconds` per function."""
    found = [float("inf")] * len(functions)
    for function in functions:
        function()
    end = time.perf_counter() + seconds * len(functions)
    while time.perf_counter() < end:
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            found[i] = min(found[i], time.perf_counter() - start)
    return found


class Case(Attend):
    """Attention on the CPU, by our kernel and by torch."""

    def __init__(self, texts: list[Text], dtype: torch.dtype, q_len: int = 1) -> None:
        super().__init__(assign_pages(texts, q_len), (HEADS, KV_HEADS), DIM, dtype, torch.device("cpu"))

    def fallback(self) -> Tensor:
        return cpu.by_torch(self.q, self.k, self.v, self.batch, AttentionOptions(DIM**-0.5))

    def sdpa(self) -> Tensor:
        """The straightforward way: gather each request's pages, then call torch's SDPA with grouped heads."""
        out, row = [], 0
        for q_len, kv_len, table in zip(self.batch.q_lens, self.batch.kv_lens, self.batch.page_table, strict=True):
            pages = table[: -(-kv_len // PAGE)].long()
            k, v = (pool[pages].flatten(0, 1)[:kv_len].transpose(0, 1)[None] for pool in (self.k, self.v))
            q = self.q[row : row + q_len].transpose(0, 1)[None]
            hidden = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len) if q_len > 1 else None
            out.append(F.scaled_dot_product_attention(q, k, v, attn_mask=hidden, enable_gqa=True)[0].transpose(0, 1))
            row += q_len
        return torch.cat(out)


def measure_ceilings(report: Report, seconds: float) -> dict[str, float]:
    """Measure this machine's rates, and add rows. Returns each rate as a share, at most 1, of the rate for which the
    targets were set."""
    found = {}
    for name, size in (("memory", 1 << 28), ("L3", 1 << 23)):
        x = torch.ones(size // 4)
        (took,) = best(x.sum, seconds=seconds)
        found[name] = size / took / 1e9
    found["matrix"] = 2 * SIDE**3 / min(best(*products("float32"), seconds=seconds)) / 1e9
    for name, value in found.items():
        report.row(f"ceiling: {name}", "GFLOP/s" if name == "matrix" else "GB/s", value, CEILINGS[name],
                   "the targets' machine", more_is_better=True)  # fmt: skip
    return {name: min(1.0, value / CEILINGS[name]) for name, value in found.items()}


def decodes(report: Report, share: dict[str, float], seconds: float) -> None:
    shapes = (("1 x 1k", 1, 1024, "L3", 25.0), ("8 x 1k", 8, 1024, "L3", 25.0), ("64 x 1k", 64, 1024, "memory", 15.2),
              ("8 x 8k", 8, 8192, "memory", 16.8))  # fmt: skip  # beyond 32 MiB: 80 % of 19 and 21
    for name, n, context, roof, goal in shapes:
        case = Case(alone(n, context), torch.float32)
        ours, theirs, naive = best(case.ours, case.fallback, case.sdpa, seconds=seconds)
        report.row(f"decode {name}, fp32", "GB/s", case.n_bytes / ours / 1e9, case.n_bytes / naive / 1e9,
                   "gather + SDPA, enable_gqa", f">= {goal * share[roof]:.1f}", more_is_better=True)  # fmt: skip
        target = "ratio >= 1.25" if n == 64 else ""
        report.row(f"decode {name}, fp32", "ms", 1e3 * ours, 1e3 * theirs, "our path without a compiler", target)
    case = Case(alone(64, 1024), torch.bfloat16)
    ours, naive = best(case.ours, case.sdpa, seconds=seconds)
    report.row("decode 64 x 1k, bf16", "ms", 1e3 * ours, 1e3 * naive, "gather + SDPA, enable_gqa", "ratio >= 4")
    for kind, (keys, values) in KV_KINDS.items():
        pools = Quantized(*quantize(case.k, keys)), Quantized(*quantize(case.v, values))
        ours, wide = best(partial(case.ours, pools=pools), case.ours, seconds=seconds)
        report.row(f"decode 64 x 1k, bf16, KV in {kind}", "ms", 1e3 * ours, 1e3 * wide, "ours, KV in bf16")


def chunks(report: Report, share: dict[str, float], seconds: float) -> None:
    for n, context in ((128, 2048), (512, 512), (2048, 0)):
        case = Case(alone(1, n + context), torch.float32, n)
        ours, theirs, naive = best(case.ours, case.fallback, case.sdpa, seconds=seconds)
        name, goal = f"chunk of {n} over {context}, fp32", f">= {250 * share['matrix']:.0f}"
        report.row(name, "GFLOP/s", case.n_flops / ours / 1e9, case.n_flops / naive / 1e9, "gather + SDPA, enable_gqa",
                   goal, more_is_better=True)  # fmt: skip
        report.row(name, "ms", 1e3 * ours, 1e3 * theirs, "our path without a compiler")


def shared_reads(report: Report, seconds: float) -> None:
    kept = "ratio >= 0.97"  # where sharing hardly pays off, it must not cost
    for n, prefix, target in ((2, 64, kept), (4, 64, kept), (4, 256, kept), (16, 2048, ""), (64, 2048, "ratio >= 2")):
        for dtype in (torch.float32, torch.bfloat16):
            case = Case(branches(n, prefix, 64), dtype)
            ours, unshared = best(case.ours, case.unshared(), seconds=seconds)
            report.row(f"{n} branches over {prefix} shared, {str(dtype)[6:]}", "ms", 1e3 * ours, 1e3 * unshared,
                       "ours, each reads for itself", target)  # fmt: skip
    case = Case(alone(64, 1024), torch.float32)
    ours, naive = best(lambda: case.ours(case.batch._replace(plans={})), case.ours, seconds=seconds)
    report.row("64 x 1k, nothing shared: with planning", "ms", 1e3 * ours, 1e3 * naive, "planned before")


def planning(report: Report, seconds: float) -> None:
    """Adds rows for the host's time to make an attention plan, per item of the plan, with shared prefixes and
    without."""
    for name, n, n_keys, shared in (
        ("64 decodes", 64, 1024, ()),
        ("64 decodes below 2048 keys", 64, 2112, (Subtree(tuple(range(64)), 2048),)),
        ("8 chunks of 512", 8, 2048, ()),
    ):
        group = HEADS // KV_HEADS
        counts = [512 if n == 8 else 1] * n, [n_keys] * n
        options: dict[str, Any] = {
            "tiles": Tiles(1, native.CHUNK_ROWS // group, native.MAX_ROWS // group, native.MAX_ROWS // HEADS),
            "programs": (1, KV_HEADS), "n_processors": 2, "shared": shared, "merge_keys": planner.MERGE_KEYS["cpu"],
        }  # fmt: skip
        make = partial(planner.plan, *counts, **options)
        (took,) = best(make, seconds=seconds)
        n_items = sum(len(items) for items in (make().small, make().large))
        report.row(f"plan of {name}, {n_items} items", "us an item", 1e6 * took / n_items, None, "", "<= 1.0")


def linears(report: Report, seconds: float) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for n_out, n_in, n in ((512, 256, 1), (1376, 256, 1), (1376, 256, 8), (1376, 256, 256), (2048, 2048, 1)):
            x, weight = torch.randn(n, n_in).to(dtype), torch.randn(n_out, n_in).to(dtype)
            packed, onednn = ops.pack(weight), torch.ops.mkldnn._reorder_linear_weight(weight)
            if packed is None:
                continue
            ours, theirs = best(
                lambda: ops.linear(x, packed),  # noqa: B023
                lambda: torch.ops.mkldnn._linear_pointwise(x, onednn, None, "none", [], ""),  # noqa: B023
                seconds=seconds,
            )
            name = f"linear {n} x {n_in} x {n_out}, {str(dtype)[6:]}"
            report.row(name, "us", 1e6 * ours, 1e6 * theirs, "oneDNN, packed")


class Naive:
    """A straightforward decode step: separate projections, gathered keys and values, torch's kernels."""

    def __init__(self, w: dict[str, Tensor], kv: list[tuple[Tensor, Tensor]]) -> None:
        self.w, self.kv = w, kv
        self.frequencies = ROPE_THETA ** (-torch.arange(0, DIM, 2) / DIM)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.w[f"model.{name}.weight"], RMS_EPS)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * torch.cat([cos, cos], -1) + torch.cat([-b, a], -1) * torch.cat([sin, sin], -1)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, positions: Tensor, batch: Ragged) -> Tensor:
        angles = (positions[:, None] * self.frequencies)[:, None]
        cos, sin = angles.cos(), angles.sin()
        x = F.embedding(ids, self.w["model.embed_tokens.weight"])
        for i, (k_pool, v_pool) in enumerate(self.kv):
            at, mlp = f"layers.{i}.self_attn", f"layers.{i}.mlp"

            def project(x: Tensor, name: str) -> Tensor:
                return F.linear(x, self.w[f"model.{name}.weight"])

            h = self.norm(x, f"layers.{i}.input_layernorm")
            q, k, v = (project(h, f"{at}.{part}_proj").view(len(x), -1, DIM) for part in "qkv")
            q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
            k_pool.view(-1, *k.shape[1:])[batch.slots], v_pool.view(-1, *v.shape[1:])[batch.slots] = k, v
            out = []
            for row, (n, table) in enumerate(zip(batch.kv_lens, batch.page_table, strict=True)):
                pages = table[: -(-n // PAGE)].long()
                keys, values = (pool[pages].flatten(0, 1)[:n].transpose(0, 1)[None] for pool in (k_pool, v_pool))
                out.append(
                    F.scaled_dot_product_attention(q[row, None, :, None], keys, values, enable_gqa=True).view(1, -1)
                )
            x = x + project(torch.cat(out), f"{at}.o_proj")
            h = self.norm(x, f"layers.{i}.post_attention_layernorm")
            x = x + project(F.silu(project(h, f"{mlp}.gate_proj")) * project(h, f"{mlp}.up_proj"), f"{mlp}.down_proj")
        return F.linear(self.norm(x, "norm"), self.w["lm_head.weight"])


def steps(report: Report, seconds: float) -> None:
    model, weights = random_model("small", torch.device("cpu"), torch.float32, "llama")
    store = KVPool(model.spec, 1024, PAGE, "cpu")
    for pools in store.kv:
        for pool in pools:
            pool.normal_()
    runner, naive = ModelRunner(model, store), Naive(weights, store.kv)
    for n, context in ((1, 128), (8, 128), (8, 512), (32, 256)):
        n_pages = context // PAGE
        works = []
        for i in range(n):
            request = Request(Run(i, array("i", [i + 1] * context).tobytes(), Sampling(temperature=0.0)), context + 9)
            request.n_computed = context - 1
            lease: Any = SimpleNamespace(pages=list(range(i * n_pages, (i + 1) * n_pages)), window=None, state=-1)
            request.lease = lease
            works.append(Work(request, lease, context - 1, 1, True))
        plan = Plan(tuple(works))
        batch = assemble(plan, PAGE, torch.device("cpu"))
        torch.testing.assert_close(
            runner(batch, ()), naive(batch.ids, batch.positions, batch.ragged), atol=1e-3, rtol=1e-3
        )

        def step(plan: Plan = plan) -> object:
            batch = assemble(plan, PAGE, torch.device("cpu"))
            return sample(runner(batch, ()), batch).read()

        def eager(batch: Any = batch) -> object:
            return naive(batch.ids, batch.positions, batch.ragged).argmax(-1).tolist()

        def in_a_row(step: Callable[[], object]) -> None:
            for _ in range(N_STEPS):
                step()

        ours, theirs = best(partial(in_a_row, step), partial(in_a_row, eager), seconds=2 * seconds)
        report.row(f"decode step, 6 layers of 256, {n} x {context}", "ms", 1e3 * ours / N_STEPS, 1e3 * theirs / N_STEPS,
                   "naive eager torch", "<= 1.0" if n == 1 else "")  # fmt: skip


def main() -> int:
    options = parser(__doc__, quick="a tenth of the time for each figure")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    chosen = options.parse_args()
    correct(*TESTS)
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    seconds = 0.2 if chosen.quick else 2.0
    report = Report("kernels", f"CPU, {chosen.threads} threads, {HEADS}/{KV_HEADS} heads of {DIM}, pages of {PAGE}")
    with torch.inference_mode():
        share = measure_ceilings(report, seconds)
        decodes(report, share, seconds)
        chunks(report, share, seconds)
        shared_reads(report, seconds)
        planning(report, min(seconds, 0.5))
        linears(report, seconds)
        steps(report, seconds)
    return report.end(chosen.json)


if __name__ == "__main__":
    sys.exit(main())
