"""Chooses among the branches of a fork, and drops the others. A branch is considered once all its gens have finished.
The callers, Branches and AsyncBranches, wait for the branches; the functions of this module never wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec.structs import replace

from banyan.execution.feed import Feed
from banyan.lang.expr import Expression, GenExpr, Leaf, leaves
from banyan.lang.lazy_value import LazyValue, fork_error, lazy_values, read_object
from banyan.lang.state_base import OnError, StateBase, check_on_error, flat
from banyan.runtime.errors import BadOutput, BadProgram, BanyanError, ForkError, Unsupported
from banyan.runtime.future import ValueFuture, when_all_done
from banyan.runtime.protocol import wire

P = TypeVar("P", bound=StateBase)
Step: TypeAlias = Expression | Callable[[Any], Expression]


def finishing(states: Sequence[StateBase]) -> Feed[int]:
    """Returns a feed of the indices of `states`. The feed gets an index when the branch has finished or failed, and
    closes when it has all indices. Branches that have finished already come in the order in which they finished."""
    feed = Feed[int]()
    if not states:
        feed.close()
        return feed
    with suppress(BanyanError):  # if the program could not be sent, its values have failed: all branches have finished
        states[0]._record.flush()

    def put(i: int) -> None:
        feed.put(i)
        if len(feed.items) == len(states):
            feed.close()

    futures = [
        [*state._futures(), *(ref.future for value in state._own_joined for ref in lazy_values(value))]
        for state in states
    ]
    for i in sorted(range(len(states)), key=lambda i: max(map(_ended, futures[i]), default=0.0)):
        when_all_done(futures[i], lambda i=i: put(i))  # type: ignore[misc]
    return feed


def _ended(future: ValueFuture[wire.Value]) -> float:
    """When the value of a future became known; inf: it is not known yet, or has failed."""
    return future.result().times.ended if future.done() and future.exception() is None else math.inf


def _failure(state: StateBase) -> BanyanError | None:
    """Returns the error of a finished branch, or None. Errors from before the fork do not count. If the branch was
    itself forked, an error in one of its sub-branches counts only if this sub-branch was joined: others may have been
    dropped because they lost a race."""
    own = [item for item in state._transcript.own.items if isinstance(item, LazyValue)]
    try:
        state._check_values(own, state._own_joined)
    except BanyanError as e:
        return e
    if state._closed or state._record.failure is not None:  # dropped, perhaps before its own branches finished
        errors = (future.exception() for future in state._futures())
        return next((error for error in errors if isinstance(error, BanyanError)), None)
    return None


class BranchChoice(Generic[P]):
    """Base class of Ranking, Race and Ballot. The caller passes each finished branch to `add` or `has_failed`."""

    def __init__(self, states: Sequence[P], on_error: OnError) -> None:
        check_on_error(on_error)
        if not states:
            raise BadProgram("there is no branch to choose; the fork has none")
        self._states, self._on_error = states, on_error
        self._errors: dict[int, BanyanError] = {}

    def add(self, i: int) -> bool:
        """Record that branch `i` has finished. Returns whether the winners are known now."""
        raise NotImplementedError

    def has_failed(self, i: int) -> bool:
        """Whether the finished branch `i` failed. ForkError: the branch failed, and on_error is "raise"."""
        error = _failure(self._states[i])
        if error is None:
            return False
        self._fail(i, error)
        return True

    @contextmanager
    def reading(self, i: int) -> Iterator[None]:
        """Read values of branch `i` in this context. If the block reads an invalid value, the branch fails."""
        try:
            yield
        except (BadOutput, ForkError) as e:  # ForkError: of a joined variable
            self._fail(i, e)

    def _fail(self, i: int, error: BanyanError) -> None:
        """Record that branch `i` failed. ForkError: on_error is "raise"."""
        self._errors[i] = error
        if self._on_error == "raise":
            raise fork_error(i, error)

    def _keep(self, winners: Sequence[int], n: int) -> list[P]:
        """Drop all branches but `winners`, and return the winners. ForkError: there are fewer than `n` winners."""
        if len(winners) < n:
            i, error = next(iter(self._errors.items()))
            raise fork_error(i, error, f"{len(self._errors)} of {len(self._states)} branches failed; ")
        kept = [self._states[i] for i in winners]
        for state in self._states:
            if state not in kept:
                state._drop()
        with suppress(BanyanError):  # the program was stopped anyway
            self._states[0]._record.flush()
        return kept


class Ranking(BranchChoice[P]):
    """Keeps the branches with the highest scores. The caller puts the score of branch i into `scores[i]`."""

    def __init__(self, states: Sequence[P], on_error: OnError) -> None:
        super().__init__(states, on_error)
        self.scores: dict[int, Any] = {}

    def winners(self, k: int) -> list[P]:
        """The best `k` branches, the best first; fewer if fewer have a score. Scores of nan rank last. BadProgram: a
        score is None, all are nan, they cannot be ordered, or they are texts of numbers, which their characters would
        put in another order."""
        texts = sorted(x for x in self.scores.values() if isinstance(x, str))
        if texts and texts != _by_number(texts):
            raise BadProgram(f"the key returned texts of numbers, and {texts[-1]!r} would be the greatest; use float()")
        scored = [(i, self.scores[i]) for i in sorted(self.scores)]
        if (missing := next((i for i, x in scored if x is None), None)) is not None:
            raise BadProgram(f"the key returned None for branch {missing}; it must return a score")
        try:
            order = sorted((i for i, x in scored if x == x), key=self.scores.__getitem__, reverse=True)
        except TypeError as e:
            raise BadProgram(f"the scores that the key returned have no order: {e}") from e
        if scored and not order:
            raise BadProgram("the key returned nan for all branches, so none of them is the best")
        order += (i for i, x in scored if x != x)
        return self._keep(order[:k], 1)


def _by_number(texts: list[str]) -> list[str]:
    """The texts in the order of the numbers that they are; as they are if one of them is none."""
    try:
        return sorted(texts, key=float)
    except ValueError:
        return texts


class Race(BranchChoice[P]):
    """Keeps the first `k` branches that finish without an error, and whose variables are valid for their types."""

    def __init__(self, states: Sequence[P], k: int) -> None:
        super().__init__(states, "collect")
        if not 1 <= k <= len(states):
            raise BadProgram(f"first({k}) of {len(states)} branches: the number must be from 1 to {len(states)}")
        self._k = k
        self._finished: list[int] = []

    def add(self, i: int) -> bool:
        if not self.has_failed(i):
            own = set(flat(self._states[i]._refs))
            with self.reading(i):
                for value in self._states[i]._values.values():
                    # The program has dealt with a value that was refused already.
                    if isinstance(value, LazyValue) and value.number in own and not value.was_refused:
                        value.value()
                self._finished.append(i)
        return len(self._finished) == self._k

    def winners(self) -> list[P]:
        return self._keep(self._finished, self._k)


class Ballot(BranchChoice[P]):
    """Keeps the first of the branches whose variable has the most frequent value."""

    def __init__(self, states: Sequence[P], name: str, key: Callable[[Any], Any] | None, on_error: OnError) -> None:
        super().__init__(states, on_error)
        self._name = name
        self._key = key or (lambda value: value.strip() if isinstance(value, str) else value)
        self._votes: list[tuple[Any, list[int]]] = []  # (value, its branches); values may be unhashable
        self._n_left = len(states)

    def add(self, i: int) -> bool:
        self._n_left -= 1
        if not self.has_failed(i):
            try:
                vote = read_object(self._states[i]._stored(self._name))
            except (BadOutput, ForkError) as e:  # ForkError: of a joined variable
                self._fail(i, e)
            else:
                value = self._key(vote)
                branches = next((branches for other, branches in self._votes if other == value), None)
                if branches is None:
                    self._votes.append((value, branches := []))
                branches.append(i)
        first, second, *_ = (*sorted((len(branches) for _, branches in self._votes), reverse=True), 0, 0)
        return first > second + self._n_left

    def winner(self) -> P:
        leading = max(self._votes, key=lambda vote: (len(vote[1]), -min(vote[1])), default=None)
        return self._keep([] if leading is None else [min(leading[1])], 1)[0]


# ---- beam search -----------------------------------------------------------------------------------------------------


def checked_width(k: int, depth: int, width: int | None) -> int:
    """The width of a beam search, which is `k` by default. BadProgram: a number is less than 1."""
    width = k if width is None else width
    for name, value in (("k", k), ("depth", depth), ("width", width)):
        if not isinstance(value, int) or value < 1:
            raise BadProgram(f"{name} is {value!r}; it must be at least 1")
    return width


def expanded(states: Sequence[P], step: Step, width: int, with_logprobs: bool) -> list[P]:
    """Fork each state `width` times and append `step` to each branch. Returns the branches. with_logprobs: the gens of
    the step also return the log-probabilities that `likelihood` needs."""
    branches: list[P] = []
    for state in states:
        for branch in state._forked(width):
            what = step(branch) if callable(step) else step
            branch._append(_with_logprobs(what) if with_logprobs else what)
            branches.append(branch)
    return branches


def _with_logprobs(step: Expression) -> list[str | Leaf]:
    return [
        replace(leaf, options=replace(leaf.options, return_logprob=True)) if isinstance(leaf, GenExpr) else leaf
        for leaf in leaves(step)
    ]


def likelihood(state: StateBase) -> float:
    """The log-probability of the text that a finished state generated: the sum over the tokens of its selects, and of
    its gens with return_logprob."""
    total, n_outputs, n_tokens = 0.0, 0, 0
    ref = state._transcript.last  # this chain has what the state generated, and no spliced values
    while ref is not None:
        if (value := ref.wait()).scores is None:
            n_outputs += (ref.has_logprobs or bool(ref.choices)) and bool(value.samples[0].text)
            n_tokens += len(value.samples[0].logprobs)
            total += math.fsum(token.logprob for token in value.samples[0].logprobs)
        else:
            chosen = value.scores.tokens[ref.choices.index(value.samples[0].text)]
            total += math.fsum(logprob for logprob, _ in chosen)
        ref = ref.previous
    if n_outputs and not n_tokens:
        raise Unsupported("a beam without a key: this backend returns no log-probabilities to rank by; pass key=")
    return total
