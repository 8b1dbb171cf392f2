"""The HTTP process: a client of the server, and an HTTP server for everybody else.

python -m banyan.runtime.gateway --config JSON --ready-fd N --alive-fd M
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import socket
from pathlib import Path

import msgspec
import uvicorn

from banyan.runtime import launch
from banyan.runtime.client.client import connect
from banyan.runtime.config import HTTPConfig, model_names, operator_token, origins
from banyan.runtime.errors import BanyanError
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
        keys = Keys(Path(config.keys_file) if config.keys_file else None)
        allowed, names = origins(config.cors), model_names(config.models)
        listener = launch.listen(config)
        # without a file, `connect` takes the token from the environment
        token = operator_token(Path(config.token_file)) if config.token_file else ""
        client = connect(config.socket, token=token)
    except BanyanError as e:
        launch.report_start(args.ready_fd, launch.StartReport(code=e.code, message=e.message))
        return 1
    with asyncio.Runner() as runner:
        isolates_users = config.isolate == "user"
        gateway = Gateway(client, keys, runner.get_loop(), names, isolates_users=isolates_users, origins=allowed)
        runner.run(_serve(gateway, listener, args.ready_fd, args.alive_fd))
        client.close()  # before the end of the threads that wait for its answers
    return 0


async def _serve(gateway: Gateway, listener: socket.socket, ready_fd: int, alive_fd: int) -> None:
    loop = asyncio.get_running_loop()
    server = uvicorn.Server(uvicorn.Config(app.make(gateway), **connection.settings()))

    def end() -> None:
        loop.remove_reader(alive_fd)
        server.should_exit = True
        gateway.sessions.close()

    loop.add_reader(alive_fd, end)
    listener.listen(2048)  # connections that arrive before the loop accepts them wait
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    launch.report_start(ready_fd, launch.StartReport((url,)))
    gc.freeze()
    await server.serve(sockets=[listener])
