"""Sizes, which are looked at before anything reads a constraint."""

from __future__ import annotations

from banyan.runtime.errors import ConstraintTooLarge
from banyan.runtime.protocol.wire import ConstraintSpec

REGEX = 8 << 10
CHOICES = 10_000
TRIGGERS, TRIGGER, END = 16, 256, 1024


def check_size(spec: ConstraintSpec, limit: int) -> None:
    """Raises ConstraintTooLarge for text that nobody should begin to read. `limit` in bytes. Takes no time."""

    def need(what: str, size: int, most: int, unit: str = "bytes") -> None:
        if size > most:
            raise ConstraintTooLarge(f"{what} has {size} {unit}; the limit is {most}")

    text = len(spec.text.encode("utf-8", "surrogatepass"))
    names = {"json_schema": "the schema", "choices": "the list of choices"}
    need(names.get(spec.kind, f"the {spec.kind}"), text, limit)
    if spec.kind == "regex":
        need("the regex", text, REGEX)
    need("`after`", len(spec.after), TRIGGERS, "strings")
    need("a string of `after`", max(map(len, spec.after), default=0), TRIGGER, "characters")
    need("`end`", len(spec.end), END, "characters")
    need("`since`", len(spec.since), TRIGGER, "characters")
