"""Buffers read by NIXL: whole, or not at all. Needs the extra `nixl`, and runs in `make test-long`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from transfer_reads import all_of

from banyan.runtime.engine.transfer import nixl
from banyan.runtime.engine.transfer.exchange import KVExchange
from banyan.runtime.engine.transfer.nixl import Nixl
from banyan.runtime.engine.transfer.transport import Buffer, TransferFailed
from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol.wire import EndPull, Export, Exported, Pull, Pulled
from waits import wait_until

MIB = 1 << 20
PEER = """
import os, sys
from banyan.runtime.engine.transfer.nixl import Nixl
from banyan.runtime.engine.transfer.transport import Buffer
buffer = Buffer(1 << 20)
print(Nixl(os.eventfd(0, os.EFD_NONBLOCK)).describe(buffer), flush=True)
sys.stdin.read()
"""


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    with pytest.raises(ConfigError, match=r"kv_transfer is nixl, which is not installed .*banyan\[nixl\]"):
        Nixl(0)


class FailingAgent:
    """A NIXL that cannot register memory, or cannot describe it."""

    def __init__(self, failing: str) -> None:
        self.failing, self.n_registered = failing, 0

    def add_remote_agent(self, metadata: bytes) -> str:
        return "peer"

    def register_memory(self, *_: Any) -> str:
        self._call("register_memory")
        self.n_registered += 1
        return "memory"

    def get_partial_agent_metadata(self, *_: Any, **__: Any) -> bytes:
        self._call("get_partial_agent_metadata")
        return b""

    def deregister_memory(self, memory: str) -> None:
        self.n_registered -= 1

    def _call(self, name: str) -> None:
        if name == self.failing:
            raise type("nixlBackendError", (Exception,), {})("ibv_reg_mr failed")


@pytest.mark.parametrize("failing", ["register_memory", "get_partial_agent_metadata"])
def test_memory_that_cannot_be_registered_fails_one_transfer(
    monkeypatch: pytest.MonkeyPatch, buffer: Buffer, failing: str
) -> None:
    agent = FailingAgent(failing)
    module = SimpleNamespace(nixl_agent=lambda *_: agent, nixl_agent_config=dict, nixl_thread_sync_t=MagicMock())
    monkeypatch.setitem(sys.modules, "nixl", ModuleType("nixl"))
    monkeypatch.setitem(sys.modules, "nixl._api", module)
    transport = Nixl(0)
    for _ in range(3):
        with pytest.raises(TransferFailed, match="ibv_reg_mr failed"):
            transport.read(f"nixl eA== 1 {buffer.name.hex()} 1", MIB)
        assert transport._targets.n_used == 0
        assert transport._targets.n_bytes == MIB, "the same memory again"
        with pytest.raises(TransferFailed, match="ibv_reg_mr failed"):
            transport.describe(buffer)
        assert agent.n_registered == 0
    transport.close()
    assert agent.n_registered == 0


@pytest.fixture
def ends() -> Iterator[tuple[Nixl, Nixl]]:
    pytest.importorskip("nixl._api")
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    found = Nixl(wake), Nixl(wake)
    yield found
    for one in found:
        one.close()
        assert not one._targets.n_used
    os.close(wake)


@pytest.mark.long
def test_bytes_arrive_whole(ends: tuple[Nixl, Nixl], buffer: Buffer) -> None:
    place = ends[0].describe(buffer)
    for n in (1, MIB, 3 * MIB - 5):
        assert all_of(ends[1].read(place, n)) == bytes(buffer.memory[:n])
    second = Buffer(MIB)
    second.memory[:3] = b"two"
    assert all_of(ends[1].read(ends[0].describe(second), 3)) == b"two"
    second.close()
    assert ends[1].read("tcp 127.0.0.1:1 key 00 1", 3) is None


@pytest.mark.long
def test_buffer_with_other_content_fails(
    ends: tuple[Nixl, Nixl], buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ends[0].describe(buffer)
    buffer.reuse()
    with pytest.raises(TransferFailed, match="filled with other pages meanwhile"):
        all_of(ends[1].read(place, 100))

    fetch = nixl._NixlRead._fetch_first

    def fetch_while_it_changes(read: Any, n_bytes: int) -> None:
        fetch(read, n_bytes)
        buffer.reuse()

    monkeypatch.setattr(nixl._NixlRead, "_fetch_first", fetch_while_it_changes)
    with pytest.raises(TransferFailed, match="filled with other pages meanwhile"):
        all_of(ends[1].read(ends[0].describe(buffer), 100))


@pytest.mark.long
def test_peer_that_is_gone_fails(ends: tuple[Nixl, Nixl]) -> None:
    peer = subprocess.Popen([sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert peer.stdout is not None
    with peer:
        place = next(line for line in peer.stdout if line.startswith("nixl "))
        assert all_of(ends[1].read(place, 100)) == bytes(100)
        peer.kill()
        peer.wait()
        with pytest.raises(TransferFailed, match=r"gone|could not be read"):
            all_of(ends[1].read(place, 100))


@pytest.mark.long
def test_invalid_metadata_fails(ends: tuple[Nixl, Nixl]) -> None:
    with pytest.raises(TransferFailed, match="does not reach"):
        ends[1].read(f"nixl AAAA 1 {'00' * 16} 1", 100)


@pytest.mark.long
def test_prefix_is_pulled(fake: ModuleType) -> None:
    pytest.importorskip("nixl._api")
    prompt = [(7 * i) % 50 for i in range(100)]
    engines = [fake.engine(page=4, n_pages=64) for _ in range(2)]
    exchanges = [
        KVExchange(e.cache, e.model, e.scheduler, e.exchange.kv, host="127.0.0.1", transfer="nixl") for e in engines
    ]
    fake.drive(engines[0], [fake.run(0, prompt)], check=True)
    exchanges[0].take(Export(1, fake.run(99, prompt), seconds=60.0))
    (exported,) = exchanges[0].work(0.0)
    assert isinstance(exported, Exported)
    assert [place.partition(" ")[0] for place in exported.places] == ["memory", "nixl", "tcp"]
    exchanges[1].take(Pull(1, fake.int32(prompt[:96]), 0, exchanges[0].kv, exported.places[1:], seconds=60.0))
    reports: list[Any] = []
    wait_until(lambda: bool(reports.extend(exchanges[1].work(0.0)) or reports), "the report")
    assert isinstance(reports[0], Pulled)
    assert (reports[0].n_tokens, reports[0].why) == (96, "")
    for exchange in exchanges:
        exchange.take(EndPull(1))
        exchange.close()
    output = fake.drive(engines[1], [fake.run(0, prompt)], check=True)[0]
    assert output.ids == fake.greedy(prompt, 8)
    assert output.finish.n_cached == 96
