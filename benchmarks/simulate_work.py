"""Programs for simulate.py, shaped like the benchmarks of Zheng et al., SGLang, 2024; a class that runs them; and the
optimal hit rate.

A program is a generator that yields its steps and changes its state. It runs in virtual time, with made-up outputs.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from simulate import STOP, VOCABULARY, Machine, token

from banyan.radix_cache.digests import n_common
from banyan.runtime.protocol.wire import Finish, ProgramEnded, Run, Sampling
from banyan.runtime.server.engine_link.kv_hints import KVHintSender

MAX_TOKENS = 512
"""max_tokens of every request: no request knows its output length in advance."""


class Gen(NamedTuple):
    """The model generates n tokens and stops."""

    n: int


class Wait(NamedTuple):
    """A tool runs for `seconds`; if `tool` is empty, a user thinks."""

    seconds: float
    tool: str = ""


class Fork(NamedTuple):
    """The state forks into children, one for each body, which run concurrently. The state waits for all of them."""

    bodies: list[Body]


class State:
    """A running prompt. number: its index among the states of its program."""

    __slots__ = ("ids", "number", "program")

    def __init__(self, program: Program, number: int, ids: array[int]) -> None:
        self.program, self.number, self.ids = program, number, ids


def append_output(state: State, rid: int, n: int) -> None:
    """Append n generated tokens."""
    first = len(state.ids)
    state.ids.extend(token(rid, first + i) for i in range(n))


Steps = Generator[Gen | Wait | Fork, None, None]
Body = Callable[[State], Steps]


class Program:
    """A program that is present: running or queued."""

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.states: list[State] = []
        self.n_alive = 0  # states that have not ended

    def state(self, ids: array[int]) -> State:
        self.states.append(State(self, len(self.states), ids))
        self.n_alive += 1
        return self.states[-1]


class Crowd:
    """Runs programs on a machine, each beginning at its start time.

    bodies      (start time, program)
    foresees    send the KV hints that a server sends: which states wait, and how long similar waits took before
    backlog     more programs: whenever a program ends, the next of them starts
    n_prompt    tokens of all prompts
    n_present   the maximum of the distinct tokens of all present programs; only with `is_measured`
    took        serial -> seconds from a program's start time to its end
    """

    def __init__(
        self,
        machine: Machine,
        bodies: Iterable[tuple[float, Body]],
        foresees: bool = False,
        is_measured: bool = False,
        backlog: Iterable[Body] = (),
    ) -> None:
        self.machine, self.is_measured = machine, is_measured
        self.took: dict[int, float] = {}
        self._start_times: dict[int, float] = {}
        self._backlog, self._serials = iter(backlog), count()
        self.hints = (
            KVHintSender(lambda serial, command: machine.take(command), lambda: machine.now) if foresees else None
        )
        self.n_prompt = self.n_present = 0
        self._open: dict[int, tuple[Run, State, int, Steps, Callable[[], None]]] = {}
        self.present: dict[int, Program] = {}  # by serial
        self._n_started = 0
        machine.on_finish = self._finished
        machine.on_failed = self._failed
        for start, body in bodies:
            machine.at(start, partial(self._begin, start, body))

    def run(self) -> None:
        """Run until all programs have ended."""
        while self.machine.step():
            if self.hints is not None:
                deque(self.hints.settle(), 0)

    def _begin(self, start: float, body: Body) -> None:
        serial = next(self._serials)
        self._start_times[serial] = start
        program = self.present[serial] = Program(serial)
        if self.hints is not None:
            self.hints.begin(serial, "program")
        self._start(program.state(array("i")), body, lambda: None)

    def _start(self, state: State, body: Body, done: Callable[[], None]) -> None:
        self._advance(state, body(state), done)

    def _advance(self, state: State, steps: Steps, done: Callable[[], None]) -> None:
        step = next(steps, None)
        match step:
            case Gen(n):
                self._ask(state, n, steps, done)
            case Wait():
                self._wait(state, step, steps, done)
            case Fork(bodies):
                left = [len(bodies)]

                def one() -> None:
                    left[0] -= 1
                    if not left[0]:
                        self._advance(state, steps, done)

                children = [state.program.state(state.ids[:]) for _ in bodies]
                if self.hints is not None:
                    self.hints.forked(state.program.serial, state.number, tuple(child.number for child in children))
                for child, body in zip(children, bodies, strict=True):
                    self._start(child, body, one)
            case None:
                state.program.n_alive -= 1
                if not state.program.n_alive:
                    self._end(state.program)
                done()

    def _ask(self, state: State, n: int, steps: Steps, done: Callable[[], None]) -> None:
        rid = self._n_started
        self._n_started += 1
        self.n_prompt += len(state.ids)
        self.machine.lengths[rid] = n
        order = state.program.serial, state.number, rid
        run = Run(rid, state.ids.tobytes(), Sampling(max_tokens=MAX_TOKENS), STOP, order=order)
        if self.hints is not None:
            self.hints.started(run)
        self._open[rid] = run, state, n, steps, done
        self.machine.take(run)

    def _finished(self, finish: Finish) -> None:
        run, state, n, steps, done = self._open.pop(finish.rid)
        assert finish.reason == "stop"
        append_output(state, finish.rid, n)
        if self.hints is not None:
            self.hints.ended(run, bytearray(state.ids.tobytes()[len(run.ids) :]))
        if self.is_measured:
            self.n_present = max(self.n_present, n_distinct(self._texts()))
        self._advance(state, steps, done)

    def _failed(self, failed: object) -> None:
        raise AssertionError(f"a request failed: {failed}")

    def _wait(self, state: State, wait: Wait, steps: Steps, done: Callable[[], None]) -> None:
        if self.hints is not None and wait.tool:
            self.hints.calls(state.program.serial, state.number, (wait.tool,))
        self.machine.at(self.machine.now + wait.seconds, partial(self._advance, state, steps, done))

    def _texts(self) -> Iterable[bytes]:
        return (state.ids.tobytes() for program in self.present.values() for state in program.states)

    def _end(self, program: Program) -> None:
        del self.present[program.serial]
        if self.hints is not None:
            deque(self.hints.end(program.serial), 0)
        self.machine.take(ProgramEnded(0, program.serial))
        self.took[program.serial] = self.machine.now - self._start_times[program.serial]
        if (body := next(self._backlog, None)) is not None:
            self._begin(self.machine.now, body)


def n_distinct(texts: Iterable[bytes]) -> int:
    """The number of distinct tokens of texts: each common prefix counts once. The texts are sorted, because then each
    shares its longest prefix with a neighbour."""
    n, before = 0, b""
    for text in sorted(texts):
        n += len(text) // 4 - n_common(text, 0, before)
        before = text
    return n


class Optimum:
    """The best possible cache hits: programs run one after the other, depth-first, and nothing is ever evicted.

    Every prefix that was computed before is a hit, except for the last token of a prompt, which must be computed. The
    order does not change the sums, so no order finds more. For programs without waits, a cache of the longest text is
    enough (Zheng et al., theorem 3.1).

    n_prompt, n_found    tokens of all prompts, and those of them that are hits
    n_longest            tokens of the longest text
    n_all                distinct tokens of all programs: the working set if all are present at once
    """

    def __init__(self, bodies: Iterable[Body]) -> None:
        self.n_prompt = self.n_found = 0
        self._known: list[bytes] = []  # sorted
        self._n_started = 0
        for serial, body in enumerate(bodies):
            self._run(Program(serial).state(array("i")), body)
        self.n_all = n_distinct(self._known)
        self.n_longest = max(map(len, self._known)) // 4

    @property
    def hit_rate(self) -> float:
        return self.n_found / self.n_prompt

    def _run(self, state: State, body: Body) -> None:
        for step in body(state):
            match step:
                case Gen(n):
                    text = state.ids.tobytes()
                    at = bisect_left(self._known, text)
                    found = max((n_common(text, 0, other) for other in self._known[max(at - 1, 0) : at + 1]), default=0)
                    self.n_prompt += len(state.ids)
                    self.n_found += min(found, len(state.ids) - 1)
                    append_output(state, self._n_started, n)
                    self._n_started += 1
                    insort(self._known, state.ids.tobytes())
                case Fork(bodies):
                    for one in bodies:
                        self._run(state.program.state(state.ids[:]), one)


def words(chance: Random, n: int) -> array[int]:
    """n random tokens, which in practice no other text has."""
    return array("i", chance.choices(range(VOCABULARY), k=n))


def few_shot(chance: Random, n: int) -> list[Body]:
    """Questions of 40 subjects in random order (MMLU), each after five examples of its subject; 1 or 2 output
    tokens."""
    subjects = [words(chance, chance.randint(400, 900)) for _ in range(40)]

    def question(examples: array[int], text: array[int], n_out: int) -> Body:
        def body(state: State) -> Steps:
            state.ids += examples + text
            yield Gen(n_out)

        return body

    return [
        question(chance.choice(subjects), words(chance, chance.randint(40, 160)), chance.randint(1, 2))
        for _ in range(n)
    ]


def chat(chance: Random, n: int, think: float = 0.0) -> list[Body]:
    """Conversations of four turns after one system prompt. think: mean seconds before the user replies."""
    system = words(chance, 200)

    def talk(turns: list[tuple[array[int], int, float]]) -> Body:
        def body(state: State) -> Steps:
            state.ids += system
            for i, (text, n_out, seconds) in enumerate(turns):
                if i and think:
                    yield Wait(seconds)
                state.ids += text
                yield Gen(n_out)

        return body

    def turn() -> tuple[array[int], int, float]:
        return words(chance, chance.randint(64, 384)), chance.randint(4, 256), pause(chance, think)

    return [talk([turn() for _ in range(4)]) for _ in range(n)]


def tree_of_thought(chance: Random, n: int) -> list[Body]:
    """Problems after two solved examples: two plans each, two solutions per plan, and two evaluations per solution."""
    examples = words(chance, 500)

    def grow(asks: list[array[int]], lengths: list[int], i: int = 0) -> Body:
        """The i-th branch in level order: appends asks[0], generates unless it is the root, and forks into two while
        asks are left."""

        def body(state: State) -> Steps:
            state.ids += asks[0]
            if i:
                yield Gen(lengths[i])
            if asks[1:]:
                yield Fork([grow(asks[1:], lengths, 2 * i + 1), grow(asks[1:], lengths, 2 * i + 2)])

        return body

    def problem() -> Body:
        asks = [examples + words(chance, chance.randint(60, 160)), *(words(chance, 24) for _ in range(3))]
        return grow(asks, [chance.randint(20, 150) for _ in range(15)])

    return [problem() for _ in range(n)]


def agents(chance: Random, n: int, wait: float = 0.0) -> list[Body]:
    """Agents that think, act and observe (ReAct), 4 to 9 times. wait: mean seconds of a tool, with a log-normal
    distribution."""
    examples = words(chance, 1200)

    def agent(question: array[int], rounds: list[tuple[int, array[int], float]]) -> Body:
        def body(state: State) -> Steps:
            state.ids += examples + question
            for n_out, seen, seconds in rounds:
                yield Gen(n_out)
                if wait:
                    yield Wait(seconds, "search")
                state.ids += seen
            yield Gen(30)

        return body

    def one() -> tuple[int, array[int], float]:
        return chance.randint(20, 100), words(chance, chance.randint(60, 400)), pause(chance, wait)

    return [agent(words(chance, 60), [one() for _ in range(chance.randint(4, 9))]) for _ in range(n)]


def pause(chance: Random, mean: float) -> float:
    return mean * chance.lognormvariate(-0.5, 1.0)


def arrivals(chance: Random, bodies: list[Body], seconds: float) -> list[tuple[float, Body]]:
    """The programs in order, at random times within about `seconds`."""
    now, timed = 0.0, []
    for body in bodies:
        timed.append((now, body))
        now += chance.expovariate(len(bodies) / seconds) if seconds else 0.0
    return timed
