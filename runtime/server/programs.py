"""Programs: their states, values and where each state stands in the DAG. What a Submit says happens here.

Each state has a queue of ops and does them in order. It stands still while a gen or select of its own runs, while text
is encoded on a thread, or while a value or a child that an op needs is not there; nothing else waits for it. Whatever
can go on goes on before `submit`, `step` or any other call returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from random import Random
from typing import Any, NamedTuple

import msgspec

from banyan.runtime import wire
from banyan.runtime.errors import BadMessage, BadProgram, BanyanError, Cancelled
from banyan.runtime.server import select
from banyan.runtime.server.chat import ASSISTANT, Template
from banyan.runtime.server.requests import Request, Requests
from banyan.runtime.server.state import Made, Open, Run, Shut, Text, pack, unpack
from banyan.runtime.server.tokenizer import Span, Tokenizer

N_TAIL = 80
"""Characters of the prompt that an error shows."""

Client = bytes
Offload = Callable[[int, Callable[[], Any], Callable[[Any], None]], None]
"""(n_chars, work, then): run `work`, on a thread if there is much to do, and `then` with its result on the loop."""


class Error(NamedTuple):
    """An error on its way to the client."""

    code: str
    message: str
    tail: str = ""

    @classmethod
    def of(cls, error: BanyanError | Broken, tail: str = "") -> Error:
        return error.error if isinstance(error, Broken) else cls(error.code, error.message, tail)

    def because(self, why: str) -> Error:
        """The same error, for what depends on it."""
        return Error(self.code, f"{why}: {self.message}", self.tail)


class Broken(Exception):
    """An op cannot be done because of an error elsewhere in the program."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error


class Point(NamedTuple):
    """Stands in a child's queue where a Join takes its text from."""

    join: int
    state: int


class State:
    """One running prompt."""

    def __init__(self, number: int, is_born: bool) -> None:
        self.number = number
        self.is_born = is_born
        """False until the Fork that makes it was done."""
        self.text = Text()
        self.marks: dict[int, int] = {}
        self.queue: deque[wire.Op | Point] = deque()
        self.n_done = 0
        self.requests: list[Request] = []
        self.is_busy = False
        """A gen or select of it runs, or its text is being encoded."""
        self.error: Error | None = None


class Program:
    """One program of one client."""

    def __init__(self, client: Client, number: int, name: str, serial: int) -> None:
        self.client, self.number, self.name, self.serial = client, number, name, serial
        self.started = datetime.now()
        self.n_in = self.n_out = 0
        self.is_last = False
        self.is_over = False
        self.states = {0: State(0, is_born=True)}
        self.values: dict[int, str | Error] = {}
        self.makers: dict[int, State] = {}
        self.dropped: set[int] = set()
        self.joins: dict[int, deque[int]] = {}
        """state -> numbers of its queued Joins, in order."""
        self.n_joins = 0
        self.points: dict[Point, int | Error] = {}
        """Number of pieces a child had there, or what it had failed with."""
        self.waiting: dict[int | Point, list[State]] = {}
        """Who stands still for a value (its ref) or for a child to come to a point."""

    @property
    def is_settled(self) -> bool:
        return not any(state.queue or state.is_busy for state in self.states.values())


class Programs:
    """All programs of all clients.

    send      gives a message to a client
    requests  runs generations
    offload   runs long work on a thread
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template | None,
        turn_end: tuple[int | None, str],
        requests: Requests,
        send: Callable[[Client, wire.ServerMessage], None],
        offload: Offload,
        rng: Random,
    ) -> None:
        self._tokenizer, self._template, self._turn_end = tokenizer, template, turn_end
        self._requests, self._send, self._offload, self._rng = requests, send, offload, rng
        self._programs: dict[tuple[Client, int], Program] = {}
        self._newest: dict[Client, int] = {}
        self._ready: deque[tuple[Program, State]] = deque()
        self._n_made = 0

    def __len__(self) -> int:
        return len(self._programs)

    # ---- what a client wants ---------------------------------------------------------------------------------------

    def submit(self, client: Client, message: wire.Submit) -> None:
        key = client, message.program
        program = self._programs.get(key)
        if program is None:
            if message.program <= self._newest.get(client, -1):
                return  # of a program that has ended: a duplicate
            self._newest[client] = message.program
            program = self._programs[key] = Program(client, message.program, message.name, self._n_made)
            self._n_made += 1
        if message.seq < program.n_in:
            return
        try:
            if message.seq > program.n_in:
                raise BadMessage(f"message {program.n_in} of program {program.name!r} is missing before {message.seq}")
            program.n_in += 1
            program.is_last = message.last
            for op in message.ops:
                self._queue(program, op)
        except BanyanError as e:
            self._end(program, Error.of(e))
        self.pump(program)

    def cancel(self, client: Client, message: wire.Cancel) -> None:
        if program := self._programs.get((client, message.program)):
            self._end(program, Error.of(Cancelled("the program was cancelled")))

    def forget(self, client: Client) -> None:
        """The client is gone: stop all it had."""
        for key in [key for key in self._programs if key[0] == client]:
            self._end(self._programs[key], None)
        self._newest.pop(client, None)

    def _queue(self, program: Program, op: wire.Op) -> None:
        state = program.states.get(op.state)
        if state is None:
            raise BadProgram(f"{type(op).__name__} names state {op.state}, which no Fork before it makes")
        match op:
            case wire.Gen(ref=ref) | wire.Select(ref=ref) | wire.Read(ref=ref):
                if ref in program.makers:
                    raise BadProgram(f"two ops make value {ref}")
                program.makers[ref] = state
            case wire.Fork(children=children):
                for child in children:
                    if child in program.states:
                        raise BadProgram(f"Fork makes state {child}, which is there already")
                    program.states[child] = State(child, is_born=False)
            case wire.Join(children=children):
                if missing := [child for child in children if child not in program.states]:
                    raise BadProgram(f"Join names state {missing[0]}, which no Fork before it makes")
                if op.state in children:
                    raise BadProgram(f"state {op.state} is joined to itself")
                for child in children:
                    self._put(program, program.states[child], Point(program.n_joins, child))
                program.joins.setdefault(op.state, deque()).append(program.n_joins)
                program.n_joins += 1
            case wire.Drop():
                program.dropped.add(op.state)
                return
        self._put(program, state, op)

    def _put(self, program: Program, state: State, op: wire.Op | Point) -> None:
        state.queue.append(op)
        self._ready.append((program, state))

    # ---- going on --------------------------------------------------------------------------------------------------

    def pump(self, program: Program) -> None:
        """Do all that can be done now."""
        while not program.is_over:
            while self._ready:
                owner, state = self._ready.popleft()
                if not owner.is_over:
                    self._advance(owner, state)
            self._reap(program)
            if not self._ready and not self._break_deadlock(program):
                break
        if program.is_last and program.is_settled and not program.is_over:
            self._end(program, None)

    def _advance(self, program: Program, state: State) -> None:
        while state.queue and state.is_born and not state.is_busy and not program.is_over:
            op = state.queue[0]
            if state.error is None and (blocker := self._blocker(program, op)) is not None:
                program.waiting.setdefault(blocker, []).append(state)
                return
            state.queue.popleft()
            if state.error is not None:
                self._fail_op(program, state, op)
                continue
            try:
                self._do(program, state, op)
            except (BanyanError, Broken) as e:
                self._break(program, state, op, Error.of(e, self._tail(state)))
            state.n_done += 1

    def _blocker(self, program: Program, op: wire.Op | Point) -> int | Point | None:
        """The value or the point that `op` waits for."""
        match op:
            case wire.Append(parts=parts):
                for part in parts:
                    if isinstance(part, wire.Ref) and part.ref not in program.values:
                        return part.ref
            case wire.Join(state=number, children=children):
                for child in children:
                    point = Point(program.joins[number][0], child)
                    if point not in program.points:
                        return point
        return None

    def _wake(self, program: Program, what: int | Point) -> None:
        self._ready.extend((program, state) for state in program.waiting.pop(what, ()))

    def _do(self, program: Program, state: State, op: wire.Op | Point) -> None:
        match op:
            case wire.Append(parts=parts):
                for part in parts:
                    self._append(program, state, part)
            case wire.Gen():
                self._encode(program, state, op, ("",), partial(self._generate, program, state, op))
            case wire.Select():
                if not op.choices:
                    raise BadProgram("a select needs at least one choice")
                self._encode(program, state, op, op.choices, partial(self._score, program, state, op))
            case wire.Fork(children=children):
                for number in children:
                    child = program.states[number]
                    child.text, child.marks = state.text.copy(), dict(state.marks)
                    self._bear(program, child)
            case wire.Join():
                self._join(program, state, op)
            case Point():
                self._reach(program, op, len(state.text.pieces))
            case wire.Mark(mark=mark):
                state.marks[mark] = len(state.text.pieces)
            case wire.Read(ref=ref, mark=mark):
                if mark is not None and mark not in state.marks:
                    raise BadProgram(f"Read names mark {mark}, which no Mark of this state makes")
                start = 0 if mark is None else state.marks[mark]
                text = state.text.read(self._tokenizer, self._template, program.started, start)
                self._give(program, ref, wire.Sample(text=text, finish_reason="stop"))

    def _bear(self, program: Program, child: State) -> None:
        child.is_born = True
        self._ready.append((program, child))

    def _reach(self, program: Program, point: Point, at: int | Error) -> None:
        program.points[point] = at
        self._wake(program, point)

    def _join(self, program: Program, state: State, op: wire.Join) -> None:
        join = program.joins[state.number].popleft()
        ends = [program.points.pop(Point(join, number)) for number in op.children]
        for number, end in zip(op.children, ends, strict=True):
            child = program.states[number]
            if isinstance(end, Error):
                raise Broken(end.because(f"state {number}, which is joined here, failed"))
            for piece in child.text.pieces[child.text.n_inherited : end]:
                state.text.append(piece)

    def _append(self, program: Program, state: State, part: wire.Part) -> None:
        match part:
            case str():
                state.text.append(Span(part))
            case wire.Raw(text=text):
                state.text.append(Span(text, meant=True))
            case wire.Begin(role=role):
                state.text.append(Open(role))
            case wire.End():
                state.text.append(Shut())
            case wire.Ref(ref=ref):
                value = program.values[ref]
                if isinstance(value, Error):
                    raise Broken(value.because("a value that stands in this text failed"))
                state.text.append(Span(value))

    # ---- gen and select --------------------------------------------------------------------------------------------

    def _encode(
        self,
        program: Program,
        state: State,
        op: wire.Gen | wire.Select,
        extras: tuple[str, ...],
        then: Callable[[list[tuple[Run, ...]]], None],
    ) -> None:
        """The state's runs with each of `extras` behind them, to `then`; on a thread where that is much text."""
        prompt = state.text.prompt(self._tokenizer, self._template, program.started)
        state.is_busy = True
        n_chars = prompt.n_chars * len(extras) + sum(map(len, extras))
        is_inline = True

        def work() -> list[tuple[Run, ...]]:
            return [prompt.encode(self._tokenizer, extra) for extra in extras]

        def go_on(result: list[tuple[Run, ...]]) -> None:
            if program.is_over or not state.is_busy:
                return
            try:
                then(result)
            except BanyanError as e:
                state.is_busy = False
                self._break(program, state, op, Error.of(e, self._tail(state)))
                if not is_inline:
                    self._go_on(program, state)

        self._offload(n_chars, work, go_on)
        is_inline = False

    def _generate(self, program: Program, state: State, op: wire.Gen, encoded: list[tuple[Run, ...]]) -> None:
        state.text.runs = encoded[0]
        sampling = op.sampling
        turn_ends: list[int] = []
        if state.text.role == ASSISTANT and not sampling.ignore_eos:
            end_id, end_text = self._turn_end
            turn_ends = [end_id] if end_id is not None else []
            if end_text:
                sampling = msgspec.structs.replace(sampling, stop=(*sampling.stop, end_text))
        if sampling.n < 1:
            raise BadProgram(f"n is {sampling.n}; a gen has at least one sample")
        if not all(sampling.stop):
            raise BadProgram("a stop string is empty")
        state.requests = [
            self._requests.start(
                b"".join(run.ids for run in state.text.runs),
                sampling,
                partial(self._generated, program, state, op),
                turn_ends=turn_ends,
                seed=self._rng.getrandbits(62) if sampling.seed is None else sampling.seed,
                sample=k,
                order=(program.serial, state.number, state.n_done),
                listener=partial(self._delta, program, op.ref) if op.stream and k == 0 else None,
            )
            for k in range(sampling.n)
        ]

    def _delta(self, program: Program, ref: int, text: str) -> None:
        self._send(program.client, wire.Delta(program=program.number, seq=self._next(program), ref=ref, text=text))

    def _generated(self, program: Program, state: State, op: wire.Gen, _: Request) -> None:
        if not self._all_ended(program, state, op):
            return
        requests, first = state.requests, state.requests[0].text
        n_kept, n_chars = first.kept()
        text = first.text
        state.text.append(Made(text[:n_chars], bytes(requests[0].ids[: 4 * n_kept])))
        if n_chars < len(text):
            state.text.append(Span(text[n_chars:]))
        samples = tuple(map(self._requests.sample, requests))
        self._give(program, op.ref, *samples, usage=_usage(requests, requests[0].finish))
        self._go_on(program, state)

    def _score(self, program: Program, state: State, op: wire.Select, encoded: list[tuple[Run, ...]]) -> None:
        prompts = [unpack(b"".join(run.ids for run in runs)) for runs in encoded]
        start = select.score_from(prompts)
        done = partial(self._scored, program, state, op, [prompt[start:] for prompt in prompts])
        order = (program.serial, state.number, state.n_done)
        jobs = [(prompt, start) for prompt in prompts]
        if op.method == "unconditional_likelihood_normalized":
            # With no prompt but what begins every text; the first of them must then be one more token.
            jobs += [([*self._tokenizer.blank, *prompt[start:]], len(self._tokenizer.blank)) for prompt in prompts]
        nothing = wire.Sampling(max_tokens=0, temperature=0.0)
        state.requests = [
            self._requests.start(pack(ids), nothing, done, score_from=at, order=(*order, k))
            for k, (ids, at) in enumerate(jobs)
        ]

    def _scored(self, program: Program, state: State, op: wire.Select, tails: list[list[int]], _: Request) -> None:
        if not self._all_ended(program, state, op):
            return
        requests, n = state.requests, len(op.choices)
        scores = [request.scores for request in requests]
        try:
            rng = Random(self._rng.getrandbits(62) if op.seed is None else op.seed)
            choice = select.decide(op.method, scores[:n], scores[n:], op.temperature, rng)
        except BanyanError as e:
            self._break(program, state, op, Error.of(e))
        else:
            tokens = [tuple(zip(one, ids, strict=True)) for one, ids in zip(scores, tails + tails, strict=False)]
            text = op.choices[choice.index]
            state.text.append(Span(text))
            self._give(
                program,
                op.ref,
                wire.Sample(text=text, finish_reason="stop", n_tokens=len(tails[choice.index])),
                usage=_usage(requests, None),
                scores=wire.Scores(choice.normalized, tuple(tokens[:n]), choice.weights, tuple(tokens[n:])),
            )
        self._go_on(program, state)

    def _all_ended(self, program: Program, state: State, op: wire.Gen | wire.Select) -> bool:
        """Whether the last request of `op` has ended well. The first that failed fails the op and stops the others."""
        failed = next((r.failed for r in state.requests if r.failed is not None), None)
        if failed is not None:
            for request in state.requests:
                self._requests.abort(request)
            self._break(program, state, op, Error(failed.code, failed.message, self._tail(state)))
            self._go_on(program, state)
            return False
        return all(r.finish is not None for r in state.requests)

    def _go_on(self, program: Program, state: State) -> None:
        """What the state waited for has ended."""
        state.is_busy, state.requests = False, []
        self._ready.append((program, state))
        self.pump(program)

    # ---- ends ------------------------------------------------------------------------------------------------------

    def _give(
        self,
        program: Program,
        ref: int,
        *samples: wire.Sample,
        usage: wire.Usage | None = None,
        scores: wire.Scores | None = None,
    ) -> None:
        program.values[ref] = samples[0].text
        message = wire.Value(
            program=program.number,
            seq=self._next(program),
            ref=ref,
            samples=samples,
            usage=usage or wire.Usage(),
            scores=scores,
        )
        self._send(program.client, message)
        self._wake(program, ref)

    def _break(self, program: Program, state: State, op: wire.Op | Point, error: Error) -> None:
        """`op` failed, and with it the state: what is still queued there fails too, each op for itself."""
        if isinstance(op, wire.Gen | wire.Select | wire.Read):
            self._fail_ref(program, op.ref, error)
        state.error = error

    def _fail_op(self, program: Program, state: State, op: wire.Op | Point) -> None:
        """An op of a state that failed before it."""
        assert state.error is not None
        match op:
            case wire.Gen(ref=ref) | wire.Select(ref=ref) | wire.Read(ref=ref):
                self._fail_ref(program, ref, state.error.because("something before it in the same state failed"))
            case wire.Fork(children=children):
                for number in children:
                    program.states[number].error = program.states[number].error or state.error
                    self._bear(program, program.states[number])
            case wire.Join():
                program.joins[state.number].popleft()
            case Point():
                self._reach(program, op, state.error)

    def _fail_ref(self, program: Program, ref: int, error: Error) -> None:
        program.values[ref] = error
        message = wire.Failed(
            program=program.number,
            seq=self._next(program),
            code=error.code,
            message=error.message,
            ref=ref,
            prompt_tail=error.tail,
        )
        self._send(program.client, message)
        self._wake(program, ref)

    def _reap(self, program: Program) -> None:
        """Stop dropped states that nobody needs any more."""
        if not program.dropped:
            return
        needed = set(self._needed(program))
        for number in program.dropped - needed:
            program.dropped.discard(number)
            state = program.states[number]
            self._stop(state)
            state.error = state.error or Error.of(Cancelled("its state was dropped"))
            state.text = Text()
            self._bear(program, state)

    def _needed(self, program: Program) -> Iterator[int]:
        """States that others wait for: for a value, to be joined, or to be forked from it."""
        for state in program.states.values():
            for op in state.queue:
                match op:
                    case wire.Append(parts=parts):
                        for part in parts:
                            if isinstance(part, wire.Ref) and part.ref not in program.values:
                                maker = program.makers.get(part.ref)
                                if maker is not None and maker is not state:
                                    yield maker.number
                    case wire.Join(children=children):
                        yield from children
                    case wire.Fork(children=children) if not program.dropped.issuperset(children):
                        yield state.number

    def _stop(self, state: State) -> None:
        for request in state.requests:
            self._requests.abort(request)
        state.requests, state.is_busy = [], False

    def _break_deadlock(self, program: Program) -> bool:
        """Where nothing runs and states wait for what cannot come, fail one of them. True if there was one."""
        if any(state.is_busy for state in program.states.values()):
            return False
        waiting = [state for state in program.states.values() if state.queue and state.is_born]
        blockers = {state.number: self._blocker(program, state.queue[0]) for state in waiting}
        if not waiting or (not program.is_last and any(_is_open(b, program) for b in blockers.values())):
            return False
        state = waiting[0]
        blocker = blockers[state.number]
        what = f"value {blocker}" if isinstance(blocker, int) else "another state"
        error = Error.of(BadProgram(f"this waits for {what}, which is never made or waits for this in turn"))
        state.error = error
        self._ready.append((program, state))
        return True

    def _end(self, program: Program, error: Error | None) -> None:
        """Stop and forget a program; with an error, tell its client."""
        program.is_over = True
        for state in program.states.values():
            self._stop(state)
        del self._programs[program.client, program.number]
        if error is not None:
            message = wire.Failed(
                program=program.number, seq=self._next(program), code=error.code, message=error.message
            )
            self._send(program.client, message)

    def _next(self, program: Program) -> int:
        program.n_out += 1
        return program.n_out - 1

    def _tail(self, state: State) -> str:
        pieces: list[str] = []
        for piece in reversed(state.text.pieces):
            if isinstance(piece, Span | Made):
                pieces.append(piece.text[-N_TAIL:])
                if sum(map(len, pieces)) >= N_TAIL:
                    break
        return "".join(reversed(pieces))[-N_TAIL:]


def _is_open(blocker: int | Point | None, program: Program) -> bool:
    """Whether what is waited for may still come with ops that are not here yet."""
    return isinstance(blocker, int) and blocker not in program.makers


def _usage(requests: list[Request], of: wire.Finish | None) -> wire.Usage:
    """The tokens of all requests. `of`: they have one prompt, this one's, and it counts once."""
    ends = [request.finish for request in requests if request.finish is not None]
    computed = sum(end.n_prompt - end.n_cached for end in ends)
    prompt = of.n_prompt if of is not None else sum(end.n_prompt for end in ends)
    return wire.Usage(
        prompt=prompt,
        cached=max(0, prompt - computed),
        generated=sum(request.text.n_tokens for request in requests),
    )
