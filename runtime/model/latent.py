"""Lets transformers' models with multi-head latent attention attend to latents, instead of keys and values of all
heads.

A token's keys and values are products of one latent (DeepSeek-AI, DeepSeek-V2, 2024). The matrix that makes keys from
latents is applied to queries instead, and the matrix that makes values is applied to the weighted sums of latents. So
attention reads one key per token: the latent, followed by the rotated (RoPE) part of the key. The latent is also the
value.

transformers makes keys and values from a layer's latents in `expand_kv`; this file replaces that method of each module.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn


class Absorbed(nn.Module):
    """The weight of `kv_b_proj`, cut into the part for keys and the part for values."""

    def __init__(self, linear: nn.Linear, n_heads: int, v_dim: int) -> None:
        """linear: the layer kv_b_proj. Its outputs are, for each of n_heads heads, the part of the key without RoPE,
        then the value, which has v_dim numbers."""
        super().__init__()
        by_head = linear.weight.data.view(n_heads, -1, linear.in_features)
        keys, values = by_head[:, :-v_dim], by_head[:, -v_dim:]
        self.keys = nn.Parameter(keys.contiguous(), requires_grad=False)  # [n_heads, part of a key, latent]
        self.values = nn.Parameter(values.transpose(1, 2).contiguous(), requires_grad=False)  # [n_heads, latent, value]

    def queries(self, query: Tensor) -> Tensor:
        """Converts queries to queries for latents: [1, n_heads, n_rows, head] -> [1, n_heads, n_rows, latent + rotated
        part]."""
        n_plain = self.keys.shape[1]
        plain, rotated = query[..., :n_plain], query[..., n_plain:]
        return torch.cat([torch.bmm(plain[0], self.keys)[None], rotated], 3)

    def outputs(self, sums: Tensor) -> Tensor:
        """Converts weighted sums of latents to the outputs of heads: [n_rows, n_heads, latent] -> [n_rows, n_heads,
        value]."""
        return torch.bmm(sums.transpose(0, 1), self.values).transpose(0, 1)


class _OverLatents:
    """A mixin for attention modules of transformers. Its `expand_kv` returns one key and one value per token, made of
    the latent, in place of the keys and values of all heads."""

    def expand_kv(self, latents: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([latents, rotated], 3), latents


def has_latents(model_class: type) -> bool:
    """Whether transformers' code for a model makes keys and values from latents in a separate method, `expand_kv`."""
    own = vars(inspect.getmodule(model_class)).values()
    return any(inspect.isclass(part) and hasattr(part, "expand_kv") for part in own)


def absorb(model: nn.Module) -> None:
    """Change the layers of a model in place, so that they attend to latents."""
    module: Any
    over_latents = cache(lambda attention: type(attention.__name__, (_OverLatents, attention), {}))
    for module in model.modules():
        if hasattr(module, "expand_kv"):
            module.kv_b_proj = Absorbed(module.kv_b_proj, module.num_heads, module.v_head_dim)
            module.__class__ = over_latents(module.__class__)
