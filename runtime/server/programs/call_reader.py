"""Reads tool calls while the model writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import suppress

import msgspec

from banyan.runtime.protocol import wire
from banyan.runtime.reasoning import overlap
from banyan.runtime.server.text.tool_call_format import N_CALLS, ArgumentsText, Form

MAX_HEAD = 1024
"""Maximum number of characters before the name and before the arguments of a call that is read."""
_Steps = Generator[None, str, None]


class CallReader:
    """Passes the name of a call on as soon as it is complete, and then the arguments as they come.

    All that it passes on is a part of what Form.read returns for the whole text, unless a call turns out to be invalid.
    It stops at a call whose keys do not have the order of the format, after a list of calls, and after arguments that
    are no JSON or have a number that is not finite."""

    def __init__(
        self, form: Form, listener: Callable[[wire.CallPiece], None], n_before: int, is_open: bool, one_call: bool
    ) -> None:
        """n_before: how many calls the conversation had before. is_open: whether the text begins after a call mark.
        one_call: whether to read the first call only."""
        self._form, self._listener = form, listener
        self._steps = self._read(range(n_before, n_before + (1 if one_call else N_CALLS)), is_open)
        next(self._steps)

    def feed(self, text: str) -> None:
        """Take more text of the turn."""
        with suppress(StopIteration):
            self._steps.send(text)

    def _read(self, numbers: range, is_open: bool) -> _Steps:
        """Each yield waits for more text."""
        mark, (to_name, to_arguments) = self._form.mark, self._form.opening()
        to_end = re.compile("" if self._form.name is None else r"\s*\}")
        text = "" if not is_open else mark
        for number in numbers:
            while (at := text.find(mark)) < 0:
                text = text[len(text) - overlap(text, mark) :] + (yield)
            text = text[at + len(mark) :]
            if (name := (yield from _match(to_name, text))) is None:
                return
            self._listener(wire.CallPiece(call := f"{number:09d}", name[1].strip()))
            if (found := (yield from _match(to_arguments, name.string[name.end() :]))) is None:
                return
            arguments, written = ArgumentsText(), []
            new, text = arguments.feed(found.string[found.end() :])
            while True:
                if new:
                    self._listener(wire.CallPiece(call, arguments=new))
                    written.append(new)
                if arguments.is_over:
                    break
                new, text = arguments.feed((yield))
            try:
                msgspec.json.decode("".join(written))
            except (ValueError, RecursionError):  # an invalid call, inside which Form.read may look for the next one
                return
            if "[" in name[0][: name.start(1)] or (end := (yield from _match(to_end, text))) is None:
                return
            text = end.string[end.end() :]


def _match(pattern: re.Pattern[str], text: str) -> Generator[None, str, re.Match[str] | None]:
    """Returns the match at the start of `text` and of what comes after it; None: MAX_HEAD characters have none."""
    while (found := pattern.match(text)) is None and len(text) <= MAX_HEAD:
        text += yield
    return found
