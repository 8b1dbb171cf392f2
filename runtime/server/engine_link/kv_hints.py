"""Predicts which states of programs will need their KV again, and tells the engine with Hold, Release and EvictFirst.

A state rests when none of its requests runs. Usually its program continues it: after a tool call, or when the user's
code has read its output. How long a rest takes, and whether the state continues, is estimated from earlier rests with
the same tool or in programs of the same name, in the same namespace. The engine holds the KV of a resting state
(wire.Hold) until a request that continues the state has run, or until the rest has taken much longer than estimated.
The KV of a dropped branch is evicted first (wire.EvictFirst), back to its fork. If a state is dropped before its
branches, its own KV is evicted when the last branch is dropped.

Hints change no output. They only decide which pages are evicted first when pages are short.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf

from banyan.radix_cache.digests import n_common
from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire

Key = tuple[int, int]
"""(serial of the program, number of the state)"""

OVERDUE_FACTOR = 8.0
"""A hold is released when the rest has taken this many times its estimated duration, and at least MIN_REST seconds."""
MIN_REST = 2.0
"""The shortest rest, in seconds, after which a hold is released because the rest takes too long."""
MEMORY = 64
"""An estimate covers roughly this many of the latest rests with one tool, or in programs of one name: each new rest
lowers the weight of older ones."""
LINKS = 1000
"""How many ancestors of a dropped state are looked at in one step."""
MAX_NAMES, MAX_NAMESPACES = 1024, 64
"""Maximum number of names with an estimate in a namespace, and of namespaces. Beyond that, the least recently used are
forgotten."""
MAX_NAME = 100
"""Maximum number of characters of a name. A longer name is cut, and shares its estimate with names that begin the
same."""


class _RestEstimate:
    """How rests with one tool, or in programs of one name, ended: the state ran again after some seconds, or it never
    did."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers = array("d", (1.0, 0.0, 0.0))  # seconds, how many continued, how many ended; array: see LoopTimes

    @property
    def seconds(self) -> float:
        return self._numbers[0]

    def update(self, seconds: float | None) -> None:
        """Add a rest that took `seconds`; None: the state did not continue."""
        own, decay = self._numbers, 1 - 1 / MEMORY
        if seconds is not None:
            own[0] += (seconds - own[0]) / min(own[1] + 1, 8)
        own[1] = decay * own[1] + (seconds is not None)
        own[2] = decay * own[2] + (seconds is None)

    @property
    def is_likely_to_continue(self) -> bool:
        return self._numbers[1] >= self._numbers[2]


class _Fork:
    """A fork. n_computed: how many tokens of the parent were computed at the fork. n_shared: how many first tokens the
    prompts of all branches have in common, as far as known, and at least n_computed."""

    def __init__(self, n_computed: int) -> None:
        self.n_computed = n_computed
        self._common: bytes | None = None  # common prefix of the first prompts of the branches that ran, int32 ids

    def started(self, ids: bytes) -> None:
        self._common = ids if self._common is None else ids[: 4 * n_common(self._common, 0, ids)]

    @property
    def n_shared(self) -> int:
        return max(self.n_computed, len(self._common or b"") // 4)


class _StateKV:
    """What is known about the KV of one state. serial, name: those of its program. namespace: that of its last
    generation; before the first generation, that of its program."""

    def __init__(
        self, serial: int, name: str, namespace: bytes, parent: _StateKV | None = None, fork: _Fork | None = None
    ) -> None:
        self.serial, self.name, self.namespace = serial, name, namespace
        self.parent, self.fork = parent, fork
        self.prompt: bytes = b""  # the prompt of its last generation, int32 ids
        self.output: bytes | bytearray = b""
        self.n_running = 0
        self.n_branches = 0  # branches that are not dropped
        self.is_dropped = False
        self.tools: tuple[str, ...] = ()  # the tools whose results it waits for
        self.rest_started = 0.0  # time at which the rest started; 0: the state is running, or has not run yet
        self.hold = self.pin = 0  # numbers of its holds in the engine; 0: none

    @property
    def ids(self) -> bytes:
        return self.prompt + bytes(self.output)


class KVHintSender:
    """Receives the events of requests and programs, and sends KV hints to engines. send(serial of the program, hint):
    sends a hint to the engine that runs the program."""

    def __init__(
        self,
        send: Callable[[int, wire.EngineCommand], None] = lambda serial, command: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.send, self.clock = send, clock
        self._programs: dict[int, dict[int, _StateKV]] = {}
        self._names: dict[int, tuple[str, bytes]] = {}  # serial -> (program's name, namespace)
        self._newly_resting: dict[Key, None] = {}  # states that came to rest since the last step
        self._unfinished: list[_StateKV] = []  # where `_evict` stopped
        self._overdue: list[tuple[float, Key, float]] = []  # heap of (when to give up, state, when the rest started)
        self._max_overdue = 1024  # size at which stale entries are removed
        self._estimates: OrderedDict[bytes, OrderedDict[tuple[str, str], _RestEstimate]] = OrderedDict()  # by namespace
        self._n_holds = 0
        self._steps = array("d", (0.05, 0.0))  # seconds of a step, time of the last one; array: see LoopTimes

    # ---- requests --------------------------------------------------------------------------------------------------

    def started(self, run: wire.Run) -> None:
        """Record that a request has started, so its state does not rest."""
        state = self._state(run.order[0], run.order[1])
        state.n_running += 1
        if state.rest_started:
            for estimate in self._estimates_of(state):
                estimate.update(self.clock() - state.rest_started)
            state.rest_started, state.tools = 0.0, ()  # the hold stays while the request waits in the engine's queue
        if run.sampling.max_tokens and run.sample == 0:
            if state.fork is not None and not state.prompt:
                state.fork.started(run.ids)
            state.prompt, state.output = run.ids, b""
            state.namespace = run.namespace  # each adapter has its own

    def ended(self, run: wire.Run, output: bytearray) -> None:
        """Record that a request has ended, for any reason, with `output` (int32 ids)."""
        state = self._find(run.order)
        if state is None:
            return
        state.n_running -= 1
        if run.sampling.max_tokens and run.sample == 0:
            state.output = output
        if not state.n_running:
            state.hold = self._release(state, state.hold)
            self._newly_resting[run.order[0], run.order[1]] = None

    def settle(self) -> Iterator[None]:
        """Start the rest of each state that has no running request left, end overdue rests, and continue evictions.
        Called after an engine step was handled and the requests that follow from it have started. A generator; each of
        its steps handles one state."""
        now = self.clock()
        steps = self._steps
        if 0.0 < now - steps[1] < 1.0:
            steps[0] += 0.1 * (now - steps[1] - steps[0])
        steps[1] = now
        while self._newly_resting:
            key, _ = self._newly_resting.popitem()
            state = self._find(key)
            if state is not None and not state.n_running and not state.is_dropped:
                self._start_rest(key, state, now)
            yield
        if len(self._overdue) > self._max_overdue:  # most of these rests are over
            old, self._overdue = self._overdue, []
            for one in old:
                if (at := self._find(one[1])) is not None and at.rest_started == one[2]:
                    heappush(self._overdue, one)
                yield
            self._max_overdue = 1024 + 2 * len(self._overdue)
        while self._unfinished:
            self._evict(self._unfinished.pop())
            yield
        while self._overdue and self._overdue[0][0] < now:
            yield
            if not self._overdue:  # the last program has ended meanwhile
                return
            _, key, rest_started = heappop(self._overdue)
            state = self._find(key)
            if state is not None and state.rest_started == rest_started:
                self._give_up(state)

    def _start_rest(self, key: Key, state: _StateKV, now: float) -> None:
        state.rest_started = now
        estimates = self._estimates_of(state)
        seconds = max(estimate.seconds for estimate in estimates)
        heappush(self._overdue, (now + max(MIN_REST, OVERDUE_FACTOR * seconds), key, now))
        if state.tools or all(estimate.is_likely_to_continue for estimate in estimates):
            state.hold = self._hold(state, state.ids, steps=seconds / self._steps[0])

    def _give_up(self, state: _StateKV) -> None:
        """Release the hold of a state that will not continue, or whose rest is overdue. If the state does not wait for
        tools, count this rest, in the estimate for its program, as one that did not continue."""
        if state.rest_started and not state.tools:
            for estimate in self._estimates_of(state):
                estimate.update(None)
        state.rest_started, state.tools = 0.0, ()
        state.hold = self._release(state, state.hold)

    # ---- programs --------------------------------------------------------------------------------------------------

    def begin(self, serial: int, name: str, namespace: bytes = b"") -> None:
        """Record the name and namespace of a program that starts."""
        self._names[serial] = name[:MAX_NAME], namespace

    def calls(self, serial: int, number: int, names: tuple[str, ...]) -> None:
        """Record that a state waits for the results of these tools."""
        if state := self._find((serial, number)):
            state.tools = tuple({name[:MAX_NAME] for name in names})

    def keep(self, serial: int, op: wire.CacheHint, ids: bytes) -> None:
        """Apply a hint that the program itself gives. ids: the state's tokens up to the hint, int32; b"": the prompt
        and output of the state's last generation."""
        state = self._state(serial, op.state)
        if state.is_dropped:
            return
        ids = ids or state.ids
        if op.pin is not None:
            state.pin = self._release(state, state.pin)
        if op.steps is not None:
            state.hold = self._release(state, state.hold)
            state.hold = self._hold(state, ids, op.steps, prefetch=op.prefetch)
        elif op.prefetch:
            self._release(state, self._hold(state, ids, prefetch=True))
        if op.pin:
            state.pin = self._hold(state, ids, seconds=op.pin)

    def forked(self, serial: int, number: int, children: tuple[int, ...]) -> None:
        parent = self._state(serial, number)
        fork = _Fork(len(parent.ids) // 4)
        parent.n_branches += len(children)
        for child in children:
            self._programs[serial][child] = _StateKV(serial, parent.name, parent.namespace, parent, fork)

    def adopted(self, serial: int, number: int, child: int) -> None:
        """Record that a state has adopted its branch `child` (wire.Join with `adopt`): its text and KV are now those of
        the branch. number: the number of the state."""
        states = self._programs.get(serial, {})
        source, state = states.get(child), states.get(number)
        if source is None or state is None or not source.prompt:
            return
        state.prompt, state.output, state.namespace = source.prompt, source.output, source.namespace
        source.prompt = source.output = b""

    def drop(self, serial: int, number: int) -> None:
        """Release the holds of a state that will not continue, and have its KV evicted."""
        state = self._find((serial, number))
        if state is None or state.is_dropped:
            return
        state.is_dropped = True
        self._give_up(state)
        state.pin = self._release(state, state.pin)
        self._evict(state)

    def _evict(self, state: _StateKV) -> None:
        """Have the KV of a dropped state evicted first, once all its branches are dropped; then that of its parent, if
        the same holds for the parent, and so on. At most LINKS states are handled now, the others after the engine's
        next step."""
        at: _StateKV | None = state
        for _ in range(LINKS):
            if at is None or not at.is_dropped or at.n_branches:
                return
            if at.prompt and at.fork is not None:  # the KV of a root state may serve other programs
                self.send(at.serial, wire.EvictFirst(at.ids, at.fork.n_shared, at.namespace))
            at.prompt = at.output = b""
            if (at := at.parent) is not None:
                at.n_branches -= 1
        if at is not None:
            self._unfinished.append(at)

    def end(self, serial: int) -> Iterator[None]:
        """Forget a program that has ended, and release its holds, except pins. A generator; each of its steps handles
        one state."""
        self._names.pop(serial, None)
        states = self._programs.pop(serial, {})
        while states:
            number, state = states.popitem()
            self._newly_resting.pop((serial, number), None)
            self._give_up(state)
            state.parent = None  # so that each state is freed alone, and not a chain of 60,000 at once
            yield
        if not self._programs:
            self._overdue.clear()
            self._unfinished.clear()

    def resting(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        """All states that rest: the serial of their program, their number, namespace and tokens."""
        for serial, states in self._programs.items():
            for number, state in states.items():
                if state.prompt and not (state.n_running or state.is_dropped):
                    yield serial, number, state.namespace, state.ids

    # ---- helpers ---------------------------------------------------------------------------------------------------

    def _state(self, serial: int, number: int) -> _StateKV:
        states = self._programs.setdefault(serial, {})
        if number not in states:
            states[number] = _StateKV(serial, *self._names.get(serial, ("", b"")))
        return states[number]

    def _find(self, order: tuple[int, ...]) -> _StateKV | None:
        return self._programs.get(order[0], {}).get(order[1])

    def _hold(
        self, state: _StateKV, ids: bytes, steps: float = -1.0, seconds: float = 0.0, prefetch: bool = False
    ) -> int:
        self._n_holds += 1
        self.send(state.serial, wire.Hold(self._n_holds, ids, steps, seconds, prefetch, state.namespace))
        return self._n_holds

    def _release(self, state: _StateKV, hold: int) -> int:
        """Release a hold of the state, if there is one. Returns 0, the number that stands for no hold."""
        if hold:
            self.send(state.serial, wire.Release(hold))
        return 0

    def _estimates_of(self, state: _StateKV) -> list[_RestEstimate]:
        """The estimates for the tools that the state waits for; without tools, the estimate for its program."""
        names = [("tool", name) for name in state.tools] or [("program", state.name)]
        estimates = self._estimates.setdefault(state.namespace, OrderedDict())
        self._estimates.move_to_end(state.namespace)
        if len(self._estimates) > MAX_NAMESPACES:
            self._estimates.popitem(last=False)
        for name in names:
            estimates.setdefault(name, _RestEstimate())
            estimates.move_to_end(name)
        found = [estimates[name] for name in names]
        while len(estimates) > MAX_NAMES:
            estimates.popitem(last=False)
        return found


def check_keep(op: wire.CacheHint) -> None:
    """Check a hint of a client. BadProgram: a number is negative or not finite."""
    for name, value in (("pin", op.pin), ("steps", op.steps)):
        if value is not None and not 0 <= value < inf:
            raise BadProgram(f"{name} is {value}; it must be a number that is at least 0")
