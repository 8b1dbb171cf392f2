"""Random inputs for attention. Memory that a kernel must not read is NaN."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from banyan.kernels.attention import reference
from banyan.kernels.attention.plan import MAX_DRAFT
from banyan.kernels.attention.ragged import AttentionOptions, Ragged, ragged
from banyan.kernels.kv_layout import KV_KINDS, Pool, Quantized, quantize, values_of

OPTIONS: list[dict[str, Any]] = [
    {},
    {"window": 9},
    {"window": 9, "first": 4},
    {"softcap": 5.0},
    {"sinks": True},
    {"kv": "int8"},
    {"kv": "fp8"},
]
"""Arguments of `attention_case`: no option, and each option alone."""

DRAWN = {
    "seed": st.integers(0, 2**31),
    "page_size": st.sampled_from([1, 16, 32, 64]),
    "window": st.sampled_from([0, 0, 1, 7, 64]),
    "first": st.sampled_from([0, 1, 4, 40]),
    "softcap": st.sampled_from([0.0, 0.0, 4.0]),
    "sinks": st.booleans(),
    "trees": st.booleans(),
}
"""Strategies for arguments of `drawn_case`."""

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Case(NamedTuple):
    """The arguments of one call of attention."""

    q: Tensor
    k_pool: Pool
    v_pool: Pool
    ragged: Ragged
    options: AttentionOptions

    def expected(self) -> Tensor:
        """The reference's result in float64."""
        options = AttentionOptions(*(x.double() if isinstance(x, Tensor) else x for x in self.options))
        pools = (t if isinstance(t, Quantized) else t.double() for t in (self.k_pool, self.v_pool))
        return reference.attention(self.q.double(), *pools, self.ragged, options)

    def check(self, got: Tensor, factor: float = 1.0) -> None:
        """Fails unless `got` is the expected result within the tolerance of its dtype. NaN always fails."""
        want = self.expected()
        assert got.shape == want.shape
        assert got.dtype == self.q.dtype
        if got.numel():
            worst = (got.double() - want).abs().max().item()
            assert worst <= factor * TOLERANCE[got.dtype], f"off by {worst:.2e}"


def attention_case(
    seed: int,
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    heads: tuple[int, int] = (4, 2),
    dim: int = 64,
    latent_dim: int = 0,
    page_size: int = 16,
    dtype: torch.dtype = torch.float32,
    kv: str = "",
    shared_pages: int = 0,
    softcap: float = 0.0,
    window: int = 0,
    sinks: bool = False,
    first: int = 0,
    parents: Sequence[Sequence[int] | None] | None = None,
    device: torch.device | str = "cpu",
) -> Case:
    """A batch over scattered pages. Every slot that no request owns is NaN, also page 0 (the table's padding).

    heads         (n_heads, n_kv_heads)
    latent_dim    values are the first latent_dim numbers of keys; 0: values are stored too
    kv            a key of `kv_layout.KV_KINDS`: K and V are quantised to this kind
    shared_pages  number of first pages that all requests share; every second request shares half as many more. Only
                  pages that are full before a request's own rows are shared
    parents       see `ragged`
    """
    chance = torch.Generator().manual_seed(seed)
    n_pages = [-(-kv // page_size) for kv in kv_lens]
    order = (1 + torch.randperm(sum(n_pages) + 2, generator=chance)).tolist()
    pages = [[order.pop() for _ in range(n)] for n in n_pages]
    if pages and shared_pages:
        full = [(kv - q) // page_size for q, kv in zip(q_lens, kv_lens, strict=True)]
        donor = full.index(max(full))
        for i, own in enumerate(pages):
            n = min(shared_pages + (0 if i % 2 else shared_pages // 2), full[i], full[donor])
            own[:n] = pages[donor][:n]
    pools = torch.full((2, sum(n_pages) + 3, page_size, heads[1], dim), torch.nan)
    for own, kv_len in zip(pages, kv_lens, strict=True):
        for j, page in enumerate(own):
            n = min(page_size, kv_len - j * page_size)
            fresh = torch.randn(2, n, heads[1], dim, generator=chance)
            pools[:, page, :n] = torch.where(pools[:, page, :n].isnan(), fresh, pools[:, page, :n])
    q = torch.randn(sum(q_lens), heads[0], dim, generator=chance)
    options = AttentionOptions(dim**-0.5, softcap, window)
    if sinks:
        options = options._replace(sinks=torch.randn(heads[0], generator=chance).to(device))
    kinds = KV_KINDS.get(kv or "", (None, None))
    k_pool, v_pool = (
        _quantized(pool, kind, device) if kind else pool.to(device, dtype)
        for pool, kind in zip(pools, kinds, strict=True)
    )
    if latent_dim:
        v_pool = values_of(k_pool, latent_dim)
    batch = ragged(q_lens, kv_lens, pages, page_size, device, parents)
    if first:
        other = torch.randn(q.shape, generator=chance)
        other = torch.where((batch.position.cpu() < window)[:, None, None], q, other)
        options = options._replace(first=first, first_q=other.to(device, dtype))
    return Case(q.to(device, dtype), k_pool, v_pool, batch, options)


def _quantized(pool: Tensor, kind: torch.dtype, device: torch.device | str) -> Quantized:
    """Quantises a pool. NaN becomes the byte 0x7F with a NaN scale."""
    numbers, scale = quantize(pool, kind)
    numbers.view(torch.uint8)[pool[..., : numbers.shape[-1]].isnan()] = 0x7F
    return Quantized(numbers.to(device), scale.to(device))


def random_trees(seed: int, q_lens: Sequence[int]) -> list[list[int] | None]:
    """Random draft trees for about half of the requests with 1 to MAX_DRAFT rows; None for the others."""
    chance = random.Random(seed)
    return [
        [chance.randrange(-1, j) for j in range(n)] if 0 < n <= MAX_DRAFT and chance.random() < 0.5 else None
        for n in q_lens
    ]


def drawn_case(seed: int, requests: Sequence[tuple[int, int]], trees: bool, **options: Any) -> Case:
    """A case of arguments that hypothesis drew. requests: the number of rows and of earlier tokens of each. trees: some
    requests have random draft trees, if the window has room for them. `first` is ignored without a window. options: of
    `attention_case`."""
    q_lens, window = [q for q, _ in requests], options.get("window", 0)
    if trees and not 0 < window < max(q_lens):
        options["parents"] = random_trees(seed, q_lens)
    if not window:
        options["first"] = 0
    return attention_case(seed, q_lens, [q + context for q, context in requests], **options)


def check_deterministic(
    attend: Callable[..., Tensor],
    seed: int,
    n: int,
    dtype: torch.dtype,
    dim: int = 16,
    n_batches: int = 6,
    **options: Any,
) -> None:
    """Fails unless each row of a text of n tokens has the same bits in every batch.

    Computes the whole text in one batch. Then computes n_batches batches of up to six pieces of 1 to 50 rows: pieces of
    the text over its own pages or over a copy of them, and of another text. Pieces share prefixes where they can.
    """
    chance, page_size = random.Random(seed), 16
    torch.manual_seed(seed)
    n_pages = -(-n // page_size)
    pools = torch.full((2, 3 * n_pages, page_size, 2, dim), torch.nan)
    tokens = torch.randn(2, 2, n, 2, dim)  # of the text and of another, K and V
    order = torch.randperm(3 * n_pages).tolist()
    places = order[:n_pages], order[n_pages : 2 * n_pages], order[2 * n_pages :]
    for place, of in zip(places, (0, 0, 1), strict=True):
        for i, page in enumerate(place):
            own = tokens[of, :, i * page_size : (i + 1) * page_size]
            pools[:, page, : own.shape[1]] = own
    q, first_q = torch.randn(2, n, 4, dim).to(dtype)
    first_q[: options.get("window", 0)] = q[: options.get("window", 0)]
    k_pool, v_pool = pools.to(dtype)

    def run(pieces: list[tuple[int, int, int]]) -> Tensor:
        """Computes pieces: (first row, number of rows, which pages)."""
        q_lens, kv_lens = [m for _, m, _ in pieces], [first + m for first, m, _ in pieces]
        batch = ragged(q_lens, kv_lens, [places[at] for *_, at in pieces], page_size, deterministic=True)
        rows, other = (torch.cat([x[first : first + m] for first, m, _ in pieces]) for x in (q, first_q))
        own = options | {"first_q": other} if "first" in options else options
        return attend(rows, k_pool, v_pool, batch, AttentionOptions(0.3, **own))

    want = run([(0, n, 0)])
    assert not want.isnan().any()
    for _ in range(n_batches):
        sizes = [chance.choice([1, 1, 5, 50]) for _ in range(chance.randint(1, 6))]
        pieces = [(chance.randint(0, n - m), m, chance.randrange(3)) for m in sizes]
        got = run(pieces).split(sizes)
        for (first, m, at), rows in zip(pieces, got, strict=True):
            assert at == 2 or torch.equal(rows, want[first : first + m]), f"rows {first} to {first + m} of {pieces}"
