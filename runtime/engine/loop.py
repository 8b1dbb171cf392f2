"""The engine: the loop, and all that it stands on, in one object. Its process is in process.py.

The engine owns pages and nothing that cannot be computed again: it may be killed at any time, and the server's ids are
enough to go on in another.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
import torch
from torch import Tensor

from banyan.kernels.native import threads
from banyan.radix_cache.cache import Cache
from banyan.radix_cache.snapshot import snapshot
from banyan.runtime.config import Config, Resolved, drafters
from banyan.runtime.engine.batch import Batch, assemble
from banyan.runtime.engine.cuda_graphs import Graphs, cuda_capture
from banyan.runtime.engine.determinism import prove
from banyan.runtime.engine.guides import Guides
from banyan.runtime.engine.kv_pool import KVPool, open_file
from banyan.runtime.engine.model_runner import ModelRunner
from banyan.runtime.engine.sampler import Drawn, sample
from banyan.runtime.engine.scheduling.kv_hints import KVHintReceiver
from banyan.runtime.engine.scheduling.request import MAX_TREE, Plan
from banyan.runtime.engine.scheduling.scheduler import Scheduler
from banyan.runtime.engine.scheduling.validate import EngineLimits
from banyan.runtime.engine.speculation import draft_models
from banyan.runtime.engine.speculation.registry import make
from banyan.runtime.errors import OutOfMemory
from banyan.runtime.model.decoder import Decoder
from banyan.runtime.model.load import Model
from banyan.runtime.protocol.flight_record import COMPILER, LOOP, FlightRecord
from banyan.runtime.protocol.wire import (
    Abort,
    Answer,
    Ask,
    Bury,
    EngineOrder,
    EngineReport,
    Failed,
    Hold,
    Over,
    Ping,
    Pong,
    Ready,
    Release,
    Run,
    SetVocabulary,
    Step,
)


class Inbox(Protocol):
    def drain(self, block: bool) -> Iterable[EngineOrder]:
        """The orders that have come; with `block`, wait for one. Raises EOFError when no more will come."""

    def watch(self, fd: int) -> None:
        """End a wait also when this eventfd is written to."""


class Outbox(Protocol):
    def send(self, reports: Iterable[EngineReport]) -> None: ...


class Flying(NamedTuple):
    """A step that the device computes. start: by the stopwatch. logits: until its draws are launched; drawn: from then
    on."""

    plan: Plan
    batch: Batch
    logits: Tensor | None
    start: float
    drawn: Drawn | None = None


class EngineLoop:
    """One model, its pages, and the requests that run on them.

    `take` orders, then `step` until the scheduler is idle; or hand both over to `run`. A step's requests fail together
    when the model fails under them; the others go on.
    """

    def __init__(
        self,
        config: Config,
        model: Model,
        resolved: Resolved,
        clock: Callable[[], float] = time.monotonic,
        flight: FlightRecord | None = None,
        weights: str = "",
        stopwatch: Callable[[], float] | None = None,
        fingerprint: bytes = b"",
        draft_model: draft_models.Draft | None = None,
    ) -> None:
        """flight: where to say what is in hand, for who has to know should this process die of it. weights: which they
        are (`weights.version`), so that a file of the second tier is not taken for these by mistake. stopwatch: in
        seconds, for what a step costs. fingerprint: as in Ready.weights.
        draft_model: see Config."""
        self.config, self.resolved, self.clock, self._flight = config, resolved, clock, flight
        self._fingerprint = fingerprint
        # A step that was held up by other processes says nothing of what it costs.
        is_alone = resolved.device == "cpu" and resolved.threads == 1
        self.stopwatch = stopwatch or (time.thread_time if is_alone else time.perf_counter)
        self.step_seconds = 0.0
        self.spec = model.spec
        self.page = config.page
        self.device = torch.device(resolved.device)
        if self.device.type == "cpu":
            threads.use(resolved.threads)
            torch.set_num_threads(1 if getattr(model, "is_packed", False) else resolved.threads)
        file = open_file(config, resolved, self.spec, weights) if config.host_file else None
        places = resolved.n_pages, config.page, resolved.device, resolved.n_host
        store = KVPool(model.spec, *places, file, config.kv_dtype)
        graphs = None
        # Of transformers' own code nothing is known; and a graph's attention is not cut into absolute chunks.
        if self.device.type == "cuda" and isinstance(model, Decoder) and not config.deterministic:
            graphs = Graphs(model, store, resolved.context, cuda_capture())
        self.model = ModelRunner(model, store, graphs)
        self.cache = Cache(resolved.n_pages, config.page, config.cache, config.eviction, resolved.n_host, file)
        limits = EngineLimits(resolved.context, model.spec.vocab_size, config.max_running, config.step_tokens)
        small = draft_model and draft_models.drafter(draft_model, self.model, config.page, self.stopwatch)
        self.drafting = make(drafters(config.speculate, config.draft_model), small)
        # A branch's keys lie in other slots than a chain's, and are summed in another order.
        self.drafting.max_tree = 0 if config.deterministic else min((MAX_TREE, *filter(None, model.windows)))
        self.scheduler = Scheduler(self.cache, limits, config.schedule, self.drafting)
        self.guides = Guides(model.spec.vocab_size, self.device, partial(self._has_in_hand, COMPILER))
        self.steering = KVHintReceiver(self.cache)
        self.is_ahead = self.device.type == "cuda"  # the device computes while this process does something else
        self._flying: list[Plan] = []  # what the device computes, one behind the other
        self._ended = 0.0  # when the last step had, by the stopwatch
        self.answers: list[Answer | Pong] = []
        self.failed: list[Failed] = []

    @property
    def ready(self) -> Ready:
        resolved = self.resolved
        sizes = resolved.n_pages, self.page, resolved.context
        return Ready(*sizes, resolved.decisions, self.step_seconds, self._fingerprint)

    def warm_up(self) -> None:
        """Compute what no one asked for: kernels are compiled, threads started, and it shows how long a step takes."""
        self.model.settle()
        before = time.monotonic()
        self.model.warm_up(min(self.config.step_tokens, self.resolved.context - 1), self.config.max_running)
        self.step_seconds = time.monotonic() - before
        self.drafting.warm_up(min(self.config.step_tokens, self.resolved.context - 1))
        if self.config.deterministic:
            prove(self.model, self.resolved.context - 1)

    def close(self) -> None:
        """The end: where the second tier is a file, it gets what lies on the device."""
        if self.model.store.file is not None:
            self.cache.close()
            self.model.store.move(self.cache.take_moves())
            self.model.store.release()

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """THE loop, until the inbox ends.

        A device of its own always has its next step before it ends one, where that can be planned without knowing what
        this one draws (`Scheduler.follow`). While it computes, the report of the step before is sent, and requests that
        came are taken. Orders that concern those that run wait for the step's end.
        """
        inbox.watch(self.guides.wake)
        outbox.send([self.ready])
        late: list[EngineOrder] = []
        said: list[EngineReport] = []
        behind: Flying | None = None
        while True:
            try:
                is_done = self.scheduler.is_idle and behind is None and not late
                for order in (*late, *inbox.drain(block=is_done)):
                    self.take(order)
                flying, late = self.draw(behind or self.launch()), []
                behind = None
                if self.is_ahead and flying is not None:
                    behind = self.launch(flying)
                    outbox.send(said)
                    said, late = [], self._take_ahead(inbox)
            except EOFError:
                return
            said += self.reports(self.land(flying))
            if not self.is_ahead or self.scheduler.is_idle:
                outbox.send(said)
                said = []

    def _take_ahead(self, inbox: Inbox) -> list[EngineOrder]:
        """Take what changes nothing of the step that is computed now; return the rest."""
        late: list[EngineOrder] = []
        for order in inbox.drain(block=False):
            if isinstance(order, Run | Ping):
                self.take(order)
            else:
                late.append(order)
        return late

    def step(self) -> Step:
        """Compute one step of whatever stands in the scheduler. What failed by it is in `failed`."""
        return self.land(self.draw(self.launch()))

    def launch(self, before: Flying | None = None) -> Flying | None:
        """Plan a step and give it to the device, which may still compute when this returns. None: there is nothing to
        do, or it failed. before: what the device still computes; None also where this has to land first."""
        for run, guide, ends, error in self.guides.ready():
            if error is not None:
                self.failed.append(Failed(run.rid, 0, error.code, error.message))
            else:
                self.scheduler.take(run, guide, ends)
        if not self.cache.conserved():
            self._mend("its counters do not add up")
        now = self.clock()
        plan = self.scheduler.plan(now) if before is None else self.scheduler.follow(before.plan, now)
        if plan is None:
            return None
        self._flying.append(plan)
        self._note_flying()
        self.model.store.move(plan.moves)  # where this fails the tree is wrong, and the engine has to end
        start = self.stopwatch()
        drawn = (before.batch.drawn, before.drawn.ids) if before is not None else None
        try:
            batch = assemble(plan, self.page, self.device, self.config.deterministic, drawn)
            return Flying(plan, batch, self.model(batch, plan.copies), start)
        except Exception as e:
            self._fail(plan, e)
            return None

    def draw(self, flying: Flying | None) -> Flying | None:
        """Launch the draws of a step, behind it and before any other: all tokens before them are known by now, so masks
        and penalties are. None: there is no step, or it failed."""
        if flying is None:
            return None
        plan, batch, logits, start, _ = flying
        if plan.is_ahead:  # others were taken since it was launched
            self._note_flying()
        try:
            masks = self.guides.masks(batch.drawn, batch.drawing(logits))  # while a GPU computes
            return Flying(plan, batch, None, start, sample(logits, batch, masks))
        except Exception as e:
            self._fail(plan, e)
            return None

    def land(self, flying: Flying | None) -> Step:
        """Wait for the draws of a step, and commit it."""
        if flying is not None:
            plan, batch, _, start, drawn = flying
            assert drawn is not None, "a step lands when its draws are launched"
            self._note_flying()  # others may have been taken meanwhile
            try:
                result = drawn.read()
            except Exception as e:
                self._fail(plan, e)
            else:
                self._flying.remove(plan)
                self.scheduler.commit(plan, result)
                self.model.store.copy_slots(self.scheduler.moves)
                self.scheduler.moves.clear()
                if self.drafting.drafters:
                    now = self.stopwatch()
                    seconds = now - max(start, self._ended)  # it may have waited for the one before it
                    self.drafting.note(plan, sum(batch.ragged.q_lens), seconds)
                    self._ended = now
        step, failed = self.scheduler.report()
        self.failed += failed
        return step

    def reports(self, step: Step) -> list[EngineReport]:
        """All that there is to send, and forget it."""
        out: list[EngineReport] = [*self.failed, *self.answers]
        if step.rids or step.finished:
            out.append(step)
        self.failed, self.answers = [], []
        return out

    def _note_flying(self) -> None:
        """Who might be the reason, should the device take this process with it: a fault shows late."""
        if self._flight is not None:
            self._flight.note(LOOP, [work.request.rid for plan in self._flying for work in plan.works])

    def _has_in_hand(self, lane: int, rids: list[int]) -> None:
        if self._flight is not None:
            self._flight.note(lane, rids)

    def take(self, order: EngineOrder) -> None:
        match order:
            case Ping():
                self.answers.append(Pong())
            case Ask():
                self.answers.append(self._answer(order))
            case SetVocabulary():
                if known := self.guides.learn(order):
                    self.drafting.learn(known.spelling, known.control)
            case Run() if order.sampling.constraint is not None:
                if self.scheduler.admit(order):
                    self.guides.submit(order)
            case Run():
                self._has_in_hand(LOOP, [order.rid])
                self.scheduler.take(order)
            case Over():
                self.scheduler.take(order)
            case Hold() | Release() | Bury():
                self.steering.take(order, self.clock())
            case Abort():
                if (run := self.guides.abort(order.rid)) is not None:
                    self.scheduler.take(run)  # to end there, as any other
                self.scheduler.take(order)

    def _answer(self, ask: Ask) -> Answer:
        """stats: counters of the engine and its tree. check: every invariant. tree: its nodes. events: what came and
        went there. info: the model and the options."""
        if ask.what == "check":
            try:
                self.scheduler.check()
            except AssertionError as e:
                n_withdrawn = self._mend(str(e))
                what = f"the engine's books did not balance: {e}; {n_withdrawn} pages were withdrawn, and it goes on"
                return Answer(ask.id, False, what.encode())
            return Answer(ask.id, True, b"{}")
        if ask.what == "flush":
            self.cache.reset()
            return Answer(ask.id, True, b"{}")
        if ask.what == "tree":
            return Answer(ask.id, True, msgspec.json.encode(snapshot(self.cache, ask.most)))
        if ask.what == "events":
            said = self.cache.listen(time.time_ns() // 1000).since(ask.since)
            events = [event._asdict() for event in said.events]
            return Answer(ask.id, True, msgspec.json.encode(said._asdict() | {"events": events}))
        if ask.what == "stats":
            return Answer(ask.id, True, msgspec.json.encode(self.stats()))
        facts = {"model": self.spec, "config": self.config, "resolved": self.resolved}
        return Answer(ask.id, True, msgspec.json.encode(facts))

    def _mend(self, why: str) -> int:
        """The tree is not what it should be, by a bug. Returns how many pages are withdrawn; raises AssertionError, and
        ends the engine by that, where the tree cannot be used any more."""
        before = self.cache.stats()
        self.scheduler.mend()
        after = self.cache.stats()
        n = after.n_quarantined - before.n_quarantined
        print(
            f"banyan: the tree's books did not balance: {why}; {n} pages are withdrawn, {after.n_cached} of "
            f"{before.n_cached} stay cached. This is a bug; please report it",
            file=sys.stderr,
            flush=True,
        )
        return n

    def stats(self) -> dict[str, object]:
        return {"engine": self.scheduler.stats(), "cache": self.cache.stats()._asdict()}

    def _fail(self, plan: Plan, error: Exception) -> None:
        """A step did not complete. Its requests fail; raises again where the device itself is lost."""
        traceback.print_exception(error, file=sys.stderr)
        self._flying.remove(plan)
        memory = isinstance(error, torch.OutOfMemoryError)
        code = OutOfMemory.code if memory else "error"
        self.scheduler.fail(plan, code, f"the engine failed in a step of {len(plan.works)} requests: {error!r}")
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # after a fault in a kernel every call fails, this one too
