"""An index that tells which replicas have the KV of a prefix.

A prefix is divided into blocks of 64 tokens. The key of a block is the digest that the tree's events use for the
block's last page; it covers the whole prefix up to there. A set of replicas is an int in which each replica has one
bit. So in a fleet of 1,000, an entry takes 160 bytes, however many replicas have the block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from banyan.radix_cache.digests import prefix_digests

BLOCK = 64
"""How many tokens a block has."""
N_BLOCKS = 1 << 20
"""Most blocks of an index: 67 million tokens of distinct prefixes, in about 0.35 GB for 1,000 replicas."""


def block_digests(namespace: bytes, ids: bytes) -> list[bytes]:
    """Digests of the prefixes of `ids` (int32) that end with a block, shortest first. namespace: the root key of the KV
    (tenant, adapter and weights), so that two tenants share no entry."""
    return prefix_digests(namespace, ids, 0, 4 * BLOCK)[1:]


def blocks_of(digests: Sequence[bytes], first: int, page: int) -> Sequence[bytes]:
    """Selects, from the digests of consecutive pages, those of the pages that end a block. first: the index of the
    first page in its text. page: how many tokens a page has, a divisor of BLOCK."""
    n_pages = BLOCK // page
    return digests[-(first + 1) % n_pages :: n_pages]


class PrefixIndex:
    """Maps each block to the replicas that have it. If there are more than n_blocks, those stored or placed the longest
    time ago are evicted."""

    def __init__(self, n_blocks: int = N_BLOCKS) -> None:
        self._n_blocks = n_blocks
        self._holders: OrderedDict[bytes, int] = OrderedDict()  # the longest unused first

    def __len__(self) -> int:
        return len(self._holders)

    def holders(self, digests: Sequence[bytes], among: int) -> list[tuple[int, int]]:
        """Returns pairs (n, the replicas that have at least the first n blocks), the largest n first. Each set contains
        the previous one. among: only these replicas count."""
        found: list[tuple[int, int]] = []
        get = self._holders.get
        for i, digest in enumerate(digests, 1):
            among &= get(digest, 0)
            if not among:
                break
            if found and found[-1][1] == among:
                found[-1] = i, among
            else:
                found.append((i, among))
        return found[::-1]

    def stored(self, replicas: int, digests: Sequence[bytes]) -> None:
        """Record that the replicas have the blocks of a prefix, or will have them soon. digests: shortest prefix
        first."""
        holders = self._holders
        for digest in reversed(digests):  # so that a prefix is evicted after its continuations
            holders[digest] = holders.get(digest, 0) | replicas
            holders.move_to_end(digest)
        while len(holders) > self._n_blocks:
            holders.popitem(last=False)

    def removed(self, replicas: int, digests: Sequence[bytes]) -> None:
        """Record that the replicas no longer have the blocks."""
        for digest in digests:
            if left := self._holders.get(digest, 0) & ~replicas:
                self._holders[digest] = left
            else:
                self._holders.pop(digest, None)
