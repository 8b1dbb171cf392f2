"""The compiled draw, as ctypes calls it."""

import ctypes

import torch
from torch import Tensor

from banyan.kernels.draw.rows import Rows


def draw(library: ctypes.CDLL, n_threads: int, logits: Tensor, rows: Rows) -> Tensor:
    """See `reference.draw`. On float32 rows whose last axis is contiguous; does not change them."""
    assert all(x.is_contiguous() for x in rows), "a number per row, contiguous"
    out = torch.empty(len(logits), dtype=torch.int64)
    columns = (ctypes.c_void_p * len(rows))(*(x.data_ptr() for x in rows))
    library.banyan_draw(logits.data_ptr(), columns, out.data_ptr(), *logits.shape, logits.stride(0), n_threads)
    return out
