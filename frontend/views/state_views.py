"""What states show of themselves: usage, timeline, page."""

from __future__ import annotations

import json
import time
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol import wire
from banyan.views.history import History, usage_of
from banyan.views.usage import Usage

if TYPE_CHECKING:
    from banyan.execution.program_record import ProgramRecord
    from banyan.views.run_page import Page

LOOK_FOR = 5.0
"""Seconds that a page waits for the tokens of its branches; without them it shows text."""


def usage(record: ProgramRecord, state: int) -> Usage:
    """Of the gens of a state and its branches that are known by now."""
    return usage_of(History(record, state).gens)


def timeline(record: ProgramRecord, state: int, path: str | Path | None) -> dict[str, Any]:
    """The Chrome trace, which is also written to `path` if there is one."""
    from banyan.views.timeline import chrome_trace

    trace = chrome_trace(History(record, state))
    if path is not None:
        try:
            Path(path).write_text(json.dumps(trace), encoding="utf-8")
        except OSError as e:
            raise ConfigError(f"the timeline cannot be written: {e}") from e
    return trace


def page(record: ProgramRecord, state: int, path: str | Path | None, until: float) -> Page:
    """The page, which is also written to `path` if there is one. until: seconds to wait for tokens."""
    from banyan.views import run_page

    history = History(record, state)
    made = run_page.page(history, looks(record, history, until))
    if path is not None:
        made.save(path)
    return made


def looks(record: ProgramRecord, history: History, until: float) -> dict[int, wire.Value]:
    """The text and the tokens of each branch that its backend still has."""
    refs: dict[int, int] = {}
    for branch in history.branches:
        if not branch.is_dropped:
            refs[branch.number] = ref = record.new_refs()
            record.add(wire.Read(branch.number, ref, tokens=True))
    try:
        record.flush()
    except Exception:  # nobody to ask: the page does without
        return {}
    deadline, found = time.monotonic() + until, {}
    for number, ref in refs.items():
        future = record.program.future(ref)
        while not future.done() and time.monotonic() < deadline:
            time.sleep(0.001)
        if future.done() and future.exception() is None:
            found[number] = future.result()
    return found


def snippet(record: ProgramRecord, state: int) -> str:
    """A state in a notebook, as it is known by now: its text, what was generated in it, what that cost."""
    history = History(record, state)
    parts = []
    for item in history.root.prompt:
        gen = item.gen if item.is_made else None
        if gen is None:
            pale = "opacity:.55" if item.kind == "marker" else ""
            parts.append(f'<span style="{pale}">{escape(item.text)}</span>')
        elif gen.value is not None:
            title = escape(f"{gen.label}, {gen.op.line}")
            tint = "rgba(161,63,184,.2)" if isinstance(gen.op, wire.Select) else "rgba(79,91,213,.2)"
            style = f"background:{tint};border-radius:3px;padding:1px 0"
            parts.append(f'<span style="{style}" title="{title}">{escape(gen.text)}</span>')
        else:
            what = "failed" if gen.error is not None else "is under way"
            parts.append(f'<em style="opacity:.7">[{escape(gen.label)} {what}]</em>')
    n = len(history.branches) - 1
    branches = f", {n} branch{'es' if n > 1 else ''} below it" if n else ""
    head = f"<b>{escape(history.name)}</b> on {escape(history.model)}{branches}"
    cost = escape(repr(usage_of(history.gens)))
    pre = "white-space:pre-wrap;font:13px/1.6 ui-monospace,Menlo,Consolas,monospace;margin:.4em 0"
    return f'<div>{head}<pre style="{pre}">{"".join(parts)}</pre><small style="opacity:.7">{cost}</small></div>'
