"""Draft heads: small networks that predict tokens from the last hidden states of the target model.

Two kinds are read from their original checkpoints. Medusa (Cai et al., Medusa: simple LLM inference acceleration
framework with multiple decoding heads, 2024): head k predicts the token k + 2 positions ahead. EAGLE (Li et al., EAGLE:
speculative sampling requires rethinking feature uncertainty, 2024; the head of EAGLE-2 is the same): one autoregressive
layer over the embedding of a token and the feature of the token before it. A feature is the target model's last hidden
state, after the final norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import torch
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels import ops
from banyan.kernels.kv_layout import Pool
from banyan.kernels.ops import Ragged
from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model import families
from banyan.runtime.model.decoder import Decoder, Layer
from banyan.runtime.model.families import ModelSpec
from banyan.runtime.model.linear import Linear
from banyan.runtime.model.rope import frequencies
from banyan.runtime.model.spec import read_json
from banyan.runtime.model.weights import Checkpoint

Kind = Literal["model", "eagle", "medusa"]


def kind_of(path: Path) -> Kind:
    """Whether a directory contains a model or a head. Raises BadModel if the weights are missing or pickled, and
    Unsupported for other kinds of heads."""
    config = read_json(path / "config.json") or {}
    names = _checkpoint(path).tensors
    if "medusa_num_heads" in config or any(name.endswith(".linear.weight") and name[0].isdigit() for name in names):
        return "medusa"
    if "midlayer.self_attn.q_proj.weight" in names or "d2t" in names:
        raise Unsupported(f"{path.name} is an EAGLE-3 head, which reads middle layers; EAGLE and EAGLE-2 are supported")
    return "eagle" if "fc.weight" in names else "model"


def kv_elements(path: Path, kind: Kind, large: ModelSpec) -> int:
    """Elements that a head stores per token: features, computed and predicted, and its own keys and values."""
    if kind == "medusa":
        return large.hidden
    c = _dense(path)
    return 2 * large.hidden + 2 * c.n_kv_heads * c.dim


def _dense(path: Path) -> families.Dense:
    """The dimensions of an EAGLE head, whose layer is a Llama layer."""
    return families.parse((read_json(path / "config.json") or {}) | {"model_type": "llama"})


def _checkpoint(path: Path) -> Checkpoint:
    """The weights of a head. The error for pickled weights says how to convert them: transformers cannot."""
    pickled = [file.name for pattern in ("*.pt", "*.bin", "*.pth") for file in sorted(path.glob(pattern))]
    if pickled and not list(path.glob("*.safetensors")):
        raise BadModel(
            f"{path} has pickled weights only ({pickled[0]}). Pickles can run any code and are never opened; convert "
            f'one that you trust: safetensors.torch.save_file(torch.load("{pickled[0]}", weights_only=True), '
            '"model.safetensors")'
        )
    return Checkpoint(path)


class Medusa:
    """Medusa heads: residual layers, then a projection to the vocabulary."""

    def __init__(self, heads: Sequence[tuple[Sequence[Linear], Linear]]) -> None:
        self.heads = heads

    @torch.inference_mode()
    def __call__(self, features: Tensor) -> Tensor:
        """features [n, hidden] -> logits, float32 [n_heads, n, vocab]; head k is for the token k + 2 positions
        ahead."""
        out = []
        for hidden, last in self.heads:
            x = features
            for linear in hidden:
                x = x + F.silu(linear(x))
            out.append(last(x).float())
        return torch.stack(out)


class Eagle:
    """An EAGLE layer with the target model's embedding and output head."""

    def __init__(self, large: Decoder, spec: ModelSpec, fc: Linear, layer: Layer, rope: tuple[Tensor, float]) -> None:
        self.spec, self._large, self._fc, self._layer = spec, large, fc, layer
        self._frequencies, self._rope_scale = rope

    @torch.inference_mode()
    def forward(self, ids: Tensor, positions: Tensor, ragged: Ragged, kv: Sequence[tuple[Pool, Pool]], rows: Tensor,
                features: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Like `load.Model.forward`. features: those of the token before each row, [n_rows, hidden]. Also returns the
        features that the head predicts for `rows`, [n_out, hidden]."""
        layer, s = self._layer, self.spec
        angles = positions[:, None].float() * self._frequencies
        cos_sin = angles.cos() * self._rope_scale, angles.sin() * self._rope_scale
        x = self._fc(torch.cat([F.embedding(ids, self._large.embed), features], -1))
        qkv = layer.qkv(x).view(len(x), -1, s.head_dim)  # EAGLE has no norm before attention
        q = ops.rope_kv(qkv, None, self._large.eps, *cos_sin, *kv[0], ragged.slots)
        out = ops.attention(q, *kv[0], ragged, scale=s.head_dim**-0.5)
        h, x = ops.rms_norm(layer.out(out.view(len(x), -1)), layer.mlp_norm, self._large.eps, residual=x)
        out = (x + layer.down(ops.silu_mul(layer.gate_up(h))))[rows]
        return self._large.head(out).float(), out


def read_medusa(path: Path, large: ModelSpec, device: torch.device, dtype: torch.dtype) -> Medusa:
    """Raises BadModel, or Unsupported if the head was made for another model."""
    with _checkpoint(path) as weights:
        shapes = {name: stored.shape for name, stored in weights.tensors.items()}
        n_heads = 1 + max((int(name.split(".")[0]) for name in shapes if name[0].isdigit()), default=-1)
        if n_heads < 1:
            raise BadModel(f"{path} has no heads: it needs tensors named 0.0.linear.weight, 0.1.weight and so on")

        def linear(name: str, n_out: int, has_bias: bool) -> Linear:
            shape = shapes.get(f"{name}.weight", (n_out, large.hidden))
            if shape != (n_out, large.hidden):
                raise Unsupported(f"{path.name} was made for another model than {large.name}: {name} is {list(shape)}, "
                                  f"but must be {[n_out, large.hidden]}")  # fmt: skip
            weight = weights.take(f"{name}.weight").to(device, dtype)
            return Linear(weight, weights.take(f"{name}.bias").to(device, dtype) if has_bias else None)

        heads = []
        for i in range(n_heads):
            n_hidden = sum(name.startswith(f"{i}.") and name.endswith(".linear.weight") for name in shapes)
            hidden = [
                linear(f"{i}.{j}.linear", large.hidden, f"{i}.{j}.linear.bias" in shapes) for j in range(n_hidden)
            ]
            last = f"{i}.{n_hidden}"
            heads.append((hidden, linear(last, large.vocab_size, f"{last}.bias" in shapes)))
        weights.finish(ignore=lambda name: False)
    return Medusa(heads)


def read_eagle(path: Path, large: Decoder, device: torch.device, dtype: torch.dtype, max_context: int) -> Eagle:
    """Raises BadModel, or Unsupported if the head was made for another model or has another structure."""
    c = _dense(path)
    if c.hidden_size != large.spec.hidden or c.vocab_size != large.spec.vocab_size or c.num_hidden_layers != 1:
        raise Unsupported(
            f"{path.name} was made for another model than {large.spec.name}: hidden size, vocabulary and layers are "
            f"{c.hidden_size}, {c.vocab_size} and {c.num_hidden_layers}, but must be {large.spec.hidden}, "
            f"{large.spec.vocab_size} and 1"
        )
    with _checkpoint(path) as weights:

        def linear(n_in: int, *parts: tuple[str, int]) -> Linear:
            tensors = [weights.take(f"layers.0.{name}.weight", n, n_in) for name, n in parts]
            return Linear(torch.cat(tensors).to(device, dtype))

        at, n_q, n_kv = "self_attn", c.num_attention_heads * c.dim, c.n_kv_heads * c.dim
        layer = Layer(
            attention_norm=torch.empty(0),
            qkv=linear(c.hidden_size, (f"{at}.q_proj", n_q), (f"{at}.k_proj", n_kv), (f"{at}.v_proj", n_kv)),
            qk_norm=None,
            out=linear(n_q, (f"{at}.o_proj", c.hidden_size)),
            mlp_norm=weights.take("layers.0.post_attention_layernorm.weight", c.hidden_size).to(device, dtype),
            gate_up=linear(c.hidden_size, ("mlp.gate_proj", c.intermediate_size), ("mlp.up_proj", c.intermediate_size)),
            down=linear(c.intermediate_size, ("mlp.down_proj", c.hidden_size)),
            window=0,
        )
        bias = weights.take("fc.bias", c.hidden_size).to(device, dtype) if "fc.bias" in weights else None
        fc = Linear(weights.take("fc.weight", c.hidden_size, 2 * c.hidden_size).to(device, dtype), bias)
        weights.finish(ignore=lambda name: name.endswith("rotary_emb.inv_freq") or name == "embed_tokens.weight")
    inv_freq, scale = frequencies(c.rope, c.dim, max_context)
    spec = msgspec.structs.replace(
        large.spec, name=path.name, n_layers=1, n_heads=c.num_attention_heads, n_kv_heads=c.n_kv_heads, head_dim=c.dim,
        n_parameters=weights.n_parameters, dense=c,
    )  # fmt: skip
    return Eagle(large, spec, fc, layer, (inv_freq.to(device), scale))
