"""Collects the chunks of a streamed response into the response that the API gives without streaming."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from banyan.backends.openai.format import Kind


class StreamedResponse:
    """first: when the first text came, in seconds of time.monotonic; 0.0 before that."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._choices: dict[int, _Choice] = {}
        self._usage: Any = None
        self.first = 0.0

    def take(self, chunk: Any) -> str:
        """Add a chunk; returns the new text of the first choice."""
        self._usage = getattr(chunk, "usage", None) or self._usage
        new = ""
        for part in chunk.choices:
            choice = self._choices.setdefault(part.index, _Choice())
            text = choice.take(part, self._kind)
            if part.index == 0:
                new += text
        self.first = self.first or (time.monotonic() if new else 0.0)
        return new

    def response(self) -> Any:
        """The whole response."""
        choices = [choice.whole(index, self._kind) for index, choice in self._choices.items()]
        return SimpleNamespace(choices=choices, usage=self._usage)


class _Choice:
    def __init__(self) -> None:
        self.text: list[str] = []
        self.refusal: list[str] = []
        self.calls: dict[int, dict[str, str]] = {}
        self.logprobs: list[Any] = []
        self.finish_reason: str | None = None

    def take(self, part: Any, kind: Kind) -> str:
        self.finish_reason = part.finish_reason or self.finish_reason
        if part.logprobs is not None:
            self.logprobs.append(part.logprobs)
        if kind == "completion":
            self.text.append(part.text or "")
            return part.text or ""
        delta = part.delta
        self.text.append(delta.content or "")
        self.refusal.append(getattr(delta, "refusal", None) or "")
        for call in getattr(delta, "tool_calls", None) or ():
            known = self.calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
            known["id"] = call.id or known["id"]
            if call.function is not None:
                known["name"] += call.function.name or ""
                known["arguments"] += call.function.arguments or ""
        return delta.content or ""

    def whole(self, index: int, kind: Kind) -> Any:
        text, lists = "".join(self.text), self.logprobs
        if kind == "completion":
            logprobs = SimpleNamespace(
                tokens=[token for one in lists for token in one.tokens or ()],
                token_logprobs=[logprob for one in lists for logprob in one.token_logprobs or ()],
                top_logprobs=[top for one in lists for top in one.top_logprobs or ()],
            )
            return SimpleNamespace(
                index=index, text=text, logprobs=logprobs if lists else None, finish_reason=self.finish_reason
            )
        content = [token for one in lists for token in one.content or ()]
        calls = [
            SimpleNamespace(id=c["id"], function=SimpleNamespace(name=c["name"], arguments=c["arguments"]))
            for _, c in sorted(self.calls.items())
        ]
        message = SimpleNamespace(content=text, refusal="".join(self.refusal), tool_calls=calls)
        return SimpleNamespace(
            index=index, message=message, logprobs=SimpleNamespace(content=content), finish_reason=self.finish_reason
        )
