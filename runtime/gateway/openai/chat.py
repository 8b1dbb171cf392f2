"""POST /v1/chat/completions."""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import Any

from banyan.runtime.gateway.bodies import decode, ignored
from banyan.runtime.gateway.endpoint import EventReply, HTTPRequest, Reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.generation import chat_markers, start_chat
from banyan.runtime.gateway.info import adapter_of
from banyan.runtime.gateway.openai.chat_types import IGNORED, ChatRequest
from banyan.runtime.gateway.openai.choice_writer import (
    ChoiceWriter,
    check_stream_options,
    finish_reason,
    reply,
    spelled,
    with_text,
)
from banyan.runtime.gateway.sent_calls import SentCalls
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.roles import ASSISTANT


async def create(request: HTTPRequest) -> Reply | EventReply:
    """Create a chat completion, whole or as a stream."""
    body = decode(request.body, ChatRequest)
    adapter = await adapter_of(request, body.model)
    check_stream_options(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise HTTPError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    if body.max_completion_tokens is not None and body.max_tokens is not None:
        text = "max_tokens and max_completion_tokens are the same; give one of them"
        raise HTTPError(400, text, param="max_tokens")
    call = start_chat(request, body, adapter, name="chat")
    effort = () if chat_markers(request).reads_effort else ("reasoning_effort",)
    user = () if request.gateway.isolates_users else ("safety_identifier",)
    headers = ignored(body, (*IGNORED, *effort, *user))
    return await reply(call, ChatWriter(body), headers)


class ChatWriter(ChoiceWriter):
    """Writes the response to a chat completion request, whole or as chunks."""

    def __init__(self, body: ChatRequest) -> None:
        super().__init__(body, "chatcmpl", "chat.completion", "chat.completion.chunk", b'"delta":{"content":%s}')
        self._has_logprobs = bool(body.logprobs)
        self._calls: defaultdict[int, SentCalls] = defaultdict(SentCalls)
        self._n_shown: defaultdict[int, int] = defaultdict(int)  # tokens whose logprobs were sent

    def _first(self, index: int, item: wire.Delta | wire.Value) -> bytes:
        is_text = not (item.samples[0].calls if isinstance(item, wire.Value) else item.call or item.is_thought)
        # as OpenAI does: with any content but null, clients begin a text
        return self._choice(index, {"role": ASSISTANT, "content": "" if is_text else None})

    def _more(self, index: int, delta: wire.Delta) -> bytes:
        if delta.call is not None:
            return self._call(index, delta.call)
        if delta.is_thought:
            if not delta.text:  # it has only logprobs
                return b""
            return self._choice(index, {"reasoning_content": delta.text, "reasoning": delta.text})
        if self._has_logprobs:
            tokens = self._shown[index].take(delta.text, delta.logprobs)
            self._n_shown[index] += len(tokens)
            return self._choice(index, {"content": delta.text}, logprobs=logprobs_of(tokens))
        return self._text(index, delta.text)

    def _last(self, index: int, sample: wire.Sample) -> bytes:
        data = b"".join([self._call(index, piece) for piece in self._calls[index].rest(sample)])
        rest = _of_content(sample, self._usages[index])[self._n_shown[index] :]  # such as the tokens of calls
        is_cut = sample.finish_reason == "length" and self._calls[index].is_cut(sample)
        finish = "length" if is_cut else finish_reason(sample)
        return data + self._choice(index, {}, finish, logprobs_of(rest) if rest else None)

    def _call(self, index: int, piece: wire.CallPiece) -> bytes:
        calls, more = self._calls[index], {"function": {"arguments": piece.arguments}}
        one = _called(piece.name, piece.arguments) if calls.add(piece) else more
        return self._choice(index, {"tool_calls": [{"index": calls.index(piece), **one}]})

    def _output(self, index: int, value: wire.Value) -> dict[str, Any]:
        sample = value.samples[0]
        content = sample.text if sample.text or not sample.calls else None
        message: dict[str, Any] = {"role": ASSISTANT, "content": content, "refusal": None}
        if sample.calls:
            message["tool_calls"] = calls_of(sample)
        if sample.reasoning:
            message |= {"reasoning_content": sample.reasoning, "reasoning": sample.reasoning}
        logprobs = logprobs_of(_of_content(sample, value.usage)) if self._has_logprobs else None
        return {"message": message, "logprobs": logprobs}


def _of_content(sample: wire.Sample, usage: wire.TokenUsage) -> tuple[wire.TokenLogprob, ...]:
    """The tokens of an output after its reasoning, which include those of its calls."""
    # with max_tokens=0 the server returns the logprobs of what would come next, which is not part of the output
    return with_text(sample, sample.logprobs[usage.reasoning :] if usage.generated else ())


def calls_of(sample: wire.Sample) -> list[dict[str, Any]]:
    """The tool calls of an output in the form of chat completions, each with a new random id."""
    return [_called(call.name, call.arguments) for call in sample.calls]


def _called(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def logprobs_of(tokens: tuple[wire.TokenLogprob, ...]) -> dict[str, Any]:
    """Logprobs in the form of chat completions."""
    content = []
    for token in tokens:
        own, *top = (
            {"token": name, "logprob": logprob, "bytes": list(its_bytes)} for name, its_bytes, logprob in spelled(token)
        )
        content.append(own | {"top_logprobs": top})
    return {"content": content, "refusal": None}
