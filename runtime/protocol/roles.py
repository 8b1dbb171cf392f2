"""Checks the names of roles, and of tools in a conversation. A chat template writes the names beside its control
tokens, so a name must be short, and must not be able to spell a control token."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol.wire import WireToolCall

ASSISTANT = "assistant"
_TOOL = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_ID = re.compile(r"[0-9]{9}")
_ROLE = re.compile(r"[A-Za-z0-9_ .-]{1,64}")


def check_role(name: object) -> None:
    """Check that the name of a role consists of 1 to 64 letters, digits, spaces and characters of "_.-". BadProgram: it
    does not."""
    if not isinstance(name, str) or len(name) > 64 or not _is_role(name):
        raise BadProgram(
            "a role must be a name of 1 to 64 letters, digits, spaces and `_.-`, such as 'tool', not "
            f"{str(name)[:80]!r}"
        )


@lru_cache(maxsize=1024)
def _is_role(name: str) -> bool:
    return _ROLE.fullmatch(name) is not None


def check_calls(calls: Iterable[WireToolCall]) -> None:
    """Check the tool calls of an earlier turn. BadProgram: a call has an invalid id or name."""
    for call in calls:
        if not _ID.fullmatch(call.id):
            raise BadProgram(f"the id of a call must have nine digits, but it is {call.id[:80]!r}")
        if not _TOOL.fullmatch(call.name):
            raise BadProgram(f"a tool's name must have 1 to 128 letters, digits and `_.-`, not be {call.name[:80]!r}")


def read_arguments(call: WireToolCall) -> dict[str, Any]:
    """The arguments of a tool call in an earlier turn. BadProgram: they are not a JSON object."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise BadProgram(f"the arguments of a call must be a JSON object, not {call.arguments[:80]!r}")
    return arguments
