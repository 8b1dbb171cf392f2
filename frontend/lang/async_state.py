"""AsyncState and AsyncBranches: State and Branches for event loops. Methods that wait must be awaited."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from banyan.execution.text_pieces import known, partials_async
from banyan.lang import branch_choice
from banyan.lang.lazy_value import dist, is_done, meta_info, read, read_object, tool_calls
from banyan.lang.state_base import Group, OnError, StateBase
from banyan.runtime.errors import BadProgram
from banyan.tools.toolbox import ToolCall
from banyan.views.state_views import page, text_so_far
from banyan.views.transcript import messages

if TYPE_CHECKING:
    from banyan.views.run_page import Page

C = TypeVar("C", bound=branch_choice.BranchChoice[Any])
T = TypeVar("T")


class AsyncState(StateBase):
    """The state of an `async def` program, and what `run_async` returns.

    `await s.value("x")` waits for a variable. `s["x"]` returns a known value and never blocks the event loop.
    """

    __slots__ = ()
    _is_async = True

    def __str__(self) -> str:
        """The text that is known so far; the repr while the body runs."""
        if not self._record.ended.is_closed:
            return repr(self)
        return text_so_far(self._record, self._handle.number, self._streamed())

    def __format__(self, spec: str) -> str:
        """The same as `str`. BadProgram: the body still runs, and `str` would return the repr."""
        if not self._record.ended.is_closed:
            raise BadProgram("the text may not be known yet; write `await s.text()`", program=self._record.name)
        return format(str(self), spec)

    # ---- variables ---------------------------------------------------------------------------------------------------

    async def _known(self, name: str) -> Any:
        value = await self._lookup_async(name)
        await known(value)
        return value

    @overload
    async def value(self, name: str) -> Any: ...
    @overload
    async def value(self, name: str, type: type[T]) -> T: ...
    @overload
    async def value(self, name: str, type: Any) -> Any: ...
    async def value(self, name: str, type: Any = None) -> Any:
        """Like `State.value`: waits until the variable is known.

        UnknownVariable (a KeyError): there is no such variable. BadOutput: the text is not a valid object.
        """
        return read_object(await self._known(name), type)

    def __getitem__(self, name: str) -> Any:
        """The value of a variable, without waiting. After `run_async` has returned, all variables are known.

        UnknownVariable (a KeyError): there is no such variable. BadProgram: its value is not known yet.
        """
        value = self._stored(name)
        if not is_done(value):
            raise BadProgram(
                f"{name!r} is not known yet, and waiting for it here would block the event loop; "
                f"write `await s.value({name!r})`",
                program=self._record.name,
            )
        return read(value)

    get_var = __getitem__

    async def partials(self, name: str) -> AsyncIterator[Any]:
        """Yields the growing object of a gen with a type, for `async for`. The last item is the final object. See
        `State.partials`."""
        async for part in partials_async(await self._lookup_async(name)):
            yield part

    async def get_meta_info(self, name: str) -> Any:
        """Wait for a variable, and return a dict that says how its text was generated: token counts, times and so on;
        see `State.get_meta_info`. None for a variable that was not generated."""
        return meta_info(await self._known(name))

    async def tool_calls(self, name: str) -> list[ToolCall]:
        """Wait for a gen with tools, and return its tool calls in order, with their results. Also works for a gen that
        failed."""
        return tool_calls(await self._known(name))  # type: ignore[no-any-return]

    async def dist(self, name: str) -> dict[str, float]:
        """Wait for a select, and return the probability that the model gives to the text of each choice. See
        `State.dist`."""
        return dist(await self._known(name))  # type: ignore[no-any-return]

    # ---- reading -----------------------------------------------------------------------------------------------------

    async def text(self) -> str:
        """Wait until the whole prompt is known, and return its text as the server has it, including role markers."""
        await self._body_ended()
        ref = self._read(None)
        await known(ref)
        return ref.text()

    async def messages(self) -> list[dict[str, Any]]:
        """Wait for all values, and return the finished turns as `{"role": ..., "content": ...}`. White space at the
        start of a content is removed."""
        await self._all_known()
        return messages(self._transcript, self._record.backend.welcome.chat)

    async def sync(self) -> None:
        """Wait until all gens of this state and of joined branches are done. Raises the first error.

        A text that is not valid for the type of its gen is no error here, only where `value` reads it.
        """
        await self._all_known()
        for value in self._joined:
            await known(value)
        self._check_values(self._lazy_values(), self._joined)

    async def error(self) -> BaseException | None:
        """Wait as `sync` does, and return the error that `sync` would raise, or None."""
        if self._record.error is not None:
            self._record.error_flag.is_seen = True
            return self._record.error
        try:
            await self.sync()
        except Exception as e:
            return e
        return None

    async def show(self, path: str | Path | None = None) -> Page:
        """Returns an HTML page about the run, as `State.show` does, but does not wait: the page shows only values that
        are known by now. path: also write the page to this file."""
        import asyncio  # lazily: it takes longer to import than the rest of the package

        return await asyncio.to_thread(page, self._record, self._handle.number, path)

    def text_iter(self, var_name: str | None = None) -> AsyncIterator[str]:
        """Yields the text of a variable in pieces as it is generated, for `async for`. var_name None: the text of the
        whole state. See `State.text_iter`."""
        return self.text_async_iter(var_name)

    async def _body_ended(self) -> None:
        self._note_reader()
        if self._is_view:
            async for _ in self._record.ended:
                pass

    async def _all_known(self) -> None:
        """Wait until all values in the prompt are known."""
        await self._body_ended()
        refs = self._lazy_values()
        if not all(ref.is_done for ref in refs):
            self._record.flush()
        for ref in refs:
            await known(ref)

    # ---- branching ---------------------------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: Any = None) -> AsyncBranches:
        """Create `size` branches, which start with this state's text, open turn and variables. They share its KV. Does
        not wait. position_ids_offset is ignored, with a warning, as in SGLang."""
        return AsyncBranches(self._forked(size, position_ids_offset), self)

    async def beam(
        self,
        k: int,
        step: branch_choice.Step,
        *,
        depth: int = 1,
        width: int | None = None,
        key: Callable[[AsyncState], Any] | None = None,
    ) -> AsyncBranches:
        """Beam search. Returns the best `k` branches after `depth` steps, the best first. The arguments are those of
        `State.beam`, except that `key` may be an `async def`."""
        width = branch_choice.checked_width(k, depth, width)
        states = [self]
        for _ in range(depth):
            branches = AsyncBranches(branch_choice.expanded(states, step, width, key is None), self)
            states = await branches._top(k, key, "collect")
        return AsyncBranches(states, self)


class AsyncBranches(Group[AsyncState]):
    """The branches of a fork in an `async def` program. See Branches; `best`, `first` and `vote` must be awaited."""

    __slots__ = ()

    async def as_completed(self) -> AsyncIterator[AsyncState]:
        """Yields each branch when it has finished or failed, for `async for`. Drops no branch."""
        async for i in branch_choice.finishing(self._states):
            yield self._states[i]

    async def best(self, key: Callable[[AsyncState], Any | Awaitable[Any]], on_error: OnError = "raise") -> AsyncState:
        """Wait for all branches, and return the one with the greatest `key(branch)`. The others are dropped. If `key`
        is an `async def`, branches are scored concurrently. on_error: as for `Branches.best`."""
        return (await self._top(1, key, on_error))[0]

    @overload
    async def first(self) -> AsyncState: ...
    @overload
    async def first(self, k: int) -> list[AsyncState]: ...
    async def first(self, k: int | None = None) -> AsyncState | list[AsyncState]:
        """Wait for the branch that finishes first, or for the first `k` in the order in which they finish. The others
        are dropped. See `Branches.first` for branches that fail."""
        winners = (await self._decide(branch_choice.Race(self._states, 1 if k is None else k))).winners()
        return winners[0] if k is None else winners

    async def vote(self, name: str, key: Callable[[Any], Any] | None = None, on_error: OnError = "raise") -> AsyncState:
        """Returns the first branch whose variable `name` has the most frequent value. Waits only until the winner is
        certain. The others are dropped. key, on_error: as for `Branches.vote`."""
        return (await self._decide(branch_choice.Ballot(self._states, name, key, on_error))).winner()

    async def _decide(self, choice: C) -> C:
        async for i in branch_choice.finishing(self._states):
            if choice.add(i):
                break
        return choice

    async def _top(self, k: int, key: Callable[[AsyncState], Any] | None, on_error: OnError) -> list[AsyncState]:
        import asyncio  # lazily: it takes longer to import than the rest of the package

        ranking = branch_choice.Ranking(self._states, on_error)
        pending: dict[int, asyncio.Future[Any]] = {}
        try:
            async for i in branch_choice.finishing(self._states):
                if not ranking.has_failed(i):
                    with ranking.reading(i):
                        score = (key or branch_choice.likelihood)(self._states[i])
                        if inspect.isawaitable(score):
                            pending[i] = asyncio.ensure_future(score)
                        else:
                            ranking.scores[i] = score
            for i, future in pending.items():
                with ranking.reading(i):
                    ranking.scores[i] = await future
        finally:
            for future in pending.values():
                future.cancel()
        return ranking.winners(k)
