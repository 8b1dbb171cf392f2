"""KV pages of layers with sliding-window attention. Nodes of the tree refer to them, as they refer to other pages.

Such a layer reads only the last `window` tokens, so its keys and values have their own pages, which are numbered
separately. While a request runs, it gives back the pages that its window has passed. A node has the pages of some of
its tokens (`Node.states`: the position after a page -> the page). A match ends at the last position before which all
pages of a window are stored. The tokens after it are computed again, even if the other layers' pages are stored. Layers
may also read the first tokens of a text, at any distance: a request keeps the pages of these tokens, and a match needs
them too.

A page belongs to a node, to leases that use it, or to both; if to neither, it is free. A page of a node that no lease
uses is evicted when another page is needed: first the pages that windows have passed, then the others, the longest
unused first, and pages that hints hold last. A node that is evicted loses its pages of windowed layers too.
"""

from __future__ import annotations

from array import array

from banyan.radix_cache.node import Node
from banyan.radix_cache.states import NodeSlots


class WindowPages(NodeSlots):
    """All pages of windowed layers. null: the page that fills the gaps of a page table. Nobody writes to it."""

    def __init__(self, n_pages: int, page: int, window: int, n_ahead: int, n_first: int = 0) -> None:
        """window: number of tokens that a token attends to, including itself. n_ahead: a lease claims pages for at most
        this many tokens after its published tokens, so a step must not compute more. n_first: number of tokens at the
        beginning of a text that all later tokens attend to as well."""
        super().__init__(n_pages)
        if n_pages < self.need(window, n_ahead, page, n_first):
            raise ValueError(f"{n_pages} pages are too few for a window of {window} tokens")
        self.page, self.window, self.n_ahead = page, window, n_ahead
        self.n_first = -(-n_first // page)  # pages
        self.null = n_pages
        self.n_users = [0] * n_pages  # by page: how many leases use it
        self._positions = [0] * n_pages  # by page: its position, as in Node.states
        self.passed: dict[int, None] = {}  # pages of nodes that no lease uses, in two queues
        self.unused: dict[int, None] = {}

    @staticmethod
    def need(window: int, n_ahead: int, page: int, n_first: int = 0) -> int:
        """Maximum number of pages that one lease claims."""
        return -(-(window + n_ahead) // page) + 2 - (-n_first // page)

    @property
    def n_available(self) -> int:
        """How many pages a lease could claim now."""
        return len(self.free) + len(self.passed) + len(self.unused)

    def first(self, n: int) -> int:
        """The index of the first page in the window of a text that continues after n tokens. (The text also needs the
        pages of its first n_first tokens.)"""
        return max(0, n - self.window + 1) // self.page

    def find(self, node: Node, n: int) -> tuple[Node, int, int]:
        """Finds the last position at or before n at which a text can be continued: the pages of its window and of its
        first tokens must be stored. `node` contains the n-th token. Returns (the node that contains the position, the
        position, -1). Position 0 means the root. `StateSlots.find` returns a slot in place of the -1."""
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
        """Takes n pages for a lease, by eviction if needed. Returns an empty list if fewer than n are available."""
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
        """Notes that one more lease uses a page."""
        self.n_users[page] += 1
        self.passed.pop(page, None)
        self.unused.pop(page, None)

    def leave(self, page: int, is_passed: bool = False) -> None:
        """Notes that a lease no longer uses a page. is_passed: the lease's window has moved past the page, so other
        leases are unlikely to need it."""
        self.n_users[page] -= 1
        if self.n_users[page]:
            return
        if (node := self.nodes.get(page)) is None:
            self.free.append(page)
        else:
            (self.passed if is_passed and not node.n_holds else self.unused)[page] = None

    def store(self, node: Node, position: int, page: int) -> None:
        """Makes `node` the owner of a page that a lease uses. The node must have no page at this position. If another
        node owns the page, that node loses it."""
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
        """Frees all pages that the leases of `tables` do not use. No node may have a page."""
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

    pages  like `Lease.pages`, but only up to the tokens of the next step; the null page stands for pages between the
           first tokens and the window
    """

    __slots__ = ("_first", "_n_stored", "_source", "_window", "copies", "pages")

    def __init__(self, window: WindowPages, node: Node, n: int) -> None:
        """n: number of tokens that the lease found in the tree. node: the node in which they end, or, if a page is
        copied, in which their whole pages end."""
        self._window = window
        self._source = -1
        self.copies: list[tuple[int, int, int]] = []  # see `copy`
        self._n_stored = node.end
        count = -(-node.end // window.page)
        self._first = min(window.first(n), count)
        self.pages = array("i", [window.null]) * count
        for i in (*range(count - 1, self._first - 1, -1), *range(min(window.n_first, self._first) - 1, -1, -1)):
            while node.start > i * window.page:
                assert node.parent is not None
                node = node.parent
            self.pages[i] = node.states[(i + 1) * window.page]
            window.use(self.pages[i])

    @property
    def held(self) -> list[int]:
        """The pages that the lease uses, each as often as it is used: the pages starting at the window, then the
        pages of the text's first tokens in reverse order, then the source of a copy."""
        first = self.pages[: min(self._window.n_first, self._first)][::-1]
        return [*self.pages[self._first :], *first, *([self._source] if self._source >= 0 else [])]

    @property
    def n_held_slots(self) -> int:
        n_first = min(self._window.n_first, self._first)
        return (len(self.pages) - self._first + n_first) * self._window.page

    def copy(self, source: Node, n_slots: int) -> bool:
        """Claims a page, and orders a copy of the first n_slots slots of the first page of `source` to it. The copy is
        an entry of `copies`: (~source page, ~destination page, n_slots). Returns False, and changes nothing, if no page
        is available."""
        page = source.states[source.start + self._window.page]
        self._window.use(page)
        if not (claimed := self._window.claim(1)):
            self._window.leave(page)
            return False
        self._source = page
        self.copies = [(~page, ~claimed[0], n_slots)]
        self.pages.extend(claimed)
        return True

    def release_source(self) -> None:
        """Gives back the source page of a copy, after the copy was made."""
        if self._source >= 0:
            self._window.leave(self._source)
            self._source = -1

    def grow(self, n_slots: int, n_computed: int) -> bool:
        """Claims pages for the first `n_slots` tokens of the text, but for at most n_ahead tokens beyond the first
        n_computed tokens. Returns False, and changes nothing, if there are not enough pages now."""
        n = -(-min(n_slots, n_computed + self._window.n_ahead) // self._window.page) - len(self.pages)
        if n <= 0:
            return True
        pages = self._window.claim(n)
        self.pages.extend(pages)
        return bool(pages)

    def shrink(self, n_kept: int) -> None:
        """Gives back all pages except the first n_kept."""
        for page in self.pages[n_kept:]:
            self._window.leave(page)
        del self.pages[n_kept:]

    def store(self, node: Node) -> None:
        """Gives the pages of published tokens, which end in `node`, to the tree. Where the tree already has a page
        for these tokens, the lease continues on the tree's page."""
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
        """Gives back the pages that the text needs no longer when it has n tokens: all pages before the window, except
        those of the text's first tokens. The null page takes their places."""
        first = min(self._window.first(n), len(self.pages))
        for i in range(max(self._first, min(first, self._window.n_first)), first):
            self._window.leave(self.pages[i], is_passed=True)
            self.pages[i] = self._window.null
        self._first = max(self._first, first)

    def close(self) -> None:
        for page in self.held:
            self._window.leave(page)
        self.pages, self.copies, self._first, self._source = array("i"), [], 0, -1
