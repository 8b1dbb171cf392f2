"""Messages of a chat as parts of a prompt."""

from __future__ import annotations

import base64

import pytest

from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat_types import ChatTurn, ImagePart, ImageURL, TextPart
from banyan.runtime.gateway.prompt import PromptWriter
from banyan.runtime.protocol import wire

CHAT = wire.ChatMarkers(roles=dict.fromkeys(("system", "user", "assistant", "tool"), ("", "")))


def image(url: str) -> ChatTurn:
    return ChatTurn(role="user", content=[TextPart(text="see"), ImagePart(image_url=ImageURL(url=url))])


def test_images_are_data_urls() -> None:
    url = f"data:image/png;base64,{base64.b64encode(b'pixels').decode()}"
    assert PromptWriter(CHAT).parts([image(url)])[1:3] == ("see", wire.Image(b"pixels", "image/png"))
    for wrong in ("http://x/y.png", "data:image/png;base64,!!", "data:text/html;base64,AAAA"):
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
