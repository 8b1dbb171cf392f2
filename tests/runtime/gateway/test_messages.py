"""POST /v1/messages, with the anthropic package."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pocket_answers import ADA, ADA_STONE, ANSWER, PARAMETERS, QUESTION, SUM, Person

from banyan.runtime.gateway.anthropic.messages import MessageWriter
from banyan.runtime.gateway.anthropic.messages_types import MessageRequest
from banyan.runtime.protocol import wire
from raw_http import post
from waits import wait_until

if TYPE_CHECKING:
    import anthropic  # which takes a second of CPU time

CALCULATOR: Any = {
    "name": "calculator",
    "description": "Work out an arithmetic expression.",
    "input_schema": PARAMETERS,
}

GREEDY: Any = {"extra_body": {"temperature": 0}}  # the package has no argument for it


def create(client: anthropic.Anthropic, messages: Any = QUESTION, **options: Any) -> Any:
    return client.messages.create(model="pocket", messages=messages, **({"max_tokens": 40} | GREEDY | options))


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


def test_names_of_tools_may_have_128_characters(anthropic_client: anthropic.Anthropic) -> None:
    """Those of MCP servers have a prefix for each server."""
    tool = CALCULATOR | {"name": "mcp__" + "x" * 123}
    call = {"type": "tool_use", "id": "a", "name": tool["name"], "input": {"expression": "23+48"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "71"}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert create(anthropic_client, [*SUM, *turns], tools=[tool]).usage.output_tokens
    with pytest.raises(Exception, match="128"):
        create(anthropic_client, SUM, tools=[tool | {"name": "x" * 129}])


def test_strict_tool_whose_parameters_cannot_be_enforced_is_refused(anthropic_client: anthropic.Anthropic) -> None:
    import anthropic

    schema = {"type": "object", "properties": {"x": {"type": "array", "items": {}, "uniqueItems": True}}}
    with pytest.raises(anthropic.BadRequestError, match="uniqueItems"):
        create(anthropic_client, SUM, tools=[{"name": "f", "input_schema": schema, "strict": True}])


def test_streams_of_text_and_of_calls(anthropic_client: anthropic.Anthropic) -> None:
    with anthropic_client.messages.stream(model="pocket", max_tokens=40, messages=QUESTION) as stream:
        assert "".join(stream.text_stream) == ANSWER
        assert stream.get_final_message().usage.output_tokens == 20
    options: Any = {"tools": [CALCULATOR], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    with anthropic_client.messages.stream(model="pocket", max_tokens=40, messages=SUM, **options) as stream:
        pieces = [one.partial_json for one in stream if one.type == "input_json"]
        final = stream.get_final_message()
    assert (final.stop_reason, final.content[0].type) == ("tool_use", "tool_use")
    assert final.content[0].to_dict()["input"] == json.loads("".join(pieces)) == {"expression": "23+48"}
    assert pieces[0] == ""
    with anthropic_client.messages.stream(model="pocket", max_tokens=12, messages=SUM, **options) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, [block.type for block in final.content]) == ("max_tokens", ["tool_use"])


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
    result: Any = {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True}
    called: Any = {"type": "tool_use", "id": "a", "name": "calculator", "input": {}}
    turns = [*QUESTION, {"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]
    raw = anthropic_client.messages.with_raw_response.create(
        model="pocket", max_tokens=1, messages=turns, tools=[CALCULATOR], output_config={"effort": "low"}
    )
    assert raw.headers["x-banyan-ignored"] == "output_config.effort, messages.content.is_error"


def test_types_are_parsed_and_tools_are_run(anthropic_client: anthropic.Anthropic) -> None:
    import anthropic

    found = anthropic_client.messages.parse(model="pocket", max_tokens=60, messages=ADA, output_format=Person, **GREEDY)
    assert found.parsed_output == ADA_STONE
    with anthropic_client.messages.stream(
        model="pocket", max_tokens=60, messages=ADA, output_format=Person, **GREEDY
    ) as stream:
        assert stream.get_final_message().parsed_output == found.parsed_output

    @anthropic.beta_tool
    def calculator(expression: str) -> str:
        """Work out an arithmetic expression."""
        return str(sum(map(int, expression.split("+"))))

    runner = anthropic_client.beta.messages.tool_runner(
        model="pocket", max_tokens=60, messages=SUM, tools=[calculator], **GREEDY
    )
    (text,) = runner.until_done().content
    assert text.type == "text"
    assert text.text == "The answer is 71."


def test_models_and_raw_responses(anthropic_client: anthropic.Anthropic) -> None:
    (model,) = anthropic_client.models.list()
    assert model == anthropic_client.models.retrieve("pocket")
    assert (model.id, model.max_input_tokens) == ("pocket", 2048)
    ask: Any = {"model": "pocket", "max_tokens": 3, "messages": QUESTION}
    assert anthropic_client.messages.with_raw_response.create(**ask).parse().content
    with anthropic_client.messages.with_streaming_response.create(**ask) as response:
        assert response.parse().content


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"foo": 1}, 400, "invalid_request_error"),
        ({"model": "claude"}, 404, "not_found_error"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]}, 400,
         "invalid_request_error"),
    ],
)  # fmt: skip
def test_errors_have_the_shape_of_anthropic(url: str, fields: Any, status: int, kind: str) -> None:
    found, data = post(url, "/v1/messages", {"model": "pocket", "max_tokens": 2, "messages": QUESTION} | fields)
    answer = json.loads(data)
    assert (found, answer["type"], answer["error"]["type"]) == (status, "error", kind)


def test_arguments_with_a_lone_surrogate_are_passed_on() -> None:
    body = msgspec.json.decode(
        b'{"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "q"}]}', type=MessageRequest
    )
    call = wire.WireToolCall("0", "f", '{"x": "\\ud800"}')
    whole = MessageWriter(body).whole(wire.Value(0, 0, 0, (wire.Sample("", "stop", calls=(call,)),)))
    (block,) = json.loads(msgspec.json.encode(whole))["content"]
    assert block["input"] == {"x": "\ud800"}


def test_unknown_fields_that_ask_for_nothing_are_taken(url: str) -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}, "defer_loading": False, "x": None}
    for more in (
        {"container": None, "mcp_servers": [], "context_management": None},
        {"tools": [{**tool, "eager_input_streaming": True, "input_examples": [{}]}]},
    ):
        found, data = post(url, "/v1/messages", {"model": "pocket", "max_tokens": 1, "messages": QUESTION, **more})
        assert found == 200, data
    for wrong in ({"container": "a"}, {"mcp_servers": [{}]}, {"tools": [{**tool, "defer_loading": True}]}):
        found, _ = post(url, "/v1/messages", {"model": "pocket", "max_tokens": 1, "messages": QUESTION, **wrong})
        assert found == 400, wrong


def test_a_cache_control_inside_a_tool_result_pins() -> None:
    text = {"type": "text", "text": "71", "cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [text]}
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [result]}]}
    assert msgspec.convert(body, MessageRequest).pinned == 300.0
