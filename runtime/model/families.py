"""Describes a model before it is loaded: defines `ModelSpec`, and parses the config.json of the families that the
native decoder computes (Llama, Mistral, Qwen2, Qwen3). Imports no torch.

Each family has a struct with the fields of its config.json, whose defaults are those of transformers. A field of
config.json that is not in the struct may mean that the model needs something the decoder does not compute. So it raises
an error that names the field, except for fields that are known to be irrelevant for inference.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import msgspec

from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.images import ImageSpec
from banyan.runtime.model.quantised.config import Quantisation
from banyan.runtime.model.rope import NoScaling, Rope, parse_rope

DTYPES = ("float32", "bfloat16", "float16")
MAX_LAYERS = 10_000


class Dense(msgspec.Struct, frozen=True, kw_only=True):
    """The config.json fields that all native families have. Every family has RMSNorm before attention and MLP, rotary
    positions and SwiGLU."""

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
        """The size of one head."""
        return self.hidden_size // self.num_attention_heads if self.head_dim is None else self.head_dim

    @property
    def max_context(self) -> int:
        return max(self.max_position_embeddings, self.rope.reach(self.max_position_embeddings))

    has_qk_norm: ClassVar[bool] = False

    # The properties in which families differ; the decoder never asks for a family's name.
    @property
    def windows(self) -> tuple[int, ...]:
        """The sliding window of each layer: the number of tokens that a token attends to, itself included; 0: all."""
        return (0,) * self.num_hidden_layers

    # Only some families have these fields; in the config.json of the others they would be an error.
    @property
    def has_qkv_bias(self) -> bool:
        return getattr(self, "attention_bias", False)

    @property
    def has_out_bias(self) -> bool:
        return getattr(self, "attention_bias", False)

    @property
    def has_mlp_bias(self) -> bool:
        return getattr(self, "mlp_bias", False)


class Llama(Dense, frozen=True, kw_only=True):
    attention_bias: bool = False
    mlp_bias: bool = False


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
    has_qk_norm: ClassVar[bool] = True
    head_dim: int | None = 128
    attention_bias: bool = False
    has_qkv_bias = Dense.has_qkv_bias


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The dimensions of a model, read from its config.json and the headers of its checkpoint. With several ranks, there
    is a spec for the whole model and one for a rank's part; see `parallel.sharded`."""

    name: str  # the directory's name or the hub id, for messages
    family: str  # transformers' model_type
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden: int
    vocab_size: int  # rows of the embedding; the tokenizer may know fewer
    max_context: int
    eos_ids: tuple[int, ...]
    dtype: str  # one of DTYPES: the checkpoint's; for a loaded model, the one that it computes in
    n_parameters: int  # stored weights: neither a tied head nor scales are counted
    dense: Dense | None = None  # None: transformers' code computes it
    n_experts: int = 0  # experts of a mixture-of-experts layer
    # layers with attention, if others have a recurrent state; None: all layers
    kv_layers: tuple[int, ...] | None = None
    quantisation: Quantisation | None = None  # how a safetensors checkpoint stores quantised linear layers
    n_ranks: int = 1  # processes that compute the model together
    chunk: int = 0  # tokens of a chunk, if layers attend only inside chunks of the text; 0: no layer does
    windows: tuple[int, ...] = ()  # the sliding window of each layer in tokens, 0: none; (): no layer has one
    n_first: int = 0  # attention sinks: first tokens of a text, which its tokens attend to besides the window
    images: ImageSpec | None = None  # how the model takes images; None: it takes none
    latent_dim: int = 0  # latent attention: a value is the first latent_dim numbers of its key; 0: values are stored

    def native(self, option: str, why: str) -> Dense:
        """Returns `dense`. Unsupported: transformers' code computes the model, so it cannot have `option`. why: a
        relative clause about that code."""
        if self.dense is None:
            raise Unsupported(
                f"{option} with {self.name}: {self.family} runs in transformers' own code, {why}; leave {option} out, "
                "or load a model of a native family: llama, mistral, qwen2 or qwen3"
            )
        return self.dense

    @property
    def kind(self) -> str:
        """A text for users that says how the model is stored and run, such as its quantisation. "": it is of a native
        family and stored in floats."""
        experts = f"a mixture of {self.n_experts} experts" if self.n_experts else ""
        state = "" if self.kv_layers is None else "a recurrent state"
        backend = "" if self.dense is not None else "in transformers' code"
        return ", ".join(filter(None, (str(self.quantisation or ""), experts, state, backend)))

    @property
    def n_kv_layers(self) -> int:
        """The number of layers with keys and values. At least 1, even if no layer has any: each token must take some
        memory, so that pages have a size."""
        return self.n_layers if self.kv_layers is None else max(1, len(self.kv_layers))

    @property
    def window(self) -> int:
        """The largest sliding window of a layer; 0: no layer has one."""
        return max(self.windows, default=0)

    @property
    def n_windowed(self) -> int:
        """The number of layers with a sliding window."""
        return sum(map(bool, self.windows))

    @property
    def n_whole_rows(self) -> int:
        """The number of rows of an image, if they attend to each other in both directions, so that a step that computes
        one of them computes all that are left; else 0."""
        return self.images.per_tile if self.images is not None and self.images.is_bidirectional else 0

    @property
    def kv_elements(self) -> int:
        """How many numbers K and V have for one token, over all layers."""
        return (1 if self.latent_dim else 2) * self.n_kv_layers * self.n_kv_heads * self.head_dim


FAMILIES: dict[str, type[Dense]] = {"llama": Llama, "mistral": Mistral, "qwen2": Qwen2, "qwen3": Qwen3}

# Fields that other code reads (rope, dtype, eos, quantisation), and fields that are irrelevant for inference.
_ELSEWHERE = {"model_type", "architectures", "dtype", "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id",
              "rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings",
              "quantization_config", "compression_config"}  # fmt: skip
_IRRELEVANT = {
    "attention_dropout", "auto_map", "do_sample", "early_stopping", "embd_pdrop", "hidden_dropout", "id2label",
    "initializer_range", "is_causal", "is_llama_config", "keys_to_ignore_at_inference", "label2id", "length_penalty",
    "max_length", "max_sequence_length", "model_max_length", "name_or_path", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_router_logits", "pretraining_tp", "problem_type", "repetition_penalty",
    "resid_pdrop", "residual_dropout", "return_dict", "rope_interleaved", "sep_token_id", "task_specific_params",
    "temperature", "top_k", "top_p", "transformers.js_config", "transformers_version", "typical_p", "use_cache",
    "vocab_file",
}  # fmt: skip
_IRRELEVANT_PREFIXES = ("_", "unsloth_", "tokenizer_")


def parse(config: dict[str, Any]) -> Dense:
    """Parse the config.json of a native family.

    Raises Unsupported, which names the field, for a setting that the decoder does not compute, and BadModel for invalid
    values.
    """
    family = FAMILIES[config["model_type"]]
    if config.get("is_causal") is False:
        raise Unsupported("config.json has is_causal false: its tokens also attend to later ones; use a causal model")
    fields = {field.name for field in msgspec.structs.fields(family)} - {"rope"}
    unknown = [
        key
        for key, value in config.items()
        if value  # None, false, 0 and empty values enable nothing
        and key not in fields | _ELSEWHERE | _IRRELEVANT
        and not key.startswith(_IRRELEVANT_PREFIXES)
    ]
    if unknown:
        names = ", ".join(map(repr, sorted(unknown)))
        raise Unsupported(
            f"config.json has {names}, which the {config['model_type']} decoder does not know; "
            "if it has no effect on the result, remove it from config.json"
        )
    known = {key: value for key, value in config.items() if key in fields}
    try:
        dense = msgspec.convert(known, family)
    except (msgspec.ValidationError, UnicodeEncodeError) as e:  # the latter: half of a surrogate pair
        raise BadModel(f"config.json: {e}") from e
    dense = msgspec.structs.replace(dense, rope=parse_rope(config))
    _check(dense)
    return dense


def _check(c: Dense) -> None:
    if c.hidden_act not in ("silu", "swish"):  # both names mean the same function
        raise Unsupported(f"hidden_act is {c.hidden_act!r}; the native decoder computes 'silu' only")
    counts = (c.vocab_size, c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.num_attention_heads,
              c.n_kv_heads, c.max_position_embeddings)  # fmt: skip
    if min(counts) < 1 or c.dim < 1:  # c.dim is a quotient of counts
        raise BadModel("config.json: a size or count is not positive")
    if c.num_hidden_layers > MAX_LAYERS:  # before `windows` makes a tuple of as many
        raise BadModel(f"config.json: num_hidden_layers is {c.num_hidden_layers}; at most {MAX_LAYERS} are possible")
    if c.num_attention_heads % c.n_kv_heads:
        raise BadModel(f"config.json: {c.num_attention_heads} heads cannot share {c.n_kv_heads} key-value heads evenly")
    if c.dim % 2:
        raise BadModel(f"config.json: rotary positions need an even head_dim, not {c.dim}")
    if not 0 <= c.rms_norm_eps < math.inf:
        raise BadModel(f"config.json: rms_norm_eps is {c.rms_norm_eps}")
    if len(c.windows) != c.num_hidden_layers:
        raise BadModel(f"config.json: {len(c.windows)} layer_types for {c.num_hidden_layers} layers")
    if min(c.windows) < 0:
        raise BadModel(f"config.json: sliding_window is {min(c.windows)}")


def dtype_name(dtype: Any) -> str:
    """The name of a checkpoint's dtype, such as bfloat16. dtype: a torch dtype or a name; None means float32.
    Unsupported: it is not one of DTYPES."""
    name = str(dtype or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise Unsupported(f"the checkpoint's dtype is {name!r}; supported: {', '.join(DTYPES)}")
    return name
