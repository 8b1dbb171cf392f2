"""What outlives a message, a program or a client is bounded in bytes, whatever its keys are. See docs/security.md."""

from __future__ import annotations

import ctypes
import gc
import os
import tracemalloc
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import zmq

from banyan.radix_cache.cache import Cache
from banyan.runtime import config
from banyan.runtime.engine.scheduling import kv_hints as received_hints
from banyan.runtime.engine.scheduling import queue
from banyan.runtime.engine.scheduling.output_lengths import OutputLengths
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation import quotes
from banyan.runtime.engine.speculation.tree import MAX_PENDING, MIN_TOKENS, TEXT_BYTES, TreeDrafter
from banyan.runtime.errors import ProgramError
from banyan.runtime.malloc import malloc_trim
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link import kv_hints as sent_hints
from banyan.runtime.server.engine_link.link import EngineLink
from banyan.runtime.server.policy import run_limits
from banyan.runtime.server.timers import Timers

KIB = 1 << 10


@pytest.fixture
def kept() -> Iterator[Callable[[], int]]:
    """`kept()`: bytes allocated since the test began, and not freed."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]

    def measure() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    yield measure
    tracemalloc.stop()


class FakeProgram:
    """The part of a RunningProgram that limits and traces use."""

    def __init__(self, client: bytes, serial: int, name: str = "") -> None:
        self.client, self.serial, self.name, self.started = client, serial, name, datetime.now()


def ids(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def request(rid: int, tokens: bytes, n_cached: int = 0, **fields: Any) -> Request:
    r = Request(wire.Run(rid, tokens, wire.Sampling(max_tokens=1), **fields), 1 << 30)
    r.n_cached = n_cached
    return r


# ---- server --------------------------------------------------------------------------------------------------------


def test_memory_that_malloc_holds_free_is_given_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("not glibc")
    before = resident()
    texts = [bytearray(b"x" * 10_000) for _ in range(4000)]
    del texts[1::2], texts[1::2], texts[1::2]  # free memory between what lives
    n = resident() - before
    malloc_trim()
    assert resident() - before < 0.5 * n
    assert len(texts) == 500


def test_names_of_programs_and_tools(kept: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_hints, "MAX_NAMES", 16)
    monkeypatch.setattr(sent_hints, "MAX_NAMESPACES", 4)
    sender = sent_hints.KVHintSender(clock=lambda: 0.0)
    for serial in range(400):
        namespace = b"%d" % (serial // 60)
        sender.begin(serial, f"{serial}" + 100 * KIB * "x", namespace)
        run = wire.Run(serial, ids(1, 2), wire.Sampling(max_tokens=1), order=(serial, 0), namespace=namespace)
        for tools in ((), (f"tool {serial}" + 100 * KIB * "y",)):
            sender.started(run)
            sender.calls(serial, 0, tools)
            sender.ended(run, bytearray())
            deque(sender.settle(), 0)
        deque(sender.end(serial), 0)
    assert sum(map(len, sender._estimates.values())) == 64
    assert kept() < 512 * KIB


def test_estimates_of_a_namespace_are_its_own() -> None:
    now = [0.0]
    sender = sent_hints.KVHintSender(clock=lambda: now[0])
    for serial, namespace in enumerate((b"ann", b"bob")):
        sender.begin(serial, "chat", namespace)
        run = wire.Run(serial, ids(1, 2), wire.Sampling(max_tokens=1), order=(serial, 0), namespace=namespace)
        for _ in range(4):
            sender.started(run)
            sender.ended(run, bytearray())
            deque(sender.settle(), 0)
            now[0] += 100.0 if namespace == b"ann" else 0.5
    seconds = [estimates["program", "chat"].seconds for estimates in sender._estimates.values()]
    assert seconds[0] > 50
    assert seconds[1] < 1


def test_budgets_of_batches(kept: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_limits, "MAX_SHARED", 16)
    limiter = run_limits.Limiter(Timers(), end=lambda *_: None, stop=lambda *_: None)

    def run_batch(client: bytes, batch: int) -> None:
        program: Any = FakeProgram(client, batch)
        limiter.begin(program, wire.ProgramLimits(budgets=(wire.TokenLimit(5, batch, "batch"),)))
        limiter.forget(program)

    run_batch(b"other", 1)
    for batch in range(4000):
        run_batch(b"me", batch)
    assert kept() < 256 * KIB
    assert set(limiter._shared) == {b"me", b"other"}, "a client does not push out another's budgets"
    limiter.forget_client(b"me")
    limiter.forget_client(b"other")
    assert not limiter._shared


def test_commands_before_an_engine_is_ready(kept: Callable[[], int], tmp_path: Path) -> None:
    context: Any = zmq.Context()
    command = ("true",)  # an engine that ends without a word
    tmp_path.chmod(0o700)
    with closing(EngineLink(context, config.make(), tmp_path / "s", command)) as link:
        prompt = bytes(100 * KIB)
        for rid in range(1000):
            link.send(wire.Run(rid, prompt, wire.Sampling()))
            link.send(wire.Hold(rid, prompt))
            link.send(wire.EvictFirst(prompt, 0))
            link.send(wire.Release(rid))
            link.send(wire.Abort(rid))
            link.send(wire.ProgramEnded(0, rid))
        link.send(wire.Run(7, prompt, wire.Sampling()))
        link.send(wire.Ask(7, "stats"))
        assert set(link._queued) == {("run", 7), ("ask", 7)}
    assert kept() < 512 * KIB
    context.destroy(linger=0)


def test_texts_in_traces(kept: Callable[[], int]) -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    from banyan.runtime.server.telemetry.traces import Traces

    class Stuck(export.SpanExporter):  # type: ignore[misc, name-defined]
        def export(self, spans: Any) -> Any:
            return export.SpanExportResult.FAILURE

    traces = Traces(Stuck(), "m")
    for serial in range(100):
        program: Any = FakeProgram(b"me", serial, f"{serial}" * 50 * KIB)
        op = wire.Gen(0, 0, name="x" * 50 * KIB, line="y" * 50 * KIB)
        traces.generated(program, op, ProgramError("z" * 50 * KIB))
        traces.program_ended(program, ProgramError("z" * 50 * KIB))
    assert kept() < 4096 * KIB
    traces.close()


# ---- engine --------------------------------------------------------------------------------------------------------


def test_pins_in_the_engine(kept: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_hints, "MAX_BYTES", 64 * KIB)
    cache = Cache(256, 4)
    receiver = received_hints.KVHintReceiver(cache)

    def pin(number: int, tokens: bytes, namespace: bytes) -> None:
        receiver.take(wire.Hold(number, tokens, seconds=1e9, namespace=namespace), 0.0)

    prompt = ids(*range(400))
    for namespace in (b"me", b"other"):
        lease = cache.open(prompt, namespace)
        lease.grow(400)
        lease.publish(prompt)
        lease.close()
    pin(1, prompt, b"other")
    for number in range(2, 2000):
        pin(number, bytes(bytearray(prompt)), b"me")
    assert sum(receiver._n_bytes.values()) <= 64 * KIB
    assert 1 in receiver._hints, "a namespace does not push out another's hints"
    assert 1999 in receiver._hints
    assert kept() < 512 * KIB
    for number in range(2000):
        receiver.take(wire.Release(number), 0.0)
    assert not receiver._n_bytes


def test_texts_of_the_tree_drafter(kept: Callable[[], int]) -> None:
    drafter = TreeDrafter(1 << 12)
    before = kept()
    for rid in range(4000):
        drafter.end(request(rid, ids(7)))
    assert len(drafter._texts) <= (1 << 12) // MIN_TOKENS
    assert len(drafter._pieces) <= MAX_PENDING
    assert kept() - before < 2048 * KIB
    now, most = drafter.kept()["draft_texts"]
    assert len(drafter._texts) * TEXT_BYTES < now <= most
    # The uncached part of a long prompt is short; the queue must not keep the rest.
    long = bytes(64 * KIB)
    for rid in range(4000, 4400):
        drafter.end(request(rid, long, n_cached=16 * KIB - 1))
    assert kept() - before < 2048 * KIB


def test_rules_of_quotes(kept: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotes, "N_KEYS", 32)
    index = quotes.QuoteIndex()
    for text in range(200):
        prompt = [100 * text + i for i in range(40)]
        tokens = array("i", [*prompt, 50_000 + text, 2, 3, *prompt[20:25], 4, 5])
        index.learn(tokens, 40, b"namespace %d" % (text % 7))
    assert len(index._rules) == 32
    now, most = index.kept()
    assert 0 < now <= most
    assert kept() < 512 * KIB


def test_lengths_of_outputs(kept: Callable[[], int]) -> None:
    lengths = OutputLengths()
    for bits in range(63):
        for n in range(20):
            lengths.note((1 << bits) + n, 1 << bits)
    assert kept() < 1024 * KIB


def test_accounts_of_programs(kept: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "N_KNOWN", 64)
    waiting = queue.Queue("dfs", lambda r: 0)
    for serial in range(3000):
        r = request(serial, ids(1), order=(serial, 0), client=serial)
        waiting.register(r, serial)
        waiting.unregister(r)
    assert len(waiting._programs) <= 64
    assert len(waiting._absent) <= 64
    assert not waiting._clients
    assert kept() < 256 * KIB
