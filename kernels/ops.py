"""The table of ops: what the rest of Banyan calls, what it costs, and which implementation runs where.

On a GPU an op is its Triton `kernel.py`; on a CPU its `cpu.py`, where one pays, or its `reference.py`. In a process
with TRITON_INTERPRET=1 the Triton kernels serve CPU tensors too, as slow Python: for tests. No op waits for the device.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

from torch import Tensor

from banyan.kernels.accept.reference import Accepted
from banyan.kernels.attention.ragged import Ragged, ragged
from banyan.kernels.device import INTERPRETED
from banyan.kernels.draw.rows import Rows
from banyan.kernels.kv_layout import Pool
from banyan.kernels.linear.cpu import linear as cpu_linear
from banyan.kernels.linear.cpu import pack
from banyan.kernels.linear.packed import Packed
from banyan.kernels.linear.reference import linear as reference_linear

__all__ = [
    "TABLE",
    "Accepted",
    "Op",
    "Packed",
    "Pool",
    "Ragged",
    "accept",
    "attention",
    "copy_pages",
    "copy_slots",
    "draw",
    "edit_logits",
    "linear",
    "mask_logits",
    "pack",
    "ragged",
    "rms_norm",
    "rope_kv",
    "silu_mul",
    "write_kv",
]


class Op(NamedTuple):
    """What an op takes and costs. Costs are formulas in the sizes that `shapes` and `where` name, and `size`, bytes per
    number."""

    name: str
    shapes: str
    n_bytes: str  # moved, at least
    n_flops: str
    on_cpu: str  # file that serves CPU tensors
    on_gpu: str = "kernel"  # and the one for a GPU's
    where: str = ""


TABLE = {
    op.name: op
    for op in (
        Op(
            "attention",
            "q [rows, heads, dim], pools [pages, page, kv_heads, dim] -> [rows, heads, dim]",
            "size * dim * (2 * rows * heads + 2 * kv_heads * keys)",
            "4 * heads * dim * pairs",
            "cpu",
            where="keys: sum of kv_lens; pairs: (row, key) that a row sees",
        ),
        Op(
            "write_kv",
            "k, v [rows, kv_heads, dim], slots [rows] -> pools",
            "4 * size * rows * kv_heads * dim",
            "0",
            "reference",
        ),
        Op(
            "copy_pages",
            "pools [pages, page, kv_heads, dim], copies [n, 3] -> pools",
            "2 * size * n_pools * slots * kv_heads * dim",
            "0",
            "reference",
            where="slots: sum of n_slots",
        ),
        Op(
            "copy_slots",
            "pools [pages, page, kv_heads, dim], sources, destinations [paths, steps] -> pools",
            "2 * size * n_pools * slots * kv_heads * dim",
            "0",
            "reference",
            where="slots: those that move",
        ),
        Op(
            "accept",
            "drawn, tokens, parents, slots [rows], starts [n + 1] -> said, sources, destinations [n, width]",
            "28 * rows + 24 * n * width",
            "0",
            "reference",
        ),
        Op(
            "linear",
            "x [rows, n_in], weight [n_out, n_in], bias [n_out] -> [rows, n_out]",
            "size * (n_in * n_out + rows * (n_in + n_out))",
            "2 * rows * n_in * n_out",
            "cpu",
            "reference",
        ),
        Op(
            "edit_logits",
            "logits [rows, vocab], rows, tokens, factors, shifts [n] -> logits",
            "32 * n",
            "3 * n",
            "cpu",
        ),
        Op(
            "mask_logits",
            "logits [rows, vocab], masks [masks, words], which [rows] -> logits",
            "size * rows * forbidden + 4 * masks * words",
            "0",
            "cpu",
            where="forbidden: tokens of a row",
        ),
        Op(
            "draw",
            "logits [rows, vocab], rows: 7 x [rows] -> tokens [rows]",
            "4 * rows * vocab",
            "8 * rows * vocab",
            "cpu",
            where="at temperature 0 an eighth of the flops; with top-k or top-p some 100 * rows * vocab",
        ),
        Op(
            "rms_norm",
            "x, residual [all_rows, dim], weight [dim], rows [rows] -> norm, sum [rows, dim]",
            "4 * size * rows * dim",
            "5 * rows * dim",
            "cpu",
        ),
        Op(
            "rope_kv",
            "qkv [rows, heads + 2 * kv_heads, dim], cos, sin [rows, dim / 2], slots [rows] -> q, pools",
            "2 * size * rows * (heads + 2 * kv_heads) * dim",
            "8 * rows * (heads + kv_heads) * dim",
            "cpu",
        ),
        Op(
            "silu_mul",
            "gate_up [rows, 2 * dim] -> [rows, dim]",
            "3 * size * rows * dim",
            "5 * rows * dim",
            "cpu",
        ),
    )
}


@functools.cache
def implementation(op: str, device: str) -> Callable[..., Any]:
    """The function that serves `op` for tensors of a device type ("cpu", "cuda", ...)."""
    if device == "cuda" or (device == "cpu" and INTERPRETED):
        file = TABLE[op].on_gpu
    else:
        file = TABLE[op].on_cpu if device == "cpu" else "reference"
    function: Callable[..., Any] = getattr(importlib.import_module(f"banyan.kernels.{op}.{file}"), op)
    return function


def attention(
    q: Tensor,
    k_pool: Pool,
    v_pool: Pool,
    ragged: Ragged,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of ragged rows over paged KV; see `attention/reference.py` for shapes and options."""
    ragged.check(window)
    run = implementation("attention", q.device.type)
    out: Tensor = run(q, k_pool, v_pool, ragged, scale=scale, softcap=softcap, window=window, sinks=sinks)
    return out


def write_kv(k: Tensor, v: Tensor, k_pool: Pool, v_pool: Pool, slots: Tensor) -> None:
    """Write each row's keys and values to its slot, in place; see `write_kv/reference.py`."""
    implementation("write_kv", k.device.type)(k, v, k_pool, v_pool, slots)


def copy_pages(pools: Sequence[Tensor], copies: Tensor) -> None:
    """Copy the first slots of pages to other pages, in place; see `copy_pages/reference.py`."""
    if pools:
        implementation("copy_pages", pools[0].device.type)(pools, copies)


def copy_slots(pools: Sequence[Tensor], sources: Tensor, destinations: Tensor) -> None:
    """Copy slots to other slots along paths of drafts, in place; see `copy_slots/reference.py`."""
    if pools:
        implementation("copy_slots", pools[0].device.type)(pools, sources, destinations)


def accept(drawn: Tensor, tokens: Tensor, parents: Tensor, starts: Tensor, slots: Tensor, width: int) -> Accepted:
    """What was drawn along the right path of each tree of drafts; see `accept/reference.py`."""
    run = implementation("accept", drawn.device.type)
    out: Accepted = run(drawn, tokens, parents, starts, slots, width)
    return out


def edit_logits(logits: Tensor, rows: Tensor, tokens: Tensor, factors: Tensor, shifts: Tensor) -> None:
    """Divide and shift cells of logits, in place; see `edit_logits/reference.py`."""
    implementation("edit_logits", logits.device.type)(logits, rows, tokens, factors, shifts)


def mask_logits(logits: Tensor, masks: Tensor, which: Tensor) -> None:
    """-inf for forbidden tokens, in place; see `mask_logits/reference.py`."""
    implementation("mask_logits", logits.device.type)(logits, masks, which)


def draw(logits: Tensor, rows: Rows) -> Tensor:
    """One token per row of logits, which may be overwritten; see `draw/reference.py`."""
    tokens: Tensor = implementation("draw", logits.device.type)(logits, rows)
    return tokens


def linear(x: Tensor, weight: Tensor | Packed, bias: Tensor | None = None) -> Tensor:
    """x times weight, transposed, plus bias; see `linear/reference.py`. A weight that stays may be packed once."""
    out: Tensor = cpu_linear(x, weight, bias) if isinstance(weight, Packed) else reference_linear(x, weight, bias)
    return out


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, *, rows: Tensor | None = None) -> Tensor: ...
@overload
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, rows: Tensor | None = None) -> Any:
    """Norm of x, or of some rows, over its last axis; with `residual`, (norm of the sum, the sum); see
    `rms_norm/reference.py`."""
    return implementation("rms_norm", x.device.type)(x, weight, eps, residual, rows)


def rope_kv(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    k_pool: Pool,
    v_pool: Pool,
    slots: Tensor,
) -> Tensor:
    """Norm and rotary embedding of queries (returned) and keys (written to KV); see `rope_kv/reference.py`."""
    q: Tensor = implementation("rope_kv", qkv.device.type)(qkv, norms, eps, cos, sin, k_pool, v_pool, slots)
    return q


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of a fused projection; see `silu_mul/reference.py`."""
    out: Tensor = implementation("silu_mul", gate_up.device.type)(gate_up)
    return out
