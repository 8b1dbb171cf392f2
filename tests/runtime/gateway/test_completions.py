"""POST /v1/completions, with the openai package."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pocket_answers import ANSWER, PROMPT

from banyan.runtime import launch
from banyan.runtime.gateway.endpoint import Handler
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai import chat, completions
from banyan.runtime.gateway.openai.chat_types import CompletionRequest
from banyan.runtime.gateway.openai.completions import CompletionWriter
from banyan.runtime.protocol import wire
from forms import in_short
from gateway_in_process import handled
from raw_http import post


def create(client: openai.OpenAI, prompt: Any = PROMPT, **options: Any) -> Any:
    """A completion. The package's types have no null where OpenAI sends one: as finish_reason of a chunk that is not
    the last, and as logprob of the first token of an echo."""
    loose = client.with_options(_extra_kwargs={"_strict_response_validation": False})
    return loose.completions.create(model="pocket", prompt=prompt, **({"temperature": 0, "max_tokens": 3} | options))


def test_control_tokens_of_a_prompt_count(openai_client: openai.OpenAI) -> None:
    found = create(openai_client)
    assert (found.choices[0].text, found.choices[0].finish_reason, found.usage.prompt_tokens) == (
        "I am the",
        "length",
        15,
    )


def test_largest_seed_with_n_outputs(openai_client: openai.OpenAI) -> None:
    found = create(openai_client, n=2, seed=2**63 - 1, temperature=1.0)
    assert len(found.choices) == 2


def test_several_prompts_with_n_outputs_each(openai_client: openai.OpenAI) -> None:
    found = create(openai_client, [PROMPT, "Hello"], n=2)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in found.choices]
    assert texts[0] == texts[1] == "I am the"
    assert texts[2] == texts[3] != texts[0]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (16, 12)
    streamed = [""] * 4
    for chunk in create(openai_client, [PROMPT, "Hello"], n=2, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts


def test_echo_with_logprobs_has_those_of_the_prompt(openai_client: openai.OpenAI) -> None:
    (choice,) = create(openai_client, echo=True, logprobs=2).choices
    assert choice.text == f"{PROMPT}I am the"
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None
    assert [choice.text[at : at + len(token)] for at, token in zip(
        choice.logprobs.text_offset, choice.logprobs.tokens, strict=True)] == choice.logprobs.tokens  # fmt: skip
    streamed = list(create(openai_client, echo=True, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in streamed[:-1]) == f"{PROMPT}I am the"
    assert streamed[-1].usage.total_tokens == 18


def test_logprobs_have_the_token_that_ended_the_output(openai_client: openai.OpenAI) -> None:
    """It was left out, and lm-eval, which takes the last token of an echo for the one that was generated, then scored a
    text without its last token."""
    text = f"{PROMPT}{ANSWER}"
    prompt = create(openai_client, text, echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
    (choice,) = create(openai_client, text, echo=True, logprobs=1, max_tokens=1).choices
    found = choice.logprobs
    assert (choice.text, choice.finish_reason, found.tokens[-1]) == (text, "stop", "<|im_end|>")
    assert (found.tokens[:-1], found.token_logprobs[1:-1]) == (prompt.tokens, pytest.approx(prompt.token_logprobs[1:]))
    assert found.top_logprobs[-1] == {"<|im_end|>": found.token_logprobs[-1]}
    assert found.text_offset[-1] == len(text)

    whole = create(openai_client, logprobs=0, max_tokens=40).choices[0]
    assert "".join(whole.logprobs.tokens) == f"{ANSWER}<|im_end|>"
    pieces = [one.choices[0].logprobs for one in create(openai_client, logprobs=0, max_tokens=40, stream=True)]
    assert [token for one in pieces if one is not None for token in one.tokens] == whole.logprobs.tokens
    stopped = create(openai_client, logprobs=0, max_tokens=40, stop=["model."]).choices[0]
    assert "<|im_end|>" not in stopped.logprobs.tokens


def test_offsets_count_characters_that_several_tokens_share(openai_client: openai.OpenAI) -> None:
    (choice,) = create(openai_client, "Zoë 🌳 tree", echo=True, logprobs=5).choices
    found = choice.logprobs
    assert any(token.startswith("bytes:\\x") for token in found.tokens)
    places = list(zip(found.text_offset, found.tokens, strict=True))
    whole = [(at, token) for at, token in places if not token.startswith("bytes:")]
    assert [choice.text[at : at + len(token)] for at, token in whole] == [token for _, token in whole]
    assert len(whole) > 2
    assert all(token in top for token, top in zip(found.tokens, found.top_logprobs, strict=True) if top)


@pytest.mark.parametrize(
    ("prompt", "tokens", "expected"),
    [
        ("Hi", ("<s>", "Hi"), [0, 0, 2, 3]),
        ("Hi you", (" Hi", " you"), [0, 2, 6, 7]),
        ("<s>Hi", ("<s>", "Hi"), [0, 3, 5, 6]),
    ],
)
def test_offsets_are_those_of_an_echo_without_what_the_tokenizer_adds(
    prompt: str, tokens: tuple[str, ...], expected: list[int]
) -> None:
    before, output = (tuple(wire.TokenLogprob(0, one, -1.0) for one in texts) for texts in (tokens, ("!", "?")))
    sample, usage = wire.Sample("!?", "length", logprobs=output), wire.TokenUsage(generated=2)
    values = {0: wire.Value(0, 0, 0, (sample,), usage, prompt=before)}
    values[1] = wire.Value(0, 1, 1, (wire.Sample(prompt, "stop"),))
    (choice,) = CompletionWriter(CompletionRequest(model="m", prompt=prompt, logprobs=0), 1).whole(values)["choices"]
    assert choice["logprobs"]["text_offset"] == expected


@pytest.mark.parametrize("stop", [" Banyan", "m the Ban", " pocket model", "the", "nothing of it"])
def test_logprobs_are_those_of_the_text_before_a_stop(openai_client: openai.OpenAI, stop: str) -> None:
    options: Any = {"stop": [stop], "max_tokens": 8, "logprobs": True}
    whole = create(openai_client, **options | {"logprobs": 0}).choices[0]
    pieces = [one.choices[0].logprobs for one in create(openai_client, stream=True, **options | {"logprobs": 0})]
    assert [token for one in pieces if one is not None for token in one.tokens] == whole.logprobs.tokens
    text = "".join(whole.logprobs.tokens)
    assert text[: len(whole.text)] == whole.text[: len(text)]
    assert len("".join(whole.logprobs.tokens[:-1])) < len(whole.text), "the last token has text"

    options["messages"] = [{"role": "user", "content": "Hi, who are you?"}]
    chats = openai_client.chat.completions
    found: Any = chats.create(model="pocket", temperature=0, **options).choices[0]
    assert found.message.content == whole.text
    assert [one.token for one in found.logprobs.content] == whole.logprobs.tokens
    chunks = [one.choices[0].logprobs for one in chats.create(model="pocket", temperature=0, stream=True, **options)]
    assert [token.token for one in chunks if one for token in one.content or ()] == whole.logprobs.tokens


def test_stop_strings_do_not_count_before_min_tokens(openai_client: openai.OpenAI, url: str) -> None:
    (dot,) = json.loads(post(url, "/tokenize", {"prompt": "."})[1])["tokens"]
    options: Any = {"stop": ["."], "logit_bias": {str(dot): 100}, "max_tokens": 8}
    (choice,) = create(openai_client, **options, extra_body={"min_tokens": 4}).choices
    assert (choice.text, choice.finish_reason) == ("....", "stop")


def test_prompts_of_token_ids_are_those_of_their_texts(openai_client: openai.OpenAI, url: str) -> None:
    def ids(text: str) -> list[int]:
        found: list[int] = json.loads(post(url, "/tokenize", {"prompt": text})[1])["tokens"]
        return found

    options = {"echo": True, "logprobs": 2, "n": 2}
    texts = [PROMPT, "Hello 🌳"]
    forms = ((ids(PROMPT), texts[:1]), (list(map(ids, texts)), texts), ([texts[0], ids(texts[1])], texts))
    for prompt, expected in forms:
        assert choices(create(openai_client, prompt, **options)) == choices(create(openai_client, expected, **options))
    streamed = list(create(openai_client, [ids(PROMPT)], echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == f"{PROMPT}I am the"
    assert create(openai_client, ids(PROMPT)).usage.prompt_tokens == 15


def choices(completion: Any) -> Any:
    return [choice.to_dict() for choice in completion.choices]


@pytest.mark.parametrize(
    "options",
    [
        {"best_of": 2},
        {"suffix": "x"},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [1, "x"]},
        {"prompt": [1, [2]]},
    ],
)
def test_what_is_not_supported_is_refused(openai_client: openai.OpenAI, options: Any) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        create(openai_client, **options)
    assert raised.value.param == next(iter(options))


@pytest.mark.parametrize("wrong", in_short([1 << 20], [-1, 1 << 20, 1 << 31]))
def test_ids_outside_of_the_vocabulary_are_refused(openai_client: openai.OpenAI, wrong: int) -> None:
    with pytest.raises(openai.BadRequestError, match=r"vocabulary|int"):
        create(openai_client, [5, wrong, 6])
    with pytest.raises(openai.BadRequestError, match="context"):
        create(openai_client, [5] * 20_000)


def test_fields_that_routers_fill_in_are_accepted_with_their_defaults(openai_client: openai.OpenAI) -> None:
    filled = {"no_stop_trim": False, "skip_special_tokens": True, "return_hidden_states": False}
    filled |= {"separate_reasoning": True, "stream_reasoning": True}
    assert create(openai_client, extra_body=filled).choices[0].text == "I am the"
    for name, value in filled.items():
        with pytest.raises(openai.BadRequestError, match="must be"):
            create(openai_client, extra_body={name: not value})


@pytest.mark.parametrize("wrong", [{"prompt": "word " * 3000}, {"regex": "("}])
def test_an_error_after_the_echo_has_its_own_status(openai_client: openai.OpenAI, wrong: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        create(openai_client, echo=True, stream=True, extra_body=wrong)


@pytest.mark.parametrize(
    ("handle", "body"),
    [
        (completions.create, {"prompt": ["a"] * 1024, "n": 128, "stop": [f"{k:01024}" for k in range(64)]}),
        (chat.create, {"messages": [{"role": "user", "content": "x"}], "n": 128, "regex": "a" * 300_000}),
    ],
)
def test_options_are_not_copied_without_limit(
    pocket: launch.ServerProcess, monkeypatch: pytest.MonkeyPatch, handle: Handler, body: Any
) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("a program that takes gigabytes")

    monkeypatch.setattr(ModelCall, "start", start)
    with pytest.raises(HTTPError, match="outputs"):
        handled(pocket, handle, body)
