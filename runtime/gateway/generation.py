"""From a request to a gen, for all endpoints that chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from banyan.runtime.gateway.endpoint import HTTPRequest
from banyan.runtime.gateway.errors import HTTPError
from banyan.runtime.gateway.openai.chat_types import AllowedTools, NamedTool, ToolChoice, ToolSpec
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_NAME, MAX_SPEC, MAX_TOOLS
from banyan.runtime.protocol.roles import ASSISTANT


def chat_markers(request: HTTPRequest) -> wire.ChatMarkers:
    """What the model's chat template writes. HTTPError: it has none."""
    if (chat := request.client.welcome.chat) is None:
        text = f"{request.gateway.model} has no chat template; use /v1/completions"
        raise HTTPError(400, text, param="messages")
    return chat


def reasoning_end(chat: wire.ChatMarkers) -> str:
    """What ends the reasoning, if each answer begins inside of it; "" else."""
    marks, opened = chat.reasoning, chat.roles.get(ASSISTANT, ("", ""))[0]
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
        raise HTTPError(400, f"there are {len(tools)} tools; {MAX_TOOLS} are the most", param="tools")
    only, must_call, named = "", choice == "required", {tool.function.name for tool in tools}
    match choice:
        case NamedTool(function=function):
            only, must_call, named = function.name, True, {function.name}
        case AllowedTools(allowed_tools=allowed):
            must_call, named = allowed.mode == "required", {tool.function.name for tool in allowed.tools}
            tools = [tool for tool in tools if tool.function.name in named]
    if not named or not named <= {tool.function.name for tool in tools}:
        raise HTTPError(400, f"tool_choice names {sorted(named)}, which are not all tools", param="tool_choice")
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
        raise HTTPError(400, f"the tool takes {len(text)} characters; {MAX_SPEC} are the most", param=f"tools[{k}]")
    return text


def gens(gen: wire.Gen, n: int, child: int = 1) -> list[wire.Op]:
    """`n` outputs of `gen`, as values from `gen.ref` on. Each is a branch, a state from `child` on, so that all of them
    stream."""
    if n == 1:
        return [gen]
    children = tuple(range(child, child + n))
    ops: list[wire.Op] = [wire.Fork(gen.state, children)]
    for k, state in enumerate(children):
        seed = gen.sampling.seed
        sampling = gen.sampling if seed is None else replace(gen.sampling, seed=seed + k)
        ops.append(replace(gen, state=state, ref=gen.ref + k, sampling=sampling))
    return ops


def limits_of(
    request: HTTPRequest, priority: int | None, salt: str | None, *users: str | None
) -> wire.ProgramLimits | None:
    """The limits of a program. salt: the one that the client gave. users: what the request says about its end user; if
    users are isolated, the first that is given becomes part of the salt."""
    if request.gateway.isolates_users:
        salt = "/".join(filter(None, (salt, next(filter(None, users), None))))
    if not priority and not salt:
        return None
    if len(salt or "") > MAX_NAME:
        raise HTTPError(400, f"the name has more than {MAX_NAME} characters", param="cache_salt")
    return wire.ProgramLimits(priority=priority or 0, salt=salt or "")
