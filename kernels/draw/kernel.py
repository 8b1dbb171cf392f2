"""Draws a token from each row of logits, one program per row, without synchronisation with the host.

A row is read several times, mostly from L2: to find the largest logit; to replace the logits by weights,
2^((x - max) / T / ln 2); to find the threshold of the filters, if there are any; to sum the weights that they keep; and
to find the token that the uniform number selects. All sums are over fixed blocks in a fixed order, so a row's token
does not depend on its batch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.device import launch
from banyan.kernels.draw.rows import Rows

TINY = tl.constexpr(27 << 23)  # bits of 2^-100: the smallest weight that counts
ONE = tl.constexpr(127 << 23)  # bits of 1.0: the largest weight


@triton.jit
def _mix(x):
    """A hash of a 64-bit integer: one step of SplitMix64."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _uniform(seed, sample, position):
    """A uniform random number in (0, 1), float64. It is a hash of the arguments: the same number as
    `reference.uniform`."""
    stream = _mix(_mix(seed.to(tl.uint64, bitcast=True)) ^ sample.to(tl.uint64, bitcast=True))
    step = _mix(stream ^ position.to(tl.uint64, bitcast=True)) >> 16
    return (step.to(tl.int64).to(tl.float64) + 0.5) * (1.0 / 281474976710656.0)


@triton.jit
def _search(p_w, n_vocab, low, high, n_low, n_high, mass_low, mass_high, goal, BY_COUNT: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """Finds a threshold: the weights at or above it are as few as can reach `goal`. The goal is a number of weights
    (BY_COUNT) or a sum of weights.

    The search narrows an interval: a threshold of `low` reaches the goal, a threshold of `high` does not. low, high:
    the bits of positive floats, which have the same order as the floats. n_low, mass_low and n_high, mass_high: number
    and sum of the weights at or above each end. Each pass over the weights narrows the interval to about a quarter. The
    search ends when at most one weight, or only one value, is left in it. Returns the new (low, n_low, n_high,
    mass_low, mass_high). The threshold is `low`.
    """
    o = tl.arange(0, BLOCK)
    while (high - low > 1) & (n_low - n_high > 1):
        quarter, half = tl.maximum((high - low) // 4, 1), tl.maximum((high - low) // 2, 1)
        at_1, at_2, at_3 = low + quarter, low + half, low + tl.maximum((high - low) // 2 + (high - low) // 4, 1)
        least_1, least_2 = at_1.to(tl.float32, bitcast=True), at_2.to(tl.float32, bitcast=True)
        least_3 = at_3.to(tl.float32, bitcast=True)
        b_n_1, b_n_2, b_n_3 = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
        b_1, b_2, b_3 = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        for start in range(0, n_vocab, BLOCK):
            b_w = tl.load(p_w + start + o, mask=start + o < n_vocab, other=0.0)
            b_1 += tl.where(b_w >= least_1, b_w, 0.0)
            b_2 += tl.where(b_w >= least_2, b_w, 0.0)
            b_3 += tl.where(b_w >= least_3, b_w, 0.0)
            b_n_1 += (b_w >= least_1).to(tl.int32)
            b_n_2 += (b_w >= least_2).to(tl.int32)
            b_n_3 += (b_w >= least_3).to(tl.int32)
        n_1, n_2, n_3 = tl.sum(b_n_1, 0), tl.sum(b_n_2, 0), tl.sum(b_n_3, 0)
        mass_1, mass_2 = tl.sum(b_1.to(tl.float64), 0), tl.sum(b_2.to(tl.float64), 0)
        mass_3 = tl.sum(b_3.to(tl.float64), 0)
        if BY_COUNT:
            has_1, has_2, has_3 = n_1 >= goal, n_2 >= goal, n_3 >= goal
        else:
            has_1, has_2, has_3 = mass_1 >= goal, mass_2 >= goal, mass_3 >= goal
        if has_3:
            low, n_low, mass_low = at_3, n_3, mass_3
        else:
            high, n_high, mass_high = at_3, n_3, mass_3
            if has_2:
                low, n_low, mass_low = at_2, n_2, mass_2
            else:
                high, n_high, mass_high = at_2, n_2, mass_2
                if has_1:
                    low, n_low, mass_low = at_1, n_1, mass_1
                else:
                    high, n_high, mass_high = at_1, n_1, mass_1
    return low, n_low, n_high, mass_low, mass_high


@triton.jit
def _weigh(p_x, n_vocab, peak, temperature, BLOCK: tl.constexpr):
    """Replaces logits by weights, of which the largest is 1. Returns how many weights are above 0, and their sum."""
    o = tl.arange(0, BLOCK)
    b_n, b_mass = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_vocab, BLOCK):
        m = start + o < n_vocab
        b_x = tl.load(p_x + start + o, mask=m, other=float("-inf"))
        b_power = (b_x - peak) / temperature * 1.4426950408889634
        b_w = tl.where(b_power >= -100.0, tl.exp2(b_power), 0.0)
        tl.store(p_x + start + o, b_w, mask=m)
        b_n += (b_w > 0.0).to(tl.int32)
        b_mass += b_w
    tl.debug_barrier()  # from here on, threads read what other threads wrote
    return tl.sum(b_n, 0), tl.sum(b_mass.to(tl.float64), 0)


@triton.jit
def _least_kept(p_w, n_vocab, n, mass, top_k, top_p, min_p, BLOCK: tl.constexpr):
    """Returns a threshold: top-k, top-p and min-p keep exactly the weights at or above it. n: number of weights above
    0. mass: their sum."""
    low, n_low, mass_low = n * 0 + TINY, n, mass
    if (top_k > 0) & (top_k < n):
        low, n_low, n_high, mass_low, mass_high = _search(
            p_w, n_vocab, low, n * 0 + (ONE + 1), n, n * 0, mass, mass * 0.0, top_k, True, BLOCK
        )
        # Exactly top_k weights count in the mass, though ties with the last one are kept.
        share = (top_k - n_high).to(tl.float64) / (n_low - n_high).to(tl.float64)
        mass = mass_high + share * (mass_low - mass_high)
    if top_p < 1.0:
        # A lower bound of the threshold: all weights below it have less mass than top-p removes.
        least = ((1.0 - top_p) * mass / (2 * n_vocab)).to(tl.float32).to(tl.int32, bitcast=True)
        low = tl.maximum(low, tl.minimum(least, ONE))
        low, n_low, n_high, mass_low, mass_high = _search(
            p_w, n_vocab, low, n * 0 + (ONE + 1), n_low, n * 0, mass_low, mass * 0.0, top_p * mass, False, BLOCK
        )
    return tl.maximum(low.to(tl.float32, bitcast=True), min_p.to(tl.float32))


@triton.jit
def _pick(p_w, n_vocab, least, uniform, BLOCK: tl.constexpr):
    """The first token at which the running sum of the weights >= `least` exceeds `uniform` times their total."""
    o = tl.arange(0, BLOCK)
    total = uniform * 0.0
    for start in range(0, n_vocab, BLOCK):
        b_w = tl.load(p_w + start + o, mask=start + o < n_vocab, other=0.0)
        total += tl.sum(tl.where(b_w >= least, b_w, 0.0).to(tl.float64), 0)
    goal, before, token = uniform * total, uniform * 0.0, (uniform * 0.0).to(tl.int32) - 1
    for start in range(0, n_vocab, BLOCK):
        if token < 0:
            b_w = tl.load(p_w + start + o, mask=start + o < n_vocab, other=0.0)
            b_kept = tl.where(b_w >= least, b_w, 0.0).to(tl.float64)
            upto = before + tl.sum(b_kept, 0)
            if upto > goal:
                m_kept = b_kept > 0.0
                b_at = tl.where(m_kept & (before + tl.cumsum(b_kept, 0) > goal), start + o, n_vocab)
                last = tl.max(tl.where(m_kept, start + o, 0), 0)  # if sum and cumsum round differently
                token = tl.minimum(tl.min(b_at, 0), last)
            before = upto
    return token


@triton.jit
def _draw(
    p_logits, p_out, p_temperature, p_top_k, p_top_p, p_min_p, p_seed, p_sample, p_position, s_row, n_vocab,
    BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    p_x = p_logits + i * s_row
    o = tl.arange(0, BLOCK)
    b_top, b_at = tl.full([BLOCK], float("-inf"), tl.float32), tl.zeros([BLOCK], tl.int32)
    b_wrong = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n_vocab, BLOCK):
        b_x = tl.load(p_x + start + o, mask=start + o < n_vocab, other=float("-inf"))
        b_wrong |= (b_x != b_x).to(tl.int32)
        m = b_x > b_top
        b_top, b_at = tl.where(m, b_x, b_top), tl.where(m, start + o, b_at)
    peak = tl.max(b_top, 0)
    token = tl.min(tl.where(b_top == peak, b_at, n_vocab), 0)
    temperature = tl.load(p_temperature + i)
    if (tl.max(b_wrong, 0) > 0) | (peak == float("-inf")) | (peak == float("inf")):
        token = token * 0 - 1
    elif temperature > 0.0:
        n, mass = _weigh(p_x, n_vocab, peak, tl.maximum(temperature.to(tl.float32), 1e-30), BLOCK)
        top_k = tl.minimum(tl.load(p_top_k + i), n_vocab).to(tl.int32)
        least = _least_kept(p_x, n_vocab, n, mass, top_k, tl.load(p_top_p + i), tl.load(p_min_p + i), BLOCK)
        uniform = _uniform(tl.load(p_seed + i), tl.load(p_sample + i), tl.load(p_position + i))
        token = _pick(p_x, n_vocab, least, uniform, BLOCK)
    tl.store(p_out + i, token.to(tl.int64))


def draw(logits: Tensor, rows: Rows) -> Tensor:
    """Draws one token per row with a Triton kernel. Returns int64 [n_rows]; -1 for a row with NaN, as in
    `reference.draw`.

    logits: float32 [n_rows, n_vocab], the last axis contiguous. A row with a temperature above 0 is overwritten.
    """
    n_rows, n_vocab = logits.shape
    assert logits.dtype == torch.float32, f"logits are {logits.dtype}; they must be float32"
    assert logits.stride(1) == 1, "the last axis must be contiguous"
    assert all(x.shape == (n_rows,) and x.is_contiguous() for x in rows), (
        "each column of rows must be contiguous, with one number per row"
    )
    out = torch.empty(n_rows, dtype=torch.int64, device=logits.device)
    if n_rows:
        block, warps = launch("draw", n_vocab)
        _draw[(n_rows,)](logits, out, *rows, logits.stride(0), n_vocab, BLOCK=block, num_warps=warps)
    return out
