"""A long random walk over a cache with a second tier in a file, with crashes and repairs.

A forward pass writes into each slot a digest of the whole prefix that its keys and values depend on, so that every read
can be verified. In between, the process dies: at any point of a list of moves, in the middle of a page, or with the
file's last writes lost. The bookkeeping is also corrupted and repaired.
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

PAGE, N_PAGES, N_HOST, N_MOST = 4, 60, 48, 44
SLOT = 8  # bytes
NAMESPACES = b"", b"tenant"


def content(namespace: bytes, ids: bytes) -> bytes:
    """The content of the slot of the last token of `ids`."""
    return blake2b(ids, digest_size=SLOT, key=namespace).digest()


class Running:
    def __init__(self, lease: Lease, namespace: bytes, ids: bytes) -> None:
        self.lease, self.namespace, self.ids = lease, namespace, ids
        self.n_computed = lease.n_cached
        self.has_copied = False

    @property
    def n(self) -> int:
        return len(self.ids) // 4


class Walk:
    def __init__(self, seed: int, path: Path) -> None:
        self.chance = random.Random(seed)
        self.path = path
        self.counts: Counter[str] = Counter()
        self.prompts = [self.tokens(30)]
        self.policy = self.chance.choice(sorted(POLICIES))
        self.start()

    def start(self) -> None:
        """A process starts with the pages of the file."""
        self.file = PageFile(self.path, N_HOST, PAGE, PAGE * SLOT, bytes(32))
        self.cache = Cache(N_PAGES, PAGE, policy=self.policy, n_host=N_HOST, file=self.file)
        self.memory = bytearray(N_PAGES * PAGE * SLOT)
        self.running: list[Running] = []
        self.handles: list[KVHint] = []
        self.now = 0

    def tokens(self, n: int) -> bytes:
        return array("i", (self.chance.randrange(2) for _ in range(n))).tobytes()

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

    def forward(self, at_work: list[tuple[Running, int]]) -> None:
        self.do_moves(self.cache.take_moves())
        for one, _ in at_work:
            for source, destination, n in [] if one.has_copied else one.lease.take_copies():
                self.memory[self.slots(destination, n)] = self.memory[self.slots(source, n)]
            one.has_copied = True
        for one, n in at_work:
            self.read(one)
            for i in range(one.n_computed, min(one.n_computed + n, one.n, one.lease.n_slots)):
                o = (one.lease.pages[i // PAGE] * PAGE + i % PAGE) * SLOT
                self.memory[o : o + SLOT] = content(one.namespace, one.ids[: 4 * i + 4])
                one.n_computed = i + 1

    def read(self, one: Running) -> None:
        """Verifies all slots that a forward pass of a lease reads."""
        for i in range(one.n_computed):
            o = (one.lease.pages[i // PAGE] * PAGE + i % PAGE) * SLOT
            assert self.memory[o : o + SLOT] == content(one.namespace, one.ids[: 4 * i + 4]), f"wrong KV at token {i}"

    # ---- what happens ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        if len(self.running) < 6:
            base = self.chance.choice(self.prompts)
            ids = base[: 4 * self.chance.randrange(len(base) // 4 + 1)] + self.tokens(self.chance.randrange(1, 12))
            self.admit(self.chance.choice(NAMESPACES), ids[: 4 * N_MOST])

    def admit(self, namespace: bytes, ids: bytes) -> None:
        n = len(ids) // 4
        lease = self.cache.open(ids, namespace, n - 1, self.chance.randrange(3), owner=self.chance.randrange(9))
        self.counts["hit"] += lease.n_cached
        self.counts["host hit"] += lease.n_host
        if lease.grow(n):
            self.running.append(Running(lease, namespace, ids))
        else:
            assert self.running or self.cache.quarantined, "a lease that is alone has room for all of its tokens"
            if not self.running:
                self.cache.readmit()
            lease.close()

    def step(self) -> None:
        at_work = [(one, self.chance.randrange(1, 20)) for one in self.running if self.chance.random() < 0.7]
        for one, _ in at_work:
            if one.n_computed == one.n < N_MOST and one.lease.grow(one.n + 1):
                one.ids += self.tokens(1)
        self.forward(at_work)
        for one, _ in at_work:
            if self.chance.random() < 0.7:
                self.publish(one)

    def publish(self, one: Running) -> None:
        if one.has_copied:
            one.lease.publish(one.ids[: 4 * one.n_computed])
            if self.chance.random() < 0.1:
                self.prompts = [*self.prompts[-40:], one.ids]

    def pick(self) -> Running | None:
        return self.chance.choice(self.running) if self.running else None

    def fork(self) -> None:
        if (one := self.pick()) and len(self.running) < 6:
            lease = one.lease.fork()
            self.running.append(Running(lease, one.namespace, one.ids[: 4 * lease.n_cached]))

    def close(self) -> None:
        """The end of a request, or its cancellation."""
        if one := self.pick():
            if self.chance.random() < 0.6:
                self.publish(one)
            self.running.remove(one)
            one.lease.close()

    def retract(self) -> None:
        if (one := self.pick()) and one.n > 0:
            self.publish(one)
            self.running.remove(one)
            one.lease.close()
            self.admit(one.namespace, one.ids)

    def draft(self) -> None:
        """Grows for a draft, writes its keys and values, and rejects all of it."""
        if one := self.pick():
            one.lease.grow(one.n + self.chance.randrange(1, 12))
            self.forward([(one, 0)])
            for i in range(one.n_computed, one.lease.n_slots):
                o = (one.lease.pages[i // PAGE] * PAGE + i % PAGE) * SLOT
                self.memory[o : o + SLOT] = b"refused!"
            one.lease.shrink(one.n)

    def steer(self) -> None:
        if len(self.handles) < 6:
            base = self.chance.choice([*self.prompts, *(one.ids for one in self.running)])
            cut = self.chance.choice((len(base), 4 * self.chance.randrange(len(base) // 4 + 1)))
            self.handles.append(self.cache.handle(base[:cut], self.chance.choice(NAMESPACES)))
        handle = self.chance.choice(self.handles)
        what = self.chance.randrange(7)
        if what < 3:
            handle.expect(self.chance.randrange(20))
        elif what == 3:
            handle.pin(self.now + self.chance.randrange(9))
        elif what == 4:
            handle.prefetch()
        else:
            handle.release() if what == 5 else handle.drop(self.chance.randrange(20))
            self.handles.remove(handle)

    def tick(self) -> None:
        self.now += 1
        self.cache.tick(self.now, self.now)

    def evict(self) -> None:
        self.cache.evict(self.chance.randrange(1, 6))

    def end(self) -> None:
        """The process ends normally, and another one continues with the pages that fit."""
        self.cache.close()
        self.do_moves(self.cache.take_moves())
        self.counts["kept"] += self.cache.stats().n_host_cached
        self.restart()

    def crash(self) -> None:
        """The process dies in the middle of its moves, or the machine does, before all writes have reached the disk."""
        self.cache.evict(2)
        moves = self.cache.take_moves()
        n = self.chance.randrange(len(moves) + 1)
        self.do_moves(moves[:n])
        if n < len(moves) and moves[n].is_out:
            self.file.begin(moves[n].host)
            half = slice(self.slots(moves[n].host).start, self.slots(moves[n].host).start + 9)
            self.file.pages[half] = self.memory[self.slots(moves[n].device)][:9]
            self.counts["torn"] += 1
        if self.chance.random() < 0.3:
            for i in self.chance.sample(range(N_HOST), 3):
                self.file.pages[self.slots(i).start + self.chance.randrange(PAGE * SLOT)] ^= 1
                self.counts["lost"] += 1
        self.restart()

    def corrupt(self) -> None:
        """A bug or a flipped bit: `check` finds it, and `quarantine` withdraws what is in doubt."""
        cache, chance = self.cache, self.chance
        nodes = [node for root in cache.tree.roots.values() for node in root.children.values() if node.pages]
        if not nodes:
            return
        node = chance.choice(nodes)
        while (children := [child for child in node.children.values() if child.pages]) and chance.random() < 0.7:
            node = chance.choice(children)
        what = chance.randrange(6)
        if what == 0:
            cache.pool.free.append(node.pages[0])
        elif what == 1:
            node.pages.pop()
        elif what == 2:
            node.n_locks += 1
        elif what == 3:
            node.start += 1
        elif what == 4 and cache.pool.free:
            cache.pool.free.pop()
        elif node.n_locks or node.n_holds:
            node.n_holds += 1
        else:
            node.prev = node.next = node
        with pytest.raises(Corrupt):
            check(cache)
        ended = quarantine(cache)
        self.running = [one for one in self.running if one.lease not in ended]
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
            self.look(root, root.namespace)

    def look(self, node: Node, namespace: bytes) -> None:
        """Every sound page that the file gave back has the right content."""
        ids, first = node.path, node.start // PAGE
        for k, page in enumerate(node.host):
            if self.file.is_sound(page):
                at = [content(namespace, ids[: 4 * i + 4]) for i in range((first + k) * PAGE, (first + k + 1) * PAGE)]
                assert self.file.pages[self.slots(page)] == b"".join(at)
        for child in node.children.values():
            self.look(child, namespace)

    def go(self, n: int) -> None:
        often = (self.open, self.step, self.step, self.step, self.publish_one, self.close, self.steer, self.tick)
        some = (self.fork, self.retract, self.draft, self.evict)
        for k in range(n):
            r = self.chance.random()
            if r < 0.01:
                self.chance.choice((self.end, self.crash, self.crash, self.corrupt, self.corrupt))()
            else:
                self.chance.choice(some if r < 0.2 else often)()
            assert self.cache.conserved()
            if k % 17 == 0:
                check(self.cache)
        check(self.cache)
        for one in self.running:
            one.lease.close()
        self.cache.reset()
        check(self.cache)
        stats = self.cache.stats()
        assert (stats.n_free, stats.n_host_cached, stats.n_nodes, stats.n_handles) == (N_PAGES, 0, 0, 0)
        self.file.close()

    def publish_one(self) -> None:
        if one := self.pick():
            self.publish(one)


@pytest.mark.parametrize(
    ("n_walks", "n"), [(10, 5000), pytest.param(40, 25000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_whatever_happens_no_lease_reads_what_is_not_its_own(n_walks: int, n: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(n_walks):
        walk = Walk(seed, tmp_path / str(seed))
        walk.go(n)
        counts += walk.counts
    for what in ("hit", "host hit", "out", "in", "torn", "lost", "kept", "restored", "withdrawn", "ended"):
        assert counts[what] > 0, f"the walk has not seen {what}"
