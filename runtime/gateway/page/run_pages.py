"""HTML pages about runs (made by `state.show()`) that clients publish under a link. They are kept in memory."""

from __future__ import annotations

import secrets
from typing import NamedTuple

MAX_PAGES, MAX_BYTES = 100, 64 << 20
"""Maximum number of pages, and of their bytes, of all clients together. The oldest pages are dropped first."""


class RunPage(NamedTuple):
    """A published page. id: a random name that protects the page. Whoever knows it may read the page without an API
    key, because a browser that follows a link sends no key."""

    id: str
    tenant: str
    title: str
    html: bytes


class RunPages:
    """The pages that clients have published. The oldest are dropped if there are too many."""

    def __init__(self) -> None:
        self._pages: dict[str, RunPage] = {}
        self._n_bytes = 0

    def add(self, tenant: str, title: str, html: str) -> RunPage:
        """Store a page, drop the oldest pages beyond the limits, and return the new page."""
        page = RunPage(secrets.token_hex(16), tenant, title, html.encode())
        self._pages[page.id] = page
        self._n_bytes += len(page.html)
        while len(self._pages) > MAX_PAGES or (self._n_bytes > MAX_BYTES and len(self._pages) > 1):
            self._n_bytes -= len(self._pages.pop(next(iter(self._pages))).html)
        return page

    def find(self, name: str) -> RunPage | None:
        return self._pages.get(name)

    def of(self, tenant: str) -> list[RunPage]:
        """The pages of a tenant, the newest first."""
        return [page for page in reversed(self._pages.values()) if page.tenant == tenant]
