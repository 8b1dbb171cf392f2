"""Endpoints about the server and its model: its health, models, tokens and metrics."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from banyan.runtime.gateway.bodies import decode
from banyan.runtime.gateway.endpoint import HTTPRequest, Reply, json_reply
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.generation import chat_markers, chat_parts, template_kwargs, tools_of
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai.chat_types import ChatRequest, DetokenizeRequest, TokenizeRequest
from banyan.runtime.gateway.prompt import token_parts
from banyan.runtime.protocol import wire
from banyan.runtime.server_metrics import Family

_STARTED = int(time.time())


async def health(request: HTTPRequest) -> Reply:
    """Answers 200 as long as the server runs."""
    return json_reply({"status": "ok"})


def _described(request: HTTPRequest, name: str) -> dict[str, Any]:
    """The JSON description of a model, with the fields of both OpenAI's and Anthropic's API. name: the name of the
    model or of an adapter."""
    names, started = request.gateway.names, datetime.fromtimestamp(_STARTED, UTC).isoformat()
    openai = {"id": name, "object": "model", "created": _STARTED, "owned_by": "banyan"}
    openai |= {} if name in names else {"parent": names[0]}
    n_most = request.client.welcome.max_context
    anthropic = {"type": "model", "display_name": name, "created_at": started, "lifecycle": "active"}
    return openai | anthropic | {"max_input_tokens": n_most, "max_model_len": n_most}


async def models(request: HTTPRequest) -> Reply:
    """Lists the server's model and its adapters."""
    # an adapter may have a name of the model, which then stands for the model
    names = [*dict.fromkeys((*request.gateway.names, *await _adapters(request)))]
    pages = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return json_reply({"object": "list", "data": [_described(request, name) for name in names]} | pages)


async def model(request: HTTPRequest) -> Reply:
    """Describes the model or adapter that the path names. HTTPError: there is none of that name."""
    name = request.path["model"]
    return json_reply(_described(request, await adapter_of(request, name) or name))


async def adapter_of(request: HTTPRequest, name: str) -> str:
    """The name of the adapter for a request whose field `model` is `name`: an adapter is given as ADAPTER or
    MODEL:ADAPTER. Returns "" for the model itself. HTTPError: the server has neither a model nor an adapter of that
    name."""
    names = request.gateway.names
    if name in names:
        return ""
    adapters = await _adapters(request)
    base, _, adapter = name.rpartition(":")
    if name in adapters:
        return name
    if base not in names or adapter not in adapters:
        there = f" and its adapters {', '.join(adapters)}" if adapters else ""
        raise HTTPError(404, f"this server runs {names[0]!r}{there}, not {name[:200]!r}", param="model",
                        code="model_not_found")  # fmt: skip
    return adapter


async def _adapters(request: HTTPRequest) -> list[str]:
    """The names of the adapters that are loaded now."""
    return list((await asyncio.to_thread(request.client.ask, "info"))["adapters"])


async def tokenize(request: HTTPRequest) -> Reply:
    """Tokenizes a prompt or a conversation. The response has the token ids, exactly as the model would get them."""
    body = decode(request.body, TokenizeRequest)
    if body.model is not None:
        await adapter_of(request, body.model)
    if (body.prompt is None) == (body.messages is None):
        raise HTTPError(400, "give either prompt or messages", param="prompt")
    if body.messages is None:
        for name in ("chat_template_kwargs", "continue_final_message"):
            if getattr(body, name) is not None:
                raise HTTPError(400, f"{name} needs messages", param=name)
        prompt = body.prompt or ""
        tokens = await _ids(request, (wire.Raw(prompt),), field="prompt")
        if body.add_special_tokens is False:
            tokens = await _without_start(request, prompt, tokens)
    else:
        if body.add_special_tokens:
            text = "add_special_tokens must be false for messages, as the chat template writes the special tokens"
            raise HTTPError(400, text, param="add_special_tokens")
        kwargs = template_kwargs(chat_markers(request), body.chat_template_kwargs, None)
        tokens = await _ids(request, chat_parts(request, body), kwargs)
    return json_reply({"tokens": tokens, "count": len(tokens), "max_model_len": request.client.welcome.max_context})


async def _without_start(request: HTTPRequest, prompt: str, ids: list[int]) -> list[int]:
    """Return `ids`, the tokens of a prompt, without those that the tokenizer has put before it. An empty prompt has
    these, too, or others that stand for it."""
    start = await _ids(request, (wire.Raw(""),), field="prompt")
    is_added = ids[: len(start)] == start and not prompt.startswith(await _text(request, start))
    return ids[len(start) :] if is_added else ids


async def detokenize(request: HTTPRequest) -> Reply:
    """Answers with the text of token ids, special tokens included."""
    body = decode(request.body, DetokenizeRequest)
    if body.model is not None:
        await adapter_of(request, body.model)
    return json_reply({"prompt": await _text(request, body.tokens)})


async def _text(request: HTTPRequest, ids: list[int]) -> str:
    ops = (wire.Append(0, token_parts(ids)), wire.Read(0, 0))
    async with ModelCall.start(request, ops, name="detokenize", field="tokens") as call:
        return (await call.values())[0].samples[0].text


async def special_tokens(request: HTTPRequest) -> Reply:
    """Answers with the texts of the model's special tokens, by their names in the model's files."""
    found = (await asyncio.to_thread(request.client.ask, "info"))["special_tokens"]
    return json_reply({"bos_token": None, "eos_token": None, "pad_token": None} | found)


async def _ids(
    request: HTTPRequest, parts: tuple[wire.Part, ...], kwargs: str = "", field: str = "messages"
) -> list[int]:
    """Have the server tokenize a prompt, and return its token ids. kwargs: variables for the chat template
    (wire.Gen.chat_template_kwargs). Only a gen can carry these variables, so with kwargs the server runs a gen of 0
    tokens, which computes the KV of the prompt. field: the field of the request that has the prompt, for errors."""
    gens = (wire.Gen(0, 1, wire.Sampling(max_tokens=0), chat_template_kwargs=kwargs),) if kwargs else ()
    ops = (wire.Append(0, parts), *gens, wire.Read(0, 0, tokens=True))
    async with ModelCall.start(request, ops, name="tokenize", field=field) as call:
        tokens = (await call.values())[0].tokens
    assert tokens is not None  # as the Read asks for them
    return memoryview(tokens.ids).cast("i").tolist()


async def count_tokens(request: HTTPRequest, body: ChatRequest, field: str = "messages") -> int:
    """Return how many tokens the prompt of a chat request has. field: the field of the client's request that has the
    prompt, for errors.

    With tools or variables for the chat template, the server runs a gen of 0 tokens to count them. This computes the KV
    of the prompt, which a later request with the same prompt finds in the cache.
    """
    parts, tools = chat_parts(request, body), tools_of(body)
    kwargs = template_kwargs(chat_markers(request), body.chat_template_kwargs, body.reasoning_effort)
    if tools is None and not kwargs:
        return len(await _ids(request, parts, field=field))
    gen = wire.Gen(*(0, 0, wire.Sampling(max_tokens=0)), tools=tools, chat_template_kwargs=kwargs)
    async with ModelCall.start(request, (wire.Append(0, parts), gen), name="count", field=field) as call:
        return (await call.values())[0].usage.prompt


async def metrics(request: HTTPRequest) -> Reply:
    """The counters of the server and of the HTTP process, in the text format of Prometheus. If there are API keys, only
    those of the HTTP process: no key is an operator's, and the server gives its counters only to operators."""
    counters = () if request.tenant else await request.gateway.counters()
    text = "responses, by the path of their route; status 0: the client hung up before it began"
    counts: dict[tuple[str, ...], float] = {}
    for (path, status), n in request.gateway.counts.items():
        counts[path, str(status)] = n
    http = Family("http_responses", "counter", text, ("path", "status"), counts)
    return Reply("".join(map(_written, (*counters, http))).encode(), kind="text/plain; version=0.0.4")


def _written(family: Family) -> str:
    name = f"banyan_{family.name}{'_total' if family.kind == 'counter' else ''}"
    lines = [f"# HELP {name} {family.text}", f"# TYPE {name} {family.kind}"]
    for values, n in family.values.items():
        labels = ",".join(f'{label}="{value}"' for label, value in zip(family.labels, values, strict=True))
        lines.append(f"{name}{{{labels}}} {n!r}" if labels else f"{name} {n!r}")
    return "\n".join(lines) + "\n"
