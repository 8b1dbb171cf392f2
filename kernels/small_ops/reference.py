"""The small ops on rows, logits and pages, in plain PyTorch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from banyan.kernels.kv_layout import stacks


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, rows: Tensor | None = None) -> Any:
    """Root-mean-square norm (Zhang and Sennrich, 2019) over the last axis of x [..., dim], times weight [dim]. Computed
    in float32, returned in x's dtype.

    residual  of x's shape: norms x + residual instead, and returns (norm, x + residual)
    rows      int64 [n]: computes only these rows of x and residual, in this order
    """
    if rows is not None:
        x, residual = x[rows], None if residual is None else residual[rows]
    real = torch.promote_types(x.dtype, torch.float32)
    total = x if residual is None else x + residual
    wide = total.to(real)
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.to(real)
    return y.to(x.dtype) if residual is None else (y.to(x.dtype), total)


def silu_mul(gate_up: Tensor) -> Tensor:
    """The gate of a feed-forward layer (SwiGLU; Shazeer, 2020). Returns silu(gate) * up, [n_rows, dim]; gate_up
    [n_rows, 2 * dim] holds first the gate, then up. Computed in float32."""
    real = torch.promote_types(gate_up.dtype, torch.float32)
    gate, up = gate_up.to(real).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def edit_logits(logits: Tensor, rows: Tensor, tokens: Tensor, factors: Tensor, shifts: Tensor) -> None:
    """Applies penalties and biases to the cells (rows[i], tokens[i]) of a step's logits, in place. A positive
    logit is divided by factors[i], any other is multiplied by it (repetition penalty; Keskar et al., CTRL, 2019); then
    shifts[i] is added. A shift of -inf forbids the token.

    logits [n_rows, n_vocab]; rows, tokens int64 [n], all cells distinct; factors, shifts float32 [n].
    """
    old = logits[rows, tokens]
    logits[rows, tokens] = torch.where(old > 0, old / factors, old * factors) + shifts


def mask_logits(logits: Tensor, masks: Tensor, which: Tensor) -> None:
    """Sets logits to -inf where the mask of a constrained row has a zero bit, in place.

    logits [n_rows, n_vocab]; masks int32 [n_masks, n_words], bit t & 31 of word t >> 5 allows token t, and
    32 * n_words >= n_vocab; which int32 [n_rows]: the mask of each row, -1 for none.
    """
    rows = (which >= 0).nonzero().squeeze(1)
    bits = masks[which[rows].long()].unsqueeze(2) >> torch.arange(32, dtype=torch.int32, device=masks.device)
    allowed = (bits & 1).flatten(1)[:, : logits.shape[1]].bool()
    logits[rows] = logits[rows].masked_fill_(~allowed, -torch.inf)


def copy_pages(pools: Sequence[Tensor], copies: Tensor) -> None:
    """Copies n_slots slots in each pool, for each (source page, destination page, n_slots) of `copies`, int32 [n, 3]:
    the copy-on-write of partly shared pages.

    pools [n_pages, page_size, ...], contiguous, changed in place. Destinations are distinct, and none is a source.
    """
    for stack in stacks(pools):
        for source, destination, n_slots in copies.tolist():
            stack[:, destination, :n_slots] = stack[:, source, :n_slots]


def copy_slots(pools: Sequence[Tensor], sources: Tensor, destinations: Tensor) -> None:
    """Copies each source slot to its destination in each pool, as if all sources were read first. This moves the KV of
    an accepted path of a draft tree to the slots of its tokens' final positions.

    pools                   [n_pages, page_size, ...], contiguous, changed in place; a slot is page * page_size + offset
    sources, destinations   int64 [n_paths, n_steps]; a source of -1: no copy. Two paths have no slot in common. In a
                            path, no step may read a slot to which an earlier step has written. Paths of draft trees
                            meet this condition: their slots ascend, and move towards the front of their tree
    """
    m = (sources >= 0) & (sources != destinations)
    source, destination = sources[m], destinations[m]
    for stack in stacks(pools):
        slots = stack.flatten(1, 2)
        slots.index_copy_(1, destination, slots.index_select(1, source))
