"""A value as the pieces of text that it comes in, for threads and for event loops."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from banyan.feed import Feed
from banyan.ref import Gathered, Ref, Thought, read, read_object
from banyan.runtime.errors import BanyanError
from banyan.typed import partial


def pieces(value: Any, whole: bool = False) -> Iterator[str]:
    """A value that streams, in pieces; any other, in one. A failure is raised where the text breaks off.

    whole: all that it puts into the prompt; of a gen with tools, that is its calls and their results too.
    """
    if isinstance(value, Ref) and (deltas := _deltas(value, whole)) is not None:
        value.record.flush()
        yield from deltas
        value.wait()
    else:
        yield from _whole(value.text() if isinstance(value, Ref) else read(value))


async def pieces_async(value: Any, whole: bool = False) -> AsyncIterator[tuple[str, Any]]:
    """The same, each piece with a meta info: None before a value's last piece, which is "" for one that streams."""
    if not isinstance(value, Ref):
        await known(value)
        for text in _whole(read(value)):
            yield text, None
        return
    value.record.flush()
    if (deltas := _deltas(value, whole)) is not None:
        async for text in deltas:
            yield text, None
    await known(value)
    yield ("" if deltas is not None else value.text()), value.meta_info()


def _deltas(ref: Ref, whole: bool) -> Feed[str] | None:
    return ref.caller.whole if whole and ref.caller is not None else ref.deltas


async def known(value: Any) -> None:
    """Wait for what is stored under a name without holding up the event loop. What went wrong, its readers raise."""
    if isinstance(value, Gathered):
        for one in value.values:
            await known(one)
    elif isinstance(value, Thought):
        await known(value.ref)
    elif isinstance(value, Ref) and not value.is_done:
        from banyan.aio import arrived  # here: it loads asyncio, and most programs never need it

        with contextlib.suppress(BanyanError), value.waiting():
            await arrived(value.future)
        await arrived(value.future)  # also where it could not be sent, which is for its readers to raise


def _whole(value: object) -> Iterator[str]:
    if text := str(value):
        yield text


def partials(value: Any) -> Iterator[Any]:
    """The object of a gen that has a type, as it grows: what of its JSON has come, and at last the object itself."""
    if isinstance(value, Ref) and value.deltas is not None and value.answer is not None and value.answer.is_json:
        growing = Growing()
        for text in pieces(value):
            yield from growing.take(text)
    yield read_object(value)


async def partials_async(value: Any) -> AsyncIterator[Any]:
    """`partials` for an event loop."""
    if isinstance(value, Ref) and value.deltas is not None and value.answer is not None and value.answer.is_json:
        growing = Growing()
        async for text, _ in pieces_async(value):
            for part in growing.take(text):
                yield part
    await known(value)
    yield read_object(value)


class Growing:
    """JSON that comes piece by piece."""

    def __init__(self) -> None:
        self._text = ""
        self._last: Any = _NOTHING

    def take(self, text: str) -> Iterator[Any]:
        """What has come so far, where `text` adds to it."""
        self._text += text
        with contextlib.suppress(ValueError):  # it has not begun
            part = partial(self._text)
            if part != self._last:
                self._last = part
                yield part


_NOTHING = object()
