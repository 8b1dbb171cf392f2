"""When replicas are added and removed, in virtual time."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from banyan.runtime.fleet.scaling import RUN, FleetLoad, LoadScaler

START = 20.0


class VirtualFleet:
    """Replicas that start in START seconds and compute one second of work in a second."""

    def __init__(self, least: int = 1, most: int = 8) -> None:
        self.scaler = LoadScaler(least, most)
        self.scaler.started(START)
        self.now, self.n, self.queued = 0.0, 1, 0.0
        self.coming: list[float] = []
        self.changes: list[tuple[float, int]] = []
        self.n_done = self.n_missed = 0

    def run(self, seconds: int, work: float, noise: random.Random | None = None) -> None:
        """work: seconds of work that arrive in each second."""
        for _ in range(seconds):
            self.now += 1.0
            self.n += sum(when <= self.now for when in self.coming)
            self.coming = [when for when in self.coming if when > self.now]
            arrived = work if noise is None else work * 2 * noise.random()
            self.queued = max(0.0, self.queued + arrived - self.n)
            work_left = self.queued + min(arrived, self.n) / 2
            load = FleetLoad(self.n, len(self.coming), work_left, self.n_done, self.n_missed)
            change = self.scaler.decide(self.now, load)
            if change:
                self.changes.append((self.now, change))
            if change > 0:
                self.coming.append(self.now + START)
            elif change < 0:
                self.n -= 1


def test_a_load_above_capacity_adds_replicas_until_it_is_served() -> None:
    fleet = VirtualFleet()
    fleet.run(600, work=3.5)
    assert fleet.n in (4, 5, 6)
    fleet.run(600, work=3.5)
    assert fleet.queued < START


def test_a_removal_that_had_to_be_undone_is_tried_less_and_less_often() -> None:
    fleet = VirtualFleet()
    fleet.run(1200, work=3.5)
    counts = []
    for _ in range(3):
        n_before = len(fleet.changes)
        fleet.run(10_000, work=3.5)
        counts.append(len(fleet.changes) - n_before)
    assert counts[0] <= 12
    assert counts[2] <= 8, "in 10,000 seconds"


def test_a_short_burst_is_waited_out() -> None:
    fleet = VirtualFleet()
    fleet.run(10, work=2.0)
    fleet.run(600, work=0.3)
    assert fleet.changes == []


def test_the_longer_the_queue_the_sooner_a_replica_is_added() -> None:
    first = []
    for work in (2.5, 5.0, 50.0):
        fleet = VirtualFleet()
        fleet.run(300, work)
        first.append(fleet.changes[0][0])
    assert first[0] > first[1] > first[2] >= START / 4


def test_unused_replicas_are_removed_one_by_one_and_late() -> None:
    fleet = VirtualFleet(least=1)
    fleet.run(600, work=3.5)
    n, since = fleet.n, fleet.now
    fleet.run(3600, work=0.2)
    assert fleet.n == 1
    removed = [when - since for when, change in fleet.changes if change < 0 and when > since]
    assert len(removed) == n - 1
    assert min(b - a for a, b in pairwise(removed)) >= RUN * START


@pytest.mark.parametrize("seed", range(5))
def test_a_load_that_swings_does_not_flap(seed: int) -> None:
    """Whatever the load: a replica that was added runs for at least RUN times as long as it took to start."""
    fleet, rng = VirtualFleet(), random.Random(seed)
    for _ in range(60):
        fleet.run(rng.choice((5, 30, 120, 600)), rng.choice((0.1, 1.0, 3.0, 6.0)), rng)
    ups = [when for when, change in fleet.changes if change > 0]
    downs = [when for when, change in fleet.changes if change < 0]
    assert downs
    assert all(down - max(up for up in ups if up < down) >= RUN * START for down in downs)
    assert len(ups) * START <= fleet.now / 2


def test_missed_service_levels_add_replicas_without_a_queue() -> None:
    fleet = VirtualFleet()
    for _ in range(3 * int(START)):
        fleet.n_done += 10
        fleet.n_missed += 2
        fleet.run(1, work=0.1)
    assert [change for _, change in fleet.changes][:1] == [1]
    calm = VirtualFleet()
    for _ in range(3 * int(START)):
        calm.n_done += 100
        calm.n_missed += 2
        calm.run(1, work=0.1)
    assert calm.changes == []


def test_the_least_and_the_most_are_kept() -> None:
    fleet = VirtualFleet(least=3, most=4)
    fleet.run(200, work=0.0)
    assert fleet.n == 3
    fleet.run(2000, work=10.0)
    assert fleet.n == 4
    idle = LoadScaler(1, 4)
    assert [idle.decide(t, FleetLoad(0, 1, 0.0)) for t in range(100)] == [0] * 100, "the first engines start"
