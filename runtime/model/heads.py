"""Draft heads: small networks that predict tokens from hidden states of the target model. Their original checkpoints
can be read. There are three kinds:

* Medusa (Cai et al., Medusa: simple LLM inference acceleration framework with multiple decoding heads, 2024). Head k
  predicts the token k + 2 positions ahead, from a hidden state.
* EAGLE (Li et al., EAGLE: speculative sampling requires rethinking feature uncertainty, 2024; EAGLE-2 uses the same
  head). It is one autoregressive layer. Its input is the embedding of a token and the feature of the token before it. A
  feature is the target model's last hidden state, after the final norm.
* EAGLE-3 (Li et al., EAGLE-3: scaling up inference acceleration of large language models via training-time test, 2025).
  A feature joins three hidden states, of an early, a middle and a late layer. The draft head has its own output layer,
  for the most frequent tokens.
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
from banyan.kernels.ops import AttentionOptions, Ragged
from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model import families
from banyan.runtime.model.decoder import Decoder, FeatureStore, Layer, Rotations
from banyan.runtime.model.families import ModelSpec
from banyan.runtime.model.linear import Linear
from banyan.runtime.model.rope import frequencies
from banyan.runtime.model.spec import read_json
from banyan.runtime.model.weights import Checkpoint

_EAGLE3_FIELDS = {"draft_vocab_size", "eagle_config", "target_hidden_size"}  # besides the fields of a Llama layer

Kind = Literal["model", "eagle", "eagle3", "medusa"]


def kind_of(path: Path) -> Kind:
    """Tell what the directory `path` contains: a model, or one of three kinds of draft heads. BadModel: the weights are
    missing or pickled. Unsupported: a tensor has an unknown dtype."""
    config = read_json(path / "config.json") or {}
    names = _checkpoint(path).tensors
    if "medusa_num_heads" in config or any(name.endswith(".linear.weight") and name[0].isdigit() for name in names):
        return "medusa"
    if "d2t" in names or any(name.endswith(".hidden_norm.weight") for name in names):
        return "eagle3"
    return "eagle" if "fc.weight" in names else "model"


def kv_elements(path: Path, kind: Kind, large: ModelSpec) -> int:
    """How many numbers a draft head needs to store for each token. large: the target model.

    A Medusa head needs the hidden state of the target model. An EAGLE head needs the target model's feature, the
    feature that the head predicts, and the head's own keys and values.
    """
    if kind == "medusa":
        return large.hidden
    c = _dense(path)
    return 2 * large.hidden + 2 * c.n_kv_heads * c.dim


def _dense(path: Path) -> families.Dense:
    """Read the dimensions of an EAGLE head from its config.json. Its one layer has the form of a Llama layer."""
    config = read_json(path / "config.json") or {}
    known = {key: value for key, value in config.items() if key not in _EAGLE3_FIELDS}
    return families.parse(known | {"model_type": "llama"})


def _checkpoint(path: Path) -> Checkpoint:
    """Open the checkpoint of a draft head. BadModel: it has only pickled weights; the message says how to convert
    them."""
    pickled = [file.name for pattern in ("*.pt", "*.bin", "*.pth") for file in sorted(path.glob(pattern))]
    if pickled and not list(path.glob("*.safetensors")):
        raise BadModel(
            f"{path} has pickled weights only ({pickled[0]}). Pickles can run any code and are never opened; convert "
            f'one that you trust: safetensors.torch.save_file(torch.load("{pickled[0]}", weights_only=True), '
            '"model.safetensors")'
        )
    return Checkpoint(path)


class Medusa:
    """The Medusa heads of a model. Each head has residual layers, then a projection to the vocabulary."""

    def __init__(self, heads: Sequence[tuple[Sequence[Linear], Linear]]) -> None:
        self.heads = heads

    @torch.inference_mode()
    def __call__(self, features: Tensor) -> Tensor:
        """Returns the logits of all heads, float32 [n_heads, n, vocab]. features: hidden states of the target model,
        [n, hidden]. Head k predicts the token k + 2 positions ahead."""
        out = []
        for hidden, last in self.heads:
            x = features
            for linear in hidden:
                x = x + F.silu(linear(x))
            out.append(last(x).float())
        return torch.stack(out)


class Eagle:
    """An EAGLE head: one layer that uses the embedding and the output head of the target model."""

    def __init__(self, large: Decoder, spec: ModelSpec, fc: Linear, layer: Layer, rope: tuple[Tensor, float],
                 eps: float) -> None:  # fmt: skip
        self.spec, self._large, self._fc, self._layer, self._eps = spec, large, fc, layer, eps
        self._rotations = Rotations(*rope)

    def store(self, slots: Tensor) -> FeatureStore:
        """Make the `FeatureStore` for the target model, so that it writes the features of tokens to `slots` [n_slots,
        hidden]."""
        return FeatureStore(slots)

    @torch.inference_mode()
    def forward(self, ids: Tensor, positions: Tensor, ragged: Ragged, kv: Sequence[tuple[Pool, Pool]], rows: Tensor,
                features: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Computes one step of the head, and writes K and V into `kv`. features: [n_rows, hidden], for each row the
        feature of the token before it. The other arguments are those of `load.Model.forward`.

        Returns, for the rows `rows`, the logits [n_out, vocab_size] and the features that the head predicts [n_out,
        hidden].
        """
        layer, s = self._layer, self.spec
        cos_sin = self._rotations(positions, ragged.kv_lens)
        h, x = self._inputs(F.embedding(ids, self._large.embed), features)
        qkv = layer.qkv(h).view(len(h), -1, s.head_dim)
        q = ops.rope_kv(qkv, None, self._eps, *cos_sin, *kv[0], ragged.slots)
        out = ops.attention(q, *kv[0], ragged, AttentionOptions(s.head_dim**-0.5))
        h, x = ops.rms_norm(layer.out(out.view(len(out), -1)), layer.mlp_norm, self._eps, residual=x)
        out = (x + layer.down(ops.silu_mul(layer.gate_up(h))))[rows]
        return self._logits(out), out

    def _inputs(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Combine the embeddings of tokens with the features of the tokens before them, both [n_rows, hidden]. Returns
        the input of attention, and the residual stream."""
        x = self._fc(torch.cat([embedded, features], -1))
        return x, x  # EAGLE has no norm before attention

    def _logits(self, features: Tensor) -> Tensor:
        return self._large.head(features).float()


class Eagle3(Eagle):
    """An EAGLE-3 head: one layer that uses the embedding of the target model, but has its own output head."""

    def __init__(self, large: Decoder, spec: ModelSpec, layer: Layer, rope: tuple[Tensor, float], fuse: Linear,
                 norms: tuple[Tensor, Tensor], head: Linear, targets: Tensor, eps: float) -> None:  # fmt: skip
        """fuse: maps three hidden states of the target model to a feature. norms: the norm of features, and the norm
        before the output head. targets: int64, for each token of the output head, its id in the target model."""
        super().__init__(large, spec, fuse, layer, rope, eps)
        self._feature_norm, self._norm = norms
        self._head, self._targets = head, targets

    def store(self, slots: Tensor) -> FeatureStore:
        """Make the `FeatureStore` for the target model, so that it writes the features of tokens to `slots` [n_slots,
        hidden]. A feature joins the hidden states after three layers, the ones that EAGLE-3 is trained on."""
        n = self._large.spec.n_layers
        return FeatureStore(slots, _layers_read(n), self._fc)

    def _inputs(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        embedded = ops.rms_norm(embedded, self._layer.attention_norm, self._eps)
        return torch.cat([embedded, ops.rms_norm(features, self._feature_norm, self._eps)], -1), features

    def _logits(self, features: Tensor) -> Tensor:
        own = self._head(ops.rms_norm(features, self._norm, self._eps)).float()
        logits = own.new_full((len(own), self._large.spec.vocab_size), -torch.inf)
        logits[:, self._targets] = own
        return logits


def read_medusa(path: Path, large: ModelSpec, device: torch.device, dtype: torch.dtype) -> Medusa:
    """Read the Medusa heads in the directory `path` to `device` in `dtype`. BadModel: their tensors are missing.
    Unsupported: they were made for a different model from `large`."""
    with _checkpoint(path) as weights:
        shapes = {name: stored.shape for name, stored in weights.tensors.items()}
        numbers = [int(first) for name in shapes if (first := name.partition(".")[0]).isdecimal()]
        n_heads = 1 + max(numbers, default=-1)
        if n_heads < 1:
            raise BadModel(f"{path} has no heads: it needs tensors named 0.0.linear.weight, 0.1.weight and so on")

        def linear(name: str, n_out: int, has_bias: bool) -> Linear:
            shape = shapes.get(f"{name}.weight", (n_out, large.hidden))
            if shape != (n_out, large.hidden):
                raise Unsupported(f"{path.name} was made for a different model from {large.name}: {name} is "
                                  f"{list(shape)}, but must be {[n_out, large.hidden]}")  # fmt: skip
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
    """Read the EAGLE or EAGLE-3 head in the directory `path`, for the target model `large`. BadModel: its tensors are
    missing or invalid. Unsupported: it was made for a different model, or its structure differs."""
    c, is_newer = _dense(path), kind_of(path) == "eagle3"
    if c.hidden_size != large.spec.hidden or c.vocab_size != large.spec.vocab_size or c.num_hidden_layers != 1:
        raise Unsupported(
            f"{path.name} was made for a different model from {large.spec.name}: hidden size, vocabulary and layers "
            f"are {c.hidden_size}, {c.vocab_size} and {c.num_hidden_layers}, but must be {large.spec.hidden}, "
            f"{large.spec.vocab_size} and 1"
        )
    inv_freq, scale = frequencies(c.rope, c.dim, max_context)
    rope = inv_freq.to(device), scale
    eagle: Eagle
    with _checkpoint(path) as weights:
        base = "midlayer" if "midlayer.self_attn.q_proj.weight" in weights else "layers.0"

        def take(name: str, *shape: int) -> Tensor:
            return weights.take(name, *shape).to(device, dtype)

        def linear(n_in: int, *parts: tuple[str, int]) -> Linear:
            return Linear(torch.cat([take(f"{base}.{name}.weight", n, n_in) for name, n in parts]))

        def norm(name: str) -> Tensor:
            return take(f"{name}.weight", c.hidden_size)

        at, n_q, n_kv = "self_attn", c.num_attention_heads * c.dim, c.n_kv_heads * c.dim
        n_in = c.hidden_size * (1 + is_newer)
        layer = Layer(
            attention_norm=norm(f"{base}.input_layernorm") if is_newer else torch.empty(0),
            qkv=linear(n_in, (f"{at}.q_proj", n_q), (f"{at}.k_proj", n_kv), (f"{at}.v_proj", n_kv)),
            qk_norm=None,
            out=linear(n_q, (f"{at}.o_proj", c.hidden_size)),
            mlp_norm=norm(f"{base}.post_attention_layernorm"),
            gate_up=linear(c.hidden_size, ("mlp.gate_proj", c.intermediate_size), ("mlp.up_proj", c.intermediate_size)),
            down=linear(c.intermediate_size, ("mlp.down_proj", c.hidden_size)),
            window=0,
        )
        bias = take("fc.bias", c.hidden_size) if "fc.bias" in weights else None
        fc = Linear(take("fc.weight", c.hidden_size, (2 + is_newer) * c.hidden_size), bias)
        spec = msgspec.structs.replace(
            large.spec, name=path.name, n_layers=1, n_heads=c.num_attention_heads, n_kv_heads=c.n_kv_heads,
            head_dim=c.dim, n_parameters=weights.n_parameters, dense=c,
        )  # fmt: skip
        if is_newer:
            _check_layers(path, large.spec.n_layers)
            head, targets = _own_head(weights, large.spec, device, dtype)
            own_norms = norm(f"{base}.hidden_norm"), norm("norm")
            eagle = Eagle3(large, spec, layer, rope, fc, own_norms, head, targets, c.rms_norm_eps)
        else:
            eagle = Eagle(large, spec, fc, layer, rope, large.eps)
        weights.finish(
            ignore=lambda name: name.endswith("rotary_emb.inv_freq") or name in ("embed_tokens.weight", "t2d")
        )
    return eagle


def _own_head(weights: Checkpoint, large: ModelSpec, device: torch.device, dtype: torch.dtype) -> tuple[Linear, Tensor]:
    """Read the output layer of an EAGLE-3 head. Returns the layer, and the token ids in the target model of its
    outputs, int64 [n_outputs]. BadModel: an id is not in the target model's vocabulary."""
    weight = weights.take("lm_head.weight").to(device, dtype)
    own = torch.arange(len(weight))
    targets = own + weights.take("d2t", len(weight), dtype="I64") if "d2t" in weights else own
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < large.vocab_size:
        raise BadModel(f"{weights.path}: d2t names tokens that {large.name} does not have")
    return Linear(weight), targets.to(device)


def _layers_read(n_layers: int) -> tuple[int, ...]:
    """The three points at which EAGLE-3 reads hidden states of a target model with `n_layers` layers: after how many
    layers."""
    return 2, n_layers // 2, n_layers - 3


def _check_layers(path: Path, n_layers: int) -> None:
    """Check that an EAGLE-3 head in `path` fits a target model with `n_layers` layers. Unsupported: the head reads
    hidden states after layers other than those of `_layers_read`, or the model has fewer than 7 layers."""
    config = read_json(path / "config.json") or {}
    named = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    early, middle, late = _layers_read(n_layers)
    if not early < middle < late:
        raise Unsupported(f"{path.name} reads three layers of its model, so it needs a model of at least 7 layers")
    if named is not None and named != [early - 1, middle - 1, late - 1]:
        raise Unsupported(
            f"{path.name} reads the outputs of layers {named}; supported: those of EAGLE-3's own code, here "
            f"{[early - 1, middle - 1, late - 1]}"
        )
