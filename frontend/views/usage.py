"""Token counts of the gens of a state."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import msgspec

COUNTS = ("prompt", "cached", "generated", "drafted", "accepted")


class TokenCounts(msgspec.Struct, frozen=True):
    """Token counts. prompt: prompt tokens. cached: how many of them were in the tree already. generated: output tokens.
    drafted: tokens that drafters proposed. accepted: how many of these became output."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def computed(self) -> int:
        """Prompt tokens that were not cached."""
        return self.prompt - self.cached


class GenUsage(TokenCounts, frozen=True):
    """Token counts of one gen or select. name: its variable, or "". line: where it was appended, "file.py:12". state:
    the number of its branch; 0: the state of the program itself."""

    name: str = ""
    line: str = ""
    state: int = 0


class Usage(TokenCounts, frozen=True):
    """Token counts of all gens of a state and its branches. Each gen counts its whole prompt, so text that several
    gens read counts several times. computed = prompt - cached.

    gens: the counts of each gen, branch by branch. Usages can be added with `+` and `sum(...)`.
    """

    gens: tuple[GenUsage, ...] = ()

    @classmethod
    def of(cls, gens: Iterable[GenUsage]) -> Usage:
        """The sum of `gens`."""
        gens = tuple(gens)
        return cls(gens=gens, **{name: sum(getattr(gen, name) for gen in gens) for name in COUNTS})

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were cached, 0.0 to 1.0."""
        return self.cached / self.prompt if self.prompt else 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage.of((*self.gens, *other.gens)) if isinstance(other, Usage) else NotImplemented

    def __radd__(self, other: object) -> Usage:
        return self if other == 0 else NotImplemented  # `sum` starts with 0

    def _names(self) -> tuple[str, ...]:
        return ("prompt", "cached", "computed", "generated", *(("drafted", "accepted") if self.drafted else ()))

    def __repr__(self) -> str:
        return f"Usage({', '.join(f'{name}={getattr(self, name)}' for name in self._names())})"

    def _repr_html_(self) -> str:
        """A table of the gens, for notebooks."""
        names = self._names()
        rows = [(gen.name or "-", gen.line, *(getattr(gen, name) for name in names)) for gen in self.gens]
        rows.append(("all", "", *(getattr(self, name) for name in names)))
        head = "".join(f"<th>{name}</th>" for name in ("gen", "line", *names))
        body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
