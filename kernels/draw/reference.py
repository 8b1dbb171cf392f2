"""Draws a token from each row of logits: temperature, top-k, top-p, min-p, and one uniform number.

A draw inverts the CDF in the order of token ids, with a uniform number that is a hash of (seed, sample, position). So a
request draws the same tokens in any batch and on any machine.

A filter is a threshold on probabilities: tokens that tie with the last kept one are kept too, so the result does not
depend on the order of a sort. Implementations compute weights in float32 and sums in float64. They agree unless the
uniform number, or the top-p share, is within 1e-6 of the border between two tokens. Tokens tie if their weights,
relative to the largest, are the same float32. A weight below 2^-100 of the largest may count as 0.
"""

from functools import lru_cache

import torch
from torch import Tensor

from banyan.kernels.draw.rows import Rows

_WORD = (1 << 64) - 1


def draw(logits: Tensor, rows: Rows) -> Tensor:
    """Draws one token per row, int64 [n_rows]; -1 if the row has a NaN or +inf, or only -inf.

    logits [n_rows, n_vocab] may be overwritten. At temperature 0, returns the first argmax. Else draws from the softmax
    of logits / temperature, filtered by top_k, then top_p, and min_p.
    """
    lists = (column.tolist() for column in rows)
    return torch.tensor(
        [_draw(row.clone(), *own) for row, *own in zip(logits, *lists, strict=True)],
        dtype=torch.int64,
        device=logits.device,
    )


def _draw(x: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, *key: int) -> int:
    peak = x.max()  # NaN if any logit is
    if not peak.isfinite():
        return -1
    if temperature <= 0:
        return int((x == peak).nonzero()[0])
    p = ((x - peak) / max(temperature, 1e-30)).softmax(0)
    cdf = p.where(p >= least_kept(p, top_k, top_p, min_p), 0.0).cumsum(0, dtype=torch.float64)
    return int((cdf <= uniform(*key) * cdf[-1]).sum())


def least_kept(p: Tensor, top_k: int, top_p: float, min_p: float) -> float:
    """The smallest probability of p [n_vocab] that the filters keep."""
    if not top_k and top_p >= 1:
        return min_p * float(p.max())
    best = p.double().sort(descending=True).values
    best = best[: top_k or None]
    n = len(best)
    if top_p < 1:
        upto = best.cumsum(0)
        n = max(1, int((upto - best < top_p * upto[-1]).sum()))  # tokens before which the share is not yet reached
    return max(float(best[n - 1]), min_p * float(best[0]))


def uniform(seed: int, sample: int, position: int) -> float:
    """A uniform random number in (0, 1): a hash of the arguments, each taken modulo 2^64.

    The number is the middle of one of 2^48 equal steps. So `uniform * total` is above 0 and, even after rounding, below
    total. The hash chains steps of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
    2014).
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
