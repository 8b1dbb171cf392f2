"""A call of the compiled library's attention."""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from banyan.kernels.attention.plan import MERGE_KEYS, Tiles, plan
from banyan.kernels.attention.ragged import Ragged
from banyan.kernels.kv_layout import Pool
from banyan.kernels.native import kv_pointers, threads

LOG2E = 1.4426950408889634
ROWS = 192  # of a chunk's tile: tokens times heads of a group; K and V of a block are prepared once for all of them
MAX_ROWS = 256  # of any tile, as attention.h has it
SMALL_WORK = 1 << 17  # multiply-adds below which waking a second thread costs more than it saves


_POINTERS = ("q", "k", "v", "out", "sinks", "table", "rows", "position", "seen", "part", "lse", "k_scale", "v_scale")


class AttentionCall(ctypes.Structure):
    """Call of attention.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("s_q", "s_out", "s_page", "s_slot")),
        *((name, ctypes.c_int32) for name in ("s_table", "n_heads", "n_kv_heads", "dim", "page", "window", "is_exact")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
    )


class NativeWork(NamedTuple):
    """A plan as the library takes it."""

    tables: tuple[Any, ...]  # arrays whose memory `arguments` points to
    rows: int  # pointer
    arguments: tuple[int, ...]  # small, n_small, large, n_large, merges, n_merges, n_threads
    n_partials: int


def attend(
    library: ctypes.CDLL,
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
    """See `reference.attention`; for inputs that the library knows (`cpu.is_known`)."""
    n_rows, n_heads, dim = q.shape
    _, page_size, n_kv_heads, _ = k_pool.shape
    out = q.new_empty((n_rows, n_heads, dim))
    call, work, _part = described(ragged, n_heads, n_kv_heads, dim, page_size, window, scale, softcap)
    if sinks is not None:
        sinks = sinks.to(torch.float32).contiguous()
        call.sinks = sinks.data_ptr()
    (call.k, call.k_scale), (call.v, call.v_scale) = kv_pointers.pointers(k_pool), kv_pointers.pointers(v_pool)
    call.q, call.out, call.s_q = q.data_ptr(), out.data_ptr(), q.stride(0)
    library.banyan_attention(
        q.dtype == torch.bfloat16, kv_pointers.kind(k_pool), ctypes.addressof(call), *work.arguments
    )
    return out


def described(
    ragged: Ragged, n_heads: int, n_kv_heads: int, dim: int, page: int, window: int, scale: float, softcap: float = 0.0
) -> tuple[AttentionCall, NativeWork, Tensor]:
    """A call without its tensors (rows of q are taken to be contiguous), its plan, and the memory that it points to."""
    work = laid_out(ragged, n_heads, n_kv_heads, dim, window)
    n_partials = work.n_partials * n_heads
    part = torch.empty(n_partials * (dim + 1))  # one buffer: results, then their log-sum-exps
    call = AttentionCall(
        table=ragged.page_table.data_ptr(),
        rows=work.rows,
        position=ragged.position.data_ptr(),  # type: ignore[union-attr]  # `ragged` gives one
        seen=None if ragged.seen is None else ragged.seen.data_ptr(),
        part=part.data_ptr(),
        lse=part.data_ptr() + 4 * n_partials * dim,
        s_q=n_heads * dim,
        s_out=n_heads * dim,
        s_page=page * n_kv_heads * dim,
        s_slot=n_kv_heads * dim,
        s_table=ragged.page_table.stride(0),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        dim=dim,
        page=page,
        window=window,
        is_exact=ragged.deterministic,
        scale=scale * LOG2E * (2.0 / softcap if softcap else 1.0),
        softcap=softcap,
    )
    return call, work, part


def laid_out(ragged: Ragged, n_heads: int, n_kv_heads: int, dim: int, window: int) -> NativeWork:
    """A batch's plan, made once for the layers that share `window`."""
    n_threads = threads.most()
    key = ("native", n_heads, n_kv_heads, dim, window, n_threads)
    plans = {} if ragged.plans is None else ragged.plans
    if key not in plans:
        pairs = sum(q * kv for q, kv in zip(ragged.q_lens, ragged.kv_lens, strict=True))
        if pairs * n_heads * dim < SMALL_WORK:
            n_threads = 1
        group = n_heads // n_kv_heads
        made = plan(
            ragged.q_lens,
            ragged.kv_lens,
            tiles=Tiles(1, max(1, ROWS // group), MAX_ROWS // group, few=MAX_ROWS // n_heads),
            programs=(1, n_kv_heads),
            n_processors=n_threads,
            window=window,
            shared=ragged.subtrees,
            merge_keys=MERGE_KEYS["cpu"],
            deterministic=ragged.deterministic,
        )
        tables = made.small, made.large, made.merges
        arguments = (x for table in tables for x in (table.ctypes.data, len(table)))
        plans[key] = NativeWork(made[:4], made.rows.ctypes.data, (*arguments, n_threads), made.n_partials)
    work: NativeWork = plans[key]
    return work
