"""Adds the outputs of LoRA adapters on a CPU: those of all adapters in one call of the C++ library (native/lora.h)."""

import ctypes

import torch
from torch import Tensor

from banyan.kernels.lora import reference
from banyan.kernels.lora.adapted import AdaptedRows
from banyan.kernels.lora.reference import Product
from banyan.kernels.native import build, threads


def add_lora(y: Tensor, x: Tensor, adapted: AdaptedRows, layer: int, linear: int, product: Product) -> None:
    """Adds to each row of y, in place, the output of its LoRA adapter for the same row of x; see
    `reference.add_lora`."""
    library = build.library()
    if library is None or x.dtype not in build.DTYPES or not (x.is_contiguous() and y.is_contiguous()):
        reference.add_lora(y, x, adapted, layer, linear, product)
        return
    table, native = adapted.table, adapted.native
    library.banyan_add_lora(
        x.dtype == torch.bfloat16, table[0, layer, linear].ctypes.data, table[0].size // 5, ctypes.addressof(native),
        x.data_ptr(), x.shape[1], y.data_ptr(), y.shape[1], threads.PRODUCT_WORK, threads.n_max(),
    )  # fmt: skip
