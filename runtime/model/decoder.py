"""The native dense decoder for Llama, Mistral, Qwen2 and Qwen3.

All tokens of a step, from prefill chunks and decodes, are the rows of one flat batch. Every op computes each row alone,
except attention, which combines the rows of the same request; `Ragged` tells which rows these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from banyan.kernels import ops
from banyan.kernels.linear.grouped import Grouped, concatenate, quantise
from banyan.kernels.lora.adapted import LINEARS, AdaptedRows
from banyan.kernels.native import build as native
from banyan.kernels.native.layers import NONE_KEPT, Head, Layers, Turn, Weights, fused
from banyan.kernels.ops import AttentionOptions, Pool, Ragged
from banyan.kernels.rope_kv.reference import rotate
from banyan.runtime.model.linear import Linear, tiled
from banyan.runtime.model.parallel import JoinedLinear, Shard, SummedLinear, cut, sharded
from banyan.runtime.model.quantised.layer import ACTIVATIONS
from banyan.runtime.model.quantised.readers import floats, read_linear
from banyan.runtime.model.rope import frequencies
from banyan.runtime.model.spec import ModelSpec
from banyan.runtime.model.weights import Checkpoint, Headers


class Layer(NamedTuple):
    """The weights of one layer. q, k and v are one matrix; gate and up are one matrix."""

    attention_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (n_heads + 2 n_kv_heads) head_dim
    qk_norm: tuple[Tensor, Tensor] | None  # [head_dim] each
    out: Linear  # n_heads head_dim -> hidden
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 intermediate
    down: Linear  # intermediate -> hidden
    window: int  # tokens that a token attends to, itself included; 0: all
    first: int = 0  # attention sinks: first tokens of its text, which a token attends to besides the window


class FeatureStore(NamedTuple):
    """Where `Decoder.forward` writes the hidden states that a draft head reads: for the token in each KV slot, one
    vector.

    slots   [n_slots, hidden]
    layers  numbers of layers, ascending. The residual streams after so many layers are concatenated, and `fuse` maps
            these len(layers) * hidden numbers to hidden ones. (): the output of the final norm is written instead
    """

    slots: Tensor
    layers: tuple[int, ...] = ()
    fuse: Linear | None = None


MAX_KEPT = 1 << 15
"""Maximum number of positions whose cos and sin are kept. With heads of 128, these take 16 MB."""


class Rotations:
    """Computes the cos and sin of RoPE, multiplied by a scale, for given positions. On a CPU, the results for each
    position are kept: to look them up takes two calls into torch, to compute them eight (12 % of a decode step's
    Python)."""

    def __init__(self, frequencies: Tensor, scale: float) -> None:
        """frequencies: [head_dim / 2], one for each pair of dimensions that is rotated. scale: a factor on cos and
        sin."""
        self._frequencies, self._scale = frequencies, scale
        self._kept = torch.empty(0, len(frequencies)), torch.empty(0, len(frequencies))

    def __call__(self, positions: Tensor, kv_lens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns cos and sin of the rows' positions, float32 [n_rows, head_dim / 2] each.

        kv_lens: the KV lengths of the requests, as in `Ragged`; each position is below the largest of them. (): the
        lengths are on the device only, as in a step of a CUDA graph.
        """
        end = max(kv_lens, default=0)
        if not positions.is_cpu or not 0 < end <= MAX_KEPT:
            return self._at(positions)
        if end > len(self._kept[0]):
            self._kept = self._at(torch.arange(1 << (end - 1).bit_length()))
        cos, sin = self._kept
        return cos.index_select(0, positions), sin.index_select(0, positions)

    def _at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None].to(self._frequencies.dtype) * self._frequencies
        return angles.cos().float() * self._scale, angles.sin().float() * self._scale


class Decoder:
    """A loaded dense model of a native family; implements `load.Model`."""

    def __init__(self, spec: ModelSpec, embed: Tensor, layers: Sequence[Layer], norm: Tensor, head: Linear,
                 rope: tuple[Tensor, float], shard: Shard | None = None) -> None:  # fmt: skip
        """rope: the RoPE frequencies [head_dim / 2], and a factor on cos and sin. shard: the part of the model that
        this rank has; None: the weights are the whole model."""
        assert spec.dense is not None
        self.spec = spec
        self.embed, self.layers, self.norm, self.head = embed, layers, norm, head
        self.eps = spec.dense.rms_norm_eps
        self.frequencies, self.rope_scale = rope  # [head_dim / 2]; factor on cos and sin
        self._rotations = Rotations(*rope)
        # the position to which `_turn` moves queries that are farther from the first tokens
        self.farthest = layers[0].window + layers[0].first - 1 if layers[0].first else 0
        self.shard = shard
        self.features: FeatureStore | None = None  # set where a draft head needs them

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(layer.window for layer in self.layers)

    @property
    def is_packed(self) -> bool:
        """Whether the native CPU library computes the matrix products, so that torch runs no large op."""
        return isinstance(self.head.weight, ops.Packed)

    def forward(self, ids: Tensor, positions: Tensor, ragged: Ragged, kv: Sequence[tuple[Pool, Pool]],
                rows: Tensor, adapted: AdaptedRows | None = None) -> Tensor:  # fmt: skip
        cos_sin = self._rotations(positions, ragged.kv_lens)
        x = (
            self.embed.index_select(0, ids)
            if self.shard is None
            else self.shard.embed(ids, self.embed, self.spec.vocab_size)
        )  # [n_rows, hidden]
        features = self.features
        last = rows if ragged.tail is not None and features is None else None
        kept = {n: torch.empty_like(x) for n in features.layers} if features is not None else NONE_KEPT
        turn = self._turn(positions) if self.farthest else None
        if self.fused is not None and self.fused.bind(kv) and not (kept and adapted is not None):
            if features is None:
                return self.fused.logits(x, cos_sin, ragged, rows, last, adapted, turn)
            h, x = self.fused(x, cos_sin, ragged, last, adapted, kept, turn)
        else:
            h, x = self.layer_by_layer(x, cos_sin, ragged, kv, last, adapted, kept, turn)
        if features is None:
            h, _ = ops.rms_norm(h, self.norm, self.eps, residual=x, rows=rows if last is None else None)
            return self.head(h).float()
        h, _ = ops.rms_norm(h, self.norm, self.eps, residual=x)
        features.slots[ragged.slots] = h if features.fuse is None else features.fuse(torch.cat([*kept.values()], -1))
        return self.head(h[rows]).float()

    def _turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the rotation that moves queries nearer to the attention sinks, the first tokens of a text. Returns
        its cos and sin, float32 [n_rows, head_dim / 2] each.

        In StreamingLLM (Xiao et al., 2023), the sinks and the window count as neighbours: the tokens that a row attends
        to have positions without a gap. Here the queries are rotated instead of the keys, so that requests can share
        the keys.
        """
        back = positions.clamp(max=self.farthest) - positions
        angles = back[:, None].double() * self.frequencies.double()
        return angles.cos().float(), angles.sin().float()

    def layer_by_layer(self, x: Tensor, cos_sin: tuple[Tensor, Tensor], ragged: Ragged,
                       kv: Sequence[tuple[Pool, Pool]], last: Tensor | None,
                       adapted: AdaptedRows | None,
                       kept: Mapping[int, Tensor] = NONE_KEPT, turn: Turn = None) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Runs the layers op by op. Returns the output of the last MLP, and the residual stream to which the caller
        must add it, both [n, hidden].

        last: the rows whose results are needed, those of `ragged.tail`. The last layer writes K and V of all rows, but
        computes attention and MLP of these n rows only. None: it computes all rows.
        kept: number of layers -> [n_rows, hidden], which gets the residual stream after so many layers.
        turn: cos and sin from `_turn`; None: the model has no attention sinks.
        """
        product = tiled if self.head.is_tiled else ops.linear
        scale = self.spec.head_dim**-0.5

        def run(i: int, which: str, x: Tensor) -> Tensor:
            """Returns the output of one linear layer of layer `i`, including what adapters add. which: a field of
            `Layer`, such as "qkv"."""
            linear: Linear = getattr(self.layers[i], which)
            y = linear(x)
            if adapted is not None:
                ops.add_lora(y, x, adapted, i, LINEARS.index(which), product)
            return y

        h = torch.zeros_like(x)
        for i, (layer, pools) in enumerate(zip(self.layers, kv, strict=True)):
            batch = ragged.seen_in(layer.window)
            h, x = ops.rms_norm(h, layer.attention_norm, self.eps, residual=x)
            if i in kept:
                kept[i].copy_(x)
            qkv = run(i, "qkv", h).view(len(h), -1, self.spec.head_dim)  # [n_rows, n_heads + 2 n_kv_heads, head_dim]
            q = ops.rope_kv(qkv, layer.qk_norm, self.eps, *cos_sin, *pools, batch.slots)  # [n_rows, n_heads, head_dim]
            first_q = None if turn is None else rotate(q, *turn)
            if last is not None and layer is self.layers[-1]:
                assert batch.tail is not None
                q, x, batch = q[last], x[last], batch.tail
                first_q = None if first_q is None else first_q[last]
                adapted = adapted and adapted.last
                if not len(q):
                    return x, x
            options = AttentionOptions(scale, window=layer.window, first=layer.first, first_q=first_q)
            out = ops.attention(q, *pools, batch, options)
            h = run(i, "out", out.view(len(out), -1))
            h, x = ops.rms_norm(h, layer.mlp_norm, self.eps, residual=x)
            h = run(i, "down", ops.silu_mul(run(i, "gate_up", h)))
        return h, x

    def first_layers(self, n: int) -> EarlyExit:
        """Returns a draft model for speculation: the first n layers of this model, and its norm and head. It uses the
        same weights in memory."""
        spec = msgspec.structs.replace(self.spec, n_layers=n)
        return EarlyExit(
            spec, self.embed, self.layers[:n], self.norm, self.head, (self.frequencies, self.rope_scale), self.shard
        )

    @cached_property
    def fused(self) -> Layers | None:
        """The object that runs all layers in one call of the native CPU library. None: this is not possible, for
        instance because several ranks must add up their results between layers.

        It is made at the first step, because it stores the addresses of the weights, which must not move afterwards.
        """
        if not self.is_packed or self.shard is not None:
            return None
        weights = [
            Weights(
                (w.attention_norm, w.mlp_norm, *(w.qk_norm or (None, None))),
                tuple((linear.weight, linear.bias) for linear in (w.qkv, w.out, w.gate_up, w.down)),
                w.window,
                w.first,
            )
            for w in self.layers
        ]
        head = Head(self.norm, self.head.weight, self.head.bias)
        sizes = self.spec.n_heads, self.spec.n_kv_heads, self.spec.head_dim
        return fused(native.library(), weights, head, sizes, self.eps)


class EarlyExit(Decoder):
    """A draft model made by `Decoder.first_layers`: the first layers of a model, and its norm and head."""


def build(spec: ModelSpec, weights: Checkpoint, device: torch.device, dtype: torch.dtype, max_context: int,
          deterministic: bool = False, weight_dtype: str = "auto", shard: Shard | None = None) -> Decoder:  # fmt: skip
    """Build a dense model from its checkpoint. At no time is more than one layer (or the embedding) in memory twice.

    weight_dtype: how the weights of linear layers and of the head are stored; see `load`. Embeddings are in `dtype`.
    shard: the part of the model to build, for one rank; None: the whole model.
    """
    c = spec.dense
    assert c is not None
    windows = [window if window < max_context else 0 for window in spec.windows or [0] * c.num_hidden_layers]

    def take(name: str, *shape: int) -> Tensor:
        """Reads a tensor. The result is a copy, not a view of the file."""
        return weights.take(name, *shape).to(device, dtype, copy=True)

    # a weight that is stored in at most this many bits is kept as it is
    n_bits = {"auto": 8, "int8": 8, "int4": 4, "dtype": 0}[weight_dtype]

    def matrix(name: str, n_out: int, n_in: int, known: Tensor | None = None) -> Tensor | Grouped:
        """The weight of a linear layer [n_out, n_in], in the form that `weight_dtype` asks for: quantised or in
        `dtype`. known: the weight in `dtype`, if it is in memory already."""
        stored: Tensor | Grouped | None = None
        if spec.quantisation is not None and known is None:
            stored = read_linear(weights, spec.quantisation, name, n_out, n_in)
        elif n_bits:
            stored = weights.take_grouped(f"{name}.weight", n_out, n_in)
        if isinstance(stored, Grouped) and stored.n_bits <= n_bits and ops.keeps_quantised(stored, device):
            return stored.to(device)
        if known is None:
            known = take(f"{name}.weight", n_out, n_in) if stored is None else floats(stored, dtype).to(device)
        return known if weight_dtype in ("auto", "dtype") else quantise(known, n_bits)

    def by_outputs(has_bias: bool, *parts: tuple[str, int, int]) -> Linear:
        """Joins several projections of hidden states into one linear layer. parts: for each projection (name, n,
        width); its outputs are n heads (or features) of `width` numbers. With a shard, each rank gets some of the
        heads."""
        found = [matrix(name, n * width, c.hidden_size) for name, n, width in parts]
        biases = [take(f"{name}.bias", n * width) for name, n, width in parts] if has_bias else []
        if shard is not None:
            found, biases = (
                [cut(each, shard.of(n, width), name) for each, (name, n, width) in zip(whole, parts, strict=False)]
                for whole in (found, biases)
            )
        return Linear(concatenate(found, dtype), torch.cat(biases) if biases else None, deterministic, dtype)

    def by_inputs(has_bias: bool, name: str, n: int, width: int) -> Linear:
        """Returns a linear layer whose inputs are n heads (or features) of `width` numbers, and whose outputs are
        hidden states. With a shard, each rank gets the weights of some heads, and the ranks add up their results."""
        weight = matrix(name, c.hidden_size, n * width)
        bias = take(f"{name}.bias", c.hidden_size) if has_bias else None
        if shard is None:
            return Linear(weight, bias, deterministic, dtype)
        weight = cut(weight, shard.of(n, width), name, by_inputs=True)
        return SummedLinear(shard, weight, None if shard.rank else bias, deterministic, dtype)

    def layer(i: int) -> Layer:
        base = f"model.layers.{i}"
        at, mlp = f"{base}.self_attn", f"{base}.mlp"
        heads = c.num_attention_heads, c.dim
        keys, values = ((f"{at}.{which}_proj", c.n_kv_heads, c.dim) for which in "kv")
        gate, up = ((f"{mlp}.{which}_proj", c.intermediate_size, 1) for which in ("gate", "up"))
        return Layer(
            attention_norm=take(f"{base}.input_layernorm.weight", c.hidden_size),
            qkv=by_outputs(c.has_qkv_bias, (f"{at}.q_proj", *heads), keys, values),
            qk_norm=(take(f"{at}.q_norm.weight", c.dim), take(f"{at}.k_norm.weight", c.dim)) if c.has_qk_norm else None,
            out=by_inputs(c.has_out_bias, f"{at}.o_proj", *heads),
            mlp_norm=take(f"{base}.post_attention_layernorm.weight", c.hidden_size),
            gate_up=by_outputs(c.has_mlp_bias, gate, up),
            down=by_inputs(c.has_mlp_bias, f"{mlp}.down_proj", c.intermediate_size, 1),
            window=windows[i],  # 0 if the window hides nothing: then attention needs no mask
            first=spec.n_first if windows[i] else 0,
        )

    embed = take("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
    name, known = ("model.embed_tokens", embed) if c.tie_word_embeddings else ("lm_head", None)
    if c.tie_word_embeddings and "lm_head.weight" in weights:
        # Older checkpoints have a copy of the embedding there. If it differs from the embedding, transformers does not
        # tie the head either.
        separate = take("lm_head.weight", c.vocab_size, c.hidden_size)
        if isinstance(weights, Headers) or not torch.equal(separate, embed):
            name, known = "lm_head", separate
        del separate
    weight = matrix(name, c.vocab_size, c.hidden_size, known)
    if shard is None:
        head = Linear(weight, None, deterministic, dtype)
    else:
        spec, own = sharded(spec, shard.n_ranks), shard.of_vocabulary(c.vocab_size)
        weight, is_embed = cut(weight, own, name), weight is embed
        embed = weight if is_embed else cut(embed, own, name)
        head = JoinedLinear(shard, c.vocab_size, weight, None, deterministic, dtype)
    del weight, known
    layers = [layer(i) for i in range(c.num_hidden_layers)]
    norm = take("model.norm.weight", c.hidden_size)

    def has_no_effect(name: str) -> bool:
        """Whether a tensor of the checkpoint that the decoder did not read can be ignored: a rope table (in older
        checkpoints), a scale of activations, or a bias of zeros (in GPTQ checkpoints)."""
        if name.endswith(("rotary_emb.inv_freq", *ACTIVATIONS)):
            return True
        return spec.quantisation is not None and name.endswith(".bias") and not weights.take(name).any()

    weights.finish(ignore=has_no_effect)
    inv_freq, scale = frequencies(c.rope, c.dim, min(max_context, spec.max_context))
    if max_context > spec.max_context:  # float32 is not exact enough for the angles of such large positions
        inv_freq = inv_freq.double()
    name = str(dtype).removeprefix("torch.")
    rope = inv_freq.to(device), scale
    return Decoder(msgspec.structs.replace(spec, dtype=name), embed, layers, norm, head, rope, shard)
