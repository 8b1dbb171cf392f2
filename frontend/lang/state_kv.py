"""`state.kv`: hints about which KV pages of a state to keep when memory is short."""

from __future__ import annotations

from math import inf

from banyan.execution.program_record import ProgramRecord
from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire


class StateKV:
    """The KV of a state as it is when a hint is given. Hints never change an output; other backends ignore them.

    Without hints, the runtime keeps the KV of a state that waits for a tool or for its program about as long as such
    waits usually take. Dropped branches are evicted first, then the least recently used pages.
    """

    def __init__(self, record: ProgramRecord, state: int) -> None:
        self._record, self._state = record, state

    def pin(self, ttl: float) -> None:
        """Evict these pages last for `ttl` seconds, also after the program has ended; 0 unpins them.

        The hint is sent with the next message. Pinned pages are still evicted if a request could not run otherwise.
        """
        self._add("pin", ttl, wire.Keep(self._state, pin=ttl))

    def expect(self, steps: float) -> None:
        """These pages are needed again in about `steps` engine steps. Pages needed latest are evicted first."""
        self._add("expect", steps, wire.Keep(self._state, steps=steps))
        self._record.flush("kv.expect")

    def prefetch(self) -> None:
        """Load pages back from `host_memory`, as far as there are free device pages."""
        self._record.add(wire.Keep(self._state, prefetch=True))
        self._record.flush("kv.prefetch")

    def _add(self, name: str, value: float, op: wire.Keep) -> None:
        if not 0 <= value < inf:
            raise BadProgram(f"kv.{name}({value}): it must be a number that is at least 0")
        self._record.add(op)
