"""The server's connection to an engine process."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest
import zmq

from banyan.runtime import config, launch
from banyan.runtime.protocol import ipc, wire
from banyan.runtime.server.engine_link.link import EngineLink
from waits import wait_until


def test_reports_that_came_together_are_handled_one_by_one_if_it_is_late(tmp_path: Path) -> None:
    """In one piece, the answers to 250 questions would hold the server's loop for 9 ms, and those to 20 checks for
    67 ms."""
    context: Any = zmq.Context()
    tmp_path.chmod(0o700)
    with closing(EngineLink(context, config.make(), tmp_path / "s", ("true",))) as link:
        engine = context.socket(zmq.PAIR)
        engine.connect(ipc.address(link._process._address))
        for number in range(4):
            engine.send(wire.encode(wire.Answer(number, True)))
        handled: list[wire.EngineReport] = []

        def receive(is_late: bool) -> None:
            link.receive(lambda report: handled.append(report) or (), lambda: is_late)

        wait_until(lambda: link.socket.poll(0) and (receive(True) or handled), "the first report")
        for number in (1, 2):
            wait_until(lambda number=number: receive(True) or len(handled) > number, "the next report")
            assert (len(handled), link.is_busy) == (number + 1, True)
        wait_until(lambda: receive(False) or len(handled) == 4, "the last report")
        assert not link.is_busy
    context.destroy(linger=0)


def test_socket_that_cannot_be_read_does_not_hold_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    context: Any = zmq.Context()
    tmp_path.chmod(0o700)
    with closing(EngineLink(context, config.make(), tmp_path / "s", ("true",))) as link:
        n_read = 0

        def read() -> bytes:
            nonlocal n_read
            n_read += 1
            if n_read > 9:
                pytest.fail("it is read without end")
            raise zmq.ZMQError(zmq.ENOTSOCK)

        link._next = read
        link.receive(lambda report: ())
        assert n_read == 1
        assert "it sent an invalid report" in link.death().how
    assert "ZMQError" in capsys.readouterr().err
    context.destroy(linger=0)


def test_engine_that_does_not_end_is_replaced_later_and_does_not_hold_the_loop(tmp_path: Path) -> None:
    """When an engine gets other weights, the loop does not stand still until the engine before has ended, which may
    take 5 s."""
    context: Any = zmq.Context()
    tmp_path.chmod(0o700)
    asleep = ("sh", "-c", "exec sleep 600")  # it does not notice that its pipe is closed
    with closing(EngineLink(context, config.make(), tmp_path / "s", asleep)) as link:
        before = link._process
        link.start()
        assert (link.socket, link.life, link.pid) == (None, -1, -1)
        assert before._child.is_alive
        link.send(wire.Run(1, b""))
        link.start()
        assert link._process is before, "the next one needs the memory"
        before.kill()
        wait_until(lambda: link.start() or link.life >= 0, "the next engine")
        assert list(link._queued) == [("run", 1)]
        link._process.kill()
    context.destroy(linger=0)


def test_commands_wait_for_an_engine_that_cannot_be_started_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context: Any = zmq.Context()
    tmp_path.chmod(0o700)

    def fail(*_: Any, **options: Any) -> NoReturn:
        raise BlockingIOError("too many processes")

    with closing(EngineLink(context, config.make(), tmp_path / "s", ("true",))) as link:
        monkeypatch.setattr(launch.ChildProcess, "__init__", fail)
        with pytest.raises(BlockingIOError):
            link.start()
        assert (link.socket, link.life, link.pid) == (None, -1, -1)
        assert not list(tmp_path.iterdir()), "the socket of the engine is left behind"
        link.send(wire.Run(1, b""))
        with pytest.raises(BlockingIOError):
            link.start()
        monkeypatch.undo()
        link.start()
        assert link.life >= 0
        assert list(link._queued) == [("run", 1)]
    context.destroy(linger=0)
