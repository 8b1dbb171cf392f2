"""POST /v1/chat/completions."""

from __future__ import annotations

import uuid
from typing import Any

from msgspec.structs import replace

from banyan.runtime.gateway.bodies import decode, ignored
from banyan.runtime.gateway.endpoint import EventReply, HTTPRequest, Reply, event, json_reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.generation import (
    chat_markers,
    check_copies,
    gens,
    limits_of,
    reasoning_end,
    template_kwargs,
    tools_of,
)
from banyan.runtime.gateway.info import adapter_of
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai.chat_types import IGNORED, ChatRequest
from banyan.runtime.gateway.openai.choice_writer import (
    ChoiceWriter,
    check_stream_options,
    finish_reason,
    spelled,
    stream,
    with_text,
)
from banyan.runtime.gateway.prompt import PromptWriter
from banyan.runtime.gateway.sampling import constraint_of, sampling_of
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.roles import ASSISTANT


async def create(request: HTTPRequest) -> Reply | EventReply:
    """Create a chat completion, whole or as a stream."""
    body = decode(request.body, ChatRequest)
    adapter = await adapter_of(request, body.model)
    check_stream_options(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise HTTPError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    call = _start(request, body, adapter)
    effort = () if chat_markers(request).reads_effort else ("reasoning_effort",)
    user = () if request.gateway.isolates_users else ("safety_identifier",)
    headers = ignored(body, (*IGNORED, *effort, *user))
    writer = ChatWriter(body)
    if body.stream:
        return EventReply(stream(call, writer), lambda e: event(e.openai()), headers)
    async with call:
        return json_reply(writer.whole(await call.values()), headers=headers)


def _start(request: HTTPRequest, body: ChatRequest, adapter: str) -> ModelCall:
    chat, welcome = chat_markers(request), request.client.welcome
    if body.max_completion_tokens is not None and body.max_tokens is not None:
        text = "max_tokens and max_completion_tokens are the same; give one of them"
        raise HTTPError(400, text, param="max_tokens")
    n_most = welcome.max_context if body.max_completion_tokens is None else body.max_completion_tokens
    sampling = replace(
        sampling_of(body, welcome.sampling, n_most),
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        constraint=constraint_of(
            body, body.response_format, reasoning_end(chat, body.messages[-1] if _goes_on(body) else None)
        ),
    )
    tools = tools_of(body.tools, body.tool_choice, body.parallel_tool_calls)
    parts = PromptWriter(chat).parts(body.messages, leaves_open=_goes_on(body))
    if not _goes_on(body):
        parts = (*parts, wire.BeginTurn(ASSISTANT))
    n = body.n or 1
    gen = wire.Gen(
        *(0, 0, sampling),
        stream=bool(body.stream),
        reasoning=chat.reasoning,
        tools=tools,
        adapter=adapter,
        chat_template_kwargs=template_kwargs(chat, body.chat_template_kwargs, body.reasoning_effort),
    )
    check_copies(gen, n)
    users = (body.user, body.safety_identifier, body.prompt_cache_key)
    limits = limits_of(request, body.priority, body.cache_salt, *users)
    ops = (wire.Append(0, parts), *gens(gen, n))
    return ModelCall.start(request, ops, name="chat", limits=limits)


def _goes_on(body: ChatRequest) -> bool:
    """Whether the output continues the last message, as the field `continue_final_message` asks. HTTPError: the field
    is set, but the last message is not the assistant's, or has tool calls."""
    last = body.messages[-1]
    if body.continue_final_message and (last.role != ASSISTANT or last.tool_calls):
        text = "continue_final_message needs a last message of the assistant, without calls"
        raise HTTPError(400, text, param="continue_final_message")
    return bool(body.continue_final_message)


class ChatWriter(ChoiceWriter):
    """Writes the response to a chat completion request, whole or as chunks."""

    def __init__(self, body: ChatRequest) -> None:
        super().__init__(body, "chatcmpl", "chat.completion", "chat.completion.chunk", b'"delta":{"content":%s}')
        self._has_logprobs = bool(body.logprobs)

    def _first(self, index: int) -> bytes:
        return self._choice(index, {"role": ASSISTANT, "content": ""})

    def _more(self, index: int, delta: wire.Delta) -> bytes:
        if delta.is_thought:
            if not delta.text:  # it has only logprobs
                return b""
            return self._choice(index, {"reasoning_content": delta.text, "reasoning": delta.text})
        if self._has_logprobs:
            tokens = self._shown[index].take(delta.text, delta.logprobs)
            return self._choice(index, {"content": delta.text}, logprobs=logprobs_of(tokens))
        return self._text(index, delta.text)

    def _last(self, index: int, sample: wire.Sample) -> bytes:
        calls = [{"index": k, **one} for k, one in enumerate(calls_of(sample))]
        data = self._choice(index, {"tool_calls": calls}) if calls else b""
        rest = self._shown[index].rest(sample)
        return data + self._choice(index, {}, finish_reason(sample), logprobs_of(rest) if rest else None)

    def _output(self, index: int, value: wire.Value) -> dict[str, Any]:
        sample = value.samples[0]
        content = sample.text if sample.text or not sample.calls else None
        message: dict[str, Any] = {"role": ASSISTANT, "content": content, "refusal": None}
        if sample.calls:
            message["tool_calls"] = calls_of(sample)
        if sample.reasoning:
            message |= {"reasoning_content": sample.reasoning, "reasoning": sample.reasoning}
        # with max_tokens=0 the server returns the logprobs of what would come next, which is not part of the output
        tokens = sample.logprobs[value.usage.reasoning :] if value.usage.generated else ()
        of_content = with_text(sample, tokens)
        return {"message": message, "logprobs": logprobs_of(of_content) if self._has_logprobs else None}


def calls_of(sample: wire.Sample) -> list[dict[str, Any]]:
    """The tool calls of an output in the form of chat completions, each with a new random id."""
    return [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in sample.calls
    ]


def logprobs_of(tokens: tuple[wire.TokenLogprob, ...]) -> dict[str, Any]:
    """Logprobs in the form of chat completions."""
    content = []
    for token in tokens:
        own, *top = (
            {"token": name, "logprob": logprob, "bytes": list(its_bytes)} for name, its_bytes, logprob in spelled(token)
        )
        content.append(own | {"top_logprobs": top})
    return {"content": content, "refusal": None}
