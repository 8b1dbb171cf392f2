"""The common part of chat and text completions: choices, chunks, and usage."""

from __future__ import annotations

import codecs
import time
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import msgspec

from banyan.runtime.gateway.endpoint import EventReply, Reply, event, json_reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai.chat_types import SamplingFields, StreamOptions
from banyan.runtime.protocol import wire

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def check_stream_options(body: SamplingFields) -> None:
    """Check the field `stream_options`. HTTPError: it is set, but the response is not a stream."""
    if body.stream_options is not None and not body.stream:
        raise HTTPError(400, "stream_options needs stream: true", param="stream_options")


class TextOffset:
    """A position in a text, in characters, that moves on token by token. If several tokens share the bytes of one
    character, the character counts at the last of these tokens."""

    def __init__(self, n_chars: int = 0) -> None:
        self.n_chars = n_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def move(self, data: bytes) -> None:
        """Move past the text of a token. data: its bytes in UTF-8, possibly a part of a character."""
        self.n_chars += len(self._decoder.decode(data))


class ShownTokens:
    """Selects the tokens whose text is in the output, for their logprobs. Tokens of a stop string are left out: the
    text of the output ends before the stop string, but its tokens can arrive together with the tokens before it."""

    def __init__(self) -> None:
        self._text, self._end = TextOffset(), 0  # ends of the tokens taken, and of the text
        self._waiting: tuple[wire.TokenLogprob, ...] = ()

    def take(self, text: str, tokens: tuple[wire.TokenLogprob, ...]) -> tuple[wire.TokenLogprob, ...]:
        """Take a piece of text and the tokens that came with it. Returns the tokens that begin before the end of the
        text so far; the others wait for more text."""
        tokens, n = self._waiting + tokens, 0
        self._end += len(text)
        while n < len(tokens) and self._text.n_chars < self._end:
            _, its_bytes, _ = next(spelled(tokens[n]))
            self._text.move(its_bytes)
            n += 1
        self._waiting = tokens[n:]
        return tokens[:n]

    def rest(self, sample: wire.Sample) -> tuple[wire.TokenLogprob, ...]:
        """The tokens that still wait when the output has ended, such as control tokens; (): they belong to a stop
        string."""
        return () if isinstance(sample.matched, str) else self._waiting


def with_text(sample: wire.Sample, tokens: tuple[wire.TokenLogprob, ...]) -> tuple[wire.TokenLogprob, ...]:
    """Return `tokens`, the tokens of `sample`, without those of the stop string that ended the output."""
    shown = ShownTokens()
    return shown.take(sample.text, tokens) + shown.rest(sample)


class ChoiceWriter(ABC):
    """Base class: writes one response with its choices, whole or as chunks. The part that all chunks share is encoded
    once."""

    def __init__(self, body: SamplingFields, name: str, kind: str, chunk_kind: str, text: bytes) -> None:
        """name: the prefix of the response's id. kind, chunk_kind: the value of `object` in a whole response and in a
        chunk. text: the JSON field for the output in a chunk, such as "text":%s, in which %s stands for the text."""
        self.is_stream, self._n = bool(body.stream), body.n or 1
        options = body.stream_options or StreamOptions()
        self._has_usage = bool(options.include_usage)
        self._each_has_usage = self._has_usage and bool(options.continuous_usage_stats)
        number = f"{name}-{uuid.uuid4().hex}"
        self._head: dict[str, Any] = {"id": number, "object": kind, "created": int(time.time()), "model": body.model}
        self._chunk_head = self._head | {"object": chunk_kind}
        self._prefix = b"data: " + _encode(self._chunk_head)[:-1] + b',"choices":[{"index":'
        self._suffix = b"}]" + (b',"usage":null' if self._has_usage else b"") + b"}\n\n"
        self._field = b"," + text[: text.index(b":") + 1]
        self._before, after = (b"," + text).split(b"%s")
        self._after = after + b',"logprobs":null,"finish_reason":null'
        self._begun: set[int] = set()
        self._shown: defaultdict[int, ShownTokens] = defaultdict(ShownTokens)
        self._usages: dict[int, wire.TokenUsage] = {}

    @abstractmethod
    def _first(self, index: int, item: wire.Delta | wire.Value) -> bytes:
        """The event that begins choice `index`, of which `item` arrives first; b"": none is needed."""

    @abstractmethod
    def _more(self, index: int, delta: wire.Delta) -> bytes:
        """The event for `delta`, a further piece of choice `index`; b"": none is needed."""

    @abstractmethod
    def _last(self, index: int, sample: wire.Sample) -> bytes:
        """The events that end choice `index`, with its finish reason. sample: the whole output."""

    @abstractmethod
    def _output(self, index: int, value: wire.Value) -> dict[str, Any]:
        """The fields for the output of choice `index` in a response that is not streamed."""

    def _choice(self, index: int, output: Any, finish: str | None = None, logprobs: Any = None) -> bytes:
        tail = b',"logprobs":' + _encode(logprobs) + b',"finish_reason":' + _encode(finish)
        return b"%s%d%s%s%s%s" % (self._prefix, index, self._field, _encode(output), tail, self._suffix)

    def _text(self, index: int, text: str) -> bytes:
        """A chunk of choice `index` that has only text. Most chunks do, so the rest of such a chunk is encoded in
        advance, which makes this faster than `_choice`."""
        return b"%s%d%s%s%s%s" % (self._prefix, index, self._before, _encode(text), self._after, self._suffix)

    def chunk(self, index: int, item: wire.Delta | wire.Value) -> bytes:
        """The events for a piece of choice `index`, or for its end. item: a piece of text, or at the end the whole
        value."""
        is_first = index not in self._begun
        self._begun.add(index)
        if isinstance(item, wire.Value):
            self._count(index, item.usage)
            data = self._last(index, item.samples[0])
        else:
            if self._each_has_usage:
                self._count(index, wire.TokenUsage(item.n_prompt, item.n_cached, item.n_tokens))
            data = self._more(index, item)
        return self._first(index, item) + data if is_first else data

    def _count(self, index: int, usage: wire.TokenUsage) -> None:
        """Note the usage of choice `index` so far, which each of its next chunks shows, as vLLM's do."""
        self._usages[index] = usage
        if self._each_has_usage:
            self._suffix = b'}],"usage":' + _encode(usage_of({index: usage}, 1)) + b"}\n\n"

    def end(self) -> bytes:
        """The events that end the stream, after all choices: the usage, if the client asked for it, and [DONE]."""
        if not self._has_usage:
            return DONE
        return event(self._chunk_head | {"choices": [], "usage": usage_of(self._usages, self._n)}) + DONE

    def whole(self, values: Mapping[int, wire.Value]) -> dict[str, Any]:
        """The JSON body of a response that is not streamed. values: the value of each choice, by index."""
        choices = [
            {"index": index, **self._output(index, value), "finish_reason": finish_reason(value.samples[0])}
            for index, value in sorted(values.items())
        ]
        usages = {index: value.usage for index, value in values.items()}
        return self._head | {"choices": choices, "usage": usage_of(usages, self._n)}


async def reply(call: ModelCall, writer: ChoiceWriter, headers: Mapping[str, str]) -> Reply | EventReply:
    """The response to a call, whole or as a stream, as its client asked for. HTTPError: a value failed."""
    if writer.is_stream:
        return EventReply(_stream(call, writer), lambda e: event(e.openai()), headers)
    async with call:
        return json_reply(writer.whole(await call.values()), headers=headers)


async def _stream(call: ModelCall, writer: ChoiceWriter) -> AsyncGenerator[bytes, None]:
    """Yield the events of the response to a call, until all its values have arrived. The events of pieces that arrive
    together are yielded together. HTTPError: a value failed."""
    async with call:
        while arrived := await call.arrivals():
            # No empty data, as for the prompt of an echo: the response's headers are sent with the first piece.
            if data := b"".join([writer.chunk(ref, item) for ref, item in arrived]):
                yield data
        yield writer.end()


def finish_reason(sample: wire.Sample) -> str:
    """OpenAI's word for how an output ended."""
    if sample.calls:
        return "tool_calls"
    return "length" if sample.finish_reason == "length" else "stop"


def spelled(token: wire.TokenLogprob) -> Iterator[tuple[str, bytes, float]]:
    """Yields name, bytes and logprob of a token, and then of each alternative. A token that holds part of a character
    is named by its bytes, in OpenAI's form, such as `bytes:\\xc3`, so that names differ."""
    texts = ((token.text, token.logprob), *((text, logprob) for _, text, logprob in token.top))
    spellings = (token.spelling, *(token.top_spellings or (b"",) * len(token.top)))
    for (text, logprob), spelling in zip(texts, spellings, strict=True):
        name = text
        try:
            spelling.decode()
        except UnicodeDecodeError:
            name = "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)
        yield name, spelling or text.encode(), max(logprob, -9999.0)


def usage_of(usages: Mapping[int, wire.TokenUsage], n: int) -> dict[str, Any]:
    """The field `usage` of a response. usages: the usage of each choice, by index. n: the number of choices for each
    prompt; choices 0 .. n - 1 have the first prompt, and so on. A prompt counts once, with the fewest cached tokens
    that one of its choices reports, since the other choices find in the cache what the first one computed."""
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
