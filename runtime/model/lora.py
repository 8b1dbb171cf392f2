"""Reads adapters (LoRA) in peft's format: adapter_config.json and adapter_model.safetensors.

The files may come from anybody. Before tensors are read, names and shapes are checked: they must fit the model's
projections, with a rank of at most MAX_RANK. In peft, the keys of rank_pattern and alpha_pattern are regular
expressions; Banyan takes them as names of modules, because an expression may take forever to match.
"""

from __future__ import annotations

import math
import re
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import torch
from torch.nn import functional as F

from banyan.kernels.lora.adapted import LINEARS, MAX_RANK, RANK_STEP, AdapterWeights, LowRank
from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.families import Dense
from banyan.runtime.model.spec import ModelSpec
from banyan.runtime.model.weights import Checkpoint

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MAX_CONFIG, _MAX_HEADER = 1 << 20, 16 << 20  # bytes
_TENSOR = re.compile(
    r"(?:base_model\.model\.)?(model\.layers\.(\d{1,4})\.(\w+\.\w+))\.lora_([AB])(?:\.default)?\.weight"
)
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # values of init_lora_weights
_REFUSED = {
    "use_dora": "DoRA",
    "modules_to_save": "whole modules beside the adapter",
    "lora_bias": "a bias",
    "layer_replication": "repeated layers",
    "trainable_token_indices": "new embeddings of tokens",
    "target_parameters": "parameters that are not of a linear layer",
    "alora_invocation_tokens": "an adapter that begins in the middle of a text (aLoRA)",
    **dict.fromkeys(("use_qalora", "use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config"),
                    "a variant of LoRA"),
}  # fmt: skip
"""Field of adapter_config.json -> what a set field means. An adapter with such a field is refused."""


_Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]  # exact as a float


class AdapterConfig(msgspec.Struct, frozen=True):
    """The fields of adapter_config.json that decide what an adapter computes."""

    r: _Rank = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, _Rank] | None = None
    alpha_pattern: dict[str, float] | None = None

    def rank(self, module: str) -> int:
        return int(_of_pattern(self.rank_pattern, module, self.r))

    def scale(self, module: str) -> float:
        rank = self.rank(module)
        return _of_pattern(self.alpha_pattern, module, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)


class Adapter(NamedTuple):
    """An adapter that was read. digest: 16 bytes that identify its weights, and the settings that change its
    outputs."""

    digest: bytes
    weights: AdapterWeights


class _Place(NamedTuple):
    """Where a projection lies in the model's fused linear layers."""

    linear: int  # index into LINEARS
    column: int
    n_in: int
    n_out: int


def read(path: Path, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> Adapter:
    """Read the adapter in the directory `path` for a model of a native family.

    Raises BadModel if a file is missing, broken or for another model, and Unsupported for other kinds of adapters.
    """
    if spec.dense is None:
        raise Unsupported(
            f"adapters with {spec.name}: {spec.family} runs in transformers' own code; merge the adapter into the model"
        )
    if spec.n_ranks > 1:
        raise Unsupported(
            f"adapters with tp={spec.n_ranks} are not supported; leave tp out, or merge the adapter into the model"
        )
    raw = _bounded(path / CONFIG, _MAX_CONFIG).read_bytes()
    config = _parse(path / CONFIG, raw)
    file = path / WEIGHTS
    if not file.exists() and (path / "adapter_model.bin").exists():
        raise BadModel(
            f"{path} has pickled weights only. Pickles can run any code and are never opened; save the adapter with "
            "peft's save_pretrained, which writes safetensors"
        )
    with _bounded(file).open("rb") as f:
        if int.from_bytes(f.read(8), "little") > _MAX_HEADER:
            raise BadModel(f"{file} has a header of more than {_MAX_HEADER >> 20} MiB")
    state = blake2b(msgspec.json.encode(config), digest_size=16, person=b"banyan adapter")
    with Checkpoint(path, files=[file]) as tensors:
        layers = _layers(tensors, config, spec.dense, device, dtype)
        tensors.finish(ignore=lambda name: False)
    with file.open("rb") as f:
        while part := f.read(1 << 20):
            state.update(part)
    return Adapter(state.digest(), AdapterWeights(layers))


def _layers(
    tensors: Checkpoint, config: AdapterConfig, c: Dense, device: torch.device, dtype: torch.dtype
) -> list[list[list[LowRank]]]:
    matches = {name: _TENSOR.fullmatch(name) for name in tensors.tensors}
    found = {match[1]: match for match in matches.values() if match}
    names = {(match[1], match[4]): name for name, match in matches.items() if match}
    unknown = sorted(name for name, match in matches.items() if not match)
    places = _places(c)
    unknown += [module for module, m in found.items() if m[3] not in places or int(m[2]) >= c.num_hidden_layers]
    if unknown or not found:
        shown = ", ".join(unknown[:4]) or "no tensors"
        raise Unsupported(
            f"{tensors.path / WEIGHTS} has {shown}; supported: lora_A and lora_B of {', '.join(places)} in the "
            f"{c.num_hidden_layers} layers of the model"
        )
    layers: list[list[list[LowRank]]] = [[[] for _ in LINEARS] for _ in range(c.num_hidden_layers)]
    for module, match in sorted(found.items()):
        rank, place = config.rank(module), places[match[3]]
        if not 1 <= rank <= MAX_RANK:
            raise Unsupported(f"{module} has rank {rank} in {CONFIG}; adapters have a rank of 1 to {MAX_RANK}")
        if not math.isfinite(scale := config.scale(module)):
            raise BadModel(f"{module} has a scale that is not finite")
        for part in "AB":
            if (module, part) not in names:
                raise BadModel(f"{tensors.path / WEIGHTS} has no lora_{part} of {module}")
        down = tensors.take(names[module, "A"], rank, place.n_in).float()
        up = tensors.take(names[module, "B"], place.n_out, rank).float().T * scale
        pad = (0, 0, 0, -rank % RANK_STEP)
        down, up = (F.pad(x, pad).to(device, dtype).contiguous() for x in (down, up))
        if not (down.isfinite().all() and up.isfinite().all()):
            raise BadModel(f"{tensors.path / WEIGHTS} has numbers in {module} that are not finite in {dtype}")
        layers[int(match[2])][place.linear].append(LowRank(down, up, place.column))
    return layers


def _places(c: Dense) -> dict[str, _Place]:
    """The name of each projection of a layer, such as "self_attn.q_proj" -> its place in the fused linear layers."""
    n_q, n_kv, hidden, mid = c.num_attention_heads * c.dim, c.n_kv_heads * c.dim, c.hidden_size, c.intermediate_size
    return {
        "self_attn.q_proj": _Place(0, 0, hidden, n_q),
        "self_attn.k_proj": _Place(0, n_q, hidden, n_kv),
        "self_attn.v_proj": _Place(0, n_q + n_kv, hidden, n_kv),
        "self_attn.o_proj": _Place(1, 0, n_q, hidden),
        "mlp.gate_proj": _Place(2, 0, hidden, mid),
        "mlp.up_proj": _Place(2, mid, hidden, mid),
        "mlp.down_proj": _Place(3, 0, mid, hidden),
    }


def _bounded(file: Path, size: int | None = None) -> Path:
    """Checks and returns `file`. BadModel: it does not exist, is not a regular file, or has more than `size` bytes."""
    if not file.is_file():
        raise BadModel(f"{file.parent} has no {file.name}; an adapter is a directory that peft's save_pretrained wrote")
    if size is not None and file.stat().st_size > size:
        raise BadModel(f"{file} has more than {size} bytes")
    return file


def _parse(file: Path, raw: bytes) -> AdapterConfig:
    """Parse the config. BadModel: the file is broken. Unsupported: it describes an adapter that is not plain LoRA of
    linear layers."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
        config = msgspec.convert({k: v for k, v in fields.items() if v is not None}, AdapterConfig)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise BadModel(f"{file}: {e}") from e
    wrong = [f"peft_type {kind}" for kind in [fields.get("peft_type")] if kind != "LORA"]
    wrong += [f"bias {bias!r}" for bias in [fields.get("bias")] if bias not in (None, "none")]
    wrong += [f"{name} ({what})" for name, what in _REFUSED.items() if fields.get(name)]
    if str(init := fields.get("init_lora_weights")).startswith(_CHANGES_BASE):
        wrong.append(f"init_lora_weights {init!r}, which changes the weights of the model too")
    for name in ("rank_pattern", "alpha_pattern"):
        wrong += [f"{key!r} in {name}" for key in getattr(config, name) or () if not re.fullmatch(r"\^?[\w.]+\$?", key)]
    if wrong:
        raise Unsupported(f"{file} has {', '.join(wrong)}; only LoRA adapters of linear layers are supported")
    return config


def _of_pattern(pattern: dict[str, Any] | None, module: str, default: float) -> float:
    """Returns a module's value in `pattern`, which is rank_pattern or alpha_pattern: that of the first key which equals
    the module's full name, or its last parts; a key that begins with ^ must equal the full name. `default` if no key
    fits."""
    for key, value in (pattern or {}).items():
        name = key.lstrip("^").rstrip("$")
        if module == name or (module.endswith(f".{name}") and not key.startswith("^")):
            return float(value)
    return default
