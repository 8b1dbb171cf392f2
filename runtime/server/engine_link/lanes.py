"""Which engine computes which program.

A program is placed with its first request, whose prompt is known then, and all its requests go to that engine. It is
placed anew when that engine is drained, dies, or has a request on trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.recovery import Trials


class Lane:
    """The way to one engine, and to those that replace it when it dies.

    send       gives it a command
    trials     starts its requests; after a crash the suspects first, each alone
    n_running  requests there that have not ended
    is_ready   the engine has loaded its model
    is_open    it takes programs; False: it is drained
    """

    def __init__(self, send: Callable[[wire.EngineCommand], None], trials: Trials[Any]) -> None:
        self.send, self.trials = send, trials
        self.n_running = 0
        self.is_ready = self.is_open = True

    @property
    def takes_programs(self) -> bool:
        return self.is_open and self.is_ready and not self.trials.is_busy


Choose = Callable[[wire.Run, Sequence[Lane]], Lane]
"""Says where a program goes, given its first request and the lanes that take programs."""


def least_running(run: wire.Run, lanes: Sequence[Lane]) -> Lane:
    return min(lanes, key=lambda lane: lane.n_running)


class PlacedProgram:
    """home: where its next request goes. lanes: all that had requests of it. n_given_up: requests that were given
    up."""

    __slots__ = ("home", "lanes", "n_given_up")

    def __init__(self, home: Lane) -> None:
        self.home, self.lanes, self.n_given_up = home, {home}, 0


class Lanes:
    """All lanes, and the programs that have a place."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._lanes: list[Lane] = []
        self._programs: dict[int, PlacedProgram] = {}  # by serial

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def add(self, lane: Lane) -> None:
        self._lanes.append(lane)

    def remove(self, lane: Lane) -> None:
        """The engine is gone, and none of its requests is left."""
        self._lanes.remove(lane)
        for placed in self._programs.values():
            placed.lanes.discard(lane)

    def find(self, serial: int) -> PlacedProgram | None:
        return self._programs.get(serial)

    def place(self, run: wire.Run) -> Lane:
        """The lane of a request: that of its program."""
        placed = self._programs.get(run.order[0]) if run.order else None
        if placed is not None and placed.home.takes_programs:
            return placed.home
        lane = self._lanes[0] if len(self._lanes) == 1 else self._choose(run, self._candidates())
        if placed is not None:
            placed.home = lane
            placed.lanes.add(lane)
        elif run.order:
            self._programs[run.order[0]] = PlacedProgram(lane)
        return lane

    def _candidates(self) -> list[Lane]:
        takers = [lane for lane in self._lanes if lane.takes_programs]
        return takers or [lane for lane in self._lanes if lane.is_open] or self._lanes

    def others_take(self, lane: Lane) -> bool:
        """Whether another engine could take the requests of this one now."""
        return any(other.takes_programs for other in self._lanes if other is not lane)

    def hint(self, serial: int, command: wire.EngineCommand) -> None:
        """Send a hint about the KV of a program to the engines that have computed for it; if none has yet, or the
        program has ended, to all."""
        placed = self._programs.get(serial)
        for lane in self._lanes if placed is None else placed.lanes:
            lane.send(command)

    def end(self, client: int, serial: int) -> None:
        """The program will start no more requests."""
        if (placed := self._programs.pop(serial, None)) is not None:
            for lane in placed.lanes:
                lane.send(wire.ProgramEnded(client, serial))
