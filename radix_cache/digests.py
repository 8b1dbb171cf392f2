"""Compares prefixes: by their digests, or token by token."""

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


def n_common(ids: bytes, start: int, key: bytes) -> int:
    """The number of leading tokens that `key` shares with the part of `ids` starting at byte `start`."""
    at, end = 0, min(len(ids) - start, len(key))
    while end - at > 256:
        middle = at + (end - at) // 8 * 4
        if ids[start + at : start + middle] == key[at:middle]:
            at = middle
        else:
            end = middle
    # Of a short rest, find the lowest differing bit of two integers: faster than more slices, and than an array.
    differing = int.from_bytes(ids[start + at : start + end], "little") ^ int.from_bytes(key[at:end], "little")
    return (8 * at + (differing & -differing).bit_length() - 1) // 32 if differing else end // 4
