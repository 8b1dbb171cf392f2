"""A server with the pocket model and its HTTP process, shared by all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import openai
import pytest

from banyan.runtime import config, launch


@pytest.fixture(scope="package")
def pocket() -> Iterator[launch.ServerProcess]:
    """A server with the pocket model."""
    with closing(launch.start(config.make(threads=1, kv_memory="20000 tokens"))) as server:
        yield server


@pytest.fixture(scope="package")
def url(pocket: launch.ServerProcess) -> Iterator[str]:
    """The URL of its HTTP process, without keys."""
    with closing(launch.start_gateway(config.HTTPConfig(socket=str(pocket.socket), address="0"))) as gateway:
        yield gateway.url


@pytest.fixture(scope="package")
def chat_client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
