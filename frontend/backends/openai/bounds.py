"""Bounds on what a server of OpenAI's API may send: it may be faulty, or hostile.

The `openai` package reads a body and a line of a stream to their ends, however long they are. Here the bytes are
counted as they arrive, before anything keeps or parses them. Headers are bounded by the HTTP library (100 KB).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

SLOWEST = 6.0
"""A request, with its retries, may take this many times the client's `timeout`; the timeout itself applies to each
read."""
UNLIMITED = 1 << 14
"""Maximum number of tokens in the answer to a request without max_tokens, which a select on a chat model sends."""
MAX_EVENT_LINES = 1024
"""Maximum number of lines of one event of a stream. They are limited because the package joins them in quadratic
time."""
_END_OF_EVENT = re.compile(rb"\n\n|\r\r|\r\n\r\n")
_END_OF_STREAM = re.compile(rb"[\r\n]data: ?\[DONE\]")


class AnswerLimits(NamedTuple):
    """Limits of one response. n_line: bytes of a line of a stream. n_chars: characters of all texts and arguments
    of calls."""

    n_bytes: int = 16 << 20
    n_line: int = 16 << 20
    n_events: int = 1 << 10
    n_chars: int = 1 << 14

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> AnswerLimits:
        """The limits of the response to a request. They are generous: an honest server needs at most a tenth."""
        max_tokens = request.get("max_completion_tokens", request.get("max_tokens", UNLIMITED))
        n_tokens = max_tokens * (request.get("n") or 1)
        n_top = request.get("top_logprobs") or int(request.get("logprobs") or 0)
        per_logprob = 256 * (1 + n_top) if request.get("logprobs") else 0
        n_echoed = len(str(request["prompt"])) if request.get("echo") else 0
        n_base = (1 << 20) + n_echoed * per_logprob
        return cls(
            n_bytes=n_base + n_tokens * (1024 + per_logprob),  # a chunk of a stream names the model and its request
            n_line=n_base + n_tokens * (64 + per_logprob),
            n_events=1024 + 16 * n_tokens,
            n_chars=(1 << 14) + 2 * n_echoed + 128 * n_tokens,  # the longest tokens have 128 spaces
        )


class AnswerTooLarge(Exception):
    """A response has more than `limit` of `what`, such as events of a stream."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"the server's answer has more {what} than this request can need: more than {limit}")


limits: ContextVar[AnswerLimits] = ContextVar("limits", default=AnswerLimits())  # noqa: B039 (it is frozen)
"""The limits of the request that the current task makes."""


def http_client() -> Any:
    """Returns an HTTP client for `openai.AsyncOpenAI` that refuses responses beyond the AnswerLimits in the context
    variable `limits`. The client asks for uncompressed responses and refuses others, because a few compressed bytes
    could become many."""
    import openai

    kind = openai.DefaultAsyncHttpxClient
    package = next(base.__module__.partition(".")[0] for base in kind.__mro__ if base.__name__ == "AsyncClient")
    stream_type = sys.modules[package].AsyncByteStream  # in httpx or httpx2, by the version of `openai`

    class BoundedStream(stream_type):  # type: ignore[misc, valid-type]
        """The body of a response. Counts the bytes as they arrive. If the body exceeds the limits of its request,
        reading it raises openai.OpenAIError."""

        def __init__(self, stream: Any, has_lines: bool) -> None:
            self._stream, self.counter = stream, BodyCounter(limits.get(), has_lines)
            self._is_closed = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            # the HTTP library's generators do not close the generators that they read
            async with aclosing(aiter(self._stream)) as parts:
                async for data in parts:
                    try:
                        self.counter.count(data)
                    except AnswerTooLarge as e:
                        raise openai.OpenAIError(str(e)) from e  # the package does not retry after an error of its own
                    yield data
                    if self._is_closed:
                        return

        async def aclose(self) -> None:
            self._is_closed = True
            await self._stream.aclose()

    async def bound(response: Any) -> None:
        if (coding := response.headers.get("content-encoding", "identity")) != "identity":
            raise openai.OpenAIError(f"the server compressed its answer ({coding[:20]!r}), which was not asked for")
        has_lines = "event-stream" in response.headers.get("content-type", "")
        response.stream = BoundedStream(response.stream, has_lines)

    context = _ssl_context(package, *map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
    return kind(verify=context, headers={"accept-encoding": "identity"}, event_hooks={"response": [bound]})


def has_done_event(response: Any) -> bool:
    """Whether a response, which was read, has the event [DONE] that ends a stream. False if its HTTP client is not from
    `http_client`, because then nothing tells."""
    counter = getattr(response.stream, "counter", None)
    return counter is not None and counter.is_done


@cache
def _ssl_context(package: str, *_: str | None) -> Any:
    """The TLS context that the openai package would create for each client. It is cached, because reading the
    certificates takes 26 ms. The other arguments are only keys of the cache: the values of the environment variables
    that name the certificates."""
    return sys.modules[package].create_ssl_context()


class BodyCounter:
    """Counts a body as it arrives, and raises AnswerTooLarge where it exceeds a limit.

    is_done: the body is a stream, and its event [DONE] has come."""

    def __init__(self, limits: AnswerLimits, has_lines: bool = True) -> None:
        """has_lines: the body is a stream of events, whose lines have limits too."""
        self._limits, self._has_lines = limits, has_lines
        self._n_bytes = self._n_line = self._n_event_lines = 0
        self._last = b""  # the last bytes so far: the end of an event may be split between two calls
        self._tail = b""  # more of them: the event [DONE] may be split too
        self.is_done = False

    def count(self, data: bytes) -> None:
        """Count more bytes of the body. AnswerTooLarge: a limit is exceeded."""
        self._n_bytes += len(data)
        if self._has_lines:
            self._count_lines(data)
        if self._n_bytes > self._limits.n_bytes:
            raise AnswerTooLarge("bytes", self._limits.n_bytes)

    def _count_lines(self, data: bytes) -> None:
        end_of_line = max(data.rfind(b"\n"), data.rfind(b"\r"))
        self._n_line = self._n_line + len(data) if end_of_line < 0 else len(data) - 1 - end_of_line
        seen = self._last + data
        ends = [found.end() for found in _END_OF_EVENT.finditer(seen)]
        if ends:
            self._n_event_lines = 0
        start = max([len(self._last), *ends])  # what was counted before, or belongs to an earlier event
        self._n_event_lines += sum(seen.count(end, start) for end in (b"\n", b"\r"))
        self._last = seen[-3:]
        self.is_done = self.is_done or _END_OF_STREAM.search(self._tail + data) is not None
        self._tail = (self._tail + data)[-12:]
        for what, n, limit in (
            ("bytes in a line", self._n_line, self._limits.n_line),
            ("lines in an event", self._n_event_lines // 2, MAX_EVENT_LINES),  # a line may end with two characters
        ):
            if n > limit:
                raise AnswerTooLarge(what, limit)
