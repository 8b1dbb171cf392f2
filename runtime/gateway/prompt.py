"""From the messages of a conversation to the parts of a prompt."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable

from banyan.runtime.gateway.chat_types import ChatTurn, ContentPart, ImagePart, TextPart
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.protocol import wire

ASSISTANT = "assistant"
_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,", re.IGNORECASE)


def parts_of(turns: Iterable[ChatTurn], chat: wire.ChatMarkers) -> list[wire.Part]:
    """The turns, each with its begin and end. Raises HTTPError."""
    parts: list[wire.Part] = []
    for k, turn in enumerate(turns):
        where = f"messages[{k}]"
        parts.append(wire.BeginTurn(role_of(turn.role, chat)))
        parts += contents(turn.content, f"{where}.content")
        parts.append(wire.EndTurn())
    return parts


def role_of(role: str, chat: wire.ChatMarkers) -> str:
    """The role as the model's template knows it."""
    return "system" if role == "developer" and role not in chat.roles else role


def contents(content: str | list[ContentPart] | None, where: str) -> list[wire.Part]:
    """The content of one message."""
    if content is None or isinstance(content, str):
        return [content] if content else []
    found: list[wire.Part] = []
    for k, part in enumerate(content):
        if isinstance(part, ImagePart):
            found.append(image(part.image_url.url, f"{where}[{k}].image_url.url"))
        else:
            found.append(part.text if isinstance(part, TextPart) else part.refusal)
    return found


def image(url: str, where: str) -> wire.Image:
    """The image in a data URL. This server fetches nothing from elsewhere."""
    if (match := _DATA_URL.match(url)) is None:
        raise HTTPError(400, "an image is a data URL: data:image/png;base64,...", param=where)
    try:
        return wire.Image(base64.b64decode(url[match.end() :], validate=True), match[1].lower())
    except binascii.Error as e:
        raise HTTPError(400, f"the image is no base64: {e}", param=where) from None
