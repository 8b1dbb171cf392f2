from __future__ import annotations

import os
import socket as sockets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from banyan.runtime.errors import ConfigError, ConnectFailed
from banyan.runtime.protocol import ipc

Context = zmq.Context  # type: ignore[type-arg]


@pytest.fixture
def context() -> Iterator[Context]:
    created: Context = zmq.Context()
    yield created
    created.destroy(linger=0)


@pytest.fixture(autouse=True)
def keep_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keeps all sockets until `context` closes them: collecting an open socket is a warning."""
    created: list[object] = []

    def keeping(create: Any) -> Any:
        def create_and_keep(*args: Any) -> Any:
            created.append(result := create(*args))
            return result

        return create_and_keep

    for name in ("listen", "connect", "pair", "watch"):
        monkeypatch.setattr(ipc, name, keeping(getattr(ipc, name)))
    yield
    created.clear()


def test_socket_directory_is_created_with_mode_0700(tmp_path: Path, context: Context) -> None:
    path = tmp_path / "a" / "b" / "s"
    _, lock = ipc.listen(context, path, 1 << 16)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    lock.release()


def test_parents_of_a_private_directory_are_private_too(tmp_path: Path) -> None:
    ipc.private_directory(tmp_path / "a" / "keys")
    ipc.private_directory(tmp_path / "a")  # as `banyan keys ~/.banyan/keys` and then `serve --socket ~/.banyan/s`


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_directory_open_to_others_is_refused(tmp_path: Path, context: Context, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"other users may enter .*{mode:o}.*chmod 700"):
        ipc.listen(context, tmp_path / "s", 1 << 16)


def test_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "keys"):
        with pytest.raises(ConfigError, match=f"{path} cannot be created: File exists"):
            ipc.private_directory(path)


def test_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(ConfigError, match="belongs to user"):
        ipc.private_directory(tmp_path)


def test_too_long_socket_path_is_refused(tmp_path: Path, context: Context) -> None:
    with pytest.raises(ConfigError, match="107 bytes"):
        ipc.listen(context, tmp_path / ("x" * 120), 1 << 16)


def test_second_server_on_a_socket_is_refused(tmp_path: Path, context: Context) -> None:
    path = tmp_path / "s"
    ipc.listen(context, path, 1 << 16)
    with pytest.raises(ConfigError, match="a server already listens at"):
        ipc.listen(context, path, 1 << 16)
    script = f"""
import sys, zmq
from pathlib import Path
from banyan.runtime.protocol import ipc
try:
    ipc.listen(zmq.Context(), Path({str(path)!r}), 1 << 16)
except ipc.ConfigError as e:
    print(e)
"""
    argv = [sys.executable, "-c", script]
    output = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout
    assert "a server already listens at" in output
    ipc.connect(context, path)  # the first server still listens


def test_live_socket_of_another_program_is_not_replaced(tmp_path: Path, context: Context) -> None:
    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with pytest.raises(ConfigError, match="already listens"):
            ipc.listen(context, tmp_path / "s", 1 << 16)


def test_socket_of_a_dead_server_is_replaced(tmp_path: Path, context: Context) -> None:
    path = tmp_path / "s"
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with pytest.raises(ConnectFailed, match="is gone; start it again"):
        ipc.connect(context, path)
    router, _ = ipc.listen(context, path, 1 << 16)
    dealer, _ = ipc.connect(context, path)
    dealer.send(b"hello")
    assert router.poll(5000)
    assert router.recv_multipart()[1] == b"hello"


def test_child_of_a_killed_server_cannot_connect_to_the_next_server(tmp_path: Path, context: Context) -> None:
    """A PAIR takes one peer: an orphan that still reconnects must not become the peer of the next server."""
    path = tmp_path / "s"

    def connect_child(address: Path) -> Any:
        child = context.socket(zmq.PAIR)
        child.connect(ipc.address(address))
        child.send(b"ready")
        return child

    before = ipc.child_path(path, "e")
    killed = ipc.pair(context, before)
    orphan = connect_child(before)
    assert killed.poll(5000)
    killed.close(0)
    assert before.exists(), "a killed server leaves its socket file"
    (tmp_path / "s.e-mine.txt").touch()

    _, lock = ipc.listen(context, path, 1 << 16)
    assert not before.exists()
    assert (tmp_path / "s.e-mine.txt").exists()
    after = ipc.child_path(path, "e")
    server = ipc.pair(context, after)
    time.sleep(0.3)  # the orphan reconnects every 0.1 s
    engine = connect_child(after)
    assert server.poll(5000)
    assert server.recv() == b"ready"
    orphan.close(0)
    engine.close(0)
    lock.release()


def test_regular_file_at_the_socket_path_is_refused_and_kept(tmp_path: Path, context: Context) -> None:
    path = tmp_path / "s"
    path.write_text("a user's file")
    with pytest.raises(ConfigError, match="a file, not a socket"):
        ipc.listen(context, path, 1 << 16)
    assert path.read_text() == "a user's file"
    with pytest.raises(ConnectFailed, match="a file, not a socket"):
        ipc.connect(context, path)
    path.unlink()
    ipc.listen(context, path, 1 << 16)


def test_connect_to_missing_socket_fails(tmp_path: Path, context: Context) -> None:
    with pytest.raises(ConnectFailed, match=r"there is no socket at .*banyan serve --socket"):
        ipc.connect(context, tmp_path / "s")


def test_oversized_message_closes_only_its_senders_connection(tmp_path: Path, context: Context) -> None:
    router, _ = ipc.listen(context, tmp_path / "s", 1 << 16)
    good, _ = ipc.connect(context, tmp_path / "s")
    bad, broken = ipc.connect(context, tmp_path / "s")
    assert broken.poll(5000)
    ipc.connected(broken)
    bad.send(b"x" * (1 << 17))
    assert broken.poll(5000)
    assert ipc.drain(broken)
    assert not ipc.drain(broken)
    good.send(b"x" * (1 << 16))
    assert router.poll(5000)
    assert len(router.recv_multipart()[1]) == 1 << 16
    assert not router.poll(50)


def test_broken_connection_is_seen_on_both_sides(tmp_path: Path, context: Context) -> None:
    router, _ = ipc.listen(context, tmp_path / "s", 1 << 16)
    breaks = ipc.watch(router)
    dealer, _ = ipc.connect(context, tmp_path / "s")
    dealer.send(b"x")
    name, _ = router.recv_multipart()
    dealer.disable_monitor()
    dealer.close(0)
    assert breaks.poll(5000)
    time.sleep(0.05)
    with pytest.raises(zmq.ZMQError):
        router.send_multipart((name, b"are you there?"), zmq.NOBLOCK)
