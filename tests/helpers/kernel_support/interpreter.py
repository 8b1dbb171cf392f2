"""Fixes and checks for Triton's interpreter.

Stock TRITON_INTERPRET=1 (Triton 3.6 to 3.9) multiplies raw bf16 bits in `tl.dot`, truncates fp32 to bf16, loses the
carry of fp32 to fp8, refuses `(vector < n) & (scalar > lo)` as a mask and (3.6, with numpy 2.4) loops to a loaded
bound, and detects neither out-of-bounds accesses nor races. `install` fixes the arithmetic by the GPU's rounding rules
and adds the checks. Call it in a separate process that set TRITON_INTERPRET=1 before Triton was imported (and
OPENBLAS_NUM_THREADS=1: small dots are up to 10 times slower with more threads).

Fixes     comparisons are int1; bf16 arithmetic and dots go through fp32 and round to nearest even; casts from fp32 to
          bf16 and fp8 round to nearest even (fp8 saturates as the GPU does); integers become bf16 numbers, not bits.
Memory    each active lane of a load, store or atomic must lie inside the memory that the launch's tensor arguments
          span. A hole between the rows of a strided view counts as inside.
Races     an element plainly stored by one program must not be touched by another program of the launch; lanes of one
          store must not meet. A kernel whose last program reads what others wrote is legal: `with checks(race=False)`.

A failed check raises AssertionError in the kernel; Triton wraps it as InterpreterError, whose text holds the message.
Not covered: the bounds of tensor descriptors (masked by Triton) and bf16 atomics (refused).
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as stock

_Handle = stock.TensorHandle
_FP8 = {tl.float8e4nv: (torch.float8_e4m3fn, 448.0), tl.float8e5: (torch.float8_e5m2, 57344.0)}


class _Launch:
    """The active checks, and the state of the current launch."""

    memory = False
    race = False
    starts: np.ndarray | None = None  # disjoint address ranges of the launch's tensors, ascending
    ends: np.ndarray
    grain: list[int]  # bytes per element, per range
    writer: list[np.ndarray]  # per range and element: number of the program that stored it, from 1
    reader: list[np.ndarray]  # the same for loads; -1: several programs
    program = 0


_launch = _Launch()
_installed = False


def install(*, memory: bool = True, race: bool = True) -> None:
    """Patches the interpreter, once per process. Later calls only set the active checks."""
    global _installed
    _launch.memory, _launch.race = memory, race
    if not _installed:
        _installed = True
        np.seterr(over="ignore", divide="ignore")  # a GPU returns inf without a warning; NaN still warns
        _repair_arithmetic()
        _repair_casts()
        _watch_memory()
        _repair_index()
        _patch_language_once()
        _keep_types()


@contextlib.contextmanager
def checks(*, memory: bool | None = None, race: bool | None = None) -> Iterator[None]:
    """Sets the checks for a block of launches. None leaves a check as it is."""
    before = _launch.memory, _launch.race
    _launch.memory = before[0] if memory is None else memory
    _launch.race = before[1] if race is None else race
    try:
        yield
    finally:
        _launch.memory, _launch.race = before


@contextlib.contextmanager
def rows_alike() -> Iterator[None]:
    """Computes dots row by row: BLAS rounds a row differently by its place in the block, unlike tensor cores."""
    builder = stock.InterpreterBuilder
    before = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, max_imprecise: Any) -> Any:
        rows = [
            before(self, _Handle(x, a.dtype), b, _Handle(y, d.dtype), precision, max_imprecise).data
            for x, y in zip(np.split(a.data, len(a.data)), np.split(d.data, len(d.data)), strict=True)
        ]
        return _Handle(np.concatenate(rows), d.dtype.scalar)

    builder.create_dot = create_dot
    try:
        yield
    finally:
        builder.create_dot = before


def _widened(bits: np.ndarray) -> np.ndarray:
    """bf16 bits as fp32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _rounded(real: np.ndarray) -> np.ndarray:
    """fp32 as bf16 bits, to nearest even; NaN stays NaN."""
    real = np.ascontiguousarray(real, dtype=np.float32)
    bits = real.view(np.uint32)
    near = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(real), np.uint16(0x7FC0), near)


def _is_bf16(x: Any) -> bool:
    is_pointer = isinstance(x.dtype, tl.pointer_type)
    return not is_pointer and x.get_element_ty() == tl.bfloat16 and x.data.dtype == np.uint16


def _cast(x: Any, to: Any) -> Any:
    """A correct cast; None if the interpreter's own cast is correct."""
    source, target = x.dtype.scalar, to.scalar
    if source == tl.bfloat16 and target in _FP8:
        x, source = _Handle(_widened(x.data), tl.float32), tl.float32
    if target == tl.bfloat16 and (source in (tl.float32, tl.float64, tl.float16) or source.is_int()):
        return _Handle(_rounded(x.data), target)
    if source == tl.bfloat16 and (target.is_int() or (target.is_floating() and target.primitive_bitwidth >= 32)):
        return _Handle(_widened(x.data).astype(stock._get_np_dtype(target)), target)
    if target in _FP8 and source in (tl.float32, tl.float16, tl.float64):
        dtype, limit = _FP8[target]
        small = torch.from_numpy(np.clip(x.data, -limit, limit).astype(np.float32)).to(dtype)
        return _Handle(small.view(torch.uint8).numpy(), target)
    if source in _FP8 and target in (tl.float32, tl.float16, tl.bfloat16):
        real = torch.from_numpy(np.ascontiguousarray(x.data)).view(_FP8[source][0]).float().numpy()
        wide = _rounded(real) if target == tl.bfloat16 else real.astype(stock._get_np_dtype(target))
        return _Handle(wide, target)
    return None


def _repair_arithmetic() -> None:
    builder = stock.InterpreterBuilder
    stock_binary, stock_unary, stock_dot = builder.binary_op, builder.unary_op, builder.create_dot

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        if _is_bf16(left) or _is_bf16(right):
            out = op(*(_widened(x.data) if _is_bf16(x) else x.data for x in (left, right)))
            return _Handle(out, tl.int1) if out.dtype == np.bool_ else _Handle(_rounded(out), tl.bfloat16)
        out = stock_binary(self, left, right, op)
        return _Handle(out.data, tl.int1) if out.data.dtype == np.bool_ else out

    def unary_op(self: Any, x: Any, op: Any) -> Any:
        if _is_bf16(x):
            return _Handle(_rounded(op(_widened(x.data))), tl.bfloat16)
        return stock_unary(self, x, op)

    def widen(x: Any) -> Any:
        if _is_bf16(x):
            return _Handle(_widened(x.data), tl.float32)
        return _Handle(x.data.astype(np.float32), tl.float32) if x.data.dtype == np.float16 else x

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, max_imprecise: Any) -> Any:
        return stock_dot(self, widen(a), widen(b), d, precision, max_imprecise)

    builder.binary_op, builder.unary_op, builder.create_dot = binary_op, unary_op, create_dot


def _repair_casts() -> None:
    builder = stock.InterpreterBuilder
    stock_cast, stock_fp = builder.cast_impl, builder.create_fp_to_fp

    def cast_impl(self: Any, x: Any, to: Any) -> Any:
        out = _cast(x, to)
        return stock_cast(self, x, to) if out is None else out

    def create_fp_to_fp(self: Any, x: Any, to: Any, rounding: Any) -> Any:
        out = _cast(x, to)
        return stock_fp(self, x, to, rounding) if out is None else out

    builder.cast_impl, builder.create_fp_to_fp = cast_impl, create_fp_to_fp
    for direction in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc"):
        setattr(builder, f"create_{direction}", lambda self, x, to: self.cast_impl(x, to))


def _watch_memory() -> None:
    builder = stock.InterpreterBuilder
    stock_load, stock_store = builder.create_masked_load, builder.create_masked_store
    stock_rmw, stock_grid = builder.create_atomic_rmw, builder.set_grid_idx
    stock_args = stock.GridExecutor._init_args_hst

    def load(self: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        _touch(pointers, mask, "load")
        return stock_load(self, pointers, mask, *rest, **named)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        _touch(pointers, mask, "store")
        return stock_store(self, pointers, value, mask, *rest, **named)

    def rmw(self: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        _touch(pointers, mask, "atomic")
        if value.dtype.scalar == tl.bfloat16:
            raise AssertionError("bf16 atomics do not exist in the interpreter")
        return stock_rmw(self, op, pointers, value, mask, *rest)

    def set_grid_idx(self: Any, x: int, y: int, z: int) -> None:
        n_x, n_y, _ = self.grid_dim
        _launch.program = 1 + x + n_x * (y + n_y * z)
        stock_grid(self, x, y, z)

    def init_args(self: Any, args: Any, named: Any) -> Any:
        host = stock_args(self, args, named)
        _note_arguments(*host)
        return host

    builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw = load, store, rmw
    builder.set_grid_idx, stock.GridExecutor._init_args_hst = set_grid_idx, init_args


def _tensors(x: Any) -> Iterator[Any]:
    if isinstance(x, (tuple, list)):
        for y in x:
            yield from _tensors(y)
    elif hasattr(x, "base") and hasattr(x, "block_shape"):  # a host TensorDescriptor
        yield from _tensors(x.base)
    elif hasattr(x, "data_ptr"):
        yield stock._unwrap_tensor(x)


def _note_arguments(args: Any, named: Any) -> None:
    """Records the address ranges of this launch. Overlapping arguments become one range."""
    spans = []
    for t in _tensors([*args, *named.values()]):
        if t.numel():
            n = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
            spans.append((t.data_ptr(), t.data_ptr() + n * t.element_size(), t.element_size()))
    merged: list[tuple[int, int, int]] = []
    for start, end, grain in sorted(spans):
        if merged and start < merged[-1][1]:
            first, last, finest = merged[-1]
            merged[-1] = (first, max(last, end), min(finest, grain))
        else:
            merged.append((start, end, grain))
    _launch.starts = np.array([start for start, _, _ in merged], np.uint64)
    _launch.ends = np.array([end for _, end, _ in merged], np.uint64)
    _launch.grain = [grain for _, _, grain in merged]
    sizes = [(end - start) // grain + 1 for start, end, grain in merged] if _launch.race else []
    _launch.writer = [np.zeros(n, np.int32) for n in sizes]
    _launch.reader = [np.zeros(n, np.int32) for n in sizes]


def _touch(pointers: Any, mask: Any, kind: str) -> None:
    """Checks one access of the active lanes."""
    if _launch.starts is None or not (_launch.memory or _launch.race):
        return
    size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    shape = np.asarray(pointers.data).shape
    active = np.broadcast_to(np.asarray(mask.data).astype(bool), shape).ravel()
    address = np.asarray(pointers.data).astype(np.uint64).ravel()[active]
    if not address.size:
        return
    where = stock.interpreter_builder.grid_idx
    if not len(_launch.starts):
        raise AssertionError(f"out of bounds: {kind} in program {where}, but the launch has no tensors")
    span = np.searchsorted(_launch.starts, address, "right").astype(np.int64) - 1
    bad = (span < 0) | (address + np.uint64(size) > _launch.ends[np.maximum(span, 0)])
    if bad.any():
        if _launch.memory:
            worst = int(np.argmax(bad))
            j = int(span[worst])
            start, end = int(_launch.starts[j]), int(_launch.ends[j])
            at = "before every argument" if j < 0 else f"{int(address[worst]) - start} B into {end - start} B"
            raise AssertionError(f"out of bounds: {kind}, {at}, program {where}, {int(bad.sum())} lanes")
    elif _launch.race:
        for j in np.unique(span):
            element = (address[span == j] - _launch.starts[j]) // np.uint64(_launch.grain[j])
            _note_access(int(j), element.astype(np.int64), kind, where)


def _note_access(j: int, element: np.ndarray, kind: str, where: Any) -> None:
    writer, reader, me = _launch.writer[j], _launch.reader[j], _launch.program
    clash = (writer[element] != 0) & (writer[element] != me)
    if kind == "store":
        if np.unique(element).size != element.size:
            raise AssertionError(f"race: one store writes an element twice, program {where}")
        clash |= (reader[element] != 0) & (reader[element] != me)
        writer[element] = me
    else:
        reader[element] = np.where((reader[element] == 0) | (reader[element] == me), me, -1)
    if clash.any():
        lanes = int(clash.sum())
        raise AssertionError(f"race: {kind} in program {where} meets another program's access, {lanes} lanes of {j}")


def _repair_index() -> None:
    """Lets a loop run to a tensor of one element, which numpy 2.4 does not convert to an int for Triton 3.6."""
    patch = stock._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    stock._patch_lang_tensor = patch_tensor


def _patch_language_once() -> None:
    """Patches `tl` once per launch and module instead of at every nested call (tl.max): 1.3-1.5x faster."""
    seen: set[int] = set()
    stock_call = stock.GridExecutor.__call__

    def launch(self: Any, *args: Any, **named: Any) -> Any:
        seen.clear()
        try:
            return stock_call(self, *args, **named)
        finally:
            seen.clear()

    def nested(self: Any, *args: Any, **named: Any) -> Any:
        module = id(self.fn.__globals__)
        if module not in seen:
            stock._patch_lang(self.fn)
            seen.add(module)
        try:
            return self.rewrite()(*args, **named)
        except Exception as error:
            raise stock.InterpreterError(repr(error)) from error

    stock.GridExecutor.__call__ = launch
    stock.InterpretedFunction.__call__ = nested


def _keep_types() -> None:
    """Computes the attributes of each type once instead of at every operation: twice as fast.

    Turns the check for integer overflow off. It takes six operations, and only `debug` asserts its result.
    """
    stock.interpreter_builder.options = dataclasses.replace(stock.interpreter_builder.options, sanitize_overflow=False)
    new_type, new_tensor, np_dtype = tl.block_type.__init__, tl.tensor.__init__, stock._get_np_dtype
    types: dict[Any, dict[str, Any]] = {}
    tensors: dict[str, dict[str, Any]] = {}
    np_dtypes: dict[str, Any] = {}

    def make_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(n.value if isinstance(n, tl.constexpr) else n for n in shape))
        if key not in types:
            new_type(self, element_ty, shape)
            types[key] = dict(vars(self))
        vars(self).update(types[key])

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        if type.name not in tensors:
            new_tensor(self, handle, type)
            tensors[type.name] = {name: x for name, x in vars(self).items() if x is not handle}
        vars(self).update(tensors[type.name], handle=handle)

    def find_np_dtype(type: Any) -> Any:
        name = type.scalar.name
        if name not in np_dtypes:
            np_dtypes[name] = np_dtype(type)
        return np_dtypes[name]

    tl.block_type.__init__, tl.tensor.__init__, stock._get_np_dtype = make_type, make_tensor, find_np_dtype
