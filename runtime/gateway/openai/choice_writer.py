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

from banyan.runtime.gateway.endpoint import event
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai.chat_types import SamplingFields
from banyan.runtime.protocol import wire

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def check_stream_options(body: SamplingFields) -> None:
    """Check that stream_options comes only with stream. HTTPError: it does not."""
    if body.stream_options is not None and not body.stream:
        raise HTTPError(400, "stream_options needs stream: true", param="stream_options")


class TextOffset:
    """An offset in a text, in characters. A character whose bytes are in several tokens counts with the last of
    them."""

    def __init__(self, n_chars: int = 0) -> None:
        self.n_chars = n_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def move(self, data: bytes) -> None:
        """Move past these bytes."""
        self.n_chars += len(self._decoder.decode(data))


class ShownTokens:
    """Finds the tokens whose text is part of an output, and leaves out those of a stop string. The engine may generate
    these in one step with text before them; then they arrive with that text, although the output does not contain
    theirs."""

    def __init__(self) -> None:
        self._text, self._end = TextOffset(), 0  # ends of the tokens taken, and of the text
        self._waiting: tuple[wire.TokenLogprob, ...] = ()

    def take(self, text: str, tokens: tuple[wire.TokenLogprob, ...]) -> tuple[wire.TokenLogprob, ...]:
        """Take more text, and the tokens that came with it. Returns those that begin before the end of the text."""
        tokens, n = self._waiting + tokens, 0
        self._end += len(text)
        while n < len(tokens) and self._text.n_chars < self._end:
            _, its_bytes, _ = next(spelled(tokens[n]))
            self._text.move(its_bytes)
            n += 1
        self._waiting = tokens[n:]
        return tokens[:n]

    def rest(self, sample: wire.Sample) -> tuple[wire.TokenLogprob, ...]:
        """The tokens after the text, such as control tokens; () if they are the tokens of a stop string."""
        return () if isinstance(sample.matched, str) else self._waiting


def with_text(sample: wire.Sample, tokens: tuple[wire.TokenLogprob, ...]) -> tuple[wire.TokenLogprob, ...]:
    """Return `tokens`, the tokens of `sample`, without those of the stop string that ended it, if any."""
    shown = ShownTokens()
    return shown.take(sample.text, tokens) + shown.rest(sample)


class ChoiceWriter(ABC):
    """Writes one response, whole or in chunks. The fixed part of chunks is encoded once."""

    def __init__(self, body: SamplingFields, name: str, kind: str, chunk_kind: str, text: bytes) -> None:
        """name: how the response's id begins. kind, chunk_kind: the field `object` of a whole response and of a chunk.
        text: the JSON field that holds the output of a choice in a chunk, with %s in place of the text."""
        self._n = body.n or 1
        self._has_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        number = f"{name}-{uuid.uuid4().hex}"
        self._head: dict[str, Any] = {"id": number, "object": kind, "created": int(time.time()), "model": body.model}
        self._chunk_head = self._head | {"object": chunk_kind}
        self._prefix = b"data: " + _encode(self._chunk_head)[:-1] + b',"choices":[{"index":'
        self._suffix = b"}]" + (b',"usage":null' if self._has_usage else b"") + b"}\n\n"
        self._field = b"," + text[: text.index(b":") + 1]
        self._before, after = (b"," + text).split(b"%s")
        self._after = after + b',"logprobs":null,"finish_reason":null' + self._suffix
        self._begun: set[int] = set()
        self._shown: defaultdict[int, ShownTokens] = defaultdict(ShownTokens)
        self._usages: dict[int, wire.TokenUsage] = {}

    @abstractmethod
    def _first(self, index: int) -> bytes:
        """The event that begins choice `index`."""

    @abstractmethod
    def _more(self, index: int, delta: wire.Delta) -> bytes:
        """The event for more output of choice `index`."""

    @abstractmethod
    def _last(self, index: int, sample: wire.Sample) -> bytes:
        """The events for the end of choice `index`."""

    @abstractmethod
    def _output(self, index: int, value: wire.Value) -> dict[str, Any]:
        """The fields of choice `index` in a whole response, except the finish reason."""

    def _choice(self, index: int, output: Any, finish: str | None = None, logprobs: Any = None) -> bytes:
        tail = b',"logprobs":' + _encode(logprobs) + b',"finish_reason":' + _encode(finish)
        return b"%s%d%s%s%s%s" % (self._prefix, index, self._field, _encode(output), tail, self._suffix)

    def _text(self, index: int, text: str) -> bytes:
        """Like `_choice`, but faster, for a chunk that has only text, as most chunks do."""
        return b"%s%d%s%s%s" % (self._prefix, index, self._before, _encode(text), self._after)

    def chunk(self, index: int, item: wire.Delta | wire.Value) -> bytes:
        """The events for more of choice `index`."""
        data = b""
        if index not in self._begun:
            self._begun.add(index)
            data = self._first(index)
        if isinstance(item, wire.Delta):
            return data + self._more(index, item)
        self._usages[index] = item.usage
        return data + self._last(index, item.samples[0])

    def end(self) -> bytes:
        """The events after the last choice."""
        if not self._has_usage:
            return DONE
        return event(self._chunk_head | {"choices": [], "usage": usage_of(self._usages, self._n)}) + DONE

    def whole(self, values: Mapping[int, wire.Value]) -> dict[str, Any]:
        """The response with all choices."""
        choices = [
            {"index": index, **self._output(index, value), "finish_reason": finish_reason(value.samples[0])}
            for index, value in sorted(values.items())
        ]
        usages = {index: value.usage for index, value in values.items()}
        return self._head | {"choices": choices, "usage": usage_of(usages, self._n)}


async def stream(call: ModelCall, writer: ChoiceWriter) -> AsyncGenerator[bytes, None]:
    """The events of a call. Pieces that arrive together are sent together."""
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
    """The usage of all choices. Every `n` choices share a prompt, which counts once, with the cache hits of the choice
    that ran first."""
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
