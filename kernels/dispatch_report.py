"""Which implementation of each op serves this machine, and why: what `banyan kernels` prints."""

import ast
import operator
from typing import NamedTuple

import torch

from banyan.kernels.attention.cpu import MAX_DIM
from banyan.kernels.device import INTERPRETED, architecture
from banyan.kernels.native import build, threads
from banyan.kernels.ops import TABLE, Op

EXAMPLE = "a decode step of 64 requests at 4,096 tokens, in one layer of an 8B model, bfloat16"
_SIZES = {
    "size": 2, "rows": 64, "heads": 32, "kv_heads": 8, "dim": 128, "keys": 64 * 4096, "pairs": 64 * 4096, "n_in": 4096,
    "n_out": 28_672, "vocab": 151_936, "forbidden": 150_000, "masks": 64, "words": 4748, "n_pools": 2, "slots": 64,
    "n": 64, "width": 8,
}  # fmt: skip
_OTHER_SIZES = {
    "rms_norm": {"dim": 4096},
    "silu_mul": {"dim": 14_336},
    "mask_logits": {"size": 4},
    "copy_pages": {"slots": 64 * 8},
    "accept": {"rows": 64 * 8},
    "edit_logits": {"n": 64 * 500},
}
_NO_LIBRARY = {  # what a CPU needs no compiler for
    "accept": "plain Python: on a CPU the engine follows its drafts itself",
    "edit_logits": "numpy: few cells of a large table",
}


class Dispatch(NamedTuple):
    op: Op
    file: str  # kernels/<op>/<file>.py
    why: str

    @property
    def n_bytes(self) -> float:
        """That it moves in the EXAMPLE, at least."""
        return count(self.op.n_bytes, _sizes(self.op.name))

    @property
    def n_flops(self) -> float:
        return count(self.op.n_flops, _sizes(self.op.name))


def _sizes(op: str) -> dict[str, int]:
    return _SIZES | _OTHER_SIZES.get(op, {})


def count(formula: str, sizes: dict[str, int]) -> float:
    """What a formula of the table comes to. ValueError: it has something in it besides sizes, numbers and + - * /."""
    return _value(ast.parse(formula, mode="eval").body, sizes)


_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def _value(node: ast.expr, sizes: dict[str, int]) -> float:
    """Of a formula of the table: numbers, names of sizes, and + - * / between them."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return float(sizes[name])
        case ast.BinOp(left=left, op=operation, right=right):
            return float(_OPERATIONS[type(operation)](_value(left, sizes), _value(right, sizes)))
    raise ValueError(f"no formula of an op: {ast.unparse(node)}")


def choices(device: str = "") -> list[Dispatch]:
    """One for each op of the table, for tensors on `device` ("cpu" or "cuda"; "": the GPU where there is one).

    On a CPU this builds the library where that was not done yet (seconds, once).
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" or INTERPRETED:
        return [_triton(op) for op in TABLE.values()]
    has_library = build.library() is not None
    return [_cpu(op, has_library) for op in TABLE.values()]


def _triton(op: Op) -> Dispatch:
    if op.on_gpu == "reference":
        return Dispatch(op, "reference", "torch calls the vendor's library")
    return Dispatch(op, op.on_gpu, f"Triton, {architecture()}")


def _cpu(op: Op, has_library: bool) -> Dispatch:
    if op.name in _NO_LIBRARY:
        return Dispatch(op, op.on_cpu, _NO_LIBRARY[op.name])
    if op.on_cpu == "reference":
        return Dispatch(op, "reference", "torch: moves memory, and computes nothing")
    if has_library:
        return Dispatch(op, op.on_cpu, f"C++, compiled for this CPU; {threads.most()} threads")
    file = "plain" if op.name == "attention" else "reference"
    return Dispatch(op, file, "torch: the C++ path could not be built here (see the warning)")


def why_not_deterministic(device: str, dtype: torch.dtype, head_dim: int) -> str:
    """Why a row's bits would depend on its batch even if `ragged` is asked for a deterministic one; "": they do not.

    On a CPU every op of the compiled library sums each row in an order of its own; torch's libraries do not promise
    that, on no device. (On a GPU a deterministic model gives them tiles of one shape: see `runtime/model/linear.py`.)
    """
    if device != "cpu":
        return "the vendor's library, which computes linear layers, rounds a row by how many there are"
    if build.library() is None:
        return "the CPU kernels could not be built (no C++ compiler), and torch rounds a row by how many there are"
    if dtype not in build.DTYPES:
        return f"on a CPU {str(dtype)[6:]} is computed by torch, which rounds a row by how many there are"
    if head_dim % 16 or head_dim > MAX_DIM:
        return f"heads of {head_dim} are computed by torch, which rounds a row by how many there are"
    return ""
