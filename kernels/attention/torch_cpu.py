"""Attention on a CPU without a compiler: gathers pages into a reused buffer and calls torch's flash kernel.

The query heads that share a KV head are packed into the query axis: torch's own `enable_gqa` reads K and V once per
query head and is 2-8 times slower at decode. A chunk of prefill is computed as its context plus a causal part, merged
by their log-sum-exp, so that neither part needs a mask.
"""

import threading
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import AttentionOptions, Ragged
from banyan.kernels.attention.reference import hidden
from banyan.kernels.kv_layout import Pool, Quantized, read

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # what SDPA calls; also returns the LSE
_GROUP_BYTES = 1 << 19  # per group of decodes: their K stays in a core's L2 until it is read
_GROUP_WASTE = 0.25  # share of a group's gathered pages that may be padding, at most


def attention(q: Tensor, k_pool: Pool, v_pool: Pool, ragged: Ragged, options: AttentionOptions) -> Tensor:
    """See `reference.attention`. Raises ValueError for a deterministic batch: torch rounds differently per shape."""
    if ragged.deterministic:
        raise ValueError("attention in plain torch cannot be deterministic: install a C++ compiler, or name it in CXX")
    out = torch.empty_like(q)
    key = ("torch_cpu", options.window, k_pool.shape[1:], q.dtype)
    if key not in ragged.plans:
        ragged.plans[key] = list(_work(ragged, k_pool, options.window, q.dtype))
    for work in ragged.plans[key]:
        if isinstance(work, _Decodes):
            _decode(out, q, k_pool, v_pool, work, options)
        else:
            _extend(out, q, k_pool, v_pool, work, options)
    return out


class _Decodes(NamedTuple):
    """Decodes of similar length that are computed together."""

    rows: Tensor | slice  # rows of q, [n]
    pages: Tensor  # int64 [n * n_pages]
    n: int
    span: slice  # the part of the n_pages * page_size gathered slots that some request reads
    unread: Tensor | None  # int64: gathered slots, of [n * n_pages * page_size], that must be zeroed
    mask: Tensor | None  # float32 [n, 1, 1, span]: 0 or -inf; None if all requests read the whole span


class _Extend(NamedTuple):
    """One request with several new rows."""

    rows: slice
    pages: Tensor  # int64
    first: int  # position of the first slot of `pages`
    context: int  # position of the first row
    n_tokens: int
    hidden: Tensor | None  # bool [rows, slots]; None: plain causal attention


def _work(ragged: Ragged, pool: Pool, window: int, dtype: torch.dtype) -> Iterator[_Decodes | _Extend]:
    page_size = pool.shape[1]
    page_bytes = prod(pool.shape[1:]) * dtype.itemsize
    decodes: list[tuple[int, int, int, int, int]] = []  # n_pages, row, request, first page, n_tokens
    row = 0
    for i, (q_len, kv_len) in enumerate(zip(ragged.q_lens, ragged.kv_lens, strict=True)):
        oldest = max(0, kv_len - q_len - window + 1) if window else 0
        first, last = oldest // page_size, -(-kv_len // page_size)
        if q_len == 1:
            decodes.append((last - first, row, i, first, kv_len))
        elif q_len > 1:
            pages = ragged.page_table[i, first:last].long()
            is_plain = not window and ragged.ancestors is None
            unseen = None if is_plain else hidden(ragged, i, window, first * page_size)
            yield _Extend(slice(row, row + q_len), pages, first * page_size, kv_len - q_len, kv_len, unseen)
        row += q_len

    group: list[tuple[int, int, int, int, int]] = []
    used = 0
    for decode in sorted(decodes, reverse=True):  # the first one of a group has the most pages
        full = (len(group) + 1) * (group[0][0] if group else 0)
        if group and (full * page_bytes > _GROUP_BYTES or used + decode[0] < (1 - _GROUP_WASTE) * full):
            yield _decodes(group, ragged.page_table, page_size, window)
            group, used = [], 0
        group.append(decode)
        used += decode[0]
    if group:
        yield _decodes(group, ragged.page_table, page_size, window)


def _decodes(group: list[tuple[int, int, int, int, int]], page_table: Tensor, page_size: int, window: int) -> _Decodes:
    group = sorted(group, key=lambda decode: decode[1])
    rows = [row for _, row, *_ in group]
    n, n_pages = len(group), max(count for count, *_ in group)
    pages = torch.zeros(n, n_pages, dtype=torch.int64)
    reads = []
    for own, (count, _, i, first, n_tokens) in zip(pages, group, strict=True):
        own[:count] = page_table[i, first : first + count]
        own[count:] = own[0]  # padding repeats a page that is read anyway
        oldest = max(0, n_tokens - window) if window else 0
        reads.append((oldest - first * page_size, n_tokens - first * page_size))
    span = slice(min(lo for lo, _ in reads), max(hi for _, hi in reads))
    mask = unread = None
    if len(set(reads)) > 1:
        slot = np.arange(n_pages * page_size)
        lo, hi = np.array(reads).T[:, :, None]
        beyond = (slot < lo) | (slot >= hi)  # [n, slots]
        unread = torch.from_numpy(np.flatnonzero(beyond))
        mask = torch.zeros(n, n_pages * page_size).masked_fill_(torch.from_numpy(beyond), -torch.inf)
        mask = mask[:, None, None, span]
    contiguous = rows[-1] - rows[0] == n - 1
    which = slice(rows[0], rows[-1] + 1) if contiguous else torch.tensor(rows)
    return _Decodes(which, pages.flatten(), n, span, unread, mask)


def _decode(out: Tensor, q: Tensor, k_pool: Pool, v_pool: Pool, work: _Decodes, options: AttentionOptions) -> None:
    heads, dim = k_pool.shape[2:]
    k, v = (t.view(work.n, -1, heads, dim) for t in _gather(k_pool, v_pool, work.pages, work.unread, q.dtype))
    k, v = (t[:, work.span].transpose(1, 2) for t in (k, v))  # [n, kv_heads, slots, dim]
    rows = q[work.rows].view(work.n, heads, -1, dim)  # [n, kv_heads, group, dim]
    result, lse = _partial(rows, k, v, options.scale, options.softcap, mask=work.mask)
    if options.sinks is not None:
        result = _sink(result, lse, options.sinks.view(heads, -1))
    out[work.rows] = result.reshape(work.n, -1, dim)


def _extend(out: Tensor, q: Tensor, k_pool: Pool, v_pool: Pool, work: _Extend, options: AttentionOptions) -> None:
    scale, softcap, _, sinks = options
    heads, dim = k_pool.shape[2:]
    n = work.rows.stop - work.rows.start
    # [kv_heads, 1, tokens, dim]; the group axis is expanded without a copy
    k, v = (
        t[: work.n_tokens - work.first].transpose(0, 1).unsqueeze(1)
        for t in _gather(k_pool, v_pool, work.pages, None, q.dtype)
    )
    rows = q[work.rows].view(n, heads, -1, dim).permute(1, 2, 0, 3)  # [kv_heads, group, n, dim]
    expanded = (heads, rows.shape[1], -1, dim)
    if work.hidden is not None or softcap:
        unseen = work.hidden
        if unseen is None:
            unseen = torch.arange(work.n_tokens) > torch.arange(work.context, work.n_tokens)[:, None]
        mask = torch.zeros(unseen.shape).masked_fill_(unseen, -torch.inf)
        result, lse = _partial(rows, k.expand(expanded), v.expand(expanded), scale, softcap, mask=mask)
    else:
        new_k, new_v = (t[:, :, work.context :].expand(expanded) for t in (k, v))
        result, lse = _partial(rows, new_k, new_v, scale, causal=True)
        if work.context:
            packed = rows.reshape(heads, 1, -1, dim)
            old, old_lse = _partial(packed, k[:, :, : work.context], v[:, :, : work.context], scale)
            result, lse = _merge(result, lse, old.view_as(rows), old_lse.view(lse.shape))
    if sinks is not None:
        result = _sink(result, lse, sinks.view(heads, -1, 1))
    out[work.rows] = result.permute(2, 0, 1, 3).reshape(n, -1, dim)


def _partial(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    softcap: float = 0.0,
    mask: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention of [a, b, rows, dim] over [a, b, keys, dim], and its natural log-sum-exp [a, b, rows]."""
    if not softcap:
        if mask is not None:
            mask = mask.to(q.dtype)
        out, lse = _flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        return out, lse
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)).mul_(scale / softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores += mask
    lse = scores.logsumexp(-1)
    return torch.matmul(scores.sub_(lse.unsqueeze(-1)).exp_(), v.float()).to(q.dtype), lse


def _merge(a: Tensor, a_lse: Tensor, b: Tensor, b_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Merges attention over two disjoint sets of keys."""
    lse = torch.logaddexp(a_lse, b_lse)
    joined = a * (a_lse - lse).exp().unsqueeze(-1) + b * (b_lse - lse).exp().unsqueeze(-1)
    return joined.to(a.dtype), lse


def _sink(out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Adds a logit without a value: it scales the result by exp(lse) / (exp(lse) + exp(sink))."""
    return (out * torch.sigmoid(lse - sinks.to(lse.dtype)).unsqueeze(-1)).to(out.dtype)


_buffers = threading.local()


def _gather(
    k_pool: Pool, v_pool: Pool, pages: Tensor, unread: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """K and V of `pages`, each [slots, kv_heads, dim] in `dtype`. The slots `unread` are zeroed: unused slots of a pool
    may hold NaN, which a weight of zero does not hide. The result is valid until the next call in this thread."""
    page = k_pool.shape[1:]
    n = len(pages) * page.numel()
    buffer = getattr(_buffers, "kv", None)
    if buffer is None or buffer.dtype != dtype or buffer.shape[1] < n:
        with torch.inference_mode(False):  # an inference tensor could not be written outside of that mode
            buffer = _buffers.kv = torch.empty(2, 2 * n, dtype=dtype)
    slots = []
    for pool, flat in zip((k_pool, v_pool), buffer, strict=True):
        own = flat[:n].view(len(pages), *page)
        if isinstance(pool, Quantized):
            own.copy_(read(pool, pages, dtype))
        else:
            torch.index_select(pool, 0, pages, out=own)
        own = own.flatten(0, 1)
        slots.append(own if unread is None else own.index_fill_(0, unread, 0.0))
    return slots[0], slots[1]
