"""The programs of all clients: handles each Submit, and sends messages back to the clients."""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from banyan.runtime.config import Config
from banyan.runtime.errors import BadMessage, BadProgram, BanyanError, Cancelled, ProgramError, Unsupported
from banyan.runtime.executor.executor import ProgramObserver
from banyan.runtime.executor.generator import GenOutcome, Prompt
from banyan.runtime.executor.state import RunningState
from banyan.runtime.protocol import decoders, wire
from banyan.runtime.protocol.op_template import ProgramTemplate
from banyan.runtime.server.engine_link.kv_hints import check_keep
from banyan.runtime.server.engine_link.requests import StreamPiece
from banyan.runtime.server.policy.quota import MARK, OP, PIECE, Quota
from banyan.runtime.server.policy.run_limits import Limiter
from banyan.runtime.server.policy.tenants import salted
from banyan.runtime.server.programs.durables import CLIENT_GONE, Durables
from banyan.runtime.server.programs.generation import EngineAttempt, EngineGenerator
from banyan.runtime.server.programs.overview import Overview
from banyan.runtime.server.programs.running_program import Client, EndedGen, RunningProgram
from banyan.runtime.server.programs.scheduling import SchedulingInfo
from banyan.runtime.server.telemetry.observer import Observer
from banyan.runtime.server.timers import Timers

BRANCHES = 64
"""How many states are made, or freed, in one step."""
CHECKED = 2048
"""`check` refuses to look at more programs and requests of all clients than this."""
PARTS = 256
"""How many parts, or calls of earlier turns, are appended in one step."""
PIECES = 4096
"""If a state has more queued ops and prompt pieces than this, its program is freed in several steps."""


class Programs(ProgramObserver):
    """The programs of all clients.

    send: sends a message to a client, and must not raise. timers: schedules calls on the server's loop. limits: the
    options with the limits of clients and programs. root_key: returns the root key of a client's KV. durables: the
    journals of durable programs. is_late: whether a program should pause. later: gets the remaining work for a client,
    to be done when the client has its turn."""

    def __init__(
        self,
        generator: EngineGenerator,
        send: Callable[[Client, wire.ServerMessage], None],
        timers: Timers,
        limits: Config = Config(),  # noqa: B008 (it is frozen)
        root_key: Callable[[Client], bytes] = lambda client: b"",
        telemetry: Observer | None = None,
        durables: Durables | None = None,
        is_late: Callable[[], bool] = lambda: False,
        later: Callable[[Client, Iterator[None]], None] = lambda client, steps: None,
    ) -> None:
        self.generator, self._timers, self._root_key, self._telemetry = generator, timers, root_key, telemetry
        self._durables, self._send = durables or Durables(), send
        self._limiter = Limiter(timers, end=self._end, stop=RunningProgram.stop)
        self._quota = Quota(limits)
        self._kv_hints = generator.requests.kv_hints
        self._is_late, self._later = is_late, later
        self._programs: dict[Client, dict[int, RunningProgram]] = {}
        self._ending: dict[int, tuple[RunningProgram, Callable[[], None], BanyanError | None]] = {}
        """serial -> (a program that is over and whose requests are being stopped, a call that closes its journal, its
        error)."""
        self._clients: dict[Client, int] = {}
        self._n_clients = self.n_started = 0
        self._overview = Overview()

    def __len__(self) -> int:
        return sum(map(len, self._programs.values()))

    def n_on(self, weights: bytes) -> int:
        """How many programs that began with these weights have not ended."""
        running = (program for programs in self._programs.values() for program in programs.values())
        ending = (program for program, _, _ in self._ending.values())
        return sum(program.scheduling.weights == weights for program in chain(running, ending))

    def overview(self) -> Generator[None, None, dict[str, Any]]:
        """Which programs run and which have ended; see Overview.of."""
        return self._overview.of(chain.from_iterable(programs.values() for programs in self._programs.values()))

    def check(self) -> str:
        """Check that the state of the programs is consistent, between two messages. Returns what is wrong, or ""."""
        requests = self.generator.requests
        if (n := len(self) + len(requests)) > CHECKED:
            return f"{n} programs and requests are too many to be checked at once; at most {CHECKED} are"
        owned: list[int] = []
        running = [program for programs in self._programs.values() for program in programs.values()]
        for program in (*running, *(program for program, _, _ in self._ending.values())):
            if program.n_ready and not (program.is_paused or program.is_queueing):
                return f"{program.n_ready} states of program {program.name!r} could continue, but nothing runs them"
            for state in program.running:  # if a state that runs is missing here, nobody owns its requests
                if state.generation is None:
                    return f"state {state.number} of program {program.name!r} counts as running, but runs nothing"
                if isinstance(attempt := state.generation.attempt, EngineAttempt):
                    owned += [request.rid for request in attempt.requests if request.finish is None]
            is_done = program.is_last and program.is_settled and not program.is_paused
            if program.is_over != (program.serial in self._ending) or is_done:
                return f"program {program.name!r} has ended and is still there"
        if sorted(owned) != sorted(requests.living):
            return f"requests {sorted(requests.living)} run, but generations have {sorted(owned)}"
        return ""

    # ---- messages of clients ---------------------------------------------------------------------------------------

    def submit(self, client: Client, message: wire.SlicedSubmit) -> Iterator[None]:
        """Add ops to a program. A generator; each of its steps adds one op, or a part of a long one.

        Connections deliver each message once and in order. When a connection breaks, its client is forgotten with its
        programs. So a `seq` that is missing or comes twice means that the client is broken or that the program has
        ended: the program fails with BadMessage."""
        program = self._programs.get(client, {}).get(message.program)
        if message.seq != (expected := 0 if program is None else program.n_received):
            error = BadMessage(f"message {message.seq} of the program came where message {expected} was expected")
            if program is not None:
                self._end(program, error)
            else:
                self._send(client, wire.Failed(message.program, 0, error.code, error.message))
            return
        program = program or self._begin(client, message)
        program.n_received += 1
        try:
            if message.seq == 0:
                self._quota.begin(program)
                if message.limits is not None:
                    self._limiter.begin(program, message.limits)
                    if name := message.limits.durable:
                        self._durables.begin(program, program.scheduling.namespace, name, self._end)
            program.is_queueing = True
            for data in message.ops:
                op = _decode(data)
                if program.is_last and not isinstance(op, wire.Results):
                    raise BadMessage(f"program {program.name!r} got a {type(op).__name__} after its last message")
                self._quota.queue(program, op, len(data))
                for one in self._small(program, op):
                    self._queue(program, one)
                    yield
                    if program.is_over:
                        return
            program.is_last = program.is_last or message.last
            program.is_queueing = False
        except BanyanError as e:
            self._end(program, e.with_traceback(None))
        except Exception as e:
            self.crashed(program, e)
        program.pump()

    def _begin(self, client: Client, message: wire.SlicedSubmit) -> RunningProgram:
        limits = message.limits or wire.ProgramLimits()
        if client not in self._clients:
            self._clients[client] = self._n_clients
            self._n_clients += 1
        deadline = self._timers.now() + limits.deadline if limits.deadline else 0.0
        namespace = salted(self._root_key(client), limits.salt)
        scheduling = SchedulingInfo(
            *(self._clients[client], limits.priority, deadline, namespace, self.generator.requests.routes.weights)
        )
        program = self._programs.setdefault(client, {})[message.program] = RunningProgram(
            *(client, message.program, message.name, self.n_started, scheduling),
            *(self.generator, self, self._delta, self._limiter.spend, self._is_late),
            partial(self._later, client),
        )
        self.n_started += 1
        self._kv_hints.begin(program.serial, program.name, scheduling.namespace)
        return program

    def _small(self, program: RunningProgram, op: wire.Op) -> Iterable[wire.Op]:
        """Split an op that is too large for one step into smaller ops that do the same."""
        match op:
            case wire.Use():
                if (template := self._quota.template(program.client, op.template)) is None:
                    raise BadProgram(f"Use names template {op.template}, which no Define has created")
                return (small for one in template.expand(op) for small in self._small(program, one))
            case wire.Fork(children=children) | wire.Join(children=children, adopt=False) if len(children) > BRANCHES:
                n = len(children)
                return [replace(op, children=children[at : at + BRANCHES]) for at in range(0, n, BRANCHES)]
            case wire.Drop(tree=True):
                return (wire.Drop(state) for state in program.subtree(op.state))
            case wire.Append(parts=parts) if len(parts) > 1 and (n := len(parts) + sum(map(_n_calls, parts))) > PARTS:
                size = PARTS if n == len(parts) else 1
                return [replace(op, parts=parts[at : at + size]) for at in range(0, len(parts), size)]
        return (op,)

    def _queue(self, program: RunningProgram, op: wire.Op) -> None:
        if program.journal is not None and isinstance(op, wire.Gen) and op.stream:
            raise Unsupported("stream: a durable program cannot stream, since its text may be sent twice")
        if program.journal is not None and isinstance(op, wire.Results) and not program.awaits(op):
            program.early_results[op.ref, op.round] = op.texts
        program.queue(op)

    def cancel(self, client: Client, message: wire.Cancel) -> None:
        if program := self._programs.get(client, {}).get(message.program):
            self._end(program, Cancelled("the program was cancelled"))

    def acknowledge(self, client: Client, message: wire.Acknowledge) -> None:
        self._durables.acknowledge(client, message.program)

    def define(self, client: Client, message: wire.SlicedDefine) -> Iterator[None]:
        """Add a template. A generator; each of its steps handles one op. Raises BanyanError."""
        template, n_bytes = ProgramTemplate(), 0
        for data in message.ops:
            op = _decode(data, decoders.decode_template_op)
            template.add(op)
            n_bytes += self._quota.bytes_of(op, len(data))
            yield
        self._quota.define(client, message.template, template, n_bytes)

    def undefine(self, client: Client, message: wire.Undefine) -> None:
        self._quota.undefine(client, message.template)

    def forget(self, client: Client) -> Iterator[None]:
        """Stop all programs of a client that is gone. A generator; each of its steps stops one program."""
        while programs := self._programs.get(client):
            self._end(next(reversed(programs.values())), None, is_client_gone=True)
            yield
        self._durables.forget(client)
        self._clients.pop(client, None)
        self._limiter.forget_client(client)
        self._quota.forget_client(client)

    def _end(self, program: RunningProgram, error: BanyanError | None, is_client_gone: bool = False) -> None:
        """Stop and forget a program; with an error, report it to the client."""
        if program.is_over:
            return
        # If a client cancels a program, or leaves, after all is done, the program has succeeded.
        is_done = program.is_settled and (error is None or error.code == Cancelled.code)
        shown = None if is_done else CLIENT_GONE if is_client_gone else error
        self._ending[program.serial] = program, partial(self._durables.over, program, error, is_client_gone), shown
        programs = self._programs[program.client]
        del programs[program.number]
        if not programs:
            del self._programs[program.client]
        if error is not None:
            self._tell(program, wire.Failed(program.number, program.n_sent, error.code, error.message))
        program.end()

    def ended(self, program: RunningProgram) -> None:
        if (found := self._ending.pop(program.serial, None)) is None:
            return
        _, close_journal, error = found
        self._overview.ended(program, error)
        self._limiter.forget(program)
        self._quota.forget(program)
        self.generator.requests.end(program.scheduling.client, program.serial)
        if self._telemetry is not None:
            self._telemetry.program_ended(program, error)
        close_journal()
        end_hints = self._kv_hints.end(program.serial)
        if len(program.states) > BRANCHES or any(state.size > PIECES for state in program.states.values()):
            program.later(chain(end_hints, program.free()))
        else:
            deque(end_hints, 0)

    def paused(self, program: RunningProgram) -> None:
        if not program.is_paused:
            program.is_paused = True
            program.later(self._go_on(program))

    def _go_on(self, program: RunningProgram) -> Iterator[None]:
        program.is_paused = False
        program.pump()
        yield

    # ---- messages to clients ---------------------------------------------------------------------------------------

    def value(self, program: RunningProgram, ref: int, outcome: GenOutcome) -> None:
        message = wire.Value(
            program=program.number,
            seq=program.n_sent,
            ref=ref,
            samples=outcome.samples,
            usage=outcome.usage,
            scores=outcome.scores,
            times=outcome.times,
            tokens=outcome.tokens,
            prompt=outcome.prompt,
            rounds=outcome.rounds,
        )
        self._tell(program, message)

    def failed(self, program: RunningProgram, ref: int, error: BanyanError) -> None:
        tail = getattr(error, "prompt_tail", "")
        self._tell(program, wire.Failed(program.number, program.n_sent, error.code, error.message, ref, tail))

    def called(self, program: RunningProgram, state: int, called: wire.Called) -> None:
        if called.calls:
            self._kv_hints.calls(program.serial, state, tuple(call.name for call in called.calls))
        texts = program.early_results.pop((called.ref, called.round), None)
        if texts is None:
            self._tell(program, replace(called, program=program.number, seq=program.n_sent))
        else:
            results = wire.Results(state, called.ref, called.round, texts)
            self._timers.call(0.0, partial(program.resume, results))

    def _delta(self, program: RunningProgram, ref: int, piece: StreamPiece) -> None:
        self._tell(program, wire.Delta(program.number, program.n_sent, ref, *piece))

    def _tell(self, program: RunningProgram, message: wire.Value | wire.Failed | wire.Delta | wire.Called) -> None:
        self._send(program.client, message)
        program.n_sent += 1  # after `_send`: a message that cannot be encoded takes no number

    # ---- what happens in programs ----------------------------------------------------------------------------------

    def started(self, program: RunningProgram, state: RunningState, op: wire.Gen | wire.Select) -> None:
        self._limiter.watch(program, state, op)

    def stopped(self, program: RunningProgram, state: RunningState) -> None:
        self._limiter.rest(program, state)

    def generated(self, program: RunningProgram, op: wire.Gen | wire.Select, outcome: GenOutcome | BanyanError) -> None:
        program.ended_gens.append(EndedGen.of(op, outcome))
        if self._telemetry is not None:
            self._telemetry.generated(program, op, outcome)

    def hold(self, program: RunningProgram, n_chars: int) -> None:
        self._quota.hold(program, n_chars)

    def forked(self, program: RunningProgram, state: RunningState, children: tuple[int, ...]) -> None:
        n_bytes = PIECE * len(state.prompt.pieces) + MARK * len(state.marks)
        self._quota.hold(program, len(children) * n_bytes)
        self._kv_hints.forked(program.serial, state.number, children)
        self.generator.requests.routes.forked(program.serial, children)

    def joined(self, program: RunningProgram, prompt: Prompt, start: int, stop: int) -> None:
        texts = (getattr(piece, "text", "") for piece in prompt.pieces[start:stop])
        self._quota.hold(program, sum(OP + len(text) for text in texts))

    def adopted(self, program: RunningProgram, state: int, child: int) -> None:
        self._kv_hints.adopted(program.serial, state, child)

    def dropped(self, program: RunningProgram, state: int) -> None:
        self._kv_hints.drop(program.serial, state)

    def keep(self, program: RunningProgram, state: RunningState, op: wire.CacheHint) -> None:
        check_keep(op)
        keep = partial(self._kv_hints.keep, program.serial, op)
        self.generator.encode(program, state.prompt, lambda ids: None if program.is_over else keep(ids))

    def settled(self, program: RunningProgram) -> None:
        self._end(program, None)

    def crashed(self, program: RunningProgram, error: Exception) -> None:
        if program.is_over:
            _internal_error(error)
            self.ended(program)
        self._end(program, error if isinstance(error, BanyanError) else _internal_error(error))


def _internal_error(error: Exception) -> ProgramError:
    """Make the error that a program gets if the server itself raised `error` while it worked on the program. Prints the
    traceback of `error`."""
    traceback.print_exception(error)
    return ProgramError(f"the server failed on this program: {error!r}")


def _n_calls(part: wire.Part) -> int:
    return len(part.calls) if isinstance(part, wire.EndTurn) else 0


def _decode(data: msgspec.Raw, decode: Callable[[msgspec.Raw], Any] = decoders.decode_op) -> Any:
    """Decode an op. Raises BadMessage, with the op's kind and source line, if it cannot be decoded."""
    try:
        return decode(data)
    except wire.UNREADABLE as e:
        source = wire.OpSource()
        with contextlib.suppress(*wire.UNREADABLE):
            source = decoders.decode_op_source(data)
        where = " ".join(filter(None, (source.t, repr(source.name) if source.name else "", source.line)))
        raise BadMessage(f"an op ({where or 'of no known kind'}) is invalid: {e}") from None
