"""Checks Lark grammars that users write, and finds the JSON schemas in them (`%json {...}`).

A grammar must not name special tokens, set options or attributes of llguidance, or refer to another grammar.
"""

from __future__ import annotations

import json
import re
from typing import Any

from banyan.runtime.constraint.limits import json_decoder
from banyan.runtime.errors import ConstraintSyntax, ConstraintUnsupported

_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?![/*])(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*|%json\b', re.DOTALL)
_ATTRIBUTE = re.compile(r"\[\s*(\w+)\b[^\]\[:|]*\]\s*(?:\.\d+\s*)?:")
_DIRECTIVE = re.compile(r"%(?!ignore\b|import\s+common\s*[.(])\w*[^\n]{0,20}")


def split(text: str) -> list[str | dict[str, Any]]:
    """Split a grammar into pieces of text and the JSON schemas between them. Raises ConstraintUnsupported or
    ConstraintSyntax if the grammar contains something that is not allowed."""
    parts: list[str | dict[str, Any]] = []
    rules: list[str] = []  # the text without literals and comments
    at = start = 0
    while (found := _LITERAL.search(text, at)) is not None:
        rules += [text[at : found.start()], " "]
        at = found.end()
        if found[0] == "%json":
            schema, at = _schema_at(text, at)
            parts += [text[start : found.end()], schema]
            start = at
    parts.append(text[start:])
    _check("".join([*rules, text[at:]]))
    return parts


def join(parts: list[str | dict[str, Any]]) -> str:
    """The inverse of `split`: the text of the grammar."""
    return "".join(part if isinstance(part, str) else f" {json.dumps(part)} " for part in parts)


def _schema_at(text: str, at: int) -> tuple[dict[str, Any], int]:
    at += len(text[at:]) - len(text[at:].lstrip())
    try:
        schema, end = json_decoder("invalid grammar: the text after %json").raw_decode(text, at)
    except (json.JSONDecodeError, RecursionError) as e:
        raise ConstraintSyntax(f"invalid grammar: the text after %json is not valid JSON: {str(e)[:100]}") from None
    if not isinstance(schema, dict):
        raise ConstraintSyntax("invalid grammar: the text after %json must be a JSON object")
    return schema, end


def _check(rules: str) -> None:
    if "::=" in rules:
        raise ConstraintSyntax(
            "invalid grammar: ::= is from EBNF or GBNF; in Lark, rules are written as name: ..., the first rule is "
            "called start, and a class of characters stands in a regex, such as /[0-9]+/"
        )
    if "<" in rules:
        raise ConstraintUnsupported("special tokens are not allowed in a grammar: write their text as a string")
    if found := _DIRECTIVE.search(rules):
        raise ConstraintUnsupported(f"{found[0].strip()!r} is not allowed in a grammar")
    if found := _ATTRIBUTE.search(rules):
        raise ConstraintUnsupported(f"attributes such as [{found[1]}] are not allowed in a grammar")
    if found := re.search(r"@\w+", rules):
        raise ConstraintUnsupported(f"{found[0]!r} is not allowed in a grammar: there is no other grammar")
