"""`banyan top`: a running server, as it goes: who is there, what a step computes, and where the pages are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from banyan.runtime.errors import EngineLost, RuntimeLost

Stats = Mapping[str, Any]
BAR = 48
HOLDERS = {"n_leased": ("in use", "green"), "n_cached": ("cached", "cyan"), "n_free": ("free", "dim")}
TOKENS = ("generated", "computed", "cached", "forced")


class Rates(NamedTuple):
    """Of the time between two looks. steps, tokens (by origin), evicted: a second. rows: tokens of a step."""

    steps: float
    tokens: dict[str, float]
    rows: float
    evicted: float


def rates(before: Stats, now: Stats) -> Rates:
    """Zeros where another engine took over meanwhile: it counts from the start."""
    seconds = now["server"]["seconds"] - before["server"]["seconds"]
    is_other = now["server"]["engine_starts"] != before["server"]["engine_starts"]
    if seconds <= 0 or is_other:
        return Rates(0.0, dict.fromkeys(TOKENS, 0.0), 0.0, 0.0)

    def risen(part: str, name: str) -> float:
        return float(now[part].get(name, 0) - before[part].get(name, 0))

    steps = risen("engine", "steps")
    tokens = {origin: risen("engine", f"{origin}_tokens") / seconds for origin in TOKENS}
    rows = risen("engine", "computed_tokens") / steps if steps else 0.0
    return Rates(steps / seconds, tokens, rows, risen("cache", "n_evicted_pages") / seconds)


def view(before: Stats, now: Stats, what: str = "") -> RenderableType:
    """One look at a server. what: which one it is."""
    server, engine, cache = now["server"], now["engine"], now["cache"]
    rate = rates(before, now)
    facts = Table.grid(padding=(0, 3))
    hits = cache["n_hit_tokens"] / max(1, cache["n_query_tokens"])
    lines = (
        ("programs", server["programs"], "clients", server["clients"]),
        ("running", engine["running"], "waiting", engine["waiting"]),
        ("steps/s", rate.steps, "tokens a step", rate.rows),
        *((f"{one}/s", rate.tokens[one], f"{two}/s", rate.tokens[two]) for one, two in (TOKENS[:2], TOKENS[2:])),
        ("hit rate", f"{hits:.1%}", "evicted pages/s", rate.evicted),
        ("retractions", engine["retractions"], "engines started", server["engine_starts"]),
    )
    if "slo_requests" in server:
        lines = (*lines, ("good requests", _good(server, "requests"), "good programs", _good(server, "programs")))
    for one, first, two, second in lines:
        facts.add_row(Text(one, "dim"), _number(first), Text(two, "dim"), _number(second))
    return Group(Text(f"{what}   up {server['seconds']:,.0f} s", "bold"), "", facts, "", _pages(cache))


def _good(server: Stats, what: str) -> str:
    """Of what ended and is judged, how much kept to the service levels."""
    n = server[f"slo_{what}"]
    return f"{server[f'slo_good_{what}'] / n:.1%}" if n else "-"


def _number(value: float | str) -> Text:
    text = value if isinstance(value, str) else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    return Text(text, "bold", justify="right")


def _pages(cache: Stats) -> Text:
    """A bar of all pages, by who holds them."""
    line, n_left = Text(), BAR
    for i, (name, (_, style)) in enumerate(HOLDERS.items()):
        n = n_left if i == len(HOLDERS) - 1 else min(n_left, round(BAR * cache[name] / max(1, cache["n_pages"])))
        line.append(("░" if name == "n_free" else "█") * n, style)
        n_left -= n
    told = ", ".join(f"{cache[name]:,} {word}" for name, (word, _) in HOLDERS.items())
    return line.append(f"  {cache['n_pages']:,} pages: {told}")


def show(runtime: Any, what: str, seconds: float, is_once: bool, console: Console | None = None) -> int:
    """Look every so many seconds until Ctrl-C; `is_once`: two looks, and the second is printed."""
    console = console or Console(highlight=False)
    before = runtime.client.ask("stats")
    if is_once:
        time.sleep(seconds)
        console.print(view(before, runtime.client.ask("stats"), what))
        return 0
    with Live(view(before, before, what), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(seconds)
            try:
                now = runtime.client.ask("stats")
            except EngineLost:
                continue  # another is being started
            except RuntimeLost:
                live.stop()
                raise
            live.update(view(before, now, what), refresh=True)
            before = now
