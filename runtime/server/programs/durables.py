"""The durable programs of a server, and when their journal files are kept or deleted."""

from __future__ import annotations

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
        self._running: dict[int, tuple[bytes, RunningProgram, Diary]] = {}  # serial -> (journal file, its key)
        self._serials: dict[bytes, int] = {}  # key -> serial
        self._places: dict[tuple[Client, int], int] = {}  # (client, number) of a running program -> serial
        self._ended: dict[tuple[Client, int], Diary] = {}  # (client, number) -> file
        self._acknowledged: set[int] = set()  # serials of running programs

    def begin(self, program: RunningProgram, root: bytes, name: str) -> RunningProgram | None:
        """Make a program durable under `name`. Returns the running program that had this name before, which the caller
        must end with TAKEN_OVER. root: the root key of its tenant.

        Unsupported: this server has no journal.
        """
        if self.journal is None:
            raise Unsupported(f"durable: {self.unsupported}")
        key = root + name.encode()
        previous = None
        if (serial := self._serials.pop(key, None)) is not None:
            _, previous, diary = self._running.pop(serial)
            self._forget_place(previous)
            diary.close()
        path = self.journal.path(key)
        for where in [where for where, diary in self._ended.items() if diary.path == path]:
            self._ended.pop(where).close()
        diary = self.journal.open(key)
        program.started = diary.started
        self._running[program.serial], self._serials[key] = (key, program, diary), program.serial
        self._places[program.client, program.number] = program.serial
        return previous

    def diary(self, serial: int) -> Diary | None:
        """The journal file of a running program, if it is durable."""
        found = self._running.get(serial)
        return None if found is None else found[2]

    def over(self, program: RunningProgram, error: BanyanError | None, is_client_gone: bool) -> None:
        """Called when a program has ended. Its file is kept if its client may still need the values."""
        if (found := self._running.pop(program.serial, None)) is None:
            return
        key, _, diary = found
        self._serials.pop(key, None)
        is_acknowledged = self._forget_place(program)
        if is_client_gone and not is_acknowledged:
            diary.close()
        elif error is not None or is_acknowledged:
            diary.remove()
        else:
            self._ended[program.client, program.number] = diary

    def _forget_place(self, program: RunningProgram) -> bool:
        """Forget what is kept about a running program. Returns whether the client has acknowledged its values."""
        place = program.client, program.number
        if self._places.get(place) == program.serial:  # a later program of the client may have the same number
            del self._places[place]
        is_acknowledged = program.serial in self._acknowledged
        self._acknowledged.discard(program.serial)
        return is_acknowledged

    def acknowledge(self, client: Client, number: int) -> None:
        """Called when the client has all values of a program. After a restart of the server, the program may still run
        here."""
        if (serial := self._places.get((client, number))) is not None:
            self._acknowledged.add(serial)
        elif (diary := self._ended.pop((client, number), None)) is not None:
            diary.remove()

    def forget(self, client: Client) -> None:
        """Forget a client that is gone. Keep the files of values that it may not have received."""
        for key in [key for key in self._ended if key[0] == client]:
            self._ended.pop(key).close()
