"""Masks forbidden tokens, one program per row and block of the vocabulary."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.device import launch


@triton.jit
def _mask(p_logits, p_masks, p_which, s_row, n_words, n_vocab, BLOCK: tl.constexpr):
    """Writes only the forbidden tokens' logits, and reads none."""
    i_row = tl.program_id(0).to(tl.int64)
    i_mask = tl.load(p_which + i_row).to(tl.int64)
    if i_mask >= 0:
        o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        m = o < n_vocab
        b_word = tl.load(p_masks + i_mask * n_words + (o >> 5), mask=m, other=-1)
        m_forbidden = m & (((b_word >> (o & 31)) & 1) == 0)
        tl.store(p_logits + i_row * s_row + o, float("-inf"), mask=m_forbidden)


def mask_logits(logits: Tensor, masks: Tensor, which: Tensor) -> None:
    """See `reference.mask_logits`. The last axes are contiguous."""
    n_rows, n_vocab = logits.shape
    assert logits.stride(1) == 1, "the last axis must be contiguous"
    assert masks.is_contiguous(), "masks must be contiguous"
    assert masks.dtype == which.dtype == torch.int32, "masks and which are int32"
    assert 32 * masks.shape[1] >= n_vocab, f"masks of {masks.shape[1]} words do not cover {n_vocab} tokens"
    if n_rows and len(masks):
        block, warps = launch("mask_logits", n_vocab)
        grid = (n_rows, triton.cdiv(n_vocab, block))
        _mask[grid](logits, masks, which, logits.stride(0), masks.shape[1], n_vocab, BLOCK=block, num_warps=warps)
