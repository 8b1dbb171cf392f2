"""A smaller model beside the large one: what has to be equal, and how it is read."""

from __future__ import annotations

import json
from pathlib import Path

from banyan.runtime.config import Config, Resolved
from banyan.runtime.errors import ConfigError
from banyan.runtime.model import load, spec, weights


def find(config: Config, large: Path) -> Path | None:
    """The directory of `Config.draft_model`, None where none is named. Raises ConfigError where its tokenizer is not
    the large model's, or what `spec.resolve` raises."""
    if not config.draft_model:
        return None
    path = spec.resolve(config.draft_model)
    theirs, ours = _tokens(path), _tokens(large)
    for i in sorted(theirs.keys() & ours.keys()):
        if theirs[i] != ours[i]:
            raise ConfigError(
                f"draft_model {config.draft_model} has another tokenizer than {config.model}: token {i} is "
                f"{theirs[i]!r} to the one and {ours[i]!r} to the other; name a model of the same family"
            )
    return path


def read(path: Path, resolved: Resolved) -> load.Model:
    """The model, where and as the large one computes."""
    context = min(resolved.context, spec.read_spec(path).max_context)
    with weights.bar(f"loading {path.name}") as progress:
        return load.load(path, device=resolved.device, dtype=resolved.dtype, max_context=context, progress=progress)


def _tokens(directory: Path) -> dict[int, str]:
    """By id, of tokenizer.json; {} where there is none, or one of a form that this does not know."""
    try:
        file = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    vocab = file.get("model", {}).get("vocab", {})
    tokens = {i: token for token, i in vocab.items()} if isinstance(vocab, dict) else {}
    return tokens | {added["id"]: added["content"] for added in file.get("added_tokens") or ()}
