"""The views of a state: usage, timeline, HTML page, and display in a notebook."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from banyan.runtime.errors import Cancelled, ConfigError
from banyan.runtime.protocol import wire
from banyan.views.history import GenHistory, History, PromptItem, usage_of
from banyan.views.notebook import LiveDisplay, in_notebook
from banyan.views.usage import Usage

if TYPE_CHECKING:
    from banyan.execution.program_record import ProgramRecord
    from banyan.views.run_page import Page

MAX_TEXT = 60
"""How many characters of an output a line of `calls` shows."""
READ_TIMEOUT = 5.0
"""Seconds that `page` waits for the tokens of the branches. Branches whose tokens come later are shown as text."""


def usage(record: ProgramRecord, state: int) -> Usage:
    """The token counts of the finished gens of a state and its branches."""
    return usage_of(History(record, state).gens)


def calls(record: ProgramRecord) -> list[str]:
    """A line for each gen and select of a program: its output if it is known, else its status. Never waits."""
    lines = []
    for gen in History(record).gens:
        known = f"{gen.label} = {gen.text[:MAX_TEXT]!r}{'...' * (len(gen.text) > MAX_TEXT)}"
        lines.append(f"{_status(gen) if gen.value is None else known} [{gen.op.line}]")
    return lines


def text_so_far(record: ProgramRecord, state: int, streamed: Mapping[int, str]) -> str:
    """The prompt of a state, with a note in place of each output that is not known. Never waits.

    streamed: number of a gen in a program that streams -> its text so far, which stands before the note.
    """
    parts, chat = list[str](), record.backend.welcome.chat
    for item in History(record, state).root.prompt:
        gen = item.gen if item.is_output else None
        if gen is None or gen.value is not None:
            parts.append(_text(item, chat))
        else:
            parts.append(f"{streamed.get(gen.op.ref, '')}[{_status(gen)}]")
    return "".join(parts)


def _text(item: PromptItem, chat: wire.ChatMarkers | None) -> str:
    """The text of a piece of a prompt. That of a gen begins with the turns of its tools."""
    turns = "" if item.gen is None or chat is None else "".join(one.text + one.results(chat) for one in item.gen.rounds)
    return turns + item.text


def _status(gen: GenHistory) -> str:
    """The name of the gen, why its output is not known, and how many rounds of tool calls have ended."""
    status = "is under way" if gen.error is None else "was stopped" if isinstance(gen.error, Cancelled) else "failed"
    n = len(gen.rounds)
    return f"{gen.label} {status}" + (f" after {n} round{'s' * (n > 1)} of tool calls" if n else "")


def timeline(record: ProgramRecord, state: int, path: str | Path | None) -> dict[str, Any]:
    """The trace of a state and its branches in Chrome's format. path: also write it to this file."""
    from banyan.views.timeline import chrome_trace

    trace = chrome_trace(History(record, state))
    if path is not None:
        try:
            Path(path).write_text(json.dumps(trace), encoding="utf-8")
        except OSError as e:
            raise ConfigError(f"the timeline cannot be written: {e}") from e
    return trace


def page(record: ProgramRecord, state: int, path: str | Path | None) -> Page:
    """The page of a state and its branches. path: also write it to this file."""
    from banyan.views import run_page

    history = History(record, state)
    created = run_page.page(history, _read_branches(record, history))
    if path is not None:
        created.save(path)
    return created


def _read_branches(record: ProgramRecord, history: History) -> dict[int, wire.Value]:
    """Number of a branch -> its text and tokens, for each branch that the backend still holds."""
    refs: dict[int, int] = {}
    for branch in history.branches:
        if not branch.is_dropped:
            refs[branch.number] = ref = record.new_refs()
            record.add(wire.Read(branch.number, ref, tokens=True))
    found: dict[int, wire.Value] = {}
    with suppress(Exception):  # the backend is gone: the page does without tokens
        record.flush()
        deadline = time.monotonic() + READ_TIMEOUT
        for number, ref in refs.items():
            with suppress(Exception):  # only one branch could not be read
                found[number] = record.program.future(ref).result(max(0.0, deadline - time.monotonic()))
    return found


def live(record: ProgramRecord, state: int, streamed: Callable[[], dict[int, str]]) -> bool:
    """Display the snippet of a running state in a notebook, and refresh it until the state is complete. Returns at
    once. False: there is nothing to refresh, because nothing runs or this is no notebook."""
    if record.is_settled or not in_notebook():
        return False
    LiveDisplay(
        lambda: snippet(record, state, streamed()), f"<State of program {record.name}>", lambda: record.is_settled
    )
    return True


def snippet(record: ProgramRecord, state: int, streamed: Mapping[int, str]) -> str:
    """A state as HTML for a notebook: its text so far, with outputs highlighted, and its usage. Never waits.

    streamed: number of a gen under way -> its text so far, in a program that streams.
    """
    history, chat = History(record, state), record.backend.welcome.chat
    parts = []
    for item in history.root.prompt:
        gen = item.gen if item.is_output else None
        if gen is None:
            style = "opacity:.55" if item.kind == "marker" else ""
            parts.append(f'<span style="{style}">{escape(_text(item, chat))}</span>')
        elif gen.value is not None:
            title = escape(f"{gen.label}, {gen.op.line}")
            color = "rgba(161,63,184,.2)" if isinstance(gen.op, wire.Select) else "rgba(79,91,213,.2)"
            style = f"background:{color};border-radius:3px;padding:1px 0"
            parts.append(f'<span style="{style}" title="{title}">{escape(_text(item, chat))}</span>')
        else:
            parts.append(escape(streamed.get(gen.op.ref, "")))
            parts.append(f'<em style="opacity:.7">[{escape(_status(gen))}]</em>')
    n = len(history.branches) - 1
    branches = f", {n} branch{'es' if n > 1 else ''} below it" if n else ""
    head = f"<b>{escape(history.name)}</b> on {escape(history.model)}{branches}"
    cost = escape(repr(usage_of(history.gens)))
    pre = "white-space:pre-wrap;font:13px/1.6 ui-monospace,Menlo,Consolas,monospace;margin:.4em 0"
    return f'<div>{head}<pre style="{pre}">{"".join(parts)}</pre><small style="opacity:.7">{cost}</small></div>'
