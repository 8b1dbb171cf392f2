"""Decodes the bodies of requests. An invalid body gives an error that names the field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from banyan.runtime.gateway.errors import HTTPError

T = TypeVar("T")

NO_OPS: dict[str, Any] = {
    "n": 1, "best_of": 1, "use_beam_search": False, "length_penalty": 1, "include_stop_str_in_output": False,
    "echo": False, "add_generation_prompt": True, "mcp_servers": [], "defer_loading": False, "disable_fallback": False,
    "disable_any_whitespace": False, "disable_additional_properties": False, "functions": [], "function_call": "none",
    "documents": [], "detokenize": True, "spaces_between_special_tokens": True, "include_reasoning": True,
    "return_token_ids": False, "return_tokens_as_token_ids": False, "return_token_strs": False,
}  # fmt: skip
"""Fields of other servers that are not supported here -> the value with which they have no effect."""

MAX_PRUNED = 256 << 10
"""The longest body, in bytes, in which such fields are looked for. No other request is served meanwhile, and a body of
small objects takes tens of milliseconds."""

_UNKNOWN = re.compile(r"unknown field `(.*?)`", re.DOTALL)
_MISSING = re.compile(r"required field `(.*?)`", re.DOTALL)
_WHERE = re.compile(r"^(.*?)(?: - at (?:`key` in )?`\$\.?(.*?)(?:\[\.\.\.\])*`)?$", re.DOTALL)


def decode(body: bytes, kind: type[T]) -> T:
    """Decode a JSON body into a Struct of the type `kind`. Unknown fields are dropped if they are null or request
    the default behaviour (NO_OPS). HTTPError 400: the body is not JSON, or does not fit the type; the error names the
    field."""
    data: Any = None  # the body as plain data, if it has such fields
    try:
        while True:  # once for each place in `kind` that has them
            try:
                if data is None:
                    return msgspec.json.decode(body, type=kind)
                return msgspec.convert(data, kind, str_keys=True)
            except msgspec.ValidationError as e:
                text, at = _parsed(e)
            if not _UNKNOWN.search(text) or len(body) > MAX_PRUNED:
                break
            data = msgspec.json.decode(body) if data is None else data
            if not _prune(data, at):
                break
    except (msgspec.DecodeError, ValueError, RecursionError) as e:
        reason = "it is nested too deeply" if isinstance(e, RecursionError) else str(e)[:200]
        raise HTTPError(400, f"the body is not valid JSON: {reason}") from None
    if named := (_UNKNOWN.search(text) or _MISSING.search(text)):
        at = f"{at}.{named[1]}" if at else named[1]
    if _UNKNOWN.search(text) or text.startswith("Expected `null`,"):  # some fields may only be null
        text = f"`{at.rpartition('.')[2]}` is not supported"
    raise HTTPError(400, text[:500], param=at[:200] or None)


def _parsed(error: msgspec.ValidationError) -> tuple[str, str]:
    """Split the message of an error into its text and the path of the object or field."""
    matched = _WHERE.match(str(error))
    return (matched[1], matched[2] or "") if matched else (str(error), "")


def _prune(data: Any, at: str) -> bool:
    """Delete the fields that have no effect in the object at the path `at`, and in those beside it in lists. False:
    there were none."""
    is_changed = False
    for found in _objects(data, re.sub(r"\[\d+\]", "", at).split(".") if at else []):
        for name in [name for name, value in found.items() if value is None or NO_OPS.get(name) == value]:
            del found[name]
            is_changed = True
    return is_changed


def _objects(value: Any, path: list[str]) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for one in value:
            yield from _objects(one, path)
    elif isinstance(value, dict):
        if path:
            yield from _objects(value.get(path[0]), path[1:])
        else:
            yield value


def ignored(body: msgspec.Struct, names: Sequence[str]) -> dict[str, str]:
    """The header x-banyan-ignored, which tells the client which fields in its body have no effect; {}: the body sets no
    such field. names: all fields without effect; a dot separates a field from its parent."""
    given = [name for name in names if _has(body, name.split("."))]
    return {"x-banyan-ignored": ", ".join(given)} if given else {}


def _has(value: Any, path: list[str]) -> bool:
    if isinstance(value, list):
        return any(_has(one, path) for one in value)
    return _has(getattr(value, path[0], None), path[1:]) if path else value is not None
