"""tcp://: with keys and a token or not at all, and every wrong one is one clear error in bounded time."""

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
from waits import wait_until

TOKEN = "ann-0123456789abcdef"
SECONDS = 15.0
"""Within which whatever is wrong has to be said, on a machine that others use too."""


class Place(NamedTuple):
    address: str
    key: str
    server: launch.ServerProcess


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tcp_auth.make_keys(tmp_path_factory.mktemp("keys") / "private")


@pytest.fixture
def place(serve: Callable[..., launch.ServerProcess], keys: tuple[Path, Path], tmp_path: Path) -> Place:
    """A server that listens on tcp as well."""
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(f"ann {TOKEN} operator\nbob bob-{TOKEN}\n")
    options = {"bind": "tcp://127.0.0.1:0", "curve_key": str(keys[1]), "token_file": str(file)}
    server = serve(options=options, say={"a": "hello"})
    with contextlib.closing(client.connect(server.socket, 30, TOKEN)) as near:
        address = near.ask("info")["address"]
    assert address in server.report[-1]
    return Place(address, server.report[-1].split()[-1], server)


def works(c: client.Client) -> bool:
    program = c.program()
    program.submit([wire.Append(0, ("a",)), wire.Gen(0, 0)], last=True)
    return program.future(0).result(30).samples[0].text == "hello"


def test_who_has_key_and_token_comes_in_by_tcp_as_by_the_socket(place: Place, keys: tuple[Path, Path]) -> None:
    with (
        contextlib.closing(client.connect(place.server.socket, 30, TOKEN)) as near,
        contextlib.closing(client.connect(place.address, 30, TOKEN, place.key)) as far,
        contextlib.closing(client.connect(place.address, 30, f"bob-{TOKEN}", str(keys[0]))) as by_file,
    ):
        assert all(map(works, (near, far, by_file)))
        assert client.connect(place.address, 30, TOKEN, place.key) is far


def test_the_language_and_its_environment_reach_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with bn.connect(place.address, 30, token=TOKEN, server_key=place.key) as endpoint:
        assert place.address in repr(endpoint)
        assert TOKEN not in repr(endpoint)
    monkeypatch.setenv(config.TOKEN, TOKEN)
    monkeypatch.setenv(config.SERVER_KEY, place.key)
    with bn.connect(place.address, 30) as endpoint:
        assert works(endpoint.client)


@pytest.mark.parametrize(
    ("token", "key", "says"),
    [
        (TOKEN, "another", "is that its public key"),
        (TOKEN, "", "wants the server's public key"),
        (TOKEN, "x" * 39, "neither a key of 40 characters nor a file"),
        (TOKEN, "\x7f" * 40, "is no key"),
        ("", "right", "it wants a token"),
        ("wrong-0123456789abcdef", "right", "the token is wrong"),
    ],
)
def test_a_wrong_key_or_token_is_one_clear_error_in_bounded_time(place: Place, token: str, key: str, says: str) -> None:
    key = {"right": place.key, "another": zmq.curve_keypair()[0].decode()}.get(key, key)
    began = time.monotonic()
    with pytest.raises(ConnectFailed, match=says):
        client.connect(place.address, 60, token, key)
    assert time.monotonic() - began < SECONDS
    with contextlib.closing(client.connect(place.address, 30, TOKEN, place.key)) as good:
        assert works(good), "and nobody else is harmed"


def test_who_speaks_without_encryption_is_not_heard(place: Place) -> None:
    context: Any = zmq.Context()
    try:
        plain = context.socket(zmq.DEALER)
        plain.connect(place.address)
        plain.send(wire.encode(wire.Hello(wire.VERSION, token=TOKEN)))
        assert not plain.poll(1000)
    finally:
        context.destroy(0)
    host, port = config.tcp(place.address)
    with sockets.create_connection((host, port), 5) as raw:
        raw.sendall(os.urandom(1 << 16))
        raw.settimeout(SECONDS)
        with contextlib.suppress(ConnectionResetError):
            while raw.recv(1 << 16):  # until it hangs up
                pass
    with contextlib.closing(client.connect(place.address, 30, TOKEN, place.key)) as good:
        assert works(good)


VANISHING = """
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


def test_a_client_that_vanishes_from_tcp_frees_what_it_had_at_once(place: Place) -> None:
    with contextlib.closing(client.connect(place.server.socket, 30, TOKEN)) as near:
        argv = [sys.executable, "-c", VANISHING, place.address, TOKEN, place.key]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        server = near.ask("stats")["server"]
        assert (server["clients"], server["programs"]) == (2, 1)
        process.kill()
        process.wait(30)
        process.stdout.close()

        def is_free() -> bool:
            server = near.ask("stats")["server"]
            return (server["clients"], server["programs"]) == (1, 0)

        wait_until(is_free, "an end before the client is given up as silent", seconds=ipc.MAX_SILENT / 2)


def test_a_port_where_nobody_listens_is_said_at_once() -> None:
    with sockets.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectFailed, match=r"nobody listens at tcp://127\.0\.0\.1"):
        client.connect(f"tcp://127.0.0.1:{port}", 30, TOKEN, zmq.curve_keypair()[0].decode())
    with pytest.raises(ConnectFailed, match="server_key is for tcp://"):
        client.connect("/nowhere/s", 5, TOKEN, "x" * 40)


# ---- the server's side ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bind": "tcp://127.0.0.1:0"}, "banyan keys DIR"),
        ({"bind": "tcp://*:7100", "curve_key": "k"}, "write it like tcp://10.0.0.1:7100"),
        ({"bind": "7100", "curve_key": "k"}, "write it like"),
        ({"bind": "tcp://h:70000", "curve_key": "k"}, "write it like"),
        ({"curve_key": "k"}, "bind is not set"),
    ],
)
def test_no_tcp_without_keys_and_an_address(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("*", r"\*")):
        config.make(**options)


def test_addresses() -> None:
    assert config.tcp("tcp://10.0.0.1:7100") == ("10.0.0.1", 7100)
    assert config.tcp("tcp://[::1]:0") == ("::1", 0)
    assert config.tcp("tcp://some.host:1") == ("some.host", 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"token_file": ""}, "anybody could come in"),
        ({"curve_key": "none"}, "curve_key .*none cannot be read"),
        ({"bind": "tcp://203.0.113.7:1"}, "cannot listen at tcp://203.0.113.7:1"),
    ],
)
def test_a_server_that_cannot_listen_says_why(
    serve: Callable[..., launch.ServerProcess],
    keys: tuple[Path, Path],
    tmp_path: Path,
    change: dict[str, str],
    says: str,
) -> None:
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(f"ann {TOKEN}\n")
    options = {"bind": "tcp://127.0.0.1:0", "curve_key": str(keys[1]), "token_file": str(file)}
    with pytest.raises(ConfigError, match=says):
        serve(options=options | change)


def test_a_socket_is_a_path(serve: Callable[..., launch.ServerProcess]) -> None:
    with pytest.raises(ConfigError, match="`bind` is what listens"):
        serve(options={"socket": "tcp://127.0.0.1:7100"})


def test_keys_are_for_their_owner(tmp_path: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    from banyan.cli import main as cli

    assert cli.main(["keys", str(tmp_path / "k")]) == 0
    shown, secret = capsys.readouterr().out, tmp_path / "k" / "server.key_secret"
    assert str(secret) in shown
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o700
    assert secret.stat().st_mode & 0o077 == 0
    public = tcp_auth.read_keys(secret)[0]
    assert public == tcp_auth.public_key(str(tmp_path / "k" / "server.key")) == tcp_auth.public_key(public.decode())
    assert cli.main(["keys", str(tmp_path / "k")]) == 2
    assert "is there already" in capsys.readouterr().err
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        tcp_auth.read_keys(secret)
    (half := tmp_path / "k" / "half").write_text((tmp_path / "k" / "server.key").read_text())
    half.chmod(0o600)
    with pytest.raises(ConfigError, match="no secret key"):
        tcp_auth.read_keys(half)


def test_a_public_key_can_be_given_on_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(start + public[1:], secret) for start in (b"-", b"-", b"0") for public, secret in [zmq.curve_keypair()]]
    made = iter(pairs)
    monkeypatch.setattr(zmq, "curve_keypair", lambda: next(made))
    _, secret = tcp_auth.make_keys(tmp_path / "keys")
    assert tcp_auth.read_keys(secret)[0] == pairs[2][0], "not one that would be read as an option"


def test_the_command_line_comes_in_with_a_token_and_a_key(place: Place, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text(f"# the one I was given\nbob-{TOKEN}\n")
    argv = [sys.executable, "-m", "banyan.cli.main", "top", "--once", "--seconds", "0.1", "--socket", place.address]
    argv += ["--token-file", str(mine), "--server-key", place.key]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "'bob' is no operator" in done.stderr, "it came in"
    mine.write_text("\n")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert "contains no token" in done.stderr
