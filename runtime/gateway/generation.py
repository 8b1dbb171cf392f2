"""Turns a chat request into a program. The endpoints of other APIs first convert their requests to chat requests."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from banyan.runtime.gateway.endpoint import HTTPRequest
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.model_call import ModelCall
from banyan.runtime.gateway.openai.chat_types import (
    AllowedTools,
    ChatRequest,
    ChatTurn,
    NamedTool,
    SamplingFields,
    TokenizeRequest,
    ToolSpec,
)
from banyan.runtime.gateway.prompt import PromptWriter, contents
from banyan.runtime.gateway.sampling import constraint_of, sampling_of
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.http_frames import MAX_BODY
from banyan.runtime.protocol.limits import MAX_SPEC, MAX_TEMPLATE_KWARGS, MAX_TOOLS
from banyan.runtime.protocol.roles import ASSISTANT

USERS = ("user", "safety_identifier", "prompt_cache_key")
"""The fields of a request about its end user."""


def chat_markers(request: HTTPRequest) -> wire.ChatMarkers:
    """The markers of the model's chat template. HTTPError: the model has none."""
    if (chat := request.client.welcome.chat) is None:
        text = f"{request.gateway.names[0]} has no chat template; use /v1/completions"
        raise HTTPError(400, text, param="messages")
    return chat


def _reasoning_end(chat: wire.ChatMarkers, begun: ChatTurn | None) -> str:
    """The mark that ends the reasoning, if the output will begin inside the reasoning; else "". begun: the unfinished
    turn of the assistant that the output continues; None: the output begins a new turn."""
    marks, opened = chat.reasoning, chat.roles.get(ASSISTANT, ("", ""))[0]
    if begun is not None:  # if text follows the start mark, the output counts as the answer, as on the server
        opened += "".join(part for part in contents(begun.content) if isinstance(part, str))
    return marks.end if marks is not None and opened.rstrip().endswith(marks.start) else ""


def start_chat(
    request: HTTPRequest, body: ChatRequest, adapter: str, *, name: str, hints: Sequence[wire.CacheHint] = ()
) -> ModelCall:
    """Send a chat request. adapter: the name of the adapter; "": none. name: what the program is called. hints: ops
    after the gen. HTTPError: the request is invalid. Raises BanyanError if it cannot be sent."""
    gen, n = chat_gen(request, body, adapter), body.n or 1
    check_copies(gen, n)
    ops = (wire.Append(0, chat_parts(request, body)), *gens(gen, n), *hints)
    return ModelCall.start(request, ops, name=name, limits=limits_of(request, body))


def chat_parts(request: HTTPRequest, body: ChatRequest | TokenizeRequest) -> tuple[wire.Part, ...]:
    """The prompt of a chat request, up to where the output begins. HTTPError: a message is invalid."""
    goes_on = _begun(body) is not None
    parts = PromptWriter(chat_markers(request)).parts(body.messages or [], leaves_open=goes_on)
    return parts if goes_on or body.add_generation_prompt is False else (*parts, wire.BeginTurn(ASSISTANT))


def chat_gen(request: HTTPRequest, body: ChatRequest, adapter: str = "") -> wire.Gen:
    """The gen of a chat request, for state 0 and ref 0. adapter: the name of the adapter; "": none. HTTPError:
    an option is invalid."""
    chat, welcome = chat_markers(request), request.client.welcome
    n_most = welcome.max_context if body.max_completion_tokens is None else body.max_completion_tokens
    sampling = replace(
        sampling_of(body, welcome.sampling, n_most),
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        constraint=constraint_of(body, _reasoning_end(chat, _begun(body))),
    )
    return wire.Gen(
        *(0, 0, sampling),
        stream=bool(body.stream),
        reasoning=chat.reasoning,
        tools=tools_of(body),
        adapter=adapter,
        chat_template_kwargs=template_kwargs(chat, body.chat_template_kwargs, body.reasoning_effort),
    )


def _begun(body: ChatRequest | TokenizeRequest) -> ChatTurn | None:
    """The last message, if the output continues it, as the field `continue_final_message` asks; else None. HTTPError:
    the field is set, but the last message is not the assistant's, or has tool calls."""
    if not body.continue_final_message:
        return None
    last = body.messages[-1] if body.messages else None
    if last is None or last.role != ASSISTANT or last.tool_calls:
        text = "continue_final_message needs a last message of the assistant, without calls"
        raise HTTPError(400, text, param="continue_final_message")
    return last


def tools_of(body: ChatRequest) -> wire.Tools | None:
    """The tools of the gen; None: the model may call none. HTTPError: the tools or the choice are invalid."""
    tools, choice = body.tools, body.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise HTTPError(400, "tool_choice needs tools", param="tool_choice")
        return None
    if choice == "none":
        return None
    if len(tools) > MAX_TOOLS:
        raise HTTPError(400, f"there are {len(tools)} tools; at most {MAX_TOOLS} are allowed", param="tools")
    only, must_call, named = "", choice == "required", {tool.function.name for tool in tools}
    if len(named) < len(tools):
        names = [tool.function.name for tool in tools]
        twice = next(k for k, name in enumerate(names) if name in names[:k])
        raise HTTPError(400, f"an earlier tool has the name {names[twice]!r} too", param=f"tools[{twice}]")
    match choice:
        case NamedTool(function=function):
            only, must_call, named = function.name, True, {function.name}
        case AllowedTools(allowed_tools=allowed):
            must_call, named = allowed.mode == "required", {tool.function.name for tool in allowed.tools}
            tools = [tool for tool in tools if tool.function.name in named]
    if not named or not named <= {tool.function.name for tool in tools}:
        raise HTTPError(
            400, f"tool_choice names {sorted(named)}, but not all of these are in tools", param="tool_choice"
        )
    specs = tuple(_spec(tool, k) for k, tool in enumerate(tools))
    is_strict = any(tool.function.strict for tool in tools if only in ("", tool.function.name))
    one_call = body.parallel_tool_calls is False
    return wire.Tools(specs, 0, ends_turn=True, must_call=must_call, only=only, one_call=one_call, is_strict=is_strict)


def _spec(tool: ToolSpec, k: int) -> str:
    parameters = tool.function.parameters or {"properties": {}}
    if parameters.get("type", "object") != "object":
        text = f"the parameters must have the type 'object', not {str(parameters['type'])[:80]!r}"
        raise HTTPError(400, text, param=f"tools[{k}]")
    function: dict[str, Any] = {
        "name": tool.function.name,
        "description": tool.function.description or "",
        "parameters": {"type": "object"} | parameters,
    }
    text = msgspec.json.encode({"type": "function", "function": function}).decode()
    if len(text) > MAX_SPEC:
        raise HTTPError(
            400, f"the tool takes {len(text)} characters; at most {MAX_SPEC} are allowed", param=f"tools[{k}]"
        )
    return text


def template_kwargs(chat: wire.ChatMarkers, given: dict[str, Any] | None, effort: str | None) -> str:
    """Encode the variables for the chat template as JSON; "": there are none. given: the request's own variables.
    effort: the effort of the reasoning, added if the template reads it. HTTPError: they are too long."""
    found = {"reasoning_effort": effort} if effort is not None and chat.reads_effort else {}
    found |= given or {}
    text = msgspec.json.encode(found).decode() if found else ""
    if len(text) > MAX_TEMPLATE_KWARGS:
        reason = f"chat_template_kwargs takes {len(text)} characters; at most {MAX_TEMPLATE_KWARGS} are allowed"
        raise HTTPError(400, reason, param="chat_template_kwargs")
    return text


def check_copies(gen: wire.Gen, n: int) -> None:
    """Limit the size of a request for `n` outputs: each output needs a copy of the options in `gen`. HTTPError: the
    copies together take more bytes than a body may."""
    if n == 1:
        return
    try:
        n_bytes = n * len(wire.encode(gen))
    except (OverflowError, UnicodeEncodeError):
        return  # the client will raise an error that says what is wrong
    if n_bytes > MAX_BODY:
        text = f"the options of {n} outputs take {n_bytes} bytes; at most {MAX_BODY} are allowed. Ask for fewer outputs"
        raise HTTPError(400, text, param="n")


def gens(gen: wire.Gen, n: int, child: int = 1) -> list[wire.Op]:
    """Make the ops for `n` outputs of `gen`. The refs of their values are gen.ref, gen.ref + 1, ... If n > 1, each
    output gets its own forked state, numbered from `child`, so that all of them can stream."""
    if n == 1:
        return [gen]
    children = tuple(range(child, child + n))
    ops: list[wire.Op] = [wire.Fork(gen.state, children)]
    for k, state in enumerate(children):
        seed = gen.sampling.seed
        if seed is not None:
            seed = (seed + k + 2**63) % 2**64 - 2**63  # wraps to the 64 bits of the message's field
        sampling = replace(gen.sampling, seed=seed)
        ops.append(replace(gen, state=state, ref=gen.ref + k, sampling=sampling))
    return ops


def limits_of(request: HTTPRequest, body: SamplingFields) -> wire.ProgramLimits | None:
    """The limits of a program; None: it has none. If the server isolates users, all fields about the end user become
    part of the salt."""
    salt = body.cache_salt or ""
    if request.gateway.isolates_users:
        given = [salt, *(getattr(body, name, None) or "" for name in USERS)]
        # a digest, so that different users have different salts, and a user may be long
        salt = blake2b(msgspec.json.encode(given), digest_size=32).hexdigest() if any(given) else ""
    if not body.priority and not salt:
        return None
    return wire.ProgramLimits(priority=body.priority or 0, salt=salt)
