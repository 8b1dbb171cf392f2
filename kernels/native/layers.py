"""All layers of a dense decoder and its head in one call of the C++ library (layers.h).

To call the nine ops of a layer from Python costs 40 us. Over all layers, this is a tenth of the time of a decode step
with 110 M parameters, and a third with 15 M (one request, 2 cores of an AMD EPYC Zen 5). The library computes the same
ops in the same order, with the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from banyan.kernels.attention.native import MAX_DIM, MAX_ROWS, AttentionCall, prepare
from banyan.kernels.attention.ragged import AttentionOptions, Ragged
from banyan.kernels.device import INTERPRETED
from banyan.kernels.kv_layout import Pool, address, are_native, native_kind, pointers
from banyan.kernels.linear.packed import AnyWeight, Packed, Weight
from banyan.kernels.lora.adapted import AdaptedRows, NativeRows
from banyan.kernels.native import threads

MAX_HEAD = 512  # dimensions of a head that is rotated, as in rows.h
_P, _I, _N = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
NONE_KEPT: Mapping[int, Tensor] = MappingProxyType({})
Turn = tuple[Tensor, Tensor] | None
"""cos and sin, float32 [n, rotary / 2], of the angles by which rotated queries are rotated further before they are
multiplied with the first keys (`AttentionOptions.first_q`)."""


class _Layer(ctypes.Structure):
    """The ctypes form of the C++ struct `Layer` in layers.h: the weights of one layer, its K and V pools, and the index
    of its call of attention."""

    _fields_ = (
        *((name, _P) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        *((name, Weight) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _P) for name in ("k", "v", "k_scale", "v_scale")),
        ("call", _N),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("x", "h", "qkv", "q", "attended", "gate_up", "gated", "cos", "sin")),
        *((name, _P) for name in ("first_q", "turn_cos", "turn_sin", "last")),
        *((name, _N) for name in ("n", "n_last", "last_call", "n_heads", "n_kv_heads", "dim", "half")),
        *((name, _N) for name in ("row_numbers", "product_work")),
        ("eps", ctypes.c_float),
        ("n_threads", _I),
        ("low_rank", _P),
        ("adapted", NativeRows),
        ("last_adapted", NativeRows),
        *((name, _P) for name in ("logits", "norm", "wanted_x", "wanted_h", "wanted")),
        ("n_wanted", _N),
        ("head", Weight),
    )


class Weights(NamedTuple):
    """The weights of one layer.

    norms    weights of four norms: before attention, before the MLP, of query heads, of key heads; None: no norm
    linears  (weight, bias) of qkv, out, gate_up and down; bias None: no bias
    window   number of keys that a row attends to; 0: all
    first    number of keys at the beginning of its text that a row with a window attends to as well
    """

    norms: tuple[Tensor | None, ...]
    linears: tuple[tuple[AnyWeight, Tensor | None], ...]
    window: int
    first: int = 0


class Head(NamedTuple):
    """The norm and the linear layer from the last hidden state to logits."""

    norm: Tensor
    weight: AnyWeight
    bias: Tensor | None


class Layers:
    """The layers and the head of one decoder. Built by `fused`; `bind` sets the pools, then a call computes a step."""

    def __init__(
        self, library: ctypes.CDLL, weights: Sequence[Weights], head: Head, sizes: tuple[int, int, int], eps: float
    ) -> None:
        """sizes: the numbers of heads and KV heads, and the dimensions of a head. The library must support the weights,
        which `fused` checks."""
        assert isinstance(head.weight, Packed)
        self.library, self.sizes, self.eps, self.dtype = library, sizes, eps, head.norm.dtype
        self.seen = sorted({(w.window, w.first) for w in weights})  # each pair (window, first) has its own call
        self._weights, self._head = weights, head  # keeps alive what the pointers below point to
        self._head_weight = Weight.of(head.weight, head.bias)
        self._kv: Sequence[tuple[Pool, Pool]] | None = None
        self._kind = 0
        self._layers = (_Layer * len(weights))(*map(self._layer, weights))
        w, width = self._layers[0], sizes[0] * sizes[2]
        self.widths = w.qkv.n_in, w.qkv.n_out, width, width, 2 * w.down.n_in, w.down.n_in

    def _layer(self, w: Weights) -> _Layer:
        linears = (Weight.of(weight, bias) for weight, bias in w.linears if isinstance(weight, Packed))
        return _Layer(*map(address, w.norms), *linears, call=self.seen.index((w.window, w.first)))

    def bind(self, kv: Sequence[tuple[Pool, Pool]]) -> bool:
        """Sets the pools that calls use, a (K, V) pair per layer. Returns False if the library does not
        support them."""
        if kv is self._kv:
            return True
        kinds = {native_kind(k, v) for k, v in kv}
        if len(kv) != len(self._layers) or len(kinds) > 1 or not all(are_native(k, v, self.dtype) for k, v in kv):
            return False
        self._kv, self._kind = kv, kinds.pop()
        for layer, (k, v) in zip(self._layers, kv, strict=True):
            (layer.k, layer.k_scale), (layer.v, layer.v_scale) = pointers(k), pointers(v)
        return True

    def logits(
        self, x: Tensor, cos_sin: tuple[Tensor, Tensor], ragged: Ragged, wanted: Tensor, last: Tensor | None = None,
        adapted: AdaptedRows | None = None, turn: Turn = None,
    ) -> Tensor:  # fmt: skip
        """Computes all layers and the logits, float32 [n_wanted, vocab], rounded to the dtype of x. wanted: int64, the
        rows whose logits are needed; with `last`, the same rows. For the other arguments see `__call__`."""
        logits = torch.empty(len(wanted), self._head_weight.n_out)
        self(x, cos_sin, ragged, last, adapted, turn=turn, to=(wanted, logits))
        return logits

    def __call__(
        self, x: Tensor, cos_sin: tuple[Tensor, Tensor], ragged: Ragged, last: Tensor | None = None,
        adapted: AdaptedRows | None = None, kept: Mapping[int, Tensor] = NONE_KEPT, turn: Turn = None,
        to: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Computes all layers over x [n, hidden]. Returns the output of the last layer, and the residual stream to
        which the caller must add this output. The residual stream is in the memory of x.

        cos_sin   float32 [n, rotary / 2] each
        last      int64, ascending: the rows of `ragged.tail`. The last layer writes KV of all rows, but computes the
                  results of these rows only. None: the results of all rows
        adapted   the rows that use an adapter, in the dtype of x
        kept      maps a number k of layers to a tensor [n, hidden] that gets the residual stream after the first k
                  layers. Cannot be combined with `last` or `adapted`
        turn      see Turn; needed if a layer with a window attends to first keys (`Weights.first`)
        to        see `logits`: the wanted rows, and the tensor to which their logits are written
        """
        n, hidden = x.shape
        starts = [0, *accumulate([n * width for width in self.widths])]  # of h, qkv, q, ... in `buffers`
        buffers = x.new_empty(starts.pop())
        h = buffers[: n * hidden].zero_()
        first, n_bytes = buffers.data_ptr(), x.element_size()
        calls = [self._attention(ragged, *seen) for seen in self.seen]
        n_last, last_call = n, self._layers[-1].call
        if last is not None:
            n_last, w = len(last), self._weights[-1]
            tail = ragged.seen_in(w.window).tail
            assert tail is not None
            last_call = len(calls)
            calls.append(self._attention(tail, w.window, w.first))
        call_array = (AttentionCall * len(calls))(*(call for call, _ in calls))
        first_q = None if turn is None else x.new_empty(n * self.widths[2])
        tensors = (*cos_sin, first_q, *(turn or (None, None)), last)
        n_half = cos_sin[0].shape[1]
        sizes = (n, n_last, last_call, *self.sizes, n_half, threads.ROW_NUMBERS, threads.PRODUCT_WORK)
        places = (first + n_bytes * start for start in starts)
        call = _Pass(x.data_ptr(), *places, *map(address, tensors), *sizes, self.eps, threads.n_max())
        if adapted is not None:
            call.low_rank = adapted.table.ctypes.data
            call.adapted, call.last_adapted = adapted.native, adapted.last.native
        if to is not None:
            wanted, logits = to
            picked = x.new_empty(2 * len(logits) * hidden)
            call.logits, call.norm = address(logits), address(self._head.norm)
            call.wanted_x = picked.data_ptr()
            call.wanted_h = picked.data_ptr() + n_bytes * len(logits) * hidden
            call.wanted = None if last is not None else address(wanted)
            call.n_wanted, call.head = len(logits), self._head_weight
        for start, end in pairwise((0, *sorted(kept), len(self._layers))):
            if kept:
                call.last_call = self._layers[end - 1].call
            self.library.banyan_layers(
                x.dtype == torch.bfloat16, self._kind, ctypes.addressof(call), ctypes.addressof(self._layers[start]),
                end - start, ctypes.addressof(call_array),
            )  # fmt: skip
            if end in kept:
                torch.add(x, h.view_as(x), out=kept[end])
        return h.view_as(x)[:n_last], x[:n_last]

    def _attention(self, ragged: Ragged, window: int, first: int) -> tuple[AttentionCall, Tensor]:
        """Prepares attention for the layers with this window and with `first` first keys. Returns its arguments, and
        the buffer to which they point for partial results."""
        assert self._kv is not None
        ragged = ragged.seen_in(window)
        ragged.check(window)
        options = AttentionOptions(self.sizes[2] ** -0.5, window=window, first=first)
        return prepare(ragged, *self.sizes, self._kv[0][0].shape[1], options)


def fused(
    library: ctypes.CDLL | None, weights: Sequence[Weights], head: Head, sizes: tuple[int, int, int], eps: float
) -> Layers | None:
    """The fused layers, for the sizes that `Layers` takes; None if the library cannot compute them: it needs a CPU,
    packed weights and one dtype."""
    n_heads, _, dim = sizes
    if INTERPRETED or library is None or dim % 16 or dim > min(MAX_DIM, MAX_HEAD) or n_heads > MAX_ROWS:
        return None
    dtype = head.norm.dtype
    linears = [(head.weight, head.bias), *(linear for w in weights for linear in w.linears)]
    if not all(isinstance(weight, Packed) and weight.dtype == dtype for weight, _ in linears):
        return None
    vectors = [head.norm, *(norm for w in weights for norm in w.norms), *(bias for _, bias in linears)]
    if not all(vector.dtype == dtype and vector.is_contiguous() for vector in vectors if vector is not None):
        return None
    return Layers(library, weights, head, sizes, eps)
