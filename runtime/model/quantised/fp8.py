"""Reads 8-bit floats (E4M3) with a scale for the tensor, for each output, or for each block of, say, 128 x 128."""

from __future__ import annotations

from torch import Tensor

from banyan.runtime.model.quantised.config import Scheme
from banyan.runtime.model.quantised.layer import StoredLayer


def read(layer: StoredLayer, scheme: Scheme) -> Tensor:
    n_out, n_in = layer.shape("weight")
    weight = layer.take("weight", n_out, n_in, dtype="F8_E4M3").float()
    scale = layer.take("weight_scale_inv" if "weight_scale_inv" in layer else "weight_scale").float()
    if scale.numel() == 1:
        return weight * scale.reshape(1, 1)
    if scale.shape in ((n_out,), (n_out, 1)):
        return weight * scale.view(n_out, 1)
    rows, columns = map(min, scheme.block or (128, 128), (n_out, n_in))
    if scale.shape != (-(-n_out // rows), -(-n_in // columns)):
        raise layer.broken(
            f"its scales have shape {list(scale.shape)}, but there are {n_out} x {n_in} weights with a scale for each "
            f"{rows} x {columns}"
        )
    return weight * scale.repeat_interleave(rows, 0)[:n_out].repeat_interleave(columns, 1)[:, :n_in]
