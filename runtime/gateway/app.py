"""The routes of the HTTP interface, and what they share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from banyan.runtime.client.client import Client, connect
from banyan.runtime.gateway import info
from banyan.runtime.gateway.anthropic import messages
from banyan.runtime.gateway.endpoint import Endpoint, Handler, Shape, json_reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.keys import KeyHolder, Keys, check_site
from banyan.runtime.gateway.model_call import Mailbox
from banyan.runtime.gateway.openai import chat, completions, responses
from banyan.runtime.gateway.page import endpoints as page
from banyan.runtime.gateway.page.run_pages import RunPages
from banyan.runtime.gateway.programs import endpoints as programs
from banyan.runtime.gateway.programs.sessions import Sessions


class Entry(NamedTuple):
    """A row of the table of routes. is_open: nobody needs a key."""

    method: str
    path: str
    handle: Handler
    shape: Shape = "openai"
    is_open: bool = False


ROUTES = (
    Entry("GET", "/health", info.health, is_open=True),
    Entry("GET", "/v1/models", info.models),
    Entry("GET", "/v1/models/{model:path}", info.model),
    Entry("POST", "/v1/chat/completions", chat.create),
    Entry("POST", "/v1/completions", completions.create),
    Entry("POST", "/v1/responses", responses.create),
    Entry("POST", "/v1/responses/input_tokens", responses.count_input),
    Entry("GET", "/v1/responses/{id}", responses.retrieve),
    Entry("DELETE", "/v1/responses/{id}", responses.delete),
    Entry("POST", "/v1/responses/{id}/cancel", responses.cancel),
    Entry("POST", "/v1/messages", messages.create, shape="anthropic"),
    Entry("POST", "/v1/messages/count_tokens", messages.count, shape="anthropic"),
    Entry("POST", "/tokenize", info.tokenize),
    Entry("GET", "/metrics", info.metrics),
    Entry("GET", "/", page.index, is_open=True),
    Entry("GET", "/static/page.css", page.style, is_open=True),
    Entry("GET", "/static/page.js", page.script, is_open=True),
    Entry("GET", "/pages/{page}", page.show, is_open=True),
    Entry("GET", "/v1/stats", page.stats),
    Entry("GET", "/v1/tree", page.tree),
    Entry("GET", "/v1/programs", page.programs),
    Entry("GET", "/v1/pages", page.published),
    Entry("POST", "/v1/pages", page.publish),
    Entry("POST", "/v1/programs", programs.begin),
    Entry("POST", "/v1/programs/{session}", programs.go_on),
)


class Gateway:
    """What the handlers share. Lives on one event loop.

    mailbox    brings values from the client's thread to the loop
    model      the name of the model
    responses  those that later requests may follow
    sessions   connections to the server of programs over HTTP
    run_pages  pages of runs that clients have published
    counts     responses, by path and status; status 0: the client hung up before it began
    """

    def __init__(
        self,
        client: Client,
        keys: Keys,
        loop: asyncio.AbstractEventLoop,
        *,
        isolates_users: bool = False,
        cors: str = "",
    ) -> None:
        """client: the gateway's own connection to the server; those of tenants are made when they are needed.
        isolates_users, cors: see HTTPConfig."""
        self._clients, self._keys, self.isolates_users = {"": client}, keys, isolates_users
        self._origins = [origin.strip() for origin in cors.split(",") if origin.strip()]
        self._connecting = asyncio.Lock()
        self.responses = responses.ResponseStore()
        self.mailbox = Mailbox(loop)
        self.model = client.welcome.model
        self.sessions = Sessions()
        self.run_pages = RunPages()
        self.counts: Counter[tuple[str, int]] = Counter()

    def identify(self, headers: Mapping[bytes, bytes]) -> KeyHolder:
        """Who makes a request. Raises HTTPError."""
        holder = self._keys.identify(headers)
        if not holder.tenant:
            check_site(headers, self._origins)
        return holder

    async def client(self, holder: KeyHolder) -> Client:
        """The connection of the holder's tenant. Raises BanyanError."""
        client = self._clients.get(holder.tenant)
        if client is None or client.lost is not None:
            async with self._connecting:  # a second request that waited finds the client of the first
                address = self._clients[""].address
                make = partial(connect, address.path, token=address.token, server_key=address.server_key)
                client = self._clients[holder.tenant] = await asyncio.to_thread(make, tenant=holder.tenant)
        return client

    async def operator(self) -> Client:
        """The gateway's own connection, which may ask for the data of all tenants. Raises BanyanError."""
        return await self.client(KeyHolder())

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route(one.path, Endpoint(self, one.handle, one.shape, one.path, is_open=one.is_open), methods=[one.method])
            for one in ROUTES
        ]
        every = ["*"]
        middleware = [Middleware(CORSMiddleware, allow_origins=self._origins, allow_methods=every, allow_headers=every)]
        return Starlette(
            routes=routes,
            exception_handlers={404: _no_route, 405: _no_route},
            middleware=middleware if self._origins else [],
        )


async def _no_route(request: Request, error: Exception) -> Response:
    """No route has this path, or this method."""
    assert isinstance(error, HTTPException)
    text = f"there is no {request.method} {request.url.path[:200]} here"
    failed = HTTPError(error.status_code, text, code="not_found" if error.status_code == 404 else "method_not_allowed")
    is_anthropic = request.url.path.startswith("/v1/messages")
    reply = json_reply(failed.anthropic() if is_anthropic else failed.openai(), failed.status)
    return Response(reply.body, reply.status, dict(error.headers or {}), reply.kind)
