"""Checks a user's constraint and rewrites it into the form that the compilers take."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from banyan.runtime.constraint import lark
from banyan.runtime.constraint.limits import CHOICES, json_decoder
from banyan.runtime.constraint.schema.rewrite import rewrite
from banyan.runtime.errors import ConstraintSyntax, ConstraintTooLarge, ConstraintUnsupported
from banyan.runtime.protocol.wire import ConstraintSpec


def canonical(spec: ConstraintSpec, is_loose: bool = False) -> ConstraintSpec:
    """Returns the spec, ready to be compiled: schemas, choices and grammars are parsed and written again, so that the
    compiler cannot misread them.

    is_loose: if the client checks the value, leave out all keywords of a JSON Schema that may be costly.
    Raises a ConstraintError that names what is wrong.
    """
    if not all(spec.after):
        raise ConstraintSyntax("a string of `after` is empty; the constraint would begin before any text")
    if spec.scope != "must" and not spec.after:
        raise ConstraintSyntax(f'scope "{spec.scope}" needs a trigger in `after`')
    if spec.since and not spec.after:
        raise ConstraintSyntax("`since` needs a trigger in `after`")
    if spec.engine == "outlines_core" and (spec.kind not in ("regex", "choices") or spec.after or spec.end):
        raise ConstraintUnsupported("engine outlines_core takes regexes and choices only, without a trigger or an end")
    match spec.kind:
        case "json_schema":
            text = json.dumps(_schema(_json(spec.text, "the schema"), spec, is_loose), ensure_ascii=False)
        case "choices":
            text = json.dumps(_choices(spec.text), ensure_ascii=False)
        case "grammar":
            parts = lark.split(lark.from_gbnf(spec.text))
            text = lark.join([part if isinstance(part, str) else _schema(part, spec, is_loose) for part in parts])
        case "regex":
            text = spec.text
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConstraintSyntax("the constraint contains a lone surrogate; no output can contain one") from None
    return msgspec.structs.replace(spec, text=text)


def _json(text: str, what: str) -> Any:
    try:
        return json_decoder(what).decode(text)
    except json.JSONDecodeError as e:
        raise ConstraintSyntax(f"{what} is not valid JSON: {e.msg} (line {e.lineno}, column {e.colno})") from None
    except RecursionError:
        raise ConstraintTooLarge(f"{what} is nested too deeply") from None


def _choices(text: str) -> list[str]:
    choices = _json(text, "the list of choices")
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise ConstraintSyntax("choices must be a JSON list of strings")
    if not choices:
        raise ConstraintSyntax("the list of choices is empty; it needs at least one")
    if len(choices) > CHOICES:
        raise ConstraintTooLarge(f"there are {len(choices)} choices; the limit is {CHOICES}")
    return list(dict.fromkeys(choices))


def _schema(schema: Any, spec: ConstraintSpec, is_loose: bool) -> dict[str, Any]:
    if not isinstance(schema, dict | bool):
        raise ConstraintSyntax("a JSON Schema must be an object, or true or false")
    return rewrite(schema, spec.order, spec.is_checked, spec.is_checked and is_loose)
