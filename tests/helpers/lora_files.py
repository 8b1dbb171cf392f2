"""Random adapters in peft's format for tiny models, and what they add to the weights of a model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

ALL = (*(f"self_attn.{part}_proj" for part in "qkvo"), *(f"mlp.{part}_proj" for part in ("gate", "up", "down")))


def shapes(model: Path) -> dict[str, tuple[int, int]]:
    """Module name -> (n_out, n_in), for each projection of the model in a directory."""
    c = json.loads((model / "config.json").read_text())
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    q, kv, hidden, mid = (
        c["num_attention_heads"] * dim,
        c["num_key_value_heads"] * dim,
        c["hidden_size"],
        c["intermediate_size"],
    )
    sizes = dict(
        zip(
            ALL,
            [(q, hidden), (kv, hidden), (kv, hidden), (hidden, q), (mid, hidden), (mid, hidden), (hidden, mid)],
            strict=True,
        )
    )
    return {f"model.layers.{i}.{name}": size for i in range(c["num_hidden_layers"]) for name, size in sizes.items()}


def write(
    path: Path, model: Path, targets: Sequence[str] = ALL, *, r: int = 3, alpha: float = 6, seed: int = 0,
    size: float = 1.0, ranks: dict[str, int] | None = None, alphas: dict[str, float] | None = None,
    rslora: bool = False, **fields: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """Write an adapter of rank r for the projections `targets`. ranks, alphas: those of single modules that differ.
    size: approximate size of the added weights, relative to the model's. Returns module -> its added weight."""
    generator = torch.Generator().manual_seed(seed)
    tensors, added = {}, {}
    for module, (n_out, n_in) in shapes(model).items():
        if not module.endswith(tuple(targets)):
            continue
        rank, own = (ranks or {}).get(module, r), (alphas or {}).get(module, alpha)
        scale = own / (math.sqrt(rank) if rslora else rank)
        down = torch.randn(rank, n_in, generator=generator) / math.sqrt(n_in)
        up = torch.randn(n_out, rank, generator=generator) * size / (scale * math.sqrt(rank))
        name = f"base_model.model.{module}"
        tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
        added[module] = scale * up @ down
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": r, "lora_alpha": alpha, "use_rslora": rslora, "bias": "none",
              "target_modules": list(targets), "rank_pattern": ranks or {}, "alpha_pattern": alphas or {}}  # fmt: skip
    (path / "adapter_config.json").write_text(json.dumps(config | fields))
    return added


def merge(model: Any, added: dict[str, Tensor]) -> Any:
    """Add an adapter's weights (see `write`) to a transformers model, in place. Returns the model."""
    with torch.no_grad():
        for module, more in added.items():
            model.get_submodule(module).weight += more
    return model
