"""The requests that run in the engines. The server sends each one, and receives its tokens step by step.

The server holds the prompt and the output so far of each request. So the death of an engine costs time, but no results:
`replay` sends each running request to another engine, with its output so far. recovery.py decides which requests may
have killed the engine, and routes.py which engine computes which request.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from banyan.runtime.errors import BadProgram, BanyanError, EngineLost, Overloaded, Quarantined, from_code
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.kv_hints import KVHintSender
from banyan.runtime.server.engine_link.pulls import PendingPull
from banyan.runtime.server.engine_link.recovery import MAX_LOST, Death, Trials
from banyan.runtime.server.engine_link.replica_process import ReplicaProcess
from banyan.runtime.server.engine_link.routes import Routes
from banyan.runtime.server.policy.tenants import adapted
from banyan.runtime.server.programs.journal import JournalEntry
from banyan.runtime.server.programs.scheduling import SchedulingInfo
from banyan.runtime.server.text.detokenizer import Detokenizer
from banyan.runtime.server.text.images import ImageFile
from banyan.runtime.server.text.prompt import pack, unpack
from banyan.runtime.server.text.tokenizer import Tokenizer


class StreamPiece(NamedTuple):
    """A piece of the text of a streaming gen. The fields mean the same as in wire.Delta."""

    text: str
    n_tokens: int = 0
    is_thought: bool = False
    round: int = 0
    logprobs: tuple[wire.TokenLogprob, ...] = ()
    n_prompt: int = 0
    n_cached: int = 0
    call: wire.CallPiece | None = None


Listener: TypeAlias = Callable[[StreamPiece], None]


class RequestOwner(Protocol):
    """The program that a request belongs to."""

    scheduling: SchedulingInfo

    def record(self, run: wire.Run, visible: Collection[int]) -> JournalEntry | None:
        """Returns the request's entry in the program's journal; None: the program is not durable.

        run: the request, still with its stop strings and patterns, which the engine does not get. visible: ids of
        special tokens that the output text contains."""

    def spend(self, order: tuple[int, ...], n: int) -> None:
        """Count `n` output tokens of one of the program's requests against the limits. order: the request's
        wire.Run.order."""

    def crashed(self, error: Exception) -> None:
        """End the program with an error, because it cannot continue, or because the server itself raised `error`."""


class EngineRequest:
    """One request, from `wire.Run` to its end.

    ids                  output token ids so far, int32
    finish               how the request ended; None while it runs
    error                why it failed: the engine refused it, or the server could not process its text
    replica              the engine that computes it
    sent, first, ended   as in wire.Times
    """

    def __init__(
        self,
        run: wire.Run,
        owner: RequestOwner,
        text: Detokenizer,
        done: Callable[[EngineRequest], None],
        replica: ReplicaProcess,
        sent: float,
    ) -> None:
        self.run, self.owner, self.text, self.done, self.replica = run, owner, text, done, replica
        self.sent, self.first, self.ended = sent, 0.0, 0.0
        self.ids = bytearray()
        self.logprobs: list[wire.TopLogprobs] = []
        self.n_streamed = 0  # number of tokens whose logprobs the listener has received
        self.n_cached = 0  # prompt tokens that were cached; known with the first output token
        self.finish: wire.Finish | None = None
        self.error: BanyanError | None = None
        self.listener: Listener | None = None
        self.files: tuple[ImageFile, ...] = ()
        """The images of the prompt. The engine may ask for them as long as this request lives."""
        self.stop_strings: frozenset[int] = frozenset()
        """Ids in `run.stop_ids` whose text contains a stop string."""
        self.n_deaths = self.n_blamed = self.n_blamed_ever = 0  # see recovery.Suspect
        self.is_given = False
        self.pull: PendingPull | None = None  # the pull that the request waits for
        self.record: JournalEntry | None = None
        self.is_restoring = False  # `_restore` will add its recorded output, and then run it

    @property
    def rid(self) -> int:
        return self.run.rid

    @property
    def serial(self) -> int:
        """The serial number of the program to which the request belongs."""
        return self.run.order[0]

    @property
    def scores(self) -> list[float]:
        """The logprobs of the prompt tokens from index `run.score_from` on; [] if the request has not finished, or no
        scores were asked for."""
        return [] if self.finish is None else list(array("f", self.finish.scores))


class EngineRequests:
    """All requests that run.

    call_later: calls a function on the server's loop, after the current callback. on_end: called with each request that
    ended without an error, before the request's own `done`. is_late: whether the current callback should end soon.
    call_in: call_in(seconds, call) calls a function on the loop later. n_prefill: the first n_prefill engines compute
    prompts only. max_bytes: maximum number of bytes that the prompts of a client's requests may take together; equal
    prompts count separately, because the engine stores each of them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        n_vocabulary: int | None,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[Callable[[], None]], None] = lambda call: call(),
        on_end: Callable[[EngineRequest], None] = lambda request: None,
        is_late: Callable[[], bool] = lambda: False,
        row_id: int = 0,
        call_in: Callable[[float, Callable[[], None]], object] = lambda seconds, call: None,
        n_prefill: int = 0,
        max_bytes: int = 1 << 30,
    ) -> None:
        """n_vocabulary: the number of ids in the model's vocabulary; None: not known. clock: returns the current time
        in seconds. row_id: the token id that stands for rows of images in the prompt's logprobs. The other arguments
        are explained at the class."""
        self._tokenizer, self._n_vocabulary, self.clock = tokenizer, n_vocabulary, clock
        self._row_id = row_id
        self._call_later, self._on_end, self._is_late = call_later, on_end, is_late
        self._n_prefill = n_prefill
        self.routes = Routes(clock, call_in)
        self.kv_hints = KVHintSender(self.routes.hint, clock)
        self._living: dict[int, EngineRequest] = {}
        self._max_bytes = max_bytes
        self._prompt_bytes = Counter[int]()  # by client
        self._dropped: deque[Callable[[], None]] = deque()
        """Calls that stop requests which nobody needs any more, and then calls that end their programs."""
        self._n_started = 0

    def add_engine(self, replica: ReplicaProcess) -> None:
        """Add an engine, to which requests are sent."""
        replica.trials = Trials(self._run, lambda request: request.rid in self._living, self._is_late, self._call_later)
        replica.is_prefill = replica.name.isdigit() and int(replica.name) < self._n_prefill
        self.routes.all.append(replica)

    def __len__(self) -> int:
        return len(self._living)

    @property
    def living(self) -> list[int]:
        """The ids of the requests that have not ended."""
        return list(self._living)

    def start(
        self,
        run: wire.Run,
        done: Callable[[EngineRequest], None],
        *,
        owner: RequestOwner,
        turn_ends: Sequence[int] = (),
        listener: Listener | None = None,
        visible: Collection[int] = (),
        files: tuple[ImageFile, ...] = (),
    ) -> EngineRequest:
        """Send a request to the engine. Calls `done` once, when the request has ended.

        run: the request. It still has its stop strings and patterns; its rid, stop_ids, client and namespace are set
        here, and its deadline, if it has none, is that of the owner. turn_ends: ids that end the output, unless the
        sampling parameters have ignore_eos. visible: ids of special tokens that the output text contains. files: the
        images of the prompt.

        Raises BadProgram if a stop id is out of range, and Overloaded if the client's prompts would take too many
        bytes."""
        tokens, sampling = self._tokenizer, run.sampling
        n_ids = self._n_vocabulary or 1 << 31
        for i in sampling.stop_token_ids:
            if not 0 <= i < n_ids:
                raise BadProgram(f"stop_token_ids has {i}; the model's vocabulary is 0 .. {n_ids - 1}")
        stops = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stops |= {i for i in (*tokens.eos_ids, *turn_ends) if self._n_vocabulary is None or i < self._n_vocabulary}
        stop_strings = frozenset[int]()
        if not sampling.min_tokens:  # before min_tokens the engine draws no stop id, but may draw these
            stop_strings = stop_strings.union(*(tokens.stop_ids(stop) for stop in sampling.stop)) - stops
        if stop_strings and sampling.constraint is not None:
            # The constraint may demand such a token, which as a stop id could come only after the whole value. The text
            # shows it, so that the stop string is found there.
            stop_strings -= set(tokens.added.values()) - tokens.special
        info = owner.scheduling
        self.check_room(info.client, len(run.ids))
        run = msgspec.structs.replace(
            run,
            rid=self._n_started,
            stop_ids=pack(sorted(stops | stop_strings)),
            namespace=adapted(info.namespace, run.adapter),
            client=info.client,
            deadline=run.deadline or info.deadline,
        )
        hidden = tokens.special.difference(visible) if visible else tokens.special
        text = Detokenizer(tokens.spelling, hidden, sampling.stop, sampling.min_tokens, sampling.stop_regex)
        record = owner.record(run, visible)  # first, since it raises if the journal is full
        if sampling.stop or sampling.stop_regex:  # the engine works on ids only
            run = msgspec.structs.replace(run, sampling=msgspec.structs.replace(sampling, stop=(), stop_regex=()))
        if record is not None:
            run = msgspec.structs.replace(run, seed=record.seed)
        request = EngineRequest(run, owner, text, done, self.routes.place(run, info.weights), self.clock())
        request.stop_strings, request.listener = stop_strings, listener
        request.files, request.record = files, record
        self._n_started += 1
        self._add_living(request)
        self.kv_hints.started(run)
        if record is None or record.is_new:
            self._submit(request)
        else:
            request.is_restoring = True
            self._call_later(partial(self._guarded, self._restore, request, record))
        return request

    def _restore(self, request: EngineRequest, record: JournalEntry) -> None:
        """Continue a request that an earlier server had, with its recorded output."""
        request.is_restoring = False
        if request.rid in self._living:
            self._add(request, memoryview(bytes(record.ids)).cast("i"), record.logprobs)
        if request.rid not in self._living:
            return
        if record.finish is None:
            self._submit(request)
        else:
            self._forget(request.rid)
            self._end(request, msgspec.structs.replace(record.finish, rid=request.rid, started=0.0))

    def _submit(self, request: EngineRequest) -> None:
        """Run a request now or, if a pull brings its prefix, after that pull."""
        if not self._waits(request):
            request.replica.trials.submit(request)

    def _waits(self, request: EngineRequest) -> bool:
        """Whether a pull brings a part of the request's prompt. If so, the request runs when the pull is over."""
        request.pull = pull = self.routes.pulls.serving(request.run, request.replica)
        if pull is not None:
            pull.waiting[request.rid] = partial(self._end_wait, request)
        return pull is not None

    def _end_wait(self, request: EngineRequest) -> None:
        request.pull = None
        request.replica.trials.submit(request)

    def _guarded(self, handle: Callable[..., None], request: EngineRequest, *arguments: Any) -> None:
        """Call handle(request, *arguments). An exception ends only the program of `request`, not the server's loop.
        (Not a context manager, which would take 1 us for each token.)"""
        try:
            handle(request, *arguments)
        except Exception as e:
            self.abort(request)
            request.owner.crashed(e)

    def end(self, client: int, serial: int) -> None:
        """End a program that will start no more requests, and whose requests have all ended or were aborted.

        The engine must get the aborts of its requests first. Otherwise a request that still waits for its compiled
        constraint could be queued after the program's end, and the engine would keep the program."""
        end = partial(self.routes.end, client, serial)
        if self._dropped:
            self._dropped.append(end)
        else:
            end()

    def check_room(self, client: int, n_bytes: int) -> None:
        """Check whether the client may start requests whose prompts take n_bytes. Raises Overloaded if the prompts of
        all its requests would then take more than `max_bytes`."""
        if (n_now := self._prompt_bytes[client]) + n_bytes > self._max_bytes:
            now, more, most = (f"{n / 2**20:.1f} MiB" for n in (n_now, n_bytes, self._max_bytes))
            raise Overloaded(
                f"the prompts of this client's running requests take {now}, and those of this gen or select {more}, "
                f"one for each sample or choice; the limit is {most}: run fewer at once, or raise `max_client`"
            )

    def _add_living(self, request: EngineRequest) -> None:
        self._living[request.rid] = request
        self._prompt_bytes[request.run.client] += len(request.run.ids)
        request.replica.n_running += 1

    def _forget(self, rid: int) -> EngineRequest | None:
        """Remove the request `rid`, and return it; None if there is no such request."""
        if (request := self._living.pop(rid, None)) is not None:
            client = request.run.client
            self._prompt_bytes[client] -= len(request.run.ids)
            if not self._prompt_bytes[client]:
                del self._prompt_bytes[client]
            request.replica.n_running -= 1
            if request.pull is not None:
                self.routes.pulls.leave(request.pull, rid)
                request.pull = None
            self.routes.ended(rid, len(request.ids) // 4)
        return request

    def abort(self, *requests: EngineRequest) -> None:
        """Forget requests, and stop those that have not ended; `done` is not called. The engine is told, and the
        requests' memory is freed, as soon as the loop has time."""
        self._dropped.extend(
            partial(self._stop, request, self._forget(request.rid) is not None) for request in requests
        )
        self._drop()

    def _stop(self, request: EngineRequest, was_living: bool) -> None:
        if was_living:
            request.replica.send(wire.Abort(rid=request.rid))
            self.kv_hints.ended(request.run, request.ids)

    def _drop(self) -> None:
        while self._dropped:
            self._dropped.popleft()()
            if self._dropped and self._is_late():
                self._call_later(self._drop)
                return
        self._go_on()

    def take(self, step: wire.Step, replica: ReplicaProcess) -> Iterator[None]:
        """Handle the report of one engine step. A generator; each of its steps handles one request. Entries about
        requests of other engines are ignored."""
        at = 0
        ids = memoryview(step.ids).cast("i")
        counts = memoryview(step.counts).cast("i")
        for rid, n in zip(memoryview(step.rids).cast("q"), counts, strict=True):
            if (request := self._living.get(rid)) and request.replica is replica:
                request.n_cached = step.cached.get(rid, request.n_cached)
                self._guarded(self._grow, request, ids[at : at + n], step.logprobs.get(rid, ()))
                yield
            at += n
        for finish in step.finished:
            if (request := self._living.get(finish.rid)) and request.replica is replica:
                is_cut = finish.reason == "length" and len(request.ids) // 4 < request.run.sampling.max_tokens
                if not (is_cut and request.text.matched is None and request.replica.trials.has_passed(request)):
                    self._forget(finish.rid)
                    self._guarded(self._end, request, finish)
                    yield
        self._go_on()
        yield from self.kv_hints.settle()

    def _go_on(self) -> None:
        for replica in self.routes.all:
            replica.trials.go_on()

    def refused(self, failed: wire.Failed, replica: ReplicaProcess) -> None:
        """Fail a request that an engine has refused, unless another engine has the request now."""
        if (request := self._living.get(failed.program)) and request.replica is replica:
            self.fail(failed.program, from_code(failed.code, failed.message))

    def fail(self, rid: int, error: BanyanError) -> None:
        """End a request with its own error: the executor adds to it."""
        if request := self._forget(rid):
            self.kv_hints.ended(request.run, request.ids)
            request.error = error
            self._guarded(request.done, request)
            request.replica.trials.go_on()

    def replay(self, replica: ReplicaProcess, death: Death = Death()) -> None:  # noqa: B008 (it is frozen)
        """Send all requests of a dead engine again, with their output so far.

        Requests that may have caused the crash go to the engine that replaces the dead one. The others go to engines
        that are ready, if there are any. Requests that have crashed too many engines fail with Quarantined. If MAX_LOST
        requests of a program have failed in this way, the whole program fails with Quarantined."""
        self._lose_pulls(replica)
        self.routes.lost(replica)
        replica.others = wire.OtherWork()
        sent = [request for request in self._requests_of(replica) if not request.is_restoring]
        for request in replica.trials.judge(death, sent):
            n_deaths = max(request.n_deaths, request.n_blamed_ever)
            why = f"{n_deaths} engines died of this request, and it is not run again; the last: {death.how}"
            self.fail(request.rid, Quarantined(why))
            if (placed := self.routes.find(request.serial)) is not None:  # otherwise this failure has ended the program
                placed.n_given_up += 1
                if placed.n_given_up >= MAX_LOST:
                    many = f"engines died of {MAX_LOST} requests of this program; the last: {death.how}"
                    request.owner.crashed(Quarantined(many))
        if self.routes.others_take(replica):
            for request in replica.trials.take_innocent():
                self._move(request)
        self._go_on()

    def remove_engine(self, replica: ReplicaProcess) -> None:
        """Remove an engine that has ended for good. Its requests start again elsewhere."""
        replica.is_open = False
        self._lose_pulls(replica)
        self.routes.remove(replica)
        for request in self._requests_of(replica):
            request.is_given = False
            self._move(request)
        self._go_on()

    def vacate(self, replica: ReplicaProcess) -> None:
        """Place no more requests on this engine.

        A request ends on its old engine if it has output, or if it may have crashed an engine. All others start again
        on other engines. Then the KV of the states without a running request is handed over to other engines."""
        replica.is_open = False
        replica.trials.take_innocent()
        for request in self._requests_of(replica):
            is_under_way = request.is_given and request.ids
            if not (is_under_way or request.n_blamed or replica.trials.is_tried(request)):
                self._move(request)
        self.routes.hand_over(replica, self.kv_hints.resting())
        self._go_on()

    def _lose_pulls(self, replica: ReplicaProcess) -> None:
        """End the transfers of KV to an engine that has died or left. The caller must place all requests of that engine
        again, also those that waited for a transfer."""
        for request in self._requests_of(replica):
            request.pull = None
        self.routes.pulls.lost(replica)

    def _requests_of(self, replica: ReplicaProcess) -> list[EngineRequest]:
        return [request for request in self._living.values() if request.replica is replica]

    def _move(self, request: EngineRequest) -> None:
        """Place a request again. The request gets a new id, so late messages of its old engine have no effect."""
        self._forget(request.rid)
        if request.is_given:
            request.replica.send(wire.Abort(rid=request.rid))
            request.is_given = False
        request.run = msgspec.structs.replace(request.run, rid=self._n_started)
        self._n_started += 1
        request.replica = self.routes.place(request.run, request.owner.scheduling.weights)
        self._add_living(request)
        if not (request.is_restoring or self._waits(request)):
            request.replica.trials.add(request)

    def _run(self, request: EngineRequest, is_trial: bool) -> None:
        """Send the request to its engine, with the output that it has so far. is_trial: the request may have crashed an
        engine; it then generates one token, and waits to be continued."""
        if request.text.matched is not None:  # the request is complete; it only waited for the engine's token counts
            self._forget(request.rid)
            finish = wire.Finish(rid=request.rid, reason="abort", n_prompt=len(request.run.ids) // 4)
            self._guarded(self._end, request, finish)
            return
        done = bytes(request.ids)
        n_done = len(done) // 4
        run = msgspec.structs.replace(request.run, ids=request.run.ids + done, n_done=n_done)
        if is_trial:
            sampling = msgspec.structs.replace(run.sampling, max_tokens=min(run.sampling.max_tokens, n_done + 1))
            run = msgspec.structs.replace(run, sampling=sampling, is_trial=True)
        try:
            request.replica.send(run)
        except Exception as e:  # reported from the loop: the caller may be in the middle of its program
            self._call_later(partial(request.owner.crashed, e))

    def fail_all(self, why: str) -> None:
        """Fail all requests with EngineLost(`why`), because there is no engine any more."""
        for rid in list(self._living):
            self.fail(rid, EngineLost(why))

    def _give_up(self, request: EngineRequest, error: BanyanError) -> None:
        """Fail a request because of its own text or journal."""
        self.abort(request)
        request.error = from_code(error.code, error.message)  # tracebacks of the other may refer to the request
        request.done(request)

    def _grow(self, request: EngineRequest, ids: memoryview, logprobs: Sequence[wire.TopLogprobs]) -> None:
        if request.text.matched is not None:
            return  # the engine has not seen the Abort yet
        request.n_deaths = request.n_blamed = 0
        if request.record is not None:
            try:
                request.record.grew(bytes(ids), logprobs)
            except BanyanError as e:
                self._give_up(request, e)
                return
        self._add(request, ids, logprobs)
        if request.text.matched is not None and request.rid in self._living:
            # The request ends when the engine sends its Finish, which has the token counts.
            request.replica.send(wire.Abort(rid=request.rid))

    def _add(self, request: EngineRequest, ids: memoryview, logprobs: Sequence[wire.TopLogprobs]) -> None:
        """Detokenize new tokens, and stream their text."""
        if not request.first:
            request.first = self.clock()
            self.routes.began(request.rid)
        try:
            new = request.text.feed(ids)
        except BadProgram as e:
            self._give_up(request, e)
            return
        n = request.text.n_tokens - len(request.ids) // 4
        request.ids += ids[:n]
        request.logprobs += logprobs[:n]
        if new and request.listener is not None:
            request.listener(self._stream_piece(request, new))
        if n > 0:
            request.owner.spend(request.run.order, n)

    def _end(self, request: EngineRequest, finish: wire.Finish) -> None:
        request.finish, request.ended = finish, self.clock()
        self.kv_hints.ended(request.run, request.ids)
        try:
            rest = request.text.finish(finish.stop_id if finish.stop_id in request.stop_strings else None)
            if rest and request.listener is not None:
                request.listener(self._stream_piece(request, rest))
            if request.record is not None:
                request.record.ended(finish)
        except BanyanError as e:
            self._give_up(request, e)
            return
        self._on_end(request)
        request.done(request)

    def _stream_piece(self, request: EngineRequest, text: str) -> StreamPiece:
        start, request.n_streamed = request.n_streamed, len(request.logprobs)
        ids = unpack(bytes(request.ids[4 * start : 4 * request.n_streamed]))
        logprobs = tuple(map(self._logprob, ids, request.logprobs[start:]))
        n_prompt = len(request.run.ids) // 4
        return StreamPiece(text, request.text.n_tokens, logprobs=logprobs, n_prompt=n_prompt, n_cached=request.n_cached)

    def sample(self, request: EngineRequest) -> wire.Sample:
        """The output of a finished request."""
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
            end=self._logprob(finish.stop_id, finish.end) if finish.end and matched == finish.stop_id else None,
        )

    def prompt(self, request: EngineRequest) -> tuple[wire.TokenLogprob, ...]:
        """Returns the prompt's tokens from the sampling parameter `logprob_start` on, with their logprobs; () if no
        logprobs were asked for. The logprob of a prompt's first token is nan."""
        start = request.run.sampling.logprob_start
        if start < 0 or not request.run.sampling.logprobs:
            return ()
        ids = unpack(request.run.ids)
        for one in request.run.images:
            ids[one.start : one.start + one.n] = [self._row_id] * one.n
        ids = ids[start:]
        tops = request.finish.tops if request.finish is not None else ()
        entries = list(tops) or [wire.TopLogprobs(score) for score in request.scores]
        if start == 0:
            entries.insert(0, wire.TopLogprobs(math.nan))
        return tuple(map(self._logprob, ids, entries))

    def _logprob(self, i: int, entry: wire.TopLogprobs) -> wire.TokenLogprob:
        ids: Any = memoryview(entry.top_ids).cast("i")
        best = zip(ids, memoryview(entry.top_logprobs).cast("f"), strict=True)
        text, text_of = self._tokenizer.text_of([i]), self._tokenizer.text_of
        top = tuple((k, text_of([k]), p) for k, p in best)
        spellings = tuple(self._spelling(k, other) for k, other, _ in top)
        return wire.TokenLogprob(
            i, text, entry.logprob, top, self._spelling(i, text), spellings if any(spellings) else ()
        )

    def _spelling(self, i: int, text: str) -> bytes:
        """Returns the bytes of token `i` if they may be only part of a character, because its `text` has U+FFFD; else
        b""."""
        return self._tokenizer.spelling[i] if "\ufffd" in text else b""
