"""A state on an event loop: what waits in `State` is awaited here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from banyan.execution.text_pieces import known, partials_async
from banyan.lang.async_branches import AsyncBranches, beam
from banyan.lang.branches import Step
from banyan.lang.lazy_value import LazyValue, dist, is_done, meta_info, read, read_object, tool_calls
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import BadProgram
from banyan.tools.toolbox import ToolCall
from banyan.views.state_views import page, timeline
from banyan.views.transcript import messages
from banyan.views.usage import Usage

if TYPE_CHECKING:
    from banyan.views.run_page import Page


class AsyncState(StateBase):
    """The state of an `async def` program, and what `run_async` gives: appended to like any, and awaited to be read.

    `await s.value("x")` waits for one variable; `s["x"]` gives it once it is known, and never holds up the event loop.
    What is awaited raises what happened instead: a ProgramError names the program, the line and the gen.
    """

    __slots__ = ()

    # ---- variables -------------------------------------------------------------------------------------------------

    async def value(self, name: str) -> Any:
        """The variable, as soon as it is known, as the object that its gen's `type` asked for.

        UnknownVariable (a KeyError): there is none. BadOutput: the text is no such object.
        """
        value = await self._lookup_async(name)
        await known(value)
        return read_object(value)

    def __getitem__(self, name: str) -> Any:
        """The variable, if it is known by now, as all are once `run_async` has returned.

        UnknownVariable (a KeyError): there is none. BadProgram: it is still in the making.
        """
        value = self._found(name)
        if not is_done(value):
            raise BadProgram(
                f"{name!r} is not known yet, and to wait for it here would hold up the event loop; "
                f"write `await s.value({name!r})`",
                program=self._record.name,
            )
        return read(value)

    get_var = __getitem__

    async def partials(self, name: str) -> AsyncIterator[Any]:
        """`State.partials`, for `async for`."""
        async for part in partials_async(await self._lookup_async(name)):
            yield part

    async def get_meta_info(self, name: str) -> Any:
        """`State.get_meta_info`, as soon as it is known."""
        value = await self._lookup_async(name)
        await known(value)
        return meta_info(value)

    async def tool_calls(self, name: str) -> list[ToolCall]:
        """`State.tool_calls`, once its gen has ended."""
        value = await self._lookup_async(name)
        await known(value)
        return tool_calls(value)  # type: ignore[no-any-return]

    async def dist(self, name: str) -> dict[str, float]:
        """`State.dist`, once its select is known."""
        value = await self._lookup_async(name)
        await known(value)
        return dist(value)  # type: ignore[no-any-return]

    @property
    def ret_value(self) -> Any:
        """What the program's body returned; None before it did."""
        return self._record.ret_value

    @property
    def usage(self) -> Usage:
        """Tokens of the finished gens of this state and its branches, summed and one by one."""
        return self._usage()

    def timeline(self, path: str | Path | None = None) -> dict[str, Any]:
        """`State.timeline`, of what is known by now."""
        return timeline(self._record, self._lane.number, path)

    async def show(self, path: str | Path | None = None) -> Page:
        """`State.show`, of what is known by now."""
        import asyncio  # here, as in feed.py

        return await asyncio.to_thread(page, self._record, self._lane.number, path)

    # ---- reading ---------------------------------------------------------------------------------------------------

    async def text(self) -> str:
        """The whole prompt as the server has it, markers included."""
        await self._body_ended()
        ref = self._read(None)
        await known(ref)
        return ref.text()

    async def messages(self) -> list[dict[str, Any]]:
        """The finished turns as `{"role": ..., "content": ...}`, contents stripped on the left."""
        await self._all_known()
        return messages(self._transcript, self._record.backend.welcome.chat)

    async def sync(self) -> None:
        """Wait until all that was appended is done, also in branches that were joined. Raises the first error."""
        for ref in await self._all_known():
            ref.wait()
        for value in self._joined:
            await known(value)
        self._check_joined()

    async def error(self) -> BaseException | None:
        """Wait as `sync` does, and give what it would raise, or None."""
        if self._record.error is not None:
            self._record.notice.is_given = True
            return self._record.error
        try:
            await self.sync()
        except Exception as e:
            return e
        return None

    def text_iter(self, var_name: str | None = None) -> AsyncIterator[str]:
        """The text as it comes, of one variable or of the whole state; in one piece if the program does not stream.

        Any number of readers, each from the start. Raises, where the text breaks off, what broke it.
        """
        return self.text_async_iter(var_name)

    async def _body_ended(self) -> None:
        if self._is_handle:
            async for _ in self._record.ended:
                pass

    async def _all_known(self) -> list[LazyValue]:
        """All values in the making of this state, none of which is so any more."""
        await self._body_ended()
        refs = [item for item in self._transcript if isinstance(item, LazyValue)]
        if not all(ref.is_done for ref in refs):
            self._record.flush()
        for ref in refs:
            await known(ref)
        return refs

    # ---- branching -------------------------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: None = None) -> AsyncBranches:
        """`State.fork`."""
        return AsyncBranches(self._forked(size, position_ids_offset), self)

    async def beam(
        self,
        k: int,
        step: Step,
        *,
        depth: int = 1,
        width: int | None = None,
        key: Callable[[AsyncState], Any] | None = None,
    ) -> AsyncBranches:
        """`State.beam`; the key may be an `async def`."""
        return await beam(self, k, step, depth, k if width is None else width, key)
