"""The drawings of a page, as SVG: the tree of branches, and where the time went."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TypeAlias

from banyan.views.history import BranchHistory, History
from banyan.views.prompt_spans import Stroke
from banyan.views.timeline import phases

Scale: TypeAlias = "Callable[[float], float]"
"""Characters or seconds -> pixels."""

WIDTH, LEFT, RIGHT = 1120, 64, 10
ROW, BAR = 30, 15


def tree(history: History, painted: dict[int, list[Stroke]]) -> str:
    """Each branch as a bar of its own text, in characters from left to right, from where it left its parent."""
    order = list(history.root.below())
    own = {number: [stroke for stroke in one if not stroke.is_shared] for number, one in painted.items()}
    starts = {number: sum(len(s.text) for s in one if s.is_shared) for number, one in painted.items()}
    longest = max(starts[branch.number] + _length(own[branch.number]) for branch in order) or 1
    scale = (WIDTH - LEFT - RIGHT) / longest

    def x(chars: float) -> float:
        return LEFT + chars * scale

    rows = {branch.number: 14 + k * ROW for k, branch in enumerate(order)}
    edges, bars = [], []
    for branch in order:
        y, start = rows[branch.number], starts[branch.number]
        if branch.parent is not None and branch is not history.root:
            edges.append(_fork(x(start), rows[branch.parent.number] + BAR, y + BAR / 2))
        for child in {id(child): child for _, child in branch.joins}.values():
            at = starts[branch.number] + _joined_at(branch, child)
            end = x(starts[child.number] + _length(own[child.number]))
            edges.append(_join(end, rows[child.number] + BAR / 2, x(at), y + BAR))
        bars.append(_bar(branch, own[branch.number], x, start, y, branch is history.root))
    height = 14 + len(order) * ROW
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(edges)}{"".join(bars)}</svg>'


def _length(painted: list[Stroke]) -> int:
    return sum(len(stroke.text) for stroke in painted)


def _joined_at(branch: BranchHistory, child: BranchHistory) -> int:
    at = next(at for at, joined in branch.joins if joined is child)
    return sum(len(item.text) for item in branch.items[:at])


def _fork(x: float, top: float, y: float) -> str:
    return f'<path class="edge" d="M{x:.1f} {top:.1f}V{y - 6:.1f}q0 6 6 6"/>'


def _join(x: float, y: float, to_x: float, to_y: float) -> str:
    middle = (x + max(to_x, x)) / 2 + 14
    return (
        f'<path class="edge join" d="M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {to_x:.1f} {y:.1f} {to_x:.1f} {to_y:.1f}"/>'
    )


def _bar(branch: BranchHistory, own: list[Stroke], x: Scale, start: int, y: float, is_on: bool) -> str:
    parts = [f'<rect class="back" x="0" y="{y - 7}" width="{WIDTH}" height="{ROW}" rx="6"/>']
    parts.append(f'<text class="name" x="6" y="{y + 12}">{_name(branch)}</text>')
    at = start
    for stroke in own:
        if not stroke.text:
            continue
        left, width = x(at), max(x(at + len(stroke.text)) - x(at), 1.0)
        parts.append(
            f'<rect class="fill {stroke.how}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" '
            f'opacity="{0.45 if stroke.is_marker else 0.9}"><title>{escape(stroke.text[:300])}</title></rect>'
        )
        gen = stroke.item.gen
        if gen is not None and stroke.item.is_made and width > 7 * len(gen.label) + 6:
            parts.append(f'<text class="in" x="{left + 4:.1f}" y="{y + 11}">{escape(gen.label)}</text>')
        at += len(stroke.text)
    on = " on" if is_on else ""
    return f'<g class="row{on}" tabindex="0" data-branch="{branch.number}">{"".join(parts)}</g>'


def _name(branch: BranchHistory) -> str:
    return "&#160;&#160;" * branch.depth + f"{branch.number}" + (" ✕" if branch.is_dropped else "")


def time(history: History) -> str:
    """The gens of each branch on the clock, and the tools; "" where no times are known."""
    spans = [
        (branch.number, gen.label, phases(gen.value.times), gen.text)
        for branch in history.branches
        for gen in branch.gens
        if gen.value is not None and gen.value.times.ended
    ]
    tools = [span for span in history.trace.spans if span.kind == "tool"]
    if not any(parts for _, _, parts, _ in spans):
        return ""
    began = history.trace.began
    total = max(*(parts[-1][2] for _, _, parts, _ in spans if parts), *(t.end for t in tools), 0) - began or 1e-6
    scale = (WIDTH - LEFT - RIGHT) / total

    def x(seconds: float) -> float:
        return LEFT + max(0.0, seconds - began) * scale

    rows = sorted({number for number, *_ in spans})
    tops = {number: 26 + k * ROW for k, number in enumerate(rows)}
    parts = [_clock(total, scale, 26 + (len(rows) + bool(tools)) * ROW)]
    parts += [f'<text class="name" x="6" y="{y + 12}">{number}</text>' for number, y in tops.items()]
    for number, label, phase, text in spans:
        parts += _gen(label, phase, text, tops[number], x)
    if tools:
        y = 26 + len(rows) * ROW
        parts.append(f'<text class="name" x="6" y="{y + 12}">tools</text>')
        for tool in tools:
            width = max((tool.end - tool.start) * scale, 1.5)
            title = escape(f"{tool.name}, {(tool.end - tool.start) * 1e3:.1f} ms {tool.error}")
            parts.append(
                f'<rect class="fill {"bad" if tool.error else "tool"}" x="{x(tool.start):.1f}" y="{y}" '
                f'width="{width:.1f}" height="{BAR}" rx="2"><title>{title}</title></rect>'
            )
    names = {"encode": "encode", "queue": "queue", "prefill": "compute the prompt", "decode": "generate"}
    key = "".join(f'<span class="{name}"><i></i>{meaning}</span>' for name, meaning in names.items())
    height = 26 + (len(rows) + bool(tools)) * ROW
    return f'<div class="key">{key}</div><svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _gen(label: str, phase: list[tuple[str, float, float]], text: str, y: float, x: Scale) -> list[str]:
    parts = []
    for what, start, end in phase:
        title = escape(f"{label}: {what}, {(end - start) * 1e3:.1f} ms\n{text[:200]}")
        width = max(x(end) - x(start), 0.6)
        parts.append(
            f'<rect class="fill {what}" x="{x(start):.1f}" y="{y}" width="{width:.1f}" height="{BAR}">'
            f"<title>{title}</title></rect>"
        )
    if phase and x(phase[-1][2]) - x(phase[-1][1]) > 7 * len(label) + 6:
        parts.append(f'<text class="in" x="{x(phase[-1][1]) + 4:.1f}" y="{y + 11}">{escape(label)}</text>')
    return parts


def _clock(total: float, scale: float, height: float) -> str:
    step = next(s * 10**e for e in range(-6, 6) for s in (1, 2, 5) if total / (s * 10**e) <= 8)
    marks = []
    for k in range(int(total / step) + 1):
        at = LEFT + k * step * scale
        name = f"{k * step:g} s" if step >= 0.1 else f"{k * step * 1e3:g} ms"
        marks.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="16" y2="{height:.0f}"/>')
        is_last = LEFT + total * scale - at < 7 * len(name) + 3  # there is no room behind it
        side = f'x="{at - 3:.1f}" text-anchor="end"' if is_last else f'x="{at + 3:.1f}"'
        marks.append(f'<text {side} y="11">{name}</text>')
    return "".join(marks)
