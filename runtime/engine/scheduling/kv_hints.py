"""Applies the server's hints to the cache: which KV will be needed again, which to keep, and which can be evicted."""

from __future__ import annotations

from collections import OrderedDict

from banyan.radix_cache.cache import Cache
from banyan.radix_cache.hints import KVHint
from banyan.runtime.protocol.wire import EvictFirst, Hold, Release

KVHintOrder = Hold | Release | EvictFirst

MAX_BYTES = 64 << 20
"""Maximum number of bytes of the prefixes of all hints. Beyond it, the namespace whose hints have most bytes loses its
oldest ones. Pins outlive their programs, so without a limit a client could fill the memory."""
ENTRY = 512
"""Bytes that a hint counts for besides its prefix."""


class KVHintReceiver:
    """The hints of one server, by number. A Release of an unknown number is ignored: the hint has ended already."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._hints: OrderedDict[int, KVHint] = OrderedDict()  # oldest first
        self._n_bytes: dict[bytes, int] = {}  # by namespace
        self._sweep_at = 64  # with more hints than this, drop those that hold no page any more

    @property
    def n_bytes(self) -> int:
        """Bytes of the prefixes of all hints."""
        return sum(self._n_bytes.values())

    def take(self, order: KVHintOrder, now: float) -> None:
        """Apply a hint from the server. Ignores it if the length of its `ids` in bytes is not a multiple of 4, the size
        of an id. now: seconds, on the clock that `Scheduler.plan` gets."""
        if isinstance(order, Release):
            self._release(order.hold)
        elif len(order.ids) % 4 == 0:
            if isinstance(order, Hold):
                self._hold(order, now)
            else:
                self._cache.handle(order.ids, order.namespace).drop(order.n_shared)

    def _hold(self, order: Hold, now: float) -> None:
        self._release(order.hold)
        hint = self._hints[order.hold] = self._cache.handle(order.ids, order.namespace)
        self._n_bytes[hint.namespace] = self._n_bytes.get(hint.namespace, 0) + _n_bytes(hint)
        if order.prefetch:
            hint.prefetch()
        if order.steps >= 0:
            hint.expect(order.steps)
        if order.seconds > 0:
            hint.pin(now + order.seconds)
        if len(self._hints) > self._sweep_at:
            for number in [number for number, hint in self._hints.items() if not hint.is_held]:
                self._release(number)
            self._sweep_at = 64 + 2 * len(self._hints)
        while self.n_bytes > MAX_BYTES:
            largest = max(self._n_bytes, key=lambda namespace: self._n_bytes[namespace])
            self._release(next(number for number, hint in self._hints.items() if hint.namespace == largest))

    def _release(self, number: int) -> None:
        if hint := self._hints.pop(number, None):
            hint.release()
            self._n_bytes[hint.namespace] -= _n_bytes(hint)
            if not self._n_bytes[hint.namespace]:
                del self._n_bytes[hint.namespace]


def _n_bytes(hint: KVHint) -> int:
    return ENTRY + len(hint.ids)
