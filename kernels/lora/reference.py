"""Adds the outputs of LoRA adapters to those of a linear layer, in plain PyTorch."""

from collections.abc import Callable

from torch import Tensor

from banyan.kernels.lora.adapted import AdaptedRows

Product = Callable[[Tensor, Tensor, None], Tensor]
"""Multiplies x [n, n_in] by the transposed weight [n_out, n_in]; the third argument is the bias, always None."""


def add_lora(y: Tensor, x: Tensor, adapted: AdaptedRows, layer: int, linear: int, product: Product) -> None:
    """Adds to each row of y [n_rows, n_out], in place, the output of its adapter for the same row of x [n_rows, n_in].

    linear: index into LINEARS. product: computes matrix products.
    """
    for adapter, rows in zip(adapted.adapters, adapted.indexes, strict=True):
        for down, up, column in adapter.layers[layer][linear] if len(rows) else ():
            low = product(product(x[rows], down, None), up.T, None)
            y[:, column : column + up.shape[1]].index_add_(0, rows, low)
