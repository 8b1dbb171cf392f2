"""A value as the pieces of text that it comes in, for threads and for event loops."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from banyan.ref import Ref, read
from banyan.runtime.errors import BanyanError


def pieces(value: Any) -> Iterator[str]:
    """A value that streams, in pieces; any other, in one. A failure is raised where the text breaks off."""
    if isinstance(value, Ref) and value.deltas is not None:
        value.record.flush()
        yield from value.deltas
        value.wait()
    else:
        yield from _whole(value.text() if isinstance(value, Ref) else read(value))


async def pieces_async(value: Any) -> AsyncIterator[tuple[str, Any]]:
    """The same, each piece with a meta info: None before a value's last piece, which is "" for one that streams."""
    if not isinstance(value, Ref):
        for text in _whole(read(value)):
            yield text, None
        return
    value.record.flush()
    if value.deltas is not None:
        async for text in value.deltas:
            yield text, None
    await known(value)
    yield ("" if value.deltas is not None else value.text()), value.meta_info()


async def known(ref: Ref) -> None:
    """Wait for a value without holding up the event loop. What went wrong is for its readers to raise."""
    import asyncio  # here, as in feed.py: programs without an event loop should not pay for one

    ref.record.flush()
    with contextlib.suppress(BanyanError):
        await asyncio.wrap_future(ref.future)


def _whole(value: object) -> Iterator[str]:
    if text := str(value):
        yield text
