"""Finds the requests that crash engines, and lets the others continue.

An engine records the requests that it is working on (flight_record.py), so only those are suspects when it dies. The
next engine runs the suspects one at a time, each alone and for one token. A suspect that survives this continues with
the others; one that crashes a second engine is given up. If the engine recorded no request, all requests that it was
given are suspects. If the engine was ended from outside (by a signal that is not due to a lack of memory), there are no
suspects and all requests continue at once.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

MAX_DEATHS = 2
"""Engines that one request may crash before it is given up."""
MAX_LOST = 4
"""Requests of one program that may be given up before the whole program is."""
MAX_BLAMED = 16
"""Engines that one request may crash in all, also if it gets tokens in between."""
MAX_KILLS = 8
"""Engines that may be ended from outside during one request, in a row and without a token in between."""


class Death(NamedTuple):
    """The end of an engine. how: a description for a person. is_blameless: it was ended from outside. rids: the
    requests that it was working on. was_ready: it had loaded its model and accepted requests."""

    how: str = "it ended"
    is_blameless: bool = False
    rids: frozenset[int] = frozenset()
    was_ready: bool = True


class Suspect(Protocol):
    """The part of a request that this file needs."""

    n_deaths: int
    """Engines that ended while they worked on it, since its last token."""
    n_blamed: int
    """Those of them that were not ended from outside."""
    n_blamed_ever: int
    """The same, also if it got tokens in between."""
    is_given: bool
    """The engine has it."""

    @property
    def rid(self) -> int: ...


S = TypeVar("S", bound=Suspect)


class Trials(Generic[S]):
    """Runs the suspects of a crash one at a time, while the other requests wait.

    run: send a request to the engine. test: the same, for one token. is_living: whether the request has not ended yet.
    """

    def __init__(self, run: Callable[[S], None], test: Callable[[S], None], is_living: Callable[[S], bool]) -> None:
        self._give, self._give_one, self._is_living = run, test, is_living
        self._suspects: deque[S] = deque()
        self._waiting: list[S] = []
        self._on_trial: S | None = None

    def submit(self, request: S) -> None:
        """Run a request, after the trials."""
        if self._on_trial is None:
            self._run(request)
        else:
            self._waiting.append(request)

    def _run(self, request: S) -> None:
        request.is_given = True
        self._give(request)

    def _test(self, request: S) -> None:
        request.is_given = True
        self._give_one(request)

    def has_passed(self, request: S) -> bool:
        """The engine finished `request`. Returns whether that was only its trial, so that it has to continue."""
        if request is not self._on_trial:
            return False
        self._waiting.append(request)
        self._on_trial = None
        return True

    def judge(self, death: Death, living: Iterable[S]) -> list[S]:
        """An engine died with the requests `living`. Returns those to give up; `go_on` runs the others."""
        given_up: list[S] = []
        self._suspects.clear()
        self._waiting.clear()
        living = tuple(living)
        is_blamed = not death.is_blameless
        in_hand = {request.rid for request in living if request.rid in death.rids}
        if not in_hand and death.was_ready:
            in_hand = {request.rid for request in living if request.is_given}
            is_blamed = is_blamed and not death.rids  # otherwise a request that has ended meanwhile crashed it
        for request in living:
            request.is_given = False
            if request.rid in in_hand:
                request.n_deaths += 1
                request.n_blamed += is_blamed
                request.n_blamed_ever += is_blamed
            is_often = request.n_blamed_ever >= MAX_BLAMED
            if request.n_blamed >= MAX_DEATHS or request.n_deaths >= MAX_KILLS or is_often:
                given_up.append(request)
            elif request.n_blamed:
                self._suspects.append(request)
            else:
                self._waiting.append(request)
        self._on_trial = None
        return given_up

    def go_on(self) -> None:
        """Start the next trial, or, after the last one, all waiting requests."""
        if self._on_trial is not None and self._is_living(self._on_trial):
            return
        self._on_trial = None
        while self._suspects and self._on_trial is None:
            suspect = self._suspects.popleft()
            if self._is_living(suspect):
                self._on_trial = suspect
                self._test(suspect)
                if not self._is_living(suspect):  # it had all its tokens
                    self._on_trial = None
        if self._on_trial is None:
            waiting, self._waiting = self._waiting, []
            for request in waiting:
                if self._is_living(request):
                    self._run(request)


def n_oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory, as far as this process may read it."""
    n = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        n += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return n


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped by a signal (SIGSTOP; Ctrl-Z)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def cause(exit_code: int | None, n_oom_kills: int, is_hung: bool, was_stopped: bool) -> tuple[str, bool]:
    """(description, whether it was ended from outside) of an engine's end. n_oom_kills: during its lifetime."""
    if was_stopped:
        return "it was stopped by a signal, and did not go on", True
    if is_hung:
        return "it gave no sign of life, and was ended", False
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}", exit_code == 0  # 0: something asked it to end
    name = signal.Signals(-exit_code).name if -exit_code in signal.valid_signals() else f"signal {-exit_code}"
    if exit_code == -signal.SIGKILL and n_oom_kills:
        return f"{name}; the machine was out of memory", False
    return name, exit_code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
