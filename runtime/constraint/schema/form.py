"""Whether a JSON Schema is one, by the metaschema of its draft."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import urljoin

import jsonschema
from jsonschema_specifications import REGISTRY

from banyan.runtime.errors import ConstraintSyntax, ConstraintTooLarge

_TO_ITSELF = ("$dynamicRef", "$recursiveRef")
"""In the metaschemas: to whatever schema of schemas one begins with."""


def check_form(schema: Any) -> None:
    """Raises ConstraintSyntax with what is wrong, and where."""
    draft = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        if not _metaschema(draft).is_valid(schema):
            draft.check_schema(schema, format_checker=jsonschema.FormatChecker(formats=()))
    except jsonschema.SchemaError as e:
        path = "".join(f"/{part}" for part in e.absolute_path)
        why = f"{str(e.instance)[:80]!r} is no type" if path.endswith("/type") else e.message[:200]
        raise ConstraintSyntax(f"invalid JSON Schema: {why} at {path or '/'}") from None
    except RecursionError:
        raise ConstraintTooLarge("the schema is nested too deeply") from None


@cache
def _metaschema(draft: Any) -> Any:
    """A validator of schemas of a draft. Where its metaschema is put together of vocabularies, these are one document
    here: jsonschema looks up each reference between documents anew, and takes six times as long."""
    whole = draft.META_SCHEMA
    parts = [REGISTRY.contents(urljoin(whole["$id"], part["$ref"])) for part in whole.get("allOf", ())]
    if not parts:
        return draft(whole)
    one = {"type": whole["type"], "properties": {}, "$defs": {}}
    for part in (*parts, whole):
        for key in ("properties", "$defs"):
            one[key] |= part.get(key, {})
    return draft(_by_itself(one))


def _by_itself(schema: Any) -> Any:
    """A part of a metaschema, its references told within the one document. They are strings, as opposed to what stands
    under a property of the same name."""
    if isinstance(schema, list):
        return [_by_itself(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, one in schema.items():
        if key in _TO_ITSELF and isinstance(one, str):
            out["$ref"] = "#"
        elif key == "$ref" and isinstance(one, str):
            out["$ref"] = one[one.index("#") :]
        else:
            out[key] = _by_itself(one)
    return out
