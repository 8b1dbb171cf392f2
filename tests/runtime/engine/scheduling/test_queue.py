"""The order in which the queue starts requests, which are never run here."""

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
from forms import in_short

SCHEDULES = get_args(Schedule)


class Driver:
    """A queue and a cache with prescribed prefix lengths."""

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
        """Start requests until `least` are left; return their rids in order. serve: tokens credited to each."""
        out = []
        while len(self.queue) > least:
            self.queue.start_waits(now)
            request = self.queue.first(now)
            assert request is self.queue.first(now), "stable until something changes"
            self.queue.start(request, now)
            request.client.n_served += serve
            request.program.n_served += serve
            out.append(request.rid)
        return out


def test_fcfs_starts_requests_in_order_of_arrival() -> None:
    d = Driver("fcfs")
    for program in (3, 1, 2, 1):
        d.add(program)
    assert d.starts() == [0, 1, 2, 3]


@pytest.mark.parametrize("schedule", ["dfs", "fair"])
def test_oldest_program_starts_first_and_depth_first(schedule: Schedule) -> None:
    d = Driver(schedule)
    for order in ((2, 0), (1, 4), (1, 2, 1), (1, 2), (0, 9)):
        d.add(*order)
    assert d.starts() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("schedule", ["dfs", "fair"])
@pytest.mark.parametrize(("deadlines", "starts"), [((0, 5, 100), [1, 2, 0]), ((5, 0, 100), [0, 2, 1])])
def test_program_has_the_deadline_of_its_first_request(
    schedule: Schedule, deadlines: tuple[float, float, float], starts: list[int]
) -> None:
    d = Driver(schedule)
    for order, deadline in zip(((1, 0), (1, 1), (2, 0)), deadlines, strict=True):
        d.add(*order, deadline=deadline)
    assert d.starts() == starts


def test_places_of_programs_are_few_after_many_changes() -> None:
    d = Driver("dfs")
    d.add(2)
    for n in range(1000):
        request = d.add(1, deadline=1000 - n)
        if n % 2:
            d.queue.remove(request)
    d.queue.order.first()
    (client,) = d.queue.order._priorities[0].clients.values()
    assert len(client.heap) <= 64 + 2 * 2
    assert d.starts() == [*range(999, 0, -2), 0]


def test_fair_starts_the_least_served_program() -> None:
    d = Driver("fair")
    old = [d.add(0, k) for k in range(3)]
    old[0].program.n_served = 2 * queue.QUANTUM
    d.add(1)
    d.add(2)
    assert d.starts() == [3, 4, 0, 1, 2]


def test_fair_does_not_alternate_between_equally_served_programs() -> None:
    d = Driver("fair")
    for program in (0, 1):
        for k in range(4):
            d.add(program, k)
    assert d.starts(serve=queue.QUANTUM // 4) == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("schedule", ["dfs", "fair"])
def test_clients_get_equal_shares(schedule: Schedule) -> None:
    d = Driver(schedule)
    for rid in range(60):
        d.add(rid, client=0 if rid < 40 else 1)  # client 0 arrives first and has twice as many
    clients = [0 if rid < 40 else 1 for rid in d.starts(serve=queue.QUANTUM, least=20)]
    assert 18 <= sum(clients) <= 21
    assert clients[:2] == [0, 1]


@pytest.mark.parametrize("schedule", ["dfs", "fair"])
def test_client_keeps_its_turn_for_a_quantum(schedule: Schedule) -> None:
    d = Driver(schedule)
    for rid in range(16):
        d.add(rid, client=rid % 2)
    turns = [rid % 2 for rid in d.starts(serve=queue.QUANTUM // 4)]
    assert turns == [0] * 4 + [1] * 8 + [0] * 4


@pytest.mark.parametrize("schedule", ["dfs", "fair"])
def test_late_client_gets_no_credit_for_its_absence(schedule: Schedule) -> None:
    d = Driver(schedule)
    for rid in range(10):
        d.add(rid, client=0)
    d.starts(serve=10 * queue.QUANTUM, least=5)
    for rid in range(10, 15):
        d.add(rid, client=1)
    turns = [rid >= 10 for rid in d.starts(serve=10 * queue.QUANTUM)]
    assert sum(turns[:4]) == 2


def test_client_that_returns_is_still_ahead() -> None:
    """Served tokens still count after the requests have ended. If they did not, a client that sends the requests of one
    step at a time would never be ahead."""
    d = Driver("dfs")
    other = d.add(0, client=0).client
    for rid, n_served in enumerate((queue.QUANTUM, queue.QUANTUM, 9 * queue.QUANTUM, 0), 1):
        request = d.add(rid, client=1)
        request.client.n_served += n_served
        d.queue.remove(request)
        d.queue.unregister(request)
        assert list(d.queue._clients) == [0]
    assert request.client.n_served == other.n_served + queue.MAX_LEAD


def test_program_accounts_outlive_requests_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "N_KNOWN", 3)
    d = Driver("fair")
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


def test_lpm_starts_the_longest_prefix_and_follows_the_cache() -> None:
    d = Driver("lpm")
    text = list(range(100))
    short, long, other = d.add(ids=text[:50], cached=20), d.add(ids=text, cached=40), d.add(ids=[7] * 90, cached=30)
    assert d.queue.first(0.0) is long
    published = Request(Run(99, array("i", [7] * 80).tobytes()), max_total=99)
    d.queue.order.published(published)
    assert d.queue.first(0.0) is other, "80 tokens of its prefix are cached now"
    assert not d.queue.order.is_still_first(other, 10), "its prefix was evicted"
    assert d.queue.first(0.0) is long
    assert d.queue.order.is_still_first(long, 30), "a slightly shorter prefix keeps its place"
    d.queue.start(long, 0.0)
    assert d.starts() == [short.rid, other.rid]


def test_lpm_moves_prompts_behind_one_whose_prefix_was_stored_before() -> None:
    d = Driver("lpm")
    text = list(range(100))
    d.add(ids=[7] * 60, cached=50)
    for k in (97, 98, 103, 104):  # in the tree, the two in the middle were found
        d.add(ids=[*text[:80], k], cached=80 if k in (98, 103) else 0)
    d.queue.order.published(Request(Run(99, array("i", text).tobytes()), max_total=200))
    assert d.starts() == [1, 2, 3, 4, 0]


def test_lpm_separates_namespaces() -> None:
    d = Driver("lpm")
    d.add(ids=[1] * 50, namespace=b"a")
    d.add(ids=[1] * 50, namespace=b"b")
    d.queue.order.published(Request(Run(9, array("i", [1] * 50).tobytes(), namespace=b"b"), max_total=60))
    assert d.starts() == [1, 0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_priority_and_deadline_precede_the_schedule(schedule: Schedule) -> None:
    d = Driver(schedule)
    d.add(0, ids=[1] * 40, cached=39)
    d.add(1, deadline=200.0)
    d.add(2, priority=1)
    d.add(3, deadline=100.0)
    d.add(4, priority=-1)
    d.add(5, priority=1, deadline=5.0)
    assert d.starts() == [5, 2, 3, 1, 0, 4]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_fourth_start_is_the_longest_waiting_request(schedule: Schedule) -> None:
    d = Driver(schedule)
    d.add(50, priority=-1)
    d.queue.start_waits(0.0)
    for k in range(20):
        d.add(k)
    now = queue.PATIENCE + 1
    assert d.starts(now).index(0) == queue.AGED_TURN - 1
    assert d.starts() == []


@pytest.mark.parametrize("has_ended", [True, False])
def test_request_that_is_set_aside_does_not_stop_ageing(has_ended: bool) -> None:
    d = Driver("dfs")
    parked, old = d.add(98, priority=-1), d.add(99, priority=-1)
    d.queue.start_waits(0.0)
    d.queue.set_aside(parked)
    if has_ended:
        d.queue.remove(parked)
    for k in range(20):
        d.add(k)
    assert d.starts(queue.PATIENCE + 1).index(old.rid) == queue.AGED_TURN - 1


def test_schedule_holds_if_all_requests_have_waited_long() -> None:
    """The next request of an old program does not queue behind requests of others that have waited longer."""
    d = Driver("dfs")
    for k in range(1, 60):
        d.add(k)
    d.queue.start_waits(0.0)
    assert d.starts(20.0, serve=1, least=30) == list(range(29))
    d.add(0)
    assert d.starts(25.0, serve=1)[0] == 59


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_requests_are_not_aged_before_the_patience_limit(schedule: Schedule) -> None:
    d = Driver(schedule)
    d.add(50, priority=-1)
    for k in range(20):
        d.add(k)
    assert d.starts(queue.PATIENCE)[-1] == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", in_short([0, 1], range(5)))
def test_random_operations_leave_no_request_behind(schedule: Schedule, seed: int) -> None:
    rng = random.Random(seed)
    d = Driver(schedule)
    waiting: dict[int, Request] = {}
    parked: list[Request] = []
    now = 0.0
    for _ in range(3000):
        now += rng.random()
        d.queue.start_waits(now)
        match rng.randrange(7):
            case 0 | 1:
                fields: dict[str, Any] = {"client": rng.randrange(3), "priority": rng.choice([0, 0, 0, 1])}
                fields["deadline"] = rng.choice([0.0, 0.0, 8.0, 9.0])
                ids = [rng.randrange(3) for _ in range(rng.randrange(1, 60))]
                new = d.add(rng.randrange(8), rng.randrange(4), ids=ids, cached=rng.randrange(60), **fields)
                waiting[new.rid] = new
            case 2 if waiting:
                first = d.queue.first(now)
                if d.queue.order.is_still_first(first, rng.randrange(60)):
                    d.queue.start(waiting.pop(first.rid), now)
                    first.program.n_served += rng.randrange(2 * queue.QUANTUM)
                    first.client.n_served += rng.randrange(2 * queue.QUANTUM)
                    d.queue.order.published(first)
                    d.queue.unregister(first)
            case 3 if waiting:
                removed = waiting.pop(rng.choice(list(waiting)))
                d.queue.remove(removed)
                d.queue.unregister(removed)
            case 4 if waiting:
                parked.append(waiting.pop(rng.choice(list(waiting))))
                d.queue.set_aside(parked[-1])
            case 5 if parked:
                returned = parked.pop()
                d.queue.add(returned)
                waiting[returned.rid] = returned
            case 6 if parked:
                ended = parked.pop()
                d.queue.remove(ended)
                d.queue.unregister(ended)
        assert {r.rid for r in d.queue} == set(waiting)
        assert len(d.queue) == len(waiting)
    for request in parked:
        d.queue.add(request)
    d.starts()
    order: Any = d.queue.order
    remaining = [getattr(order, name, ()) for name in ("_requests", "_priorities", "_sorted", "_n_cached")]
    assert not any(map(len, remaining))
    assert len(getattr(order, "_heap", ())) < 1000
    assert not d.queue._arrivals
