"""The HTTP process: a client of the server, and an HTTP server for everybody else.

python -m banyan.runtime.gateway --config JSON --ready-fd N --alive-fd M
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvicorn

from banyan.runtime import launch
from banyan.runtime.client.client import Client, connect
from banyan.runtime.config import HTTPConfig, address, origins, read_private, token_lines
from banyan.runtime.errors import BanyanError, ConfigError
from banyan.runtime.gateway import app, connection
from banyan.runtime.gateway.gateway import Gateway
from banyan.runtime.gateway.keys import Keys


def main(argv: list[str]) -> int:
    """Run the HTTP process until it ends, and return its exit code. 0: it was asked to end, or its parent is gone. 1:
    it could not start; the error goes to the ready pipe."""
    parser = argparse.ArgumentParser(prog="python -m banyan.runtime.gateway")
    parser.add_argument("--config", required=True, help="an HTTPConfig as JSON")
    parser.add_argument("--ready-fd", type=int, required=True, help="file descriptor for one line of JSON")
    parser.add_argument("--alive-fd", type=int, required=True, help="end at EOF of this file descriptor")
    args = parser.parse_args(argv)
    launch.tie_to_parent()
    try:
        config = msgspec.json.decode(args.config, type=HTTPConfig)
        keys = Keys.read(Path(config.keys_file)) if config.keys_file else Keys()
        allowed = origins(config.cors)
        listener = _listen(config)
        client = connect(config.socket, token=_token(config))
    except BanyanError as e:
        launch.report_start(args.ready_fd, launch.StartReport(code=e.code, message=e.message))
        return 1
    asyncio.run(_serve(config, client, keys, allowed, listener, args.ready_fd, args.alive_fd))
    return 0


def _listen(config: HTTPConfig) -> socket.socket:
    """Bind the listening socket. ConfigError: the address is not available, or other machines could connect to it
    although no API keys are set."""
    host, port = address(config.address)
    try:
        (family, *_, where), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not ipaddress.ip_address(where[0]).is_loopback and not config.keys_file:
            raise ConfigError(
                f"http is {config.address}, where anybody could connect; set http_keys, so that only clients with a "
                "key can"
            )
        # asyncio turns off Nagle's delay, of 40 ms, only for sockets that name their protocol.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError as e:
        raise ConfigError(f"http: cannot listen at {config.address}: {e.strerror or e}") from e
    return listener


def _token(config: HTTPConfig) -> str:
    """The operator's token with which the HTTP process connects to the server, from the configured file. "": no file is
    configured, so `connect` takes the token from the environment. ConfigError: the file has no operator's token."""
    if not config.token_file:
        return ""
    text = read_private(Path(config.token_file), "token_file")
    lines = [words for _, words in token_lines(text) if len(words) > 1]
    is_one_tenant = len({words[0] for words in lines}) == 1
    found = next((words[1] for words in lines if is_one_tenant or words[2:] == ["operator"]), "")
    if not found:
        raise ConfigError(f"token_file {config.token_file} has no operator's token, which the HTTP process needs")
    return found


async def _serve(
    config: HTTPConfig,
    client: Client,
    keys: Keys,
    allowed: Sequence[str],
    listener: socket.socket,
    ready_fd: int,
    alive_fd: int,
) -> None:
    loop = asyncio.get_running_loop()
    gateway = Gateway(client, keys, loop, isolates_users=config.isolate == "user", origins=allowed)
    server = uvicorn.Server(uvicorn.Config(app.make(gateway), **connection.settings()))

    def end() -> None:
        loop.remove_reader(alive_fd)
        server.should_exit = True
        gateway.sessions.end()

    loop.add_reader(alive_fd, end)
    listener.listen(2048)  # connections that arrive before the loop accepts them wait
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    launch.report_start(ready_fd, launch.StartReport((url,)))
    gc.freeze()
    await server.serve(sockets=[listener])
    client.close()
