"""The SVG drawings of a run page: the tree of branches and the timeline."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TypeAlias

from banyan.views.history import BranchHistory, History
from banyan.views.prompt_spans import PromptSpan
from banyan.views.timeline import phases

Scale: TypeAlias = "Callable[[float], float]"
"""Characters or seconds -> pixels."""

WIDTH, LEFT, RIGHT = 1120, 64, 10
ROW, BAR = 30, 15
MAX_INDENT = 8
"""The depth from which on the names of branches are not indented further. There is room for no more."""


def tree(history: History, spans: dict[int, list[PromptSpan]]) -> str:
    """Draw the branches of a run as a tree. Returns SVG.

    Each branch is a bar on its own row. The bar starts at the position where the branch was forked from its
    parent, and shows only text that was appended after the fork. The horizontal unit is characters of text. spans:
    number of a branch -> the spans of its whole prompt.
    """
    order = list(history.root.subtree())
    own = {number: [span for span in one if not span.is_shared] for number, one in spans.items()}
    starts = {number: sum(len(span.text) for span in one if span.is_shared) for number, one in spans.items()}
    ends = {number: starts[number] + sum(len(span.text) for span in one) for number, one in own.items()}
    scale = (WIDTH - LEFT - RIGHT) / (max(ends[branch.number] for branch in order) or 1)

    def x(chars: float) -> float:
        return LEFT + chars * scale

    rows = {branch.number: 14 + k * ROW for k, branch in enumerate(order)}
    edges, bars = [], []
    for branch in order:
        number, y = branch.number, rows[branch.number]
        if branch.parent is not None and branch is not history.root:
            top = rows[branch.parent.number] + BAR
            edges.append(f'<path class="edge" d="M{x(starts[number]):.1f} {top:.1f}V{y + BAR / 2 - 6:.1f}q0 6 6 6"/>')
        for n_items, child in {id(child): (n, child) for n, child in reversed(branch.joins)}.values():
            to_x = x(starts[number] + sum(len(item.text) for item in branch.items[:n_items]))
            edges.append(_join(x(ends[child.number]), rows[child.number] + BAR / 2, to_x, y + BAR))
        bars.append(_bar(branch, own[number], x, starts[number], y, branch is history.root))
    height = 14 + len(order) * ROW
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(edges)}{"".join(bars)}</svg>'


def _join(x: float, y: float, to_x: float, to_y: float) -> str:
    middle = (x + max(to_x, x)) / 2 + 14
    return (
        f'<path class="edge join" d="M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {to_x:.1f} {y:.1f} {to_x:.1f} {to_y:.1f}"/>'
    )


def _rect(classes: str, x: float, y: float, width: float, title: str, attributes: str = "") -> str:
    return (
        f'<rect class="fill {classes}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"{attributes}>'
        f"<title>{escape(title)}</title></rect>"
    )


def _label(text: str, x: float, y: float, width: float) -> str:
    """The SVG text of a name inside a bar; "" if the bar is too short for the name."""
    return f'<text class="in" x="{x + 4:.1f}" y="{y + 11}">{escape(text)}</text>' if width > 7 * len(text) + 6 else ""


def _bar(branch: BranchHistory, own: list[PromptSpan], x: Scale, start: int, y: float, is_selected: bool) -> str:
    name = "&#160;&#160;" * min(branch.depth, MAX_INDENT) + f"{branch.number}" + (" ✕" if branch.is_dropped else "")
    parts = [f'<rect class="back" x="0" y="{y - 7}" width="{WIDTH}" height="{ROW}" rx="6"/>']
    parts.append(f'<text class="name" x="6" y="{y + 12}">{name}</text>')
    at = start
    for span in own:
        if not span.text:
            continue
        left, width = x(at), max(x(at + len(span.text)) - x(at), 1.0)
        opacity = f' opacity="{0.45 if span.is_marker else 0.9}"'
        parts.append(_rect(span.origin, left, y, width, span.text[:300], opacity))
        if span.item.gen is not None and span.item.is_output:
            parts.append(_label(span.item.gen.label, left, y, width))
        at += len(span.text)
    on = " on" if is_selected else ""
    return f'<g class="row{on}" tabindex="0" data-branch="{branch.number}">{"".join(parts)}</g>'


def time(history: History) -> str:
    """The timeline of a run as HTML with an SVG drawing: one row per branch with the phases of its gens, and a row of
    tools. "" if no times are known."""
    gens = [
        (branch.number, gen.label, phases(gen.value.times), gen.text)
        for branch in history.branches
        for gen in branch.gens
        if gen.value is not None and gen.value.times.ended
    ]
    tools = [span for span in history.trace.spans if span.kind == "tool"]
    if not any(parts for _, _, parts, _ in gens):
        return ""
    began = history.trace.began
    total = max(*(parts[-1][2] for _, _, parts, _ in gens if parts), *(t.end for t in tools), 0) - began or 1e-6
    scale = (WIDTH - LEFT - RIGHT) / total

    def x(seconds: float) -> float:
        return LEFT + max(0.0, seconds - began) * scale

    names: list[int | str] = [*sorted({number for number, *_ in gens}), *(["tools"] if tools else [])]
    rows = {name: 26 + k * ROW for k, name in enumerate(names)}
    height = 26 + len(rows) * ROW
    parts = [_clock(total, scale, height)]
    parts += [f'<text class="name" x="6" y="{y + 12}">{name}</text>' for name, y in rows.items()]
    for number, label, steps, text in gens:
        for name, start, end in steps:
            title = f"{label}: {name}, {(end - start) * 1e3:.1f} ms\n{text[:200]}"
            parts.append(_rect(name, x(start), rows[number], max(x(end) - x(start), 0.6), title))
        if steps:
            _, start, end = steps[-1]
            parts.append(_label(label, x(start), rows[number], x(end) - x(start)))
    for tool in tools:
        title = f"{tool.name}, {(tool.end - tool.start) * 1e3:.1f} ms {tool.error}"
        width = max((tool.end - tool.start) * scale, 1.5)
        parts.append(_rect("bad" if tool.error else "tool", x(tool.start), rows["tools"], width, title, ' rx="2"'))
    meanings = {"encode": "encode", "queue": "queue", "prefill": "compute the prompt", "decode": "generate"}
    key = "".join(f'<span class="{name}"><i></i>{meaning}</span>' for name, meaning in meanings.items())
    return f'<div class="key">{key}</div><svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _clock(total: float, scale: float, height: float) -> str:
    """The time axis as SVG: grid lines with labels for a timeline of `total` seconds. A step between lines is 1, 2 or 5
    times a power of ten, such that there are at most 8 steps. scale: pixels per second. height: of the drawing, in
    pixels."""
    step = next(s * 10**e for e in range(-6, 6) for s in (1, 2, 5) if total / (s * 10**e) <= 8)
    marks = []
    for k in range(int(total / step) + 1):
        at = LEFT + k * step * scale
        name = f"{k * step:g} s" if step >= 0.1 else f"{k * step * 1e3:g} ms"
        marks.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="16" y2="{height:.0f}"/>')
        is_last = LEFT + total * scale - at < 7 * len(name) + 3  # no space to the right of the bar
        side = f'x="{at - 3:.1f}" text-anchor="end"' if is_last else f'x="{at + 3:.1f}"'
        marks.append(f'<text {side} y="11">{name}</text>')
    return "".join(marks)
