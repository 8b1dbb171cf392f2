"""Makes the drafters that a configuration names, and reads the draft model or head that one of them may need."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from banyan.runtime.config import EARLY_EXIT, Config, Resolved
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.engine.scheduling.request import MAX_TREE
from banyan.runtime.engine.speculation.depth_control import DepthController
from banyan.runtime.engine.speculation.draft import Drafter
from banyan.runtime.engine.speculation.heads import EagleDrafter, MedusaDrafter
from banyan.runtime.engine.speculation.model import EarlyExitDrafter, ModelDrafter
from banyan.runtime.engine.speculation.ngram import NgramDrafter
from banyan.runtime.engine.speculation.tree import TreeDrafter
from banyan.runtime.errors import ConfigError, Unsupported
from banyan.runtime.model import heads, load, spec, weights
from banyan.runtime.model.decoder import Decoder, EarlyExit, FeatureStore
from banyan.runtime.model.gguf.model import read_bytes

DraftModel = load.Model | heads.Eagle | heads.Medusa


class DraftSource(NamedTuple):
    """What `Config.draft_model` names, before its weights are read. kv_elements: elements of K and V per token.
    n_layers: how many layers of the large model an early exit runs."""

    path: Path
    kind: heads.Kind | Literal["early exit"]
    n_parameters: int
    kv_elements: int
    n_layers: int = 0


def find(config: Config, large: Path) -> DraftSource | None:
    """Find the draft model or head that `Config.draft_model` names. Returns None if the option is empty. Raises
    ConfigError if the model cannot draft for the large one, for example because its tokenizer differs. Raises the
    errors of `spec.resolve` and `heads.kind_of` if it cannot be found or read. large: directory of the large model."""
    if not config.draft_model:
        return None
    if config.draft_model.startswith(EARLY_EXIT):
        n, known = config.draft_model.removeprefix(EARLY_EXIT), spec.read_spec(large)
        if not (n.isascii() and n.isdigit() and 0 < int(n) < known.n_layers):
            raise ConfigError(
                f"draft_model {config.draft_model} must be {EARLY_EXIT}N, to run the first N layers of {config.model}; "
                f"N is from 1 to {known.n_layers - 1}"
            )
        return DraftSource(large, "early exit", 0, 0, int(n))
    path = spec.resolve(config.draft_model)
    kind = heads.kind_of(path)
    if kind != "model":
        n_parameters = weights.Checkpoint(path).n_parameters
        return DraftSource(path, kind, n_parameters, heads.kv_elements(path, kind, spec.read_spec(large)))
    theirs, ours = _vocabulary(path), _vocabulary(large)
    for i in sorted(theirs.keys() & ours.keys()):
        if theirs[i] != ours[i]:
            raise ConfigError(
                f"draft_model {config.draft_model} uses a different tokenizer from {config.model}: token {i} is "
                f"{theirs[i]!r} in the one and {ours[i]!r} in the other; name a model of the same family"
            )
    small = spec.read_spec(path)
    if small.kv_layers is not None:
        raise ConfigError(f"draft_model {config.draft_model} has a recurrent state; name a model with attention alone")
    return DraftSource(path, kind, small.n_parameters, small.kv_elements)


def read(source: DraftSource, resolved: Resolved, large: load.Model) -> DraftModel:
    """Load the draft model or head onto the large model's device, in its dtype. Raises Unsupported if the large model
    cannot be combined with it."""
    device, dtype, path = torch.device(resolved.device), getattr(torch, resolved.dtype), source.path
    if source.kind == "model":
        context = min(resolved.context, spec.read_spec(path).max_context)
        with weights.bar(f"loading {path.name}") as progress:
            return load.load(path, device=resolved.device, dtype=resolved.dtype, max_context=context, progress=progress)
    if not isinstance(large, Decoder):
        name = f"{EARLY_EXIT}{source.n_layers}" if source.kind == "early exit" else path.name
        needs = "runs single layers" if source.kind == "early exit" else "is a head, which reads hidden states"
        raise Unsupported(
            f"draft_model {name} {needs}; {large.spec.family} runs in transformers' own code, which does "
            "not show them; name a smaller model"
        )
    if source.kind == "early exit":
        return large.first_layers(source.n_layers)
    if source.kind == "medusa":
        return heads.read_medusa(path, large.spec, device, dtype)
    return heads.read_eagle(path, large, device, dtype, resolved.context)


def make_controller(
    names: Sequence[str],
    model_drafter: Drafter | None = None,
    max_tree: int = MAX_TREE,
    check_device: Callable[[], object] = lambda: None,
) -> DepthController:
    """Make the controller. names: the drafters to use, from config.DRAFTERS; the drafter that runs a model, if any, is
    added. check_device: see DepthController."""
    drafters: list[Drafter] = [kind() for kind in (TreeDrafter, NgramDrafter) if kind.name in names]
    if model_drafter is not None:
        drafters.append(model_drafter)
    return DepthController(drafters, jumps="grammar" in names, max_tree=max_tree, check_device=check_device)


def make_model_drafter(
    draft: DraftModel, large: ModelRunner, stopwatch: Callable[[], float], move_pages: Callable[[], object]
) -> Drafter:
    """Make the drafter that runs `draft`. If `draft` is an EAGLE or Medusa head, the large model stores its hidden
    states from now on. stopwatch: returns the time in seconds. move_pages: function that executes the page moves
    between device and host memory that the cache has ordered."""
    store, large_spec = large.store, large.model.spec
    shared = store, large_spec.vocab_size, stopwatch
    if isinstance(draft, EarlyExit):
        return EarlyExitDrafter(move_pages, draft, store.kv[: draft.spec.n_layers], *shared)
    if isinstance(draft, heads.Eagle | heads.Medusa):
        assert isinstance(large.model, Decoder)
        features = store.keep_features(large_spec.hidden)
        large.model.features = FeatureStore(features) if isinstance(draft, heads.Medusa) else draft.store(features)
        if isinstance(draft, heads.Medusa):
            return MedusaDrafter(draft, features, stopwatch)
    kv = KVPool(draft.spec, store.n_pages, store.page, store.device.type).kv
    if isinstance(draft, heads.Eagle):
        return EagleDrafter(features, draft, kv, *shared)
    return ModelDrafter(draft, kv, *shared)


def _vocabulary(directory: Path) -> dict[int, str]:
    """The tokens of tokenizer.json by id; {} if there is no such file, or its format is unknown."""
    try:
        file = json.loads(read_bytes(directory / "tokenizer.json"))
    except (OSError, ValueError):
        return {}
    vocab = file.get("model", {}).get("vocab", {})
    tokens = {i: token for token, i in vocab.items()} if isinstance(vocab, dict) else {}
    return tokens | {added["id"]: added["content"] for added in file.get("added_tokens") or ()}
