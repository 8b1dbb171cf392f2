"""The engine: the loop, and the parts that it drives. Everything in an engine can be computed again, so it may be
killed at any time: the server has all token ids and continues in another engine."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import msgspec
import torch
from torch import Tensor

from banyan.radix_cache.cache import Cache
from banyan.radix_cache.events import CacheEvents
from banyan.radix_cache.snapshot import snapshot
from banyan.radix_cache.windows import WindowPages
from banyan.runtime.config import Config, Resolved, drafters, tokens_ahead
from banyan.runtime.engine import guides
from banyan.runtime.engine.adapters import LoadedAdapters
from banyan.runtime.engine.batch import Batch, assemble
from banyan.runtime.engine.cuda_graphs import Graphs, cuda_capture
from banyan.runtime.engine.determinism import check_determinism
from banyan.runtime.engine.guides import Guides
from banyan.runtime.engine.hardware import n_cores
from banyan.runtime.engine.images import EngineImages
from banyan.runtime.engine.kv_pool import KVPool, kv_format, open_file
from banyan.runtime.engine.model_runner import ModelRunner, use_threads
from banyan.runtime.engine.sampler import PendingSample, sample
from banyan.runtime.engine.scheduling import kv_hints
from banyan.runtime.engine.scheduling.kv_hints import KVHintReceiver
from banyan.runtime.engine.scheduling.request import MAX_TREE, Plan
from banyan.runtime.engine.scheduling.scheduler import Scheduler
from banyan.runtime.engine.scheduling.validate import EngineLimits
from banyan.runtime.engine.speculation.drafters import DraftModel, make_controller, make_model_drafter
from banyan.runtime.engine.transfer.exchange import KVExchange
from banyan.runtime.errors import BadProgram, BanyanError, OutOfMemory
from banyan.runtime.model.decoder import Decoder
from banyan.runtime.model.load import Model
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.flight_record import COMPILER, LOOP, FlightRecord

if TYPE_CHECKING:
    from banyan.runtime.model.hf import HfModel
    from banyan.runtime.model.recurrent import StatePool

WALKS, SHORT_WALK = 20.0, 1.0
"""An answer for which walking the tree took t seconds is reused for WALKS * t - SHORT_WALK seconds: not at all if the
tree is small, and for 10 s if it has 100,000 nodes."""


STATES_PER_REQUEST = 4
"""Maximum number of recurrent-state slots per running request: one for the request itself, the others for states in the
tree."""


def claim_states(model: HfModel, resolved: Resolved, max_running: int) -> StatePool:
    """Allocate the slots for the recurrent states of a model: as many as fit into `Resolved.state_memory`, at most
    STATES_PER_REQUEST for each of max_running requests. Raises OutOfMemory if fewer than 2 fit."""
    n_slots = min(resolved.state_memory // model.state_bytes, STATES_PER_REQUEST * max_running)
    if n_slots < 2:
        raise OutOfMemory(
            f"{model.spec.name} needs two recurrent states of {model.state_bytes / 2**20:.1f} MiB, but only "
            f"{max(resolved.state_memory, 0) / 2**20:.1f} MiB are available; raise `state_memory`, or lower `kv_memory`"
        )
    return model.new_states(n_slots)


class Link(Protocol):
    """The connection to the server; see process.ServerLink."""

    def drain(self, block: bool) -> Iterable[wire.EngineCommand]: ...
    def watch(self, fd: int) -> None: ...
    def send(self, reports: Iterable[wire.EngineReport]) -> None: ...


class InFlightStep(NamedTuple):
    """A step that the device computes. logits: the output of the forward pass, until sampling is launched; None
    afterwards. pending: the result of sampling, from then on. start: the time of the launch, by the stopwatch."""

    plan: Plan
    batch: Batch
    start: float
    logits: Tensor | None = None
    pending: PendingSample | None = None


class EngineLoop:
    """An engine: one model, its pages, and the requests that run on them. Call `run`; or `take` each message of the
    server, and then `step` until the scheduler is idle. If the model fails in a step, the requests of that step fail
    and the others continue."""

    def __init__(
        self, config: Config, model: Model, resolved: Resolved, clock: Callable[[], float] = time.monotonic,
        flight: FlightRecord | None = None, weights: str = "", stopwatch: Callable[[], float] | None = None,
        fingerprint: bytes = b"", draft_model: DraftModel | None = None,
        make_runner: Callable[[Model, KVPool, Graphs | None], ModelRunner] = ModelRunner, host: str = "",
    ) -> None:  # fmt: skip
        """flight: records the requests of the steps in flight, in case one of them kills this process. weights:
        `weights.version`, which identifies the second tier's file. stopwatch: returns the time, in seconds, by which
        steps are measured. fingerprint: see Ready.weights. host: see KVExchange."""
        self.config, self.resolved, self.clock, self._flight = config, resolved, clock, flight
        self.spec, self.page, self.device = model.spec, config.page, torch.device(resolved.device)
        self._fingerprint = fingerprint
        # On one CPU thread the cost of a step is CPU time, which other processes do not disturb.
        is_one_thread = resolved.device == "cpu" and resolved.threads == 1
        self.stopwatch = stopwatch or (time.thread_time if is_one_thread else time.perf_counter)
        if self.device.type == "cpu":
            use_threads(resolved.threads, model)
        has_state = model.spec.kv_layers is not None
        # The device computes while this process plans. But a step planned ahead may compute a row too many, which
        # cannot be undone in a recurrent state.
        self.plans_ahead = self.device.type == "cuda" and not has_state

        file = open_file(config, resolved, self.spec, weights) if config.host_file else None
        sizes = resolved.n_pages, config.page
        n_window = resolved.n_window_pages
        store = KVPool(model.spec, *sizes, resolved.device, resolved.n_host, file, config.kv_dtype, n_window)
        graphs = None
        # transformers' own code may not be capturable, and a captured step does not cut attention into absolute chunks.
        if self.device.type == "cuda" and isinstance(model, Decoder) and not config.deterministic:
            graphs = Graphs(model, store, resolved.context, cuda_capture())
        if has_state:
            store.states = claim_states(cast("HfModel", model), resolved, config.max_running)
        self.model = make_runner(model, store, graphs)
        self.adapters = LoadedAdapters(model.spec, self.device)
        n_states = store.states.n_slots if store.states else 0
        window = None
        if n_window:
            n_ahead = tokens_ahead(config, resolved.device, self.spec.n_whole_rows)
            window = WindowPages(n_window, config.page, self.spec.window, n_ahead, self.spec.n_first)
        self.cache = Cache(*sizes, config.cache, config.eviction, resolved.n_host, file, n_states, window)
        drafter = None
        if draft_model is not None:
            drafter = make_model_drafter(draft_model, self.model, self.stopwatch, self._move_pages)
        # In deterministic mode drafts do not branch: a branch's keys are in other slots, and summed in another order.
        self._chunk = model.spec.chunk if model.spec.chunk < resolved.context else 0
        # Nor do they branch if layers attend in chunks: the chunk of a branch's token does not follow from its slot.
        is_chain = config.deterministic or self._chunk
        max_tree = 0 if is_chain else min((MAX_TREE, *filter(None, model.windows)))
        names = drafters(config.speculate, config.draft_model)
        if has_state:  # a recurrent state cannot be rolled back over a rejected draft; forced tokens are never rejected
            names = tuple(name for name in names if name == "grammar")
        self.drafting = make_controller(names, drafter, max_tree, self._check_device)
        of_images = model.spec.images
        self.images = EngineImages(of_images, getattr(model, "tower", None), self.device)
        self._row_id = -1 if of_images is None else of_images.row_id
        limits = EngineLimits(
            resolved.context, model.spec.vocab_size, config.max_running, config.step_tokens, self._row_id,
            bool(model.spec.n_whole_rows),
        )  # fmt: skip
        self.scheduler = Scheduler(self.cache, limits, config.schedule, self.drafting, self.images.find)
        self.guides = Guides(model.spec.vocab_size, self.device, lambda rids: self._record(COMPILER, rids))
        self.kv_hints = KVHintReceiver(self.cache)
        kv = kv_format(config, resolved, self.spec, fingerprint) if self.model.has_whole_pages else None
        loaded = self.adapters.weights
        self.exchange = KVExchange(self.cache, self.model, self.scheduler, kv, clock, host, loaded, config.kv_transfer)

        self.step_seconds = 0.0  # seconds of the largest step
        self._in_flight: list[Plan] = []  # what the device computes, in order
        self._last_end = 0.0  # end of the last step, by the stopwatch
        # kind of question (Ask.what) -> (time until which the answer is reused, the answer)
        self._walks: dict[str, tuple[float, wire.Answer | None]] = {}
        self.answers: list[wire.Answer | wire.EnginePong | wire.WantImages] = []
        self.failed: list[wire.Failed] = []
        self._next_event: int | None = None  # first tree event that the server lacks; None: it wants none

    @property
    def ready(self) -> wire.Ready:
        resolved = self.resolved
        sizes = resolved.n_pages, self.page, resolved.context
        decisions = resolved.decisions
        if self.model.store.states is not None:
            decisions += (str(self.model.store.states),)
        if self.adapters.names:
            decisions += (f"adapters: {', '.join(self.adapters.names)}; {self.adapters.n_bytes / 2**20:.1f} MiB",)
        adapters, kv = self.adapters.names, self.exchange.kv
        layout = f"{resolved.dtype}, KV {self.config.kv_dtype}"
        threads, cores = (resolved.all_threads, n_cores()) if self.device.type == "cpu" else (0, 0)
        return wire.Ready(*sizes, decisions, self.step_seconds, self._fingerprint, adapters, threads, cores, layout, kv)

    def warm_up(self) -> None:
        """Run steps before the first request: compiles kernels, starts threads, and measures the largest step."""
        n_rows, n_running = min(self.config.step_tokens, self.resolved.context - 1), self.config.max_running
        if self.device.type == "cuda":  # to compile kernels and capture graphs takes much longer than a step
            self.model.warm_up(n_rows, n_running)
            n_running = 1
            torch.cuda.synchronize()
        before = time.monotonic()
        self.model.warm_up(n_rows, n_running)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.step_seconds = time.monotonic() - before
        for drafter in self.drafting.drafters:
            drafter.warm_up(n_rows)
        if self.config.deterministic:
            check_determinism(self.model, self.resolved.context - 1)

    def close(self) -> None:
        """Shut down. If the second tier is a file, first move the pages on the device to it."""
        self.exchange.close()
        if self.model.store.file is not None:
            self.cache.close()
            self._move_pages()
            self.model.store.release()

    # ---- the loop --------------------------------------------------------------------------------------------------

    def run(self, link: Link) -> None:
        """Run the engine until the link to the server ends. On a GPU, the next step is launched before the current one
        is complete, if `Scheduler.plan_ahead` can plan it. While the GPU computes, the last report is sent and new
        requests are taken; other messages of the server wait until the step is complete."""
        link.watch(self.guides.wake)
        if self.exchange.wake is not None:
            link.watch(self.exchange.wake)
        link.send([self.ready])
        deferred: list[wire.EngineCommand] = []
        reports: list[wire.EngineReport] = []
        ahead: InFlightStep | None = None
        while True:
            try:
                is_idle = self.scheduler.is_idle and ahead is None and not deferred
                is_idle = is_idle and not self.guides.has_ready and not self.exchange.is_busy
                for order in chain(deferred, link.drain(block=is_idle)):
                    self.take(order)
                self.exchange.clear_wake()
                before = self.clock()
                step, ahead = self.advance(ahead)
                deferred = []
                if self.plans_ahead and step is not None:
                    link.send(reports)
                    reports, deferred = [], self._take_new(link)
            except EOFError:
                return
            reports += self.reports(self.complete(step))
            if not self.plans_ahead or self.scheduler.is_idle:
                link.send(reports)
                reports = []
            if self.exchange.is_active:  # copies for as long as the step took, so steps take at most twice as long
                now = self.clock()
                link.send(self.exchange.work(2 * now - before))

    def step(self) -> wire.Step:
        """Compute one step and return its report. Requests that fail are added to `failed`."""
        return self.complete(self.sample(self.launch()))

    def advance(self, ahead: InFlightStep | None) -> tuple[InFlightStep | None, InFlightStep | None]:
        """Launch the sampling of a step, and then the forward pass of the next one, so that the device does not wait.
        ahead: the step to sample; None: plan and launch one first. Returns (the step that is sampled, the next step).
        Either is None if there is no such step; the next step is always None if the engine does not plan ahead."""
        step = self.sample(ahead or self.launch())
        return step, self.launch(step) if self.plans_ahead and step is not None else None

    def launch(self, before: InFlightStep | None = None) -> InFlightStep | None:
        """Plan a step and launch its forward pass. Returns None if there is nothing to do, or if the step failed.
        before: the step that is still running; then the new step is planned ahead, and None is also returned if that is
        not possible."""
        for run, guide, end_ids, error in self.guides.ready():
            if error is not None:
                self.failed.append(wire.Failed(run.rid, 0, error.code, error.message))
            elif self._has_adapter(run):  # it may have been unloaded meanwhile
                self.scheduler.take(run, guide, end_ids)
        if not self.cache.conserved():
            self._repair("the pages do not add up")
        now = self.clock()
        plan = self.scheduler.plan(now) if before is None else self.scheduler.plan_ahead(before.plan, now)
        if wanted := self.scheduler.take_wants():
            self.answers.append(wire.WantImages(wanted))
        if plan is None:
            if before is None:  # a prefetch on an idle engine
                self._move_pages()
            return None
        self._in_flight.append(plan)
        self._record_in_flight()
        self.model.move(plan.moves)  # if this fails, the tree is wrong and the engine must end
        start = self.stopwatch()
        sampled = None
        if before is not None and before.pending is not None and before.pending.ids is not None:
            sampled = before.batch.sampled_for, before.pending.ids
        try:
            is_exact, adapters = self.config.deterministic, self.adapters.weights
            batch = assemble(plan, self.page, self.device, is_exact, sampled, adapters, self._chunk, self._row_id)
            if (images := self.images.inputs(plan.works, batch.ragged)) is not None:
                batch = batch._replace(images=images)
            return InFlightStep(plan, batch, start, logits=self.model(batch, plan.copies))
        except Exception as e:
            self._fail(plan, e)
            return None

    def sample(self, step: InFlightStep | None) -> InFlightStep | None:
        """Launch the sampling of a step. The step before it must be committed, since masks and penalties depend on it.
        Returns None if there is no step, or if it failed."""
        if step is None:
            return None
        plan, batch, start, logits, _ = step
        assert logits is not None
        if plan.is_ahead:  # other requests were taken since it was launched
            self._record_in_flight()
        try:
            masks = self.guides.masks(batch.sampled_for, batch.sampling_logits(logits))  # while a GPU computes
            return InFlightStep(plan, batch, start, pending=sample(logits, batch, masks))
        except Exception as e:
            self._fail(plan, e)
            return None

    def complete(self, step: InFlightStep | None) -> wire.Step:
        """Wait for a step's tokens and commit them. Returns the report."""
        if step is not None:
            plan, batch, start, _, pending = step
            assert pending is not None
            if self.plans_ahead:  # other requests may have been taken meanwhile
                self._record_in_flight()
            try:
                result = pending.read()
            except Exception as e:
                self._fail(plan, e)
            else:
                self._in_flight.remove(plan)
                self.scheduler.commit(plan, result)
                self.model.copy_slots(self.scheduler.moves)
                self.scheduler.moves.clear()
                if self.drafting.drafters:
                    now = self.stopwatch()
                    seconds = now - max(start, self._last_end)  # it may have waited for the step before it
                    self.drafting.note(plan, sum(batch.ragged.q_lens), seconds)
                    self._last_end = now
        self._free_adapters()
        report, failed = self.scheduler.report()
        self.failed += failed
        return self.exchange.without_own(report, self.failed) if report.finished or failed else report

    def reports(self, step: wire.Step) -> list[wire.EngineReport]:
        """Return all reports that are due to the server: failed requests, answers, the report of a step if it says
        anything, and tree events. Each is returned once."""
        out: list[wire.EngineReport] = [*self.failed, *self.answers]
        if step.rids or step.finished:
            out.append(step)
        if self._next_event is not None and (news := self._events()) is not None:
            out.append(news)
        self.failed, self.answers = [], []
        return out

    def _events(self) -> wire.TreeEvents | None:
        """Return what the tree has stored and evicted since the last call; None: nothing."""
        assert self._next_event is not None
        page = self._listen().since(self._next_event)
        self._next_event = page.next
        if not page.events and not page.is_all:
            return None
        events = (
            wire.TreeEvent(bytes.fromhex("".join(event.digests)), event.first, event.kind == "removed")
            for event in page.events
        )
        return wire.TreeEvents(tuple(events), page.is_all)

    def _listen(self) -> CacheEvents:
        return self.cache.listen(time.time_ns() // 1000)

    def _fail(self, plan: Plan, error: Exception) -> None:
        """Fail the requests of a step that did not complete. Raises if the device itself is lost."""
        traceback.print_exception(error, file=sys.stderr)
        self._in_flight.remove(plan)
        code = OutOfMemory.code if isinstance(error, torch.OutOfMemoryError) else "error"
        self.scheduler.fail(plan, code, f"the engine failed in a step of {len(plan.works)} requests: {error!r}")
        self._check_device()

    def _check_device(self) -> None:
        """Raises if the device itself is lost: after a fault in a kernel every call fails, this one too."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _move_pages(self) -> None:
        """Execute the page moves that the cache has ordered, without waiting for the next step."""
        self.model.move(self.cache.take_moves())

    # ---- orders ----------------------------------------------------------------------------------------------------

    def take(self, order: wire.EngineCommand) -> None:
        match order:
            case wire.Ping():
                self.exchange.trim()
                self.answers.append(wire.EnginePong(*self.scheduler.step_time.seconds))
            case wire.Ask(what="tree" | "check"):
                self.answers.append(self._answer_by_walk(order))
            case wire.Ask():
                self.answers.append(self.answer(order))
            case wire.SetVocabulary():
                if vocabulary := self.guides.set_vocabulary(order):
                    self.drafting.set_vocabulary(vocabulary.spelling, vocabulary.control)
            case wire.Run() if order.sampling.constraint is not None:
                if self._has_adapter(order) and self.scheduler.validate(order):
                    self.guides.submit(order)
            case wire.Run():
                self._record(LOOP, [order.rid])
                if self._has_adapter(order):
                    self.scheduler.take(order)
            case wire.ProgramEnded():
                self.scheduler.take(order)
            case wire.ImagePixels(image=digest, error=error):
                try:
                    self.images.add(order)
                except ValueError as e:
                    error = error or f"its pixels are invalid: {e}"
                if error:
                    self.scheduler.image_failed(digest, error)
                else:
                    self.scheduler.image_arrived(digest)
            case wire.Export() | wire.Pull() | wire.EndPull():
                self.exchange.take(order)
            case wire.Listen():
                self._next_event = -1
            case wire.Hold() | wire.Release() | wire.EvictFirst():
                self.kv_hints.take(order, self.clock())
            case wire.Abort():
                if (run := self.guides.abort(order.rid)) is not None:
                    self.scheduler.take(run)  # so that it is aborted there, like any other
                self.scheduler.take(order)

    def _answer_by_walk(self, ask: wire.Ask) -> wire.Answer:
        """Answer a question by walking the whole tree between two steps. If that took long, the answer is reused for a
        while."""
        start = self.clock()
        until, answer = self._walks.get(ask.what, (start, None))
        if answer is None or start >= until:
            answer = self.answer(ask)
            self._walks[ask.what] = self.clock() + WALKS * (self.clock() - start) - SHORT_WALK, answer
        return msgspec.structs.replace(answer, id=ask.id)

    def _has_adapter(self, run: wire.Run) -> bool:
        """Whether the request's adapter is loaded. If not, the request fails."""
        if not run.adapter or run.adapter in self.adapters.weights:
            return True
        why = "its adapter was unloaded before the request began, or could not be loaded again"
        self.failed.append(wire.Failed(run.rid, 0, BadProgram.code, why))
        return False

    def _free_adapters(self) -> None:
        if self.adapters.leaving:
            runs = chain(self.guides.waiting, (request.run for request in self.scheduler.requests.values()))
            self.adapters.free({run.adapter for run in runs})

    def answer(self, ask: wire.Ask) -> wire.Answer:
        """Answer a question; `Ask` lists them."""
        result: object = {}
        match ask.what:
            case "check":
                try:
                    self.scheduler.check()
                except AssertionError as e:
                    n_withdrawn = self._repair(str(e))
                    message = f"an invariant is violated: {e}; {n_withdrawn} pages were withdrawn; the engine continues"
                    return wire.Answer(ask.id, False, message.encode())
            case "flush":
                self._move_pages()  # a page that moves to the file afterwards would come back after a restart
                self.cache.reset()
                self._walks.clear()
            case "tree":
                result = snapshot(self.cache, ask.limit)
            case "events":
                news = self._listen().since(ask.since)
                result = news._asdict() | {"events": [event._asdict() for event in news.events]}
            case "stats":
                counters = {"engine": self.scheduler.stats(), "cache": self.cache.stats()._asdict()}
                result = counters | {"kept_by_engine": self._kept()}
            case "load_adapter":
                try:
                    result = self.adapters.load(ask.path, ask.name).hex()
                except BanyanError as e:
                    return wire.Answer(ask.id, False, e.message.encode())
            case "unload_adapter":
                with suppress(ValueError):  # no digest
                    self.adapters.unload(bytes.fromhex(ask.name))
                self._free_adapters()
            case "info":
                result = {"model": self.spec, "config": self.config, "resolved": self.resolved}
        return wire.Answer(ask.id, True, msgspec.json.encode(result))

    def _kept(self) -> dict[str, tuple[int, int]]:
        """Memory besides KV that is kept after requests have ended, by name: (its approximate bytes, the
        maximum)."""
        kept = {
            "constraints": (self.guides.n_bytes, guides.CACHE_BYTES),
            "kv_hints": (self.kv_hints.n_bytes, kv_hints.MAX_BYTES),
            "images": self.images.kept,
        }
        for drafter in self.drafting.drafters:
            kept |= drafter.kept()
        return kept

    def _repair(self, why: str) -> int:
        """Withdraw the part of the tree that a bug has damaged. Returns the number of withdrawn pages. Raises
        AssertionError, which ends the engine, if the tree cannot be used any more."""
        before = self.cache.stats()
        self.scheduler.repair()
        after = self.cache.stats()
        n = after.n_quarantined - before.n_quarantined
        print(
            f"banyan: the tree's counters did not balance: {why}; {n} pages are withdrawn, {after.n_cached} of "
            f"{before.n_cached} stay cached. This is a bug; please report it",
            file=sys.stderr,
            flush=True,
        )
        return n

    def _take_new(self, link: Link) -> list[wire.EngineCommand]:
        """Take the messages of the server that cannot affect the step in flight: pings and new requests. Returns the
        other messages, for later. Requests whose adapter is not loaded are among them, because an earlier one of these
        messages may load it."""
        deferred: list[wire.EngineCommand] = []
        adapters = (b"", *self.adapters.weights)
        for order in link.drain(block=False):
            if isinstance(order, wire.Ping) or (isinstance(order, wire.Run) and order.adapter in adapters):
                self.take(order)
            else:
                deferred.append(order)
        return deferred

    def _record_in_flight(self) -> None:
        """Record in the flight record which requests are in the steps in flight. If a step kills this process, the
        server reads there which requests may be the cause. It lists all steps in flight, because a fault on the device
        is noticed late."""
        self._record(LOOP, [work.request.rid for plan in self._in_flight for work in plan.works])

    def _record(self, lane: int, rids: list[int]) -> None:
        if self._flight is not None:
            self._flight.note(lane, rids)
