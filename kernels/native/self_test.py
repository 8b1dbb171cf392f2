"""Tests a new build of the C++ library before it is used, in float32 and bfloat16."""

import ctypes
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from banyan.kernels.attention import native
from banyan.kernels.attention import reference as attention
from banyan.kernels.attention.ragged import AttentionOptions, ragged
from banyan.kernels.draw import reference as draw
from banyan.kernels.draw.rows import draw_rows
from banyan.kernels.kv_layout import KV_KINDS, Pool, Quantized, quantize
from banyan.kernels.linear import packed
from banyan.kernels.linear.grouped import FLOAT4, Grouped, quantise
from banyan.kernels.linear.packed import Packed, Weight
from banyan.kernels.lora.adapted import AdaptedRows, AdapterWeights, LowRank
from banyan.kernels.moe import reference as moe
from banyan.kernels.moe.experts import Experts, Gate, call, joined
from banyan.kernels.native import layers
from banyan.kernels.rope_kv import reference as rope_kv
from banyan.kernels.small_ops import reference as small_ops


def run(library: ctypes.CDLL) -> None:
    """Compares the library with the references. Raises AssertionError that names the wrong function."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        generator = torch.Generator().manual_seed(0)
        _attention(library, generator, dtype, tolerance)
        _layers(library, generator, dtype, tolerance)
        _adapters(library, generator, dtype, tolerance)
        _dense(library, generator, dtype, tolerance)
        _grouped(library, generator, dtype)
        _experts(library, generator, dtype, tolerance)
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
        q, first_q = _randn(generator, dtype, 2, 82, heads, dim)
        first_q = torch.where((batch.position < 40)[:, None, None], q, first_q)
        k, v = _randn(generator, dtype, 2, 29, 16, kv_heads, dim)
        sinks = torch.randn(heads, generator=generator)
        for kinds in ((dtype, dtype), *KV_KINDS.values()):
            pools = _pool(k, kinds[0]), _pool(v, kinds[1])
            for options in (AttentionOptions(0.1), AttentionOptions(0.1, 5.0, 40, sinks, 4, first_q)):
                got = native.attend(library, q, *pools, batch, options)
                _near("attention", got, attention.attention(q.double(), *pools, batch, options), tolerance)


def _layers(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    """Checks two layers with different windows, computed in one call, against the references, which compute them op by
    op. Repeats this for three cases: pools and weights in `dtype`; int8 pools and 8-bit weights; E4M3 pools and 4-bit
    weights. Most sizes are no multiples of the vector width, and the last dimensions of a head are not rotated. The
    tolerance for quantised numbers is wide: a number may be rounded to its other neighbour."""
    hidden, heads, kv_heads, dim, mid = 52, 2, 1, 16, 36
    shapes = (hidden, (heads + 2 * kv_heads) * dim), (heads * dim, hidden), (hidden, 2 * mid), (mid, hidden)
    batch = ragged([1, 3], [9, 6], [[0], [1]], 16)
    for kind, n_bits, most in ((dtype, 0, 3 * tolerance), (torch.int8, 8, 0.1), (torch.float8_e4m3fn, 4, 0.2)):
        x, angles = _randn(generator, dtype, 4, hidden), torch.randn(4, 4, 6, generator=generator)
        cos, sin, turn = angles[0], angles[1], (angles[2], angles[3])
        h, total = torch.zeros(4, hidden, dtype=torch.float64), x.double()
        weights, kv = [], []
        for window, first in ((0, 0), (4, 1)):
            attention_norm, mlp_norm = _randn(generator, dtype, 2, hidden)
            q_norm, k_norm = _randn(generator, dtype, 2, dim)
            old = _randn(generator, dtype, 2, 2, 16, kv_heads, dim)
            kept, (qkv, out, gate_up, down) = zip(
                *(_linear(library, generator, dtype, *shape, n_bits) for shape in shapes), strict=True
            )
            weights.append(layers.Weights((attention_norm, mlp_norm, q_norm, k_norm), kept, window, first))
            kv.append((_pool(old[0], kind), _pool(old[1], kind)))

            k, v = (_pool(part, torch.float64 if kind == dtype else kind) for part in old)
            h, total = small_ops.rms_norm(h, attention_norm.double(), 1e-5, total)
            rows, norms = qkv(h).view(4, -1, dim), (q_norm.double(), k_norm.double())
            q = rope_kv.rope_kv(rows, norms, 1e-5, cos.double(), sin.double(), k, v, batch.slots)
            first_q = rope_kv.rotate(q, *(each.double() for each in turn)) if first else None
            options = AttentionOptions(dim**-0.5, window=window, first=first, first_q=first_q)
            attended = attention.attention(q, k, v, batch, options)
            h, total = small_ops.rms_norm(out(attended.view(4, -1)), mlp_norm.double(), 1e-5, total)
            h = down(small_ops.silu_mul(gate_up(h)))

        norm = _randn(generator, dtype, hidden)
        head, project = _linear(library, generator, dtype, hidden, 70, n_bits)
        fused = layers.Layers(library, weights, layers.Head(norm, *head), (heads, kv_heads, dim), 1e-5)
        assert fused.bind(kv)
        for last, tail in ((None, None), (torch.tensor([0, 3]), ragged([1, 1], [9, 6], [[0], [1]], 16))):
            output, residual = fused(x.clone(), (cos, sin), batch._replace(tail=tail), last, turn=turn)
            want = h + total
            _near(f"a layer with pools of {kind}", output + residual, want if last is None else want[last], most)
            wanted = torch.tensor([3, 0, 3]) if last is None else last
            logits = fused.logits(x.clone(), (cos, sin), batch._replace(tail=tail), wanted, last, turn=turn)
            normed = small_ops.rms_norm(want[wanted], norm.double(), 1e-5)
            _near(f"logits with pools of {kind}", logits, project(normed), 2 * most)


def _adapters(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    """Tests two adapters on some rows of a fused linear layer. The sizes are no multiples of the vector width."""
    x, y = _randn(generator, dtype, 40, 52), _randn(generator, dtype, 40, 330)

    def part(rank: int, n_out: int, column: int) -> LowRank:
        return LowRank(_randn(generator, dtype, rank, 52) / 8, _randn(generator, dtype, rank, n_out), column)

    one = AdapterWeights([[[], [], [part(4, 291, 0), part(8, 36, 294)], []]])
    other = AdapterWeights([[[], [], [part(12, 36, 294)], []]])
    rows = AdaptedRows([one, other], [[0, 3, *range(5, 30)], [2, 39]])
    want = y.double()
    for own, adapter in zip(rows.indexes, rows.adapters, strict=True):
        for down, up, column in adapter.layers[0][2]:
            want[own, column : column + up.shape[1]] += x[own].double() @ down.double().T @ up.double()
    library.banyan_add_lora(
        dtype == torch.bfloat16, rows.table[0, 0, 2].ctypes.data, rows.table[0].size // 5,
        ctypes.addressof(rows.native), x.data_ptr(), 52, y.data_ptr(), 330, 0, 1,
    )  # fmt: skip
    _near("add_lora", y, want, tolerance)


def _linear(
    library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, n_in: int, n_out: int, n_bits: int
) -> tuple[tuple[Packed, Tensor], Callable[[Tensor], Tensor]]:
    """Makes a random weight and bias. Returns them packed, and a function that computes the linear layer in float64.
    n_bits: bits of the weight; 0: it is not quantised."""
    weight, bias = _randn(generator, dtype, n_out, n_in) / n_in**0.5, _randn(generator, dtype, n_out)
    if not n_bits:
        kept = packed.pack(weight, library.banyan_panel())
        return (kept, bias), partial(functional.linear, weight=weight.double(), bias=bias.double())
    small = quantise(weight, n_bits)
    grouped = packed.pack_grouped(small, dtype, deterministic=True)
    assert grouped is not None
    return (grouped, bias), partial(functional.linear, weight=small.dequantise(torch.float64), bias=bias.double())


def _dense(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    """Tests products of many rows, and of many inputs and columns. A row must have the same bits in all batches."""
    for n_all, n_in, n_out, n_threads in ((600, 300, 150, 2), (300, 2100, 1100, 1)):
        x, weight = _randn(generator, dtype, n_all, n_in + 8), _randn(generator, dtype, n_out, n_in) / n_in**0.5
        x[:, n_in:] = torch.nan  # the numbers after a row must not be read
        x = x[:, :n_in]
        multiply = partial(_product, library, x, packed.pack(weight, library.banyan_panel()), n_threads=n_threads)
        got = multiply(n_all)
        _near("a product", got, x.double() @ weight.double().T, tolerance)
        for n in (1, 2, 7, 11, 16, 40, 70, n_all - 80):
            assert torch.equal(multiply(n), got[:n]), f"a row differs in a batch of {n} on this machine"


def _grouped(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype) -> None:
    """Tests products with weights in 4 and 8 bits, with and without minimums. In deterministic mode, the expected
    product is that of x rounded to 8 bits. A row must have the same bits in all batches."""
    for (n_in, n_out), (n_bits, low, high) in product(((96, 70), (2112, 300)), ((4, 0, 16), (8, -128, 128))):
        x = _randn(generator, dtype, 70, n_in)
        groups = x.float().view(70, n_in // 32, 32)
        step = groups.abs().amax(2, keepdim=True) / 127
        rounded = ((groups / step).round() * step).view(70, n_in).double()
        numbers = torch.randint(low, high, (n_out, n_in), generator=generator, dtype=torch.int8)
        scale, minimum = torch.rand(2, n_out, n_in // 32, generator=generator) / (high - low) - 0.5 / (high - low)
        scale, minimum = (parts * (96 / n_in) ** 0.5 for parts in (scale, minimum))  # so errors are alike in all sizes
        doubles = torch.tensor([-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12], dtype=torch.int8)
        for weight in (
            Grouped(numbers, scale, minimum, n_bits),
            Grouped(numbers - (low + 8) % 16, scale, None, n_bits),
            Grouped(doubles[(numbers % 15).int()], scale, None, FLOAT4),
        ):
            for deterministic in (False, True):
                kept = packed.pack_grouped(weight, dtype, deterministic)
                assert kept is not None
                multiply = partial(_product, library, x, kept)
                got, rows = multiply(70), rounded if deterministic else x.double()
                want = rows @ weight.dequantise(torch.float64).T
                # A number halfway between two steps may be rounded either way: a step of up to 0.03 times a weight of
                # up to 0.5.
                _near(f"a product with {n_bits} bits", got, want, 3e-2 if deterministic else 0.1)
            for n in (1, 2, 4, 11, 33):
                assert torch.equal(multiply(n), got[:n]), f"a row differs in a batch of {n} on this machine"


def _experts(library: ctypes.CDLL, generator: torch.Generator, dtype: torch.dtype, tolerance: float) -> None:
    """Tests six experts in the rows' dtype, two per row. One expert has many rows, and some rows lack an expert. Most
    sizes are no multiples of the vector width."""
    n, hidden, mid, gate = 6, 64, 42, Gate(1.7, 0.04, 1.5, 0.5)
    x, index = _randn(generator, dtype, 50, hidden), torch.randint(0, n + 1, (50, 2), generator=generator)
    index[:30, 0], weights = 3, torch.rand(50, 2, generator=generator)
    up, down = _randn(generator, dtype, n, 2 * mid, hidden) / 8, _randn(generator, dtype, n, hidden, mid) / 6
    up_bias, down_bias = _randn(generator, dtype, n, 2 * mid), _randn(generator, dtype, n, hidden)
    doubles = Experts(up.double(), down.double(), up_bias.double(), down_bias.double(), gate, n)
    want = moe.experts(x.double(), doubles, index, weights.double())
    panels = [joined([packed.pack(w, library.banyan_panel()) for w in all_of])
              for all_of in (up, down)]  # fmt: skip
    got = call(library, x, Experts(panels[0], panels[1], up_bias, down_bias, gate, n), index, weights, 0, 2)
    _near("experts", got, want, tolerance)


def _product(library: ctypes.CDLL, x: Tensor, weight: Packed, n: int, n_threads: int = 2) -> Tensor:
    """x[:n] times the transposed weight, computed by the C++ library."""
    out = torch.empty(n, weight.n_out, dtype=x.dtype)
    pointer = ctypes.byref(Weight.of(weight, None))
    library.banyan_linear(x.dtype == torch.bfloat16, x.data_ptr(), pointer, out.data_ptr(), n, x.stride(0), n_threads)
    return out


def _pool(x: Tensor, kind: torch.dtype) -> Pool:
    return x.to(kind) if kind.is_floating_point and kind.itemsize > 1 else Quantized(*quantize(x, kind))


def _masks(library: ctypes.CDLL, generator: torch.Generator) -> None:
    logits = torch.randn(3, 100, generator=generator)
    masks = torch.randint(-(2**31), 2**31, (2, 4), generator=generator).int()
    masks[0, 1] = -1
    which = torch.tensor([1, -1, 0], dtype=torch.int32)
    want = logits.clone()
    small_ops.mask_logits(want, masks, which)
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
