"""Who is to blame when an engine dies, and how the others go on.

An engine says what it has in hand (flight_record.py), so only those requests are suspect. The next engine gets them
one at a time, each alone and for one token: who is innocent is cleared by that, and who has the engine die a second
time is not run again. Then all others go on. An engine that died with nothing in hand leaves all suspect that it was
given. Where somebody else ended the engine (a signal, and no lack of memory behind it), nobody is suspect, and all go
on at once.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

MAX_DEATHS = 2
"""Engines that may die of one request before it is given up."""
MAX_LOST = 4
"""Requests of one program that may be given up before all of it is."""
MAX_BLAMED = 16
"""Engines that may die of one request in all, whatever it got between them."""
MAX_KILLS = 8
"""Engines that may be ended by others under one request, one after another without a token in between."""


class Death(NamedTuple):
    """The end of an engine. how: for a person. is_blameless: somebody else ended it. rids: what it had in hand.
    was_ready: it had loaded its model, and taken requests."""

    how: str = "it ended"
    is_blameless: bool = False
    rids: frozenset[int] = frozenset()
    was_ready: bool = True


class Suspect(Protocol):
    """A request, as far as it concerns us."""

    n_deaths: int
    """Engines that ended with it in hand, since it last got a token."""
    n_blamed: int
    """... and that nobody else had ended."""
    n_blamed_ever: int
    """The same, whatever it got since."""
    is_given: bool
    """The engine has it."""

    @property
    def rid(self) -> int: ...


S = TypeVar("S", bound=Suspect)


class Trials(Generic[S]):
    """Suspects of a death, tried one at a time.

    run: gives a request to the engine. test: the same, for one token. is_living: it has not ended yet.
    """

    def __init__(self, run: Callable[[S], None], test: Callable[[S], None], is_living: Callable[[S], bool]) -> None:
        self._give, self._give_one, self._is_living = run, test, is_living
        self._suspects: deque[S] = deque()
        self._held: list[S] = []
        self._on_trial: S | None = None

    def submit(self, request: S) -> None:
        """Run it; as soon as no trial is under way."""
        if self._on_trial is None:
            self._run(request)
        else:
            self._held.append(request)

    def _run(self, request: S) -> None:
        request.is_given = True
        self._give(request)

    def _test(self, request: S) -> None:
        request.is_given = True
        self._give_one(request)

    def has_passed(self, request: S) -> bool:
        """The engine is done with `request`, as far as it was to go: whether that was its trial, and not its end."""
        if request is not self._on_trial:
            return False
        self._held.append(request)
        self._on_trial = None
        return True

    def judge(self, death: Death, living: Iterable[S]) -> list[S]:
        """All of `living` ran, or waited here, when the engine died. Returns those that are given up; the others are
        run from the next `go_on` on."""
        lost: list[S] = []
        self._suspects.clear()
        self._held.clear()
        living = tuple(living)
        is_blamed = not death.is_blameless
        in_hand = {request.rid for request in living if request.rid in death.rids}
        if not in_hand and death.was_ready:
            in_hand = {request.rid for request in living if request.is_given}
            is_blamed = is_blamed and not death.rids  # else it was one that has ended meanwhile
        for request in living:
            request.is_given = False
            if request.rid in in_hand:
                request.n_deaths += 1
                request.n_blamed += is_blamed
                request.n_blamed_ever += is_blamed
            is_often = request.n_blamed_ever >= MAX_BLAMED
            if request.n_blamed >= MAX_DEATHS or request.n_deaths >= MAX_KILLS or is_often:
                lost.append(request)
            elif request.n_blamed:
                self._suspects.append(request)
            else:
                self._held.append(request)
        self._on_trial = None
        return lost

    def go_on(self) -> None:
        """Begin what can begin: the next trial, or, after the last, all that were held."""
        if self._on_trial is not None and self._is_living(self._on_trial):
            return
        self._on_trial = None
        while self._suspects and self._on_trial is None:
            suspect = self._suspects.popleft()
            if self._is_living(suspect):
                self._on_trial = suspect
                self._test(suspect)
                if not self._is_living(suspect):  # nothing of it was left to run
                    self._on_trial = None
        if self._on_trial is None:
            held, self._held = self._held, []
            for request in held:
                if self._is_living(request):
                    self._run(request)


def n_oom_kills() -> int:
    """How often the kernel has ended a process for lack of memory, as far as we may know."""
    n = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        n += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return n


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process (SIGSTOP; Ctrl-Z)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def cause(exit_code: int | None, n_oom_kills: int, is_hung: bool, was_stopped: bool) -> tuple[str, bool]:
    """How an engine ended, for a person, and whether somebody else ended it. n_oom_kills: while it lived."""
    if was_stopped:
        return "it was stopped by a signal, and did not go on", True
    if is_hung:
        return "it gave no sign of life, and was ended", False
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}", exit_code == 0  # 0: it was asked to end, and not by us
    name = signal.Signals(-exit_code).name if -exit_code in signal.valid_signals() else f"signal {-exit_code}"
    if exit_code == -signal.SIGKILL and n_oom_kills:
        return f"{name}; the machine was out of memory", False
    return name, exit_code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
