"""POST /v1/completions: prompts as plain text, in which control tokens count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from banyan.runtime.gateway.bodies import decode
from banyan.runtime.gateway.endpoint import EventReply, HTTPRequest, Reply, event, json_reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.generation import gens, limits_of
from banyan.runtime.gateway.info import adapter_of
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai.chat_types import CompletionRequest
from banyan.runtime.gateway.openai.choice_writer import ChoiceWriter, check_stream_options, finish_reason, stream
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
    writer = CompletionWriter(body, prompts)
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


class CompletionWriter(ChoiceWriter):
    """Writes one completion."""

    def __init__(self, body: CompletionRequest, prompts: Sequence[str]) -> None:
        super().__init__(body, "cmpl", "text_completion", "text_completion", b'"text":%s')
        self._prompts = prompts if body.echo else [""] * len(prompts)
        self._has_logprobs = body.logprobs is not None
        self._offsets: Counter[int] = Counter()
        """Choice -> characters of the tokens so far; text may wait for a stop."""

    def _first(self, index: int) -> bytes:
        prompt = self._prompts[index // self._n]
        return self._text(index, prompt) if prompt else b""

    def _more(self, index: int, delta: wire.Delta) -> bytes:
        if not self._has_logprobs:
            return self._text(index, delta.text)
        logprobs = self._logprobs(delta.logprobs, self._offsets[index])
        self._offsets[index] += sum(len(one.text) for one in delta.logprobs)
        return self._choice(index, delta.text, logprobs=logprobs)

    def _last(self, index: int, sample: wire.Sample) -> bytes:
        return self._choice(index, "", finish_reason(sample))

    def _output(self, index: int, value: wire.Value) -> dict[str, Any]:
        sample = value.samples[0]
        # with max_tokens=0 the server tells what would come next, which is no part of the output
        tokens = (*value.prompt, *(sample.logprobs if value.usage.generated else ()))
        return {"text": self._prompts[index // self._n] + sample.text, "logprobs": self._logprobs(tokens, 0)}

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
