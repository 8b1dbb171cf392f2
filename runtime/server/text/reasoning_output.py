"""Outputs of a gen whose reasoning is separated: the part that the client gets, and the part that the state gets."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from banyan.runtime.protocol import wire
from banyan.runtime.reasoning import ReasoningParser
from banyan.runtime.server.engine_link.requests import EngineRequest, Listener, StreamPiece
from banyan.runtime.server.text.prompt import GeneratedText, Piece, TokenRun
from banyan.runtime.server.text.tokenizer import TextSpan


def ends_with(runs: Sequence[TokenRun], mark: str) -> bool:
    """Whether a prompt ends with a mark, apart from white space."""
    text = ""
    for run in reversed(runs):
        if len((text := run.text + text).rstrip()) >= len(mark):
            break
    return text.rstrip().endswith(mark)


class ReasoningOutput:
    """Separates the reasoning from the answer in the outputs of one gen.

    marks: the texts that begin and end reasoning. runs: the gen's prompt, which may already end with the start mark.
    listener: gets the pieces of the first sample's text."""

    def __init__(self, marks: wire.Reasoning, runs: Sequence[TokenRun], listener: Listener | None = None) -> None:
        self._marks, self._listener = marks, listener
        self._is_open = ends_with(runs, marks.start)
        self._stream = ReasoningParser(marks, self._is_open)
        self._last = StreamPiece("")  # the last piece, with all logprobs that the listener does not have yet
        self._n_passed = 0  # logprobs that the listener has
        self._n_reasoning: int | None = None  # tokens before the content, once there is content

    @property
    def marks_end(self) -> int:
        """The index in the streamed output at which the last mark before the answer ends. Valid once the answer has
        begun."""
        return self._stream.marks_end

    @property
    def content_start(self) -> int:
        """The index in the streamed output at which the answer begins, after the reasoning and its marks. Valid once
        the answer has begun."""
        return self._stream.content_start

    def stream(self, piece: StreamPiece, request: EngineRequest) -> None:
        """Pass on a piece of the first sample to the listener. request: the request that generates the sample."""
        self._last = piece._replace(logprobs=self._last.logprobs + piece.logprobs)
        self._pass_on(self._stream.feed(piece.text), request)

    def end_stream(self, request: EngineRequest) -> None:
        """Pass on the text that was held back because it could have been the start of a mark. request: as for
        `stream`."""
        self._pass_on(self._stream.finish(), request)

    def end(
        self, samples: Sequence[wire.Sample], requests: Sequence[EngineRequest]
    ) -> tuple[tuple[wire.Sample, ...], tuple[Piece, ...], int]:
        """Returns three things: all samples, with their reasoning moved from `text` to `reasoning`; the content of the
        first sample (its text without the reasoning) as prompt pieces for the program's state; and the number of
        reasoning tokens of all samples, i.e. of tokens before the content. requests: the requests that generated the
        samples."""
        separated, n_reasoning = [], 0
        for sample, request in zip(reversed(samples), reversed(requests), strict=True):
            parser = ReasoningParser(self._marks, self._is_open)
            text = parser.feed(sample.text) + parser.finish()
            separated.append(replace(sample, text=text, reasoning=parser.reasoning))
            n_reasoning += _n_before(request, parser.content_start)
        start = end = parser.content_start
        if parser.n_content:  # a control token without text, such as the mark of a call, may come before white space
            start, end = requests[0].text.silent(parser.marks_end, start), end + parser.n_content
        pieces = _pieces(requests[0], start, end)
        return tuple(reversed(separated)), pieces, n_reasoning

    def _pass_on(self, content: str, request: EngineRequest) -> None:
        thought, n_left = self._stream.new_reasoning(), len(self._last.logprobs)
        if content and self._n_reasoning is None and n_left:
            self._n_reasoning = _n_before(request, self._stream.content_start)
        # The logprobs of the marks go with the reasoning, even if its text has been passed on already.
        n = max(0, (self._n_reasoning or 0) - self._n_passed) if content else n_left
        if thought or (content and n):
            self._send(thought, True, n)
        if content:
            self._send(content, False, len(self._last.logprobs))

    def _send(self, text: str, is_thought: bool, n_logprobs: int) -> None:
        """Send a piece of text to the listener. is_thought: whether the text is reasoning. n_logprobs: how many of the
        logprobs that the listener does not have yet go with the text."""
        if self._listener is None:
            return
        now, later = self._last.logprobs[:n_logprobs], self._last.logprobs[n_logprobs:]
        n_tokens = self._last.n_tokens - len(later)
        self._listener(self._last._replace(text=text, is_thought=is_thought, logprobs=now, n_tokens=n_tokens))
        self._last, self._n_passed = self._last._replace(logprobs=later), self._n_passed + len(now)


def _n_before(request: EngineRequest, start: int) -> int:
    """Returns how many of a request's output tokens come before the answer: reasoning and its marks. start: the index
    of the answer's first character in the output text."""
    return request.text.within(start, len(request.text.text))[0][0] if start else 0


def _pieces(request: EngineRequest, start: int, end: int) -> tuple[Piece, ...]:
    """The characters start : end of an output as pieces: the tokens that lie wholly inside, and the text before and
    after them."""
    text = request.text.text
    (i, a), (j, b) = request.text.within(start, end)
    generated = GeneratedText(text[a:b], bytes(request.ids[4 * i : 4 * j]))
    return tuple(piece for piece in (TextSpan(text[start:a]), generated, TextSpan(text[b:end])) if piece.text)
