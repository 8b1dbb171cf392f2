"""The dense family in config.json's own words: Llama, Mistral, Qwen2, Qwen3. No torch.

Each struct below is a family's config.json: names as there, defaults as transformers has them. A field that is in no
struct and not known to be without meaning for inference is an error that names it: a checkpoint says with such a
field that it computes something else than this decoder does.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.rope import NoScaling, Rope, parse_rope


class Dense(msgspec.Struct, frozen=True, kw_only=True):
    """What all dense decoders share: RMSNorm before attention and feed-forward, rotary positions, SwiGLU."""

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    rope: Rope = NoScaling()

    @property
    def n_kv_heads(self) -> int:
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def dim(self) -> int:
        """Of one head."""
        return self.hidden_size // self.num_attention_heads if self.head_dim is None else self.head_dim

    @property
    def max_context(self) -> int:
        return max(self.max_position_embeddings, self.rope.reach(self.max_position_embeddings))

    # Where the families differ; the decoder asks these and never a family's name.
    @property
    def windows(self) -> tuple[int, ...]:
        """Per layer: how many tokens a token sees, itself included; 0 is all of them."""
        return (0,) * self.num_hidden_layers

    @property
    def has_qkv_bias(self) -> bool:
        return False

    @property
    def has_out_bias(self) -> bool:
        return False

    @property
    def has_mlp_bias(self) -> bool:
        return False

    @property
    def has_qk_norm(self) -> bool:
        return False


class Llama(Dense, frozen=True, kw_only=True):
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def has_qkv_bias(self) -> bool:
        return self.attention_bias

    @property
    def has_out_bias(self) -> bool:
        return self.attention_bias

    @property
    def has_mlp_bias(self) -> bool:
        return self.mlp_bias


class Mistral(Dense, frozen=True, kw_only=True):
    intermediate_size: int = 14336
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    sliding_window: int | None = 4096

    @property
    def windows(self) -> tuple[int, ...]:
        return (self.sliding_window or 0,) * self.num_hidden_layers


class Qwen2(Dense, frozen=True, kw_only=True):
    vocab_size: int = 151936
    intermediate_size: int = 22016
    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None

    @property
    def windows(self) -> tuple[int, ...]:
        window = (self.sliding_window or 0) if self.use_sliding_window else 0
        if self.layer_types is None:
            return tuple(window if i >= self.max_window_layers else 0 for i in range(self.num_hidden_layers))
        return tuple(window if kind == "sliding_attention" else 0 for kind in self.layer_types)

    @property
    def has_qkv_bias(self) -> bool:
        return True


class Qwen3(Qwen2, frozen=True, kw_only=True):
    head_dim: int | None = 128
    attention_bias: bool = False

    @property
    def has_qkv_bias(self) -> bool:
        return self.attention_bias

    @property
    def has_out_bias(self) -> bool:
        return self.attention_bias

    @property
    def has_qk_norm(self) -> bool:
        return True


FAMILIES: dict[str, type[Dense]] = {"llama": Llama, "mistral": Mistral, "qwen2": Qwen2, "qwen3": Qwen3}

# Read elsewhere (rope, dtype, eos), or without meaning for inference: training, bookkeeping, defaults of other tools.
_ELSEWHERE = {"model_type", "architectures", "dtype", "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id",
              "rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings"}  # fmt: skip
_WITHOUT_MEANING = {
    "attention_dropout", "auto_map", "do_sample", "early_stopping", "embd_pdrop", "hidden_dropout", "id2label",
    "initializer_range", "is_llama_config", "keys_to_ignore_at_inference", "label2id", "length_penalty", "max_length",
    "max_sequence_length", "model_max_length", "name_or_path", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_router_logits", "pretraining_tp", "problem_type", "repetition_penalty", "resid_pdrop", "residual_dropout",
    "return_dict", "rope_interleaved", "sep_token_id", "task_specific_params", "temperature", "top_k", "top_p",
    "transformers.js_config", "transformers_version", "typical_p", "use_cache", "vocab_file",
}  # fmt: skip
_PREFIXES_WITHOUT_MEANING = ("_", "unsloth_", "tokenizer_")


def parse(config: dict[str, Any]) -> Dense:
    """config.json of a native family as its struct.

    Raises Unsupported, with the field's name, for what this decoder does not compute, and BadModel for values that
    cannot be.
    """
    family = FAMILIES[config["model_type"]]
    fields = {field.name for field in msgspec.structs.fields(family)} - {"rope"}
    unknown = [
        key
        for key, value in config.items()
        if value  # None, false, 0 and empty switch nothing on
        and key not in fields | _ELSEWHERE | _WITHOUT_MEANING
        and not key.startswith(_PREFIXES_WITHOUT_MEANING)
    ]
    if unknown:
        raise Unsupported(
            f"config.json has {_listed(unknown)}, which the {config['model_type']} decoder does not know; "
            "if it has no effect on the result, remove it from config.json"
        )
    known = {key: value for key, value in config.items() if key in fields}
    try:
        dense = msgspec.convert(known | {"rope": parse_rope(config)}, family)
    except msgspec.ValidationError as e:
        raise BadModel(f"config.json: {e}") from e
    _check(dense)
    return dense


def _check(c: Dense) -> None:
    if c.hidden_act not in ("silu", "swish"):  # two names of one function
        raise Unsupported(f"hidden_act is {c.hidden_act!r}; the native decoder computes 'silu' only")
    counts = (c.vocab_size, c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.num_attention_heads,
              c.n_kv_heads, c.dim, c.max_position_embeddings)  # fmt: skip
    if min(counts) < 1:
        raise BadModel("config.json: a size or count is not positive")
    if c.num_attention_heads % c.n_kv_heads:
        raise BadModel(f"config.json: {c.num_attention_heads} heads cannot share {c.n_kv_heads} key-value heads evenly")
    if c.dim % 2:
        raise BadModel(f"config.json: rotary positions need an even head_dim, not {c.dim}")
    if len(c.windows) != c.num_hidden_layers:
        raise BadModel(f"config.json: {len(c.windows)} layer_types for {c.num_hidden_layers} layers")


def _listed(names: list[str]) -> str:
    quoted = [repr(name) for name in sorted(names)]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + f" and {quoted[-1]}"
