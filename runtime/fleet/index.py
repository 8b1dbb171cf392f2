"""An index that tells which replicas have the KV of a prefix.

A prefix is divided into blocks of 64 tokens. The key of a block is a digest of the whole prefix up to the block's end;
the KV events of the radix tree use the same digest for the block's last page. A set of replicas is an int with one bit
for each replica. So in a fleet of 1,000 replicas, the set of a block takes 160 bytes, however many replicas have the
block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from banyan.radix_cache.digests import prefix_digests

BLOCK = 64
"""How many tokens a block has."""
N_BLOCKS = 1 << 20
"""Maximum number of blocks of an index: 67 million tokens of distinct prefixes, in about 0.35 GB for 1,000 replicas."""


def block_digests(namespace: bytes, ids: bytes) -> list[bytes]:
    """The digests of the prefixes of `ids` (int32) that end at a block boundary, shortest first. namespace: the root
    key of the KV (tenant, adapter and weights); equal ids in two namespaces have different digests."""
    return prefix_digests(namespace, ids, 0, 4 * BLOCK)[1:]


def blocks_of(digests: Sequence[bytes], first: int, page: int) -> Sequence[bytes]:
    """Select the block digests from `digests`, the digests of consecutive pages: those of the pages that end a block.
    first: the index of the first page in its text. page: how many tokens a page has, a divisor of BLOCK."""
    n_pages = BLOCK // page
    return digests[-(first + 1) % n_pages :: n_pages]


class PrefixIndex:
    """Maps each block to the replicas that have it. It keeps at most n_blocks blocks, and evicts those that were stored
    the longest time ago."""

    def __init__(self, n_blocks: int = N_BLOCKS) -> None:
        self._n_blocks = n_blocks
        self._holders: OrderedDict[bytes, int] = OrderedDict()  # the longest unused first

    def __len__(self) -> int:
        return len(self._holders)

    def holders(self, digests: Sequence[bytes], among: int) -> list[tuple[int, int]]:
        """Find the replicas that have a prefix. digests: the digests of its blocks, in order. among: the set of
        replicas to look at. Sets are bit sets.

        Returns pairs (n, set of the replicas that have at least the first n blocks), the largest n first. Each set
        contains the set of the pair before it.
        """
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
        """Record that these replicas have the blocks of a prefix, or will soon have computed them. replicas: a bit set.
        digests: those of the blocks, shortest prefix first."""
        holders = self._holders
        for digest in reversed(digests):  # so that a prefix is evicted after its continuations
            holders[digest] = holders.get(digest, 0) | replicas
            holders.move_to_end(digest)
        while len(holders) > self._n_blocks:
            holders.popitem(last=False)

    def removed(self, replicas: int, digests: Sequence[bytes]) -> None:
        """Record that these replicas no longer have the blocks with these digests. replicas: a bit set."""
        for digest in digests:
            if left := self._holders.get(digest, 0) & ~replicas:
                self._holders[digest] = left
            else:
                self._holders.pop(digest, None)
