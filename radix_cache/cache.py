"""Leases on pages: what a request reads from the tree, what it writes, and how written pages enter the tree.

    lease = cache.open(ids, namespace, limit=n - 1)     # the longest stored prefix, exact to the token, locked
    if lease.grow(n):                                   # room for n tokens; may evict. False: nothing has changed
        copies = lease.take_copies()                    # [(source page, destination page, n_slots)]: copy these first,
        ...                                             # then compute tokens lease.n_cached .. n into lease.pages
        lease.publish(ids)                              # they are computed: other leases find them from now on
    lease.close()                                       # published tokens stay in the tree until they are evicted

Token i of a lease is in slot i % page of page `lease.pages[i // page]`. The pages of its published tokens belong to the
tree and are locked. The pages after them belong to the lease. If a match ends inside a page, the page is copied
(copy-on-write): `open` claims the destination, and the source stays locked until the lease first publishes or closes.
But if a stored prefix ends inside a page that nobody else uses, a lease that continues from that very end fills the
page: no copy and no new page.

A page that is freed may be claimed and written again by the next step. So steps (first their copies, then their forward
pass) must reach the device in the order in which they were planned.

Related files: `inflight.py` indexes what requests are computing right now; `hints.py` is what programs say about the
future; `policy.py` orders the eviction of nodes without hints; `host_tier.py` moves pages to host memory and back;
`states.py` has the recurrent states of models that have one, and `windows.py` the pages of layers with a sliding
window: without these, a prefix cannot be continued.

Not thread-safe: one loop owns a cache. The cache has no clock; ages are the order of unlocks, and `tick` sets the step.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from banyan.radix_cache.events import CacheEvents
from banyan.radix_cache.hints import KVHint, KVHints
from banyan.radix_cache.host_tier import Host, Move
from banyan.radix_cache.inflight import InFlight
from banyan.radix_cache.node import Node
from banyan.radix_cache.pagefile import PageFile
from banyan.radix_cache.policy import POLICIES
from banyan.radix_cache.states import StateSlots
from banyan.radix_cache.stats import Stats, Tally
from banyan.radix_cache.tree import PagePool, Tree, n_tokens
from banyan.radix_cache.windows import WindowPages, WindowTable


class Lease:
    """A claim on pages: a locked prefix of the tree, followed by pages of the lease's own. Made by `Cache.open`."""

    __slots__ = ("_copies", "_ids", "_is_counted", "_n_computed", "_namespace", "_source", "_start", "cache",
                 "is_open", "n_cached", "n_host", "n_matched", "node", "owner", "pages", "priority", "state",
                 "states", "window")  # fmt: skip

    def __init__(self, cache: Cache, ids: bytes, namespace: bytes, node: Node, priority: int, owner: Hashable) -> None:
        self.cache = cache
        self.is_open = True
        self.pages = array("i")  # read-only for callers; in order of slots
        self.n_cached = 0  # tokens that `open` found in the tree; token n_cached is the first to compute
        self.n_host = 0  # how many of the n_cached tokens were in host memory
        self.n_matched = 0  # tokens that the tree has; more than n_cached if, say, a recurrent state is missing
        self.state = -1  # slot of the recurrent state after the computed tokens
        self.states: dict[int, int] = {}  # states to publish: position -> slot
        self.window: WindowTable | None = None  # pages of windowed layers, if these have their own pages
        self.priority = priority
        self.owner = owner
        self.node = node  # the node in which the published tokens end; locked
        self._source: Node | None = None  # a locked node below `node`, whose first page is copied
        self._copies: list[tuple[int, int, int]] = []
        self._start = -1  # slot of the recurrent state after the first n_cached tokens
        self._ids = ids  # token ids that `open` and `publish` were given
        self._namespace = namespace
        self._n_computed = 0  # how many of these tokens are computed or copied
        self._is_counted = False

    @property
    def n_slots(self) -> int:
        """How many tokens the lease's pages have room for."""
        return len(self.pages) * self.cache.page

    @property
    def n_private(self) -> int:
        """How many pages belong to the lease alone. They are not in the tree, and are freed with the lease."""
        return len(self.pages) - -(-self.node.end // self.cache.page)

    def take_copies(self) -> list[tuple[int, int, int]]:
        """The copies to make before the lease's next forward pass: (source page, destination page, n_slots). Page p of
        windowed layers is given as ~p, which is negative. Returns each copy once."""
        copies, self._copies = self._copies, []
        if self.window is not None:
            copies += self.window.copies
            self.window.copies = []
        return copies

    def claim_state(self) -> None:
        """Claims a working slot for the lease's recurrent state. Orders that the state after the cached tokens is
        copied to this slot."""
        if self.cache.states is not None:
            self.state = self.cache.states.claim_copy(self._start)

    def keep_state(self, position: int, may_evict: bool = True) -> int:
        """Claims a slot for the state after `position` tokens, which the next forward pass computes. Returns the slot;
        -1 if no slot is available. `publish` stores the state in the tree together with these tokens."""
        assert self.cache.states is not None
        slot = self.cache.states.claim(may_evict)
        if slot >= 0:
            self.states[position] = slot
        return slot

    def keep_last_state(self, position: int) -> None:
        """Keeps the state in the lease's working slot, which is the state after `position` tokens, so that `publish`
        stores it. Does nothing if another slot is kept for this position. After this call, the lease must compute
        nothing more."""
        if self.state >= 0 and position not in self.states:
            self.states[position], self.state = self.state, -1

    def grow(self, n_slots: int) -> bool:
        """Makes room for `n_slots` tokens in all, by eviction if needed. Never shrinks. Returns False, and leaves the
        lease unchanged, if there are not enough pages now."""
        self._must_be_open()
        n = -(-n_slots // self.cache.page) - len(self.pages)
        pages: list[int] = []
        if n > 0 and not (pages := self.cache._claim(n)):
            return False
        if self.window is not None and not self.window.grow(n_slots, self._n_computed):
            self.cache._give_back(pages)
            return False
        if pages:  # rarely
            self.pages.extend(pages)
        return True

    def shrink(self, n_slots: int) -> None:
        """Frees the pages after those of the first `n_slots` tokens, for example pages of rejected drafts. Keeps
        published and copied pages."""
        n_kept = -(-max(n_slots, self._n_computed) // self.cache.page)
        self.cache._give_back(self.pages[n_kept:])
        del self.pages[n_kept:]
        if self.window is not None:
            self.window.shrink(n_kept)

    def publish(self, ids: bytes, is_query: bool = True) -> None:
        """Stores `ids` in the tree, starting with the first token. Forward passes must have computed their KV.
        is_query: whether the statistics of hits count the lease's prompt.

        `ids` continues what was published before, and has at most `n_slots` tokens. If another lease has published the
        same tokens meanwhile, this one continues on the tree's pages and its duplicates are freed: read `pages` again.
        """
        self._must_be_open()
        cache, n = self.cache, n_tokens(ids)
        if n > self.n_slots:
            raise ValueError(f"{n} tokens are published, but the lease has {self.n_slots} slots")
        if self._copies:
            raise ValueError("the lease has copies that were not made; call take_copies before you compute and publish")
        if is_query and not self._is_counted:
            self._is_counted = True
            cache.tally.add(self.owner, len(self._ids) // 4, self.n_cached, self.n_host)
        if n >= self._n_computed:
            self._ids, self._n_computed = ids, n
        self._release_source()
        if cache.enabled:
            n_private = self.n_private
            self.node, spare = cache.tree.insert(self.node, ids, self.pages, self.priority)
            cache.pool.give(spare)
            cache._n_leased -= n_private - self.n_private
            for position in [position for position in self.states if position <= n]:
                self._store_state(position, ids)
            if self.window is not None:
                self.window.store(self.node)
        if self.window is not None:
            self.window.leave_behind(self._n_computed)

    def _store_state(self, position: int, ids: bytes) -> None:
        """Moves the kept state after `position` tokens to the node in which these tokens end; another lease may have
        stored that node. Frees the state if the tree does not have the tokens."""
        states, tree = self.cache.states, self.cache.tree
        assert states is not None
        node, n = tree.match(tree.root(self._namespace), ids, position)
        slot = self.states.pop(position)
        if n == position > 0:
            states.store(node, position, slot)
        else:
            states.give(slot)

    def close(self) -> None:
        """Unlocks the published pages and frees the others. A second call does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        cache, n_private = self.cache, self.n_private
        self._release_source()
        cache._give_back(self.pages[len(self.pages) - n_private :])
        if cache.states is not None:
            for slot in (self.state, *self.states.values()):
                if slot >= 0:
                    cache.states.give(slot)
            self.state, self.states = -1, {}
        if self.window is not None:
            self.window.close()
        tree = cache.tree
        if tree.policy.has_levels and self._is_counted:
            tree.promote(self.node, self.n_cached - self.n_cached % cache.page, self.priority)
        tree.unlock(self.node)
        if tree.policy.share < 1.0:
            tree.limit_protected()
        cache.leases.pop(self, None)
        self.pages = array("i")
        self._copies = []

    def _must_be_open(self) -> None:
        if not self.is_open:
            raise ValueError("the lease is closed")

    def _release_source(self) -> None:
        if self._source is not None:
            self.cache.tree.unlock(self._source, self.node)
            self._source = None
            if self.window is not None:
                self.window.release_source()


class Cache:
    """All pages of one KV pool, and the tree over them. The engine's scheduler uses it; see the top of this file."""

    def __init__(
        self,
        n_pages: int,
        page: int = 16,
        enabled: bool = True,
        policy: str = "lru",
        n_host: int = 0,
        file: PageFile | None = None,
        n_states: int = 0,
        window: WindowPages | None = None,
    ) -> None:
        """The cache has n_pages pages of `page` slots each; `page` is a power of two.

        enabled  if False, nothing is stored and nothing is found
        policy   a name of POLICIES: the order of eviction of nodes without hints
        n_host   pages of host memory, for pages that leave the device
        file     host memory of n_host pages in a file, which outlives the process; None: in this process's memory
        n_states slots of recurrent state; 0: the model has none
        window   pages of layers with a sliding window; None: these layers use the pages of the others. Cannot be
                 combined with a second tier or recurrent states
        """
        if n_pages < 0 or page < 1 or page & (page - 1):
            raise ValueError(f"n_pages ({n_pages}) must be at least 0, and page ({page}) must be a power of two")
        if policy not in POLICIES:
            raise ValueError(f"unknown policy {policy!r}; choose one of {', '.join(POLICIES)}")
        if window is not None and (n_host or n_states):
            raise ValueError("a cache with pages of windowed layers cannot have host memory or recurrent states")
        self.n_pages = n_pages
        self.page = page
        self.enabled = enabled
        self.pool = PagePool(n_pages)
        self.tree = Tree(self.pool, page, POLICIES[policy](n_pages))
        self.hints = KVHints(self.tree)
        self.host = Host(self.tree, self.hints.evict, n_host, file) if n_host and enabled else None
        self.tree.second_tier = self.host
        self.states = StateSlots(n_states) if n_states else None
        self.window = window
        self.tree.states = self._resumable = self.states or window  # where a text can be continued
        self.events: CacheEvents | None = None  # until `listen` is called
        self.tally = Tally()
        self.leases: dict[Lease, None] = {}  # open leases, in the order in which they were opened
        self.in_flight = InFlight()
        self._n_leased = 0  # pages that leases own
        self.quarantined: set[int] = set()  # pages withdrawn from use; see quarantine.py
        self.n_mended = 0

    # ---- leases ----------------------------------------------------------------------------------------------------

    def open(
        self, ids: bytes, namespace: bytes = b"", limit: int | None = None, priority: int = 0, owner: Hashable = None
    ) -> Lease:
        """Opens a lease on the longest stored prefix of `ids`, at most `limit` tokens of it.

        ids        int32 little-endian: all tokens that the request has so far
        namespace  all that must be equal for KV to be equal, beyond the tokens: tenant, adapter, version of weights
        priority   for the eviction policy `priority`
        owner      the program, for the statistics

        If the prefix ends inside a page that must be copied, `open` claims a page for the copy. It does so only if the
        available pages suffice for all of `ids` while the source of the copy is locked; otherwise `n_cached` ends
        before that page. So a lease that is alone can grow to all of its ids if the pool is large enough.
        """
        tree, page = self.tree, self.page
        n_ids = n_tokens(ids)
        root = tree.root(namespace)
        limit = n_ids if limit is None else max(0, min(limit, n_ids))
        node, n = tree.match(root, ids, limit) if self.enabled else (root, 0)
        n_host, n_matched, start = 0, n, -1
        if self._resumable is not None:
            node, n, start = self._resumable.find(node, n)
        if not node.pages and node is not root:
            node, n, n_host = self._bring(node, n)
            if node.parent is None:
                node = tree.root(namespace)  # eviction removed the old root
        if self.states is not None:
            node, n, start = self.states.find(node, n)
            if start >= 0:
                self.states.touch(start)
        node, source, n_rest = self._place(node, n)
        lease = Lease(self, ids, namespace, node, priority, owner)
        lease.n_matched, lease._start = n_matched, start
        tree.lock(node)
        lease.pages = _pages(node)
        if self.window is not None:
            lease.window = WindowTable(self.window, node, n)
        if source is not None:
            tree.lock(source, node)
            n_more = -(-n_ids // page) - len(lease.pages)
            claimed = self._claim(1) if n_more <= self.n_available else []
            if claimed and lease.window is not None and not lease.window.copy(source, n_rest):
                self._give_back(claimed)
                claimed = []
            if claimed:
                lease._source = source
                lease._copies = [(source.pages[0], claimed[0], n_rest)]
                lease.pages.extend(claimed)
            else:
                tree.unlock(source, node)
                n -= n_rest
                if self._resumable is not None:  # perhaps the text cannot be continued from n
                    lease.close()
                    return self.open(ids, namespace, n, priority, owner)
        lease.n_cached = lease._n_computed = n
        lease.n_host = min(n_host, n)
        self.leases[lease] = None
        return lease

    def n_usable(self, ids: bytes, namespace: bytes, limit: int) -> int:
        """How many tokens of a prefix a lease would find now."""
        return self.probe(ids, namespace, limit)[0]

    def probe(self, ids: bytes, namespace: bytes, limit: int) -> tuple[int, int]:
        """Returns how many tokens of a prefix a lease would find now, and by how many pages opening this lease would
        reduce `n_available`. The second number counts unlocked pages of the tree, pages for tokens in host memory, and
        one page for a copy."""
        if (root := self.tree.roots.get(namespace)) is None:
            return 0, 0
        node, n = self.tree.match(root, ids, limit)
        if self._resumable is not None:
            node, n, _ = self._resumable.find(node, n)
        while not node.n_locks and node.parent:
            node = node.parent
        return n, -(-n // self.page) - min(n, node.end) // self.page

    def _bring(self, node: Node, n: int) -> tuple[Node, int, int]:
        """Brings the path to the n-th token, which is in `node`, back from host memory. Returns the last node of the
        path that is on the device afterwards, how many of the n tokens the path has up to the end of that node, and how
        many of these were in host memory."""
        assert self.host is not None
        above: Node | None = node
        while above and above.parent and not above.pages:
            above = above.parent
        n_before = above.end if above else 0
        node, n = self.host.bring(node, n, self.n_pages)
        return node, n, max(0, n - n_before)

    def _place(self, node: Node, n: int) -> tuple[Node, Node | None, int]:
        """Decides which node a lease on n tokens locks. The tokens end in `node`, which is split if it has more than
        the lease needs. Returns the node to lock, the node whose first page the lease copies (None: nothing to copy),
        and how many slots of that page it copies."""
        n_rest = n % self.page
        if n == node.end and (not n_rest or not node.n_locks):  # at a page border, or in a page that the lease may fill
            return node, None, 0
        n_whole = n - n_rest
        if n_whole == node.start:
            assert node.parent is not None
            return node.parent, node, n_rest
        upper = self.tree.split(node, n_whole - node.start)
        return upper, node if n_rest else None, n_rest

    # ---- hints -----------------------------------------------------------------------------------------------------

    def handle(self, ids: bytes, namespace: bytes = b"") -> KVHint:
        """Makes a hint on the prefix `ids`, which need not be stored."""
        n_tokens(ids)
        return self.hints.make(ids, namespace)

    def tick(self, step: float, now: float) -> None:
        """Sets the current step and time, in the caller's own units, for expectations and pins."""
        self.hints.tick(step, now)

    # ---- pages -----------------------------------------------------------------------------------------------------

    def take_moves(self) -> list[Move]:
        """The moves of pages between the device and host memory that were ordered since the last call. The caller must
        make them in this order, before the copies of leases and before it writes to any page."""
        if self.host is None:
            return []
        moves, self.host.moves = self.host.moves, []
        return moves

    @property
    def n_available(self) -> int:
        """How many pages a lease could claim now: pages that are free, or in the tree and not locked."""
        return len(self.pool.free) + self.tree.n_evictable

    def reset(self) -> None:
        """Drops all nodes that no lease uses, in host memory too."""
        if self.host is not None:
            self.host.clear()
        self.tree.second_tier = None  # or pages would move to host memory
        self.hints.evict(self.tree.n_evictable)
        self.tree.second_tier = self.host
        if not self.leases:
            self.readmit()

    def readmit(self) -> None:
        """Frees quarantined pages. Call it only when no open lease can still use them."""
        self.pool.give(list(self.quarantined))
        self.quarantined.clear()

    def close(self) -> None:
        """Closes all leases, releases all hints, and orders moves to host memory while there is room, so that a
        file keeps the pages."""
        for lease in list(self.leases):
            lease.close()
        self.hints.clear()
        if self.host is not None:
            self.host.save()

    def _claim(self, n: int) -> list[int]:
        """Takes n pages for a lease, by eviction if needed. Returns an empty list if fewer than n are available."""
        n_short = n - len(self.pool.free)
        if n_short > 0:
            if n_short > self.tree.n_evictable:
                return []
            self.hints.evict(n_short)
        self._n_leased += n
        return self.pool.take(n)

    def _give_back(self, pages: Sequence[int]) -> None:
        self._n_leased -= len(pages)
        self.pool.give(pages)

    def listen(self, first: int = 0) -> CacheEvents:
        """Returns the log of pages that are stored on the device and pages that leave it. The first call starts the
        log, at event number `first`; later calls ignore `first`."""
        if self.events is None:
            self.events = self.tree.listener = CacheEvents(self.tree, first)
        return self.events

    # ---- statistics ------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        tree, tally, host, window = self.tree, self.tally, self.host, self.window
        return Stats(
            n_pages=self.n_pages,
            n_free=len(self.pool.free),
            n_leased=self._n_leased,
            n_cached=tree.n_pages,
            n_evictable=tree.n_evictable,
            n_nodes=tree.n_nodes,
            n_leases=len(self.leases),
            n_query_tokens=tally.n_query,
            n_hit_tokens=tally.n_hit,
            n_evicted_pages=sum(tree.n_evicted.values()),
            evicted=dict(tree.n_evicted),
            n_held=tree.n_held,
            n_handles=len(self.hints),
            n_empty_slots=tree.n_pages * self.page - tree.n_tokens,
            n_host_hit_tokens=tally.n_host,
            n_host_pages=host.n_pages if host else 0,
            n_host_cached=host.n_pages - len(host.free) if host else 0,
            n_moved_out=host.n_out if host else 0,
            n_moved_in=host.n_in if host else 0,
            n_quarantined=len(self.quarantined),
            n_programs=tally.n_programs,
            program_hit_rate=tally.program_hit_rate,
            n_mended=self.n_mended,
            n_window_pages=window.n_slots if window else 0,
            n_window_used=window.n_slots - window.n_available if window else 0,
            n_window_cached=window.n_available - len(window.free) if window else 0,
        )

    def conserved(self) -> bool:
        """Whether the counters add up: every page is free, leased, in the tree or quarantined. Constant time; `check`
        verifies the pages themselves."""
        n = len(self.pool.free) + self._n_leased + self.tree.n_pages + len(self.quarantined)
        return n == self.n_pages


def _pages(node: Node) -> array[int]:
    """The pages from the root to the end of a node. A loop, because a generator makes `open` a tenth slower."""
    path = [node.pages]
    while node.parent:
        node = node.parent
        path.append(node.pages)
    pages = array("i")
    for some in reversed(path):
        pages.extend(some)
    return pages
