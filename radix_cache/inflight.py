"""An index of prompts that are being computed now, and so are not in the tree yet.

    cache.in_flight.claim(request, ids, namespace)          # its prefill starts
    found = cache.in_flight.find(ids, namespace)            # (owner, n_tokens shared with its prompt), or None
    cache.in_flight.release(request)                        # all of it is published, or the request ended

The scheduler asks this index when it admits a request. If a running request computes more of the prompt than the tree
has, the new request waits for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter
from typing import Any

from banyan.radix_cache.digests import n_common


class InFlight:
    """Prompts and the owners that compute them. Owners are hashable; each has at most one claim."""

    __slots__ = ("_claims", "_n_claimed", "_prompts")

    def __init__(self) -> None:
        self._prompts: list[tuple[bytes, bytes, int, Any]] = []  # namespace, ids, number of the claim; sorted
        self._claims: dict[Any, tuple[bytes, bytes, int, Any]] = {}
        self._n_claimed = 0

    def __len__(self) -> int:
        return len(self._claims)

    def claim(self, owner: Any, ids: bytes, namespace: bytes = b"") -> None:
        """Records that `owner` starts to compute the prompt `ids`. Raises ValueError if `owner` already has a claim."""
        if owner in self._claims:
            raise ValueError(f"{owner!r} has a claim already")
        self._n_claimed += 1
        claim = self._claims[owner] = namespace, ids, self._n_claimed, owner
        insort(self._prompts, claim)

    def release(self, owner: Any) -> None:
        """Ends the claim of `owner`, if it has one."""
        if claim := self._claims.pop(owner, None):
            del self._prompts[bisect_left(self._prompts, claim)]

    def find(self, ids: bytes, namespace: bytes = b"") -> tuple[Any, int] | None:
        """Returns the owner that computes the longest prefix of `ids`, and the number of tokens in that prefix; None if
        no prompt shares a token with `ids`. Among equal prompts, the earliest claim is returned.

        A binary search and two comparisons suffice: in sorted strings, a neighbour has the longest common prefix.
        """
        i = bisect_left(self._prompts, (namespace, ids))
        neighbours = self._prompts[max(i - 1, 0) : i + 1]
        near = [(owner, n_common(ids, 0, other)) for name, other, _, owner in neighbours if name == namespace]
        return max([found for found in near if found[1]], key=itemgetter(1), default=None)
