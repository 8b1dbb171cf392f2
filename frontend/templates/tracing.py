"""SGLang's `trace` and `cache`: find out what a program's body appends, without a model. `Program.graph` shows more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from banyan.backends.base import Backend
from banyan.runtime.protocol import wire
from banyan.templates.argument_slot import ArgumentObserved
from banyan.templates.recorder import Recording


@dataclass(repr=False, eq=False)
class TraceNode:
    """An appended piece of a prompt. before: the piece in front of this one, perhaps of the parent state."""

    number: int
    label: str
    before: TraceNode | None

    def __repr__(self) -> str:
        return self.label

    def print_graph_dfs(self) -> str:
        """The pieces of the prompt up to this one, one per line, such as "%1 = %0 + Gen('x')"."""
        lines, node = [], self
        while node.before is not None:
            lines.append(f"%{node.number} = %{node.before.number} + {node.label}\n")
            node = node.before
        return "".join([f"%{node.number} = {node.label}\n", *reversed(lines)])


class Trace:
    """What a body appended. variables: the names that it set. ended: the argument or value at which the trace ended
    early; None: the body ran to its end."""

    def __init__(self, recording: Recording, names: Sequence[str]) -> None:
        self.variables: Mapping[str, Any] = dict.fromkeys(recording.state._values)
        self.ended: ArgumentObserved | None = recording.ended
        self.ret_value = recording.value
        self._nodes: list[TraceNode] = []
        self._last: dict[int, TraceNode] = {}
        for op in recording.ops:
            for label in _labels(op, names):
                self._add(op.state, label)
            if isinstance(op, wire.Fork):
                parent = self._last[op.state]
                for i, child in enumerate(op.children):
                    self._last[child] = parent
                    self._add(child, f"GetForkItem({i})")

    def _add(self, state: int, label: str) -> None:
        node = TraceNode(len(self._nodes), label, self._last.get(state))
        self._nodes.append(node)
        self._last[state] = node

    @property
    def last_node(self) -> TraceNode | None:
        """The last piece of the body's own state; None if nothing was appended to this state."""
        return self._last.get(0)

    def flatten_nodes(self) -> list[TraceNode]:
        """The pieces of the prompts of all states, in the order in which the body appended them."""
        return list(self._nodes)


def _labels(op: wire.Op, names: Sequence[str]) -> Iterator[str]:
    match op:
        case wire.Append(parts=parts):
            for part in parts:
                yield _label(part, names)
        case wire.Gen(name=name):
            yield f"Gen({name!r})"
        case wire.Select(name=name, choices=choices):
            yield f"Select({name!r}, choices={list(choices)})"
        case wire.Fork(children=children):
            yield f"Fork({len(children)})"
        case wire.Join(children=children):
            yield f"Join({len(children)})"


def _label(part: wire.Part, names: Sequence[str]) -> str:
    match part:
        case wire.Arg(i=i):
            return f"Argument({names[i]!r})"
        case wire.Ref(ref=ref):
            return f"Value({ref})"
        case wire.BeginTurn(role=role):
            return f"RoleBegin({role!r})"
        case wire.EndTurn():
            return "RoleEnd()"
        case wire.Raw(text=text) | str(text):
            return f"Constant({text!r})"
        case wire.Image(kind=kind):
            return f"Image({kind!r})"
        case wire.TokenIds(ids=ids):
            return f"TokenIds({len(ids) // 4})"


def cache_prefix(recording: Recording, backend: Backend, name: str) -> None:
    """Compute the KV of the text that all runs of a program begin with, and wait until it is in the cache. The text
    ends at the first argument, generated value, gen or fork. recording: the program's body, recorded with slots."""
    parts: list[wire.Part] = []
    for op in recording.ops:
        if not isinstance(op, wire.Append) or op.state != 0:
            break
        constant = [*takewhile(lambda part: not isinstance(part, wire.Arg | wire.Ref), op.parts)]
        parts += constant
        if len(constant) < len(op.parts):
            break
    if any(part if isinstance(part, str) else part.text for part in parts if isinstance(part, str | wire.Raw)):
        program = backend.program(name)
        program.submit([wire.Append(0, tuple(parts)), wire.Gen(0, 0, wire.Sampling(max_tokens=0))])
        try:
            program.future(0).result()
        finally:
            program.cancel()
