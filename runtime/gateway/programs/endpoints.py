"""POST /v1/programs: programs over HTTP, with the messages of the socket.

In JSON, a request carries the ops of one program, and its response streams the program's values. With the content type
application/x-banyan, which Banyan's own client uses, it carries any messages of a client, and its response streams the
server's messages. Further ops, or messages, go to /v1/programs/SESSION. A session ends when the response to its first
request ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator

import msgspec

from banyan.runtime.gateway.bodies import decode
from banyan.runtime.gateway.endpoint import EventReply, HTTPRequest, Reply, event, json_reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.programs.json_program import JSONProgram, ProgramRequest
from banyan.runtime.gateway.programs.sessions import Session
from banyan.runtime.protocol import http_frames, wire


async def begin(request: HTTPRequest) -> EventReply:
    """Open a session, and stream its values or messages."""
    if _is_binary(request):
        return await _begin_binary(request)
    program = JSONProgram(request.client.welcome.max_message)
    data = program.message(decode(request.body, ProgramRequest))
    session, _ = await request.gateway.sessions.open(request.client, wire.VERSION, "http")
    session.program = program
    session.send(data)
    session.keep_alive()
    return EventReply(_values(request, session, program), lambda e: event(e.openai(), "error"))


async def go_on(request: HTTPRequest) -> Reply:
    """Pass more ops or messages to an open session."""
    session = request.gateway.sessions.find(request.path["session"], request.tenant)
    if _is_binary(request):
        for data in _messages(request):
            session.send(data)
    elif session.program is None:
        raise HTTPError(400, f"this session takes bodies of the content type {http_frames.KIND} only")
    else:
        session.send(session.program.message(decode(request.body, ProgramRequest)))
        if session.program.is_over:  # its response waits for a message, and no more will come
            session.end()
    return json_reply({})


async def _values(request: HTTPRequest, session: Session, program: JSONProgram) -> AsyncGenerator[bytes, None]:
    """The events of a program in JSON."""
    try:
        yield event({"id": session.id}, "program")
        while not program.is_over:
            if not (messages := await session.messages()) and not program.is_over:
                raise HTTPError(503, "the server is gone", code="runtime_lost")
            if data := b"".join(_events(program, messages)):
                yield data
        yield event({}, "end")
    finally:
        request.gateway.sessions.close(session)


def _events(program: JSONProgram, messages: Iterable[bytes]) -> Iterator[bytes]:
    for message in map(wire.decode_server, messages):
        if program.note(message):
            yield event(message, type(message).__name__.lower())


# ---- messages of Banyan's client -----------------------------------------------------------------------------------


def _is_binary(request: HTTPRequest) -> bool:
    return request.headers.get(b"content-type", b"").partition(b";")[0].strip() == http_frames.KIND.encode()


def _messages(request: HTTPRequest) -> list[bytes]:
    """The messages of a body. HTTPError: one is so long that the server would close the connection."""
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
    frames = _frames(request, session, wire.encode(msgspec.structs.replace(welcome, max_message=most)))
    return EventReply(frames, lambda e: b"", {http_frames.SESSION: session.id}, http_frames.KIND)


async def _frames(request: HTTPRequest, session: Session, welcome: bytes) -> AsyncGenerator[bytes, None]:
    try:
        yield http_frames.pack([welcome])
        while messages := await session.messages():
            yield http_frames.pack(messages)
    finally:
        request.gateway.sessions.close(session)
