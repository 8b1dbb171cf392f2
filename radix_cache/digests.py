"""Digests of prefixes. This file must not import numpy, which takes a third of the CPU time of a server's imports."""

from __future__ import annotations

from hashlib import blake2b

N_NAMESPACE = 64
"""The longest namespace that a digest can contain, in bytes. Pages with a longer one are not kept in a file."""


def prefix_digests(namespace: bytes, ids: bytes, first: int, width: int) -> list[bytes]:
    """Digests of the prefixes of `ids` that end with page `first` - 1, `first`, and so on. width: bytes of ids per
    page.

    A digest names a prefix across namespaces and machines. It has 16 bytes, so that collisions do not occur.
    """
    state = blake2b(ids[: first * width], digest_size=16, key=namespace[:N_NAMESPACE])
    digests = [state.digest()]
    for o in range(first * width, len(ids) - width + 1, width):
        state.update(ids[o : o + width])
        digests.append(state.digest())
    return digests
