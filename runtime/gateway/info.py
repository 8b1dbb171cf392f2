"""What the server tells about itself: /health, /v1/models."""

from __future__ import annotations

import time
from typing import Any

from banyan.runtime.gateway.endpoint import HTTPRequest, Reply, json_reply
from banyan.runtime.gateway.errors import HTTPError

_STARTED = int(time.time())


async def health(request: HTTPRequest) -> Reply:
    """200 while the server answers."""
    return json_reply({"status": "ok"})


def _described(request: HTTPRequest) -> dict[str, Any]:
    length = request.client.welcome.max_context
    named = {"id": request.gateway.model, "object": "model", "created": _STARTED, "owned_by": "banyan"}
    return named | {"max_model_len": length}


async def models(request: HTTPRequest) -> Reply:
    """The one model of the server."""
    return json_reply({"object": "list", "data": [_described(request)]})


async def model(request: HTTPRequest) -> Reply:
    """The model, by its name."""
    check_model(request, request.path["model"])
    return json_reply(_described(request))


def check_model(request: HTTPRequest, name: str) -> None:
    """HTTPError: the server does not run this model."""
    if name != request.gateway.model:
        text = f"this server runs {request.gateway.model!r}, and not {name[:200]!r}"
        raise HTTPError(404, text, param="model", code="model_not_found")
