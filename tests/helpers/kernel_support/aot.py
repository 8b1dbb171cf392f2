"""Compiles the kernels of a Triton launcher ahead of time, without a GPU, and reads their resource usage.

Registers, stack, shared memory and instruction counts come from the compilers in the Triton wheel (3.6 to 3.9; CUDA and
HIP targets). A launcher runs unchanged on tensors of device "meta", which have no memory. Each launch becomes
a compilation with the specialisation of the real launch (divisibility by 16, integers equal to one, constants, warps,
stages). The launcher must not read values of tensors. TRITON_INTERPRET must be unset.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns if it is not set

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_LIMIT = {
    "sm_80": 166912,
    "sm_90": 232448,
    "gfx942": 65536,
}  # bytes per program; compilers do not check it
IS_TUNED = triton.__version__.startswith("3.9.")
"""Whether the tile sizes were chosen with this version of Triton. The compilers of 3.6 to 3.8 spill two to nine values
in one variant of ten: values that are written before the loop and read after it."""
_CUOBJDUMP = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin/cuobjdump")


class CompiledKernel(NamedTuple):
    """The resource usage of one kernel for one target."""

    kernel: str
    target: str
    seconds: float
    registers: int  # per thread
    spilled: int  # bytes of stack per thread (CUDA), or spilled and scratch (HIP)
    shared: int  # bytes per program
    counts: dict[str, int]  # instructions of interest
    warps: int  # of a program

    def check(self, spilled: int = 0) -> None:
        """Fails if the kernel spills more bytes, or needs more shared memory or threads than a program may have."""
        most = spilled or (0 if IS_TUNED else 40)
        assert self.spilled <= most, f"{self.kernel} on {self.target} spills {self.spilled} B"
        limit = SHARED_LIMIT[self.target]
        assert self.shared <= limit, f"{self.kernel} on {self.target} takes {self.shared} B shared, limit {limit}"
        n_threads = self.warps * TARGETS[self.target].warp_size
        assert n_threads <= 1024, f"{self.kernel} on {self.target} has {n_threads} threads"


def compile_launcher(target: str, launch: Callable[..., Any], *args: Any, **options: Any) -> list[CompiledKernel]:
    """Calls `launch(*args, **options)`, and compiles its launches for a target instead of running them."""
    found: list[tuple[str, Any, float]] = []
    with _compile_only(TARGETS[target], found):
        launch(*args, **options)
    read = _read_hip if target.startswith("gfx") else _read_cuda
    return [
        CompiledKernel(kernel, target, seconds, *read(binary), binary.metadata.num_warps)
        for kernel, binary, seconds in found
    ]


class _StubDriver:
    """The driver methods that a launch calls, without a device."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def set_current_device(self, device: Any) -> None:
        pass

    def get_device_interface(self) -> None:
        return None

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty


@contextmanager
def _compile_only(target: GPUTarget, found: list[tuple[str, Any, float]]) -> Iterator[None]:
    stock_run = JITFunction.run
    touched = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        self.device_caches.clear()  # the cache does not distinguish targets
        touched.append(self)
        start = time.perf_counter()
        binary = stock_run(self, *args, grid=grid, warmup=True, **options)
        found.append((self.__name__, binary, time.perf_counter() - start))
        return binary

    driver = triton.runtime.driver
    before = getattr(driver, "_active", None)  # None: not initialised yet; to initialise it needs a GPU
    driver.set_active(_StubDriver(target))
    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = stock_run
        for kernel in touched:
            kernel.device_caches.clear()
        driver.set_active(before)


def _read_cuda(binary: Any) -> tuple[int, int, int, dict[str, int]]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage = subprocess.run([_CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage.stdout + usage.stderr)
    assert found, "no resource usage in the binary"
    # Count in the PTX: each of these is one instruction of the binary, and disassembling any binary takes 0.7 s of CPU.
    patterns = {
        "hgmma": r"\bwgmma\.mma_async\b",  # Hopper's tensor cores
        "hmma": r"\bmma\.sync\b",  # Ampere's
        "async copy": r"\bcp\.async\.c[ag]\b",
    }
    counts = {name: len(re.findall(pattern, binary.asm["ptx"])) for name, pattern in patterns.items()}
    return int(found[1]), int(found[2]), binary.metadata.shared, counts


def _read_hip(binary: Any) -> tuple[int, int, int, dict[str, int]]:
    text = binary.asm["amdgcn"]

    def field(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        assert found, f"no {name} in the binary"
        return int(found[1])

    spilled = 4 * field("vgpr_spill_count") + field("private_segment_fixed_size")
    return field("vgpr_count"), spilled, binary.metadata.shared, {"mfma": len(re.findall("v_mfma", text))}
