"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec.structs import replace

from banyan.runtime.gateway.bodies import decode
from banyan.runtime.gateway.chat_types import IGNORED, ChatRequest
from banyan.runtime.gateway.endpoint import EventReply, HTTPRequest, Reply, event, json_reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.info import check_model
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.prompt import ASSISTANT, parts_of
from banyan.runtime.gateway.sampling import constraint_of, sampling_of
from banyan.runtime.protocol import wire

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


async def create(request: HTTPRequest) -> Reply | EventReply:
    body = decode(request.body, ChatRequest)
    check_model(request, body.model)
    if body.stream_options is not None and not body.stream:
        raise HTTPError(400, "stream_options needs stream: true", param="stream_options")
    if body.top_logprobs is not None and not body.logprobs:
        raise HTTPError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    call = _start(request, body)
    headers = {"x-banyan-ignored": ", ".join(ignored)} if (ignored := _ignored(body)) else {}
    writer = ChunkWriter(request.gateway.model, body)
    if body.stream:
        return EventReply(_stream(call, writer), lambda e: event(e.openai()), headers)
    async with call:
        return json_reply(writer.whole(await call.values()), headers=headers)


def _ignored(body: ChatRequest) -> list[str]:
    return [name for name in IGNORED if getattr(body, name) is not None]


def _start(request: HTTPRequest, body: ChatRequest) -> ModelCall:
    welcome = request.client.welcome
    if welcome.chat is None:
        text = f"{welcome.model} has no chat template; use /v1/completions"
        raise HTTPError(400, text, param="messages")
    n_most = welcome.max_context if body.max_completion_tokens is None else body.max_completion_tokens
    sampling = sampling_of(body, welcome.sampling, n_most)
    sampling = replace(
        sampling,
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        constraint=constraint_of(body, body.response_format),
    )
    parts = (*parts_of(body.messages, welcome.chat), wire.BeginTurn(ASSISTANT))
    gen = wire.Gen(0, 0, sampling, stream=bool(body.stream), reasoning=wire.Reasoning())
    ops = (wire.Append(0, parts), *gens(gen, body.n or 1))
    refs = range(body.n or 1)
    return ModelCall.start(request.client, request.gateway.mailbox, ops, refs, name="chat", stream=gen.stream)


def gens(gen: wire.Gen, n: int) -> list[wire.Op]:
    """`n` outputs of `gen`, as values from `gen.ref` on. Each is a branch, so that all of them stream."""
    if n == 1:
        return [gen]
    children = tuple(range(gen.state + 1, gen.state + 1 + n))
    ops: list[wire.Op] = [wire.Fork(gen.state, children)]
    for k, child in enumerate(children):
        seed = gen.sampling.seed
        sampling = gen.sampling if seed is None else replace(gen.sampling, seed=seed + k)
        ops.append(replace(gen, state=child, ref=gen.ref + k, sampling=sampling))
    return ops


async def _stream(call: ModelCall, writer: ChunkWriter) -> AsyncGenerator[bytes, None]:
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
        self._begun: set[int] = set()
        self._usages: dict[int, wire.TokenUsage] = {}

    def _choice(self, index: int, delta: Any, finish: str | None = None, logprobs: Any = None) -> bytes:
        tail = b',"logprobs":' + _encode(logprobs) + b',"finish_reason":' + _encode(finish)
        return b"%s%d,%s%s%s%s" % (self._prefix, index, b'"delta":', _encode(delta), tail, self._suffix)

    def chunk(self, index: int, item: wire.Delta | wire.Value) -> bytes:
        """The events for more of choice `index`."""
        data = b""
        if index not in self._begun:
            self._begun.add(index)
            data = self._choice(index, {"role": ASSISTANT, "content": ""})
        if isinstance(item, wire.Delta):
            logprobs = logprobs_of(item.logprobs) if self._has_logprobs else None
            if item.is_thought:
                delta = {"reasoning_content": item.text, "reasoning": item.text}
            else:
                delta = {"content": item.text}
            return data + self._choice(index, delta, logprobs=logprobs)
        self._usages[index] = item.usage
        return data + self._choice(index, {}, finish_reason(item.samples[0]))

    def end(self) -> bytes:
        """The events behind the last choice."""
        if not self._has_usage:
            return DONE
        usage = self._head | {"object": "chat.completion.chunk", "choices": [], "usage": usage_of(self._usages)}
        return event(usage) + DONE

    def whole(self, values: dict[int, wire.Value]) -> dict[str, Any]:
        """The response with all choices."""
        choices = []
        for index in sorted(values):
            sample = values[index].samples[0]
            message: dict[str, Any] = {"role": ASSISTANT, "content": sample.text, "refusal": None}
            if sample.reasoning:
                message |= {"reasoning_content": sample.reasoning, "reasoning": sample.reasoning}
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": logprobs_of(sample.logprobs) if self._has_logprobs else None,
                    "finish_reason": finish_reason(sample),
                }
            )
        return self._head | {"choices": choices, "usage": usage_of({k: one.usage for k, one in values.items()})}


def finish_reason(sample: wire.Sample) -> str:
    """OpenAI's word for how an output ended."""
    return "length" if sample.finish_reason == "length" else "stop"


def usage_of(usages: dict[int, wire.TokenUsage]) -> dict[str, Any]:
    """The tokens of all choices. They share the prompt, which counts once: as the first one that ran read it."""
    n_prompt = max((one.prompt for one in usages.values()), default=0)
    n_generated = sum(one.generated for one in usages.values())
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
        "prompt_tokens_details": {"cached_tokens": min((one.cached for one in usages.values()), default=0)},
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
