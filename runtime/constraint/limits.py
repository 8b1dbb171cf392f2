"""Size limits of constraints. The server checks them before anything parses the text."""

from __future__ import annotations

from banyan.runtime.errors import ConstraintTooLarge
from banyan.runtime.protocol.wire import ConstraintSpec

REGEX = 8 << 10
CHOICES = 10_000
TRIGGERS, TRIGGER, END = 16, 256, 1024


def check_size(spec: ConstraintSpec, limit: int) -> None:
    """Raises ConstraintTooLarge if `spec.text` has more than `limit` bytes (a regex: the smaller of `limit` and REGEX),
    or if `after`, `end` or `since` exceeds TRIGGERS, TRIGGER or END."""
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
