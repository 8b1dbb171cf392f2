"""A lease never reads keys and values of other tokens: stateful tests of all operations of a lease.

A dict stands in for the KV slots. A forward pass writes into a slot the prefix that its keys and values depend on. The
oracle is a list of all published prefixes, and a search of the whole tree for the longest common prefix. Copies are
delayed as long as possible, and steps of several leases interleave. The process crashes, and the next one starts with
the file of the host tier.

Hypothesis runs the machine in short programs, which it can shrink. A random walk runs it for thousands of steps, and
also corrupts the cache's bookkeeping, which is then repaired.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.check import Corrupt, check
from banyan.radix_cache.hints import KVHint
from banyan.radix_cache.host_tier import Move
from banyan.radix_cache.pagefile import PageFile
from banyan.radix_cache.policy import POLICIES
from banyan.radix_cache.quarantine import quarantine

Tokens = tuple[int, ...]
Slots = dict[tuple[int, int], tuple[bytes, Tokens] | None]  # (page, slot): the prefix that was computed into it

index = st.integers(0, 2**16)  # used as an index into a list, modulo its length
bits = st.integers(0, 2**70 - 1)  # tokens, or other choices between two


def tokens_from_bits(number: int, n: int) -> Tokens:
    return tuple(number >> i & 1 for i in range(n))


def encode(tokens: Tokens) -> bytes:
    return array("i", tokens).tobytes()


def decode(ids: bytes) -> Tokens:
    return tuple(array("i", ids))


class Request:
    """A request as the engine sees it: its lease, its tokens and its progress."""

    def __init__(self, lease: Lease, namespace: bytes, tokens: Tokens) -> None:
        self.lease = lease
        self.namespace = namespace
        self.tokens = tokens
        self.n_computed = lease.n_cached  # tokens in KV after the copies
        self.n_published = 0
        self.copies: list[tuple[int, int, int]] | None = None  # None: not taken yet; done when they are taken


class Machine(RuleBasedStateMachine):
    page = 4
    enabled = True

    @initialize(
        n_pages=st.integers(3, 24),
        trunk=bits,
        n=st.integers(1, 4),
        policy=st.sampled_from(sorted(POLICIES)),
        n_host=st.sampled_from((0, 0, 1, 5, 20)),
        has_file=st.booleans(),
    )
    def initialize_machine(self, n_pages: int, trunk: int, n: int, policy: str, n_host: int, has_file: bool) -> None:
        self.options = n_pages, self.page, self.enabled, policy, n_host
        self.home = TemporaryDirectory(prefix="banyan-")  # removed with the state machine
        self.path = Path(self.home.name) / "kv" if has_file and n_host else None
        self.host: Slots = {}  # survives the process if there is a file
        self.corrupted: set[int] = set()  # pages of the file
        self.totals: Counter[str] = Counter()  # statistics of the processes that have ended
        self.prompts = [tokens_from_bits(trunk, min(n * self.page + 2, n_pages * self.page))]
        self.start_process()
        self.start(b"", self.prompts[0], len(self.prompts[0]))

    def start_process(self) -> None:
        """Creates a cache that has the pages of the file, if there is one."""
        n_host = self.options[-1]
        self.file = None if self.path is None else PageFile(self.path, n_host, self.page, 16, bytes(32))
        self.cache = Cache(*self.options, self.file)
        self.handles: list[KVHint] = []
        self.now = 0
        self.kv: Slots = {}
        self.running: list[Request] = []
        self.published: set[tuple[bytes, Tokens]] = set()  # since the last eviction
        self.n_evicted = 0

    # ---- requests --------------------------------------------------------------------------------------------------

    @rule(i=index, cut=index, tail=bits, n_tail=st.integers(0, 20), spare=st.integers(0, 2), other=st.integers(0, 7))
    @precondition(lambda self: len(self.running) < 5)
    def open(self, i: int, cut: int, tail: int, n_tail: int, spare: int, other: int) -> None:
        """Opens a lease for a prompt that shares a prefix with an earlier one. spare: tokens that may not be cached."""
        base = self.prompts[i % len(self.prompts)]
        tokens = (base[: cut % (len(base) + 1)] + tokens_from_bits(tail, n_tail))[: self.cache.n_pages * self.page]
        if len(tokens) > spare:
            self.prompts.append(tokens)
            self.start(b"" if other else b"tenant", tokens, len(tokens) - spare)

    def start(self, namespace: bytes, tokens: Tokens, limit: int) -> None:
        cache, is_single, is_corrupted = self.cache, not self.running, self.is_corrupted
        if is_single:
            cache.readmit()
        longest = self.longest(namespace, tokens)
        n_before = cache.stats().n_evicted_pages
        lease = cache.open(encode(tokens), namespace, limit, priority=len(tokens) % 3)
        expected = min(longest, limit)
        full_pages = expected // self.page * self.page
        if cache.host is None or (is_single and not is_corrupted):
            assert lease.n_cached in (expected, full_pages)
            n_more = -(-len(tokens) // self.page) - len(lease.pages)
            assert lease.n_cached == expected or n_more > cache.stats().n_free, "the copy has room"
        assert lease.n_host <= lease.n_cached <= expected
        if cache.host is None:
            assert cache.stats().n_evicted_pages - n_before <= 1, "open takes at most one page, for a copy"
        self.note_evictions()
        grown = lease.grow(len(tokens))
        self.note_evictions()
        assert grown or not is_single, "a single lease has room for all of its tokens"
        if grown:
            self.running.append(Request(lease, namespace, tokens))
        else:
            lease.close()

    @rule(
        order=st.permutations(range(5)),
        ns=st.lists(st.integers(0, 20), min_size=5, max_size=5),
        samples=bits,
        publishes=bits,
    )
    def step(self, order: list[int], ns: list[int], samples: int, publishes: int) -> None:
        """A forward pass over some leases: reads earlier slots, writes the next ones, samples after the prompt."""
        scheduled = [(self.running[i], ns[i]) for i in order if i < len(self.running) and ns[i]]
        for request, _ in scheduled:
            self.do_copies(request)
        for i, (request, n) in enumerate(scheduled):
            if request.n_computed == len(request.tokens):
                self.grow(request, len(request.tokens) + 1)
                if request.lease.n_slots <= len(request.tokens):
                    continue
                request.tokens += (samples >> i & 1,)
                self.prompts.append(request.tokens)
            self.forward(request, n)
        for i, (request, _) in enumerate(scheduled):
            if publishes >> i & 3:
                self.publish(request)

    def forward(self, request: Request, n: int) -> None:
        self.do_moves()
        self.read(request, self.kv)
        end = min(request.n_computed + n, len(request.tokens), request.lease.n_slots)
        for i in range(request.n_computed, end):
            self.kv[self.slot(request, i)] = request.namespace, request.tokens[: i + 1]
        request.n_computed = end

    @rule(i=index)
    @precondition(lambda self: self.running)
    def publish_late(self, i: int) -> None:
        request = self.running[i % len(self.running)]
        if request.copies is not None:  # after a forward pass
            self.publish(request)

    @rule(i=index, n=st.integers(1, 20))
    @precondition(lambda self: self.running)
    def draft(self, i: int, n: int) -> None:
        """Grows for a draft, writes its keys and values, and rejects the whole draft."""
        request = self.running[i % len(self.running)]
        n_slots = request.lease.n_slots
        self.grow(request, len(request.tokens) + n)
        self.do_copies(request)
        for slot in range(request.n_computed, min(len(request.tokens) + n, request.lease.n_slots)):
            self.kv[self.slot(request, slot)] = None
        request.lease.shrink(len(request.tokens))
        assert request.lease.n_slots <= max(n_slots, -(-len(request.tokens) // self.page) * self.page)
        assert request.lease.n_slots >= request.n_computed

    @rule(i=index)
    @precondition(lambda self: self.running and len(self.running) < 5)
    def fork(self, i: int) -> None:
        request = self.running[i % len(self.running)]
        n_known = max(request.n_published, request.lease.n_cached)
        lease = self.cache.open(encode(request.tokens), request.namespace, n_known, request.lease.priority)
        self.note_evictions()
        assert lease.n_cached <= n_known
        if self.enabled and self.n_evicted == 0:
            assert lease.n_cached in (n_known, n_known // self.page * self.page)
        self.running.append(Request(lease, request.namespace, request.tokens[: lease.n_cached]))

    @rule(i=index, publish=st.booleans())
    @precondition(lambda self: self.running)
    def close(self, i: int, publish: bool) -> None:
        """Ends or cancels a request."""
        request = self.running[i % len(self.running)]
        if publish and request.copies is not None:
            self.publish(request)
        self.running.remove(request)
        request.lease.close()

    @rule(i=index)
    @precondition(lambda self: self.running)
    def retract(self, i: int) -> None:
        """Closes a lease and opens it again with all its tokens: the computed tokens are still cached."""
        request = self.running[i % len(self.running)]
        if request.copies is not None and request.tokens:
            self.publish(request)
            self.running.remove(request)
            request.lease.close()
            if self.enabled:
                assert self.longest(request.namespace, request.tokens) >= request.n_computed
            self.start(request.namespace, request.tokens, len(request.tokens) - 1)

    # ---- eviction --------------------------------------------------------------------------------------------------

    @rule(n=st.sampled_from((1, 1, 1, 2, 2, 3, 3, 1000)))
    @precondition(lambda self: self.cache.stats().n_evictable)
    def evict(self, n: int) -> None:
        n_evictable = self.cache.stats().n_evictable
        n_freed = self.cache.hints.evict(n)
        assert n_freed == min(n, n_evictable) or (self.cache.host and n_freed > n)
        self.note_evictions()

    # ---- hints -----------------------------------------------------------------------------------------------------

    @rule(i=index, cut=index, other=st.integers(0, 7))
    @precondition(lambda self: len(self.handles) < 6)
    def handle(self, i: int, cut: int, other: int) -> None:
        """A hint on a prefix of a prompt, stored or not."""
        tokens = self.prompts[i % len(self.prompts)]
        tokens = tokens[: cut % (2 * len(tokens) + 1)]
        self.handles.append(self.cache.handle(encode(tokens), b"" if other else b"tenant"))

    @rule(i=index, action=st.sampled_from(("expect", "pin", "release", "drop", "prefetch")), n=st.integers(0, 9))
    @precondition(lambda self: self.handles)
    def change_hint(self, i: int, action: str, n: int) -> None:
        hint = self.handles[i % len(self.handles)]
        if action == "prefetch":
            before, is_corrupted = self.cache.stats(), self.is_corrupted
            n_tokens = hint.prefetch()
            after = self.cache.stats()
            self.note_evictions()
            assert n_tokens <= self.longest(hint.namespace, decode(hint.ids))
            for reason in ("expected", "pinned"):
                assert after.evicted.get(reason) == before.evicted.get(reason), "prefetch evicts no held page"
            assert after.n_leased == before.n_leased
            again = hint.prefetch()
            assert again == n_tokens or is_corrupted, "a dropped page may uncover another branch"
            self.note_evictions()
            return
        before = self.cache.stats()
        if action == "expect":
            hint.expect(n)
        elif action == "pin":
            hint.pin(self.now + n)
        elif action == "release":
            hint.release()
        else:
            hint.drop(n)
            self.handles.remove(hint)
            if self.cache.host:
                self.published.clear()
        after = self.cache.stats()
        assert after.n_leased == before.n_leased
        assert after.n_cached <= before.n_cached, "a redundant leaf may be removed"
        assert not hint.is_held or action in ("expect", "pin")

    @rule(n=st.integers(1, 5))
    def tick(self, n: int) -> None:
        self.now += n
        self.cache.tick(self.now, self.now)

    # ---- end of the process ----------------------------------------------------------------------------------------

    @rule(n=st.integers(0, 12), is_torn=st.booleans(), lost=st.integers(0, 40))
    @precondition(lambda self: self.path is not None)
    def crash(self, n: int, is_torn: bool, lost: int) -> None:
        """The process crashes after n moves, perhaps inside the next one. The machine may crash too, before all writes
        have reached the disk."""
        assert self.file is not None
        self.cache.hints.evict(2)
        moves = self.cache.take_moves()
        self.move(self.kv, self.host, moves[:n], self.file)
        if is_torn and n < len(moves) and moves[n].is_out:
            self.file.begin(moves[n].host)
            self.file.pages[16 * moves[n].host] ^= 1
            self.corrupt(moves[n].host)
            self.totals["torn"] += 1
        if lost < self.options[-1]:
            self.file.pages[16 * lost + 3] = (self.file.pages[16 * lost + 3] + 1) % 256
            self.corrupt(lost)
            self.totals["lost"] += 1
        self.restart()

    @rule()
    @precondition(lambda self: self.path is not None)
    def end(self) -> None:
        """The process ends normally, and saves the pages that fit."""
        for request in self.running:
            self.do_copies(request)
        self.cache.close()
        self.do_moves()
        self.restart()

    def corrupt(self, page: int) -> None:
        """Marks the slots of a page of the file as corrupted."""
        self.host.update({(page, i): None for i in range(self.page)})
        self.corrupted.add(page)

    @property
    def is_corrupted(self) -> bool:
        """Whether a page of the file is corrupted. Once a read has found it, matches end before it."""
        return bool(self.corrupted)

    def restart(self) -> None:
        assert self.file is not None
        self.count()
        self.file.close()
        self.start_process()
        assert self.file is not None
        self.totals["restored"] += self.cache.stats().n_host_cached
        check(self.cache)
        for namespace, root in self.cache.tree.roots.items():
            for node in self.cache.tree.subtree(root)[1:]:
                ids = decode(node.path)
                for i in range(node.start, node.end):
                    page = node.host[(i - node.start) // self.page]
                    if self.file.is_sound(page):
                        assert self.host[page, i % self.page] == (namespace, ids[: i + 1]), "wrong KV in the file"

    def count(self) -> None:
        """Adds the statistics of the process to the totals."""
        self.totals.update({name: n for name, n in self.cache.stats()._asdict().items() if isinstance(n, int)})

    def damage(self, i: int, kind: int) -> None:
        """Corrupts the bookkeeping: `check` finds it, and `quarantine` withdraws the pages in doubt."""
        cache = self.cache
        nodes = [node for root in cache.tree.roots.values() for node in cache.tree.subtree(root) if node.pages]
        if not nodes:
            return
        node = nodes[i % len(nodes)]
        match kind:
            case 0:
                cache.pool.free.append(node.pages[0])
            case 1:
                node.pages.pop()
            case 2:
                node.n_locks += 1
            case 3:
                node.start += 1
            case 4 if cache.pool.free:
                cache.pool.free.pop()
            case _ if node.n_locks or node.n_holds:
                node.n_holds += 1
            case _:
                node.prev = node.next = node
        with pytest.raises(Corrupt):
            check(cache)
        ended = quarantine(cache)
        self.running = [request for request in self.running if request.lease not in ended]
        self.published.clear()
        self.totals["withdrawn"] += len(cache.quarantined)
        self.totals["ended"] += len(ended)

    # ---- the engine ------------------------------------------------------------------------------------------------

    def slot(self, request: Request, i: int) -> tuple[int, int]:
        return request.lease.pages[i // self.page], i % self.page

    def do_moves(self) -> None:
        self.move(self.kv, self.host, self.cache.take_moves(), self.file)
        assert not self.cache.take_moves()

    def move(self, device: Slots, host: Slots, moves: list[Move], file: PageFile | None = None) -> None:
        """Do moves between device and host. file: write to it too; the bytes of a page are a digest of its slots."""
        for move in moves:
            if file is not None and move.is_out:
                file.begin(move.host)
                self.corrupted.discard(move.host)
            for i in range(self.page):
                if move.is_out:
                    host[move.host, i] = device.get((move.device, i))
                else:
                    device[move.device, i] = host[move.host, i]
            if file is not None and move.is_out:
                slots = repr([host[move.host, i] for i in range(self.page)])
                file.pages[16 * move.host : 16 * move.host + 16] = blake2b(slots.encode(), digest_size=16).digest()
                file.seal(move.host, move.label)

    def device_after_moves(self) -> Slots:
        """The contents of the device after all pending moves."""
        if self.cache.host is None:
            return self.kv
        device = dict(self.kv)
        self.move(device, dict(self.host), self.cache.host.moves)
        return device

    def do_copies(self, request: Request) -> None:
        self.do_moves()
        if request.copies is None:
            request.copies = request.lease.take_copies()
            assert not request.lease.take_copies()
            for source, destination, n_slots in request.copies:
                for i in range(n_slots):
                    self.kv[destination, i] = self.kv[source, i]

    def grow(self, request: Request, n_slots: int) -> None:
        cache, before = self.cache, (list(request.lease.pages), self.cache.stats())
        n_needed = -(-n_slots // self.page) - len(request.lease.pages)
        n_available = cache.n_available
        assert request.lease.grow(n_slots) == (n_needed <= n_available)
        if n_needed > n_available:
            assert (list(request.lease.pages), cache.stats()) == before
        self.note_evictions()

    def publish(self, request: Request) -> None:
        self.do_copies(request)
        tokens = request.tokens[: request.n_computed]
        request.lease.publish(encode(tokens))
        request.n_published = request.n_computed
        self.published.add((request.namespace, tokens))
        assert not self.enabled or self.longest(request.namespace, tokens) == len(tokens)

    def read(self, request: Request, device: Slots) -> None:
        for i in range(request.n_computed):
            assert device[self.slot(request, i)] == (request.namespace, request.tokens[: i + 1]), (
                f"wrong KV at token {i}"
            )

    # ---- the oracle ------------------------------------------------------------------------------------------------

    def longest(self, namespace: bytes, tokens: Tokens) -> int:
        ids, best = encode(tokens), 0
        root = self.cache.tree.roots.get(namespace)
        for node in self.cache.tree.subtree(root) if root else ():
            path = node.path
            while 4 * best < len(ids) and path.startswith(ids[: 4 * best + 4]):
                best += 1
        return best

    def note_evictions(self) -> None:
        n = self.cache.stats().n_evicted_pages
        if n != self.n_evicted:
            self.n_evicted = n
            self.published.clear()

    @invariant()
    def every_invariant_holds(self) -> None:
        check(self.cache)
        assert self.cache.n_available == self.cache.stats().n_free + self.cache.stats().n_evictable

    @invariant()
    def every_lease_reads_its_own_prefix(self) -> None:
        device = self.device_after_moves()
        for request in self.running:
            if request.copies is None:
                n = request.lease.n_cached // self.page * self.page
                for i in range(n):
                    assert device[self.slot(request, i)] == (request.namespace, request.tokens[: i + 1]), (
                        f"wrong KV at token {i}"
                    )
            else:
                self.read(request, device)

    @invariant()
    def published_prefixes_are_found(self) -> None:
        if self.enabled:
            for namespace, tokens in self.published:
                assert self.longest(namespace, tokens) == len(tokens)
        else:
            assert not self.cache.tree.n_pages

    def teardown(self) -> None:
        for request in self.running:
            request.lease.close()
        check(self.cache)
        self.cache.reset()
        assert self.cache.stats().n_free == self.cache.n_pages
        assert not self.cache.tree.roots
        assert not len(self.cache.hints)
        assert self.cache.stats().n_host_cached == 0
        check(self.cache)
        if self.file is not None:
            self.file.close()
        self.home.cleanup()


SHORT = settings(max_examples=6, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(SHORT, max_examples=1000, stateful_step_count=60)


@pytest.mark.parametrize(("page", "enabled"), [(1, True), (4, True), (16, True), (4, False)])
@pytest.mark.parametrize("length", [SHORT, pytest.param(LONG, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_lease_never_reads_wrong_kv(page: int, enabled: bool, length: settings) -> None:
    machine = type("Machine", (Machine,), {"page": page, "enabled": enabled})
    run_state_machine_as_test(machine, settings=length)


# ---- the random walk -----------------------------------------------------------------------------------------------


def walk(seed: int, n_steps: int) -> Counter[str]:
    """Runs the machine for many steps. Returns the statistics of all its processes."""
    rng = Random(seed)
    n, m = rng.randrange, Machine()
    m.initialize_machine(60, rng.getrandbits(70), 4, rng.choice(sorted(POLICIES)), 48, has_file=True)

    def bits() -> int:
        return rng.getrandbits(70)

    def open_lease() -> None:
        if len(m.running) < 6:
            m.open(n(99), n(99), bits(), n(1, 12), 1, n(2))

    def change_hint() -> None:
        if len(m.handles) < 6:
            m.handle(n(99), n(99), n(2))
        m.change_hint(n(99), rng.choice(("expect", "expect", "pin", "release", "drop", "prefetch")), n(20))

    def step() -> None:
        m.step(rng.sample(range(6), 6), [n(20) * (n(10) < 7) for _ in range(6)], bits(), bits())

    def fork() -> None:
        if len(m.running) < 6:
            m.fork(n(99))

    with_request: dict[Callable[[], None], int] = {
        step: 24,
        lambda: m.publish_late(n(99)): 8,
        lambda: m.close(n(99), n(10) < 6): 8,
        fork: 4,
        lambda: m.retract(n(99)): 4,
        lambda: m.draft(n(99), n(1, 12)): 4,
    }
    without = {
        open_lease: 8,
        change_hint: 8,
        lambda: m.tick(1): 8,
        lambda: m.evict(n(1, 6)): 4,
        lambda: m.crash(n(6), n(2) == 0, n(150)): 0.3,
        m.end: 0.15,
        lambda: m.damage(n(99), n(6)): 0.3,
    }
    for k in range(n_steps):
        actions = without | (with_request if m.running else {})
        rng.choices([*actions], [*actions.values()])[0]()
        m.prompts = [prompt[:44] for prompt in m.prompts[-40:]]
        assert m.cache.conserved()
        if k % 17 == 0:
            m.every_invariant_holds()
            m.every_lease_reads_its_own_prefix()
            m.published_prefixes_are_found()
    m.count()
    m.teardown()
    return m.totals


@pytest.mark.parametrize(
    ("n_walks", "n_steps"), [(2, 3000), pytest.param(40, 25000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_random_walk_never_reads_wrong_kv(n_walks: int, n_steps: int) -> None:
    totals = sum((walk(seed, n_steps) for seed in range(n_walks)), Counter[str]())
    names = ("n_hit_tokens", "n_host_hit_tokens", "n_moved_out", "n_moved_in", "n_host_cached", "restored", "withdrawn")
    for name in (*names, "ended", "torn", "lost"):
        assert totals[name] > 0, f"the walk has no {name}"
