"""Prompts, and leases with published prompts, for the tests of the radix cache."""

from __future__ import annotations

from array import array

from banyan.radix_cache.cache import Cache, Lease


def ids(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def n_shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """The length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def open_published(cache: Cache, prompt: bytes, namespace: bytes = b"", limit: int | None = None) -> Lease:
    """An open lease that has computed and published a prompt."""
    lease = cache.open(prompt, namespace, limit)
    assert lease.grow(len(prompt) // 4)
    lease.take_copies()
    lease.publish(prompt)
    return lease
