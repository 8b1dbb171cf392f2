"""One check per op except attention, with random shapes and strides, against the float64 reference."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from banyan.kernels import ops
from banyan.kernels.device import INTERPRETED
from banyan.kernels.kv_layout import HALVES, KV_KINDS, LIMIT, Quantized, group_of, parts, read, stacked
from banyan.kernels.linear import w8a8
from banyan.kernels.linear.grouped import FLOAT4, FLOAT8, quantise
from banyan.kernels.linear.packed import GroupedRows
from banyan.kernels.moe import reference as moe
from banyan.kernels.moe.cpu import pack
from banyan.kernels.moe.experts import Experts, Gate
from banyan.kernels.rope_kv import reference as rope_kv
from banyan.kernels.small_ops import reference as small_ops
from kernel_support.cases import TOLERANCE
from kernel_support.draws import check_draw, check_edit_logits

Check = Callable[[int, torch.dtype, str], None]


def _near(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.shape == want.shape
    assert got.dtype == dtype
    excess = (got.double() - want).abs() - TOLERANCE[dtype] * (1 + want.abs())
    assert not got.numel() or excess.max().item() <= 0, f"off by {excess.max().item():.2e} beyond tolerance"


def _start(seed: int) -> random.Random:
    torch.manual_seed(seed)
    return random.Random(seed)


def check_write_kv(seed: int, dtype: torch.dtype, device: str) -> None:
    """Writes rows of a fused projection. Every other slot keeps its bits."""
    chance = _start(seed)
    n, heads, dim, n_pages = chance.randint(0, 9), chance.randint(1, 4), chance.choice([16, 24, 64, 80]), 5
    page = chance.choice([1, 16, 32])
    n = min(n, n_pages * page)
    k_pool, v_pool = torch.randn(2, n_pages, page, heads, dim).to(device, dtype)
    qkv = torch.randn(n, 3 * heads, dim).to(device, dtype)
    slots = torch.randperm(n_pages * page)[:n].to(device)
    k, v = qkv[:, heads : 2 * heads], qkv[:, 2 * heads :]
    want_k, want_v = k_pool.clone(), v_pool.clone()
    for row, slot in enumerate(slots.tolist()):
        want_k[slot // page, slot % page], want_v[slot // page, slot % page] = k[row], v[row]
    ops.write_kv(k, v, k_pool, v_pool, slots)
    assert torch.equal(k_pool, want_k)
    assert torch.equal(v_pool, want_v)
    small = _small_pools(k_pool.shape, device)
    for pools in small:
        ops.write_kv(k, v, *pools, slots)
        check_quantized(pools, torch.stack([k, v]).double(), slots, 0.0)


def _small_pools(shape: Sequence[int], device: str) -> list[list[Quantized]]:
    """K and V pools of each kind of KV_KINDS. Every slot has the byte 77 and the scale 77."""
    found = []
    for kinds in KV_KINDS.values():
        if HALVES in kinds and shape[3] % 16:
            continue
        pools: Any = [stacked(1, shape, kind, device)[0] for kind in kinds]
        for part in (part for pool in pools for part in parts(pool)):
            part.fill_(77)
        found.append(pools)
    return found


def check_quantized(pools: Sequence[Quantized], want: Tensor, slots: Tensor, tolerance: float) -> None:
    """Fails unless the slots hold `want`, float64 [2, n_rows, n_kv_heads, dim], as exactly as the pool's bits allow,
    and every other slot is unchanged (see `_small_pools`)."""
    for pool, rows in zip(pools, want, strict=True):
        numbers, scale = (part.flatten(0, 1) for part in parts(pool))
        others = torch.ones(len(numbers), dtype=torch.bool)
        others[slots.cpu()] = False
        assert (numbers[others] == 77).all()
        assert (scale[others] == 77).all()
        if pool.numbers.dtype == HALVES:
            groups = rows.unflatten(-1, (-1, group_of(rows.shape[-1])))
            low, high = groups.aminmax(dim=-1, keepdim=True)
            most = (
                (high - low) / 15 * 0.52 + 2**-8 * torch.maximum(low.abs(), high.abs()) + tolerance * (1 + groups.abs())
            )
            got = read(pool, torch.arange(pool.shape[0], device=numbers.device), torch.float64).flatten(0, 1)[slots]
            assert ((got - rows).abs() <= most.expand_as(groups).flatten(-2)).all(), "off beyond what 4 bits lose"
            continue
        step = rows.abs().amax(-1, keepdim=True) / LIMIT[pool.numbers.dtype]
        coarse = step / 2 if pool.numbers.dtype == torch.int8 else torch.maximum(rows.abs() / 16, step * 2**-10)
        got = numbers[slots].view(pool.numbers.dtype).double() * scale[slots].unsqueeze(-1).double()
        excess = (got - rows).abs() - coarse * 1.0001 - tolerance * (1 + rows.abs())
        assert not got.numel() or excess.max().item() <= 0, f"off by {excess.max().item():.2e} beyond what 8 bits lose"


def check_copy_pages(seed: int, dtype: torch.dtype, device: str) -> None:
    """Copies the first slots of some pages. All other slots keep their bits."""
    chance = _start(seed)
    page, heads, dim, n_pages = chance.choice([1, 16, 64]), chance.randint(1, 3), chance.choice([16, 80]), 9
    n = chance.randint(0, 4)
    order = torch.randperm(n_pages)
    copies = torch.stack([order[:n], order[4 : 4 + n], torch.randint(1, page + 1, (n,))], dim=1).int()
    pools = _layers(chance, (n_pages, page, heads, dim), dtype, device)
    wants = [pool.clone() for pool in pools]
    for source, destination, n_slots in copies.tolist():
        for pool, want in zip(pools, wants, strict=True):
            pool[source, n_slots:] = want[source, n_slots:] = 77.0
            want[destination, :n_slots] = pool[source, :n_slots]
    ops.copy_pages(pools, copies.to(device))
    for pool, want in zip(pools, wants, strict=True):
        assert torch.equal(pool, want)


def check_copy_slots(seed: int, dtype: torch.dtype, device: str) -> None:
    """Moves a path of each of several draft trees to the front of its tree. Some paths need no move, and -1 pads."""
    chance = _start(seed)
    page, heads, dim, n_pages = chance.choice([1, 16]), chance.randint(1, 3), chance.choice([16, 80]), 10
    order = torch.randperm(n_pages * page).tolist()
    sources, destinations = [], []
    for _ in range(chance.randint(0, 3)):
        rows, order = order[:3], order[3:]  # the slots of a tree's rows
        path = sorted(chance.sample(range(3), chance.randint(0, len(rows)))) if len(rows) == 3 else []
        sources.append([rows[j] for j in path] + [-1] * (4 - len(path)))
        destinations.append([rows[j] for j in range(len(path))] + [-1] * (4 - len(path)))
    pools = _layers(chance, (n_pages, page, heads, dim), dtype, device)
    wants = [pool.clone().flatten(0, 1) for pool in pools]
    for own, to in zip(sources, destinations, strict=True):
        for source, destination in zip(own, to, strict=True):
            for pool, want in zip(pools, wants, strict=True):
                if source >= 0:
                    want[destination] = pool.flatten(0, 1)[source]
    lists = (torch.tensor(x, dtype=torch.int64).view(-1, 4).to(device) for x in (sources, destinations))
    ops.copy_slots(pools, *lists)
    for pool, want in zip(pools, wants, strict=True):
        assert torch.equal(pool.flatten(0, 1), want)


def _layers(chance: random.Random, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> list[Tensor]:
    """Three pools, in one allocation as in the engine or in one each; a pool of 8 bits; and the scales of that pool."""
    together = torch.randn(3, *shape).to(device, dtype)
    layers = list(together) if chance.random() < 0.5 else [pool.clone() for pool in together]
    return [*layers, torch.randint(256, shape, dtype=torch.uint8).to(device), torch.randn(shape[:3]).to(device)]


def check_rms_norm(seed: int, dtype: torch.dtype, device: str) -> None:
    """Normalises rows, with and without a residual, all and selected ones; and the heads of a fused projection."""
    chance = _start(seed)
    n, dim = chance.randint(0, 5), chance.choice([16, 100, 256, 688])
    weight = torch.randn(dim).to(device, dtype)
    x, residual = torch.randn(2, n, dim).to(device, dtype)
    _near(ops.rms_norm(x, weight, 1e-6), small_ops.rms_norm(x.double(), weight.double(), 1e-6), dtype)
    got, total = ops.rms_norm(x, weight, 1e-6, residual=residual)
    assert torch.equal(total, x + residual)
    want = small_ops.rms_norm((x + residual).double(), weight.double(), 1e-6)
    _near(got, want, dtype)
    rows = torch.randint(max(n, 1), (chance.randint(0, 7) if n else 0,)).to(device)
    some, sums = ops.rms_norm(x, weight, 1e-6, residual=residual, rows=rows)
    assert torch.equal(sums, total[rows])
    _near(some, want[rows], dtype)
    _near(ops.rms_norm(x, weight, 1e-6, rows=rows), small_ops.rms_norm(x.double()[rows], weight.double(), 1e-6), dtype)
    heads = torch.randn(n, 6, dim).to(device, dtype)[:, 1:4]
    _near(ops.rms_norm(heads, weight, 1e-5), small_ops.rms_norm(heads.double(), weight.double(), 1e-5), dtype)


def check_rope_kv(seed: int, dtype: torch.dtype, device: str) -> None:
    """Covers full and partial rotation, with and without QK norm, of a slice of a wider tensor. Slots that are not
    written keep their bits."""
    chance = _start(seed)
    n, heads, kv_heads, dim = chance.randint(0, 5), chance.randint(1, 5), chance.randint(1, 3), chance.choice([16, 80])
    half, page, n_pages = chance.choice([dim // 2, dim // 4]), chance.choice([1, 16]), 7
    qkv = torch.randn(n, heads + 2 * kv_heads + 1, dim).to(device, dtype)[:, : heads + 2 * kv_heads]
    angles = torch.rand(n, half) * 6.3
    cos, sin = angles.cos().to(device), angles.sin().to(device)
    weights = torch.randn(2, dim).to(device, dtype)
    norms = chance.choice([None, (weights[0], weights[1])])
    slots = torch.randperm(n_pages * page)[:n].to(device)
    pools = torch.randn(2, n_pages, page, kv_heads, dim).to(device, dtype)
    want = pools.double()
    wide = None if norms is None else (norms[0].double(), norms[1].double())
    want_q = rope_kv.rope_kv(qkv.double(), wide, 1e-6, cos.double(), sin.double(), *want, slots)
    before = pools.clone()
    _near(ops.rope_kv(qkv, norms, 1e-6, cos, sin, *pools, slots), want_q, dtype)
    _near(pools, want, dtype)
    others = torch.ones(n_pages * page, dtype=torch.bool)
    others[slots.cpu()] = False
    assert torch.equal(pools.flatten(1, 2)[:, others], before.flatten(1, 2)[:, others])
    for small in _small_pools(pools.shape[1:], device):
        _near(ops.rope_kv(qkv, norms, 1e-6, cos, sin, *small, slots), want_q, dtype)
        check_quantized(small, want.flatten(1, 2)[:, slots], slots, TOLERANCE[dtype])


def check_linear(seed: int, dtype: torch.dtype, device: str) -> None:
    """Covers one row and many, columns that fill no panel, packed weights if possible, with and without bias."""
    chance = _start(seed)
    n, n_in, n_out = chance.choice([0, 1, 2, 7, 100]), chance.choice([2, 17, 48, 1100]), chance.choice([1, 64, 70, 300])
    x = torch.randn(n, n_in + 3).to(device, dtype)[:, :n_in]
    weight, bias = torch.randn(n_out, n_in).div(n_in**0.5).to(device, dtype), torch.randn(n_out).to(device, dtype)
    packed = ops.pack(weight)
    for add in (None, bias):
        want = x.double() @ weight.double().T + (0.0 if add is None else add.double())
        for kept in (weight, weight if packed is None else packed):
            _near(ops.linear(x, kept, add), want, dtype)


def check_linear_in_few_bits(seed: int, dtype: torch.dtype, device: str) -> None:
    """Covers 4 and 8 bits, with and without minimums, groups of several sizes, and one group with any number of inputs.
    On a CPU the rows are rounded to 8 bits; the tolerance allows that there."""
    chance = _start(seed)
    n, n_out, n_bits = chance.choice([0, 1, 7, 20, 70]), chance.choice([1, 64, 70]), chance.choice([4, 8])
    n_in, group = chance.choice([(40, 40), (96, 32), (128, 128), (320, 64)])
    x, bias = torch.randn(n, n_in + 3).to(device, dtype)[:, :n_in], torch.randn(n_out).to(device, dtype)
    weight = quantise(torch.randn(n_out, n_in).div(n_in**0.5).to(device), n_bits, group)
    if chance.random() < 0.5:
        minimum = -7 * weight.scale
        weight = weight._replace(numbers=weight.numbers + (8 if n_bits == 4 else 0), minimum=minimum)
    elif n_bits == 8 and chance.random() < 0.3:
        weight = quantise(weight.dequantise(), FLOAT8, group)
    elif n_bits == 8 and chance.random() < 0.5:  # doubles of the floats of MXFP4
        doubles = torch.tensor([-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12], dtype=torch.int8)
        numbers = doubles.to(device)[(weight.numbers % 15).int()]
        weight = weight._replace(numbers=numbers, scale=8 * weight.scale, n_bits=FLOAT4)
    packed = ops.pack(weight, dtype=dtype)
    for add in (None, bias):
        exact = weight.dequantise(torch.float64)
        want = x.double() @ exact.T + (0.0 if add is None else add.double())
        if packed is not None:
            got, most = ops.linear(x, packed, add), 1e-5 if INTERPRETED and dtype == torch.float32 else 0.03
            assert ((got - want).abs() <= most * (1 + (x.double().abs() @ exact.abs().T))).all()


def check_linear_in_w8a8(seed: int, dtype: torch.dtype, device: str) -> None:
    """Covers rows and weights of 8 bits (int8 and E4M3), with one scale and with groups, inputs that fill no block, and
    a row of zeros."""
    chance = _start(seed)
    n, n_out, n_bits = chance.choice([0, 1, 7, 20, 70]), chance.choice([1, 64, 70]), chance.choice([8, FLOAT8])
    n_in, group = chance.choice([(40, 40), (128, 128), (200, 200), (384, 128), (512, 256)])
    x, bias = torch.randn(n, n_in + 3).to(device, dtype)[:, :n_in], torch.randn(n_out).to(device, dtype)
    x[n // 2 : n // 2 + 1] = 0
    weight = quantise(torch.randn(n_out, n_in).div(n_in**0.5).to(device), n_bits, group)._replace(is_w8a8=True)
    packed = ops.pack(weight, dtype=dtype)
    if not (isinstance(packed, GroupedRows) and w8a8.serves(packed)):
        return
    rows = quantise(x, n_bits, group).dequantise(torch.float64) if n else x.double()
    for add in (None, bias):
        exact = weight.dequantise(torch.float64)
        want = rows @ exact.T + (0.0 if add is None else add.double())
        most = (1e-5 if dtype == torch.float32 else 0.01) * (1 + (rows.abs() @ exact.abs().T))
        assert ((ops.linear(x, packed, add) - want).abs() <= most).all()


def check_experts(seed: int, dtype: torch.dtype, device: str) -> None:
    """Covers all layouts of weights, with and without biases, each kind of gate, experts without rows, rows that lack
    one of their experts, and few and many rows of an expert. On a CPU, rows are rounded to 8 bits for weights in few
    bits."""
    chance = _start(seed)
    n, n_experts, n_each, n_bits = chance.choice([0, 1, 5, 40]), chance.choice([3, 8]), chance.randint(1, 3), 0
    hidden, width = chance.choice([32, 50, 96]), chance.choice([24, 64, 70])
    up = torch.randn(n_experts, 2 * width, hidden).div(hidden**0.5).to(device, dtype)
    down = torch.randn(n_experts, hidden, width).div(width**0.5).to(device, dtype)
    biases = [torch.randn(n_experts, k).to(device, dtype) for k in (2 * width, hidden)]
    if chance.random() < 0.6:
        n_bits = chance.choice([4, 8])
    gate = chance.choice([Gate(), Gate(1.702, 0.0, 2.0, 1.0), Gate(1.6, 0.045)])
    x, index = torch.randn(n, hidden).to(device, dtype), torch.randint(0, n_experts + 1, (n, n_each)).to(device)
    weights = torch.rand(n, n_each).to(device)
    stacks: list[Any] = [[quantise(w, n_bits) if n_bits else w for w in stack] for stack in (up, down)]
    exact = [torch.stack([w.dequantise(torch.float64) if n_bits else w.double() for w in own]) for own in stacks]
    kept = [pack(own, dtype) for own in stacks]
    for up_bias, down_bias in ((None, None), biases):
        doubles = (None, None) if up_bias is None else (up_bias.double(), down_bias.double())
        want = moe.experts(x.double(), Experts(*exact, *doubles, gate, n_experts), index, weights.double())
        got = ops.experts(x, Experts(*kept, up_bias, down_bias, gate, n_experts), index, weights)
        if n_bits and device == "cpu" and not INTERPRETED:
            assert got.shape == want.shape
            assert not n or (got - want).norm() <= 0.03 * want.norm() + 1e-6
        else:
            assert not n or (got - want).norm() <= TOLERANCE[dtype] * want.norm() + 1e-6


def check_silu_mul(seed: int, dtype: torch.dtype, device: str) -> None:
    """Includes numbers whose sigmoid rounds to 0 or 1."""
    chance = _start(seed)
    n, dim = chance.randint(0, 5), chance.choice([1, 16, 100, 1376])
    gate_up = torch.randn(n, 2 * dim) * chance.choice([1, 3])
    if n:
        gate_up[0, 0] = chance.choice([-90.0, 90.0])
    gate_up = gate_up.to(device, dtype)
    _near(ops.silu_mul(gate_up), small_ops.silu_mul(gate_up.double()), dtype)


def check_mask_logits(seed: int, dtype: torch.dtype, device: str) -> None:
    """Covers rows with and without a mask, shared masks, and vocabularies that end inside a word. Forbidden logits are
    NaN before."""
    chance = _start(seed)
    n, n_masks, n_vocab = chance.randint(0, 5), chance.randint(1, 3), chance.choice([1, 31, 32, 100, 4096, 9000])
    n_words = -(-n_vocab // 32) + chance.randint(0, 1)
    masks = torch.randint(-(2**31), 2**31, (n_masks, n_words)).int()
    masks[0, : n_words // 2] = chance.choice([0, -1])
    which = torch.tensor([chance.randrange(-1, n_masks) for _ in range(n)], dtype=torch.int32)
    allowed = torch.ones(n, n_vocab, dtype=torch.bool)
    for row, mask in enumerate(which.tolist()):
        if mask >= 0:
            bits = np.unpackbits(masks[mask].numpy().view(np.uint8), bitorder="little")
            allowed[row] = torch.from_numpy(bits[:n_vocab]).bool()
    logits = torch.randn(n, n_vocab + 3).to(device, dtype)[:, :n_vocab]
    forbidden = (~allowed).to(device)
    logits[forbidden] = float("nan")
    want = logits.masked_fill(forbidden, -torch.inf)
    kept = logits.clone()
    ops.mask_logits(logits, masks.to(device), which.to(device))
    assert torch.equal(logits, want)
    small_ops.mask_logits(kept, masks.to(device), which.to(device))
    assert torch.equal(kept, want)


CHECKS: list[Check] = [
    check_write_kv,
    check_copy_pages,
    check_copy_slots,
    check_draw,
    check_edit_logits,
    check_experts,
    check_linear,
    check_linear_in_w8a8,
    check_linear_in_few_bits,
    check_mask_logits,
    check_rms_norm,
    check_rope_kv,
    check_silu_mul,
]
