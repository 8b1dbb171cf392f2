"""Turns the messages of a conversation into the parts of a prompt."""

from __future__ import annotations

import base64
import re
from array import array
from collections.abc import Callable, Sequence
from functools import partial

from banyan.runtime.errors import BadProgram
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat_types import ChatTurn, ContentPart, ConvertedTurn, ImagePart, TextPart
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_IDS
from banyan.runtime.protocol.roles import ASSISTANT, read_arguments

_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,", re.IGNORECASE)


class PromptWriter:
    """Converts the messages of one conversation to the parts of a prompt (wire.Part): texts, images, begins and ends of
    turns. Tool calls get new ids, nine-digit numbers starting at 0, because Mistral's chat templates require this
    form."""

    def __init__(self, chat: wire.ChatMarkers) -> None:
        self._chat = chat
        self._calls: dict[str, wire.WireToolCall] = {}
        """The client's id of a call -> the call. A later call may have the id of an earlier one."""
        self._n_calls = 0

    def copy(self) -> PromptWriter:
        """A copy of this writer, with the tool calls recorded so far, for another continuation of the conversation."""
        copy = PromptWriter(self._chat)
        copy._calls, copy._n_calls = dict(self._calls), self._n_calls
        return copy

    def parts(self, turns: Sequence[ChatTurn], *, leaves_open: bool = False) -> tuple[wire.Part, ...]:
        """The prompt parts of these turns, including the begin and end of each turn. leaves_open: the last turn gets no
        end, because the output continues it. HTTPError: a turn is invalid, such as the result of an unknown tool
        call."""
        found: list[wire.Part] = []
        for k, turn in enumerate(turns):
            where = partial(_path, turn, k)
            answers = self._answered(turn, where) if turn.role == "tool" else None
            found.append(wire.BeginTurn(self._role(turn.role), answers))
            found += contents(turn.content, where)
            if turn.refusal:
                found.append(turn.refusal)
            if not (leaves_open and k == len(turns) - 1):
                found.append(wire.EndTurn(self._called(turn, where)))
        return tuple(found)

    def know(self, name: str, call_id: str) -> wire.WireToolCall:
        """Record a tool call that the model made, so that a later turn can give its result. Returns the call with its
        new id. call_id: the client's id of the call."""
        call = self._calls[call_id] = wire.WireToolCall(f"{self._n_calls:09d}", name)
        self._n_calls += 1
        return call

    def _role(self, role: str) -> str:
        return "system" if role == "developer" and role not in self._chat.roles else role

    def _called(self, turn: ChatTurn, where: Callable[[str], str]) -> tuple[wire.WireToolCall, ...]:
        if turn.tool_calls is None:
            return ()
        if turn.role != ASSISTANT:
            raise HTTPError(400, "only a message of the assistant may have tool_calls", param=where("tool_calls"))
        found: list[wire.WireToolCall] = []
        for k, call in enumerate(turn.tool_calls):
            function = call.function
            known = self.know(function.name, call.id)
            found.append(wire.WireToolCall(known.id, function.name, function.arguments or "{}"))
            try:
                read_arguments(found[-1])
            except BadProgram as e:
                raise HTTPError(400, e.message, param=where(f"tool_calls[{k}].function.arguments")) from None
        return tuple(found)

    def _answered(self, turn: ChatTurn, where: Callable[[str], str]) -> wire.WireToolCall:
        if turn.tool_call_id is None or (call := self._calls.get(turn.tool_call_id)) is None:
            text = "the result of a tool call must have the id of a call in an earlier message"
            raise HTTPError(400, text, param=where("tool_call_id"))
        return call


def _path(turn: ChatTurn, k: int, field: str) -> str:
    """The path in the request of a field of `turn`, which is message k; of what was converted to `turn`, if this is not
    a message of chat completions."""
    return turn.where if isinstance(turn, ConvertedTurn) else f"messages[{k}].{field}"


def contents(content: str | list[ContentPart] | None, where: Callable[[str], str] = str) -> list[wire.Part]:
    """The prompt parts of one message's content. where: returns the path in the body of a field of the message, for
    errors."""
    if content is None or isinstance(content, str):
        return [content] if content else []
    found: list[wire.Part] = []
    for k, part in enumerate(content):
        if isinstance(part, ImagePart):
            found.append(image(part.image_url.url, where(f"content[{k}].image_url.url")))
        else:
            found.append(part.text if isinstance(part, TextPart) else part.refusal)
    return found


def token_parts(ids: Sequence[int]) -> tuple[wire.Part, ...]:
    """The prompt parts of token ids."""
    slices = (ids[at : at + MAX_IDS] for at in range(0, len(ids), MAX_IDS))
    return tuple(wire.TokenIds(array("i", some).tobytes()) for some in slices)


def image(url: str, where: str) -> wire.Image:
    """Decode the image in a data URL. HTTPError: it is another kind of URL, which the server never fetches, or is not
    valid base64."""
    if (match := _DATA_URL.match(url)) is None:
        text = "an image must be base64, or a data URL such as data:image/png;base64,...; the server fetches none"
        raise HTTPError(400, text, param=where)
    try:
        return wire.Image(base64.b64decode(url[match.end() :], validate=True), match[1].lower())
    except ValueError as e:  # binascii.Error is a subclass; text that is not ASCII raises ValueError itself
        raise HTTPError(400, f"the image is not valid base64: {e}", param=where) from None
