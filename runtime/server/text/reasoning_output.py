"""Outputs of models that think before they speak: what the client and the state get of one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from banyan.runtime.protocol import wire
from banyan.runtime.reasoning import Thoughts
from banyan.runtime.server.engine_link.requests import EngineRequest, Listener, StreamPiece
from banyan.runtime.server.text.prompt import GeneratedText, Piece, TokenRun
from banyan.runtime.server.text.tokenizer import TextSpan


class ReasoningOutput:
    """One gen whose outputs are told apart. runs: its prompt, which may have begun the thinking already."""

    def __init__(self, marks: wire.Reasoning, runs: Sequence[TokenRun], listener: Listener | None = None) -> None:
        self._marks, self._listener = marks, listener
        text = ""
        for run in reversed(runs):
            if len((text := run.text + text).rstrip()) >= len(marks.start):
                break
        self._is_open = text.rstrip().endswith(marks.start)
        self._stream = self._thoughts()
        self._last = StreamPiece("")  # the piece that came last, with all logprobs that are not told yet

    def _thoughts(self) -> Thoughts:
        return Thoughts(self._marks, self._is_open)

    def hear(self, piece: StreamPiece) -> None:
        """Text of the first sample as it comes; it goes on to the listener, told apart."""
        self._last = piece._replace(logprobs=self._last.logprobs + piece.logprobs)
        self._tell(self._stream.feed(piece.text))

    def end(
        self, samples: Sequence[wire.Sample], first: EngineRequest
    ) -> tuple[tuple[wire.Sample, ...], tuple[Piece, ...]]:
        """The samples told apart, and what of the first becomes part of the state."""
        self._tell(self._stream.finish())
        apart = []
        for sample in samples:
            thoughts = self._thoughts()
            said = thoughts.feed(sample.text) + thoughts.finish()
            apart.append((replace(sample, text=said, reasoning=thoughts.reasoning), thoughts))
        thoughts = apart[0][1]
        pieces = _pieces(first, thoughts.start, thoughts.start + thoughts.n_said)
        return tuple(sample for sample, _ in apart), pieces

    def _tell(self, said: str) -> None:
        if self._listener is not None:
            for text, is_thought in ((self._stream.thought(), True), (said, False)):
                if text:
                    self._listener(self._last._replace(text=text, is_thought=is_thought))
                    self._last = self._last._replace(logprobs=())


def _pieces(request: EngineRequest, start: int, end: int) -> tuple[Piece, ...]:
    """Characters start : end of an output: the tokens that lie wholly in there, and text around them."""
    text = request.text.text
    (i, a), (j, b) = request.text.within(start, end)
    made = GeneratedText(text[a:b], bytes(request.ids[4 * i : 4 * j]))
    return tuple(piece for piece in (TextSpan(text[start:a]), made, TextSpan(text[b:end])) if piece.text)
