"""Carries the messages of a Client over HTTP. The Client uses it like the socket of ipc.connect.

`connect` returns a pair of sockets like those of ipc.connect. Three threads serve them: one passes messages on between
the sockets, one posts the messages that the Client sends, and one reads the messages that arrive in one long response.
The session ends with that response. HTTP is spoken by the standard library's http.client, so that a client of
Banyan needs no other package. Two connections carry any number of programs.
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
from collections.abc import Callable
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
    """The socket that the Client uses. Its `close` ends the session: it makes `_Session.carry` return."""

    def close(self, linger: int | None = None) -> None:
        if not self.closed:
            _send(self, _CLOSE)
        super().close(linger)


def connect(context: ipc.Context, url: str, token: str, timeout: float) -> tuple[ipc.Socket, ipc.Socket]:
    """Opens a session with the server at `url`. Returns a socket that works like a DEALER connected to the server, and
    a `watch` socket, which becomes readable when the session begins and when it ends. token: the API key. Raises
    ConnectFailed if nobody answers or the server refuses, NotBanyan if the server is not Banyan's."""
    session = _Session(url, token, timeout)
    (socket, inside), (monitor, events), (arrived, arrivals), (leaving, posts) = (
        _pair(context, kind) for kind in (_ClientEnd, zmq.Socket, zmq.Socket, zmq.Socket)
    )
    carry = partial(session.carry, inside, arrived, leaving, events)
    for run in (carry, partial(session.read, arrivals), partial(session.post, posts)):
        threading.Thread(target=run, name="banyan-http", daemon=True).start()
    return socket, monitor


def _pair(context: ipc.Context, kind: Callable[..., ipc.Socket]) -> tuple[ipc.Socket, ipc.Socket]:
    """Two sockets of this process that are connected to each other; the first one is of `kind`."""
    one, two = kind(context, zmq.PAIR), context.socket(zmq.PAIR)
    for end in (one, two):
        end.set_hwm(0)
    where = f"inproc://banyan-http-{id(one)}-{os.urandom(8).hex()}"
    one.bind(where)
    two.connect(where)
    return one, two


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
        self._is_posting = False  # whether messages other than Pings are being posted
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

    def carry(self, inside: ipc.Socket, arrived: ipc.Socket, leaving: ipc.Socket, events: ipc.Socket) -> None:
        """Pass messages on between the Client and the threads of `read` and `post`, until one side ends. Runs in a
        thread.

        inside   the peer of the Client's socket
        arrived  delivers the messages that `read` has read
        leaving  takes the messages for `post`; a message from it says that `post` has ended
        events   the peer of the `watch` socket
        """
        poller = zmq.Poller()
        for one in (inside, arrived, leaving):
            poller.register(one, zmq.POLLIN)
        inside.recv()  # the Hello, which was sent to open the session
        _send(events, _EVENT, b"")
        is_open = True
        while is_open:
            ready = dict(poller.poll())
            if arrived in ready:
                for data in _all(arrived):
                    if data == _CLOSE:
                        is_open = False
                    else:
                        _send(inside, data)
            if inside in ready:
                for data in _all(inside):
                    # A Ping would wait behind a large message, whose POST may take long, so it is answered here. The
                    # timeout of the POST detects a server that is lost meanwhile.
                    if data == _PING and self._is_posting:
                        _send(inside, _PONG)
                    else:
                        _send(leaving, data)
            if leaving in ready:
                is_open = False
        _send(leaving, _CLOSE)
        _send(events, _EVENT, b"")
        with contextlib.suppress(OSError):
            self._socket.shutdown(sockets.SHUT_RDWR)  # wakes `read`
        for one in (inside, arrived, leaving, events):
            one.close(1000)

    def post(self, posts: ipc.Socket) -> None:
        """Post each message that arrives at `posts`, until the Client or the session ends. Runs in a thread."""
        is_open = True
        while is_open:
            messages = [posts.recv(), *_all(posts)]
            is_open = _CLOSE not in messages
            self._is_posting = any(data not in (_PING, _CLOSE) for data in messages)
            try:
                self._post([data for data in messages if data != _CLOSE])
            except (OSError, http.client.HTTPException):
                is_open = False
            self._is_posting = False
        _send(posts, _CLOSE)
        posts.close(1000)
        self._posts.close()

    def read(self, arrivals: ipc.Socket) -> None:
        """Pass each message of the server's long response on to `arrivals`. Runs in a thread."""
        buffer = bytearray()
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            while data := self._response.read1(1 << 16):
                buffer += data
                for message in take(buffer):
                    _send(arrivals, message)
        _send(arrivals, _CLOSE)
        arrivals.close(1000)
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
