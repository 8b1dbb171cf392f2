"""Tests a new build of the C++ library before it is used: every function and option, in both dtypes."""

import ctypes

import torch
from torch import Tensor

from banyan.kernels.attention import native
from banyan.kernels.attention import reference as attention
from banyan.kernels.attention.ragged import ragged
from banyan.kernels.draw import reference as draw
from banyan.kernels.draw.rows import draw_rows
from banyan.kernels.kv_layout import KINDS, Quantized, empty, parts, quantize, read
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
        _others(library, generator, dtype, tolerance)
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
    draft = [
        -1,
        0,
        0,
        -1,
        2,
        4,
        3,
        3,
        6,
        1,
    ]  # few rows with one head per group, many with three
    batch = ragged([1, 70, 10, 1], [300, 90, 33, 250], pages, 16, parents=[None, None, draft, None])
    for heads, kv_heads, dim in ((6, 2, 80), (4, 4, 64)):
        q = _randn(generator, dtype, 82, heads, dim)
        k_pool, v_pool = _randn(generator, dtype, 2, 29, 16, kv_heads, dim)
        sinks = torch.randn(heads, generator=generator)
        small = [[Quantized(*quantize(pool, kind)) for pool in (k_pool, v_pool)] for kind in KINDS.values()]
        for pools in ((k_pool, v_pool), *small):
            for softcap, window, sink in ((0.0, 0, None), (5.0, 40, sinks)):
                options = {"scale": 0.1, "softcap": softcap, "window": window, "sinks": sink}
                got = native.attend(library, q, *pools, batch, **options)
                _near("attention", got, attention.attention(q.double(), *pools, batch, **options), tolerance)


def _others(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    is_bf16 = dtype == torch.bfloat16
    n, dim = 3, 44  # not a multiple of the vector width
    x, added, weight = (_randn(generator, dtype, n, dim) for _ in range(3))
    out, total = torch.empty_like(x), torch.empty_like(x)
    pointers = (t.data_ptr() for t in (x, weight[0], added, out, total))
    library.banyan_rms_norm(is_bf16, *pointers, n, 1, dim, dim, dim, 1e-6, 1)
    _near("rms_norm", out, rms_norm.rms_norm(total.double(), weight[0].double(), 1e-6), tolerance)
    assert torch.equal(total, x + added), f"the residual add in {dtype} is off on this machine"

    weight, bias = _randn(generator, dtype, 70, dim), _randn(generator, dtype, 70)
    out = torch.empty(n, 70, dtype=dtype)
    (numbers, scales), width = packed.quantize(weight), library.banyan_panel()
    in_int8 = packed.pack_int8(weight, width)
    for held, wanted in ((packed.pack(weight, width), weight), (in_int8, numbers * scales[:, None])):
        scale = None if held.scale is None else held.scale.data_ptr()
        pointers = (x.data_ptr(), held.panels.data_ptr(), scale, bias.data_ptr(), out.data_ptr())
        library.banyan_linear(is_bf16, *pointers, n, dim, 70, dim, 1)
        _near(f"linear of {held.panels.dtype}", out, x.double() @ wanted.double().T + bias.double(), 10 * tolerance)

    _rope(library, generator, dtype, tolerance)
    out = torch.empty(n, dim // 2, dtype=dtype)
    library.banyan_silu_mul(is_bf16, x.data_ptr(), out.data_ptr(), n, dim // 2, dim, 1)
    _near("silu_mul", out, silu_mul.silu_mul(x.double()), tolerance)


def _rope(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    n, heads, kv_heads, dim = 3, 2, 1, 44
    qkv = _randn(generator, dtype, n, heads + 2 * kv_heads, dim)
    cos, sin = torch.randn(2, n, 20, generator=generator)
    norms = _randn(generator, dtype, 2, dim)
    slots = torch.tensor([5, 1, 6])
    norms = norms[0], norms[1]
    wide = (norms[0].double(), norms[1].double()), 1e-6, cos.double(), sin.double()
    want = torch.zeros(2, 2, 4, kv_heads, dim, dtype=torch.float64)
    want_q = rope_kv.rope_kv(qkv.double(), *wide, *want, slots)
    for kind, loss in ((dtype, 0.0), (torch.int8, 0.02), (torch.float8_e4m3fn, 0.065)):
        pools = [empty((2, 4, kv_heads, dim), kind) for _ in range(2)]
        for part in (part for pool in pools for part in parts(pool)):
            part.zero_()
        _near("rope_kv", native_rope.rope_kv(library, 1, qkv, norms, 1e-6, cos, sin, *pools, slots), want_q, tolerance)
        got = torch.stack([read(pool, torch.arange(2), torch.float64) for pool in pools])
        _near(f"rope_kv's pools of {kind}", got, want, tolerance + loss)


def _layers(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    """Two layers with different windows, in one call, against the references op by op."""
    hidden, heads, kv_heads, dim, mid, width = 48, 2, 1, 16, 40, library.banyan_panel()
    batch = ragged([1, 3], [9, 6], [[0], [1]], 16)

    def linear(n_in: int, n_out: int) -> tuple[Tensor, Tensor]:
        return _randn(generator, dtype, n_out, n_in) / n_in**0.5, _randn(generator, dtype, n_out)

    def layer(window: int) -> layers.Weights:
        norms = _randn(generator, dtype, 2, hidden)
        of_heads = _randn(generator, dtype, 2, dim)
        qkv = linear(hidden, (heads + 2 * kv_heads) * dim)
        others = linear(heads * dim, hidden), linear(hidden, 2 * mid), linear(mid, hidden)
        return layers.Weights(norms[0], norms[1], (of_heads[0], of_heads[1]), qkv, *others, window)

    weights = [layer(window) for window in (0, 4)]
    kv = [(pools[0], pools[1]) for pools in _randn(generator, dtype, 2, 2, 2, 16, kv_heads, dim)]
    x, (cos, sin) = _randn(generator, dtype, 4, hidden), torch.randn(2, 4, dim // 2, generator=generator)

    total, h = x.double(), torch.zeros(4, hidden, dtype=torch.float64)
    for w, pair in zip(weights, [[pool.double() for pool in pair] for pair in kv], strict=True):
        (qkv, qkv_bias), (out, out_bias), (both, both_bias), (down, down_bias) = (
            (weight.double(), bias.double())
            for weight, bias in w.linears  # type: ignore[union-attr]
        )
        h, total = rms_norm.rms_norm(h, w.attention_norm.double(), 1e-5, total)
        turned = (h @ qkv.T + qkv_bias).view(4, -1, dim)
        norms = w.qk_norm[0].double(), w.qk_norm[1].double()  # type: ignore[index]
        q = rope_kv.rope_kv(turned, norms, 1e-5, cos.double(), sin.double(), *pair, batch.slots)
        h = attention.attention(q, *pair, batch, scale=dim**-0.5, window=w.window).view(4, -1) @ out.T + out_bias
        h, total = rms_norm.rms_norm(h, w.mlp_norm.double(), 1e-5, total)
        h = silu_mul.silu_mul(h @ both.T + both_bias) @ down.T + down_bias

    laid = [
        w._replace(**{
            name: (packed.pack(weight, width), bias)
            for name, (weight, bias) in zip(("qkv", "out", "gate_up", "down"), w.linears, strict=True)
        })
        for w in weights
    ]  # fmt: skip
    all_layers = layers.Layers(library, laid, heads, kv_heads, dim, 1e-5)
    assert all_layers.bind(kv)
    for last, tail in ((None, None), (torch.tensor([0, 3]), ragged([1, 1], [9, 6], [[0], [1]], 16))):
        output, residual = all_layers(x.clone(), cos, sin, batch._replace(tail=tail), last)
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
