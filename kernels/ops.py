"""The table of ops: what the rest of Banyan calls, and which implementation runs where."""

from collections.abc import Sequence

from torch import Tensor

from banyan.kernels.attention import cpu as attention_cpu
from banyan.kernels.attention.batch import Ragged, ragged
from banyan.kernels.copy_pages import reference as copy_pages_cpu
from banyan.kernels.rms_norm import reference as rms_norm_cpu
from banyan.kernels.rope import reference as rope_cpu
from banyan.kernels.silu_mul import reference as silu_mul_cpu
from banyan.kernels.write_kv import reference as write_kv_cpu

__all__ = ["Ragged", "attention", "copy_pages", "ragged", "rms_norm", "rope", "silu_mul", "write_kv"]


def attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    ragged: Ragged,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    return attention_cpu.attention(q, k_pool, v_pool, ragged, scale=scale, softcap=softcap, window=window, sinks=sinks)


def write_kv(k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    write_kv_cpu.write_kv(k, v, k_pool, v_pool, slots)


def copy_pages(pools: Sequence[Tensor], copies: Tensor) -> None:
    copy_pages_cpu.copy_pages(pools, copies)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    return rms_norm_cpu.rms_norm(x, weight, eps, residual)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return rope_cpu.rope(q, k, cos, sin, positions)


def silu_mul(gate_up: Tensor) -> Tensor:
    return silu_mul_cpu.silu_mul(gate_up)
