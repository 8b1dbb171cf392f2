"""Servers with a fake engine, as processes; and the model directory they read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime import config, launch
from banyan.runtime.client import client

FAKE = Path(__file__).parent / "server" / "fake_engine.py"
BOOT = f"""
import sys
from banyan.runtime.server.worker import main
sys.exit(main(sys.argv[1:], engine=[sys.executable, {str(FAKE)!r}]))
"""


@pytest.fixture(scope="session")
def boot(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The command of a server whose engine is fake_engine.py."""
    file = tmp_path_factory.mktemp("boot") / "boot.py"
    file.write_text(BOOT)
    return (sys.executable, str(file))


@pytest.fixture
def fake_model(tiny: ModuleType, tmp_path: Path) -> Callable[..., Path]:
    """`fake_model(say={...}, ...) -> Path`: a directory whose engine does what fake_engine.py says of these options."""

    def make(**rule: Any) -> Path:
        path = tmp_path / "model"
        path.mkdir(exist_ok=True)
        tiny.make_tokenizer(path)
        (path / "fake.json").write_text(json.dumps(rule))
        return path

    return make


@pytest.fixture
def serve(boot: tuple[str, ...], fake_model: Callable[..., Path]) -> Iterator[Callable[..., launch.ServerProcess]]:
    """`serve(say={...}, options={...}) -> ServerProcess`: a running server, closed after the test."""
    with ExitStack() as stack:

        def start(options: dict[str, Any] | None = None, **rule: Any) -> launch.ServerProcess:
            made = config.make(model=str(fake_model(**rule)), **(options or {}))
            server = launch.start(made, timeout=30.0, command=boot)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def join(serve: Callable[..., launch.ServerProcess]) -> Iterator[Callable[..., client.Client]]:
    """`join(say={...}) -> Client` of a server of its own."""
    with ExitStack() as stack:

        def start(**rule: Any) -> client.Client:
            c = client.connect(serve(**rule).socket)
            stack.callback(c.close)
            return c

        yield start
