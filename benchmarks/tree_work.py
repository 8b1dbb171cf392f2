"""The operations on prefix caches that benchmarks/tree.py times. Needs only numpy, as it also runs in the peers'
environments.

The tree has, per 100 nodes, one system prompt of 512 tokens with 99 continuations of 64. Matches are timed on paths of
4096 tokens in 1, 8 and 64 nodes (a branch of one page leaves the path at each node boundary). Inserted prompts have 512
new tokens after 3584 shared ones. Figures are medians and 99th percentiles in microseconds.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from report import resident

VOCABULARY = 128_000
LONG, SHARED = 4096, 3584
Ids = np.ndarray[Any, np.dtype[np.int32]]
_now = time.perf_counter_ns


class Adapter:
    """A cache under test. The `key` of a prompt and the `pages` that it will fill are made outside of the timed
    calls."""

    name = ""

    def __init__(self, page: int, n_tokens: int) -> None:
        """Makes a cache for n_tokens."""

    def key(self, ids: Ids) -> Any:
        raise NotImplementedError

    def pages(self, key: Any) -> Any:
        """Allocate the pages that `insert` or `cycle` will fill; None if the cache allocates them itself."""
        return None

    def match(self, key: Any) -> tuple[int, Any]:
        """Match the key. Returns the number of matched tokens, and a handle for `lock_unlock`."""
        raise NotImplementedError

    def lock_unlock(self, handle: Any) -> None:
        raise NotImplementedError

    def insert(self, key: Any, pages: Any) -> None:
        """Insert `pages` under the key, from the root. The inserted nodes are not locked."""
        raise NotImplementedError

    def fill(self) -> None:
        """Take all free pages, so that each further page requires an eviction."""

    def evict(self, n_tokens: int) -> int:
        """Evict about n_tokens. Returns the number of evicted tokens."""
        raise NotImplementedError

    def cycle(self, key: Any, pages: Any) -> None:
        """Do what an engine does for a request of 4096 tokens, 512 of them new: match and lock the prefix, evict,
        insert and unlock."""
        raise NotImplementedError


def measure(make: type[Adapter], n_nodes: int, page: int = 16, n: int = 400) -> dict[str, float]:
    """All figures of one cache, by name."""
    chance = np.random.default_rng(0)
    make(page, LONG)  # imports and caches of first calls do not count
    gc.collect()
    before = resident()
    n_tokens = n_nodes // 100 * (512 + 99 * 64)
    cache = make(page, n_tokens + 40 * LONG + (2 * n + 700) * 512)
    paths = {name: chance.integers(0, VOCABULARY, LONG, dtype=np.int32) for name in ("1", "8", "64")}
    for prompt in background(chance, n_nodes):
        _insert(cache, prompt)
    gc.collect()
    figures = {"bytes per token": (resident() - before) / n_tokens}
    for name, ids in paths.items():
        _insert(cache, ids)
        for o in range(LONG // int(name), LONG, LONG // int(name)):
            _insert(cache, np.concatenate([ids[:o], chance.integers(0, VOCABULARY, page, dtype=np.int32)]))
    gc.collect()
    gc.freeze()  # as the engine does
    for name, ids in paths.items():
        keys = [cache.key(np.concatenate([ids, ids[:page]])) for _ in range(n)]
        found, handle = cache.match(keys[0])
        assert found == LONG, f"{cache.name} finds {found} of {LONG} tokens"
        _note(figures, f"match, {name}", (_time(cache.match, key) for key in keys))
        _note(figures, f"lock and unlock, {name}", (_time(cache.lock_unlock, handle) for _ in keys))
    base = chance.integers(0, VOCABULARY, SHARED, dtype=np.int32)
    _insert(cache, base)

    def fresh() -> tuple[Any, Any]:
        key = cache.key(np.concatenate([base, chance.integers(0, VOCABULARY, LONG - SHARED, dtype=np.int32)]))
        return key, cache.pages(key)

    _note(figures, "insert", (_time(cache.insert, *fresh()) for _ in range(n)))
    cache.fill()
    _note(figures, "evict a page", _until(2.0, n, lambda: _time(cache.evict, page)))
    _note(figures, "evict 512", _until(2.0, n, lambda: _time(cache.evict, 512)))
    cache.fill()
    _note(figures, "cycle", _until(4.0, n, lambda: _time(cache.cycle, *fresh())))
    return figures


def background(chance: np.random.Generator, n_nodes: int) -> Iterator[Ids]:
    for _ in range(n_nodes // 100):
        base = chance.integers(0, VOCABULARY, 512, dtype=np.int32)
        for _ in range(99):
            yield np.concatenate([base, chance.integers(0, VOCABULARY, 64, dtype=np.int32)])


def _insert(cache: Adapter, ids: Ids) -> None:
    key = cache.key(ids)
    cache.insert(key, cache.pages(key))


def _time(act: Callable[..., Any], *arguments: Any) -> int:
    before = _now()
    act(*arguments)
    return _now() - before


def _until(seconds: float, n: int, act: Callable[[], int]) -> Iterator[int]:
    """Calls `act` n times, but at most for about `seconds`; at least ten times."""
    end = time.monotonic() + seconds
    for i in range(n):
        if i >= 10 and time.monotonic() > end:
            return
        yield act()


def _note(figures: dict[str, float], name: str, times: Iterator[int]) -> None:
    ordered = sorted(times)
    figures[name] = ordered[len(ordered) // 2] / 1e3
    figures[f"{name}, p99"] = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] / 1e3
