"""The child process for work that may hang or crash on bad data."""

from __future__ import annotations

import sys

import pytest

from banyan.runtime.errors import BadProgram
from banyan.runtime.server.text import helper_process
from banyan.runtime.server.text.helper_process import HelperProcess

SERVE = "from banyan.runtime.server.text.helper_process import serve; serve({start})"


def helper(start: str) -> HelperProcess:
    """start: the argument of `serve`, as source."""
    return HelperProcess((sys.executable, "-c", SERVE.format(start=start)), b"hello", "the data")


def test_each_message_is_answered() -> None:
    process = helper("lambda hello: lambda data: hello + data")
    try:
        assert [process.ask(data, 30.0) for data in (b" a", b" b")] == [b"hello a", b"hello b"]
    finally:
        process.close()


def test_error_at_the_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadProgram, match="the data cannot be loaded: division by zero"):
        helper("lambda hello: 1 / 0").ask(b"a", 30.0)
    monkeypatch.setattr(helper_process, "START_SECONDS", 0.01)
    with pytest.raises(BadProgram, match="the data cannot be loaded: that takes more than 0 s"):
        helper("lambda hello: __import__('time').sleep(60)").ask(b"a", 30.0)


def test_child_that_takes_too_long_is_replaced() -> None:
    process = helper("lambda hello: lambda data: data if data == b'a' else __import__('time').sleep(60)")
    try:
        with pytest.raises(TimeoutError):
            process.ask(b"slow", 0.1)
        assert process.child is None
        assert process.ask(b"a", 30.0) == b"a"
    finally:
        process.close()
