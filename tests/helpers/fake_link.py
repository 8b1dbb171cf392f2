"""A replica whose engine is an object of the test."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.replica_process import ReplicaProcess
from banyan.runtime.server.engine_link.requests import EngineRequests

READY = wire.Ready(64, 16, 512)


def add_engine(
    requests: EngineRequests, send: Callable[[Any], None] = lambda command: None, name: str = "0"
) -> ReplicaProcess:
    """Add an engine that is ready. send: gets its commands."""
    link: Any = SimpleNamespace(send=send, ready=READY)
    requests.add_engine(replica := ReplicaProcess(name, link))
    return replica


def set_ready(replica: ReplicaProcess, is_ready: bool) -> None:
    replica.link.ready = READY if is_ready else None
