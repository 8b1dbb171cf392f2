"""`banyan chat`: through pipes, and in a terminal with history, several lines and Ctrl-C."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import banyan as bn
from banyan.cli import chat as cli_chat
from banyan.cli import line_reader
from banyan.runtime.protocol import wire


class Keyboard(io.StringIO):
    """Lines that a person types."""

    def isatty(self) -> bool:
        return True


def run_chat(
    lines: str,
    mock: Any,
    monkeypatch: pytest.MonkeyPatch,
    status: int = 0,
    stdin: Callable[[str], io.StringIO] = io.StringIO,
) -> None:
    monkeypatch.setattr("sys.stdin", stdin(lines))
    assert cli_chat.talk(mock, system="Be brief.", temperature=0.0, max_tokens=9) == status


# ---- pipes ---------------------------------------------------------------------------------------------------------


def test_pipe_gets_the_replies_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mock = bn.Mock(["one reply", "another"])
    run_chat("Hi\n\nAnd now?\n", mock, monkeypatch)
    assert capsys.readouterr().out == "one reply\nanother\n"
    assert [(call.op.sampling.temperature, call.op.sampling.max_tokens) for call in mock.calls] == [(0.0, 9)] * 2
    assert "<|im_start|>assistant\none reply<|im_end|>\n<|im_start|>user\nAnd now?" in mock.calls[1].prompt


def test_message_of_several_lines_and_paths_are_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    mock = bn.Mock("yes")
    run_chat('"""a\n  b\nc"""\n"""one line"""\n/etc/hosts is a file\n/tmp\n"""never closed', mock, monkeypatch)
    users = [call.prompt.rpartition("user\n")[2].partition("<|im_end|>")[0] for call in mock.calls]
    assert users == ["a\n  b\nc", "one line", "/etc/hosts is a file", "/tmp", "never closed"]


def test_end_of_file_ends_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('"""\nhello\nworld\n'))
    reader = line_reader.LineReader((), is_terminal=False)
    assert reader.read() == "hello\nworld"
    with pytest.raises(EOFError):
        reader.read()
    monkeypatch.setattr("sys.stdin", io.StringIO('"""\nhello\n'))
    reader._is_terminal = True
    with pytest.raises(EOFError):
        reader.read()


@pytest.mark.parametrize("leave", ["/exit", "/quit"])
def test_history_is_shown_and_reset_clears_it(
    leave: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mock = bn.Mock("yes")
    run_chat(f"First\n/history\n/reset\nSecond\n{leave}\nnever", mock, monkeypatch, stdin=Keyboard)
    assert capsys.readouterr().out == "yes\nsystem  Be brief.\nuser  First\nassistant  yes\nyes\n"
    assert "First" not in mock.calls[1].prompt
    assert mock.calls[1].prompt.startswith("<|im_start|>system\nBe brief.")


def test_shown_text_is_what_was_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_chat("x[1:a:2] :smile: [b]\n/history\n", bn.Mock("y[:x:]"), monkeypatch, stdin=Keyboard)
    assert capsys.readouterr().out.endswith("user  x[1:a:2] :smile: [b]\nassistant  y[:x:]\n")


def test_chat_goes_on_after_a_failed_turn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    mock = bn.Mock(["good", wire.Sample("never seen", "stop"), "good again"])
    answer = mock.answer

    def break_once(prompt: str, name: str) -> object:
        if "Break" in prompt.rpartition("user")[2]:
            raise ValueError("boom")
        return answer(prompt, name)

    mock.answer = break_once  # type: ignore[assignment, method-assign]
    run_chat("Hi\nBreak\nGo on\n/history\n", mock, monkeypatch, status=1, stdin=Keyboard)
    out, err = capsys.readouterr()
    assert err == "banyan: the script of the Mock raised ValueError: boom\n"
    assert "Break" not in mock.calls[-1].prompt
    assert "good" in mock.calls[-1].prompt
    assert "user  Break" not in out


def test_commands_are_listed_and_suggested(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_chat("/help\n/histroy\n/what\n", bn.Mock(), monkeypatch, stdin=Keyboard)
    *listed, second, third = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in listed} >= {"/help", "/history", "/reset", "/exit", "Ctrl-C"}
    assert second == "there is no /histroy; did you mean /history?"
    assert third == "there is no /what; /help lists commands"


def test_model_without_a_chat_template_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mock: Any = bn.Mock(chat=None)
    with pytest.raises(bn.Unsupported, match="has no chat template"):
        run_chat("Hi\n", mock, monkeypatch)


# ---- a terminal ----------------------------------------------------------------------------------------------------

CHAT = """
import banyan
from banyan.cli.chat import talk
def latency(call):
    if "stay" not in call.prompt.rpartition("user")[2]:
        return 0.001  # starts the clock's thread: Ctrl-C inside Thread.start() would break its lock
    print("under way", flush=True)
    return 100.0
talk(banyan.Mock("fine", latency=latency), system="", temperature=0.0, max_tokens=9)
"""


class Terminal:
    """A chat with a Mock that runs in a terminal."""

    def __init__(self, home: Path) -> None:
        self.fd, child = pty.openpty()
        environment = os.environ | {"XDG_STATE_HOME": str(home), "TERM": "xterm", "COLUMNS": "200"}
        ends = {"stdin": child, "stdout": child, "stderr": child}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHAT], **ends, env=environment, start_new_session=True, preexec_fn=_own_terminal
        )
        os.close(child)
        self._raw, self._at = b"", 0

    def until(self, text: str) -> str:
        """What the terminal shows up to the next `text`, without control sequences."""
        while True:
            shown = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", self._raw.decode(errors="replace"))
            if (end := shown.find(text, self._at)) >= 0:
                start, self._at = self._at, end + len(text)
                return shown[start : self._at]
            try:
                self._raw += os.read(self.fd, 1 << 16)
            except OSError:
                raise AssertionError(f"the chat ended without {text!r}: {shown[self._at :]!r}") from None

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C when the chat sleeps: `input` sees a signal that came before its select() at the next key."""
        while Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.01)
        self.type("\x03")


def _own_terminal() -> None:
    """Make stdin the controlling terminal of this process, so that Ctrl-C reaches it."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    chat = Terminal(tmp_path)
    try:
        yield chat
    finally:
        chat.process.kill()
        chat.process.wait()
        os.close(chat.fd)


def test_terminal_has_editing_history_and_ctrl_c(terminal: Terminal, tmp_path: Path) -> None:
    assert "/help lists commands and keys" in terminal.until("> ")
    terminal.type("first\n")
    assert "fine" in terminal.until("tokens/s")
    terminal.until("> ")
    terminal.type("please stay\n")
    terminal.until("under way")
    terminal.interrupt()
    assert "stopped" in terminal.until("> ")
    terminal.type("dropped")
    terminal.until("dropped")
    terminal.interrupt()
    assert "Ctrl-D leaves" in terminal.until("\n> ")
    terminal.type("\x1b[A\x1b[A!\n")  # twice up: the first message, with one more letter
    terminal.until("first!")
    terminal.until("> ")
    terminal.type("/hel\t\n")
    terminal.until("Alt-Enter")
    terminal.until("> ")
    terminal.type("\x04")
    assert terminal.process.wait(30) == 0
    history = (tmp_path / "banyan" / "chat_history").read_text()
    assert history == '"first"\n"please stay"\n"first!"\n"/help"\n'
    assert (tmp_path / "banyan" / "chat_history").stat().st_mode & 0o777 == 0o600


def test_history_file_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(line_reader, "MAX_HISTORY", 3)
    reader = line_reader.LineReader((), is_terminal=False)
    for i in range(8):
        reader._save(f"line {i}\nend")
    kept = [f"line {i}" for i in range(4, 8)]
    assert re.findall(r"line \d", line_reader.history_file().read_text()) == kept
