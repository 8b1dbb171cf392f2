"""Pages of the layers whose attention has a sliding window, as values of the tree.

Such a layer reads only the last `window` tokens, so its keys and values have pages of their own, which are numbered
separately, and a request gives those behind its window back while it runs. A node has the pages of some of its tokens
(`Node.states`: the position behind a page -> the page). A match ends at the last position before which all pages of a
window are there; what follows is computed again, even where the other layers' pages are there. Layers may also read
the first tokens of a text, however far they are: the pages of these stay with a request, and a match needs them too.

A page belongs to a node, to leases that use it, or to both; if to neither, it is free. A page of a node that no lease
uses is evicted when another is needed: first those that requests left behind, then the others, the longest unused
first; what hints hold last. Nodes whose pages are evicted lose their entries here too.
"""

from __future__ import annotations

from banyan.radix_cache.node import Node
from banyan.radix_cache.states import NodeSlots


class WindowPages(NodeSlots):
    """All pages of windowed layers. null: a page in the place of those that a table lacks. Nobody writes to it."""

    def __init__(self, n_pages: int, page: int, window: int, n_ahead: int, n_first: int = 0) -> None:
        """window: tokens that a token attends to, itself included. n_ahead: tokens behind its published ones for which
        a lease claims pages, at most; a step must not compute more. n_first: tokens at the beginning of a text that
        all its tokens attend to as well."""
        super().__init__(n_pages)
        if n_pages < self.need(window, n_ahead, page, n_first):
            raise ValueError(f"{n_pages} pages are too few for a window of {window} tokens")
        self.page, self.window, self.n_ahead = page, window, n_ahead
        self.n_first = -(-n_first // page)  # pages
        self.null = n_pages
        self.n_users = [0] * n_pages  # by page: leases
        self._positions = [0] * n_pages  # by page: its place in its node
        self.passed: dict[int, None] = {}  # pages of nodes that no lease uses, in two queues
        self.unused: dict[int, None] = {}

    @staticmethod
    def need(window: int, n_ahead: int, page: int, n_first: int = 0) -> int:
        """The most pages that one lease claims."""
        return -(-(window + n_ahead) // page) + 2 - (-n_first // page)

    @property
    def n_available(self) -> int:
        """Pages that a lease could claim now."""
        return len(self.free) + len(self.passed) + len(self.unused)

    def first(self, n: int) -> int:
        """The index of the first page that a text needs which goes on behind n tokens, apart from the pages at its
        beginning."""
        return max(0, n - self.window + 1) // self.page

    def find(self, node: Node, n: int) -> tuple[Node, int, int]:
        """Find the last position at or before n from which a text can be continued, i.e. for which all pages of the
        window are present. `node` contains the n-th token. Returns (the node of that position, the position, -1);
        position 0 means the root. The -1 stands for the state slot that `StateSlots.find` returns."""
        page, end, i, at = self.page, n, -(-n // self.page), node
        while at.parent and i > self.first(end):
            above = at.start // page
            if not at.states:
                end = at.start
                i = above
            while i > above and i > self.first(end):
                if i * page not in at.states:
                    end = (i - 1) * page
                i -= 1
            at = at.parent
        while node.start >= end and node.parent:
            node = node.parent
        at, missing = node, -1
        for i in range(min(self.n_first, -(-end // page)) - 1, -1, -1):
            while at.start > i * page:
                assert at.parent is not None
                at = at.parent
            if (i + 1) * page not in at.states:
                missing = i
        if missing < 0:
            return node, end, -1
        while node.start >= missing * page and node.parent:
            node = node.parent
        return self.find(node, missing * page)

    def claim(self, n: int) -> list[int]:
        """n pages for a lease; none if there are not n."""
        if n > self.n_available:
            return []
        n_rotated = 0
        while len(self.free) < n:
            page = next(iter(self.passed or self.unused))
            node = self.nodes[page]
            if not self.passed and node.n_holds and n_rotated < len(self.unused):
                del self.unused[page]
                self.unused[page] = None
                n_rotated += 1
            else:
                self._remove(node, self._positions[page])
        pages = self.free[len(self.free) - n :]
        del self.free[len(self.free) - n :]
        for page in pages:
            self.n_users[page] = 1
        return pages

    def use(self, page: int) -> None:
        """A lease uses a page."""
        self.n_users[page] += 1
        self.passed.pop(page, None)
        self.unused.pop(page, None)

    def leave(self, page: int, is_passed: bool = False) -> None:
        """A lease no longer uses a page. is_passed: it went on, so others hardly need the page either."""
        self.n_users[page] -= 1
        if self.n_users[page]:
            return
        if (node := self.nodes.get(page)) is None:
            self.free.append(page)
        else:
            (self.passed if is_passed and not node.n_holds else self.unused)[page] = None

    def store(self, node: Node, position: int, page: int) -> None:
        """Gives a page that a lease uses to a node, which has none at this position; from another node, if one has
        it."""
        if (other := self.nodes.get(page)) is not None:
            del other.states[self._positions[page]]
        if not node.states:
            node.states = {}
        node.states[position] = page
        self.nodes[page], self._positions[page] = node, position

    def _remove(self, node: Node, position: int) -> None:
        page = node.states.pop(position)
        del self.nodes[page]
        self.passed.pop(page, None)
        self.unused.pop(page, None)
        if not self.n_users[page]:
            self.free.append(page)

    def reset(self, tables: list[WindowTable]) -> None:
        """Frees all pages but those of these leases; no node may have one."""
        self.nodes.clear()
        self.passed.clear()
        self.unused.clear()
        self.n_users = [0] * self.n_slots
        for table in tables:
            for page in table.held:
                self.n_users[page] += 1
        self.free = [page for page in range(self.n_slots) if not self.n_users[page]]


class WindowTable:
    """The pages of windowed layers that one lease uses.

    pages  as `Lease.pages`, but only up to the tokens of the next step, and with the null page between the first pages
           and the window
    """

    __slots__ = ("_first", "_n_stored", "_source", "_window", "copies", "pages")

    def __init__(self, window: WindowPages, node: Node, n: int) -> None:
        """n: the tokens that the lease found, of which `node` ends the whole pages, or all."""
        self._window = window
        self._source = -1
        self.copies: list[tuple[int, int, int]] = []  # see `copy`
        self._n_stored = node.end
        count = -(-node.end // window.page)
        self._first = min(window.first(n), count)
        self.pages = [window.null] * count
        for i in (*range(count - 1, self._first - 1, -1), *range(min(window.n_first, self._first) - 1, -1, -1)):
            while node.start > i * window.page:
                assert node.parent is not None
                node = node.parent
            self.pages[i] = node.states[(i + 1) * window.page]
            window.use(self.pages[i])

    @property
    def held(self) -> list[int]:
        """Pages that it uses, each as often; those at the beginning of the text last."""
        first = self.pages[: min(self._window.n_first, self._first)][::-1]
        return self.pages[self._first :] + first + ([self._source] if self._source >= 0 else [])

    @property
    def n_held_slots(self) -> int:
        n_first = min(self._window.n_first, self._first)
        return (len(self.pages) - self._first + n_first) * self._window.page

    def copy(self, source: Node, n_slots: int) -> bool:
        """Claims a page and orders the copy of the first slots of the source's first page: (~source, ~destination,
        n_slots). False, with nothing changed, if there is none."""
        page = source.states[source.start + self._window.page]
        self._window.use(page)
        if not (claimed := self._window.claim(1)):
            self._window.leave(page)
            return False
        self._source = page
        self.copies = [(~page, ~claimed[0], n_slots)]
        self.pages += claimed
        return True

    def release_source(self) -> None:
        """The copy is made."""
        if self._source >= 0:
            self._window.leave(self._source)
            self._source = -1

    def grow(self, n_slots: int, n_computed: int) -> bool:
        """Makes room for `n_slots` tokens, or for as many as a step may compute. False, with nothing changed, if there
        are not enough pages now."""
        n = -(-min(n_slots, n_computed + self._window.n_ahead) // self._window.page) - len(self.pages)
        if n <= 0:
            return True
        pages = self._window.claim(n)
        self.pages += pages
        return bool(pages)

    def shrink(self, n_kept: int) -> None:
        """Leaves all but the first n_kept pages."""
        for page in self.pages[n_kept:]:
            self._window.leave(page)
        del self.pages[n_kept:]

    def store(self, node: Node) -> None:
        """Gives the pages of published tokens, which end in `node`, to the tree. Where it has them, the lease continues
        on those."""
        window, n_before = self._window, self._n_stored
        self._n_stored = node.end
        for i in range(-(-node.end // window.page) - 1, max(n_before // window.page, self._first) - 1, -1):
            while node.start > i * window.page:
                assert node.parent is not None
                node = node.parent
            position, own = (i + 1) * window.page, self.pages[i]
            known = node.states.get(position)
            if known is None:
                window.store(node, position, own)
            elif known != own:
                window.use(known)
                window.leave(own)
                self.pages[i] = known

    def leave_behind(self, n: int) -> None:
        """Leaves the pages that a text which goes on behind n tokens does not need."""
        first = min(self._window.first(n), len(self.pages))
        for i in range(max(self._first, min(first, self._window.n_first)), first):
            self._window.leave(self.pages[i], is_passed=True)
            self.pages[i] = self._window.null
        self._first = max(self._first, first)

    def close(self) -> None:
        for page in self.held:
            self._window.leave(page)
        self.pages, self.copies, self._first, self._source = [], [], 0, -1
