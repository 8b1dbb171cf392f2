"""Turns a request into a gen, for all chat endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from banyan.runtime.gateway.endpoint import HTTPRequest
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat_types import AllowedTools, ChatTurn, NamedTool, ToolChoice, ToolSpec
from banyan.runtime.gateway.prompt import contents
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.http_frames import MAX_BODY
from banyan.runtime.protocol.limits import MAX_NAME, MAX_SPEC, MAX_TEMPLATE_KWARGS, MAX_TOOLS
from banyan.runtime.protocol.roles import ASSISTANT


def chat_markers(request: HTTPRequest) -> wire.ChatMarkers:
    """The markers of the model's chat template. HTTPError: the model has none."""
    if (chat := request.client.welcome.chat) is None:
        text = f"{request.gateway.model} has no chat template; use /v1/completions"
        raise HTTPError(400, text, param="messages")
    return chat


def reasoning_end(chat: wire.ChatMarkers, begun: ChatTurn | None = None) -> str:
    """The mark that ends the reasoning, if the output begins inside the reasoning; else "". begun: the client's
    unfinished turn that the output continues; None: the output begins a new turn."""
    marks, opened = chat.reasoning, chat.roles.get(ASSISTANT, ("", ""))[0]
    if begun is not None:  # if text follows the start mark, the output counts as the answer, as on the server
        opened += "".join(part for part in contents(begun.content, "") if isinstance(part, str))
    return marks.end if marks is not None and opened.rstrip().endswith(marks.start) else ""


def tools_of(tools: Sequence[ToolSpec] | None, choice: ToolChoice, parallel: bool | None) -> wire.Tools | None:
    """The tools of a gen; None: it has none. Raises HTTPError."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise HTTPError(400, "tool_choice needs tools", param="tool_choice")
        return None
    if choice == "none":
        return None
    if len(tools) > MAX_TOOLS:
        raise HTTPError(400, f"there are {len(tools)} tools; at most {MAX_TOOLS} are allowed", param="tools")
    only, must_call, named = "", choice == "required", {tool.function.name for tool in tools}
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
    return wire.Tools(specs, 0, ends_turn=True, must_call=must_call, only=only, one_call=parallel is False)


def _spec(tool: ToolSpec, k: int) -> str:
    function: dict[str, Any] = {
        "name": tool.function.name,
        "description": tool.function.description or "",
        "parameters": tool.function.parameters or {"type": "object", "properties": {}},
    }
    text = msgspec.json.encode({"type": "function", "function": function}).decode()
    if len(text) > MAX_SPEC:
        raise HTTPError(
            400, f"the tool takes {len(text)} characters; at most {MAX_SPEC} are allowed", param=f"tools[{k}]"
        )
    return text


def template_kwargs(chat: wire.ChatMarkers, given: dict[str, Any] | None, effort: str | None) -> str:
    """The variables for the chat template: those that the request gives, and the effort of the reasoning if the
    template reads it. "": none. Raises HTTPError."""
    found = {"reasoning_effort": effort} if effort is not None and chat.reads_effort else {}
    found |= given or {}
    text = msgspec.json.encode(found).decode() if found else ""
    if len(text) > MAX_TEMPLATE_KWARGS:
        reason = f"chat_template_kwargs takes {len(text)} characters; at most {MAX_TEMPLATE_KWARGS} are allowed"
        raise HTTPError(400, reason, param="chat_template_kwargs")
    return text


def check_copies(gen: wire.Gen, n: int) -> None:
    """Check that the messages for `n` outputs of `gen`, each with a copy of its options, take no more bytes than a body
    may. HTTPError: they take more."""
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
    """The ops for `n` outputs of `gen`, whose values get the refs from `gen.ref` on. If n > 1, each output has a forked
    state (numbered from `child` on), so that all of them can stream."""
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


def limits_of(
    request: HTTPRequest, priority: int | None, salt: str | None, *users: str | None
) -> wire.ProgramLimits | None:
    """The limits of a program. salt: the salt that the client gave, if any. users: the request's fields about its end
    user; if users are isolated, the first one that is set becomes part of the salt."""
    if len(salt or "") > MAX_NAME:
        raise HTTPError(400, f"cache_salt has more than {MAX_NAME} characters", param="cache_salt")
    if request.gateway.isolates_users:
        pair = [salt or "", next(filter(None, users), "")]
        # a digest, so that different pairs have different salts, and a user may be long
        salt = blake2b(msgspec.json.encode(pair), digest_size=32).hexdigest() if any(pair) else ""
    if not priority and not salt:
        return None
    return wire.ProgramLimits(priority=priority or 0, salt=salt or "")
