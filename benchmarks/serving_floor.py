"""A lower bound of a workload's time on this machine: its operations and bytes over the machine's measured rates.

Every distinct token is computed once. The longest chain of outputs needs as many steps, each of which reads all weights
once. Prompts are computed at the rate of large matrix products; steps take the larger of their bytes and their
operations; the two times add up. Reads of KV are not counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from serving_work import Call, every

SIDE = 2048  # of the matrices whose product is timed
WIDTH = {"float32": 4, "bfloat16": 2}


class Ceilings(NamedTuple):
    """A machine's rates per second: floating-point operations in large matrix products, and bytes read from memory."""

    operations: float
    bytes: float


class Shape(NamedTuple):
    """The costs of a model. weights: bytes that a step reads. body, head: multiply-adds per token. context:
    multiply-adds per pair of a token and a token of its context."""

    weights: int
    body: int
    head: int
    context: int

    @classmethod
    def read(cls, model: Path, dtype: str) -> Shape:
        c = json.loads((model / "config.json").read_text())
        hidden, layers, heads = c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"]
        dim = c.get("head_dim") or hidden // heads
        attention = hidden * dim * (2 * heads + 2 * c["num_key_value_heads"])
        body = layers * (attention + 3 * hidden * c["intermediate_size"])
        head = hidden * c["vocab_size"]
        return cls((body + head) * WIDTH[dtype], body, head, 2 * layers * heads * dim)


def ceilings(dtype: str) -> Ceilings:
    """Measures this machine's rates: the fastest of `products`, and the faster of the sum and the squared norm of 256
    MiB."""
    import torch

    numbers = torch.ones(64 << 20)
    with torch.inference_mode():
        reading = min(_best(numbers.sum), _best(lambda: numbers @ numbers))
        return Ceilings(2 * SIDE**3 / min(map(_best, products(dtype))), 4 * len(numbers) / reading)


def products(dtype: str) -> list[Callable[[], object]]:
    """Functions that multiply two SIDE x SIDE matrices by torch; the fastest one gives the machine's rate. In float32
    oneDNN's product with a packed weight can be far faster than torch's own. Without bfloat16 instructions, products
    in float32 are faster, and torch's own product of bfloat16 takes most of a minute."""
    import torch

    mkldnn = torch.ops.mkldnn
    a, b = torch.randn(2, SIDE, SIDE)
    pairs = [(a, b)]
    if dtype == "bfloat16" and mkldnn._is_mkldnn_bf16_supported():
        pairs.append((a.bfloat16(), b.bfloat16()))
    found: list[Callable[[], object]] = [partial(torch.matmul, *pair) for pair in pairs]
    for x, weight in pairs:
        found.append(partial(mkldnn._linear_pointwise, x, mkldnn._reorder_linear_weight(weight), None, "none", [], ""))
    return found


def _best(work: Callable[[], object], n: int = 10) -> float:
    seconds = []
    for _ in range(n):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def distinct(calls: Sequence[Call]) -> int:
    """Prompt tokens that must be computed if none is computed twice."""
    texts = sorted(call.text.split() for call in calls)
    n_new = len(texts[0]) if texts else 0
    for before, text in pairwise(texts):
        n_same = next((i for i, (a, b) in enumerate(zip(before, text, strict=False)) if a != b), len(before))
        n_new += len(text) - n_same
    return n_new + sum(distinct(call.children) for call in calls)


def longest(calls: Sequence[Call]) -> int:
    """Output tokens of the longest chain of calls, which are the minimum number of steps."""
    return max((call.n_out + longest(call.children) for call in calls), default=0)


def floor(calls: Sequence[Call], shape: Shape, ceiling: Ceilings) -> float:
    """The lower bound in seconds."""
    n_prompt, n_steps = distinct(calls), longest(calls)
    rows = list(_rows(calls, 0))
    n_out = sum(call.n_out for call in every(list(calls)))
    in_prompts = n_prompt * shape.body + shape.context * sum(n * (at + n / 2) for n, at, _ in rows) * (
        n_prompt / sum(n for n, _, _ in rows)
    )
    in_steps = n_out * (shape.body + shape.head) + shape.context * sum(n_out * at for _, at, n_out in rows)
    reading = n_steps * shape.weights / ceiling.bytes
    return 2 * in_prompts / ceiling.operations + max(reading, 2 * in_steps / ceiling.operations)


def _rows(calls: Sequence[Call], at: int) -> list[tuple[int, int, int]]:
    """For each call: (its own prompt tokens, the tokens before them, its output tokens)."""
    found = []
    for call in calls:
        n = len(call.text.split())
        found += [(n, at, call.n_out), *_rows(call.children, at + n + call.n_out)]
    return found
