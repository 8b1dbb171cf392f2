"""Draws a token from each row of logits on a CPU, by the C++ library."""

import ctypes

import torch
from torch import Tensor

from banyan.kernels.draw import reference
from banyan.kernels.draw.rows import Rows
from banyan.kernels.native import build, threads


def draw(logits: Tensor, rows: Rows) -> Tensor:
    """Draws one token per row with the C++ library, or with `reference.draw` if the library is missing. Arguments and
    result as in `reference.draw`, but the logits are not changed."""
    library = build.library()
    if library is None or logits.dtype != torch.float32 or logits.stride(1) != 1:
        return reference.draw(logits, rows)
    assert all(x.is_contiguous() for x in rows), "each column of rows must be contiguous, with one number per row"
    out = torch.empty(len(logits), dtype=torch.int64)
    columns = (ctypes.c_void_p * len(rows))(*(x.data_ptr() for x in rows))
    n_threads = threads.for_rows(logits.numel())
    library.banyan_draw(logits.data_ptr(), columns, out.data_ptr(), *logits.shape, logits.stride(0), n_threads)
    return out
