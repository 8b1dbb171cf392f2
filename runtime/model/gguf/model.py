"""Presents a GGUF file as if it were a model directory: makes config.json and the tokenizer's files from the file's
metadata, and gives the tensors the names that they have in a safetensors checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.gguf import tokenizer
from banyan.runtime.model.gguf.container import GgufHeader, read_floats, read_header, shards
from banyan.runtime.model.stored import Stored

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from banyan.kernels.linear.grouped import Grouped

_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""general.architecture -> transformers' model_type. llama.cpp calls Mistral a llama too."""

_FIELDS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
}
_ROPE = {"rope.scaling.type": "rope_type", "rope.scaling.factor": "factor", "rope.scale_linear": "factor",
         "rope.scaling.original_context_length": "original_max_position_embeddings"}  # fmt: skip
_ELSEWHERE = {"vocab_size", "rope.dimension_count", "attention.value_length", "rope.scaling.finetuned"}

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufModel(NamedTuple):
    """A model in a GGUF file. metadata: that of the file's header. config: what a config.json for the model would
    contain. tensors: where each tensor is stored, by its name in a safetensors checkpoint."""

    metadata: dict[str, Any]
    config: dict[str, Any]
    tensors: dict[str, Stored]

    def take(self, name: str, dtype: torch.dtype) -> Tensor:
        """Read the tensor `name` into CPU memory, dequantised to `dtype`. Its rows have the order of the original
        checkpoint, from which the GGUF file was made."""
        from banyan.runtime.model.gguf.dequantise import read_tensor

        return self._rows(name, read_tensor(self.tensors[name], dtype))

    def take_grouped(self, name: str) -> Grouped | None:
        """Read the matrix `name` into CPU memory without dequantising it; None: it is stored in floats. Its rows have
        the order of the original checkpoint, from which the GGUF file was made."""
        from banyan.runtime.model.gguf.dequantise import read_grouped

        weight = read_grouped(self.tensors[name])
        if weight is None:
            return None
        minimum = None if weight.minimum is None else self._rows(name, weight.minimum)
        numbers, scale = self._rows(name, weight.numbers), self._rows(name, weight.scale)
        return weight._replace(numbers=numbers, scale=scale, minimum=minimum)

    def _rows(self, name: str, tensor: Tensor) -> Tensor:
        """Put the rows of a tensor back into the order of the original checkpoint. GGUF files of the llama architecture
        have the rows of the q and k projections in another order."""
        if self.config["model_type"] not in ("llama", "mistral") or not re.search(r"\.[qk]_proj\.", name):
            return tensor
        # llama.cpp rotates neighbouring dimensions, so GGUF has row j of a head's first half beside row j of its second
        # half.
        heads = self.config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def read(file: Path) -> GgufModel:
    """Read the metadata and tensor list of a model. file: its first or only GGUF file. BadModel: the file is broken.
    Unsupported: the model cannot be run."""
    headers = [read_header(part) for part in shards(file)]
    with _named(file):
        return _translate(headers)


def is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf" and path.is_file()


def read_bytes(file: Path) -> bytes:
    """Read a file such as config.json. Its directory may also be a GGUF file: the content is then made from the
    metadata. FileNotFoundError: there is no such file."""
    if not is_gguf(file.parent):
        return file.read_bytes()
    if file.name not in _VIRTUAL:
        raise FileNotFoundError(file)
    model = read(file.parent)
    with _named(file.parent):
        return msgspec.json.encode(_VIRTUAL[file.name](model))


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """A context manager that puts the name of `file` in front of the message of a BadModel or Unsupported error."""
    try:
        yield
    except (BadModel, Unsupported) as e:
        raise type(e)(f"{file}: {e.message}") from e


_VIRTUAL: dict[str, Callable[[GgufModel], dict[str, Any]]] = {
    "config.json": lambda model: model.config,
    "generation_config.json": lambda model: {"eos_token_id": tokenizer.eos_ids(model.metadata)},
    "tokenizer_config.json": lambda model: tokenizer.config(model.metadata),
    "tokenizer.json": lambda model: tokenizer.description(model.metadata),
}


def _translate(headers: list[GgufHeader]) -> GgufModel:
    metadata = headers[0].metadata
    stored = {name: tensor for header in headers for name, tensor in header.tensors.items()}
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _FAMILIES:
        raise Unsupported(f"general.architecture is {architecture!r}; supported: {', '.join(_FAMILIES)}")
    tensors = {_name(name): tensor for name, tensor in stored.items() if name != "rope_freqs.weight"}
    config: dict[str, Any] = {"model_type": _FAMILIES[architecture]}
    rope: dict[str, Any] = {}
    own = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()
           if key.startswith(f"{architecture}.")}  # fmt: skip
    for key, value in own.items():
        if isinstance(value, list):
            raise Unsupported(f"{architecture}.{key} differs by layer")
        if (field := _FIELDS.get(key)) is not None:
            config[field] = value
        elif (field := _ROPE.get(key)) is not None:
            rope[field] = value
        elif key not in _ELSEWHERE and value:  # 0, false and empty values enable nothing
            raise Unsupported(f"its metadata has {architecture}.{key}, which is not known for {architecture}")
    _check(config, own, tensors)
    config["vocab_size"] = tensors["model.embed_tokens.weight"].shape[0]
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    if config["model_type"] == "llama" and config.get("sliding_window"):
        config["model_type"] = "mistral"
    # other families do not have these fields: whether they have biases is fixed
    if config["model_type"] in ("llama", "qwen3"):
        config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in tensors
        config["mlp_bias"] = "model.layers.0.mlp.up_proj.bias" in tensors
    if rope.get("factor"):  # without a type, llama.cpp scales linearly
        rope.setdefault("rope_type", "linear")
    if rope.get("rope_type", "none") != "none":
        config["rope_scaling"] = rope
    if (divisors := stored.get("rope_freqs.weight")) is not None:  # Llama 3.1's scaling, one for each frequency
        if divisors.dtype != "F32":
            raise BadModel(f"rope_freqs.weight is stored as {divisors.dtype}, but must be in F32")
        factors = read_floats(divisors)
        reach = config["max_position_embeddings"]
        config["rope_scaling"] = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors,
                                  "factor": 1.0, "original_max_position_embeddings": reach}  # fmt: skip
    formats = {tensor.dtype for tensor in tensors.values()}
    config["dtype"] = "float32" if formats == {"F32"} else "float16" if formats <= {"F32", "F16"} else "bfloat16"
    return GgufModel(metadata, config, tensors)


def _name(name: str) -> str:
    """Translate the name of a GGUF tensor to its name in a safetensors checkpoint. An unknown name is returned
    unchanged."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _NAMES:
        return name
    return f"{'' if match[1] is None else f'model.layers.{match[1]}.'}{_NAMES[match[2]]}.{match[3]}"


def _check(config: dict[str, Any], own: dict[str, Any], tensors: dict[str, Stored]) -> None:
    """Check the sizes of a model before they are used, and fill in defaults for heads. config: its config.json so far.
    own: the metadata of its architecture. BadModel: a size is missing or impossible. Unsupported: the decoder cannot
    compute it."""
    sizes = ("max_position_embeddings", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
    if missing := [field for field in sizes if not isinstance(config.get(field), int)]:
        raise BadModel(f"its metadata gives no {', '.join(missing)}")
    if not 0 < config["num_hidden_layers"] <= len(tensors):
        n_layers = config["num_hidden_layers"]
        raise BadModel(f"its metadata announces {n_layers:,} layers, but it has only {len(tensors)} tensors")
    if (embed := tensors.get("model.embed_tokens.weight")) is None or len(embed.shape) != 2:
        raise BadModel("it has no token_embd.weight")
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // max(1, config["num_attention_heads"]))
    for field in ("num_key_value_heads", "head_dim"):
        if not isinstance(config[field], int):
            raise BadModel(f"its metadata gives {config[field]!r} as {field}, which must be an integer")
    if own.get("rope.dimension_count", config["head_dim"]) != config["head_dim"]:
        n_rotated = own["rope.dimension_count"]
        raise Unsupported(f"only {n_rotated} of {config['head_dim']} dimensions are rotated, but all must be")
    if own.get("attention.value_length", config["head_dim"]) != config["head_dim"]:
        n_values = own["attention.value_length"]
        raise Unsupported(f"keys have {config['head_dim']} dimensions, but values have {n_values}; they must be equal")
