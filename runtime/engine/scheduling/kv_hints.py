"""Applies the server's hints about KV to the cache: what will be needed again, what stays, what can go."""

from __future__ import annotations

from banyan.radix_cache.cache import Cache
from banyan.radix_cache.hints import KVHint
from banyan.runtime.protocol.wire import EvictFirst, Hold, Release

KVHintOrder = Hold | Release | EvictFirst


class KVHintReceiver:
    """The hints of one server by their numbers. An order whose number is unknown concerns a hint that has ended."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._hints: dict[int, KVHint] = {}
        self._sweep_at = 64  # with more hints than this, drop those that hold no page any more

    def __len__(self) -> int:
        return len(self._hints)

    def take(self, order: KVHintOrder, now: float) -> None:
        """Apply an order. now: seconds, on the clock of plans. Ids that are not whole int32 are ignored."""
        if isinstance(order, Release):
            if hint := self._hints.pop(order.hold, None):
                hint.release()
        elif len(order.ids) % 4 == 0:
            if isinstance(order, Hold):
                self._hold(order, now)
            else:
                self._cache.handle(order.ids, order.namespace).drop(order.n_shared)

    def _hold(self, order: Hold, now: float) -> None:
        if hint := self._hints.pop(order.hold, None):
            hint.release()
        hint = self._hints[order.hold] = self._cache.handle(order.ids, order.namespace)
        if order.prefetch:
            hint.prefetch()
        if order.steps >= 0:
            hint.expect(order.steps)
        if order.seconds > 0:
            hint.pin(now + order.seconds)
        if len(self._hints) > self._sweep_at:
            self._hints = {number: hint for number, hint in self._hints.items() if hint.is_held}
            self._sweep_at = 64 + 2 * len(self._hints)
