"""The limits of a connection in time. Those in bytes are tested with the process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from banyan.runtime.gateway import connection
from waits import wait_until_async


class FakeTransport(asyncio.Transport):
    """Notes how it is ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = ""

    def abort(self) -> None:
        self.ended = "aborted"

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def write(self, data: Any) -> None:
        assert data.startswith(b"HTTP/1.1 400")

    def is_closing(self) -> bool:
        return bool(self.ended)


async def application(scope: Any, receive: Any, send: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def run(after: str) -> str:
    """How a connection ends on which nothing more comes `after` this."""
    config = uvicorn.Config(application, **connection.settings())
    made, transport = connection.Connection(config, ServerState(), {}), FakeTransport()
    made.connection_made(transport)
    if after == "part of the headers":
        made.data_received(b"GET / HTTP/1.1\r\nhost:")
    elif after == "writing was paused":
        made.data_received(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        made.pause_writing()
    await wait_until_async(lambda: transport.ended, "its end")
    made.connection_lost(None)
    return transport.ended


@pytest.mark.parametrize(
    ("after", "ended"),
    [("the connection", "closed"), ("part of the headers", "closed"), ("writing was paused", "aborted")],
)
def test_a_client_that_does_not_go_on_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch, after: str, ended: str
) -> None:
    for name in ("HEADER_SECONDS", "WRITE_SECONDS"):
        monkeypatch.setattr(connection, name, 0.01)
    assert asyncio.run(run(after)) == ended


def test_broken_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def send() -> None:
        made = connection.Connection(uvicorn.Config(application, **connection.settings()), ServerState(), {})
        made.connection_made(FakeTransport())
        made.data_received(b"nonsense\r\n\r\n")

    asyncio.run(send())
    assert caplog.messages == []
