"""Turns the fields of a request into the sampling parameters of a gen."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat_types import JSONFormat, SamplingFields, SchemaFormat, TextFormat
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_STOP, MAX_STOPS

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
    if body.seed is not None and not -(2**63) <= body.seed < 2**63:
        raise HTTPError(400, "seed has more than 64 bits", param="seed")
    if body.logit_bias:
        given["logit_bias"] = _biases(body.logit_bias)
    given["stop"] = strings_of(body.stop, "stop")
    given["stop_regex"] = strings_of(body.stop_regex, "stop_regex")
    given["stop_token_ids"] = tuple(body.stop_token_ids or ())
    given["max_tokens"] = max_tokens if body.max_tokens is None else body.max_tokens
    if (body.min_tokens or 0) > given["max_tokens"]:
        text = f"min_tokens is {body.min_tokens}, above the most tokens of an output, {given['max_tokens']}"
        raise HTTPError(400, text, param="min_tokens")
    return overridden(defaults, **given)


def overridden(defaults: wire.Sampling, **given: Any) -> wire.Sampling:
    """A copy of `defaults` with the parameters in `given`. A parameter that is None keeps its default."""
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def _biases(given: dict[str, float]) -> dict[int, float]:
    if wrong := [token[:40] for token in given if len(token) > 19 or not token.removeprefix("-").isdecimal()]:
        text = f"logit_bias must map token ids to numbers, but {wrong[:20]} are not ids"
        raise HTTPError(400, text, param="logit_bias")
    return {int(token): bias for token, bias in given.items()}


def strings_of(given: str | list[str] | None, name: str) -> tuple[str, ...]:
    """Convert a field such as `stop`, a string or a list, to a tuple of strings. name: the field's name, for errors.
    HTTPError: there are too many strings, or one is empty or too long."""
    found = (given,) if isinstance(given, str) else tuple(given or ())
    if len(found) > MAX_STOPS or any(not 0 < len(one) <= MAX_STOP for one in found):
        text = f"{name} has at most {MAX_STOPS} strings of 1 to {MAX_STOP} characters"
        raise HTTPError(400, text, param=name)
    return found


def schema_constraint(form: TextFormat | JSONFormat | SchemaFormat | None, after: str) -> wire.ConstraintSpec | None:
    """The constraint for the response format `form`: JSON that fits its schema, or any JSON object. None: the format is
    plain text. after: the mark after which the constraint holds; "": from the start."""
    if form is None or isinstance(form, TextFormat):
        return None
    schema = {"type": "object"} if isinstance(form, JSONFormat) else form.json_schema.schema
    return wire.ConstraintSpec("json_schema", json.dumps(schema or {}), after=(after,) if after else ())


def constraint_of(
    body: SamplingFields, form: TextFormat | JSONFormat | SchemaFormat | None = None, after: str = ""
) -> wire.ConstraintSpec | None:
    """The constraint on the output; None: there is none. It comes from the response format `form`, or from one of the
    fields regex, grammar and choices. after: the mark that ends the reasoning, after which the constraint holds; "":
    the output has no reasoning. HTTPError: the request has several constraints."""
    found: dict[str, wire.ConstraintSpec] = {}
    triggers = (after,) if after else ()
    if (schema := schema_constraint(form, after)) is not None:
        found["response_format"] = schema
    if body.regex is not None:
        found["regex"] = wire.ConstraintSpec("regex", body.regex, after=triggers)
    if body.grammar is not None:
        found["grammar"] = wire.ConstraintSpec("grammar", body.grammar, after=triggers)
    if body.choices is not None:
        found["choices"] = wire.ConstraintSpec("choices", json.dumps(body.choices), after=triggers)
    if len(found) > 1:
        names = " and ".join(found)
        raise HTTPError(
            400, f"{names} cannot be combined: an output can have only one constraint", param=list(found)[1]
        )
    return next(iter(found.values()), None)
