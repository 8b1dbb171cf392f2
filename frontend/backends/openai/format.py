"""Converts gens and selects to requests of OpenAI's HTTP API, as plain dicts. Nothing here uses the network.

The API has two kinds of requests: chat completions, which take turns, and completions, which take text. `refuse` raises
Unsupported for a feature that a kind lacks, and says what to use instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import msgspec
from msgspec.structs import replace

from banyan.backends.job import CallTurn, Job, Output, Piece, ToolResults, changed
from banyan.lang.images import message_part
from banyan.lang.output_types import SCHEMAS
from banyan.lang.schema_check import check_references
from banyan.runtime.errors import Unsupported
from banyan.runtime.protocol import wire

Kind = Literal["chat", "completion"]

# Fields of Sampling that the API has too. Defaults are not sent: reasoning models refuse even those.
SAME = {"temperature", "top_p", "frequency_penalty", "presence_penalty", "n", "seed", "stop", "logit_bias"}

WRAPPER = 16
"""How many tokens the object around a value of plain text has at most: max_tokens is the limit of the value alone."""
SMALL = 256
"""Values of max_tokens below this leave no room for the object. Larger ones may be the most that the model takes."""
MAX_STOPS = 4
"""Maximum number of stop strings that OpenAI's API takes."""

# Option that only some servers have -> what to use on the others.
EXTENSIONS = {
    "top_k": "top_p",
    "min_p": "top_p",
    "repetition_penalty": "frequency_penalty or presence_penalty",
    "min_tokens": "a prompt that asks for more",
    "stop_token_ids": "stop",
    "ignore_eos": "max_tokens alone",
    "chat_template_kwargs": "a prompt that asks for it",
    "prefix": "@function(num_api_spec_tokens=...), which asks for the whole turn, or let the gen come first in it",
}
"""Features that some servers add to OpenAI's API. prefix: the server continues an assistant's turn that has begun (as
vLLM and SGLang do)."""

# Feature that requests of one kind or of both lack on every server -> what to use instead.
INSTEAD = {
    "stop_regex": "stop strings",
    "logprob_start_len": "return_logprob without logprob_start_len, which gives the logprobs of the output",
    "raw": "plain text: the API writes control tokens itself",
    "text": "bn.user(...) or bn.system(...): a chat model reads only turns",
    "gen": "bn.assistant(bn.gen(...)): a chat model writes only turns of the assistant",
    "regex": "a JSON schema: json_schema=, or a type= that is written as JSON, such as a dataclass",
    "grammar": "a JSON schema: json_schema=, or a type= that is written as JSON, such as a dataclass",
    "choices": "bn.select",
    "json_schema": "a chat model, or a prompt that asks for JSON",
    "whitespace": "a JSON schema without it: the server chooses",
    "order": "a JSON schema without it: the server chooses",
    "max_tokens=0": "at least 1",
    "unconditional_likelihood_normalized": "greedy_token_selection, which is what a chat model can do",
    "tools": "a chat model",
    "image": "a chat model",
    "priority": "a runtime of your own",
    "deadline": "a runtime of your own",
    "adapter": "the adapter's name as the model",
}

# Features that one kind of requests has on every server.
HAS: dict[Kind, frozenset[str]] = {
    "chat": frozenset({"json_schema", "tools", "image"}),
    "completion": frozenset({"raw", "text", "gen", "unconditional_likelihood_normalized", "prefix"}),
}


def refusals(kind: Kind) -> frozenset[str]:
    """Returns the names of all features that requests of this kind (for chat completions, or for completions) cannot
    have, unless the server has an extension."""
    return frozenset(EXTENSIONS.keys() | INSTEAD.keys()) - HAS[kind]


def refuse(what: str, kind: Kind) -> NoReturn:
    extension = f', or OpenAI(..., extensions=["{what}"]) if the server knows it' if what in EXTENSIONS else ""
    instead = EXTENSIONS.get(what) or INSTEAD[what]
    raise Unsupported(f"{what}: OpenAI's {kind} API does not support it; use {instead}{extension}")


def plain_schema(op: wire.Gen | wire.Select, kind: Kind) -> dict[str, Any] | None:
    """The JSON schema of the values of a gen whose type is written as plain text: a number, bool, Literal or Enum. The
    gen asks a chat API for an object with such a `value`, because the schema must be that of an object. None: the gen
    has no such type, or the API takes no schemas."""
    constraint = op.sampling.constraint if isinstance(op, wire.Gen) else None
    if constraint is None or constraint.after or kind != "chat":
        return None
    if constraint.kind == "choices":
        return {"type": "string", "enum": msgspec.json.decode(constraint.text)}
    return SCHEMAS.get(constraint.text) if constraint.kind == "regex" else None


def plain_sample(sample: wire.Sample, schema: Mapping[str, Any], stop: Sequence[str]) -> wire.Sample:
    """The sample with the plain text of its `value`, up to the first of the stop strings. A text that is no object with
    a text or a finite number stays as it is: some servers ignore schemas, and the text may be the value itself."""
    try:
        value = json.loads(sample.text)["value"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return sample
    if not isinstance(value, str | float | int) or (isinstance(value, float) and not math.isfinite(value)):
        return sample  # null, NaN or 1e400, and not the texts None, nan or inf
    if schema["type"] == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)  # for JSON, 42.0 is an integer
    text = str(value)
    for end in stop:
        text = text.partition(end)[0]
    return replace(sample, text=text)


def gen_request(job: Job, kind: Kind, extensions: Collection[str], max_tokens_as: str) -> dict[str, Any]:
    """Returns the arguments of the API's `create` for a gen, except the model's name. The caller must have checked that
    the API has the `features` of the job.

    extensions: options that the server has and OpenAI lacks, such as "top_k". max_tokens_as: the API's name for
    max_tokens in a chat request. Unsupported: the API cannot express a turn or a limit of this gen.
    """
    assert isinstance(job.op, wire.Gen)
    sampling = job.op.sampling
    request = joined(prompt(job, kind, extensions), options(sampling))
    if kind == "completion" and job.stops != sampling.stop:  # a chat API ends turns itself
        if len(job.stops) > MAX_STOPS:
            end = job.prompt.turn_stops[0]
            raise Unsupported(
                f"stop: OpenAI's API takes {MAX_STOPS} strings, and {end!r}, which ends the turn, must be one of them; "
                f"give fewer, or, if this server takes more, put {end!r} among them"
            )
        request["stop"] = list(job.stops)
    if sampling.max_tokens < 1:
        refuse("max_tokens=0", kind)
    plain = plain_schema(job.op, kind)
    wrapper = WRAPPER if plain is not None and sampling.max_tokens < SMALL else 0
    request["max_tokens" if kind == "completion" else max_tokens_as] = sampling.max_tokens + wrapper
    if sampling.logprobs:
        request |= {"logprobs": sampling.top_logprobs} if kind == "completion" else {"logprobs": True}
        if kind == "chat" and sampling.top_logprobs:
            request["top_logprobs"] = sampling.top_logprobs
    constraint = sampling.constraint
    if plain is not None:
        request.pop("stop", None)  # a space, which ends a number, would end the object
        request["response_format"] = _schema("output", _object("value", plain))
    elif constraint is not None:
        if constraint.after:
            refuse(constraint.kind, kind)
        check_references(constraint.text)  # the output is checked, and the API may not refuse such a schema
        request["response_format"] = _schema("output", msgspec.json.decode(constraint.text))
    if job.op.tools is not None:
        request["tools"] = [msgspec.json.decode(spec) for spec in job.op.tools.specs]
        if job.round >= job.op.tools.max_rounds:
            request["tool_choice"] = "none"
    if job.op.stream and plain is None:
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    return request


def select_requests(job: Job, kind: Kind, extensions: Collection[str]) -> list[dict[str, Any]]:
    """The arguments of the API's `create` for a select. There is a second request if the method also scores the choices
    without the prompt."""
    op = job.op
    assert isinstance(op, wire.Select)
    if kind == "chat":
        schema = _object("choice", {"type": "string", "enum": list(dict.fromkeys(op.choices))})
        request = prompt(job, kind, extensions) | {"response_format": _schema("choice", schema)}
        request |= {"temperature": op.temperature} | ({} if op.seed is None else {"seed": op.seed})
        return [request]
    text = prompt(job, kind, extensions)["prompt"]
    # echo: the API returns the log-probabilities of the prompt.
    scored: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}
    requests = [scored | {"prompt": [text + choice for choice in op.choices]}]
    if op.method == "unconditional_likelihood_normalized":
        requests.append(scored | {"prompt": list(op.choices)})
    return requests


def prompt(job: Job, kind: Kind, extensions: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of the API's `create` that hold the prompt of `job`: "messages" for a chat API, else
    "prompt". extensions: options that the server has and OpenAI lacks; with "prefix", it can continue a turn of the
    assistant that has begun. Unsupported: the API cannot express a piece of the prompt."""
    if kind == "completion":
        if job.op.chat_template_kwargs:
            refuse("chat_template_kwargs", kind)
        return {"prompt": job.text}
    messages, begun = turns(job.prompt.pieces)
    if begun is None:
        refuse("gen", kind)
    extra: dict[str, Any] = {}
    if job.op.chat_template_kwargs:
        extra["chat_template_kwargs"] = msgspec.json.decode(job.op.chat_template_kwargs)
    if begun.strip():
        if "prefix" not in extensions:
            refuse("prefix", kind)
        messages.append({"role": "assistant", "content": begun})
        extra |= {"continue_final_message": True, "add_generation_prompt": False}
    return {"messages": messages} | ({"extra_body": extra} if extra else {})


def joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merge two sets of arguments of the API's `create`. Their "extra_body" dicts, which hold the options that OpenAI
    does not have, are merged too. If both have an argument, `other` wins."""
    both = one | other
    if "extra_body" in both:
        both["extra_body"] = one.get("extra_body", {}) | other.get("extra_body", {})
    return both


def turns(pieces: Iterable[Piece]) -> tuple[list[dict[str, Any]], str | None]:
    """(the finished turns as messages, the text so far of the assistant's open turn). The text is None if no turn of
    the assistant is open."""
    messages: list[dict[str, Any]] = []
    role: str | None = None
    content: list[str | wire.Image] = []
    for piece in pieces:
        match piece:
            case wire.BeginTurn():
                role, content = piece.role, []
            case wire.EndTurn():
                messages.append({"role": role, "content": _content(content)})
                role = None
            case wire.Image():
                content.append(piece)
            case CallTurn():
                messages.append(_called("".join(map(str, content)), piece))
                role = None
            case str() | Output():
                text = piece if isinstance(piece, str) else piece.text
                if role is None and text.strip():
                    refuse("text", "chat")
                content.append(text)
            case ToolResults():
                messages += [{"role": "tool", "tool_call_id": i, "content": text} for i, text in piece.texts]
                role, content = "assistant", []
    return messages, "".join(map(str, content)) if role == "assistant" else None


def _content(content: Sequence[str | wire.Image]) -> Any:
    """Returns the content of a message in the API's form: a string, or a list of parts if there are images."""
    if all(isinstance(part, str) for part in content):
        return "".join(map(str, content))
    return [
        {"type": "text", "text": part} if isinstance(part, str) else message_part(part.data, part.kind)
        for part in content
    ]


def _called(before: str, piece: CallTurn) -> dict[str, Any]:
    """The message of a turn that ends with calls. before: the turn's text before the gen that made the calls."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in piece.calls
    ]
    text = piece.text.removesuffix(called_text(piece.calls))
    return {"role": "assistant", "content": before + text or None, "tool_calls": calls}


def called_text(calls: Iterable[wire.WireToolCall]) -> str:
    """Calls as text, in which they stand in the prompt for users, as on a runtime: the API keeps them apart from the
    text of their turn."""
    return "".join(
        f'<tool_call>{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}</tool_call>'
        for call in calls
    )


def options(sampling: wire.Sampling) -> dict[str, Any]:
    """Returns the sampling options that differ from their defaults, as arguments of the API's `create`. Options that
    OpenAI does not have are in "extra_body". The caller adds max_tokens, log-probabilities and constraints."""
    found: dict[str, Any] = {}
    for name in changed(sampling):
        value = getattr(sampling, name)
        if name in SAME:
            found[name] = list(value) if isinstance(value, tuple) else value
        elif name in EXTENSIONS:
            found.setdefault("extra_body", {})[name] = list(value) if isinstance(value, tuple) else value
    if "logit_bias" in found:
        found["logit_bias"] = {str(token): bias for token, bias in found["logit_bias"].items()}
    return found


def _object(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object with one property."""
    return {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}


def _schema(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
