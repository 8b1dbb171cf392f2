"""Wrong tokens are counted by address, answered late, and logged once per interval."""

from __future__ import annotations

from banyan.runtime.server.policy.token_throttle import (
    FREE,
    HALF_LIFE,
    LOG_INTERVAL,
    MAX_ADDRESSES,
    MAX_PAUSE,
    TokenThrottle,
    network,
)
from banyan.runtime.server.timers import Timers


class World:
    """A throttle and its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers = Timers(lambda: self.now)
        self.lines: list[str] = []
        self.throttle = TokenThrottle(self.timers, self.lines.append)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.timers.run()


def test_pause_grows_with_wrong_tokens_and_is_bounded() -> None:
    throttle = World().throttle
    pauses = []
    for _ in range(100):
        throttle.note_wrong("1.2.3.4")
        pauses.append(throttle.pause("1.2.3.4"))
    assert pauses[:FREE] == [0.0] * FREE
    assert pauses == sorted(pauses)
    assert 0 < pauses[FREE] < pauses[FREE + 1] < MAX_PAUSE
    assert pauses[-1] == MAX_PAUSE
    assert throttle.pause("1.2.3.5") == 0, "another address is not delayed"
    assert throttle.n_wrong == 100


def test_wrong_tokens_are_forgotten() -> None:
    world = World()
    for _ in range(2 * FREE):
        world.throttle.note_wrong("a")
    assert world.throttle.pause("a") > 0
    world.wait(1.1 * HALF_LIFE)
    assert world.throttle.pause("a") == 0
    world.wait(1e9)
    assert world.throttle.pause("a") == 0


def test_addresses_of_one_network_are_one() -> None:
    assert network("::ffff:1.2.3.4") == network("1.2.3.4") == "1.2.3.4"
    assert network("2001:db8::1") == network("2001:db8::ffff:1") == "2001:db8::/64"
    assert network("2001:db8:0:1::1") != network("2001:db8::1")
    assert network("fe80::1%eth0") == "fe80::/64"
    assert network("the local socket") == "the local socket"


def test_number_of_addresses_is_bounded() -> None:
    throttle = World().throttle
    for i in range(MAX_ADDRESSES + 100):
        throttle.note_wrong(f"address {i}")
        for _ in range(FREE + 1):
            throttle.note_wrong("the attacker")
    assert len(throttle._by_address) == MAX_ADDRESSES
    assert throttle.pause("the attacker") == MAX_PAUSE, "the latest ones are kept"


def test_log_has_one_line_per_interval() -> None:
    world = World()
    for _ in range(1000):
        world.throttle.note_wrong("10.0.0.1")
    assert world.lines == ["a wrong token, or none, from 10.0.0.1"]
    world.wait(LOG_INTERVAL)
    assert world.lines[1:] == ["999 more wrong tokens in 60 s, the last from 10.0.0.1"]
    for _ in range(9):
        world.wait(LOG_INTERVAL)
    assert len(world.lines) == 2, "nothing came in these intervals"
    world.throttle.note_wrong("10.0.0.2")
    assert world.lines[2:] == ["a wrong token, or none, from 10.0.0.2"]
