"""Keeps the tool calls of an assistant's turn out of the streamed text."""

from __future__ import annotations

from collections.abc import Callable

from banyan.runtime.reasoning import overlap
from banyan.runtime.server.text.tool_call_format import Form


class CallFilter:
    """Passes text on to `listener`, and holds back text that is, or may still become, a tool call."""

    def __init__(self, form: Form, listener: Callable[[str], None]) -> None:
        self._form, self._listener = form, listener
        self._held = ""
        self._later: list[str] = []  # text after a call mark; joined once, as a call may be long
        self._n_passed = 0
        self._is_call = self._is_text = False

    def feed(self, text: str, mark_at: int = -1) -> None:
        """Take more text of the turn, and pass on what cannot be part of a tool call.

        mark_at: the index in the turn's text at which a call mark begins, if the text does not show the mark because it
        is a special token; -1: no such mark so far."""
        if self._is_call:
            self._later.append(text)
            return
        self._held += text
        if not self._form.mark:
            # The text does not show where a call begins: JSON at the start of a turn is held until the end.
            self._is_text |= self._held.lstrip()[:1] not in ("", "[", "{")
            n = len(self._held) if self._is_text else 0
        elif mark_at >= 0:
            n = max(0, mark_at - self._n_passed)  # text before the mark may still come
        else:
            start = self._held.find(self._form.mark)
            self._is_call = start >= 0
            n = start if start >= 0 else len(self._held) - overlap(self._held, self._form.mark)
        if self._n_passed or self._held[:n].strip():  # white space alone before a call is no text
            self._pass_on(n)

    def end(self, is_call: bool) -> None:
        """End the turn. Passes on the text that is held back, unless the turn was a call."""
        if not is_call:
            self._held += "".join(self._later)
            self._pass_on(len(self._held))

    def _pass_on(self, n: int) -> None:
        text, self._held = self._held[:n], self._held[n:]
        self._n_passed += len(text)
        if text:
            self._listener(text)
