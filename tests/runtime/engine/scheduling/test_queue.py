"""Orders, on requests that nothing runs: who is first, and then, and then."""

from __future__ import annotations

import random
from array import array
from typing import Any, get_args

import pytest

from banyan.runtime.config import Schedule
from banyan.runtime.engine.scheduling import queue
from banyan.runtime.engine.scheduling.queue import Queue
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.protocol.wire import Run

SCHEDULES = get_args(Schedule)


class Desk:
    """A queue, and a tree of which we say what it has."""

    def __init__(self, schedule: Schedule) -> None:
        self.cached: dict[int, int] = {}
        self.queue = Queue(schedule, lambda request: self.cached.get(request.rid, 0))
        self.n = 0

    def add(self, *order: int, ids: Any = (1,), cached: int = 0, **fields: Any) -> Request:
        self.cached[self.n] = cached
        request = Request(Run(self.n, array("i", ids).tobytes(), order=order, **fields), max_total=len(ids) + 8)
        self.queue.register(request, self.n)
        self.queue.add(request)
        self.n += 1
        return request

    def starts(self, now: float = 0.0, serve: int = 0, least: int = 0) -> list[int]:
        """The rids in the order in which they are started, until `least` are left. serve: tokens each then gets."""
        out = []
        while len(self.queue) > least:
            self.queue.start_waits(now)
            request = self.queue.first(now)
            assert request is self.queue.first(now), "the same until something changes"
            self.queue.start(request, now)
            request.client.n_served += serve
            request.program.n_served += serve
            out.append(request.rid)
        return out


def test_fcfs_knows_arrivals_only() -> None:
    d = Desk("fcfs")
    for program in (3, 1, 2, 1):
        d.add(program)
    assert d.starts() == [0, 1, 2, 3]


@pytest.mark.parametrize("schedule", ["dfs", "fair"])
def test_a_program_depth_first_and_the_oldest_program_first(schedule: Schedule) -> None:
    d = Desk(schedule)
    for order in ((2, 0), (1, 4), (1, 2, 1), (1, 2), (0, 9)):
        d.add(*order)
    assert d.starts() == [4, 3, 2, 1, 0]


def test_fair_gives_to_the_program_that_was_given_least() -> None:
    d = Desk("fair")
    old = [d.add(0, k) for k in range(3)]
    old[0].program.n_served = 2 * queue.QUANTUM
    d.add(1)
    d.add(2)
    assert d.starts() == [3, 4, 0, 1, 2]


def test_fair_does_not_turn_between_programs_that_were_given_about_the_same() -> None:
    d = Desk("fair")
    for program in (0, 1):
        for k in range(4):
            d.add(program, k)
    assert d.starts(serve=queue.QUANTUM // 4) == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("schedule", ["dfs", "fair"])
def test_clients_are_given_the_same(schedule: Schedule) -> None:
    d = Desk(schedule)
    for rid in range(60):
        d.add(rid, client=0 if rid < 40 else 1)  # one of them was first, and has twice as much
    clients = [0 if rid < 40 else 1 for rid in d.starts(serve=queue.QUANTUM, least=20)]
    assert 18 <= sum(clients) <= 21
    assert clients[:2] == [0, 1]


@pytest.mark.parametrize("schedule", ["dfs", "fair"])
def test_a_client_goes_on_for_a_quantum(schedule: Schedule) -> None:
    d = Desk(schedule)
    for rid in range(16):
        d.add(rid, client=rid % 2)
    turns = [rid % 2 for rid in d.starts(serve=queue.QUANTUM // 4)]
    assert turns == [0] * 4 + [1] * 8 + [0] * 4


@pytest.mark.parametrize("schedule", ["dfs", "fair"])
def test_who_comes_later_has_saved_nothing(schedule: Schedule) -> None:
    d = Desk(schedule)
    for rid in range(10):
        d.add(rid, client=0)
    d.starts(serve=10 * queue.QUANTUM, least=5)
    for rid in range(10, 15):
        d.add(rid, client=1)
    turns = [rid >= 10 for rid in d.starts(serve=10 * queue.QUANTUM)]
    assert sum(turns[:4]) == 2


def test_a_client_that_left_is_forgotten() -> None:
    d = Desk("dfs")
    one = d.add(0, client=7)
    d.queue.remove(one)
    d.queue.unregister(one)
    assert not d.queue._clients


def test_accounts_of_programs_are_kept_between_requests_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "N_KNOWN", 3)
    d = Desk("fair")
    first = d.add(0, 0)
    first.program.n_served = 99
    d.queue.remove(first)
    d.queue.unregister(first)
    assert d.add(0, 1).program.n_served == 99
    for request in list(d.queue):
        d.queue.remove(request)
        d.queue.unregister(request)
    for program in range(1, 4):
        d.add(program)
    assert d.add(0, 2).program.n_served == 0


def test_lpm_takes_the_longest_prefix_and_is_told_what_changes() -> None:
    d = Desk("lpm")
    text = list(range(100))
    short, long, other = d.add(ids=text[:50], cached=20), d.add(ids=text, cached=40), d.add(ids=[7] * 90, cached=30)
    assert d.queue.first(0.0) is long
    published = Request(Run(99, array("i", [7] * 80).tobytes()), max_total=99)
    d.queue.order.published(published)
    assert d.queue.first(0.0) is other, "its prefix is in the tree now, 80 tokens of it"
    assert not d.queue.order.is_still_first(other, 10), "meanwhile it was evicted"
    assert d.queue.first(0.0) is long
    assert d.queue.order.is_still_first(long, 30), "a little less is no reason to turn"
    d.queue.start(long, 0.0)
    assert d.starts() == [short.rid, other.rid]


def test_lpm_does_not_mix_namespaces() -> None:
    d = Desk("lpm")
    d.add(ids=[1] * 50, namespace=b"a")
    d.add(ids=[1] * 50, namespace=b"b")
    d.queue.order.published(Request(Run(9, array("i", [1] * 50).tobytes(), namespace=b"b"), max_total=60))
    assert d.starts() == [1, 0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_priority_and_deadline_go_before_any_order(schedule: Schedule) -> None:
    d = Desk(schedule)
    d.add(0, ids=[1] * 40, cached=39)
    d.add(1, deadline=200.0)
    d.add(2, priority=1)
    d.add(3, deadline=100.0)
    d.add(4, priority=-1)
    d.add(5, priority=1, deadline=5.0)
    assert d.starts() == [5, 2, 3, 1, 0, 4]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_fourth_is_the_one_that_waited_longest(schedule: Schedule) -> None:
    d = Desk(schedule)
    d.add(50, priority=-1)
    d.queue.start_waits(0.0)
    for k in range(20):
        d.add(k)
    now = queue.PATIENCE + 1
    assert d.starts(now).index(0) == queue.AGED_TURN - 1
    assert d.starts() == []


def test_where_all_wait_for_long_the_order_stands() -> None:
    """An old program's next turn does not stand behind the first one of all others, because that has waited longer."""
    d = Desk("dfs")
    for k in range(1, 60):
        d.add(k)
    d.queue.start_waits(0.0)
    assert d.starts(20.0, serve=1, least=30) == list(range(29))
    d.add(0)
    assert d.starts(25.0, serve=1)[0] == 59


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nobody_is_aged_before_its_time(schedule: Schedule) -> None:
    d = Desk(schedule)
    d.add(50, priority=-1)
    for k in range(20):
        d.add(k)
    assert d.starts(queue.PATIENCE)[-1] == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(5))
def test_all_that_come_are_started_or_leave_and_nothing_stays(schedule: Schedule, seed: int) -> None:
    chance = random.Random(seed)
    d = Desk(schedule)
    waiting: dict[int, Request] = {}
    aside: list[Request] = []
    now = 0.0
    for _ in range(3000):
        now += chance.random()
        d.queue.start_waits(now)
        match chance.randrange(6):
            case 0 | 1:
                fields: dict[str, Any] = {"client": chance.randrange(3), "priority": chance.choice([0, 0, 0, 1])}
                ids = [chance.randrange(3) for _ in range(chance.randrange(1, 60))]
                new = d.add(chance.randrange(8), chance.randrange(4), ids=ids, cached=chance.randrange(60), **fields)
                waiting[new.rid] = new
            case 2 if waiting:
                first = d.queue.first(now)
                if d.queue.order.is_still_first(first, chance.randrange(60)):
                    d.queue.start(waiting.pop(first.rid), now)
                    first.program.n_served += chance.randrange(2 * queue.QUANTUM)
                    first.client.n_served += chance.randrange(2 * queue.QUANTUM)
                    d.queue.order.published(first)
                    d.queue.unregister(first)
            case 3 if waiting:
                gone = waiting.pop(chance.choice(list(waiting)))
                d.queue.remove(gone)
                d.queue.unregister(gone)
            case 4 if waiting:
                aside.append(waiting.pop(chance.choice(list(waiting))))
                d.queue.set_aside(aside[-1])
            case 5 if aside:
                back = aside.pop()
                d.queue.add(back)
                waiting[back.rid] = back
        assert {r.rid for r in d.queue} == set(waiting)
        assert len(d.queue) == len(waiting)
    for request in aside:
        d.queue.add(request)
    d.starts()
    order: Any = d.queue.order
    left = [getattr(order, name, ()) for name in ("_requests", "_priorities", "_sorted", "_n_cached")]
    assert not any(map(len, left))
    assert len(getattr(order, "_heap", ())) < 1000
    assert len(d.queue._arrivals) < 5000
