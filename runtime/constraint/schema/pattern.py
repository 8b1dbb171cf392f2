"""Translates patterns of JSON Schema (ECMA-262) into the compiler's regex syntax (Rust's), where the two differ.

Inside a character class, `[`, `&&`, `--` and `~~` are plain characters in ECMA-262 and operators in Rust. And a class
that contains all 32 control characters would let the compiler (llguidance 1.9.1) write any escape inside a JSON string,
even those of `"` and `\\` if the class excludes them: so U+0000 is removed from every class in brackets. Classes with
`\\s` or `\\S` also lose U+001C to U+001F, on which validators disagree.
"""

from __future__ import annotations

import re

from banyan.runtime.errors import ConstraintSyntax, ConstraintUnsupported

_ESCAPE = re.compile(r"\\(?:[pP](?:\{[^}]*\}|.)|x(?:\{[^}]*\}|..)|u(?:\{[^}]*\}|....)|c.|.)", re.DOTALL)
_NUL = re.compile(r"\\(?:x(?:00|\{0+\})|u(?:0000|\{0+\})|0|c@)|\0")
_SPECIAL = frozenset("[]&~^-\\")


def to_rust(pattern: str) -> str:
    """Translate a pattern of JSON Schema (ECMA-262) into Rust's regex syntax. Raises ConstraintUnsupported if the
    pattern contains U+0000, and ConstraintSyntax if a class or an escape is incomplete. The compiler reports other
    errors."""
    out, at = [], 0
    while at < len(pattern):
        if pattern[at] == "[":
            written, at = _class(pattern, at)
        elif pattern[at] == "\\":
            written, at = _escape(pattern, at)
            if written[1] in "pPS":
                written = f"[{written}&&[^{_removed(written)}]]"
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
    """Translate the character class that begins at index `start` of the pattern. Returns the Rust text, and the index
    after the class."""
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
    body = f"[^{''.join(items)}]" if negated else "".join(items)
    if not items:  # in ECMA-262, [^] matches anything and [] nothing
        body = "\\s\\S" if negated else "\\s&&\\S"
    return f"[{body}&&[^{_removed(body)}]]", at + 1


def _removed(body: str) -> str:
    """The characters to remove from a class whose content is `body`."""
    return "\\x00\\x1c-\\x1f" if re.search(r"\\[sS]", body) else "\\x00"


def _atom(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at] == "\\":
        return _escape(pattern, at)
    return f"\\{pattern[at]}" if pattern[at] in _SPECIAL else pattern[at], at + 1
