"""A value as the pieces of text that it comes in, for threads and for event loops."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from banyan.execution.feed import Feed
from banyan.lang.lazy_value import JoinedValues, LazyValue, Thought, meta_of_piece, read, read_object
from banyan.lang.output_types import partial
from banyan.runtime.errors import BanyanError
from banyan.runtime.protocol import wire


def pieces(value: Any, whole: bool = False) -> Iterator[str]:
    """A value that streams, in pieces; any other, in one. A failure is raised where the text breaks off.

    whole: all that it puts into the prompt; of a gen with tools, that is its calls and their results too.
    """
    if (streaming := _streaming(value, whole)) is not None:
        ref, wanted = streaming
        ref.record.flush()
        yield from _texts(wanted, isinstance(value, Thought))
        ref.wait()
    else:
        yield from _whole(value.text() if isinstance(value, LazyValue) else read(value))


async def pieces_async(value: Any, whole: bool = False) -> AsyncIterator[tuple[str, Any]]:
    """The same, each piece of a value that is generated with its meta info: what is known by then. One that streams
    ends with "", and all that there is to know."""
    ref = value.ref if isinstance(value, Thought) else value
    if not isinstance(ref, LazyValue):
        await known(value)
        for text in _whole(read(value)):
            yield text, None
        return
    ref.record.flush()
    streaming = _streaming(value, whole)
    if streaming is not None:
        number, logprobs = 0, list[wire.TokenLogprob]()
        async for one in streaming[1]:
            if isinstance(one, str):
                yield one, None
                continue
            if one.round != number:
                number, logprobs = one.round, []
            logprobs += one.logprobs
            if one.is_thought == isinstance(value, Thought):
                yield one.text, meta_of_piece(one, logprobs, ref.with_text)
    await known(ref)
    if streaming is not None:
        yield "", ref.meta_info()
    else:
        yield (value.text() if value is ref else str(value.read())), ref.meta_info()


def _streaming(value: Any, whole: bool) -> tuple[LazyValue, Feed[str] | Feed[wire.Delta]] | None:
    """What a value is of, and where its text comes, where that is piece by piece. That of a gen with retries does not:
    what was shown could not be taken back."""
    ref = value.ref if isinstance(value, Thought) else value
    if not isinstance(ref, LazyValue) or ref.heard is None or ref.checker is not None:
        return None
    if whole and ref.caller is not None and ref.caller.full_text is not None:
        return ref, ref.caller.full_text
    return ref, ref.heard


def _texts(feed: Feed[str] | Feed[wire.Delta], is_thought: bool) -> Iterator[str]:
    for one in feed:
        if isinstance(one, str):
            yield one
        elif one.is_thought == is_thought:
            yield one.text


async def known(value: Any) -> None:
    """Wait for what is stored under a name without holding up the event loop. What went wrong, its readers raise."""
    if isinstance(value, JoinedValues):
        for one in value.values:
            await known(one)
    elif isinstance(value, Thought):
        await known(value.ref)
    elif isinstance(value, LazyValue) and not value.is_done:
        from banyan.execution.asyncio_bridge import arrived  # here: it loads asyncio, and most programs never need it

        with contextlib.suppress(BanyanError), value.waiting():
            await arrived(value.future)
        await arrived(value.future)  # also where it could not be sent, which is for its readers to raise


def _whole(value: object) -> Iterator[str]:
    if text := str(value):
        yield text


def partials(value: Any) -> Iterator[Any]:
    """The object of a gen that has a type, as it grows: what of its JSON has come, and at last the object itself.

    Of a gen with retries it may begin anew: then what came before does not count.
    """
    if (heard := _growing(value)) is not None:
        value.record.flush()
        growing = Growing()
        for delta in heard:
            yield from growing.take(delta)
    yield read_object(value)


async def partials_async(value: Any) -> AsyncIterator[Any]:
    """`partials` for an event loop."""
    if (heard := _growing(value)) is not None:
        value.record.flush()
        growing = Growing()
        async for delta in heard:
            for part in growing.take(delta):
                yield part
    await known(value)
    yield read_object(value)


def _growing(value: Any) -> Feed[wire.Delta] | None:
    """Where the JSON of a value comes piece by piece; None: it comes in one."""
    return value.heard if isinstance(value, LazyValue) and value.answer is not None and value.answer.is_json else None


class Growing:
    """JSON that comes piece by piece."""

    def __init__(self) -> None:
        self._text, self._round = "", 0
        self._last: Any = _NOTHING

    def take(self, delta: wire.Delta) -> Iterator[Any]:
        """What has come so far, where `delta` adds to it."""
        if delta.is_thought:
            return
        if delta.round != self._round:
            self._text, self._round, self._last = "", delta.round, _NOTHING
        self._text += delta.text
        with contextlib.suppress(ValueError):  # it has not begun
            part = partial(self._text)
            if part != self._last:
                self._last = part
                yield part


_NOTHING = object()
