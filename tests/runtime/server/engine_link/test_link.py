"""The server's connection to an engine process."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import zmq

from banyan.runtime import config
from banyan.runtime.protocol import ipc, wire
from banyan.runtime.server.engine_link.link import EngineLink
from waits import wait_until


def test_reports_that_came_together_are_handled_one_by_one_if_it_is_late(tmp_path: Path) -> None:
    """The answers of 250 questions took 9 ms in one piece of the server's loop, and 20 checks 67 ms."""
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
