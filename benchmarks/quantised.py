"""Time of steps with weights in bfloat16, 8 and 4 bits, compared with llama.cpp in Q4_K_M:
`python benchmarks/quantised.py [--model smol] [--threads 1] [--llamacpp PYTHON]`, and what
keys and values in few bits cost: `python benchmarks/quantised.py --kv [--model smol]`

Without a model: the first layers of a Llama of 1.17 B parameters, with random weights. The kinds of weights take turns,
step by step, so that each finds another's weights in the CPU's caches and all have the same noise. A decode has 64
tokens of context; a prefill has 512 tokens. --llamacpp: the interpreter of an environment with llama-cpp-python. It
runs the model's GGUF file, or the random weights in Q4_K_M, in turns with ours.

With --kv: attention of decodes over KV pages of each kind, in turns, with more pages than the CPU's caches hold; and
with a model its perplexity on 4,096 tokens of these docs, in windows of 512.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
from peer_process import PeerProcess
from random_models import gguf_of
from report import Report, correct, parser

from banyan.kernels import ops
from banyan.kernels.kv_layout import KV_KINDS, Quantized, quantize, stacked
from banyan.kernels.native import threads
from banyan.kernels.ops import AttentionOptions, ragged
from banyan.runtime.engine.hardware import use_huge_pages
from banyan.runtime.model.load import Model, load
from banyan.runtime.model.size import tensors_of
from banyan.runtime.model.spec import resolve
from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer

SHAPE = {"vocab_size": 49_152, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
         "num_key_value_heads": 8}  # fmt: skip
KINDS = {"bf16": "dtype", "int8": "int8", "int4": "int4"}
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
CONTEXT, PROMPT, PAGE = 64, 512, 16


def write_model(folder: Path, n_layers: int) -> None:
    """A Llama with random weights in bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=n_layers, tie_word_embeddings=False, **SHAPE)
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)


class Step:
    """Repeats one step of a model with the same batch. best: seconds of the fastest step."""

    def __init__(self, model: Model, n_requests: int, n_rows: int, n_keys: int) -> None:
        pages = -(-n_keys // PAGE)
        shape = n_requests * pages, PAGE, model.spec.n_kv_heads, model.spec.head_dim
        ranges = [range(i * pages, (i + 1) * pages) for i in range(n_requests)]
        batch = ragged([n_rows] * n_requests, [n_keys] * n_requests, ranges, PAGE, "cpu")
        ids = torch.arange(n_requests * n_rows) % model.spec.vocab_size
        rows = torch.arange(n_rows - 1, n_requests * n_rows, n_rows)
        pools: Any = [stacked(2, shape, torch.bfloat16) for _ in model.windows]
        for pair in pools:
            for pool in pair:
                pool.zero_()
        self._arguments = ids, batch.position.long(), batch, pools, rows
        self._model = model
        self.best = float("inf")

    def __call__(self) -> None:
        started = time.perf_counter()
        self._model.forward(*self._arguments)
        self.best = min(self.best, time.perf_counter() - started)


class Peer:
    """llama.cpp in its own process, which times steps of one request."""

    def __init__(self, python: str, file: Path, n_threads: int) -> None:
        script = Path(__file__).with_name("quantised_peer.py")
        self._process = PeerProcess([python, str(script), str(file), str(n_threads)])
        self.name = f"llama.cpp, {self._process.ready['file']}"

    def step(self, n_rows: int, n_keys: int) -> float:
        """Run one step, and return its milliseconds."""
        found: float = self._process.ask(f"{n_rows} {n_keys}")
        return found

    def close(self) -> None:
        self._process.close()


def all_steps(report: Report, models: Mapping[str, Model], peer: Peer | None, batches: Iterable[int], n: int) -> None:
    """Run n steps of each kind of weights and each batch, in turns. Adds rows for the fastest step of each."""
    cases = [(f"decode, batch {size}", size, 1, CONTEXT) for size in batches]
    cases.append((f"prefill, {PROMPT} tokens", 1, PROMPT, PROMPT))
    for title, n_requests, n_rows, n_keys in cases:
        steps = {name: Step(model, n_requests, n_rows, n_keys) for name, model in models.items()}
        theirs = float("inf")
        for _ in range(n):
            for step in steps.values():
                step()
            if peer is not None and n_requests == 1:
                theirs = min(theirs, peer.step(n_rows, n_keys))
        single = "ratio >= 2.5" if title == "decode, batch 1" else "ratio >= 1"
        for name, target in (("int8", "ratio >= 1"), ("int4", single)):
            target = target if n_rows == 1 else ""
            report.row(f"{title}: {name}", "ms", 1e3 * steps[name].best, 1e3 * steps["bf16"].best, "bf16", target)
        if peer is not None and n_requests == 1:
            target = "ratio >= 1.3" if n_rows == 1 else "ratio >= 2"
            report.row(f"{title}: int4", "ms", 1e3 * steps["int4"].best, theirs, peer.name, target)


def kv_kinds(*names: str) -> dict[str, tuple[torch.dtype, torch.dtype]]:
    """Name -> (dtype of keys, dtype of values): the torch dtypes with these names, and KV_KINDS."""
    return {name: (getattr(torch, name), getattr(torch, name)) for name in names} | KV_KINDS


def decode_attention(report: Report, n_requests: int, context: int, n_steps: int) -> None:
    """Adds rows for the attention of a decode: 32 heads of 64, 8 KV heads, and as many layers as give 256 MiB of
    bfloat16 KV."""
    pages = context // PAGE
    n_layers = max(1, 2**28 // (n_requests * context * 8 * 64 * 4))
    batch = ragged([1] * n_requests, [context] * n_requests,
                   [range(i * pages, (i + 1) * pages) for i in range(n_requests)], PAGE, "cpu")  # fmt: skip
    real = torch.randn(n_requests * pages, PAGE, 8, 64)
    q = torch.randn(n_requests, 32, 64)
    best, pools = {}, {}
    for name, dtypes in kv_kinds("float32", "bfloat16").items():
        pairs = []
        for _ in range(n_layers):
            pair = (
                Quantized(*quantize(real, dtype)) if name in KV_KINDS else real.to(dtype, copy=True) for dtype in dtypes
            )
            pairs.append(tuple(pair))
        pools[name], best[name] = pairs, float("inf")
    for _ in range(n_steps):
        for name, pairs in pools.items():
            own = q if name == "float32" else q.bfloat16()
            started = time.perf_counter()
            for k_pool, v_pool in pairs:
                ops.attention(own, k_pool, v_pool, batch, AttentionOptions(0.125))
            best[name] = min(best[name], (time.perf_counter() - started) / n_layers)
    for name, seconds in best.items():
        report.row(
            f"attention, {n_requests} x {context}, KV in {name}",
            "ms",
            1e3 * seconds,
            1e3 * best["bfloat16"],
            "bfloat16",
        )


def perplexities(report: Report, model: str) -> None:
    source, folder = resolve(model), Path(__file__).resolve().parent.parent / "docs"
    text = "\n".join((folder / f"{page}.md").read_text() for page in ("language", "http", "speculation", "deployment"))
    tokenizer = Tokenizer(source, Files.read(source))
    ids = tokenizer.encode([TextSpan(text)], at_start=True)[: 8 * PROMPT]
    tokenizer.close()
    loaded, found = load(source), {}
    shape = PROMPT // PAGE, PAGE, loaded.spec.n_kv_heads, loaded.spec.head_dim
    batch, position = ragged([PROMPT], [PROMPT], [range(PROMPT // PAGE)], PAGE, "cpu"), torch.arange(PROMPT)
    for name, dtypes in kv_kinds("float32").items():
        loss = 0.0
        for window in torch.tensor(ids).split(PROMPT):
            pools: Any = [tuple(stacked(1, shape, dtype)[0] for dtype in dtypes) for _ in loaded.windows]
            logits = loaded.forward(window, position, batch, pools, position)
            loss += float(torch.nn.functional.cross_entropy(logits[:-1], window[1:])) / 8
        found[name] = math.exp(loss)
        target = "ratio >= 0.99" if name == "k8v4" else ""
        report.row(f"perplexity, KV in {name}", "", found[name], found["float32"], "float32", target)


def main() -> None:
    options = parser(__doc__, quick="three batches, fewer steps")
    options.add_argument("--model", help="a model to take instead of random weights")
    options.add_argument("--layers", type=int, default=4, help="layers of the random model (at most its 16)")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--steps", type=int, default=30, help="steps of each kind and batch; the best one counts")
    options.add_argument("--llamacpp", metavar="PYTHON", help="also measure llama.cpp with this interpreter")
    options.add_argument("--kv", action="store_true", help="measure keys and values in few bits")
    args = options.parse_args()
    correct("tests/runtime/model/test_linear.py")
    torch.set_num_threads(args.threads)
    threads.use(args.threads)
    if args.kv:
        report = Report("kv", f"{args.model or 'attention alone'}; {args.threads} threads")
        for n_requests, context in ((1, 4096), (16, 1024)) if args.quick else ((1, 4096), (16, 1024), (64, 1024)):
            decode_attention(report, n_requests, context, 5 if args.quick else args.steps)
        if args.model is not None:
            perplexities(report, args.model)
        raise SystemExit(report.end(args.json))
    with ExitStack() as stack:
        with tempfile.TemporaryDirectory() as folder:
            if args.model is None:
                write_model(Path(folder, "model"), args.layers)
            found = resolve(args.model) if args.model else Path(folder, "model")  # `gguf_of` writes beside it
            models = {name: load(found, dtype="bfloat16", weight_dtype=kind) for name, kind in KINDS.items()}
            for model in models.values():
                use_huge_pages(tensors_of(model))  # as an engine does
            peer = None
            if args.llamacpp:
                file = found if found.is_file() else gguf_of(found)
                peer = stack.enter_context(closing(Peer(args.llamacpp, file, args.threads)))
        shape = args.model or f"{args.layers} of 16 layers of a Llama with 1.17 B random weights"
        report = Report("quantised", f"{shape}; {args.threads} threads")
        batches, n = ((1, 16, 64), 5) if args.quick else (BATCHES, args.steps)
        all_steps(report, models, peer, batches, n)
    raise SystemExit(report.end(args.json))


if __name__ == "__main__":
    main()
