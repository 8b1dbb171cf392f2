"""Why a constraint cannot be used, in the words of the one who wrote it, from what the compiler said."""

from __future__ import annotations

import re

from banyan.runtime.errors import (
    ConstraintCrashed,
    ConstraintError,
    ConstraintSyntax,
    ConstraintTooLarge,
    ConstraintUnsatisfiable,
    ConstraintUnsupported,
)
from banyan.runtime.protocol.wire import ConstraintSpec

_NAMES = {"regex": "regex", "json_schema": "JSON Schema", "grammar": "grammar", "choices": "list of choices"}
_MOST = 200  # characters that are echoed


def explain(said: str, spec: ConstraintSpec) -> ConstraintError:
    """The error for what llguidance said about a spec."""
    name, first = _NAMES[spec.kind], said.partition("\n")[0].strip()
    if first.startswith("panic: "):  # llguidance catches those of its matchers by itself
        return ConstraintCrashed(f"the {name} could not be compiled: its compiler panicked: {first[7:][:_MOST]}")
    if re.search(r"look-?(around|ahead|behind)|backreference", said):
        return ConstraintUnsupported(
            r"regex look-around, back-references, \b, and ^ or $ in the middle of a pattern are not supported"
            + _pattern(said)
        )
    if "regex parse error" in said:
        reason = re.search(r"^error: (.*)", said, re.MULTILINE)
        return ConstraintSyntax(f"invalid regex: {reason[1] if reason else first}{_pattern(said)}")
    if first.startswith("Unsatisfiable"):
        why = first.partition(": ")[2]
        if why.startswith("Regex is empty"):
            why = "pattern, format, lengths and values of a string leave none"
        return ConstraintUnsatisfiable(f"no value can satisfy the constraint: {why[:_MOST]}")
    if first == "NoExtensionBias":
        return ConstraintSyntax(f"invalid {name}: a rule leads to nothing but itself")
    if found := re.match(r"patternProperty regexes (.*) are not disjoint", first):
        why = f"patterns of patternProperties that may match the same name ({found[1][:_MOST]})"
        return ConstraintUnsupported(f"{why} are not supported")
    if found := re.match(r"(?:Unimplemented keys?|Unknown format): (.*)", first):
        return ConstraintUnsupported(f"{found[1][:_MOST]} is not supported in a JSON Schema")
    if re.search(r"only supported|not supported|unsupported|Failed to generate", first):
        return ConstraintUnsupported(f"the {name} cannot be enforced: {first[:_MOST]}")
    if re.search(r"too (many|large|complex|big)|limit|fuel|exceed", first):
        return ConstraintTooLarge(f"the {name} is too complex: {first[:_MOST]}")
    return ConstraintSyntax(f"invalid {name}: {first[:_MOST]}")


def _pattern(said: str) -> str:
    """Where in which pattern; the compiler shows both, one under the other."""
    if found := re.search(r"regex parse error:\n( +)(\S.*)\n( +)\^", said):
        return f" at offset {len(found[3]) - len(found[1])} of {found[2][:_MOST]!r}"
    if found := re.search(r"in regex /(.*)/", said):
        return f" ({found[1][:_MOST]!r})"
    return ""
