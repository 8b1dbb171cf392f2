"""POST /v1/messages, with the anthropic package."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from raw_http import post
from waits import wait_until

QUESTION: Any = [{"role": "user", "content": "Hi, who are you?"}]
ANSWER = "I am the Banyan pocket model, a very small language model."
SUM: Any = [{"role": "user", "content": "What is 23 plus 48?"}]
CALCULATOR: Any = {
    "name": "calculator",
    "description": "Work out an arithmetic expression.",
    "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}


def create(client: anthropic.Anthropic, messages: Any = QUESTION, **options: Any) -> Any:
    return client.messages.create(model="pocket", messages=messages, **({"max_tokens": 40} | options))


def test_create_counts_and_ends(anthropic_client: anthropic.Anthropic) -> None:
    found = create(anthropic_client)
    assert ([block.text for block in found.content], found.stop_reason) == ([ANSWER], "end_turn")
    n_prompt = found.usage.input_tokens + found.usage.cache_read_input_tokens
    assert anthropic_client.messages.count_tokens(model="pocket", messages=QUESTION).input_tokens == n_prompt == 15
    assert found._request_id.startswith("req_")
    assert create(anthropic_client, max_tokens=2).stop_reason == "max_tokens"
    stopped = create(anthropic_client, stop_sequences=["pocket"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "pocket")


def test_tool_loop(anthropic_client: anthropic.Anthropic) -> None:
    first = create(anthropic_client, SUM, tools=[CALCULATOR])
    (call,) = first.content
    assert (first.stop_reason, call.type, call.input) == ("tool_use", "tool_use", {"expression": "23+48"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "71"}]}
    messages = [*SUM, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert create(anthropic_client, messages, tools=[CALCULATOR]).content[0].text == "The answer is 71."
    count = anthropic_client.messages.count_tokens(model="pocket", messages=messages, tools=[CALCULATOR])
    assert count.input_tokens == 90
    forced = create(anthropic_client, SUM, tools=[CALCULATOR], tool_choice={"type": "tool", "name": "calculator"})
    assert forced.content[0].name == "calculator"
    assert create(anthropic_client, SUM, tools=[CALCULATOR], tool_choice={"type": "none"}).content[0].type == "text"


def test_streams_of_text_and_of_calls(anthropic_client: anthropic.Anthropic) -> None:
    with anthropic_client.messages.stream(model="pocket", max_tokens=40, messages=QUESTION) as stream:
        assert "".join(stream.text_stream) == ANSWER
        assert stream.get_final_message().usage.output_tokens == 20
    options: Any = {"tools": [CALCULATOR], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    with anthropic_client.messages.stream(model="pocket", max_tokens=40, messages=SUM, **options) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.content[0].type) == ("tool_use", "tool_use")
    assert final.content[0].to_dict()["input"] == {"expression": "23+48"}


def test_system_prefill_pin_and_thinking(anthropic_client: anthropic.Anthropic, stats: Callable[[], Any]) -> None:
    system: Any = [{"type": "text", "text": "You are a helpful assistant.", "cache_control": {"type": "ephemeral"}}]
    begun = [*QUESTION, {"role": "assistant", "content": "I am the"}]
    found = create(anthropic_client, begun, system=system, max_tokens=2)
    wait_until(lambda: stats()["cache"]["n_held"] > 0, "the pin", seen=stats)
    assert found.content[0].text.startswith(" Banyan")
    raw = anthropic_client.messages.with_raw_response.create(
        model="pocket", max_tokens=2, messages=QUESTION, thinking={"type": "enabled", "budget_tokens": 1024}
    )
    assert raw.headers["x-banyan-ignored"] == "thinking"  # the pocket model does not reason


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"foo": 1}, 400, "invalid_request_error"),
        ({"model": "claude"}, 404, "not_found_error"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]}, 400,
         "invalid_request_error"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, 400, "invalid_request_error"),
    ],
)  # fmt: skip
def test_errors_have_the_shape_of_anthropic(url: str, fields: Any, status: int, kind: str) -> None:
    found, data = post(url, "/v1/messages", {"model": "pocket", "max_tokens": 2, "messages": QUESTION} | fields)
    answer = json.loads(data)
    assert (found, answer["type"], answer["error"]["type"]) == (status, "error", kind)
