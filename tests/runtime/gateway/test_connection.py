"""The limits of a connection in time. Those in bytes are tested with the process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from banyan.runtime.gateway import connection
from waits import wait_until_async


class FakeTransport(asyncio.Transport):
    """Notes how it is ended."""

    def __init__(self, of: socket.socket | None = None) -> None:
        super().__init__({"socket": of})
        self.ended = ""

    def abort(self) -> None:
        self.ended = "aborted"

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def write(self, data: Any) -> None:
        assert data.startswith(b"HTTP/1.1 400")

    def is_closing(self) -> bool:
        return bool(self.ended)

    def get_write_buffer_size(self) -> int:
        return 1


async def application(scope: Any, receive: Any, send: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def run(after: str) -> str:
    """How a connection ends on which nothing more comes `after` this."""
    config = uvicorn.Config(application, **connection.settings())
    with socket.socket() as its_socket:
        made, transport = connection.Connection(config, ServerState(), {}), FakeTransport(its_socket)
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


LARGE = 8 << 20


async def read_large(n_reads: int, pause: float) -> int:
    """The number of bytes that a client gets of a reply of LARGE bytes. It reads them all after n_reads with pauses."""

    async def reply(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
        await send({"type": "http.response.body", "body": bytes(LARGE)})

    state, loop = ServerState(), asyncio.get_running_loop()
    config = uvicorn.Config(reply, **connection.settings())
    server = await loop.create_server(lambda: connection.Connection(config, state, {}), "127.0.0.1", 0)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        data = bytearray()
        while not data.endswith(b"\r\n\r\n"):
            data += await loop.sock_recv(client, 1)
        n = 0
        with contextlib.suppress(ConnectionResetError):
            for k in range(LARGE):
                if k < n_reads:
                    await asyncio.sleep(pause)
                got = await loop.sock_recv(client, 1 << 16)
                n += len(got)
                if n == LARGE or not got:
                    break
    server.close()
    return n


def test_a_slow_client_keeps_its_connection_and_a_silent_one_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_SECONDS", 0.5)
    assert asyncio.run(read_large(30, 0.05)) == LARGE
    assert asyncio.run(read_large(1, 1.5)) < LARGE


def test_broken_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def send() -> None:
        made = connection.Connection(uvicorn.Config(application, **connection.settings()), ServerState(), {})
        made.connection_made(FakeTransport())
        made.data_received(b"nonsense\r\n\r\n")

    asyncio.run(send())
    assert caplog.messages == []


async def pipelined(is_answered: bool) -> tuple[list[str], bytes]:
    """What the application sees of two requests that come at once, and what the client gets. Without an answer to the
    first one the client hangs up."""
    seen: list[str] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        if is_answered:
            await asyncio.sleep(0.05)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})
            return
        await application(scope, receive, send)
        seen.append("hung up")

    state, loop = ServerState(), asyncio.get_running_loop()
    config = uvicorn.Config(answer, **connection.settings())
    server = await loop.create_server(lambda: connection.Connection(config, state, {}), "127.0.0.1", 0)
    data = b""
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        for path in (b"/1", b"/2"):
            await loop.sock_sendall(
                client, b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}" % path
            )
        await wait_until_async(lambda: seen, "the first request")
        while is_answered and (got := await loop.sock_recv(client, 1 << 16)):
            data += got
    if not is_answered:
        await wait_until_async(lambda: "hung up" in seen, "the hang-up", seconds=5.0)
    server.close()
    return seen, data


def test_a_request_before_the_response_to_the_last_one_is_dropped() -> None:
    assert asyncio.run(pipelined(False)) == (["/1", "hung up"], b"")
    seen, data = asyncio.run(pipelined(True))
    assert (seen, data.count(b"HTTP/1.1 200"), data.count(b"connection: close")) == (["/1"], 1, 1)
