"""Draw a token from each row of logits: temperature, top-k, top-p, min-p, and one uniform number.

A draw is inverse-CDF, in the order of the tokens, with a number that is a hash of (seed, sample, position) and of
nothing else. So a request draws the same tokens whatever it is batched with, and wherever.

A filter is a threshold on probabilities: tokens that tie with the last one kept are kept too. That spares a choice
among equals, which would depend on the order in which they are looked at. Implementations weigh tokens in float32 and
sum in float64: they agree wherever the uniform number, or the share of a nucleus, is not within 1e-6 of the border
between two tokens. Tokens whose weights, relative to the best one's, are the same float32 tie; and a weight below
2^-100 of the best one's may count as none.
"""

from functools import lru_cache

import torch
from torch import Tensor

from banyan.kernels.draw.rows import Rows

_WORD = (1 << 64) - 1


def draw(logits: Tensor, rows: Rows) -> Tensor:
    """int64 [n_rows]: one token per row; -1 where there is nothing to choose from (NaN, +inf, or all -inf).

    logits [n_rows, n_vocab] may be overwritten. At temperature 0: the first of the largest. Else, of the softmax of
    logits / temperature, those that top_k, then top_p, and min_p keep.
    """
    lists = (column.tolist() for column in rows)
    return torch.tensor(
        [_draw(row.clone(), *own) for row, *own in zip(logits, *lists, strict=True)],
        dtype=torch.int64,
        device=logits.device,
    )


def _draw(x: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, *place: int) -> int:
    peak = x.max()  # NaN where any is
    if not peak.isfinite():
        return -1
    if temperature <= 0:
        return int((x == peak).nonzero()[0])
    p = ((x - peak) / max(temperature, 1e-30)).softmax(0)
    cdf = p.where(p >= least_kept(p, top_k, top_p, min_p), 0.0).cumsum(0, dtype=torch.float64)
    return int((cdf <= uniform(*place) * cdf[-1]).sum())


def least_kept(p: Tensor, top_k: int, top_p: float, min_p: float) -> float:
    """The least probability that is kept of p [n_vocab]."""
    if not top_k and top_p >= 1:
        return min_p * float(p.max())
    best = p.double().sort(descending=True).values
    best = best[: top_k or None]
    n = len(best)
    if top_p < 1:
        upto = best.cumsum(0)
        n = max(1, int((upto - best < top_p * upto[-1]).sum()))  # those before which the share was not reached
    return max(float(best[n - 1]), min_p * float(best[0]))


def uniform(seed: int, sample: int, position: int) -> float:
    """A number in (0, 1), a function of its arguments, modulo 2^64, alone.

    It lies in the middle of one of 2^48 equal steps; so u * total is neither 0 nor, after rounding, total. The hash
    chains the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    """
    return ((_mix(_stream(seed, sample) ^ (position & _WORD)) >> 16) + 0.5) * 2.0**-48


@lru_cache(4096)
def _stream(seed: int, sample: int) -> int:
    return _mix(_mix(seed & _WORD) ^ (sample & _WORD))


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)
