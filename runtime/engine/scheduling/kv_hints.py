"""What the server says of the tree: what is needed again, what is to stay, what can go. See radix_cache/hints.py."""

from __future__ import annotations

from banyan.radix_cache.cache import Cache
from banyan.radix_cache.hints import KVHint
from banyan.runtime.protocol.wire import EvictFirst, Hold, Release

Steer = Hold | Release | EvictFirst


class KVHintReceiver:
    """The handles of one server, by its numbers. What is said of a number that has none is of one that ended."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._handles: dict[int, KVHint] = {}
        self._n_kept = 64  # so many may be here before those are looked for that hold nothing any more

    def __len__(self) -> int:
        return len(self._handles)

    def take(self, order: Steer, now: float) -> None:
        """now: seconds, of the clock of plans. Ids that are none are no prefix, and nothing is there to be steered."""
        if isinstance(order, Release):
            if handle := self._handles.pop(order.hold, None):
                handle.release()
        elif len(order.ids) % 4 == 0:
            if isinstance(order, Hold):
                self._hold(order, now)
            else:
                self._cache.handle(order.ids, order.namespace).drop(order.n_shared)

    def _hold(self, order: Hold, now: float) -> None:
        if handle := self._handles.pop(order.hold, None):
            handle.release()
        handle = self._handles[order.hold] = self._cache.handle(order.ids, order.namespace)
        if order.prefetch:
            handle.prefetch()
        if order.steps >= 0:
            handle.expect(order.steps)
        if order.seconds > 0:
            handle.pin(now + order.seconds)
        if len(self._handles) > self._n_kept:
            self._handles = {number: handle for number, handle in self._handles.items() if handle.is_held}
            self._n_kept = 64 + 2 * len(self._handles)
