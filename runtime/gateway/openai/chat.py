"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from banyan.runtime.gateway.bodies import decode, ignored
from banyan.runtime.gateway.endpoint import EventReply, HTTPRequest, Reply, event, json_reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.generation import chat_markers, gens, limits_of, reasoning_end, tools_of
from banyan.runtime.gateway.info import adapter_of
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai.chat_types import IGNORED, ChatRequest, SamplingFields
from banyan.runtime.gateway.prompt import PromptWriter
from banyan.runtime.gateway.sampling import constraint_of, sampling_of
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.roles import ASSISTANT

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


async def create(request: HTTPRequest) -> Reply | EventReply:
    """A chat completion, whole or as a stream."""
    body = decode(request.body, ChatRequest)
    adapter = await adapter_of(request, body.model)
    check_stream_options(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise HTTPError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    call = _start(request, body, adapter)
    headers = ignored(body, IGNORED)
    writer = ChunkWriter(body.model, body)
    if body.stream:
        return EventReply(stream(call, writer), lambda e: event(e.openai()), headers)
    async with call:
        return json_reply(writer.whole(await call.values()), headers=headers)


def check_stream_options(body: SamplingFields) -> None:
    """HTTPError: stream_options stands without stream."""
    if body.stream_options is not None and not body.stream:
        raise HTTPError(400, "stream_options needs stream: true", param="stream_options")


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
        constraint=constraint_of(body, body.response_format, reasoning_end(chat)),
    )
    tools = tools_of(body.tools, body.tool_choice, body.parallel_tool_calls)
    parts = PromptWriter(chat).parts(body.messages, leaves_open=_goes_on(body))
    if not _goes_on(body):
        parts = (*parts, wire.BeginTurn(ASSISTANT))
    n = body.n or 1
    gen = wire.Gen(0, 0, sampling, stream=bool(body.stream), reasoning=chat.reasoning, tools=tools, adapter=adapter)
    limits = limits_of(request, body.priority, body.cache_salt, body.prompt_cache_key, body.user)
    ops = (wire.Append(0, parts), *gens(gen, n))
    return ModelCall.start(
        request.client, request.gateway.mailbox, ops, range(n), name="chat", stream=gen.stream, limits=limits
    )


def _goes_on(body: ChatRequest) -> bool:
    """Whether the output continues the last message."""
    last = body.messages[-1]
    if body.continue_final_message and (last.role != ASSISTANT or last.tool_calls):
        text = "continue_final_message needs a last message of the assistant, without calls"
        raise HTTPError(400, text, param="continue_final_message")
    return bool(body.continue_final_message)


class Writer(Protocol):
    """Writes the events of a stream."""

    def chunk(self, index: int, item: wire.Delta | wire.Value) -> bytes: ...
    def end(self) -> bytes: ...


async def stream(call: ModelCall, writer: Writer) -> AsyncGenerator[bytes, None]:
    """The events of a call. What arrives together is sent together."""
    async with call:
        while arrived := await call.arrivals():
            yield b"".join([writer.chunk(ref, item) for ref, item in arrived])
        yield writer.end()


class ChunkWriter:
    """Writes one response, whole or in chunks."""

    def __init__(self, model: str, body: ChatRequest) -> None:
        self._n = body.n or 1
        self._has_logprobs = bool(body.logprobs)
        self._has_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
        }
        chunk = self._head | {"object": "chat.completion.chunk"}
        self._prefix = b"data: " + _encode(chunk)[:-1] + b',"choices":[{"index":'
        self._suffix = b"}]" + (b',"usage":null' if self._has_usage else b"") + b"}\n\n"
        tail = b'},"logprobs":null,"finish_reason":null' + self._suffix
        self._chunk = self._prefix.replace(b"%", b"%%") + b'%d,"delta":{"content":%s' + tail.replace(b"%", b"%%")
        self._begun: set[int] = set()
        self._usages: dict[int, wire.TokenUsage] = {}

    def _choice(self, index: int, delta: Any, finish: str | None = None, logprobs: Any = None) -> bytes:
        tail = b',"logprobs":' + _encode(logprobs) + b',"finish_reason":' + _encode(finish)
        return b'%s%d,"delta":%s%s%s' % (self._prefix, index, _encode(delta), tail, self._suffix)

    def chunk(self, index: int, item: wire.Delta | wire.Value) -> bytes:
        """The events for more of choice `index`."""
        data = b""
        if index not in self._begun:
            self._begun.add(index)
            data = self._choice(index, {"role": ASSISTANT, "content": ""})
        if isinstance(item, wire.Delta):
            if not (item.is_thought or self._has_logprobs):  # most chunks: what does not change is encoded already
                return data + self._chunk % (index, _encode(item.text))
            delta = (
                {"reasoning_content": item.text, "reasoning": item.text} if item.is_thought else {"content": item.text}
            )
            return data + self._choice(index, delta, logprobs=self._logprobs(item.logprobs))
        self._usages[index] = item.usage
        sample = item.samples[0]
        if sample.calls:
            calls = [{"index": k, **one} for k, one in enumerate(calls_of(sample))]
            data += self._choice(index, {"tool_calls": calls})
        return data + self._choice(index, {}, finish_reason(sample))

    def end(self) -> bytes:
        """The events behind the last choice."""
        if not self._has_usage:
            return DONE
        usage = self._head | {
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": usage_of(self._usages, self._n),
        }
        return event(usage) + DONE

    def whole(self, values: dict[int, wire.Value]) -> dict[str, Any]:
        """The response with all choices."""
        choices = []
        for index in sorted(values):
            sample = values[index].samples[0]
            content = sample.text if sample.text or not sample.calls else None
            message: dict[str, Any] = {"role": ASSISTANT, "content": content, "refusal": None}
            if sample.calls:
                message["tool_calls"] = calls_of(sample)
            if sample.reasoning:
                message |= {"reasoning_content": sample.reasoning, "reasoning": sample.reasoning}
            logprobs = self._logprobs(sample.logprobs)
            ending = {"logprobs": logprobs, "finish_reason": finish_reason(sample)}
            choices.append({"index": index, "message": message, **ending})
        return self._head | {
            "choices": choices,
            "usage": usage_of({k: one.usage for k, one in values.items()}, self._n),
        }

    def _logprobs(self, tokens: tuple[wire.TokenLogprob, ...]) -> dict[str, Any] | None:
        return logprobs_of(tokens) if self._has_logprobs else None


def calls_of(sample: wire.Sample) -> list[dict[str, Any]]:
    """The calls of an output, with new ids."""
    return [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in sample.calls
    ]


def finish_reason(sample: wire.Sample) -> str:
    """OpenAI's word for how an output ended."""
    if sample.calls:
        return "tool_calls"
    return "length" if sample.finish_reason == "length" else "stop"


def usage_of(usages: Mapping[int, wire.TokenUsage], n: int) -> dict[str, Any]:
    """The tokens of all choices. Each `n` choices share a prompt, which counts once: as the first one that ran read
    it."""
    prompts: dict[int, tuple[int, int]] = {}
    for index, one in usages.items():
        n_prompt, n_cached = prompts.get(index // n, (one.prompt, one.cached))
        prompts[index // n] = max(n_prompt, one.prompt), min(n_cached, one.cached)
    n_prompt = sum(one for one, _ in prompts.values())
    n_generated = sum(one.generated for one in usages.values())
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
        "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in prompts.values())},
        "completion_tokens_details": {"reasoning_tokens": sum(one.reasoning for one in usages.values())},
    }


def logprobs_of(tokens: tuple[wire.TokenLogprob, ...]) -> dict[str, Any]:
    """Logprobs in the form of chat completions."""
    return {
        "content": [
            {**_token(one.text, one.logprob), "top_logprobs": [_token(text, logprob) for _, text, logprob in one.top]}
            for one in tokens
        ],
        "refusal": None,
    }


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode())}
