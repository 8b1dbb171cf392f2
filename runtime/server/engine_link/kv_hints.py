"""What the engine is told of the future of states: which are needed again, and about when, and which are not.

A state rests when none of its requests runs. Its program goes on with it, probably: behind a tool, or when its user's
code has looked at what it said. How long that takes, and whether it comes at all, is learned from those before it: by
the tools' names, or the program's. What is expected is held (`wire.Hold`) until it has run again, so also while its
request waits for its turn, or until it is long overdue. What lost, a branch that was dropped, is buried (`wire.Bury`)
up to the fork; so is what is dropped before its own branches are, once they are.

Nothing here changes what anybody computes, only which pages go first where pages are short.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire

Key = tuple[int, int]
"""(serial of the program, number of the state)"""

PATIENCE = 8.0
"""A rest that lasts so many times as long as expected is not taken for one any more ..."""
LEAST = 2.0
"""... if that is longer than so many seconds."""
MEMORY = 64
"""Rests of one name that are remembered, more or less."""
N_NAMES = 4096


class _Habit:
    """How the rests of one name ended: the state ran again, after so many seconds, or never."""

    __slots__ = ("n_back", "n_gone", "seconds")

    def __init__(self) -> None:
        self.n_back = self.n_gone = 0.0
        self.seconds = 1.0

    def back(self, seconds: float) -> None:
        self.seconds += (seconds - self.seconds) / min(self.n_back + 1, 8)
        self._count(1, 0)

    def gone(self) -> None:
        self._count(0, 1)

    def _count(self, n_back: int, n_gone: int) -> None:
        decay = 1 - 1 / MEMORY
        self.n_back, self.n_gone = decay * self.n_back + n_back, decay * self.n_gone + n_gone

    @property
    def is_likely(self) -> bool:
        return self.n_back >= self.n_gone


class _Fork:
    """What the branches of one fork have in common, in ids: all that the parent had computed, at least."""

    def __init__(self, n_known: int) -> None:
        self.n_known = n_known
        self.common: bytes | None = None  # of the prompts that they began with; only of those that ran

    def begun(self, ids: bytes) -> None:
        self.common = ids if self.common is None else ids[: 4 * n_common(self.common, ids)]

    @property
    def n_shared(self) -> int:
        return max(self.n_known, len(self.common or b"") // 4)


class _Kept:
    """What is known of one state's KV."""

    def __init__(self, name: str, namespace: bytes, parent: _Kept | None = None, fork: _Fork | None = None) -> None:
        self.name, self.namespace = name, namespace  # the program's
        self.parent, self.fork = parent, fork
        self.prompt: bytes = b""  # of its last generation ...
        self.output: bytes | bytearray = b""  # ... and what came of it
        self.n_running = 0
        self.n_branches = 0  # that are not dropped
        self.is_dropped = False
        self.tools: tuple[str, ...] = ()  # that it waits for
        self.rested = 0.0  # since when; 0: it runs, or has not yet
        self.hold = self.pin = 0  # numbers of what the engine holds for it; 0: nothing

    @property
    def ids(self) -> bytes:
        return self.prompt + bytes(self.output)


class KVHintSender:
    """Sees requests begin and end, is told what programs say and do, and tells the engine. `send` gives it an order."""

    def __init__(
        self,
        send: Callable[[wire.EngineOrder], None] = lambda order: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.send, self.clock = send, clock
        self._programs: dict[int, dict[int, _Kept]] = {}
        self._names: dict[int, tuple[str, bytes]] = {}  # by serial: the program's name, and its namespace
        self._resting: dict[Key, None] = {}  # since the last step
        self._overdue: list[tuple[float, Key, float]] = []  # when a rest is given up, and when it began
        self._n_overdue = 1024  # so many may stand there before it is looked through
        self._habits: OrderedDict[tuple[str, str], _Habit] = OrderedDict()
        self._n_holds = 0
        self._step_seconds, self._last_step = 0.05, 0.0

    # ---- requests --------------------------------------------------------------------------------------------------

    def started(self, run: wire.Run) -> None:
        """A request of a state begins."""
        if len(run.order) < 2:
            return
        kept = self._state(run.order[0], run.order[1])
        kept.n_running += 1
        if kept.rested:
            for habit in self._habits_of(kept):
                habit.back(self.clock() - kept.rested)
            kept.rested, kept.tools = 0.0, ()  # what is held for it stays so while its request waits for its turn
        if run.sampling.max_tokens and run.sample == 0:
            if kept.fork is not None and not kept.prompt:
                kept.fork.begun(run.ids)
            kept.prompt, kept.output = run.ids, b""

    def ended(self, run: wire.Run, output: bytearray) -> None:
        """It is over, whatever the reason, and had said `output`, as ids."""
        kept = self._find(run.order)
        if kept is None:
            return
        kept.n_running -= 1
        if run.sampling.max_tokens and run.sample == 0:
            kept.output = output
        if not kept.n_running:
            self._let_go(kept)
            self._resting[run.order[0], run.order[1]] = None

    def settle(self) -> None:
        """A step of the engine has been taken in, and all that follows from it is begun: who does not run now rests."""
        now = self.clock()
        if 0.0 < now - self._last_step < 1.0:
            self._step_seconds += 0.1 * (now - self._last_step - self._step_seconds)
        self._last_step = now
        while self._resting:
            key, _ = self._resting.popitem()
            kept = self._find(key)
            if kept is not None and not kept.n_running and not kept.is_dropped:
                self._rest(key, kept, now)
        while self._overdue and self._overdue[0][0] < now:
            _, key, rested = heappop(self._overdue)
            kept = self._find(key)
            if kept is not None and kept.rested == rested:
                self._give_up(kept)

    def _rest(self, key: Key, kept: _Kept, now: float) -> None:
        kept.rested = now
        habits = self._habits_of(kept)
        seconds = max(habit.seconds for habit in habits)
        heappush(self._overdue, (now + max(LEAST, PATIENCE * seconds), key, now))
        if len(self._overdue) > self._n_overdue:  # most of them have come back
            self._overdue = [one for one in self._overdue if (at := self._find(one[1])) and at.rested == one[2]]
            heapify(self._overdue)
            self._n_overdue = 1024 + 2 * len(self._overdue)
        if kept.tools or all(habit.is_likely for habit in habits):
            kept.hold = self._hold(kept, kept.ids, steps=seconds / self._step_seconds)

    def _give_up(self, kept: _Kept) -> None:
        """It does not come back, or nobody knows when."""
        if kept.rested and not kept.tools:
            for habit in self._habits_of(kept):
                habit.gone()
        kept.rested, kept.tools = 0.0, ()
        self._let_go(kept)

    # ---- what programs say -----------------------------------------------------------------------------------------

    def begin(self, serial: int, name: str, namespace: bytes = b"") -> None:
        self._names[serial] = name, namespace

    def calls(self, serial: int, number: int, names: tuple[str, ...]) -> None:
        """The state waits for these tools."""
        if kept := self._find((serial, number)):
            kept.tools = names

    def keep(self, serial: int, op: wire.Keep, ids: bytes) -> None:
        """A wish of the program's own, for a state that now has `ids`; b"": as far as is known."""
        kept = self._state(serial, op.state)
        if kept.is_dropped:
            return
        ids = ids or kept.ids
        if op.pin is not None and kept.pin:
            self.send(wire.Release(kept.pin))
            kept.pin = 0
        if op.steps is not None:
            self._let_go(kept)
            kept.hold = self._hold(kept, ids, op.steps, prefetch=op.prefetch)
        elif op.prefetch:
            self.send(wire.Release(self._hold(kept, ids, prefetch=True)))
        if op.pin:
            kept.pin = self._hold(kept, ids, seconds=op.pin)

    def forked(self, serial: int, number: int, children: tuple[int, ...]) -> None:
        parent = self._state(serial, number)
        fork = _Fork(len(parent.ids) // 4)
        parent.n_branches += len(children)
        for child in children:
            self._programs[serial][child] = _Kept(parent.name, parent.namespace, parent, fork)

    def adopted(self, serial: int, number: int, child: int) -> None:
        """The state goes on as its child, whose KV is its own now."""
        states = self._programs.get(serial, {})
        heir, kept = states.get(child), states.get(number)
        if heir is None or kept is None or not heir.prompt:
            return
        kept.prompt, kept.output = heir.prompt, heir.output
        heir.prompt = heir.output = b""

    def drop(self, serial: int, number: int) -> None:
        """The state will not go on."""
        kept = self._find((serial, number))
        if kept is None or kept.is_dropped:
            return
        kept.is_dropped = True
        self._give_up(kept)
        if kept.pin:
            self.send(wire.Release(kept.pin))
            kept.pin = 0
        at: _Kept | None = kept
        while at is not None and at.is_dropped and not at.n_branches:
            if at.prompt and at.fork is not None:  # else it is where the program began, which others may begin with
                self.send(wire.Bury(at.ids, at.fork.n_shared, at.namespace))
            at.prompt = at.output = b""
            if (at := at.parent) is not None:
                at.n_branches -= 1

    def end(self, serial: int) -> None:
        """The program is over. What it has pinned stays."""
        self._names.pop(serial, None)
        for kept in self._programs.pop(serial, {}).values():
            self._give_up(kept)

    # ---- how -------------------------------------------------------------------------------------------------------

    def _state(self, serial: int, number: int) -> _Kept:
        states = self._programs.setdefault(serial, {})
        if number not in states:
            states[number] = _Kept(*self._names.get(serial, ("", b"")))
        return states[number]

    def _find(self, order: tuple[int, ...]) -> _Kept | None:
        return self._programs.get(order[0], {}).get(order[1]) if len(order) > 1 else None

    def _hold(self, kept: _Kept, ids: bytes, steps: float = -1.0, seconds: float = 0.0, prefetch: bool = False) -> int:
        self._n_holds += 1
        self.send(wire.Hold(self._n_holds, ids, steps, seconds, prefetch, kept.namespace))
        return self._n_holds

    def _let_go(self, kept: _Kept) -> None:
        if kept.hold:
            self.send(wire.Release(kept.hold))
            kept.hold = 0

    def _habits_of(self, kept: _Kept) -> list[_Habit]:
        names = [("tool", name) for name in kept.tools] or [("program", kept.name)]
        return [self._habit(name) for name in names]

    def _habit(self, name: tuple[str, str]) -> _Habit:
        habit = self._habits.get(name)
        if habit is None:
            habit = self._habits[name] = _Habit()
        self._habits.move_to_end(name)
        if len(self._habits) > N_NAMES:
            self._habits.popitem(last=False)
        return habit


def check_keep(op: wire.Keep) -> None:
    """BadProgram: a wish that makes no sense."""
    for name, wish in (("pin", op.pin), ("steps", op.steps)):
        if wish is not None and not 0 <= wish < inf:
            raise BadProgram(f"{name} is {wish}; it must be a number that is at least 0")


def n_common(a: bytes, b: bytes) -> int:
    """How many ids two texts share from the start."""
    n, rest = 0, min(len(a), len(b)) // 4
    while rest:
        half = (rest + 1) // 2
        if a[4 * n : 4 * (n + half)] == b[4 * n : 4 * (n + half)]:
            n += half
            rest -= half
        else:
            rest = half - 1
    return n
