"""Fuzzed messages at real sockets: nothing crashes or leaks, their sender is cut off, and other clients work."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import psutil
import pytest
import zmq

from banyan.runtime import launch
from banyan.runtime.client import client
from banyan.runtime.engine import process
from banyan.runtime.protocol import ipc, wire
from banyan.runtime.server import worker
from waits import wait_until

OUTPUT = " ".join(map(str, range(30)))
Serve = Callable[..., launch.ServerProcess]
N_MESSAGES = [
    pytest.param(6000, marks=pytest.mark.timeout(300)),
    pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1200)]),
]


@pytest.fixture(scope="session")
def fuzz(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).with_name("fuzz.py"))


# ---- the server's socket -------------------------------------------------------------------------------------------


def run_program(c: client.Client, n: int) -> None:
    """Runs a valid program and checks its output."""
    program = c.program("good")
    program.submit([wire.Append(0, (f"{n} count",)), wire.Gen(0, 0, wire.Sampling(max_tokens=200))], last=True)
    assert program.future(0).result(60).samples[0].text == OUTPUT


def receive_all(socket: Any, ms: int) -> list[wire.ServerMessage]:
    """The messages until none arrives for `ms` milliseconds."""
    messages: list[wire.ServerMessage] = []
    while socket.poll(ms):
        messages.append(wire.decode_server(socket.recv()))
    return messages


def send_fuzzed_messages(server: launch.ServerProcess, make: Callable[[int], Any], n: int, per_peer: int = 50) -> None:
    """Sends n fuzzed messages from peers that connect and disconnect, while a valid client works."""
    context: Any = zmq.Context()
    good = client.connect(server.socket)
    try:
        for k in range(n // per_peer):
            fuzzer = make(k)
            socket, monitor = ipc.connect(context, server.socket)
            for i in range(per_peer):
                if k % 4 and not i % 3:
                    socket.send(wire.encode(wire.Hello(wire.VERSION)))  # the peer has probably been refused by now
                socket.send(fuzzer.message())
            if not k % 100:
                run_program(good, k)
            for message in receive_all(socket, 5):
                assert not (isinstance(message, wire.Failed) and "the server failed" in message.message), message
            socket.disable_monitor()
            for one in (socket, monitor):
                one.close(2000 if one is socket else 0)  # its messages are still to be sent
        assert_only_client_left(good)
        run_program(good, n)
    finally:
        good.close()
        context.destroy(linger=0)


def assert_only_client_left(c: client.Client) -> None:
    """Waits until `c` is the only client and no program is left."""

    def stats_if_alone() -> dict[str, Any]:
        stats: dict[str, Any] = c.ask("stats", timeout=60)["server"]
        return {} if stats["programs"] or stats["clients"] > 1 else stats

    stats = wait_until(stats_if_alone, "the end of all other clients", seen=lambda: c.ask("stats", timeout=60))
    assert stats["requests"] == 0
    assert stats["engine_starts"] == 1, "no client message kills an engine"
    assert c.ask("check", timeout=60) in ({}, {"running": 0, "engine": {"steps": 1}})


def resident_memory(server: launch.ServerProcess) -> float:
    """Resident memory of the server process in MiB."""
    return float(psutil.Process(server.pid).memory_info().rss) / 2**20


@pytest.mark.parametrize("n", N_MESSAGES)
def test_fuzzed_messages_at_the_server(serve: Serve, fuzz: ModuleType, n: int) -> None:
    server = serve(say={"count": OUTPUT})

    def make(seed: int) -> Any:
        return fuzz.Fuzzer(seed, get_args(wire.ClientMessage))

    send_fuzzed_messages(server, make, n // 2)
    before = resident_memory(server)
    send_fuzzed_messages(server, lambda seed: make(seed + n), n // 2)
    assert resident_memory(server) - before < 20, "the second half does not leak memory"
    assert server.is_alive


def test_peer_with_repeated_invalid_messages_is_ignored(serve: Serve) -> None:
    server = serve(say={"count": OUTPUT})
    context: Any = zmq.Context()
    good = client.connect(server.socket)
    try:
        socket, _ = ipc.connect(context, server.socket)
        for _ in range(2 * worker.MAX_REFUSALS):
            socket.send(b"\xff")
        socket.send(wire.encode(wire.Hello(wire.VERSION)))
        run_program(good, 0)
        replies = receive_all(socket, 500)
        assert [type(message) for message in replies] == [wire.Failed] * worker.MAX_REFUSALS
    finally:
        good.close()
        context.destroy(linger=0)


def test_engine_with_invalid_reports_is_replaced(serve: Serve) -> None:
    server = serve(say={"count": OUTPUT, "madness": "free"}, babble_on="madness", once=True, step_ms=1)
    with contextlib.closing(client.connect(server.socket)) as c:
        programs = [c.program(str(k)) for k in range(4)]
        for k, program in enumerate(programs):
            text = "madness" if k == 1 else f"{k} count"
            program.submit([wire.Append(0, (text,)), wire.Gen(0, 0, wire.Sampling(max_tokens=200))], last=True)
        texts = [program.future(0).result(60).samples[0].text for program in programs]
        assert texts == [OUTPUT, "free", OUTPUT, OUTPUT]
        assert c.ask("stats")["server"]["engine_starts"] == 2


# ---- the engine's socket -------------------------------------------------------------------------------------------


class EngineThread:
    """An engine on a thread, behind a real socket. Its model is tests/runtime/engine/fake.py."""

    def __init__(self, fake: ModuleType, tmp_path: Path) -> None:
        self.context: Any = zmq.Context()
        self.engine = fake.engine(n_pages=64, context=128, max_running=8)
        self.socket = ipc.pair(self.context, tmp_path / "e")
        self._alive, self._hold = os.pipe()
        self.link = process.ServerLink(self.context, ipc.address(tmp_path / "e"), self._alive)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert isinstance(self.receive(), wire.Ready)

    def _run(self) -> None:
        try:
            self.engine.run(self.link)
        except BaseException as e:
            self.error = e

    def receive(self) -> Any:
        assert self.socket.poll(30_000), self.error
        return wire.decode_report(self.socket.recv())

    def receive_until(self, kind: type[Any], **fields: Any) -> Any:
        """The next report of this type with these fields."""
        while True:
            report = self.receive()
            if isinstance(report, kind) and all(getattr(report, name) == value for name, value in fields.items()):
                return report

    def close(self) -> None:
        os.close(self._hold)
        self._thread.join(30)
        os.close(self._alive)
        self.link.close()
        self.context.destroy(linger=0)
        assert self.error is None


@pytest.fixture(scope="session")
def fake(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).parent / "engine" / "fake.py")


@pytest.mark.parametrize("n", N_MESSAGES)
def test_fuzzed_messages_at_the_engine(fake: ModuleType, fuzz: ModuleType, tmp_path: Path, n: int) -> None:
    loop = EngineThread(fake, tmp_path)
    try:
        kinds = (wire.Run, wire.Run, wire.Run, wire.Abort, wire.ProgramEnded, wire.Ask, wire.SetVocabulary, wire.Ping)
        fuzzer = fuzz.Fuzzer(1, kinds)
        for k in range(n // 500):
            for _ in range(500):
                loop.socket.send(fuzzer.message())
            for rid in range(8):
                loop.socket.send(wire.encode(wire.Abort(rid)))
            good = 1000 + k
            prompt = [5, 6, 7, k % 40]
            loop.socket.send(wire.encode(fake.run(good, prompt)))
            ids = b""
            while True:
                report = loop.receive()
                if isinstance(report, wire.Step):
                    at = 0
                    for rid, count in zip(
                        memoryview(report.rids).cast("q"), memoryview(report.counts).cast("i"), strict=True
                    ):
                        ids += report.ids[4 * at : 4 * (at + count)] if rid == good else b""
                        at += count
                    if any(finish.rid == good for finish in report.finished):
                        break
                assert not (isinstance(report, wire.Failed) and report.program == good), report
            assert memoryview(ids).cast("i").tolist() == fake.greedy(prompt, 8)
            loop.socket.send(wire.encode(wire.Ask(77_000 + k, "check")))
            answer = loop.receive_until(wire.Answer, id=77_000 + k)
            assert answer.ok, answer.body
        for rid in range(-5, 200):
            loop.socket.send(wire.encode(wire.Abort(rid)))
        loop.socket.send(wire.encode(wire.Ask(99_999, "flush")))
        loop.receive_until(wire.Answer, id=99_999)
    finally:
        loop.close()
    stats = loop.engine.cache.stats()._asdict()
    assert stats["n_free"] + stats["n_leased"] + stats["n_cached"] == 64
    loop.engine.scheduler.check()
