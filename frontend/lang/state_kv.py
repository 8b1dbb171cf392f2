"""What a program says of a state's keys and values: which of them stay where memory is short."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire

if TYPE_CHECKING:
    from banyan.execution.program_record import ProgramRecord


class StateKV:
    """The keys and values of a state, as it stands when something is said of them. Nothing here changes an answer.

    Without a word the runtime goes by what it sees: a state that waits for a tool, or for its program, keeps its place
    for about as long as such waits last; dropped branches go first; of the rest, the longest unused. A backend that has
    no keys and values of ours passes over all this.
    """

    def __init__(self, record: ProgramRecord, state: int) -> None:
        self._record, self._state = record, state

    def pin(self, ttl: float) -> None:
        """Let them go after all others, for `ttl` seconds, beyond the end of the program too; 0 ends that. It is said
        with what is sent next. Where nothing else is left that a request could have, they go all the same."""
        self._say("pin", ttl, wire.CacheHint(self._state, pin=ttl))

    def expect(self, steps: float) -> None:
        """They are needed again in about so many steps of the engine. Of what is expected, the farthest goes first."""
        self._say("expect", steps, wire.CacheHint(self._state, steps=steps))
        self._record.flush("kv.expect")

    def prefetch(self) -> None:
        """Bring back what of them lies in the second tier (`host_memory`), as far as nobody holds the room."""
        self._record.add(wire.CacheHint(self._state, prefetch=True))
        self._record.flush("kv.prefetch")

    def _say(self, name: str, value: float, op: wire.CacheHint) -> None:
        if not 0 <= value < inf:
            raise BadProgram(f"kv.{name}({value}): it must be a number that is at least 0")
        self._record.add(op)
