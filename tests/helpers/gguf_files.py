"""Writes tiny models as GGUF files with the `gguf` package, the oracle for the format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

CONFIG = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "sliding_window": "attention.sliding_window",
    "rope_theta": "rope.freq_base",
}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def write_gguf(
    directory: Path, file: Path, architecture: str, quantization: str = "F32", *, shards: int = 1, **metadata: Any
) -> dict[str, torch.Tensor]:
    """Write the model in `directory` as `file`, its matrices in the format `quantization`. shards: number of files that
    the tensors are split into. Return name in `directory` -> weight as stored, dequantised by the gguf package."""
    config = json.loads((directory / "config.json").read_text())
    rope = config.get("rope_parameters") or {}
    arch = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    written: dict[str, torch.Tensor] = {}
    tensors = []
    for name, tensor in load_file(directory / "model.safetensors").items():
        stem, suffix = name.rsplit(".", 1)
        kind = gguf.GGMLQuantizationType[quantization if tensor.ndim == 2 else "F32"]
        order = np.arange(len(tensor))
        if architecture == "llama" and stem.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads" if stem.endswith("q_proj") else "num_key_value_heads"]
            order = order.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)  # as llama.cpp's converter
        data = _quantize(tensor.numpy()[order], kind)
        values = np.empty(tensor.shape, np.float32)
        values[order] = gguf.dequantize(data, kind)
        written[name] = torch.from_numpy(values)
        tensors.append((f"{names.get_name(stem)}.{suffix}", data, kind))
    values_of = {name: value for name, value in (config | rope).items() if name in CONFIG and value is not None}
    facts = {f"{architecture}.{CONFIG[name]}": value for name, value in values_of.items()}
    tokenizer = read_tokenizer(directory) if (directory / "tokenizer.json").exists() else {}
    size = -(-len(tensors) // shards)
    for i in range(shards):
        place = file if shards == 1 else file.with_name(f"{file.stem}-{i + 1:05}-of-{shards:05}.gguf")
        write(
            place,
            {**facts, **tokenizer, **metadata} if i == 0 else {},
            tensors[i * size : (i + 1) * size],
            architecture,
        )
    return written


def write(file: Path, metadata: dict[str, Any], tensors: Any = (), architecture: str = "llama") -> Path:
    """Write a GGUF file. metadata: int as uint32, and None leaves a key out. tensors: (name, data, format)."""
    writer = gguf.GGUFWriter(file, architecture)
    for key, value in metadata.items():
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for name, data, kind in tensors:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def read_tokenizer(directory: Path) -> dict[str, Any]:
    """The GGUF metadata of the byte-level tokenizer.json in a directory."""
    file = json.loads((directory / "tokenizer.json").read_text())
    config = json.loads((directory / "tokenizer_config.json").read_text())
    ids = dict(file["model"]["vocab"])
    types = dict.fromkeys(ids.values(), NORMAL)
    for added in file["added_tokens"]:
        ids[added["content"]] = added["id"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in file["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": sorted(ids, key=ids.__getitem__),
        "tokenizer.ggml.token_type": [types[i] for i in sorted(types)],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": ids[config["eos_token"]],
        "tokenizer.chat_template": config["chat_template"],
    }


def _quantize(weights: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    try:
        return gguf.quantize(weights, kind)
    except NotImplementedError:  # the package cannot write K-quants, so make random ones
        block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        random = np.random.default_rng(0)
        data = random.integers(0, 256, (len(weights), weights.shape[1] // block, n_bytes), dtype=np.uint8)
        scales = [208] if kind.name == "Q6_K" else [0, 2]
        for at in scales:
            d = random.uniform(1e-5, 1e-4, data.shape[:2]).astype(np.float16)
            data[..., at : at + 2] = d[..., None].view(np.uint8)
        return data.reshape(len(weights), -1)
