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
    """The parameters of `body`; those that it does not give come from `defaults`. max_tokens: used if the body gives
    none."""
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
    return overridden(defaults, **given)


def overridden(defaults: wire.Sampling, **given: Any) -> wire.Sampling:
    """The parameters in `defaults`, each replaced by the one in `given` if that is not None."""
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def _biases(given: dict[str, float]) -> dict[int, float]:
    if wrong := [token[:40] for token in given if len(token) > 19 or not token.removeprefix("-").isdecimal()]:
        text = f"logit_bias must map token ids to numbers, but {wrong[:20]} are not ids"
        raise HTTPError(400, text, param="logit_bias")
    return {int(token): bias for token, bias in given.items()}


def strings_of(given: str | list[str] | None, name: str) -> tuple[str, ...]:
    """The stop strings of field `name`. Raises HTTPError."""
    found = (given,) if isinstance(given, str) else tuple(given or ())
    if len(found) > MAX_STOPS or any(not 0 < len(one) <= MAX_STOP for one in found):
        text = f"{name} has at most {MAX_STOPS} strings of 1 to {MAX_STOP} characters"
        raise HTTPError(400, text, param=name)
    return found


def schema_constraint(form: TextFormat | JSONFormat | SchemaFormat | None, after: str) -> wire.ConstraintSpec | None:
    """The constraint that the output is JSON that fits the schema of `form`; None: `form` asks for text. after: as for
    `constraint_of`."""
    if form is None or isinstance(form, TextFormat):
        return None
    schema = {"type": "object"} if isinstance(form, JSONFormat) else form.json_schema.schema
    return wire.ConstraintSpec("json_schema", json.dumps(schema or {}), after=(after,) if after else ())


def constraint_of(
    body: SamplingFields, form: TextFormat | JSONFormat | SchemaFormat | None = None, after: str = ""
) -> wire.ConstraintSpec | None:
    """The constraint on the output, if there is one. after: the mark that ends the reasoning, if the output begins with
    reasoning."""
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
