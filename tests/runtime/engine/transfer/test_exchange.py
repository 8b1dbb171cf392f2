"""KV that moves between two engines in this process: the outputs are those of the naive loop, and no page is lost."""

from __future__ import annotations

import errno
import os
import random
import select
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch

from banyan.radix_cache.check import check
from banyan.runtime.config import KVDtype
from banyan.runtime.engine.kv_pool import KVPool
from banyan.runtime.engine.transfer.exchange import KVExchange
from banyan.runtime.engine.transfer.transport import (
    Buffer,
    Buffers,
    SharedMemory,
    TransferFailed,
    TransferRead,
    Transport,
)
from banyan.runtime.protocol.wire import EndPull, Export, Exported, Hold, Ping, Pull, Pulled

PROMPT = [(7 * i) % 50 for i in range(100)]


class Pair:
    """Two engines, a clock for both, and the server's part of a pull."""

    def __init__(self, fake: ModuleType, host: str = "", **options: Any) -> None:
        self.fake, self.now, self.host = fake, 0.0, host
        self.engines = [fake.engine(**{"page": 4, "n_pages": 64} | options) for _ in range(2)]
        for e in self.engines:
            e.exchange = self.exchange_of(e)
        self.n_pulls = 0

    def exchange_of(self, e: Any) -> KVExchange:
        return KVExchange(e.cache, e.model, e.scheduler, e.exchange.kv, lambda: self.now, self.host)

    def run(self, k: int, ids: list[int] = PROMPT, rid: int = 0) -> int:
        """Engine k computes a prompt; returns how many of its tokens were cached."""
        output = self.fake.drive(self.engines[k], [self.fake.run(rid, ids)], check=True)[rid]
        assert output.ids == self.fake.greedy(ids, 8)
        return int(output.finish.n_cached)

    def work(self, k: int) -> list[Any]:
        return list(self.engines[k].exchange.work(self.now))

    def export(self, ids: list[int] = PROMPT, **fields: Any) -> Exported:
        """Let engine 0 export a prompt, and return its report."""
        self.n_pulls += 1
        e = self.engines[0]
        e.take(Export(self.n_pulls, self.fake.run(99, ids), **fields))
        for _ in range(100):
            if fields.get("compute"):
                assert not e.step().finished, "the server does not see requests that are ours"
            if reports := self.work(0):
                (report,) = reports
                assert isinstance(report, Exported)
                return report
        raise AssertionError("no report")

    def begin_pull(self, exported: Exported, ids: list[int] = PROMPT, first: int = 0, **fields: Any) -> Pull:
        cut = self.fake.int32(ids[: exported.n_tokens])
        pull = Pull(exported.pull, cut, first, self.engines[0].exchange.kv, exported.places)
        pull = msgspec.structs.replace(pull, **fields)
        self.engines[1].take(pull)
        return pull

    def pulled(self) -> Pulled:
        """Let engine 1 copy, and return its report."""
        for _ in range(100):
            if reports := self.work(1):
                (report,) = reports
                assert isinstance(report, Pulled)
                return report
        raise AssertionError("no report")

    def end(self) -> None:
        for e in self.engines:
            e.take(EndPull(self.n_pulls))

    def check(self) -> None:
        """Check that the pull left nothing behind."""
        for e in self.engines:
            e.scheduler.check()
            assert not e.cache.leases
            assert not e.exchange.is_active
            assert not e.exchange.buffers.n_used


@pytest.fixture
def pair(fake: ModuleType) -> Iterator[Pair]:
    pair = Pair(fake)
    yield pair
    pair.check()
    for e in pair.engines:
        e.exchange.close()
        assert not e.exchange.buffers.n_bytes


def test_pulled_prefix_is_found_like_a_computed_one(pair: Pair) -> None:
    pair.run(0)
    exported = pair.export()
    assert (exported.n_tokens, exported.why) == (96, "")
    pair.begin_pull(exported)
    assert pair.pulled().n_tokens == 96
    pair.end()
    assert pair.engines[1].cache.stats().n_query_tokens == 0, "a pull is no query"
    assert pair.run(1) == 96


def test_memory_is_freed_when_it_is_not_used(pair: Pair) -> None:
    pair.run(0)
    pair.begin_pull(pair.export())
    pair.pulled()
    pair.end()
    for seconds, is_kept in ((59.0, True), (2.0, False)):
        pair.now += seconds
        for e in pair.engines:
            e.take(Ping())
        assert bool(pair.engines[0].exchange.buffers.n_bytes) == is_kept
        assert bool(pair.engines[1].exchange._memory._maps) == is_kept


def test_only_missing_pages_are_pulled(pair: Pair) -> None:
    pair.run(0)
    pair.run(1, PROMPT[:50])
    exported = pair.export(first=40)
    pair.begin_pull(exported, first=40)
    assert len(pair.engines[1].exchange._importing[1].pages) == 12, "48 of 50 tokens are in whole pages"
    assert pair.pulled().n_tokens == 96
    pair.end()
    assert pair.run(1) == 96


def test_source_computes_what_it_exports(pair: Pair) -> None:
    exported = pair.export(compute=True)
    assert exported.n_tokens == 96
    pair.begin_pull(exported)
    pair.pulled()
    pair.end()
    assert pair.run(1) == 96
    assert pair.engines[0].scheduler.stats()["computed_tokens"] == 96


def test_pull_that_ends_while_the_source_computes_stops_it(pair: Pair) -> None:
    pair.engines[0].take(Export(1, pair.fake.run(99, PROMPT), compute=True))
    pair.engines[0].take(EndPull(1))
    assert pair.engines[0].scheduler.is_idle
    assert pair.work(0) == []
    pair.engines[0].step()


def test_prompt_that_the_source_cannot_compute_is_no_export(pair: Pair) -> None:
    assert "vocabulary" in pair.export([1, 2, 3, 4, 99, 6, 7, 8, 9], compute=True).why


def test_prompt_of_an_adapter_that_is_not_loaded_is_not_computed(pair: Pair) -> None:
    run = pair.fake.run(99, PROMPT, adapter=b"poems")
    pair.engines[0].take(Export(1, run, compute=True))
    assert pair.engines[0].scheduler.is_idle
    assert pair.work(0) == [Exported(1, why="its adapter is not loaded here")]


@pytest.mark.parametrize("fields", [{"ids": [9] * 40}, {"first": 96}])
def test_nothing_to_export_is_said_at_once(pair: Pair, fields: dict[str, Any]) -> None:
    pair.run(0)
    exported = pair.export(**fields)
    assert exported.n_tokens == 0
    assert "tokens are stored" in exported.why


def test_pages_under_a_lease_are_not_evicted(pair: Pair) -> None:
    pair.run(0)
    pair.engines[0].take(Export(1, pair.fake.run(99, PROMPT)))
    pair.n_pulls = 1
    for k in range(4):  # they need more pages than are left
        pair.run(0, [(11 * i + k + 1) % 50 for i in range(100)], rid=k + 1)
    (exported,) = pair.work(0)
    pair.run(0, [(13 * i + 5) % 50 for i in range(200)], rid=9)
    pair.begin_pull(exported)
    assert pair.pulled().n_tokens == 96
    pair.end()
    assert pair.run(1) == 96


def test_buffer_that_is_used_again_is_not_taken_over(pair: Pair) -> None:
    pair.run(0)
    pair.run(0, other := [(3 * i + 1) % 50 for i in range(100)], rid=1)
    first = pair.export()
    pair.engines[0].take(EndPull(1))
    second = pair.export(other)
    pair.begin_pull(first)
    assert "other pages" in pair.pulled().why
    pair.engines[1].take(EndPull(1))
    assert pair.run(1) == 0
    assert second.places != first.places
    pair.end()


def test_buffer_that_changes_while_it_is_read_is_not_taken_over(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.run(0)
    pair.begin_pull(pair.export())
    load = pair.engines[1].model.load

    def late(*arguments: Any) -> None:
        load(*arguments)
        pair.engines[0].take(EndPull(1))

    monkeypatch.setattr(pair.engines[1].model, "load", late)
    assert "other pages" in pair.pulled().why
    pair.end()
    assert pair.run(1) == 0


@pytest.mark.parametrize("field", ["weights", "dtype", "kv_dtype", "page", "layout", "context"])
def test_pages_of_another_format_are_refused_by_name(pair: Pair, field: str) -> None:
    pair.run(0)
    kv = pair.engines[0].exchange.kv
    assert kv is not None
    old = getattr(kv, field)
    other = b"others" if isinstance(old, bytes) else old * 2 if isinstance(old, int) else "others"
    pair.begin_pull(pair.export(), kv=msgspec.structs.replace(kv, **{field: other}))
    assert pair.pulled().why == f"the engines differ in {field}"
    pair.end()
    assert pair.run(1) == 0


def test_prefix_that_the_puller_has_lost_is_not_continued(pair: Pair) -> None:
    pair.run(0)
    pair.begin_pull(pair.export(first=40), first=40)
    why = pair.pulled().why
    assert why == "the pulled pages begin at token 40, but this engine has only the first 0 tokens"
    pair.end()


def test_places_that_nobody_can_read_fail(pair: Pair) -> None:
    pair.run(0)
    exported = pair.export()
    host = SharedMemory()._host
    for places, why in (
        (("tcp://nowhere",), "no transport"),
        ((f"memory {host} 999999999 3 {'00' * 16} 1",), "cannot be read"),
        (("memory another-host 1 3 00 1",), "no transport"),
    ):
        pair.begin_pull(exported, places=places)
        assert why in pair.pulled().why
        pair.engines[1].take(EndPull(1))
    pair.end()


def test_both_sides_give_up_in_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.run(0)
    exported = pair.export()
    pair.begin_pull(exported)
    pair.engines[1].exchange._importing[1].read = never = NeverRead()
    pair.now = 9.0
    assert pair.work(1) == []
    pair.now = 11.0
    assert pair.work(1) == [Pulled(1, why="it took too long")]
    assert never.is_closed
    assert pair.work(0) == [Exported(1, why="it took too long")]


class NeverRead:
    is_closed = False

    def poll(self) -> None:
        return None

    def confirm(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def test_puller_without_pages_gives_up(fake: ModuleType) -> None:
    pair = Pair(fake, n_pages=26, context=100)
    pair.run(0, PROMPT[:90])
    busy = pair.engines[1]
    lease = busy.cache.open(fake.int32([1] * 20))
    assert lease.grow(20)
    pair.begin_pull(pair.export(PROMPT[:90]))
    assert pair.pulled().why == "no pages are free"
    lease.close()
    pair.end()
    pair.check()


def test_pages_come_from_host_memory_and_evicted_ones_go_there(fake: ModuleType) -> None:
    pair = Pair(fake, n_pages=32, n_host=128)
    pair.run(0)
    pair.run(1, other := [(3 * i + 1) % 50 for i in range(100)])
    pair.run(0, other, rid=1)  # the first prompt is in host memory now
    assert pair.engines[0].cache.stats().n_moved_out
    pair.begin_pull(pair.export())
    assert pair.pulled().n_tokens == 96
    pair.end()
    assert pair.run(1) == 96
    assert pair.run(1, other, rid=1) > 90
    pair.check()


def test_prefix_larger_than_the_buffers_is_pulled_in_part(pair: Pair) -> None:
    pair.run(0)
    exchange = pair.engines[0].exchange
    exchange.buffers = Buffers(lambda: pair.now, limit=10 * exchange._page_bytes + 1)
    exported = pair.export()
    assert exported.n_tokens == 40
    pair.begin_pull(exported)
    assert pair.pulled().n_tokens == 40
    pair.end()
    assert pair.run(1) == 40


def test_withdrawn_pages_end_both_sides(pair: Pair) -> None:
    pair.run(0)
    pair.engines[0].take(Export(1, pair.fake.run(99, PROMPT)))
    pair.n_pulls = 1
    lease = pair.engines[0].exchange._exporting[1].lease
    lease.close()
    assert "lost its pages" in pair.work(0)[0].why
    exported = pair.export()
    pair.begin_pull(exported)
    pair.engines[1].exchange._importing[2].lease.close()
    assert "withdrawn" in pair.pulled().why
    pair.end()


def test_pages_come_over_the_network(fake: ModuleType) -> None:
    pair = Pair(fake, host="127.0.0.1")
    pair.run(0)
    exported = pair.export()
    assert [place.split(" ")[0] for place in exported.places] == ["memory", "tcp"]
    pair.begin_pull(exported, places=exported.places[1:])
    wake = pair.engines[1].exchange.wake
    assert wake is not None
    assert select.select([wake], [], [], 20.0)[0]
    assert pair.pulled().n_tokens == 96
    pair.end()
    assert pair.run(1) == 96
    pair.check()
    for e in pair.engines:
        e.exchange.close()


@pytest.mark.parametrize("is_computed", [False, True])
@pytest.mark.parametrize("call", ["os.memfd_create", "mmap.mmap"])
def test_export_without_a_buffer_fails_alone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, call: str, is_computed: bool
) -> None:
    if not is_computed:
        pair.run(0)
    descriptors = os.listdir("/proc/self/fd")
    with monkeypatch.context() as without:
        without.setattr(call, _too_many_open_files)
        assert "Too many open files" in pair.export(compute=is_computed).why
    assert os.listdir("/proc/self/fd") == descriptors
    assert pair.export().n_tokens == 96
    pair.end()


def _too_many_open_files(*_: Any) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("threading.Thread.start", RuntimeError("can't start new thread")),
        ("banyan.runtime.engine.transfer.chunks.bytearray", MemoryError()),
    ],
)
def test_pull_without_a_thread_or_memory_fails_alone(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    def lack(*_: Any) -> None:
        raise error

    pair = Pair(fake, host="127.0.0.1")
    pair.run(0)
    exported = pair.export()
    with monkeypatch.context() as without:
        without.setattr(call, lack, raising=False)
        pair.begin_pull(exported, places=exported.places[1:])
    assert repr(error) in pair.pulled().why
    pair.end()
    pair.check()
    for e in pair.engines:
        e.exchange.close()


class NoTransport(Transport):
    """Can neither describe a buffer nor read one."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def describe(self, buffer: Buffer) -> str:
        raise TransferFailed("no memory can be registered")

    def read(self, place: str, n_bytes: int) -> TransferRead | None:
        raise self._error

    def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [TransferFailed("no memory can be registered"), OSError("no descriptor")], ids=repr)
def test_transport_that_fails_leaves_the_pull_to_the_others(pair: Pair, error: Exception) -> None:
    failing = NoTransport(error)
    source, puller = (e.exchange for e in pair.engines)
    source._transports = (failing, *source._transports)
    pair.run(0)
    exported = pair.export()
    assert len(exported.places) == 1
    others, puller._transports = puller._transports, (failing,)
    pair.begin_pull(exported)
    assert str(error) in pair.pulled().why
    puller._transports = (failing, *others)
    pair.begin_pull(exported)
    assert pair.pulled().n_tokens == 96
    pair.end()


class OneTurn:
    """A link that ends after one turn of the loop."""

    n_drained = 0

    def drain(self, block: bool) -> tuple[()]:
        self.n_drained += 1
        if self.n_drained > 1:
            raise EOFError
        return ()

    def watch(self, fd: int) -> None: ...

    def send(self, reports: Any) -> None: ...


def test_pull_that_ends_early_does_not_keep_the_engine_awake(fake: ModuleType) -> None:
    pair = Pair(fake, host="127.0.0.1")
    pair.run(0)
    exported = pair.export()
    e = pair.engines[1]
    pair.begin_pull(exported, places=exported.places[1:])
    read = e.exchange._importing[1].read
    pair.end()
    read.thread.join()
    assert select.select([e.exchange.wake], [], [], 0)[0], "the read has ended"
    e.run(OneTurn())
    assert not select.select([e.exchange.wake], [], [], 0)[0]
    pair.check()
    for e in pair.engines:
        e.exchange.close()


@pytest.mark.parametrize("kv_dtype", ["int8", "k8v4"])
def test_scales_move_with_their_numbers(fake: ModuleType, kv_dtype: KVDtype) -> None:
    """A page's numbers and scales are separate tensors; all of them arrive, and other pages stay."""
    spec = msgspec.structs.replace(fake.FakeModel().spec, head_dim=16, n_layers=3)
    first, second = (KVPool(spec, 8, 4, "cpu", kv_dtype=kv_dtype) for _ in range(2))
    for pool in (first, second):
        for part in pool._pools:
            part.view(-1).copy_((torch.arange(part.numel()) % 97).to(part.dtype))
    memory = torch.zeros(first.export_bytes(3), dtype=torch.uint8)
    first.export([5, 2, 7], memory, 0, 3)
    second.load([1, 4], memory, 0, 3)
    second.load([0], memory, 2, 3)
    for mine, theirs in zip(second._pools, first._pools, strict=True):
        assert mine[[1, 4, 0]].equal(theirs[[5, 2, 7]])
        assert mine[3].equal(theirs[3]), "the others stay"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))])
def test_any_order_of_events_leaks_nothing(fake: ModuleType, seed: int) -> None:
    """Pulls of many prompts between small caches, ended, delayed and mixed with requests, in any order."""
    rng = random.Random(seed)
    pair = Pair(fake, n_pages=40, n_host=rng.choice([0, 60]))
    prompts = [[(k * i + k) % 50 for i in range(rng.randrange(20, 120))] for k in range(1, 9)]
    open_pulls: dict[int, tuple[list[int], Exported | None]] = {}
    n_pulled = 0
    for number in range(1, 200):
        match rng.randrange(8):
            case 0 | 1:
                pair.run(rng.randrange(2), rng.choice(prompts), rid=number)
            case 2:
                ids = rng.choice(prompts)
                open_pulls[number] = ids, None
                pair.engines[0].take(Export(number, fake.run(99, ids), compute=rng.random() < 0.3, seconds=5.0))
            case 3 | 6 if open_pulls:
                which = rng.choice(list(open_pulls))
                ids, exported = open_pulls[which]
                if exported is not None and exported.n_tokens:
                    pair.begin_pull(exported, ids)
            case 4 if open_pulls:
                which = rng.choice(list(open_pulls))
                del open_pulls[which]
                for e in rng.sample(pair.engines, rng.choice([1, 2])):
                    e.take(EndPull(which))
            case 5:
                pair.now += rng.choice([0.1, 2.0])
            case 7:
                e = rng.choice(pair.engines)
                e.take(Hold(number, fake.int32(rng.choice(prompts)), steps=10.0, prefetch=True))
                e.step()
        pair.engines[0].step()
        importing = set(pair.engines[1].exchange._importing)
        for k in (0, 1):
            for report in pair.work(k):
                if isinstance(report, Exported) and report.pull in open_pulls:
                    open_pulls[report.pull] = open_pulls[report.pull][0], report
                n_pulled += isinstance(report, Pulled) and report.pull in importing and report.n_tokens > 0
            check(pair.engines[k].cache)
    pair.now += 20.0
    while not pair.engines[0].scheduler.is_idle:
        pair.engines[0].step()
    for k in (0, 1):
        pair.work(k)
        pair.engines[k].step()
    assert n_pulled > 0
    pair.check()
    for k, ids in enumerate(prompts):
        pair.run(1, ids, rid=1000 + k)
