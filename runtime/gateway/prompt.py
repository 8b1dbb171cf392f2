"""Turns the messages of a conversation into the parts of a prompt."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat_types import ChatTurn, ContentPart, ImagePart, TextPart
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.roles import ASSISTANT

_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,", re.IGNORECASE)


class PromptWriter:
    """Turns messages into parts. Tool calls are numbered from 0, as chat templates require."""

    def __init__(self, chat: wire.ChatMarkers) -> None:
        self._chat = chat
        self._calls: dict[str, wire.WireToolCall] = {}
        """The client's id of a call -> the call. A later call may have the id of an earlier one."""
        self._n_calls = 0

    def copy(self) -> PromptWriter:
        """A writer for another continuation of the same conversation."""
        copy = PromptWriter(self._chat)
        copy._calls, copy._n_calls = dict(self._calls), self._n_calls
        return copy

    def parts(self, turns: Sequence[ChatTurn], *, leaves_open: bool = False) -> tuple[wire.Part, ...]:
        """The parts of all turns, each with its begin and end. leaves_open: the last turn, of the assistant, is left
        open, because the output continues it. Raises HTTPError."""
        found: list[wire.Part] = []
        for k, turn in enumerate(turns):
            where = f"messages[{k}]"
            answers = self._answered(turn, where) if turn.role == "tool" else None
            found.append(wire.BeginTurn(self._role(turn.role), answers))
            found += contents(turn.content, f"{where}.content")
            if turn.refusal:
                found.append(turn.refusal)
            if not (leaves_open and k == len(turns) - 1):
                found.append(wire.EndTurn(self._called(turn, where)))
        return tuple(found)

    def know(self, name: str, call_id: str) -> wire.WireToolCall:
        """Record a call that the model made, which later turns may answer."""
        call = self._calls[call_id] = wire.WireToolCall(f"{self._n_calls:09d}", name)
        self._n_calls += 1
        return call

    def _role(self, role: str) -> str:
        return "system" if role == "developer" and role not in self._chat.roles else role

    def _called(self, turn: ChatTurn, where: str) -> tuple[wire.WireToolCall, ...]:
        if turn.tool_calls is None:
            return ()
        if turn.role != ASSISTANT:
            raise HTTPError(400, "only a message of the assistant may have tool_calls", param=f"{where}.tool_calls")
        calls = ((call.function, call.id) for call in turn.tool_calls)
        return tuple(
            wire.WireToolCall(self.know(function.name, call_id).id, function.name, function.arguments or "{}")
            for function, call_id in calls
        )

    def _answered(self, turn: ChatTurn, where: str) -> wire.WireToolCall:
        if turn.tool_call_id is None or (call := self._calls.get(turn.tool_call_id)) is None:
            text = "a message of role 'tool' answers a call of an earlier message; its tool_call_id names no such call"
            raise HTTPError(400, text, param=f"{where}.tool_call_id")
        return call


def contents(content: str | list[ContentPart] | None, where: str) -> list[wire.Part]:
    """The parts of one message's content. where: its place in the body, for errors."""
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
    """The image in a data URL. The server fetches no images from other URLs."""
    if (match := _DATA_URL.match(url)) is None:
        raise HTTPError(400, "an image must be a data URL, such as data:image/png;base64,...", param=where)
    try:
        return wire.Image(base64.b64decode(url[match.end() :], validate=True), match[1].lower())
    except ValueError as e:  # binascii.Error is a subclass; text that is not ASCII raises ValueError itself
        raise HTTPError(400, f"the image is not valid base64: {e}", param=where) from None
