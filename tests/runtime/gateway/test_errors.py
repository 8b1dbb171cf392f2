"""The status of each error: clients send a request again after 408, 429 and every status from 500 on."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from banyan.runtime import errors
from banyan.runtime.gateway.bodies import decode
from banyan.runtime.gateway.errors import HTTPError, http_error
from banyan.runtime.gateway.openai.chat_types import CompletionRequest
from banyan.runtime.gateway.openai.responses_types import ResponseRequest
from raw_http import post

PIXEL = "data:image/png;base64,AAAA"
IMAGES = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.BadProgram, 400),
        (errors.PromptTooLong, 400),
        (errors.ConstraintSyntax, 400),
        (errors.OutOfMemory, 400),
        (errors.Quarantined, 400),  # although it is an EngineLost: the same request would end the next engine
        (errors.Overloaded, 429),
        (errors.ConstraintBusy, 429),
        (errors.ConstraintBroke, 500),
        (errors.EngineLost, 503),
        (errors.Cancelled, 503),
        (errors.DeadlineExceeded, 504),
    ],
)
def test_status(kind: type[errors.BanyanError], status: int) -> None:
    found = http_error(kind("why"))
    code = "context_length_exceeded" if kind is errors.PromptTooLong else kind.code
    assert (found.status, found.code, found.message) == (status, code, "why")


@pytest.mark.parametrize("kind", [errors.RuntimeLost, errors.ConnectFailed])
def test_the_path_of_the_socket_is_printed_once_and_not_sent(
    kind: type[errors.BanyanError], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        found = http_error(kind(f"the server at /tmp/{kind.code} is gone"))
        assert (found.status, found.code, found.message) == (503, kind.code, "the server is gone")
    assert capsys.readouterr().err == f"banyan: a request over HTTP failed: the server at /tmp/{kind.code} is gone\n"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ('"temperature": 3', "temperature", "temperature: Expected `float` <= 2.0"),
        ('"n": 0', "n", "n: Expected `int` >= 1"),
        ('"logit_bias": {"50": 1000}', "logit_bias", "logit_bias: Expected `float` <= 100.0"),
        ('"suffix": "x"', "suffix", "`suffix` is not supported"),
        ('"foo": 1', "foo", "`foo` is not supported"),
        ('"stream_options": {"foo": 1}', "stream_options.foo", "stream_options.foo: `foo` is not supported"),
    ],
)
def test_message_names_the_field(fields: str, param: str, message: str) -> None:
    with pytest.raises(HTTPError) as raised:
        decode(f'{{"model": "m", "prompt": "p", {fields}}}'.encode(), CompletionRequest)
    assert (raised.value.param, raised.value.message) == (param, message)
    assert raised.value.openai()["error"]["message"] == raised.value.anthropic()["error"]["message"] == message


def test_a_wrong_key_has_the_path_of_its_object() -> None:
    with pytest.raises(HTTPError, match="metadata: Expected") as raised:
        decode(f'{{"model": "m", "input": "i", "metadata": {{"{"k" * 65}": ""}}}}'.encode(), ResponseRequest)
    assert raised.value.param == "metadata"


def test_a_message_that_names_the_field_gets_no_prefix() -> None:
    assert HTTPError(400, "top_logprobs needs logprobs: true", param="top_logprobs").message.startswith(
        "top_logprobs n"
    )
    assert HTTPError(400, "an option is wrong", param="n").message == "n: an option is wrong"


def test_clients_recognise_a_prompt_that_is_too_long(url: str) -> None:
    text = "word " * 3000
    n_most = int(json.loads(post(url, "/tokenize", {"prompt": ""})[1])["max_model_len"])
    for path, body, param in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, "messages"),
        ("/v1/completions", {"prompt": text}, "prompt"),
        ("/v1/completions", {"prompt": [0] * 3000}, "prompt"),
        ("/v1/responses", {"input": text}, "input"),
        ("/v1/responses/input_tokens", {"input": text}, "input"),
        ("/tokenize", {"prompt": text}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": text}]}, "messages"),
    ):
        status, data = post(url, path, {"model": "pocket", **body})
        error = json.loads(data)["error"]
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
        # LiteLLM, LangChain with openai 3, and others know the error by these texts alone
        assert f"this model's maximum context length is {n_most} tokens" in error["message"]
        assert "prompt is too long" in error["message"]
        assert "earlier op" not in error["message"]
    for stream in (False, True):
        body = {"max_tokens": 1, "stream": stream, "messages": [{"role": "user", "content": text}]}
        _, data = post(url, "/v1/messages", {"model": "pocket", **body})
        message = json.loads(data)["error"]["message"]
        assert re.fullmatch(rf"prompt is too long: [0-9]{{4,}} tokens > {n_most} maximum", message)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": [99999], "n": 2}, "prompt"),
        ("/v1/chat/completions", {"messages": IMAGES}, "messages"),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}]},
            "input",
        ),
    ],
)
def test_a_prompt_that_the_server_refuses_is_named(url: str, path: str, body: Any, param: str) -> None:
    status, data = post(url, path, {"model": "pocket", **body})
    error = json.loads(data)["error"]
    assert (status, error["param"]) == (400, param), error
    assert "earlier op" not in error["message"]
