"""Linear layers whose weights and rows both have 8 bits (W8A8), int8 or E4M3, in Triton.

Each row of x is quantised first, with one scale for each of the weight's groups of inputs. Tensor cores multiply
8 bits at twice the rate of 16. They sum products of int8 in int32, which is exact. On Hopper, they sum products of E4M3
with about 14 bits, so these sums are added to float32 every 128 inputs (DeepSeek-V3, arXiv:2412.19437, section 3.3.2).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.device import MAX_THREADS, architecture, warp_size
from banyan.kernels.linear.kernel import Shape, add_parts, split
from banyan.kernels.linear.packed import GroupedRows
from banyan.kernels.write_kv.kernel import FP8, INT8, narrow, scale_of

EXACT = tl.constexpr(128)  # inputs whose products in E4M3 are summed before they are added to float32


@triton.jit
def _quantise_rows(
    p_x, p_numbers, p_scale, n_rows, n_in, width, n_groups, s_x,
    GROUP: tl.constexpr, KIND: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Quantises a block of groups of one row. Rows are padded to `width` inputs with zeros.
    p_scale: [n_groups, n_rows]."""
    i_row = tl.program_id(0).to(tl.int64)
    o_group = tl.program_id(1) * BLOCK_GROUPS + tl.arange(0, BLOCK_GROUPS)
    o_in = tl.arange(0, BLOCK)
    o = o_group[:, None] * GROUP + o_in[None, :]
    m = (o_in < GROUP)[None, :] & (o_group < n_groups)[:, None]
    b = tl.load(p_x + i_row * s_x + o, mask=m & (o < n_in), other=0.0).to(tl.float32)
    b_scale = scale_of(b, KIND)
    tl.store(p_numbers + i_row * width + o, narrow(b, b_scale[:, None], KIND), mask=m)
    tl.store(p_scale + o_group.to(tl.int64) * n_rows + i_row, b_scale, mask=o_group < n_groups)


@triton.jit
def _product(
    p_x, p_x_scale, p_numbers, p_scale, p_bias, p_out, n_rows, n_out, width, n_groups, n_each,
    GROUP: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Computes a block of outputs of a block of rows, from one part of the inputs. GROUP: a multiple of BLOCK_K; 0:
    there is one group. n_each: number of inputs in a part, a multiple of BLOCK_K. Each part has its own output in
    p_out. The weights are the left operand, because only the right operand, the rows, may be a narrow tile."""
    IS_INT: tl.constexpr = p_numbers.dtype.element_ty == tl.int8
    # Programs that run at the same time share rows and weights.
    i_m, i_n = tl.swizzle2d(tl.program_id(1), tl.program_id(0), tl.num_programs(1), tl.num_programs(0), 8)
    o_m = (i_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    o_n = (i_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    o_row, o_w = tl.minimum(o_m, n_rows - 1), tl.minimum(o_n, n_out - 1)  # no index is out of range, so no mask
    start = tl.program_id(2) * n_each
    b_acc = tl.zeros([BLOCK_N, BLOCK_M], tl.int32 if IS_INT and GROUP == 0 else tl.float32)
    for k in range(start, tl.minimum(start + n_each, width), BLOCK_K):
        o_k = k + tl.arange(0, BLOCK_K)
        p_w, p_row = p_numbers + o_w[:, None] * width + o_k[None, :], p_x + o_row[None, :] * width + o_k[:, None]
        if EVEN:
            b_w, b_x = tl.load(p_w), tl.load(p_row)
        else:
            b_w = tl.load(p_w, mask=(o_k < width)[None, :], other=0.0)
            b_x = tl.load(p_row, mask=(o_k < width)[:, None], other=0.0)
        if GROUP > 0:
            i_group = k // GROUP
            b_part = tl.dot(b_w, b_x).to(tl.float32) * tl.load(p_scale + o_w * n_groups + i_group)[:, None]
            b_acc += b_part * tl.load(p_x_scale + i_group.to(tl.int64) * n_rows + o_row)[None, :]
        elif IS_INT:
            b_acc = tl.dot(b_w, b_x, b_acc, out_dtype=tl.int32)
        else:
            b_acc = tl.dot(b_w, b_x, b_acc, max_num_imprecise_acc=EXACT)
    b_out = b_acc.to(tl.float32)
    if GROUP == 0:
        b_out *= tl.load(p_scale + o_w)[:, None] * tl.load(p_x_scale + o_row)[None, :]
    if HAS_BIAS:
        b_out += tl.load(p_bias + o_w).to(tl.float32)[:, None]
    p_out += tl.program_id(2).to(tl.int64) * n_rows * n_out
    m_out = (o_m < n_rows)[None, :] & (o_n < n_out)[:, None]
    tl.store(p_out + o_m[None, :] * n_out + o_n[:, None], b_out.to(p_out.dtype.element_ty), mask=m_out)


def serves(weight: GroupedRows) -> bool:
    """Whether `linear` supports a weight on the current device. An A100 has no E4M3."""
    if not weight.is_w8a8 or weight.n_bits != 8 or weight.minimum is not None:
        return False
    n_groups = weight.scale.shape[1]
    if n_groups > 1 and weight.n_in // n_groups % EXACT.value:
        return False
    return weight.numbers.dtype == torch.int8 or not architecture().startswith("sm_8")


def shape(n_rows: int, n_groups: int, arch: str) -> Shape:
    """The tile for n_rows rows. Few rows have small tiles, since reading the weight is the bottleneck. With several
    groups, a kernel keeps two sets of sums in registers, so the largest tile is smaller. The tiles were chosen from
    compiler reports, without a measurement."""
    if n_rows <= 16:
        return Shape(16, 64, 128, 4, 3 if arch == "gfx942" else 5)
    if n_rows <= 64:
        return Shape(64, 64, 128, 4, 3 if arch == "gfx942" else 4)
    return Shape(128 if n_groups == 1 else 64, 128, 128, 8, 1 if arch == "gfx942" else 3)


def linear(x: Tensor, weight: GroupedRows, bias: Tensor | None = None) -> Tensor:
    """x times the transposed weight, plus bias, [n_rows, n_out]; see `reference.linear`. Each row of x must be
    contiguous, and `serves(weight)` must be true."""
    numbers, scale, _, n_in, _, _ = weight
    (n_out, width), n_groups, n_rows = numbers.shape, scale.shape[1], len(x)
    assert x.shape[1] == n_in, f"x has {x.shape[1]} columns, but the weight has {n_in} inputs"
    assert x.stride(1) == 1, "the last axis must be contiguous"
    out = torch.empty((n_rows, n_out), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    is_int, group = numbers.dtype == torch.int8, width // n_groups
    numbers = numbers if is_int else numbers.view(torch.float8_e4m3fn)
    small = torch.empty((n_rows, width), dtype=numbers.dtype, device=x.device)
    row_scale = torch.empty((n_groups, n_rows), dtype=torch.float32, device=x.device)
    arch, block = architecture(), triton.next_power_of_2(group)
    groups = max(1, min(triton.next_power_of_2(n_groups), 2048 // block))
    _quantise_rows[n_rows, triton.cdiv(n_groups, groups)](
        x, small, row_scale, n_rows, n_in, width, n_groups, x.stride(0), GROUP=group, KIND=INT8 if is_int else FP8,
        BLOCK_GROUPS=groups, BLOCK=block, num_warps=max(1, min(MAX_THREADS // warp_size(arch), groups * block // 1024)),
    )  # fmt: skip
    own = shape(n_rows, n_groups, arch)
    grid, n_each, parts = split(out, width, own)
    is_whole = parts is out
    _product[grid](
        small, row_scale, numbers, scale, bias if is_whole else None, parts, n_rows, n_out, width, n_groups,
        n_each, GROUP=0 if n_groups == 1 else group, HAS_BIAS=is_whole and bias is not None,
        EVEN=width % own.inputs == 0, BLOCK_M=own.rows, BLOCK_N=own.outputs, BLOCK_K=own.inputs,
        num_warps=own.warps, num_stages=own.stages,
    )  # fmt: skip
    return out if is_whole else add_parts(parts, bias, out)
