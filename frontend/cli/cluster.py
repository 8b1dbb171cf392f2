"""`banyan cluster`: shows, drains, adds and replaces the engines of a running server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

ENDING = 24 * 3600.0
"""Maximum time in seconds that a drained engine may take to end, a new one to start, or a roll to finish."""


def engines(before: Mapping[str, Any], now: Mapping[str, Any]) -> Table:
    """A table of the engines, from two answers to Ask("stats"). steps/s: the rate between the two answers; 0 if the
    engine started again in between, which resets its counters."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for column in ("replica", "state", "running", "queued", "pages used", "hit rate", "steps/s"):
        table.add_column(column, justify="left" if column in ("replica", "state") else "right")
    has_hosts = any(row.get("host") for row in now["replicas"].values())
    if has_hosts:
        table.add_column("host")
    seconds = now["server"]["seconds"] - before["server"]["seconds"]
    for name, row in now["replicas"].items():
        host = [row.get("host", "")] if has_hosts else []
        if not (row["engine"] and row["cache"]):  # the engine is starting
            table.add_row(name, row["state"], *["-"] * 5, *host)
            continue
        engine, cache = row["engine"], row["cache"]
        earlier = before["replicas"].get(name, {"starts": 0})
        n_steps = engine["steps"] - earlier["engine"].get("steps", 0) if earlier["starts"] == row["starts"] else 0
        n_used = cache["n_pages"] - cache["n_free"]
        hits = cache["n_hit_tokens"] / max(1, cache["n_query_tokens"])
        table.add_row(
            *(name, row["state"], f"{engine['running']:,}", f"{engine['waiting']:,}"),
            *(f"{n_used:,} of {cache['n_pages']:,}", f"{hits:.1%}", f"{n_steps / seconds if seconds else 0:,.1f}"),
            *host,
        )
    return table


def status(runtime: Any, seconds: float, console: Console | None = None) -> int:
    """Print the engines, with their steps per second over the next `seconds` seconds."""
    before = runtime.client.ask("stats")
    time.sleep(seconds)
    (console or Console(highlight=False)).print(engines(before, runtime.client.ask("stats")))
    return 0


def drain(runtime: Any, name: str) -> int:
    """Let the other engines take over the programs of engine `name`, and wait until this engine has ended. Returns 0.
    BanyanError: no engine has this name, or no other engine is ready."""
    runtime.client.ask("drain", ENDING, name=name)
    print(f"engine {name} has ended; its programs continue elsewhere")
    return 0


def roll(runtime: Any, model: str) -> int:
    """Give all engines the weights of `model`, and wait until they have them. Returns 0. BanyanError: the model cannot
    be loaded, or its tokenizer or shape differs from that of the server's model."""
    runtime.client.ask("roll", ENDING, path=model)
    print(f"all engines have the weights of {model}")
    return 0


def add(runtime: Any) -> int:
    """Start one more engine, wait until it is ready, and print its name. Returns 0. BanyanError: the engine could not
    start."""
    before = runtime.client.ask("stats")["replicas"]  # refused, as "add" is, if this client is not an operator
    runtime.client.ask("add", ENDING)
    added = sorted(runtime.client.ask("stats")["replicas"].keys() - before)
    print(f"engine {', '.join(added)} is ready")
    return 0
