"""What an engine tells of its tree when it is asked: events for a router, numbers for a person."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec

from banyan.radix_cache.pagefile import prefix_digests
from banyan.runtime.protocol.wire import Ask

LENGTH, PAGE = 40, 4


def prompt(k: int) -> list[int]:
    return [(7 * k + i * i) % 50 for i in range(LENGTH)]


def answer(e: Any, what: Any, **fields: Any) -> Any:
    e.take(Ask(7, what, **fields))
    (told,) = e.answers
    e.answers.clear()
    assert told.ok, told.body
    return msgspec.json.decode(told.body)


def test_a_router_learns_who_has_which_prefix(fake: ModuleType) -> None:
    e = fake.engine(page=PAGE, n_pages=48)
    first = answer(e, "events")
    assert first["is_all"]
    assert first["events"] == []
    fake.drive(e, [fake.run(0, prompt(0))])
    said = answer(e, "events", since=first["next"])
    there = [digest for event in said["events"] for digest in event["digests"]]
    assert not said["is_all"]
    assert there[: LENGTH // PAGE] == [d.hex() for d in prefix_digests(b"", fake.int32(prompt(0)), 0, 4 * PAGE)[1:]]
    for k in range(1, 6):
        fake.drive(e, [fake.run(k, prompt(k))])
    later = answer(e, "events", since=said["next"])
    gone = {digest for event in later["events"] if event["kind"] == "removed" for digest in event["digests"]}
    assert gone >= set(there)
    assert answer(e, "events", since=later["next"])["events"] == []
    other = fake.engine(page=PAGE, n_pages=48)
    assert answer(other, "events", since=later["next"])["is_all"], "an engine that took over knows nothing of it"


def test_numbers_say_where_pages_are_and_why_they_went(fake: ModuleType) -> None:
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
