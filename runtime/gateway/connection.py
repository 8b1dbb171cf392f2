"""Extends uvicorn's HTTP protocol by limits on the headers of a request and on clients that do not read."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADERS = 64 << 10
"""Maximum number of bytes of a request's line and headers."""
HEADER_SECONDS = 20.0
"""Seconds within which a request's line and headers must arrive. The time runs from the request's first byte; for the
first request of a connection, from the start of the connection."""
WRITE_SECONDS = 300.0
"""Seconds after which a client that reads nothing loses its connection."""


class Connection(HttpToolsProtocol):
    """One HTTP connection. It is closed if the headers of a request are too long or arrive too slowly, or if the client
    does not read what is sent. Pipelining is not supported: a request that arrives before the previous response is
    complete is dropped, and the connection is closed after that response."""

    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _n_header_bytes = 0  # bytes that arrived before the headers were complete
    _n_parsed = 0  # how many of these bytes are in complete lines
    _is_reading_headers = True
    _is_deaf = False  # whether everything that arrives is dropped

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._end_pause()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        self._end_pause()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._is_reading_headers:
            self._n_header_bytes += len(data)
            if self._timer is None:
                self._arm()
        super().data_received(data)
        # A single line may be endless. Once the headers are complete, the bytes after their end belong to the body.
        if self._is_reading_headers and self._n_header_bytes > MAX_HEADERS and not self.transport.is_closing():
            self.send_400_response("The headers are too long.")

    def on_message_begin(self) -> None:
        # uvicorn would stop reading until the response is complete, and would not notice if the client hangs up.
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive, self._is_deaf = False, True
            self._disarm()
            raise ValueError("a request before the response to the last one")
        super().on_message_begin()
        self._is_reading_headers, self._n_parsed = True, 0

    def send_400_response(self, msg: str) -> None:
        if not self._is_deaf:  # the response to the last request may have begun
            super().send_400_response(msg)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_reading_headers, self._n_header_bytes = False, 0
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_reading_headers = True

    def _count(self, n_bytes: int) -> None:
        """Add n_bytes to the size of the request's headers. Raises ValueError if they are too long; uvicorn then
        answers with status 400."""
        self._n_parsed += n_bytes
        if self._n_parsed > MAX_HEADERS:
            raise ValueError("the headers are too long")

    def _arm(self) -> None:
        self._timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_pause(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _wait_for_reader(self) -> None:
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self._check_reader, self._n_unread())

    def _check_reader(self, n_before: int) -> None:
        """Close the connection if the client has read nothing since the last check, at which n_before bytes were
        unread. Called only while writing is paused: no bytes are added meanwhile, so fewer unread bytes mean that the
        client has read some."""
        if self._n_unread() < n_before:
            self._wait_for_reader()
        else:
            self.transport.abort()

    def _n_unread(self) -> int:
        """The number of bytes that the client has not received yet: those in the transport's buffer and those in the
        kernel's send buffer. The transport's buffer alone is not enough, because it shrinks only in large steps, even
        if the client reads steadily."""
        number = self.transport.get_extra_info("socket").fileno()
        in_kernel = fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(in_kernel, sys.byteorder)

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def settings() -> dict[str, Any]:
    """The options for uvicorn that are the same in every configuration."""
    return {
        "http": Connection, "ws": "none", "loop": "asyncio", "lifespan": "off", "log_config": None,
        "access_log": False, "log_level": "error", "server_header": False, "backlog": 2048, "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": 2, "proxy_headers": False,
    }  # fmt: skip
