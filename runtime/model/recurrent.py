"""Keeps recurrent states in slots: what linear attention, state space (Mamba) and convolution layers remember of a
text.

In transformers' code, such a layer reads and writes its state through a cache object. `pack_mixers` finds these modules
(the *mixers*) by a run with a cache that records which modules use it, and replaces each by a `RecurrentMixer`. A
RecurrentMixer calls the mixer with the rows of one request, or of several requests with equal numbers of rows, and with
their states. A step may also copy a request's state between two of the request's rows: then the mixer is called for the
rows before the copy, and again for the rows after it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache, cache_utils

from banyan.runtime.errors import OutOfMemory

_KINDS = ("conv_states", "recurrent_states")  # the fields of transformers' cache layers
_CACHES = ("cache", "cache_params", "past_key_values")  # names of the argument that takes a cache; "cache" since 5.24
_ALIGNED = 64  # bytes


class StatePart(NamedTuple):
    """One tensor of a request's state. shape: without the batch dimension. name, number: where transformers' cache
    layer keeps the tensor, the name of a field and the index in it."""

    layer: int
    name: str
    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class _MixerCall(NamedTuple):
    """Tells which rows of a step each mixer computes in one call, and with which states. A step may need several calls.

    rows: int64 [n_requests, rows per request], the indices of these rows in the step. n_all: the number of all rows in
    the step, if the call has all of them in order, so that they need not be gathered; else 0. slots: the slots of the
    requests' states. kept: int64 [2, n]: after the call, the state in slot kept[0, i] is copied to slot kept[1, i];
    None: nothing is copied."""

    rows: Tensor
    n_all: int
    slots: Tensor | slice
    kept: Tensor | None


def slot_bytes(parts: Sequence[StatePart]) -> int:
    """The size of a slot in bytes: all parts of a request's state, padded to a multiple of 64."""
    return -(-sum(part.n_bytes for part in parts) // _ALIGNED) * _ALIGNED


class StatePool:
    """The states of n_slots requests, a row of bytes for each. A slot has zeros until it is written to."""

    def __init__(
        self, parts: Sequence[StatePart], n_slots: int, device: torch.device | str, is_stepwise: bool = False
    ) -> None:
        """is_stepwise: the mixers compute several rows in one call correctly only from the initial state, so rows after
        any other state are computed one by one."""
        self.n_slots, self._size = n_slots, (size := slot_bytes(parts))
        try:
            self._slots = torch.zeros(n_slots, size, dtype=torch.uint8, device=device)
        except RuntimeError as e:
            raise OutOfMemory(
                f"{n_slots} recurrent states are {n_slots * size / 2**20:.0f} MiB and do not fit on {device}; lower "
                "`state_memory`"
            ) from e
        self._layers: dict[int, list[tuple[StatePart, Tensor]]] = {}
        self.calls: Sequence[_MixerCall] = ()  # of the next forward pass
        self._is_stepwise, self._first = is_stepwise, set[int]()  # slots with the initial state
        at = 0
        for part in sorted(parts, key=lambda part: -part.dtype.itemsize):  # so each is aligned to its dtype
            view = self._slots[:, at : at + part.n_bytes].view(part.dtype).view(n_slots, *part.shape)
            self._layers.setdefault(part.layer, []).append((part, view))
            at += part.n_bytes

    def __str__(self) -> str:
        sizes = self._size / 2**20, self.n_slots * self._size / 2**20
        return f"recurrent state: {self.n_slots} slots of {sizes[0]:.2f} MiB, {sizes[1]:.0f} MiB"

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy states from slot to slot, in order. Source -1 stands for zeros, the state before the first token."""
        for source, destination in copies:
            if source < 0:
                self._slots[destination].zero_()
                self._first.add(destination)
            elif source != destination:
                self._slots[destination] = self._slots[source]

    def begin(self, spans: Sequence[tuple[int, int, Sequence[tuple[int, int]]]]) -> None:
        """Set the requests of the next forward pass. spans: for each request, in the order of the rows: its number of
        rows, the slot of its state, and the copies of the state to make during the pass, each as (number of the
        request's rows before the copy, slot to copy to)."""
        groups: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # first row, slot, slot to copy to
        first = 0
        for n_rows, slot, kept in spans:
            start, ends = 0, [*kept, (n_rows, -1)]
            if self._is_stepwise:
                keep_at = dict(kept)
                ends = [(n, keep_at.get(n, -1)) for n in range(ends[0][0] if slot in self._first else 1, n_rows + 1)]
            for i, (end, keep) in enumerate(ends):
                if end > start:
                    groups.setdefault((i, end - start), []).append((first + start, slot, keep))
                    start = end
            first += n_rows
        self._first.clear()
        self.calls = [self._call(n, group, first) for (_, n), group in sorted(groups.items())]

    def _call(self, n_rows: int, group: list[tuple[int, int, int]], n_all: int) -> _MixerCall:
        device = self._slots.device
        firsts, slots, _ = zip(*group, strict=True)
        rows = torch.tensor(firsts, device=device)[:, None] + torch.arange(n_rows, device=device)
        is_run = slots == tuple(range(slots[0], slots[0] + len(slots)))  # then nothing is gathered
        kept = [(slot, keep) for _, slot, keep in group if keep >= 0]
        return _MixerCall(
            rows,
            n_all * (n_rows * len(group) == n_all),
            slice(slots[0], slots[0] + len(slots)) if is_run else torch.tensor(slots, device=device),
            torch.tensor(kept, device=device).T if kept else None,
        )

    @contextmanager
    def states(self, layer: int, call: _MixerCall) -> Iterator[cache_utils.Cache]:
        """A context manager that yields a transformers cache with one layer's states of the call's requests. At its
        end, the states that the mixer left in the cache are written to the slots."""
        parts = self._layers[layer]
        own = cache_utils.LinearAttentionLayer(number_of_states=1 + max(part.number for part, _ in parts))
        own.has_previous_state = dict.fromkeys(own.has_previous_state, True)
        for part, view in parts:
            state = view[call.slots]
            getattr(own, part.name)[part.number] = state
            getattr(own, f"is_{part.name}_initialized")[part.number] = True
            if part.name == "conv_states":
                own.conv_kernel_size[part.number] = state.shape[-1]
        yield cache_utils.Cache(layers=[own] * (layer + 1))
        for part, view in parts:
            if not isinstance(call.slots, slice):
                view[call.slots] = getattr(own, part.name)[part.number]
            if call.kept is not None:
                view[call.kept[1]] = view[call.kept[0]]


_POOL: ContextVar[StatePool] = ContextVar("pool")


@contextmanager
def using(pool: StatePool | None) -> Iterator[None]:
    """A context manager that sets the pool for the mixers of a forward pass. pool None: the model has no recurrent
    state."""
    if pool is None:
        yield
        return
    token = _POOL.set(pool)
    try:
        yield
    finally:
        _POOL.reset(token)


class RecurrentMixer(nn.Module):
    """Replaces a mixer of a transformers model. It gets the rows of all requests of a step, [1, n_rows, ...], and calls
    the mixer so that each request is computed with its own state."""

    def __init__(self, mixer: nn.Module, layer: int) -> None:
        super().__init__()
        self.mixer, self._layer = mixer, layer
        self._names = list(inspect.signature(mixer.forward).parameters)
        # transformers' mask of padding rows; there are none
        self._none = dict.fromkeys({"attention_mask"} & {*self._names})
        self._cache = next(name for name in _CACHES if name in self._names)

    def forward(self, *args: Any, **options: Any) -> Tensor:
        options |= dict(zip(self._names, args, strict=False))
        hidden: Tensor = options["hidden_states"]
        n_rows, pool = hidden.shape[1], _POOL.get()
        out: Tensor | None = None
        for call in pool.calls:
            own = {name: _rows_of(value, n_rows, call) for name, value in options.items()}
            with pool.states(self._layer, call) as cache:
                y: Tensor = self.mixer(**own | self._none | {self._cache: cache})
            if call.n_all:
                return y.reshape(1, n_rows, *y.shape[2:])
            if out is None:
                out = y.new_empty(1, n_rows, *y.shape[2:])
            out[0, call.rows] = y
        assert out is not None
        return out


def _rows_of(value: Any, n_rows: int, call: _MixerCall) -> Any:
    """Selects the rows of a call from an argument of a mixer: a tensor [1, n_rows, ...] becomes [n_requests, rows per
    request, ...]. A tuple is treated item by item. Any other value is returned unchanged."""
    if isinstance(value, tuple):
        return tuple(_rows_of(one, n_rows, call) for one in value)
    if not isinstance(value, Tensor) or value.shape[:2] != (1, n_rows):
        return value
    return value.view(*call.rows.shape, *value.shape[2:]) if call.n_all else value[0][call.rows]


class _MixerUse(NamedTuple):
    """A record of one call of a module: the layer whose state the module read or wrote, and the arguments of the
    call."""

    layer: int
    args: Any
    options: Any


class _Recorder(DynamicCache):  # type: ignore[misc]
    """Records which module uses the state of which layer. running: the modules that are running and their arguments,
    the innermost last."""

    def __init__(self, config: Any, running: list[tuple[nn.Module, Any, Any]]) -> None:
        super().__init__(config=config)
        self._running = running
        self.users: dict[nn.Module, _MixerUse] = {}

    def _record(self, layer: int) -> None:
        module, args, options = self._running[-1]
        self.users[module] = _MixerUse(layer, args, options)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # transformers' method raises if no layer has attention

    def get_conv_state(self, layer_idx: int, *args: Any, **options: Any) -> Tensor | None:
        self._record(layer_idx)
        state: Tensor | None = super().get_conv_state(layer_idx, *args, **options)
        return state

    def update_recurrent_state(self, states: Tensor, layer_idx: int, *args: Any, **options: Any) -> Tensor:
        self._record(layer_idx)
        state: Tensor = super().update_recurrent_state(states, layer_idx, *args, **options)
        return state


@torch.inference_mode()
def pack_mixers(model: Any, ids: Tensor) -> tuple[list[StatePart], bool]:
    """Replace each mixer of a model by a RecurrentMixer. The mixers are found by running the model on `ids`, a few
    tokens, int64 [n]. Returns the parts of a request's state, and the argument `is_stepwise` for the model's
    StatePool."""
    running: list[tuple[nn.Module, Any, Any]] = []

    def enter(module: nn.Module, args: Any, options: Any) -> None:
        running.append((module, args, options))

    def leave(*_: object) -> None:
        running.pop()

    recorder = _Recorder(model.config, running)
    hooks = [module.register_forward_pre_hook(enter, with_kwargs=True) for module in model.modules()]
    hooks += [module.register_forward_hook(leave) for module in model.modules()]
    try:
        cache = {name: recorder for name in _CACHES if name in inspect.signature(model.forward).parameters}
        positions = torch.arange(len(ids), device=ids.device)
        model(input_ids=ids[None], position_ids=positions[None], use_cache=True, **cache)
    finally:
        for hook in hooks:
            hook.remove()
    users = recorder.users
    uses: list[tuple[RecurrentMixer, _MixerUse]] = []
    inner = {part for user in users for part in user.modules() if part is not user}
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if child in users and child not in inner:
                uses.append((RecurrentMixer(child, users[child].layer), users[child]))
                setattr(parent, name, uses[-1][0])
    parts = [
        StatePart(layer, kind, number, tuple(state.shape[1:]), state.dtype)
        for layer, own in enumerate(recorder.layers)
        for kind in _KINDS
        for number, state in getattr(own, kind, {}).items()
        if state is not None
    ]
    return parts, _needs_steps(uses, StatePool(parts, 2, ids.device), len(ids))


def _needs_steps(uses: Sequence[tuple[RecurrentMixer, _MixerUse]], pool: StatePool, n: int) -> bool:
    """Whether a mixer gives wrong results for several rows in one call if it does not begin with the initial state.
    Computes the first half of n rows in one call, and the second half in three ways: together with the first half, in
    its own call, and row by row. The first and the last way are right, and differ only by rounding. If the second way
    differs from the first by much more, it is wrong."""
    half = n // 2

    def outputs(*kept: int) -> list[Tensor]:
        out = []
        for mixer, use in uses:
            pool.copy([(-1, 0)])
            pool.begin([(n, 0, [(position, 1) for position in kept])])
            with using(pool):
                out.append(mixer(*use.args, **use.options)[0, half:].float())
        return out

    return any(
        bool((y - whole).norm() > 4 * (step - whole).norm() + 1e-3 * whole.norm())
        for whole, y, step in zip(outputs(), outputs(half), outputs(*range(half, n)), strict=True)
    )
