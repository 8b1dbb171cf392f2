"""Validates a JSON Schema against the metaschema of its draft."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import urljoin

import jsonschema
from jsonschema_specifications import REGISTRY

from banyan.runtime.errors import ConstraintSyntax, ConstraintTooLarge

_ROOT_REFS = ("$dynamicRef", "$recursiveRef")
"""References that stand for the root of the metaschema."""


def check_form(schema: Any) -> None:
    """Validates a schema. Raises ConstraintSyntax that says what is wrong and where, or ConstraintTooLarge."""
    draft = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        if not _metaschema(draft).is_valid(schema):
            draft.check_schema(schema, format_checker=jsonschema.FormatChecker(formats=()))
    except jsonschema.SchemaError as e:
        path = "".join(f"/{part}" for part in e.absolute_path)
        why = f"{str(e.instance)[:80]!r} is not a type" if path.endswith("/type") else e.message[:200]
        raise ConstraintSyntax(f"invalid JSON Schema: {why} at {path or '/'}") from None
    except RecursionError:
        raise ConstraintTooLarge("the schema is nested too deeply") from None


@cache
def _metaschema(draft: Any) -> Any:
    """A validator for schemas of a draft.

    Newer metaschemas consist of several documents (vocabularies). They are merged into one here, because jsonschema
    resolves each reference between documents again and again, which takes six times as long.
    """
    whole = draft.META_SCHEMA
    parts = [REGISTRY.contents(urljoin(whole["$id"], part["$ref"])) for part in whole.get("allOf", ())]
    if not parts:
        return draft(whole)
    one = {"type": whole["type"], "properties": {}, "$defs": {}}
    for part in (*parts, whole):
        for key in ("properties", "$defs"):
            one[key] |= part.get(key, {})
    return draft(_localized(one))


def _localized(schema: Any) -> Any:
    """Return a part of a metaschema in which every reference points into the one merged document. Only a `$ref` whose
    value is a string is a reference; a property of that name has a schema as its value, and is kept."""
    if isinstance(schema, list):
        return [_localized(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, one in schema.items():
        if key in _ROOT_REFS and isinstance(one, str):
            out["$ref"] = "#"
        elif key == "$ref" and isinstance(one, str):
            out["$ref"] = one[one.index("#") :]
        else:
            out[key] = _localized(one)
    return out
