"""Calls the attention of the C++ library (native/attention.h)."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from banyan.kernels.attention.plan import MERGE_KEYS, AttentionPlan, Tiles, plan
from banyan.kernels.attention.ragged import AttentionOptions, Ragged
from banyan.kernels.kv_layout import Pool, address, native_kind, pointers
from banyan.kernels.native import threads

LOG2E = 1.4426950408889634
CHUNK_ROWS = 192  # rows of a tile (tokens times heads of a group); it converts K and V of a block once
MAX_ROWS = 256  # rows of any tile, at most, as in items.h
MAX_DIM = 576  # dimensions of a head, at most, as in items.h
SMALL_WORK = 1 << 17  # multiply-adds; below, waking a second thread costs more than it saves

_POINTERS = (
    *("q", "first_q", "k", "v", "out", "sinks", "table", "rows", "merges", "small", "large", "position", "ancestors"),
    *("slots", "part", "lse", "k_scale", "v_scale"),
)
_SIZES = (
    *("s_table", "n_heads", "n_kv_heads", "dim", "v_dim", "page", "window", "is_exact"),
    *("n_small", "n_large", "n_merges", "n_threads"),
)


class AttentionCall(ctypes.Structure):
    """The arguments of one attention call, laid out as the C++ struct `Call` of items.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("s_q", "s_out", "s_page", "s_slot")),
        *((name, ctypes.c_int32) for name in _SIZES),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
    )


class NativeWork(NamedTuple):
    """A plan for the C++ library."""

    plan: AttentionPlan  # keeps the arrays alive that `fields` points to
    fields: dict[str, int]  # of AttentionCall: the plan's tables and their lengths, and the number of threads


def attend(
    library: ctypes.CDLL, q: Tensor, k_pool: Pool, v_pool: Pool, ragged: Ragged, options: AttentionOptions
) -> Tensor:
    """Causal attention over paged KV by the C++ library. Arguments and result as in `reference.attention`; the inputs
    must be such that `cpu.is_known` returns True."""
    n_heads, dim = q.shape[1:]
    page_size, n_kv_heads = k_pool.shape[1:3]
    out = q.new_empty(len(q), n_heads, v_pool.shape[3])
    call, _part = prepare(ragged, n_heads, n_kv_heads, dim, page_size, options, v_pool.shape[3])
    if options.sinks is not None:
        sinks = options.sinks.to(torch.float32).contiguous()
        call.sinks = sinks.data_ptr()
    (call.k, call.k_scale), (call.v, call.v_scale) = pointers(k_pool), pointers(v_pool)
    call.q, call.out, call.s_q = q.data_ptr(), out.data_ptr(), q.stride(0)
    if options.first_q is not None:
        call.first_q = options.first_q.data_ptr()
    library.banyan_attention(q.dtype == torch.bfloat16, native_kind(k_pool, v_pool), ctypes.addressof(call))
    return out


def prepare(
    ragged: Ragged, n_heads: int, n_kv_heads: int, dim: int, page: int, options: AttentionOptions, v_dim: int = 0
) -> tuple[AttentionCall, Tensor]:
    """Prepares a call of the C++ library for contiguous rows of q. Returns the arguments of the call, and a buffer for
    partial results. The caller must keep both, and `ragged`, until the library has returned.

    Sets all fields of the call except q, first_q, out, sinks and the pools: the caller sets these. v_dim: numbers of a
    value; 0: `dim`.
    """
    scale, softcap, window, _, first, _ = options
    v_dim = v_dim or dim
    work = _work(ragged, n_heads, n_kv_heads, dim, window, first)
    n_partials = work.plan.n_partials * n_heads
    part = torch.empty(n_partials * (v_dim + 1))  # one buffer: the results, then their log-sum-exps
    call = AttentionCall(
        table=ragged.page_table.data_ptr(),
        position=ragged.position.data_ptr(),
        ancestors=address(ragged.ancestors),
        slots=ragged.slots.data_ptr(),
        part=part.data_ptr(),
        lse=part.data_ptr() + 4 * n_partials * v_dim,
        s_q=n_heads * dim,
        s_out=n_heads * v_dim,
        s_page=page * n_kv_heads * dim,
        s_slot=n_kv_heads * dim,
        s_table=ragged.page_table.stride(0),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        dim=dim,
        v_dim=v_dim,
        page=page,
        window=window,
        is_exact=ragged.deterministic,
        scale=scale * LOG2E * (2.0 / softcap if softcap else 1.0),
        softcap=softcap,
        **work.fields,
    )
    return call, part


def _work(ragged: Ragged, n_heads: int, n_kv_heads: int, dim: int, window: int, first: int) -> NativeWork:
    """Plans the attention of a batch for the C++ library. Stores the plan in `ragged.plans`, where the step's other
    layers find it if they have the same arguments. first: see `AttentionOptions`."""
    n_threads = threads.n_max()
    key = ("native", n_heads, n_kv_heads, dim, window, first, n_threads)
    if key not in ragged.plans:
        pairs = sum(q * kv for q, kv in zip(ragged.q_lens, ragged.kv_lens, strict=True))
        if pairs * n_heads * dim < SMALL_WORK:
            n_threads = 1
        group = n_heads // n_kv_heads
        result = plan(
            ragged.q_lens,
            ragged.kv_lens,
            tiles=Tiles(1, max(1, CHUNK_ROWS // group), MAX_ROWS // group, few=MAX_ROWS // n_heads),
            programs=(1, n_kv_heads),
            n_processors=n_threads,
            window=window,
            first=first,
            shared=ragged.subtrees,
            merge_keys=MERGE_KEYS["cpu"],
            deterministic=ragged.deterministic,
        )
        fields = {"rows": result.rows.ctypes.data, "n_threads": n_threads}
        for name, table in (("small", result.small), ("large", result.large), ("merges", result.merges)):
            fields |= {name: table.ctypes.data, f"n_{name}": len(table)}
        ragged.plans[key] = NativeWork(result, fields)
    work: NativeWork = ragged.plans[key]
    return work
