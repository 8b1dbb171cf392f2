"""A human-readable overview of programs: their branches, and how many tokens each gen took from the tree, computed and
drafted. It contains no text of a program, except the names that the program chose."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable
from heapq import nlargest
from itertools import islice
from typing import Any

import msgspec

from banyan.runtime.errors import BanyanError
from banyan.runtime.server.programs.running_program import RunningProgram

MAX_PROGRAMS, MAX_BRANCHES = 64, 200
"""Maximum number of programs that are listed, and of branches of each. All are counted."""
SLICE = 4096
"""How many programs one step looks at; this takes 1 ms."""
WATCHED = 30.0
"""For this many seconds after somebody asked for an overview, programs that end are remembered."""


class Overview:
    """Lists the programs of a server for people. While somebody watches, it also remembers programs that have ended."""

    def __init__(self) -> None:
        self._ended: deque[msgspec.Raw] = deque(maxlen=MAX_PROGRAMS)  # JSON
        self._asked = -WATCHED

    def ended(self, program: RunningProgram, error: BanyanError | None) -> None:
        """Remember a program that has ended, if somebody asked for an overview in the last WATCHED seconds."""
        if time.monotonic() < self._asked + WATCHED:
            over = {"is_over": True, "error": "" if error is None else error.message}
            self._ended.append(msgspec.Raw(msgspec.json.encode(_described(program) | over)))
        else:
            self._ended.clear()

    def of(self, programs: Iterable[RunningProgram]) -> Generator[None, None, dict[str, Any]]:
        """A generator that returns an overview: the programs that run, those that wait until their client sends more,
        and those that have ended. In each group the newest come first. Each step looks at SLICE programs, or describes
        one program. programs: all programs that have not ended."""
        self._asked = time.monotonic()
        rest, shown, counts = iter(list(programs)), list[RunningProgram](), {"n_running": 0, "n_idle": 0}
        while some := list(islice(rest, SLICE)):
            n_running = sum(bool(program.running) for program in some)
            counts["n_running"] += n_running
            counts["n_idle"] += len(some) - n_running
            shown = nlargest(MAX_PROGRAMS, [*shown, *some], key=lambda program: (bool(program.running), program.serial))
            yield
        described = []
        for program in shown:
            described.append(msgspec.Raw(msgspec.json.encode(_described(program))))
            yield
        return {**counts, "running": described, "ended": list(reversed(self._ended))}


def _described(program: RunningProgram) -> dict[str, Any]:
    states = list(islice(program.states.values(), MAX_BRANCHES))
    parents = {child: state.number for state in states for child in state.children[:MAX_BRANCHES]}
    doing = {state.number: state.generation.op for state in program.running if state.generation is not None}
    branches = [
        {
            "number": state.number,
            "parent": parents.get(state.number, -1),
            "doing": op.name or f"#{op.ref}" if (op := doing.get(state.number)) is not None else "",
        }
        for state in states
    ]
    return {
        "serial": program.serial,
        "name": program.name,
        "seconds": time.time() - program.started.timestamp(),
        "n_branches": len(program.states),
        "branches": branches,
        "gens": [gen._asdict() for gen in program.ended_gens],
        "is_over": False,
        "error": "",
    }
