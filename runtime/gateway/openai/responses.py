"""/v1/responses: create, retrieve, cancel and delete responses. A response can continue an earlier one: the server then
forks the state of the earlier one, so the context has exactly the tokens that the model generated."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from itertools import count
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import replace

from banyan.runtime.gateway.bodies import decode, ignored
from banyan.runtime.gateway.endpoint import EventReply, HTTPRequest, Reply, event, json_reply
from banyan.runtime.gateway.errors import HTTPError, any_http_error
from banyan.runtime.gateway.generation import chat_gen, chat_markers, limits_of
from banyan.runtime.gateway.info import adapter_of, count_tokens
from banyan.runtime.gateway.model_call import Arrival, ModelCall
from banyan.runtime.gateway.openai.chat import logprobs_of
from banyan.runtime.gateway.openai.chat_types import CalledFunction, ChatTurn, ToolCallPart
from banyan.runtime.gateway.openai.response_store import Conversation, ConversationBranch, StoredResponse
from banyan.runtime.gateway.openai.responses_types import (
    LOGPROBS,
    PROMPT_IGNORED,
    RESPONSE_IGNORED,
    InputItem,
    ResponsePrompt,
    ResponseRequest,
    turns_of,
)
from banyan.runtime.gateway.prompt import PromptWriter
from banyan.runtime.gateway.sent_calls import SentCalls
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.http_frames import MAX_BODY
from banyan.runtime.protocol.roles import ASSISTANT


async def create(request: HTTPRequest) -> Reply | EventReply:
    """Create a response. The client gets it whole or as a stream, or at once, before it is complete (`background`)."""
    body = decode(request.body, ResponseRequest)
    adapter = await adapter_of(request, body.model)
    if body.background and (body.stream or body.store is False):
        raise HTTPError(400, "background cannot be combined with stream or with store: false", param="background")
    run = ResponseRun(request, body, _previous(request, body), adapter)
    names = RESPONSE_IGNORED if set(body.include or ()) <= {LOGPROBS} else (*RESPONSE_IGNORED, "include")
    user = () if request.gateway.isolates_users else ("safety_identifier",)
    headers = ignored(body, (*names, *_unread(request), *user))
    if body.stream:
        return EventReply(run.events(), run.failed, headers)
    if body.background:
        run.run_in_background()
        return json_reply(run.payload, headers=headers)
    async for _ in run.events():
        pass
    return json_reply(run.payload, headers=headers)


def _unread(request: HTTPRequest) -> tuple[str, ...]:
    """The names of the request's fields that have no effect because the model's chat template does not read them."""
    return () if chat_markers(request).reads_effort else ("reasoning.effort",)


def _previous(request: HTTPRequest, body: ResponsePrompt) -> StoredResponse | None:
    """The stored response that `body` continues; None: it continues none. HTTPError: the tenant has no such response,
    it is not complete, or the request has neither a response to continue nor input."""
    if body.previous_response_id is None:
        if not body.input and not isinstance(body.input, str):
            raise HTTPError(400, "input must have at least one item, or previous_response_id be given", param="input")
        return None
    before = request.gateway.responses.get(request.tenant, body.previous_response_id, "previous_response_id")
    if not before.is_finished:
        text = f"the previous response is {before.payload['status']}; it must be completed or incomplete"
        raise HTTPError(400, text, param="previous_response_id")
    return before


def _system(body: ResponsePrompt) -> list[ChatTurn]:
    return [] if body.instructions is None else [ChatTurn(role="system", content=body.instructions)]


def _turns(request: HTTPRequest, body: ResponsePrompt) -> list[ChatTurn]:
    """The messages in the input of a request, with the items to which it refers. HTTPError: an item is invalid, the
    tenant has no such item, or the input is too long with the items."""
    if isinstance(body.input, str) or not (wanted := {one.id for one in body.input if one.type == "item_reference"}):
        return turns_of(body.input)
    given, n_bytes = [], len(request.body)
    items = {
        number: (msgspec.convert(item, InputItem), len(msgspec.json.encode(item)))
        for number, item in request.gateway.responses.items(request.tenant, wanted).items()
    }
    for k, one in enumerate(body.input):
        if one.type != "item_reference":
            given.append(one)
            continue
        param = f"input[{k}].id"
        if one.id is None:
            raise HTTPError(400, "an item_reference must have an id", param=param)
        if one.id not in items:
            text = f"there is no item {one.id[:80]!r}, or its response is not kept any more; send the item itself"
            raise HTTPError(404, text, param=param, code="not_found")
        item, n_item = items[one.id]
        n_bytes += n_item  # each time: the prompt repeats the item
        if n_bytes > MAX_BODY:
            raise HTTPError(
                413, f"with the items to which it refers, the body has more than {MAX_BODY} bytes", param=param
            )
        given.append(item)
    return turns_of(given)


async def count_input(request: HTTPRequest) -> Reply:
    """Answers with the number of tokens in the prompt that such a request would have."""
    body = decode(request.body, ResponsePrompt)
    await adapter_of(request, body.model)
    before = _previous(request, body)
    turns = [*_system(body), *(before.turns if before is not None else ()), *_turns(request, body)]
    n = await count_tokens(request, body.chat_request(turns), field="input")
    headers = ignored(body, (*PROMPT_IGNORED, *_unread(request)))
    return json_reply({"object": "response.input_tokens", "input_tokens": n}, headers=headers)


async def retrieve(request: HTTPRequest) -> Reply:
    """Answers with a stored response, in its current state."""
    if dict(parse_qsl(request.query.decode("latin-1"))).get("stream") == "true":
        raise HTTPError(400, "only the request that creates a response can stream it", param="stream")
    return json_reply(request.gateway.responses.get(request.tenant, request.path["id"]).payload)


async def cancel(request: HTTPRequest) -> Reply:
    """Stops a response that was created with `background`, if it still runs, and answers with it. HTTPError: it was not
    created with `background`, or is not stored."""
    stored = request.gateway.responses.get(request.tenant, request.path["id"])
    if stored.task is None:
        raise HTTPError(400, "only a response with background: true can be cancelled")
    if stored.payload["status"] == "in_progress":
        stored.task.cancel()
        await asyncio.wait([stored.task])  # it ends the payload
    return json_reply(stored.payload)


async def delete(request: HTTPRequest) -> Reply:
    """Drops a stored response."""
    request.gateway.responses.pop(request.tenant, request.path["id"])
    return json_reply({"id": request.path["id"], "object": "response", "deleted": True})


class ResponseRun:
    """Generates one response of /v1/responses. payload: the response so far, as JSON data."""

    def __init__(
        self, request: HTTPRequest, body: ResponseRequest, before: StoredResponse | None, adapter: str
    ) -> None:
        """Send the generation to the server. before: the response that this one continues; None: it begins a
        conversation. adapter: the name of the adapter; "": none. HTTPError, BanyanError: as of _start."""
        self._request, self._body, self._adapter = request, body, adapter
        self.payload: dict[str, Any] = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": bool(body.background),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "store": body.store is not False,
            "temperature": body.temperature,
            "text": {"format": body.text.format if body.text and body.text.format else {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
        }
        new = _turns(request, body)
        turns = [*(before.turns if before is not None else ()), *new]
        self._chat = body.chat_request([*_system(body), *turns])
        branch = self._start(before, new)
        n_bytes = len(request.body)  # the payload repeats most of it
        self._stored = StoredResponse(request.tenant, self.payload, turns, body.instructions, branch, n_bytes)
        self._events = ResponseEvents(self.payload["output"], body.has_logprobs)

    def _start(self, before: StoredResponse | None, new: Sequence[ChatTurn] = ()) -> ConversationBranch:
        """Send the generation, and return the branch that gets its output. new: the turns after those of `before`.
        HTTPError: an option is invalid. Raises BanyanError if the generation cannot be sent."""
        body, request = self._body, self._request
        gen = chat_gen(request, self._chat, self._adapter)
        tools = gen.tools.specs if gen.tools is not None else ()
        ops: list[wire.Op] = []
        parts: tuple[wire.Part, ...] = ()
        if (
            before is not None
            and before.has_program
            and before.branch.conversation.client is request.client
            and before.instructions == body.instructions
            and before.branch.tools == tools  # a state keeps the tools of its last gen with tools
        ):
            conversation = before.branch.conversation
            branch = ConversationBranch(conversation, next(conversation.states), before.branch.writer.copy(), tools)
            ops.append(wire.Fork(before.branch.state, (branch.state,)))
            if before.branch.is_open:
                parts = (wire.EndTurn(),)
        else:
            conversation = Conversation(request.client, request.client.program("response"))
            if (limits := limits_of(request, self._chat)) is not None:
                conversation.program.limit(limits)
            branch = ConversationBranch(conversation, 0, PromptWriter(chat_markers(request)), tools)
            new = self._chat.messages
        parts = (*parts, *branch.writer.parts(new), wire.BeginTurn(ASSISTANT))
        conversation.hold(new)
        ops += [wire.Append(branch.state, parts), replace(gen, state=branch.state, ref=next(conversation.refs))]
        state = branch.state if branch.goes_on else None
        self._call = ModelCall(request.gateway.mailbox, conversation.program, state=state, field="input")
        self._call.submit(ops, last=False)
        conversation.begin()
        return branch

    def run_in_background(self) -> None:
        """Store the response, and start a task that completes it."""
        self._request.gateway.responses.put(self._stored)

        async def run() -> None:
            try:
                async for _ in self.events():
                    pass
            except Exception as e:
                self.failed(any_http_error(e, f"response {self.payload['id']}"))
            except asyncio.CancelledError:
                self._events.close("incomplete")
                self.payload["status"] = "cancelled"

        self._stored.task = asyncio.create_task(run())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the server-sent events of the response, and complete `payload` meanwhile. HTTPError: the generation
        failed."""
        try:
            arrived = await self._first()
            data = [self._event("created"), self._event("in_progress")]
            while arrived:
                data += [
                    self._events.delta(one) if isinstance(one, wire.Delta) else self._end(one) for _, one in arrived
                ]
                yield b"".join(data)
                data, arrived = [], await self._call.arrivals()
        finally:
            self._call.cancel()
            branch = self._stored.branch
            branch.conversation.end(is_kept=branch.goes_on or self._body.store is not False)

    async def _first(self) -> list[Arrival]:
        """Wait for the first arrivals. HTTPError: the generation failed."""
        try:
            return await self._call.arrivals()
        except HTTPError:
            if not self._stored.branch.goes_on or self._stored.has_program:
                raise
        # the program may have been full, or another response of it may have ended it
        self._stored.branch = self._start(None)
        return await self._call.arrivals()

    def failed(self, error: HTTPError) -> bytes:
        """Mark the response as failed with `error`. Returns the bytes of the events that tell the client."""
        data = self._events.close("incomplete")
        self.payload |= {"status": "failed", "error": {"code": error.code or "server_error", "message": error.message}}
        return data + self._event("failed")

    def _event(self, kind: str) -> bytes:
        return self._events.event(kind, response=self.payload)

    def _end(self, value: wire.Value) -> bytes:
        sample, stored = value.samples[0], self._stored
        data = self._events.end(sample)
        is_cut = sample.finish_reason == "length"
        self.payload |= {
            "status": "incomplete" if is_cut else "completed",
            "completed_at": None if is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": {
                "input_tokens": value.usage.prompt,
                "input_tokens_details": {"cached_tokens": value.usage.cached, "cache_write_tokens": 0},
                "output_tokens": value.usage.generated,
                "output_tokens_details": {"reasoning_tokens": value.usage.reasoning},
                "total_tokens": value.usage.prompt + value.usage.generated,
            },
        }
        if self._body.store is not False:
            calls = [
                ToolCallPart(
                    id=item["call_id"], function=CalledFunction(name=item["name"], arguments=item["arguments"])
                )
                for item in self.payload["output"]
                if item["type"] == "function_call" and item["status"] == "completed"
            ]
            for call in calls:
                stored.branch.writer.know(call.function.name, call.id)
            turn = ChatTurn(role=ASSISTANT, content=sample.text, tool_calls=calls or None)
            stored.turns.append(turn)
            stored.branch.conversation.hold([turn])
            stored.n_bytes += len(msgspec.json.encode(self.payload["output"]))
            stored.branch.is_open = not calls
            self._request.gateway.responses.put(stored)
            self._call.keeps_state = True
        return data + self._event(self.payload["status"])


class ResponseEvents:
    """Writes the server-sent events of a response, and meanwhile builds its output items (reasoning, message, function
    calls) from its text. output: the list that gets the items."""

    def __init__(self, output: list[dict[str, Any]], has_logprobs: bool) -> None:
        self._output, self._has_logprobs = output, has_logprobs
        self._numbers = count()
        self._calls = SentCalls()

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event. kind: its type without the prefix "response."."""
        kind = f"response.{kind}"
        return event({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)

    @property
    def _where(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _open(self) -> str:
        """The type of the item that is being written, "reasoning", "message" or "function_call"; "": none."""
        is_open = self._output and self._output[-1]["status"] == "in_progress"
        return str(self._output[-1]["type"]) if is_open else ""

    def delta(self, delta: wire.Delta) -> bytes:
        """The events for a further piece of text or of a call. A piece whose kind differs from that of the open item
        ends this item and begins a new one."""
        if delta.call is not None:
            return self._call(delta.call)
        if not delta.text:  # a thought that has only logprobs
            return b""
        kind = "reasoning" if delta.is_thought else "message"
        data = b""
        if (before := self._open()) != kind:  # text after a call: the "call" was not one after all
            data = self.close("incomplete" if before == "function_call" else "completed") + self._begin(kind)
        part = self._output[-1]["content"][0]
        part["text"] += delta.text
        if delta.is_thought:
            return data + self.event("reasoning_text.delta", **self._where, content_index=0, delta=delta.text)
        logprobs = logprobs_of(delta.logprobs)["content"] if self._has_logprobs else []
        part["logprobs"] += logprobs
        fields = {"content_index": 0, "delta": delta.text, "logprobs": logprobs}
        return data + self.event("output_text.delta", **self._where, **fields)

    def end(self, sample: wire.Sample) -> bytes:
        """The events for the end of the output: what is left of the function calls, and the end of the open item."""
        is_cut = self._open() == "function_call" and self._calls.is_cut(sample)
        data = self.close("incomplete") if is_cut else b""
        data += b"".join(map(self._call, self._calls.rest(sample)))
        if is_cut or self._open() == "function_call":
            return data + self.close("completed")
        if self._open() != "message":
            data += self.close("completed") + self._begin("message")
        return data + self.close("incomplete" if sample.finish_reason == "length" else "completed")

    def _add(self, item: dict[str, Any]) -> bytes:
        self._output.append(item | {"status": "in_progress"})
        return self.event("output_item.added", output_index=len(self._output) - 1, item=self._output[-1])

    def _begin(self, kind: str) -> bytes:
        if kind == "reasoning":
            data = self._add({"id": f"rs_{uuid.uuid4().hex}", "type": kind, "summary": [], "content": []})
            self._output[-1]["content"] = [{"type": "reasoning_text", "text": ""}]
            return data
        data = self._add({"id": f"msg_{uuid.uuid4().hex}", "type": kind, "role": ASSISTANT, "content": []})
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._output[-1]["content"] = [part]
        return data + self.event("content_part.added", **self._where, content_index=0, part=part)

    def close(self, status: str) -> bytes:
        """The events that end the item being written, which gets `status`; b"": no item is open."""
        if not (kind := self._open()):
            return b""
        item = self._output[-1]
        item["status"] = status
        if kind == "function_call":
            fields = {"arguments": item["arguments"], "name": item["name"]}
            return self.event("function_call_arguments.done", **self._where, **fields) + self._done()
        (part,) = self._output[-1]["content"]
        where = {**self._where, "content_index": 0}
        if kind == "reasoning":
            data = self.event("reasoning_text.done", **where, text=part["text"])
        else:
            data = self.event("output_text.done", **where, text=part["text"], logprobs=part["logprobs"])
            data += self.event("content_part.done", **where, part=part)
        return data + self._done()

    def _done(self) -> bytes:
        return self.event("output_item.done", output_index=len(self._output) - 1, item=self._output[-1])

    def _call(self, piece: wire.CallPiece) -> bytes:
        data = b""
        if self._calls.add(piece):
            ids = {"id": f"fc_{uuid.uuid4().hex}", "call_id": f"call_{uuid.uuid4().hex[:24]}"}
            item = {**ids, "type": "function_call", "name": piece.name, "arguments": ""}
            data = self.close("completed") + self._add(item)
        if not piece.arguments:
            return data
        self._output[-1]["arguments"] += piece.arguments
        return data + self.event("function_call_arguments.delta", **self._where, delta=piece.arguments)
