"""An index of prompts that are being computed now, and so are not in the tree yet.

    cache.in_flight.claim(request, ids, namespace)          # its prefill starts
    found = cache.in_flight.find(ids, namespace)            # (owner, n_tokens shared with its prompt), or None
    cache.in_flight.release(request)                        # all of it is published, or the request ended

The scheduler asks it when it admits a request. If a running request computes more of the prompt than the tree has, the
new request waits for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter
from typing import Generic, TypeVar

from banyan.radix_cache.node import n_common

Owner = TypeVar("Owner")
_Claim = tuple[bytes, int, Owner]
"""Ids, the number of the claim, its owner."""


class InFlight(Generic[Owner]):
    """Prompts and the owners that compute them. Owners are hashable; each has at most one claim."""

    __slots__ = ("_claims", "_n_claimed", "_prompts")

    def __init__(self) -> None:
        self._prompts: dict[bytes, list[_Claim[Owner]]] = {}  # by namespace, sorted
        self._claims: dict[Owner, tuple[bytes, _Claim[Owner]]] = {}  # with their namespaces
        self._n_claimed = 0

    def __len__(self) -> int:
        return len(self._claims)

    def claim(self, owner: Owner, ids: bytes, namespace: bytes = b"") -> None:
        """`owner` starts to compute the prompt `ids`. Raises ValueError if it already has a claim."""
        if owner in self._claims:
            raise ValueError(f"{owner!r} has a claim already")
        self._n_claimed += 1
        claim = ids, self._n_claimed, owner
        self._claims[owner] = namespace, claim
        insort(self._prompts.setdefault(namespace, []), claim)

    def release(self, owner: Owner) -> None:
        """`owner` computes no more. Does nothing if it has no claim."""
        if owner in self._claims:
            namespace, claim = self._claims.pop(owner)
            prompts = self._prompts[namespace]
            del prompts[bisect_left(prompts, claim)]
            if not prompts:
                del self._prompts[namespace]

    def find(self, ids: bytes, namespace: bytes = b"") -> tuple[Owner, int] | None:
        """The owner that computes the longest prefix of `ids`, and its tokens; None if no prompt shares a token. Of
        equal prompts, the earliest claim.

        Takes a binary search and two comparisons: in sorted strings, a neighbour has the longest common prefix.
        """
        prompts = self._prompts.get(namespace, [])
        i = bisect_left(prompts, (ids,))
        near = [(owner, n_common(ids, 0, other)) for other, _, owner in prompts[max(i - 1, 0) : i + 1]]
        return max([found for found in near if found[1]], key=itemgetter(1), default=None)
