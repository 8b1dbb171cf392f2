"""Finds schemas that no finite value can satisfy, because each value must contain another value of the same schema."""

from __future__ import annotations

from typing import Any

from banyan.runtime.constraint.schema.read import Schema, target_name
from banyan.runtime.errors import ConstraintUnsatisfiable


def check_finite(root: dict[str, Any], defs: dict[str, Schema]) -> None:
    """Raises ConstraintUnsatisfiable for a schema that no finite value satisfies. Not every such schema is found."""
    finite = set[str]()  # names of definitions that have a finite value
    while more := {name for name, one in defs.items() if name not in finite and _is_finite(one, finite)}:
        finite |= more
    if not _is_finite(root, finite):
        raise ConstraintUnsatisfiable(
            "no value can satisfy the constraint within limits: the schema requires itself, so a value would never end"
        )


def _is_finite(schema: Schema, finite: set[str]) -> bool:
    """Whether some finite value satisfies a schema, if each definition named in `finite` has a finite value. True if
    unknown."""
    if isinstance(schema, bool):
        return True
    if "$ref" in schema and target_name(schema["$ref"]) not in finite:
        return False
    if not all(_is_finite(one, finite) for one in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(_is_finite(one, finite) for one in schema["anyOf"]):
        return False
    if schema.get("type") == "object":
        held = (schema.get("properties", {}).get(name, True) for name in schema.get("required", ()))
        return all(_is_finite(one, finite) for one in held)
    if schema.get("type") == "array" and (n := schema.get("minItems", 0)):
        before = schema.get("prefixItems", [])
        return all(_is_finite(one, finite) for one in [*before[:n], *[schema.get("items", True)] * (n > len(before))])
    return True
