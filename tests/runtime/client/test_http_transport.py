"""The client of a server's HTTP process."""

from __future__ import annotations

import re
import select
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

import pytest

import banyan as bn
from banyan.runtime import config
from banyan.runtime.client import client
from banyan.runtime.client.http_transport import NotBanyan
from banyan.runtime.errors import ConnectFailed
from banyan.runtime.protocol import ipc, wire
from banyan.runtime.protocol.decoders import decode_client
from banyan.runtime.protocol.http_frames import KIND, PATH, SESSION, pack, unpack
from waits import wait_until


@pytest.fixture
def keys_sent() -> Iterator[tuple[str, list[str]]]:
    """The URL of a server that is not Banyan's, and the values of `Authorization` that it gets."""
    found: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(self.headers.get("authorization", ""))
            self.send_error(404)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", found
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("name", "sent"), [(config.TOKEN, ""), (config.API_KEY, "Bearer secret")])
def test_a_url_gets_the_api_key_and_not_the_token_of_a_socket(
    name: str, sent: str, keys_sent: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, found = keys_sent
    for variable in (config.TOKEN, config.API_KEY):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "secret")
    with pytest.raises(NotBanyan):
        client.connect(url)
    assert set(found) == {sent}


@pytest.mark.parametrize("name", ["api_key", "token"])
def test_another_server_gets_the_key_that_was_given(name: str, keys_sent: tuple[str, list[str]]) -> None:
    url, found = keys_sent
    with pytest.raises(ConnectFailed):
        bn.RuntimeEndpoint(url, **{name: "secret"})
    assert set(found) == {"Bearer secret"}
    assert len(found) > 1, "only Banyan's own question was asked"


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://127.0.0.1:port", "http://a b:80", "https://..", f"http://{'a' * 64}.org"]
)
def test_a_url_that_is_not_valid_is_named(url: str) -> None:
    with pytest.raises(ConnectFailed, match=re.escape(url)):
        client.connect(url)


class SlowServer(ThreadingHTTPServer):
    """Answers each Submit with a Value at once, and its POST when `may_answer` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), SlowHandler)
        self.may_answer, self.is_over = threading.Event(), threading.Event()
        self.stream: SlowHandler | None = None
        self.n_pings = 0
        self.is_stuck = False  # answers no Ping, nor its POST
        self.received: list[str] = []  # what was posted, and the end of the session

    def tell(self, message: wire.ServerMessage) -> None:
        assert self.stream is not None
        self.stream.wfile.write(pack([wire.encode(message)]))


class SlowHandler(BaseHTTPRequestHandler):
    server: SlowServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        messages = list(map(decode_client, unpack(self.rfile.read(int(self.headers["content-length"])))))
        if self.path == PATH:
            self.server.stream = self
            self.begin(("content-type", KIND), (SESSION, "1"), ("connection", "close"))
            self.server.tell(wire.Welcome(wire.VERSION, "fake", 100))
            while not self.server.is_over.is_set():
                if select.select([self.connection], [], [], 0.02)[0]:
                    self.server.received.append("end")
                    break
            return
        for message in messages:
            if not isinstance(message, wire.Ping):
                self.server.received.append(type(message).__name__)
            if isinstance(message, wire.Ping):
                if self.server.is_stuck:
                    self.server.may_answer.wait()
                    return
                self.server.n_pings += 1
                self.server.tell(wire.Pong())
            elif isinstance(message, wire.Submit):
                self.server.tell(wire.Value(message.program, 0, 0, (wire.Sample("text", "stop"),)))
                self.server.may_answer.wait()
        self.begin(("content-length", "0"))

    def begin(self, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def slow_server() -> Iterator[SlowServer]:
    with SlowServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.may_answer.set()
        server.is_over.set()
        server.shutdown()
        thread.join()


def test_a_long_post_neither_holds_up_arrivals_nor_ends_the_session(
    slow_server: SlowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipc, "HEARTBEAT", 0.1)
    connected = client.connect(f"http://127.0.0.1:{slow_server.server_port}")
    try:
        program = connected.program()
        program.submit((wire.Gen(0, 0),), last=True)
        assert program.future(0).result(5.0).samples[0].text == "text"
        time.sleep(0.1 * 2 * ipc.MAX_MISSED)
        assert connected.lost is None
        slow_server.may_answer.set()
        n_pings = slow_server.n_pings
        wait_until(lambda: slow_server.n_pings > n_pings, "the next Ping")
    finally:
        connected.close()


def test_what_was_sent_before_the_close_is_posted_before_the_session_ends(slow_server: SlowServer) -> None:
    slow_server.may_answer.set()
    for n in range(1, 11):
        connected = client.connect(f"http://127.0.0.1:{slow_server.server_port}")
        program = connected.program()
        program.submit((wire.Gen(0, 0),))
        program.future(0).result(5.0)
        program.cancel()
        connected.close()
        wait_until(lambda n=n: slow_server.received.count("end") == n, "the end of the session")  # type: ignore[misc]
    assert slow_server.received == ["Submit", "Cancel", "end"] * 10


def test_a_server_that_answers_nothing_is_lost(slow_server: SlowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc, "HEARTBEAT", 0.02)
    slow_server.is_stuck = True
    connected = client.connect(f"http://127.0.0.1:{slow_server.server_port}")
    wait_until(lambda: connected.lost is not None, "the end of the connection", seconds=10.0)
    assert "stopped answering" in str(connected.lost)
