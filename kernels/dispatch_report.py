"""Which implementation of each op serves this machine, and why: what `banyan kernels` prints."""

from typing import NamedTuple

import torch

from banyan.kernels.attention.native import MAX_DIM
from banyan.kernels.device import INTERPRETED, architecture
from banyan.kernels.native import build, threads
from banyan.kernels.native.layers import MAX_HEAD
from banyan.kernels.ops import TABLE, Op, OpSizes

EXAMPLE = "a decode step of 64 requests at 4,096 tokens, in one layer of an 8B model, bfloat16"
_SIZES = {  # where an op's part of the example differs from the defaults of OpSizes
    "rms_norm": OpSizes(dim=4096),
    "silu_mul": OpSizes(dim=14_336),
    "copy_pages": OpSizes(slots=64 * 8),
    "experts": OpSizes(n_in=2048, n_out=2 * 768),
}


class Dispatch(NamedTuple):
    """The implementation that serves an op."""

    op: Op
    file: str  # in the op's folder
    why: str

    @property
    def n_bytes(self) -> float:
        """The least number of bytes that the op moves in the example that `banyan kernels` prints."""
        return self.op.n_bytes(_SIZES.get(self.op.name, OpSizes()))

    @property
    def n_flops(self) -> float:
        return self.op.n_flops(_SIZES.get(self.op.name, OpSizes()))


def choices(device: str = "") -> list[Dispatch]:
    """Returns the implementation of each op for tensors on `device` ("cpu" or "cuda"; "": the GPU if there is one).

    For a CPU, this compiles the C++ library if that was not done yet (takes seconds, once).
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    serve = _on_gpu if device == "cuda" or INTERPRETED else _on_cpu
    return [serve(op) for op in TABLE.values()]


def _on_gpu(op: Op) -> Dispatch:
    is_vendors = op.on_gpu == "reference"
    return Dispatch(op, op.on_gpu, "torch calls the vendor's library" if is_vendors else f"Triton, {architecture()}")


def _on_cpu(op: Op) -> Dispatch:
    if op.name == "edit_logits":
        return Dispatch(op, op.on_cpu, "numpy: few cells of a large table")
    if op.on_cpu == "reference":
        return Dispatch(op, "reference", "torch: the op only moves memory")
    if build.library() is not None:
        return Dispatch(op, op.on_cpu, f"C++, compiled for this CPU; {threads.n_max()} threads")
    file = "cpu" if op.name == "attention" else "reference"
    return Dispatch(op, file, "torch: the C++ library could not be built here (see the warning)")


def why_not_deterministic(dtype: torch.dtype, head_dim: int) -> str:
    """Why deterministic mode is impossible with these arguments on this machine's CPU, as the end of an error message;
    "" if it is possible.

    Every op of the C++ library sums each row in a fixed order. The libraries that torch calls promise no fixed order on
    any device. (On a GPU, a deterministic model therefore calls them only with a fixed number of rows: see
    `runtime/model/linear.py`.)
    """
    rounds = "rounds a row differently in different batches"
    if build.library() is None:
        return f"torch {rounds}, and the CPU kernels could not be built: {build.why_not()}"
    if dtype not in build.DTYPES:
        return f"on a CPU {str(dtype)[6:]} is computed by torch, which {rounds}"
    if head_dim % 16 or head_dim > min(MAX_DIM, MAX_HEAD):
        return f"heads of {head_dim} are computed by torch, which {rounds}"
    return ""
