"""Slows down peers that give wrong access tokens, and counts them by address.

After FREE wrong tokens from one address, its peers learn whether a token is right only after a pause, which doubles
with each further wrong token. A peer with the right token waits just as long, so a pause reveals nothing. All local
peers count as one address, and so does an IPv6 network of 64 bits.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

from banyan.runtime.server.timers import Timers

FREE = 4
"""The first FREE wrong tokens from an address cause no delay. The count of an address halves every HALF_LIFE
seconds."""
HALF_LIFE = 60.0
FIRST_PAUSE, MAX_PAUSE = 0.1, 2.0
"""Seconds. MAX_PAUSE is short, because a peer that guesses delays the other peers of its address."""
MAX_ADDRESSES = 4096
"""Maximum number of addresses that are counted. Beyond that, the address that has sent no wrong token for the longest
time is forgotten."""
LOG_INTERVAL = 60.0
"""Seconds between two lines of the log about wrong tokens."""


def network(address: str) -> str:
    """The network under which a peer's address is counted. address: an IP address, or any other text, which is returned
    unchanged."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))


class TokenThrottle:
    """Counts the wrong tokens of all peers. n_wrong: their number since the start."""

    def __init__(self, timers: Timers, log: Callable[[str], None]) -> None:
        self._timers, self._log = timers, log
        self.n_wrong = 0
        # address -> (decayed count, time of the last wrong token)
        self._by_address: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._last_address = ""
        self._n_logged = -1  # n_wrong at the last line of the log; -1: the next wrong token is logged at once

    def note_wrong(self, address: str) -> None:
        """Count a wrong token of a peer at this address."""
        self.n_wrong += 1
        self._last_address = address
        self._by_address[address] = self._n_recent(address) + 1.0, self._timers.now()
        self._by_address.move_to_end(address)
        if len(self._by_address) > MAX_ADDRESSES:
            self._by_address.popitem(last=False)
        if self._n_logged < 0:
            self._n_logged = self.n_wrong
            self._log(f"a wrong token, or none, from {address}")
            self._timers.call(LOG_INTERVAL, self._end_interval)

    def pause(self, address: str) -> float:
        """Returns for how many seconds the server delays its answer to a peer at this address, whether the peer's token
        is right or wrong; 0.0: no delay."""
        n = self._n_recent(address) - FREE
        return min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(n, 60.0)) if n > 0 else 0.0

    def _n_recent(self, address: str) -> float:
        n, at = self._by_address.get(address, (0.0, 0.0))
        return float(n * 0.5 ** ((self._timers.now() - at) / HALF_LIFE))

    def _end_interval(self) -> None:
        n = self.n_wrong - self._n_logged
        self._n_logged = -1
        if n:
            self._n_logged = self.n_wrong
            self._log(f"{n} more wrong tokens in {LOG_INTERVAL:.0f} s, the last from {self._last_address}")
            self._timers.call(LOG_INTERVAL, self._end_interval)
