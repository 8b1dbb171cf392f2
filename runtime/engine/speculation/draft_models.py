"""What drafts beside a large model, a smaller one or a head: what has to fit, and how it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from banyan.runtime.config import Config, Resolved
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.engine.speculation.draft import Drafter
from banyan.runtime.engine.speculation.heads import EagleDrafter, MedusaDrafter
from banyan.runtime.engine.speculation.model import ModelDrafter
from banyan.runtime.errors import ConfigError, Unsupported
from banyan.runtime.model import heads, load, spec, weights
from banyan.runtime.model.decoder import Decoder


class Found(NamedTuple):
    """What `Config.draft_model` names. kv_elements: numbers that it stores per token."""

    path: Path
    kind: heads.Kind
    n_parameters: int
    kv_elements: int


def find(config: Config, large: Path) -> Found | None:
    """None where none is named. Raises ConfigError where its tokenizer is not the large model's, or what `spec.resolve`
    and `heads.kind_of` raise."""
    if not config.draft_model:
        return None
    path = spec.resolve(config.draft_model)
    kind = heads.kind_of(path)
    if kind != "model":
        n_parameters = weights.Checkpoint(path).n_parameters
        return Found(path, kind, n_parameters, heads.kv_elements(path, kind, spec.read_spec(large)))
    theirs, ours = _tokens(path), _tokens(large)
    for i in sorted(theirs.keys() & ours.keys()):
        if theirs[i] != ours[i]:
            raise ConfigError(
                f"draft_model {config.draft_model} has another tokenizer than {config.model}: token {i} is "
                f"{theirs[i]!r} to the one and {ours[i]!r} to the other; name a model of the same family"
            )
    known = spec.read_spec(path)
    return Found(path, kind, known.n_parameters, known.kv_elements)


Draft = load.Model | heads.Eagle | heads.Medusa


def read(found: Found, resolved: Resolved, large: load.Model) -> Draft:
    """The model or head, where and as the large one computes."""
    device, dtype, path = torch.device(resolved.device), getattr(torch, resolved.dtype), found.path
    if found.kind != "model" and not isinstance(large, Decoder):
        raise Unsupported(
            f"draft_model {path.name} is a head, which reads hidden states; {large.spec.family} runs in transformers' "
            "own code, which does not show them; name a smaller model"
        )
    if found.kind == "medusa":
        return heads.read_medusa(path, large.spec, device, dtype)
    if found.kind == "eagle":
        assert isinstance(large, Decoder)
        return heads.read_eagle(path, large, device, dtype, resolved.context)
    context = min(resolved.context, spec.read_spec(path).max_context)
    with weights.bar(f"loading {path.name}") as progress:
        return load.load(path, device=resolved.device, dtype=resolved.dtype, max_context=context, progress=progress)


def drafter(draft: Draft, large: ModelRunner, page: int, stopwatch: Callable[[], float]) -> Drafter:
    """Who drafts with it, for a large model that keeps for it what it reads."""
    store, known = large.store, large.model.spec
    device = store.device.type
    if isinstance(draft, heads.Eagle | heads.Medusa):
        assert isinstance(large.model, Decoder)
        features = large.model.features = store.keep_features(known.hidden)
        if isinstance(draft, heads.Medusa):
            return MedusaDrafter(draft, features, page, stopwatch)
        return EagleDrafter(draft, features, store.n_pages, page, known.vocab_size, device, stopwatch)
    return ModelDrafter(draft, store.n_pages, page, known.vocab_size, device, stopwatch)


def _tokens(directory: Path) -> dict[int, str]:
    """By id, of tokenizer.json; {} where there is none, or one of a form that this does not know."""
    try:
        file = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    vocab = file.get("model", {}).get("vocab", {})
    tokens = {i: token for token, i in vocab.items()} if isinstance(vocab, dict) else {}
    return tokens | {added["id"]: added["content"] for added in file.get("added_tokens") or ()}
