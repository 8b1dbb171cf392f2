"""Decodes the bodies of requests. An invalid body gives an error that names the field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from banyan.runtime.gateway.errors import HTTPError

T = TypeVar("T")

_UNKNOWN = re.compile(r"unknown field `(.*?)`", re.DOTALL)
_MISSING = re.compile(r"required field `(.*?)`", re.DOTALL)
_WHERE = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(body: bytes, kind: type[T]) -> T:
    """Decode a JSON body into a Struct of the type `kind`. HTTPError 400: the body is not JSON, or does not fit the
    type; the error names the field."""
    try:
        found: T = _decoder(kind).decode(body)  # type: ignore[arg-type]
    except msgspec.ValidationError as e:
        matched = _WHERE.match(str(e))
        text, at = (matched[1], matched[2] or "") if matched else (str(e), "")
        for pattern in (_UNKNOWN, _MISSING):
            if named := pattern.search(text):
                at = f"{at}.{named[1]}" if at else named[1]
        raise HTTPError(400, text[:500], param=at[:200] or None) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as e:
        reason = "it is nested too deeply" if isinstance(e, RecursionError) else str(e)[:200]
        raise HTTPError(400, f"the body is not valid JSON: {reason}") from None
    return found


def ignored(body: msgspec.Struct, names: Sequence[str]) -> dict[str, str]:
    """The header x-banyan-ignored, which tells the client which fields in its body have no effect; {}: the body sets no
    such field. names: all fields without effect; a dot separates a field from its parent."""
    given = [name for name in names if _has(body, name.split("."))]
    return {"x-banyan-ignored": ", ".join(given)} if given else {}


def _has(value: Any, path: list[str]) -> bool:
    if isinstance(value, list):
        return any(_has(one, path) for one in value)
    return _has(getattr(value, path[0], None), path[1:]) if path else value is not None
