"""Turns the fields of a request into the sampling parameters of a gen."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from msgspec.structs import replace

from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat_types import JSONFormat, SamplingFields, SchemaFormat
from banyan.runtime.protocol import wire

_AS_THEY_ARE = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("min_tokens", "ignore_eos", "seed"),
)


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
        text = f"min_tokens is {body.min_tokens}, above the most tokens of an output, {given['max_tokens']}"
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
    """The constraint on the output; None: there is none. It comes from one of the fields response_format, regex,
    grammar and choices. after: the mark that ends the reasoning, after which the constraint holds; "": the output has
    no reasoning. HTTPError: the request has several constraints."""
    spec = partial(wire.ConstraintSpec, after=(after,) if after else ())
    found: dict[str, wire.ConstraintSpec] = {}
    form = body.response_format
    if isinstance(form, JSONFormat | SchemaFormat):
        schema = {"type": "object"} if isinstance(form, JSONFormat) else form.json_schema.schema
        found["response_format"] = spec("json_schema", json.dumps(schema or {}))
    if body.regex is not None:
        found["regex"] = spec("regex", body.regex)
    if body.grammar is not None:
        found["grammar"] = spec("grammar", body.grammar)
    if body.choices is not None:
        found["choices"] = spec("choices", json.dumps(body.choices))
    if len(found) > 1:
        names = " and ".join(found)
        raise HTTPError(
            400, f"{names} cannot be combined: an output can have only one constraint", param=list(found)[1]
        )
    return next(iter(found.values()), None)
