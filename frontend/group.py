"""Branches of one state: what a fork gives, and how they come back together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from banyan.expr import Expr, Expression
from banyan.runtime.errors import BadProgram

if TYPE_CHECKING:
    from banyan.prompt import Prompt

Branchwise = list[Expression] | tuple[Expression, ...] | Callable[[int], Expression]

S = TypeVar("S", bound="Prompt")


class Group(Generic[S]):
    """The states of a fork, in order. Each begins with all that its parent had, and goes its own way."""

    __slots__ = ("_joins", "_states")

    def __init__(self, states: list[S], joins: dict[str, Callable[[list[Any]], None]]) -> None:
        """`joins`: mode -> how the parent takes its branches back. For `State.fork` to make, not for users."""
        self._states, self._joins = states, joins

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[S]:
        return iter(self._states)

    @overload
    def __getitem__(self, i: int) -> S: ...
    @overload
    def __getitem__(self, i: slice) -> list[S]: ...
    def __getitem__(self, i: int | slice) -> S | list[S]:
        return self._states[i]

    def __iadd__(self, what: Expression | Branchwise) -> Self:
        """Append to every branch: the same expression to all, or to branch i `what[i]` of a list or `what(i)`."""
        if isinstance(what, str | Expr):
            each: list[Expression] = [what] * len(self)
        elif callable(what):
            each = [what(i) for i in range(len(self))]
        elif isinstance(what, list | tuple):
            each = list(what)
            if len(each) != len(self):
                raise BadProgram(f"a list of {len(each)} was appended to {len(self)} branches; it needs one for each")
        else:
            raise BadProgram(f"branches take an expression, a list of them or a function, not {type(what).__name__}")
        for state, part in zip(self._states, each, strict=True):
            state += part
        return self

    def join(self, mode: Literal["gather_variable", "concate_and_append"] = "gather_variable") -> None:
        """Bring the branches back to their parent. Does not wait for them.

        gather_variable: each variable that the parent lacks becomes a list of all branches' values (None where a branch
        has none), also for a single branch. concate_and_append: the text that each branch got since the fork is
        appended to the parent, in order and exactly; after it the branches take no more text.
        """
        if mode not in self._joins:
            raise BadProgram(f"there is no way to join called {mode!r}; there are {', '.join(self._joins)}")
        self._joins[mode](self._states)
