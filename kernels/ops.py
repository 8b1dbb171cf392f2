"""The table of ops: what the runtime calls, what each op costs, and which implementation runs on which device.

On a GPU, an op runs its Triton `kernel.py`. On a CPU, it runs `cpu.py` if the op has one, else `reference.py`. In a
process with TRITON_INTERPRET=1, the Triton kernels also run on CPU tensors, as slow Python; only tests use this. No op
synchronises with the host.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

from torch import Tensor

from banyan.kernels.attention.ragged import AttentionOptions as AttentionOptions
from banyan.kernels.attention.ragged import Ragged as Ragged
from banyan.kernels.attention.ragged import ragged as ragged
from banyan.kernels.device import INTERPRETED
from banyan.kernels.draw.rows import Rows
from banyan.kernels.kv_layout import Pool as Pool
from banyan.kernels.linear.cpu import keeps_quantised as keeps_quantised
from banyan.kernels.linear.cpu import linear as cpu_linear
from banyan.kernels.linear.cpu import pack as pack
from banyan.kernels.linear.packed import AnyWeight as AnyWeight
from banyan.kernels.linear.packed import Packed as Packed
from banyan.kernels.linear.reference import linear as reference_linear
from banyan.kernels.lora.adapted import AdaptedRows
from banyan.kernels.lora.reference import Product
from banyan.kernels.moe.experts import Experts
from banyan.kernels.rope_kv.reference import Norms


class OpSizes(NamedTuple):
    """The sizes that costs depend on. The default is the example that `banyan kernels` prints: a decode step of 64
    requests with 4,096 tokens each, in one layer of an 8B model, in bfloat16. Each op uses some of the fields."""

    size: int = 2  # bytes per number
    rows: int = 64
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    keys: int = 64 * 4096  # sum of kv_lens
    pairs: int = 64 * 4096  # (row, key) pairs that attention computes
    n_in: int = 4096
    n_out: int = 28_672
    vocab: int = 151_936
    forbidden: int = 150_000  # tokens that one mask forbids
    masks: int = 64
    words: int = 4748  # words of 32 bits per mask
    cells: int = 64 * 500  # logits that are edited
    n_pools: int = 2
    slots: int = 64  # slots that are copied, in each pool
    adapters: int = 16
    rank: int = 16
    experts: int = 128  # experts that at least one row goes through
    experts_of_row: int = 8


Cost = Callable[[OpSizes], float]


class Op(NamedTuple):
    """An entry of the table of ops: the shapes and the cost of the op, and the files that implement it."""

    name: str
    shapes: str  # shapes of the op's arguments and its result
    n_bytes: Cost  # bytes moved to and from memory, at least
    n_flops: Cost
    on_cpu: str = "cpu"  # the file that serves CPU tensors
    on_gpu: str = "kernel"  # the file that serves GPU tensors
    folder: str = "small_ops"


_OPS = (
    Op(
        "attention",
        "q [rows, heads, dim], pools [pages, page, kv_heads, dim] -> [rows, heads, dim]",
        lambda s: s.size * s.dim * (2 * s.rows * s.heads + 2 * s.kv_heads * s.keys),
        lambda s: 4 * s.heads * s.dim * s.pairs,
        folder="attention",
    ),
    Op(
        "write_kv",
        "k, v [rows, kv_heads, dim], slots [rows] -> pools",
        lambda s: 4 * s.size * s.rows * s.kv_heads * s.dim,
        lambda s: 0,
        "reference",
        folder="write_kv",
    ),
    Op(
        "copy_pages",
        "pools [pages, page, kv_heads, dim], copies [n, 3] -> pools",
        lambda s: 2 * s.size * s.n_pools * s.slots * s.kv_heads * s.dim,
        lambda s: 0,
        "reference",
    ),
    Op(
        "copy_slots",
        "pools [pages, page, kv_heads, dim], sources, destinations [paths, steps] -> pools",
        lambda s: 2 * s.size * s.n_pools * s.slots * s.kv_heads * s.dim,
        lambda s: 0,
        "reference",
    ),
    Op(
        "linear",
        "x [rows, n_in], weight [n_out, n_in], bias [n_out] -> [rows, n_out]",
        lambda s: s.size * (s.n_in * s.n_out + s.rows * (s.n_in + s.n_out)),
        lambda s: 2 * s.rows * s.n_in * s.n_out,
        on_gpu="reference",
        folder="linear",
    ),
    Op(
        "add_lora",
        "y [rows, n_out], x [rows, n_in], adapters of rank r -> y",
        lambda s: s.size * (s.adapters * s.rank * (s.n_in + s.n_out) + s.rows * (s.n_in + 2 * s.n_out)),
        lambda s: 2 * s.rows * s.rank * (s.n_in + s.n_out),
        on_gpu="reference",
        folder="lora",
    ),
    Op(
        "experts",
        "x [rows, n_in], experts [n_out, n_in] and [n_in, n_out / 2], index, weights [rows, k] -> [rows, n_in]",
        lambda s: s.size * (1.5 * s.experts * s.n_in * s.n_out + 2 * s.rows * s.n_in),
        lambda s: 3 * s.rows * s.experts_of_row * s.n_in * s.n_out,
        folder="moe",
    ),
    Op(
        "edit_logits",
        "logits [rows, vocab], rows, tokens, factors, shifts [n] -> logits",
        lambda s: 32 * s.cells,
        lambda s: 3 * s.cells,
    ),
    Op(
        "mask_logits",
        "logits [rows, vocab], masks [masks, words], which [rows] -> logits",
        lambda s: 4 * s.rows * s.forbidden + 4 * s.masks * s.words,
        lambda s: 0,
    ),
    Op(
        "draw",
        "logits [rows, vocab], rows: 7 x [rows] -> tokens [rows]",
        lambda s: 4 * s.rows * s.vocab,
        lambda s: 8 * s.rows * s.vocab,  # an eighth at temperature 0; about 100 * rows * vocab with top-k or top-p
        folder="draw",
    ),
    Op(
        "rms_norm",
        "x, residual [all_rows, dim], weight [dim], rows [rows] -> norm, sum [rows, dim]",
        lambda s: 4 * s.size * s.rows * s.dim,
        lambda s: 5 * s.rows * s.dim,
    ),
    Op(
        "rope_kv",
        "qkv [rows, heads + 2 * kv_heads, dim], cos, sin [rows, dim / 2], slots [rows] -> q, pools",
        lambda s: 2 * s.size * s.rows * (s.heads + 2 * s.kv_heads) * s.dim,
        lambda s: 8 * s.rows * (s.heads + s.kv_heads) * s.dim,
        folder="rope_kv",
    ),
    Op(
        "silu_mul",
        "gate_up [rows, 2 * dim] -> [rows, dim]",
        lambda s: 3 * s.size * s.rows * s.dim,
        lambda s: 5 * s.rows * s.dim,
    ),
)
TABLE = {op.name: op for op in _OPS}


@functools.cache
def implementation(op: str, device: str) -> Callable[..., Any]:
    """The function that serves `op` for tensors of a device type ("cpu", "cuda", ...)."""
    if device == "cuda" or (device == "cpu" and INTERPRETED):
        file = TABLE[op].on_gpu
    else:
        file = TABLE[op].on_cpu if device == "cpu" else "reference"
    function: Callable[..., Any] = getattr(importlib.import_module(f"banyan.kernels.{TABLE[op].folder}.{file}"), op)
    return function


def attention(q: Tensor, k_pool: Pool, v_pool: Pool, ragged: Ragged, options: AttentionOptions) -> Tensor:
    """Causal attention of ragged rows over paged KV; see `attention/reference.py`."""
    ragged.check(options.window)
    out: Tensor = implementation("attention", q.device.type)(q, k_pool, v_pool, ragged, options)
    return out


def write_kv(k: Tensor, v: Tensor, k_pool: Pool, v_pool: Pool, slots: Tensor) -> None:
    """Writes each row's keys and values to its slot, in place; see `write_kv/reference.py`."""
    implementation("write_kv", k.device.type)(k, v, k_pool, v_pool, slots)


def copy_pages(pools: Sequence[Tensor], copies: Tensor) -> None:
    """For each (source page, destination page, n_slots) of `copies`, copies the first n_slots slots in every pool.

    Changes the pools in place; see `small_ops/reference.py`."""
    if pools:
        implementation("copy_pages", pools[0].device.type)(pools, copies)


def copy_slots(pools: Sequence[Tensor], sources: Tensor, destinations: Tensor) -> None:
    """Copies K and V of accepted draft tokens, in each pool, from the slots where they were computed to the slots of
    their final positions. See `small_ops/reference.py`."""
    if pools:
        implementation("copy_slots", pools[0].device.type)(pools, sources, destinations)


def edit_logits(logits: Tensor, rows: Tensor, tokens: Tensor, factors: Tensor, shifts: Tensor) -> None:
    """Applies penalties and biases to single logits, in place; see `small_ops/reference.py`."""
    implementation("edit_logits", logits.device.type)(logits, rows, tokens, factors, shifts)


def mask_logits(logits: Tensor, masks: Tensor, which: Tensor) -> None:
    """Sets the logits of forbidden tokens to -inf, in place; see `small_ops/reference.py`."""
    implementation("mask_logits", logits.device.type)(logits, masks, which)


def draw(logits: Tensor, rows: Rows) -> Tensor:
    """Draws one token from each row of logits; may overwrite the logits. See `draw/reference.py`."""
    tokens: Tensor = implementation("draw", logits.device.type)(logits, rows)
    return tokens


def linear(x: Tensor, weight: AnyWeight, bias: Tensor | None = None) -> Tensor:
    """x times the transposed weight, plus bias; see `linear/reference.py` and `pack`."""
    if isinstance(weight, Packed):
        return cpu_linear(x, weight, bias)
    if isinstance(weight, Tensor):
        return reference_linear(x, weight, bias)
    from banyan.kernels.linear import kernel, w8a8

    return w8a8.linear(x, weight, bias) if w8a8.serves(weight) else kernel.linear(x, weight, bias)


def add_lora(y: Tensor, x: Tensor, adapted: AdaptedRows, layer: int, linear: int, product: Product) -> None:
    """Adds to each row of y, in place, the output of its LoRA adapter for the same row of x; see `lora/reference.py`.
    product: the matrix product for implementations that do not have their own."""
    implementation("add_lora", y.device.type)(y, x, adapted, layer, linear, product)


def experts(x: Tensor, all_experts: Experts, index: Tensor, weights: Tensor) -> Tensor:
    """Sends each row of x through its experts. Returns the weighted sums of their outputs; see `moe/reference.py`."""
    out: Tensor = implementation("experts", x.device.type)(x, all_experts, index, weights)
    return out


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, *, rows: Tensor | None = None) -> Tensor: ...
@overload
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, rows: Tensor | None = None) -> Any:
    """RMS norm of x (or of the given rows of x) over its last axis. With `residual`, returns (norm of the sum, the
    sum). See `small_ops/reference.py`."""
    return implementation("rms_norm", x.device.type)(x, weight, eps, residual, rows)


def rope_kv(
    qkv: Tensor, norms: Norms, eps: float, cos: Tensor, sin: Tensor, k_pool: Pool, v_pool: Pool, slots: Tensor
) -> Tensor:
    """QK norm and rotary embedding. Returns the queries; writes the keys and the values to the pools. See
    `rope_kv/reference.py`."""
    q: Tensor = implementation("rope_kv", qkv.device.type)(qkv, norms, eps, cos, sin, k_pool, v_pool, slots)
    return q


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of a fused projection; see `small_ops/reference.py`."""
    out: Tensor = implementation("silu_mul", gate_up.device.type)(gate_up)
    return out
