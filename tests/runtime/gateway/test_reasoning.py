"""A model that reasons, over HTTP: what each API shows of it. The engine is a table of answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import openai
import pytest

from banyan.runtime import config, launch
from banyan.runtime.errors import BadProgram
from banyan.runtime.gateway.anthropic import messages
from banyan.runtime.gateway.endpoint import Handler
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai import chat
from banyan.runtime.protocol import wire
from gateway_in_process import handled
from raw_http import post
from waits import wait_until

OPEN = "<|im_start|>assistant\n"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <think> and </think> #}"
)
QUESTION: Any = [{"role": "user", "content": "ask"}]


OUTPUTS = {"ask": "<think>\nhmm so</think>\n\n42", "ask for marks": "<think></think>42", "ask for 42": "42"}
"""Question -> the model's output."""


@pytest.fixture(scope="module")
def url(serve_once: Callable[..., launch.ServerProcess]) -> Iterator[str]:
    say = {f"{question}<|im_end|>\n{OPEN}": f"{output}<|im_end|>" for question, output in OUTPUTS.items()}
    server = serve_once(TEMPLATE, say=say)
    with closing(launch.start_gateway(config.HTTPConfig(socket=str(server.socket), address="0"))) as gateway:
        yield gateway.url


def test_reasoning_is_apart_from_the_answer(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        options: Any = {"model": model, "messages": QUESTION, "temperature": 0}
        completion: Any = client.chat.completions.create(**options)
        n_tokens = completion.usage.completion_tokens_details.reasoning_tokens
        assert 0 < n_tokens < completion.usage.completion_tokens
        message = completion.choices[0].message
        assert (message.content, message.reasoning_content, message.reasoning) == ("42", "hmm so", "hmm so")
        streamed: dict[str, str] = {"content": "", "reasoning_content": "", "reasoning": ""}
        for chunk in client.chat.completions.create(**options, stream=True):
            for name in streamed:
                streamed[name] += getattr(chunk.choices[0].delta, name, None) or ""
        assert streamed == {"content": "42", "reasoning_content": "hmm so", "reasoning": "hmm so"}

        response = client.responses.create(model=model, input="ask", temperature=0)
        thought: Any = response.output[0]
        assert (thought.type, thought.content[0].text, response.output_text) == ("reasoning", "hmm so", "42")
        assert response.usage.output_tokens_details.reasoning_tokens == n_tokens
        with client.responses.stream(model=model, input="ask") as stream:
            kinds = [one.type for one in stream]
            assert stream.get_final_response().usage.output_tokens_details.reasoning_tokens == n_tokens
        assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")

    import anthropic

    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as claude:
        options = {"model": model, "messages": QUESTION, "max_tokens": 50}
        found = claude.messages.create(**options, thinking={"type": "enabled", "budget_tokens": 1024})
        assert [block.type for block in found.content] == ["thinking", "text"]
        assert found.content[0].thinking == "hmm so"
        with claude.messages.stream(**options, thinking={"type": "adaptive"}) as events:
            final = events.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text"]
        assert final.usage.output_tokens_details.thinking_tokens == n_tokens
        assert [block.type for block in claude.messages.create(**options).content] == ["text"]


@pytest.mark.parametrize("question", OUTPUTS)
def test_logprobs_are_those_of_the_content(url: str, question: str) -> None:
    model = json.loads(post(url, "/v1/models", b"", method="GET")[1])["data"][0]["id"]
    messages = [{"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "temperature": 0, "logprobs": True}
    choice = json.loads(post(url, "/v1/chat/completions", body)[1])["choices"][0]
    events = post(url, "/v1/chat/completions", {**body, "stream": True})[1].decode()
    asked = {"model": model, "input": question, "include": ["message.output_text.logprobs"]}
    response = json.loads(post(url, "/v1/responses", asked)[1])
    chunks = [json.loads(line[6:])["choices"][0] for line in events.splitlines() if line.startswith("data: {")]
    streamed = [one for chunk in chunks if chunk["logprobs"] for one in chunk["logprobs"]["content"]]
    assert streamed == choice["logprobs"]["content"]
    assert all(chunk["delta"].get("reasoning_content") != "" for chunk in chunks)
    thoughts = [item for item in response["output"] if item["type"] == "reasoning"]
    assert len(thoughts) == ("hmm" in OUTPUTS[question]), "marks alone are no reasoning"
    assert response["output"][-1]["content"][0]["logprobs"] == streamed
    assert "".join(one["token"] for one in choice["logprobs"]["content"]) == choice["message"]["content"] == "42"


SWITCH = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% if reasoning_effort %}{{ reasoning_effort }}:{% endif %}{% endif %}"
)
SAY = {
    OPEN: "<think>\nhmm so</think>\n\n42<|im_end|>",
    "</think>\n\n": "43<|im_end|>",
    "low:": "44<|im_end|>",
}
OFF: Any = {"chat_template_kwargs": {"enable_thinking": False}}


def test_thinking_is_switched_off_and_effort_is_set(serve_once: Callable[..., launch.ServerProcess]) -> None:
    server = serve_once(SWITCH, say=SAY)
    with (
        closing(launch.start_gateway(config.HTTPConfig(socket=str(server.socket), address="0"))) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        model = client.models.list().data[0].id

        def chat(**options: Any) -> tuple[str | None, str | None]:
            asked: Any = {"model": model, "messages": QUESTION, "temperature": 0} | options
            raw = client.chat.completions.with_raw_response.create(**asked)
            assert "x-banyan-ignored" not in raw.headers
            message: Any = raw.parse().choices[0].message
            return message.content, getattr(message, "reasoning_content", None)

        assert chat() == chat(extra_body={"chat_template_kwargs": {"enable_thinking": True}}) == ("42", "hmm so")
        assert chat(extra_body=OFF) == ("43", None)
        assert chat(reasoning_effort="low") == ("44", None)
        assert chat(extra_body={"chat_template_kwargs": {"reasoning_effort": "low"}}) == ("44", None)
        assert chat(extra_body={"chat_template_kwargs": {"unknown": [1, {"a": None}]}})[0] == "42", "as in vLLM"

        first = client.responses.create(model=model, input="ask", extra_body=OFF)
        assert first.output_text == "43"
        second = client.responses.create(model=model, input="ask", previous_response_id=first.id)
        assert second.output_text == "42", "the kwargs are those of one request"
        raw = client.responses.with_raw_response.create(
            model=model, input="ask", reasoning={"effort": "low", "summary": "auto"}
        )
        assert (raw.parse().output_text, raw.headers["x-banyan-ignored"]) == ("44", "reasoning.summary")
        counts = [
            client.responses.input_tokens.count(model=model, input="ask", extra_body=extra).input_tokens
            for extra in ({}, OFF)
        ]
        assert counts[1] == first.usage.input_tokens > counts[0]  # type: ignore[union-attr]

        for thinking, text in ((None, "42"), ("disabled", "43"), ("adaptive", "42"), ("enabled", "42")):
            asked: Any = {"model": model, "messages": QUESTION, "max_tokens": 50}
            if thinking is not None:
                asked["thinking"] = {"type": thinking} | ({"budget_tokens": 1024} if thinking == "enabled" else {})
            message = json.loads(post(gateway.url, "/v1/messages", asked)[1])
            assert [one["text"] for one in message["content"] if one["type"] == "text"] == [text]
            del asked["max_tokens"]
            n = json.loads(post(gateway.url, "/v1/messages/count_tokens", asked)[1])["input_tokens"]
            assert (
                n
                == counts[text == "43"]
                == message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]
            )

        for extra in ({}, OFF):
            tokens, whole = (
                json.loads(post(gateway.url, "/tokenize", {"messages": QUESTION, **options})[1])["tokens"]
                for options in (extra | {"add_generation_prompt": False}, extra)
            )
            assert len(whole) == counts[bool(extra)] > len(tokens)
            assert whole[: len(tokens)] == tokens
        status, reply = post(gateway.url, "/tokenize", {"prompt": "x", **OFF})
        assert (status, json.loads(reply)["error"]["param"]) == (400, "chat_template_kwargs")

        wrong: tuple[tuple[Any, str], ...] = (
            ({"messages": []}, "'messages', which the server gives"),
            ({"add_generation_prompt": False}, "'add_generation_prompt'"),
            ({"x": "y" * 20_000}, "at most 16384 are allowed"),
            ([1], "Expected `object"),
        )
        for given, text in wrong:
            with pytest.raises(openai.BadRequestError, match=text):
                chat(extra_body={"chat_template_kwargs": given})


def test_effort_is_ignored_by_a_template_that_does_not_read_it(url: str) -> None:
    model = json.loads(post(url, "/v1/models", b"", method="GET")[1])["data"][0]["id"]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.with_raw_response.create(
            model=model, messages=QUESTION, reasoning_effort="low", extra_body=OFF
        )
        assert chat.headers["x-banyan-ignored"] == "reasoning_effort"
        response = client.responses.with_raw_response.create(model=model, input="ask", reasoning={"effort": "low"})
        assert response.headers["x-banyan-ignored"] == "reasoning.effort"


OPENED = TEMPLATE.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    ("begun", "after"),
    [(None, "</think>"), ("", "</think>"), ("{", ""), ("x<think>\n", "</think>")],
)
@pytest.mark.parametrize(
    ("handle", "options"),
    [
        (chat.create, {"response_format": {"type": "json_object"}}),
        (messages.create, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "max_tokens": 9}),
    ],
)
def test_a_constraint_applies_after_the_reasoning_that_the_output_begins_with(
    serve_once: Callable[..., launch.ServerProcess], monkeypatch: pytest.MonkeyPatch, handle: Handler,
    options: dict[str, Any], begun: str | None, after: str,
) -> None:  # fmt: skip
    found: list[wire.Gen] = []

    def start(request: Any, ops: Sequence[wire.Op], **_: Any) -> None:
        found.extend(op for op in ops if isinstance(op, wire.Gen))
        raise BadProgram("seen")

    monkeypatch.setattr(ModelCall, "start", start)
    body = {"messages": QUESTION, **options}
    if begun is not None:
        body["messages"] = [*QUESTION, {"role": "assistant", "content": begun}]
        body |= {"continue_final_message": True} if handle is chat.create else {}
    with pytest.raises(BadProgram, match="seen"):
        handled(serve_once(OPENED, say={OPEN: "42"}), handle, body)
    (gen,) = found
    assert gen.sampling.constraint is not None
    assert gen.sampling.constraint.after == ((after,) if after else ())


def test_requests_fail_while_the_server_is_gone(serve: Callable[..., launch.ServerProcess]) -> None:
    server = serve(say={OPEN: "42"})
    with closing(launch.start_gateway(config.HTTPConfig(socket=str(server.socket), address="0"))) as gateway:
        assert post(gateway.url, "/health", b"", method="GET")[0] == 200
        server.close()
        wait_until(lambda: post(gateway.url, "/health", b"", method="GET")[0] == 503, "its failure")
        found, data = post(gateway.url, "/v1/messages", {"model": "x", "max_tokens": 1, "messages": QUESTION})
        assert (found, json.loads(data)["error"]["type"]) == (503, "overloaded_error")
