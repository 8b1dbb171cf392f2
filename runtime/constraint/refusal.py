"""Why a constraint cannot be used, in the words of the one who wrote it."""

from __future__ import annotations

import re

from banyan.runtime.errors import (
    ConstraintError,
    ConstraintSyntax,
    ConstraintTooLarge,
    ConstraintUnsatisfiable,
    ConstraintUnsupported,
)
from banyan.runtime.wire import ConstraintSpec

_NAMES = {"regex": "regex", "json_schema": "JSON Schema", "grammar": "grammar", "choices": "choices"}


def explain(said: str, spec: ConstraintSpec) -> ConstraintError:
    """The error for what llguidance said about a spec."""
    name = _NAMES[spec.kind]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    first = lines[0] if lines else "no reason given"
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), first)[:200]
    if "look-around" in said or "backreference" in said or re.search(r"look.?(ahead|behind)", said):
        return ConstraintUnsupported(r"regex look-around, back-references and \b are not supported")
    if "regex parse error" in said:
        return ConstraintSyntax(f"invalid {name}: {reason}")
    if keys := re.search(r"[Uu]nimplemented keys?: \[?(.*?)\]?$", first):
        return ConstraintUnsupported(f"JSON Schema keyword {keys[1]} is not supported")
    if first.startswith("Unsatisfiable"):
        return ConstraintUnsatisfiable(f"no value can satisfy the constraint: {first.partition(': ')[2]}"[:300])
    if re.search(r"too (many|large|complex|big)|limit|fuel|exceed", said):
        return ConstraintTooLarge(f"the {name} is too complex: {reason}")
    if re.search(r"not supported|unsupported|[Uu]nknown format|cannot", said):
        return ConstraintUnsupported(f"the {name} cannot be enforced: {reason}")
    return ConstraintSyntax(f"invalid {name}: {reason}")
