"""`banyan top`: monitors a running server: its programs, what a step computes, and where the pages are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from banyan.cli.cluster import engines
from banyan.runtime.errors import EngineLost, RuntimeLost

Stats = Mapping[str, Any]
BAR = 48
PAGES = {"n_leased": ("in use", "green", "█"), "n_cached": ("cached", "cyan", "█"), "n_free": ("free", "dim", "░")}
"""counter -> its name, style and character in the bar of pages."""
TOKENS = ("generated", "computed", "cached", "forced")


class Rates(NamedTuple):
    """Rates between two samples. steps, tokens (by origin), evicted (pages): per second. rows: tokens per step."""

    steps: float
    tokens: dict[str, float]
    rows: float
    evicted: float


def rates(before: Stats, now: Stats) -> Rates:
    """The rates between two samples; all 0 if the engines, and with them the counters, changed in between."""
    seconds = now["server"]["seconds"] - before["server"]["seconds"]
    is_other = now["server"]["engine_starts"] != before["server"]["engine_starts"]
    if seconds <= 0 or is_other or now["replicas"].keys() != before["replicas"].keys():
        return Rates(0.0, dict.fromkeys(TOKENS, 0.0), 0.0, 0.0)

    def increase(part: str, name: str) -> float:
        return float(now[part].get(name, 0) - before[part].get(name, 0))

    steps = increase("engine", "steps")
    tokens = {origin: increase("engine", f"{origin}_tokens") / seconds for origin in TOKENS}
    rows = increase("engine", "computed_tokens") / steps if steps else 0.0
    return Rates(steps / seconds, tokens, rows, increase("cache", "n_evicted_pages") / seconds)


def view(before: Stats, now: Stats, title: str = "") -> RenderableType:
    """Draw one screen: rates between two samples, and the counters of the second."""
    server, engine, cache = now["server"], now["engine"], now["cache"]
    rate = rates(before, now)
    hits = cache["n_hit_tokens"] / max(1, cache["n_query_tokens"])
    rows = [
        ("programs", server["programs"], "clients", server["clients"]),
        ("running", engine["running"], "waiting", engine["waiting"]),
        ("steps/s", rate.steps, "tokens a step", rate.rows),
        *((f"{one}/s", rate.tokens[one], f"{two}/s", rate.tokens[two]) for one, two in (TOKENS[:2], TOKENS[2:])),
        ("hit rate", f"{hits:.1%}", "evicted pages/s", rate.evicted),
        ("retractions", engine["retractions"], "engines started", server["engine_starts"]),
    ]
    if "slo_requests" in server:
        rows.append(("good requests", _good(server, "requests"), "good programs", _good(server, "programs")))
    grid = Table.grid(padding=(0, 3))
    for one, first, two, second in rows:
        grid.add_row(Text(one, "dim"), _number(first), Text(two, "dim"), _number(second))
    shown: list[RenderableType] = [
        Text(f"{title}   up {server['seconds']:,.0f} s", "bold"),
        "",
        grid,
        "",
        _page_bar(cache),
    ]
    return Group(*shown, *(("", engines(before, now)) if len(now["replicas"]) > 1 else ()))


def _good(server: Stats, what: str) -> str:
    """The share of finished requests or programs that met the service levels, as text; "-" if none have finished. what:
    "requests" or "programs"."""
    n = server[f"slo_{what}"]
    return f"{server[f'slo_good_{what}'] / n:.1%}" if n else "-"


def _number(value: float | str) -> Text:
    text = value if isinstance(value, str) else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    return Text(text, "bold", justify="right")


def _page_bar(cache: Stats) -> Text:
    """Draw the pages of KV as a bar of BAR characters: pages in use, cached pages, free pages; then their numbers. Free
    pages get the characters that rounding leaves."""
    bar, n_left = Text(), BAR
    for name, (_, style, character) in PAGES.items():
        n = n_left if name == "n_free" else min(n_left, round(BAR * cache[name] / max(1, cache["n_pages"])))
        bar.append(character * n, style)
        n_left -= n
    counts = ", ".join(f"{cache[name]:,} {word}" for name, (word, *_) in PAGES.items())
    return bar.append(f"  {cache['n_pages']:,} pages: {counts}")


def show(runtime: Any, title: str, seconds: float, is_once: bool, console: Console | None = None) -> int:
    """Show the server's figures, and update them every `seconds` seconds until Ctrl-C. is_once: print one screen, with
    the rates over the first `seconds` seconds, and return."""
    console = console or Console(highlight=False)
    before = runtime.client.ask("stats")
    if is_once:
        time.sleep(seconds)
        console.print(view(before, runtime.client.ask("stats"), title))
        return 0
    with Live(view(before, before, title), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(seconds)
            try:
                now = runtime.client.ask("stats")
            except EngineLost:
                continue  # the server is starting another engine
            except RuntimeLost:
                if runtime.client.lost is None:
                    continue  # no engine is ready yet, but the server lives
                live.stop()
                raise
            live.update(view(before, now, title), refresh=True)
            before = now
