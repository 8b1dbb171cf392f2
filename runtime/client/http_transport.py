"""Carries the messages of a Client over HTTP. The Client uses it like the socket of ipc.connect.

`connect` returns a pair of sockets like those of ipc.connect. Two threads serve them: one posts the messages that the
Client sends, and one reads the messages that arrive in one long response. The session ends with that response. HTTP is
spoken by the standard library's http.client, so that a client of Banyan needs no other package. Two connections carry
any number of programs.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket as sockets
import ssl
import struct
import threading
import weakref
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import zmq

from banyan.runtime.errors import BanyanError, ConnectFailed, RuntimeLost
from banyan.runtime.protocol import ipc, wire
from banyan.runtime.protocol.http_frames import KIND, MAX_MESSAGE, PATH, SESSION, pack, take

_EVENT = struct.pack("=Hi", 0, -1)  # the event that a `watch` socket delivers; there is no file descriptor to name
_POST_SECONDS = 30.0
_CLOSE = b""  # in place of a message: the sender is closed
_PING, _PONG = wire.encode(wire.Ping()), wire.encode(wire.Pong())


class NotBanyan(ConnectFailed):
    """The HTTP server at the URL is not Banyan's."""


class _ClientEnd(zmq.Socket[bytes]):
    """The socket that the Client uses. It receives what `_Session.read` has read, and sends to `_Session.post`. Its
    `close` ends the session after all that was sent is posted.

    leaving, answers: sockets that send to `_Session.post`, and to this socket itself."""

    session: Any = None  # zmq lets an instance set only what its class has
    leaving: Any = None
    answers: Any = None

    def send(self, data: Any, flags: int = 0, **_: Any) -> None:  # type: ignore[override]
        # A Ping would wait behind a large message, whose POST may take long, so it is answered here. The timeout of the
        # POST detects a server that is lost meanwhile.
        if data == _PING and self.session.is_posting:
            _send(self.answers, _PONG)
        else:
            _send(self.leaving, data)

    def close(self, linger: int | None = None) -> None:
        if not self.closed:
            _send(self.leaving, _CLOSE)  # `post` ends the session when it has posted all before this
            self.leaving.close(linger)
            self.answers.close(linger)
        super().close(linger)


def connect(context: ipc.Context, url: str, token: str, timeout: float) -> tuple[ipc.Socket, ipc.Socket]:
    """Opens a session with the server at `url`. Returns a socket that works like a DEALER connected to the server, and
    a `watch` socket, which becomes readable when the session begins and when it ends. token: the API key. Raises
    ConnectFailed if nobody answers or the server refuses, NotBanyan if the server is not Banyan's."""
    session = _Session(url, token, timeout)
    socket, posts, monitor = _ClientEnd(context, zmq.PULL), context.socket(zmq.PULL), context.socket(zmq.PULL)
    socket.session, socket.leaving, socket.answers = session, _way_to(posts), _way_to(socket)
    arrivals, events = _way_to(socket), _way_to(monitor)
    _send(events, _EVENT, b"")
    for run in (partial(session.read, arrivals, events), partial(session.post, posts)):
        threading.Thread(target=run, name="banyan-http", daemon=True).start()
    return socket, monitor


def _way_to(socket: ipc.Socket) -> ipc.Socket:
    """A new socket of this process that sends to `socket`, a PULL."""
    sender: ipc.Socket = socket.context.socket(zmq.PUSH)
    where = f"inproc://banyan-http-{os.urandom(8).hex()}"
    for end in (socket, sender):
        end.set_hwm(0)
    socket.bind(where)
    sender.connect(where)
    return sender


def post_json(url: str, token: str, path: str, body: object) -> Any:
    """POST `body` as JSON on a new connection, and return the answer. Raises RuntimeLost if nobody answers, and
    BanyanError if the server refuses."""
    connection = _connection(url, _POST_SECONDS)
    try:
        data, headers = json.dumps(body).encode(), _headers("application/json", token)
        connection.request("POST", f"{urlsplit(url).path}{path}", data, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise RuntimeLost(f"{url}{path} gave no answer: {e!r}") from e
    finally:
        connection.close()
    if response.status != 200:
        raise BanyanError(f"{url}{path}: {answer['error']['message']}")
    return answer


def _headers(kind: str, token: str) -> dict[str, str]:
    """The headers of a request with a body of this content type. token: the API key, or ""."""
    return {"content-type": kind} | ({"authorization": f"Bearer {token}"} if token else {})


def _connection(url: str, timeout: float) -> http.client.HTTPConnection:
    """An HTTP connection to the server at `url`. The first request opens it. Raises ConnectFailed if the URL is not
    valid."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as when it connects
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, port, timeout=timeout)
    except (ValueError, http.client.InvalidURL) as e:
        raise ConnectFailed(f"{url}: {e}") from e


class _Session:
    """The two HTTP connections of one client: one posts the client's messages, the other receives the server's
    messages."""

    def __init__(self, url: str, token: str, timeout: float) -> None:
        self._url = url
        self._posts, self._stream = _connection(url, _POST_SECONDS), _connection(url, timeout)
        self._path = f"{urlsplit(url).path}{PATH}"
        self._headers = _headers(KIND, token)
        self.is_posting = False  # whether messages other than Pings are being posted
        try:
            self._response = self._begin()
            self._socket.settimeout(None)  # the Client's heartbeat detects a silent server
        except BaseException:
            self._stream.close()
            raise
        _sessions.add(self)

    def _begin(self) -> http.client.HTTPResponse:
        """Open the session with a Hello. Return the HTTP response whose body delivers the server's messages. The Hello
        has no token, because the API key in the HTTP headers identifies the client. Raises ConnectFailed if nobody
        answers or the server refuses, NotBanyan if the server is not Banyan's."""
        hello = wire.encode(wire.Hello(wire.VERSION, f"pid {os.getpid()}"))
        try:
            self._stream.connect()
        except OSError as e:
            raise ConnectFailed(
                f"nobody answers at {self._url}: {e.strerror or e}; start a server there with "
                "`banyan serve --http PORT`, or a private one with bn.Runtime()"
            ) from e
        self._socket = self._stream.sock  # getresponse may hand it over to the response
        try:
            self._stream.request("POST", self._path, pack([hello]), self._headers)
            response = self._stream.getresponse()
            if response.status == 200 and response.headers.get_content_type() == KIND:
                self._session = response.headers.get(SESSION, "")
                return response
            body = response.read(4096)
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise NotBanyan(f"what listens at {self._url} does not answer like a server of Banyan: {e!r}") from e
        try:
            message = json.loads(body)["error"]["message"]
        except (ValueError, LookupError, TypeError):
            message = ""
        if response.status in (200, 404, 405, 501) or not message:
            raise NotBanyan(f"{self._url} is not a server of Banyan: it has no {PATH} (HTTP status {response.status})")
        raise ConnectFailed(f"the server at {self._url} refused: {message} (HTTP status {response.status})")

    def _post(self, messages: list[bytes]) -> None:
        """Post messages. Raises OSError or HTTPException if the session is over."""
        while messages:
            n, n_bytes = 0, 0
            while n < len(messages) and (n == 0 or n_bytes + len(messages[n]) + 4 <= MAX_MESSAGE):
                n_bytes += len(messages[n]) + 4
                n += 1
            self._posts.request("POST", f"{self._path}/{self._session}", pack(messages[:n]), self._headers)
            response = self._posts.getresponse()
            response.read()
            if response.status != 200:
                raise http.client.HTTPException(f"status {response.status}")
            messages = messages[n:]

    def end(self) -> None:
        """End the session: the long response ends, and `read` returns."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(sockets.SHUT_RDWR)

    def post(self, posts: ipc.Socket) -> None:
        """Post each message that arrives at `posts`, until the Client or the session ends. Runs in a thread."""
        posts.recv()  # the Hello, which was sent to open the session
        is_open = True
        while is_open:
            messages = [posts.recv(), *_all(posts)]
            is_open = _CLOSE not in messages
            self.is_posting = any(data not in (_PING, _CLOSE) for data in messages)
            try:
                self._post([data for data in messages if data != _CLOSE])
            except (OSError, http.client.HTTPException):
                is_open = False
            self.is_posting = False
        self.end()
        posts.close(0)
        self._posts.close()

    def read(self, arrivals: ipc.Socket, events: ipc.Socket) -> None:
        """Pass each message of the server's long response on to `arrivals`, and the end of the response to `events`.
        Runs in a thread."""
        buffer = bytearray()
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            while data := self._response.read1(1 << 16):
                buffer += data
                for message in take(buffer):
                    _send(arrivals, message)
        _send(events, _EVENT, b"")
        for one in (arrivals, events):
            one.close(1000)
        self._response.close()
        self._stream.close()

    def leave_to_parent(self) -> None:
        """In a forked child, close the child's copies of the two connections, so that the server notices when the
        parent ends."""
        for socket in (self._socket, self._posts.sock):
            if socket is not None and (number := socket.detach()) >= 0:
                os.close(number)


def _send(socket: ipc.Socket, *parts: bytes) -> None:
    """Send a message. If the other end is closed, drop the message: waiting would block forever."""
    with contextlib.suppress(zmq.Again):
        socket.send_multipart(parts, zmq.NOBLOCK)


def _all(socket: ipc.Socket) -> list[bytes]:
    """Receive and return all messages that have arrived at a socket."""
    found: list[bytes] = []
    with contextlib.suppress(zmq.Again):
        while True:
            found.append(socket.recv(zmq.NOBLOCK))
    return found


_sessions: weakref.WeakSet[_Session] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for session in list(_sessions):
        session.leave_to_parent()
    _sessions.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
