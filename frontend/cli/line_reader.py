"""Reads messages from stdin: in a terminal with history, line editing and several lines, otherwise line by line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import ModuleType

BLOCK = '"""'
"""The line that begins and ends a message of several lines."""
MAX_HISTORY = 1000
"""How many messages the history keeps."""


def history_file() -> Path:
    """Where the messages that were typed in a terminal are kept, a JSON string per line."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "banyan" / "chat_history"


class LineReader:
    """Reads messages. words: what the tab key completes. is_terminal: edit lines with readline, and keep a history."""

    def __init__(self, words: Sequence[str], is_terminal: bool) -> None:
        self._readline = _set_up(words) if is_terminal else None
        self._is_terminal = is_terminal
        self._prompts = ("\n> ", ". ") if is_terminal else ("", "")
        if self._readline is not None:
            with suppress(OSError, ValueError):
                lines = history_file().read_text(encoding="utf-8").splitlines()[-MAX_HISTORY:]
                for line in lines:
                    self._readline.add_history(json.loads(line))

    def read(self) -> str:
        """The next message, without white space around it. EOFError: there is none."""
        text = input(self._prompts[0]).strip()
        if text.startswith(BLOCK):
            text = "\n".join(self._block(text.removeprefix(BLOCK))).strip()
        if text and self._readline is not None:
            self._readline.add_history(text)
            with suppress(OSError):  # a home that cannot be written to
                self._save(text)
        return text

    def _block(self, line: str) -> Iterator[str]:
        """Yields the lines of a message that stands between two marks (BLOCK, three double quotes), without the marks.
        `line` is what follows the first mark on its line. The end of a file or pipe also ends the message. EOFError:
        the user pressed Ctrl-D in a terminal."""
        while not line.rstrip().endswith(BLOCK):
            yield line
            try:
                line = input(self._prompts[1])
            except EOFError:
                if self._is_terminal:  # Ctrl-D leaves
                    raise
                return
        yield line.rstrip().removesuffix(BLOCK)

    def _save(self, text: str) -> None:
        file = history_file()
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+", encoding="utf-8") as f:
            f.write(json.dumps(text) + "\n")
            f.seek(0)
            if len(lines := f.readlines()) > 2 * MAX_HISTORY:
                f.truncate(0)
                f.writelines(lines[-MAX_HISTORY:])


def _set_up(words: Sequence[str]) -> ModuleType | None:
    """Python's readline module, which edits the lines that `input` reads; None if this Python has none."""
    try:
        import readline
    except ImportError:
        return None

    def complete(text: str, n: int) -> str | None:
        return next(islice((word for word in words if word.startswith(text)), n, None), None)

    readline.set_auto_history(False)  # a message of several lines is one entry
    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    if "libedit" in (readline.__doc__ or ""):
        readline.parse_and_bind("bind ^I rl_complete")
    else:
        readline.parse_and_bind("tab: complete")
        readline.parse_and_bind("set enable-bracketed-paste on")  # pasted line breaks do not send the message
        readline.parse_and_bind(r'"\e\C-m": "\C-v\C-j"')  # Alt-Enter inserts one
    return readline
