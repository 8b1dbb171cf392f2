"""Server processes with a fake engine, and their model directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from banyan.runtime import config, launch
from banyan.runtime.client import client
from waits import wait_until

FAKE = Path(__file__).parent / "server" / "fake_engine.py"
BOOT = """
import gc
import sys
gc.disable()  # as in runtime/server/__main__.py
from banyan.runtime.protocol import ipc
{change}
from banyan.runtime.server.worker import main
sys.exit(main(sys.argv[1:], engine=[sys.executable, {fake!r}]))
"""


@pytest.fixture(scope="session")
def write_boot(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, ...]]:
    """`write_boot("ipc.MAX_SILENT = 3")`: the command of a server with fake_engine.py as its engine, which executes
    this change of its modules first."""

    def write(change: str) -> tuple[str, ...]:
        file = tmp_path_factory.mktemp("boot") / "boot.py"
        file.write_text(BOOT.format(change=change, fake=str(FAKE)))
        return (sys.executable, str(file))

    return write


@pytest.fixture(scope="session")
def boot(write_boot: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
    """The command of a server whose engine is fake_engine.py. A module may override it."""
    return write_boot("")


@pytest.fixture
def fake_model(tiny: ModuleType, tmp_path: Path) -> Callable[..., Path]:
    """`fake_model(say={...}, ...) -> Path`: a model directory with these options for fake_engine.py, which documents
    them."""

    def make(**rule: Any) -> Path:
        path = tmp_path / "model"
        path.mkdir(exist_ok=True)
        tiny.make_tokenizer(path)
        (path / "fake.json").write_text(json.dumps(rule))
        return path

    return make


@pytest.fixture
def other_model(tiny: ModuleType, tmp_path: Path) -> Callable[..., Path]:
    """`other_model("name", say={...}, weights="...")`: another model directory with the same tokenizer."""

    def make(name: str, **rule: Any) -> Path:
        (path := tmp_path / name).mkdir()
        tiny.make_tokenizer(path)
        (path / "fake.json").write_text(json.dumps(rule))
        return path

    return make


@pytest.fixture
def serve(boot: tuple[str, ...], fake_model: Callable[..., Path]) -> Iterator[Callable[..., launch.ServerProcess]]:
    """`serve(say={...}, options={...}) -> ServerProcess`: a running server, closed after the test."""
    with ExitStack() as stack:

        def start(options: dict[str, Any] | None = None, **rule: Any) -> launch.ServerProcess:
            server_config = config.make(model=str(fake_model(**rule)), **(options or {}))
            server = launch.start(server_config, timeout=30.0, command=boot)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture(scope="module")
def serve_once(
    boot: tuple[str, ...], tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., launch.ServerProcess]]:
    """`serve_once(say={...}) -> ServerProcess`: one server for all tests of a module with the same options."""
    started: dict[str, launch.ServerProcess] = {}

    def start(template: str = "", **rule: Any) -> launch.ServerProcess:
        key = repr((template, sorted(rule.items())))
        if key not in started:
            path = tmp_path_factory.mktemp("model")
            tiny.make_tokenizer(path)
            (path / "fake.json").write_text(json.dumps(rule))
            if template:
                (path / "chat_template.jinja").write_text(template)
            started[key] = launch.start(config.make(model=str(path)), timeout=30.0, command=boot)
        return started[key]

    with ExitStack() as stack:
        yield start
        for server in started.values():
            stack.callback(server.close)


@pytest.fixture
def join_shared(serve_once: Callable[..., launch.ServerProcess]) -> Iterator[Callable[..., client.Client]]:
    """`join_shared(say={...}) -> Client` of a server shared by the module. Each test must leave it empty."""
    with ExitStack() as stack:

        def start(**rule: Any) -> client.Client:
            c = client.connect(serve_once(**rule).socket)
            stack.callback(_leave, c)
            return c

        yield start


def _leave(c: client.Client) -> None:
    c.close()
    _wait_until_empty(c.path)


@pytest.fixture
def shared_socket(serve_once: Callable[..., launch.ServerProcess]) -> Iterator[Path]:
    """The socket of a server shared by the module, with no options. Each test must leave it empty."""
    path = serve_once().socket
    yield path
    _wait_until_empty(path)


def _wait_until_empty(path: Path) -> None:
    with closing(client.connect(path)) as other:

        def stats() -> dict[str, Any]:
            server_stats: dict[str, Any] = other.ask("stats")["server"]
            return server_stats

        wait_until(lambda: (stats()["clients"], stats()["programs"]) == (1, 0), "an empty server", seen=stats)


@pytest.fixture
def join(serve: Callable[..., launch.ServerProcess]) -> Iterator[Callable[..., client.Client]]:
    """`join(say={...}) -> Client` of a server that only this test uses."""
    with ExitStack() as stack:

        def start(**rule: Any) -> client.Client:
            c = client.connect(serve(**rule).socket)
            stack.callback(c.close)
            return c

        yield start


@pytest.fixture
def token_file(tmp_path: Path) -> Callable[..., str]:
    """`token_file("ann TOKEN\n", mode=0o600) -> str`: the path of a new file of tokens."""

    def write(text: str, mode: int = 0o600) -> str:
        path = tmp_path / "tokens"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return write
