"""A run as a graph: the pieces of its prompts, their order, and the messages that sent them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import NamedTuple

from banyan.execution.run_trace import Sent, TimeSpan
from banyan.lang.state_base import StateBase
from banyan.runtime.protocol import wire
from banyan.templates.argument_slot import AWAITED, ArgumentObserved
from banyan.templates.recorder import Recording

MAX_LABEL = 48
"""How many characters of a text a drawing shows."""

BOX = 200, 48
"""Width and height in pixels of a node's place in a drawing."""


class GraphNode(NamedTuple):
    """A piece of a prompt. message: the index of the message that sent it. line: where it was appended, "file.py:12".
    after: the indices of the nodes directly before it. values: the indices of the nodes whose text it contains."""

    kind: str
    label: str
    state: int
    message: int
    line: str
    after: tuple[int, ...]
    values: tuple[int, ...]


class SentMessage(NamedTuple):
    """Ops that were sent together. n_bytes: the size of the message. why: what caused the flush."""

    ops: tuple[wire.Op, ...]
    n_bytes: int
    why: str


class SharedPrefix(NamedTuple):
    """A prefix that `branches` share: the prompt of `state` when it was forked. n_chars: how many characters its
    text has, without outputs. values: the names of the gens in it."""

    state: int
    branches: tuple[int, ...]
    n_chars: int
    values: tuple[str, ...]


@dataclass
class _StateEnd:
    """The end of a state's prompt while the graph is built. at: the nodes that the state's next node will follow."""

    at: tuple[int, ...] = ()
    n_chars: int = 0
    values: tuple[str, ...] = ()


class Graph:
    """The graph of one run, which a notebook displays as a drawing.

    messages: what was sent. waits: where the body waited for a value. shared: the prefixes that branches share. nodes:
    the pieces of the prompts, in the order of appends. ended: for a run without a model, where the body inspected an
    argument or read a value; None: it ran to its end.
    """

    def __init__(self, run: StateBase | Recording) -> None:
        """run: any state of the run, or a recording."""
        state, recording = (run.state, run) if isinstance(run, Recording) else (run, None)
        trace = state._record.trace
        end = trace.ended or float("inf")
        sent = [message for message in trace.sent if message.at <= end]
        if recording is not None and trace.sent:  # a recording waits for nothing: all flushes count as one message
            ops = recording.ops  # without what was sent after the recording ended
            sent = [Sent(trace.sent[0].at, ops, trace.sent[-1].why)] if ops else []
        self.name = state._record.name
        self.messages = [
            SentMessage(tuple(trace.expanded(ops)), len(wire.encode(wire.Submit(0, 0, tuple(ops)))), why)
            for _, ops, why in sent
        ]
        self.waits: list[TimeSpan] = [span for span in trace.spans if span.kind == "wait" and span.start <= end]
        self.nodes: list[GraphNode] = []
        self.shared: list[SharedPrefix] = []
        self._ends = {0: _StateEnd()}
        self._sources: dict[int, int] = {}  # ref -> the node that gives its value
        for k, message in enumerate(self.messages):
            for op in message.ops:
                self._add(k, op)
        self.ended: ArgumentObserved | None = None if recording is None else recording.ended
        self._n_others = 0 if recording is None else len(recording.programs) - 1

    def _add(self, k: int, op: wire.Op) -> None:
        end = self._ends[op.state]
        match op:
            case wire.Append(parts=parts) if any(not isinstance(part, wire.EndTurn) for part in parts):
                values = [self._sources[part.ref] for part in parts if isinstance(part, wire.Ref)]
                end.at = (self._node(k, op, "text", _label(parts), end.at, values),)
                end.n_chars += sum(len(_text(part)) for part in parts)
            case wire.Gen() | wire.Select():
                label = op.name or f"#{op.ref}"
                self._sources[op.ref] = node = self._node(k, op, type(op).__name__.lower(), label, end.at)
                end.at, end.values = (node,), (*end.values, label)
            case wire.Read(ref=ref, mark=mark):
                self._sources[ref] = self._node(k, op, "read", "text" if mark is None else "text of a scope", end.at)
            case wire.Fork(children=children):
                self._ends |= {child: replace(end) for child in children}
                if end.at:
                    self.shared.append(SharedPrefix(op.state, children, end.n_chars, end.values))
            case wire.Join(children=(child,), adopt=True):
                self._ends[op.state] = replace(self._ends[child])
            case wire.Join(children=children):
                ends = dict.fromkeys([*end.at, *(i for child in children for i in self._ends[child].at)])
                end.at = (self._node(k, op, "join", "join", tuple(ends)),)

    def _node(
        self, k: int, op: wire.Op, kind: str, label: str, after: tuple[int, ...], values: Sequence[int] = ()
    ) -> int:
        self.nodes.append(GraphNode(kind, label, op.state, k, getattr(op, "line", ""), after, tuple(values)))
        return len(self.nodes) - 1

    def __repr__(self) -> str:
        return f"<Graph of program {self.name}: {self._size()}>"

    def _size(self) -> str:
        n = Counter(node.kind for node in self.nodes)
        n_states = len({node.state for node in self.nodes})
        kinds = [_counted(n[kind], kind) for kind in ("gen", "select") if n[kind]] or ["no gen"]
        return f"{', '.join(kinds)} in {_counted(n_states, 'state')}, {_counted(len(self.messages), 'message')}"

    def explain(self) -> str:
        """A text: what was sent and why, what branches share, and where the body waited, with source lines."""
        return "\n".join([f"{self.name}: {self._size()}", *self._sent_lines(), *self._wait_lines()])

    def _sent_lines(self) -> Iterator[str]:
        for k, message in enumerate(self.messages):
            n = Counter(node.kind for node in self.nodes if node.message == k)
            what = ", ".join(_counted(n[kind], kind) for kind in ("text", "gen", "select", "join", "read") if n[kind])
            why = f", sent when {message.why}" if message.why else ""
            yield f"message {k + 1}: {what or 'no text'}; {message.n_bytes:,} bytes{why}"
        for state, branches, n_chars, values in self.shared:
            names = f" and {', '.join(map(repr, values))}" if values else ""
            yield (
                f"shared: {_counted(len(branches), 'branch')} of {f'state {state}' if state else 'the first state'} "
                f"begin with its {n_chars:,} characters of text{names}, sent once and computed once"
            )

    def _wait_lines(self) -> Iterator[str]:
        for span in self.waits:
            seconds = span.end - span.start
            yield f"waited: {span.line} reads {span.name!r}, {seconds:.3f} s; what follows may depend on it"
        if self.ended is not None:
            does = "awaits something" if self.ended.what == AWAITED else "reads a value, which only a model can give"
            yield f"ended: {self.ended.line} {does}; what follows may depend on it; pass `backend=` to see it"
        elif not self.waits:
            yield "waited: nowhere; the body ran to its end before any value was there"
        if self._n_others:
            yield f"also: {_counted(self._n_others, 'other program')} that it calls, each with its own messages"

    def mermaid(self) -> str:
        """The graph in Mermaid's notation. A dotted line goes from a value to a text that contains it."""
        waited = {span.name for span in self.waits}
        lines = ["flowchart TD"]
        for k in range(len(self.messages)):
            lines.append(f'  subgraph m{k} ["message {k + 1}"]')
            lines += [f"    n{i}{_box(node)}" for i, node in enumerate(self.nodes) if node.message == k]
            lines.append("  end")
        for i, node in enumerate(self.nodes):
            lines += [f"  n{other} --> n{i}" for other in node.after]
            lines += [f"  n{other} -.-> n{i}" for other in node.values]
        outputs = [i for i, node in enumerate(self.nodes) if node.kind in ("gen", "select")]
        read = [i for i in outputs if self.nodes[i].label in waited]
        for style, which in (("output", outputs), ("waited", read)):
            if which:
                lines.append(f"  class {','.join(f'n{i}' for i in which)} {style}")
        lines.append("  classDef output fill:#dff0d8,stroke:#3c763d,color:#222")
        lines.append("  classDef waited stroke-width:3px,stroke:#a94442")
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        """A drawing, and below it the text of `explain`. Each state has a column; prompts run from top to bottom."""
        return f"<div>{self._svg()}<pre>{escape(self.explain())}</pre></div>"

    def _svg(self) -> str:
        states = sorted({node.state for node in self.nodes})
        at: list[tuple[float, float]] = []  # the middle of each node's top, in pixels
        parts: list[str] = []
        rows: list[int] = []
        waited = {span.name for span in self.waits}
        for node in self.nodes:
            before = [rows[i] for i in (*node.after, *node.values)]
            rows.append(max(before, default=-1) + 1)
            at.append((BOX[0] * (states.index(node.state) + 0.5), BOX[1] * rows[-1] + 4.0))
            x, y = at[-1]
            for i in (*node.after, *node.values):
                dash = "" if i in node.after else ' stroke-dasharray="3 3"'
                line = f'x1="{at[i][0]:.0f}" y1="{at[i][1] + 24:.0f}" x2="{x:.0f}" y2="{y:.0f}"'
                parts.append(f'<line {line} stroke="gray"{dash}/>')
            is_output = node.kind in ("gen", "select")
            fill = "rgba(79,91,213,.2)" if node.kind == "gen" else "rgba(161,63,184,.2)" if is_output else "none"
            edge = 'stroke="#c8373d" stroke-width="3"' if is_output and node.label in waited else 'stroke="gray"'
            title = escape(f"{node.label}\n{node.kind} in message {node.message + 1} {node.line}")
            box = (
                f'x="{x - BOX[0] / 2 + 5:.0f}" y="{y:.0f}" width="{BOX[0] - 10}" height="24" rx="{10 * is_output + 2}"'
            )
            text = node.label if len(node.label) <= 28 else f"{node.label[:26]} …"
            parts.append(
                f'<g><title>{title}</title><rect {box} fill="{fill}" {edge}/><text x="{x:.0f}" y="{y + 16:.0f}" '
                f'text-anchor="middle" fill="currentColor">{escape(text)}</text></g>'
            )
        size = BOX[0] * len(states), BOX[1] * (max(rows, default=-1) + 1)
        style = f"max-width:100%;width:{size[0]}px;font:12px system-ui,sans-serif"
        return f'<svg viewBox="0 0 {size[0]} {size[1]}" style="{style}" role="img">{"".join(parts)}</svg>'


def _text(part: wire.Part) -> str:
    return part if isinstance(part, str) else part.text if isinstance(part, wire.Raw) else ""


def _label(parts: Sequence[wire.Part]) -> str:
    """The parts of an append as one short line."""
    texts: list[str] = []
    for part in parts:
        match part:
            case wire.BeginTurn(role=role):
                texts.append(f"[{role}] ")
            case wire.EndTurn():
                texts.append(" ")
            case wire.Ref():
                texts.append("{...}")
            case wire.Image(kind=kind):
                texts.append(f"[{kind}]")
            case _:
                texts.append(_text(part))
    text = " ".join("".join(texts).split())
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 10]} ... {text[-5:]}"


def _box(node: GraphNode) -> str:
    """A node in Mermaid's notation. Mermaid writes entities with # in place of &, and reads backticks as Markdown."""
    text = escape(node.label.replace("#", "\0"), quote=True).replace("&", "#").replace("#x27;", "#39;")
    label = text.replace("\0", "#35;").replace("`", "#96;")
    if node.line:
        label += f"<br/>{escape(node.line)}"
    opening, closing = {"gen": ("([", "])"), "select": ("{{", "}}"), "join": ("((", "))")}.get(node.kind, ("[", "]"))
    return f'{opening}"{label}"{closing}'


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what if n == 1 else f'{what}es' if what.endswith('ch') else f'{what}s'}"
