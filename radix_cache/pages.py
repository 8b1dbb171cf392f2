"""Pages as numbers: who holds none of them is free. A page has exactly one holder: this stack, a lease, or a node."""

from __future__ import annotations


class PagePool:
    """The free pages, as a stack: what was given back last is taken first, while its memory is warm."""

    __slots__ = ("free", "n_pages")

    def __init__(self, n_pages: int) -> None:
        self.n_pages = n_pages
        self.free = list(range(n_pages))

    def take(self, n: int) -> list[int]:
        """n pages off the stack, which must hold as many."""
        free = self.free
        n_left = len(free) - n
        taken = free[n_left:]
        del free[n_left:]
        return taken

    def give(self, pages: list[int]) -> None:
        """Pages that their holder has let go of."""
        self.free += pages
