"""The endpoints about tokens, which are vLLM's."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pocket_answers import PROMPT, QUESTION

from banyan.runtime import config, launch
from banyan.runtime.gateway import info
from banyan.runtime.gateway.errors import HTTPError
from gateway_in_process import handled
from raw_http import post


@pytest.mark.parametrize("text", [PROMPT, "Zoë 🌳 tree"])
def test_token_ids_become_their_text_again(url: str, text: str) -> None:
    body = {"prompt": text, "return_token_strs": False, "add_special_tokens": False}
    tokens = json.loads(post(url, "/tokenize", body)[1])["tokens"]
    status, data = post(url, "/detokenize", {"model": "pocket", "tokens": tokens})
    assert (status, json.loads(data)) == (200, {"prompt": text})


def test_ids_outside_of_the_vocabulary_are_refused(url: str) -> None:
    status, data = post(url, "/detokenize", {"tokens": [5, 1 << 20]})
    assert (status, json.loads(data)["error"]["param"]) == (400, "tokens")


def test_special_tokens_of_the_model(url: str) -> None:
    found = json.loads(post(url, "/tokenizer_info", b"", method="GET")[1])
    assert found == {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}


def test_special_tokens_are_left_out_on_request(boot: tuple[str, ...], fake_model: Callable[..., Path]) -> None:
    path = fake_model()
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with closing(launch.start(config.make(model=str(path)), command=boot)) as server:

        def tokens(**body: Any) -> Any:
            reply: Any = handled(server, info.tokenize, body)
            return json.loads(reply.body)["tokens"]

        with_start = tokens(prompt="Hi", add_special_tokens=True)
        assert with_start == tokens(prompt="Hi") == [1, *tokens(prompt="Hi", add_special_tokens=False)]
        assert tokens(prompt="<|im_start|>Hi", add_special_tokens=False) == with_start
        assert tokens(prompt="", add_special_tokens=False) == []
        assert tokens(messages=QUESTION, add_special_tokens=False) == tokens(messages=QUESTION)
        with pytest.raises(HTTPError, match="chat template"):
            tokens(messages=QUESTION, add_special_tokens=True)
