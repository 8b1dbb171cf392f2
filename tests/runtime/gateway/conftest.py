"""A server with the pocket model and its HTTP process, shared by all tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

import banyan as bn
from banyan.runtime import config, launch
from banyan.runtime.client import client

if TYPE_CHECKING:
    import anthropic  # which takes a second of CPU time

KEYS = "# who may come in\nann:key-of-ann-0123456789\nann:other-key-of-ann-0123\nbob:key-of-bob-0123456789\n"


@pytest.fixture(scope="session")
def pocket() -> Iterator[launch.ServerProcess]:
    """A server with the pocket model."""
    with closing(launch.start(config.make(threads=1, kv_memory="20000 tokens", slo="ttft=10s"))) as server:
        yield server


@pytest.fixture(scope="session")
def gateway(pocket: launch.ServerProcess) -> Iterator[launch.GatewayProcess]:
    """Its HTTP process, without keys."""
    with closing(launch.start_gateway(config.HTTPConfig(socket=str(pocket.socket), address="0"))) as process:
        yield process


@pytest.fixture(scope="session")
def guarded(pocket: launch.ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an HTTP process with the keys of KEYS; each user has KV of its own."""
    path: Path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    http = config.HTTPConfig(
        socket=str(pocket.socket), address="0", keys_file=str(path), isolate="user", cors="https://a.example"
    )
    with closing(launch.start_gateway(http)) as process:
        yield process.url


@pytest.fixture
def two_tenants(pocket: launch.ServerProcess, tmp_path: Path) -> Iterator[str]:
    """The URL of an HTTP process with the keys of two tenants: 20 times "1" and 20 times "2"."""
    keys = tmp_path / "keys"
    keys.write_text(f"one:{'1' * 20}\ntwo:{'2' * 20}\n")
    keys.chmod(0o600)
    http = config.HTTPConfig(socket=str(pocket.socket), address="0", keys_file=str(keys))
    with closing(launch.start_gateway(http)) as process:
        yield process.url


@pytest.fixture(scope="session")
def url(gateway: launch.GatewayProcess) -> str:
    return gateway.url


@pytest.fixture(scope="module")
def over_socket(pocket: launch.ServerProcess) -> Iterator[bn.RuntimeEndpoint]:
    with bn.connect(pocket.socket) as backend:
        yield backend


@pytest.fixture(scope="module")
def over_http(url: str) -> Iterator[bn.RuntimeEndpoint]:
    with bn.connect(url) as backend:
        yield backend


@pytest.fixture(scope="session")
def openai_client(url: str) -> Iterator[openai.OpenAI]:
    """Each response must have all fields of the package's types."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True) as found:
        yield found


@pytest.fixture(scope="session")
def anthropic_client(url: str) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, _strict_response_validation=True) as found:
        yield found


@pytest.fixture
def stats(pocket: launch.ServerProcess) -> Iterator[Callable[[], Any]]:
    """`stats()`: the counters of the server."""
    with closing(client.connect(pocket.socket)) as found:
        yield lambda: found.ask("stats")
