"""`banyan models`: lists the models that ship, those in the local hub cache, and the natively supported families."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from banyan.runtime.errors import BanyanError


def show() -> int:
    """Print one table of all local models. Reads config.json and weight headers only; needs no network."""
    from banyan.runtime.model import families, spec

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("model", "family", "parameters", "context", "", "sampling unless given"):
        table.add_column(title, justify="right" if title in ("parameters", "context") else "left")
    for name, path, where in local_models():
        try:
            model = spec.read_spec(path)
            defaults = [f"{option} {value:g}" for option, value in spec.sampling_defaults(path).items()]
        except BanyanError as e:
            table.add_row(name, "-", "-", "-", f"cannot be run: {e}", style="dim")
        else:
            n = model.n_parameters
            size = f"{n / 1e9:.1f} B" if n >= 1e9 else f"{n / 1e6:.1f} M"
            table.add_row(
                name,
                model.family,
                size,
                f"{model.max_context:,}",
                f"{where}{model.kind and ', '}{model.kind}",
                ", ".join(defaults),
            )
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(
        f"\nRun one with --model: a name above, a directory, or a hub id in Hugging Face format (safetensors).\n"
        f"Native: {', '.join(families.FAMILIES)}. Other decoder-only families run through transformers' own code."
    )
    return 0


def local_models() -> Iterator[tuple[str, Path, str]]:
    """(name, directory, where it is) of each model on this machine that has a name."""
    from banyan.runtime.model import spec

    for path in sorted(spec.SHIPPED.iterdir(), key=lambda path: path.name != "pocket"):
        yield path.name, path, "ships with Banyan"
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
