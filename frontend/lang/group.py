"""Branches of one state: what a fork gives, and how they come back together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar, overload

from banyan.lang.expr import Expr, Expression
from banyan.lang.lazy_value import JoinedValues
from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire

if TYPE_CHECKING:
    from banyan.lang.state_base import StateBase

Branchwise = list[Expression] | tuple[Expression, ...] | Callable[[int], Expression]
OnError = Literal["raise", "collect"]

S = TypeVar("S", bound="StateBase")


class Group(Generic[S]):
    """The states of a fork, in order. Each begins with all that its parent had, and goes its own way."""

    __slots__ = ("_parent", "_states")

    def __init__(self, states: list[S], parent: StateBase) -> None:
        """For states to make, not for users."""
        self._states, self._parent = states, parent

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

    def __setitem__(self, i: int, state: S) -> None:
        """For `group[i] += ...`, which appends and then puts back what it appended to. BadProgram: another state."""
        if state is not self._states[i]:
            raise BadProgram(f"branch {i} is what it is; append to it with group[{i}] += ...")

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
            state._append(part)
        return self

    def join(
        self,
        mode: Literal["gather_variable", "concat", "concate_and_append"] = "gather_variable",
        on_error: OnError = "raise",
    ) -> None:
        """Bring the branches back to their parent. Does not wait for them.

        gather_variable: each variable that the parent lacks becomes a list of all branches' values (None where a branch
        has none), also for a single branch. Reading it, and `sync()` of the parent, raise a ForkError, which says which
        branch failed; with on_error="collect" that error stands in the list, in the place of the branch.

        concat, which SGLang calls concate_and_append: the text that each branch got since the fork is appended to the
        parent, in order and exactly; after it the branches take no more text. If one failed, so has the parent.
        """
        checked(on_error)
        if mode == "gather_variable":
            self._gather(on_error)
        elif mode in ("concat", "concate_and_append"):
            if on_error != "raise":
                raise BadProgram(
                    "concat appends the text of all branches, and one that failed has none; gather instead"
                )
            self._concatenate()
        else:
            raise BadProgram(f"there is no way to join called {mode!r}; there are gather_variable and concat")

    def drop(self) -> None:
        """Stop all branches, as `drop` of each does."""
        for state in self._states:
            state.drop()

    def _gather(self, on_error: OnError) -> None:
        parent = self._parent
        parent._check_open()
        names = dict.fromkeys(name for branch in self._states for name in branch._values)  # in the order they appeared
        for name in names:
            if name not in parent._values:
                values = [branch._values.get(name) for branch in self._states]
                parent._set(name, JoinedValues(values, on_error == "collect"))

    def _concatenate(self) -> None:
        parent = self._parent
        parent._check_open()
        for branch in self._states:
            branch._check_open()
            if branch._lane.parent is not parent._lane:
                raise BadProgram("these branches were forked from branches; adopt one of them instead")
            if branch._transcript.role != parent._transcript.role:
                raise BadProgram(
                    f"the open turn is {branch._transcript.role!r} in a branch and {parent._transcript.role!r} in its "
                    "parent; they must be the same to be joined"
                )
        for branch in self._states:
            for item in branch._transcript.own.items:
                parent._transcript.own.put(item)
            branch._closed = "was appended to its parent"
        parent._record.add(wire.Join(parent._lane.number, tuple(branch._lane.number for branch in self._states)))


def checked(on_error: object) -> None:
    """BadProgram: it is none of the two."""
    if on_error not in ("raise", "collect"):
        raise BadProgram(f"on_error is {on_error!r}; it must be 'raise' or 'collect'")
