"""Which implementation of each op serves this machine, and why: what `banyan kernels` prints."""

from typing import NamedTuple

import torch

from banyan.kernels.attention.cpu import MAX_DIM
from banyan.kernels.device import INTERPRETED, architecture
from banyan.kernels.native import build
from banyan.kernels.ops import TABLE, Op


class Choice(NamedTuple):
    op: Op
    file: str  # kernels/<op>/<file>.py
    why: str


def choices(device: str = "") -> list[Choice]:
    """One for each op of the table, for tensors on `device` ("cpu" or "cuda"; "": the GPU where there is one).

    On a CPU this builds the library where that was not done yet (seconds, once).
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" or INTERPRETED:
        return [_triton(op) for op in TABLE.values()]
    has_library = build.library() is not None
    return [_cpu(op, has_library) for op in TABLE.values()]


def _triton(op: Op) -> Choice:
    if op.on_gpu == "reference":
        return Choice(op, "reference", "torch calls the vendor's library")
    return Choice(op, op.on_gpu, f"Triton, {architecture()}")


def _cpu(op: Op, has_library: bool) -> Choice:
    if op.on_cpu == "reference":
        return Choice(op, "reference", "torch: moves memory, and computes nothing")
    if has_library:
        return Choice(op, op.on_cpu, f"C++, compiled for this CPU; {torch.get_num_threads()} threads")
    file = "plain" if op.name == "attention" else "reference"
    return Choice(op, file, "torch: the C++ path could not be built here (see the warning)")


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
