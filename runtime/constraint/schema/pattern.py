"""Patterns of JSON Schema (ECMA-262) in the compiler's regex syntax (Rust's), where the two differ.

Inside a class, `[`, `&&`, `--` and `~~` are plain characters in the one and operators in the other. And a class that
holds all 32 control characters would let the compiler (llguidance 1.9.1) write any escape inside a JSON string, also
those of `"` and `\\` where the class leaves them out: so every class loses U+0000, which no text needs. Classes with
`\\s` lose U+001C to U+001F as well, which validators do not agree on.
"""

from __future__ import annotations

import re

from banyan.runtime.errors import ConstraintSyntax, ConstraintUnsupported

_ESCAPE = re.compile(r"\\(?:[pP](?:\{[^}]*\}|.)|x(?:\{[^}]*\}|..)|u(?:\{[^}]*\}|....)|c.|.)", re.DOTALL)
_NUL = re.compile(r"\\(?:x(?:00|\{0+\})|u(?:0000|\{0+\})|0|c@)|\0")
_SPECIAL = frozenset("[]&~^-\\")


def tame(pattern: str) -> str:
    """The pattern, to be compiled. What is wrong with it besides is left for the compiler to say."""
    out, at = [], 0
    while at < len(pattern):
        if pattern[at] == "[":
            written, at = _class(pattern, at)
        elif pattern[at] == "\\":
            written, at = _escape(pattern, at)
            if written[1] in "pPS":
                written = f"[{written}&&[^{_lost(written)}]]"
        else:
            written, at = pattern[at], at + 1
        if _NUL.fullmatch(written):
            raise ConstraintUnsupported(f"U+0000 in a pattern is not supported ({pattern[:200]!r})")
        out.append(written)
    return "".join(out)


def _escape(pattern: str, at: int) -> tuple[str, int]:
    found = _ESCAPE.match(pattern, at)
    if found is None:
        raise ConstraintSyntax(f"invalid regex: a lone backslash at the end of {pattern[:200]!r}")
    return found[0], found.end()


def _class(pattern: str, start: int) -> tuple[str, int]:
    """The class that begins at `start`, and where it ends."""
    at, negated = start + 1, pattern[start + 1 : start + 2] == "^"
    at += negated
    items: list[str] = []
    while True:
        if at >= len(pattern):
            raise ConstraintSyntax(f"invalid regex: unclosed character class at offset {start} of {pattern[:200]!r}")
        if pattern[at] == "]":
            break
        item, at = _atom(pattern, at)
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
            end, at = _atom(pattern, at + 1)
            item = f"{item}-{end}"
        items.append(item)
    body = "".join(items) or ("\\s&&\\S" if not negated else "")
    if negated:  # in ECMA-262, [^] is anything, and [] nothing
        body = f"[^{body}]" if items else "\\s\\S"
    return f"[{body}&&[^{_lost(body)}]]", at + 1


def _lost(body: str) -> str:
    return "\\x00\\x1c-\\x1f" if re.search(r"\\[sS]", body) else "\\x00"


def _atom(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at] == "\\":
        return _escape(pattern, at)
    return f"\\{pattern[at]}" if pattern[at] in _SPECIAL else pattern[at], at + 1


_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])"
_DATE = f"(?:{_YEAR}-(?:{_DAY})|{_LEAP}-02-29)"
_TIME = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
_ZONE = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
FORMATS = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}[Tt]{_TIME}{_ZONE}$"}
"""Formats that the compiler takes too wide: in its calendar every year has a 29th of February."""
