"""User-written Lark grammars: what they hold besides rules, and what they must not hold.

A grammar may not name special tokens, set llguidance's options and attributes, or reach for another grammar. It may
hold JSON schemas (`%json {...}`), which are schemas like any other.
"""

from __future__ import annotations

import json
import re
from typing import Any

from banyan.runtime.errors import ConstraintSyntax, ConstraintUnsupported

_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?![/*])(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*|%json\b', re.DOTALL)
_ATTRIBUTE = re.compile(r"\[\s*(\w+)\b[^\]\[:|]*\]\s*(?:\.\d+\s*)?:")
_DIRECTIVE = re.compile(r"%(?!ignore\b|import\s+common\.)\w*[^\n]{0,20}")


def split(text: str) -> list[str | dict[str, Any]]:
    """The grammar's text, and where `%json` stands, the schema behind it. Raises for what may not stand there."""
    parts: list[str | dict[str, Any]] = []
    bare: list[str] = []  # the text without its literals
    at = kept = 0
    while (found := _LITERAL.search(text, at)) is not None:
        bare += [text[at : found.start()], " "]
        at = found.end()
        if found[0] == "%json":
            schema, at = _schema_at(text, at)
            parts += [text[kept : found.end()], schema]
            kept = at
    parts.append(text[kept:])
    _check("".join([*bare, text[at:]]))
    return parts


def join(parts: list[str | dict[str, Any]]) -> str:
    """The text of a grammar that was split."""
    return "".join(part if isinstance(part, str) else f" {json.dumps(part)} " for part in parts)


def _schema_at(text: str, at: int) -> tuple[dict[str, Any], int]:
    at += len(text[at:]) - len(text[at:].lstrip())
    try:
        schema, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError) as e:
        raise ConstraintSyntax(f"invalid grammar: what follows %json is not valid JSON: {str(e)[:100]}") from None
    if not isinstance(schema, dict):
        raise ConstraintSyntax("invalid grammar: what follows %json must be a JSON object")
    return schema, end


def _check(bare: str) -> None:
    if "<" in bare:
        raise ConstraintUnsupported("special tokens are not allowed in a grammar: write what they spell as a string")
    if found := _DIRECTIVE.search(bare):
        raise ConstraintUnsupported(f"{found[0].strip()!r} is not allowed in a grammar")
    if found := _ATTRIBUTE.search(bare):
        raise ConstraintUnsupported(f"attributes such as [{found[1]}] are not allowed in a grammar")
    if found := re.search(r"@\w+", bare):
        raise ConstraintUnsupported(f"{found[0]!r} is not allowed in a grammar: there is no other grammar")
