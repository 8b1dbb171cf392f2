"""Reads the value of a variable piece by piece as it is generated, on threads and on event loops."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from banyan.execution.feed import Feed
from banyan.lang.lazy_value import JoinedValues, LazyValue, ReasoningText, read, read_object
from banyan.lang.meta_info import meta_of_delta
from banyan.lang.output_types import parse_partial
from banyan.runtime.errors import BanyanError
from banyan.runtime.protocol import wire


def pieces(value: Any, whole: bool = False) -> Iterator[str]:
    """Yields the text of a value in pieces as it arrives, or in one piece if the value does not stream. If the value
    failed, raises its error at the end. whole: include the text of tool calls and their results."""
    ref, feed = _stream_of(value, whole)
    if ref is not None and feed is not None:
        ref.record.flush()
        is_thought = isinstance(value, ReasoningText)
        for item in feed:
            if isinstance(item, str):
                yield item
            elif item.is_thought == is_thought:
                yield item.text
        ref.wait()
    elif text := str(value.text() if isinstance(value, LazyValue) else read(value)):
        yield text


async def pieces_async(value: Any, whole: bool = False) -> AsyncIterator[tuple[str, Any]]:
    """Like `pieces`, for an event loop. Yields (piece, meta info so far); the meta info is None for text that was not
    generated. A streaming value ends with ("", the final meta info)."""
    ref, feed = _stream_of(value, whole)
    if ref is None:
        await known(value)
        if text := str(read(value)):
            yield text, None
        return
    ref.record.flush()
    is_thought = isinstance(value, ReasoningText)
    if feed is None:
        await known(ref)
        yield (str(value.read()) if is_thought else ref.text()), ref.meta_info()
        return
    round_number, logprobs = 0, list[wire.TokenLogprob]()
    async for item in feed:
        if isinstance(item, str):
            yield item, None
            continue
        if item.round != round_number:
            round_number, logprobs = item.round, []
        logprobs += item.logprobs
        if item.is_thought == is_thought:
            yield item.text, meta_of_delta(item, logprobs if ref.has_logprobs else None, ref.with_text)
    await known(ref)
    yield "", ref.meta_info()


def _stream_of(value: Any, whole: bool) -> tuple[LazyValue | None, Feed[str] | Feed[wire.Delta] | None]:
    """Returns (the lazy value behind `value`, the feed of its text). The feed is None if the value does not stream, or
    if its gen has retries. Both are None if `value` is not lazy. whole: for a gen with tools, return the feed whose
    text includes tool calls and results."""
    ref = value.ref if isinstance(value, ReasoningText) else value
    if not isinstance(ref, LazyValue):
        return None, None
    if ref.deltas is None or ref.checker is not None:
        return ref, None
    if whole and ref.caller is not None and ref.caller.full_text is not None:
        return ref, ref.caller.full_text
    return ref, ref.deltas


async def known(value: Any) -> None:
    """Wait until a variable's value is known, without blocking the event loop. Does not raise the value's error."""
    if isinstance(value, JoinedValues):
        for one in value.values:
            await known(one)
    elif isinstance(value, ReasoningText):
        await known(value.ref)
    elif isinstance(value, LazyValue) and not value.is_done:
        from banyan.execution.asyncio_bridge import wait_done  # lazily: it imports asyncio

        with contextlib.suppress(BanyanError), value.waiting():
            await wait_done(value.future)
        # waits if the flush of `waiting` failed; that error, too, is left to the readers
        await wait_done(value.future)


def partials(value: Any) -> Iterator[Any]:
    """Yields the object of a gen with a type. While the JSON streams, yields the object so far at each change. At the
    end, yields the final object."""
    if (deltas := _json_deltas(value)) is not None:
        value.record.flush()
        parser = PartialJson()
        for delta in deltas:
            yield from parser.add(delta)
    yield read_object(value)


async def partials_async(value: Any) -> AsyncIterator[Any]:
    """Like `partials`, for an event loop. Yields the object of a gen with a type: while the JSON streams, the object so
    far at each change; at the end, the final object."""
    if (deltas := _json_deltas(value)) is not None:
        value.record.flush()
        parser = PartialJson()
        async for delta in deltas:
            for part in parser.add(delta):
                yield part
    await known(value)
    yield read_object(value)


def _json_deltas(value: Any) -> Feed[wire.Delta] | None:
    """The feed of a gen that streams JSON; None for any other value."""
    is_json = isinstance(value, LazyValue) and value.output_type is not None and value.output_type.is_json
    return value.deltas if is_json else None


class PartialJson:
    """Parses JSON that arrives in pieces."""

    def __init__(self) -> None:
        self._text, self._round = "", 0
        self._last: Any = _NOTHING

    def add(self, delta: wire.Delta) -> Iterator[Any]:
        """Add the text of `delta`. Yields the object so far, if it has changed."""
        if delta.is_thought:
            return
        if delta.round != self._round:
            self._text, self._round, self._last = "", delta.round, _NOTHING
        self._text += delta.text
        with contextlib.suppress(ValueError):  # the value has not begun
            value = parse_partial(self._text)
            if value != self._last:
                self._last = value
                yield value


_NOTHING = object()
