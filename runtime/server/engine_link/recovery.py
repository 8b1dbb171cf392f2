"""Finds the requests that crash engines, and lets the others continue.

An engine records which requests it is working on (flight_record.py). When it dies, these are the suspects. If it
recorded none, all requests that it had been given are suspects. The next engine runs the suspects one at a time, each
alone and for one token: its trial. A suspect that passes its trial continues with the other requests; a suspect that
crashes a second engine is abandoned. If the engine was ended from outside (by a signal that is not due to a lack of
memory), there are no suspects, and all requests continue without trials.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

MAX_DEATHS = 2
"""A request that has crashed this many engines in a row, without producing a token, is abandoned."""
MAX_LOST = 4
"""A program is ended when this many of its requests were abandoned."""
MAX_BLAMED = 16
"""A request that has crashed this many engines in all, even if it produced tokens in between, is abandoned."""
MAX_KILLS = 8
"""A request is abandoned when this many engines in a row ended while they worked on it, for whatever reason, and it
produced no token."""


class Death(NamedTuple):
    """The end of an engine. how: a description for people. is_blameless: whether the engine was ended from outside.
    rids: the requests that the engine was working on. was_ready: whether the engine had loaded its model and accepted
    requests."""

    how: str = "it ended"
    is_blameless: bool = False
    rids: frozenset[int] = frozenset()
    was_ready: bool = True


class Suspect(Protocol):
    """A request that may have crashed an engine: the attributes that `Trials` reads and writes."""

    n_deaths: int
    """How many engines ended while they worked on the request, since its last token."""
    n_blamed: int
    """How many of the engines that n_deaths counts were not ended from outside."""
    n_blamed_ever: int
    """Like n_blamed, but counted since the start of the request."""
    is_given: bool
    """Whether the request was sent to the current engine."""

    @property
    def rid(self) -> int: ...


S = TypeVar("S", bound=Suspect)


class Trials(Generic[S]):
    """Runs the suspects of a crash one at a time, while the other requests wait.

    send: send(request, is_trial) sends a request to the engine; in a trial, only one token is generated. is_living:
    whether a request has not ended yet. is_late: whether the time slice is over. call_later: calls a function on the
    loop later.
    """

    def __init__(
        self,
        send: Callable[[S, bool], None],
        is_living: Callable[[S], bool],
        is_late: Callable[[], bool] = lambda: False,
        call_later: Callable[[Callable[[], None]], None] = lambda call: call(),
    ) -> None:
        self._send, self._is_living, self._is_late, self._call_later = send, is_living, is_late, call_later
        self._suspects: deque[S] = deque()
        self._waiting: deque[S] = deque()
        self._is_pausing = False
        self._on_trial: S | None = None

    def submit(self, request: S) -> None:
        """Run a new request: now, or after all trials if one is under way. (In a trial, a suspect of a crash runs
        alone.)"""
        if self._on_trial is None:
            self._run(request)
        else:
            self._waiting.append(request)

    @property
    def is_busy(self) -> bool:
        """Whether a request that may have crashed an engine runs alone now (its trial), or still has to. New requests
        then wait."""
        return self._on_trial is not None or bool(self._suspects)

    def add(self, request: S) -> None:
        """Add a request that has been moved to this engine from another one. It waits until `go_on` runs it."""
        self._waiting.append(request)

    def take_innocent(self) -> list[S]:
        """Remove and return the waiting requests that are not blamed for the death of an engine since their last token.
        The caller runs them on other engines."""
        found = [request for request in self._waiting if not request.n_blamed]
        self._waiting = deque(request for request in self._waiting if request.n_blamed)
        return found

    def _run(self, request: S, is_trial: bool = False) -> None:
        request.is_given = True
        self._send(request, is_trial)

    def has_passed(self, request: S) -> bool:
        """Called when the engine has finished a request. Returns whether this was the request's trial, for which it ran
        alone. If so, the trial is over, and the request waits until `go_on` runs it together with the others."""
        if request is not self._on_trial:
            return False
        request.is_given = False
        self._waiting.append(request)
        self._on_trial = None
        return True

    def is_tried(self, request: S) -> bool:
        """Whether the request has its trial now: it runs alone because it may have crashed an engine."""
        return request is self._on_trial

    def judge(self, death: Death, living: Iterable[S]) -> list[S]:
        """Find the suspects of an engine's death among `living`, all its requests that have not ended. Returns the
        requests that are abandoned because they have crashed too many engines. All others wait until `go_on` runs them;
        it first runs the suspects, each alone."""
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
        """Start the next trial (a suspect of a crash runs alone), if none is under way. After the last trial, run the
        waiting requests: as many as the time slice allows now, the others later."""
        if self._on_trial is not None and self._is_living(self._on_trial):
            return
        self._on_trial = None
        while self._suspects and self._on_trial is None:
            suspect = self._suspects.popleft()
            if self._is_living(suspect):
                self._on_trial = suspect
                self._run(suspect, is_trial=True)
                if not self._is_living(suspect):  # the request already had all its tokens
                    self._on_trial = None
        while self._on_trial is None and self._waiting and not self._is_pausing:
            if self._is_living(request := self._waiting.popleft()):
                self._run(request)
                if self._waiting and self._is_late():
                    self._is_pausing = True
                    self._call_later(self._resume)

    def _resume(self) -> None:
        self._is_pausing = False
        self.go_on()


def n_oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory, by the counters that this process can read."""
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
    """(a description of the engine's end, whether the engine was ended from outside). n_oom_kills: processes that the
    kernel killed for lack of memory during the engine's life."""
    if was_stopped:
        return "it was stopped by a signal, and was killed", True
    if is_hung:
        return "it gave no sign of life, and was killed", False
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}", exit_code == 0  # 0: something asked it to end
    name = signal.Signals(-exit_code).name if -exit_code in signal.valid_signals() else f"signal {-exit_code}"
    if exit_code == -signal.SIGKILL and n_oom_kills:
        return f"{name}; the machine was out of memory", False
    return name, exit_code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
