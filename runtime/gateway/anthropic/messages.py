"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's interface."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from banyan.runtime.gateway.anthropic.messages_types import (
    MESSAGE_IGNORED,
    PROMPT_IGNORED,
    THINKING_IGNORED,
    CountRequest,
    MessageRequest,
)
from banyan.runtime.gateway.bodies import decode, ignored
from banyan.runtime.gateway.endpoint import EventReply, HTTPRequest, Reply, event, json_reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.generation import chat_markers, start_chat
from banyan.runtime.gateway.info import adapter_of, count_tokens
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai.chat_types import ChatRequest
from banyan.runtime.gateway.sent_calls import SentCalls
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.roles import ASSISTANT


async def create(request: HTTPRequest) -> Reply | EventReply:
    """Creates a message, and answers with it whole or as a stream."""
    body = decode(request.body, MessageRequest)
    adapter = await adapter_of(request, body.model)
    if body.thread is not None:  # this code tells Anthropic's tool runner to continue without `thread`
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        text = "conversations are not kept; send all messages"
        raise HTTPError(400, text, param="thread", details=details)
    chat = chat_markers(request)
    asked = _chat(chat, body)
    pins = (wire.CacheHint(0, pin=body.pinned),) if body.pinned else ()  # after the gen, so the output is pinned too
    call = start_chat(request, asked, adapter, name="message", hints=pins)
    reasons = chat.reasoning is not None or bool(asked.chat_template_kwargs)
    headers = ignored(body, (*MESSAGE_IGNORED, *(THINKING_IGNORED if reasons else ("thinking",))))
    writer = MessageWriter(body)
    if body.stream:
        return EventReply(_stream(call, writer), lambda e: event(e.anthropic(), "error"), headers)
    async with call:
        (value,) = (await call.values()).values()
        return json_reply(writer.whole(value), headers=headers)


async def count(request: HTTPRequest) -> Reply:
    """Answers with the number of tokens in the prompt of a message request."""
    body = decode(request.body, CountRequest)
    await adapter_of(request, body.model)
    asked = _chat(chat_markers(request), body)
    n = await count_tokens(request, asked)
    headers = ignored(body, (*PROMPT_IGNORED, *(THINKING_IGNORED if asked.chat_template_kwargs else ("thinking",))))
    return json_reply({"input_tokens": n}, headers=headers)


def _chat(chat: wire.ChatMarkers, body: CountRequest) -> ChatRequest:
    """The chat request for `body`. The field `thinking` turns the reasoning on or off, if the chat template has a
    variable for that, and does not leave the choice to the model."""
    found = body.chat_request()
    if chat.thinking_switch and body.thinking is not None and body.thinking.type in ("enabled", "disabled"):
        found.chat_template_kwargs = {chat.thinking_switch: body.thinking.type == "enabled"}
    return found


async def _stream(call: ModelCall, writer: MessageWriter) -> AsyncGenerator[bytes, None]:
    async with call:
        while arrived := await call.arrivals():
            yield b"".join([writer.chunk(item) for _, item in arrived])


class MessageWriter:
    """Writes the response to a message request, whole or as server-sent events."""

    def __init__(self, body: MessageRequest) -> None:
        self._shows_thinking = body.thinking is not None and body.thinking.type != "disabled"
        self._max_tokens, self._stops = body.max_tokens, body.stop_sequences or ()
        self._message: dict[str, Any] = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": ASSISTANT,
            "model": body.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        self._is_begun = False
        self._n_blocks = 0
        self._open = ""  # the kind of the open block
        self._calls = SentCalls()

    def whole(self, value: wire.Value) -> dict[str, Any]:
        """The JSON body of a response that is not streamed."""
        sample = value.samples[0]
        content: list[Any] = []
        if sample.reasoning and self._shows_thinking:
            content.append({"type": "thinking", "thinking": sample.reasoning, "signature": ""})
        if sample.text:
            content.append({"type": "text", "text": sample.text})
        content += [_use(call.name, msgspec.Raw(call.arguments.encode())) for call in sample.calls]
        return self._message | {"content": content, **self._ending(value), "usage": _usage(value.usage)}

    def chunk(self, item: wire.Delta | wire.Value) -> bytes:
        """The events for `item`: a further piece of the message or, at the end, its whole value."""
        data = b""
        if not self._is_begun:
            self._is_begun = True
            usage = wire.TokenUsage(item.n_prompt, item.n_cached, 1) if isinstance(item, wire.Delta) else item.usage
            data = _event("message_start", message=self._message | {"usage": _usage(usage)}) + _event("ping")
        return data + (self._delta(item) if isinstance(item, wire.Delta) else self._end(item))

    def _delta(self, delta: wire.Delta) -> bytes:
        if delta.call is not None:
            return self._call(delta.call)
        kind = "thinking" if delta.is_thought else "text"
        if delta.is_thought and not self._shows_thinking:
            return b""
        empty = {"type": kind, kind: ""} | ({"signature": ""} if delta.is_thought else {})
        data = b"" if self._open == kind else self._begin(kind, empty)
        more = {"type": f"{kind}_delta", kind: delta.text}
        return data + _event("content_block_delta", index=self._n_blocks - 1, delta=more)

    def _call(self, piece: wire.CallPiece) -> bytes:
        data = self._begin("tool_use", _use(piece.name, {})) if self._calls.add(piece) else b""
        more = {"type": "input_json_delta", "partial_json": piece.arguments}
        return data + _event("content_block_delta", index=self._n_blocks - 1, delta=more)

    def _begin(self, kind: str, block: dict[str, Any]) -> bytes:
        data = self._close()
        self._open, self._n_blocks = kind, self._n_blocks + 1
        return data + _event("content_block_start", index=self._n_blocks - 1, content_block=block)

    def _close(self) -> bytes:
        if not self._open:
            return b""
        data = b""
        if self._open == "thinking":
            signature = {"type": "signature_delta", "signature": ""}
            data = _event("content_block_delta", index=self._n_blocks - 1, delta=signature)
        self._open = ""
        return data + _event("content_block_stop", index=self._n_blocks - 1)

    def _end(self, value: wire.Value) -> bytes:
        data = b"".join(map(self._call, self._calls.rest(value.samples[0])))
        usage = _usage(value.usage)
        data += self._close() + _event("message_delta", delta=self._ending(value), usage=usage)
        return data + _event("message_stop")

    def _ending(self, value: wire.Value) -> dict[str, Any]:
        sample = value.samples[0]
        reason, stop = "end_turn", None
        is_cut = sample.finish_reason == "length"
        if sample.calls and not (is_cut and self._calls.is_cut(sample)):
            reason = "tool_use"
        elif is_cut:
            is_full = value.usage.generated < self._max_tokens
            reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif sample.matched in self._stops:
            reason, stop = "stop_sequence", sample.matched
        return {"stop_reason": reason, "stop_sequence": stop}


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _use(name: str, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": name, "input": given}


def _usage(usage: wire.TokenUsage) -> dict[str, Any]:
    """The usage in the form of Anthropic's API, in which input_tokens does not include cached tokens."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.generated,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
