"""Messages of a chat as parts of a prompt."""

from __future__ import annotations

import base64

import msgspec
import pytest

from banyan.runtime.gateway.anthropic.messages_types import CountRequest
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat_types import (
    CalledFunction,
    ChatTurn,
    ImagePart,
    ImageURL,
    TextPart,
    ToolCallPart,
)
from banyan.runtime.gateway.openai.responses_types import InputItem, turns_of
from banyan.runtime.gateway.prompt import PromptWriter
from banyan.runtime.protocol import wire

CHAT = wire.ChatMarkers(roles=dict.fromkeys(("system", "user", "assistant", "tool"), ("", "")))


def image(url: str) -> ChatTurn:
    return ChatTurn(role="user", content=[TextPart(text="see"), ImagePart(image_url=ImageURL(url=url))])


def test_images_are_data_urls() -> None:
    url = f"data:image/png;base64,{base64.b64encode(b'pixels').decode()}"
    assert PromptWriter(CHAT).parts([image(url)])[1:3] == ("see", wire.Image(b"pixels", "image/png"))
    for wrong in (
        "http://x/y.png",
        "data:image/png;base64,!!",
        "data:image/png;base64,\u00e9",
        "data:text/html;base64,AAAA",
    ):
        with pytest.raises(HTTPError) as raised:
            PromptWriter(CHAT).parts([image(wrong)])
        assert raised.value.param == "messages[0].content[1].image_url.url"


def test_developer_is_system_where_the_template_does_not_know_it() -> None:
    turn = [ChatTurn(role="developer", content="x")]
    assert PromptWriter(CHAT).parts(turn)[0] == wire.BeginTurn("system")
    knows = wire.ChatMarkers(roles={**CHAT.roles, "developer": ("", "")})
    assert PromptWriter(knows).parts(turn)[0] == wire.BeginTurn("developer")


def test_the_last_turn_may_stay_open() -> None:
    parts = PromptWriter(CHAT).parts([ChatTurn(role="assistant", content="I am")], leaves_open=True)
    assert parts == (wire.BeginTurn("assistant"), "I am")


def turn_with_calls(*call_ids: str) -> ChatTurn:
    calls = [ToolCallPart(id=one, function=CalledFunction(name="f", arguments="{}")) for one in call_ids]
    return ChatTurn(role="assistant", tool_calls=calls)


def answers(parts: tuple[wire.Part, ...]) -> list[str]:
    return [part.answers.id for part in parts if isinstance(part, wire.BeginTurn) and part.answers is not None]


def test_calls_have_numbers_of_their_own_though_the_clients_ids_repeat() -> None:
    results = [ChatTurn(role="tool", tool_call_id=one, content="7") for one in ("call_1", "call_0")]
    parts = PromptWriter(CHAT).parts([turn_with_calls("call_0", "call_1"), *results] * 2)
    made = [call.id for part in parts if isinstance(part, wire.EndTurn) for call in part.calls]
    assert made == [f"{k:09d}" for k in range(4)]
    assert answers(parts) == [made[k] for k in (1, 0, 3, 2)]


def test_continuations_of_a_conversation_number_their_calls_apart() -> None:
    writer = PromptWriter(CHAT)
    writer.know("f", "first")
    for name in ("one", "two"):
        branch = writer.copy()
        branch.know("f", name)
        results = [ChatTurn(role="tool", tool_call_id=one, content="7") for one in ("first", name)]
        assert answers(branch.parts(results)) == [f"{k:09d}" for k in range(2)]


def test_errors_of_other_apis_have_the_paths_of_their_requests() -> None:
    url, unknown = {"type": "url", "url": "http://x/y.png"}, {"type": "tool_result", "tool_use_id": "a"}
    result = {**unknown, "content": [{"type": "image", "source": url}]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
    for messages, param in (
        ([{"role": "user", "content": [{"type": "image", "source": url}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, unknown]}], "messages[0].content[1]"),
        ([call, {"role": "user", "content": [result]}], "messages[1].content[0]"),
    ):
        body = msgspec.convert({"model": "m", "messages": messages, "system": "s"}, CountRequest)
        with pytest.raises(HTTPError) as raised:
            PromptWriter(CHAT).parts(body.chat_request().messages)
        assert raised.value.param == param
        assert "tool_call_id" not in raised.value.message
    for item in (
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y.png"}]},
    ):
        with pytest.raises(HTTPError) as raised:
            PromptWriter(CHAT).parts(
                turns_of(msgspec.convert([{"role": "user", "content": "a"}, item], list[InputItem]))
            )
        assert raised.value.param == "input[1]"


def test_arguments_that_are_not_an_object_are_named() -> None:
    calls = [ToolCallPart(id="a", function=CalledFunction(name="f", arguments=text)) for text in ("{}", "{bad")]
    turns = [ChatTurn(role="user", content="q"), ChatTurn(role="assistant", tool_calls=calls)]
    with pytest.raises(HTTPError, match="must be a JSON object") as raised:
        PromptWriter(CHAT).parts(turns)
    assert raised.value.param == "messages[1].tool_calls[1].function.arguments"
    item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "[1]"}
    with pytest.raises(HTTPError, match="JSON object") as raised:
        PromptWriter(CHAT).parts(turns_of(msgspec.convert([item], list[InputItem])))
    assert raised.value.param == "input[0]"
