"""`banyan models`: what ships, what the native decoder runs, and what lies in the local hub cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from banyan.runtime.errors import BanyanError

if TYPE_CHECKING:
    from banyan.runtime.model.spec import ModelSpec

    Reader = Callable[[Path], ModelSpec]


def show() -> int:
    """Print one table of all models at hand; reads config.json and weight headers, loads nothing, asks no network."""
    from banyan.runtime.model import families, spec

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("model", "family", "parameters", "context", ""):
        table.add_column(title, justify="right" if title in ("parameters", "context") else "left")
    for path in sorted(spec.SHIPPED.iterdir(), key=lambda p: p.name != "pocket"):
        _add(table, path.name, path, spec.read_spec, "ships with Banyan")
    for name, path in _cached():
        _add(table, name, path, spec.read_spec, "in the hub cache")
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(
        f"\nRun one with --model: a name above, a directory, or a hub id in Hugging Face format (safetensors).\n"
        f"Native: {', '.join(families.FAMILIES)}. Other decoder-only families run through transformers' own code."
    )
    return 0


def _add(table: Table, name: str, path: Path, read: Reader, where: str) -> None:
    try:
        spec = read(path)
    except BanyanError as e:  # a model that cannot be run is worth a line too: its reason
        table.add_row(name, "-", "-", "-", f"cannot be run: {e}", style="dim")
    else:
        table.add_row(name, spec.family, _count(spec.n_parameters), f"{spec.max_context:,}", where)


def _count(n: int) -> str:
    return f"{n / 1e9:.1f} B" if n >= 1e9 else f"{n / 1e6:.1f} M"


def _cached() -> Iterator[tuple[str, Path]]:
    """(hub id, newest snapshot) of each model in the hub's local cache that has a config.json."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    for folder in sorted(cache.glob("models--*")):
        snapshots = [path for path in folder.glob("snapshots/*") if (path / "config.json").exists()]
        if snapshots:
            name = folder.name.removeprefix("models--").replace("--", "/")
            yield name, max(snapshots, key=lambda path: path.stat().st_mtime)
