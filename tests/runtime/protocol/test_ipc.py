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
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All sockets live until `context` closes them: one that is collected open is a warning."""
    sockets_made: list[object] = []

    def keeping(make: Any) -> Any:
        def keep(*args: Any) -> Any:
            sockets_made.append(made := make(*args))
            return made

        return keep

    for name in ("listen", "connect", "pair", "watch"):
        monkeypatch.setattr(ipc, name, keeping(getattr(ipc, name)))
    yield
    sockets_made.clear()


def test_the_directory_is_made_for_its_owner_alone(tmp_path: Path, context: Context) -> None:
    path = tmp_path / "a" / "b" / "s"
    _, lock = ipc.listen(context, path, 1 << 16)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    lock.release()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path, context: Context, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"others may enter .*{mode:o}.*chmod 700"):
        ipc.listen(context, tmp_path / "s", 1 << 16)


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(ConfigError, match="belongs to user"):
        ipc.private_directory(tmp_path)


def test_a_path_beyond_what_linux_takes_is_refused(tmp_path: Path, context: Context) -> None:
    with pytest.raises(ConfigError, match="107 bytes"):
        ipc.listen(context, tmp_path / ("x" * 120), 1 << 16)


def test_where_a_server_listens_no_second_one_may(tmp_path: Path, context: Context) -> None:
    path = tmp_path / "s"
    ipc.listen(context, path, 1 << 16)
    with pytest.raises(ConfigError, match="a server already listens at"):
        ipc.listen(context, path, 1 << 16)
    other = f"""
import sys, zmq
from pathlib import Path
from banyan.runtime.protocol import ipc
try:
    ipc.listen(zmq.Context(), Path({str(path)!r}), 1 << 16)
except ipc.ConfigError as e:
    print(e)
"""
    said = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, timeout=30, check=True).stdout
    assert "a server already listens at" in said
    ipc.connect(context, path)  # and the first is unharmed


def test_anothers_living_socket_is_not_taken_over(tmp_path: Path, context: Context) -> None:
    with sockets.socket(sockets.AF_UNIX) as other:
        other.bind(str(tmp_path / "s"))
        other.listen()
        with pytest.raises(ConfigError, match="already listens"):
            ipc.listen(context, tmp_path / "s", 1 << 16)


def test_the_socket_of_a_dead_server_is_replaced(tmp_path: Path, context: Context) -> None:
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


def test_a_child_of_a_killed_server_cannot_come_in_where_the_next_one_waits_for_its_own(
    tmp_path: Path, context: Context
) -> None:
    """A PAIR takes one peer. Whoever of a killed server looks for it still, when the next one binds, must not be it."""
    path = tmp_path / "s"

    def child(of: Path) -> Any:
        said = context.socket(zmq.PAIR)
        said.connect(ipc.address(of))
        said.send(b"ready")
        return said

    before = ipc.child_path(path, "e")
    killed = ipc.pair(context, before)
    orphan = child(before)
    assert killed.poll(5000)
    killed.close(0)
    assert before.exists(), "who is gone leaves it"
    (tmp_path / "s.e-mine.txt").touch()

    _, lock = ipc.listen(context, path, 1 << 16)
    assert not before.exists()
    assert (tmp_path / "s.e-mine.txt").exists()
    after = ipc.child_path(path, "e")
    server = ipc.pair(context, after)
    time.sleep(0.3)  # the orphan tries again each tenth of a second
    engine = child(after)
    assert server.poll(5000)
    assert server.recv() == b"ready"
    orphan.close(0)
    engine.close(0)
    lock.release()


def test_a_refused_place_stays_free(tmp_path: Path, context: Context) -> None:
    path = tmp_path / "s"
    path.write_text("a user's file")
    with pytest.raises(ConfigError, match="a file, not a socket"):
        ipc.listen(context, path, 1 << 16)
    assert path.read_text() == "a user's file"
    with pytest.raises(ConnectFailed, match="a file, not a socket"):
        ipc.connect(context, path)
    path.unlink()
    ipc.listen(context, path, 1 << 16)


def test_no_socket_at_all(tmp_path: Path, context: Context) -> None:
    with pytest.raises(ConnectFailed, match=r"there is no socket at .*banyan serve --socket"):
        ipc.connect(context, tmp_path / "s")


def test_a_message_beyond_the_limit_costs_its_sender_the_connection_and_nobody_else(
    tmp_path: Path, context: Context
) -> None:
    router, _ = ipc.listen(context, tmp_path / "s", 1 << 16)
    good, _ = ipc.connect(context, tmp_path / "s")
    bad, broken = ipc.connect(context, tmp_path / "s")
    bad.send(b"x" * (1 << 17))
    assert broken.poll(5000)
    assert ipc.drain(broken)
    assert not ipc.drain(broken)
    good.send(b"x" * (1 << 16))
    assert router.poll(5000)
    assert len(router.recv_multipart()[1]) == 1 << 16
    assert not router.poll(50)


def test_a_break_is_seen_on_both_sides(tmp_path: Path, context: Context) -> None:
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


def test_an_engine_hangs_on_a_pair(tmp_path: Path, context: Context) -> None:
    server = ipc.pair(context, tmp_path / "e")
    engine = context.socket(zmq.PAIR)
    engine.connect(ipc.address(tmp_path / "e"))
    engine.send(b"ready")
    assert server.poll(5000)
    assert server.recv() == b"ready"
    server.send(b"run", zmq.NOBLOCK)
    assert engine.poll(5000)
    assert engine.recv() == b"run"
    engine.close(0)
