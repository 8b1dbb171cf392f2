"""The engine's answers about its cache: events for a router, and statistics."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec
import pytest

from banyan.radix_cache.digests import prefix_digests
from banyan.runtime.protocol.wire import Answer, Ask, Listen, Step

LENGTH, PAGE = 40, 4


def prompt(k: int) -> list[int]:
    return [(7 * k + i * i) % 50 for i in range(LENGTH)]


def answer(e: Any, what: Any, **fields: Any) -> Any:
    e.take(Ask(7, what, **fields))
    (reply,) = e.answers
    e.answers.clear()
    assert reply.ok, reply.body
    return msgspec.json.decode(reply.body)


def test_events_report_cached_and_removed_prefixes(fake: ModuleType) -> None:
    e = fake.engine(page=PAGE, n_pages=48)
    first = answer(e, "events")
    assert first["is_all"]
    assert first["events"] == []
    fake.drive(e, [fake.run(0, prompt(0))])
    update = answer(e, "events", since=first["next"])
    cached = [digest for event in update["events"] for digest in event["digests"]]
    assert not update["is_all"]
    assert cached[: LENGTH // PAGE] == [d.hex() for d in prefix_digests(b"", fake.int32(prompt(0)), 0, 4 * PAGE)[1:]]
    for k in range(1, 6):
        fake.drive(e, [fake.run(k, prompt(k))])
    later = answer(e, "events", since=update["next"])
    removed = {digest for event in later["events"] if event["kind"] == "removed" for digest in event["digests"]}
    assert removed >= set(cached)
    assert answer(e, "events", since=later["next"])["events"] == []
    other = fake.engine(page=PAGE, n_pages=48)
    assert answer(other, "events", since=later["next"])["is_all"], "numbers are per engine"


def test_a_listening_server_gets_events_with_the_report_of_a_step(fake: ModuleType) -> None:
    e = fake.engine(page=PAGE, n_pages=48)
    fake.drive(e, [fake.run(0, prompt(0))])
    assert e.reports(Step()) == [], "nobody listens"
    e.take(Listen())
    (all_there,) = e.reports(Step())
    cached = b"".join(event.digests for event in all_there.events)
    assert all_there.is_all
    assert cached[: 16 * LENGTH // PAGE] == b"".join(prefix_digests(b"", fake.int32(prompt(0)), 0, 4 * PAGE)[1:])
    assert e.reports(Step()) == [], "nothing has changed"
    for k in range(1, 6):
        fake.drive(e, [fake.run(k, prompt(k))])
    (later,) = e.reports(Step())
    assert not later.is_all
    assert {event.is_removed for event in later.events} == {True, False}
    answer(e, "flush")
    (flushed,) = e.reports(Step())
    assert {event.is_removed for event in flushed.events} == {True}


def test_stats_report_page_states_and_eviction_reasons(fake: ModuleType) -> None:
    e = fake.engine(page=PAGE, n_pages=48, n_host=30)
    for k in (*range(6), 0, 5):
        fake.drive(e, [fake.run(k, prompt(k), order=(k % 3, 0))])
    stats = answer(e, "stats")["cache"]
    assert stats["n_free"] + stats["n_leased"] + stats["n_cached"] + stats["n_quarantined"] == stats["n_pages"] == 48
    assert stats["n_query_tokens"] == 8 * LENGTH
    assert stats["n_hit_tokens"] >= LENGTH - 1
    assert 0 < stats["n_host_hit_tokens"] <= stats["n_hit_tokens"]
    assert sum(stats["evicted"].values()) == stats["n_evicted_pages"] > 0
    assert stats["n_programs"] == 3
    assert 0 < stats["program_hit_rate"] < 1
    assert stats["n_empty_slots"] == PAGE * stats["n_cached"] - e.cache.tree.n_tokens
    assert stats["n_host_cached"] > 0


def test_questions_that_walk_a_large_tree_take_a_small_part_of_the_time(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    e, now, walks = fake.engine(), [0.0], list[Ask]()
    e.clock = lambda: now[0]

    def walk(ask: Ask) -> Answer:
        walks.append(ask)
        now[0] += 0.2
        return Answer(ask.id, True, b"{}")

    monkeypatch.setattr(e, "answer", walk)
    for n in range(100):
        e.take(Ask(n, "tree", n))
        now[0] += 0.1
    assert [answer.id for answer in e.answers] == list(range(100))
    assert len(walks) == 4, "one in 3 s"
