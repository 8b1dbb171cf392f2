"""Attention on a CPU: by the C++ library, or by torch for inputs that the library does not support."""

import torch
from torch import Tensor

from banyan.kernels.attention import native
from banyan.kernels.attention.ragged import AttentionOptions, Ragged
from banyan.kernels.attention.reference import hidden
from banyan.kernels.kv_layout import Pool, are_native, is_latent, read
from banyan.kernels.native import build

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # what SDPA calls; also returns the LSE


def attention(q: Tensor, k_pool: Pool, v_pool: Pool, ragged: Ragged, options: AttentionOptions) -> Tensor:
    """Attention on a CPU. Calls the C++ library, or torch if the library is missing or does not support the inputs.
    Arguments and result as in `reference.attention`."""
    library = build.library()
    if library is None or not is_known(q, k_pool, v_pool):
        return by_torch(q, k_pool, v_pool, ragged, options)
    return native.attend(library, q, k_pool, v_pool, ragged, options)


def is_known(q: Tensor, k_pool: Pool, v_pool: Pool) -> bool:
    """Whether the C++ library supports these inputs."""
    _, n_heads, dim = q.shape
    return (
        q.dtype in build.DTYPES
        and are_native(k_pool, v_pool, q.dtype)
        and dim % 16 == 0
        and v_pool.shape[3] % 16 == 0
        and dim <= native.MAX_DIM
        and n_heads <= native.MAX_ROWS
        and q.stride(2) == 1
        and q.stride(1) == dim
    )


def by_torch(q: Tensor, k_pool: Pool, v_pool: Pool, ragged: Ragged, options: AttentionOptions) -> Tensor:
    """Attention in torch, one request after the other: gathers its pages and calls torch's flash kernel. Raises
    ValueError for a deterministic batch, since torch's rounding depends on the shapes."""
    if ragged.deterministic:
        raise ValueError("attention in plain torch cannot be deterministic: install a C++ compiler, or name it in CXX")
    scale, softcap, window, sinks, first_keys, first_q = options
    page_size, n_kv_heads, v_dim = v_pool.shape[1:]
    out = q.new_empty(*q.shape[:2], v_dim)
    end = 0
    for i, (n, kv_len) in enumerate(zip(ragged.q_lens, ragged.kv_lens, strict=True)):
        rows, end = slice(end, end + n), end + n
        if not n:
            continue
        first = max(0, kv_len - n - window + 1) // page_size if window else 0  # page that the first row reads first
        table, n_keys = ragged.page_table[i, : -(-kv_len // page_size)].long(), kv_len - first * page_size
        n_first = min(-(-first_keys // page_size), first)  # pages in front of the window
        pages, n_keys = torch.cat([table[:n_first], table[first:]]), n_first * page_size + n_keys
        own = _by_head(q[rows], n_kv_heads)
        k, v = (
            read(pool, pages, q.dtype).flatten(0, 1)[:n_keys].transpose(0, 1)[:, None].expand(-1, own.shape[1], -1, -1)
            for pool in ((k_pool, k_pool) if is_latent(k_pool, v_pool) else (k_pool, v_pool))  # one size, for `_flash`
        )
        is_plain = not softcap and not window and ragged.ancestors is None
        mask = None
        if not is_plain or 1 < n < kv_len:
            unseen = hidden(ragged, i, window, first * page_size, first_keys)
            if n_first:
                unseen = torch.cat([torch.arange(n_first * page_size).expand(n, -1) >= first_keys, unseen], 1)
            mask = torch.zeros(unseen.shape, dtype=q.dtype).masked_fill_(unseen, -torch.inf)
        if softcap or first_q is not None:
            assert mask is not None
            scores = own.float() @ k.float().transpose(-1, -2)
            if first_q is not None:
                some = k[..., :first_keys, :].float()
                scores[..., :first_keys] = _by_head(first_q[rows], n_kv_heads).float() @ some.transpose(-1, -2)
            scores *= scale
            if softcap:
                scores.div_(softcap).tanh_().mul_(softcap)
            scores += mask
            lse = scores.logsumexp(-1)
            result = (scores - lse[..., None]).exp_() @ v.float()
        else:
            result, lse = _flash(own, k, v, 0.0, mask is None and n > 1, attn_mask=mask, scale=scale)
        if n == 1:
            result, lse = result.transpose(1, 2), lse.transpose(1, 2)
        if sinks is not None:  # a logit without a value scales the result by exp(lse) / (exp(lse) + exp(sink))
            result = result * torch.sigmoid(lse - sinks.view(n_kv_heads, -1, 1))[..., None]
        out[rows] = result[..., :v_dim].permute(2, 0, 1, 3).reshape(n, -1, v_dim)
    return out


def _by_head(q: Tensor, n_kv_heads: int) -> Tensor:
    """The rows of one request as [n_kv_heads, group, n, dim]; for a decode [n_kv_heads, 1, group, dim], so that K and V
    are read once per group."""
    own = q.view(len(q), n_kv_heads, -1, q.shape[-1]).permute(1, 2, 0, 3)
    return own.transpose(1, 2) if len(q) == 1 else own
