"""All layers of a dense decoder in one call of the compiled library (layers.h).

Nine ops a layer take 40 us of Python, which is a tenth of a decode step of 110 M parameters, and a third of one of 15 M
(one request, 2 cores of an AMD EPYC Zen 5). The library does the same in the same order, and so to the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from banyan.kernels.attention.native import AttentionCall, described
from banyan.kernels.attention.ragged import Ragged
from banyan.kernels.kv_layout import Pool
from banyan.kernels.linear.packed import Packed
from banyan.kernels.native import kv_pointers, threads

_P, _I, _N = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


class _Weight(ctypes.Structure):
    _fields_ = (("panels", _P), ("scale", _P), ("bias", _P), ("n_in", _N), ("n_out", _N))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        *((name, _Weight) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _P) for name in ("k", "v", "k_scale", "v_scale")),
        ("plan", _N),
    )


class _Planned(ctypes.Structure):
    _fields_ = (
        ("call", AttentionCall),
        *((name, _P) for name in ("small", "large", "merges")),
        *((name, _I) for name in ("n_small", "n_large", "n_merges", "n_threads")),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("x", "h", "qkv", "q", "attended", "both", "gated", "cos", "sin", "slots", "last")),
        *((name, _N) for name in ("n", "n_last", "last_plan", "n_heads", "n_kv_heads", "dim", "half")),
        *((name, _N) for name in ("row_numbers", "product_work")),
        ("eps", ctypes.c_float),
        ("n_threads", _I),
    )


class Weights(NamedTuple):
    """One layer's. A linear layer is its weight and its bias."""

    attention_norm: Tensor
    mlp_norm: Tensor
    qk_norm: tuple[Tensor, Tensor] | None
    qkv: tuple[Tensor | Packed, Tensor | None]
    out: tuple[Tensor | Packed, Tensor | None]
    gate_up: tuple[Tensor | Packed, Tensor | None]
    down: tuple[Tensor | Packed, Tensor | None]
    window: int

    @property
    def linears(self) -> tuple[tuple[Tensor | Packed, Tensor | None], ...]:
        return self.qkv, self.out, self.gate_up, self.down

    @property
    def vectors(self) -> tuple[Tensor, ...]:
        """Norms and biases."""
        biases = (bias for _, bias in self.linears if bias is not None)
        return self.attention_norm, self.mlp_norm, *(self.qk_norm or ()), *biases


class Layers:
    """The layers of one decoder, and the pools that they were last called with."""

    def __init__(
        self, library: ctypes.CDLL, weights: Sequence[Weights], n_heads: int, n_kv_heads: int, dim: int, eps: float
    ) -> None:
        """For weights that the library knows (`kernels/fused_layers.py` looks)."""
        self.library = library
        self.sizes = n_heads, n_kv_heads, dim
        self.eps = eps
        self.dtype = weights[0].attention_norm.dtype
        self.windows = sorted({w.window for w in weights})
        self._weights = weights  # what the pointers below point to
        self._kv: Sequence[tuple[Pool, Pool]] | None = None
        self._kind = 0
        self._layers = (_Layer * len(weights))(*map(self._layer, weights))
        w = self._layers[0]
        n_mid = w.down.n_in
        self.widths = w.qkv.n_in, w.qkv.n_out, n_heads * dim, n_heads * dim, 2 * n_mid, n_mid

    def _layer(self, w: Weights) -> _Layer:
        norms = (None, None) if w.qk_norm is None else tuple(norm.data_ptr() for norm in w.qk_norm)
        return _Layer(w.attention_norm.data_ptr(), w.mlp_norm.data_ptr(), *norms, *map(_weight, w.linears),
                      plan=self.windows.index(w.window))  # fmt: skip

    def holds(self, kv: Sequence[tuple[Pool, Pool]]) -> bool:
        """Whether these are pools that the library knows; from now on they are written to."""
        if kv is self._kv:
            return True
        every = [pool for pair in kv for pool in pair]
        kinds = {kv_pointers.kind(pool) for pool in every}
        if (
            len(kv) != len(self._layers)
            or len(kinds) > 1
            or not all(kv_pointers.holds(pool, self.dtype) for pool in every)
        ):
            return False
        self._kv, self._kind = kv, kinds.pop()
        for layer, (k, v) in zip(self._layers, kv, strict=True):
            (layer.k, layer.k_scale), (layer.v, layer.v_scale) = kv_pointers.pointers(k), kv_pointers.pointers(v)
        return True

    def __call__(
        self, x: Tensor, cos: Tensor, sin: Tensor, ragged: Ragged, last: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """All layers over x, [n, hidden], which becomes the residual stream: what is to be added to that, and it.

        cos and sin: float32 [n, turned / 2]. last: int64, ascending: the rows of `ragged.tail`, which alone the last
        layer computes, once all rows have their keys there; None: it computes all. The pools are those that `holds` was
        asked for last.
        """
        n = len(x)
        n_heads, n_kv_heads, dim = self.sizes
        parts = [n * width for width in self.widths]
        buffers = x.new_empty(sum(parts))
        h, *others = buffers.split(parts)
        h.zero_()
        kept = [self._planned(ragged, window) for window in self.windows]
        n_last = n
        if last is not None:
            assert ragged.tail is not None
            n_last = len(last)
            kept.append(self._planned(ragged.tail, self._weights[-1].window))
        plans = (_Planned * len(kept))(*(planned for planned, _ in kept))
        call = _Pass(
            x.data_ptr(),
            h.data_ptr(),
            *(other.data_ptr() for other in others),
            cos.data_ptr(),
            sin.data_ptr(),
            ragged.slots.data_ptr(),
            None if last is None else last.data_ptr(),
            n,
            n_last,
            len(self.windows) if last is not None else self._layers[-1].plan,
            n_heads,
            n_kv_heads,
            dim,
            cos.shape[1],
            threads.ROW_NUMBERS,
            threads.PRODUCT_WORK,
            self.eps,
            threads.most(),
        )
        self.library.banyan_layers(
            x.dtype == torch.bfloat16, self._kind, ctypes.addressof(call), ctypes.addressof(self._layers),
            len(self._layers), ctypes.addressof(plans),
        )  # fmt: skip
        return h.view(n, -1)[:n_last], x[:n_last]

    def _planned(self, ragged: Ragged, window: int) -> tuple[_Planned, Tensor]:
        """Attention with one window, and the memory of its partial results."""
        assert self._kv is not None
        ragged.check(window)
        page = self._kv[0][0].shape[1]
        call, work, part = described(ragged, *self.sizes, page, window, self.sizes[2] ** -0.5)
        small, n_small, large, n_large, merges, n_merges, n_threads = work.arguments
        return _Planned(call, small, large, merges, n_small, n_large, n_merges, n_threads), part


def _weight(linear: tuple[Tensor | Packed, Tensor | None]) -> _Weight:
    weight, bias = linear
    assert isinstance(weight, Packed)
    scale = None if weight.scale is None else weight.scale.data_ptr()
    return _Weight(
        weight.panels.data_ptr(), scale, None if bias is None else bias.data_ptr(), weight.n_in, weight.n_out
    )
