"""The pocket model's network: a Llama decoder for training, with Hugging Face's names of parameters."""

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Shape:
    """The size of a model; the defaults are the main pocket model's."""

    vocabulary: int = 4096
    width: int = 256
    n_layers: int = 8
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 64
    feed_forward: int = 768
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


EMBED = 0.25  # scale of a new embedding, large compared with an optimiser step; the final norm compensates for it


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
        return self.o_proj(attend(q, k, v).transpose(1, 2).reshape(rows, length, -1))


class BlockAttention(torch.autograd.Function):
    """Causal attention with grouped heads, for training on a CPU. It computes 128 queries at a time, against the keys
    up to the last of them. Forward and backward take 0.15 to 0.75 of the time of torch's own, whose gradient is slow.
    """

    BLOCK = 128

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [rows, heads, length, head_dim]; k and v [rows, kv_heads, length, head_dim]; the result is like q."""
        rows, n_kv_heads, length, size = k.shape
        q = (q * size**-0.5).view(rows, n_kv_heads, -1, length, size)
        out, saved = torch.empty_like(q), []
        mask = torch.full((BlockAttention.BLOCK,) * 2, -math.inf, dtype=q.dtype).triu_(1)
        for start, end in _blocks(length):
            block = q[..., start:end, :].reshape(rows, n_kv_heads, -1, size)
            scores = block @ k[:, :, :end].mT
            n = end - start
            scores.view(rows, n_kv_heads, -1, n, end)[..., start:] += mask[:n, :n]
            shares = scores.softmax(-1)
            out[..., start:end, :] = (shares @ v[:, :, :end]).view(rows, n_kv_heads, -1, n, size)
            saved += [block, shares]
        ctx.save_for_backward(k, v, *saved)
        return out.view(rows, -1, length, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v, *saved = ctx.saved_tensors
        rows, n_kv_heads, length, size = k.shape
        gradient = gradient.reshape(rows, n_kv_heads, -1, length, size)
        dq, dk, dv = torch.empty_like(gradient), torch.zeros_like(k), torch.zeros_like(v)
        for (start, end), block, shares in zip(_blocks(length), saved[::2], saved[1::2], strict=True):
            out = gradient[..., start:end, :].reshape(block.shape)
            dv[:, :, :end] += shares.mT @ out
            scores = torch.ops.aten._softmax_backward_data(out @ v[:, :, :end].mT, shares, -1, shares.dtype)
            dq[..., start:end, :] = (scores @ k[:, :, :end]).view(rows, n_kv_heads, -1, end - start, size)
            dk[:, :, :end] += scores.mT @ block
        return dq.view(rows, -1, length, size) * size**-0.5, dk, dv


def _blocks(length: int) -> list[tuple[int, int]]:
    step = BlockAttention.BLOCK
    return [(start, min(start + step, length)) for start in range(0, length, step)]


_in_blocks = torch.compiler.disable(BlockAttention.apply)  # or it is compiled again for each number of blocks


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, see `BlockAttention.forward`."""
    if not q.is_cuda:
        return _in_blocks(q, k, v)  # type: ignore[no-any-return]
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


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
                std = EMBED if "embed" in name else 0.5 * parameter.shape[1] ** -0.5
                nn.init.normal_(parameter, std=std, generator=generator)
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    nn.init.zeros_(parameter)
        nn.init.constant_(self.model.norm.weight, 0.02 / EMBED)
        copying_circuit(self, generator)

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


@torch.no_grad()
def copying_circuit(net: Net, generator: torch.Generator) -> None:
    """Initializes the first two layers as induction heads. Small transformers spend most of their training on learning
    these.

    The heads of the first layer attend one and two positions back, by position only, and write what they see next to
    the token. The second layer attends to positions that follow the current and the previous token, and copies the
    token there. Training can change all of this. Sources: "mimetic initialization", Trockman and Kolter 2023; induction
    heads, Olsson et al. 2022.
    """
    shape, size = net.shape, net.shape.head_dim
    half, group = size // 2, shape.n_heads // shape.n_kv_heads
    net.model.embed_tokens.weight[:, 0] = 4 * EMBED  # a constant in every token, for attention by position
    theta = shape.rope_theta ** (-torch.arange(0, size, 2) / size)
    basis = torch.linalg.qr(torch.randn(shape.width, shape.width, generator=generator))[0]
    back, match = (layer.self_attn for layer in list(net.model.layers)[:2])
    n_sharp, sharpness, write = min(10, half), 1.6, 1.5 * EMBED
    for kv in range(shape.n_kv_heads):
        k = back.k_proj.weight[kv * size : (kv + 1) * size]
        k[:, 0] = 0
        k[:n_sharp, 0] = sharpness
        back.v_proj.weight[kv * size : (kv + 1) * size] = basis[kv * size : (kv + 1) * size]
    places = torch.linalg.qr(torch.randn(shape.width, shape.width, generator=generator))[0]
    for head in range(shape.n_heads):
        offset = 1 + head % group
        rows = slice(head * size, (head + 1) * size)
        q = back.q_proj.weight[rows]
        q[:, 0] = 0
        q[:n_sharp, 0] = sharpness * torch.cos(offset * theta[:n_sharp])
        q[half : half + n_sharp, 0] = -sharpness * torch.sin(offset * theta[:n_sharp])
        back.o_proj.weight[:, rows] = write * places[:, rows] if shape.width >= shape.n_heads * size else 0
    slow = [i for i in range(half) if theta[i] <= 0.02]  # pairs that RoPE hardly rotates: for content
    dims = [*slow, *(half + i for i in slow)]
    first, second = dims[0::2], dims[1::2]
    for kv in range(shape.n_kv_heads):
        content = basis[kv * size : (kv + 1) * size]
        one, two = (places[:, (kv * group + i) * size : (kv * group + i + 1) * size].T for i in range(2))
        mix = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
        a, b = mix[: len(first)], mix[len(first) : len(dims)]
        q = match.q_proj.weight[kv * group * size : (kv * group + 1) * size]
        k = match.k_proj.weight[kv * size : (kv + 1) * size]
        q.zero_()
        k.zero_()
        gain = 2.5
        q[first], k[first] = gain * a @ content, gain * a @ one
        q[second], k[second] = gain * b @ one, gain * b @ two
        match.v_proj.weight[kv * size : (kv + 1) * size] = content
        match.o_proj.weight[:, kv * group * size : (kv * group + 1) * size] = 10 * EMBED * content.T
