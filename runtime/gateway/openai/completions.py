"""POST /v1/completions: prompts as plain text, in which control tokens count."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from banyan.runtime.gateway.bodies import decode
from banyan.runtime.gateway.endpoint import EventReply, HTTPRequest, Reply, event, json_reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.generation import gens, limits_of
from banyan.runtime.gateway.info import adapter_of
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai.chat import DONE, check_stream_options, finish_reason, stream, usage_of
from banyan.runtime.gateway.openai.chat_types import CompletionRequest
from banyan.runtime.gateway.sampling import constraint_of, sampling_of
from banyan.runtime.protocol import wire

MAX_PROMPTS = 1024
MAX_TOKENS = 16
"""Of a request that does not say how many, as with OpenAI."""


async def create(request: HTTPRequest) -> Reply | EventReply:
    """A completion of one or more prompts, whole or as a stream."""
    body = decode(request.body, CompletionRequest)
    adapter = await adapter_of(request, body.model)
    check_stream_options(body)
    if body.best_of not in (None, body.n or 1):
        raise HTTPError(400, "best_of is not supported; n outputs are n choices", param="best_of")
    prompts = _prompts(body.prompt)
    if body.echo and body.logprobs is not None and body.stream:
        raise HTTPError(400, "echo with logprobs goes without stream", param="echo")
    n = body.n or 1
    sampling = sampling_of(body, request.client.welcome.sampling, MAX_TOKENS)
    has_prompt_logprobs = bool(body.echo) and body.logprobs is not None
    sampling = replace(
        sampling,
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
        logprob_start=0 if has_prompt_logprobs else -1,
        constraint=constraint_of(body, body.response_format),
    )
    n_prompts = len(prompts)
    ops: list[wire.Op] = [wire.Fork(0, tuple(range(1, n_prompts + 1)))] if n_prompts > 1 else []
    for k, text in enumerate(prompts):
        state = k + 1 if n_prompts > 1 else 0
        gen = wire.Gen(state, k * n, sampling, stream=bool(body.stream), adapter=adapter)
        ops += [wire.Append(state, (wire.Raw(text),)), *gens(gen, n, n_prompts + 1 + k * n)]
    limits = limits_of(request, body.priority, body.cache_salt, body.user)
    refs = range(n_prompts * n)
    mailbox, is_stream = request.gateway.mailbox, bool(body.stream)
    call = ModelCall.start(request.client, mailbox, ops, refs, name="completion", stream=is_stream, limits=limits)
    writer = CompletionWriter(body.model, body, prompts)
    if is_stream:
        return EventReply(stream(call, writer), lambda e: event(e.openai()))
    async with call:
        return json_reply(writer.whole(await call.values()))


def _prompts(given: str | list[str | int | list[int]]) -> list[str]:
    prompts = [given] if isinstance(given, str) else given
    if not 0 < len(prompts) <= MAX_PROMPTS:
        raise HTTPError(400, f"a request has 1 to {MAX_PROMPTS} prompts", param="prompt")
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise HTTPError(400, "a prompt is text here; token ids are not supported", param="prompt")
    return texts


class CompletionWriter:
    """Writes one response, whole or in chunks."""

    def __init__(self, model: str, body: CompletionRequest, prompts: Sequence[str]) -> None:
        self._n, self._prompts = body.n or 1, prompts
        self._echo, self._has_logprobs = bool(body.echo), body.logprobs is not None
        self._has_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._head: dict[str, Any] = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._offsets: dict[int, int] = {}  # choice -> characters of the tokens so far; text may wait for a stop
        self._usages: dict[int, wire.TokenUsage] = {}

    def _event(self, index: int, text: str, logprobs: Any, finish: str | None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return event(self._head | {"choices": [choice]} | ({"usage": None} if self._has_usage else {}))

    def chunk(self, index: int, item: wire.Delta | wire.Value) -> bytes:
        """The events for more of choice `index`."""
        data = b""
        if index not in self._offsets:
            self._offsets[index] = 0
            if self._echo:
                data = self._event(index, self._prompts[index // self._n], None, None)
        if isinstance(item, wire.Delta):
            logprobs = self._logprobs(item.logprobs, self._offsets[index])
            self._offsets[index] += sum(len(one.text) for one in item.logprobs)
            return data + self._event(index, item.text, logprobs, None)
        self._usages[index] = item.usage
        return data + self._event(index, "", None, finish_reason(item.samples[0]))

    def end(self) -> bytes:
        """The events behind the last choice."""
        if not self._has_usage:
            return DONE
        return event(self._head | {"choices": [], "usage": usage_of(self._usages, self._n)}) + DONE

    def whole(self, values: dict[int, wire.Value]) -> dict[str, Any]:
        """The response with all choices."""
        choices = []
        for index in sorted(values):
            value = values[index]
            sample = value.samples[0]
            text = self._prompts[index // self._n] + sample.text if self._echo else sample.text
            # with max_tokens=0 the server tells what would come next, which is no part of the output
            logprobs = self._logprobs((*value.prompt, *(sample.logprobs if value.usage.generated else ())), 0)
            ending = {"logprobs": logprobs, "finish_reason": finish_reason(sample)}
            choices.append({"index": index, "text": text, **ending})
        usage = usage_of({index: value.usage for index, value in values.items()}, self._n)
        return self._head | {"choices": choices, "usage": usage}

    def _logprobs(self, tokens: Iterable[wire.TokenLogprob], offset: int) -> dict[str, Any] | None:
        """Logprobs in the form of completions. offset: of the first token in the text."""
        if not self._has_logprobs:
            return None
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for one in tokens:
            found["tokens"].append(one.text)
            own = None if math.isnan(one.logprob) else max(one.logprob, -9999.0)
            top = {text: max(logprob, -9999.0) for _, text, logprob in one.top}
            found["token_logprobs"].append(own)
            found["top_logprobs"].append(None if own is None else top | {one.text: own})
            found["text_offset"].append(offset)
            offset += len(one.text)
        return found
