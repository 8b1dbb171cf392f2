"""The engine process: it reports Ready first, serves requests, and exits in bounded time."""

from __future__ import annotations

import logging
import os
import signal
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from banyan.runtime import config as configs
from banyan.runtime import launch
from banyan.runtime.engine import process
from banyan.runtime.engine.hardware import n_cores
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.decoders import decode_command, decode_report
from banyan.runtime.server.engine_link.shared_engine import SHIFT, SharedEngine
from forms import in_short
from waits import wait_until

PATIENCE = 100.0  # seconds; three suffice on an idle machine


class Peer:
    """The server's end of an engine process."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, model: str) -> None:
        self.socket = context.socket(zmq.PAIR)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE * 1000))
        address = f"ipc://{directory}/engine"
        self.socket.bind(address)
        config = configs.make(model=model, device="cpu", threads=1, kv_memory="8MiB")
        options = ("--socket", address, "--config", msgspec.json.encode(config).decode())
        self.child = launch.ChildProcess([*launch.ENGINE, *options])

    def send(self, *commands: wire.EngineCommand) -> None:
        for command in commands:
            self.socket.send(wire.encode(command))

    def receive(self) -> wire.EngineReport:
        what = "a report of the engine"
        wait_until(lambda: self.socket.poll(10), what, alive=lambda: self.child.is_alive or self.socket.poll(1000))
        return decode_report(self.socket.recv())


@contextmanager
def peer(directory: Path, model: str) -> Iterator[Peer]:
    with zmq.Context() as context:
        p = Peer(context, directory, model)
        try:
            yield p
        finally:
            p.child.close()
            p.socket.close()


def test_what_takes_long_at_start_is_reported_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[wire.EngineReport] = []
    link: Any = SimpleNamespace(send=sent.extend)
    handler = process._ToServer(link)
    monkeypatch.setattr(process, "PATIENCE", 0.0)
    level = process._log.level
    process._log.setLevel(logging.INFO)  # unlike setattr, this forgets what the logger knows of its level
    process._log.addHandler(handler)
    try:
        with process._compiling_on(None):
            pass
        with process._compiling_on("H200"):
            wait_until(lambda: sent, "a notice")
    finally:
        process._log.removeHandler(handler)
        process._log.setLevel(level)
    (notice,) = sent
    assert isinstance(notice, wire.Notice)
    assert notice.text.startswith("compiling the Triton kernels for H200")


def test_orders_hold_up_running_requests_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_ORDERS_SECONDS", 0.0)
    with zmq.Context() as context, context.socket(zmq.PAIR) as server:
        server.bind("inproc://engine")
        link = process.ServerLink(context, "inproc://engine", None)
        for rid in range(10):
            server.send(wire.encode(wire.Abort(rid)))
        assert list(link.drain(block=False)) == [wire.Abort(0)]
        assert list(link.drain(block=True)) == [wire.Abort(rid) for rid in range(1, 10)]
        link.close()


def test_requests_of_clients_take_turns_behind_other_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many requests of one client delay neither a question nor another client, and aborted ones are not taken."""

    def runs(client: int, *rids: int) -> list[wire.Run]:
        return [wire.Run(rid, b"", client=client) for rid in rids]

    unload = wire.Ask(1, "unload_adapter")
    with zmq.Context() as context, context.socket(zmq.PAIR) as server:
        server.bind("inproc://engine")
        link = process.ServerLink(context, "inproc://engine", None)
        others = wire.Abort(0), wire.Abort(201), wire.Ask(0, "stats"), wire.Abort(300)
        for order in (*runs(1, *range(100)), *runs(2, 200, 201), *others):
            server.send(wire.encode(order))
        drained = link.drain(block=True)
        assert [next(drained) for _ in range(5)] == [
            wire.Ask(0, "stats"),
            wire.Abort(300),
            *runs(1, 1),
            *runs(2, 200),
            *runs(1, 2),
        ]
        drained.close()
        monkeypatch.setattr(process, "_ORDERS_SECONDS", 0.0)
        assert list(link.drain(block=False)) == runs(1, 3)
        monkeypatch.setattr(process, "_MAX_ORDERS", 10)
        assert list(link.drain(block=True)) == runs(1, *range(4, 14)), "those that wait do not wait for another order"
        server.send(wire.encode(unload))
        wait_until(lambda: link._socket.poll(0), "the order")
        assert list(link.drain(block=True)) == [*runs(1, *range(14, 100)), unload]
        link.close()


def test_request_aborted_before_the_engine_takes_it_ends_in_its_host() -> None:
    """The host does not count it forever, and after a trial it can send the next one."""
    shared = SharedEngine()
    trial = wire.Run(3, b"", order=(0, 0), is_trial=True)
    with zmq.Context() as context, context.socket(zmq.PAIR) as host:
        host.bind("inproc://engine")
        link = process.ServerLink(context, "inproc://engine", None)
        for order in (trial, wire.Abort(3)):
            for data in shared.take(0, wire.encode(order)):
                host.send(data)
        assert not list(shared.take(1, wire.encode(trial)))
        assert list(link.drain(block=True)) == []
        sent, commands = shared.report(host.recv(zmq.NOBLOCK), {0, 1})
        link.close()
    ((server, data),) = sent
    assert server == 0
    assert decode_report(data) == wire.Step(finished=(wire.Finish(3, "abort"),))
    assert [decode_command(data).rid for data in commands] == [1 << SHIFT | 3]
    assert list(shared._living) == [1 << SHIFT | 3]


@pytest.mark.parametrize("is_new", in_short([False], [False, True]), ids=["forked", "a new interpreter"])
def test_engine_serves_answers_and_exits_with_its_parent(
    fake: ModuleType, tiny_model: Callable[..., Path], tmp_path: Path, request: pytest.FixtureRequest, is_new: bool
) -> None:
    if is_new:
        request.getfixturevalue("new_interpreters")
    with peer(tmp_path, str(tiny_model("llama"))) as p:
        # Messages sent before the engine is up are not lost.
        p.send(*(fake.run(rid, [5, 6, 7, rid + 10], wire.Sampling(max_tokens=5, temperature=0)) for rid in range(3)))
        ready = p.receive()
        assert isinstance(ready, wire.Ready)
        assert ready.page == 16
        assert ready.n_pages * 16 * 2 * 2 * 2 * 16 * 4 <= 8 << 20  # layers, K and V, heads, dim, bytes
        assert any("threads" in line for line in ready.report)
        assert (ready.threads, ready.n_cores) == (1, n_cores())

        ids: dict[int, list[int]] = {}
        finished = set()
        while len(finished) < 3:
            step = p.receive()
            assert isinstance(step, wire.Step)
            for rid, token in zip(array("q", step.rids), array("i", step.ids), strict=True):
                ids.setdefault(rid, []).append(token)
            finished |= {f.rid for f in step.finished}
        assert {rid: len(output) for rid, output in ids.items()} == {0: 5, 1: 5, 2: 5}

        os.kill(p.child.pid, signal.SIGINT)  # the terminal's Ctrl-C reaches the engine, which ignores it
        p.send(fake.run(3, [1] * 600), wire.Abort(77))
        failed = p.receive()
        assert isinstance(failed, wire.Failed)
        assert (failed.program, failed.code) == (3, "prompt_too_long")

        for n, what in enumerate(("stats", "check", "info", "flush")):
            p.send(wire.Ask(n, what))  # type: ignore[arg-type]
            answer = p.receive()
            assert isinstance(answer, wire.Answer)
            assert (answer.id, answer.ok) == (n, True)
            body = msgspec.json.decode(answer.body)
            if what == "stats":
                assert body["engine"]["generated_tokens"] == 15
                assert body["engine"]["running"] == body["engine"]["waiting"] == 0
            if what == "info":
                assert body["resolved"]["context"] == ready.max_context == body["model"]["max_context"]

        p.child.close()  # as if the parent had exited
        assert p.child.wait(PATIENCE) == 0


def test_missing_model_is_reported_in_one_message(tmp_path: Path) -> None:
    with peer(tmp_path, str(tmp_path / "nothing")) as p:
        failed = p.receive()
        assert isinstance(failed, wire.Failed)
        assert (failed.program, failed.code) == (-1, "model_not_found")
        assert "nothing" in failed.message
        assert p.child.wait(PATIENCE) == 1


def test_sigterm_ends_the_engine(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    with peer(tmp_path, str(tiny_model("llama"))) as p:
        assert isinstance(p.receive(), wire.Ready)
        os.kill(p.child.pid, signal.SIGTERM)
        assert p.child.wait(PATIENCE) == 0
