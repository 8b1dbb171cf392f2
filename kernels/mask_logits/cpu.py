"""Masks forbidden tokens on a CPU, by the C++ library."""

import torch
from torch import Tensor

from banyan.kernels.mask_logits import reference
from banyan.kernels.native import build, threads


def mask_logits(logits: Tensor, masks: Tensor, which: Tensor) -> None:
    """See `reference.mask_logits`."""
    library = build.library()
    is_plain = logits.dtype == torch.float32 and logits.stride(1) == 1 and masks.is_contiguous()
    if library is None or not is_plain:
        return reference.mask_logits(logits, masks, which)
    assert masks.dtype == which.dtype == torch.int32, "masks and which are int32"
    assert 32 * masks.shape[1] >= logits.shape[1], f"masks of {masks.shape[1]} words do not cover the vocabulary"
    pointers = (logits.data_ptr(), masks.data_ptr(), which.data_ptr())
    sizes = (*logits.shape, logits.stride(0), masks.shape[1])
    library.banyan_mask_logits(*pointers, *sizes, threads.for_rows(logits.numel()))
    return None
