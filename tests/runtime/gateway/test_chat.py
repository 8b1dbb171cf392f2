"""POST /v1/chat/completions, with the openai package."""

from __future__ import annotations

import functools
import json
from contextlib import nullcontext
from typing import Any

import openai
import pydantic
import pytest
from pocket_answers import ADA, ADA_STONE, ANSWER, PARAMETERS, QUESTION, SUM, Person

import banyan as bn
from banyan.runtime.gateway.bodies import decode
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat import ChatWriter
from banyan.runtime.gateway.openai.chat_types import ChatRequest
from banyan.runtime.protocol import wire
from raw_http import post

PATH = "/v1/chat/completions"
CALCULATOR: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Work out an arithmetic expression.",
        "parameters": PARAMETERS,
    },
}
ADD_DAYS: Any = {
    "type": "function",
    "function": {
        "name": "add_days",
        "description": "Add days to a date.",
        "parameters": {
            "type": "object",
            "properties": {"date": {"type": "string", "maxLength": 10}, "days": {"type": "integer"}},
            "required": ["date", "days"],
        },
    },
}


def create(client: openai.OpenAI, messages: Any = QUESTION, **options: Any) -> Any:
    return client.chat.completions.create(model="pocket", messages=messages, **({"temperature": 0} | options))


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "pocket", "messages": QUESTION, "temperature": 0, "max_tokens": 3} | fields


def test_create_returns_text_and_usage(openai_client: openai.OpenAI) -> None:
    found = create(openai_client, max_tokens=30)
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (15, 20, 35)
    assert found.model == "pocket"
    again = create(openai_client, max_completion_tokens=4)
    assert again.choices[0].finish_reason == "length"
    assert again.usage.prompt_tokens_details.cached_tokens == 14


def test_stream_has_role_first_one_finish_per_choice_and_usage_without_choices(openai_client: openai.OpenAI) -> None:
    options: Any = {"stream_options": {"include_usage": True}, "n": 2, "max_tokens": 5}
    chunks = list(create(openai_client, stream=True, **options))
    last = chunks.pop()
    assert last.choices == []
    assert last.usage.completion_tokens == 10
    assert all(chunk.usage is None for chunk in chunks)
    for index in range(2):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert [one.delta.role for one in mine[1:]] == [None] * (len(mine) - 1)
        assert [one.finish_reason for one in mine] == [None] * (len(mine) - 1) + ["length"]
        assert mine[-1].delta.content is None
        assert "".join(one.delta.content or "" for one in mine) == "I am the Banyan"


def test_stream_without_usage_has_none_and_never_an_empty_list_of_calls(url: str) -> None:
    for more in ({}, {"tools": [CALCULATOR], "messages": SUM, "max_tokens": 40}):
        status, data = post(url, PATH, body(stream=True, **more))
        assert status == 200
        assert b'"usage"' not in data
        assert b'"tool_calls":[]' not in data
        assert b"data: [DONE]" in data


def test_n_outputs_with_a_seed_are_the_same_with_and_without_stream(openai_client: openai.OpenAI) -> None:
    options: Any = {"n": 3, "seed": 7, "temperature": 2.0, "max_tokens": 6}
    whole = create(openai_client, **options)
    texts = ["", "", ""]
    for chunk in create(openai_client, stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert [choice.message.content for choice in whole.choices] == texts
    assert whole.usage.prompt_tokens == 15


def test_logprobs(openai_client: openai.OpenAI) -> None:
    found = create(openai_client, logprobs=True, top_logprobs=2, max_tokens=3).choices[0].logprobs
    assert [one.token for one in found.content] == ["I", " am", " the"]
    assert bytes(found.content[0].bytes) == b"I"
    assert [len(one.top_logprobs) for one in found.content] == [2, 2, 2]
    streamed = create(openai_client, logprobs=True, max_tokens=3, stream=True)
    tokens = [one for chunk in streamed if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert [one.token for one in tokens] == ["I", " am", " the"]
    (nothing,) = create(openai_client, logprobs=True, max_tokens=0).choices
    assert (nothing.message.content, nothing.logprobs.content) == ("", [])
    for chunk in create(openai_client, logprobs=True, max_tokens=0, stream=True):
        assert not chunk.choices[0].delta.content
        assert not (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content)


def test_logprobs_of_calls(openai_client: openai.OpenAI) -> None:
    options: Any = {"tools": [CALCULATOR], "max_tokens": 40, "logprobs": True}
    whole = [one.token for one in create(openai_client, SUM, **options).choices[0].logprobs.content]
    choices = [chunk.choices[0] for chunk in create(openai_client, SUM, stream=True, **options)]
    assert [one.token for choice in choices if choice.logprobs for one in choice.logprobs.content] == whole
    assert "".join(whole).startswith('<tool_call>{"name": "calculator"')


@pytest.mark.parametrize("stream", [False, True])
def test_bytes_of_tokens_are_those_of_the_text(stream: bool, openai_client: openai.OpenAI) -> None:
    text = "Zoë 🌳"
    options = {"logprobs": True, "top_logprobs": 5, "max_tokens": 30, "extra_body": {"choices": [text]}}
    found = create(openai_client, stream=stream, **options)
    chunks = [chunk.choices[0] for chunk in found if chunk.choices] if stream else found.choices
    tokens = [one for chunk in chunks if chunk.logprobs for one in chunk.logprobs.content]
    assert b"".join(bytes(one.bytes) for one in tokens).decode() == text
    assert all(len({top.token for top in one.top_logprobs}) == len(one.top_logprobs) for one in tokens)


def test_stop_bias_and_penalties(openai_client: openai.OpenAI) -> None:
    assert create(openai_client, stop=[" pocket", "pocket"]).choices[0].message.content.strip() == "I am the Banyan"
    biased = create(openai_client, logit_bias={"43": -100}, max_tokens=2)
    assert not biased.choices[0].message.content.startswith("I")
    options: Any = {"frequency_penalty": 1.5, "presence_penalty": 1.0, "top_p": 0.5, "seed": 1, "max_tokens": 3}
    assert create(openai_client, **options).choices[0].message.content


def test_tool_loop_with_the_parts_that_the_client_sends_back(openai_client: openai.OpenAI) -> None:
    first = create(openai_client, SUM, tools=[CALCULATOR]).choices[0]
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    (call,) = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("calculator", {"expression": "23+48"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "71"}
    found = create(openai_client, [*SUM, first.message, result], tools=[CALCULATOR])
    assert found.choices[0].message.content == "The answer is 71."
    assert found.usage.prompt_tokens_details.cached_tokens > 60


def test_history_may_have_the_fields_of_other_models_and_of_gateways(openai_client: openai.OpenAI) -> None:
    """LiteLLM, OpenRouter and Google's API add them, and a conversation may go on here."""
    more: Any = {"provider_specific_fields": {"refusal": None}, "extra_content": {"google": {}}}
    function = {"name": "calculator", "arguments": '{"expression": "23+48"}'}
    result = {"role": "tool", "tool_call_id": "a", "content": "71"}
    plain, extended = (
        [
            *SUM,
            {"role": "assistant", "tool_calls": [{"id": "a", "function": function | inner, **outer}], **turn},
            result,
        ]
        for inner, outer, turn in (
            ({}, {}, {}),
            (
                {"provider_specific_fields": {}},
                more,
                more | {"id": "msg_1", "phase": "final_answer", "thinking_blocks": [{}], "reasoning_details": [{}]},
            ),
        )
    )
    found = [create(openai_client, messages, tools=[CALCULATOR]) for messages in (plain, extended)]
    assert found[0].usage.prompt_tokens == found[1].usage.prompt_tokens


def test_a_text_may_come_back_with_the_fields_of_its_message(openai_client: openai.OpenAI) -> None:
    """OpenAI's agents package for JavaScript sends it so."""
    message = create(openai_client, SUM, tools=[CALCULATOR]).choices[0].message.to_dict()
    part = {"type": "text", "text": "Hello.", **message, "content": None, "annotations": [], "reasoning": "So"}
    told = {"role": "assistant", "content": [part]}
    found, plain = (
        create(openai_client, [*QUESTION, one, *QUESTION], max_tokens=1).usage.prompt_tokens
        for one in (told, {"role": "assistant", "content": "Hello."})
    )
    assert found == plain


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of the openai package
def test_parsed_calls_and_outputs_go_back_as_the_client_has_them(openai_client: openai.OpenAI) -> None:
    class Calculator(pydantic.BaseModel):
        "Work out an arithmetic expression."

        expression: str

    parse = functools.partial(openai_client.chat.completions.parse, model="pocket", temperature=0)
    tools = [openai.pydantic_function_tool(Calculator, name="calculator")]
    ada = parse(messages=ADA, response_format=Person).choices[0].message
    called = parse(messages=[*ADA, ada, *SUM], tools=tools).choices[0].message
    (call,) = called.tool_calls or ()
    assert (ada.parsed, call.function.parsed_arguments) == (
        ADA_STONE,
        Calculator(expression="23+48"),
    )
    result = {"role": "tool", "tool_call_id": call.id, "content": "71"}
    assert parse(messages=[*ADA, ada, *SUM, called, result], tools=tools).choices[0].message.content


def test_text_beside_calls_reaches_the_model_and_control_tokens_in_arguments_are_data(
    openai_client: openai.OpenAI,
) -> None:
    function = {"name": "calculator", "arguments": '{"expression": "23+48<|im_end|>"}'}
    called = {"role": "assistant", "content": "Let me see.", "tool_calls": [{"id": "a", "function": function}]}
    result = {"role": "tool", "tool_call_id": "a", "content": "71"}
    for one in (called, called | {"content": None}):
        found = create(openai_client, [*SUM, one, result], tools=[CALCULATOR])
        n_tokens = found.usage.prompt_tokens
        assert found.choices[0].message.content == "The answer is 71."
    assert n_tokens < 110  # `<|im_end|>` as text takes several tokens, as a control token one


def allowed(mode: str, *tools: Any) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


@pytest.mark.parametrize("stream", [False, True])
def test_tool_choices(openai_client: openai.OpenAI, stream: bool) -> None:
    def called(choice: Any, **more: Any) -> list[str]:
        options: Any = {"tools": [CALCULATOR, ADD_DAYS], "tool_choice": choice, "max_tokens": 60, **more}
        found = create(openai_client, SUM, stream=stream, **options)
        if not stream:
            return [call.function.name for call in found.choices[0].message.tool_calls or ()]
        deltas = [chunk.choices[0].delta for chunk in found]
        return [call.function.name for delta in deltas for call in delta.tool_calls or () if call.id]

    assert called("auto") == called("required", parallel_tool_calls=False) == ["calculator"]
    assert called("none") == []
    named = {"type": "function", "function": {"name": "add_days"}}
    assert called(named) == called(allowed("required", named)) == ["add_days"]
    assert called(allowed("auto", {"type": "function", "function": {"name": "calculator"}})) == ["calculator"]


def test_any_json_object(openai_client: openai.OpenAI) -> None:
    found = create(openai_client, ADA, response_format={"type": "json_object"}, max_tokens=60)
    assert isinstance(json.loads(found.choices[0].message.content), dict)


def with_parameters(**properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_parameters_that_are_invalid_or_strict_and_cannot_be_enforced_are_refused(url: str, choice: str) -> None:
    unique = with_parameters(expression={"type": "array", "uniqueItems": True, "items": {"type": "integer"}})
    strict = {"type": "function", "function": {**unique["function"], "strict": True}}
    no_object = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
    for tools, code, param in (
        ([strict], "constraint_unsupported", None),
        ([with_parameters(x={"type": "objekt"})], "constraint_syntax", None),
        ([with_parameters(x={"type": "string", "pattern": "[0-9"})], "constraint_syntax", None),
        ([with_parameters(x={"$ref": "#/$defs/x"})], "constraint_syntax", None),
        ([with_parameters(x={"$ref": "https://a.example/x"})], "constraint_unsupported", None),
        ([no_object], None, "tools[0]"),
        ([CALCULATOR, CALCULATOR], None, "tools[1]"),
    ):
        for stream in (False, True):
            status, data = post(url, PATH, body(messages=SUM, tools=tools, tool_choice=choice, stream=stream))
            assert status == 400, data
            error = json.loads(data)["error"]
            assert (error["code"], error["param"]) == (code, param)


def test_parameters_that_cannot_be_enforced_are_enforced_as_far_as_possible(openai_client: openai.OpenAI) -> None:
    digits = {"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 0, "maximum": 99}}
    tool = with_parameters(expression=digits | {"maxItems": 3})
    message = create(openai_client, SUM, tools=[tool], tool_choice="required", max_tokens=100).choices[0].message
    found = json.loads(message.tool_calls[0].function.arguments)["expression"]
    assert len(found) <= 3
    assert all(isinstance(one, int) for one in found)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_call_that_max_tokens_cuts_is_no_content(openai_client: openai.OpenAI, choice: str) -> None:
    options: Any = {"tools": [CALCULATOR], "tool_choice": choice, "max_tokens": 5}
    found = create(openai_client, SUM, **options).choices[0]
    assert (found.message.content, found.message.tool_calls, found.finish_reason) == ("", None, "length")
    chunks = [chunk.choices[0] for chunk in create(openai_client, SUM, stream=True, **options)]
    assert "".join(one.delta.content or "" for one in chunks) == ""
    assert chunks[-1].finish_reason == "length"


def test_stop_string_may_be_the_token_that_ends_a_call(openai_client: openai.OpenAI) -> None:
    (choice,) = create(openai_client, SUM, tools=[CALCULATOR], stop=["</tool_call>"], max_tokens=40).choices
    assert (choice.finish_reason, len(choice.message.tool_calls)) == ("tool_calls", 1)


def test_stream_has_the_name_of_a_call_and_then_its_arguments(openai_client: openai.OpenAI) -> None:
    options: Any = {"tools": [CALCULATOR], "temperature": 0}
    chunks = create(openai_client, SUM, stream=True, **options)
    first, *rest = (call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ())
    assert (first.index, first.type, first.function.name, first.function.arguments) == (0, "function", "calculator", "")
    assert first.id.startswith("call_")
    assert {(call.index, call.id, call.function.name) for call in rest} == {(0, None, None)}
    assert "".join(call.function.arguments for call in rest) == '{"expression": "23+48"}'
    with openai_client.chat.completions.stream(model="pocket", messages=SUM, **options) as stream:
        pieces = [one.arguments_delta for one in stream if one.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    assert final.message.tool_calls is not None
    assert "".join(pieces) == final.message.tool_calls[0].function.arguments == '{"expression": "23+48"}'
    assert final.finish_reason == "tool_calls"


def test_first_chunk_of_a_stream_has_content_only_before_text() -> None:
    """Clients began an empty text before each call."""
    call = wire.WireToolCall("000000000", "f", "{}")
    for item, content in (
        (wire.Delta(0, 0, 0, "Hi"), ""),
        (wire.Delta(0, 0, 0, "So", is_thought=True), None),
        (wire.Delta(0, 0, 0, "", call=wire.CallPiece(call.id, "f")), None),
        (wire.Value(0, 0, 0, (wire.Sample("", "stop"),)), ""),
        (wire.Value(0, 0, 0, (wire.Sample("", "stop", calls=(call,)),)), None),
    ):
        data = ChatWriter(ChatRequest(model="m", messages=[], stream=True)).chunk(0, item)
        first = json.loads(data.split(b"\n\n")[0].removeprefix(b"data: "))["choices"][0]["delta"]
        assert first == {"role": "assistant", "content": content}


def test_stream_of_a_call_that_max_tokens_cuts_ends_with_length() -> None:
    whole = wire.WireToolCall("000000000", "f", '{"x": 1}')
    pieces = (wire.CallPiece(whole.id, "f"), wire.CallPiece(whole.id, arguments='{"x"'))
    cut = (wire.CallPiece("000000001", "g"), wire.CallPiece("000000001", arguments="{"))
    for sent, finish in (((), "tool_calls"), (pieces, "tool_calls"), ((*pieces, *cut), "length")):
        writer = ChatWriter(ChatRequest(model="m", messages=[], stream=True))
        items = [wire.Delta(0, 0, 0, "", call=piece) for piece in sent]
        value = wire.Value(0, 0, 0, (wire.Sample("", "length", calls=(whole,)),))
        events = b"".join(writer.chunk(0, item) for item in (*items, value)).split(b"\n\n")[:-1]
        choices = [json.loads(data.removeprefix(b"data: "))["choices"][0] for data in events]
        calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
        assert "".join(call["function"]["arguments"] for call in calls if call["index"] == 0) == whole.arguments
        assert choices[-1]["finish_reason"] == finish


def test_parse_with_tools(openai_client: openai.OpenAI) -> None:
    strict = {"type": "function", "function": CALCULATOR["function"] | {"strict": True}}
    for messages, has_calls in ((SUM, True), (ADA, False)):
        options: Any = {"tools": [strict], "response_format": Person, "temperature": 0}
        found = openai_client.chat.completions.parse(model="pocket", messages=messages, **options).choices[0].message
        assert bool(found.tool_calls) == has_calls
        assert isinstance(found.parsed, Person) != has_calls
        with openai_client.chat.completions.stream(model="pocket", messages=messages, **options) as stream:
            final: Any = stream.get_final_completion().choices[0].message
        assert (final.content or None, final.parsed) == (found.content, found.parsed)


@pytest.mark.parametrize(
    ("constraint", "allowed"),
    [
        ({"choices": ["red", "blue"]}, {"red", "blue"}),
        ({"regex": "[0-9]{3}"}, {f"{n:03d}" for n in range(1000)}),
        ({"grammar": 'start: "a" | "b"'}, {"a", "b"}),
    ],
)
def test_extra_constraints(openai_client: openai.OpenAI, constraint: Any, allowed: set[str]) -> None:
    assert create(openai_client, extra_body=constraint).choices[0].message.content in allowed


def test_continue_final_message(openai_client: openai.OpenAI) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "I am the"}]
    found = create(openai_client, messages, max_tokens=2, extra_body={"continue_final_message": True})
    assert found.choices[0].message.content.startswith(" Banyan")


def test_add_generation_prompt_may_be_false_where_the_last_message_goes_on(
    openai_client: openai.OpenAI, url: str
) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "I am the"}]
    both = {"continue_final_message": True, "add_generation_prompt": False}  # as vLLM requires
    found = create(openai_client, messages, max_tokens=2, extra_body=both)
    assert found.choices[0].message.content.startswith(" Banyan")
    with pytest.raises(openai.BadRequestError, match="add_generation_prompt` must be true without continue_final"):
        create(openai_client, messages, extra_body={"add_generation_prompt": False})

    def tokens(**body: Any) -> list[int]:
        status, reply = post(url, "/tokenize", {"messages": messages, **body})
        assert status == 200, reply
        return json.loads(reply)["tokens"]  # type: ignore[no-any-return]

    begun, whole, closed = tokens(**both), tokens(), tokens(add_generation_prompt=False)
    assert begun == tokens(continue_final_message=True) == closed[: len(begun)]
    assert len(begun) < len(closed) < len(whole)
    assert found.usage is not None
    assert found.usage.prompt_tokens == len(begun)
    for body in ({"prompt": "x", **both}, {"messages": QUESTION, **both}):
        status, reply = post(url, "/tokenize", body)
        assert (status, json.loads(reply)["error"]["param"]) == (400, "continue_final_message")

    @bn.function
    def two_gens(s: bn.State) -> None:
        s += bn.user(QUESTION[0]["content"]) + bn.assistant("I am " + bn.gen("a", max_tokens=2) + " " + bn.gen("b"))

    state = two_gens.run(backend=bn.OpenAI("pocket", base_url=f"{url}/v1", api_key="none", extensions=["prefix"]))
    assert state.messages()[-1]["content"] == f"I am {state['a']} {state['b']}"


def test_fields_without_effect_are_named_in_a_header(openai_client: openai.OpenAI) -> None:
    found = openai_client.chat.completions.with_raw_response.create(
        model="pocket", messages=[*QUESTION, {"role": "user", "name": "ann", "content": "?"}], max_tokens=1, store=True
    )
    assert found.headers["x-banyan-ignored"] == "store, messages.name"


def test_unknown_fields_that_ask_for_nothing_are_taken(url: str) -> None:
    parts = [{"type": "text", "text": "Hi", "x": None}, {"type": "text", "text": "!", "y": None}]
    tool = {**CALCULATOR, "x": None, "function": {**CALCULATOR["function"], "y": None}}
    schema = tool["function"]["parameters"] = {"type": "object", "properties": {"a": {"enum": ["b", None]}}}
    for more in (
        {"audio": None, "functions": None, "function_call": None, "prompt_logprobs": None},
        {"best_of": 1, "include_stop_str_in_output": False, "use_beam_search": False, "add_generation_prompt": True},
        {"functions": [], "function_call": "none", "documents": [], "include_reasoning": True, "detokenize": True},
        {"return_token_ids": False, "return_tokens_as_token_ids": False, "spaces_between_special_tokens": True},
        {"messages": [{"role": "user", "content": parts, "z": None}, *QUESTION]},
        {"tools": [tool], "messages": [{**SUM[0], "z": None}]},
    ):
        assert post(url, PATH, body(**more))[0] == 200, more
    found = decode(json.dumps({"model": "m", "messages": SUM, "tools": [tool]}).encode(), ChatRequest)
    assert found.tools is not None
    assert found.tools[0].function.parameters == schema
    for wrong in ({"best_of": 2}, {"functions": [{}]}, {"audio": None, "foo": 0}, {"messages": [{**SUM[0], "z": 0}]}):
        status, data = post(url, PATH, body(**wrong))
        assert status == 400
        assert json.loads(data)["error"]["param"] in ("best_of", "functions", "foo", "messages[0].z")


def test_unknown_fields_of_a_long_body_are_refused() -> None:
    """To leave them out would take long, and all requests would wait."""
    for n, is_taken in ((1000, True), (1 << 20, False)):
        data = {"model": "m", "messages": [{"role": "user", "content": "x" * n}], "z": None}
        with nullcontext() if is_taken else pytest.raises(HTTPError, match="`z` is not supported"):
            decode(json.dumps(data).encode(), ChatRequest)


def test_cache_control_of_a_part_has_no_effect(openai_client: openai.OpenAI) -> None:
    part = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    found = openai_client.chat.completions.with_raw_response.create(
        model="pocket",
        messages=[{"role": "user", "content": [part]}],
        max_tokens=1,  # type: ignore[list-item]
    )
    assert found.headers["x-banyan-ignored"] == "messages.content.cache_control"


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({"messages": []}, "messages", 400),
        ({"messages": [{"role": "user", "content": "x", "foo": 1}]}, "messages[0].foo", 400),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type", 400),
        ({"messages": [{"role": "tool", "tool_call_id": "a", "content": "1"}]}, "messages[0].tool_call_id", 400),
        ({"foo": 1}, "foo", 400),
        ({"model": "gpt-6"}, "model", 404),
        ({"model": None}, "model", 400),
        ({"stream_options": {"include_usage": True}}, "stream_options", 400),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", 400),
        ({"top_logprobs": 2}, "top_logprobs", 400),
        ({"n": 0}, "n", 400),
        ({"temperature": 2.5}, "temperature", 400),
        ({"logit_bias": {"x": 1}}, "logit_bias", 400),
        ({"stop": ""}, "stop", 400),
        ({"stop": ["\n", ""]}, "stop[1]", 400),
        ({"seed": 1 << 70}, "seed", 400),
        ({"max_completion_tokens": 3}, "max_tokens", 400),
        ({"min_tokens": 4}, "min_tokens", 400),
        ({"tool_choice": "required"}, "tool_choice", 400),
        ({"tools": [CALCULATOR], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", 400),
        ({"tools": [CALCULATOR], "tool_choice": allowed("auto")}, "tool_choice", 400),
        ({"regex": "a", "grammar": "b"}, "grammar", 400),
        ({"regex": "("}, None, 400),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}
                ]
            },
            "messages[0].content[0].image_url.url",
            400,
        ),
    ],
)
def test_errors_have_the_shape_of_openai(url: str, fields: Any, param: str | None, status: int) -> None:
    for stream in (False, True):
        found, data = post(url, PATH, {**body(), "stream": stream, **fields})
        if stream and "stream_options" in fields:
            continue
        error = json.loads(data)["error"]
        assert (found, error["param"]) == (status, param), error
        assert error["type"] == "invalid_request_error"
        assert error["message"]


@pytest.mark.parametrize("field", ["seed", "max_tokens", "top_k", "min_tokens", "priority"])
@pytest.mark.parametrize("sign", [1, -1])
def test_number_with_more_bits_than_a_message_has_is_refused(
    openai_client: openai.OpenAI, field: str, sign: int
) -> None:
    with pytest.raises(openai.BadRequestError):
        create(openai_client, max_tokens=3, extra_body={field: sign * 2**70})
