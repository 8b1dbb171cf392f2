"""Engines that join a server over tcp://: real processes on this machine, a fake model."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.errors import BanyanError, ConfigError, Quarantined, RuntimeLost
from banyan.runtime.protocol import decoders, tcp_auth, wire
from banyan.runtime.server.engine_link import engine_host
from banyan.runtime.server.engine_link.engine_host import EngineHost
from banyan.runtime.server.engine_link.remote import EngineHosts, RemoteLink
from disturbance import disturb, read_values, ready_engines, start_programs
from waits import wait_until

OUTPUT = " ".join(map(str, range(60)))
FAKE = Path(__file__).parent / "server" / "fake_engine.py"
HOST = """
import sys
from pathlib import Path
from banyan.runtime.server.engine_link import engine_host
engine_host.RETRY = 0.2
addresses, server_key, key, model, fake = sys.argv[1:]
own = {"model": model} if model else {}
servers = [(address, server_key) for address in addresses.split()]
host = engine_host.EngineHost(servers, Path(key), own, print, command=[sys.executable, fake])
host.run()
"""


class Hosts:
    """A server without engines of its own, and engine hosts that join it."""

    def __init__(self, folder: Path, serve: Callable[..., launch.ServerProcess], stack: ExitStack) -> None:
        self._folder, self._serve, self._stack = folder, serve, stack
        # for the sockets of hosts, which those that are killed leave; `folder` may be too long for a socket's path
        home = TemporaryDirectory(prefix="banyan-", ignore_cleanup_errors=True)
        self._environment = os.environ | {"TMPDIR": stack.enter_context(home)}
        self.server_key, secret = tcp_auth.make_keys(folder / "keys")
        public, self.key = tcp_auth.make_keys(folder / "keys", "gpu1")
        (folder / "engines").write_text(f"# hosts\ngpu1 {tcp_auth.public_key(str(public)).decode()}\n")
        self.options = {
            "replicas": 0, "engines_at": "tcp://127.0.0.1:0", "engine_keys": str(folder / "engines"),
            "curve_key": str(secret),
        }  # fmt: skip

    def start(self, n: int, options: dict[str, Any] | None = None, beside: str = "", **rule: Any) -> client.Client:
        """Start n hosts. beside: the model of one more, which starts together with the first."""
        server = self._serve(options=self.options | (options or {}), **rule)
        self.address = server.report[-1].split()[3].rstrip(",")
        self.hosts = [self.host(), *([self.host(model=beside)] if beside else [])]
        self.c = client.connect(server.socket, 60)
        self._stack.callback(self.c.close)
        for k in range(1, n):  # host k has engine k
            self.hosts.append(self.host())
            wait_until(lambda: self.states() == ["ready"] * (k + 1), f"{k + 1} engines", seen=self.states)  # noqa: B023
        return self.c

    def host(self, key: Path | None = None, model: str = "", also: str = "") -> subprocess.Popen[str]:
        """Start a host. also: the address of another server that shares its engine."""
        words = (f"{self.address} {also}", str(self.server_key), str(key or self.key), model, str(FAKE))
        process = subprocess.Popen(
            [sys.executable, "-uc", HOST, *words], stdout=subprocess.PIPE, stderr=2, text=True, env=self._environment
        )
        self._stack.callback(self._end, process)
        return process

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate(timeout=30)

    def engines(self) -> dict[str, Any]:
        replicas: dict[str, Any] = self.c.ask("info")["replicas"]
        return replicas

    def states(self) -> list[str]:
        return [engine["state"] for engine in self.engines().values()]

    def submit(self, text: str = "count") -> client.Program:
        return self.submit_to(self.c, text)

    @staticmethod
    def submit_to(c: client.Client, text: str) -> client.Program:
        program = c.program(text[:9])
        gen = wire.Gen(0, 0, wire.Sampling(max_tokens=300, temperature=0.0))
        program.submit([wire.Append(0, (text,)), gen], last=True)
        return program


def text(program: client.Program) -> str:
    value: wire.Value = program.future(0).result(60)
    return value.samples[0].text


@pytest.fixture
def hosts(tmp_path: Path, serve: Callable[..., launch.ServerProcess]) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(tmp_path, serve, stack)


def test_engines_and_hosts_die_leave_and_join_without_loss(hosts: Hosts) -> None:
    c = hosts.start(2, say={"count": OUTPUT}, step_ms=5)
    assert {engine["host"] for engine in hosts.engines().values()} == {"gpu1 at 127.0.0.1"}
    programs = [hosts.submit(f"{k} count") for k in range(8)]
    os.kill(hosts.engines()["0"]["pid"], signal.SIGKILL)
    wait_until(lambda: c.ask("stats")["server"]["engine_starts"] == 3, "another engine on the same host")
    programs += [hosts.submit(f"{k} count") for k in range(8)]
    hosts.hosts[1].kill()
    wait_until(lambda: list(hosts.engines()) == ["0"], "the loss of a host is seen")
    hosts.host()
    wait_until(lambda: hosts.states() == ["ready"] * 2, "two engines", seen=hosts.states)
    programs += [hosts.submit(f"{k} count") for k in range(8)]
    c.ask("drain", name="0")
    assert hosts.hosts[0].wait(60) == 0, "a host that was drained ends"
    assert [text(program) for program in programs] == [OUTPUT] * 24
    assert list(hosts.engines()) == ["2"]
    assert c.ask("check") == {}


def test_unloaded_adapter_does_not_come_back_with_the_engine(hosts: Hosts, tmp_path: Path) -> None:
    c = hosts.start(1, {"adapters": {"a": str(tmp_path), "b": str(tmp_path)}}, say={"count": OUTPUT})
    wait_until(lambda: hosts.states() == ["ready"], "the engine", seen=hosts.states)
    c.ask("unload_adapter", name="a")
    os.kill(lost := hosts.engines()["0"]["pid"], signal.SIGKILL)
    wait_until(lambda: hosts.engines()["0"]["pid"] != lost, "another engine on the same host")
    assert text(hosts.submit()) == OUTPUT
    assert c.ask("info")["adapters"] == ["b"]


@pytest.mark.long
def test_programs_wait_for_a_host_if_the_last_one_is_gone(hosts: Hosts) -> None:
    hosts.start(1, say={"count": OUTPUT}, step_ms=5)
    running = hosts.submit()
    hosts.hosts[0].kill()
    wait_until(lambda: hosts.states() == ["waiting"], "the loss of the host is seen")
    later = hosts.submit()
    hosts.host()
    assert [text(running), text(later)] == [OUTPUT] * 2
    assert list(hosts.engines()) == ["0"]


@pytest.mark.long
def test_silent_host_counts_as_dead_and_joins_anew_when_it_goes_on(hosts: Hosts) -> None:
    hosts.start(2, say={"count": OUTPUT}, step_ms=5)
    programs = [hosts.submit(f"{k} count") for k in range(6)]
    hosts.hosts[0].send_signal(signal.SIGSTOP)
    assert [text(program) for program in programs] == [OUTPUT] * 6
    wait_until(lambda: len(hosts.engines()) == 1, "the silent host is given up")
    hosts.hosts[0].send_signal(signal.SIGCONT)
    wait_until(lambda: hosts.states() == ["ready"] * 2, "two engines", seen=hosts.states)
    assert text(hosts.submit()) == OUTPUT


@pytest.mark.long
@pytest.mark.parametrize("fault", ["die_on", "hang_on", "babble_on"])
def test_request_that_kills_engines_of_two_hosts_is_given_up(hosts: Hosts, fault: str) -> None:
    rule = {fault: "poison", "options": {"engine_timeout": 2.0}}
    hosts.start(2, say={"count": OUTPUT}, step_ms=2, **rule)
    programs = [hosts.submit(f"{k} count") for k in range(4)]
    with pytest.raises(Quarantined, match="2 engines died of this request"):
        text(hosts.submit("poison"))
    assert [text(program) for program in programs] == [OUTPUT] * 4
    assert all(host.poll() is None for host in hosts.hosts)


@pytest.mark.long
def test_engine_that_differs_is_refused_with_the_reason(hosts: Hosts, other_model: Callable[..., Path]) -> None:
    hosts.start(1, say={"count": OUTPUT})
    other = other_model("other", context=100)
    refused = hosts.host(model=str(other))
    assert refused.wait(60) == 1
    assert text(hosts.submit()) == OUTPUT
    assert list(hosts.engines()) == ["0"]
    hosts.hosts[0].kill()
    wait_until(lambda: hosts.states() == ["waiting"], "the loss of the host is seen")
    waiting = hosts.submit()
    assert hosts.host(model=str(other)).wait(60) == 1, "nor may it end programs that began on another engine"
    hosts.host()
    assert text(waiting) == OUTPUT


@pytest.mark.long
def test_host_that_lacks_an_adapter_is_refused_with_the_reason(hosts: Hosts, other_model: Callable[..., Path]) -> None:
    c = hosts.start(1, say={"count": OUTPUT}, step_ms=5)
    c.ask("load_adapter", name="a", path="/a")
    programs = [hosts.submit(f"{k} count") for k in range(4)]
    other = other_model("other", say={"count": OUTPUT}, adapters={"a": ""})
    assert hosts.host(model=str(other)).wait(60) == 1
    assert [text(program) for program in programs] == [OUTPUT] * 4
    assert c.ask("info")["adapters"] == ["a"]
    assert list(hosts.engines()) == ["0"]


def test_host_that_starts_with_other_files_of_an_adapter_is_refused(
    hosts: Hosts, other_model: Callable[..., Path]
) -> None:
    """Its digest replaced that of the first engine, which then refused all requests with the adapter."""
    other = other_model("other", say={"count": OUTPUT}, adapters={"a": "other files"}, load_seconds=6)
    c = hosts.start(1, {"adapters": {"a": "/a"}}, str(other), say={"count": OUTPUT}, load_seconds=1)
    assert hosts.hosts[1].wait(60) == 1
    assert len(hosts.engines()) == 1  # engines are numbered as their hosts connect
    program = c.program()
    gen = wire.Gen(0, 0, wire.Sampling(max_tokens=300, temperature=0.0), adapter="a")
    program.submit([wire.Append(0, ("count",)), gen], last=True)
    assert text(program) == OUTPUT


def test_host_with_a_key_that_sends_nonsense_harms_only_itself(hosts: Hosts) -> None:
    hosts.start(1, say={"count": OUTPUT}, step_ms=5)
    context: Any = zmq.Context()
    try:
        keys = tcp_auth.read_keys(hosts.key)
        hello = wire.encode(wire.HostHello(wire.VERSION, time.monotonic()))
        step = wire.encode(wire.Step(finished=tuple(wire.Finish(rid, "length") for rid in range(100))))
        peers = []  # kept open
        for frames in ([b"", b"\xc1"], [b"x"], [b"", hello[:-9]], [b"", wire.encode(wire.HostHello(99, 0.0))]):
            peers.append(tcp_auth.open_connection(context, hosts.address, str(hosts.server_key), keys))
            peers[-1][0].send_multipart(frames)
            assert peers[-1][0].poll(10_000), "it is dismissed"
            assert b"dismiss" in peers[-1][0].recv_multipart()[-1]
        program = hosts.submit()
        peer, _ = tcp_auth.open_connection(context, hosts.address, str(hosts.server_key), keys)
        peer.send_multipart([b"", hello])
        assert peer.poll(10_000)
        peer.send(wire.encode(wire.Ready(64, 16, 512, ("not one of theirs",))))
        peer.send(step)
        assert text(program) == OUTPUT, "an engine cannot end the requests of another"
        peer.send(b"\xc1")
        peer.send_multipart([b"", b"\xc1"])
        wait_until(lambda: list(hosts.engines()) == ["0"], "it is given up", seen=hosts.engines)
        assert text(hosts.submit()) == OUTPUT
    finally:
        context.destroy(0)


def test_late_report_of_a_host_is_not_one_of_the_host_that_replaced_it(hosts: Hosts) -> None:
    server = EngineHosts(config.make(**hosts.options), print)
    link = RemoteLink(server.send, config.make, 60.0)
    context: Any = zmq.Context()

    def receive() -> None:
        assert server._socket.poll(10_000), "a message"
        server.receive(lambda name: link)

    try:
        keys = tcp_auth.read_keys(hosts.key)
        peers = [tcp_auth.open_connection(context, server.address, str(hosts.server_key), keys)[0] for _ in range(2)]
        identities = []
        for peer in peers:
            peer.send_multipart([b"", wire.encode(wire.HostHello(wire.VERSION, 0.0))])
            receive()
            identities.append(link.identity)
            if peer is peers[0]:
                link.give_up("it hung")
                link.start()
        peers[0].send(wire.encode(wire.Step()))
        receive()
        assert not link._inbox
        assert identities[1] != identities[0]
        peers[1].send(wire.encode(wire.Step()))
        receive()
        assert len(link._inbox) == 1

        def forgotten() -> list[bytes]:
            server.probe()
            return list(server._links)

        assert forgotten() == identities, "its connection has not ended"
        peers[0].close(0)
        wait_until(lambda: forgotten() == identities[1:], "the end of the connection", seen=forgotten)
    finally:
        link.close()
        context.destroy(0)
        server.close()


def test_host_that_joins_before_a_death_is_handled_starts_one_engine() -> None:
    starts: list[bytes] = []

    def send(host: bytes, frames: list[bytes]) -> None:
        starts.extend([host] * isinstance(decoders.decode_host_command(frames[-1]), wire.StartEngine))

    link = RemoteLink(send, config.make, 60.0)
    try:
        link.attach(b"1", "one", 0.0)
        link.lost()
        link.attach(b"2", "two", 0.0)
        assert starts == [b"1"], "the loop has not handled the death"
        link.start()
        assert starts == [b"1", b"2"]
        link.lost()
        link.start()
        link.attach(b"3", "three", 0.0)
        assert starts == [b"1", b"2", b"3"]
    finally:
        link.close()


def test_deadlines_are_on_the_clock_of_the_host_that_gets_them() -> None:
    sent: list[bytes] = []

    def send(_: bytes, frames: list[bytes]) -> None:
        sent.extend(frames[:1])  # the first frame of a message to the host itself is empty

    link = RemoteLink(send, config.make, 60.0)
    try:
        now = time.monotonic()
        link.attach(b"1", "one", now - 5000.0)
        link.lost()
        link.start()
        link.send(wire.Run(7, bytes(4), deadline=now + 10.0))
        link.attach(b"2", "two", now + 5000.0)
        link.arrived([wire.encode(wire.Ready(64, 16, 512))])
        link.receive(lambda report: ())
        (deadline,) = [
            run.deadline for run in map(decoders.decode_command, filter(None, sent)) if isinstance(run, wire.Run)
        ]
        assert deadline == pytest.approx(now + 5010.0, abs=1.0)
    finally:
        link.close()


def test_unknown_keys_are_refused_and_logged(hosts: Hosts, tmp_path: Path) -> None:
    lines: list[str] = []
    server = EngineHosts(config.make(**hosts.options), lines.append)
    try:
        _, other = tcp_auth.make_keys(tmp_path / "keys", "stranger")
        stranger = EngineHost([(server.address, str(hosts.server_key))], other, {}, print)
        try:
            with pytest.raises(ConfigError, match="does not know the key"):
                stranger.run()
        finally:
            stranger.close()
        (line,) = lines
        assert tcp_auth.read_keys(other)[0].decode() in line
        assert not server._socket.poll(0), "nothing of it arrived"
    finally:
        server.close()


def test_host_does_not_wait_for_a_server_that_is_gone(hosts: Hosts) -> None:
    """A DEALER that has lost its peer blocks in `send`."""
    server = EngineHosts(config.make(**hosts.options), print)
    context: Any = zmq.Context()
    try:
        joined = engine_host.JoinedServer(server.address, str(hosts.server_key))
        keys = tcp_auth.read_keys(hosts.key)
        joined.sockets = tcp_auth.open_connection(context, server.address, joined.key, keys, zmq.EVENT_DISCONNECTED)
        joined.send(wire.HostHello(wire.VERSION, 0.0))
        assert server._socket.poll(10_000), "it has arrived"
        server.close()
        assert joined.sockets[1].poll(10_000), "the connection broke"
        sender = Thread(target=joined.pass_report, args=(b"report",), daemon=True)
        sender.start()
        sender.join(10)
        assert not sender.is_alive()
        joined.close()
    finally:
        context.destroy(0)


@pytest.mark.parametrize(
    "error",
    [socket.gaierror(socket.EAI_AGAIN, "no answer"), zmq.ZMQError(errno.EMFILE, "no answer")],
    ids=["no address", "no socket"],
)
def test_host_that_cannot_start_an_engine_now_joins_again(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It ended for good when a name could not be resolved, or the machine had no process or socket left."""
    server = hosts._serve(options=hosts.options, say={"count": OUTPUT})
    address = server.report[-1].split()[3].rstrip(",")
    own_address, n_asked = tcp_auth.own_address, 0

    def fail_once(of: str) -> str:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 1:
            raise error
        return own_address(of)

    monkeypatch.setattr(tcp_auth, "own_address", fail_once)
    monkeypatch.setattr(engine_host, "RETRY", 0.1)
    lines: list[str] = []
    alive, end = os.pipe()
    keys = [(address, str(hosts.server_key))]
    host = EngineHost(keys, hosts.key, {}, lines.append, [sys.executable, str(FAKE)], alive)
    threads = ThreadPoolExecutor()
    runs = threads.submit(host.run)
    try:
        hosts.c = client.connect(server.socket, 20)
        hosts._stack.callback(hosts.c.close)
        wait_until(lambda: hosts.states() == ["ready"], "the engine", alive=lambda: not runs.done(), seen=lambda: lines)
        assert text(hosts.submit()) == OUTPUT
        assert any("no answer" in line and "trying every" in line for line in lines)
    finally:
        os.close(end)
        with pytest.raises(EOFError):
            runs.result(30)
        threads.shutdown()
        host.close()
        os.close(alive)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"engine_keys": ""}, "engines_at and engine_keys go together"),
        ({"curve_key": ""}, "engines_at needs curve_key"),
        ({"engines_at": "7200"}, "write it like"),
        ({"engines_at": "", "engine_keys": "", "curve_key": ""}, "there would be no engine"),
        ({"engine_keys": "nowhere"}, "engine_keys nowhere cannot be read"),
        ({"engine_keys": __file__}, "is not a line NAME KEY"),
    ],
)
def test_server_that_cannot_take_hosts_says_why(hosts: Hosts, change: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        EngineHosts(config.make(**hosts.options | change), print).close()


class TwoServers:
    """Two servers, and hosts of engines that both use."""

    def __init__(
        self,
        hosts: Hosts,
        n: int,
        options: dict[str, Any] | None = None,
        second: Callable[[], launch.ServerProcess] | None = None,
        **rule: Any,
    ) -> None:
        """options: those in which the second server differs. second: starts the second server."""
        self._hosts = hosts
        self.servers = [hosts._serve(options=hosts.options, **rule)]
        self.servers.append(second() if second else hosts._serve(options=hosts.options | (options or {}), **rule))
        hosts.address, self.other = (server.report[-1].split()[3].rstrip(",") for server in self.servers)
        hosts.hosts = [hosts.host(also=self.other) for _ in range(n)]

    def connect(self) -> None:
        """Wait until both servers have all engines."""
        self.clients = [client.connect(server.socket, 60) for server in self.servers]
        for c in self.clients:
            self._hosts._stack.callback(c.close)
            self._hosts.c = c
            wait_until(lambda: self._hosts.states() == ["ready"] * len(self._hosts.hosts), "engines")

    def submit(self, k: int, text: str = "count") -> client.Program:
        self._hosts.c = self.clients[k]
        return self._hosts.submit(text)

    def pids(self, k: int) -> list[int]:
        self._hosts.c = self.clients[k]
        return [engine["pid"] for engine in self._hosts.engines().values()]

    def go_on_without_one(self) -> str:
        """Wait until the host of the only engine says that a server cannot use it, and check that the other server goes
        on. Returns what the host has said."""
        (host,) = self._hosts.hosts
        said = ""
        while "cannot use this engine" not in said:
            line = host.stdout.readline()  # type: ignore[union-attr]
            assert line, said
            said += line
            assert said.count("uses engine") < 9, said
        refused = said.rpartition("the server at ")[2].split()[0]
        c = client.connect(self.servers[refused == self._hosts.address].socket, 60)
        self._hosts._stack.callback(c.close)
        self._hosts.c = c
        assert text(self._hosts.submit()) == OUTPUT, "the other server goes on"
        assert host.poll() is None
        return said


def test_servers_that_share_engines_lose_nothing_when_an_engine_a_host_or_a_server_dies(
    hosts: Hosts,
) -> None:
    both = TwoServers(hosts, 2, say={"count": OUTPUT}, step_ms=5)
    both.connect()
    assert sorted(both.pids(0)) == sorted(both.pids(1))
    programs = [both.submit(k % 2, f"{k} count") for k in range(12)]
    os.kill(both.pids(0)[0], signal.SIGKILL)
    wait_until(lambda: [c.ask("stats")["server"]["engine_starts"] for c in both.clients] == [3, 3], "another engine")
    programs += [both.submit(k % 2, f"{k} count") for k in range(12)]
    hosts.hosts[1].kill()
    for k in (0, 1):
        wait_until(lambda k=k: len(both.pids(k)) == 1, "the loss of a host is seen")
    assert [text(program) for program in programs] == [OUTPUT] * 24

    lost, running = both.submit(0), both.submit(1)
    (pid,) = both.pids(1)
    both.servers[0].close()
    assert [text(program) for program in (running, both.submit(1))] == [OUTPUT] * 2
    with pytest.raises(RuntimeLost):
        text(lost)
    c = both.clients[1]
    wait_until(lambda: c.ask("stats")["engine"]["running"] == 0, "what the dead server had in the engine ends")
    assert c.ask("check") == {}

    server = hosts._serve(options=hosts.options | {"engines_at": hosts.address}, say={"count": OUTPUT}, step_ms=5)
    both.clients[0] = client.connect(server.socket, 60)
    hosts._stack.callback(both.clients[0].close)
    assert text(both.submit(0)) == OUTPUT
    assert both.pids(0) == both.pids(1) == [pid], "the engine went on, and the server that came back uses it"


def test_request_that_kills_a_shared_engine_is_given_up_and_no_request_of_another_server(
    hosts: Hosts,
) -> None:
    both = TwoServers(hosts, 1, say={"count": OUTPUT}, step_ms=5, die_on="poison")
    both.connect()
    programs = [both.submit(1, f"{k} count") for k in range(6)]
    with pytest.raises(Quarantined, match="2 engines died of this request"):
        text(both.submit(0, "poison"))
    assert [text(program) for program in programs] == [OUTPUT] * 6
    assert text(both.submit(0)) == OUTPUT


def test_server_with_other_options_cannot_share_the_engine(hosts: Hosts) -> None:
    both = TwoServers(hosts, 1, {"page": 32}, say={"count": OUTPUT})
    said = both.go_on_without_one()
    assert "its host shares it with other servers, but its engines must have page=" in said


def test_server_with_another_tokenizer_cannot_share_the_engine(
    hosts: Hosts, tiny: Any, tmp_path: Path, boot: tuple[str, ...]
) -> None:
    """The host learned it only after it had said that the engine was ready, so the server asked again and again."""

    def second() -> launch.ServerProcess:
        tiny.make_tokenizer(tmp_path / "model", tiny.VOCAB - 9)
        server = launch.start(config.make(model=str(tmp_path / "model"), **hosts.options), 30.0, boot)
        hosts._stack.callback(server.close)
        return server

    said = TwoServers(hosts, 1, second=second, say={"count": OUTPUT}).go_on_without_one()
    assert "its model uses a different tokenizer from that of the other servers" in said
    assert said.count("uses engine") == 1


@pytest.mark.parametrize(
    ("key", "why"), [("", "needs the server's public key"), ("/none", "nor a file"), ("\x7f" * 40, "is not a key")]
)
def test_server_key_that_cannot_be_used_ends_the_host(key: str, why: str, hosts: Hosts) -> None:
    with (
        pytest.raises(ConfigError, match=why),
        closing(EngineHost([("tcp://127.0.0.1:1", key)], hosts.key, {}, print)) as host,
    ):
        host.run()


def test_refusal_of_a_tokenizer_blames_no_request_and_lasts_as_long_as_the_engine(hosts: Hosts) -> None:
    host = EngineHost([("tcp://127.0.0.1:1", "k" * 40)] * 2, hosts.key, {}, print)
    sent: list[Any] = []
    first, second = host._servers
    second.send = sent.append  # type: ignore[method-assign]
    engine: Any = SimpleNamespace(pid=7, socket=SimpleNamespace(send=lambda *_: None), close=lambda: None)
    try:
        assert host._shared is not None
        host._engine, first.config, second.config = engine, host._config, host._config
        first.number, second.number = 0, 1
        for server, spelling in ((first, b"a"), (second, b"b")):
            host._pass_command(server, wire.encode(wire.SetVocabulary(spelling, bytes(4), b"", b"", b"", b"")))
        host._use_engine(second, host._config, engine, host._shared)
        assert [(type(one), one.is_blameless) for one in sent] == [(wire.EngineEnded, True), (wire.EngineEnded, False)]
        assert "a different tokenizer" in sent[1].how
        engine.pid = 8
        host._use_engine(second, host._config, engine, host._shared)
        assert sent[2:] == [wire.EngineStarted(8)]
    finally:
        host.close()


def test_weights_of_a_shared_engine_stay(hosts: Hosts, other_model: Callable[..., Path]) -> None:
    both = TwoServers(hosts, 2, say={"count": OUTPUT})
    both.connect()
    pids = both.pids(0)
    new = other_model("new", weights="new")
    with pytest.raises(BanyanError, match="shares it with other servers, but its engines must have model="):
        both.clients[0].ask("roll", 60, path=str(new))
    for k in (0, 1):
        assert text(both.submit(k)) == OUTPUT
        wait_until(lambda: hosts.states() == ["ready"] * 2, "engines")
        assert sorted(both.pids(k)) == sorted(pids)  # in whatever order they came back


@pytest.mark.long
def test_weights_change_without_a_host_that_dies_while_it_loads_them(
    hosts: Hosts, other_model: Callable[..., Path]
) -> None:
    """The change waited for another host, and every other change waited for its end."""
    c = hosts.start(2, say={"count": OUTPUT}, weights="old")
    new = other_model("new", say={"count": "new"}, weights="new", load_seconds=2)
    with ThreadPoolExecutor() as threads:
        rolled = threads.submit(c.ask, "roll", 60, path=str(new))
        wait_until(lambda: "starting" in hosts.states(), "an engine that loads", seen=hosts.states)
        hosts.hosts[hosts.states().index("starting")].kill()
        rolled.result(60)
    assert hosts.states() == ["ready"]
    assert text(hosts.submit()) == "new"


@pytest.mark.long
def test_host_that_joins_before_the_first_engine_with_new_weights_has_them(
    hosts: Hosts, tmp_path: Path, other_model: Callable[..., Path]
) -> None:
    """It was refused, because its weights were not those of the running engines."""
    c = hosts.start(2, say={"count": OUTPUT}, pause=9, weights="old")
    new = other_model("new", say={"count": "new"}, weights="new")
    programs = [hosts.submit(f"{k} count") for k in range(4)]
    wait_until(lambda: c.ask("stats")["replicas"]["0"]["engine"].get("running"), "requests on engine 0")
    c.ask("stats")  # engine 0 answers after a step, so its requests have output
    with ThreadPoolExecutor() as threads:
        rolled = threads.submit(c.ask, "roll", 60, path=str(new))
        wait_until(lambda: hosts.states() == ["draining", "ready"], "the change", seen=hosts.states)
        joined = hosts.host()
        try:
            wait_until(lambda: hosts.states()[2:] == ["ready"], "it is ready", alive=lambda: joined.poll() is None)
            assert text(hosts.submit()) == "new"
        finally:
            (tmp_path / "model/go").touch()
        assert [text(program) for program in programs] == [OUTPUT] * 4
        rolled.result(60)
    assert hosts.states() == ["ready"] * 3
    assert [text(hosts.submit()) for _ in range(6)] == ["new"] * 6


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("n_servers", [1, 2])
def test_values_after_kills_drains_and_joins_of_real_hosts_equal_those_of_calm_ones(
    native: object, tmp_path: Path, n_servers: int
) -> None:
    """`banyan engine`, killed as a whole and with its engine alone; a second server uses the same engines meanwhile."""
    with ExitStack() as stack:
        hosts = Hosts(tmp_path, launch.start, stack)
        options = {"dtype": "float32", "deterministic": True, "context": 512, "device": "cpu", "max_running": 12}
        words = [sys.executable, "-m", "banyan", "engine", "pocket", "--threads", "1", "--kv-memory", "4096 tokens"]
        words += ["--server-key", str(hosts.server_key), "--key", str(hosts.key), "--device", "cpu"]
        servers = [launch.start(config.make(**hosts.options, **options), timeout=300) for _ in range(n_servers)]
        for server in servers:
            stack.callback(server.close)
            words += ["--join", server.report[-1].split()[3].rstrip(",")]

        def add() -> None:
            n = ready_engines(clients[0])
            stack.callback(hosts._end, subprocess.Popen(words, stdout=2, text=True))
            wait_until(lambda: ready_engines(clients[0]) > n, "another engine", seconds=300)

        stack.callback(hosts._end, subprocess.Popen(words, stdout=2, text=True))
        clients = [client.connect(server.socket, 300) for server in servers]
        for c in clients:
            stack.callback(c.close)
        add()
        first, *others = clients
        if others:
            cold, warm = (
                hosts.submit_to(c, "a prompt that both servers send. " * 9).future(0).result(60) for c in clients
            )
            assert cold.samples[0].text == warm.samples[0].text
            assert (cold.usage.cached, warm.usage.cached >= 64) == (0, True), "one server uses the KV of the other"
        calm = [read_values(start_programs(c)) for c in others]
        is_over = Event()
        values: list[Any] = []

        def keep_on() -> None:
            while not is_over.is_set():
                values.append([read_values(start_programs(c)) for c in others])

        other = Thread(target=keep_on)
        other.start()

        def stop() -> None:
            is_over.set()
            other.join(300)

        stack.callback(stop)
        n = 3 if others else 1
        disturb(first, 2, n_kills=2 * n, n_drains=n, n_joins=n, add=add, at_end=stop)
        assert values
        assert all(value == calm for value in values)
        for c in others:
            assert c.ask("stats", 60)["server"]["requests"] == 0
            assert c.ask("check", 60) == {}
