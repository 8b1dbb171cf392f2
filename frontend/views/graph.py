"""A run as the graph that it was: what was appended, what goes on from what, and what of it crossed the wire when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from banyan.execution.run_trace import RunTrace, Sent, TimeSpan
from banyan.lang.state_base import StateBase
from banyan.runtime.protocol import wire
from banyan.templates.argument_slot import AWAITED, ArgumentObserved
from banyan.templates.recorder import Recording

N_SHOWN = 48
"""Characters of a text that a drawing shows."""


class GraphNode(NamedTuple):
    """A piece of a prompt, in the order of appends. kind: text, gen, select, read or join. state: whose it is.

    message: in which it was sent. after: the nodes that it goes on from. of: those whose values stand in it.
    """

    kind: str
    label: str
    state: int
    message: int
    line: str
    after: tuple[int, ...]
    of: tuple[int, ...]


class SentMessage(NamedTuple):
    """Ops that were sent together. n_bytes: of them on the wire. why: it was sent just then."""

    ops: tuple[wire.Op, ...]
    n_bytes: int
    why: str


class Shared(NamedTuple):
    """What branches begin with: all that state `of` had when it was forked. values: gens among it, by their names."""

    of: int
    branches: tuple[int, ...]
    n_chars: int
    values: tuple[str, ...]


class Graph:
    """Of one run; a notebook draws it.

    messages: what was sent. waits: where the body stood still until a value was there. shared: what forks did not send
    again. nodes: what a drawing shows. ended: where the body of a run without a model looked at a value.
    """

    def __init__(self, run: StateBase | Recording) -> None:
        """`run`: any state of it."""
        state, recording = (run.state, run) if isinstance(run, Recording) else (run, None)
        trace = state._record.trace
        end = trace.ended or float("inf")
        sent = _as_one(trace) if recording is not None else [one for one in trace.sent if one.at <= end]
        self.name = state._record.name
        self.messages = [SentMessage(tuple(trace.expanded(one.ops)), _n_bytes(one.ops), one.why) for one in sent]
        self.waits: list[TimeSpan] = [span for span in trace.spans if span.kind == "wait" and span.start <= end]
        drawing = _Drawing(self.messages)
        self.nodes, self.shared = drawing.nodes, drawing.shared
        self.ended: ArgumentObserved | None = None if recording is None else recording.ended
        self._n_others = 0 if recording is None else len(recording.programs) - 1

    def __repr__(self) -> str:
        return f"<Graph of program {self.name}: {self._size()}>"

    def _size(self) -> str:
        n = Counter(node.kind for node in self.nodes)
        n_states = len({node.state for node in self.nodes})
        kinds = [_counted(n[kind], kind) for kind in ("gen", "select") if n[kind]] or ["no gen"]
        return f"{', '.join(kinds)} in {_counted(n_states, 'state')}, {_counted(len(self.messages), 'message')}"

    # ---- in words ----------------------------------------------------------------------------------------------------

    def explain(self) -> str:
        """What was sent and why then, what branches share, and where the body waited, by source line."""
        return "\n".join([f"{self.name}: {self._size()}", *self._of_messages(), *self._of_sharing(), *self._of_waits()])

    def _of_messages(self) -> Iterator[str]:
        for k, message in enumerate(self.messages):
            n = Counter(node.kind for node in self.nodes if node.message == k)
            what = ", ".join(_counted(n[kind], kind) for kind in ("text", "gen", "select", "join", "read") if n[kind])
            why = f", sent when {message.why}" if message.why else ""
            yield f"message {k + 1}: {what or 'nothing to read'}; {message.n_bytes:,} bytes{why}"

    def _of_sharing(self) -> Iterator[str]:
        for of, branches, n_chars, values in self.shared:
            made = f" and {', '.join(map(repr, values))}" if values else ""
            whose = f"state {of}" if of else "the first state"
            yield (
                f"shared: {_counted(len(branches), 'branch')} of {whose} begin with its {n_chars:,} characters of text"
                f"{made}, sent once and computed once"
            )

    def _of_waits(self) -> Iterator[str]:
        for span in self.waits:
            took = span.end - span.start
            yield f"waited: {span.line} looks at {span.name!r}, {took:.3f} s; what follows may depend on it"
        if self.ended is not None:
            does = "awaits something" if self.ended.what == AWAITED else "looks at a value, which only a model can give"
            yield (f"ended: {self.ended.line} {does}; what follows may depend on it, and is seen with `backend=`")
        elif not self.waits:
            yield "waited: nowhere; the body ran to its end before any value was there"
        if self._n_others:
            yield f"beside it: {_counted(self._n_others, 'other program')} that it calls, each with messages of its own"

    # ---- drawn -------------------------------------------------------------------------------------------------------

    def mermaid(self) -> str:
        """The graph in Mermaid's notation: states run down, dotted lines are values that are spliced in."""
        waited = {span.name for span in self.waits}
        lines = ["flowchart TD"]
        for k in range(len(self.messages)):
            lines.append(f'  subgraph m{k} ["message {k + 1}"]')
            lines += [f"    n{i}{_box(node)}" for i, node in enumerate(self.nodes) if node.message == k]
            lines.append("  end")
        for i, node in enumerate(self.nodes):
            lines += [f"  n{other} --> n{i}" for other in node.after]
            lines += [f"  n{other} -.-> n{i}" for other in node.of]
        made = [i for i, node in enumerate(self.nodes) if node.kind in ("gen", "select")]
        looked = [i for i in made if self.nodes[i].label in waited]
        for style, which in (("made", made), ("looked", looked)):
            if which:
                lines.append(f"  class {','.join(f'n{i}' for i in which)} {style}")
        lines.append("  classDef made fill:#dff0d8,stroke:#3c763d,color:#222")
        lines.append("  classDef looked stroke-width:3px,stroke:#a94442")
        return "\n".join(lines) + "\n"

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{self.mermaid()}```\n\n```\n{self.explain()}\n```\n"


# ---- from ops to nodes ---------------------------------------------------------------------------------------------


class _Line:
    """A state while it is drawn. at: the nodes that its next one goes on from."""

    def __init__(self, begins_as: _Line | None = None) -> None:
        self.at: tuple[int, ...] = begins_as.at if begins_as else ()
        self.n_chars: int = begins_as.n_chars if begins_as else 0
        self.values: tuple[str, ...] = begins_as.values if begins_as else ()


class _Drawing:
    """The nodes of ops, one op after the other."""

    def __init__(self, messages: Iterable[SentMessage]) -> None:
        self.nodes: list[GraphNode] = []
        self.shared: list[Shared] = []
        self._lines = {0: _Line()}
        self._makers: dict[int, int] = {}  # value -> the node that makes it
        for k, message in enumerate(messages):
            for op in message.ops:
                self._draw(k, op)

    def _draw(self, k: int, op: wire.Op) -> None:
        line = self._lines[op.state]
        match op:
            case wire.Append(parts=parts) if any(not isinstance(part, wire.EndTurn) for part in parts):
                refs = [part.ref for part in parts if isinstance(part, wire.Ref)]
                line.at = (self._node(k, op, "text", _shown(parts), line.at, [self._makers[ref] for ref in refs]),)
                line.n_chars += sum(map(_n_chars, parts))
            case wire.Gen() | wire.Select():
                label = op.name or f"#{op.ref}"
                self._makers[op.ref] = made = self._node(k, op, type(op).__name__.lower(), label, line.at)
                line.at, line.values = (made,), (*line.values, label)
            case wire.Read(ref=ref, mark=mark):
                self._makers[ref] = self._node(k, op, "read", "text" if mark is None else "text of a scope", line.at)
            case wire.Fork(children=children):
                self._lines |= {child: _Line(line) for child in children}
                if line.at:
                    self.shared.append(Shared(op.state, children, line.n_chars, line.values))
            case wire.Join(children=(child,), adopt=True):
                self._lines[op.state] = _Line(self._lines[child])
            case wire.Join(children=children):
                ends = dict.fromkeys([*line.at, *(i for child in children for i in self._lines[child].at)])
                line.at = (self._node(k, op, "join", "join", tuple(ends)),)

    def _node(self, k: int, op: wire.Op, kind: str, label: str, after: tuple[int, ...], of: Sequence[int] = ()) -> int:
        self.nodes.append(GraphNode(kind, label, op.state, k, getattr(op, "line", ""), after, tuple(of)))
        return len(self.nodes) - 1


def _as_one(trace: RunTrace) -> list[Sent]:
    """A recorded body's messages: it never waits, and what a slow machine sends early would have gone with the rest."""
    ops = [op for message in trace.sent for op in message.ops]
    return [Sent(trace.sent[0].at, ops, trace.sent[-1].why)] if ops else []


def _n_bytes(ops: Sequence[wire.Op]) -> int:
    return len(wire.encode(wire.Submit(0, 0, tuple(ops))))


def _n_chars(part: wire.Part) -> int:
    return len(part) if isinstance(part, str) else len(part.text) if isinstance(part, wire.Raw) else 0


def _shown(parts: Sequence[wire.Part]) -> str:
    """Text as a drawing shows it, short and in one line."""
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
            case str():
                texts.append(part)
            case wire.Raw(text=text):
                texts.append(text)
    text = " ".join("".join(texts).split())
    return text if len(text) <= N_SHOWN else f"{text[: N_SHOWN - 10]} ... {text[-5:]}"


def _box(node: GraphNode) -> str:
    """A node with its shape. Mermaid takes entities written with # for &, and a text between backticks for Markdown."""
    text = escape(node.label.replace("#", "\0"), quote=True).replace("&", "#").replace("#x27;", "#39;")
    label = text.replace("\0", "#35;").replace("`", "#96;")
    if node.line:
        label += f"<br/>{escape(node.line)}"
    opening, closing = {"gen": ("([", "])"), "select": ("{{", "}}"), "join": ("((", "))")}.get(node.kind, ("[", "]"))
    return f'{opening}"{label}"{closing}'


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what if n == 1 else f'{what}es' if what.endswith('ch') else f'{what}s'}"
