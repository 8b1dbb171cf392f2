"""Leases on pages: what a request reads from the tree, what it writes, and how the one becomes the other.

    lease = cache.open(ids, namespace, limit=n - 1)     # the longest stored prefix, locked; to the token
    if lease.grow(n):                                   # room for n tokens; evicts; or False, and nothing has changed
        copies = lease.take_copies()                    # [(source page, destination page, n_slots)]: do them first,
        ...                                             # then compute tokens lease.n_cached .. n into lease.pages
        lease.publish(ids)                              # they are computed: from now on others find them
    lease.close()                                       # what was published stays in the tree until it is evicted

Token i of a lease stands in slot i % page of page `lease.pages[i // page]`. The pages of its published tokens are the
tree's, and locked; those behind are its own. Where a match ends inside a page, the page is copied (copy-on-write):
`open` claims the destination, and the source stays locked until the lease first publishes or closes. But where a
stored prefix ends in a page that nobody reads or fills, a lease that goes on from its very end fills that page: no
copy, no new page.

A page that is freed may be claimed and written again by the next step, so steps (their copies first, then their
forward) must reach the device in the order in which they were planned.

What a request is computing right now is in no tree, as it is not computed. `cache.in_flight` knows it: see inflight.py.
What programs know of the future they say by handles: see handles.py. Which of the rest goes first is a policy's: see
policy.py. What leaves the device may go to host memory and come back: see host.py.

Not safe for threads: one loop owns a cache. Nothing here keeps time; ages are the order of unlocks, and who wants more
says which step it is (`tick`).
"""

from __future__ import annotations

from collections.abc import Hashable
from types import TracebackType
from typing import Any

from banyan.radix_cache.events import CacheEvents
from banyan.radix_cache.hints import KVHint, KVHints
from banyan.radix_cache.host_tier import Host, Move
from banyan.radix_cache.inflight import InFlight
from banyan.radix_cache.node import Node
from banyan.radix_cache.pagefile import PageFile
from banyan.radix_cache.pages import PagePool
from banyan.radix_cache.policy import POLICIES
from banyan.radix_cache.stats import Stats, Tally
from banyan.radix_cache.tree import Tree


class Lease:
    """A claim on pages: a locked prefix of the tree, and pages of its own behind it. Made by `Cache.open`; a scope."""

    __slots__ = ("_at", "_copies", "_ids", "_is_counted", "_n_known", "_namespace", "_source", "cache", "is_open",
                 "n_cached", "n_host", "owner", "pages", "priority")  # fmt: skip

    def __init__(self, cache: Cache, ids: bytes, namespace: bytes, at: Node, priority: int, owner: Hashable) -> None:
        self.cache = cache
        self.is_open = True
        self.pages: list[int] = []  # for reading; in order of slots
        self.n_cached = 0  # tokens that stood in the tree when the lease was opened; the next is the first to compute
        self.n_host = 0  # ... of which so many lay in host memory
        self.priority = priority
        self.owner = owner
        self._at = at  # the node that ends its published tokens; locked
        self._source: Node | None = None  # the child of it, or below one, whose first page is to be copied; locked
        self._copies: list[tuple[int, int, int]] = []
        self._ids = ids  # the last known of its tokens ...
        self._namespace = namespace
        self._n_known = 0  # ... of which so many are computed, or copied
        self._is_counted = False

    # ---- what it holds ---------------------------------------------------------------------------------------------

    @property
    def n_slots(self) -> int:
        """Room, in tokens."""
        return len(self.pages) * self.cache.page

    @property
    def n_private(self) -> int:
        """Pages of its own: not in the tree, freed with the lease."""
        return len(self.pages) - -(-self._at.end // self.cache.page)

    def take_copies(self) -> list[tuple[int, int, int]]:
        """(source page, destination page, n_slots), to be done before the lease's next forward. Gives each once."""
        copies, self._copies = self._copies, []
        return copies

    # ---- what it does ----------------------------------------------------------------------------------------------

    def grow(self, n_slots: int) -> bool:
        """Make room for `n_slots` tokens in all; never gives room back. Evicts what it must; False, with nothing
        changed, where even that is not enough now."""
        self._must_be_open()
        n = -(-n_slots // self.cache.page) - len(self.pages)
        if n <= 0:
            return True
        pages = self.cache._claim(n)
        self.pages += pages
        return bool(pages)

    def shrink(self, n_slots: int) -> None:
        """Give back whole pages behind `n_slots` tokens (refused drafts, say), but none of published or copied ones."""
        n_kept = -(-max(n_slots, self._n_known) // self.cache.page)
        self.cache._give_back(self.pages[n_kept:])
        del self.pages[n_kept:]

    def publish(self, ids: bytes) -> None:
        """The tokens `ids`, from the first on, are computed, in completed forward passes: put them in the tree.

        `ids` goes on from what was published before; at most `n_slots` tokens. Where another lease has published the
        same meanwhile, this one goes on with the tree's pages and its duplicates are freed: read `pages` again.
        """
        self._must_be_open()
        cache, n = self.cache, _n_tokens(ids)
        if n > self.n_slots:
            raise ValueError(f"{n} tokens are published, but the lease has {self.n_slots} slots")
        if self._copies:
            raise ValueError("tokens are published before the lease's copies were taken, so they cannot be computed")
        if not self._is_counted:
            self._is_counted = True
            cache.tally.add(self.owner, len(self._ids) // 4, self.n_cached, self.n_host)
        if n >= self._n_known:
            self._ids, self._n_known = ids, n
        self._release_source()
        if cache.enabled:
            n_private = self.n_private
            self._at, spare = cache.tree.insert(self._at, ids, self.pages, self.priority)
            cache.pool.give(spare)
            cache._n_leased -= n_private - self.n_private

    def fork(self) -> Lease:
        """Another lease on all that this one has published (or found): nothing is computed twice, a partly filled last
        page is copied. What is not published is not shared. `n_cached` of the new lease says what it has."""
        self._must_be_open()
        return self.cache.open(self._ids, self._namespace, self._n_known, self.priority, self.owner)

    def close(self) -> None:
        """Unlock what is published, free the rest. A second time does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        cache, n_private = self.cache, self.n_private
        self._release_source()
        cache._give_back(self.pages[len(self.pages) - n_private :])
        tree = cache.tree
        if tree.policy.has_levels and self._is_counted:
            tree.use(self._at, self.n_cached - self.n_cached % cache.page, self.priority)
        tree.unlock(self._at)
        if tree.policy.share < 1.0:
            tree.settle()
        cache.leases.pop(self, None)
        self.pages = []
        self._copies = []

    def _must_be_open(self) -> None:
        if not self.is_open:
            raise ValueError("the lease is closed")

    def _release_source(self) -> None:
        if self._source is not None:
            self.cache.tree.unlock(self._source, self._at)
            self._source = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Cache:
    """All pages of one KV pool, and the tree over them. See the head of this file."""

    def __init__(
        self,
        n_pages: int,
        page: int = 16,
        enabled: bool = True,
        policy: str = "lru",
        n_host: int = 0,
        file: PageFile | None = None,
    ) -> None:
        """n_pages of `page` slots each, a power of two.

        enabled  where not, nothing is kept and nothing found
        policy   a name of POLICIES, for what no program has said anything of
        n_host   pages of host memory, for what leaves the device
        file     that memory, if it is to outlive the process; of n_host pages
        """
        if n_pages < 0 or page < 1 or page & (page - 1):
            raise ValueError(f"n_pages is {n_pages} and page {page}; they must be at least 0 and a power of two")
        self.n_pages = n_pages
        self.page = page
        self.enabled = enabled
        if policy not in POLICIES:
            raise ValueError(f"there is no policy {policy!r}; there are {', '.join(POLICIES)}")
        self.pool = PagePool(n_pages)
        self.tree = Tree(self.pool, page, POLICIES[policy](n_pages))
        self.holds = KVHints(self)
        self.tree.give_up = self.holds.give_up
        self.tally = Tally()
        self.host = Host(self.tree, n_host, file) if n_host and enabled else None
        self.tree.below = self.host
        self.events: CacheEvents | None = None  # until somebody listens
        self.leases: dict[Lease, None] = {}  # the open ones, in the order they were opened
        self.in_flight: InFlight[Any] = InFlight()
        self._n_leased = 0  # pages that leases own
        self.quarantined: set[int] = set()  # pages that nobody uses: see quarantine.py
        self.n_mended = 0

    # ---- leases ----------------------------------------------------------------------------------------------------

    def open(
        self,
        ids: bytes,
        namespace: bytes = b"",
        limit: int | None = None,
        priority: int = 0,
        owner: Hashable = None,
    ) -> Lease:
        """A lease on the longest stored prefix of `ids`, at most `limit` tokens of it.

        ids        int32 little-endian, all that the request has so far
        namespace  what must be equal for KV to be equal, beyond the tokens: a tenant, an adapter, a version of weights
        priority   for the policy of that name
        owner      the program, for the statistics

        Claims no page but the destination of a copy, and that only where all of `ids` finds room beside its source;
        where not, `n_cached` ends before the page. So a lease that is alone can grow to all of its ids if the pool can.
        """
        tree, page = self.tree, self.page
        n_ids = _n_tokens(ids)
        root = tree.root(namespace)
        limit = n_ids if limit is None else max(0, min(limit, n_ids))
        node, n = tree.match(root, ids, limit) if self.enabled else (root, 0)
        n_host = 0
        if not node.pages and node is not root:
            node, n, n_host = self._bring(node, n, self.n_pages)
            if node.parent is None:
                node = tree.root(namespace)  # nothing is left of what the tree had
        at, source, n_rest = self._place(node, n)
        lease = Lease(self, ids, namespace, at, priority, owner)
        tree.lock(at)
        lease.pages = _pages(at)
        if source is not None:
            tree.lock(source, at)
            n_more = -(-n_ids // page) - len(lease.pages)
            if claimed := self._claim(1) if n_more <= self.n_available else []:
                lease._source = source
                lease._copies = [(source.pages[0], claimed[0], n_rest)]
                lease.pages += claimed
            else:
                tree.unlock(source, at)
                n -= n_rest
        lease.n_cached = lease._n_known = n
        lease.n_host = min(n_host, n)
        self.leases[lease] = None
        return lease

    def _bring(self, node: Node, n: int, n_room: int) -> tuple[Node, int, int]:
        """Bring back what lies in host memory alone of the path to the n-th token, which stands in `node`. Returns the
        node that ends what is then on the device, the tokens up to there, and how many came back."""
        assert self.host is not None
        at: Node | None = node
        while at and at.parent and not at.pages:
            at = at.parent
        n_before = at.end if at else 0
        node, n = self.host.bring(node, n, n_room)
        return node, n, max(0, n - n_before)

    def _place(self, node: Node, n: int) -> tuple[Node, Node | None, int]:
        """Where a lease on n tokens, which end in `node`, holds the tree: the node whose end it locks, the node whose
        first page it copies, and how many slots of it. Splits where the lock would hold more than it must."""
        n_rest = n % self.page
        if n == node.end and (not n_rest or not node.n_locks):  # at a border; or in a page that it may go on filling
            return node, None, 0
        n_whole = n - n_rest
        if n_whole == node.start:
            assert node.parent is not None
            return node.parent, node, n_rest
        upper = self.tree.split(node, n_whole - node.start)
        return upper, node if n_rest else None, n_rest

    # ---- handles ---------------------------------------------------------------------------------------------------

    def handle(self, ids: bytes, namespace: bytes = b"") -> KVHint:
        """A handle on the prefix `ids`, wherever it lies, and if it lies nowhere."""
        _n_tokens(ids)
        return self.holds.make(ids, namespace)

    def tick(self, step: float, now: float) -> None:
        """The step that begins, and the time, in the caller's own clocks: for what handles expect, and for pins."""
        self.holds.tick(step, now)

    def find(self, ids: bytes, namespace: bytes) -> tuple[Node, bool] | None:
        """The node that ends what the device has of a prefix, cut so that it holds no page behind it, and whether that
        is all of it. None: nothing of it is there, or not a page and not all."""
        root = self.tree.roots.get(namespace)
        if root is None:
            return None
        n_ids = _n_tokens(ids)
        node, n = self.tree.match(root, ids, n_ids)
        while not node.pages and node.parent:
            node = node.parent
            n = min(n, node.end)
        if n < node.end:
            # A page that goes on otherwise than the prefix is somebody else's; one that only goes on is below its end.
            n_own = -(-n // self.page) * self.page if n == n_ids else n - n % self.page
            if n_own <= node.start:
                node = node.parent or node
            elif n_own < node.end:
                node = self.tree.split(node, n_own - node.start)
        return (node, n == n_ids) if node.parent else None

    def bury(self, ids: bytes, namespace: bytes, n_shared: int) -> None:
        """See `Handle.drop`."""
        found = self.find(ids, namespace)
        if found is None:
            return
        node, is_whole = found
        n_kept = -(-n_shared // self.page) * self.page
        if node.start < n_kept < node.end:
            self.tree.split(node, n_kept - node.start)
        if is_whole:
            below = [node]
            for at in below:
                below += at.children.values()
            for at in reversed(below):
                if at.start >= n_shared:
                    self._bury(at)
        elif node.start < n_shared or not self._bury(node):
            return
        while node.lane is self.tree.dead and (parent := node.parent) and len(parent.children) == 1:
            if parent.start < n_shared or not self._bury(parent):
                return
            node = parent

    def _bury(self, node: Node) -> bool:
        """Let a node die, if nobody needs it and all below it is dead. What lies in host memory alone is dropped."""
        tree = self.tree
        if node.parent is None or node.n_locks or node.n_holds:
            return False
        if not node.pages and tree.below:
            tree.below.forget(node)
            return True
        if any(child.lane is not tree.dead for child in node.children.values()):
            return False
        tree.bury(node)
        return True

    def prefetch(self, ids: bytes, namespace: bytes = b"") -> int:
        """Bring back what lies in host memory of a prefix, as far as there are pages that nobody needs or holds.
        Returns its tokens on the device."""
        tree = self.tree
        root = tree.roots.get(namespace)
        if root is None:
            return 0
        node, n = tree.match(root, ids, _n_tokens(ids))
        if node.pages or node is root:
            return n
        n_room, at = self.n_available - tree.n_held, node.parent
        while at is not None:
            if not (at.n_locks or at.n_holds):
                n_room -= len(at.pages)  # what it goes on from does not make way for it
            at = at.parent
        return self._bring(node, n, n_room)[1]

    # ---- pages -----------------------------------------------------------------------------------------------------

    def take_moves(self) -> list[Move]:
        """Pages to be moved between the device and host memory, in order: before the copies of leases, and before
        anything is written. Gives each once."""
        if self.host is None:
            return []
        moves, self.host.moves = self.host.moves, []
        return moves

    @property
    def n_available(self) -> int:
        """Pages that a lease could claim now: free, or in the tree and not locked."""
        return len(self.pool.free) + self.tree.n_evictable

    def evict(self, n_pages: int) -> int:
        """Free n_pages of the tree, the longest unused first. Returns how many it were, which is fewer only where
        no more are unlocked."""
        return self.tree.evict(n_pages)

    def reset(self) -> None:
        """Forget all that no lease holds."""
        if self.host is not None:
            self.host.clear()
        below, self.tree.below = self.tree.below, None
        self.tree.evict(self.tree.n_evictable)
        self.tree.below = below
        if not self.leases:
            self.readmit()

    def readmit(self) -> None:
        """Use quarantined pages again: for when no lease is open that could have had them."""
        self.pool.give(list(self.quarantined))
        self.quarantined.clear()

    def close(self) -> None:
        """Close all leases, let go of all handles, and order moves to host memory of all that has room there, so that
        a file has it."""
        for lease in list(self.leases):
            lease.close()
        self.holds.clear()
        if self.host is not None:
            self.host.save(self.n_pages)

    def _claim(self, n: int) -> list[int]:
        """n pages for a lease, or none where there are not n."""
        n_short = n - len(self.pool.free)
        if n_short > 0:
            if n_short > self.tree.n_evictable:
                return []
            self.tree.evict(n_short)
        self._n_leased += n
        return self.pool.take(n)

    def _give_back(self, pages: list[int]) -> None:
        self._n_leased -= len(pages)
        self.pool.give(pages)

    def listen(self, first: int = 0) -> CacheEvents:
        """Who says what comes to the device and leaves it; from the first call on, whose events count from `first`."""
        if self.events is None:
            self.events = self.tree.log = CacheEvents(self.tree, first)
        return self.events

    # ---- what can be asked -----------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        tree, tally, host = self.tree, self.tally, self.host
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
            n_handles=len(self.holds),
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
        )

    def conserved(self) -> bool:
        """Whether every page is accounted for: free, leased or in the tree. Costs nothing; `check` proves it."""
        n = len(self.pool.free) + self._n_leased + self.tree.n_pages + len(self.quarantined)
        return n == self.n_pages


def _n_tokens(ids: bytes) -> int:
    n, rest = divmod(len(ids), 4)
    if rest:
        raise ValueError(f"ids are {len(ids)} bytes, which is no whole number of int32")
    return n


def _pages(node: Node) -> list[int]:
    """The pages from the root to the end of a node."""
    path = [node.pages]
    while node.parent:
        node = node.parent
        path.append(node.pages)
    pages: list[int] = []
    for some in reversed(path):
        pages += some
    return pages
