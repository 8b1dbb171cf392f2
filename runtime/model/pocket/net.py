"""The pocket model's network: a Llama decoder for training, its parameters named as Hugging Face names them."""

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Shape:
    """The size of a model; the defaults are the main pocket model's."""

    vocabulary: int = 4096
    width: int = 256
    n_layers: int = 5
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 64
    feed_forward: int = 640
    max_length: int = 2048
    rope_theta: float = 10000.0
    eps: float = 1e-5

    def config(self, *, pad: int, end: int) -> dict[str, Any]:
        """`config.json` in Hugging Face's words."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_length,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "initializer_range": 0.02,
            "bos_token_id": None,
            "eos_token_id": end,
            "pad_token_id": pad,
            "dtype": "bfloat16",
        }


MAIN = Shape()
DRAFT = Shape(width=128, n_layers=2, n_heads=2, n_kv_heads=1, feed_forward=320)


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner, kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.width, inner, bias=False)
        self.k_proj = nn.Linear(shape.width, kv, bias=False)
        self.v_proj = nn.Linear(shape.width, kv, bias=False)
        self.o_proj = nn.Linear(inner, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, _ = x.shape
        # [rows, heads, length, head_dim]
        q, k, v = (
            f(x).view(rows, length, -1, self.shape.head_dim).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = self.shape.n_heads // self.shape.n_kv_heads
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, halves paired as Hugging Face pairs them; `x` is [rows, heads, length, head_dim]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down_proj = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.width, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.width, shape.eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """Everything under `model.` in the weights file."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layers))
        self.norm = Norm(shape.width, shape.eps)


class Net(nn.Module):
    """The decoder: ids [rows, length] to final hidden states [rows, length, width]; logits are `h @ embed.T`."""

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        angles = torch.outer(
            torch.arange(shape.max_length).float(),
            shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim),
        )
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = (
                    0.02
                    if "embed" in name
                    else parameter.shape[1] ** -0.5 / ((2 * shape.n_layers) ** 0.5 if deep else 1.0)
                )
                nn.init.normal_(parameter, std=std, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        cos, sin = (t[: ids.shape[1]].to(x.dtype) for t in (self.cos, self.sin))
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight)
