"""POST /v1/chat/completions, with the openai package."""

from __future__ import annotations

from typing import Any

import openai

QUESTION: Any = [{"role": "user", "content": "Hi, who are you?"}]
ANSWER = "I am the Banyan pocket model, a very small language model."


def test_create_returns_text_and_usage(chat_client: openai.OpenAI) -> None:
    found = chat_client.chat.completions.create(model="pocket", messages=QUESTION, temperature=0, max_tokens=30)
    (choice,) = found.choices
    assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (15, 20, 35)


def test_stream_has_role_first_one_finish_per_choice_and_usage_without_choices(chat_client: openai.OpenAI) -> None:
    options: Any = {"stream_options": {"include_usage": True}, "n": 2, "temperature": 0, "max_tokens": 5}
    chunks = list(chat_client.chat.completions.create(model="pocket", messages=QUESTION, stream=True, **options))
    last = chunks.pop()
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 10
    assert all(chunk.usage is None for chunk in chunks)
    for index in range(2):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert [one.delta.role for one in mine[1:]] == [None] * (len(mine) - 1)
        assert [one.finish_reason for one in mine] == [None] * (len(mine) - 1) + ["length"]
        assert mine[-1].delta.content is None
        assert "".join(one.delta.content or "" for one in mine) == "I am the Banyan"
