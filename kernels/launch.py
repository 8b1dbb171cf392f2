"""Launch configurations of all kernels except attention: block size and threads, per op.

They were chosen without a GPU from what the compilers report: no kernel spills registers, and the programs that fit on
a multiprocessor keep enough bytes in flight to use its share of the memory bandwidth. All these ops are bound by
memory, so more threads would only wait for each other in reductions. A test computes this for every entry except
`draw`: it keeps six sums per lane in registers, so one program fills a multiprocessor. It reads its row from L2, and
there are rarely more rows than multiprocessors. (Twice its threads spill 10 bytes on sm_80 and sm_90; blocks of 8192
spill 250 to 350.) The tiles of attention are in `attention/kernel.py`.
"""

from typing import NamedTuple

from banyan.kernels.device import architecture


class Launch(NamedTuple):
    """Configuration of one op."""

    block: int  # numbers per program, at most; less if a row is shorter
    threads: int  # of a full block; a smaller block has proportionally fewer


_LAUNCHES = {
    "copy_pages": Launch(2048, 128),
    "copy_slots": Launch(1024, 128),
    "draw": Launch(4096, 512),
    "edit_logits": Launch(256, 128),
    "mask_logits": Launch(4096, 128),
    "rms_norm": Launch(16384, 1024),
    "silu_mul": Launch(1024, 128),
}


def launch(op: str, n: int) -> tuple[int, int]:
    """(block, num_warps) for rows of n numbers on the current device. block is a power of 2."""
    block, threads = _LAUNCHES[op]
    own = min(block, 1 << (n - 1).bit_length())
    warp_size = 64 if architecture().startswith("gfx") else 32
    return own, max(1, threads * own // block // warp_size)
