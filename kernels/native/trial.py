"""What a fresh build must get right before it is used: every function and option, in both types."""

import ctypes

import torch

from banyan.kernels.attention import cpu, reference
from banyan.kernels.attention.batch import ragged


def run(library: ctypes.CDLL) -> None:
    """Compare with the references; AssertionError names what is off."""
    chance = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=chance)

    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        for heads, kv_heads, dim in ((6, 2, 80), (4, 4, 64)):
            batch = ragged([1, 70, 1], [300, 90, 33], [range(19), range(19, 25), range(25, 28)], 16)
            q = randn(72, heads, dim).to(dtype)
            k_pool, v_pool = randn(2, 28, 16, kv_heads, dim).to(dtype)
            for options in ({}, {"softcap": 5.0, "window": 40, "sinks": randn(heads)}):
                got = cpu.attend(library, q, k_pool, v_pool, batch, scale=0.1, **options)
                want = reference.attention(
                    q.double(), k_pool.double(), v_pool.double(), batch, scale=0.1, **options
                )  # fmt: skip
                off = (got.double() - want).abs().max().item()
                assert off <= tolerance, f"attention in {dtype} is off by {off:.1e} on this machine"
