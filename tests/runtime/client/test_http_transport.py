"""The client of a server's HTTP process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from banyan.runtime import config
from banyan.runtime.client import client
from banyan.runtime.client.http_transport import NotBanyan


@pytest.fixture
def keys_sent() -> Iterator[tuple[str, list[str]]]:
    """The URL of a server that is not Banyan's, and the values of `Authorization` that it gets."""
    found: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(self.headers.get("authorization", ""))
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", found
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("name", "sent"), [(config.TOKEN, ""), (config.API_KEY, "Bearer secret")])
def test_a_url_gets_the_api_key_and_not_the_token_of_a_socket(
    name: str, sent: str, keys_sent: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, found = keys_sent
    for variable in (config.TOKEN, config.API_KEY):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "secret")
    with pytest.raises(NotBanyan):
        client.connect(url)
    assert set(found) == {sent}
