"""`banyan models`: lists the models that ship with Banyan, those in the local Hugging Face cache, and the families that
Banyan implements itself. If models are named, describes these models instead."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from banyan.runtime.errors import BanyanError


def show(places: Sequence[str] = ()) -> int:
    """Print one table of all local models, or of those at `places`: names, directories, .gguf files or hub ids. Reads
    config.json and weight headers only; needs no network, except for a hub id that is not in the cache. Returns 1 if a
    model of `places` cannot be run, else 0."""
    from banyan.runtime.model import families, spec

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("model", "family", "parameters", "context", "", "sampling unless given"):
        table.add_column(title, justify="right" if title in ("parameters", "context") else "left")
    has_failed = False
    for name, place, where in [(place, place, "") for place in places] or local_models():
        try:
            model = spec.read_spec(path := spec.resolve(place))
            defaults = [f"{option} {value:g}" for option, value in spec.sampling_defaults(path).items()]
        except BanyanError as e:
            table.add_row(name, "-", "-", "-", f"cannot be run: {e}", style="dim")
            has_failed = True
        else:
            n = model.n_parameters
            size = f"{n / 1e9:.1f} B" if n >= 1e9 else f"{n / 1e6:.1f} M"
            table.add_row(
                name,
                model.family,
                size,
                f"{model.max_context:,}",
                ", ".join(filter(None, (where, model.kind))),
                ", ".join(defaults),
            )
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    console.print(table)
    if places:
        return int(has_failed)
    console.print(
        f"\nRun one with --model: a name above, a directory or hub id in Hugging Face format "
        f"(safetensors), or a .gguf file.\n"
        f"Native: {', '.join(families.FAMILIES)}. Other decoder-only families run through transformers' own code."
    )
    return 0


def local_models() -> Iterator[tuple[str, str | Path, str]]:
    """Yields (name, argument for `spec.resolve`, location) of each model that has a name and needs no download."""
    from banyan.runtime.model import spec

    for path in sorted(spec.SHIPPED.iterdir(), key=lambda path: path.name != "pocket"):
        yield path.name, path, "ships with Banyan"
    for name, (module, _) in spec.PACKAGED.items():
        yield name, name, f"from {module.replace('_', '-')}"
    for name, path in _cached():
        yield name, path, "in the hub cache"


def _cached() -> Iterator[tuple[str, Path]]:
    """(hub id, newest snapshot) of each model in the local hub cache that has a config.json."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    for folder in sorted(cache.glob("models--*")):
        snapshots = [path for path in folder.glob("snapshots/*") if (path / "config.json").exists()]
        if snapshots:
            name = folder.name.removeprefix("models--").replace("--", "/")
            yield name, max(snapshots, key=lambda path: path.stat().st_mtime)
