"""All programs, and how they go on. What a Submit says happens here.

Each state does its ops in order. It stands still while a gen or select of its own runs, or while a value or a child
that its next op needs is not there; nothing else waits for it. Whatever can be done is done before a call returns.
An error breaks the state it happens in: what is still queued there fails, each op for itself, and what depends on it
elsewhere fails when it comes to it. Other states live on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from banyan.runtime.errors import BadMessage, BadProgram, BanyanError, Cancelled, Unsupported
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.op_template import ProgramTemplate
from banyan.runtime.server.engine_link.kv_hints import check_keep
from banyan.runtime.server.engine_link.requests import EngineRequests, Standing, StreamPiece, bug
from banyan.runtime.server.policy.quota import PIECE, Quota
from banyan.runtime.server.policy.quota import QuotaLimits as Most
from banyan.runtime.server.policy.run_limits import Limiter, Timers
from banyan.runtime.server.programs.client_choice import ClientChoice
from banyan.runtime.server.programs.delivery import Delivery
from banyan.runtime.server.programs.durables import CLIENT_GONE, TAKEN_OVER, Durables
from banyan.runtime.server.programs.generation import Error, Generation, Generator, GenOutcome
from banyan.runtime.server.programs.retries import Retries
from banyan.runtime.server.programs.running_program import (
    Broken,
    Client,
    Had,
    JoinPoint,
    PendingJoin,
    RunningProgram,
    RunningState,
    wrong,
)
from banyan.runtime.server.programs.tool_loop import ToolLoop, ToolLoops
from banyan.runtime.server.text.prompt import PromptText, TurnEnd, TurnStart
from banyan.runtime.server.text.tokenizer import TextSpan


class Programs:
    """The programs of all clients. `send` gives a message to a client and must not raise; `timers` are its loop's."""

    def __init__(
        self,
        generator: Generator,
        send: Callable[[Client, wire.ServerMessage], None],
        timers: Timers,
        limits: Most = Most(),  # noqa: B008 (it is frozen)
    ) -> None:
        self._generator = generator
        self.delivery = Delivery(send)
        self._send = self.delivery.send
        self._timers, self._now = timers, timers.now
        self._limiter = Limiter(timers, end=self._end, stop=self._stop)
        self.spend = self._limiter.spend
        self.keeper = generator.keeper
        self.over: Callable[[RunningProgram, Error | None], None] = lambda program, error: None
        self.generated: Callable[[RunningProgram, wire.Gen | wire.Select, GenOutcome | Error], None] = lambda *_: None
        """Called with what has ended, and what came of it: a program; a gen or select."""
        self.root: Callable[[Client], bytes] = lambda client: b""
        """The root key of what a client's programs compute; see tenants.py."""
        self.tooling = ToolLoops(generator)
        self.durables = Durables()
        self._programs: dict[tuple[Client, int], RunningProgram] = {}
        self._standings: dict[int, Standing] = {}  # by serial
        self._clients: dict[Client, int] = {}
        self._n_clients = 0
        self._quota = Quota(limits)
        self._n_made, self._is_pumping = 0, False
        self._ready: deque[tuple[RunningProgram, RunningState]] = deque()

    def __len__(self) -> int:
        return len(self._programs)

    def standing(self, serial: int) -> Standing:
        """Of a program that runs."""
        return self._standings[serial]

    def check(self, requests: EngineRequests) -> str:
        """What does not hold of what must always hold between two messages; "" where all does."""
        stuck = f"{len(self._ready)} states could go on and do not" if self._ready else ""
        return wrong(self._programs.values(), requests) or stuck

    # ---- what a client wants ---------------------------------------------------------------------------------------

    def submit(self, client: Client, message: wire.Submit) -> None:
        key = client, message.program
        program = self._programs.get(key)
        if (error := self.delivery.receive(key, message.seq)) is not None:
            if program is not None:
                self._end(program, error)
            return
        if program is None:
            program = self._programs[key] = RunningProgram(client, message.program, message.name, self._n_made)
            self._n_made += 1
            self._stand(program, message.limits or wire.ProgramLimits())
            self.keeper.begin(program.serial, program.name, self.standing(program.serial).namespace)
        try:
            if message.seq == 0:
                self._quota.begin(program)
                if message.limits is not None:
                    self._limiter.begin(program, message.limits)
                    if message.limits.durable:
                        self._make_durable(program, message.limits.durable)
            self._quota.submit(program, message.ops)
            if program.is_last:
                raise BadMessage(f"program {program.name!r} goes on after its last message")
            program.is_last = message.last
            for op in message.ops:
                self._queue(program, op)
            for op in message.ops:
                if isinstance(op, wire.Results):
                    if self.durables.has(program):
                        program.early[op.ref, op.round] = op.texts
                    self._resume(program, op)
        except BanyanError as e:
            self._end(program, Error(e.code, e.message))
        except Exception as e:
            self.give_up(program.serial, bug(e))
        self._pump(program)

    def _stand(self, program: RunningProgram, limits: wire.ProgramLimits) -> None:
        client = self._clients.get(program.client)
        if client is None:
            client = self._clients[program.client] = self._n_clients
            self._n_clients += 1
        deadline = self._now() + limits.deadline if limits.deadline else 0.0
        self._standings[program.serial] = Standing(client, limits.priority, deadline, self.root(program.client))

    def _make_durable(self, program: RunningProgram, name: str) -> None:
        if (before := self.durables.begin(program, self.standing(program.serial).namespace, name)) is not None:
            self._end(before, TAKEN_OVER)

    def cancel(self, client: Client, message: wire.Cancel) -> None:
        if program := self._programs.get((client, message.program)):
            self._end(program, Error(Cancelled.code, "the program was cancelled"))

    def acknowledge(self, client: Client, message: wire.Acknowledge) -> None:
        self.durables.acknowledge(client, message.program, self._programs.get((client, message.program)))

    def define(self, client: Client, message: wire.Define) -> None:
        self._quota.define(client, message.template, ProgramTemplate(message.ops))

    def undefine(self, client: Client, message: wire.Undefine) -> None:
        self._quota.undefine(client, message.template)

    def forget(self, client: Client) -> None:
        """The client is gone: stop all it had."""
        for key in [key for key in self._programs if key[0] == client]:
            self._end(self._programs[key], None, is_client_gone=True)
        self.durables.forget(client)
        self._clients.pop(client, None)
        self._quota.forget_client(client)

    def _queue(self, program: RunningProgram, op: wire.Op) -> None:
        state = program.states.get(op.state)
        if state is None:
            raise BadProgram(f"{type(op).__name__} names state {op.state}, which no Fork before it makes")
        match op:
            case wire.Gen(ref=ref) | wire.Select(ref=ref) | wire.Read(ref=ref):
                if ref in program.makers:
                    raise BadProgram(f"two ops make value {ref}")
                program.makers[ref] = state
                if isinstance(op, wire.Gen) and op.stream and self.durables.has(program):
                    raise Unsupported("stream: a durable program cannot stream, as its text may come a second time")
            case wire.Fork(children=children):
                for child in children:
                    if child in program.states:
                        raise BadProgram(f"Fork makes state {child}, which is there already")
                    program.states[child] = RunningState(child, is_born=False)
                state.children += children
            case wire.Join(children=children):
                if op.adopt and len(children) != 1:
                    raise BadProgram(f"Join adopts {len(children)} states; a state goes on as one")
                join = PendingJoin(children)
                for child in children:
                    if child not in program.states or child == op.state:
                        raise BadProgram(f"Join names state {child}, which is itself or no Fork's before it")
                    self._put(program, program.states[child], JoinPoint(join, child))
                program.joins.setdefault(op.state, deque()).append(join)
            case wire.Drop():
                program.dropped.update(program.subtree(op.state) if op.tree else (op.state,))
                return
            case wire.Results():
                return  # not queued: the state stands still for them
            case wire.Use():
                if (template := self._quota.template(program.client, op.template)) is None:
                    raise BadProgram(f"Use names template {op.template}, which no Define makes")
                for one in template.expand(op):
                    self._queue(program, one)
                return
        self._put(program, state, op)

    def _resume(self, program: RunningProgram, results: wire.Results) -> None:
        generation = program.states[results.state].generation
        if isinstance(generation, ToolLoop | Retries | ClientChoice) and generation.op.ref == results.ref:
            try:
                generation.resume(results.round, results.texts)
            except Exception as e:
                self.give_up(program.serial, bug(e))

    def _put(self, program: RunningProgram, state: RunningState, op: wire.Op | JoinPoint) -> None:
        state.queue.append(op)
        self._ready.append((program, state))

    # ---- going on --------------------------------------------------------------------------------------------------

    def _pump(self, program: RunningProgram) -> None:
        """Do all that can be done now. A call from inside itself leaves it to the outer one."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while True:
                while self._ready:
                    owner, state = self._ready.popleft()
                    try:
                        self._advance(owner, state)
                    except Exception as e:
                        self.give_up(owner.serial, bug(e))
                if program.is_over:
                    break
                self._reap(program)
                if not self._ready and not self._break_deadlock(program):
                    break
        finally:
            self._is_pumping = False
        if program.is_last and not program.is_over and program.is_settled:
            self._end(program, None)

    def _advance(self, program: RunningProgram, state: RunningState) -> None:
        while state.queue and state.is_born and state.generation is None and not program.is_over:
            op = state.queue[0]
            if state.error is None and (blocker := program.blocker(op)) is not None:
                program.waiting.setdefault(blocker, []).append(state)
                return
            state.queue.popleft()
            state.n_done += 1
            if state.error is not None:
                self._fail(program, state, op, state.error.because("something before it in its state failed"))
                continue
            try:
                self._do(program, state, op)
            except Broken as e:
                self._break(program, state, op, e.error)
            except BanyanError as e:
                self._break(program, state, op, Error(e.code, e.message))

    def _do(self, program: RunningProgram, state: RunningState, op: wire.Op | JoinPoint) -> None:
        match op:
            case wire.Append(parts=parts):
                for part in parts:
                    self._append(program, state, part)
            case wire.Gen() | wire.Select():
                self._generate(program, state, op)
            case wire.Fork(children=children):
                self._quota.hold(program, PIECE * len(children) * len(state.text.pieces))
                for number in children:
                    child = program.states[number]
                    child.text, child.marks = state.text.copy(), dict(state.marks)
                    self._bear(program, child)
                self.keeper.forked(program.serial, state.number, children)
            case wire.Join():
                self._join(program, state, op)
            case JoinPoint():
                self._reach(program, op, Had(state.text, len(state.text.pieces), dict(state.marks)))
            case wire.Mark(mark=mark):
                state.marks[mark] = len(state.text.pieces)
            case wire.CacheHint():
                self._keep(program, state, op)
            case wire.Read():
                self._read(program, state, op)

    def _append(self, program: RunningProgram, state: RunningState, part: wire.Part) -> None:
        match part:
            case str():
                state.text.append(TextSpan(part))
            case wire.Raw(text=text):
                state.text.append(TextSpan(text, meant=True))
            case wire.BeginTurn(role=role):
                state.text.append(TurnStart(role))
            case wire.EndTurn():
                state.text.append(TurnEnd())
            case wire.Ref(ref=ref):
                value = program.values[ref]
                if isinstance(value, Error):
                    raise Broken(value.because("a value that is spliced here failed"))
                self._quota.hold(program, len(value))
                state.text.append(TextSpan(value))
            case wire.Arg(i=i):
                raise BadProgram(f"argument {i} of a template stands outside of one")
            case wire.Image():
                raise Unsupported("image: this model takes text alone")

    def _bear(self, program: RunningProgram, child: RunningState) -> None:
        child.is_born = True
        self._ready.append((program, child))

    def _join(self, program: RunningProgram, state: RunningState, op: wire.Join) -> None:
        join = program.joins[state.number].popleft()
        for number in op.children:
            had = join.had[number]
            if isinstance(had, Error):
                raise Broken(had.because(f"state {number}, which is joined here, failed"))
            if op.adopt:
                state.text, state.marks = had.text.upto(had.n_pieces, state.text.n_inherited), had.marks
                self.keeper.adopted(program.serial, state.number, number)
                return
            for piece in had.text.pieces[had.text.n_inherited : had.n_pieces]:
                state.text.append(piece)
            state.text.tools = state.text.tools or had.text.tools

    def _reach(self, program: RunningProgram, point: JoinPoint, had: Had | Error) -> None:
        point.join.had[point.child] = had
        point.join.n_missing -= 1
        if not point.join.n_missing:
            self._wake(program, point.join)

    def _read(self, program: RunningProgram, state: RunningState, op: wire.Read) -> None:
        if op.mark is not None and op.mark not in state.marks:
            raise BadProgram(f"Read names mark {op.mark}, which no Mark of its state makes")
        if op.mark is not None and op.tokens:
            raise BadProgram("Read has a mark and asks for tokens; tokens are of a whole state")
        start = 0 if op.mark is None else state.marks[op.mark]
        generator = self._generator
        text = state.text.read(generator.tokenizer, generator.template, program.started, start)
        tokens = state.text.tokens(generator.tokenizer, generator.template, program.started) if op.tokens else None
        self._quota.hold(program, len(text))
        sample = wire.Sample(text=text, finish_reason="stop")
        self._give(program, op.ref, GenOutcome((sample,), (), wire.TokenUsage(), tokens=tokens))

    def _keep(self, program: RunningProgram, state: RunningState, op: wire.CacheHint) -> None:
        check_keep(op)
        keep = partial(self.keeper.keep, program.serial, op)
        self._generator.ids(state.text, program.started, lambda ids: None if program.is_over else keep(ids))

    def _generate(self, program: RunningProgram, state: RunningState, op: wire.Gen | wire.Select) -> None:
        listener = partial(self._delta, program, op.ref) if isinstance(op, wire.Gen) and op.stream else None
        order = program.serial, state.number, state.n_done
        done = partial(self._generated, program, state, op)
        generation: Generation | ToolLoop | Retries | ClientChoice
        show = partial(self._show, program, op.ref)
        if isinstance(op, wire.Select) and op.client_decides:
            generation = ClientChoice(self._generator, op, state.text, program.started, order, done, show)
        elif isinstance(op, wire.Gen) and op.retries:
            generation = Retries(self._generator, op, state.text, program.started, order, done, show, listener)
        elif isinstance(op, wire.Gen) and op.tools is not None:
            call = partial(self._called, program, op.ref)
            generation = self.tooling.start(op, state.text, program.started, order, done, call, listener)
        else:
            generation = self._generator.start(op, state.text, program.started, order, done, listener)
        if not generation.is_over:
            state.generation = generation
            program.running.add(state)
            self._limiter.watch(program, state, op)

    def _rest(self, program: RunningProgram, state: RunningState) -> None:
        """Its generation is over."""
        state.generation = None
        program.running.discard(state)
        self._limiter.rest(program, state)

    def _stop(self, program: RunningProgram, state: RunningState, error: Error) -> None:
        """End what the state generates with `error`."""
        if (generation := state.generation) is not None:
            generation.stop()
            self._generated(program, state, generation.op, error)

    def _called(
        self,
        program: RunningProgram,
        ref: int,
        number: int,
        calls: tuple[wire.WireToolCall, ...],
        text: str,
        usage: wire.TokenUsage,
    ) -> None:
        self.keeper.calls(program.serial, program.makers[ref].number, tuple({call.name for call in calls}))
        self._consult(program, wire.Called(program.number, self._next(program), ref, number, calls, text, usage))

    def _show(
        self, program: RunningProgram, ref: int, number: int, outcome: GenOutcome, usage: wire.TokenUsage
    ) -> None:
        seq, text, reason = self._next(program), outcome.samples[0].text, outcome.samples[0].finish_reason
        self._consult(program, wire.Called(program.number, seq, ref, number, (), text, usage, reason, outcome.scores))

    def _consult(self, program: RunningProgram, called: wire.Called) -> None:
        """Wait for the client's Results; they may be here already."""
        if (texts := program.early.pop((called.ref, called.round), None)) is None:
            self._send(program.client, called)
        else:
            results = wire.Results(program.makers[called.ref].number, called.ref, called.round, texts)
            self._timers.call(0.0, partial(self._resume, program, results))

    def _delta(self, program: RunningProgram, ref: int, piece: StreamPiece) -> None:
        self._send(program.client, wire.Delta(program.number, self._next(program), ref, *piece))

    def _generated(
        self, program: RunningProgram, state: RunningState, op: wire.Gen | wire.Select, outcome: GenOutcome | Error
    ) -> None:
        self._rest(program, state)
        self.generated(program, op, outcome)
        if isinstance(outcome, Error):
            self._break(program, state, op, outcome)
        else:
            for piece in outcome.pieces:
                state.text.append(piece)
            self._give(program, op.ref, outcome)
        self._ready.append((program, state))
        self._pump(program)

    # ---- values and errors -----------------------------------------------------------------------------------------

    def _give(self, program: RunningProgram, ref: int, outcome: GenOutcome) -> None:
        program.values[ref] = outcome.samples[0].text
        samples, _, usage, scores, times, tokens, prompt = outcome
        number, seq = program.number, self._next(program)
        self._send(program.client, wire.Value(number, seq, ref, samples, usage, scores, times, tokens, prompt))
        self._wake(program, ref)

    def _wake(self, program: RunningProgram, what: int | PendingJoin) -> None:
        self._ready.extend((program, state) for state in program.waiting.pop(what, ()))

    def _break(self, program: RunningProgram, state: RunningState, op: wire.Op | JoinPoint, error: Error) -> None:
        """`op` failed, and its state with it."""
        error = error._replace(tail=error.tail or state.tail())
        self._fail(program, state, op, error)
        state.error = error

    def _fail(self, program: RunningProgram, state: RunningState, op: wire.Op | JoinPoint, error: Error) -> None:
        """Pass `error` on to whoever waits for `op`."""
        match op:
            case wire.Gen(ref=ref) | wire.Select(ref=ref) | wire.Read(ref=ref):
                program.values[ref] = error
                seq = self._next(program)
                self._send(program.client, wire.Failed(program.number, seq, error.code, error.message, ref, error.tail))
                self._wake(program, ref)
            case wire.Fork(children=children):
                for number in children:
                    program.states[number].error = program.states[number].error or error
                    self._bear(program, program.states[number])
            case wire.Join() if state.error is not None:  # else it failed while it was done, and took its number itself
                program.joins[state.number].popleft()
            case JoinPoint():
                self._reach(program, op, error)

    def _break_deadlock(self, program: RunningProgram) -> bool:
        """Where nothing runs, and states wait for what cannot come, fail one of them. True if there was one."""
        if program.running:
            return False
        states = [state for state in program.states.values() if state.queue and state.is_born]
        if not states:
            return False
        blockers = [program.blocker(state.queue[0]) for state in states]
        # A value that no op makes yet may come with the next message.
        if not program.is_last and any(isinstance(b, int) and b not in program.makers for b in blockers):
            return False
        what = f"value {blockers[0]}" if isinstance(blockers[0], int) else "another state"
        message = f"this waits for {what}, which is never made, or waits for this in its turn"
        states[0].error = Error(BadProgram.code, message)
        self._ready.append((program, states[0]))
        return True

    # ---- ends ------------------------------------------------------------------------------------------------------

    def _reap(self, program: RunningProgram) -> None:
        """Stop dropped states that nobody needs any more."""
        if not program.dropped:
            return
        for number in program.dropped.difference(program.needed()):
            program.dropped.discard(number)
            state = program.states[number]
            state.error = state.error or Error(Cancelled.code, "its state was dropped")
            if (generation := state.generation) is not None:
                generation.stop()
                self._rest(program, state)
                self._fail(program, state, generation.op, state.error)
            self.keeper.drop(program.serial, number)
            state.text = PromptText()
            self._bear(program, state)

    def _end(self, program: RunningProgram, error: Error | None, is_client_gone: bool = False) -> None:
        """Stop and forget a program; with an error, tell its client."""
        if program.is_over:
            return
        is_done = program.is_settled and (error is None or error.code == Cancelled.code)  # its client only leaves it
        program.is_over = True
        for state in tuple(program.running):
            if state.generation is not None:
                state.generation.stop()
                self._rest(program, state)
        self._limiter.forget(program)
        self._quota.forget(program)
        self.over(program, None if is_done else CLIENT_GONE if is_client_gone else error)
        self.durables.over(program, error, is_client_gone)
        self.keeper.end(program.serial)
        key = program.client, program.number
        del self._programs[key], self._standings[program.serial]
        if error is not None:
            failed = wire.Failed(program.number, self._next(program), error.code, error.message)
            self._send(program.client, failed)
        self.delivery.end(key)

    def give_up(self, serial: int, error: BanyanError) -> None:
        """The program of this serial cannot go on."""
        for program in self._programs.values():
            if program.serial == serial:
                self._end(program, Error(error.code, error.message))
                return

    def _next(self, program: RunningProgram) -> int:
        return self.delivery.next((program.client, program.number))
