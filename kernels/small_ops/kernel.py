"""Ops on rows, logits and pages in Triton."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.device import launch
from banyan.kernels.kv_layout import stacks


@triton.jit
def _norm(
    p_x, p_weight, p_residual, p_rows, p_out, p_total, s_x_row, s_x_head, s_r_row, s_r_head, n_heads, eps,
    DIM: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    i_row, i_head = i // n_heads, i % n_heads
    if SOME:
        i_row = tl.load(p_rows + i_row)
    o = tl.arange(0, BLOCK)
    m = o < DIM
    b_x = tl.load(p_x + i_row * s_x_row + i_head * s_x_head + o, mask=m, other=0.0).to(tl.float32)
    if ADD:
        b_r = tl.load(p_residual + i_row * s_r_row + i_head * s_r_head + o, mask=m, other=0.0).to(tl.float32)
        b_total = (b_x + b_r).to(p_total.dtype.element_ty)
        tl.store(p_total + i * DIM + o, b_total, mask=m)
        b_x = b_total.to(tl.float32)  # the norm uses the rounded sum, as the next layers do
    scale = tl.rsqrt(tl.sum(b_x * b_x, 0) / DIM + eps)
    b_weight = tl.load(p_weight + o, mask=m, other=0.0).to(tl.float32)
    tl.store(p_out + i * DIM + o, (b_x * scale * b_weight).to(p_out.dtype.element_ty), mask=m)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, rows: Tensor | None = None) -> Any:
    """RMS norm over the last axis, of x or of x + residual; see `reference.rms_norm`. x is [n_rows, dim] or [n_rows,
    n_heads, dim]; its last axis must be contiguous."""
    wide = x.unsqueeze(1) if x.dim() == 2 else x
    n_rows, n_heads, dim = wide.shape
    assert wide.stride(2) == 1, "the last axis must be contiguous"
    if rows is not None:
        assert rows.dtype == torch.int64, "rows are int64"
        assert rows.is_contiguous(), "rows must be contiguous"
        n_rows = len(rows)
    shape = (n_rows, *x.shape[1:])
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    total = added = None
    if residual is not None:
        assert residual.shape == x.shape, "the residual differs in shape"
        added = residual.view(wide.shape)
        assert added.stride(2) == 1, "the last axis must be contiguous"
        total = torch.empty(shape, dtype=x.dtype, device=x.device)
    if out.numel():
        block, warps = launch("rms_norm", dim)
        assert dim <= block, f"rows of {dim} numbers are longer than {block}"
        other = wide if added is None else added
        _norm[(n_rows * n_heads,)](
            wide, weight, added, rows, out, total, wide.stride(0), wide.stride(1), other.stride(0), other.stride(1),
            n_heads, eps, DIM=dim, BLOCK=block, ADD=added is not None, SOME=rows is not None, num_warps=warps,
        )  # fmt: skip
    return out if total is None else (out, total)


@triton.jit
def _silu_mul(p_x, p_out, s_row, dim, BLOCK: tl.constexpr):
    i_row = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < dim
    b_gate = tl.load(p_x + i_row * s_row + o, mask=m, other=0.0).to(tl.float32)
    b_up = tl.load(p_x + i_row * s_row + dim + o, mask=m, other=0.0).to(tl.float32)
    b_out = b_gate * tl.sigmoid(b_gate) * b_up
    tl.store(p_out + i_row * dim + o, b_out.to(p_out.dtype.element_ty), mask=m)


def silu_mul(gate_up: Tensor) -> Tensor:
    """The gate of a feed-forward layer, silu(gate) * up; see `reference.silu_mul`. The last axis must be contiguous."""
    n_rows, both = gate_up.shape
    dim = both // 2
    assert both == 2 * dim, f"{both} columns cannot be a gate and an up projection of equal width"
    assert gate_up.stride(1) == 1, "the last axis must be contiguous"
    out = torch.empty((n_rows, dim), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        block, warps = launch("silu_mul", dim)
        grid = (n_rows, triton.cdiv(dim, block))
        _silu_mul[grid](gate_up, out, gate_up.stride(0), dim, BLOCK=block, num_warps=warps)
    return out


@triton.jit
def _edit(p_logits, p_rows, p_tokens, p_factors, p_shifts, s_row, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    p_cell = p_logits + tl.load(p_rows + o, mask=m, other=0) * s_row + tl.load(p_tokens + o, mask=m, other=0)
    b_factor = tl.load(p_factors + o, mask=m, other=1.0)
    b = tl.load(p_cell, mask=m, other=0.0).to(tl.float32)
    b = tl.where(b > 0, b / b_factor, b * b_factor) + tl.load(p_shifts + o, mask=m, other=0.0)
    tl.store(p_cell, b.to(p_logits.dtype.element_ty), mask=m)


def edit_logits(logits: Tensor, rows: Tensor, tokens: Tensor, factors: Tensor, shifts: Tensor) -> None:
    """Applies penalties and biases to single logits, in place; for shapes see `reference.edit_logits`. The last axis of
    `logits` must be contiguous, the other tensors entirely."""
    assert logits.stride(1) == 1, "the last axis must be contiguous"
    assert rows.dtype == tokens.dtype == torch.int64, "cells are int64"
    assert factors.dtype == shifts.dtype == torch.float32, "factors and shifts are float32"
    assert all(x.is_contiguous() for x in (rows, tokens, factors, shifts)), "the lists must be contiguous"
    if n := len(rows):
        block, warps = launch("edit_logits", n)
        grid = (triton.cdiv(n, block),)
        _edit[grid](logits, rows, tokens, factors, shifts, logits.stride(0), n, BLOCK=block, num_warps=warps)


@triton.jit
def _mask(p_logits, p_masks, p_which, s_row, n_words, n_vocab, BLOCK: tl.constexpr):
    """Writes -inf to the logits of forbidden tokens. Neither reads nor writes any other logits."""
    i_row = tl.program_id(0).to(tl.int64)
    i_mask = tl.load(p_which + i_row).to(tl.int64)
    if i_mask >= 0:
        o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        m = o < n_vocab
        b_word = tl.load(p_masks + i_mask * n_words + (o >> 5), mask=m, other=-1)
        m_forbidden = m & (((b_word >> (o & 31)) & 1) == 0)
        tl.store(p_logits + i_row * s_row + o, float("-inf"), mask=m_forbidden)


def mask_logits(logits: Tensor, masks: Tensor, which: Tensor) -> None:
    """Sets the logits of forbidden tokens to -inf, in place; for shapes see `reference.mask_logits`. The last axis of
    `logits` must be contiguous. `masks` must be contiguous."""
    n_rows, n_vocab = logits.shape
    assert logits.stride(1) == 1, "the last axis must be contiguous"
    assert masks.is_contiguous(), "masks must be contiguous"
    assert masks.dtype == which.dtype == torch.int32, "masks and which are int32"
    assert 32 * masks.shape[1] >= n_vocab, f"masks of {masks.shape[1]} words do not cover {n_vocab} tokens"
    if n_rows and len(masks):
        block, warps = launch("mask_logits", n_vocab)
        grid = (n_rows, triton.cdiv(n_vocab, block))
        _mask[grid](logits, masks, which, logits.stride(0), masks.shape[1], n_vocab, BLOCK=block, num_warps=warps)


@triton.jit
def _copy_pages(p_pools, p_copies, s_pool, s_page, s_slot, BLOCK: tl.constexpr):
    """Copies the first slots of pages to other pages of the same pool. Each Triton program copies BLOCK elements, for
    one row of p_copies and one pool. p_copies: int32 [n, 3]: source page, destination page, number of slots."""
    p_copy = p_copies + tl.program_id(0).to(tl.int64) * 3
    p_pool = p_pools + tl.program_id(2).to(tl.int64) * s_pool
    source, destination, n_slots = tl.load(p_copy), tl.load(p_copy + 1), tl.load(p_copy + 2)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < n_slots * s_slot
    b = tl.load(p_pool + source.to(tl.int64) * s_page + o, mask=m)
    tl.store(p_pool + destination.to(tl.int64) * s_page + o, b, mask=m)


def copy_pages(pools: Sequence[Tensor], copies: Tensor) -> None:
    """Copies the first slots of pages to other pages, in each pool. `copies` must be on the pools' device; for its
    layout see `reference.copy_pages`."""
    if not len(copies):
        return
    assert copies.is_contiguous(), "the list of copies must be contiguous"
    for stack in stacks(pools):
        s_pool, s_page, s_slot = stack.stride()[:3]
        block, warps = launch("copy_pages", s_page)
        grid = (len(copies), triton.cdiv(s_page, block), len(stack))
        _copy_pages[grid](stack, copies, s_pool, s_page, s_slot, BLOCK=block, num_warps=warps)


@triton.jit
def _copy_slots(p_pools, p_sources, p_destinations, s_pool, s_slot, n_steps, BLOCK: tl.constexpr):
    """Copies slots to other slots of the same pool, in the order of a path. Each Triton program copies BLOCK elements
    of every slot of one path, in one pool. A thread handles the same elements in all these slots, so no step must wait
    until another thread has read a slot."""
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < s_slot
    p_pool = p_pools + tl.program_id(2).to(tl.int64) * s_pool + o
    o_path = tl.program_id(0).to(tl.int64) * n_steps
    for i_step in range(n_steps):
        source, destination = tl.load(p_sources + o_path + i_step), tl.load(p_destinations + o_path + i_step)
        if (source >= 0) & (source != destination):
            b = tl.load(p_pool + source * s_slot, mask=m)
            tl.store(p_pool + destination * s_slot, b, mask=m)


def copy_slots(pools: Sequence[Tensor], sources: Tensor, destinations: Tensor) -> None:
    """Copies slots to other slots, in each pool. `sources` and `destinations` must be on the pools' device; for their
    layout see `reference.copy_slots`."""
    assert sources.shape == destinations.shape, "sources and destinations differ in shape"
    assert sources.dtype == destinations.dtype == torch.int64, "slots are int64"
    assert sources.is_contiguous(), "the list of sources must be contiguous"
    assert destinations.is_contiguous(), "the list of destinations must be contiguous"
    if not sources.numel():
        return
    n_paths, n_steps = sources.shape
    for stack in stacks(pools):
        s_pool, _, s_slot = stack.stride()[:3]
        block, warps = launch("copy_slots", s_slot)
        grid = (n_paths, triton.cdiv(s_slot, block), len(stack))
        _copy_slots[grid](stack, sources, destinations, s_pool, s_slot, n_steps, BLOCK=block, num_warps=warps)
