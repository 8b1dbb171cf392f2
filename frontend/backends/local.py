"""Programs run in this process, for backends that know only how to generate: Mock, OpenAI, Replay.

The instruction set of wire.py, done as the server does it: the ops of one state in order, states beside each other,
held back only by the values they use. What a state says is a list of pieces; a backend gets them with each gen, and
answers when it can, from whatever thread. A backend that answers at once does so in the caller's thread, op by op.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

import msgspec

from banyan.backends.base import Quiet
from banyan.backends.job import Answers, Backend, Job, Made, Outcome, Piece, again, open_role, render, within
from banyan.backends.states import End, Gathering, Joining, Point, State, Step
from banyan.execution.clock import clock
from banyan.runtime.errors import BadProgram, BanyanError, Cancelled, DeadlineExceeded, ToolError, Unsupported
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire

_numbers = count()


class Program(Quiet):
    """One program. Safe to use from any thread; every future resolves."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.name, self.number, self._backend = name, next(_numbers), backend
        self._lock = threading.RLock()
        self._states = {0: State(0, is_born=True)}
        self._values: dict[int, str | BanyanError] = {}
        self._makers: dict[int, State] = {}  # ref -> the state whose op makes it
        self._futures: dict[int, ValueFuture[wire.Value]] = {}
        self._listeners: dict[int, Callable[[wire.Delta], None]] = {}
        self._heard: dict[int, list[wire.Delta]] = {}
        self._callers: dict[int, Callable[[wire.Called], None]] = {}
        self._parents: dict[int, int] = {}
        self._dropped: set[int] = set()
        self._ready: deque[State] = deque()
        self._waiting: dict[int | Gathering, list[State]] = {}
        self._starts: deque[Job] = deque()
        self._resolved: deque[tuple[ValueFuture[wire.Value], wire.Value | BanyanError]] = deque()
        self._pumping: set[int] = set()  # threads inside `_pump`
        self._is_cancelled = False
        self.first_error: BaseException | None = None

    @property
    def chat(self) -> wire.ChatMarkers | None:
        return self._backend.welcome.chat

    # ---- what the language calls -----------------------------------------------------------------------------------

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        for op in ops:
            with self._lock:
                self._queue(op)
            if isinstance(op, wire.Gen | wire.Select):  # the rest waits for what needs it
                self._pump()
        self._pump()

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        """Call `callback`, which must not wait, each time that the gen `ref` calls tools."""
        self._callers[ref] = callback

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        with self._lock:
            future = self._futures.get(ref)
            if future is None:
                future = self._futures[ref] = ValueFuture()
                if self._is_cancelled:
                    future.set_exception(self._cancelled())
            return future

    def on_delta(self, ref: int, callback: Callable[[wire.Delta], None]) -> None:
        with self._lock:
            self._listeners[ref] = callback
            heard = self._heard.pop(ref, ())
        for delta in heard:
            callback(delta)

    def cancel(self) -> None:
        with self._lock:
            if self._is_cancelled:
                return
            self._is_cancelled = True
            jobs = [state.job for state in self._states.values() if state.job is not None]
            pending = [future for future in self._futures.values() if not future.done()]
            for state in self._states.values():
                state.queue.clear()
                state.job = None
            self._resolved.extend((future, self._cancelled()) for future in pending)
        for job in jobs:
            job.stop()
        self._pump()

    def _cancelled(self) -> Cancelled:
        return Cancelled("the program was cancelled", program=self.name)

    # ---- what jobs call --------------------------------------------------------------------------------------------

    def deliver(self, delta: wire.Delta) -> None:
        with self._lock:
            listener = self._listeners.get(delta.ref)
            if listener is None:
                self._heard.setdefault(delta.ref, []).append(delta)
        if listener is not None:
            listener(delta)

    def finish(self, job: Job, state: State, outcome: Outcome | BanyanError) -> None:
        with self._lock:
            if state.job is not job or job.called is not None:
                return  # stopped meanwhile
            if job.alarm is not None:
                job.alarm.cancel()
            if isinstance(outcome, Outcome) and job.op.ref in self._callers:
                ended = self._round(job, state, outcome)
                if ended is None:
                    return
                outcome = ended
            state.job = None
            outcome = within(job.op, outcome)
            if isinstance(outcome, BanyanError):
                self._break(state, job.op, outcome)
            else:
                state.pieces.append(Made(outcome.samples[0].text))
                self._give(job.op.ref, outcome, job.ready)
            self._ready.append(state)
        self._pump()

    def _round(self, job: Job, state: State, outcome: Outcome) -> Outcome | BanyanError | None:
        """A turn of a gen with tools has ended: with an answer, an error, or calls (None), which are told."""
        op = job.op
        if isinstance(op, wire.Select):
            return self._show_scores(job, op, outcome)
        spent = wire.TokenUsage(*map(sum, zip(*map(msgspec.structs.astuple, (job.spent, outcome.usage)), strict=True)))
        if op.tools is None:
            if (called := job.show(outcome, spent)) is not None:
                self._callers[op.ref](called)
            return job.outcome if called is None else None
        if not outcome.calls:
            return outcome._replace(usage=spent)
        if job.round >= op.tools.max_rounds:
            names = ", ".join(dict.fromkeys(call.name or "?" for call in outcome.calls))
            n = op.tools.max_rounds
            return ToolError(
                f"the model calls tools ({names}) still after {n} rounds; max_rounds says how many there may be"
            )
        job.spent = spent
        job.called = wire.Called(
            self.number, 0, op.ref, job.round, outcome.calls, outcome.samples[0].text, outcome.usage
        )
        state.pieces.append(job.called)
        self._callers[op.ref](job.called)
        return None

    def _show_scores(self, job: Job, op: wire.Select, outcome: Outcome) -> Unsupported | None:
        """A select is decided by its client, where there is something to decide by."""
        if outcome.scores is None:
            return Unsupported(
                "choices_method of your own: this backend chooses without telling what the choices score"
            )
        job.outcome = outcome
        text = outcome.samples[0].text
        job.called = wire.Called(self.number, 0, op.ref, 0, (), text, outcome.usage, scores=outcome.scores)
        self._callers[op.ref](job.called)
        return None

    def _answer(self, results: wire.Results) -> None:
        """What tools said: the gen that waits for it goes on. Results that nothing waits for are ignored."""
        state = self._states[results.state]
        job = state.job
        if job is None or job.called is None or (job.op.ref, job.round) != (results.ref, results.round):
            return
        outcome = job.outcome
        if outcome is not None and isinstance(job.op, wire.Select):
            outcome = outcome._replace(samples=(wire.Sample(results.texts[0], "stop"),))
        if outcome is not None and (not results.texts or isinstance(job.op, wire.Select)):
            del self._callers[job.op.ref]  # it counts: there is nothing to ask any more
            job.called = None
            self.finish(job, state, outcome)
            return
        if job.outcome is not None:
            state.job = job.again(" ".join(results.texts))
        else:
            ids = (call.id for call in job.called.calls)
            state.pieces.append(Answers(tuple(zip(ids, results.texts, strict=True))))
            state.job = Job(self, state, job.op, before=job)
        self._starts.append(state.job)

    def ahead_of(self, state: State) -> list[str | wire.Gen]:
        """`State.ahead`, by now."""
        with self._lock:
            return state.ahead()

    # ---- going on --------------------------------------------------------------------------------------------------

    def _queue(self, op: wire.Op) -> None:
        if self._is_cancelled:
            if isinstance(op, wire.Gen | wire.Select | wire.Read):
                self._resolve(op.ref, self._cancelled())
            return
        state = self._states[op.state]
        step: Step = op
        match op:
            case wire.Gen(ref=ref) | wire.Select(ref=ref) | wire.Read(ref=ref):
                self._makers[ref] = state
            case wire.Fork(children=children):
                for child in children:
                    self._states[child] = State(child, is_born=False)
                    self._parents[child] = op.state
            case wire.Join(children=children):
                step = Joining(op, Gathering(children))
                for child in children:
                    self._put(self._states[child], Point(step.gathering, child))
            case wire.Drop():
                self._dropped.update(self._tree(op.state) if op.tree else (op.state,))
                return
            case wire.Results():
                self._answer(op)
                return
            case wire.CacheHint():
                return  # its keys and values are another's
        self._put(state, step)

    def _tree(self, root: int) -> Iterator[int]:
        """`root` and all that was forked from it, at any depth."""
        yield root
        for child, parent in tuple(self._parents.items()):
            if parent == root:
                yield from self._tree(child)

    def _put(self, state: State, step: Step) -> None:
        state.queue.append(step)
        self._ready.append(state)

    def _pump(self) -> None:
        """Do all that can be done now. What backends and readers do in return happens outside of the lock."""
        me = threading.get_ident()
        if me in self._pumping:
            return  # the outer call goes on
        self._pumping.add(me)
        try:
            while True:
                with self._lock:
                    while self._ready:
                        self._advance(self._ready.popleft())
                    stopped = self._reap() if self._dropped else []
                    if not (self._starts or self._resolved or stopped or self._ready):
                        return
                    starts, self._starts = self._starts, deque()
                    resolved, self._resolved = self._resolved, deque()
                for job in stopped:
                    job.stop()
                for future, outcome in resolved:
                    _settle(future, outcome)
                for job in starts:
                    self._start(job)
        finally:
            self._pumping.discard(me)

    def _start(self, job: Job) -> None:
        try:
            self._backend.start(job)
        except Exception as e:
            job.fail(e)
        if job.op.timeout and self._states[job.op.state].job is job:
            job.alarm = clock().call(job.ready + job.op.timeout, partial(self._late, job, job.op.timeout))

    def _late(self, job: Job, timeout: float) -> None:
        with self._lock:
            state = self._states[job.op.state]
            if state.job is not job:
                return
            state.job = None
            of = "gen" if isinstance(job.op, wire.Gen) else "select"
            self._break(state, job.op, job.placed(DeadlineExceeded.of(of, timeout)))
            self._ready.append(state)
        job.stop()
        self._pump()

    def _advance(self, state: State) -> None:
        while state.queue and state.is_born and state.job is None:
            step = state.queue[0]
            if state.error is None and (blocker := self._blocker(step)) is not None:
                self._waiting.setdefault(blocker, []).append(state)
                return
            state.queue.popleft()
            if state.error is not None:
                self._fail(step, again(state.error))
                continue
            try:
                self._do(state, step)
            except BanyanError as e:
                self._break(state, step, e)

    def _blocker(self, step: Step) -> int | Gathering | None:
        """The value or the children that `step` has to wait for."""
        match step:
            case wire.Append(parts=parts):
                refs = (part.ref for part in parts if isinstance(part, wire.Ref))
                return next((ref for ref in refs if ref not in self._values), None)
            case Joining(gathering=gathering) if gathering.n_missing:
                return gathering
        return None

    def _wake(self, what: int | Gathering) -> None:
        self._ready.extend(self._waiting.pop(what, ()))

    def _do(self, state: State, step: Step) -> None:
        match step:
            case wire.Append(parts=parts):
                for part in parts:
                    self._append(state, part)
            case wire.Gen() | wire.Select():
                state.job = Job(self, state, step)
                self._starts.append(state.job)
            case wire.Fork(children=children):
                for child in children:
                    self._states[child].inherit(state)
                    self._ready.append(self._states[child])
            case Joining(op=op, gathering=gathering):
                for child in op.children:
                    if isinstance(end := gathering.ends[child], BanyanError):
                        raise again(end)
                    if op.adopt:
                        state.become(end)
                        break
                    state.pieces += end.pieces[end.n_inherited : end.n]
            case Point():
                self._reach(step, state.end)
            case wire.Mark(mark=mark):
                state.marks[mark] = len(state.pieces)
            case wire.Read(ref=ref, mark=mark):
                start = 0 if mark is None else state.marks[mark]
                text = render(state.pieces[start:], self.chat, open_role(state.pieces, start))
                self._give(ref, Outcome((wire.Sample(text, "stop"),)), 0.0)

    def _append(self, state: State, part: wire.Part) -> None:
        piece: Piece
        match part:
            case wire.Ref(ref=ref):
                value = self._values[ref]
                if isinstance(value, BanyanError):
                    raise again(value, "a value that is spliced here failed: ")
                piece = value
            case wire.BeginTurn(role=role):
                if self.chat is None:
                    raise BadProgram(
                        f"this backend has no chat template, so there are no role turns (here: {role!r}); write the "
                        "prompt as plain text, or give the backend a template",
                        program=self.name,
                    )
                if role not in self.chat.roles:
                    raise BadProgram(f"the chat markers of this backend know no role {role!r}", program=self.name)
                state.role, piece = role, part
            case wire.EndTurn():
                state.role, piece = None, part
            case str() | wire.Raw() | wire.Image():
                piece = part
        state.pieces.append(piece)

    def _reach(self, point: Point, end: End | BanyanError) -> None:
        point.join.ends[point.child] = end
        point.join.n_missing -= 1
        if not point.join.n_missing:
            self._wake(point.join)

    # ---- values and errors -----------------------------------------------------------------------------------------

    def _give(self, ref: int, outcome: Outcome, ready: float) -> None:
        self._values[ref] = outcome.samples[0].text
        started = ready if outcome.first else 0.0
        times = wire.Times(ready, ready, started, outcome.first, time.monotonic()) if ready else wire.Times()
        self._resolve(ref, wire.Value(self.number, 0, ref, outcome.samples, outcome.usage, outcome.scores, times))

    def _resolve(self, ref: int, outcome: wire.Value | BanyanError) -> None:
        if ref not in self._futures:
            self._futures[ref] = ValueFuture()
        self._resolved.append((self._futures[ref], outcome))
        self._wake(ref)

    def _break(self, state: State, step: Step, error: BanyanError) -> None:
        """`step` failed, and its state with it: what follows there fails too. Other states go on."""
        self.first_error = self.first_error or error
        state.error = error
        self._fail(step, error)

    def _fail(self, step: Step, error: BanyanError) -> None:
        match step:
            case wire.Gen(ref=ref) | wire.Select(ref=ref) | wire.Read(ref=ref):
                self._values[ref] = error
                self._resolve(ref, error)
            case wire.Fork(children=children):
                for child in map(self._states.__getitem__, children):
                    child.error, child.is_born = child.error or error, True
                    self._ready.append(child)
            case Point():
                self._reach(step, error)

    # ---- states that nobody holds ----------------------------------------------------------------------------------

    def _reap(self) -> list[Job]:
        """End dropped states that nobody needs any more; gives the jobs that are to be stopped for that."""
        jobs = []
        for number in self._dropped.difference(self._needed()):
            self._dropped.discard(number)
            state = self._states[number]
            state.error = state.error or Cancelled("its state was dropped", program=self.name)
            if state.job is not None:
                jobs.append(state.job)
                self._fail(state.job.op, state.error)
                state.job = None
            state.pieces, state.is_born = [], True
            self._ready.append(state)
        return jobs

    def _needed(self) -> Iterator[int]:
        """States that others wait for: for a value, to join them, or to be forked from them."""
        for state in self._states.values():
            for step in state.queue:
                match step:
                    case wire.Append(parts=parts):
                        for part in parts:
                            if isinstance(part, wire.Ref) and part.ref not in self._values:
                                maker = self._makers.get(part.ref)
                                if maker is not None and maker is not state:
                                    yield maker.number
                    case Joining(op=op):
                        yield from op.children
                    case wire.Fork(children=children) if not self._dropped.issuperset(children):
                        yield state.number


def _settle(future: ValueFuture[wire.Value], outcome: wire.Value | BanyanError) -> None:
    if future.done():
        return
    if isinstance(outcome, BanyanError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
