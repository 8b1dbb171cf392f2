"""The cases that the tests of vLLM, SGLang, openai-python and compatcanary hold against a server of the same APIs.

docs/http-compatibility.md lists them. Each row there is a function here, which asks a real server: that it does what
the case wants or, where the row names a difference, that it does what the row says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import openai
import pydantic
import pytest
from pocket_answers import ADA, ADA_STONE, ANSWER, PROMPT, QUESTION, SUM, Person

from forms import in_short
from raw_http import connect, encode, exchange, post, status
from waits import wait_until

if TYPE_CHECKING:
    import anthropic  # which takes a second of CPU time

PAGE = Path(__file__).parents[3] / "docs" / "http-compatibility.md"

CHAT = "/v1/chat/completions"


class Calculator(pydantic.BaseModel):
    expression: str


def function(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return {"name": name, "description": f"The tool {name}.", "parameters": parameters, "strict": True}


def tool(name: str, **properties: Any) -> Any:
    return {"type": "function", "function": function(name, **properties)}


TEXT = {"type": "string", "maxLength": 8}
CALCULATOR = tool("calculator", expression={"type": "string", "maxLength": 20})
WEATHER = tool("get_weather", city=TEXT, unit={"enum": ["celsius", "fahrenheit"]})
NO_ARGUMENTS = tool("get_current_time")
MESSAGE_TOOLS: Any = [
    {"name": one["function"]["name"], "input_schema": one["function"]["parameters"]} for one in (CALCULATOR, WEATHER)
]
RESPONSE_TOOLS: Any = [one["function"] | {"type": "function"} for one in (CALCULATOR, WEATHER)]


class Server(NamedTuple):
    """A server's URL, and a client of each kind."""

    url: str
    openai: openai.OpenAI
    anthropic: anthropic.Anthropic

    def chat(self, messages: Any = QUESTION, **options: Any) -> Any:
        return self.openai.chat.completions.create(
            model="pocket", messages=messages, **({"temperature": 0, "max_tokens": 5} | options)
        )

    def complete(self, prompt: Any = PROMPT, **options: Any) -> Any:
        loose = self.openai.with_options(_extra_kwargs={"_strict_response_validation": False})
        return loose.completions.create(
            model="pocket", prompt=prompt, **({"temperature": 0, "max_tokens": 5} | options)
        )

    def respond(self, given: Any = "Hi, who are you?", **options: Any) -> Any:
        return self.openai.responses.create(model="pocket", input=given, **({"temperature": 0} | options))

    def message(self, messages: Any = QUESTION, **options: Any) -> Any:
        greedy: Any = {"max_tokens": 5, "extra_body": {"temperature": 0}}  # which the package has no argument for
        return self.anthropic.messages.create(model="pocket", messages=messages, **(greedy | options))

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        found, data = post(self.url, path, {"model": "pocket"} | body)
        return found, json.loads(data)


@pytest.fixture
def server(url: str, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic) -> Server:
    return Server(url, openai_client, anthropic_client)


Check = Callable[[Server], None]
CHECKS: list[Check] = []
ROWS: dict[tuple[str, str], bool] = {}
"""(file, case) -> whether the page names a difference."""


def case(file: str, *names: str, differs: bool = False) -> Callable[[Check], Check]:
    """The function is for these cases of a test file."""

    def add(check: Check) -> Check:
        assert not any((file, name) in ROWS for name in names), (file, names)
        ROWS.update({(file, name): differs for name in names})
        if check not in CHECKS:
            CHECKS.append(check)
        return check

    return add


def refused(call: Callable[[], Any], param: str | None = None) -> str:
    """The message of the error 400. param: the field that it names."""
    import anthropic

    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as raised:
        call()
    if isinstance(raised.value, openai.BadRequestError):
        assert raised.value.param == param
    return str(raised.value)


def finishes(chunks: list[Any]) -> dict[int, list[str]]:
    """The finish reasons of each choice of a stream."""
    found: dict[int, list[str]] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        found.setdefault(choice.index, []).extend([choice.finish_reason] if choice.finish_reason else [])
    return found


def calls(chunks: list[Any]) -> list[tuple[str, Any]]:
    """The calls of a stream of chat completions, joined from their pieces."""
    found: dict[tuple[int, int], list[str]] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        for one in choice.delta.tool_calls or ():
            name, arguments = found.get((choice.index, one.index), (one.function.name, ""))
            found[choice.index, one.index] = [name, arguments + one.function.arguments]
    return [(name, json.loads(arguments)) for _, (name, arguments) in sorted(found.items())]


GREEDY: Any = {"model": "pocket", "max_tokens": 5, "temperature": 0}


def events(server: Server, **body: Any) -> list[Any]:
    """The events of a streamed message."""
    found, data = post(server.url, "/v1/messages", GREEDY | {"stream": True} | body)
    assert found == 200
    return [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: ")]


# ---- vLLM: chat completions ------------------------------------------------------------------------------------------

BASIC = "vllm basic/test_basic.py"
VLLM_CHAT = "vllm chat_completion/test_chat.py"
BIAS = "vllm chat_completion/test_chat_logit_bias_validation.py"
VLLM_TOOLS = "vllm chat_completion/test_completion_with_function_calling.py"


@case(BASIC, "check_health")
def health(server: Server) -> None:
    assert post(server.url, "/health", b"", method="GET")[0] == 200


@case(BASIC, "show_version", "server_load", differs=True)
@case(VLLM_CHAT, "invocations", differs=True)
def paths_of_vllm_alone(server: Server) -> None:
    for path in ("/version", "/load", "/invocations"):
        assert post(server.url, path, b"", method="GET")[0] == 404


@case(BASIC, "request_cancellation")
def hang_ups_end_requests(server: Server) -> None:
    body = {"model": "pocket", "messages": QUESTION, "max_tokens": 1900, "ignore_eos": True}
    for _ in range(8):
        with connect(server.url) as sock:
            sock.sendall(encode(CHAT, body))
    assert server.chat().usage.completion_tokens == 5


@case(BASIC, "request_wrong_content_type", differs=True)
def content_type_has_no_effect(server: Server) -> None:
    body = {"model": "pocket", "messages": QUESTION, "max_tokens": 1}
    assert post(server.url, CHAT, body, "content-type: application/x-www-form-urlencoded\r\n")[0] == 200


@case(VLLM_CHAT, "no_logprobs_chat", "zero_logprobs_chat", "some_logprobs_chat")
def logprobs_as_many_as_asked_for(server: Server) -> None:
    assert server.chat(logprobs=False).choices[0].logprobs is None
    for n in (0, 5):
        content = server.chat(logprobs=True, top_logprobs=n).choices[0].logprobs.content
        assert [len(one.top_logprobs) for one in content] == [n] * 5


@case(VLLM_CHAT, "too_many_chat_logprobs")
def too_many_logprobs(server: Server) -> None:
    for stream in (True, False):
        refused(lambda stream=stream: server.chat(logprobs=True, top_logprobs=21, stream=stream), "top_logprobs")
    assert server.chat().choices[0].message.content


@case(VLLM_CHAT, "prompt_logprobs_chat", "more_than_one_prompt_logprobs_chat", differs=True)
@case("vllm completion/test_completion.py", "prompt_logprobs_completion", differs=True)
def prompt_logprobs_are_those_of_an_echo(server: Server) -> None:
    refused(lambda: server.chat(extra_body={"prompt_logprobs": 1}), "prompt_logprobs")
    refused(lambda: server.complete(extra_body={"prompt_logprobs": 1}), "prompt_logprobs")
    found = server.complete(echo=True, logprobs=1, max_tokens=0).choices[0]
    assert "".join(found.logprobs.tokens) == found.text == PROMPT


@case(VLLM_CHAT, "single_chat_session")
def session_of_two_turns(server: Server) -> None:
    first = server.chat(logprobs=True, top_logprobs=5)
    usage = first.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (15, 5, 20)
    assert (first.choices[0].finish_reason, first.choices[0].message.role) == ("length", "assistant")
    second = server.chat([*QUESTION, first.choices[0].message, {"role": "user", "content": "Go on."}])
    assert second.choices[0].message.content


@case(VLLM_CHAT, "chat_streaming", differs=True)
@case("vllm completion/test_completion.py", "completion_streaming", differs=True)
@case("sglang basic/test_openai_server.py", "completion_stream", differs=True)
def last_chunk_of_a_choice_has_no_text(server: Server) -> None:
    whole, chunks = server.chat(), list(server.chat(stream=True))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == whole.choices[0].message.content
    assert finishes(chunks) == {0: ["length"]}
    assert chunks[-1].choices[0].delta.content is None
    completed, pieces = server.complete(), list(server.complete(stream=True))
    assert "".join(one.choices[0].text for one in pieces) == completed.choices[0].text
    assert (pieces[-1].choices[0].text, finishes(pieces)) == ("", {0: ["length"]})
    refused(lambda: server.complete(stream=True, echo=True, logprobs=1), "echo")


@case(VLLM_CHAT, "chat_completion_stream_options", differs=True)
@case("vllm completion/test_completion.py", "completion_stream_options")
def stream_options(server: Server) -> None:
    for ask in (server.chat, server.complete):
        for options in ({"include_usage": False}, {}):
            assert all(one.usage is None for one in ask(stream=True, stream_options=options))
        *chunks, last = ask(stream=True, stream_options={"include_usage": True})
        assert all(one.usage is None for one in chunks)
        assert (last.choices, last.usage.completion_tokens) == ([], 5)
        for options in ({"include_usage": None}, {"include_usage": True}):
            refused(lambda ask=ask, options=options: ask(stream_options=options), "stream_options")
        more = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, last = ask(stream=True, n=2, stream_options=more)
        for index in range(2):
            so_far = [one.usage.completion_tokens for one in chunks if one.choices[0].index == index]
            assert so_far == sorted(so_far)
            assert so_far[-1] == 5
        assert (last.usage.completion_tokens, last.usage.prompt_tokens) == (10, chunks[-1].usage.prompt_tokens)
        assert all(one.usage is None for one in ask(stream=True, stream_options={"continuous_usage_stats": True}))
        refused(lambda ask=ask: ask(stream=True, stream_options={"min_characters": 3}), "stream_options.min_characters")


@case(
    VLLM_CHAT,
    *("structured_outputs_choice_chat", "structured_outputs_json_chat", "structured_outputs_regex_chat"),
    "structured_outputs_choice_chat_logprobs",
)
def constraints_in_the_fields_of_vllm(server: Server) -> None:
    def ask(**fields: Any) -> Any:
        found = server.chat(logprobs=True, top_logprobs=5, max_tokens=60, extra_body={"structured_outputs": fields})
        assert all(top.logprob >= -9999.0 for one in found.choices[0].logprobs.content for top in one.top_logprobs)
        return found.choices[0].message.content

    size: Any = {"type": "object", "properties": {"cm": {"enum": [10, 20]}}, "required": ["cm"]}
    schema = size | {"additionalProperties": False}
    address = r"(25[0-5]|[01]?[0-9]{1,2})(\.[0-9]{1,2}){3}"
    unset = {"whitespace_pattern": None, "disable_fallback": False, "disable_any_whitespace": False}
    assert ask(choice=["Python", "Rust", "Java"], **unset) in ["Python", "Rust", "Java"]
    assert re.fullmatch(address, ask(regex=address))
    for given in (schema, json.dumps(schema)):
        assert json.loads(ask(json=given))["cm"] in (10, 20)
    assert ask(grammar='root ::= "select " column\ncolumn ::= "a" | "b"') in ("select a", "select b")
    assert isinstance(json.loads(ask(json_object=True)), dict)
    both: Any = {"regex": "a", "structured_outputs": {"regex": "b"}}
    refused(lambda: server.chat(extra_body=both), "structured_outputs.regex")
    refused(
        lambda: server.chat(extra_body={"structured_outputs": {"structural_tag": "a"}}),
        "structured_outputs.structural_tag",
    )


@case(VLLM_CHAT, "structured_outputs_type_error")
@case("vllm completion/test_completion.py", "invalid_json_schema", "invalid_regex", "invalid_grammar")
def constraints_that_cannot_be(server: Server) -> None:
    refused(lambda: server.chat(extra_body={"regex": {"1": "Python"}}), "regex")
    schema = {"name": "x", "schema": {"type": "object", "properties": {"foo": "bar"}}}
    refused(lambda: server.complete(extra_body={"response_format": {"type": "json_schema", "json_schema": schema}}))
    refused(lambda: server.complete(extra_body={"regex": "[.*"}, stop=["\n"]))
    refused(lambda: server.complete(extra_body={"grammar": "root ::= select"}))


@case(VLLM_CHAT, "response_format_json_object", "response_format_json_schema", "response_format_text")
@case("sglang features/test_json_mode.py", "json_mode_response", "json_mode_with_streaming")
def response_formats(server: Server) -> None:
    assert server.chat(response_format={"type": "text"}).choices[0].message.content
    schema = {"name": "foo_test", "schema": Person.model_json_schema()}
    for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": schema}):
        for stream in (False, True):
            found = server.chat(ADA, response_format=form, max_tokens=80, stream=stream)
            deltas = [one.choices[0].delta for one in found] if stream else [found.choices[0].message]
            assert isinstance(json.loads("".join(one.content or "" for one in deltas)), dict)


@case(VLLM_CHAT, "extra_fields_allowed", differs=True)
def extra_fields_are_named(server: Server) -> None:
    refused(lambda: server.chat([QUESTION[0] | {"extra_field": "0"}]), "messages[0].extra_field")


@case(VLLM_CHAT, "complex_message_content", "custom_role")
def content_in_parts_is_the_text(server: Server) -> None:
    for role in ("user", "system", "my-custom-role"):
        parts = [{"type": "text", "text": "what is "}, {"type": "text", "text": "1+1?"}]
        found = [server.chat([{"role": role, "content": content}]) for content in ("what is 1+1?", parts)]
        assert found[0].choices[0].message.content == found[1].choices[0].message.content


@case(VLLM_CHAT, "long_seed")
def long_seeds(server: Server) -> None:
    for seed in (-(2**63) - 1, 2**63):
        refused(lambda seed=seed: server.chat(seed=seed), "seed")


@case(
    VLLM_CHAT,
    *("chat_completion_n_parameter_non_streaming", "chat_completion_n_parameter_streaming"),
    *("chat_completion_n_with_seed", "chat_completion_n_equals_1"),
)
@case("vllm completion/test_completion.py", "parallel_no_streaming", "parallel_streaming")
def several_choices(server: Server) -> None:
    options: Any = {"n": 3, "seed": 42, "temperature": 2.0, "max_tokens": 8}
    chat = server.chat([{"role": "user", "content": "Tell me anything."}], **options)
    completion = server.complete("The tree", **options, logprobs=0)
    assert [one.index for one in chat.choices] == [one.index for one in completion.choices] == [0, 1, 2]
    assert len({one.message.content for one in chat.choices}) > 1
    assert len({one.text for one in completion.choices}) == 3
    for chunks in (list(server.chat(**options, stream=True)), list(server.complete(**options, stream=True))):
        assert {index: len(reasons) for index, reasons in finishes(chunks).items()} == {0: 1, 1: 1, 2: 1}
    assert [one.index for one in server.chat(n=1).choices] == [0]


@case(
    BIAS,
    *("chat_logit_bias_valid", "chat_logit_bias_invalid", "chat_logit_bias_non_integer_key"),
    *("chat_logit_bias_non_numeric_value", "chat_logit_bias_multiple_non_integer_keys"),
)
def logit_biases(server: Server) -> None:
    assert server.chat(logit_bias={"4095": 1.0}).choices[0].message.content
    text = refused(lambda: server.chat(logit_bias={"4097": 1.0}))
    assert "4097" in text
    assert "4095" in text
    text = refused(lambda: server.chat(logit_bias={"bad1": 50, "2": 1, "bad2": 20}), "logit_bias")
    assert "bad1" in text
    assert "bad2" in text
    refused(lambda: server.chat(logit_bias={"1": "not_a_number"}), "logit_bias")


@case(
    "vllm chat_completion/test_chat_stop_token_ids_validation.py",
    *("chat_stop_token_ids_valid", "chat_stop_token_ids_out_of_vocab", "chat_stop_token_ids_negative"),
)
def stop_tokens(server: Server) -> None:
    assert server.chat(extra_body={"stop_token_ids": [4095]}).choices[0].message.content
    for token in (4097, -1):
        text = refused(lambda token=token: server.chat(extra_body={"stop_token_ids": [token]}))
        assert str(token) in text
        assert "4095" in text


@case(
    "vllm chat_completion/test_cache_accounting.py",
    *("cache_accounting_non_streaming", "cache_accounting_streaming"),
    differs=True,
)
def cached_tokens_have_the_name_of_openai(server: Server) -> None:
    messages = [{"role": "user", "content": "Which tree is the oldest of the counted ones?"}]
    usages = [server.chat(messages).usage, server.chat(messages).usage]
    usages.append([*server.chat(messages, stream=True, stream_options={"include_usage": True})][-1].usage)
    cached = [one.prompt_tokens_details.cached_tokens for one in usages]
    assert cached[0] < 5
    assert min(cached[1:]) > 10
    assert not hasattr(usages[0], "cache_read_input_tokens")


@case("vllm chat_completion/test_non_object_body_validation.py", "chat_completion_request_rejects_non_object_body")
def bodies_that_are_no_objects(server: Server) -> None:
    for body in ('"text"', '["not", "an", "object"]', "42", "null"):
        assert post(server.url, CHAT, body.encode())[0] == 400


@case(
    "vllm chat_completion/test_chat_echo.py",
    *("chat_session_with_echo_and_continue_final_message", "prompt_logprobs", "top_logprobs"),
    differs=True,
)
@case(
    "vllm basic/test_return_token_ids.py",
    *("basic_completion_with_emoji", "chat_completion_with_tool_use", "chat_completion_with_emoji_and_token_ids"),
    "comparison_with_prompt_logprobs_and_logprobs",
    differs=True,
)
@case(
    "sglang validation/test_matched_stop.py",
    *("finish_stop_str", "finish_stop_regex_str", "finish_stop_eos", "finish_length"),
    differs=True,
)
def fields_of_others(server: Server) -> None:
    for name in ("echo", "return_token_ids"):
        refused(lambda name=name: server.chat(extra_body={name: True}), name)
    refused(lambda: server.complete(extra_body={"return_token_ids": True}), "return_token_ids")
    refused(lambda: server.chat(logprobs=True, top_logprobs=-1), "top_logprobs")
    stop: Any = {"extra_body": {"stop_regex": "p.cket"}}
    for options, reason in (({"stop": " pocket"}, "stop"), (stop, "stop"), ({}, "stop"), ({"max_tokens": 3}, "length")):
        choice = server.chat(**({"max_tokens": 40} | options)).choices[0]
        assert choice.finish_reason == reason
        assert choice.model_extra == {}


# ---- calls of tools in chat completions ------------------------------------------------------------------------------

SGLANG_TOOLS = "sglang function_call/test_openai_function_calling.py"
CHOICE = "sglang function_call/test_tool_choice.py"


@case(VLLM_TOOLS, "function_tool_use")
def variables_of_the_chat_template(server: Server) -> None:
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    found = server.chat(tools=[WEATHER], tool_choice="required", max_tokens=60, extra_body=kwargs)
    assert found.choices[0].message.tool_calls


@case(VLLM_TOOLS, "no_args_tool_call")
def call_without_arguments(server: Server) -> None:
    ask: Any = [{"role": "user", "content": "What time is it now?"}]
    message = server.chat(ask, tools=[NO_ARGUMENTS], tool_choice="required", max_tokens=60).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {}
    for arguments in ("{}", ""):
        call.function.arguments = arguments
        result = {"role": "tool", "tool_call_id": call.id, "content": "noon"}
        assert server.chat([*ask, message, result]).choices[0].message.content


@case(VLLM_TOOLS, "named_tool_use", differs=True)
@case(SGLANG_TOOLS, "function_call_specific")
@case(CHOICE, "tool_choice_specific_function_non_streaming", "tool_choice_specific_function_streaming")
def named_tool(server: Server) -> None:
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    options: Any = {"tools": [CALCULATOR, WEATHER], "tool_choice": choice, "max_tokens": 80}
    message = server.chat(SUM, **options).choices[0].message
    assert message.content is None
    found = [(one.function.name, json.loads(one.function.arguments)) for one in message.tool_calls]
    chunks = list(server.chat(SUM, **options, stream=True))
    assert not any(one.choices[0].delta.content for one in chunks)
    assert finishes(chunks) == {0: ["tool_calls"]}
    assert calls(chunks) == found
    assert {name for name, _ in found} == {"get_weather"}
    assert all({*arguments} == {"city", "unit"} for _, arguments in found)


@case(VLLM_TOOLS, "inconsistent_tool_choice_and_tools")
def choices_that_name_no_tool(server: Server) -> None:
    named = {"type": "function", "function": {"name": "nondefined_function_name"}}
    refused(lambda: server.chat(tool_choice=named), "tool_choice")
    refused(lambda: server.chat(tools=[CALCULATOR], tool_choice=named), "tool_choice")
    refused(lambda: server.chat(tools=[CALCULATOR], tool_choice={}), "tool_choice.type")


NULL = "vllm chat_completion/test_tool_choice_null.py"


@case(
    NULL,
    *("null_tool_choice_defaults_to_auto_like_an_absent_one", "explicit_none_tool_choice_is_untouched"),
    *("null_tool_choice_without_tools_matches_an_absent_one",),
    "null_tool_choice_does_not_conflict_with_structured_outputs",
)
@case(NULL, "invalid_tool_choice_is_still_rejected", differs=True)
def choice_that_is_null(server: Server) -> None:
    options: Any = {"max_tokens": 60, "extra_body": {"tool_choice": None}}
    assert server.chat(SUM, tools=[CALCULATOR], **options).choices[0].message.tool_calls
    assert server.chat(SUM, tools=[CALCULATOR], tool_choice="none").choices[0].message.tool_calls is None
    assert server.chat(**options).choices[0].message.content == ANSWER
    assert json.loads(server.chat(ADA, response_format={"type": "json_object"}, **options).choices[0].message.content)
    refused(lambda: server.chat(tools=[CALCULATOR], tool_choice="bogus"), "tool_choice")
    assert server.chat(tool_choice="auto").choices[0].message.content


@case(VLLM_TOOLS, "max_tokens_with_tool_choice_required")
def forced_call_that_is_cut(server: Server) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "calculator"}}):
        options: Any = {"tools": [CALCULATOR], "tool_choice": choice, "max_tokens": 3}
        found = server.chat(SUM, **options).choices[0]
        assert (found.finish_reason, found.message.tool_calls, found.message.content) == ("length", None, "")
        assert not any(one.choices[0].delta.content for one in server.chat(SUM, **options, stream=True))


@case(
    SGLANG_TOOLS,
    *("function_calling_format", "function_calling_streaming_simple", "function_calling_streaming_args_parsing"),
    *("function_call_strict", "function_call_required", "function_calling_streaming_no_tool_call"),
    *("streaming_multiple_choices_finish_reason", "streaming_multiple_choices_without_tools"),
)
@case(
    CHOICE,
    *("tool_choice_auto_non_streaming", "tool_choice_auto_streaming", "tool_choice_required_non_streaming"),
    *("tool_choice_required_streaming", "required_streaming_arguments_chunks_json"),
)
def calls_whole_and_in_chunks(server: Server) -> None:
    options: Any = {"tools": [CALCULATOR, WEATHER], "max_tokens": 60}
    expected = [("calculator", {"expression": "23+48"})]
    for choice in ("auto", "required"):
        message = server.chat(SUM, **options, tool_choice=choice).choices[0].message
        assert message.content is None
        assert [(one.function.name, json.loads(one.function.arguments)) for one in message.tool_calls] == expected
        chunks = list(server.chat(SUM, **options, tool_choice=choice, stream=True, n=2))
        assert calls(chunks) == expected * 2
        assert finishes(chunks) == {0: ["tool_calls"], 1: ["tool_calls"]}
    for choice in ("none", None):
        chunks = list(server.chat(QUESTION, **options, tool_choice=choice, stream=True))
        assert (calls(chunks), finishes(chunks)) == ([], {0: ["stop"]})
    assert finishes(list(server.chat(n=2, stream=True))) == {0: ["length"], 1: ["length"]}


# ---- completions -----------------------------------------------------------------------------------------------------

VLLM_COMPLETION = "vllm completion/test_completion.py"
SGLANG_SERVER = "sglang basic/test_openai_server.py"


@case(
    VLLM_COMPLETION,
    "single_completion",
    "no_logprobs",
    "zero_logprobs",
    "some_logprobs",
    "too_many_completion_logprobs",
)
def completion_and_its_logprobs(server: Server) -> None:
    found = server.complete()
    usage = found.usage
    assert usage.total_tokens == usage.prompt_tokens + 5
    assert (found.choices[0].finish_reason, found.choices[0].logprobs) == ("length", None)
    for n in (0, 5):  # with that of the token itself, if it is not among the best
        best = server.complete(logprobs=n, temperature=2.0, seed=1).choices[0].logprobs
        assert all(max(n, 1) <= len(one) <= n + 1 for one in best.top_logprobs)
        assert all(one[token] is not None for token, one in zip(best.tokens, best.top_logprobs, strict=True))
    for stream in (False, True):
        refused(lambda stream=stream: server.complete(logprobs=21, stream=stream), "logprobs")


@case(VLLM_COMPLETION, "batch_completions", differs=True)
@case(SGLANG_SERVER, "completion")
@case("vllm completion/test_prompt_validation.py", "out_of_vocab_token_ids")
def several_prompts(server: Server) -> None:
    assert server.complete([0, 0, 0]).usage.prompt_tokens == 3
    assert len(server.complete([[0, 0], [0, 0, 0]], n=2).choices) == 4
    assert "vocabulary" in refused(lambda: server.complete([0, 1 << 20]), "prompt")
    refused(lambda: server.complete(extra_body={"use_beam_search": True}), "use_beam_search")
    n_prompt = server.complete().usage.prompt_tokens
    for n in (1, 2):
        for echo in (False, True):
            batch = server.complete([PROMPT] * 2, n=n, echo=echo, logprobs=5)
            assert len({one.text for one in batch.choices}) == 1
            assert len(batch.choices) == 2 * n
            assert batch.usage.prompt_tokens == 2 * n_prompt
            assert batch.choices[0].text.startswith(PROMPT) == echo
    texts = ["", ""]
    for chunk in server.complete([PROMPT] * 2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts[0] == texts[1] != ""


@case(VLLM_COMPLETION, "completion_truncation_side_controls_prompt_truncation", differs=True)
def prompts_are_not_cut(server: Server) -> None:
    refused(lambda: server.complete(extra_body={"truncate_prompt_tokens": 4}), "truncate_prompt_tokens")


@case(VLLM_COMPLETION, "echo_logprob_completion")
def echo_with_logprobs(server: Server) -> None:
    for n in (0, 1):
        for n_tokens in (5, 0):
            choice = server.complete(echo=True, logprobs=n, max_tokens=n_tokens).choices[0]
            found = choice.logprobs
            assert choice.text.startswith(PROMPT)
            assert "".join(found.tokens) == choice.text
            assert found.token_logprobs[0] is found.top_logprobs[0] is None
            assert all(max(n, 1) <= len(one) <= n + 1 for one in found.top_logprobs[1:])


@case("vllm completion/test_completion_text_offset.py", "stream_text_offset_matches_non_stream_with_stop_holdback")
def offsets_of_a_stream_whose_text_waits_for_a_stop(server: Server) -> None:
    options: Any = {"logprobs": 0, "stop": ["the Banyan tree"], "max_tokens": 12}
    streamed = [one.choices[0].logprobs for one in server.complete(**options, stream=True)]
    offsets = [at for one in streamed if one is not None for at in one.text_offset]
    assert offsets == server.complete(**options).choices[0].logprobs.text_offset


@case("vllm completion/test_prompt_validation.py", "empty_prompt")
@case("vllm completion/test_empty_prompt_list.py", "empty_prompt_list_rejected", "nonempty_prompt_list_ok")
def no_prompt(server: Server) -> None:
    for prompt in (None, []):
        refused(lambda prompt=prompt: server.complete(prompt), "prompt")
    assert server.complete([PROMPT]).choices[0].text == server.complete().choices[0].text


@case("sglang validation/test_openai_server_ignore_eos.py", "ignore_eos")
def outputs_go_on_after_their_end(server: Server) -> None:
    assert server.chat(max_tokens=40).usage.completion_tokens < 40
    found = server.chat(max_tokens=40, extra_body={"ignore_eos": True})
    assert (found.usage.completion_tokens, found.choices[0].finish_reason) == (40, "length")


@case(
    "sglang validation/test_request_length_validation.py",
    *("input_length_longer_than_context_length", "input_length_longer_than_maximum_allowed_length"),
    "input_length_longer_than_context_length_streaming",
)
def prompts_that_are_too_long(server: Server) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            server.chat([{"role": "user", "content": "hello " * 3000}], stream=stream)
        assert raised.value.code == "context_length_exceeded"


@case("sglang validation/test_request_length_validation.py", "max_tokens_validation", differs=True)
@case("sglang validation/test_large_max_new_tokens.py", "chat_completion")
def limit_of_length_beyond_the_context(server: Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: server.chat(max_tokens=100_000), range(4)))
    assert [one.choices[0].message.content for one in found] == [ANSWER] * 4


STRICT = "sglang validation/test_strict_model_validation.py"


@case(STRICT, "invalid_model_name_chat", "invalid_model_name_completion", "lora_model_name", differs=True)
@case(STRICT, "valid_model_name_chat")
@case(SGLANG_SERVER, "model_list")
def names_of_models(server: Server) -> None:
    (model,) = server.openai.models.list()
    assert isinstance(model.model_extra["max_model_len"], int)
    for name in ("wrong_model_name", "pocket:some_adapter"):
        for path, body in (
            (CHAT, {"messages": QUESTION}),
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/responses", {"input": "x"}),
        ):
            found, answer = server.post(path, **body, model=name)
            assert (found, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")


@case(SGLANG_SERVER, "retrieve_model", differs=True)
def model_by_name(server: Server) -> None:
    found = server.openai.models.retrieve("pocket")
    assert (found.id, hasattr(found, "root")) == ("pocket", False)


@case(SGLANG_SERVER, "chat_completion", "chat_completion_stream", "regex", "penalty", "response_prefill")
def chat_with_and_without_stream(server: Server) -> None:
    for n in (1, 2):
        for options in ({}, {"logprobs": True, "top_logprobs": 5}):
            found = server.chat(n=n, **options)
            assert [one.message.content for one in found.choices] == ["I am the Banyan"] * n
            *chunks, last = server.chat(n=n, **options, stream=True, stream_options={"include_usage": True})
            assert last.usage == found.usage.model_copy(
                update={"prompt_tokens_details": last.usage.prompt_tokens_details}
            )
            begun: set[int] = set()
            for choice in (one.choices[0] for one in chunks):
                assert (choice.delta.role == "assistant") == (choice.index not in begun)
                if options and choice.delta.content:
                    assert all(len(one.top_logprobs) == 5 for one in choice.logprobs.content)
                begun.add(choice.index)
            assert finishes(chunks) == {index: ["length"] for index in range(n)}
    form = '\\{\n   "name": "[a-z]{1,8}",\n   "population": [1-9][0-9]{0,5}\n\\}'
    assert json.loads(server.chat(extra_body={"regex": form}, max_tokens=60).choices[0].message.content)
    assert server.chat(frequency_penalty=1.0).choices[0].message.content
    begun_turn = [*QUESTION, {"role": "assistant", "content": "I am the"}]
    found = server.chat(begun_turn, extra_body={"continue_final_message": True})
    assert found.choices[0].message.content.startswith(" Banyan")


@case("sglang features/test_openai_server_ebnf.py", "ebnf", "ebnf_strict_json")
def grammars_in_ebnf(server: Server) -> None:
    assert server.chat(extra_body={"ebnf": 'root ::= "Hi" | "Hello"'}).choices[0].message.content in ("Hi", "Hello")
    grammar = 'root ::= "{\\"name\\":\\"" [A-Za-z]{1,9} "\\"}"'
    assert [*json.loads(server.chat(extra_body={"ebnf": grammar}, max_tokens=40).choices[0].message.content)] == [
        "name"
    ]


# ---- responses -------------------------------------------------------------------------------------------------------

VLLM_RESPONSES = "vllm responses/test_simple.py"
STATEFUL = "vllm responses/test_stateful.py"
FUNCTIONS = "vllm responses/test_function_call.py"
SGLANG_V1 = "sglang basic/test_openai_server.py TestOpenAIServerv1Responses"
SGLANG_RESPONSES = "sglang function_call/test_responses_function_calling.py"


@case("vllm responses/test_basic.py", "simple_input", "instructions", "chat", "chat_with_input_type")
@case(VLLM_RESPONSES, "basic", "max_tokens")
@case(SGLANG_V1, "response_completion")
def responses(server: Server) -> None:
    found = server.respond(reasoning={"effort": "none"})
    assert (found.output_text, found.status, found.incomplete_details) == (ANSWER, "completed", None)
    assert server.respond(instructions="Be brief.", max_output_tokens=5).usage.input_tokens > found.usage.input_tokens
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hello!"}]},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Who are you?"},
    ]
    cut = server.respond(turns, max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@case(SGLANG_V1, "response", differs=True)
def usage_of_a_response_has_its_own_names(server: Server) -> None:
    usage = server.respond(max_output_tokens=3).usage
    assert (usage.output_tokens, usage.total_tokens) == (3, usage.input_tokens + 3)
    assert not hasattr(usage, "prompt_tokens")


@case("vllm responses/test_basic.py", "logprobs", "streaming")
@case(VLLM_RESPONSES, "streaming_output_consistency", "streaming_logprobs", "streaming_types")
@case(SGLANG_V1, "response_stream", "response_completion_stream")
@case(FUNCTIONS, "function_calling_with_streaming_types", "function_calling_with_streaming_expected_arguments")
@case(SGLANG_RESPONSES, "function_tool_streaming")
def streams_of_responses(server: Server) -> None:
    options: Any = {"top_logprobs": 3, "include": ["message.output_text.logprobs"]}
    text = list(server.respond(stream=True, **options))
    deltas = [one for one in text if one.type == "response.output_text.delta"]
    assert "".join(one.delta for one in deltas) == text[-1].response.output_text == ANSWER
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for one in deltas for token in one.logprobs)
    called = list(server.respond("What is 23 plus 48?", tools=RESPONSE_TOOLS, stream=True))
    arguments = [one.delta for one in called if one.type == "response.function_call_arguments.delta"]
    (item,) = called[-1].response.output
    assert "".join(arguments) == item.arguments == '{"expression": "23+48"}'
    for found in (text, called):
        opened: list[str] = []  # each part that begins ends, in reverse order
        assert [one.type for one in found[:2]] == ["response.created", "response.in_progress"]
        assert found[-1].type == "response.completed"
        for kind in (one.type for one in found[2:-1]):
            if kind.endswith("added") or (kind.endswith("delta") and opened[-1] != kind):
                opened.append(kind)
            elif kind.endswith("done"):
                assert opened.pop().rpartition(".")[0] == kind.rpartition(".")[0]
        assert opened == []


@case(VLLM_RESPONSES, "enable_response_messages", "extra_sampling_params", differs=True)
@case(SGLANG_V1, "penalty", differs=True)
def fields_that_responses_do_not_have(server: Server) -> None:
    for name, value in (("enable_response_messages", True), ("top_k", 40), ("frequency_penalty", 1.0)):
        refused(lambda name=name, value=value: server.respond(extra_body={name: value}), name)


@case(
    VLLM_RESPONSES,
    *("reasoning_item", "input_history_openai_shape_e2e", "input_history_openresponses_shape_e2e"),
    "multiturn_history_replay_without_ids_e2e",
)
def histories_that_clients_send_back(server: Server) -> None:
    first = server.respond()
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi, who are you?"}]}
    thought = {"type": "reasoning", "summary": [], "encrypted_content": None}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": first.output_text}]}
    marks = {"id": "rs_1", "status": "completed"}
    text = {"content": [{"type": "reasoning_text", "text": "A greeting."}]}
    for history in (
        [asked, said, thought],
        [asked, said | {"id": "msg_1", "status": "completed"}, thought | marks],
        [asked, thought | text | {"id": "x"}, *first.to_dict()["output"]],
    ):
        found = server.respond([*history, {"role": "user", "content": "Thanks."}])
        assert found.status == "completed"
        assert found.usage.input_tokens_details.cached_tokens > 20


@case(STATEFUL, "store", "background_error", "background_cancel", "cancel_completed")
def stored_responses(server: Server) -> None:
    stored = server.openai.responses
    kept, not_kept = server.respond(max_output_tokens=3), server.respond(max_output_tokens=3, store=False)
    assert stored.retrieve(kept.id).status == "incomplete"
    with pytest.raises(openai.NotFoundError):
        stored.retrieve(not_kept.id)
    refused(lambda: server.respond(background=True, store=False), "background")
    refused(lambda: stored.cancel(kept.id))
    long = server.respond("Write.", background=True, max_output_tokens=1900, temperature=2.0)
    assert stored.cancel(long.id).status == stored.retrieve(long.id).status != "in_progress"


@case(STATEFUL, "background", differs=True)
def response_in_the_background(server: Server) -> None:
    begun = server.respond(background=True)
    assert begun.status == "in_progress"
    wait_until(lambda: server.openai.responses.retrieve(begun.id).status == "completed", "its end")
    refused(lambda: server.openai.responses.retrieve(begun.id, stream=True), "stream")


@case(STATEFUL, "previous_response_id", "two_responses_with_same_prev_id")
def responses_that_follow(server: Server) -> None:
    first = server.respond("My name is John.", instructions="Remember.", max_output_tokens=8)
    with ThreadPoolExecutor(2) as pool:
        asks = ["My name is Mark.", "What is my name?"]
        both = list(pool.map(lambda ask: server.respond(ask, previous_response_id=first.id, max_output_tokens=8), asks))
    again = server.respond(asks[1], previous_response_id=first.id, max_output_tokens=8)
    assert again.output_text == both[1].output_text
    third = server.respond("Go on.", previous_response_id=both[0].id, max_output_tokens=8)
    assert third.usage.input_tokens > both[0].usage.input_tokens


@case(SGLANG_V1, "error", "invalid_tools_error")
def errors_of_responses(server: Server) -> None:
    for fields in ({"previous_response_id": "bad"}, {"tools": [{"type": "some_invalid_tool_type"}]}):
        found, answer = server.post("/v1/responses", input="Hi", **fields)
        assert found == 400
        assert {"message", "type", "code"} <= {*answer["error"]}


@case(FUNCTIONS, "function_tool_use", "named_tool_use")
@case(
    SGLANG_RESPONSES,
    *("function_tool_schema_validation", "function_tool_non_streaming", "tool_choice_none", "multiple_function_tools"),
    *("builtin_and_function_tools_mixed", "function_tool_with_strict_mode"),
)
def functions_of_responses(server: Server) -> None:
    ask: Any = [{"role": "user", "content": "What is 23 plus 48?"}]
    for choice in ("auto", "required", {"type": "function", "name": "calculator"}):
        found = server.respond(ask, tools=RESPONSE_TOOLS, tool_choice=choice)
        (call,) = found.output
        assert (call.name, call.arguments) == ("calculator", '{"expression": "23+48"}')
        assert found.to_dict()["tools"] == RESPONSE_TOOLS
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "71"}
    assert server.respond([*ask, call, result], tools=RESPONSE_TOOLS).output_text == "The answer is 71."
    (item,) = server.respond(ask, tools=RESPONSE_TOOLS, tool_choice="none").output
    assert item.type == "message"


@case(FUNCTIONS, "max_tokens_with_tool_choice_required")
def forced_call_of_a_response_that_is_cut(server: Server) -> None:
    found = server.respond("What is 23 plus 48?", tools=RESPONSE_TOOLS, tool_choice="required", max_output_tokens=3)
    assert found.incomplete_details.reason == "max_output_tokens"
    assert [one.type for one in found.output] == ["message"]
    assert found.output_text == ""


@case("vllm responses/test_structured_output.py", "structured_output", "structured_output_with_parse")
def forms_of_responses(server: Server) -> None:
    form = {"type": "json_schema", "name": "person", "schema": Person.model_json_schema(), "strict": True}
    found = server.respond(ADA, text={"format": form | {"description": "A person."}})
    assert Person.model_validate_json(found.output_text).age == 41
    parsed = server.openai.responses.parse(model="pocket", input=ADA, text_format=Person, temperature=0)
    assert parsed.output_parsed == ADA_STONE


@case("vllm responses/test_count_tokens.py", "count_responses_input_tokens")
def input_tokens_of_responses(server: Server) -> None:
    count = server.openai.responses.input_tokens.count
    options: Any = {"instructions": "Be brief.", "tools": RESPONSE_TOOLS}
    for more in ({}, options):
        counted = count(model="pocket", input="Hi, who are you?", **more).input_tokens
        assert counted == server.respond(max_output_tokens=1, **more).usage.input_tokens


# ---- messages --------------------------------------------------------------------------------------------------------

VLLM_MESSAGES = "vllm anthropic/test_messages.py"
SGLANG_MESSAGES = "sglang basic/test_anthropic_server.py"
USE = "sglang function_call/test_anthropic_tool_use.py"


@case(VLLM_MESSAGES, "simple_messages", "system_message")
@case(
    SGLANG_MESSAGES,
    *("simple_messages", "multi_turn_messages", "system_message_string", "system_message_blocks", "max_tokens"),
    *("temperature", "stop_sequences", "top_p_and_top_k", "content_blocks_message", "raw_http_non_streaming"),
)
def messages(server: Server) -> None:
    found = server.message(max_tokens=40)
    assert (found.type, found.role, found.stop_reason, found.content[0].text) == (
        *("message", "assistant", "end_turn"),
        ANSWER,
    )
    assert found.id.startswith("msg_")
    assert server.message().stop_reason == "max_tokens"
    block = {"type": "text", "text": "You are a helpful assistant."}
    for options in (
        {"system": block["text"]},
        {"system": [block, block]},
        {"extra_body": {"temperature": 0.0}, "stop_sequences": ["\n"]},
        {"extra_body": {"top_p": 0.9, "top_k": 40}},
        {"messages": [*QUESTION, {"role": "assistant", "content": [block]}, {"role": "user", "content": [block]}]},
    ):
        assert server.message(**options).content[0].type == "text"


@case(VLLM_MESSAGES, "anthropic_streaming")
@case(SGLANG_MESSAGES, "simple_messages_stream", "stream_multi_turn", "stream_with_system", "raw_http_streaming")
@case(USE, "tool_use_streaming", "tool_use_streaming_args_parsing", "tool_use_streaming_event_sequence")
def streams_of_messages(server: Server) -> None:
    turns = [*QUESTION, {"role": "assistant", "content": "Hello!"}, *QUESTION]
    for ask, kind in (
        ({"messages": QUESTION}, "text"),
        ({"messages": turns, "system": "You are brief."}, "text"),
        ({"messages": SUM, "tools": MESSAGE_TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 60}, "tool_use"),
    ):
        found = events(server, **ask)
        kinds = [one["type"] for one in found if one["type"] not in ("ping", "content_block_delta")]
        assert kinds == [
            *("message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop")
        ]
        (start,) = (one["content_block"] for one in found if one["type"] == "content_block_start")
        deltas = [one["delta"] for one in found if one["type"] == "content_block_delta"]
        assert start["type"] == kind
        if kind == "text":
            _, whole = server.post("/v1/messages", **(GREEDY | ask))
            assert "".join(one["text"] for one in deltas) == whole["content"][0]["text"]
        else:
            assert json.loads("".join(one["partial_json"] for one in deltas)) == {"expression": "23+48"}
        reason = "max_tokens" if kind == "text" else "tool_use"
        assert [one["delta"]["stop_reason"] for one in found if one["type"] == "message_delta"] == [reason]


@case(VLLM_MESSAGES, "anthropic_tool_call")
@case(
    USE,
    *("tool_use_format", "tool_choice_auto", "tool_choice_any", "tool_choice_specific", "tool_result_multi_turn"),
    *("tool_use_with_text_content", "no_tools_no_tool_use"),
)
def tools_of_messages(server: Server) -> None:
    options: Any = {"tools": MESSAGE_TOOLS, "max_tokens": 60}
    for choice, name in (
        ({"type": "auto"}, "calculator"),
        ({"type": "any"}, "calculator"),
        ({"type": "tool", "name": "get_weather"}, "get_weather"),
    ):
        found = server.message(SUM, **options, tool_choice=choice)
        assert found.stop_reason == "tool_use"
        assert {one.name for one in found.content} == {name}
        assert all(isinstance(one.input, dict) for one in found.content)
    first = server.message(SUM, **options)
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "71"}
    turns = [*SUM, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert server.message(turns, **options).content[0].text == "The answer is 71."
    assert [one.type for one in server.message().content] == ["text"]


@case(SGLANG_MESSAGES, "error_invalid_max_tokens", "error_empty_messages", "error_missing_content_type")
def errors_of_messages(server: Server) -> None:
    for fields in ({"max_tokens": -1, "messages": QUESTION}, {"max_tokens": 5, "messages": []}):
        found, answer = server.post("/v1/messages", **fields)
        assert (found, answer["type"]) == (400, "error")
    assert post(server.url, "/v1/messages", b"not json")[0] == 400


@case(SGLANG_MESSAGES, "count_tokens", "count_tokens_with_system")
def tokens_of_messages(server: Server) -> None:
    count = server.anthropic.messages.count_tokens
    plain = count(model="pocket", messages=QUESTION).input_tokens
    assert 0 < plain < count(model="pocket", messages=QUESTION, system="You are a helpful assistant.").input_tokens


# ---- openai-python ---------------------------------------------------------------------------------------------------

PARSE = "openai-python lib/chat/test_completions.py"
PARSE_STREAM = "openai-python lib/chat/test_completions_streaming.py"
RESOURCE = "openai-python api_resources/chat/test_completions.py"


class Color(Enum):
    RED, BLUE = "red", "blue"


class Detected(pydantic.BaseModel):
    color: Color
    kind: Literal["pen", "cup"] | None = None


@pydantic.dataclasses.dataclass
class Event:
    name: Literal["fair", "feast"]
    participants: Annotated[list[Literal["Ann", "Bob"]], pydantic.Field(max_length=2)]


class Condition(pydantic.BaseModel):
    column: Color
    value: bool | Literal[1, 2] | Detected


class Query(pydantic.BaseModel):
    table: Literal["orders", "customers"]
    conditions: Annotated[list[Condition], pydantic.Field(max_length=1)]
    name: Literal["Q"] | None = None


def parsed(server: Server, form: Any, *, stream: bool, **options: Any) -> Any:
    """The parsed completion, of a stream with its last event."""
    known: Any = {"model": "pocket", "messages": ADA, "seed": 5, "max_tokens": 150, **options}
    if form is not None:
        known["response_format"] = form
    if not stream:
        return server.openai.chat.completions.parse(**known)
    with server.openai.chat.completions.stream(**known) as events:
        found = list(events)
        assert {"content.delta", "tool_calls.function.arguments.delta"} & {one.type for one in found}
        return events.get_final_completion()


@case(
    PARSE,
    *("parse_nothing", "parse_pydantic_model", "parse_pydantic_model_optional_default", "parse_pydantic_model_enum"),
    *("parse_pydantic_model_multiple_choices", "parse_pydantic_dataclass", "parse_pydantic_raw_response"),
)
@case(
    PARSE_STREAM,
    *("parse_nothing", "parse_pydantic_model", "parse_pydantic_model_multiple_choices", "non_pydantic_response_format"),
)
def types_are_parsed(server: Server) -> None:
    for stream in (False, True):
        message = parsed(server, None, stream=stream, temperature=0, messages=QUESTION).choices[0].message
        assert (message.content, message.parsed) == (ANSWER, None)
        message = parsed(server, Person, stream=stream, temperature=0).choices[0].message
        assert message.parsed == ADA_STONE
        found = parsed(server, Detected, stream=stream, n=3).choices
        assert [type(one.message.parsed) for one in found] == [Detected] * 3
    assert isinstance(parsed(server, Event, stream=False).choices[0].message.parsed, Event)
    raw = server.openai.chat.completions.with_raw_response.parse(
        model="pocket", messages=ADA, response_format=Person, temperature=0
    )
    assert raw.parse().choices[0].message.parsed.age == 41
    form: Any = {"type": "json_object"}
    assert json.loads(parsed(server, form, stream=True, temperature=0).choices[0].message.content)


@case(PARSE, "parse_max_tokens_reached")
@case(PARSE_STREAM, "parse_max_tokens_reached")
def output_that_is_cut_is_not_parsed(server: Server) -> None:
    for stream in (False, True):
        with pytest.raises(openai.LengthFinishReasonError):
            parsed(server, Person, stream=stream, max_tokens=1)


@case(
    PARSE,
    *("pydantic_tool_model_all_types", "parse_pydantic_tool", "parse_multiple_pydantic_tools", "parse_strict_tools"),
)
@case(PARSE_STREAM, "parse_pydantic_tool", "parse_multiple_pydantic_tools", "parse_strict_tools")
@case(PARSE_STREAM, "allows_non_strict_tools_but_no_parsing")
def calls_are_parsed(server: Server) -> None:
    tools = [openai.pydantic_function_tool(Query), openai.pydantic_function_tool(Calculator, name="calculator")]
    named: Any = {"type": "function", "function": {"name": "Query"}}
    for stream in (False, True):
        message = parsed(server, None, stream=stream, messages=SUM, tools=tools, temperature=0).choices[0].message
        assert message.tool_calls[0].function.parsed_arguments == Calculator(expression="23+48")
        message = parsed(server, Query, stream=stream, tools=tools, tool_choice=named).choices[0].message
        assert isinstance(message.tool_calls[0].function.parsed_arguments, Query)
        message = (
            parsed(server, None, stream=stream, messages=SUM, tools=[CALCULATOR], temperature=0).choices[0].message
        )
        assert message.tool_calls[0].function.parsed_arguments == {"expression": "23+48"}
    loose = {"type": "function", "function": {**CALCULATOR["function"], "strict": False}}
    message = parsed(server, None, stream=True, messages=SUM, tools=[loose], temperature=0).choices[0].message
    assert message.tool_calls[0].function.parsed_arguments is None


@case(PARSE_STREAM, "content_logprobs_events", "chat_completion_state_helper")
def events_of_logprobs(server: Server) -> None:
    with server.openai.chat.completions.stream(
        model="pocket", messages=QUESTION, logprobs=True, max_tokens=3, temperature=0
    ) as stream:
        (done,) = [one for one in stream if one.type == "logprobs.content.done"]
    assert [one.token for one in done.content] == ["I", " am", " the"]


@case(PARSE, "parse_pydantic_model_refusal", differs=True)
@case(PARSE_STREAM, "parse_pydantic_model_refusal", "refusal_logprobs_events", differs=True)
def nothing_is_a_refusal(server: Server) -> None:
    assert server.chat().choices[0].message.refusal is None


@case(
    RESOURCE,
    *("method_create_overload_1", "raw_response_create_overload_1", "streaming_response_create_overload_1"),
    *("method_create_overload_2", "raw_response_create_overload_2", "streaming_response_create_overload_2"),
)
def ways_to_read_a_response(server: Server) -> None:
    ask: Any = {"model": "pocket", "messages": [{"content": "string", "role": "developer"}], "max_tokens": 3}
    found = server.openai.chat.completions
    assert found.with_raw_response.create(**ask).parse().choices
    with found.with_streaming_response.create(**ask) as response:
        assert response.parse().choices
    assert [*found.with_raw_response.create(**ask, stream=True).parse()]
    found.create(**ask, stream=True).response.close()


@case(RESOURCE, "method_create_with_all_params_overload_1", "method_create_with_all_params_overload_2", differs=True)
def each_documented_field(server: Server) -> None:
    """Each field alone: together they contradict each other."""
    tools = {"tools": [tool("name")], "tool_choice": "none", "parallel_tool_calls": True}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "calculator"}}]}
    fields: tuple[Any, ...] = (
        *({"frequency_penalty": -2}, {"logit_bias": {"1": 0}}, {"logprobs": True, "top_logprobs": 0}, {"n": 1}),
        *({"modalities": ["text"]}, {"presence_penalty": -2}, {"response_format": {"type": "text"}}),
        *({"seed": -9007199254740991}, {"stop": "\n"}, {"temperature": 1}, {"top_p": 1}, {"user": "user-1234"}, tools),
        *(
            {"prompt_cache_key": "key"},
            {"stream": True, "stream_options": {"include_obfuscation": True}},
        ),
        {"tools": [CALCULATOR, WEATHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}},
    )
    for one in fields:
        server.chat(**one)
    without_effect: Any = {
        "metadata": {"foo": "string"},
        "prediction": {"content": "string", "type": "content"},
        "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
        "prompt_cache_retention": "in_memory",
        "reasoning_effort": "none",
        "safety_identifier": "id",
        "service_tier": "auto",
        "store": True,
        "verbosity": "low",
    }
    raw = server.openai.chat.completions.with_raw_response.create(
        model="pocket", messages=QUESTION, max_tokens=1, **without_effect
    )
    assert {*raw.headers["x-banyan-ignored"].split(", ")} == {*without_effect}
    for name in ("audio", "functions", "function_call", "moderation", "web_search_options"):
        refused(lambda name=name: server.chat(extra_body={name: {}}), name)


@case(RESOURCE, "method_retrieve", "method_update", "method_list", "method_delete", differs=True)
def completions_are_not_stored(server: Server) -> None:
    found = server.openai.chat.completions
    for ask in (found.retrieve, found.delete):
        with pytest.raises(openai.NotFoundError):
            ask("completion_id")
    with pytest.raises(openai.APIStatusError, match="405"):
        found.list()


# ---- compatcanary ----------------------------------------------------------------------------------------------------

CANARY = "compatcanary src/probes.js"


@case(CANARY, "models.list", "chat.basic", "chat.streaming", "chat.tool_call", "chat.structured_output")
@case(CANARY, "responses.basic", "responses.streaming")
def canary(server: Server) -> None:
    ask = [{"role": "user", "content": "Reply briefly with CANARY_OK."}]
    assert isinstance(server.post(CHAT, messages=ask)[1]["choices"][0]["message"]["content"], str)
    answer = exchange(
        server.url, encode(CHAT, {"model": "pocket", "messages": ask, "stream": True}, "connection: close\r\n")
    )
    assert status(answer) == 200
    assert b"content-type: text/event-stream" in answer
    assert b"data: [DONE]" in answer
    echo = tool("compatcanary_echo", value={"type": "string"})
    choice = {"type": "function", "function": {"name": "compatcanary_echo"}}
    (call,) = server.chat(ask, tools=[echo], tool_choice=choice, max_tokens=200).choices[0].message.tool_calls
    assert isinstance(json.loads(call.function.arguments)["value"], str)
    schema = function("ok", status={"type": "string", "enum": ["ok"]})["parameters"]
    form = {"type": "json_schema", "json_schema": {"name": "status", "strict": True, "schema": schema}}
    assert json.loads(server.chat(ask, response_format=form, max_tokens=20).choices[0].message.content) == {
        "status": "ok"
    }
    found, response = server.post("/v1/responses", input="Reply briefly with CANARY_OK.")
    assert (found, response["object"]) == (200, "response")


# ---- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", in_short(CHECKS[::6], CHECKS), ids=lambda check: check.__name__)
def test_case(check: Check, server: Server) -> None:
    check(server)


def rows() -> Iterator[tuple[str, str, bool]]:
    """(file, case, whether it differs) of the tables of the page."""
    suite = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            suite = line[3:].split()[0].lower().strip(":")
        if match := re.match(r"\| `([^`]+)` \| (.*) \| (.*) \|$", line):
            for name in re.findall("`([^`]+)`", match[2]):
                yield f"{suite} {match[1]}", name, match[3] != "yes"


def test_page_lists_the_cases_that_are_tested() -> None:
    listed = list(rows())
    assert {(file, name): differs for file, name, differs in listed} == ROWS
    assert len(listed) == len(ROWS)
