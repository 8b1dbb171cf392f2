"""Tests a new build of the C++ library before it is used: every function and option, in both dtypes."""

import ctypes
from functools import partial

import torch
from torch import Tensor

from banyan.kernels.attention import native
from banyan.kernels.attention import reference as attention
from banyan.kernels.attention.ragged import AttentionOptions, ragged
from banyan.kernels.draw import reference as draw
from banyan.kernels.draw.rows import draw_rows
from banyan.kernels.kv_layout import KINDS, Pool, Quantized, empty, parts, quantize, read
from banyan.kernels.linear import packed
from banyan.kernels.mask_logits import reference as mask_logits
from banyan.kernels.native import layers
from banyan.kernels.rms_norm import reference as rms_norm
from banyan.kernels.rope_kv import native as native_rope
from banyan.kernels.rope_kv import reference as rope_kv
from banyan.kernels.silu_mul import reference as silu_mul


def run(library: ctypes.CDLL) -> None:
    """Compares the library with the references. Raises AssertionError that names the wrong function."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        generator = torch.Generator().manual_seed(0)
        _attention(library, generator, dtype, tolerance)
        _row_ops(library, generator, dtype, tolerance)
        _linear(library, generator, dtype, tolerance)
        _rope(library, generator, dtype, tolerance)
        _layers(library, generator, dtype, tolerance)
    _masks(library, generator)
    _draws(library, generator)


def _randn(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


def _near(what: str, got: Tensor, want: Tensor, tolerance: float) -> None:
    off = ((got.double() - want).abs() / (1 + want.abs())).max().item()
    assert off <= tolerance, f"{what} in {got.dtype} is off by {off:.1e} on this machine"  # also fails for NaN


def _attention(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    pages = [range(19), range(19, 25), range(25, 28), [*range(15), 28]]  # the last one shares 240 tokens with the first
    draft = [-1, 0, 0, -1, 2, 4, 3, 3, 6, 1]  # few rows with one head per group, many with three
    batch = ragged([1, 70, 10, 1], [300, 90, 33, 250], pages, 16, parents=[None, None, draft, None])
    for heads, kv_heads, dim in ((6, 2, 80), (4, 4, 64)):
        q = _randn(generator, dtype, 82, heads, dim)
        k, v = _randn(generator, dtype, 2, 29, 16, kv_heads, dim)
        sinks = torch.randn(heads, generator=generator)
        pools: list[tuple[Pool, Pool]] = [(k, v)]
        pools += [(Quantized(*quantize(k, kind)), Quantized(*quantize(v, kind))) for kind in KINDS.values()]
        for k_pool, v_pool in pools:
            for options in (AttentionOptions(0.1), AttentionOptions(0.1, 5.0, 40, sinks)):
                attend = partial(native.attend, library)
                got, want = (
                    run(rows, k_pool, v_pool, batch, options)
                    for run, rows in ((attend, q), (attention.attention, q.double()))
                )
                _near("attention", got, want, tolerance)


def _row_ops(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    is_bf16 = dtype == torch.bfloat16
    n, dim = 3, 44  # not a multiple of the vector width
    x, residual, weight = (_randn(generator, dtype, n, dim) for _ in range(3))
    out, total = torch.empty_like(x), torch.empty_like(x)
    pointers = (t.data_ptr() for t in (x, weight[0], residual, out, total))
    library.banyan_rms_norm(is_bf16, *pointers, n, 1, dim, dim, dim, 1e-6, 1)
    _near("rms_norm", out, rms_norm.rms_norm(total.double(), weight[0].double(), 1e-6), tolerance)
    assert torch.equal(total, x + residual), f"the residual add in {dtype} is off on this machine"

    out = torch.empty(n, dim // 2, dtype=dtype)
    library.banyan_silu_mul(is_bf16, x.data_ptr(), out.data_ptr(), n, dim // 2, dim, 1)
    _near("silu_mul", out, silu_mul.silu_mul(x.double()), tolerance)


def _linear(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    n, n_in, n_out, width = 3, 44, 70, library.banyan_panel()
    x, weight, bias = (_randn(generator, dtype, *shape) for shape in ((n, n_in), (n_out, n_in), (n_out,)))
    out = torch.empty(n, n_out, dtype=dtype)
    numbers, scales = packed.quantize(weight)
    for kept, wanted in (
        (packed.pack(weight, width), weight),
        (packed.pack(weight, width, is_int8=True), numbers * scales[:, None]),
    ):
        scale = None if kept.scale is None else kept.scale.data_ptr()
        pointers = x.data_ptr(), kept.panels.data_ptr(), scale, bias.data_ptr(), out.data_ptr()
        library.banyan_linear(dtype == torch.bfloat16, *pointers, n, n_in, n_out, n_in, 1)
        _near(f"linear of {kept.panels.dtype}", out, x.double() @ wanted.double().T + bias.double(), 10 * tolerance)


def _rope(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    n, heads, kv_heads, dim = 3, 2, 1, 44
    qkv = _randn(generator, dtype, n, heads + 2 * kv_heads, dim)
    cos, sin = torch.randn(2, n, 20, generator=generator)
    q_norm, k_norm = _randn(generator, dtype, 2, dim)
    slots = torch.tensor([5, 1, 6])
    want = torch.zeros(2, 2, 4, kv_heads, dim, dtype=torch.float64)
    norms = q_norm.double(), k_norm.double()
    want_q = rope_kv.rope_kv(qkv.double(), norms, 1e-6, cos.double(), sin.double(), want[0], want[1], slots)
    for kind, loss in ((dtype, 0.0), (torch.int8, 0.04), (torch.float8_e4m3fn, 0.065)):
        k, v = (empty((2, 4, kv_heads, dim), kind) for _ in range(2))
        for part in (*parts(k), *parts(v)):
            part.zero_()
        got_q = native_rope.rope_kv(library, qkv, (q_norm, k_norm), 1e-6, cos, sin, k, v, slots)
        _near("rope_kv", got_q, want_q, tolerance)
        got = torch.stack([read(pool, torch.arange(2), torch.float64) for pool in (k, v)])
        _near(f"rope_kv's pools of {kind}", got, want, tolerance + loss)


def _layers(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    """Two layers with different windows, in one call, against the references op by op."""
    hidden, heads, kv_heads, dim, mid, width = 48, 2, 1, 16, 40, library.banyan_panel()
    batch = ragged([1, 3], [9, 6], [[0], [1]], 16)
    x, (cos, sin) = _randn(generator, dtype, 4, hidden), torch.randn(2, 4, dim // 2, generator=generator)
    h, total = torch.zeros(4, hidden, dtype=torch.float64), x.double()
    weights, kv = [], []
    for window in (0, 4):
        attention_norm, mlp_norm = _randn(generator, dtype, 2, hidden)
        q_norm, k_norm = _randn(generator, dtype, 2, dim)
        k, v = _randn(generator, dtype, 2, 2, 16, kv_heads, dim)
        linears = [
            (_randn(generator, dtype, n_out, n_in) / n_in**0.5, _randn(generator, dtype, n_out))
            for n_in, n_out in (
                (hidden, (heads + 2 * kv_heads) * dim),
                (heads * dim, hidden),
                (hidden, 2 * mid),
                (mid, hidden),
            )
        ]
        qkv, out, gate_up, down = ((packed.pack(weight, width), bias) for weight, bias in linears)
        weights.append(layers.Weights(attention_norm, mlp_norm, (q_norm, k_norm), qkv, out, gate_up, down, window))
        kv.append((k, v))

        (qkv_w, qkv_b), (out_w, out_b), (gate_w, gate_b), (down_w, down_b) = (
            (weight.double().T, bias.double()) for weight, bias in linears
        )
        wide_k, wide_v, norms = k.double(), v.double(), (q_norm.double(), k_norm.double())
        h, total = rms_norm.rms_norm(h, attention_norm.double(), 1e-5, total)
        rows = (h @ qkv_w + qkv_b).view(4, -1, dim)
        q = rope_kv.rope_kv(rows, norms, 1e-5, cos.double(), sin.double(), wide_k, wide_v, batch.slots)
        attended = attention.attention(q, wide_k, wide_v, batch, AttentionOptions(dim**-0.5, window=window))
        h, total = rms_norm.rms_norm(attended.view(4, -1) @ out_w + out_b, mlp_norm.double(), 1e-5, total)
        h = silu_mul.silu_mul(h @ gate_w + gate_b) @ down_w + down_b

    fused = layers.Layers(library, weights, heads, kv_heads, dim, 1e-5)
    assert fused.bind(kv)
    for last, tail in ((None, None), (torch.tensor([0, 3]), ragged([1, 1], [9, 6], [[0], [1]], 16))):
        output, residual = fused(x.clone(), cos, sin, batch._replace(tail=tail), last)
        want = h + total
        _near("a layer", output + residual, want if last is None else want[last], 3 * tolerance)


def _masks(library: ctypes.CDLL, generator: torch.Generator) -> None:
    logits = torch.randn(3, 100, generator=generator)
    masks = torch.randint(-(2**31), 2**31, (2, 4), generator=generator).int()
    masks[0, 1] = -1
    which = torch.tensor([1, -1, 0], dtype=torch.int32)
    want = logits.clone()
    mask_logits.mask_logits(want, masks, which)
    library.banyan_mask_logits(logits.data_ptr(), masks.data_ptr(), which.data_ptr(), 3, 100, 100, 4, 1)
    assert torch.equal(logits, want), "mask_logits is wrong on this machine"


def _draws(library: ctypes.CDLL, generator: torch.Generator) -> None:
    logits = 3 * torch.randn(8, 1500, generator=generator)
    logits[1, 7], logits[2] = torch.nan, -torch.inf
    n = len(logits)
    rows = draw_rows(
        [0.0, 1.0, 1.0] + [0.8] * 5, [0, 0, 0, 0, 40, 0, 40, 900], [1.0] * 5 + [0.9] * 3, [0.0] * 7 + [0.01],
        range(n), [0] * n, range(n),
    )  # fmt: skip
    got, want = torch.empty(n, dtype=torch.int64), draw.draw(logits.double(), rows)
    columns = (ctypes.c_void_p * len(rows))(*(x.data_ptr() for x in rows))
    library.banyan_draw(logits.data_ptr(), columns, got.data_ptr(), *logits.shape, logits.stride(0), 1)
    assert torch.equal(got, want), "draw is wrong on this machine"
