"""The routes of the HTTP interface."""

from __future__ import annotations

import re

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from banyan.runtime.gateway import info
from banyan.runtime.gateway.anthropic import messages
from banyan.runtime.gateway.endpoint import Endpoint, EndpointApp, error_reply, id_headers, request_id
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.gateway import Gateway
from banyan.runtime.gateway.openai import chat, completions, responses
from banyan.runtime.gateway.page import endpoints as page
from banyan.runtime.gateway.programs import endpoints as programs

ENDPOINTS = (
    Endpoint("GET", "/health", info.health, is_open=True),
    Endpoint("GET", "/v1/models", info.models),
    Endpoint("GET", "/v1/models/{model:path}", info.model),
    Endpoint("POST", "/v1/chat/completions", chat.create),
    Endpoint("POST", "/v1/completions", completions.create),
    Endpoint("POST", "/v1/responses", responses.create),
    Endpoint("POST", "/v1/responses/input_tokens", responses.count_input),
    Endpoint("GET", "/v1/responses/{id}", responses.retrieve),
    Endpoint("DELETE", "/v1/responses/{id}", responses.delete),
    Endpoint("POST", "/v1/responses/{id}/cancel", responses.cancel),
    Endpoint("POST", "/v1/messages", messages.create, shape="anthropic"),
    Endpoint("POST", "/v1/messages/count_tokens", messages.count, shape="anthropic"),
    Endpoint("POST", "/tokenize", info.tokenize),
    Endpoint("POST", "/detokenize", info.detokenize),
    Endpoint("GET", "/tokenizer_info", info.special_tokens),
    Endpoint("GET", "/metrics", info.metrics),
    Endpoint("GET", "/", page.index, is_open=True),
    Endpoint("GET", "/static/page.css", page.style, is_open=True),
    Endpoint("GET", "/static/page.js", page.script, is_open=True),
    Endpoint("GET", "/pages/{page}", page.show, is_open=True),
    Endpoint("GET", "/v1/stats", page.stats),
    Endpoint("GET", "/v1/tree", page.tree),
    Endpoint("GET", "/v1/programs", page.programs),
    Endpoint("GET", "/v1/pages", page.published),
    Endpoint("POST", "/v1/pages", page.publish),
    Endpoint("POST", "/v1/programs", programs.begin),
    Endpoint("POST", "/v1/programs/{session}", programs.go_on),
)


def make(gateway: Gateway) -> Starlette:
    """Make the ASGI application with all routes."""
    routes = [Route(one.path, EndpointApp(gateway, one), methods=[one.method]) for one in ENDPOINTS]
    every = ["*"]
    middleware = [Middleware(CORSMiddleware, allow_origins=gateway.origins, allow_methods=every, allow_headers=every)]
    return Starlette(
        routes=routes,
        exception_handlers={404: _no_route, 405: _no_route},
        middleware=middleware if gateway.origins else [],
    )


async def _no_route(request: Request, error: Exception) -> Response:
    """Answer a request that matches no route: with status 404 for an unknown path, 405 for a wrong method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    text = f"there is no {request.method} {path[:200]} here"
    meant = re.sub(r"^(/v1)*", "/v1", path)  # that of a client whose base URL lacks /v1, or has it once too often
    if meant == "/v1/embeddings":
        text = "embeddings are not supported"
    elif meant != path and meant in {one.path for one in ENDPOINTS}:
        text += f", but {meant}: the base URL of some clients ends with /v1, that of others does not"
    failed = HTTPError(error.status_code, text, code="not_found" if error.status_code == 404 else "method_not_allowed")
    reply = error_reply(failed, "anthropic" if meant.startswith("/v1/messages") else "openai")
    headers = {**(error.headers or {}), **id_headers(request_id(dict(request.scope["headers"])))}
    return Response(reply.body, reply.status, headers, reply.kind)
