"""Reads 8-bit floats (E4M3) with a scale for the tensor, for each output, or for each block of, say, 128 x 128."""

from __future__ import annotations

from torch import Tensor

from banyan.kernels.linear.grouped import FLOAT8, Grouped
from banyan.runtime.errors import BadModel
from banyan.runtime.model.quantised.config import Scheme
from banyan.runtime.model.quantised.layer import StoredLayer
from banyan.runtime.model.weights import Checkpoint

_SCALES = "weight_scale_inv", "weight_scale"
_BLOCK = 128, 128
"""Outputs and inputs per scale, if the scales form a grid and the configuration does not give its block size."""


def read(layer: StoredLayer, scheme: Scheme) -> Grouped | Tensor:
    """Read a layer's weight. Returns Grouped, or floats [n_out, n_in] if there is a scale for each block and the width
    of a block does not divide n_in: all groups of a Grouped have the same size."""
    n_out, n_in = layer.shape("weight")
    weight = layer.take("weight", n_out, n_in, dtype="F8_E4M3")
    scale = layer.take(_SCALES[0] if _SCALES[0] in layer else _SCALES[1]).float()
    if scale.numel() == 1:
        return Grouped(weight, scale.reshape(1, 1).repeat(n_out, 1), None, FLOAT8)
    if scale.shape in ((n_out,), (n_out, 1)):
        return Grouped(weight, scale.view(n_out, 1), None, FLOAT8)
    rows, columns = map(min, scheme.block or _BLOCK, (n_out, n_in))
    if scale.shape != (-(-n_out // rows), -(-n_in // columns)):
        raise layer.broken(
            f"its scales have shape {list(scale.shape)}, but there are {n_out} x {n_in} weights with a scale for each "
            f"{rows} x {columns}"
        )
    scale = scale.repeat_interleave(rows, 0)[:n_out]
    if n_in % columns:
        return weight.float() * scale.repeat_interleave(columns, 1)[:, :n_in]
    return Grouped(weight, scale, None, FLOAT8)


def group_of(weights: Checkpoint, scheme: Scheme, name: str) -> int:
    """How many inputs of the layer `name` share a scale, found by the shape of its scales; -1: all. BadModel: it has no
    scales."""
    shapes = [stored.shape for end in _SCALES if (stored := weights.tensors.get(f"{name}.{end}")) is not None]
    if not shapes:
        raise BadModel(f"{name} has no {_SCALES[1]}; the checkpoint is incomplete")
    is_grid = len(shapes[0]) == 2 and shapes[0][1] > 1
    return (scheme.block or _BLOCK)[1] if is_grid else -1
