"""Runs handlers of the HTTP process in the test's process, so that a test can patch what they call."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import Any

from banyan.runtime import launch
from banyan.runtime.client import client
from banyan.runtime.gateway.endpoint import EventReply, Handler, HTTPRequest, Reply
from banyan.runtime.gateway.gateway import Gateway
from banyan.runtime.gateway.keys import Keys


def handled(server: launch.ServerProcess, handle: Handler, body: dict[str, Any]) -> Reply | EventReply:
    """The reply of `handle` to a request for the model of `server`."""
    with closing(client.connect(server.socket)) as found, asyncio.Runner() as runner:
        gateway = Gateway(found, Keys(), runner.get_loop())
        data = json.dumps({"model": gateway.names[0], **body}).encode()

        async def run() -> Reply | EventReply:
            return await handle(HTTPRequest(gateway, "", found, {}, {}, b"", data))

        try:
            return runner.run(run())
        finally:
            gateway.sessions._context.term()
