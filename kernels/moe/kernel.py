"""A mixture-of-experts layer in Triton: a grouped product over pairs of a row and an expert, sorted by expert.

One kernel computes both projections. A program has a block of pairs of one expert and a block of outputs. The first
launch gathers rows of x and ends with the gate, so it reads two tiles of weights; the second multiplies each output by
the pair's weight and stores it where the pair was before sorting. The host never waits for the counts: the grid has
enough blocks for any choice of experts, and the programs of unused blocks do nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.linear.kernel import Shape, columns, dequantised, stored, unit
from banyan.kernels.linear.packed import AnyWeight, GroupedRows
from banyan.kernels.moe.experts import Experts, Gate


@triton.jit
def _product(
    b_acc, b_x, b_stored, p_scale, p_minimum, o_w, k, i_half, n_groups,
    GROUP: tl.constexpr, UNIT: tl.constexpr, BITS: tl.constexpr, HAS_MIN: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Returns b_acc plus the product of b_stored, one half of a tile of weights, and b_x, the rows. BITS 0: the weights
    are not quantised."""
    b_w = b_stored
    if BITS > 0:
        b_w = dequantised(b_stored, p_scale, p_minimum, o_w, k, i_half, n_groups, GROUP, UNIT, BITS, HAS_MIN, EVEN)
    return tl.dot(b_w.to(b_x.dtype), b_x, b_acc, input_precision=PRECISION)


@triton.jit
def _experts(
    p_x, p_pairs, p_blocks, p_numbers, p_scale, p_minimum, p_bias, p_factor, p_out,
    n_out, n_in, n_groups, s_numbers, alpha, cubic, limit, shift,
    EACH: tl.constexpr, GROUP: tl.constexpr, UNIT: tl.constexpr, BITS: tl.constexpr, HAS_MIN: tl.constexpr,
    HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, IS_GATED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Computes a block of outputs for a block of pairs. p_blocks: expert, first pair and end of each block. The weights
    are the left operand of the product, see linear/kernel.py."""
    i_block = tl.program_id(0)
    i_expert = tl.load(p_blocks + 3 * i_block)
    first, end = tl.load(p_blocks + 3 * i_block + 1), tl.load(p_blocks + 3 * i_block + 2)
    if first >= end:
        return
    o_m = first + tl.arange(0, BLOCK_M)
    m_m = o_m < end
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_n = o_n < n_out
    o_pair = tl.load(p_pairs + o_m, mask=m_m, other=0)
    o_row = o_pair // EACH if IS_GATED else o_m
    o_w = i_expert * n_out * (2 if IS_GATED else 1) + tl.minimum(o_n, n_out - 1)  # int64, as the blocks are
    b_acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    b_up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for k in range(0, n_in, BLOCK_K):
        b_gates = stored(p_numbers, o_w, k, n_in, s_numbers, BITS, BLOCK_K, EVEN)
        if IS_GATED:
            b_ups = stored(p_numbers, o_w + n_out, k, n_in, s_numbers, BITS, BLOCK_K, EVEN)
        for i_half in tl.static_range(2 if BITS == 4 else 1):
            o_k = columns(k, i_half, BITS, BLOCK_K)
            m_x = m_m[None, :] if EVEN else m_m[None, :] & (o_k < n_in)[:, None]
            b_x = tl.load(p_x + o_row[None, :] * n_in + o_k[:, None], mask=m_x, other=0.0)
            b_acc = _product(
                b_acc, b_x, b_gates, p_scale, p_minimum, o_w, k, i_half, n_groups, GROUP, UNIT, BITS, HAS_MIN, EVEN,
                PRECISION,
            )  # fmt: skip
            if IS_GATED:
                b_up = _product(
                    b_up, b_x, b_ups, p_scale, p_minimum, o_w + n_out, k, i_half, n_groups, GROUP, UNIT, BITS, HAS_MIN,
                    EVEN, PRECISION,
                )  # fmt: skip
    if HAS_BIAS:
        b_acc += tl.load(p_bias + o_w).to(tl.float32)[:, None]
        if IS_GATED:
            b_up += tl.load(p_bias + o_w + n_out).to(tl.float32)[:, None]
    if IS_GATED:
        b_acc = tl.minimum(b_acc, limit)
        b_up = tl.maximum(tl.minimum(b_up, limit), -limit)
        b_acc = (b_up + shift) * b_acc * tl.sigmoid(alpha * (b_acc + cubic * b_acc * b_acc * b_acc))
        o_to = o_m
    else:
        b_acc *= tl.load(p_factor + o_pair, mask=m_m, other=0.0)[None, :]
        o_to = o_pair
    p_to = p_out + o_to[None, :] * n_out + o_n[:, None]
    tl.store(p_to, b_acc.to(p_out.dtype.element_ty), mask=m_m[None, :] & m_n[:, None])


def shape(n_pairs: int, n_experts: int) -> Shape:
    """The tile for n_pairs pairs. Few rows per expert have small tiles, so that many programs read the weights. Many
    rows have larger tiles, which read the same weights less often. Each tile was the fastest of a dozen on an H100."""
    return Shape(16, 64, 128, 4, 3) if n_pairs <= 16 * n_experts else Shape(64, 64, 64, 4, 3)


def experts(x: Tensor, all_experts: Experts, index: Tensor, weights: Tensor) -> Tensor:
    """Sends each row of x through its experts, and returns the sums of their weighted outputs; see
    `reference.experts`."""
    n_each, n_experts, n_pairs = index.shape[1], all_experts.n_experts, index.numel()
    if not n_pairs:
        return torch.zeros_like(x)
    pairs_shape = shape(n_pairs, n_experts)
    pairs, blocks = _sorted(index.flatten(), n_experts, pairs_shape.rows)

    def product(x: Tensor, weight: AnyWeight, bias: Tensor | None, gate: Gate | None, out: Tensor) -> Tensor:
        scale, minimum, n_bits, numbers = None, None, 0, weight
        if isinstance(weight, GroupedRows):
            numbers, scale, minimum, _, n_bits, _ = weight
        assert isinstance(numbers, Tensor)
        n_out, n_in = out.shape[1], x.shape[1]
        n_groups = 1 if scale is None else scale.shape[1]
        own = pairs_shape if n_bits else pairs_shape._replace(inputs=64)  # a number takes 2 or 4 bytes
        grid = len(blocks), triton.cdiv(n_out, own.outputs)
        _experts[grid](
            x, pairs, blocks, numbers, scale, minimum, bias, factors, out,
            n_out, n_in, n_groups, numbers.stride(-2), *(gate or Gate()),
            EACH=n_each, GROUP=n_in // n_groups, UNIT=unit(n_in // n_groups, n_groups, own.inputs), BITS=n_bits,
            HAS_MIN=minimum is not None, HAS_BIAS=bias is not None, EVEN=n_in % own.inputs == 0,
            IS_GATED=gate is not None, PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            BLOCK_M=own.rows, BLOCK_N=own.outputs, BLOCK_K=own.inputs, num_warps=own.warps, num_stages=own.stages,
        )  # fmt: skip
        return out

    x, factors = x.contiguous(), weights.float().contiguous()
    down = all_experts.down
    width = down.shape[-1] if isinstance(down, Tensor) else down.n_in
    inner = torch.empty((n_pairs, width), dtype=x.dtype, device=x.device)
    inner = product(x, all_experts.gate_up, all_experts.gate_up_bias, all_experts.gate, inner)
    outputs = torch.zeros((n_pairs, x.shape[1]), dtype=torch.float32, device=x.device)  # pairs without an expert add 0
    product(inner, down, all_experts.down_bias, None, outputs)
    return outputs.view(*index.shape, x.shape[1]).sum(1).to(x.dtype)


def _sorted(index: Tensor, n_experts: int, block_m: int) -> tuple[Tensor, Tensor]:
    """Sorts the pairs by expert. Returns their order, and the expert, first place and end of each block of at most
    block_m pairs, int64 [n, 3]."""
    order = index.argsort(stable=True)
    starts = torch.searchsorted(index[order], torch.arange(n_experts + 1, device=index.device))
    n_blocks = (starts.diff() + block_m - 1) // block_m
    ends = n_blocks.cumsum(0)
    block = torch.arange(min(len(index), triton.cdiv(len(index), block_m) + n_experts), device=index.device)
    expert = torch.searchsorted(ends, block, right=True).clamp(max=n_experts - 1)
    first = starts[expert] + (block - ends[expert] + n_blocks[expert]) * block_m
    return order, torch.stack([expert, first, torch.minimum(first + block_m, starts[expert + 1])], 1)
