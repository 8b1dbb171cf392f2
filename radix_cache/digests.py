"""Digests of prefixes. This file must not import numpy, which takes a third of the CPU time of a server's imports."""

from __future__ import annotations

from hashlib import blake2b

N_NAMESPACE = 64
"""The longest namespace that a digest contains as it is, in bytes, and that a page in a file can have."""


def prefix_digests(namespace: bytes, ids: bytes, first: int, width: int) -> list[bytes]:
    """Digests of the prefixes of `ids` that have `first`, `first` + 1, ... whole pages, in this order. width: bytes of
    ids per page.

    A digest depends on the namespace and on all ids of the prefix, and is the same on all machines. It has 16 bytes, so
    that collisions do not occur.
    """
    if len(namespace) > N_NAMESPACE:  # the key of a digest cannot be longer
        namespace = blake2b(namespace, digest_size=N_NAMESPACE).digest()
    state = blake2b(ids[: first * width], digest_size=16, key=namespace)
    digests = [state.digest()]
    for o in range(first * width, len(ids) - width + 1, width):
        state.update(ids[o : o + width])
        digests.append(state.digest())
    return digests
