"""Keeps the tool calls of an assistant's turn out of its stream."""

from __future__ import annotations

from collections.abc import Callable

from banyan.runtime.reasoning import overlap
from banyan.runtime.server.text.tool_call_format import Form


class CallFilter:
    """Passes text on to `listener`, and holds back text that is, or may still become, a tool call."""

    def __init__(self, form: Form, listener: Callable[[str], None]) -> None:
        self._form, self._listener = form, listener
        self._held = ""
        self._is_call = self._is_text = False

    def feed(self, text: str) -> None:
        self._held += text
        if self._is_call:
            return
        if self._form.is_hidden or not self._form.mark:
            # The text does not show where a call begins: JSON at the start of a turn is held until the end.
            lead = self._held.lstrip()[:1]
            self._is_text |= lead not in ("", "[", "{") and self._form.name is not None
            n = len(self._held) if self._is_text else 0
        else:
            start = self._held.find(self._form.mark)
            self._is_call = start >= 0
            n = start if start >= 0 else len(self._held) - overlap(self._held, self._form.mark)
        self._pass_on(n)

    def end(self, is_call: bool) -> None:
        """Called at the end of the turn, with whether it was a call."""
        self._pass_on(0 if is_call else len(self._held))

    def _pass_on(self, n: int) -> None:
        text, self._held = self._held[:n], self._held[n:]
        if text:
            self._listener(text)
