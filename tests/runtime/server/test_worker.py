"""The server process, driven by raw messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import zmq

from banyan.runtime import config, launch
from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire
from banyan.runtime.server import worker
from banyan.runtime.server.programs.journal import MAX_AGE
from forms import in_short, short_form
from raw_peer import Peer
from waits import wait_until

Serve = Callable[..., launch.ServerProcess]
FAKE = Path(__file__).parent / "fake_engine.py"
GEN = (wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(max_tokens=3)))


@pytest.fixture
def peer(shared_socket: Path, peer_of: Callable[..., Peer]) -> Callable[..., Peer]:
    """`peer()`: a new client of the module's server."""  # shared_socket is first, so it ends after the clients
    return partial(peer_of, SimpleNamespace(socket=shared_socket))


@pytest.mark.parametrize(
    ("message", "code", "error"),
    [
        (b"", "bad_message", "not a message of the protocol"),
        (b"\xff" * 100, "bad_message", "not a message of the protocol"),
        (wire.encode(wire.Submit(0, 0, GEN))[:-3], "bad_message", "not a message of the protocol"),
        (wire.encode(wire.Run(rid=1, ids=b"")), "bad_message", "not a message of the protocol"),
        (wire.Hello(version=99), "connect_failed", f"speaks version {wire.VERSION}"),
    ],
)
def test_peer_that_violates_the_protocol_is_dropped_alone(
    peer: Callable[..., Peer], message: Any, code: str, error: str
) -> None:
    good, bad = peer(), peer()
    bad.send(wire.Submit(0, 0, (wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(max_tokens=400)))), message)
    while isinstance(failed := bad.receive(), wire.Value | wire.Delta):
        pass
    assert isinstance(failed, wire.Failed)
    assert (failed.program, failed.code) == (-1, code)
    assert error in failed.message
    bad.send(wire.Submit(1, 0, GEN))
    while isinstance(refused := bad.receive(), wire.Value | wire.Delta):
        pass
    assert isinstance(refused, wire.Failed)
    assert "before Hello" in refused.message
    good.run_program(0)
    good.send(wire.Ask(id=1, what="stats"))
    answer = good.receive()
    assert isinstance(answer, wire.Answer)
    assert b'"clients":1' in answer.body
    assert b'"programs":0' in answer.body


def test_multipart_message_is_refused(peer: Callable[..., Peer]) -> None:
    bad = peer()
    bad.socket.send_multipart([wire.encode(wire.Ping()), b"more"])
    failed = bad.receive()
    assert isinstance(failed, wire.Failed)
    assert "1 frame, not 2" in failed.message


def test_message_before_hello_is_refused(peer: Callable[..., Peer]) -> None:
    unknown = peer(hello=False)
    unknown.send(wire.Ask(id=0, what="stats"))
    failed = unknown.receive()
    assert isinstance(failed, wire.Failed)
    assert "Ask came before Hello" in failed.message
    assert "sent nothing for 30 s" in failed.message


def test_peers_do_not_see_each_others_programs(peer: Callable[..., Peer]) -> None:
    first, second = peer(), peer()
    first.send(wire.Submit(0, 0, GEN))
    second.send(wire.Cancel(0, 0), wire.Submit(0, 0, (wire.Read(0, 5),)))
    value = first.receive()
    assert isinstance(value, wire.Value)
    assert value.ref == 0
    value = second.receive()
    assert isinstance(value, wire.Value)
    assert (value.ref, value.samples[0].text) == (5, "")


@pytest.mark.parametrize("pause", [0.0, 60.0], ids=["engine loads", "token is checked"])
def test_client_that_was_refused_while_it_waited_is_not_welcomed(
    fake_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    options = config.make(model=str(fake_model()), socket=str(tmp_path / "private" / "s"))
    server = worker.Server(options, None, None, False, (sys.executable, str(FAKE)))
    monkeypatch.setattr(server._throttle, "pause", lambda address: pause)
    monkeypatch.setattr(server.listeners, "send", lambda client, data: True)
    with server._undo:
        for message in (wire.Hello(wire.VERSION), wire.Ask(0, "info")):  # the second comes before the Welcome
            deque(server._begin(b"client", wire.encode(message)).steps, 0)
        assert server._refusals == {b"client": 1}
        monkeypatch.setattr(server.timers, "now", lambda: time.monotonic() + 61)
        server.timers.run()
        server._welcome(wire.Ready(64, 16, 512))
        assert not server._peers


def test_open_queries_are_limited_and_all_answered(peer: Callable[..., Peer]) -> None:
    busy, other = peer(), peer()
    busy.send(*[wire.Ask(id=k, what="stats") for k in range(600)])
    other.run_program(0)
    answers = [busy.receive(30) for _ in range(600)]
    assert sorted(answer.id for answer in answers if isinstance(answer, wire.Answer)) == list(range(600))
    refused = [answer for answer in answers if isinstance(answer, wire.Answer) and not answer.ok]
    assert all(b"256 questions of this client are open" in answer.body for answer in refused)
    busy.send(wire.Ask(id=700, what="stats"))
    last = busy.receive()
    assert isinstance(last, wire.Answer)
    assert last.ok


def test_ping_is_answered(peer: Callable[..., Peer]) -> None:
    client = peer()
    client.send(wire.Ping())
    assert client.socket.poll(5000)
    assert wire.decode_server(client.socket.recv()) == wire.Pong()


@pytest.fixture
def serve_with(
    fake_model: Callable[..., Path], write_boot: Callable[[str], tuple[str, ...]]
) -> Iterator[Callable[..., launch.ServerProcess]]:
    """`serve_with("ipc.MAX_SILENT = 3")` -> a server that first makes this change to its modules."""
    with ExitStack() as stack:

        def start(change: str, model: Path | None = None) -> launch.ServerProcess:
            settings = config.make(model=str(model or fake_model()))
            server = launch.start(settings, timeout=30, command=write_boot(change))
            stack.callback(server.close)
            return server

        yield start


def test_client_that_does_not_read_is_dropped(serve_with: Serve, peer_of: Callable[..., Peer]) -> None:
    server = serve_with("ipc._SEND_LIMIT = 10")
    greedy, other = peer_of(server), peer_of(server)
    deadline, body = time.monotonic() + 30, b""
    while b'"clients":1' not in body:
        assert time.monotonic() < deadline, "the client was not dropped"
        greedy.send(*[wire.Ask(id=k, what="info") for k in range(500)])
        other.send(wire.Ask(id=0, what="stats"))
        answer = other.receive()
        assert isinstance(answer, wire.Answer)
        body = answer.body


def test_silent_client_is_dropped(serve_with: Serve, peer_of: Callable[..., Peer]) -> None:
    server = serve_with("ipc.HEARTBEAT, ipc.MAX_SILENT = 0.05, 30")
    silent, talking = peer_of(server), peer_of(server)
    silent.send(wire.Submit(0, 0, (wire.Append(0, (wire.Ref(9),)),)))
    deadline, k, body = time.monotonic() + 20, 0, b""
    while not (b'"clients":1' in body and b'"programs":0' in body):
        assert time.monotonic() < deadline, "the client was not dropped"
        time.sleep(0.02)
        talking.send(wire.Ask(id=(k := k + 1), what="stats"))
        answer = talking.receive()
        assert isinstance(answer, wire.Answer)
        body = answer.body


def test_encoding_a_long_text_does_not_block_the_loop(serve: Serve, peer_of: Callable[..., Peer]) -> None:
    server = serve(context=1 << 20)
    first, second = peer_of(server), peer_of(server)
    text = "the quick brown fox " * 30_000
    first.send(wire.Submit(0, 0, (wire.Append(0, (text,)), wire.Read(0, 0, tokens=True))))
    second.run_program(0)
    with pytest.raises(AssertionError, match="no message came"):
        first.receive(0)
    value = first.receive(60)
    assert isinstance(value, wire.Value)
    assert value.samples[0].text == text
    for k in range(16):
        first.send(wire.Submit(1, k, (wire.Append(0, ("a" * (15 << 16),)),)))
    first.send(wire.Submit(1, 16, (wire.Gen(0, 0, wire.Sampling()),)))
    failed = first.receive(60)
    assert isinstance(failed, wire.Failed)
    assert failed.code == "prompt_too_long"
    assert f"the prompt has {15 << 20} characters and therefore at least" in failed.message


def test_what_a_refused_text_took_is_freed_on_its_thread() -> None:
    """An error's traceback holds what its thread has made of the text; to free that would hold the loop for 8 ms."""
    server: Any = SimpleNamespace(
        _encoding=SimpleNamespace(submit=lambda _, work: work()), call_soon=lambda call: call()
    )
    made: list[Any] = []

    def encode() -> None:
        tokens = array("i", [0])
        made.append(weakref.ref(tokens))
        raise BadProgram("too long")

    def then(error: Any) -> None:
        assert isinstance(error, BadProgram)
        assert made[0]() is None

    worker.Server.offload(server, b"client", worker.MAX_INLINE + 1, encode, then)
    assert made


@pytest.mark.long
@pytest.mark.parametrize("length", [1, 1200], ids=["short", "long"])
def test_text_that_cannot_be_encoded_fails_only_its_program(
    serve_with: Serve, peer_of: Callable[..., Peer], fake_model: Callable[..., Path], tiny: ModuleType, length: int
) -> None:
    path = fake_model()
    bad = "the " * length + tiny.make_backtracking(path)
    change = "from banyan.runtime.server.text import encoder; encoder.SECONDS = 60.0"  # on a busy machine
    server = serve_with(change, model=path)
    first, second = peer_of(server), peer_of(server)
    second.run_program(0)
    after_output = (*GEN, wire.Append(0, (bad,)), wire.Gen(0, 1, wire.Sampling(max_tokens=3)))
    for program, ops in enumerate(
        (
            (wire.Append(0, (bad,)), wire.Gen(0, 0, wire.Sampling(max_tokens=3))),
            (wire.Append(0, (bad,)), wire.Select(0, 0, (" yes", " no"))),
            (wire.Append(0, (bad,)), wire.Read(0, 0, tokens=True)),
            (wire.Append(0, (bad,)), wire.CacheHint(0), wire.Read(0, 0, tokens=True)),
            after_output,  # runs while no client message is being handled
        )
    ):
        first.send(wire.Submit(program, 0, ops, last=True))
        answer = first.receive()
        if ops is after_output:
            assert isinstance(answer, wire.Value)
            answer = first.receive()
        assert isinstance(answer, wire.Failed)
        assert (answer.program, answer.code) == (program, "bad_program")
        assert "it panicked" in answer.message
        first.run_program(100 + program)
        second.run_program(1 + program)


def test_server_loads_few_modules_and_no_heavy_package() -> None:
    """An import of so many modules takes 0.2 to 0.4 s."""
    code = (
        "import sys; import banyan.runtime.server.worker; print(len(sys.modules)); "
        "print(sorted({'asyncio', 'huggingface_hub', 'numpy', 'outlines', 'torch', 'transformers', 'triton'} "
        "& set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    n_modules, heavy = out.splitlines()
    assert heavy == "[]"
    assert int(n_modules) < 420, "the server loads modules that it need not"


@pytest.mark.parametrize(
    ("source", "expected"),
    short_form(
        [("model", wire.Sampling(temperature=0.5)), ("openai", wire.Sampling())],
        lambda source, expected: source == "model",
    ),
)
def test_clients_learn_the_models_sampling_defaults(
    serve: Serve, peer_of: Callable[..., Peer], fake_model: Callable[..., Path], source: str, expected: wire.Sampling
) -> None:
    (fake_model() / "generation_config.json").write_text('{"temperature": 0.5}')
    client = peer_of(serve(options={"sampling_defaults": source}), hello=False)
    client.send(wire.Hello(wire.VERSION))
    welcome = client.receive()
    assert isinstance(welcome, wire.Welcome)
    assert welcome.sampling == expected


@pytest.mark.parametrize("arguments", in_short([["--config", "{"]], [["--config", "{"], ["--config", '{"zzz": 1}']]))
def test_invalid_config_is_reported(arguments: list[str]) -> None:
    read, write = os.pipe()
    run = subprocess.run(
        [*launch.SERVER, *arguments, "--ready-fd", str(write)], pass_fds=(write,), capture_output=True, timeout=30
    )
    os.close(write)
    with os.fdopen(read) as f:
        assert '"code":"config"' in f.read()
    assert run.returncode == 1
    assert b"Traceback" not in run.stderr


def test_log_option_sets_the_verbosity(
    serve: Serve, peer_of: Callable[..., Peer], capfd: pytest.CaptureFixture[str]
) -> None:
    logs = {}
    for log in ("quiet", "info", "debug"):
        server = serve(options={"log": log})
        peer_of(server).run_program(0)
        forger = peer_of(server, hello=False)
        forger.send(wire.Hello(wire.VERSION, client="x\nbanyan: client root joined\x1b[2J" + "y" * 200))
        assert isinstance(forger.receive(), wire.Welcome)
        server.close()
        logs[log] = capfd.readouterr().err
    assert logs["quiet"] == ""
    assert "banyan: fake engine" in logs["info"]
    assert "joined" in logs["info"]
    assert "client x\\nbanyan: client root joined\\x1b[2Jyyy" in logs["info"], "control characters are escaped"
    assert max(map(len, logs["debug"].splitlines())) < 300, "names are cut"
    assert "Submit" not in logs["info"]
    assert "Submit" in logs["debug"]


@pytest.mark.parametrize("event", ["report", "death"])
def test_round_ends_if_handling_an_engine_removes_a_later_one(
    fake_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """The loop neither reads from the closed socket of the removed engine without end, nor starts another engine in its
    place."""
    monkeypatch.setattr(traceback, "print_exc", lambda: pytest.fail(traceback.format_exc()))
    options = config.make(model=str(fake_model()), socket=str(tmp_path / "private" / "s"), replicas=2)
    server = worker.Server(options, None, None, False, (sys.executable, str(FAKE)))
    first, second = server.replicas

    def lose_both() -> None:
        if not (first.is_ready and second.is_ready):
            server.timers.call(0.02, lose_both)
            return
        first.kv = second.kv = wire.KVFormat(1, b"", "cpu", "float32", "auto", 16, 1, 1, 2, 4096, False)
        pulls = server.requests.routes.pulls
        assert pulls.start(wire.Run(0, bytes(4 * 64)), second, first, 0, 64, 60.0) is not None
        server.replicas.drain("1", lambda error: None)
        assert not server.replicas.drained, "the pull is not over"
        os.kill(first.link.pid, signal.SIGKILL)
        if event == "report":
            second.link.send(wire.Ping())
        else:
            os.kill(second.link.pid, signal.SIGKILL)
        source: Any = second.link.socket if event == "report" else second.link.life
        poller = zmq.Poller()
        for one in (first.link.life, source):
            poller.register(one, zmq.POLLIN)
        wait_until(lambda: len(poller.poll(0)) == 2, "what the next round finds")
        server.call_soon(end)

    def end() -> None:
        assert list(server.replicas) == [first]
        assert (first.link.n_starts, second.link.n_starts) == (2, 1)
        server.stop()

    server.timers.call(0.0, lose_both)
    server.run()


def test_journals_are_deleted_after_a_day_while_the_server_runs(
    fake_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = config.make(model=str(fake_model()), socket=str(tmp_path / "private" / "s"))
    server = worker.Server(options, None, None, False, (sys.executable, str(FAKE)))
    journal = server.programs._durables.journal
    assert journal is not None
    journal.open(b"key").close()
    later = time.time() + MAX_AGE + 1
    monkeypatch.setattr(time, "time", lambda: later)
    monkeypatch.setattr(server.timers, "now", lambda: time.monotonic() + 61)
    server.timers.call(0.0, server.stop)
    server.run()
    assert not journal.closed_files
    assert not (tmp_path / "private" / "s.journal").exists()
