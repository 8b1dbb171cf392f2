"""Properties of the GPU, and the launch configurations of the Triton kernels."""

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton decides at import, for the whole process

MAX_THREADS = 1024  # of a Triton program
_PROCESSORS = {"sm_80": 108, "sm_90": 132, "gfx942": 304, "interpreter": 2}


def architecture() -> str:
    """The architecture of the current device, such as sm_90 or gfx942; "interpreter" if kernels run as Python."""
    if INTERPRETED:
        return "interpreter"
    from triton.runtime import driver

    target = driver.active.get_current_target()
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)


def n_processors(arch: str) -> int:
    """The number of multiprocessors. Plans need only its order of magnitude, so unknown chips count as an A100."""
    return _PROCESSORS.get(arch, 108)


def warp_size(arch: str) -> int:
    """The number of threads in a warp."""
    return 64 if arch.startswith("gfx") else 32


# For each op: the largest number of elements per program (the block), and the threads of a full block. (The tiles of
# attention are in attention/kernel.py.) They were chosen without a GPU from compiler reports: no kernel spills
# registers, and the programs that fit on a multiprocessor keep enough bytes in flight to use its share of the memory
# bandwidth. All these ops are bound by memory, so more threads would only wait for each other in reductions. A test
# checks this for every entry except `draw`, which keeps six sums per lane in registers, so that one program fills a
# multiprocessor. It reads its row from L2, and there are rarely more rows than multiprocessors. On an H100, other
# values were faster by at most 8 %, and blocks of 8192 for `draw` took 0.89 of the time with a temperature alone and
# 1.37 with top-p.
_LAUNCHES = {
    "copy_pages": (2048, 128),
    "copy_slots": (1024, 128),
    "draw": (4096, 512),
    "edit_logits": (256, 128),
    "mask_logits": (4096, 128),
    "rms_norm": (16384, 1024),
    "silu_mul": (1024, 128),
}


def launch(op: str, n: int) -> tuple[int, int]:
    """The launch configuration of the Triton kernel of `op`, for rows of n numbers on the current device. Returns
    (block, num_warps).

    block is the smallest power of 2 that covers n, up to the op's maximum. A block below the maximum gets
    proportionally fewer warps.
    """
    block, threads = _LAUNCHES[op]
    own = min(block, 1 << (n - 1).bit_length())
    return own, max(1, threads * own // block // warp_size(architecture()))
