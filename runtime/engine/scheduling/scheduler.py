"""Who computes how many tokens in the next step. No torch, no clock, no chance: the same messages give the same plans.

Waiting requests stand in one queue by (Run.order, arrival), running ones in the same rank. A plan gives each decode its
token first, then chunks of prompts what is left of the budget, then starts waiting requests with the rest. A request
whose prefix another is computing right now follows that one: it waits, holding nothing, and goes on from the tree once
the prefix is published there. So n requests with the same new prefix cost one prefill. Where it takes no more than
counts, a step is planned while the one before it is computed (`follow`).

When pages are short, the last in rank is retracted: its lease is closed (what it computed stays in the tree until it is
evicted) and it queues again with all its tokens. The first in rank always goes on, and a request alone always fits
(`take` refuses those that could not), so there is no deadlock, and nothing is lost but time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from operator import attrgetter

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.quarantine import quarantine
from banyan.runtime.config import Schedule
from banyan.runtime.constraint.guide import Guide
from banyan.runtime.engine.scheduling.admission import AdmissionControl, Pace
from banyan.runtime.engine.scheduling.invariants import check
from banyan.runtime.engine.scheduling.output_lengths import Growth, OutputLengths, peak
from banyan.runtime.engine.scheduling.queue import Queue
from banyan.runtime.engine.scheduling.request import NO_TOKEN, Plan, Request, Result, Work, work_of
from banyan.runtime.engine.scheduling.step_report import StepReport
from banyan.runtime.engine.scheduling.validate import EngineLimits, admit
from banyan.runtime.engine.speculation.depth_control import DepthController
from banyan.runtime.engine.speculation.draft import follow, moved
from banyan.runtime.errors import BadMessage, BanyanError, ConstraintBroke
from banyan.runtime.protocol.wire import Abort, Failed, FinishReason, ProgramEnded, Run, Step, TopLogprobs

WORTH_WAITING = 16
"""Tokens: where two share fewer new ones, both compute them, as a wait costs a step."""
FORESIGHT = 1.0
"""How much of what running requests are expected to need must be there before another is started; with 0 they are
started as long as there is a page, and retract each other."""

_rank = attrgetter("key")


class Scheduler:
    """`take` messages, `plan` a step, `commit` what it gave, `report` it. Nothing else changes a request."""

    def __init__(
        self, cache: Cache, limits: EngineLimits, schedule: Schedule = "dfs", drafting: DepthController | None = None
    ) -> None:
        self.cache = cache
        self.drafting = drafting or DepthController()
        self.limits = limits
        self.max_running = min(limits.max_running, limits.step_tokens)  # each decode has its token in each step
        self.requests: dict[int, Request] = {}  # by rid: waiting, following and running
        self.waiting = Queue(schedule, self._look)
        self.running: list[Request] = []  # in rank; exactly those that hold a lease
        self.following: list[Request] = []  # until the next plan: their prefix is being computed in this step
        self.lengths = OutputLengths()
        self.begun = AdmissionControl(cache.page) if schedule == "dfs" and cache.enabled else None
        self._pace = Pace()
        self._now = 0.0  # of the last plan
        self._n_taken = 0
        self._n_released = 0
        self._is_short: tuple[Request, int] | None = None  # who found no room when so many had been released
        self.counts = dict.fromkeys(
            ("steps", "steps_ahead", "requests", "prompt_tokens", "cached_tokens", "computed_tokens",
             "generated_tokens", "forced_tokens", "retractions", "waits"), 0)  # fmt: skip
        self.moves: list[tuple[list[int], list[int]]] = []  # slots to slots, due now: see `moved`
        self._said = StepReport()

    @property
    def is_idle(self) -> bool:
        """Whether a plan would be empty."""
        return not self.requests

    # ---- take ------------------------------------------------------------------------------------------------------

    def take(self, order: Run | Abort | ProgramEnded, guide: Guide | None = None, ends: tuple[int, ...] = ()) -> None:
        """Queue a request, or drop one (unknown rids are those that ended meanwhile). A Run that cannot be served is
        Failed in the next report. A Run with a constraint comes with its guide; see `Request` for `ends`."""
        if isinstance(order, ProgramEnded):
            if self.begun is not None:
                self.begun.forget(order.client, order.program)
            return
        if isinstance(order, Abort):
            if request := self.requests.get(order.rid):
                self._finish(request, "abort")
            return
        if not (end := self.admit(order)):
            return
        request = Request(order, end, guide, ends)
        self.waiting.enter(request, self._n_taken)
        self._n_taken += 1
        self.requests[request.rid] = request
        self.counts["requests"] += 1
        self.counts["prompt_tokens"] += request.n_prompt
        self.waiting.add(request)
        self._jump(request)  # a constraint's forced start becomes part of the prefill
        self._end_if_full(request)  # all of it may have been generated by an engine before this one

    def admit(self, order: Run) -> int:
        """The n_total at which its length ends the request; 0 where it cannot be served, as the next report says."""
        try:
            if order.rid in self.requests:
                raise BadMessage(f"request {order.rid} is here already")
            return admit(order, self.limits, self.cache.n_pages, self.cache.page)
        except BanyanError as e:
            self._said.fail(order.rid, e.code, e.message)
            return 0

    # ---- plan ------------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> Plan | None:
        """The next step, or None where there is nothing to do. `now`: seconds; only differences count.

        Claims pages through leases, evicts, retracts. Computes nothing and moves no counts: that is for `commit`.
        """
        if self.cache.quarantined and not self.running:
            self.cache.readmit()  # or a request might not fit that is alone
        n_decoding = sum(request.n_computed >= request.n_given for request in self.running)
        works, copies = self._works(now, min(self.drafting.appetite(n_decoding), self.limits.step_tokens // 4))
        n_rows = sum(work.n_new for work in works)
        self._pace.note(now, n_rows)
        self.drafting.widen(works, self.limits.step_tokens - n_rows)
        return Plan(tuple(works), tuple(copies), tuple(self.cache.take_moves())) if works else None

    def follow(self, flying: Plan, now: float) -> Plan | None:
        """The step behind one that is still computed, by counts alone. None where that would not do, or where nothing
        is to be done: `plan` it when `flying` is committed.

        Who ends by what is drawn now has a row too many in it, which `commit` passes over. It harms nobody: its keys go
        behind the text, into a slot that whoever has it next writes before reading it, in a later step.
        """
        if flying.is_ahead:
            self._pace.note(now, flying.n_rows)  # the one before it is committed: it begins now
        wanted = [work for work in flying.works if work.is_wanted]
        if not all(map(self._can_follow, wanted)):
            return None
        for work in wanted:
            work.request.n_flying, work.request.n_pending = work.n_new, work.n_pending
        works, copies = self._works(now)
        for work in wanted:
            work.request.n_flying = work.request.n_pending = 0
        if not works:
            return None
        self.drafting.rest()
        return Plan(tuple(works), tuple(copies), tuple(self.cache.take_moves()), is_ahead=True)

    def _can_follow(self, work: Work) -> bool:
        """Whether what comes behind it depends on no token that it draws: not on how much of a draft is right, on what
        a constraint then forces, or on what a drafter would say. And there are pages; where there are none, it may be
        that somebody ends now."""
        request, n_pending = work.request, work.n_pending
        if work.draft or work.n_scored:
            return False
        is_forced = request.guide is not None and self.drafting.jumps
        if n_pending and (is_forced or not self.drafting.can_rest(request)):
            return False
        return work.lease.grow(request.n_total + n_pending)

    def _works(self, now: float, n_kept: int = 0) -> tuple[list[Work], list[tuple[int, int, int]]]:
        """Of a step: what is computed, and the copies of pages that this stands on. n_kept: rows that prompts leave."""
        for request in self.following:
            self.waiting.add(request)
        self.following.clear()
        self.waiting.stamp(now)
        self._now = now
        self.cache.tick(self.counts["steps"], now)
        works: list[Work] = []
        budget = self.limits.step_tokens
        chunks: list[Request] = []
        for request in tuple(self.running):
            if request.lease is None or not self._has_grown(request):  # retracted, by one before it or now
                continue
            if (n_left := request.n_left) > 1:
                chunks.append(request)
            elif n_left:
                works.append(work_of(request, 1))
                budget -= 1
        budget = max(budget - n_kept, 0)
        for request in chunks:
            if request.lease is not None and budget:
                works.append(work_of(request, min(budget, request.n_left)))
                budget -= works[-1].n_new
        copies: list[tuple[int, int, int]] = []
        self._start(works, copies, budget, now)
        return works, copies

    def _has_grown(self, request: Request) -> bool:
        """Room for all its tokens; others behind it are retracted for that, and at the last it itself."""
        assert request.lease is not None
        while not request.lease.grow(request.n_total):
            last = self.running[-1]
            self._retract(last)
            if last is request:
                return False
        return True

    def _start(self, works: list[Work], copies: list[tuple[int, int, int]], budget: int, now: float) -> None:
        """Start waiting requests, the first of them first, as long as there are tokens, places and pages. None that is
        behind it in the queue overtakes the first."""
        waiting, running = self.waiting, self.running
        expected: list[Growth] | None = None
        fresh: list[Request] = []
        while budget and waiting:
            request = waiting.first(now)
            if self._is_short == (request, self._n_released) and running:
                return
            if len(running) + len(self.following) >= self.max_running and not self._make_way(request, works, fresh):
                return
            run, owner = request.run, (request.run.client, *request.run.order[:1])
            lease = self.cache.open(request.ids.tobytes(), run.namespace, request.n_reusable, run.priority, owner)
            if not waiting.is_still_first(request, lease.n_cached):
                lease.close()
                continue
            if self._is_being_computed(request, lease.n_cached):
                lease.close()
                waiting.set_aside(request)
                self.following.append(request)
                self.counts["waits"] += 1
                continue
            if running and not self._has_turn(request, lease):
                lease.close()
                return
            if expected is None:
                expected = [self._growth(r, r.lease) for r in running if r.lease]
            expected.append(self._growth(request, lease))
            is_tight = running and FORESIGHT * peak(expected, self.cache.page) > self.cache.n_available
            if is_tight or not lease.grow(request.n_total):
                lease.close()
                if self._make_way(request, works, fresh):
                    expected = None
                    continue
                self._is_short = request, self._n_released
                return
            expected[-1] = self._growth(request, lease)  # its first pages are claimed
            self._run(request, lease, now)
            fresh.append(request)
            copies.extend(lease.take_copies())
            works.append(work_of(request, min(budget, request.n_left)))
            budget -= works[-1].n_new

    def _run(self, request: Request, lease: Lease, now: float) -> None:
        """It runs from now on."""
        self.waiting.start(request, now)
        insort(self.running, request, key=_rank)
        request.lease = lease
        request.started = request.started or now
        request.n_computed = request.n_published = lease.n_cached
        if self.begun is not None:
            self.begun.run(request, lease.n_cached, now)
        if request.n_cached < 0:
            request.n_cached = min(lease.n_cached, request.n_prompt)
            self.counts["cached_tokens"] += request.n_cached
        if request.n_computed < request.n_given:
            self.cache.in_flight.claim(request, request.run.ids, request.run.namespace)

    def _make_way(self, request: Request, works: list[Work], fresh: list[Request]) -> bool:
        """Retract the last of those that run, if it has a lower priority, and is none of the `fresh`."""
        last = self.running[-1] if self.running else request
        if last.key[0] <= request.key[0] or last in fresh:
            return False
        works[:] = [work for work in works if work.request is not last]
        self._retract(last)
        return True

    def _has_turn(self, request: Request, lease: Lease) -> bool:
        """Whether it is right to evict for it now what others may need soon."""
        if self.begun is None or request is self.waiting.aged:
            return True
        n_new = request.n_total - lease.n_cached
        n_left = self.lengths.left(request.sampling.max_tokens, request.n_out)
        if n_left * self._pace.rows > n_new * (len(self.running) + 1):  # what a row more in each step saves
            return True
        return self.begun.has_room(request, n_new, self.cache.n_available * self.cache.page, self._now)

    def _growth(self, request: Request, lease: Lease) -> Growth:
        """What it is expected to do from now on; what it has still to compute of its own is as good as done."""
        n_left = self.lengths.left(request.sampling.max_tokens, request.n_out)
        n_left = min(n_left, request.end - request.n_total)
        n_room = lease.n_slots - request.n_total
        return Growth(n_left, n_room, (request.n_out + n_left) // self.cache.page)

    def _look(self, request: Request) -> int:
        """How many of its tokens the tree has."""
        root = self.cache.tree.roots.get(request.run.namespace)
        return self.cache.tree.match(root, request.ids.tobytes(), request.n_reusable)[1] if root else 0

    def _is_being_computed(self, request: Request, n_cached: int) -> bool:
        """Whether this very step computes more of the request's prefix than the tree has.

        Who runs and still prefills when a waiting request is looked at ends its prefill in this step: there are tokens
        left in the budget, so it got all it needed. The wait is one step, then, whatever becomes of the other.
        """
        if not self.cache.enabled or n_cached >= request.n_reusable:
            return False
        found = self.cache.in_flight.find(request.run.ids, request.run.namespace)
        if found is None:
            return False
        owner: Request = found[0]
        n, lease = min(found[1], request.n_reusable), owner.lease
        return lease is not None and n > max(n_cached, owner.n_computed) and n - lease.n_cached >= WORTH_WAITING

    # ---- commit ----------------------------------------------------------------------------------------------------

    def commit(self, plan: Plan, result: Result) -> None:
        """Tokens and counts move here, and only here. `result` must be of this plan, and its forward completed."""
        self.counts["steps"] += 1
        self.counts["steps_ahead"] += plan.is_ahead
        ids = iter(result.ids)
        for request, lease, _, n_new, draws, _, n_scored, draft, parents in plan.works:
            said = [next(ids) for _ in range(1 + len(draft))] if draws else []
            if request.lease is not lease:  # `Work.is_wanted`: it ended in the step before, or begins anew
                continue
            request.n_computed += n_new
            request.client.n_served += n_new + len(draft)
            request.program.n_served += n_new + len(draft)
            self.counts["computed_tokens"] += n_new
            if n_scored:
                request.scores.extend(result.scores[request.rid])
                request.tops += result.tops.get(request.rid, ())
            if not draws:
                self._publish(request)
                if request.n_computed == request.n_total:
                    self._finish(request, "length")
                continue
            path, drawn = follow(draft, parents, said)
            if self.drafting.proposed:
                self.drafting.judge(request, drawn, path)
            self.moves += moved(request, parents, path)
            tops = result.logprobs.get(request.rid, ())
            self._draw(request, drawn, [tops[at] for at in (0, *(1 + i for i in path))] if tops else ())
            if request.lease is not None:
                self._publish(request)
                if draft:
                    request.lease.shrink(request.n_total)

    def _draw(self, request: Request, drawn: Sequence[int], tops: Sequence[TopLogprobs]) -> None:
        """Append what was drawn, up to an end; all but the last of it was foreseen by a draft, and computed."""
        end = next((i for i, token in enumerate(drawn) if token in request.stop_ids or token == NO_TOKEN), len(drawn))
        n = end if request.guide is None else request.guide.accept(drawn[:end])
        n_drafted = min(n, len(drawn) - 1)
        request.drafted.extend(range(request.n_out, request.n_out + n_drafted))
        request.n_computed += n_drafted
        self.counts["computed_tokens"] += n_drafted
        self._append(request, drawn[:n])
        self._said.logprobs(request, tops[:n])
        if n == len(drawn):
            self._jump(request)
        if n and self._end_if_full(request):
            return
        if n < end or (end < len(drawn) and drawn[end] == NO_TOKEN):
            self._end_without_token(request)
        elif end < len(drawn):
            self._finish(request, "stop", drawn[end])

    def _append(self, request: Request, tokens: Sequence[int]) -> None:
        """More tokens of output: of the request, and of the next report."""
        request.extend(tokens)
        self._said.tokens(request, tokens)

    def _jump(self, request: Request) -> None:
        """Append what the constraint forces: the next step computes it as one chunk. Who asked for logprobs draws each
        token, so that the model has a say on it."""
        guide, room = request.guide, request.end - request.n_total
        if guide is None or room <= 0 or request.sampling.logprobs or request.sampling.max_tokens == 0:
            return
        if not self.drafting.jumps:
            return
        forced = guide.forced_tokens(room)
        stop = next((i for i, token in enumerate(forced) if token in request.stop_ids), len(forced))
        n = guide.accept(forced[:stop])
        request.drafted.extend(range(request.n_out, request.n_out + n))
        request.n_forced += n
        self.counts["forced_tokens"] += n
        self._append(request, forced[:n])

    def _end_if_full(self, request: Request) -> bool:
        """Finish a request whose output is whole (nothing can follow) or as long as it may be."""
        if request.guide is not None and request.guide.must_stop:
            self._finish(request, "stop")
        elif request.n_out >= request.sampling.max_tokens > 0 or (request.n_total == request.end and request.n_out):
            self._finish(request, "length")
        else:
            return False
        return True

    def _end_without_token(self, request: Request) -> None:
        """No token may come next: that ends a whole output, and fails any other."""
        guide = request.guide
        if guide is not None and guide.error:
            why = f"the constraint's engine gave up after {request.n_out} tokens: {guide.error}"
            self._fail(request, ConstraintBroke.code, why)
        elif guide is not None and guide.can_stop:
            self._finish(request, "stop")
        else:
            self._fail(request, "error", "no token to choose: the model's logits are NaN, or all are forbidden")

    def fail(self, plan: Plan, code: str, message: str) -> None:
        """The plan's step did not complete: its requests fail. What they had computed before stands."""
        for work in plan.works:
            if work.is_wanted:
                self._fail(work.request, code, message)

    def report(self) -> tuple[Step, Sequence[Failed]]:
        """What happened since the last report."""
        step, failed = self._said.take()
        self.counts["generated_tokens"] += len(step.ids) // 4
        return step, failed

    def _publish(self, request: Request) -> None:
        """Put what is newly computed in the tree: a prompt at once (others may wait for it), an output page by page."""
        n, page = request.n_computed, self.cache.page
        is_prompt = request.n_published < request.n_given
        if is_prompt or n // page > request.n_published // page:
            assert request.lease is not None
            request.lease.publish(request.ids[:n].tobytes())
            request.n_published = n
            if is_prompt and n >= request.n_given:
                self.cache.in_flight.release(request)
                self.waiting.published(request)

    # ---- the end of a request --------------------------------------------------------------------------------------

    def _finish(self, request: Request, reason: FinishReason, stop_id: int = -1) -> None:
        self._release(request)
        self.waiting.leave(request)
        if reason != "abort" and request.sampling.max_tokens:
            self.lengths.note(request.sampling.max_tokens, request.n_out)
        drafts = self.drafting.end(request)
        if request.n_forced:  # what a constraint forces is always right
            drafts["grammar"] = request.n_forced, request.n_forced
        self._said.finish(request, reason, stop_id, drafts)
        request.guide = None  # a row too many needs no mask

    def _fail(self, request: Request, code: str, message: str) -> None:
        self._release(request)
        self.waiting.leave(request)
        self.drafting.end(request)
        self._said.fail(request.rid, code, message)

    def _retract(self, request: Request) -> None:
        self.counts["retractions"] += 1
        self._release(request)
        request.n_computed = request.n_published = 0
        self.requests[request.rid] = request
        self.waiting.add(request)

    def _release(self, request: Request) -> None:
        """Out of every list, and its lease closed: the only way out of the scheduler, whatever the reason."""
        del self.requests[request.rid]
        self._n_released += 1
        if request.lease is not None:
            if request.n_computed > request.n_published:
                request.lease.publish(request.ids[: request.n_computed].tobytes())
            request.lease.close()
            request.lease = None
            request.n_flying = request.n_pending = 0
            if self.begun is not None:
                self.begun.rest(request, self._now)
            self.cache.in_flight.release(request)
            self.running.remove(request)
        elif request in self.following:
            self.following.remove(request)
        else:
            self.waiting.remove(request)

    def mend(self) -> None:
        """The cache's books do not balance: withdraw what is in doubt. Requests that ran on it begin anew; nothing that
        they had computed is used. Raises AssertionError where that does not help."""
        ended = set(quarantine(self.cache))
        for request in [request for request in self.running if request.lease in ended]:
            request.n_published = request.n_computed  # so that nothing is published
            self._retract(request)

    # ---- what can be asked -----------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Counters since the start, and how many requests stand where now."""
        lanes = {"running": len(self.running), "waiting": len(self.requests) - len(self.running)}
        return self.counts | self.drafting.stats() | lanes

    def check(self) -> None:
        """Every invariant of the scheduler and of its cache. Raises AssertionError where one does not hold."""
        check(self)
