"""What a compiled kernel leaves room for on a multiprocessor, and whether that keeps its memory busy.

By Little's law a multiprocessor needs bandwidth times latency bytes on their way: fewer, and memory waits for it. The
figures of chips are their makers' (bandwidth, registers, shared memory) and published latencies under load.
"""

from typing import NamedTuple

from kernel_support.aot import CompiledKernel


class Chip(NamedTuple):
    bandwidth: float  # bytes a second, of all memory
    latency: float  # seconds
    processors: int
    shared: int  # bytes of a multiprocessor
    lanes: int  # of a warp
    warps: int  # that a multiprocessor holds

    @property
    def bytes_needed(self) -> float:
        """On their way to one multiprocessor, for the whole bandwidth."""
        return self.bandwidth * self.latency / self.processors


CHIPS = {
    "sm_80": Chip(2.0e12, 0.6e-6, 108, 167_936, 32, 64),
    "sm_90": Chip(4.8e12, 0.7e-6, 132, 233_472, 32, 64),  # H200; an H100 needs less
    "gfx942": Chip(5.3e12, 0.9e-6, 304, 65_536, 64, 32),
}


def programs(compiled: CompiledKernel) -> int:
    """That fit on a multiprocessor at once."""
    chip = CHIPS[compiled.target]
    if compiled.target.startswith("gfx"):  # 512 registers of a lane, in each of four units
        fit = 4 * min(chip.warps // 4, 512 // max(8, -(-compiled.registers // 8) * 8))
    else:  # 65536 of 32 bits, given out by 256
        fit = min(chip.warps, 65536 // (-(-compiled.registers * 32 // 256) * 256))
    by_shared = chip.shared // (compiled.shared + 1024) if compiled.shared else 32
    return min(fit // compiled.warps, by_shared, 32)


def share_in_flight(compiled: CompiledKernel, n_bytes: int) -> float:
    """Of the bytes that the chip needs on their way, those that the programs of a multiprocessor ask for at once, each
    of them n_bytes."""
    return programs(compiled) * n_bytes / CHIPS[compiled.target].bytes_needed
