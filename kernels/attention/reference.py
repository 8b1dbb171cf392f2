"""The reference implementation of attention: plain PyTorch, one request at a time. The other implementations are tested
against it.
"""

import torch
from torch import Tensor

from banyan.kernels.attention.plan import MAX_DRAFT
from banyan.kernels.attention.ragged import AttentionOptions, Ragged
from banyan.kernels.kv_layout import Pool, read


def attention(q: Tensor, k_pool: Pool, v_pool: Pool, ragged: Ragged, options: AttentionOptions) -> Tensor:
    """Causal attention of ragged rows over paged KV. Computes in float32 (float64 for float64 inputs).

    q            [n_rows, n_heads, head_dim]
    k/v_pool     [n_pages, page_size, n_kv_heads, head_dim], in q's dtype, or `Quantized`. Query head h reads
                 KV head h // (n_heads / n_kv_heads). If values are smaller than keys, they are the first numbers of
                 keys (`kv_layout.values_of`)
    options      see AttentionOptions
    Returns      [n_rows, n_heads, head_dim of values], in q's dtype
    """
    scale, softcap, window, sinks, first, first_q = options
    real = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k_pool.shape[2]
    page_size = k_pool.shape[1]
    out = q.new_empty(*q.shape[:2], v_pool.shape[3])
    starts, kv_lens = ragged.q_start.tolist(), ragged.kv_len.tolist()
    for i, kv_len in enumerate(kv_lens):
        lo, hi = starts[i], starts[i + 1]
        pages = ragged.page_table[i, : -(-kv_len // page_size)].long()
        k = read(k_pool, pages, real).flatten(0, 1)[:kv_len].repeat_interleave(group, dim=1)  # [kv_len, heads, dim]
        v = read(v_pool, pages, real).flatten(0, 1)[:kv_len].repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[lo:hi].to(real), k) * scale
        if first_q is not None:
            scores[..., :first] = torch.einsum("qhd,khd->hqk", first_q[lo:hi].to(real), k[:first]) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(hidden(ragged, i, window, first_keys=first), -torch.inf)
        if sinks is not None:
            sink = sinks.to(real)[:, None, None].expand(-1, hi - lo, 1)
            weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        out[lo:hi] = torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)
    return out


def hidden(ragged: Ragged, request: int, window: int, first: int = 0, first_keys: int = 0) -> Tensor:
    """Returns a mask, bool [q_len, kv_len - first]: True where a row of the request does not attend to a key. The
    columns are the keys starting at `first`.

    window, first_keys: `window` and `first` of the layer's AttentionOptions.
    """
    lo, hi = ragged.q_start[request : request + 2].tolist()
    kv_len = int(ragged.kv_len[request])
    key = torch.arange(first, kv_len, device=ragged.kv_len.device)
    row = torch.arange(kv_len - (hi - lo), kv_len, device=key.device)[:, None]
    out = key > row
    if ragged.ancestors is not None:
        bit = key - (kv_len - MAX_DRAFT)
        out |= (bit >= 0) & (ragged.ancestors[lo:hi, None] >> bit.clamp(min=0) & 1 == 0)
    if window:
        out |= (key <= ragged.position[lo:hi, None] - window) & (key >= first_keys)
    return out
