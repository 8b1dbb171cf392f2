"""A long random walk over a cache with a host tier in a file, with crashes and repairs.

A forward pass writes into each slot a digest of the prefix that its keys and values depend on, so every read is
verified. The process crashes: between moves, while it writes a page, or before its last writes reach the disk. The
cache's bookkeeping is corrupted and repaired.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from hashlib import blake2b
from pathlib import Path

import pytest

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.check import Corrupt, check
from banyan.radix_cache.hints import KVHint
from banyan.radix_cache.host_tier import Move
from banyan.radix_cache.node import Node
from banyan.radix_cache.pagefile import PageFile
from banyan.radix_cache.policy import POLICIES
from banyan.radix_cache.quarantine import quarantine

PAGE, N_PAGES, N_HOST, MAX_TOKENS = 4, 60, 48, 44
SLOT = 8  # bytes
NAMESPACES = b"", b"tenant"


def content(namespace: bytes, ids: bytes) -> bytes:
    """The expected content of the slot of the last token of `ids`."""
    return blake2b(ids, digest_size=SLOT, key=namespace).digest()


class Request:
    def __init__(self, lease: Lease, namespace: bytes, ids: bytes) -> None:
        self.lease, self.namespace, self.ids = lease, namespace, ids
        self.n_computed = lease.n_cached
        self.has_copied = False

    @property
    def n(self) -> int:
        return len(self.ids) // 4


class Walk:
    def __init__(self, seed: int, path: Path) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.counts: Counter[str] = Counter()
        self.prompts = [self.tokens(30)]
        self.policy = self.rng.choice(sorted(POLICIES))
        self.start()

    def start(self) -> None:
        """Creates the cache of a new process, with the pages of the file."""
        self.file = PageFile(self.path, N_HOST, PAGE, PAGE * SLOT, bytes(32))
        self.cache = Cache(N_PAGES, PAGE, policy=self.policy, n_host=N_HOST, file=self.file)
        self.memory = bytearray(N_PAGES * PAGE * SLOT)
        self.running: list[Request] = []
        self.handles: list[KVHint] = []
        self.now = 0

    def tokens(self, n: int) -> bytes:
        return array("i", (self.rng.randrange(2) for _ in range(n))).tobytes()

    # ---- the engine ------------------------------------------------------------------------------------------------

    def slots(self, page: int, n: int = PAGE) -> slice:
        return slice(page * PAGE * SLOT, (page * PAGE + n) * SLOT)

    def do_moves(self, moves: list[Move]) -> None:
        pages = self.file.pages
        for move in moves:
            if move.is_out:
                self.file.begin(move.host)
                pages[self.slots(move.host)] = self.memory[self.slots(move.device)]
                self.file.seal(move.host, move.label)
            else:
                self.memory[self.slots(move.device)] = pages[self.slots(move.host)]
            self.counts["out" if move.is_out else "in"] += 1

    def forward(self, scheduled: list[tuple[Request, int]]) -> None:
        self.do_moves(self.cache.take_moves())
        for request, _ in scheduled:
            for source, destination, n in [] if request.has_copied else request.lease.take_copies():
                self.memory[self.slots(destination, n)] = self.memory[self.slots(source, n)]
            request.has_copied = True
        for request, n in scheduled:
            self.read(request)
            for i in range(request.n_computed, min(request.n_computed + n, request.n, request.lease.n_slots)):
                offset = (request.lease.pages[i // PAGE] * PAGE + i % PAGE) * SLOT
                self.memory[offset : offset + SLOT] = content(request.namespace, request.ids[: 4 * i + 4])
                request.n_computed = i + 1

    def read(self, request: Request) -> None:
        """Verifies all slots that a forward pass of the request reads."""
        for i in range(request.n_computed):
            offset = (request.lease.pages[i // PAGE] * PAGE + i % PAGE) * SLOT
            assert self.memory[offset : offset + SLOT] == content(request.namespace, request.ids[: 4 * i + 4]), (
                f"wrong KV at token {i}"
            )

    # ---- actions ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        if len(self.running) < 6:
            base = self.rng.choice(self.prompts)
            ids = base[: 4 * self.rng.randrange(len(base) // 4 + 1)] + self.tokens(self.rng.randrange(1, 12))
            self.admit(self.rng.choice(NAMESPACES), ids[: 4 * MAX_TOKENS])

    def admit(self, namespace: bytes, ids: bytes) -> None:
        n = len(ids) // 4
        lease = self.cache.open(ids, namespace, n - 1, self.rng.randrange(3), owner=self.rng.randrange(9))
        self.counts["hit"] += lease.n_cached
        self.counts["host hit"] += lease.n_host
        if lease.grow(n):
            self.running.append(Request(lease, namespace, ids))
        else:
            assert self.running or self.cache.quarantined, "a single lease has room for all of its tokens"
            if not self.running:
                self.cache.readmit()
            lease.close()

    def step(self) -> None:
        scheduled = [(request, self.rng.randrange(1, 20)) for request in self.running if self.rng.random() < 0.7]
        for request, _ in scheduled:
            if request.n_computed == request.n < MAX_TOKENS and request.lease.grow(request.n + 1):
                request.ids += self.tokens(1)
        self.forward(scheduled)
        for request, _ in scheduled:
            if self.rng.random() < 0.7:
                self.publish(request)

    def publish(self, request: Request) -> None:
        if request.has_copied:
            request.lease.publish(request.ids[: 4 * request.n_computed])
            if self.rng.random() < 0.1:
                self.prompts = [*self.prompts[-40:], request.ids]

    def choose(self) -> Request | None:
        return self.rng.choice(self.running) if self.running else None

    def fork(self) -> None:
        if (request := self.choose()) and len(self.running) < 6:
            lease = self.cache.open(request.ids, request.namespace, request.n_computed)
            self.running.append(Request(lease, request.namespace, request.ids[: 4 * lease.n_cached]))

    def close(self) -> None:
        """Ends or cancels a request."""
        if request := self.choose():
            if self.rng.random() < 0.6:
                self.publish(request)
            self.running.remove(request)
            request.lease.close()

    def retract(self) -> None:
        if (request := self.choose()) and request.n > 0:
            self.publish(request)
            self.running.remove(request)
            request.lease.close()
            self.admit(request.namespace, request.ids)

    def draft(self) -> None:
        """Grows for a draft, writes its keys and values, and rejects the whole draft."""
        if request := self.choose():
            request.lease.grow(request.n + self.rng.randrange(1, 12))
            self.forward([(request, 0)])
            for i in range(request.n_computed, request.lease.n_slots):
                offset = (request.lease.pages[i // PAGE] * PAGE + i % PAGE) * SLOT
                self.memory[offset : offset + SLOT] = b"rejected"
            request.lease.shrink(request.n)

    def change_hints(self) -> None:
        if len(self.handles) < 6:
            base = self.rng.choice([*self.prompts, *(request.ids for request in self.running)])
            cut = self.rng.choice((len(base), 4 * self.rng.randrange(len(base) // 4 + 1)))
            self.handles.append(self.cache.handle(base[:cut], self.rng.choice(NAMESPACES)))
        handle = self.rng.choice(self.handles)
        action = self.rng.randrange(7)
        if action < 3:
            handle.expect(self.rng.randrange(20))
        elif action == 3:
            handle.pin(self.now + self.rng.randrange(9))
        elif action == 4:
            handle.prefetch()
        else:
            handle.release() if action == 5 else handle.drop(self.rng.randrange(20))
            self.handles.remove(handle)

    def tick(self) -> None:
        self.now += 1
        self.cache.tick(self.now, self.now)

    def evict(self) -> None:
        self.cache.hints.evict(self.rng.randrange(1, 6))

    def end(self) -> None:
        """The process ends normally, and the next one starts with the pages that fit."""
        self.cache.close()
        self.do_moves(self.cache.take_moves())
        self.counts["saved"] += self.cache.stats().n_host_cached
        self.restart()

    def crash(self) -> None:
        """The process or the machine crashes between moves, before all writes have reached the disk."""
        self.cache.hints.evict(2)
        moves = self.cache.take_moves()
        n = self.rng.randrange(len(moves) + 1)
        self.do_moves(moves[:n])
        if n < len(moves) and moves[n].is_out:
            self.file.begin(moves[n].host)
            half = slice(self.slots(moves[n].host).start, self.slots(moves[n].host).start + 9)
            self.file.pages[half] = self.memory[self.slots(moves[n].device)][:9]
            self.counts["torn"] += 1
        if self.rng.random() < 0.3:
            for i in self.rng.sample(range(N_HOST), 3):
                self.file.pages[self.slots(i).start + self.rng.randrange(PAGE * SLOT)] ^= 1
                self.counts["lost"] += 1
        self.restart()

    def corrupt(self) -> None:
        """Corrupts the bookkeeping: `check` finds it, and `quarantine` removes the pages in doubt."""
        cache, rng = self.cache, self.rng
        nodes = [node for root in cache.tree.roots.values() for node in root.children.values() if node.pages]
        if not nodes:
            return
        node = rng.choice(nodes)
        while (children := [child for child in node.children.values() if child.pages]) and rng.random() < 0.7:
            node = rng.choice(children)
        action = rng.randrange(6)
        if action == 0:
            cache.pool.free.append(node.pages[0])
        elif action == 1:
            node.pages.pop()
        elif action == 2:
            node.n_locks += 1
        elif action == 3:
            node.start += 1
        elif action == 4 and cache.pool.free:
            cache.pool.free.pop()
        elif node.n_locks or node.n_holds:
            node.n_holds += 1
        else:
            node.prev = node.next = node
        with pytest.raises(Corrupt):
            check(cache)
        ended = quarantine(cache)
        self.running = [request for request in self.running if request.lease not in ended]
        self.counts["withdrawn"] += len(cache.quarantined)
        self.counts["ended"] += len(ended)
        if not self.running:
            cache.readmit()

    def restart(self) -> None:
        self.file.close()
        self.start()
        self.counts["restored"] += self.cache.stats().n_host_cached
        check(self.cache)
        for root in self.cache.tree.roots.values():
            self.verify_host(root, root.namespace)

    def verify_host(self, node: Node, namespace: bytes) -> None:
        """Every sound page of the file has the expected content."""
        ids, first = node.path, node.start // PAGE
        for k, page in enumerate(node.host):
            if self.file.is_sound(page):
                expected = [
                    content(namespace, ids[: 4 * i + 4]) for i in range((first + k) * PAGE, (first + k + 1) * PAGE)
                ]
                assert self.file.pages[self.slots(page)] == b"".join(expected)
        for child in node.children.values():
            self.verify_host(child, namespace)

    def run(self, n: int) -> None:
        frequent = (
            self.open,
            self.step,
            self.step,
            self.step,
            self.publish_one,
            self.close,
            self.change_hints,
            self.tick,
        )
        rare = (self.fork, self.retract, self.draft, self.evict)
        for k in range(n):
            r = self.rng.random()
            if r < 0.01:
                self.rng.choice((self.end, self.crash, self.crash, self.corrupt, self.corrupt))()
            else:
                self.rng.choice(rare if r < 0.2 else frequent)()
            assert self.cache.conserved()
            if k % 17 == 0:
                check(self.cache)
        check(self.cache)
        for request in self.running:
            request.lease.close()
        self.cache.reset()
        check(self.cache)
        stats = self.cache.stats()
        assert (stats.n_free, stats.n_host_cached, stats.n_nodes, stats.n_handles) == (N_PAGES, 0, 0, 0)
        self.file.close()

    def publish_one(self) -> None:
        if request := self.choose():
            self.publish(request)


@pytest.mark.parametrize(
    ("n_walks", "n_steps"), [(2, 3000), pytest.param(40, 25000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_random_walk_never_reads_wrong_kv(n_walks: int, n_steps: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(n_walks):
        walk = Walk(seed, tmp_path / str(seed))
        walk.run(n_steps)
        counts += walk.counts
    for event in ("hit", "host hit", "out", "in", "torn", "lost", "saved", "restored", "withdrawn", "ended"):
        assert counts[event] > 0, f"the walk has no event {event!r}"
