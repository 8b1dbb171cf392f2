"""Fuzzed messages: nothing crashes, blocks or leaks, their sender is cut off, and other clients work."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import threading
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from types import ModuleType
from typing import Any

import msgspec
import psutil
import pytest
import tokenizers
import zmq

import wire_fuzz
from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.engine import process
from banyan.runtime.engine.scheduling import validate
from banyan.runtime.errors import BanyanError
from banyan.runtime.malloc import malloc_trim
from banyan.runtime.protocol import decoders, ipc, wire
from banyan.runtime.server import worker
from server_in_process import NEIGHBOUR, Event, ServerInProcess, Violation, shortest
from waits import wait_until

OUTPUT = " ".join(map(str, range(30)))
Serve = Callable[..., launch.ServerProcess]


# ---- the server's loop, in this process ----------------------------------------------------------------------------

CLIENTS = (b"ann", b"ben")
SESSION = 5000
"""Messages after which all clients leave, and what the server keeps is checked."""
PERIODS = {"steps": 5, "work": 20, "check": 50, "wait": 100}
"""After how many messages each event happens."""
LIMITS = {"max_width": 64, "max_program": 1 << 20, "max_client": 4 << 20, "max_programs": 32}
"""Small, so that programs reach them."""
GREEDY = wire.Sampling(temperature=0.0, max_tokens=5)
NEIGHBOURS_OPS = (
    wire.Append(0, ("the quick",)),
    wire.Gen(0, 0, GREEDY),
    wire.Fork(0, (1, 2)),
    wire.Append(1, ("1", wire.Ref(3))),
    wire.Gen(1, 1, GREEDY),
    wire.Append(2, ("2",)),
    wire.Gen(2, 2, GREEDY),
    wire.Read(2, 3),
    wire.Join(0, (1, 2)),
    wire.Select(0, 4, ("a", "b")),
    wire.Read(0, 5),
)


class InstantEngine:
    """An engine that refuses what a real one refuses. The output follows from the prompt: a text, or a call of f."""

    def __init__(self, fake_engine: ModuleType, model: Path) -> None:
        tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
        self._call = tokenizer.encode('<tool_call>{"name": "f", "arguments": {}}</tool_call><|im_end|>').ids
        self._engine = fake_engine.FakeEngine(self._speak, burst=64)
        self._limits = validate.EngineLimits(self._engine.max_context, tokenizer.get_vocab_size(), 64, 512)
        self.ready: wire.Ready = self._engine.ready

    def _speak(self, ids: list[int]) -> list[int]:
        digest = zlib.crc32(array("i", ids))
        return self._call if digest % 4 == 0 else [3 + (digest >> k) % 300 for k in range(6)]

    def take(self, command: wire.EngineCommand) -> None:
        if isinstance(command, wire.Run):
            try:
                validate.validate(command, self._limits, n_pages=64, page=16)
            except BanyanError as e:
                self._engine.reports.append(wire.Failed(command.rid, 0, e.code, e.message))
                return
        self._engine.take(command)

    def step(self) -> Sequence[wire.EngineReport]:
        for record in (self._engine.runs, self._engine.aborted, self._engine.steered):
            record.clear()
        reports: list[wire.EngineReport] = self._engine.step()
        return reports


class Fuzz:
    """Events with n fuzzed messages, which all follow from the seed. Two clients send valid messages, and some
    with a border; strangers send what is no message; a neighbour runs the same program again and again.

    sessions        the events of the first session, and of the current one
    resident        memory of this process after each session, in MiB
    """

    def __init__(self, seed: int, n: int) -> None:
        self._n, self.n_sent = n, 0
        self.sessions: list[list[Event]] = []
        self.resident: list[float] = []
        self.codes: Counter[str] = Counter()
        """Errors that came back."""
        self.values = wire_fuzz.Values(Random(seed))
        for kind in wire_fuzz.kinds(msgspec.inspect.type_info(wire.ClientMessage)):
            wire_fuzz.places(kind)  # makes the long lists now: `resident` is for what the server keeps
        self._models: dict[bytes, wire_fuzz.ClientModel] = {}
        self._joining: list[bytes] = []
        self._n_peers = 0

    def events(self) -> Iterator[Event]:
        for size in itertools.chain([200], itertools.repeat(SESSION)):
            self.sessions = [*self.sessions[:1], []]
            for event in itertools.chain(self._session(min(size, self._n - self.n_sent)), [Event("empty")]):
                self.sessions[-1].append(event)
                yield event
            gc.collect()
            malloc_trim()  # as the server does when no client is left
            self.resident.append(psutil.Process().memory_info().rss / 2**20)
            if self.n_sent >= self._n:
                return

    def receive(self, client: bytes, data: bytes) -> None:
        """The server sent `data`."""
        message = wire.decode_server(data)
        if isinstance(message, wire.Failed):
            self.codes[message.code] += 1
        if (model := self._models.get(client)) is None:
            return
        if isinstance(message, wire.Failed) and message.program == -1:
            del self._models[client]
            self._joining.append(client)
        else:
            model.receive(message)

    def _session(self, n: int) -> Iterator[Event]:
        rng, hello = self.values.rng, wire.encode(wire.Hello(wire.VERSION))
        yield Event("send", NEIGHBOUR, hello)
        self._models.clear()
        self._joining = list(CLIENTS)
        for i in range(n):
            while self._joining:
                self._n_peers += 1
                peer = self._joining.pop().rstrip(b"0123456789") + b"%d" % self._n_peers
                self._models[peer] = wire_fuzz.ClientModel(self.values)
                yield Event("send", peer, hello)
            peer = rng.choice(list(self._models))
            yield self._message(peer)
            self.n_sent += 1
            for kind, period in PERIODS.items():
                if i % period == 0:
                    yield Event(kind)
            if i % 250 == 0:
                yield Event("send", NEIGHBOUR, wire.encode(wire.Submit(i, 0, NEIGHBOURS_OPS, last=True)))
            if i % 400 == 399 and peer in self._models:
                del self._models[peer]
                self._joining.append(peer)
                yield Event("leave", peer)

    def _message(self, peer: bytes) -> Event:
        values = self.values
        draw = values.rng.random()
        message = self._models[peer].message()
        if draw < wire_fuzz.P_BORDER:
            message = values.with_border(message)
        try:
            data = wire_fuzz.encode(message)
        except OverflowError:
            data = b""
        if wire_fuzz.P_BORDER < draw < wire_fuzz.P_BORDER + wire_fuzz.P_GARBAGE or len(data) > wire_fuzz.MAX_BYTES:
            data = values.garbage(data)
        if draw < wire_fuzz.P_BORDER + wire_fuzz.P_GARBAGE:
            try:
                decoders.decode_client(data)
            except wire.UNREADABLE:  # from another peer, so that the state of this one lasts
                self._n_peers += values.rng.random() < 0.1
                peer = b"stranger%d" % self._n_peers
        return Event("send", peer, data)


def minimal(run: Callable[[Sequence[Event]], object], fuzz: Fuzz, found: Violation) -> str:
    """A short list of events after which `run` raises a Violation of the same kind, as text."""
    *first, last = fuzz.sessions

    def fails(events: Sequence[Event]) -> bool:
        try:
            run([*itertools.chain(*first), *events])
        except Violation as e:
            return e.kind == found.kind
        return False

    events = shortest(last, fails) if fails(last) else last[-20:]
    return "\n".join(map(str, events))


@pytest.fixture(scope="session")
def fake_engine(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).parent / "server" / "fake_engine.py")


@pytest.fixture
def frozen_objects() -> None:
    """The garbage collector ignores what was there before, as in the server's process: its time is the loop's."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize(
    ("seed", "n"),
    [(0, 1000), *(pytest.param(k, 250_000, marks=[pytest.mark.long, pytest.mark.timeout(600)]) for k in range(4))],
)
@pytest.mark.usefixtures("frozen_objects")
def test_fuzzed_messages_on_the_servers_loop(
    fake_engine: ModuleType, tiny: ModuleType, tmp_path: Path, seed: int, n: int
) -> None:
    tiny.make_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(wire_fuzz.TEMPLATE)

    def run(
        events: Iterable[Event],
        receive: Callable[[bytes, bytes], None] = lambda *_: None,
        suspects: Container[int] = range(sys.maxsize),
    ) -> set[int]:
        engine = InstantEngine(fake_engine, tmp_path)
        server = ServerInProcess(tmp_path, tmp_path / "s", engine, receive, suspects, **LIMITS)
        server.run(events)
        return server.slow

    fuzz = Fuzz(seed, n)
    try:
        if slow := run(fuzz.events(), fuzz.receive, ()):
            fuzz = Fuzz(seed, n)
            run(fuzz.events(), fuzz.receive, slow)
    except Violation as e:
        pytest.fail(f"seed {seed}, message {fuzz.n_sent}: {e}\n{minimal(run, fuzz, e)}")
    k = max(1, len(fuzz.resident) // 10)
    early, late = median(fuzz.resident[2 * k - 1 : 3 * k - 1]), median(fuzz.resident[-k:])
    assert late - early < 10, "the server keeps memory"
    assert len(fuzz.codes) > (5 if n > 1000 else 3), "messages reach most checks"
    if n >= 100_000:
        tried = {kind for kind, n_rounds in fuzz.values.n_border_rounds.items() if n_rounds}
        assert tried == wire_fuzz.kinds(msgspec.inspect.type_info(wire.ClientMessage)), "every border of every field"


# ---- the server's socket -------------------------------------------------------------------------------------------


class Sockets:
    """Lets events happen at a real server. receive: gets what the server sends, as (client, data)."""

    MAX_STRANGERS = 8

    def __init__(self, server: launch.ServerProcess, receive: Callable[[bytes, bytes], None]) -> None:
        self._server, self._receive = server, receive
        self._context: Any = zmq.Context()
        self._sockets: dict[bytes, tuple[Any, Any]] = {}
        self._observer = client.connect(server.socket)
        self.texts: list[str] = []
        """Of the states of the neighbour's programs, at their end."""

    def run(self, events: Iterable[Event]) -> None:
        for event in events:
            match event.kind:
                case "send":
                    self._socket(event.client).send(event.data)
                    if event.client == NEIGHBOUR and len(event.data) > 50:
                        self._wait_for_neighbour()
                case "leave":
                    self._leave(event.client)
                case "check":
                    self._receive_all(tuple(self._sockets))
                    assert self._observer.ask("check", timeout=60) == {}
                case "empty":
                    for peer in tuple(self._sockets):
                        self._leave(peer)
                    assert_only_client_left(self._observer)

    def _socket(self, peer: bytes) -> Any:
        if peer not in self._sockets:
            strangers = [one for one in self._sockets if one.startswith(b"stranger")]
            if len(strangers) > self.MAX_STRANGERS:
                self._leave(strangers[0])
            self._sockets[peer] = ipc.connect(self._context, self._server.socket)
        return self._sockets[peer][0]

    def _leave(self, peer: bytes) -> None:
        socket, monitor = self._sockets.pop(peer)
        socket.disable_monitor()
        monitor.close(0)
        socket.close(2000)  # its messages are still to be sent

    def _receive_all(self, peers: Iterable[bytes], ms: int = 0) -> None:
        for peer in peers:
            while peer in self._sockets and self._sockets[peer][0].poll(ms):
                data = self._sockets[peer][0].recv()
                message = wire.decode_server(data)
                assert not (isinstance(message, wire.Failed) and "the server failed" in message.message), message
                if peer == NEIGHBOUR and isinstance(message, wire.Value) and message.ref == 5:
                    self.texts.append(message.samples[0].text)
                self._receive(peer, data)

    def _wait_for_neighbour(self) -> None:
        n = len(self.texts)
        wait_until(lambda: self._receive_all([NEIGHBOUR]) or len(self.texts) > n, "the neighbour's text")

    def close(self) -> None:
        self._observer.close()
        self._context.destroy(linger=0)


def assert_only_client_left(c: client.Client) -> None:
    """Waits until `c` is the only client and no program is left."""

    def stats_if_alone() -> dict[str, Any]:
        stats: dict[str, Any] = c.ask("stats", timeout=60)["server"]
        return {} if stats["programs"] or stats["clients"] > 1 else stats

    stats = wait_until(stats_if_alone, "the end of all other clients", seen=lambda: c.ask("stats", timeout=60))
    assert stats["requests"] == 0
    assert stats["engine_starts"] == 1, "no client message kills an engine"
    assert c.ask("check", timeout=60) == {}


@pytest.mark.parametrize(
    ("seed", "n"), [(0, 400), pytest.param(0, 30_000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
def test_fuzzed_messages_at_a_server_with_the_pocket_model(seed: int, n: int) -> None:
    with contextlib.closing(launch.start(config.make(threads=1, kv_memory="32MB", **LIMITS), timeout=100)) as server:
        fuzz = Fuzz(seed, n)
        with contextlib.closing(Sockets(server, fuzz.receive)) as sockets:
            sockets.run(fuzz.events())
        assert server.is_alive
        assert len(set(sockets.texts)) == 1
        assert len(sockets.texts) > n // 500


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


def test_peer_with_repeated_invalid_messages_is_ignored(serve: Serve) -> None:
    server = serve(say={"count": OUTPUT})
    context: Any = zmq.Context()
    good = client.connect(server.socket)
    try:
        socket, _ = ipc.connect(context, server.socket)
        for _ in range(worker.MAX_REFUSALS):  # one at a time: what waits of a refused peer is dropped
            socket.send(b"\xff")
            assert isinstance(wire.decode_server(socket.recv()), wire.Failed)
        socket.send(b"\xff")
        socket.send(wire.encode(wire.Hello(wire.VERSION)))
        run_program(good, 0)
        assert receive_all(socket, 500) == []
    finally:
        good.close()
        context.destroy(linger=0)


def test_waiting_messages_of_a_client_are_limited(fake_engine: ModuleType, tiny: ModuleType, tmp_path: Path) -> None:
    """A message of 5,000 ops takes several rounds of the loop, and one more message arrives in each round."""
    tiny.make_tokenizer(tmp_path)
    replies: list[wire.ServerMessage] = []
    server = ServerInProcess(
        *(tmp_path, tmp_path / "s", InstantEngine(fake_engine, tmp_path)),
        lambda client, data: replies.append(wire.decode_server(data)),
        max_client=1 << 16,
    )
    messages = [wire.Submit(k, 0, (wire.Append(0, ("a",)),) * 5000, last=True) for k in range(100)]
    server.run(Event("send", b"a", wire.encode(message)) for message in (wire.Hello(wire.VERSION), *messages))
    (refusal,) = [one for one in replies if isinstance(one, wire.Failed) and one.program == -1][:1]
    assert refusal.code == "overloaded"
    assert "65536 bytes" in refusal.message


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
        return decoders.decode_report(self.socket.recv())

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


def fuzzed_commands(seed: int) -> Iterator[bytes]:
    """Commands for an engine, most of them with some values at borders, and bytes that are none."""
    values = wire_fuzz.Values(Random(seed))
    kinds = (wire.Run, wire.Run, wire.Run, wire.Abort, wire.ProgramEnded, wire.Ask, wire.SetVocabulary, wire.Ping)
    data = b""
    while True:
        with contextlib.suppress(OverflowError):
            data = wire_fuzz.encode(values.make(values.rng.choice(kinds), values.rng.choice((0.0, 0.15))))
        yield data if values.rng.random() < 0.6 else values.garbage(data)


@pytest.mark.parametrize("n", [800, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_fuzzed_messages_at_the_engine(fake: ModuleType, tmp_path: Path, n: int) -> None:
    loop = EngineThread(fake, tmp_path)
    try:
        commands = fuzzed_commands(1)
        for k in range(n // 500):
            for command in itertools.islice(commands, 500):
                loop.socket.send(command)
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
