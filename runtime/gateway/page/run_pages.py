"""Pages of runs (`state.show()`) that clients publish, so that a link shows them. They are kept in memory."""

from __future__ import annotations

import secrets
from typing import NamedTuple

MAX_PAGES, MAX_BYTES = 100, 64 << 20
"""The most pages, and the most bytes of pages, of all clients together. The oldest pages are dropped first."""


class RunPage(NamedTuple):
    """One page. id: protects the page; whoever knows it may read it, because a browser sends no key with a link."""

    id: str
    tenant: str
    title: str
    html: bytes


class RunPages:
    """The published pages."""

    def __init__(self) -> None:
        self._pages: dict[str, RunPage] = {}
        self._n_bytes = 0

    def add(self, tenant: str, title: str, html: str) -> RunPage:
        """Keep a page."""
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
