"""What runs in the engine on behalf of programs: each request's ids as they come, until it has ended.

The server holds all that a request is (its prompt, what was generated so far), so an engine that dies costs time, not
results: `replay` sends each living request again, with what it had. Who may be what it died of: see recovery.py.
"""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from banyan.runtime.errors import BadProgram, BanyanError, ProgramError, Quarantined
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.kv_hints import KVHintSender
from banyan.runtime.server.engine_link.recovery import MAX_LOST, Death, Trials
from banyan.runtime.server.text.detokenizer import Detokenizer
from banyan.runtime.server.text.prompt import pack, unpack
from banyan.runtime.server.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from banyan.runtime.server.programs.journal import Diary, JournalEntry


class Standing(NamedTuple):
    """Whose a program is, and how urgent: as in wire.Run."""

    client: int = 0
    priority: int = 0
    deadline: float = 0.0
    namespace: bytes = b""


class StreamPiece(NamedTuple):
    """A piece of a stream; as in wire.Delta."""

    text: str
    n_tokens: int = 0
    is_thought: bool = False
    round: int = 0
    logprobs: tuple[wire.TokenLogprob, ...] = ()
    n_prompt: int = 0
    n_cached: int = 0


Listener: TypeAlias = Callable[[StreamPiece], None]

_OF_THE_PROGRAM: Mapping[str, float] = MappingProxyType({})


def bug(error: Exception) -> ProgramError:
    """What a program fails with that meets a bug of ours. Shows it on stderr."""
    traceback.print_exception(error)
    return ProgramError(f"the server failed on this program: {error!r}")


def check_seconds(name: str, seconds: float) -> None:
    """BadProgram: it is no time that a timer could wait for."""
    if not seconds >= 0:
        raise BadProgram(f"{name} is {seconds}; it must be at least 0 seconds")


def check_urgency(priority: int, deadline: float) -> None:
    """BadProgram: one of them is no urgency."""
    if abs(priority) > wire.MAX_PRIORITY:
        raise BadProgram(f"priority is {priority}; it must be in {-wire.MAX_PRIORITY} .. {wire.MAX_PRIORITY}")
    if not 0 <= deadline < math.inf:
        raise BadProgram(f"deadline is {deadline}; it must be at least 0 seconds")


class EngineRequest:
    """One Run in the engine.

    ids          generated so far, int32
    finish       how it ended; None while it runs
    failed       the engine's refusal
    sent, first, ended   as in wire.Times
    """

    def __init__(
        self, run: wire.Run, text: Detokenizer, done: Callable[[EngineRequest], None], sent: float = 0.0
    ) -> None:
        self.run, self.text, self.done = run, text, done
        self.sent, self.first, self.ended = sent, 0.0, 0.0
        self.ids = bytearray()
        self.logprobs: list[wire.TopLogprobs] = []
        self.n_told = 0  # of those, how many the listener has heard
        self.n_cached = 0  # tokens of the prompt that came from the tree, once it has a token
        self.finish: wire.Finish | None = None
        self.failed: wire.Failed | None = None
        self.listener: Listener | None = None
        self.stop_strings: frozenset[int] = frozenset()
        """Ids of `run.stop_ids` that stop because their text holds a stop string."""
        self.n_deaths = self.n_blamed = self.n_blamed_ever = 0  # see recovery.Suspect
        self.is_given = False
        self.entry: JournalEntry | None = None
        """In its program's file, if that is durable."""

    @property
    def rid(self) -> int:
        return self.run.rid

    @property
    def serial(self) -> int:
        """Of its program; -1: it is of none."""
        return self.run.order[0] if self.run.order else -1

    @property
    def scores(self) -> list[float]:
        """Log-probabilities that `score_from` asked for."""
        return [] if self.finish is None else list(array("f", self.finish.scores))


class EngineRequests:
    """All requests that run. `send` gives an order to the engine."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        n_vocabulary: int | None,
        send: Callable[[wire.EngineCommand], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer, self._n_vocabulary, self._send, self.clock = tokenizer, n_vocabulary, send, clock
        self.spend: Callable[[tuple[int, ...], int], None] | None = None
        """Called with a request's `order` and the number of tokens that it was just given."""
        self.ended: Callable[[EngineRequest], None] = lambda request: None
        """Called with a request that has ended well, before its `done`."""
        self.standing: Callable[[int], Standing] = lambda serial: Standing()
        """Of a program, by its serial: the first number of an `order`."""
        self.diary: Callable[[int], Diary | None] = lambda serial: None
        """Of a program, by its serial: the file of a durable one."""
        self.give_up: Callable[[int, BanyanError], None] = lambda serial, error: None
        """Called with the serial of a program that cannot go on, and why."""
        self.later: Callable[[Callable[[], None]], None] = lambda call: call()
        """Has something called from the loop, when what is done now is done."""
        self.keeper = KVHintSender(send, clock)
        self._living: dict[int, EngineRequest] = {}
        self._trials: Trials[EngineRequest] = Trials(
            self._run, partial(self._run, is_trial=True), lambda request: request.rid in self._living
        )
        self._served: dict[int, int] = {}  # programs that have started some, and how many of those were given up
        self._n_started = 0

    def __len__(self) -> int:
        return len(self._living)

    @property
    def living(self) -> list[int]:
        """The ids of those that have not ended."""
        return list(self._living)

    def start(
        self,
        ids: bytes,
        sampling: wire.Sampling,
        done: Callable[[EngineRequest], None],
        *,
        turn_ends: Sequence[int] = (),
        seed: int = 0,
        sample: int = 0,
        score_from: int = -1,
        order: tuple[int, ...] = (),
        listener: Listener | None = None,
        shown: Collection[str] = (),
        urgency: Mapping[str, float] = _OF_THE_PROGRAM,
    ) -> EngineRequest:
        """Order a generation. `turn_ends`: ids that end it unless eos is ignored. `shown`: special tokens that are part
        of its text. `urgency`: what of its program's standing is another for it. `done` is called once, at its end."""
        known = self._tokenizer
        self._check_ids("stop_token_ids", sampling.stop_token_ids)
        stops = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stops |= {i for i in (*known.eos_ids, *turn_ends) if self._n_vocabulary is None or i < self._n_vocabulary}
        cutting = frozenset().union(*(known.stop_ids(stop) for stop in sampling.stop)) - stops
        run = wire.Run(
            rid=self._n_started,
            ids=ids,
            sampling=sampling,
            stop_ids=pack(sorted(stops | cutting)),
            seed=seed,
            sample=sample,
            score_from=score_from,
            order=order,
            **{**(self.standing(order[0]) if order else Standing())._asdict(), **urgency},
        )
        hidden = known.special.difference(known.added.get(token, -1) for token in shown) if shown else known.special
        text = Detokenizer(known.spelling, hidden, sampling.stop, sampling.min_tokens, sampling.stop_regex)
        request = EngineRequest(run, text, done, self.clock())
        request.stop_strings, request.listener = cutting, listener
        self._n_started += 1
        self._living[run.rid] = request
        if order:
            self._served.setdefault(order[0], 0)
        self.keeper.started(run)
        if order and (diary := self.diary(order[0])) is not None:
            request.entry = diary.begin(run)
            request.run = msgspec.structs.replace(run, seed=request.entry.seed)
        if request.entry is None or request.entry.is_new:
            self._trials.submit(request)
        else:
            self.later(partial(self._restore, request, request.entry))
        return request

    def _check_ids(self, what: str, ids: Sequence[int]) -> None:
        n = self._n_vocabulary or 1 << 31
        for i in ids:
            if not 0 <= i < n:
                raise BadProgram(f"{what} has {i}; the model's vocabulary is 0 .. {n - 1}")

    def crashed(self, serial: int, error: Exception) -> None:
        """A bug of ours in what a program asked for: it costs the program, and nobody else."""
        self.give_up(serial, bug(error))

    @contextlib.contextmanager
    def _blaming(self, request: EngineRequest) -> Iterator[None]:
        """What is raised in here costs the program of `request`."""
        try:
            yield
        except Exception as e:
            self.abort(request)
            self.crashed(request.serial, e)

    def _restore(self, request: EngineRequest, entry: JournalEntry) -> None:
        """It ran in another server: it has what it had there, and goes on behind that."""
        with self._blaming(request):
            if request.rid in self._living:
                self._add(request, memoryview(bytes(entry.ids)).cast("i"), entry.logprobs)
            if request.rid not in self._living:
                return
            if entry.finish is None:
                self._trials.submit(request)
            else:
                del self._living[request.rid]
                self._end(request, msgspec.structs.replace(entry.finish, rid=request.rid, started=0.0))

    def end(self, serial: int) -> None:
        """The program will start no more requests."""
        if serial in self._served:
            del self._served[serial]
            self._send(wire.ProgramEnded(self.standing(serial).client, serial))

    def abort(self, request: EngineRequest) -> None:
        """Stop it and forget it; `done` is not called."""
        if self._living.pop(request.run.rid, None) is not None:
            self._send(wire.Abort(rid=request.run.rid))
            self.keeper.ended(request.run, request.ids)
            self._trials.go_on()

    def take(self, step: wire.Step) -> None:
        at = 0
        ids = memoryview(step.ids).cast("i")
        counts = memoryview(step.counts).cast("i")
        for rid, n in zip(memoryview(step.rids).cast("q"), counts, strict=True):
            if request := self._living.get(rid):
                new, logprobs = ids[at : at + n], step.logprobs.get(rid, ())
                request.n_cached = step.cached.get(rid, request.n_cached)
                with self._blaming(request):
                    self._grow(request, new, logprobs)
            at += n
        for finish in step.finished:
            if request := self._living.get(finish.rid):
                is_cut = finish.reason == "length" and len(request.ids) // 4 < request.run.sampling.max_tokens
                if not (is_cut and request.text.matched is None and self._trials.has_passed(request)):
                    del self._living[finish.rid]
                    with self._blaming(request):
                        self._end(request, finish)
        self._trials.go_on()
        self.keeper.settle()

    def fail(self, failed: wire.Failed) -> None:
        if request := self._living.pop(failed.program, None):
            self.keeper.ended(request.run, request.ids)
            request.failed = failed
            with self._blaming(request):
                request.done(request)
            self._trials.go_on()

    def replay(self, death: Death = Death()) -> None:  # noqa: B008 (it is frozen)
        """Another engine took over: give it all that ran in the last one, as far as it had come. What engines died of
        again fails with Quarantined; so does a program, when some of its requests have."""
        for request in self._trials.judge(death, list(self._living.values())):
            n = max(request.n_deaths, request.n_blamed_ever)
            again = f"{n} engines died of this request, and it is not run again; the last: {death.how}"
            self.fail(wire.Failed(program=request.rid, seq=0, code=Quarantined.code, message=again))
            if (serial := request.serial) in self._served:  # else it ended by that
                self._served[serial] += 1
                if self._served[serial] >= MAX_LOST:
                    many = f"engines died of {MAX_LOST} requests of this program; the last: {death.how}"
                    self.give_up(serial, Quarantined(many))
        self._trials.go_on()

    def _run(self, request: EngineRequest, is_trial: bool = False) -> None:
        """Order it, or what is left of it behind the tokens that it has; only the next one, if it is a trial."""
        if request.text.matched is not None:  # it had all it wanted, and waited for the engine's numbers only
            del self._living[request.rid]
            with self._blaming(request):
                self._end(request, wire.Finish(rid=request.rid, reason="abort", n_prompt=len(request.run.ids) // 4))
            return
        done = bytes(request.ids)
        n_done = len(done) // 4
        run = msgspec.structs.replace(request.run, ids=request.run.ids + done, n_done=n_done)
        if is_trial:
            sampling = msgspec.structs.replace(run.sampling, max_tokens=min(run.sampling.max_tokens, n_done + 1))
            run = msgspec.structs.replace(run, sampling=sampling)
        try:
            self._send(run)
        except Exception as e:  # from the loop: who calls may be in the middle of its program
            self.later(partial(self.crashed, request.serial, e))

    def fail_all(self, code: str, message: str) -> None:
        for rid in list(self._living):
            self.fail(wire.Failed(program=rid, seq=0, code=code, message=message))

    def _give_up(self, request: EngineRequest, error: BanyanError) -> None:
        """What it asked for cannot be done with the text that came."""
        self.abort(request)
        request.failed = wire.Failed(program=request.run.rid, seq=0, code=error.code, message=error.message)
        request.done(request)

    # ---- how -------------------------------------------------------------------------------------------------------

    def _grow(self, request: EngineRequest, ids: memoryview, logprobs: Sequence[wire.TopLogprobs]) -> None:
        if request.text.matched is not None:
            return  # the engine had not yet heard of the Abort
        request.n_deaths = request.n_blamed = 0
        if request.entry is not None:
            try:
                request.entry.grew(bytes(ids), logprobs)
            except BanyanError as e:
                self._give_up(request, e)
                return
        self._add(request, ids, logprobs)
        if request.text.matched is not None and request.rid in self._living:
            # Its Finish is still to come, with the numbers of its usage: it ends then.
            self._send(wire.Abort(rid=request.run.rid))

    def _add(self, request: EngineRequest, ids: memoryview, logprobs: Sequence[wire.TopLogprobs]) -> None:
        """Tokens of it, to be spelled and told."""
        request.first = request.first or self.clock()
        try:
            new = request.text.feed(ids)
        except BadProgram as e:
            self._give_up(request, e)
            return
        n = request.text.n_tokens - len(request.ids) // 4
        request.ids += ids[:n]
        request.logprobs += logprobs[:n]
        if new and request.listener is not None:
            request.listener(self._said(request, new))
        if self.spend is not None and n > 0:
            self.spend(request.run.order, n)

    def _end(self, request: EngineRequest, finish: wire.Finish) -> None:
        request.finish, request.ended = finish, self.clock()
        self.keeper.ended(request.run, request.ids)
        try:
            rest = request.text.finish(finish.stop_id if finish.stop_id in request.stop_strings else None)
        except BadProgram as e:
            self._give_up(request, e)
            return
        if rest and request.listener is not None:
            request.listener(self._said(request, rest))
        if request.entry is not None:
            try:
                request.entry.ended(finish)
            except BanyanError as e:
                self._give_up(request, e)
                return
        self.ended(request)
        request.done(request)

    def _said(self, request: EngineRequest, text: str) -> StreamPiece:
        told, request.n_told = request.n_told, len(request.logprobs)
        ids = unpack(bytes(request.ids[4 * told : 4 * request.n_told]))
        logprobs = tuple(map(self._logprob, ids, request.logprobs[told:]))
        n_prompt = len(request.run.ids) // 4
        return StreamPiece(text, request.text.n_tokens, logprobs=logprobs, n_prompt=n_prompt, n_cached=request.n_cached)

    def sample(self, request: EngineRequest) -> wire.Sample:
        """The output of a request that finished."""
        assert request.finish is not None
        text, finish = request.text, request.finish
        matched: str | int | None = text.matched
        if matched is None and finish.stop_id >= 0:
            matched = finish.stop_id
        return wire.Sample(
            text=text.text,
            finish_reason="stop" if matched is not None else finish.reason,
            matched=matched,
            n_tokens=text.n_tokens,
            logprobs=tuple(map(self._logprob, unpack(bytes(request.ids)), request.logprobs)),
            drafted=finish.drafted,
            drafts=finish.drafts,
        )

    def prompt(self, request: EngineRequest) -> tuple[wire.TokenLogprob, ...]:
        """The tokens of the prompt whose logprobs were asked for. The first of a text has none: nan."""
        start = request.run.sampling.logprob_start
        if start < 0 or not request.run.sampling.logprobs:
            return ()
        ids = unpack(request.run.ids)[start:]
        tops = request.finish.tops if request.finish is not None else ()
        entries = list(tops) or [wire.TopLogprobs(score) for score in request.scores]
        if start == 0:
            entries.insert(0, wire.TopLogprobs(math.nan))
        return tuple(map(self._logprob, ids, entries))

    def _logprob(self, i: int, entry: wire.TopLogprobs) -> wire.TokenLogprob:
        ids: Any = memoryview(entry.top_ids).cast("i")
        best = zip(ids, memoryview(entry.top_logprobs).cast("f"), strict=True)
        spell = self._tokenizer.text_of
        return wire.TokenLogprob(
            id=i, text=spell([i]), logprob=entry.logprob, top=tuple((k, spell([k]), p) for k, p in best)
        )
