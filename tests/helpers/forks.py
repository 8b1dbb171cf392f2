"""Forked children for tests."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

LONGEST = 60
"""Seconds after which the kernel ends a child."""


def start_child(work: Callable[[], Any]) -> tuple[int, int]:
    """Fork a child that runs `work`. Returns its pid, and the file descriptor where it writes what `work` returns or
    raises."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        return pid, read
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LONGEST)
    try:
        text = json.dumps(work())
    except BaseException:
        text = json.dumps(traceback.format_exc())
    os.write(write, text.encode())
    os._exit(0)


def in_child(work: Callable[[], Any]) -> Any:
    """Run `work` in a forked child. Returns its result, through JSON, or the traceback if it raises."""
    pid, read = start_child(work)
    with os.fdopen(read) as f:
        text = f.read()
    assert os.waitpid(pid, 0)[1] == 0, "the child did not end in time"
    return json.loads(text)
