"""GET /: a web page that shows what the server does, and the endpoints for its data: counters, radix tree and programs.
The server gives this data to operators only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta

from banyan.runtime.errors import BanyanError, RuntimeLost
from banyan.runtime.gateway.bodies import decode
from banyan.runtime.gateway.endpoint import Handler, HTTPRequest, Reply, json_reply
from banyan.runtime.gateway.errors import HTTPError

MAX_NODES = 500
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
POLICY += "form-action 'none'; frame-ancestors 'none'"
_SECONDS = 10.0

_static = Path(__file__).parent / "static"


def _file(name: str, kind: str) -> Handler:
    """Make a handler that sends a static file of the web page. name: the file. kind: its content type. The files need
    no API key, because only the data is secret."""
    headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "cache-control": "no-cache"}

    async def answer(request: HTTPRequest) -> Reply:
        return Reply((_static / name).read_bytes(), kind=f"{kind}; charset=utf-8", headers=headers)

    return answer


index = _file("page.html", "text/html")
style = _file("page.css", "text/css")
script = _file("page.js", "text/javascript")


async def stats(request: HTTPRequest) -> Reply:
    """Answers with the server's counters."""
    return json_reply(await _ask(request, "stats"))


async def tree(request: HTTPRequest) -> Reply:
    """Answers with the largest nodes of the radix tree. Their number is the query parameter `limit` (default 100, at
    most MAX_NODES)."""
    given = parse_qs(request.query.decode("latin-1")).get("limit", ["100"])[0]
    if not given.isascii() or not given.isdecimal() or len(given) > 9:
        raise HTTPError(400, "limit must be a number", param="limit")
    return json_reply(await _ask(request, "tree", min(int(given), MAX_NODES)))


async def programs(request: HTTPRequest) -> Reply:
    """Answers with the programs that run now or ended recently."""
    return json_reply(await _ask(request, "programs"))


class PublishRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/pages. html: a single page that needs no other files."""

    title: Annotated[str, Meta(max_length=200)]
    html: str


async def publish(request: HTTPRequest) -> Reply:
    """Keep an HTML page, such as the view of a run, that a client publishes. Answers with the page's id and link."""
    body = decode(request.body, PublishRequest)
    page = request.gateway.run_pages.add(request.tenant, body.title, body.html)
    return json_reply({"id": page.id, "url": f"/pages/{page.id}"})


async def published(request: HTTPRequest) -> Reply:
    """Answers with the ids and titles of the HTML pages that clients of the tenant have published with `publish`."""
    pages = request.gateway.run_pages.of(request.tenant)
    return json_reply({"data": [{"id": page.id, "title": page.title} for page in pages]})


async def show(request: HTTPRequest) -> Reply:
    """Answers with an HTML page that a client has published. A header makes the browser run the page in a sandbox: its
    scripts cannot act as pages of this server."""
    if (page := request.gateway.run_pages.find(request.path["page"])) is None:
        raise HTTPError(404, "there is no such page; old pages are forgotten")
    policy = "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    return Reply(page.html, kind="text/html; charset=utf-8", headers=headers)


async def _ask(request: HTTPRequest, what: Literal["stats", "tree", "programs"], limit: int = 0) -> Any:
    """Return the server's data of the kind `what`. limit: maximum number of nodes, for "tree". HTTPError 403: the
    server refuses, because the tenant is not an operator."""
    try:
        return await asyncio.to_thread(request.client.ask, what, _SECONDS, limit)
    except RuntimeLost:
        raise
    except BanyanError as e:
        raise HTTPError(403, e.message, code="forbidden") from e
