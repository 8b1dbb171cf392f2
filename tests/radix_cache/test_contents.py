"""A lease never reads keys and values of other tokens: a random walk over everything that a lease can do.

A plain dict holds the slots. A forward pass writes into a slot the whole prefix that its keys and values depend on. The
oracle is a list of all published prefixes, and a search of the whole tree for the longest one that a prompt shares.
Copies are delayed as long as possible, and steps of several leases interleave. In between, the process dies, and
another one continues with the second tier's file.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from pathlib import Path
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
from banyan.radix_cache.check import check
from banyan.radix_cache.hints import KVHint
from banyan.radix_cache.host_tier import Move
from banyan.radix_cache.node import Node
from banyan.radix_cache.pagefile import PageFile
from banyan.radix_cache.policy import POLICIES

Tokens = tuple[int, ...]
Slots = dict[tuple[int, int], tuple[bytes, Tokens] | None]  # (page, slot): the prefix that was computed into it

pick = st.integers(0, 2**16)  # an index into a list, modulo its length
bits = st.integers(0, 2**70 - 1)  # tokens, or other choices between two


def as_tokens(number: int, n: int) -> Tokens:
    return tuple(number >> i & 1 for i in range(n))


def as_ids(tokens: Tokens) -> bytes:
    return array("i", tokens).tobytes()


def as_tokens_of(ids: bytes) -> Tokens:
    return tuple(array("i", ids))


class Running:
    """The engine's state of one lease."""

    def __init__(self, lease: Lease, namespace: bytes, tokens: Tokens) -> None:
        self.lease = lease
        self.namespace = namespace
        self.tokens = tokens
        self.n_computed = lease.n_cached  # in KV, once the copies are done
        self.n_published = 0
        self.copies: list[tuple[int, int, int]] | None = None  # taken, to be executed before its next write


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
    def begin(self, n_pages: int, trunk: int, n: int, policy: str, n_host: int, has_file: bool) -> None:
        self.options = n_pages, self.page, self.enabled, policy, n_host
        self.home = TemporaryDirectory(prefix="banyan-")  # removed with the state machine, also if that fails
        self.path = Path(self.home.name) / "kv" if has_file and n_host else None
        self.host: Slots = {}  # survives the process if there is a file
        self.prompts = [as_tokens(trunk, min(n * self.page + 2, n_pages * self.page))]
        self.begin_process()
        self.start(b"", self.prompts[0], len(self.prompts[0]))

    def begin_process(self) -> None:
        """Creates a cache with the pages of the file."""
        n_host = self.options[-1]
        self.file = None if self.path is None else PageFile(self.path, n_host, self.page, 16, bytes(32))
        self.cache = Cache(*self.options, self.file)
        self.handles: list[KVHint] = []
        self.now = 0
        self.kv: Slots = {}
        self.running: list[Running] = []
        self.published: set[tuple[bytes, Tokens]] = set()  # since the last eviction
        self.n_evicted = 0

    # ---- what a request does ---------------------------------------------------------------------------------------

    @rule(i=pick, cut=pick, tail=bits, n_tail=st.integers(0, 20), spare=st.integers(0, 2), elsewhere=st.integers(0, 7))
    @precondition(lambda self: len(self.running) < 5)
    def open(self, i: int, cut: int, tail: int, n_tail: int, spare: int, elsewhere: int) -> None:
        """Opens a lease for a prompt that shares a prefix with an earlier one. `spare`: tokens left to compute."""
        base = self.prompts[i % len(self.prompts)]
        tokens = (base[: cut % (len(base) + 1)] + as_tokens(tail, n_tail))[: self.cache.n_pages * self.page]
        if len(tokens) > spare:
            self.prompts.append(tokens)
            self.start(b"" if elsewhere else b"tenant", tokens, len(tokens) - spare)

    def start(self, namespace: bytes, tokens: Tokens, limit: int) -> None:
        cache, alone, is_spoiled = self.cache, not self.running, self.is_spoiled
        found = self.longest(namespace, tokens)
        n_before = cache.stats().n_evicted_pages
        lease = cache.open(as_ids(tokens), namespace, limit, priority=len(tokens) % 3)
        expected = min(found, limit)
        whole = expected // self.page * self.page
        if cache.host is None or (alone and not is_spoiled):
            assert lease.n_cached in (expected, whole)
            n_more = -(-len(tokens) // self.page) - len(lease.pages)
            assert lease.n_cached == expected or n_more > cache.stats().n_free, "the copy had room"
        assert lease.n_host <= lease.n_cached <= expected
        if cache.host is None:
            assert cache.stats().n_evicted_pages - n_before <= 1, "it claims one page, for a copy, and no more"
        self.note_evictions()
        grown = lease.grow(len(tokens))
        self.note_evictions()
        assert grown or not alone, "a lease that is alone has room for all of its tokens"
        if grown:
            self.running.append(Running(lease, namespace, tokens))
        else:
            lease.close()

    @rule(
        order=st.permutations(range(5)), ns=st.lists(st.integers(0, 20), min_size=5, max_size=5), draws=bits, late=bits
    )
    def step(self, order: list[int], ns: list[int], draws: int, late: int) -> None:
        """A forward pass over some leases: reads earlier slots, writes the next ones, draws at the end of prompts."""
        at_work = [(self.running[i], ns[i]) for i in order if i < len(self.running) and ns[i]]
        for one, _ in at_work:
            self.do_copies(one)
        for i, (one, n) in enumerate(at_work):
            if one.n_computed == len(one.tokens):
                self.grow(one, len(one.tokens) + 1)
                if one.lease.n_slots <= len(one.tokens):
                    continue
                one.tokens += (draws >> i & 1,)
                self.prompts.append(one.tokens)
            self.forward(one, n)
        for i, (one, _) in enumerate(at_work):
            if late >> i & 3:
                self.publish(one)

    def forward(self, one: Running, n: int) -> None:
        self.do_moves()
        self.read(one, self.kv)
        reach = min(one.n_computed + n, len(one.tokens), one.lease.n_slots)
        for i in range(one.n_computed, reach):
            self.kv[self.slot(one, i)] = one.namespace, one.tokens[: i + 1]
        one.n_computed = reach

    @rule(i=pick)
    @precondition(lambda self: self.running)
    def publish_late(self, i: int) -> None:
        one = self.running[i % len(self.running)]
        if one.copies is not None:  # it has run a forward pass
            self.publish(one)

    @rule(i=pick, n=st.integers(1, 20))
    @precondition(lambda self: self.running)
    def draft(self, i: int, n: int) -> None:
        """Grows for a draft, writes its keys and values, and rejects all of it."""
        one = self.running[i % len(self.running)]
        n_slots = one.lease.n_slots
        self.grow(one, len(one.tokens) + n)
        self.do_copies(one)
        for slot in range(one.n_computed, min(len(one.tokens) + n, one.lease.n_slots)):
            self.kv[self.slot(one, slot)] = None
        one.lease.shrink(len(one.tokens))
        assert one.lease.n_slots <= max(n_slots, -(-len(one.tokens) // self.page) * self.page)
        assert one.lease.n_slots >= one.n_computed

    @rule(i=pick)
    @precondition(lambda self: self.running and len(self.running) < 5)
    def fork(self, i: int) -> None:
        one = self.running[i % len(self.running)]
        lease = one.lease.fork()
        self.note_evictions()
        known = max(one.n_published, one.lease.n_cached)
        assert lease.n_cached <= known
        if self.enabled and self.n_evicted == 0:
            assert lease.n_cached in (known, known // self.page * self.page)
        self.running.append(Running(lease, one.namespace, one.tokens[: lease.n_cached]))

    @rule(i=pick, publish=st.booleans())
    @precondition(lambda self: self.running)
    def close(self, i: int, publish: bool) -> None:
        """The end of a request, or its cancellation."""
        one = self.running[i % len(self.running)]
        if publish and one.copies is not None:
            self.publish(one)
        self.running.remove(one)
        one.lease.close()

    @rule(i=pick)
    @precondition(lambda self: self.running)
    def retract(self, i: int) -> None:
        """Closes a lease and opens it again with all its tokens: what it had computed is still there."""
        one = self.running[i % len(self.running)]
        if one.copies is not None and one.tokens:
            self.publish(one)
            self.running.remove(one)
            one.lease.close()
            if self.enabled:
                assert self.longest(one.namespace, one.tokens) >= one.n_computed
            self.start(one.namespace, one.tokens, len(one.tokens) - 1)

    # ---- what happens to the tree ----------------------------------------------------------------------------------

    @rule(n=st.sampled_from((1, 1, 1, 2, 2, 3, 3, 1000)))
    @precondition(lambda self: self.cache.stats().n_evictable)
    def evict(self, n: int) -> None:
        n_evictable = self.cache.stats().n_evictable
        n_freed = self.cache.evict(n)
        assert n_freed == min(n, n_evictable) or (self.cache.host and n_freed > n)
        self.note_evictions()

    # ---- what programs say -----------------------------------------------------------------------------------------

    @rule(i=pick, cut=pick, elsewhere=st.integers(0, 7))
    @precondition(lambda self: len(self.handles) < 6)
    def handle(self, i: int, cut: int, elsewhere: int) -> None:
        """A hint on a prompt or a prefix of it, whether it is stored or not."""
        tokens = self.prompts[i % len(self.prompts)]
        tokens = tokens[: cut % (2 * len(tokens) + 1)]
        self.handles.append(self.cache.handle(as_ids(tokens), b"" if elsewhere else b"tenant"))

    @rule(i=pick, what=st.sampled_from(("expect", "pin", "release", "drop", "prefetch")), n=st.integers(0, 9))
    @precondition(lambda self: self.handles)
    def steer(self, i: int, what: str, n: int) -> None:
        one = self.handles[i % len(self.handles)]
        if what == "prefetch":
            before, is_spoiled = self.cache.stats(), self.is_spoiled
            n_tokens = one.prefetch()
            after = self.cache.stats()
            self.note_evictions()
            assert n_tokens <= self.longest(one.namespace, as_tokens_of(one.ids))
            for reason in ("expected", "pinned"):
                assert after.evicted.get(reason) == before.evicted.get(reason), "it takes nothing that is held"
            assert after.n_leased == before.n_leased
            again = one.prefetch()
            assert again == n_tokens or (again < n_tokens and is_spoiled)
            self.note_evictions()
            return
        before = self.cache.stats()
        if what == "expect":
            one.expect(n)
        elif what == "pin":
            one.pin(self.now + n)
        elif what == "release":
            one.release()
        else:
            one.drop(n)
            self.handles.remove(one)
            if self.cache.host:
                self.published.clear()
        after = self.cache.stats()
        assert after.n_leased == before.n_leased
        assert after.n_cached <= before.n_cached, "a leaf that says nothing may go"
        assert not one.is_held or what in ("expect", "pin")

    @rule(n=st.integers(1, 5))
    def tick(self, n: int) -> None:
        self.now += n
        self.cache.tick(self.now, self.now)

    # ---- the end of a process --------------------------------------------------------------------------------------

    @rule(n=st.integers(0, 12), is_torn=st.booleans(), lost=st.integers(0, 40))
    @precondition(lambda self: self.path is not None)
    def crash(self, n: int, is_torn: bool, lost: int) -> None:
        """The process dies after n of its moves, in the middle of another one. Perhaps the machine dies too, before all
        writes have reached the disk."""
        assert self.file is not None
        moves = self.cache.take_moves()
        self.move(self.kv, self.host, moves[:n], self.file)
        if is_torn and n < len(moves) and moves[n].is_out:
            self.file.begin(moves[n].host)
            self.file.pages[16 * moves[n].host] ^= 1
            self.spoil(moves[n].host)
        if lost < self.options[-1]:
            self.file.pages[16 * lost + 3] = (self.file.pages[16 * lost + 3] + 1) % 256
            self.spoil(lost)
        self.go_on()

    @rule()
    @precondition(lambda self: self.path is not None)
    def end(self) -> None:
        """The process ends normally, and saves the pages that fit."""
        for one in self.running:
            self.do_copies(one)
        self.cache.close()
        self.do_moves()
        self.go_on()

    def spoil(self, page: int) -> None:
        """Corrupts the slots."""
        self.host.update({(page, i): None for i in range(self.page)})

    @property
    def is_spoiled(self) -> bool:
        """Whether a page of the file is corrupted: matches end before it once it was read."""
        return None in self.host.values()

    def go_on(self) -> None:
        assert self.file is not None
        self.file.close()
        self.begin_process()
        assert self.file is not None
        for namespace, root in self.cache.tree.roots.items():
            stack: list[Node] = list(root.children.values())
            while stack:
                node = stack.pop()
                ids = as_tokens_of(node.path)
                for i in range(node.start, node.end):
                    page = node.host[(i - node.start) // self.page]
                    if self.file.is_sound(page):
                        assert self.host[page, i % self.page] == (namespace, ids[: i + 1]), "a file with wrong KV"
                stack += node.children.values()

    # ---- the engine's part -----------------------------------------------------------------------------------------

    def slot(self, one: Running, i: int) -> tuple[int, int]:
        return one.lease.pages[i // self.page], i % self.page

    def do_moves(self) -> None:
        self.move(self.kv, self.host, self.cache.take_moves(), self.file)
        assert not self.cache.take_moves()

    def move(self, device: Slots, host: Slots, moves: list[Move], file: PageFile | None = None) -> None:
        """file: executes the moves there too. A page's bytes in the file are a digest of its slots."""
        for move in moves:
            if file is not None and move.is_out:
                file.begin(move.host)
            for i in range(self.page):
                if move.is_out:
                    host[move.host, i] = device.get((move.device, i))
                else:
                    device[move.device, i] = host[move.host, i]
            if file is not None and move.is_out:
                held = repr([host[move.host, i] for i in range(self.page)])
                file.pages[16 * move.host : 16 * move.host + 16] = blake2b(held.encode(), digest_size=16).digest()
                file.seal(move.host, move.label)

    def seen(self) -> Slots:
        """The device's contents after all ordered moves."""
        if self.cache.host is None:
            return self.kv
        device = dict(self.kv)
        self.move(device, dict(self.host), self.cache.host.moves)
        return device

    def do_copies(self, one: Running) -> None:
        self.do_moves()
        if one.copies is None:
            one.copies = one.lease.take_copies()
            assert not one.lease.take_copies()
            for source, destination, n_slots in one.copies:
                for i in range(n_slots):
                    self.kv[destination, i] = self.kv[source, i]

    def grow(self, one: Running, n_slots: int) -> None:
        cache, before = self.cache, (list(one.lease.pages), self.cache.stats())
        need = -(-n_slots // self.page) - len(one.lease.pages)
        n_available = cache.n_available
        assert one.lease.grow(n_slots) == (need <= n_available)
        if need > n_available:
            assert (one.lease.pages, cache.stats()) == before
        self.note_evictions()

    def publish(self, one: Running) -> None:
        self.do_copies(one)
        tokens = one.tokens[: one.n_computed]
        one.lease.publish(as_ids(tokens))
        one.n_published = one.n_computed
        self.published.add((one.namespace, tokens))
        assert not self.enabled or self.longest(one.namespace, tokens) == len(tokens)

    def read(self, one: Running, device: Slots) -> None:
        for i in range(one.n_computed):
            assert device[self.slot(one, i)] == (one.namespace, one.tokens[: i + 1]), f"wrong KV at token {i}"

    # ---- the oracle ------------------------------------------------------------------------------------------------

    def stored(self, namespace: bytes) -> list[bytes]:
        """The token ids of every path in a tree."""
        paths: list[bytes] = []

        def walk(node: Node, ids: bytes) -> None:
            paths.append(ids + node.key)
            for child in node.children.values():
                walk(child, ids + node.key)

        if root := self.cache.tree.roots.get(namespace):
            walk(root, b"")
        return paths

    def longest(self, namespace: bytes, tokens: Tokens) -> int:
        ids, best = as_ids(tokens), 0
        for path in self.stored(namespace):
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
        device = self.seen()
        for one in self.running:
            if one.copies is None:
                n = one.lease.n_cached // self.page * self.page
                for i in range(n):
                    assert device[self.slot(one, i)] == (one.namespace, one.tokens[: i + 1]), f"wrong KV at token {i}"
            else:
                self.read(one, device)

    @invariant()
    def what_was_published_is_found(self) -> None:
        if self.enabled:
            for namespace, tokens in self.published:
                assert self.longest(namespace, tokens) == len(tokens)
        else:
            assert not self.cache.tree.n_pages

    def teardown(self) -> None:
        for one in self.running:
            one.lease.close()
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


SHORT = settings(max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(SHORT, max_examples=1000, stateful_step_count=60)


@pytest.mark.parametrize(("page", "enabled"), [(1, True), (4, True), (16, True), (4, False)])
@pytest.mark.parametrize("length", [SHORT, pytest.param(LONG, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_no_lease_reads_what_is_not_its_own(page: int, enabled: bool, length: settings) -> None:
    machine = type("Machine", (Machine,), {"page": page, "enabled": enabled})
    run_state_machine_as_test(machine, settings=length)
