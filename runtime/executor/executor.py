"""Executes a program: the DAG of ops that wire.py defines. The server and the backends in a user's process share it.

Each state does its ops in order. A state waits while its gen, select or read runs, and while its next op needs a value
or a child state that does not exist yet. Otherwise, states do not wait for each other. An error breaks the state in
which it occurs: each op that is still queued there fails, and so do the ops of other states that depend on that op.
Other states continue.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from typing import Any, Protocol

from banyan.runtime.errors import EARLIER_OP, BadProgram, BanyanError, Cancelled, ProgramError
from banyan.runtime.executor.generation import Generation, NextStep, generation_of
from banyan.runtime.executor.generator import Attempt, Done, GenOutcome, Prompt
from banyan.runtime.executor.state import JoinPoint, PendingJoin, QueuedOp, RunningState, Snapshot
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_MARKS

JOINED = 1024
"""How many pieces a join copies at most in one step."""
FREED = 1 << 11
"""How many ops, pieces or other objects `free` drops at most in one step."""


class Generator(Protocol):
    """Answers the gens and selects of programs."""

    def prompt(self, program: Any) -> Prompt:
        """Return a new, empty prompt for a state of `program`."""

    def attempt(self, program: Any, generation: Generation, done: Done) -> Attempt:
        """Return a new attempt of `generation`, not started yet. It generates after `generation.prompt` and calls
        `done` with its outcome."""

    def read(
        self,
        program: Any,
        prompt: Prompt,
        start: int,
        has_tokens: bool,
        then: Callable[[GenOutcome | BanyanError], None],
    ) -> None:
        """Read the text of a prompt starting at piece `start`, and call `then` with it, now or later. has_tokens:
        `then` also gets the tokens. The executor appends nothing to the prompt before `then` is called."""


class ProgramObserver:
    """Callbacks for what happens in a program.

    The executor calls `value`, `failed`, `called`, `dropped`, `paused`, `settled`, `ended` and `crashed` without its
    lock, and all others with it.
    """

    def value(self, program: Any, ref: int, outcome: GenOutcome) -> None:
        """Called when the value with the number `ref` becomes known."""

    def failed(self, program: Any, ref: int, error: BanyanError) -> None:
        """Called when the value with the number `ref` has failed with `error`, so it will never be known."""

    def called(self, program: Any, state: int, called: wire.Called) -> None:
        """Called when a generation needs an answer from the client, such as the results of its tool calls. called: the
        message for the client; its fields `program` and `seq` are not set yet."""

    def started(self, program: Any, state: RunningState, op: wire.Gen | wire.Select) -> None:
        """Called when a gen or select of `state` has begun."""

    def stopped(self, program: Any, state: RunningState) -> None:
        """Called when the gen or select of `state` is over: finished, failed or stopped."""

    def generated(self, program: Any, op: wire.Gen | wire.Select, outcome: GenOutcome | BanyanError) -> None:
        """Called when a gen or select has ended with a result or an error. It is not called if the program or the state
        was ended before."""

    def hold(self, program: Any, n_chars: int) -> None:
        """Called when the executor is about to keep `n_chars` more characters for the program. To refuse them, raise a
        BanyanError; the op that needs them then fails with it."""

    def forked(self, program: Any, state: RunningState, children: tuple[int, ...]) -> None:
        """Called before `state` is forked into the states numbered `children`. A BanyanError that this raises fails the
        fork."""

    def joined(self, program: Any, prompt: Prompt, start: int, stop: int) -> None:
        """Called before a join appends the pieces start .. stop - 1 of a branch's prompt to the parent state. prompt:
        the branch's prompt. A BanyanError that this raises fails the join."""

    def adopted(self, program: Any, state: int, child: int) -> None:
        """Called when the state numbered `state` has taken over the prompt of its branch, the state numbered
        `child`."""

    def keep(self, program: Any, state: RunningState, op: wire.CacheHint) -> None:
        """Called when `state` reaches `op`, a hint about its KV, such as to pin it. A BanyanError that this raises
        fails the op."""

    def dropped(self, program: Any, state: int) -> None:
        """Called when the executor has ended a state that the client had dropped and that no op needs any more."""

    def paused(self, program: Any) -> None:
        """Called when `pump` returned before its work was done, because its time slice was over (`is_late`). The next
        call of `pump` continues."""

    def settled(self, program: Any) -> None:
        """Called when all ops of the program are done, and no more will come."""

    def ended(self, program: Any) -> None:
        """Called after `Executor.end`, when all attempts of the program have been stopped. May be called more than
        once."""

    def crashed(self, program: Any, error: Exception) -> None:
        """Called when the executor itself has raised `error`, because of a bug. By default, this raises it again."""
        raise error


class Executor:
    """Executes one program.

    `queue` adds ops, and `pump` does everything that can be done now. If several threads use the executor, `lock`
    guards its state. The executor releases the lock before it starts or stops attempts, and before it reports
    values.
    """

    def __init__(
        self,
        generator: Generator,
        observer: ProgramObserver,
        lock: AbstractContextManager[Any] | None = None,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        """generator: answers gens and selects. observer: gets the callbacks. lock: guards the executor if several
        threads use it. is_late: returns True if `pump` should return soon, although more can be done."""
        self._generator, self._observer, self._is_late = generator, observer, is_late
        self._lock = nullcontext() if lock is None else lock
        self._no_prompt = generator.prompt(self)  # the prompt of states that do not run yet, or will not run again
        self.states = {0: RunningState(0, generator.prompt(self), is_forked=True)}
        self.values: dict[int, str | BanyanError] = {}
        self.makers: dict[int, RunningState] = {}  # ref -> the state whose op makes it
        self.running: set[RunningState] = set()  # states with a generation
        self._n_queued = 0  # ops in the queues of all states
        self.waiting: OrderedDict[int | PendingJoin, deque[RunningState]] = OrderedDict()
        """value or join -> the states that wait for it, including states that have failed since."""
        self._unmade: set[int] = set()  # values that were waited for before an op made them
        self.reading: dict[RunningState, wire.Read] = {}  # states whose prompt is being read
        self.is_last = self.is_over = False
        """is_last: no more ops will come, except Results. is_over: nothing is executed or reported any more."""
        self._n_inserts: dict[int, int] = {}  # unknown value -> how often queued ops of other states insert it
        self._unneeded: deque[RunningState] = deque()  # states to end if they are dropped and nothing needs them
        self._ready: deque[RunningState] = deque()
        self._stops: list[Attempt] = []
        self._effects: deque[Callable[[], None]] = deque()  # calls to make outside of the lock
        self._pumping: set[int] = set()  # threads inside `pump`

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do with the ops received so far."""
        with self._lock:
            return not (self.running or self.reading or self._n_queued or self._effects)

    @property
    def n_ready(self) -> int:
        """The number of states whose ops the next `pump` tries to do."""
        return len(self._ready)

    # ---- ops -------------------------------------------------------------------------------------------------------

    def queue(self, op: wire.Op) -> None:
        """Add an op of any kind except Use. Results are not queued: they go to the waiting generation at once.
        BadProgram: the op does not fit the earlier ops, for instance because it names an unknown state."""
        with self._lock:
            state = self.states.get(op.state)
            if state is None:
                raise BadProgram(f"{type(op).__name__} names state {op.state}, which no earlier Fork creates")
            match op:
                case wire.Gen(ref=ref) | wire.Select(ref=ref) | wire.Read(ref=ref):
                    if ref in self.makers:
                        raise BadProgram(f"two ops create value {ref}")
                    self.makers[ref] = state
                    self._need(state, self._n_inserts.get(ref, 0))
                case wire.Fork(children=children):
                    for child in children:
                        if child in self.states:
                            raise BadProgram(f"Fork creates state {child}, which exists already")
                        self.states[child] = RunningState(child, self._no_prompt, op.state)
                    state.children += children
                    self._need(state, len(children))
                case wire.Join(children=children):
                    if op.adopt and len(children) != 1:
                        raise BadProgram(f"Join adopts {len(children)} states, but a state can adopt only one")
                    for child in children:
                        if child not in self.states or child == op.state:
                            raise BadProgram(
                                f"Join names state {child}, which is its own state or was not created by an earlier "
                                "Fork"
                            )
                        join = PendingJoin(child, op.adopt)
                        self._enqueue(self.states[child], JoinPoint(join))
                        self._enqueue(state, join)
                    return
                case wire.Drop():
                    for number in self.subtree(op.state) if op.tree else (op.state,):
                        self.states[number].is_dropped = True
                        self._unneeded.append(self.states[number])
                    return
                case wire.Results():
                    self._resume(state, op)
                    return
            self._enqueue(state, op)

    def awaits(self, results: wire.Results) -> bool:
        """Whether a generation is waiting for these Results, the client's answer."""
        with self._lock:
            return results.state in self.states and _awaiting(self.states[results.state], results) is not None

    def resume(self, results: wire.Results) -> None:
        """Pass the client's Results to the generation that waits for them, and continue it. No effect if none waits."""
        with self._lock:
            self._resume(self.states[results.state], results)
        self.pump()

    def stop(self, state: RunningState, error: BanyanError, only: Generation | None = None) -> None:
        """End the state's generation with `error`. No effect if the state has no generation, or if `only` is given and
        is another generation."""
        with self._lock:
            generation = state.generation
            if generation is None or (only is not None and only is not generation):
                return
            self._abort(generation)
            self._finish(state, generation, error)
        self.pump()

    def free(self) -> Iterator[None]:
        """Free the ops, prompts and values of a program that has ended. There may be millions of objects, so this is a
        generator: each step frees at most FREED of them."""
        while self.states:  # the last state first: what it inherited stays with its ancestors
            _, state = self.states.popitem()
            yield from _drain(state.queue.pop, len(state.queue))
            yield from _drain(state.prompt.pieces.pop, len(state.prompt.pieces))
            yield
        yield from _drain(self.makers.popitem, len(self.makers))
        yield from _drain(self.values.popitem, len(self.values))
        yield from _drain(self._n_inserts.popitem, len(self._n_inserts))
        yield from _drain(self._unmade.pop, len(self._unmade))

    def end(self) -> None:
        """End the program: stop its attempts, and do no more ops. No values or failures are reported from now on. The
        observer's `ended` is called when all attempts have stopped."""
        with self._lock:
            if self.is_over:
                return
            self.is_over = True
            self._ready.clear()
            self._unneeded.clear()
        self.pump()

    def subtree(self, number: int) -> Iterator[int]:
        """Yields the numbers of a state and of all states forked from it, at any depth."""
        left = [number]
        while left:
            yield (number := left.pop())
            left += self.states[number].children

    def _enqueue(self, state: RunningState, op: QueuedOp) -> None:
        state.queue.append(op)
        self._n_queued += 1
        self._ready.append(state)
        self._count_needs(state, op, 1)

    def _resume(self, state: RunningState, results: wire.Results) -> None:
        if (generation := _awaiting(state, results)) is None:
            return
        generation.called = None
        try:
            step = generation.answer(results.texts)
        except BanyanError as e:
            step = e.with_traceback(None)
        self._follow(state, generation, step)

    # ---- execution -------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Do everything that can be done now. If `pump` is already running on this thread, return at once: the running
        `pump` does the work."""
        thread = threading.get_ident()
        if thread in self._pumping:
            return
        self._pumping.add(thread)
        is_paused, crash = False, None
        try:
            while self._pump_once() and not is_paused:
                is_paused = self._is_late()
        except Exception as e:
            crash = e
        finally:
            self._pumping.discard(thread)
        if crash is not None:
            self._observer.crashed(self, crash)
        elif is_paused:
            self._observer.paused(self)
        elif self.is_over:
            self._observer.ended(self)
        elif self.is_last and self.is_settled:
            self._observer.settled(self)

    def _pump_once(self) -> bool:
        """Advance all ready states, then start and stop attempts and report values without the lock. Return early if
        `is_late()`. Returns whether there may be more to do."""
        with self._lock:
            while self.is_over and self.running and not self._stops:
                state = self.running.pop()  # next(iter()) would be slow: it visits the slots of removed states too
                assert state.generation is not None
                self._abort(state.generation)
                self._release(state)
            while self._ready:
                self._advance(self._ready.popleft())
                if self._is_late():
                    break
            if not (self.is_over or self._ready or self._effects):
                self._reap()
                if not (self._ready or self._effects):
                    self._break_deadlock()
            stops, self._stops = self._stops, []
            effects, self._effects = self._effects, deque()
            has_more = bool(self._ready or stops or effects or (self.running if self.is_over else self._unneeded))
        for attempt in stops:
            attempt.stop()
        while effects and not self.is_over:
            effects.popleft()()
            if effects and self._is_late():
                with self._lock:
                    self._effects.extendleft(reversed(effects))
                break
        return has_more

    def _advance(self, state: RunningState) -> None:
        """Do the state's ops until one must wait, or until `is_late()` is True."""
        if state.origin is not None and state.queue and state.error is None:
            # The copy is made here and not in the Fork, which may create thousands of states.
            state.prompt, state.marks, state.origin = state.origin.prompt.copy(), dict(state.origin.marks), None
        while state.queue and state.is_forked and not self.is_over:
            if state.generation is not None or state in self.reading:
                return
            op = state.queue[0]
            if state.error is None and (blocker := self._blocker(op)) is not None:
                if state.blocker != blocker:
                    state.blocker = blocker
                    self.waiting.setdefault(blocker, deque()).append(state)
                    if isinstance(blocker, int) and blocker not in self.makers:
                        self._unmade.add(blocker)
                return
            state.queue.popleft()
            self._n_queued -= 1
            if state.error is not None or isinstance(op, PendingJoin):  # else all inserted values are known: no count
                self._count_needs(state, op, -1)
            if state.error is not None:
                self._fail(op, copy_error(state.error, EARLIER_OP))
            else:
                try:
                    self._execute(state, op)
                except BanyanError as e:
                    self._break_state(state, op, e.with_traceback(None))
            if state.queue and self._is_late():
                self._ready.appendleft(state)
                return

    def _execute(self, state: RunningState, op: QueuedOp) -> None:
        match op:
            case wire.Append(parts=parts):
                for k, part in enumerate(parts, 1):
                    self._append(state, part)
                    if isinstance(part, wire.TokenIds) and parts[k:]:  # takes 0.5 ms: check `is_late` before the next
                        self._put_back(state, wire.Append(op.state, parts[k:]))
                        break
            case wire.Gen() | wire.Select():
                # A durable program may be sent again in other messages. The count of its generations stays the same.
                state.n_generations += 1
                generation = generation_of(op, state.prompt, (state.number, state.n_generations))
                state.generation = generation
                self.running.add(state)
                self._next_attempt(state, generation)
            case wire.Fork(children=children):
                self._observer.forked(self, state, children)
                origin = Snapshot(state.prompt.copy(), len(state.prompt.pieces), dict(state.marks))
                for child in map(self.states.__getitem__, children):
                    child.origin = origin
                    self._set_forked(child)
            case PendingJoin():
                self._join(state, op)
            case JoinPoint(join=join):
                prompt = state.prompt.copy() if join.adopt else state.prompt
                self._reach(join, Snapshot(prompt, len(prompt.pieces), dict(state.marks)))
            case wire.Mark(mark=mark):
                _check_marks(len(state.marks) + (mark not in state.marks))
                state.marks[mark] = len(state.prompt.pieces)
            case wire.CacheHint():
                self._observer.keep(self, state, op)
            case wire.Read():
                self._read(state, op)

    def _append(self, state: RunningState, part: wire.Part) -> None:
        if isinstance(part, wire.Ref):
            value = self.values[part.ref]
            if isinstance(value, BanyanError):
                raise copy_error(value, "a value that is inserted here failed")
            self._observer.hold(self, len(value))
            part = value
        elif isinstance(part, wire.Arg):
            raise BadProgram(f"argument {part.i} is used outside of a template")
        state.prompt.append_part(part)
        if isinstance(part, wire.TokenIds):  # so far only its ids were counted, not its text
            self._observer.hold(self, len(state.prompt.pieces[-1].text))

    def _join(self, state: RunningState, join: PendingJoin) -> None:
        reached = join.reached
        assert reached is not None
        if isinstance(reached, BanyanError):
            raise copy_error(reached, f"state {join.child}, which is joined here, failed")
        if join.adopt:
            # The child lacks the marks that were made here after its fork, such as that of an open var_scope.
            marks = {mark: at for mark, at in state.marks.items() if at <= reached.n_pieces} | reached.marks
            _check_marks(len(marks))
            reached.prompt.n_inherited = state.prompt.n_inherited
            state.prompt, state.marks = reached.prompt, marks
            self._observer.adopted(self, state.number, join.child)
            return
        start = join.n_joined or reached.prompt.n_inherited
        join.n_joined = stop = min(reached.n_pieces, start + JOINED)
        self._observer.joined(self, reached.prompt, start, stop)
        state.prompt.join(reached.prompt, start, stop)
        if stop < reached.n_pieces:
            self._put_back(state, join)

    def _put_back(self, state: RunningState, op: QueuedOp) -> None:
        """Put an unfinished op back at the head of the state's queue."""
        state.queue.appendleft(op)
        self._n_queued += 1
        if isinstance(op, PendingJoin):  # the values that an Append inserts are known
            self._count_needs(state, op, 1)

    def _reach(self, join: PendingJoin, reached: Snapshot | BanyanError) -> None:
        join.reached = reached
        self._wake(join)

    def _read(self, state: RunningState, op: wire.Read) -> None:
        if op.mark is not None and op.mark not in state.marks:
            raise BadProgram(f"Read names mark {op.mark}, which no Mark of its state makes")
        if op.mark is not None and op.tokens:
            raise BadProgram(
                "Read asks for the tokens after a mark, but it can return only the tokens of a whole state"
            )
        start = 0 if op.mark is None else state.marks[op.mark]
        self.reading[state] = op
        self._need(state, 1)
        then = partial(self._has_read, state, op)
        self._effects.append(partial(self._generator.read, self, state.prompt, start, op.tokens, then))

    def _has_read(self, state: RunningState, op: wire.Read, outcome: GenOutcome | BanyanError) -> None:
        with self._lock:
            del self.reading[state]
            if self.is_over:
                return
            self._need(state, -1)
            try:
                if isinstance(outcome, BanyanError):
                    raise outcome
                self._observer.hold(self, len(outcome.text))
                self._resolve(op.ref, outcome)
            except BanyanError as e:
                self._break_state(state, op, e.with_traceback(None))
            self._ready.append(state)
        self.pump()

    # ---- generations -----------------------------------------------------------------------------------------------

    def _next_attempt(self, state: RunningState, generation: Generation) -> None:
        """Make the generation's next attempt. `pump` starts it after releasing the lock."""
        done = partial(self._attempt_ended, state, generation)
        generation.attempt = self._generator.attempt(self, generation, done)
        self._effects.append(partial(self._start, state, generation, generation.attempt))

    def _start(self, state: RunningState, generation: Generation, attempt: Attempt) -> None:
        try:
            attempt.start()
        except BanyanError as e:
            attempt.finish(e.with_traceback(None))
        if state.generation is generation and not attempt.round:
            with self._lock:
                if state.generation is generation:
                    self._observer.started(self, state, generation.op)

    def _attempt_ended(
        self, state: RunningState, generation: Generation, attempt: Attempt, outcome: GenOutcome | BanyanError
    ) -> None:
        with self._lock:
            if generation.attempt is not attempt:
                return  # the generation was stopped meanwhile
            generation.attempt = None
            self._follow(state, generation, generation.take(outcome))
        self.pump()

    def _follow(self, state: RunningState, generation: Generation, step: NextStep) -> None:
        if step is None:
            self._next_attempt(state, generation)
        elif isinstance(step, wire.Called):
            generation.called = step
            self._effects.append(partial(self._observer.called, self, state.number, step))
        else:
            self._finish(state, generation, step)

    def _finish(self, state: RunningState, generation: Generation, outcome: GenOutcome | BanyanError) -> None:
        self._release(state)
        self._observer.generated(self, generation.op, outcome)
        if isinstance(outcome, BanyanError):
            self._break_state(state, generation.op, outcome)
        else:
            state.prompt.append_output(outcome)
            self._resolve(generation.op.ref, outcome)
        self._ready.append(state)

    def _abort(self, generation: Generation) -> None:
        """Detach the generation's attempt, if there is one. `pump` stops it after releasing the lock."""
        if generation.attempt is not None:
            self._stops.append(generation.attempt)
            generation.attempt = None

    def _release(self, state: RunningState) -> None:
        state.generation = None
        self.running.discard(state)
        self._observer.stopped(self, state)

    # ---- values and errors -----------------------------------------------------------------------------------------

    def _resolve(self, ref: int, outcome: GenOutcome) -> None:
        self._effects.append(partial(self._observer.value, self, ref, outcome))
        self._set_value(ref, outcome.text)

    def _set_value(self, ref: int, value: str | BanyanError) -> None:
        self.values[ref] = value
        self._need(self.makers[ref], -self._n_inserts.pop(ref, 0))
        self._wake(ref)

    def _wake(self, awaited: int | PendingJoin) -> None:
        for state in self.waiting.pop(awaited, ()):
            state.blocker = None
            self._ready.append(state)

    def _break_state(self, state: RunningState, op: QueuedOp, error: BanyanError) -> None:
        """Mark `state` as failed because its `op` failed with `error`. Add the end of the prompt to the error, and fail
        what depends on the op."""
        if isinstance(error, ProgramError):
            error.prompt_tail = error.prompt_tail or state.prompt.tail()
            if isinstance(op, wire.Gen | wire.Select):
                error.gen, error.line = error.gen or op.name, error.line or op.line
        state.error = error
        self._fail(op, error)

    def _fail(self, op: QueuedOp, error: BanyanError) -> None:
        """Handle the failure of `op` with `error`: fail the value that `op` makes, the states that it forks, or the
        join that waits for it."""
        match op:
            case wire.Gen(ref=ref) | wire.Select(ref=ref) | wire.Read(ref=ref):
                self._effects.append(partial(self._observer.failed, self, ref, error))
                self._set_value(ref, error)
            case wire.Fork(children=children):
                for child in map(self.states.__getitem__, children):
                    child.error = child.error or error
                    self._set_forked(child)
            case JoinPoint():
                self._reach(op.join, error)

    def _break_deadlock(self) -> None:
        """Fail one waiting state if all of them would wait forever: nothing runs, and no later op can provide what they
        wait for."""
        if self.running or self.reading or (not self.is_last and self._awaits_new_op()):
            return
        while self.waiting:
            blocker, states = next(iter(self.waiting.items()))
            if not states:
                del self.waiting[blocker]
            elif (state := states.popleft()).error is None:
                awaited = f"value {blocker}" if isinstance(blocker, int) else "another state"
                state.error = BadProgram(f"this waits for {awaited}, which is never made or itself waits for this")
                self._ready.append(state)
                return

    def _awaits_new_op(self) -> bool:
        """Whether a state waits for a value that no op received so far creates. The op may still come from the
        client."""
        while self._unmade:
            ref = next(iter(self._unmade))
            if ref not in self.makers and any(state.error is None for state in self.waiting.get(ref, ())):
                return True
            self._unmade.discard(ref)
        return False

    def _blocker(self, op: QueuedOp) -> int | PendingJoin | None:
        """What `op` has to wait for: the number of a value, or the join itself. None: it can be done now."""
        match op:
            case wire.Append(parts=parts):
                return next((ref for ref in _refs(parts) if ref not in self.values), None)
            case PendingJoin(reached=None):
                return op
        return None

    # ---- dropped states --------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """End the states that the client has dropped and that nothing needs any more. Return early if `is_late()`; the
        next call continues."""
        while self._unneeded:
            state = self._unneeded.popleft()
            if state.is_dropped and not state.n_needs:
                self._end_dropped(state)
            if self._is_late():
                return

    def _end_dropped(self, state: RunningState) -> None:
        state.is_dropped = False
        state.error = state.error or Cancelled("its state was dropped")
        if (generation := state.generation) is not None:
            self._abort(generation)
            self._release(state)
            self._fail(generation.op, state.error)
        self._effects.append(partial(self._observer.dropped, self, state.number))
        state.prompt, state.origin = self._no_prompt, None
        self._set_forked(state)

    def _set_forked(self, state: RunningState) -> None:
        """Let `state` do its ops: its Fork is done, or its ops will fail anyway."""
        if not state.is_forked:
            state.is_forked = True
            self._need(self.states[state.parent], -1)
        self._ready.append(state)

    def _need(self, state: RunningState, n: int) -> None:
        """Add `n` to the count of what needs `state`."""
        state.n_needs += n
        if state.is_dropped and not state.n_needs:
            self._unneeded.append(state)

    def _count_needs(self, state: RunningState, op: QueuedOp, n: int) -> None:
        """Count the states that `op` needs other than `state`, in whose queue it is: those that make the
        values it inserts, or the child that it joins. n: 1 if the op was queued, -1 if it is queued no more. A value
        that no op makes yet counts too. If the state turns out to make it itself, it waits for itself: even if it was
        dropped, it ends only with the deadlock (`_break_deadlock`)."""
        match op:
            case wire.Append(parts=parts):
                for ref in _refs(parts):
                    if ref not in self.values and (maker := self.makers.get(ref)) is not state:
                        self._n_inserts[ref] = self._n_inserts.get(ref, 0) + n
                        if maker is not None:
                            self._need(maker, n)
            case PendingJoin():
                self._need(self.states[op.child], n)


def copy_error(error: BanyanError, why: str) -> BanyanError:
    """A copy of `error`, for an op that cannot run because another op failed with `error`. Its message is `why`, a
    colon, and the message of `error`. Each failed op gets its own copy, because Python would add the tracebacks of all
    raises to one shared exception object."""
    copied = copy(error)
    copied.message = f"{why}: {error.message}"
    copied.args = (copied.message, *error.args[1:])
    copied.__cause__ = error.__cause__
    return copied


def _awaiting(state: RunningState, results: wire.Results) -> Generation | None:
    """Return the state's generation if it waits for these Results, else None."""
    generation = state.generation
    if generation is None or generation.called is None:
        return None
    return generation if (generation.op.ref, generation.round) == (results.ref, results.round) else None


def _check_marks(n: int) -> None:
    if n > MAX_MARKS:
        raise BadProgram(f"a state would have more than {MAX_MARKS} marks (each var_scope makes one)")


def _drain(pop: Callable[[], object], n: int) -> Iterator[None]:
    """Call `pop` n times. A generator: it yields after every FREED calls."""
    for k in range(n):
        pop()
        if k % FREED == FREED - 1:
            yield


def _refs(parts: tuple[wire.Part, ...]) -> Iterator[int]:
    return (part.ref for part in parts if isinstance(part, wire.Ref))
