"""Attention over work items in Triton: one kernel for decodes and chunks, and one that merges split reads.

An item is a few rows and a range of keys (`plan.py`): decodes, pieces of a chunk, or the rows of all requests that
share a subtree. The query heads that share a KV head are packed into the tile's rows, so K and V are read once per
group. Scores are scaled for a softmax with base 2. If several items read keys for one row, each writes a normalised
partial result and its log-sum-exp, and `_merge` combines them (FlashDecoding; Dao et al., 2023).

Page ids are loaded one block ahead: Triton does not pipeline a load whose address depends on another load of the same
iteration, so K and V would be single-buffered with any number of stages.

Latent attention (MLA) is a variant of this kernel: a block of latents is loaded once, as keys and as values, and a
score is the sum of two products, over the latent and over the ROTATED numbers after it. All heads read the same key.
The heads are split among programs, because sums of 512 numbers for 128 heads would not fit into registers.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.attention.plan import LARGE_SPLIT, MERGE_KEYS, AttentionPlan, Tiles, plan
from banyan.kernels.attention.ragged import AttentionOptions, Ragged, to_device
from banyan.kernels.device import architecture, n_processors
from banyan.kernels.kv_layout import Pool, group_of, is_latent
from banyan.kernels.write_kv import kernel as write_kv
from banyan.kernels.write_kv.kernel import widen

LOG2E = 1.4426950408889634
MANY_ROWS = 1024  # of a batch; from here on, a tile with more rows is faster


@triton.jit
def _block(
    b_q, b_q_rotated, b_max, b_sum, b_acc, b_page, p_k, p_v, p_k_scale, p_v_scale, s_page, s_slot, s_scale, b_last,
    b_oldest, b_ancestors, o_key, o_d, end, tail, scale,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROTATED: tl.constexpr, BLOCK_R: tl.constexpr, PAGE: tl.constexpr,
    KIND: tl.constexpr, GROUP: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, TREE: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attends to one block of keys. Returns the updated running maximum of the scores (b_max), sum of the weights
    (b_sum) and weighted sum of the values (b_acc), as in FlashAttention."""
    o_slot = b_page * s_page + (o_key % PAGE) * s_slot
    p_kt = p_k + o_slot[None, :] + o_d[:, None]
    p_vs = p_v + o_slot[:, None] + o_d[None, :]
    if ROTATED > 0:
        o_r = tl.arange(0, BLOCK_R)
        p_rotated = p_k + o_slot[None, :] + (DIM + o_r)[:, None]
        b_rotated = tl.load(p_rotated, mask=(o_key < end)[None, :] & (o_r < ROTATED)[:, None], other=0.0)
        b_rotated = widen(b_rotated, KIND).to(b_q.dtype)
        b_v = tl.load(p_vs, mask=(o_key < end)[:, None] & (o_d < DIM)[None, :], other=0.0)
    elif GROUP > 0:
        b_v = _halves(b_page, p_v, p_v_scale, o_slot, s_scale, o_key, end, DIM, BLOCK_D, PAGE, GROUP).to(b_q.dtype)
        b_k = tl.load(p_kt, mask=(o_key < end)[None, :] & (o_d < DIM)[:, None], other=0.0)
    elif MASKED:  # slots past the end may hold anything, even NaN
        b_k = tl.load(p_kt, mask=(o_key < end)[None, :] & (o_d < DIM)[:, None], other=0.0)
        b_v = tl.load(p_vs, mask=(o_key < end)[:, None] & (o_d < DIM)[None, :], other=0.0)
    elif BLOCK_D == DIM:
        b_k = tl.load(p_kt)
        b_v = tl.load(p_vs)
    else:
        b_k = tl.load(p_kt, mask=(o_d < DIM)[:, None], other=0.0)
        b_v = tl.load(p_vs, mask=(o_d < DIM)[None, :], other=0.0)
    if KIND > 0:  # apply a key's scale to its score, and a value's scale to its weight
        o_scale = (b_page * PAGE + o_key % PAGE) * s_scale
        b_k_scale = tl.load(p_k_scale + o_scale, mask=o_key < end, other=0.0)
        if GROUP == 0:
            b_v_scale = tl.load(p_v_scale + o_scale, mask=o_key < end, other=0.0)
            b_v = widen(b_v, KIND).to(b_q.dtype)
        if ROTATED == 0:
            b_k = widen(b_k, KIND).to(b_q.dtype)
    if ROTATED > 0:
        b_score = tl.dot(b_q_rotated, b_rotated, input_precision=PRECISION)
        b_score = tl.dot(b_q, tl.trans(b_v), b_score, input_precision=PRECISION) * scale
    else:
        b_score = tl.dot(b_q, b_k, input_precision=PRECISION) * scale
    if KIND > 0:
        b_score *= b_k_scale[None, :]
    if SOFTCAP > 0.0:  # scale holds 2 / softcap: tanh(x) = 1 - 2 / (exp(2x) + 1)
        b_score = (1.0 - 2.0 / (tl.exp2(b_score) + 1.0)) * (SOFTCAP * 1.4426950408889634)
    if MASKED:
        m_seen = (o_key[None, :] <= b_last[:, None]) & (o_key < end)[None, :]
        if WINDOW > 0:
            m_seen = m_seen & (o_key[None, :] >= b_oldest[:, None])
        if TREE:
            o_bit = (o_key - tail)[None, :]
            b_bit = (b_ancestors[:, None] >> tl.minimum(tl.maximum(o_bit, 0), 63).to(tl.int64)) & 1
            m_seen = m_seen & ((o_bit < 0) | (b_bit != 0))
        b_score = tl.where(m_seen, b_score, float("-inf"))

    b_top = tl.maximum(b_max, tl.max(b_score, 1))
    b_base = tl.where(b_top == float("-inf"), 0.0, b_top) if MASKED else b_top  # a row may have attended to no key yet
    b_weight = tl.exp2(b_score - b_base[:, None])
    b_shrink = tl.exp2(b_max - b_base)
    b_sum = b_sum * b_shrink + tl.sum(b_weight, 1)
    b_acc = b_acc * b_shrink[:, None]
    if KIND > 0 and GROUP == 0 and b_v.dtype == tl.float16:  # relative to the largest scale, to stay in float16's range
        largest = tl.max(b_v_scale, 0)
        b_weight *= (b_v_scale / tl.where(largest > 0.0, largest, 1.0))[None, :]
        b_acc += tl.dot(b_weight.to(b_v.dtype), b_v, input_precision=PRECISION) * largest
    else:
        if KIND > 0 and GROUP == 0:
            b_weight *= b_v_scale[None, :]
        b_acc = tl.dot(b_weight.to(b_v.dtype), b_v, b_acc, input_precision=PRECISION)
    return b_top, b_sum, b_acc


@triton.jit
def _halves(
    b_page, p_v, p_v_scale, o_slot, s_scale, o_key, end,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Loads a block of 4-bit values, and dequantises them to float32 [keys, BLOCK_D]."""
    N_GROUPS: tl.constexpr = BLOCK_D // GROUP
    m_key = (o_key < end)[:, None]
    o_byte, o_group = tl.arange(0, BLOCK_D // 2), tl.arange(0, N_GROUPS)
    m_byte = m_key & (o_byte < DIM // 2)[None, :]
    b_bytes = tl.load(p_v + (o_slot // 2)[:, None] + o_byte[None, :], mask=m_byte, other=0)
    o_scale = (b_page * PAGE + o_key % PAGE) * (s_scale * (DIM // GROUP) * 2)
    p_by = p_v_scale + o_scale[:, None] + 2 * o_group[None, :]
    m_group = m_key & (o_group < DIM // GROUP)[None, :]
    b_scale = tl.load(p_by, mask=m_group, other=0.0).to(tl.float32)
    b_low = tl.load(p_by + 1, mask=m_group, other=0.0).to(tl.float32)
    b_v = tl.join(b_bytes & 15, b_bytes >> 4).to(tl.float32)
    b_v = tl.reshape(b_v, (b_bytes.shape[0], N_GROUPS, GROUP)) * b_scale[:, :, None] + b_low[:, :, None]
    return tl.reshape(b_v, (b_bytes.shape[0], BLOCK_D))


@triton.jit
def _attend(
    p_q, p_first_q, p_k, p_v, p_k_scale, p_v_scale, p_out, p_part, p_lse, p_sinks, p_items, p_rows, p_table, p_position,
    p_ancestors, s_q_row, s_q_head, s_page, s_slot, s_head, s_scale, s_out_row, s_out_head, s_table, scale,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROTATED: tl.constexpr, BLOCK_R: tl.constexpr,
    PAGE: tl.constexpr, KIND: tl.constexpr, V_GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EDGE_STAGES: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, FIRST: tl.constexpr, TREE: tl.constexpr,
    SINKS: tl.constexpr,
    ALL_MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The kernel: computes one item (program_id 0) for one KV head (program_id 1), and stores final or partial results.

    A row of the tile is one row of the item with one query head of the group. DIM: how many numbers a value has. A key
    has as many; but with latent attention it has ROTATED more, after those of its value. ROTATED is 0 without latent
    attention.
    """
    i_item, i_head = tl.program_id(0), tl.program_id(1)
    p_item = p_items + i_item.to(tl.int64) * 8
    first, n_rows, request = tl.load(p_item), tl.load(p_item + 1), tl.load(p_item + 2)
    start, end, position, tail = tl.load(p_item + 3), tl.load(p_item + 4), tl.load(p_item + 5), tl.load(p_item + 6)

    o_m = tl.arange(0, BLOCK_M)
    o_n = tl.arange(0, BLOCK_N)
    o_d = tl.arange(0, BLOCK_D)
    b_row = o_m // GROUP  # of the item
    b_head = i_head * GROUP + o_m % GROUP
    m_row = b_row < n_rows
    m_q = m_row[:, None] & (o_d < DIM)[None, :]
    p_entry = p_rows + (first + b_row).to(tl.int64) * 2
    o_row = tl.load(p_entry, mask=m_row, other=0).to(tl.int64)
    o_q = (o_row * s_q_row + b_head * s_q_head)[:, None]
    m_first = m_row
    if FIRST:  # one of the two loads reads nothing
        b_which = o_m * 0 + tl.load(p_item + 7)
        m_own, m_first = m_row & (b_which == 0), m_row & (b_which != 0)
        b_q = tl.load(p_q + o_q + o_d[None, :], mask=m_own[:, None] & (o_d < DIM)[None, :], other=0.0)
        b_q += tl.load(p_first_q + o_q + o_d[None, :], mask=m_first[:, None] & (o_d < DIM)[None, :], other=0.0)
    else:
        b_q = tl.load(p_q + o_q + o_d[None, :], mask=m_q, other=0.0)
    b_q_rotated = b_q
    if ROTATED > 0:
        o_r = tl.arange(0, BLOCK_R)
        m_rotated = m_row[:, None] & (o_r < ROTATED)[None, :]
        b_q_rotated = tl.load(p_q + o_q + (DIM + o_r)[None, :], mask=m_rotated, other=0.0)
    if KIND == 2 and PRECISION == "tf32":  # a chip converts e4m3 to float16 in one instruction
        b_q = tl.minimum(tl.maximum(b_q.to(tl.float32), -65504.0), 65504.0).to(tl.float16)
        if ROTATED > 0:
            b_q_rotated = tl.minimum(tl.maximum(b_q_rotated.to(tl.float32), -65504.0), 65504.0).to(tl.float16)
        else:
            b_q_rotated = b_q
    b_last = position + b_row
    b_oldest = b_last
    if WINDOW > 0:
        b_oldest = tl.load(p_position + o_row, mask=m_row, other=0) - (WINDOW - 1)
        if FIRST:
            b_oldest = tl.where(m_first, 0, b_oldest)
    b_ancestors = o_row
    if TREE:
        b_ancestors = tl.load(p_ancestors + o_row, mask=m_row, other=0.0)

    p_table += request.to(tl.int64) * s_table
    p_k += i_head.to(tl.int64) * s_head
    p_v += i_head.to(tl.int64) * (s_head // 2 if V_GROUP > 0 else s_head)
    if KIND > 0 and ROTATED == 0:
        p_k_scale += i_head
        p_v_scale += i_head * (2 * DIM // V_GROUP if V_GROUP > 0 else 1)
    b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    b_acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    # The first loop reads whole blocks that every row attends to, without a mask. The rest is short and needs no
    # pipeline. With a window, all blocks are masked, since its left edge can be anywhere. In deterministic mode they
    # are masked too: the same keys may be a whole block of one item and the edge of another, and compilers round the
    # two loops differently.
    b_page = tl.load(p_table + (start + o_n) // PAGE, mask=start + o_n < end, other=0).to(tl.int64)
    middle = start
    if WINDOW == 0 and not ALL_MASKED:
        whole = tl.minimum(end, position + 1)
        if TREE:
            whole = tl.minimum(whole, tail)
        middle += tl.maximum(whole - start, 0) // BLOCK_N * BLOCK_N
        for i_key in range(start, middle, BLOCK_N):
            o_key = i_key + o_n
            b_next = tl.load(p_table + (o_key + BLOCK_N) // PAGE, mask=o_key + BLOCK_N < end, other=0).to(tl.int64)
            b_max, b_sum, b_acc = _block(
                b_q, b_q_rotated, b_max, b_sum, b_acc, b_page, p_k, p_v, p_k_scale, p_v_scale, s_page, s_slot,
                s_scale, b_last, b_oldest, b_ancestors, o_key, o_d, end, tail, scale,
                DIM, BLOCK_D, ROTATED, BLOCK_R, PAGE, KIND, V_GROUP, SOFTCAP, WINDOW, TREE, False, PRECISION,
            )  # fmt: skip
            b_page = b_next
    for i_key in tl.range(middle, end, BLOCK_N, num_stages=EDGE_STAGES):
        o_key = i_key + o_n
        b_next = tl.load(p_table + (o_key + BLOCK_N) // PAGE, mask=o_key + BLOCK_N < end, other=0).to(tl.int64)
        b_max, b_sum, b_acc = _block(
            b_q, b_q_rotated, b_max, b_sum, b_acc, b_page, p_k, p_v, p_k_scale, p_v_scale, s_page, s_slot,
            s_scale, b_last, b_oldest, b_ancestors, o_key, o_d, end, tail, scale,
            DIM, BLOCK_D, ROTATED, BLOCK_R, PAGE, KIND, V_GROUP, SOFTCAP, WINDOW, TREE, True, PRECISION,
        )  # fmt: skip
        b_page = b_next

    b_part = tl.load(p_entry + 1, mask=m_row, other=-1)
    if tl.max(b_part, 0) < 0:  # the rows of an item are either all final, or all partial
        if SINKS:
            b_sink = tl.load(p_sinks + b_head).to(tl.float32) * 1.4426950408889634
            b_sum += tl.exp2(b_sink - b_max)  # infinite if it outweighs all keys by 2^128: then the row is 0
        b_out = b_acc / tl.where(b_sum == 0.0, 1.0, b_sum)[:, None]
        p_to = p_out + (o_row * s_out_row + b_head * s_out_head)[:, None] + o_d[None, :]
        tl.store(p_to, b_out.to(p_out.dtype.element_ty), mask=m_q)
    else:
        b_out = b_acc / tl.where(b_sum == 0.0, 1.0, b_sum)[:, None]
        o_part = b_part.to(tl.int64) * (tl.num_programs(1) * GROUP) + b_head
        tl.store(p_part + o_part[:, None] * DIM + o_d[None, :], b_out, mask=m_q)
        tl.store(p_lse + o_part, b_max + tl.log2(b_sum), mask=m_row)


@triton.jit
def _merge(
    p_part, p_lse, p_out, p_sinks, p_merges, s_out_row, s_out_head, n_heads,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Merges the partial results of one row and query head, whose keys were split, as in flash-decoding.

    Each partial result is weighted by its softmax denominator. With SINKS, the head's sink is part of the total."""
    i_merge, i_head = tl.program_id(0), tl.program_id(1)
    p_merge = p_merges + i_merge.to(tl.int64) * 4
    row, part, n_parts = tl.load(p_merge), tl.load(p_merge + 1), tl.load(p_merge + 2)
    if n_parts == 0:  # a table of fixed length ends in zeros (graph_batch.py)
        return
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < DIM
    top = float("-inf")
    if SINKS:
        top = tl.load(p_sinks + i_head).to(tl.float32) * 1.4426950408889634
        total = top * 0.0 + 1.0
    else:
        total = 0.0
    b_acc = tl.zeros([BLOCK_D], tl.float32)
    for i in range(n_parts):
        o_part = (part + i).to(tl.int64) * n_heads + i_head
        lse = tl.load(p_lse + o_part)
        new_top = tl.maximum(top, lse)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink, weight = tl.exp2(top - base), tl.exp2(lse - base)
        b_acc = b_acc * shrink + weight * tl.load(p_part + o_part * DIM + o_d, mask=m_d, other=0.0)
        total = total * shrink + weight
        top = new_top
    p_to = p_out + row.to(tl.int64) * s_out_row + i_head * s_out_head + o_d
    tl.store(p_to, (b_acc / total).to(p_out.dtype.element_ty), mask=m_d)


class Tile(NamedTuple):
    """The shape of work for which a kernel is compiled: rows (tokens times heads of a group), keys per block, warps,
    pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


def tile(arch: str, dim: int, group: int, dtype: torch.dtype, kind: int, n_rows: int, *, large: bool) -> Tile:
    """The tile for small items, or with `large` for large items, of a batch of n_rows. group: query heads per KV head.
    kind: the format of the pool of values, as in write_kv/kernel.py; 0: not quantised.

    Tiles come from a table and are not autotuned, so results repeat, and tests can compile every variant. The tests
    check registers, shared memory and spills of each tile. On sm_90, the tiles for heads of 128 are the fastest of a
    dozen on an H100.
    """
    wide = dim > 128
    amd, ampere = arch.startswith("gfx"), arch.startswith("sm_8")
    if arch == "interpreter":
        rows, keys, warps, stages = (32, 32, 4, 1) if large else (16, 32, 4, 1)
    elif dtype == torch.float32:  # no tensor cores: IEEE products in registers
        rows, keys, warps, stages = (16, 16, 4, 1)
    elif kind:
        rows, keys, warps, stages = _narrow_tile(dim, group, kind, amd, ampere, large)
    elif not large:
        rows, keys, stages = (16, 32 if wide else 64, 2 if amd or (64 < dim <= 128 and not ampere) else 3)
        warps = 8 if wide and not (amd or ampere) else 4
    elif amd:
        rows, keys, warps, stages = (128, 32 if wide else 64, 8, 1)
    elif ampere:
        rows, keys, warps, stages = (32, 32, 8, 3) if wide else (128, 64 if dim <= 64 else 32, 8, 3)
    elif wide:
        rows, keys, warps, stages = (64, 32, 8, 2)
    else:
        rows, keys, warps, stages = (64, 64, 4, 3) if n_rows < MANY_ROWS else (128, 128, 8, 3)
    if group > rows:
        rows, warps = triton.next_power_of_2(group), 8
        if dtype == torch.float32:
            warps = 16
        elif wide and kind and not (amd or ampere):
            keys = 16
        elif wide and amd:
            warps, stages = 4, 1
        elif wide and ampere:
            stages = 1
    return Tile(rows, keys, warps, stages)


def _narrow_tile(dim: int, group: int, kind: int, amd: bool, ampere: bool, large: bool) -> Tile:
    """The tile for keys in 8 bits and values in 8 or 4."""
    is_hopper = not amd and not ampere
    stages = 3
    if amd:
        stages = 1 if large else 2
    if not large:
        if is_hopper and 64 < dim <= 128 and group <= 16:
            if kind == write_kv.INT4:
                return Tile(16, 64, 4, 2)
            if kind == write_kv.FP8:
                return Tile(16, 64, 2, 3)
            if dim == 128:
                return Tile(16, 128, 4, 2)
        if is_hopper and dim > 64:
            stages = 4  # as many bytes in flight as 3 stages of 16 bits; with 3, ptxas spills in some variants
        keys = (16 if dim > 128 else 32) if amd else (64 if dim <= 64 else 32)
        return Tile(16, keys, 4, stages)
    if dim > 128:
        return Tile(32, 32, 4 if amd else 8, stages)
    return Tile(128 if is_hopper or dim <= 64 else 64, 64 if is_hopper and dim <= 64 else 32, 8, stages)


def latent_group(arch: str, n_heads: int, dtype: torch.dtype, kind: int) -> int:
    """How many query heads a tile has in latent attention, where all heads read the same keys."""
    if arch == "sm_90" and n_heads % 64 == 0 and not kind and dtype != torch.float32:
        return 64
    return max(n for n in range(1, 17) if n_heads % n == 0)


def _latent_tile(arch: str, group: int, dtype: torch.dtype, kind: int, *, large: bool) -> Tile:
    """The tile for small items, or with `large` for large items, of latent attention with latents of up to 512 numbers.
    group: query heads per tile. kind: the format of the pool, as in write_kv/kernel.py; 0: not quantised."""
    if arch == "interpreter":
        return Tile(32 if large else 16, 32, 4, 1)
    if dtype == torch.float32:
        return Tile(16, 16, 8, 1)
    if arch.startswith("gfx"):
        return Tile(32 if large else 16, 16, 4, 1)
    if group == 64:
        return Tile(64, 64, 8, 2)
    if arch == "sm_90" and not large and not kind:
        return Tile(16, 32, 4, 3)
    return Tile(32 if large else 16, 32, 8 if large or kind else 4, 2)


def attention(q: Tensor, k_pool: Pool, v_pool: Pool, ragged: Ragged, options: AttentionOptions) -> Tensor:
    """Launches the Triton kernels of attention. Arguments and result as in `reference.attention`. Does not synchronise
    with the host. head_dim must be 16 to 256; latents (MLA) may have up to 512 numbers."""
    scale, softcap, window, sinks, first, first_q = options
    n_rows, n_heads, dim = q.shape
    _, page_size, n_kv_heads, v_dim = v_pool.shape
    rotated, s_scale = dim - v_dim, n_kv_heads
    group = n_heads // n_kv_heads
    assert n_heads == group * n_kv_heads, f"{n_heads} heads do not divide into {n_kv_heads} KV heads"
    arch = architecture()
    k, k_scale, kind = write_kv.pool_args(k_pool, arch)
    if is_latent(k_pool, v_pool):
        v, v_scale, v_kind, s_head = k, k_scale, kind, 0
        assert n_kv_heads == 1, "latents are keys of one head"
        group = latent_group(arch, n_heads, q.dtype, kind)
        n_kv_heads = n_heads // group
    else:
        v, v_scale, v_kind = write_kv.pool_args(v_pool, arch)
        s_head = k.stride(2)
        assert k_pool.shape == v_pool.shape, "K and V pools differ in shape"
    assert 16 <= v_dim <= (512 if rotated else 256), f"head_dim {v_dim} is outside 16..{512 if rotated else 256}"
    v_group = group_of(dim) if v_kind == write_kv.INT4 else 0
    assert v_group or k.dtype == v.dtype, f"pools are {k.dtype} and {v.dtype}: both must have one dtype, or V 4 bits"
    assert kind or q.dtype == k.dtype, f"q is {q.dtype}, pools are {k.dtype}: all must have one dtype, or pools 8 bits"
    assert q.stride(2) == k.stride(3) == 1, "rows must be contiguous"
    if first_q is not None:
        strides = zip(q.stride(), first_q.stride(), q.shape, strict=True)
        assert all(ours == theirs for ours, theirs, n in strides if n > 1), "q and first_q differ in strides"
    assert v_group or k.stride() == v.stride(), "K and V pools differ in strides"
    out = torch.empty((n_rows, n_heads, v_dim), dtype=q.dtype, device=q.device)
    if not n_rows:
        return out

    if rotated:
        assert not first, "latents have no first keys"
        tiles = [_latent_tile(arch, group, q.dtype, kind, large=large) for large in (False, True)]
    else:
        tiles = [tile(arch, dim, group, q.dtype, v_kind, n_rows, large=large) for large in (False, True)]
    small, large, rows, merges, n_partials = _device_plan(
        ragged, tiles, n_kv_heads, group, (window, first), arch, q.device
    )
    part = torch.empty((n_partials, n_heads, v_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((n_partials, n_heads), dtype=torch.float32, device=q.device)
    block_d, block_r = triton.next_power_of_2(v_dim), max(16, triton.next_power_of_2(rotated))
    for items, shape in ((small, tiles[0]), (large, tiles[1])):
        if len(items):
            _attend[(len(items), n_kv_heads)](
                q, first_q, k, v, k_scale, v_scale, out, part, lse, sinks, items, rows, ragged.page_table,
                ragged.position, ragged.ancestors, q.stride(0), q.stride(1), k.stride(0), k.stride(1), s_head, s_scale,
                out.stride(0), out.stride(1), ragged.page_table.stride(0),
                scale * LOG2E * (2.0 / softcap if softcap else 1.0),
                GROUP=group, DIM=v_dim, BLOCK_D=block_d, ROTATED=rotated, BLOCK_R=block_r, PAGE=page_size, KIND=kind,
                V_GROUP=v_group, BLOCK_M=shape.rows, BLOCK_N=shape.keys,
                EDGE_STAGES=shape.stages if window or ragged.deterministic else 1,
                SOFTCAP=softcap, WINDOW=window, FIRST=first > 0, TREE=ragged.ancestors is not None,
                SINKS=sinks is not None, ALL_MASKED=ragged.deterministic,
                PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
                num_warps=shape.warps, num_stages=shape.stages,
            )  # fmt: skip
    if len(merges):
        _merge[(len(merges), n_heads)](
            part, lse, out, sinks, merges, out.stride(0), out.stride(1), n_heads,
            DIM=v_dim, BLOCK_D=block_d, SINKS=sinks is not None, num_warps=4 if block_d > 64 else 2,
        )  # fmt: skip
    return out


def _device_plan(
    ragged: Ragged, tiles: list[Tile], n_kv_heads: int, group: int, seen: tuple[int, int], arch: str,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:  # fmt: skip
    """Returns the plan of a batch on the device: (small items, large items, rows, merges, number of partial results),
    see `AttentionPlan`. Stores it in `ragged.plans`, where the step's other layers find it.

    group: query heads per KV head. seen: `window` and `first` of the layer's AttentionOptions.
    """
    small_rows, large_rows = (shape.rows // group for shape in tiles)
    if ragged.deterministic:
        small_rows = 0  # two tile shapes would round differently
    key = PlanKey(arch, Tiles(small_rows, large_rows, large_rows, small_rows), n_kv_heads, *seen)
    if key not in ragged.plans:
        result = host_plan(ragged, key)
        ragged.plans[key] = (*(to_device(table, device) for table in result[:4]), result.n_partials)
    return ragged.plans[key]


class PlanKey(NamedTuple):
    """What a plan depends on besides the batch. Layers with equal keys share a plan."""

    arch: str
    tiles: Tiles
    n_kv_heads: int
    window: int
    first: int = 0


def host_plan(ragged: Ragged, key: PlanKey) -> AttentionPlan:
    """Plans the attention of a batch for all layers whose PlanKey is `key`. Returns the plan as numpy tables, not yet
    on the device."""
    return plan(
        ragged.q_lens,
        ragged.kv_lens,
        tiles=key.tiles,
        programs=(key.n_kv_heads, key.n_kv_heads),
        n_processors=n_processors(key.arch),
        window=key.window,
        first=key.first,
        shared=ragged.subtrees,
        merge_keys=MERGE_KEYS["cuda"],
        large_split=LARGE_SPLIT,
        deterministic=ragged.deterministic,
    )
