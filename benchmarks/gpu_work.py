"""For gpu.py: timers, requests over pages, attention of other libraries, and models with random weights."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels import ops
from banyan.kernels.attention.ragged import AttentionOptions, Ragged, ragged
from banyan.kernels.kv_layout import is_latent, values_of
from banyan.runtime.engine.batch import Batch
from banyan.runtime.model import decoder, families
from banyan.runtime.model.spec import ModelSpec
from banyan.runtime.model.weights import Checkpoint

PAGE = 16
RMS_EPS, ROPE_THETA = 1e-6, 1e6
NEAR = {"atol": 5e-2, "rtol": 3e-2}  # two results in bfloat16, in standard deviations of each head's output
FLUSH = 256 << 20  # bytes: more than any L2
Text = Sequence[tuple[Hashable, int]]  # a request's segments and their lengths; equal segments share pages
SHAPES = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": True},
    "8B": {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": False},
    "small": {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 6, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "tie_word_embeddings": False},
    "tiny": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 90, "tie_word_embeddings": True},
}  # fmt: skip


def medians(*functions: Callable[[], object], device: torch.device, n: int, graphs: bool = True) -> list[float]:
    """Median seconds of each function in n turns. On a GPU, events time each call after a flush of the L2; functions
    that can be captured run as CUDA graphs, to exclude the time of launches. On a CPU, the clock times them."""
    if device.type != "cuda":  # a dry run, without a warm-up
        return [statistics.median(own) for own in zip(*([_clock(f) for f in functions] for _ in range(n)), strict=True)]
    for function in functions:
        function()
    runs = [_captured(function) if graphs else function for function in functions]
    flush = torch.empty(FLUSH, dtype=torch.int8, device=device)
    pairs: list[list[tuple[Any, Any]]] = [[] for _ in runs]
    for _ in range(n):
        for run, own in zip(runs, pairs, strict=True):
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            own.append((start, end))
    torch.cuda.synchronize()
    return [statistics.median(start.elapsed_time(end) / 1e3 for start, end in own) for own in pairs]


def _clock(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _captured(function: Callable[[], object]) -> Callable[[], object]:
    """The function as a CUDA graph; the function itself if it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            function()
    except RuntimeError as error:
        print(f"  (timed without a graph: {str(error).splitlines()[0]})")
        torch.cuda.synchronize()
        return function
    return graph.replay


class PagedTexts(NamedTuple):
    """Requests whose KV is in pages in random order."""

    q_lens: list[int]
    kv_lens: list[int]
    pages: list[list[int]]
    n_pages: int

    def batch(self, device: torch.device) -> Ragged:
        return ragged(self.q_lens, self.kv_lens, self.pages, PAGE, device)


def assign_pages(texts: Sequence[Text], q_len: int = 1) -> PagedTexts:
    """Assigns pages to texts. All segments of a text but the last must fill whole pages. The last `q_len` tokens of
    each text are the new rows."""
    found: dict[Hashable, list[int]] = {}
    n_pages = sum(-(-n // PAGE) for _, n in {segment: n for text in texts for segment, n in text}.items())
    free = torch.randperm(n_pages).tolist()
    for text in texts:
        for segment, n in text:
            if segment not in found:
                found[segment] = [free.pop() for _ in range(-(-n // PAGE))]
    pages = [[page for segment, _ in text for page in found[segment]] for text in texts]
    return PagedTexts([q_len] * len(texts), [sum(n for _, n in text) for text in texts], pages, n_pages)


def alone(n: int, n_tokens: int) -> list[Text]:
    """n requests of n_tokens each that share nothing."""
    return [[(i, n_tokens)] for i in range(n)]


def branches(n: int, prefix: int, own: int) -> list[Text]:
    return [[("prefix", prefix), (i, own)] for i in range(n)]


def thoughts(root: int, level: int, own: int, width: int = 4) -> list[Text]:
    """The texts of all leaves of a tree of thought with three levels of `width` branches."""
    n = range(width)
    return [[("root", root), ((a,), level), ((a, b), level), ((a, b, c), own)] for a in n for b in n for c in n]


class Attend:
    """One attention call on random numbers, by our kernel and by others. latent_dim: values are the first latent_dim
    numbers of the keys; 0: values are stored too."""

    def __init__(
        self,
        paged: PagedTexts,
        heads: tuple[int, int],
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
        latent_dim: int = 0,
    ) -> None:
        self.paged, self.heads, self.dim = paged, heads, dim
        self.batch = paged.batch(device)
        self.q = torch.randn(sum(paged.q_lens), heads[0], dim, device=device, dtype=dtype)
        self.k, self.v = (torch.randn(paged.n_pages, PAGE, heads[1], dim, device=device, dtype=dtype) for _ in range(2))
        if latent_dim:
            self.v = values_of(self.k, latent_dim)
        self.options = AttentionOptions(dim**-0.5)

    @property
    def n_bytes(self) -> int:
        """Bytes of K and V, counted once per request."""
        n_stored = self.dim if is_latent(self.k, self.v) else 2 * self.dim
        return sum(self.paged.kv_lens) * self.heads[1] * n_stored * self.k.element_size()

    @property
    def n_flops(self) -> int:
        pairs = sum(q * kv - q * (q - 1) // 2 for q, kv in zip(self.paged.q_lens, self.paged.kv_lens, strict=True))
        return 2 * self.heads[0] * (self.dim + self.v.shape[3]) * pairs

    def ours(self, batch: Ragged | None = None, pools: tuple[Any, Any] | None = None) -> Tensor:
        k, v = pools or (self.k, self.v)
        return ops.attention(self.q, k, v, batch or self.batch, self.options)

    def unshared(self) -> Callable[[], Tensor]:
        """Our kernel without shared reads of common prefixes."""
        batch = self.batch._replace(subtrees=(), plans={})
        return lambda: self.ours(batch)

    def peers(self) -> dict[str, Callable[[], Tensor]]:
        """Name -> call. A library that is missing, fails or computes something else is reported and left out."""
        found, want = {}, self.ours().float()
        spread = want.std(-1, keepdim=True)  # the mean of n random values is of the order of n**-0.5
        for name, make in (("SDPA, contiguous", _sdpa), ("flex_attention, contiguous", _flex),
                           ("FlashInfer", _flashinfer)):  # fmt: skip
            try:
                run = make(self)
                torch.testing.assert_close(run().float().reshape(want.shape) / spread, want / spread, **NEAR)
                found[name] = run
            except Exception as error:  # their failures are not ours
                print(f"  ({name} is left out: {type(error).__name__}: {str(error).strip().splitlines()[0][:100]})")
        return found

    def contiguous(self) -> tuple[Tensor, Tensor, Tensor]:
        """q [n, heads, q_len, dim], and keys and values in contiguous memory, [n, kv_heads, kv_len, dim]."""
        (q_len,), (kv_len,) = set(self.paged.q_lens), set(self.paged.kv_lens)
        pages = torch.tensor(self.paged.pages, device=self.q.device)
        k, v = (pool[pages].flatten(1, 2)[:, :kv_len].transpose(1, 2).contiguous() for pool in (self.k, self.v))
        return self.q.view(-1, q_len, *self.q.shape[1:]).transpose(1, 2).contiguous(), k, v


def _sdpa(case: Attend) -> Callable[[], Tensor]:
    from torch.nn.attention.bias import causal_lower_right

    q, k, v = case.contiguous()
    mask = None if q.shape[2] == 1 else causal_lower_right(q.shape[2], k.shape[2])
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)


def _flex(case: Attend) -> Callable[[], Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = case.contiguous()
    n_before = k.shape[2] - q.shape[2]
    mask = None
    if q.shape[2] > 1:
        mask = create_block_mask(lambda b, h, i, j: j <= i + n_before, None, None, q.shape[2], k.shape[2], q.device)
    torch._dynamo.reset()  # torch stops compiling a function after a few shapes
    attend: Any = torch.compile(flex_attention, dynamic=False) if q.is_cuda else flex_attention
    return lambda: attend(q, k, v, block_mask=mask, enable_gqa=True).transpose(1, 2)


def _flashinfer(case: Attend) -> Callable[[], Tensor]:
    """Cascade attention of two levels if all requests share a prefix, else paged decode or prefill; planned once."""
    import flashinfer

    device, paged, (n_heads, n_kv_heads) = case.q.device, case.paged, case.heads
    space = torch.empty(256 << 20, dtype=torch.uint8, device=device)

    def table(pages: list[list[int]], lens: list[int]) -> list[Tensor]:
        starts = torch.tensor([0, *(len(own) for own in pages)]).cumsum(0)
        flat = torch.tensor([page for own in pages for page in own])
        return [x.int().to(device) for x in (starts, flat, torch.tensor([(n - 1) % PAGE + 1 for n in lens]))]

    used = [own[: -(-n // PAGE)] for own, n in zip(paged.pages, paged.kv_lens, strict=True)]
    n, rows = len(used), torch.tensor([0, *paged.q_lens]).cumsum(0).int().to(device)
    sizes = (n_heads, n_kv_heads, case.dim, PAGE)
    root = case.batch.subtrees[0] if case.batch.subtrees else None
    if root is not None and len(root.requests) == n:
        shared = root.n_keys // PAGE
        below = table([own[shared:] for own in used], [kv - root.n_keys for kv in paged.kv_lens])
        above = table([used[0][:shared]], [root.n_keys])
        cascade = flashinfer.MultiLevelCascadeAttentionWrapper(2, space, "NHD")
        ends = rows[[0, -1]].contiguous()
        tables = ([a, b] for a, b in zip(above, below, strict=True))
        cascade.plan([ends, rows], *tables, *sizes, causal=True, q_data_type=case.q.dtype)
        pool = torch.stack([case.k, case.v], 1)
        return lambda: cascade.run(case.q, pool)
    own = table(used, paged.kv_lens)
    if set(paged.q_lens) == {1}:
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", use_tensor_cores=True)
        decode.plan(*own, *sizes, q_data_type=case.q.dtype, kv_data_type=case.k.dtype)
        return lambda: decode.run(case.q, (case.k, case.v))
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(space, "NHD")
    prefill.plan(rows, *own, *sizes, causal=True, q_data_type=case.q.dtype, kv_data_type=case.k.dtype)
    return lambda: prefill.run(case.q, (case.k, case.v))


class RandomCheckpoint(Checkpoint):
    """A checkpoint with random weights, generated on the device; it has no files."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(Path("random weights"), files=())
        self.device, self.dtype = device, dtype
        self.taken: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int, dtype: str | None = None) -> Tensor:
        if len(shape) == 1:
            tensor = torch.ones(shape, device=self.device, dtype=self.dtype)
        else:
            tensor = torch.randn(shape, device=self.device, dtype=self.dtype).div_(math.sqrt(shape[-1]))
        if self.device.type == "cpu":
            self.taken[name] = tensor
        return tensor

    def finish(self, ignore: Callable[[str], bool]) -> None:
        pass


def random_model(
    shape: str, device: torch.device, dtype: torch.dtype, family: str = "qwen3"
) -> tuple[decoder.Decoder, dict[str, Tensor]]:
    """A model of this shape with random weights; on a CPU also the weights by name."""
    config = SHAPES[shape] | {"model_type": family, "max_position_embeddings": 40_960, "rms_norm_eps": RMS_EPS,
                              "rope_theta": ROPE_THETA, "attention_bias": False, "hidden_act": "silu"}  # fmt: skip
    dense = families.parse(config)
    n = dense.num_hidden_layers * dense.hidden_size * (
        3 * dense.intermediate_size + 2 * (dense.num_attention_heads + dense.n_kv_heads) * dense.dim
    ) + dense.vocab_size * dense.hidden_size * (1 if dense.tie_word_embeddings else 2)
    spec = ModelSpec(
        name=shape, family=family, n_layers=dense.num_hidden_layers, n_heads=dense.num_attention_heads,
        n_kv_heads=dense.n_kv_heads, head_dim=dense.dim, hidden=dense.hidden_size, vocab_size=dense.vocab_size,
        max_context=dense.max_context, eos_ids=(), dtype=str(dtype)[6:], n_parameters=n, dense=dense,
    )  # fmt: skip
    weights = RandomCheckpoint(device, dtype)
    return decoder.build(spec, weights, device, dtype, spec.max_context), weights.taken


def step(paged: PagedTexts, device: torch.device, shared: bool = True) -> Batch:
    """One step of all requests, with logits for the last row of each."""
    batch = paged.batch(device)
    if not shared:
        batch = batch._replace(subtrees=(), plans={})
    assert batch.position is not None
    rows = (batch.q_start[1:] - 1).long()
    ids = torch.zeros(len(batch.slots), dtype=torch.int64, device=device)
    none: tuple[Any, ...] = (None,) * len(rows)
    return Batch(ids, batch.position.long(), batch, rows, ids[:0], (), none)
