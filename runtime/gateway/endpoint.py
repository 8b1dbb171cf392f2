"""The layer between ASGI and a handler: reads the body, notices when the client hangs up, and writes the response or
the error."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from banyan.runtime.client.client import Client
from banyan.runtime.gateway.errors import HTTPError, any_http_error
from banyan.runtime.gateway.gateway import Gateway
from banyan.runtime.protocol.http_frames import MAX_BODY

BODY_SECONDS = 60.0
"""Seconds within which the whole body of a request must arrive."""

Shape = Literal["openai", "anthropic"]
"""Whether errors have the shape of OpenAI's or of Anthropic's API."""


class Reply(NamedTuple):
    """A response whose body is known as a whole."""

    body: bytes
    status: int = 200
    kind: str = "application/json"
    """The content type of the body."""
    headers: Mapping[str, str] = {}


class EventReply(NamedTuple):
    """A response that is a stream of server-sent events. events: yields the bytes of one or more events at a time; it
    is always closed in the end. failed: returns the bytes that tell the client about an error in the middle of the
    stream."""

    events: AsyncGenerator[bytes, None]
    failed: Callable[[HTTPError], bytes]
    headers: Mapping[str, str] = {}
    kind: str = "text/event-stream; charset=utf-8"


class HTTPRequest(NamedTuple):
    """A request, as a handler gets it. tenant: who sent it; "": the server needs no keys. client: the tenant's
    connection to the server. headers: their names are in lower case. path: the values of the route's path
    parameters."""

    gateway: Gateway
    tenant: str
    client: Client
    headers: Mapping[bytes, bytes]
    path: Mapping[str, str]
    query: bytes
    body: bytes


Handler = Callable[[HTTPRequest], Awaitable[Reply | EventReply]]


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """A response whose body is `value`, a Struct or plain data, as JSON."""
    return Reply(msgspec.json.encode(value), status, headers=headers or {})


def error_reply(error: HTTPError, shape: Shape) -> Reply:
    """The response for an error."""
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else {}
    if error.status == 429:
        headers["retry-after"] = "1"
    if error.status in (408, 413, 415):  # the rest of the body is not read
        headers["connection"] = "close"
    return json_reply(error.openai() if shape == "openai" else error.anthropic(), error.status, headers)


def event(value: Any, name: str = "") -> bytes:
    """The bytes of one server-sent event with `value` as JSON. name: the event's type; "": none."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


class _HungUp(Exception):
    """Raised if the client disconnects before its whole body arrived. No response is sent."""


class Endpoint(NamedTuple):
    """A route of the HTTP interface. shape: the form of its errors. is_open: whether requests need no API key."""

    method: str
    path: str
    handle: Handler
    shape: Shape = "openai"
    is_open: bool = False


class EndpointApp:
    """The ASGI application of one endpoint."""

    def __init__(self, gateway: Gateway, endpoint: Endpoint) -> None:
        self._gateway, self._endpoint = gateway, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = _Response(send, self._endpoint.shape, request_id(dict(scope["headers"])))
        work = asyncio.ensure_future(self._serve(scope, receive, response))
        try:
            await work
        except asyncio.CancelledError:
            if not response.is_hung_up:  # then the process is ending
                await response.fail(HTTPError(503, "the server is stopping", code="runtime_lost"))
        finally:
            self._gateway.counts[self._endpoint.path, response.status] += 1

    async def _serve(self, scope: Scope, receive: Receive, response: _Response) -> None:
        watch: asyncio.Task[None] | None = None
        try:
            headers = dict(scope["headers"])
            tenant = "" if self._endpoint.is_open else self._gateway.identify(headers)
            body = await _read_body(headers, receive)
            watch = asyncio.ensure_future(_hang_up(receive, response, asyncio.current_task()))
            client = await self._gateway.client(tenant)
            path = scope.get("path_params", {})
            request = HTTPRequest(self._gateway, tenant, client, headers, path, scope["query_string"], body)
            reply = await self._endpoint.handle(request)
            if isinstance(reply, EventReply):
                await response.stream(reply)
            else:
                await response.write(reply)
        except _HungUp:
            pass
        except Exception as e:
            await response.fail(any_http_error(e, f"request {response.request_id}"))
        finally:
            if watch is not None:
                watch.cancel()


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The id of a request: that of the client, if it gave a short one in ASCII without spaces, or a new one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode() if re.fullmatch(rb"[!-~]{1,200}", given) else f"req_{uuid.uuid4().hex}"


def id_headers(number: str) -> dict[str, str]:
    """The headers that tell the client the id of its request. OpenAI's clients read the first, Anthropic's the
    second."""
    return {"x-request-id": number, "request-id": number}


async def _read_body(headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
    """Read the whole body of a request. HTTPError: it is too long or compressed, or does not arrive in time. _HungUp:
    the client has disconnected."""
    if (encoding := headers.get(b"content-encoding", b"").lower()) not in (b"", b"identity"):
        raise HTTPError(415, f"content-encoding {encoding[:80].decode('latin-1')} is not supported; do not compress")
    too_long = HTTPError(413, f"the body has more than {MAX_BODY} bytes", code="request_too_large")
    if int(headers.get(b"content-length", b"0")) > MAX_BODY:
        raise too_long
    chunks: list[bytes] = []
    n_left, more = MAX_BODY, True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _HungUp
                chunk, more = message.get("body", b""), message.get("more_body", False)
                chunks.append(chunk)
                n_left -= len(chunk)
                if n_left < 0:
                    raise too_long
    except TimeoutError:
        raise HTTPError(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    return b"".join(chunks)


async def _hang_up(receive: Receive, response: _Response, work: asyncio.Task[Any] | None) -> None:
    """Wait until the client disconnects, then cancel `work`, the task that answers its request."""
    while (await receive())["type"] != "http.disconnect":
        pass
    response.is_hung_up = True
    if work is not None:
        work.cancel()


class _Response:
    """Sends the response to one request. status: its HTTP status; 0: no headers have been sent yet."""

    def __init__(self, send: Send, shape: Shape, request_id: str) -> None:
        self._send, self._shape, self.request_id = send, shape, request_id
        self.status = 0
        self.is_hung_up = False
        self._failed: Callable[[HTTPError], bytes] | None = None

    async def write(self, reply: Reply) -> None:
        await self._begin(reply.status, reply.kind, {"content-length": str(len(reply.body)), **reply.headers})
        await self._body(reply.body, more=False)

    async def stream(self, reply: EventReply) -> None:
        """Send a stream. The headers wait for the first events: an error before these can still be sent with its own
        HTTP status."""
        try:
            first = await anext(reply.events, b"")
            # the second is for nginx, which would hold events back
            fixed = {"cache-control": "no-cache", "x-accel-buffering": "no"}
            await self._begin(200, reply.kind, fixed | dict(reply.headers))
            self._failed = reply.failed
            await self._body(first, more=True)
            async for data in reply.events:
                await self._body(data, more=True)
            await self._body(b"", more=False)
        finally:
            await reply.events.aclose()

    async def fail(self, error: HTTPError) -> None:
        if self._failed is not None:
            await self._body(self._failed(error), more=False)
        elif not self.status:
            await self.write(error_reply(error, self._shape))

    async def _begin(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        self.status = status
        every = {**headers, "content-type": kind, **id_headers(self.request_id)}
        raw = [(name.encode(), value.encode()) for name, value in every.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _body(self, body: bytes, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
