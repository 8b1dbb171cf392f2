"""tcp:// needs keys and a token, and every wrong one is a clear error in bounded time."""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zmq

import banyan as bn
from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.errors import ConfigError, ConnectFailed
from banyan.runtime.protocol import ipc, tcp_auth, wire
from banyan.runtime.server.listeners import Listeners
from banyan.runtime.server.policy.token_throttle import network
from forms import short_form
from waits import wait_until

TOKEN = "ann-0123456789abcdef"
ERROR_SECONDS = 15.0
"""Upper bound until an error is raised, on a loaded machine."""


class TcpServer(NamedTuple):
    address: str
    key: str
    server: launch.ServerProcess


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tcp_auth.make_keys(tmp_path_factory.mktemp("keys") / "private")


@pytest.fixture
def tcp_server(
    serve: Callable[..., launch.ServerProcess], keys: tuple[Path, Path], token_file: Callable[..., str]
) -> TcpServer:
    """A server that listens on TCP as well as on its socket."""
    tokens = token_file(f"ann {TOKEN} operator\nbob bob-{TOKEN}\n")
    options = {"bind": "tcp://127.0.0.1:0", "curve_key": str(keys[1]), "token_file": tokens}
    server = serve(options=options, say={"a": "hello"})
    with contextlib.closing(client.connect(server.socket, 30, TOKEN)) as by_socket:
        address = by_socket.ask("info")["address"]
    assert address in server.report[-1]
    return TcpServer(address, server.report[-1].split()[-1], server)


def can_run(c: client.Client) -> bool:
    program = c.program()
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0)], last=True)
    return program.future(0).result(30).samples[0].text == "hello"


def test_key_and_token_give_access_by_tcp(tcp_server: TcpServer, keys: tuple[Path, Path]) -> None:
    with (
        contextlib.closing(client.connect(tcp_server.server.socket, 30, TOKEN)) as by_socket,
        contextlib.closing(client.connect(tcp_server.address, 30, TOKEN, tcp_server.key)) as by_key,
        contextlib.closing(client.connect(tcp_server.address, 30, f"bob-{TOKEN}", str(keys[0]))) as by_file,
    ):
        assert all(map(can_run, (by_socket, by_key, by_file)))
        assert client.connect(tcp_server.address, 30, TOKEN, tcp_server.key) is by_key


def test_listeners_know_the_address_of_a_peer(keys: tuple[Path, Path], tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    context: Any = zmq.Context()
    options = {"bind": "tcp://127.0.0.1:0", "curve_key": str(keys[1]), "socket": str(tmp_path / "s")}
    listeners = Listeners(context, config.make(**options))
    try:
        remote = tcp_auth.connect(context, listeners.address, str(keys[0]), 10)[0]
        local = ipc.connect(context, tmp_path / "s")[0]
        for sender, peer in ((remote, "127.0.0.1"), (local, "the local socket"), (remote, "127.0.0.1")):
            sender.send(b"hello")
            found: list[Any] = []
            wait_until(lambda: bool(found.extend(listeners.receive()) or found), "a message")  # noqa: B023
            assert [frames for _, frames in found] == [[b"hello"]]
            assert network(listeners.peer) == peer
    finally:
        listeners.release()
        context.destroy(0)


def test_bn_connect_takes_key_and_token_from_arguments_or_environment(
    tcp_server: TcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bn.connect(tcp_server.address, 30, token=TOKEN, server_key=tcp_server.key) as endpoint:
        assert tcp_server.address in repr(endpoint)
        assert TOKEN not in repr(endpoint)
    monkeypatch.setenv(config.TOKEN, TOKEN)
    monkeypatch.setenv(config.SERVER_KEY, tcp_server.key)
    with bn.connect(tcp_server.address, 30) as endpoint:
        assert can_run(endpoint.client)


@pytest.mark.parametrize(
    ("token", "key", "error"),
    short_form(
        [
            (TOKEN, "another", "is that its public key"),
            (TOKEN, "", "needs the server's public key"),
            (TOKEN, "x" * 39, "neither a key of 40 characters nor a file"),
            (TOKEN, "\x7f" * 40, "is not a key"),
            ("", "right", "this server requires a token"),
            ("wrong-0123456789abcdef", "right", "the token is wrong"),
        ],
        lambda token, key, error: token != TOKEN or key == "another",
    ),
)
def test_wrong_key_or_token_raises_in_bounded_time(tcp_server: TcpServer, token: str, key: str, error: str) -> None:
    key = {"right": tcp_server.key, "another": zmq.curve_keypair()[0].decode()}.get(key, key)
    start = time.monotonic()
    with pytest.raises(ConnectFailed, match=error):
        client.connect(tcp_server.address, 60, token, key)
    assert time.monotonic() - start < ERROR_SECONDS
    with contextlib.closing(client.connect(tcp_server.address, 30, TOKEN, tcp_server.key)) as good:
        assert can_run(good), "other clients still work"


def test_unencrypted_peer_gets_no_answer(tcp_server: TcpServer) -> None:
    context: Any = zmq.Context()
    try:
        plain = context.socket(zmq.DEALER)
        plain.connect(tcp_server.address)
        plain.send(wire.encode(wire.Hello(wire.VERSION, token=TOKEN)))
        assert not plain.poll(1000)
    finally:
        context.destroy(0)
    host, port = config.tcp(tcp_server.address)
    with sockets.create_connection((host, port), 5) as raw:
        raw.sendall(os.urandom(1 << 16))
        raw.settimeout(ERROR_SECONDS)
        with contextlib.suppress(ConnectionResetError):
            while raw.recv(1 << 16):  # until the server closes the connection
                pass
    with contextlib.closing(client.connect(tcp_server.address, 30, TOKEN, tcp_server.key)) as good:
        assert can_run(good)


CLIENT_SCRIPT = """
import sys, time
from banyan.runtime.client import client
from banyan.runtime.protocol import wire
address, token, key = sys.argv[1:]
c = client.connect(address, 30, token, key)
program = c.program()
program.submit([wire.Append(0, ("x",)), wire.Append(0, (wire.Ref(9),))])
c.ask("info")
print(flush=True)
time.sleep(100)
"""


def test_killed_tcp_client_frees_its_resources_at_once(tcp_server: TcpServer) -> None:
    with contextlib.closing(client.connect(tcp_server.server.socket, 30, TOKEN)) as by_socket:
        argv = [sys.executable, "-c", CLIENT_SCRIPT, tcp_server.address, TOKEN, tcp_server.key]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        server = by_socket.ask("stats")["server"]
        assert (server["clients"], server["programs"]) == (2, 1)
        process.kill()
        process.wait(30)
        process.stdout.close()

        def is_free() -> bool:
            server = by_socket.ask("stats")["server"]
            return (server["clients"], server["programs"]) == (1, 0)

        wait_until(is_free, "freed resources before the silence timeout", seconds=ipc.MAX_SILENT / 2)


def test_connect_to_unused_port_fails_at_once() -> None:
    with sockets.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectFailed, match=r"nobody listens at tcp://127\.0\.0\.1"):
        client.connect(f"tcp://127.0.0.1:{port}", 30, TOKEN, zmq.curve_keypair()[0].decode())
    with pytest.raises(ConnectFailed, match="server_key is for tcp://"):
        client.connect("/nowhere/s", 5, TOKEN, "x" * 40)


# ---- the server's side ---------------------------------------------------------------------------------------------


def test_tcp_addresses_are_parsed() -> None:
    assert config.tcp("tcp://10.0.0.1:7100") == ("10.0.0.1", 7100)
    assert config.tcp("tcp://[::1]:0") == ("::1", 0)
    assert config.tcp("tcp://some.host:1") == ("some.host", 1)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"token_file": ""}, "anybody could connect"),
        ({"curve_key": "none"}, "curve_key .*none cannot be read"),
        ({"bind": "tcp://203.0.113.7:1"}, "cannot listen at tcp://203.0.113.7:1"),
    ],
)
def test_server_that_cannot_listen_raises_with_the_reason(
    serve: Callable[..., launch.ServerProcess],
    keys: tuple[Path, Path],
    token_file: Callable[..., str],
    change: dict[str, str],
    error: str,
) -> None:
    tokens = token_file(f"ann {TOKEN}\n")
    options = {"bind": "tcp://127.0.0.1:0", "curve_key": str(keys[1]), "token_file": tokens}
    with pytest.raises(ConfigError, match=error):
        serve(options=options | change)


def test_tcp_address_as_socket_is_refused(serve: Callable[..., launch.ServerProcess]) -> None:
    with pytest.raises(ConfigError, match="to listen on tcp, set `bind`"):
        serve(options={"socket": "tcp://127.0.0.1:7100"})


def test_keys_are_private_files_of_their_owner(
    tmp_path: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from banyan.cli import main as cli

    assert cli.main(["keys", str(tmp_path / "k")]) == 0
    shown, secret = capsys.readouterr().out, tmp_path / "k" / "server.key_secret"
    assert str(secret) in shown
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o700
    assert secret.stat().st_mode & 0o077 == 0
    public = tcp_auth.read_keys(secret)[0]
    assert public == tcp_auth.public_key(str(tmp_path / "k" / "server.key")) == tcp_auth.public_key(public.decode())
    assert cli.main(["keys", str(tmp_path / "k")]) == 2
    assert "exists already" in capsys.readouterr().err
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        tcp_auth.read_keys(secret)
    (half := tmp_path / "k" / "half").write_text((tmp_path / "k" / "server.key").read_text())
    half.chmod(0o600)
    with pytest.raises(ConfigError, match="no secret key"):
        tcp_auth.read_keys(half)


def test_public_key_never_starts_like_a_command_line_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(start + public[1:], secret) for start in (b"-", b"-", b"0") for public, secret in [zmq.curve_keypair()]]
    keypairs = iter(pairs)
    monkeypatch.setattr(zmq, "curve_keypair", lambda: next(keypairs))
    _, secret = tcp_auth.make_keys(tmp_path / "keys")
    assert tcp_auth.read_keys(secret)[0] == pairs[2][0], "the first key without a leading dash"


@pytest.mark.long
def test_command_line_connects_with_token_and_key(tcp_server: TcpServer, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(f"# a comment\nbob-{TOKEN}\n")
    argv = [sys.executable, "-m", "banyan", "top", "--once", "--seconds", "0.1", "--socket", tcp_server.address]
    argv += ["--token-file", str(token_file), "--server-key", tcp_server.key]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "'bob' is not an operator" in done.stderr, "the connection was accepted"
    token_file.write_text("\n")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert "contains no token" in done.stderr


def test_own_address_is_that_of_the_way_to_a_peer() -> None:
    assert tcp_auth.own_address("tcp://127.0.0.1:7100") == "127.0.0.1"
