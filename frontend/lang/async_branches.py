"""Choosing among branches on an event loop."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, overload

from banyan.lang.branches import Ballot, Race, Ranking, Step, check_beam, expanded, finishing, likelihood
from banyan.lang.group import Group, OnError

if TYPE_CHECKING:
    from banyan.lang.async_state import AsyncState


class AsyncBranches(Group["AsyncState"]):
    """The states of a fork in an `async def` program. What chooses among them is awaited, and drops those that lose."""

    __slots__ = ()

    async def as_completed(self) -> AsyncIterator[AsyncState]:
        """`Branches.as_completed`, for `async for`."""
        async for i in self._finished():
            yield self._states[i]

    async def best(self, key: Callable[[AsyncState], Any | Awaitable[Any]], on_error: OnError = "raise") -> AsyncState:
        """`Branches.best`. With an `async def` key, all branches are looked at side by side."""
        return (await self._top(1, key, on_error))[0]

    @overload
    async def first(self) -> AsyncState: ...
    @overload
    async def first(self, k: int) -> list[AsyncState]: ...
    async def first(self, k: int | None = None) -> AsyncState | list[AsyncState]:
        """`Branches.first`."""
        race = Race(self._states, k)
        async for i in self._finished():
            if race.takes(i):
                break
        return race.winners() if k is not None else race.winners()[0]

    async def vote(self, name: str, key: Callable[[Any], Any] | None = None, on_error: OnError = "raise") -> AsyncState:
        """`Branches.vote`."""
        ballot = Ballot(self._states, name, key, on_error)
        async for i in self._finished():
            if ballot.takes(i):
                break
        return ballot.winner()

    async def _top(self, k: int, key: Callable[[AsyncState], Any] | None, on_error: OnError) -> list[AsyncState]:
        import asyncio  # here: it costs more than all of `import banyan`

        ranking = Ranking(self._states, on_error)
        looks: dict[int, asyncio.Future[Any]] = {}
        try:
            async for i in self._finished():
                if ranking.takes(i):
                    score = (key or likelihood)(self._states[i])
                    if inspect.isawaitable(score):
                        looks[i] = asyncio.ensure_future(score)
                    else:
                        ranking.scores[i] = score
            for i, look in looks.items():
                ranking.scores[i] = await look
        finally:
            for look in looks.values():
                look.cancel()
        return ranking.winners(k)

    async def _finished(self) -> AsyncIterator[int]:
        n_left = len(self)
        async for i in finishing(self._states):
            yield i
            n_left -= 1
            if not n_left:
                return


async def beam(
    root: AsyncState, k: int, step: Step, depth: int, width: int, key: Callable[[AsyncState], Any] | None
) -> AsyncBranches:
    """See AsyncState.beam."""
    states = check_beam(root, k, depth, width)
    for _ in range(depth):
        states = await AsyncBranches(expanded(states, step, width, key is None), root)._top(k, key, "collect")
    return AsyncBranches(states, root)
