"""The dense decoder: Llama, Mistral, Qwen2 and Qwen3 as one function over rows of tokens.

A step's tokens lie in one flat list of rows, whatever requests they belong to and whether they are a prompt's chunk
or the next token of an answer; only attention looks across rows, and `ragged` tells it how.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels import ops
from banyan.kernels.fused_layers import Layers, Weights, fused
from banyan.kernels.ops import Ragged
from banyan.runtime.model.linear import Linear
from banyan.runtime.model.rope import frequencies
from banyan.runtime.model.spec import ModelSpec
from banyan.runtime.model.weights import Checkpoint


class Layer(NamedTuple):
    """One layer's weights. q, k, v are one matrix, and gate and up are one."""

    attention_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (n_heads + 2 n_kv_heads) head_dim
    qk_norm: tuple[Tensor, Tensor] | None  # [head_dim] each
    out: Linear  # n_heads head_dim -> hidden
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 intermediate
    down: Linear  # intermediate -> hidden
    window: int  # tokens a token sees, itself included; 0: all


class Decoder:
    """A loaded dense model; see `load.Model` for what `forward` promises."""

    def __init__(self, spec: ModelSpec, embed: Tensor, layers: Sequence[Layer], norm: Tensor, head: Linear,
                 rope: tuple[Tensor, float]) -> None:  # fmt: skip
        assert spec.dense is not None
        self.spec = spec
        self.embed, self.layers, self.norm, self.head = embed, layers, norm, head
        self.eps = spec.dense.rms_norm_eps
        self.frequencies, self.rope_scale = rope  # [head_dim / 2], on cos and sin
        self.fused = self._fused() if self.is_packed else None  # all layers in one call of our library
        self.features: Tensor | None = None  # [n_slots, hidden]: where heads want the last hidden states, by slot

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(layer.window for layer in self.layers)

    @property
    def is_packed(self) -> bool:
        """Whether our own library multiplies its matrices: then torch has no large op left."""
        return isinstance(self.head.weight, ops.Packed)

    @torch.inference_mode()
    def forward(self, ids: Tensor, positions: Tensor, ragged: Ragged, kv: Sequence[tuple[Tensor, Tensor]],
                rows: Tensor) -> Tensor:  # fmt: skip
        angles = positions[:, None].float() * self.frequencies  # [n_rows, head_dim / 2]
        turn = angles.cos() * self.rope_scale, angles.sin() * self.rope_scale
        x = F.embedding(ids, self.embed)  # [n_rows, hidden]
        last = rows if ragged.tail is not None and self.features is None else None
        if self.fused is not None and self.fused.bind(kv):
            h, x = self.fused(x, *turn, ragged, last)
        else:
            h, x = self._layer_by_layer(x, turn, ragged, kv, last)
        if self.features is None:
            h, _ = ops.rms_norm(h, self.norm, self.eps, residual=x, rows=rows if last is None else None)
            return self.head(h).float()
        h, _ = ops.rms_norm(h, self.norm, self.eps, residual=x)
        self.features[ragged.slots] = h
        return self.head(h[rows]).float()

    def _layer_by_layer(self, x: Tensor, turn: tuple[Tensor, Tensor], ragged: Ragged,
                        kv: Sequence[tuple[Tensor, Tensor]], last: Tensor | None) -> tuple[Tensor, Tensor]:  # fmt: skip
        """What the last part adds to the residual stream, and that stream. last: rows of `ragged.tail`, which alone the
        last layer computes, once all rows have their keys there; None: it computes all."""
        h = torch.zeros_like(x)
        for layer, pools in zip(self.layers, kv, strict=True):
            h, x = ops.rms_norm(h, layer.attention_norm, self.eps, residual=x)
            q = self._query(layer, h, turn, ragged, pools)
            if last is not None and layer is self.layers[-1]:
                assert ragged.tail is not None
                q, x, ragged = q[last], x[last], ragged.tail
                if not len(q):
                    return x, x
            out = ops.attention(q, *pools, ragged, scale=self.spec.head_dim**-0.5, window=layer.window)
            h = layer.out(out.view(len(out), -1))
            h, x = ops.rms_norm(h, layer.mlp_norm, self.eps, residual=x)
            h = layer.down(ops.silu_mul(layer.gate_up(h)))
        return h, x

    def _fused(self) -> Layers | None:
        weights = [
            Weights(layer.attention_norm, layer.mlp_norm, layer.qk_norm,
                    *((part.weight, part.bias) for part in (layer.qkv, layer.out, layer.gate_up, layer.down)),
                    layer.window)
            for layer in self.layers
        ]  # fmt: skip
        return fused(weights, self.spec.n_heads, self.spec.n_kv_heads, self.spec.head_dim, self.eps)

    def _query(self, layer: Layer, h: Tensor, turn: tuple[Tensor, Tensor], ragged: Ragged,
               pools: tuple[Tensor, Tensor]) -> Tensor:  # fmt: skip
        """[n_rows, n_heads, head_dim]. Keys and values go to the pools."""
        qkv = layer.qkv(h).view(len(h), -1, self.spec.head_dim)  # [n_rows, n_heads + 2 n_kv_heads, head_dim]
        return ops.rope_kv(qkv, layer.qk_norm, self.eps, *turn, *pools, ragged.slots)


def build(spec: ModelSpec, weights: Checkpoint, device: torch.device, dtype: torch.dtype, max_context: int,
          deterministic: bool = False, is_int8: bool = False) -> Decoder:  # fmt: skip
    """Read a dense model from its checkpoint; at no time does more than one layer exist twice. is_int8: weights of
    linear layers in 8 bits, the head's too; embeddings stay as they are."""
    c = spec.dense
    assert c is not None

    def take(*names: tuple[str, int], of: str = "weight", rest: tuple[int, ...] = ()) -> Tensor:
        """Tensors of n x rest numbers, each (name, n), one behind the other: a copy, never a view of the file."""
        return torch.cat([weights.take(f"{name}.{of}", n, *rest).to(device, dtype) for name, n in names])

    def linear(n_in: int, has_bias: bool, *parts: tuple[str, int]) -> Linear:
        """Projections of n_in features, each (name, n_out), as one matrix."""
        bias = take(*parts, of="bias") if has_bias else None
        return Linear(take(*parts, rest=(n_in,)), bias, deterministic, is_int8)

    def layer(i: int) -> Layer:
        base = f"model.layers.{i}"
        at, mlp = f"{base}.self_attn", f"{base}.mlp"
        n_q, n_kv = c.num_attention_heads * c.dim, c.n_kv_heads * c.dim
        qkv = (f"{at}.q_proj", n_q), (f"{at}.k_proj", n_kv), (f"{at}.v_proj", n_kv)
        gate_up = (f"{mlp}.gate_proj", c.intermediate_size), (f"{mlp}.up_proj", c.intermediate_size)
        return Layer(
            attention_norm=take((f"{base}.input_layernorm", c.hidden_size)),
            qkv=linear(c.hidden_size, c.has_qkv_bias, *qkv),
            qk_norm=(take((f"{at}.q_norm", c.dim)), take((f"{at}.k_norm", c.dim))) if c.has_qk_norm else None,
            out=linear(n_q, c.has_out_bias, (f"{at}.o_proj", c.hidden_size)),
            mlp_norm=take((f"{base}.post_attention_layernorm", c.hidden_size)),
            gate_up=linear(c.hidden_size, c.has_mlp_bias, *gate_up),
            down=linear(c.intermediate_size, c.has_mlp_bias, (f"{mlp}.down_proj", c.hidden_size)),
            window=c.windows[i] if c.windows[i] < max_context else 0,  # 0 spares a mask that would hide nothing
        )

    embed = take(("model.embed_tokens", c.vocab_size), rest=(c.hidden_size,))
    layers = [layer(i) for i in range(c.num_hidden_layers)]
    norm = take(("model.norm", c.hidden_size))
    head = (
        Linear(embed, None, deterministic, is_int8)
        if c.tie_word_embeddings
        else linear(c.hidden_size, False, ("lm_head", c.vocab_size))
    )
    weights.finish(ignore=_is_void)
    turns, scale = frequencies(c.rope, c.dim, max_context)
    name = str(dtype).removeprefix("torch.")
    return Decoder(msgspec.structs.replace(spec, dtype=name), embed, layers, norm, head, (turns.to(device), scale))


def _is_void(name: str) -> bool:
    """Tensors that older checkpoints carry and nobody reads: rope tables, and a head that is tied anyway."""
    return name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"
