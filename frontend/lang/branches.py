"""Choosing among the branches of a fork: the best, the first, the vote, or each as it is finished; and beams.

A branch is finished when all that was appended to it is done. Those that lose are dropped: their work stops on the
server, also that of their own branches, and their pages are the first to go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from msgspec.structs import replace

from banyan.execution.feed import Feed
from banyan.lang.expr import Expression, GenExpr, Leaf, leaves
from banyan.lang.group import Group, OnError, checked
from banyan.lang.lazy_value import LazyValue, fork_error, read_object
from banyan.runtime.errors import BadProgram, BanyanError, Unsupported

if TYPE_CHECKING:
    from banyan.lang.state import State
    from banyan.lang.state_base import StateBase

P = TypeVar("P", bound="StateBase")
Step: TypeAlias = "Expression | Callable[[Any], Expression]"


class Branches(Group["State"]):
    """The states of a fork. What chooses among them waits, and drops those that lose."""

    __slots__ = ()

    def as_completed(self) -> Iterator[State]:
        """Each branch as soon as it is finished; of one that failed, `error()` says why. Drops none."""
        return (self._states[i] for i in self._finished())

    def best(self, key: Callable[[State], Any], on_error: OnError = "raise") -> State:
        """The branch for which `key` is greatest; among equals the first. The others are dropped.

        on_error: "raise": a branch that fails is a ForkError. "collect": it cannot win, and only if all fail is that a
        ForkError.
        """
        return self._top(1, key, on_error)[0]

    @overload
    def first(self) -> State: ...
    @overload
    def first(self, k: int) -> list[State]: ...
    def first(self, k: int | None = None) -> State | list[State]:
        """The branch that is finished first, or the first `k`, in the order in which they were. The others are dropped.

        ForkError: too few of them did not fail.
        """
        race = Race(self._states, k)
        any(race.takes(i) for i in self._finished())
        return race.winners() if k is not None else race.winners()[0]

    def vote(self, name: str, key: Callable[[Any], Any] | None = None, on_error: OnError = "raise") -> State:
        """The first branch that holds the value of variable `name` that most hold. The others are dropped.

        Votes are counted as branches finish; once the rest cannot change the outcome, they are not waited for. Among
        equals, the value wins that the first branch holds. key: what of a value counts (of text, what stands between
        the space around it). on_error: as for `best`.
        """
        ballot = Ballot(self._states, name, key, on_error)
        any(ballot.takes(i) for i in self._finished())
        return ballot.winner()

    def _top(self, k: int, key: Callable[[State], Any] | None, on_error: OnError) -> list[State]:
        ranking = Ranking(self._states, on_error)
        for i in self._finished():
            if ranking.takes(i):
                ranking.scores[i] = (key or likelihood)(self._states[i])
        return ranking.winners(k)

    def _finished(self) -> Iterator[int]:
        return islice(finishing(self._states), len(self))


def beam(root: State, k: int, step: Step, depth: int, width: int, key: Callable[[State], Any] | None) -> Branches:
    """See State.beam."""
    states = check_beam(root, k, depth, width)
    for _ in range(depth):
        states = Branches(expanded(states, step, width, key is None), root)._top(k, key, "collect")
    return Branches(states, root)


# ---- what sync and async programs share: no waiting here -----------------------------------------------------------


def finishing(states: Sequence[StateBase]) -> Feed[int]:
    """The index of each branch as soon as it is finished, in whatever way. The feed has no end of its own."""
    feed = Feed[int]()
    with suppress(BanyanError):  # what was not sent has failed, and so they are finished
        states[0]._record.flush()
    for i, state in enumerate(states):
        left = state._futures()

        def look(_: object = None, i: int = i, left: list[Any] = left) -> None:
            while left:
                if not left[-1].done():
                    left[-1].add_done_callback(look)
                    return
                left.pop()
            feed.put(i)

        look()
    return feed


def failure(state: StateBase) -> BanyanError | None:
    """What went wrong in a finished branch, or in a branch of its own."""
    for item in state._transcript.own.items:
        if isinstance(item, LazyValue):
            try:
                item.wait()
            except BanyanError as e:
                return e
    errors = (future.exception() for future in state._futures())
    return next((error for error in errors if isinstance(error, BanyanError)), None)


class BranchChoice(Generic[P]):
    """Among finished branches, told one by one."""

    def __init__(self, states: Sequence[P], on_error: OnError) -> None:
        checked(on_error)
        self._states, self._on_error = states, on_error
        self._errors: dict[int, BanyanError] = {}

    def _is_out(self, i: int) -> bool:
        error = failure(self._states[i])
        if error is None:
            return False
        self._errors[i] = error
        if self._on_error == "raise":
            raise fork_error(i, error)
        return True

    def _keep(self, winners: Sequence[int], n: int) -> list[P]:
        """These, all others dropped. ForkError: there are less than `n`."""
        if len(winners) < n:
            i, error = next(iter(self._errors.items()))
            raise fork_error(i, error, f"{len(self._errors)} of {len(self._states)} branches failed; ")
        kept = [self._states[i] for i in winners]
        drop([state for state in self._states if state not in kept])
        return kept


class Ranking(BranchChoice[P]):
    """scores: branch -> what it is worth."""

    def __init__(self, states: Sequence[P], on_error: OnError) -> None:
        super().__init__(states, on_error)
        self.scores: dict[int, Any] = {}

    def takes(self, i: int) -> bool:
        """Whether branch `i`, which is finished, is to be scored."""
        return not self._is_out(i)

    def winners(self, k: int) -> list[P]:
        """The best `k`, or all if there are fewer; the best first."""
        order = sorted(sorted(self.scores), key=self.scores.__getitem__, reverse=True)
        return self._keep(order[:k], 1)


class Race(BranchChoice[P]):
    def __init__(self, states: Sequence[P], k: int | None) -> None:
        super().__init__(states, "collect")
        self._n = 1 if k is None else k
        if not 1 <= self._n <= len(states):
            raise BadProgram(f"the first {k} of {len(states)} branches; there must be at least one, and so many")
        self._arrived: list[int] = []

    def takes(self, i: int) -> bool:
        """Branch `i` is finished. True: it is decided."""
        if not self._is_out(i):
            self._arrived.append(i)
        return len(self._arrived) == self._n

    def winners(self) -> list[P]:
        return self._keep(self._arrived, self._n)


class Ballot(BranchChoice[P]):
    def __init__(self, states: Sequence[P], name: str, key: Callable[[Any], Any] | None, on_error: OnError) -> None:
        super().__init__(states, on_error)
        self._name, self._key = name, key or _stripped
        self._votes: list[tuple[Any, list[int]]] = []  # (value, its branches): values need not be hashable
        self._n_left = len(states)

    def takes(self, i: int) -> bool:
        """Branch `i` is finished. True: it is decided."""
        self._n_left -= 1
        if not self._is_out(i):
            value = self._key(read_object(self._states[i]._found(self._name)))
            for other, branches in self._votes:
                if other == value:
                    branches.append(i)
                    break
            else:
                self._votes.append((value, [i]))
        counts = sorted((len(branches) for _, branches in self._votes), reverse=True)
        return bool(counts) and counts[0] > (counts[1] if len(counts) > 1 else 0) + self._n_left

    def winner(self) -> P:
        most = max((len(branches) for _, branches in self._votes), default=0)
        leading = [min(branches) for _, branches in self._votes if len(branches) == most]
        return self._keep([min(leading)] if leading else [], 1)[0]


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def drop(states: Sequence[StateBase]) -> None:
    """Drop them, and tell the server at once."""
    for state in states:
        state._drop()
    if states:
        with suppress(BanyanError):  # then there is nothing left to stop
            states[0]._record.flush()


# ---- beams ---------------------------------------------------------------------------------------------------------


def check_beam(root: P, k: int, depth: int, width: int) -> list[P]:
    """The states that the first step expands."""
    for name, value in (("k", k), ("depth", depth), ("width", width)):
        if not isinstance(value, int) or value < 1:
            raise BadProgram(f"{name} is {value!r}; a beam needs at least 1")
    return [root]


def expanded(states: Sequence[P], step: Step, width: int, with_logprobs: bool) -> list[P]:
    """`width` branches of each state, one step further; of those that must come out alike only one."""
    branches: list[P] = []
    for state in states:
        for branch in state._forked(width):
            what = step(branch) if callable(step) else step
            branch._append(_scored(what) if with_logprobs else what)
            branches.append(branch)
    return branches


def _scored(step: Expression) -> list[str | Leaf]:
    """The step with log-probabilities of what it generates."""
    return [
        replace(leaf, options=replace(leaf.options, return_logprob=True)) if isinstance(leaf, GenExpr) else leaf
        for leaf in leaves(step)
    ]


def likelihood(state: StateBase) -> float:
    """The log-probability of all that was generated on the way to a finished state, as far as it was asked for."""
    total, n_gens, n_tokens = 0.0, 0, 0
    for item in state._transcript:
        if isinstance(item, LazyValue) and (value := item.wait()).scores is None:
            n_gens += 1
            n_tokens += len(value.samples[0].logprobs)
            total += math.fsum(token.logprob for token in value.samples[0].logprobs)
    if n_gens and not n_tokens:
        raise Unsupported(
            "a beam without a key: this backend gives no log-probabilities; say what to rank by with key="
        )
    return total
