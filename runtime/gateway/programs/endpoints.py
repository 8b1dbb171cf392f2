"""POST /v1/programs: programs over HTTP.

A request in JSON has the ops of one program, and the response streams the values of the program. Further ops are sent
to /v1/programs/SESSION. Banyan's own client uses the content type application/x-banyan instead: request and response
then carry the same binary messages as the server's socket. A session ends when the response to its first request
ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator

import msgspec

from banyan.runtime.gateway.endpoint import EventReply, HTTPRequest, Reply, event, json_reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.programs.json_program import JSONProgram, decode_request
from banyan.runtime.gateway.programs.sessions import Session
from banyan.runtime.protocol import http_frames, wire


async def begin(request: HTTPRequest) -> EventReply:
    """Open a session. The response streams the values of its program, or the server's messages for Banyan's own
    client."""
    if _is_binary(request):
        return await _begin_binary(request)
    program = JSONProgram(request.client.welcome.max_message)
    data = program.message(decode_request(request.body))
    session, _ = await request.gateway.sessions.open(request.client, wire.VERSION, "http")
    session.program = program
    session.send(data)
    session.keep_alive()
    return EventReply(_values(session, program), lambda e: event(e.openai(), "error"))


async def go_on(request: HTTPRequest) -> Reply:
    """Send further ops of a program, or messages of Banyan's own client, to the session in the path."""
    session = request.gateway.sessions.find(request.path["session"], request.tenant)
    if _is_binary(request):
        for data in _messages(request):
            session.send(data)
    elif session.program is None:
        raise HTTPError(400, f"this session takes bodies of the content type {http_frames.KIND} only")
    else:
        session.send(session.program.message(decode_request(request.body)))
        if session.program.is_over:  # its response waits for a message, and no more will come
            session.close()
    return json_reply({})


async def _values(session: Session, program: JSONProgram) -> AsyncGenerator[bytes, None]:
    """Yield the server-sent events of a program given in JSON: its id, each value or piece of text, and the end. Closes
    the session. HTTPError: the server is gone."""
    try:
        yield event({"id": session.id}, "program")
        while not program.is_over:
            if not (messages := await session.messages()) and not program.is_over:
                raise HTTPError(503, "the server is gone", code="runtime_lost")
            if data := b"".join(_events(program, messages)):
                yield data
        yield event({}, "end")
    finally:
        session.close()


def _events(program: JSONProgram, messages: Iterable[bytes]) -> Iterator[bytes]:
    for message in map(wire.decode_server, messages):
        if program.note(message):
            yield event(message, type(message).__name__.lower())


# ---- messages of Banyan's client -----------------------------------------------------------------------------------


def _is_binary(request: HTTPRequest) -> bool:
    return request.headers.get(b"content-type", b"").partition(b";")[0].strip() == http_frames.KIND.encode()


def _messages(request: HTTPRequest) -> list[bytes]:
    """Unpack the messages in a body. HTTPError: a message is longer than the server accepts."""
    messages, most = http_frames.unpack(request.body), request.client.welcome.max_message
    if any(len(data) > most for data in messages):
        raise HTTPError(413, f"a message has more than {most} bytes")
    return messages


async def _begin_binary(request: HTTPRequest) -> EventReply:
    try:
        (data,) = _messages(request)
        hello = msgspec.msgpack.decode(data, type=wire.Hello)
    except wire.UNREADABLE as e:
        raise HTTPError(400, f"a session must begin with a single Hello: {str(e)[:200]}") from None
    session, data = await request.gateway.sessions.open(request.client, hello.version, hello.client)
    welcome = msgspec.msgpack.decode(data, type=wire.Welcome)
    most = min(welcome.max_message, http_frames.MAX_MESSAGE)
    frames = _frames(session, wire.encode(msgspec.structs.replace(welcome, max_message=most)))
    return EventReply(frames, lambda e: b"", {http_frames.SESSION: session.id}, http_frames.KIND)


async def _frames(session: Session, welcome: bytes) -> AsyncGenerator[bytes, None]:
    try:
        yield http_frames.pack([welcome])
        while messages := await session.messages():
            yield http_frames.pack(messages)
    finally:
        session.close()
