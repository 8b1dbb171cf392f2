"""The durable programs of a server, and when their journal files are kept or deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from banyan.runtime.errors import BanyanError, RuntimeLost, Unsupported
from banyan.runtime.server.programs.journal import Diary, Journal
from banyan.runtime.server.programs.running_program import Client, RunningProgram

CLIENT_GONE = RuntimeLost("its client is gone")
TAKEN_OVER = RuntimeLost("another client took this durable program over")


class Durables:
    """The durable programs that run, and those that ended but whose values the client has not acknowledged yet.

    journal: None if this server does not support durable programs; then `unsupported` says why.
    """

    def __init__(self, journal: Journal | None = None, unsupported: str = "") -> None:
        self.journal, self.unsupported = journal, unsupported
        self._running: dict[Path, RunningProgram] = {}  # by journal file
        self._places: dict[tuple[Client, int], RunningProgram] = {}  # the same, by (client, number)
        self._ended: dict[tuple[Client, int], Diary] = {}  # (client, number) -> file

    def begin(
        self, program: RunningProgram, root: bytes, name: str, end: Callable[[RunningProgram, BanyanError], None]
    ) -> None:
        """Make a program durable under `name`: open its journal file. Ends another running program that has this name,
        with TAKEN_OVER. root: the root key of the program's tenant. end: ends a program with an error.

        Raises Unsupported if this server has no journal, and BanyanError if the file cannot be opened."""
        if self.journal is None:
            raise Unsupported(f"durable: {self.unsupported}")
        key = root + name.encode()
        path = self.journal.path(key)
        if (previous := self._running.pop(path, None)) is not None and previous.journal is not None:
            self._forget_place(previous)
            previous.journal.close()
            end(previous, TAKEN_OVER)
        for where in [where for where, diary in self._ended.items() if diary.path == path]:
            self._ended.pop(where).close()
        program.journal = self.journal.open(key)
        program.started = program.journal.started
        self._running[path] = self._places[program.client, program.number] = program

    def over(self, program: RunningProgram, error: BanyanError | None, is_client_gone: bool) -> None:
        """Record that a program has ended. Its file is kept if its client may still need the values, or else
        deleted."""
        if (diary := program.journal) is None or self._running.get(diary.path) is not program:
            return
        del self._running[diary.path]
        self._forget_place(program)
        if is_client_gone and not program.is_acknowledged:
            diary.close()
        elif error is not None or program.is_acknowledged:
            diary.remove()
        else:
            self._ended[program.client, program.number] = diary

    def _forget_place(self, program: RunningProgram) -> None:
        place = program.client, program.number
        if self._places.get(place) is program:  # a later program of the client may have the same number
            del self._places[place]

    def acknowledge(self, client: Client, number: int) -> None:
        """Record that the client has all values of a program, so that its journal file is not needed any more.

        The file is deleted now or, if the program still runs (again, after a restart of the server), when it ends."""
        if (program := self._places.get((client, number))) is not None:
            program.is_acknowledged = True
        elif (diary := self._ended.pop((client, number), None)) is not None:
            diary.remove()

    def forget(self, client: Client) -> None:
        """Forget a client that is gone. Keep the files with values that the client may not have received."""
        for key in [key for key in self._ended if key[0] == client]:
            self._ended.pop(key).close()
