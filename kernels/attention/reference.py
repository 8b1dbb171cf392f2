"""What attention means: one request at a time, in the plainest words."""

import torch
from torch import Tensor

from banyan.kernels.attention.batch import Ragged


def attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    ragged: Ragged,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of ragged rows over paged KV; computes in float32 (float64 for float64 inputs).

    q            [n_rows, n_heads, head_dim]
    k/v_pool     [n_pages, page_size, n_kv_heads, head_dim]; query head h reads KV head h // (n_heads / n_kv_heads)
    softcap c    scores become c * tanh(scores / c); 0: off
    window w     a row at position p sees the keys at positions > p - w; 0: all keys up to its own
    sinks        [n_heads]: one more logit per head that takes part in the softmax and carries no value
    Returns      [n_rows, n_heads, head_dim], in q's dtype.
    """
    real = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k_pool.shape[2]
    page_size = k_pool.shape[1]
    out = torch.empty_like(q)
    starts, kv_lens = ragged.q_start.tolist(), ragged.kv_len.tolist()
    for i, kv_len in enumerate(kv_lens):
        lo, hi = starts[i], starts[i + 1]
        pages = ragged.page_table[i, : -(-kv_len // page_size)].long()
        k = k_pool[pages].flatten(0, 1)[:kv_len].to(real).repeat_interleave(group, dim=1)  # [kv_len, heads, dim]
        v = v_pool[pages].flatten(0, 1)[:kv_len].to(real).repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[lo:hi].to(real), k) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        key = torch.arange(kv_len, device=q.device)
        row = torch.arange(kv_len - (hi - lo), kv_len, device=q.device)[:, None]
        hidden = key > row
        if window:
            hidden |= key <= row - window
        scores = scores.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            sink = sinks.to(real)[:, None, None].expand(-1, hi - lo, 1)
            weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        out[lo:hi] = torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)
    return out
