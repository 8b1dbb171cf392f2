"""Adapters (LoRA; Hu et al., 2021): their weights, and which rows of a step use which of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LINEARS = ("qkv", "out", "gate_up", "down")  # the linear layers of a decoder layer, in this order
MAX_PARTS = 3  # parts of a fused linear layer, at most: q, k and v
MAX_RANK = 512  # MAX_RANK and LORA_ROWS of native/lora.h
RANK_STEP = 4  # ranks are padded to a multiple of this
_ROWS = 16


class LowRank(NamedTuple):
    """What an adapter adds to n_out columns of a linear layer: y[:, column:] += (x down^T) up."""

    down: Tensor  # [rank, n_in]
    up: Tensor  # [rank, n_out], times the adapter's scale
    column: int


class AdapterWeights:
    """One adapter on the device of its model. layers: layers[i][linear] holds the adapter's parts for that linear layer
    (index into LINEARS) of layer i; () if there are none."""

    def __init__(self, layers: Sequence[Sequence[Sequence[LowRank]]]) -> None:
        self.layers = layers
        self.table = np.zeros((len(layers), len(LINEARS), MAX_PARTS, 5), np.int64)
        """The fields of `LowRank` in native/lora.h, for each layer, linear layer and part."""
        for i, linears in enumerate(layers):
            for j, parts in enumerate(linears):
                for k, (down, up, column) in enumerate(parts):
                    self.table[i, j, k] = down.data_ptr(), up.data_ptr(), *up.shape, column

    @property
    def n_bytes(self) -> int:
        tensors = (x for linears in self.layers for parts in linears for part in parts for x in part[:2])
        return sum(x.nbytes for x in tensors)


class NativeRows(ctypes.Structure):
    """The ctypes form of struct `AdaptedRows` in native/lora.h: which rows use which adapter."""

    _fields_ = (*((name, ctypes.c_void_p) for name in ("adapters", "starts", "rows")), ("n_tasks", ctypes.c_int64))


class AdaptedRows:
    """The rows of a step that use an adapter."""

    def __init__(
        self, adapters: Sequence[AdapterWeights], rows: Sequence[Sequence[int]], kept: Sequence[int] | None = None
    ) -> None:
        """rows: the rows of each adapter, ascending. kept: the rows of the step that the last layer computes,
        ascending; None: all. Sets `last` to an AdaptedRows for the last layer, which numbers rows by their place in
        `kept`."""
        self.adapters, self._rows, self.last = adapters, rows, self
        if kept is not None:
            number = {row: i for i, row in enumerate(kept)}
            self.last = AdaptedRows(adapters, [[number[row] for row in own if row in number] for own in rows])

    @cached_property
    def indexes(self) -> list[Tensor]:
        """The rows of each adapter, int64, on the adapters' device."""
        tensors = (part.down for linears in self.adapters[0].layers for parts in linears for part in parts)
        device = next(tensors).device
        return [torch.tensor(own, device=device) for own in self._rows]

    @cached_property
    def table(self) -> np.ndarray:
        """The tables of all adapters, one after the other; see AdapterWeights.table."""
        return np.stack([adapter.table for adapter in self.adapters])

    @cached_property
    def native(self) -> NativeRows:
        """The rows for the C++ library, as tasks of at most _ROWS rows with the same adapter."""
        parts = [(i, own[at : at + _ROWS]) for i, own in enumerate(self._rows) for at in range(0, len(own), _ROWS)]
        starts = np.cumsum([0, *(len(own) for _, own in parts)])
        rows = [row for _, own in parts for row in own]
        self._arrays = [np.array(x, np.int64) for x in ([i for i, _ in parts], starts, rows)]  # keeps the arrays alive
        return NativeRows(*(x.ctypes.data for x in self._arrays), len(parts))
