"""Size limits of constraints. The server checks them before anything parses the text."""

from __future__ import annotations

import json
import math

from banyan.runtime.errors import ConstraintSyntax, ConstraintTooLarge
from banyan.runtime.protocol.wire import ConstraintSpec

REGEX = 8 << 10
CHOICES = 10_000
TRIGGERS, TRIGGER, END = 16, 256, 1024


def json_decoder(what: str) -> json.JSONDecoder:
    """Returns a decoder that raises ConstraintSyntax at NaN and Infinity, and ConstraintTooLarge at a number beyond the
    largest float, because the compilers cannot read such numbers. what: names the text in errors."""

    def refuse(name: str) -> None:
        raise ConstraintSyntax(f"{what} is not valid JSON: it contains {name}")

    def number(digits: str) -> float:
        if math.isinf(value := float(digits)):
            raise ConstraintTooLarge(f"{what} contains {digits[:40]}, which is too large for a number")
        return value

    def integer(digits: str) -> int:
        number(digits)
        return int(digits)

    return json.JSONDecoder(parse_constant=refuse, parse_float=number, parse_int=integer)


def check_size(spec: ConstraintSpec, limit: int) -> None:
    """Raise ConstraintTooLarge if a part of a constraint is too long. The limits are `limit` bytes for `spec.text` (for
    a regex, also REGEX bytes), TRIGGERS strings in `after`, TRIGGER characters in `since` and in each string of
    `after`, and END characters in `end`."""
    n_bytes = len(spec.text.encode("utf-8", "surrogatepass"))
    what = {"json_schema": "the schema", "choices": "the list of choices"}.get(spec.kind, f"the {spec.kind}")
    for name, size, limit_, unit in (
        (what, n_bytes, min(limit, REGEX) if spec.kind == "regex" else limit, "bytes"),
        ("`after`", len(spec.after), TRIGGERS, "strings"),
        ("a string of `after`", max(map(len, spec.after), default=0), TRIGGER, "characters"),
        ("`end`", len(spec.end), END, "characters"),
        ("`since`", len(spec.since), TRIGGER, "characters"),
    ):
        if size > limit_:
            raise ConstraintTooLarge(f"{name} has {size} {unit}; the limit is {limit_}")
