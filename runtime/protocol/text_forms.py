"""The regexes of values that are written as text, for client and server: JSON Schema's formats, and the output types of
gens.

They match whole texts, and contain no anchors.
"""

from __future__ import annotations

import re
from typing import Any

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])"
DATE = f"(?:{_YEAR}-(?:{_DAY})|{_LEAP}-02-29)"
"""A day that exists, from year 1 to 9999."""
SECOND = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
"""Hours, minutes and whole seconds."""
ZONE = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
"""The offset from UTC."""


def time(has_zone: bool | None) -> str:
    """The regex of a time of day, to microseconds. has_zone: whether an offset from UTC follows; None: it may
    follow."""
    return f"{SECOND}(?:\\.[0-9]{{1,6}})?{'' if has_zone is False else ZONE if has_zone else f'(?:{ZONE})?'}"


def date_time(has_zone: bool | None) -> str:
    """The regex of a date, the letter T and a time of day. has_zone: whether an offset from UTC follows; None: it may
    follow."""
    return f"{DATE}T{time(has_zone)}"


_HOURS, _MINUTES, _SECONDS = "[0-9]{1,6}H", "[0-9]{1,6}M", "[0-9]{1,6}(?:\\.[0-9]{1,6})?S"
_CLOCK = f"T(?:{_HOURS}(?:{_MINUTES})?(?:{_SECONDS})?|{_MINUTES}(?:{_SECONDS})?|{_SECONDS})"
DURATION = f"-?P(?:[0-9]{{1,6}}D(?:{_CLOCK})?|{_CLOCK})"
"""A duration in days, hours, minutes and seconds. ISO 8601 also has years and months, whose length varies, and weeks,
which not all libraries read."""

_NUMBER = "(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?"
COMPLEX = f"-?{_NUMBER}(?:[+-]{_NUMBER}j|j)?"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_BYTE}(?:\\.{_BYTE}){{3}}"
_HEX = "[0-9a-f]"
_LABEL = "[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
WEB_HOST = f"(?:(?:{_LABEL}\\.)*[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*|{_IPV4})(?::[0-9]{{1,4}})?"
"""A host, and perhaps a port."""
URL_TAIL = r"(?:[/?#][!#-\[\]-~]*)?"
"""A path, a query and a fragment, of visible ASCII characters that need no escape in JSON."""


def base64(shortest: int = 0, longest: int | None = None) -> str:
    """The regex of the base64 encoding of `shortest` to `longest` bytes; None: no limit."""
    forms = []
    for n, rest in enumerate(("", "[A-Za-z0-9+/]{2}==", "[A-Za-z0-9+/]{3}=")):
        low = max(0, -((n - shortest) // 3))
        if longest is None or longest - n >= 3 * low:
            forms.append(f"(?:[A-Za-z0-9+/]{{4}}){{{low},{'' if longest is None else (longest - n) // 3}}}{rest}")
    return f"(?:{'|'.join(forms)})"


def decimal(max_digits: int | None = None, decimal_places: int | None = None) -> str:
    """The regex of a decimal number without exponent. max_digits: most digits, before and after the point together.
    decimal_places: most digits after the point. None: no limit."""
    if max_digits is None:
        return f"-?(?:0|[1-9][0-9]*){_fraction(decimal_places)}"
    whole = max_digits if decimal_places is None else max_digits - decimal_places
    fraction = _fraction(max_digits if decimal_places is None else decimal_places)
    forms = [f"0{fraction if whole else fraction.removesuffix('?')}"]  # pydantic counts the 0 of "0", and not of "0.5"
    for n in range(1, whole + 1):
        left = max_digits - n
        forms.append(f"[1-9][0-9]{{{n - 1}}}{_fraction(left if decimal_places is None else min(left, decimal_places))}")
    return f"-?(?:{'|'.join(forms)})"


def _fraction(longest: int | None) -> str:
    return "" if longest == 0 else f"(?:\\.[0-9]{{1,{'' if longest is None else longest}}})?"


def _uuid(version: str) -> str:
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}"


FORMATS = {
    "base64": base64(),
    "base64url": base64().replace("+/", "_-"),
    "decimal": decimal(),
    "duration": DURATION,
    "fraction": "-?[0-9]+/[1-9][0-9]*",
    **dict.fromkeys(("ipv4interface", "ipv4network"), f"{_IPV4}(?:/(?:[12]?[0-9]|3[0-2]))?"),
    **{f"uuid{n}": _uuid(str(n)) for n in range(1, 9)},
}
"""Formats that pydantic and msgspec give to strings, if JSON Schema defines them differently or not at all."""

_H = "[0-9A-Fa-f]"
_GROUP = f"{_H}{{1,4}}"
_LAST = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"
_RIGHT = [*(f"(?:{_GROUP}:){{{n}}}{_LAST}" for n in (4, 3, 2, 1, 0)), _GROUP, ""]
_SHORT = [f"(?:(?:{_GROUP}:){{0,{n}}}{_GROUP})?::{right}" for n, right in enumerate(_RIGHT)]
_IPV6 = f"(?:(?:{_GROUP}:){{6}}{_LAST}|::(?:{_GROUP}:){{5}}{_LAST}|{'|'.join(_SHORT)})"
"""Eight groups, of which "::" stands for one or more that are zero; the last two may be an IPv4 address (RFC 3986)."""

_HOST_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = f"{_HOST_LABEL}(?:\\.{_HOST_LABEL})*"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_EMAIL = f"{_ATOM}(?:\\.{_ATOM})*@(?:{_HOST_NAME}|\\[(?:{_IPV4}|IPv6:{_IPV6})\\])"

_NAME, _USER, _PATH, _QUERY = (f"(?:[A-Za-z0-9._~!$&'()*+,;={more}-]|%{_H}{{2}})" for more in ("", ":", ":@", ":@/?"))
_AUTHORITY = f"(?:{_USER}*@)?(?:\\[{_IPV6}\\]|{_NAME}*)(?::[0-9]*)?"
_URI = (
    f"[A-Za-z][A-Za-z0-9+.-]*:(?://{_AUTHORITY}(?:/{_PATH}*)*|/?(?:{_PATH}+(?:/{_PATH}*)*)?)"
    f"(?:\\?{_QUERY}*)?(?:#{_QUERY}*)?"
)

_RFC_TIME = f"{SECOND}(?:\\.[0-9]{{1,9}})?{ZONE}"
_RFC_MINUTES, _RFC_DAYS = "[0-9]+M(?:[0-9]+S)?", "[0-9]+M(?:[0-9]+D)?"
_RFC_CLOCK = f"T(?:[0-9]+H(?:{_RFC_MINUTES})?|{_RFC_MINUTES}|[0-9]+S)"
_RFC_DURATION = f"P(?:(?:[0-9]+Y(?:{_RFC_DAYS})?|{_RFC_DAYS}|[0-9]+D)(?:{_RFC_CLOCK})?|{_RFC_CLOCK}|[0-9]+W)"

ENFORCED_FORMATS = {
    "date": DATE,
    "date-time": f"{DATE}[Tt]{_RFC_TIME}",
    "duration": _RFC_DURATION,
    "email": _EMAIL,
    "hostname": _HOST_NAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "time": _RFC_TIME,
    "uri": _URI,
    "uuid": f"{_H}{{8}}(?:-{_H}{{4}}){{3}}-{_H}{{12}}",
}
"""Formats of JSON Schema that are enforced, by masks and by the check of a finished value. All other formats are
annotations only, as the standard says."""
ANNOTATING_FORMATS = frozenset((
    *("idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer"),
    *("uri-reference", "uri-template"),  # the formats of the standard; then those of OpenAPI's registry
    *("base64url", "binary", "byte", "char", "commonmark", "decimal", "decimal128", "double", "double-int", "float"),
    *("html", "http-date", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "media-range"),
    *("password", "sf-binary", "sf-boolean", "sf-decimal", "sf-integer", "sf-string", "sf-token"),
))  # fmt: skip
"""Formats of JSON Schema that are known to be annotations only."""

LOOKS_AROUND = r"\(\?<?[=!]|\\[bB1-9]"
"""A regex that finds a construct that masks cannot enforce in a pattern: look-around, a word boundary or a
back-reference. The server does not enforce patterns with such constructs if the client checks the schema (see
ConstraintSpec.is_checked)."""


def with_classes(pattern: str, classes: dict[str, dict[str, str]]) -> str:
    """Returns a regex with its character classes, such as \\d, replaced. classes: place -> class -> replacement. The
    place is "" for classes outside of brackets, and "[" or "[^" for those in brackets that begin so."""
    around, out = "", list[str]()
    for part in re.findall(r"\\.|\[\^?\]?|.", pattern, re.DOTALL):
        if around and part == "]":
            around = ""
        elif not around and part[0] == "[":
            around = part.rstrip("]")
            part = part.replace("]", r"\]")  # it comes first, so it is in the class; in ECMA-262 it would end the class
        out.append(classes[around].get(part, part))
    return "".join(out)


def with_flags(pattern: re.Pattern[Any]) -> str:
    """Returns the text of a compiled regex in which its flags are written out, such as (?i). For re.ASCII, classes such
    as \\d are replaced by ranges."""
    text: str = pattern.pattern
    if pattern.flags & re.ASCII:
        text = with_classes(text, {"": {name: f"[{one}]" for name, one in _ASCII.items()}, "[": _ASCII, "[^": _ASCII})
    # MULTILINE changes nothing at the ends of the text, and the compiler accepts ^ and $ nowhere else
    flags = "".join(flag for flag in "isx" if pattern.flags & re.RegexFlag[flag.upper()])
    return f"(?{flags}){text}" if flags else text


_ASCII = {
    r"\d": "0-9",
    r"\D": r"\x00-/:-\x{10FFFF}",
    r"\s": r"\x20\t-\r",
    r"\S": r"\x00-\x08\x0e-\x1f!-\x{10FFFF}",
    r"\w": "A-Za-z0-9_",
    r"\W": r"\x00-/:-@\[-\^`{-\x{10FFFF}",
}
"""Class of characters under re.ASCII -> its ranges."""
