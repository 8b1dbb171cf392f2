"""Validation of finished values against a user's JSON Schema, for keywords that cannot always be enforced while a value
is generated, such as `uniqueItems`."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import text_forms

_CHECKED = re.compile(
    r'"(?:uniqueItems|oneOf|not|if|(?:min|max)Properties|contains|propertyNames|unevaluated\w+|dependent\w+|dependencies)"'
    r'|"\$(?:dynamic|recursive)Ref"|"\$ref": "https?://json-schema\.org/|\(\?<?[=!]'
    r'|"multipleOf": [\d.]{6}'
)
"""Finds all that may need a check of the finished value: some keywords, references that the constraint does not follow,
look-around in patterns, and multiples with many digits."""
_FORMAT = re.compile(r'"format": "((?:[^"\\]|\\.)*)"')
_PATTERN = re.compile(r'"pattern": ("(?:[^"\\]|\\.)*")')


def needs_check(schema: str) -> bool:
    """Whether a schema may have a keyword that cannot always be enforced while a value is generated."""
    return _CHECKED.search(schema) is not None


def unknown_formats(schema: str) -> list[str]:
    """The values of "format" in a JSON schema that are not known and so have no effect on the output, sorted. schema:
    its text, as json.dumps writes it."""
    known = text_forms.ENFORCED_FORMATS.keys() | text_forms.ANNOTATING_FORMATS
    return sorted({name for name in _FORMAT.findall(schema) if name not in known})


def check_patterns(schema: str) -> None:
    """Check the patterns of a schema that Checked validates. schema: its text, as json.dumps writes it. BadProgram: a
    pattern can be enforced neither by the token masks nor by the check of the finished value."""
    for pattern in map(json.loads, _PATTERN.findall(schema)):
        try:
            if re.search(text_forms.LOOKS_AROUND, pattern):
                _compiled(pattern)
        except re.error as e:
            raise BadProgram(
                f"no mask can enforce the pattern {pattern!r:.200}, and Python's re, which would check the value, "
                f"cannot read it ({e}); write it without look-around, or in Python's syntax"
            ) from e


@lru_cache(64)
def check_references(schema: str) -> None:
    """BadProgram: a reference of a schema leads nowhere, so no output could be checked against it. schema: its text."""
    if '"$ref"' not in schema:
        return
    import jsonschema_specifications
    import referencing
    from referencing.jsonschema import DRAFT202012

    root = referencing.Resource.from_contents(json.loads(schema), default_specification=DRAFT202012)
    left = [(root, jsonschema_specifications.REGISTRY.resolver_with_root(root))]
    while left:
        part, resolver = left.pop()
        ref = part.contents.get("$ref") if isinstance(part.contents, dict) else None
        with suppress(AttributeError, TypeError):  # a part is no schema, as a list of `items` without $schema
            left += ((below, resolver.in_subresource(below)) for below in part.subresources())
            try:
                if isinstance(ref, str):
                    resolver.lookup(ref)
            except (referencing.exceptions.Unresolvable, ValueError) as e:  # ValueError: an index that is no number
                raise BadProgram(f"the JSON schema's reference {ref!r:.200} leads nowhere; is it misspelled?") from e


class Checked:
    """A parser for the output of a gen with a JSON schema. Called with a text, it returns the parsed value. ValueError:
    the value is not valid for the schema; the message says why."""

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def __call__(self, text: str) -> Any:
        value = msgspec.json.decode(text)
        for error in self._validator.iter_errors(value):
            raise ValueError(f"{error.message[:200]} at {error.json_path}")
        return value

    @cached_property
    def _validator(self) -> Any:
        import jsonschema  # lazily: it takes 0.1 s
        import jsonschema_specifications

        schema = json.loads(self._schema)
        draft = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        checks = jsonschema.validators.extend(draft, _OURS | {"unevaluatedProperties": _lenient(draft)})
        return checks(schema, registry=jsonschema_specifications.REGISTRY)


def _error(message: str) -> Exception:
    import jsonschema

    return jsonschema.ValidationError(message)  # type: ignore[no-any-return]


def _multiple_of(_: Any, multiple: Any, value: Any, __: Any) -> Any:
    """The check of `multipleOf` for jsonschema: yields an error if `value` is not a multiple.

    It calculates with the decimal digits that `str` writes, since 0.07 as a float is no multiple of 0.01. But `str` may
    drop digits that the output had. So a value is also valid if its exact binary value is a multiple.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if all(Fraction(one) % Fraction(str(multiple)) for one in (value, str(value))):
        yield _error(f"{value!r} is not a multiple of {multiple!r}")


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Any:
    if isinstance(value, str) and _matches(pattern, value) is False:
        yield _error(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], value: Any, _: Any) -> Any:
    for name in value if isinstance(value, dict) else ():
        for pattern, below in patterns.items():
            if _matches(pattern, name):
                yield from validator.descend(value[name], below, path=name, schema_path=pattern)


def _additional_properties(validator: Any, below: Any, value: Any, schema: Any) -> Any:
    """The check of `additionalProperties` for jsonschema: yields the errors of the properties that neither `properties`
    nor `patternProperties` covers. below: the schema for these. A pattern that Python cannot read counts as covering
    every name."""
    patterns = schema.get("patternProperties", ())
    for name in value if isinstance(value, dict) else ():
        if name in schema.get("properties", ()) or any(_matches(one, name) is not False for one in patterns):
            continue
        if below is False:
            yield _error(f"the property {name!r} is not allowed")
        else:
            yield from validator.descend(value[name], below, path=name)


def _lenient(draft: Any) -> Any:
    """Returns the check of `unevaluatedProperties` of jsonschema's class `draft`, with one change: if it meets a
    pattern that Python cannot read, it ends without an error."""
    check = draft.VALIDATORS.get("unevaluatedProperties")

    def checked(validator: Any, below: Any, value: Any, schema: Any) -> Any:
        try:
            yield from check(validator, below, value, schema) if check else ()
        except re.error:
            return

    return checked


def _format(_: Any, name: str, value: Any, __: Any) -> Any:
    """The check of `format` for jsonschema: yields an error if `value` is a str that is not of this format.

    It uses the same patterns as the token masks. The output itself has passed these. But a schema such as {"not":
    {"format": ...}} can only be checked if it is known whether the format matches.
    """
    form = text_forms.ENFORCED_FORMATS.get(name)
    if form and isinstance(value, str) and not re.fullmatch(form, value):
        yield _error(f"{value!r} is not of the format {name!r}")


_OURS = {
    "additionalProperties": _additional_properties,
    "format": _format,
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
}


def _matches(pattern: str, text: str) -> bool | None:
    """Whether a pattern in ECMA-262's syntax matches. None: Python cannot read the pattern."""
    try:
        return _compiled(pattern).search(text) is not None
    except re.error:
        return None


_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?<(?![=!])|[$.]", re.DOTALL)
_WRITTEN = {
    "$": r"\Z",
    ".": r"[^\n\r\u2028\u2029]",
    "(?<": "(?P<",
    "[]": "(?!)",
    "[^]": r"[\s\S]",
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\w": "[A-Za-z0-9_]",
    r"\W": "[^A-Za-z0-9_]",
    r"\b": r"(?a:\b)",
    r"\B": r"(?a:\B)",
}
_WRITTEN_IN_CLASS = {
    r"\d": "0-9",
    r"\D": "\0-/:-\U0010ffff",
    r"\w": "A-Za-z0-9_",
    r"\W": "\0-/:-@\\[-\\^`{-\U0010ffff",
}
"""Syntax that differs between ECMA-262 and Python: ECMA-262's form -> Python's form."""


@lru_cache(1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern in ECMA-262's syntax. re.error: Python cannot read it."""
    return re.compile(_TOKEN.sub(_written, pattern))


def _written(token: re.Match[str]) -> str:
    """Translate a token from ECMA-262's syntax to Python's: a character class, an escape, or another character."""
    text = token[0]
    if text[0] != "[" or text in _WRITTEN:
        return _WRITTEN.get(text, text)
    return re.sub(r"\\.", lambda escape: _WRITTEN_IN_CLASS.get(escape[0], escape[0]), text, flags=re.DOTALL)
