"""What a state has cost, in tokens."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import msgspec

from banyan.runtime.protocol import wire


class GenUsage(msgspec.Struct, frozen=True):
    """Tokens of one gen or select. name: its variable, "" if none; line: where it was appended, "file.py:12"; state:
    the branch, 0 for the first. The rest is as in `Usage`."""

    name: str = ""
    line: str = ""
    state: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def computed(self) -> int:
        return self.prompt - self.cached


class Usage(msgspec.Struct, frozen=True):
    """Tokens of all gens of a state and its branches. Usages can be added, also by `sum(...)`.

    prompt: of all prompts, each gen's whole prompt counted. cached: so many of them were in the tree already, and
    computed = prompt - cached were not. generated: all outputs. drafted: tokens of them that were proposed before they
    were computed, accepted: those that were right. gens: one by one, branch by branch.
    """

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    gens: tuple[GenUsage, ...] = ()

    @classmethod
    def of(cls, gens: Iterable[GenUsage]) -> Usage:
        """The sum of `gens`."""
        gens = tuple(gens)
        return cls(gens=gens, **{name: sum(getattr(gen, name) for gen in gens) for name in COUNTS})

    @property
    def computed(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt - self.cached

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were cached, 0.0 to 1.0."""
        return self.cached / self.prompt if self.prompt else 0.0

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage.of((*self.gens, *other.gens))

    def __radd__(self, other: object) -> Usage:
        return self if other == 0 else NotImplemented  # what `sum` begins with

    def __repr__(self) -> str:
        shown = {"prompt": self.prompt, "cached": self.cached, "computed": self.computed, "generated": self.generated}
        if self.drafted:
            shown |= {"drafted": self.drafted, "accepted": self.accepted}
        return f"Usage({', '.join(f'{name}={count}' for name, count in shown.items())})"

    def _repr_html_(self) -> str:
        """A table of the gens, for notebooks."""
        names = ("prompt", "cached", "computed", "generated", *(("drafted", "accepted") if self.drafted else ()))
        rows = [(gen.name or "-", gen.line, *(getattr(gen, name) for name in names)) for gen in self.gens]
        rows.append(("all", "", *(getattr(self, name) for name in names)))
        head = "".join(f"<th>{name}</th>" for name in ("gen", "line", *names))
        body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


COUNTS = ("prompt", "cached", "generated", "drafted", "accepted")


def of_value(op: wire.Gen | wire.Select, usage: wire.TokenUsage) -> GenUsage:
    """The usage of the gen that `op` asked for."""
    return GenUsage(op.name, op.line, op.state, *(getattr(usage, name) for name in COUNTS))
