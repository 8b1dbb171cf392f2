"""The measurements of gpu.py, which runs this in its own processes: `gpu_measure.py [--dry] --to FILE PHASE ...`"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

import gpu_work as work
import torch
from gpu import PHASES
from report import Report, run_tests
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels import ops
from banyan.kernels.draw.rows import draw_rows
from banyan.kernels.kv_layout import KV_KINDS, Quantized, quantize
from banyan.kernels.linear import packed
from banyan.kernels.linear.grouped import FLOAT8, quantise
from banyan.kernels.ops import TABLE, OpSizes
from banyan.runtime.engine.batch import Batch
from banyan.runtime.engine.cuda_graphs import Captured, Graphs, cuda_capture
from banyan.runtime.engine.kv_pool import KVPool, bytes_per_token
from banyan.runtime.engine.model_runner import ModelRunner

LINES_OF_TESTS = 40
TESTS = (
    *("tests/kernels/test_small_ops.py", "tests/kernels/test_on_device.py"),
    *("tests/runtime/model/test_decoder.py", "tests/runtime/model/test_hf.py", "tests/runtime/model/test_moe.py"),
)
WORKLOADS = ("W1", "W3", "W2", "W4", "W5")


class Run(NamedTuple):
    """What all measurements share."""

    report: Report
    device: torch.device
    dtype: torch.dtype
    n: int  # repetitions
    is_dry: bool
    notes: IO[str]  # a line of JSON for each row, and for each phase that ends

    def row(self, name: str, unit: str, ours: float, baseline: float | None = None, by: str = "", target: str = "",
            more_is_better: bool = False) -> None:  # fmt: skip
        """Add a row; a dry run has no targets."""
        self.report.row(name, unit, ours, baseline, by, "" if self.is_dry else target, more_is_better)
        print(json.dumps({"row": self.report.rows[-1]}), file=self.notes, flush=True)

    def some(self, cases: Sequence[Any]) -> Sequence[Any]:
        """All cases; in a dry run only the first, because the cases differ only in size."""
        return cases[:1] if self.is_dry else cases

    def size(self, real: int, dry: int) -> int:
        return dry if self.is_dry else real

    def times(self, *functions: Callable[[], object], graphs: bool = True) -> list[float]:
        return work.medians(*functions, device=self.device, n=self.n, graphs=graphs)

    def attend(self, texts: list[work.Text], q_len: int = 1, heads: tuple[int, int] = (32, 8)) -> work.Attend:
        heads, dim = ((4, 2), 16) if self.is_dry else (heads, 128)
        return work.Attend(work.assign_pages(texts, q_len), heads, dim, self.dtype, self.device)


def ceilings(run: Run) -> dict[str, float]:
    """Bytes and floating-point operations per second that torch achieves."""
    n, m = run.size(1 << 30, 1 << 12), run.size(8192, 64)
    x, y = (torch.empty(n, dtype=torch.int8, device=run.device) for _ in range(2))
    a, b = (torch.randn(m, m, device=run.device, dtype=run.dtype) for _ in range(2))
    wide = x.view(torch.int64)
    copy, read, product = run.times(lambda: y.copy_(x), lambda: wide.sum(), lambda: a @ b)
    found = {"copy": 2 * n / copy, "read": n / read, "matrix": 2 * m**3 / product}
    for name in ("copy", "read"):
        run.row(f"ceiling: {name}", "GB/s", found[name] / 1e9, more_is_better=True)
    run.row("ceiling: matrix product", "TFLOP/s", found["matrix"] / 1e12, more_is_better=True)
    return found


def compare(run: Run, name: str, case: work.Attend, targets: dict[str, str]) -> float:
    """Adds a row per peer. Returns our seconds. targets: by the first word of a peer's name."""
    peers = case.peers()
    ours, *theirs = run.times(case.ours, *peers.values())
    for peer, seconds in zip(peers, theirs, strict=True):
        run.row(name, "us", 1e6 * ours, 1e6 * seconds, peer, targets.get(peer.split("_")[0].split(",")[0], ""))
    return ours


def decodes(run: Run, roof: dict[str, float]) -> None:
    for n, context in run.some(((64, 4096), (64, 1024), (8, 8192), (1, 32_768))):
        n, context = run.size(n, 2), run.size(context, 40)
        case = run.attend(work.alone(n, context))
        name = f"decode {n} x {context}"
        ours = compare(run, name, case, {"flex": "ratio >= 1"})
        goal = f">= {0.85 * roof['copy'] / 1e9:.0f}" if n == 64 and context >= 4096 else ""
        run.row(name, "GB/s", case.n_bytes / ours / 1e9, roof["copy"] / 1e9, "ceiling: copy", goal, True)


def quantized_kv(run: Run) -> None:
    """Adds rows for decodes over quantised KV, compared with KV in the run's dtype."""
    n, context = run.size(64, 2), run.size(4096, 40)
    case = run.attend(work.alone(n, context))
    for kind, (keys, values) in KV_KINDS.items():
        pools = Quantized(*quantize(case.k, keys)), Quantized(*quantize(case.v, values))
        ours, wide = run.times(lambda: case.ours(pools=pools), case.ours)  # noqa: B023
        target = "ratio >= 1.7" if kind == "fp8" else ""
        run.row(f"decode {n} x {context}, {kind} KV", "us", 1e6 * ours, 1e6 * wide, f"{str(run.dtype)[6:]} KV", target)


def latents(run: Run, roof: dict[str, float]) -> None:
    """Adds rows for decodes over DeepSeek's latents. With 16 heads (V2 Lite) memory bandwidth limits them, with 128
    (V3) it does not."""
    n, context, (dim, latent_dim) = run.size(64, 2), run.size(4096, 40), ((576, 512), (48, 32))[run.is_dry]
    for n_heads in run.some((16, 128)):
        paged = work.assign_pages(work.alone(n, context))
        case = work.Attend(paged, (n_heads, 1), dim, run.dtype, run.device, latent_dim)
        name = f"decode {n} x {context}, latents, {n_heads} heads"
        ours = compare(run, name, case, {})
        run.row(name, "GB/s", case.n_bytes / ours / 1e9, roof["copy"] / 1e9, "ceiling: copy", "", True)
        run.row(name, "TFLOP/s", case.n_flops / ours / 1e12, roof["matrix"] / 1e12, "ceiling: matrix product", "", True)


def chunks(run: Run, roof: dict[str, float]) -> None:
    for n, context in run.some(((2048, 0), (2048, 8192), (512, 512), (16, 2048))):
        n, context = run.size(n, 20), run.size(context, 17)
        case = run.attend(work.alone(1, n + context), n)
        name = f"chunk of {n} over {context}"
        ours = compare(run, name, case, {"flex": "ratio >= 1"})
        goal = ">= 400" if n >= 2048 else ""
        run.row(name, "TFLOP/s", case.n_flops / ours / 1e12, roof["matrix"] / 1e12, "ceiling: matrix product",
                       goal, True)  # fmt: skip


def shared_reads(run: Run) -> None:
    own, few = run.size(64, 3), run.size(64, 3)
    thoughts = work.thoughts(run.size(2048, 32), run.size(512, 16), own, run.size(4, 2))
    suffixes = work.branches(run.size(128, 2), run.size(2048, 32), own)
    cases: dict[str, tuple[list[work.Text], int, str]] = {
        f"{few} branches over {n}": (work.branches(few, n, own), 1, target)
        for n, target in (
            (run.size(4096, 48), ""),
            (run.size(8192, 64), "ratio >= 8"),
            (run.size(16_384, 96), ""),
        )
    }
    cases["tree of thought, 4 x 4 x 4"] = thoughts, 1, ""
    cases[f"{len(suffixes)} suffixes of {own}"] = suffixes, own, ""
    for name, (texts, q_len, target) in cases.items():
        case = run.attend(texts, q_len)
        compare(run, name, case, {"flex": "ratio >= 1", "FlashInfer": "ratio >= 1"})
        ours, unshared = run.times(case.ours, case.unshared())
        run.row(name, "us", 1e6 * ours, 1e6 * unshared, "ours, each reads for itself", target)
    for n_shared in (0, 16, 64):  # nothing, or too little to pay off
        texts = work.branches(few, n_shared, run.size(1024, 20)) if n_shared else work.alone(few, run.size(1024, 20))
        case = run.attend(texts)
        ours, unshared = run.times(case.ours, case.unshared())
        run.row(f"{few} decodes that share {n_shared}", "us", 1e6 * ours, 1e6 * unshared,
                       "ours, each reads for itself", "ratio >= 0.97")  # fmt: skip


def small_ops(run: Run, roof: dict[str, float]) -> None:
    """Adds rows that compare our small ops with torch's, and their bandwidth (bytes by the formula in the op table)
    with that of a copy."""
    for name, (sizes, ours, torchs) in _small_ops(run).items():
        took, theirs = run.times(ours, torchs)
        op = name.split(",")[0]
        n_bytes = TABLE[op].n_bytes(OpSizes(**sizes | {"size": run.dtype.itemsize}))
        run.row(name, "us", 1e6 * took, 1e6 * theirs, "torch")
        run.row(name, "GB/s", n_bytes / took / 1e9, roof["copy"] / 1e9, "ceiling: copy", "", True)


def _small_ops(run: Run) -> dict[str, tuple[dict[str, int], Callable[[], object], Callable[[], object]]]:
    """Op -> (sizes for its formula, our function, torch's function)."""
    rows, dim, vocab = run.size(256, 2), run.size(4096, 32), run.size(151_936, 90)
    x, residual, gate_up, logits = (
        torch.randn(rows, n, device=run.device, dtype=dtype)
        for n, dtype in ((dim, run.dtype), (dim, run.dtype), (6 * dim, run.dtype), (vocab, torch.float32))
    )
    weight, masks = torch.ones(dim, device=run.device, dtype=run.dtype), _masks(run, vocab)
    which = torch.zeros(rows, dtype=torch.int32, device=run.device)
    barred = torch.zeros(rows, vocab, dtype=torch.bool, device=run.device)
    n_layers, n_pages, n_copies = run.size(56, 2), run.size(512, 8), run.size(64, 2)
    pools = list(torch.zeros(n_layers, n_pages, work.PAGE, 8, run.size(128, 16), device=run.device, dtype=run.dtype))
    order = torch.randperm(n_pages, device=run.device)[: 2 * n_copies].int()
    pages = torch.stack([order[:n_copies], order[n_copies:], torch.full_like(order[:n_copies], 8)], 1).contiguous()
    slots = (order.long() * work.PAGE).view(2, n_copies, 1)
    moved = {"n_pools": n_layers, "kv_heads": 8, "dim": pools[0].shape[3]}

    def copied() -> None:
        for pool in pools:
            pool[order[n_copies:].long(), :8] = pool[order[:n_copies].long(), :8]

    def copied_slots() -> None:
        for pool in pools:
            numbers = pool.flatten(0, 1)
            numbers[slots[1, :, 0]] = numbers[slots[0, :, 0]]

    flat = {"rows": rows, "dim": dim, "vocab": vocab, "forbidden": vocab // 2, "masks": 1, "words": masks.shape[1]}
    found: dict[str, Any] = {
        "rms_norm": (flat, lambda: ops.rms_norm(x, weight, 1e-6, residual=residual),
                     lambda: F.rms_norm(x + residual, (dim,), weight, 1e-6)),
        "silu_mul": (flat | {"dim": 3 * dim}, lambda: ops.silu_mul(gate_up),
                     lambda: F.silu(gate_up[:, : 3 * dim]) * gate_up[:, 3 * dim :]),
        "mask_logits": (flat, lambda: ops.mask_logits(logits, masks, which),
                        lambda: logits.masked_fill_(barred, -torch.inf)),
        "copy_pages": (moved | {"slots": 8 * n_copies}, lambda: ops.copy_pages(pools, pages), copied),
        "copy_slots": (moved | {"slots": n_copies}, lambda: ops.copy_slots(pools, slots[0], slots[1]), copied_slots),
    }  # fmt: skip
    return found | _draws(run, rows, vocab)


def _masks(run: Run, vocab: int) -> Tensor:
    return torch.full((1, -(-vocab // 32)), 0x55555555, dtype=torch.int32, device=run.device)


def _draws(run: Run, n: int, vocab: int) -> dict[str, Any]:
    """The entries of `_small_ops` for sampling. A draw overwrites the logits, so each call first copies fresh logits,
    and the copy counts for our function and torch's."""
    found: dict[str, Any] = {}
    fresh = 3 * torch.randn(n, vocab, device=run.device)
    logits = fresh.clone()
    for name, top_k, top_p in (("temperature", 0, 1.0), ("top-p 0.9", 0, 0.9), ("top-k 50", 50, 1.0)):
        rows = draw_rows([1.0] * n, [top_k] * n, [top_p] * n, [0.0] * n, range(n), [0] * n, [9] * n, run.device)

        def ours(rows: Any = rows) -> Tensor:
            return ops.draw(logits.copy_(fresh), rows)

        def torchs(top_k: int = top_k, top_p: float = top_p) -> Tensor:
            p = logits.copy_(fresh).softmax(-1)
            if top_k:
                p, order = p.topk(top_k)
                return order.gather(1, p.multinomial(1))
            if top_p < 1:
                p, order = p.sort(-1, descending=True)
                return order.gather(1, p.where(p.cumsum(-1) < top_p + p, 0.0).multinomial(1))
            return p.multinomial(1)

        found[f"draw, {name}"] = ({"rows": n, "vocab": vocab}, ours, torchs)
    return found


def _uncaptured(function: Callable[[], Tensor]) -> Captured:
    """Stands in for a CUDA graph in a dry run: calls the function again."""
    captured = Captured(lambda: captured.out.set_(function()), torch.zeros(0))
    return captured


class Steps:
    """A model with random weights, and its steps, with CUDA graphs or without."""

    def __init__(self, run: Run, shape: str, paged: work.PagedTexts) -> None:
        self.run, self.paged = run, paged
        self.model, _ = work.random_model("tiny" if run.is_dry else shape, run.device, run.dtype)
        self.store = KVPool(self.model.spec, paged.n_pages, work.PAGE, str(run.device))
        for pool in (pool for pair in self.store.kv for pool in pair):
            pool.normal_()

    def use(self, paged: work.PagedTexts) -> None:
        """Use other requests on the same pages."""
        assert paged.n_pages <= self.store.n_pages, "the pool is too small"
        self.paged = paged

    def step(self, shared: bool = True, captured: bool = True) -> Callable[[], object]:
        batch: Batch = work.step(self.paged, self.run.device, shared)
        graphs = None
        if captured:
            capture = _uncaptured if self.run.is_dry else cuda_capture()
            graphs = Graphs(self.model, self.store, max(self.paged.kv_lens), capture)
        runner = ModelRunner(self.model, self.store, graphs)
        return lambda: runner(batch, ())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a step reads whole: all but an untied embedding, as a token reads one row of it."""
        spec = self.model.spec
        tied = spec.dense is None or spec.dense.tie_word_embeddings
        return (spec.n_parameters - (0 if tied else spec.vocab_size * spec.hidden)) * self.run.dtype.itemsize


def steps(run: Run, roof: dict[str, float]) -> None:
    """Adds rows for decode steps, host and device together, compared with steps without graphs, and with the time to
    read weights and KV once."""
    context = run.size(1024, 20)
    for shape in ("0.6B", "8B"):
        sizes = [run.size(n, i + 1) for i, n in enumerate((1, 8, 64))]
        todo = Steps(run, shape, work.assign_pages(work.alone(sizes[-1], context)))
        for n in run.some(sizes):
            todo.use(work.assign_pages(work.alone(n, context)))
            ours, eager = run.times(todo.step(), todo.step(captured=False), graphs=False)
            name = f"decode step {shape}, {n} x {context}"
            run.row(name, "ms", 1e3 * ours, 1e3 * eager, "the same without a graph")
            kv = n * context * bytes_per_token(todo.model.spec, "auto")
            least = (todo.weight_bytes + kv) / roof["read"]
            run.row(name, "ms", 1e3 * ours, 1e3 * least, "weights and KV, read once")
        del todo
        if run.device.type == "cuda":
            torch.cuda.empty_cache()


def shared_steps(run: Run) -> None:
    """Adds rows that say how much faster a whole step of the 0.6B model is if shared prefixes are read once."""
    own, n = run.size(64, 3), run.size(64, 3)
    cases = {
        f"{n} branches over 4k": (work.branches(n, run.size(4096, 32), own), 1, "ratio >= 4"),
        f"{n} branches over 8k": (work.branches(n, run.size(8192, 48), own), 1, ""),
        f"{n} branches over 16k": (work.branches(n, run.size(16_384, 64), own), 1, ""),
        "tree of thought, 4 x 4 x 4": (
            work.thoughts(run.size(2048, 32), run.size(512, 16), own, run.size(4, 2)), 1, "ratio >= 2.5"),
        f"{run.size(128, 2)} few-shot suffixes": (
            work.branches(run.size(128, 2), run.size(2048, 32), own), own, ""),
        f"{n} that share nothing": (work.alone(n, run.size(1024, 20)), 1, "ratio >= 0.97"),
    }  # fmt: skip
    paged = {name: work.assign_pages(texts, q_len) for name, (texts, q_len, _) in cases.items()}
    todo = Steps(run, "0.6B", max(paged.values(), key=lambda one: one.n_pages))
    for name, (_, q_len, target) in cases.items():
        todo.use(paged[name])
        ours, unshared = run.times(todo.step(captured=q_len == 1), todo.step(False, q_len == 1), graphs=False)
        run.row(f"step 0.6B, {name}", "ms", 1e3 * ours, 1e3 * unshared, "each reads for itself", target)


@contextmanager
def written(run: Run, shape: str) -> Iterator[Path]:
    """Yields a folder with a model of this shape with random weights, in Hugging Face format."""
    import random_models

    sizes = {key: size for key, size in work.SHAPES[shape].items() if key != "tie_word_embeddings"}
    if run.is_dry:
        sizes = dict(random_models.SHAPES["M0"])
    with tempfile.TemporaryDirectory() as folder:
        random_models.make(Path(folder), shape, sizes, (run.dtype,), run.device)
        yield Path(folder, f"{shape}-{str(run.dtype)[6:]}")


def overlap(run: Run) -> None:
    """Adds a row that compares the steps of an engine that plans and launches the next step while the device computes
    with those of an engine that waits for each step."""
    from serving_step import engine_of, submit

    def finish(n_running: int) -> int:
        """Steps as the loop of the engine does, while n_running requests run. Returns the number of steps."""
        ahead, counted = None, 0
        while len(engine.scheduler.running) == n_running and not engine.scheduler.is_idle:
            step, ahead = engine.advance(ahead)
            engine.complete(step)
            counted += 1
        if ahead is not None:
            engine.complete(engine.sample(ahead))
        return counted

    n, n_out = run.size(64, 2), run.size(100, 4)
    with written(run, "0.6B") as model:
        engine = engine_of(model, str(run.dtype)[6:], device=run.device.type, kv_memory=f"{run.size(8192, 64)}MiB")
        took: dict[bool, list[float]] = {True: [], False: []}
        for seed in range(run.size(6, 2)):
            engine.plans_ahead = run.device.type == "cuda" and seed % 2 == 0
            submit(engine, n, run.size(300, 20), n_out=n_out, seed=seed)
            while any(request.n_out < 2 for request in engine.scheduler.requests.values()):
                engine.step()
            started = time.perf_counter()
            counted = finish(n)
            took[seed % 2 == 0].append((time.perf_counter() - started) / counted)
            while not engine.scheduler.is_idle:
                engine.step()
    ahead, waits = (1e3 * statistics.median(took[key]) for key in (True, False))
    run.row(f"engine step 0.6B, {n} decodes, one step ahead", "ms", ahead, waits, "waits for each step", "ratio >= 1")


@contextmanager
def _real_children() -> Iterator[None]:
    """Processes started inside do not use Triton's interpreter. This process uses it again afterwards."""
    before = os.environ.pop("TRITON_INTERPRET", None)
    try:
        yield
    finally:
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before


def programs(run: Run, shape: str) -> None:
    """Adds rows for whole programs through language, socket, server and engine, compared with other systems. The first
    of two runs is a warm-up."""
    from serving import Ours, Peer, Run as Timed, agreement, measure as time_all, words, work as calls  # noqa: I001

    dtype = str(run.dtype)[6:]
    with _real_children(), written(run, shape) as model:
        systems: dict[str, Callable[[], Any]] = {
            "banyan": lambda: Ours(model, dtype, device=run.device.type, kv_memory=f"{run.size(16_384, 256)}MiB"),
            "transformers": lambda: Peer("transformers", Path(sys.executable), model, dtype),
        }
        if find_spec("vllm") is not None and not run.is_dry:
            systems["vllm"] = lambda: Peer("vllm", Path(sys.executable), model, dtype)
        names = ["warm-up"] if run.is_dry else list(WORKLOADS)
        vocabulary = words(json.loads((model / "config.json").read_text())["vocab_size"])
        ours: dict[str, Timed] = {}
        for system, start in systems.items():
            try:
                driver = start()
            except SystemExit as e:  # the peer's process has ended
                print(f"  ({system} is left out: {e})")
                continue
            try:
                timed = {name: runs[system][-1] for name, runs in time_all({system: driver}, names, 2).items()}
            finally:
                driver.close()
            ours = ours or timed
            for name, one in timed.items():
                base = () if system == "banyan" else (one.wall, system, "ratio >= 1")
                run.row(f"{name} {shape}, wall", "s", ours[name].wall, *base)
                if base:
                    share, n = agreement(calls(name, vocabulary, 1), ours[name].out, one.out)
                    run.row(f"{name} {shape}, outputs that are {system}'s, of {n}", "%", 100 * share)


def tests(run: Run) -> None:
    """Runs the tests of kernels and models on the device, and adds a row that says whether any test fails."""
    if find_spec("pytest") is None or find_spec("hypothesis") is None:
        raise RuntimeError("pytest and hypothesis are needed")
    device = () if run.is_dry else (f"--device={run.device.type}",)
    chosen = ("-k", "copy_pages") if run.is_dry else ()
    with _real_children():
        done = run_tests(*device, *chosen, *_in_parallel(run), "-m", "not long", *TESTS)
    lines = done.stdout.splitlines()
    print(*lines[-LINES_OF_TESTS:] if done.returncode else lines[-1:], sep="\n")
    run.row("tests that fail", "(1: some do)", float(done.returncode != 0), target="<= 0")


def _in_parallel(run: Run) -> tuple[str, ...]:
    """Options of pytest that let several processes compile kernels for the tests; () if that is not possible."""
    if run.is_dry or find_spec("xdist") is None:
        return ()
    return "-n", str(min(8, os.cpu_count() or 1)), "-p", "no:benchmark"  # pytest-benchmark would warn of them


def few_bits(run: Run, roof: dict[str, float]) -> None:
    """Adds rows for linear layers and experts with quantised weights, compared with weights in the rows' dtype."""
    linears(run)
    experts(run)


def linears(run: Run) -> None:
    for n_out, n_in in run.some(((6144, 4096), (4096, 12_288))):  # qkv and down of the 8B model
        n_out, n_in = run.size(n_out, 48), run.size(n_in, 128)
        weight = torch.randn(n_out, n_in, device=run.device, dtype=run.dtype) / n_in**0.5
        small = {
            "int8": quantise(weight, 8),
            "int4": quantise(weight, 4),
            "int8, W8A8": quantise(weight, 8, n_in)._replace(is_w8a8=True),
            "e4m3 in blocks": quantise(weight, FLOAT8, 128),
            "e4m3 in blocks, W8A8": quantise(weight, FLOAT8, 128)._replace(is_w8a8=True),
            "e4m3, W8A8": quantise(weight, FLOAT8, n_in)._replace(is_w8a8=True),
        }
        kept = [packed.pack_rows(own) for own in small.values()]
        for n in run.some((1, 16, 64, 512)):
            x = torch.randn(n, n_in, device=run.device, dtype=run.dtype)
            calls = [partial(ops.linear, x, own) for own in kept]
            *ours, wide = run.times(*calls, partial(F.linear, x, weight))
            for kind, seconds in zip(small, ours, strict=True):
                name = f"linear {n_out} x {n_in}, {n} rows, {kind}"
                run.row(name, "us", 1e6 * seconds, 1e6 * wide, f"{str(run.dtype)[6:]}, torch", "ratio >= 1")


def experts(run: Run) -> None:
    """Adds rows for the experts of Qwen3-30B-A3B, with each row routed to eight experts at random, compared with
    transformers' grouped product."""
    from moe import GROUPED, LOOP, layers
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    n_experts, n_each, hidden, width = (4, 2, 64, 32) if run.is_dry else (128, 8, 2048, 768)
    config = Qwen3MoeConfig(num_experts=n_experts, num_experts_per_tok=n_each, hidden_size=hidden,
                            moe_intermediate_size=width)  # fmt: skip
    with run.device:
        peer = Qwen3MoeExperts(config).requires_grad_(False).to(run.dtype)
    for weight in peer.parameters():
        weight.normal_().mul_(weight.shape[-1] ** -0.5)
    ways = layers(peer, run.dtype)
    for n in run.some((1, 16, 64, 512)):
        x = torch.randn(n, hidden, device=run.device, dtype=run.dtype)
        weights, index = torch.rand(n, n_experts, device=run.device).softmax(-1).topk(n_each)
        names = [name for name in ways if name not in (LOOP, GROUPED)]
        *took, theirs = run.times(*(partial(ways[name], x, index, weights) for name in (*names, GROUPED)))
        for name, seconds in zip(names, took, strict=True):
            row = f"experts, {n} rows, {name or str(run.dtype)[6:]}"
            run.row(row, "us", 1e6 * seconds, 1e6 * theirs, GROUPED, "ratio >= 1")


def attention(run: Run, roof: dict[str, float]) -> None:
    decodes(run, roof)
    shared_reads(run)
    chunks(run, roof)
    quantized_kv(run)
    latents(run, roof)


RUN: dict[str, Callable[[Run, dict[str, float]], None]] = {
    "attention": attention,
    "steps": steps,
    "shared-steps": lambda run, roof: shared_steps(run),
    "tests": lambda run, roof: tests(run),
    "overlap": lambda run, roof: overlap(run),
    "programs-0.6B": lambda run, roof: programs(run, "0.6B"),
    "programs-8B": lambda run, roof: programs(run, "8B"),
    "small-ops": small_ops,
    "few-bits": few_bits,
}


def measure(names: Sequence[str], to: Path, n: int, is_dry: bool) -> None:
    """Run the phases `names`. Writes their rows, and the name of each phase that has ended, to the file `to`."""
    torch.manual_seed(0)
    device, dtype = (torch.device("cpu"), torch.float32) if is_dry else (torch.device("cuda"), torch.bfloat16)
    report = Report("gpu", _shape(is_dry))
    with to.open("a") as notes, torch.inference_mode():
        print(json.dumps({"shape": report.shape}), file=notes, flush=True)
        run = Run(report, device, dtype, n, is_dry, notes)
        roof = ceilings(run)  # each process has its own
        for name in names:
            RUN[name](run, roof)
            print(json.dumps({"ends": name}), file=notes, flush=True)


def _shape(is_dry: bool) -> str:
    where = "interpreter, tiny shapes" if is_dry else torch.cuda.get_device_name()
    return f"{where}, torch {torch.__version__}, {'float32' if is_dry else 'bfloat16'}, pages of {work.PAGE}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--dry", action="store_true", help="on the CPU with tiny shapes")
    options.add_argument("--quick", action="store_true", help="10 repetitions, not 50")
    options.add_argument("--to", type=Path, required=True, help="where the phases and their rows are noted")
    options.add_argument("phases", nargs="+", choices=PHASES)
    chosen = options.parse_args()
    if not chosen.dry and not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} sees no GPU; --dry runs the code without one")
    measure(chosen.phases, chosen.to, 1 if chosen.dry else 10 if chosen.quick else 50, chosen.dry)


if __name__ == "__main__":
    main()
