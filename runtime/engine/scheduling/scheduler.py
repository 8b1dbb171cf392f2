"""Decides how many tokens of each request the next step computes. Uses no torch, no clock and no randomness: the same
messages give the same plans.

A plan spends the token budget of a step. Decodes get one token each; if several clients decode, those of a client with
many may take turns. Chunks of prompts get what is left; then waiting requests start with the rest. If a running request
is computing a new prefix that a waiting request needs too, the waiting request starts only when the prefix is in the
tree. So n requests with the same new prefix cost one prefill. If the next plan needs only token counts, not the tokens
themselves, it is made while the previous step still runs (`plan_ahead`).

When pages run out, the scheduler retracts (preempts) the running request that comes last by `Request.key` (priority,
deadline, program, arrival): it closes the request's lease and queues the request again with all its tokens. There is no
deadlock: the first request in this order is never retracted for another one, and `take` refuses a request that does not
fit alone. A retraction costs only time."""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice, pairwise
from operator import attrgetter

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.check import check as check_cache
from banyan.radix_cache.quarantine import quarantine
from banyan.runtime.config import Schedule
from banyan.runtime.constraint.guide import Guide
from banyan.runtime.engine.scheduling.admission import AdmissionControl, StepTime
from banyan.runtime.engine.scheduling.output_lengths import Growth, OutputLengths, peak
from banyan.runtime.engine.scheduling.queue import QUANTUM, Queue
from banyan.runtime.engine.scheduling.request import NO_TOKEN, Plan, Request, Result, Work, make_work
from banyan.runtime.engine.scheduling.validate import EngineLimits, validate
from banyan.runtime.engine.speculation.depth_control import DepthController
from banyan.runtime.engine.speculation.draft import accept_path, slot_moves
from banyan.runtime.errors import BadMessage, BadProgram, BanyanError, ConstraintBroke
from banyan.runtime.protocol.wire import Abort, Failed, Finish, FinishReason, ProgramEnded, Run, Step, TopLogprobs

WORTH_WAITING = 16  # tokens; requests with a shorter new prefix in common all compute it, because waiting costs a step
FORESIGHT = 1.0
"""A request starts only if this share of the pages that it and the running requests are expected to claim is available.
With 0, requests start as long as there is a page, and retract each other."""

MAX_ASKING = 4
"""How many queued requests may wait for their images at a time."""

BESIDE = 0.75
"""When a step also decodes for another client, the rows of one client may cost at most this share of the step's fixed
cost."""

_rank = attrgetter("key")


def _by_client(requests: Iterable[Request]) -> dict[int, list[Request]]:
    clients: dict[int, list[Request]] = {}
    for request in requests:
        clients.setdefault(request.run.client, []).append(request)
    return clients


class PromptRows:
    """The rows that prompts may take in one step. A row is one token that the step computes.

    budget    rows for all prompts
    n_beside  limit that protects other clients. It applies to a client for which over QUANTUM tokens more were
              computed than for another client that decodes in this step. It limits the rows of all prompts and of
              the client's own decodes together. So many rows cost less than the fixed part of a step, so the time
              between two tokens of the other client at most doubles
    decodes   the works of the step that decode; () if all requests are of one client
    has_whole_images  rows that reach into an image are extended to its end, even beyond the budget
    """

    def __init__(self, budget: int, n_beside: int, decodes: Sequence[Work], has_whole_images: bool) -> None:
        self._budget, self._n_beside, self._decodes = budget, n_beside, decodes
        self._has_whole_images = has_whole_images

    @cached_property
    def _clients(self) -> dict[int, list[Request]]:
        """Client -> its decoding requests. Computed on demand: only prompts need it, and most steps have none."""
        return _by_client(work.request for work in self._decodes)

    def left(self, request: Request) -> int:
        """How many prompt rows the request may still take in this step. 0: none."""
        client = request.run.client
        others = [decodes[0].client.n_served for other, decodes in self._clients.items() if other != client]
        if others and request.client.n_served > min(others) + QUANTUM:
            return max(0, min(self._budget, self._n_beside - len(self._clients.get(client, ()))))
        return self._budget

    def take(self, request: Request) -> Work:
        n_new = min(self.left(request), request.n_left)
        if self._has_whole_images:
            end = request.n_computed + request.n_inflight + n_new
            n_new += sum(one.start + one.n - end for one in request.run.images if one.start < end < one.start + one.n)
        work = make_work(request, n_new)
        self._budget = max(0, self._budget - work.n_new)
        self._n_beside -= work.n_new
        return work


class Scheduler:
    """Keeps all requests of an engine and plans its steps. Call `take` for each message about a request, `plan` before
    a step, `commit` with the step's result, and `report` for what to send to the server. Only the scheduler changes a
    request."""

    def __init__(
        self, cache: Cache, limits: EngineLimits, schedule: Schedule = "dfs", drafting: DepthController | None = None,
        find_image: Callable[[bytes], object | None] = lambda digest: None,
    ) -> None:  # fmt: skip
        """find_image: returns an image by its digest, or None if it has not arrived."""
        self.cache = cache
        self.drafting = drafting or DepthController()
        self.limits = limits
        # so that each decode can have a token in each step
        self.max_running = min(limits.max_running, limits.step_tokens)
        if cache.states is not None:
            self.max_running = min(self.max_running, cache.states.n_slots)
        self.requests: dict[int, Request] = {}  # rid -> request; all that have not ended
        self.waiting = Queue(schedule, self._n_matched)
        self.running: list[Request] = []  # ordered by `Request.key`; exactly those that hold a lease
        self.following: list[Request] = []  # wait for the next plan: another request computes their prefix in this step
        self.lacking: dict[Request, set[bytes]] = {}  # waiting request -> digests of the images that it lacks
        self._find_image = find_image
        self._asked: set[bytes] = set()  # images that the server was asked for, but has not sent yet
        self.lengths = OutputLengths()
        self.admission = AdmissionControl(cache.page) if schedule == "dfs" and cache.enabled else None
        self.step_time = StepTime()
        self._now = 0.0  # time of the last plan
        self._n_taken = self._n_released = 0
        # The request that last could not start for lack of pages, and _n_released at that time. While other requests
        # run, it is not tried again until _n_released changes.
        self._blocked: tuple[Request, int] | None = None
        self.counts = dict.fromkeys(
            ("steps", "steps_ahead", "requests", "prompt_tokens", "cached_tokens", "computed_tokens",
             "generated_tokens", "forced_tokens", "retractions", "waits"), 0)  # fmt: skip
        self.moves: list[tuple[list[int], list[int]]] = []  # slots to move now: see `slot_moves`
        self._report = StepReport()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to plan: there are no requests, or all of them wait for images."""
        return len(self.requests) == len(self.lacking)

    # ---- take ------------------------------------------------------------------------------------------------------

    def take(
        self, order: Run | Abort | ProgramEnded, guide: Guide | None = None, end_ids: tuple[int, ...] = ()
    ) -> None:
        """Take a message of the server: queue a Run, abort a request, or note that a program has ended. An Abort of an
        unknown request is ignored: the request has ended already. If a Run cannot be served, the next report has its
        Failed. guide: the grammar state, for a Run with a constraint. end_ids: see `Request`."""
        if isinstance(order, ProgramEnded):
            if self.waiting.end_program(order.client, order.program) and self.admission is not None:
                self.admission.end_program(order.client, order.program)
        elif isinstance(order, Abort):
            if request := self.requests.get(order.rid):
                self._finish(request, "abort")
        elif max_total := self.validate(order):
            request = Request(order, max_total, guide, end_ids)
            self.waiting.register(request, self._n_taken)
            self._n_taken += 1
            self.requests[request.rid] = request
            self.counts["requests"] += 1
            self.counts["prompt_tokens"] += request.n_prompt
            self.waiting.add(request)
            # A constraint's forced start becomes part of the prefill, and is reported with the first sampled token.
            self._append_forced(request)
            self._finish_if_complete(request)  # a previous engine may have generated all of it

    def validate(self, order: Run) -> int:
        """Check whether a Run can be served. Returns the number of tokens, prompt and output together, at which the
        request must end. Returns 0 if the Run cannot be served; the next report then has the reason. order: the Run."""
        try:
            if order.rid in self.requests:
                raise BadMessage(f"request {order.rid} exists already")
            return validate(order, self.limits, self.cache.n_pages, self.cache.page)
        except BanyanError as e:
            self._report.failed.append(Failed(order.rid, 0, e.code, e.message))
            return 0

    # ---- plan ------------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> Plan | None:
        """Plan the next step. Returns None if there is nothing to do. Claims and evicts pages, and retracts requests if
        pages run out. The planned tokens count as computed only after `commit`. The plan contains the page moves to and
        from host memory that the cache has ordered; without a plan, the cache keeps them for the next one. now: the
        time in seconds, from any start."""
        if self.cache.quarantined and not self.running:
            self.cache.readmit()  # otherwise a single request might not fit
        n_reserved = 0
        if self.drafting.drafters:
            n_decoding = sum(request.n_computed >= request.n_submitted for request in self.running)
            n_tokens = self.limits.step_tokens
            # at most half of what the decodes leave: otherwise many decodes would hold up all prompts until they end
            n_reserved = min(self.drafting.expected_tokens(n_decoding), n_tokens // 4, (n_tokens - n_decoding) // 2)
        works, copies = self._plan_works(now, n_reserved)
        n_rows = sum([work.n_new for work in works])
        self.step_time.note(now, n_rows)
        self.drafting.add_drafts(works, self.limits.step_tokens - n_rows)
        if not works:
            return None
        states: list[tuple[int, int]] = []
        if self.cache.states is not None:
            states = self.cache.states.take_copies()
            if self.cache.enabled:
                works = [self._keep_states(work) for work in works]
        return Plan(tuple(works), tuple(copies), tuple(self.cache.take_moves()), states=tuple(states))

    def plan_ahead(self, inflight: Plan, now: float) -> Plan | None:
        """Plan the next step while the step of the plan `inflight` is still running. The sampled tokens are not known
        yet, only how many there will be. Returns None if the next plan needs the tokens themselves, or if there is
        nothing to do. If a request ends with the token that is being sampled, it has one row too many in the new step.
        `commit` ignores this row; its KV goes into a slot after the end of the text."""
        if inflight.is_ahead:
            self.step_time.note(now, inflight.n_rows)  # the previous step has been committed, so this step starts now
        current = [work for work in inflight.works if work.is_current]
        if not all(map(self._can_plan_ahead, current)):
            return None
        for work in current:
            work.request.n_inflight, work.request.n_pending = work.n_new, work.n_pending
        works, copies = self._plan_works(now)
        for work in current:
            work.request.n_inflight = work.request.n_pending = 0
        if not works:
            return None
        self.drafting.skip_step()
        return Plan(tuple(works), tuple(copies), tuple(self.cache.take_moves()), is_ahead=True)

    def _keep_states(self, work: Work) -> Work:
        """Add to a work the positions after which a copy of the recurrent state is kept, so that other texts can
        continue from there. These are: positions at which another known text branches off; the position before the
        prompt's last token; and, if a slot is free without an eviction, the end of a chunk that ends before that."""
        request, start, end = work.request, work.start, work.start + work.n_new
        last = request.n_submitted - 1
        positions = {position: True for position in (*request.fork_points, last) if start < position <= end}
        if end < last:
            positions.setdefault(end, False)
        slots = {p: work.lease.keep_state(p, may_evict) for p, may_evict in sorted(positions.items())}
        return work._replace(kept=tuple((p - start, slot) for p, slot in slots.items() if slot >= 0))

    def _can_plan_ahead(self, work: Work) -> bool:
        """Whether the request's next work can be planned before its token is sampled. It cannot if the work depends on
        how much of a draft is accepted, on what a constraint then forces, or on what a drafter would propose, or if
        there are no pages for it."""
        request, n_pending = work.request, work.n_pending
        if work.draft or work.n_scored:
            return False
        may_force = request.guide is not None and self.drafting.jumps
        if n_pending and (may_force or not self.drafting.can_skip(request)):
            return False
        return work.lease.grow(request.n_total + n_pending)

    def _plan_works(self, now: float, n_reserved: int = 0) -> tuple[list[Work], list[tuple[int, int, int]]]:
        """Plan what each request computes in a step. Returns the works, and the page copies that they need: (source
        page, destination page, n_slots). n_reserved: rows of the token budget that prompts may not use, because drafts
        will."""
        for request in self.following:
            self.waiting.add(request)
        self.following.clear()
        self.waiting.start_waits(now)
        self._now = now
        self.cache.tick(self.counts["steps"], now)
        n_beside = max(1, int(BESIDE * self.step_time.free_rows))
        decodes: list[Request] = []
        chunks: list[Request] = []
        for request in tuple(self.running):
            lease = request.lease
            if lease is None or not (lease.grow(request.n_total) or self._make_room(request)):
                continue  # retracted for an earlier request, or just now
            if (n_left := request.n_left) > 1:
                chunks.append(request)
            elif n_left:
                decodes.append(request)
        works = [make_work(request, 1) for request in self._in_turn(decodes, n_beside)]
        budget = max(self.limits.step_tokens - len(works) - n_reserved, 0)
        decoding = tuple(works) if self.waiting.n_clients > 1 else ()  # a single client shares with no other
        rows = PromptRows(budget, n_beside, decoding, self.limits.has_whole_images)
        for request in chunks:
            if request.lease is not None and rows.left(request):
                works.append(rows.take(request))
        return works, self._start_waiting(works, rows, now)

    def _in_turn(self, decodes: list[Request], n_beside: int) -> list[Request]:
        """Choose the decodes that get a row in this step. If several clients decode, each client gets at most
        max(n_beside, fewest) rows, where fewest is the smallest number of decodes that a client has. So a client with
        many decodes does not slow down the others. If a client has more decodes than rows, its decodes take turns."""
        if len(decodes) <= n_beside or self.waiting.n_clients == 1 or len(clients := _by_client(decodes)) == 1:
            return decodes
        n_rows = max(n_beside, min(map(len, clients.values())))
        left_out: set[Request] = set()
        for own in clients.values():
            if len(own) > n_rows:
                own.sort(key=lambda request: (-request.run.priority, request.turn))
                left_out.update(own[n_rows:])
                for request in own[:n_rows]:
                    request.turn = self.counts["steps"]
        return [request for request in decodes if request not in left_out]

    def _make_room(self, request: Request) -> bool:
        """Claim pages for all tokens of a running request. To free pages, retract the running requests that come after
        it in priority, the last one first. If no such request is left and pages are still missing, retract the request
        itself and return False."""
        while (last := self.running[-1]) is not request:
            self._retract(last)
            assert request.lease is not None
            if request.lease.grow(request.n_total):
                return True
        self._retract(request)
        return False

    def _start_waiting(self, works: list[Work], rows: PromptRows, now: float) -> list[tuple[int, int, int]]:
        """Start waiting requests in the queue's order, as long as the step has rows, fewer than max_running requests
        run, and pages can be claimed. Sets a request aside if it waits for a prefix or an image; stops at the first
        request that cannot start for another reason. Adds a work to `works` for each started request. Returns the page
        copies that they need."""
        waiting, running = self.waiting, self.running
        expected: list[tuple[Growth, ...]] | None = None
        started: list[Request] = []
        copies: list[tuple[int, int, int]] = []
        while waiting and rows.left(request := waiting.first(now)):
            if self._blocked == (request, self._n_released) and running:
                break
            is_full = len(running) + len(self.following) >= self.max_running
            replaced = self._preemptible(request, started) if is_full else None
            if is_full and replaced is None:
                break
            run, owner = request.run, (request.run.client, *request.run.order[:1])
            ids = request.ids.tobytes()
            # Opening a lease may evict other texts, so the checks that need no lease come first.
            n_cached, n_taken = self.cache.probe(ids, run.namespace, request.n_reusable)
            if not waiting.order.is_still_first(request, n_cached):
                continue
            if self._is_being_computed(request, n_cached):
                waiting.set_aside(request)
                self.following.append(request)
                self.counts["waits"] += 1
                continue
            if self._lacks_images(request, n_cached):
                continue
            n_pages, n_others = self.cache.n_available - n_taken, len(running) - is_full
            if replaced is not None and replaced.lease is not None:  # the pages that it claimed will be available
                n_pages += len(replaced.lease.pages) - replaced.lease.n_cached // self.cache.page
            if n_others and not self._is_admitted(request, n_cached, n_pages, n_others):
                break
            if is_full:
                self._preempt_for(request, works, started)
                expected = None
            lease = self.cache.open(ids, run.namespace, request.n_reusable, run.priority, owner)
            if lease.n_cached < n_cached and self._lacks_images(request, lease.n_cached):
                lease.close()
                continue
            if expected is None:
                expected = [self._growth(r, r.lease) for r in running if r.lease]
            is_short = running and not self._are_available([*expected, self._growth(request, lease)])
            if is_short or not lease.grow(request.n_total):
                lease.close()
                if self._preempt_for(request, works, started):
                    expected = None
                    continue
                self._blocked = request, self._n_released
                break
            expected.append(self._growth(request, lease))
            self._start(request, lease, now)
            started.append(request)
            copies.extend(lease.take_copies())
            works.append(rows.take(request))
        return copies

    # ---- images ----------------------------------------------------------------------------------------------------

    def _lacks_images(self, request: Request, n_cached: int) -> bool:
        """Whether the waiting request must wait for images. It needs each image with rows that are not cached. Puts the
        needed images that are available into `request.images`. If others are missing, sets the request aside until they
        arrive."""
        missing = set()
        for one in request.run.images:
            if one.start + one.n > n_cached and one.image not in request.images:
                if (image := self._find_image(one.image)) is None:
                    missing.add(one.image)
                else:
                    request.images[one.image] = image
        if missing:
            self.waiting.set_aside(request)
            self.lacking[request] = missing
        return bool(missing)

    def take_wants(self) -> tuple[bytes, ...]:
        """Return the digests of images to request from the server now. Only images of the first MAX_ASKING requests
        that lack some are requested, because images take memory."""
        if not self.lacking:
            return ()
        wanted = {image for missing in islice(self.lacking.values(), MAX_ASKING) for image in missing} - self._asked
        self._asked |= wanted
        return tuple(wanted)

    def image_arrived(self, digest: bytes) -> None:
        """Give the image with this digest, which has arrived, to the waiting requests that lack it. Requests that lack
        no other image are queued again."""
        self._asked.discard(digest)
        for request, missing in [*self.lacking.items()]:
            if digest in missing:
                missing.remove(digest)
                request.images[digest] = self._find_image(digest)
                if not missing:
                    del self.lacking[request]
                    self.waiting.add(request)

    def image_failed(self, digest: bytes, error: str) -> None:
        """Fail the requests that wait for an image that will not come."""
        self._asked.discard(digest)
        for request in [request for request, missing in self.lacking.items() if digest in missing]:
            self._fail(request, BadProgram.code, error)

    # ---- the start of a request ------------------------------------------------------------------------------------

    def _start(self, request: Request, lease: Lease, now: float) -> None:
        """Move a waiting request to the running ones."""
        self.waiting.start(request, now)
        insort(self.running, request, key=_rank)
        request.lease = lease
        lease.claim_state()
        if lease.n_matched - lease.n_cached >= WORTH_WAITING:
            request.fork_points.add(lease.n_matched)
        request.start_time = request.start_time or now
        request.n_computed = request.n_published = lease.n_cached
        if self.admission is not None:
            self.admission.start(request, lease.n_cached, now)
        if request.n_cached < 0:
            request.n_cached = min(lease.n_cached, request.n_prompt)
            self.counts["cached_tokens"] += request.n_cached
        if request.n_computed < request.n_submitted:
            self.cache.in_flight.claim(request, request.run.ids, request.run.namespace)

    def _preemptible(self, request: Request, started: list[Request]) -> Request | None:
        """Return the running request that a waiting request may preempt, or None. This is the running request that is
        last in priority, if its priority is lower than the waiting request's and if this plan did not start it."""
        last = self.running[-1] if self.running else request
        return None if last.key[0] <= request.key[0] or last in started else last

    def _preempt_for(self, request: Request, works: list[Work], started: list[Request]) -> bool:
        """Retract the running request that the waiting `request` may preempt, and remove its work from `works`. Returns
        False if there is none."""
        if (last := self._preemptible(request, started)) is None:
            return False
        works[:] = [work for work in works if work.request is not last]
        self._retract(last)
        return True

    def _is_admitted(self, request: Request, n_cached: int, n_pages: int, n_others: int) -> bool:
        """Whether admission control, if there is any, lets a request start now. Any of three reasons suffices. First,
        the request is next because it has waited too long. Second, a larger batch saves more time than it takes to
        compute the request's uncached tokens. Third, these tokens fit into n_pages, and the texts of older programs fit
        beside them; these programs are paused and will need their texts again. n_pages: pages that no running request
        takes and that do not hold the request's own cached prefix. n_others: how many requests run beside it."""
        if self.admission is None or request is self.waiting.aged:
            return True
        n_new = request.n_total - n_cached
        n_left = self.lengths.left(request.sampling.max_tokens, request.n_out)
        if n_left * self.step_time.free_rows > n_new * (n_others + 1):  # a larger batch saves more
            return True
        return self.admission.has_room(request, n_new, n_pages * self.cache.page, self._now)

    def _growth(self, request: Request, lease: Lease) -> tuple[Growth, ...]:
        """The expected growth of a request in the cache's pages and, if windowed layers have pages of their own, in
        those. Tokens that it has but has not computed count as computed."""
        page = self.cache.page
        n_left = self.lengths.left(request.sampling.max_tokens, request.n_out)
        n_left = min(n_left, request.max_total - request.n_total)
        n_own = (request.n_out + n_left) // page
        growth = Growth(n_left, lease.n_slots - request.n_total, n_own)
        if (window := self.cache.window) is None or lease.window is None:
            return (growth,)
        most = window.window + window.n_first * page  # the window is full, and grows no more
        n_now, n_end = (min(request.n_total + n, most) for n in (0, n_left))
        return growth, Growth(n_end - n_now, lease.window.n_held_slots - n_now, min(n_own, n_end // page))

    def _are_available(self, growths: list[tuple[Growth, ...]]) -> bool:
        """Whether the share FORESIGHT of the pages that requests are expected to claim is available."""
        n_available = [self.cache.n_available]
        if self.cache.window is not None:
            n_available.append(self.cache.window.n_available)
        pools = zip(n_available, zip(*growths, strict=True), strict=True)
        return all(FORESIGHT * peak(own, self.cache.page, n) <= n for n, own in pools)

    def _n_matched(self, request: Request) -> int:
        """How many of the request's tokens are in the tree."""
        return self.cache.n_usable(request.ids.tobytes(), request.run.namespace, request.n_reusable)

    def _is_being_computed(self, request: Request, n_cached: int) -> bool:
        """Whether a running request is computing a part of this request's prefix that the tree lacks, and the part is
        long enough to wait for it (WORTH_WAITING). If so, this request waits for a later plan. n_cached: how many of
        its tokens the tree has."""
        if not self.cache.enabled or n_cached >= request.n_reusable:
            return False
        if (found := self.cache.in_flight.find(request.run.ids, request.run.namespace)) is None:
            return False
        owner: Request = found[0]
        n, lease = min(found[1], request.n_reusable), owner.lease
        if lease is None or n <= max(n_cached, owner.n_computed) or n - lease.n_cached < WORTH_WAITING:
            return False
        if self.cache.states is not None:
            owner.fork_points.add(n)
        return True

    # ---- commit ----------------------------------------------------------------------------------------------------

    def commit(self, plan: Plan, result: Result) -> None:
        """Apply a plan's result. Only this method appends sampled tokens and counts computed ones."""
        self.counts["steps"] += 1
        self.counts["steps_ahead"] += plan.is_ahead
        ids, at, n_computed = result.ids, 0, 0
        for request, lease, _, n_new, draws, _, n_scored, draft, parents, _ in plan.works:
            first, at = at, at + draws + len(draft)
            if request.lease is not lease:  # not `Work.is_current`: it ended in the step before, or was retracted
                continue
            request.n_computed += n_new
            n_rows = n_new + len(draft)
            request.client.n_served += n_rows
            request.program.n_served += n_rows
            n_computed += n_new
            if n_scored:
                request.scores.extend(result.scores[request.rid])
                request.tops += result.tops.get(request.rid, ())
            if not draws:
                self._publish(request)
                if request.n_computed == request.n_total:
                    self._finish(request, "length")
                continue
            sampled = ids[first:at]
            path: Sequence[int] = ()  # indexes of the accepted draft tokens
            if draft:
                path, sampled = accept_path(draft, parents, sampled)
                self.moves += slot_moves(request, parents, path)
            if self.drafting.proposed:
                self.drafting.judge(request, sampled, path)
            if tops := result.logprobs.get(request.rid, ()):
                tops = [tops[i] for i in (0, *(1 + i for i in path))]
            self._append_sampled(request, sampled, tops)
            if request.lease is not None:
                self._publish(request)
                if draft:
                    request.lease.shrink(request.n_total)
        self.counts["computed_tokens"] += n_computed

    def _append_sampled(self, request: Request, sampled: Sequence[int], tops: Sequence[TopLogprobs]) -> None:
        """Append sampled tokens to the output, up to the first token that ends it. All sampled tokens but the last
        equal draft tokens, so this step has already computed them. tops: the logprobs of the sampled tokens; () if not
        requested."""
        stops, guide, n_sampled, stop = request.stop_ids, request.guide, len(sampled), 0
        while stop < n_sampled and (token := sampled[stop]) not in stops and token != NO_TOKEN:
            stop += 1
        n = stop if guide is None else guide.accept(sampled[:stop])
        if n_sampled > 1:
            n_drafted = min(n, n_sampled - 1)
            request.drafted.extend(range(request.n_out, request.n_out + n_drafted))
            request.n_computed += n_drafted
            self.counts["computed_tokens"] += n_drafted
        request.extend(sampled[:n])
        if guide is not None and n == n_sampled:
            self._append_forced(request)
        self._report.tokens(request)
        if tops and n:
            self._report.logprobs(request, tops[:n])
        if (n and self._finish_if_complete(request)) or n == n_sampled:
            return
        if n < stop or sampled[stop] == NO_TOKEN:
            self._end_without_token(request)
        else:
            self._finish(request, "stop", sampled[stop], tops[stop] if tops else None)

    def _append_forced(self, request: Request) -> None:
        """Append the tokens that the constraint forces; the next step computes them as one chunk. Appends none with
        logprobs, because only sampled tokens get a probability, and none in a trial (`Run.is_trial`), which might end
        before the model runs."""
        guide = request.guide
        if guide is None or not self.drafting.jumps or request.run.is_trial:
            return
        room = request.max_total - request.n_total
        if room <= 0 or request.sampling.logprobs or request.sampling.max_tokens == 0:
            return
        forced = guide.forced_tokens(room)
        stop = next((i for i, token in enumerate(forced) if token in request.stop_ids), len(forced))
        n = guide.accept(forced[:stop])
        request.drafted.extend(range(request.n_out, request.n_out + n))
        request.n_forced += n
        self.counts["forced_tokens"] += n
        request.extend(forced[:n])

    def _finish_if_complete(self, request: Request) -> bool:
        """Finish a request if its output is complete (nothing can follow) or has its maximum length. Returns whether
        the request was finished."""
        if request.guide is not None and request.guide.must_stop:
            self._finish(request, "stop")
        elif len(request.ids) == request.max_total and request.n_out:
            self._finish(request, "length")
        else:
            return False
        return True

    def _end_without_token(self, request: Request) -> None:
        """End a request for which no token is allowed. If its output is complete, the request is finished; otherwise it
        fails."""
        guide = request.guide
        if guide is not None:
            guide.find_failure()  # otherwise an output that is cut where it is a match would look complete
        if guide is not None and guide.error:
            why = f"the constraint's engine gave up after {request.n_out} tokens: {guide.error}"
            self._fail(request, ConstraintBroke.code, why)
        elif guide is not None and guide.can_stop:
            self._finish(request, "stop")
        else:
            self._fail(request, "error", "no token can be sampled: the model's logits are NaN, or all are forbidden")

    def fail(self, plan: Plan, code: str, message: str) -> None:
        """Fail the requests of a step that did not complete. What they computed before stays in the tree."""
        for work in plan.works:
            if work.is_current:
                self._fail(work.request, code, message)

    def report(self) -> tuple[Step, Sequence[Failed]]:
        """Return what happened since the last report."""
        step, failed = self._report.step(), self._report.failed
        self._report = StepReport()
        self.counts["generated_tokens"] += len(step.ids) // 4
        return step, failed

    def _publish(self, request: Request) -> None:
        """Put newly computed tokens into the tree. Prompt tokens are published after each step, because other requests
        may wait for them; output tokens when a page is full."""
        n, page = request.n_computed, self.cache.page
        is_prompt = request.n_published < request.n_submitted
        assert request.lease is not None
        if is_prompt or n // page > request.n_published // page or request.lease.states:
            request.lease.publish(request.ids[:n].tobytes())
            request.n_published = n
            if is_prompt and n >= request.n_submitted:
                self.cache.in_flight.release(request)
                self.waiting.order.published(request)

    # ---- the end of a request --------------------------------------------------------------------------------------

    def _finish(
        self, request: Request, reason: FinishReason, stop_id: int = -1, end: TopLogprobs | None = None
    ) -> None:
        self._keep_last_state(request)
        self._end(request)
        self._report.tokens(request)  # forced tokens of a request that ends before its prefill
        if reason != "abort" and request.sampling.max_tokens:
            self.lengths.note(request.sampling.max_tokens, request.n_out)
        drafts = self.drafting.end(request)
        if request.n_forced:  # forced tokens are always accepted
            drafts["grammar"] = request.n_forced, request.n_forced
        self._report.finish(request, reason, stop_id, drafts, end)
        request.guide = None  # a step planned ahead may still have a row for it, which needs no mask

    def _fail(self, request: Request, code: str, message: str) -> None:
        self._end(request)
        self.drafting.end(request)
        self._report.failed.append(Failed(request.rid, 0, code, message))

    def _end(self, request: Request) -> None:
        """Release a request. Forget its program if that has ended and this was its last request."""
        del self.requests[request.rid]
        self._release(request)
        if self.waiting.unregister(request) and self.admission is not None:
            self.admission.end_program(request.run.client, request.serial)

    def _retract(self, request: Request) -> None:
        self.counts["retractions"] += 1
        self._keep_last_state(request)
        self._release(request)
        request.n_computed = request.n_published = 0
        self.waiting.add(request)

    def _keep_last_state(self, request: Request) -> None:
        """Leave the request's recurrent state to the tree, unless its step failed, after which the state is not
        known."""
        if request.lease is not None:
            request.lease.keep_last_state(request.n_computed)

    def _release(self, request: Request) -> None:
        """Take a request out of every list and close its lease. Called whenever a request ends or is retracted."""
        self._n_released += 1
        if request.lease is not None:
            if request.n_computed > request.n_published or request.lease.states:
                request.lease.publish(request.ids[: request.n_computed].tobytes())
            request.lease.close()
            request.lease = None
            request.n_inflight = request.n_pending = 0
            if self.admission is not None:
                self.admission.stop(request, self._now)
            self.cache.in_flight.release(request)
            self.running.remove(request)
        else:
            if request in self.following:
                self.following.remove(request)
            self.lacking.pop(request, None)
            self.waiting.remove(request)
        request.images = {}

    def repair(self) -> None:
        """Withdraw damaged pages from use, after the cache's invariants turned out not to hold. A page is damaged if it
        is not certain who owns it. Requests that used such pages start again, and nothing that they computed is
        published. Raises AssertionError if the repair fails."""
        ended = set(quarantine(self.cache))
        for request in [request for request in self.running if request.lease in ended]:
            request.n_published = request.n_computed
            self._retract(request)

    # ---- inspection ------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Counters since the start, and the numbers of running and waiting requests."""
        now = {"running": len(self.running), "waiting": len(self.requests) - len(self.running)}
        return self.counts | self.drafting.stats() | now

    def check(self) -> None:
        """Check every invariant of the scheduler and of its cache. Raises AssertionError if one does not hold."""
        requests, running, waiting = self.requests, self.running, self.waiting
        check_cache(self.cache)
        self.drafting.check(set(requests))
        listed = [*running, *waiting, *self.following, *self.lacking]
        assert sorted(r.rid for r in listed) == sorted(requests), "a request is in no list, or in two"
        assert len(waiting) == sum(r.is_waiting for r in requests.values()) == len(list(waiting))
        assert all(a.key < b.key for a, b in pairwise(running)), "the running requests are not sorted by rank"
        for r in requests.values():
            assert (r.lease is not None) == (r in running)
            assert r.lease.n_cached <= r.n_computed if r.lease else r.n_computed == 0
            assert r.n_published <= r.n_computed < r.n_total <= r.max_total
            assert r.n_inflight == r.n_pending == 0, "counts of a step in flight are set outside plan_ahead"
        assert len(running) <= self.max_running
        assert len(self.cache.in_flight) == sum(r.n_computed < r.n_submitted for r in running)


class StepReport:
    """New tokens, finished and failed requests of one report."""

    def __init__(self) -> None:
        self._rids, self._n_new, self._ids = array("q"), array("i"), array("i")
        self._logprobs: dict[int, tuple[TopLogprobs, ...]] = {}
        self._cached: dict[int, int] = {}
        self._finished: list[Finish] = []
        self.failed: list[Failed] = []

    def tokens(self, request: Request) -> None:
        """Add the output tokens that no report has yet."""
        n, ids = request.n_unreported, request.ids
        if not n:
            return
        if len(ids) - n == request.n_prompt:
            self._cached[request.rid] = max(request.n_cached, 0)
        self._rids.append(request.rid)
        self._n_new.append(n)
        self._ids.extend(ids[-n:])
        request.n_unreported = 0

    def logprobs(self, request: Request, tops: Sequence[TopLogprobs]) -> None:
        """Add the logprobs of a request's latest output tokens. tops: one entry per token."""
        self._logprobs[request.rid] = (*self._logprobs.get(request.rid, ()), *tops)

    def finish(
        self,
        request: Request,
        reason: FinishReason,
        stop_id: int,
        drafts: dict[str, tuple[int, int]],
        end: TopLogprobs | None,
    ) -> None:
        """Add a finished request. drafts: by drafter, how many tokens were drafted and how many accepted. end: the
        logprobs of stop_id; None: not requested."""
        n_drafted, n_accepted = (sum(n) for n in zip(*drafts.values(), strict=True)) if drafts else (0, 0)
        r = request
        self._finished.append(
            Finish(r.rid, reason, stop_id, r.n_prompt, max(r.n_cached, 0), r.scores.tobytes(), r.start_time,
                   n_drafted, n_accepted, r.drafted.tobytes(), tuple(r.tops), drafts, end)
        )  # fmt: skip

    def step(self) -> Step:
        ids = self._rids.tobytes(), self._n_new.tobytes(), self._ids.tobytes()
        return Step(*ids, self._logprobs, tuple(self._finished), self._cached)
