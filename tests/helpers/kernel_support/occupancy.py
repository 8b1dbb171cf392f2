"""How many programs of a compiled kernel fit on a multiprocessor, and whether they keep the memory busy.

By Little's law, a multiprocessor needs bandwidth times latency bytes in flight to use the full bandwidth. Bandwidth,
registers and shared memory are the makers' figures; latencies are published measurements under load.
"""

from typing import NamedTuple

from kernel_support.aot import CompiledKernel


class Chip(NamedTuple):
    """The properties of a GPU."""

    bandwidth: float  # bytes a second, of all memory
    latency: float  # seconds
    processors: int
    shared: int  # bytes of a multiprocessor
    lanes: int  # of a warp
    warps: int  # maximum on a multiprocessor

    @property
    def bytes_needed(self) -> float:
        """Bytes in flight per multiprocessor that use the full bandwidth."""
        return self.bandwidth * self.latency / self.processors


CHIPS = {
    "sm_80": Chip(2.0e12, 0.6e-6, 108, 167_936, 32, 64),
    "sm_90": Chip(4.8e12, 0.7e-6, 132, 233_472, 32, 64),  # H200; an H100 needs less
    "gfx942": Chip(5.3e12, 0.9e-6, 304, 65_536, 64, 32),
}


def programs(compiled: CompiledKernel) -> int:
    """How many programs fit on a multiprocessor at once."""
    chip = CHIPS[compiled.target]
    if compiled.target.startswith("gfx"):  # 512 registers per lane in each of four units
        fit = 4 * min(chip.warps // 4, 512 // max(8, -(-compiled.registers // 8) * 8))
    else:  # 65536 registers of 32 bits, allocated by 256
        fit = min(chip.warps, 65536 // (-(-compiled.registers * 32 // 256) * 256))
    by_shared = chip.shared // (compiled.shared + 1024) if compiled.shared else 32
    return min(fit // compiled.warps, by_shared, 32)


def share_in_flight(compiled: CompiledKernel, n_bytes: int) -> float:
    """The bytes in flight on a multiprocessor whose programs have n_bytes each in flight, as a share of the bytes that
    the chip needs for its full bandwidth."""
    return programs(compiled) * n_bytes / CHIPS[compiled.target].bytes_needed
