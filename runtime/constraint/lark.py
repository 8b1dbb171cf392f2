"""Checks Lark grammars that users write, and finds the JSON schemas in them (`%json {...}`). Grammars in GBNF are
translated to Lark first.

A grammar must not name special tokens, set options or attributes of llguidance, or refer to another grammar.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from banyan.runtime.constraint.limits import json_decoder
from banyan.runtime.errors import ConstraintSyntax, ConstraintUnsupported

_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"?|/(?![/*])(?:\\.|[^/\\])+/?|//[^\n]*|#[^\n]*|%json\b', re.DOTALL)
"""llguidance refuses a literal without an end. It is matched too, so that the text after it is searched only once."""
_ATTRIBUTE = re.compile(r"\[\s*(\w+)\b[^\]\[:|]*\]\s*(?:\.\d+\s*)?:")
_GBNF = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)  # \s* would read the blank lines after each one
_IN_GBNF = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^]\\])*\]?|((?:\s|#[^\n]*)+)', re.DOTALL)
"""A string, a class, or (group 1) the space between two symbols."""
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_OPTIONS = "%llguidance {}"  # the translator begins with it; it sets nothing
_DIRECTIVE = re.compile(r"%(?!ignore\b|import\s+common\s*[.(])\w*[^\n]{0,20}")


def from_gbnf(text: str) -> str:
    """Translate a grammar from GBNF, the EBNF of llama.cpp, vLLM and SGLang, to Lark; other grammars are returned as
    they are. Raises ConstraintSyntax if the grammar cannot be translated."""
    if not _GBNF.search(text):
        return text
    try:
        translated: str = gbnf_to_lark(_IN_GBNF.sub(_simpler, text))
    except MemoryError:
        raise
    except Exception as e:  # the translator raises plain exceptions
        why = "it is nested too deeply" if isinstance(e, RecursionError) else str(e)[:200]
        raise ConstraintSyntax(f"invalid grammar in GBNF: {why}") from None
    return translated.removeprefix(_OPTIONS)


def _simpler(piece: re.Match[str]) -> str:
    """Rewrite a piece of GBNF for the translator, which accepts a | between two lines only at the end of the first."""
    if piece[1] is None:
        return _ESCAPE.sub(_plain, piece[0])
    return " " if piece.string.startswith("|", piece.end()) else piece[0]


def _plain(escape: re.Match[str]) -> str:
    """Rewrite an escape in GBNF for the translator, which drops the leading zeros of \\uXXXX and \\UXXXXXXXX.
    Raises ValueError if there is no such character."""
    if not (digits := escape[1] or escape[2]):
        return escape[0]
    try:
        char = int(digits, 16).to_bytes(4).decode("utf-32-be")
    except UnicodeDecodeError:
        why = f"{escape[0]} is no character; write one beyond \\uffff as \\UXXXXXXXX, not as a pair of surrogates"
        raise ValueError(why) from None
    return f"\\x{ord(char):02x}" if char.isascii() else char


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
            "invalid grammar: write rules as name ::= ... (GBNF, without angle brackets; the first rule is called "
            "root), or as name: ... (Lark; the first rule is called start)"
        )
    if "<" in rules:
        raise ConstraintUnsupported("special tokens are not allowed in a grammar: write their text as a string")
    if found := _DIRECTIVE.search(rules):
        raise ConstraintUnsupported(f"{found[0].strip()!r} is not allowed in a grammar")
    if found := _ATTRIBUTE.search(rules):
        raise ConstraintUnsupported(f"attributes such as [{found[1]}] are not allowed in a grammar")
    if found := re.search(r"@\w+", rules):
        raise ConstraintUnsupported(f"{found[0]!r} is not allowed in a grammar: there is no other grammar")
