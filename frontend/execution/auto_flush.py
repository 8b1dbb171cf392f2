"""Sends the gens of bodies that have gone off to do something else.

A straight line of gens is one message, however slowly its body runs: so time alone is no sign that a body has gone
off. It has, when it appended nothing while it could have: for some rounds of a thread that wakes up every few
milliseconds. A process that is starved of its processor starves that thread too, and so what counts is rounds, not
seconds; and a round tells little where it was late itself, or where the body's thread was not asleep (it computes, or
waits for a processor).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from typing import Protocol

ROUND = 0.004
"""Seconds from one round to the next."""

SURE, UNSURE = 5, 1
AWAY = 20
"""What rounds count, and how much it takes: 4 rounds (16 ms) of a body that waits for something, 20 of one that
computes."""


class Sender(Protocol):
    """What holds back gens."""

    is_due: bool
    """Whether it holds one."""

    @property
    def n_waiting(self) -> int:
        """How much it holds; this grows with all that is appended."""

    def flush(self, why: str = "") -> None: ...


class _Entry:
    """One who asked to be looked after. The thread is the one that its first gen was appended on."""

    __slots__ = ("left", "n_waiting", "sender", "thread")

    def __init__(self, sender: Sender) -> None:
        self.sender, self.n_waiting, self.left = weakref.ref(sender), sender.n_waiting, AWAY
        self.thread = threading.get_native_id()


class AutoFlush:
    """One thread per process, asleep while nothing waits. Most that waits is sent by others long before its time."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def remind(self, sender: Sender) -> None:
        """Flush `sender` when its body has gone off, if it is due then. Called on the body's thread."""
        self._entries.append(_Entry(sender))
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="banyan-flush", daemon=True)
                    self._thread.start()
        if not self._bell.is_set():
            self._bell.set()

    def _run(self) -> None:
        while True:
            self._bell.wait()
            while self._entries:
                start = time.monotonic()
                time.sleep(ROUND)
                self._look(is_late=time.monotonic() - start > 1.5 * ROUND)
            self._bell.clear()
            if self._entries:  # from one who saw the bell still set
                self._bell.set()

    def _look(self, is_late: bool) -> None:
        """One round."""
        asleep: dict[int, bool] = {}
        for _ in range(len(self._entries)):
            entry = self._entries.popleft()
            if _is_to_wait(entry, asleep, is_late):
                self._entries.append(entry)


def _is_to_wait(entry: _Entry, asleep: dict[int, bool], is_late: bool) -> bool:
    """Look after one entry; `asleep` is what is known about the threads in this round.

    A function of its own: an error keeps the frames that it went through, and so each sender that a longer-lived frame
    would still name.
    """
    sender = entry.sender()
    if sender is None or not sender.is_due:
        return False
    if (n := sender.n_waiting) != entry.n_waiting:
        entry.n_waiting, entry.left = n, AWAY
    else:
        if entry.thread not in asleep:
            asleep[entry.thread] = not is_late and _is_asleep(entry.thread)
        entry.left -= SURE if asleep[entry.thread] else UNSURE
    if entry.left > 0:
        return True
    with contextlib.suppress(BaseException):  # the sender keeps it for those who observe
        sender.flush("its body was busy with something else")
    return False


def _is_asleep(thread: int) -> bool:
    """Whether a thread of this process waits for something other than a processor; True for one that is gone."""
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as file:
            return file.read(200).rpartition(b")")[2].split(None, 1)[0] not in (b"R", b"D")
    except FileNotFoundError:
        return True
    except OSError:  # /proc is not there: then rounds alone have to do
        return False


def ticker() -> AutoFlush:
    """That of this process."""
    return _ticker


def _renew() -> None:
    global _ticker
    _ticker = AutoFlush()


_ticker = AutoFlush()
os.register_at_fork(after_in_child=_renew)  # threads do not follow into a forked child
