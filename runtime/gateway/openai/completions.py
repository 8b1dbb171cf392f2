"""POST /v1/completions. A prompt is a list of token ids, or a text in which control tokens are recognised."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from banyan.runtime.gateway.bodies import decode
from banyan.runtime.gateway.endpoint import EventReply, HTTPRequest, Reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.generation import check_copies, gens, limits_of
from banyan.runtime.gateway.info import adapter_of
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai.chat_types import CompletionRequest, TokenId
from banyan.runtime.gateway.openai.choice_writer import (
    ChoiceWriter,
    TextOffset,
    check_stream_options,
    finish_reason,
    reply,
    spelled,
    with_text,
)
from banyan.runtime.gateway.prompt import token_parts
from banyan.runtime.gateway.sampling import constraint_of, sampling_of
from banyan.runtime.protocol import wire

MAX_PROMPTS = 1024
MAX_TOKENS = 16
"""The default of max_tokens, which is OpenAI's."""


async def create(request: HTTPRequest) -> Reply | EventReply:
    """Create completions of one or more prompts, whole or as a stream."""
    body = decode(request.body, CompletionRequest)
    adapter = await adapter_of(request, body.model)
    check_stream_options(body)
    if body.best_of not in (None, body.n or 1):
        raise HTTPError(400, "best_of is not supported; use n for several choices", param="best_of")
    prompts = [_parts(prompt) for prompt in _prompts(body.prompt)]
    if body.echo and body.logprobs is not None and body.stream:
        raise HTTPError(400, "echo with logprobs cannot be combined with stream", param="echo")
    sampling = replace(
        sampling_of(body, request.client.welcome.sampling, MAX_TOKENS),
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
        logprob_start=0 if body.echo and body.logprobs is not None else -1,
        constraint=constraint_of(body),
    )
    n, n_prompts = body.n or 1, len(prompts)
    n_choices = n_prompts * n
    ops: list[wire.Op] = [wire.Fork(0, tuple(range(1, n_prompts + 1)))] if n_prompts > 1 else []
    gen = wire.Gen(0, 0, sampling, stream=bool(body.stream), adapter=adapter)
    check_copies(gen, n_choices)
    for k, parts in enumerate(prompts):
        state = k + 1 if n_prompts > 1 else 0
        ops.append(wire.Append(state, parts))
        if body.echo:
            ops.append(wire.Read(state, n_choices + k))
        ops += gens(replace(gen, state=state, ref=k * n), n, n_prompts + 1 + k * n)
    call = ModelCall.start(request, ops, name="completion", limits=limits_of(request, body), field="prompt")
    return await reply(call, CompletionWriter(body, n_choices), {})


def _prompts(given: str | Sequence[str | TokenId | list[TokenId]]) -> Sequence[str | list[int]]:
    if isinstance(given, str):
        return [given]
    prompts = [one for one in given if not isinstance(one, int)]
    if len(prompts) < len(given):  # one prompt of token ids
        ids = [one for one in given if isinstance(one, int)]
        if prompts:
            raise HTTPError(400, "a prompt must be a text or a list of token ids", param="prompt")
        return [ids]
    if not 0 < len(prompts) <= MAX_PROMPTS:
        raise HTTPError(400, f"a request has 1 to {MAX_PROMPTS} prompts", param="prompt")
    if [] in prompts:
        raise HTTPError(400, "a prompt of token ids must have at least one id", param="prompt")
    return prompts


def _parts(prompt: str | list[int]) -> tuple[wire.Part, ...]:
    return (wire.Raw(prompt),) if isinstance(prompt, str) else token_parts(prompt)


class CompletionWriter(ChoiceWriter):
    """Writes the response to a completion request, whole or as chunks."""

    def __init__(self, body: CompletionRequest, n_choices: int) -> None:
        """n_choices: the number of outputs. The value of output i has the ref i. With `echo`, the text of prompt k is
        the value with the ref n_choices + k; it arrives before the outputs of this prompt."""
        super().__init__(body, "cmpl", "text_completion", "text_completion", b'"text":%s')
        self._n_choices = n_choices
        self._prompts: dict[int, str] = {}
        self._has_logprobs = body.logprobs is not None
        self._offsets: defaultdict[int, TextOffset] = defaultdict(TextOffset)
        """Choice -> the offset after its tokens so far. (The text that was sent may be shorter, because text that may
        begin a stop string is held back.)"""

    def chunk(self, index: int, item: wire.Delta | wire.Value) -> bytes:
        if isinstance(item, wire.Value) and index >= self._n_choices:
            self._prompts[index - self._n_choices] = item.samples[0].text
            return b""
        return super().chunk(index, item)

    def whole(self, values: Mapping[int, wire.Value]) -> dict[str, Any]:
        for index, value in values.items():
            if index >= self._n_choices:
                self.chunk(index, value)
        return super().whole({index: value for index, value in values.items() if index < self._n_choices})

    def _first(self, index: int, item: wire.Delta | wire.Value) -> bytes:
        prompt = self._prompts.get(index // self._n, "")
        return self._text(index, prompt) if prompt else b""

    def _more(self, index: int, delta: wire.Delta) -> bytes:
        if not self._has_logprobs:
            return self._text(index, delta.text)
        tokens = self._shown[index].take(delta.text, delta.logprobs)
        return self._choice(index, delta.text, logprobs=self._logprobs(tokens, self._offsets[index]))

    def _last(self, index: int, sample: wire.Sample) -> bytes:
        rest = self._shown[index].rest(sample) + _end(sample)
        logprobs = self._logprobs(rest, self._offsets[index]) if rest else None
        return self._choice(index, "", finish_reason(sample), logprobs)

    def _output(self, index: int, value: wire.Value) -> dict[str, Any]:
        sample = value.samples[0]
        # with max_tokens=0 the server returns the logprobs of what would come next, which is not part of the output
        output = with_text(sample, sample.logprobs) if value.usage.generated else ()
        tokens = value.prompt + output + _end(sample)
        prompt, of_prompt = self._prompts.get(index // self._n, ""), TextOffset()
        for token in value.prompt:
            _, its_bytes, _ = next(spelled(token))
            of_prompt.move(its_bytes)
        # `prompt` lacks what the tokenizer adds before it: a begin-of-text token, a space
        start = TextOffset(min(0, len(prompt) - of_prompt.n_chars))
        return {"text": prompt + sample.text, "logprobs": self._logprobs(tokens, start)}

    def _logprobs(self, tokens: Iterable[wire.TokenLogprob], offset: TextOffset) -> dict[str, Any] | None:
        """The logprobs of `tokens` in the form of completions; None: the client did not ask for them. offset: the
        position of the first token in the text; it is moved past the last token."""
        if not self._has_logprobs:
            return None
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            (name, its_bytes, logprob), *top = spelled(token)
            own = None if math.isnan(logprob) else logprob
            found["tokens"].append(name)
            found["token_logprobs"].append(own)
            found["top_logprobs"].append(None if own is None else {other: p for other, _, p in top} | {name: own})
            found["text_offset"].append(max(0, offset.n_chars))
            offset.move(its_bytes)
        return found


def _end(sample: wire.Sample) -> tuple[wire.TokenLogprob, ...]:
    """The token that ended the output, if one did. OpenAI and vLLM give its logprob too. Evaluations that score a text
    by an echo and one more token rely on it: they take the last token for the one that was generated."""
    return () if sample.end is None else (sample.end,)
