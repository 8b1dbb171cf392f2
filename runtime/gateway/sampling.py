"""Turns the fields of a request into the sampling parameters of a gen."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat_types import JSONFormat, SamplingFields, SchemaFormat, StructuredOutputs
from banyan.runtime.protocol import wire

_AS_THEY_ARE = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("min_tokens", "ignore_eos", "seed"),
)

_OBJECT = {"type": "object"}


def sampling_of(body: SamplingFields, defaults: wire.Sampling, max_tokens: int) -> wire.Sampling:
    """The sampling parameters for a request: those that `body` sets, and `defaults` for the others. max_tokens: used if
    `body` does not set it. HTTPError: a parameter is invalid."""
    given: dict[str, Any] = {name: getattr(body, name) for name in _AS_THEY_ARE}
    if given.get("top_k") == 0:
        given["top_k"] = -1
    if body.logit_bias:
        given["logit_bias"] = _biases(body.logit_bias)
    given["stop"], given["stop_regex"] = _strings(body.stop), _strings(body.stop_regex)
    given["stop_token_ids"] = tuple(body.stop_token_ids or ())
    given["max_tokens"] = max_tokens if body.max_tokens is None else body.max_tokens
    if (body.min_tokens or 0) > given["max_tokens"]:
        text = f"min_tokens is {body.min_tokens}, above the maximum length of an output, {given['max_tokens']}"
        raise HTTPError(400, text, param="min_tokens")
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def _strings(given: str | list[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def _biases(given: dict[str, float]) -> dict[int, float]:
    if wrong := [token[:40] for token in given if len(token) > 19 or not token.removeprefix("-").isdecimal()]:
        text = f"logit_bias must map token ids to numbers, but {wrong[:20]} are not ids"
        raise HTTPError(400, text, param="logit_bias")
    return {int(token): bias for token, bias in given.items()}


def constraint_of(body: SamplingFields, after: str = "") -> wire.ConstraintSpec | None:
    """The constraint on the output; None if there is none. It comes from one of the fields response_format, regex,
    grammar, ebnf, choices and structured_outputs. after: the mark that ends the reasoning, after which the constraint
    holds; "": the output has no reasoning. HTTPError: the request has several constraints."""
    form, structured = body.response_format, body.structured_outputs or StructuredOutputs()
    schema = form.json_schema.schema or {} if isinstance(form, SchemaFormat) else None
    fields: tuple[tuple[str, Any, Any], ...] = (
        ("response_format", "json_schema", _OBJECT if isinstance(form, JSONFormat) else schema),
        ("regex", "regex", body.regex),
        ("grammar", "grammar", body.grammar),
        ("ebnf", "grammar", body.ebnf),
        ("choices", "choices", body.choices),
        ("structured_outputs.json", "json_schema", structured.json),
        ("structured_outputs.json_object", "json_schema", _OBJECT if structured.json_object else None),
        ("structured_outputs.regex", "regex", structured.regex),
        ("structured_outputs.choice", "choices", structured.choice),
        ("structured_outputs.grammar", "grammar", structured.grammar),
    )
    given = [(name, kind, value) for name, kind, value in fields if value is not None]
    if len(given) > 1:
        names = [name for name, _, _ in given]
        text = f"{' and '.join(names)} cannot be combined: an output can have only one constraint"
        raise HTTPError(400, text, param=names[1])
    for _, kind, value in given:
        text = value if isinstance(value, str) else json.dumps(value)
        return wire.ConstraintSpec(kind, text, after=(after,) if after else ())
    return None
