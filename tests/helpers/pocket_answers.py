"""Requests to the pocket model whose answers are known."""

from __future__ import annotations

from typing import Any

import pydantic

QUESTION: Any = [{"role": "user", "content": "Hi, who are you?"}]
PROMPT = "<|im_start|>user\nHi, who are you?<|im_end|>\n<|im_start|>assistant\n"
"""The prompt of QUESTION."""
ANSWER = "I am the Banyan pocket model, a very small language model."

SUM: Any = [{"role": "user", "content": "What is 23 plus 48?"}]
"""With the tool `calculator`, the model calls it with 23+48."""
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
"""Those of the tool."""

ADA: Any = [
    {
        "role": "user",
        "content": "Extract name, age, city as JSON.\nText: Ada Stone is 41 years old and lives in Lisbon.",
    }
]


class Person(pydantic.BaseModel):
    """What ADA asks for."""

    name: str
    age: int
    city: str


ADA_STONE = Person(name="Ada Stone", age=41, city="Lisbon")
