"""How the kernels beside attention are launched, per architecture: numbers a program handles at once, and its threads.

Chosen without a GPU, from what the compilers say of registers and shared memory: nothing is spilled, and the programs
that fit on a multiprocessor have as many bytes on their way from memory as its share of the bandwidth needs. All of
these ops are bound by memory; threads beyond that only wait for each other in reductions. `testing/occupancy.py`
computes it, and a test holds every entry to it but one: `draw` keeps six sums of each number's place in registers and
so has one program on a multiprocessor; it reads its row from L2, and there are hardly more rows than multiprocessors.
(Twice its threads spill 10 bytes on sm_80 and sm_90; blocks of 8192 spill 250 to 350.) What attention does stands in
`attention/kernel.py`.
"""

from typing import NamedTuple

from banyan.kernels.device import architecture


class Launch(NamedTuple):
    block: int  # numbers; at most, where a row is shorter
    threads: int  # of a full block; of a shorter one as many numbers each


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
    """(block, num_warps) for rows of n numbers, on the current device: a power of 2, and its threads in warps, of which
    AMD's have 64 lanes and others 32."""
    block, threads = _LAUNCHES[op]
    own = min(block, 1 << (n - 1).bit_length())
    lanes = 64 if architecture().startswith("gfx") else 32
    return own, max(1, threads * own // block // lanes)
