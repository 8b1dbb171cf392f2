"""Output types of gens: the constraint on the text while it is generated, and the object that the text becomes.

Numbers, bools, Literals, Enums and dates are written as plain text: 42, True, red. All other types are written as JSON.
"""

from __future__ import annotations

import datetime
import enum
import json
import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from inspect import Parameter, isfunction, ismethod, signature
from types import NoneType
from typing import Any, Literal, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from banyan.lang import schema_check
from banyan.lang.fstring import check_option, check_unicode, shown
from banyan.lang.json_types import Parse, check_keys, json_type
from banyan.runtime.errors import BadOutput, BadProgram
from banyan.runtime.protocol import text_forms
from banyan.runtime.protocol.wire import ConstraintSpec, Sample

_CACHE_SIZE = 4096


class OutputType:
    """The type of a gen's text: a constraint, and a parser that converts the text to an object."""

    __slots__ = ("is_json", "label", "note", "parse", "parse_free", "spec", "stop")

    def __init__(
        self,
        label: str,
        spec: ConstraintSpec | None,
        parse: Parse,
        stop: tuple[str, ...] = (),
        parse_free: Parse | None = None,
    ) -> None:
        """label: the type's name, for errors. spec: the constraint; None: any text. parse: converts the text to the
        object; raises if the text is invalid. stop: further stop strings of the gen. A number has some, such as a
        space: without them the model could always add a digit. parse_free: the same as `parse`, for a text that was
        generated without the constraint. BadProgram: the constraint has a lone surrogate."""
        self.note = ""
        """A warning for the user, if not empty."""
        self.label, self.spec, self.parse, self.stop = label, spec, parse, stop
        self.parse_free = parse_free or parse
        if spec is not None:
            check_unicode(spec.text)
        self.is_json = spec is not None and spec.kind == "json_schema"

    def __repr__(self) -> str:
        return f"<OutputType {self.label}>"

    def parse_sample(self, sample: Sample, is_enforced: bool = True) -> Any:
        """The object that the text represents. is_enforced: the constraint held while the text was generated.
        BadOutput: the text is not valid."""
        if self.spec is not None and sample.finish_reason == "length":
            why = f"max_tokens cut it at {sample.n_tokens}" if sample.n_tokens else "max_tokens cut it"
            raise BadOutput(f"not a valid {self.label}, because {why}: {_shortened(sample.text)}")
        if not sample.text and sample.matched in self.stop:  # only without the constraint, as on a Mock
            raise BadOutput(f"not a valid {self.label}: the text begins with {sample.matched!r}, which ends a number")
        try:
            value = (self.parse if is_enforced else self.parse_free)(sample.text)
            if self.is_json:
                check_keys(sample.text)
            return value
        except Exception as e:  # decoders, validators and the user's constructors raise anything
            raise BadOutput(f"not a valid {self.label}: {_shortened(sample.text)}: {reason(e)}") from e


def take(options: dict[str, Any]) -> OutputType | None:
    """Remove from `options` those that describe the output's type, such as type= and regex=. Returns the type, or None
    if there is none of them. BadProgram: several options describe a type."""
    names = ("dtype", "type", "regex", "json_schema", "schema", "grammar")
    given = {name: options.pop(name) for name in names if name in options}
    forms = {field: options.pop(name) for name, field in _FORMS.items() if name in options}
    kind = _take(given) if given else None
    if not forms:
        return kind
    if kind is None or kind.spec is None or not kind.is_json:
        raise BadProgram(
            "whitespace and order apply only to output that is JSON; add json_schema=, or a type= that is written as "
            "JSON"
        )
    try:
        spec = msgspec.convert(msgspec.structs.asdict(kind.spec) | forms, ConstraintSpec)
    except msgspec.ValidationError as e:
        raise BadProgram(
            f"whitespace must be spaced, compact, either or any, and order must be schema or any ({e})"
        ) from e
    formed = OutputType(kind.label, spec, kind.parse, kind.stop, kind.parse_free)
    formed.note = kind.note
    return formed


_FORMS = {"whitespace": "style", "order": "order"}
"""Option for JSON output -> field of ConstraintSpec."""


def _take(given: dict[str, Any]) -> OutputType:
    if len(given) > 1:
        raise BadProgram(f"a gen can have only one type, but {', '.join(given)} were given")
    ((name, value),) = given.items()
    if name == "type":
        return output_type(value)
    if name != "dtype":
        refuse_type(name, value)
    if name in ("json_schema", "schema"):
        return _from_text("json_schema", _schema_text(value))
    if value == "" or not isinstance(value, str | type if name == "dtype" else str):
        wanted = "a type or the name of one" if name == "dtype" else "a string that is not empty"
        raise BadProgram(f"{name} is {shown(value, 80)}; it must be {wanted}")
    return _from_dtype(value) if name == "dtype" else _from_text(name, value)


def output_type(kind: Any) -> OutputType:
    """The output type for the value of `type=`. BadProgram: the value cannot be converted to a constraint."""
    if isinstance(kind, dict):
        return _from_text("json_schema", _schema_text(kind))
    if _is_term(kind):
        from banyan.lang.outlines_terms import to_spec  # lazily: outlines takes seconds to import

        spec = to_spec(kind)
        label = f"{type(kind).__name__} of outlines"
        if spec.kind != "json_schema":
            return OutputType(label, spec, str)
        return OutputType(label, spec, msgspec.json.decode, parse_free=schema_check.Checked(spec.text))
    try:
        hash(kind)
    except TypeError:  # metadata that cannot be hashed
        make = _from_type.__wrapped__
    else:
        make = _from_type
    try:
        return make(kind, spelling(kind))
    except UnicodeEncodeError as e:
        raise BadProgram(f"type={kind!r} has a lone surrogate, which cannot be encoded") from e
    except TypeError as e:
        raise BadProgram(f"type={kind!r} is not supported: {_advice(kind) or e}") from e


def _advice(kind: Any) -> str:
    """What to write instead of a value that is no type; empty for a type."""
    if isinstance(kind, str):
        return "it is text; write it as regex=, json_schema= or grammar="
    if isinstance(kind, list | tuple | set | frozenset):
        return "for one of several texts, write choices=, or type=Literal[...]; for one of several types, A | B"
    if not isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "model_dump_json")):
        return f"it is an object; write its class, {type(kind).__name__}"
    return ""


def is_type(value: Any) -> bool:
    """Whether a value describes a type of texts, as `type=` takes it: a class, a form of typing, a compiled pattern or
    a term of outlines."""
    return isinstance(value, type | re.Pattern) or get_origin(value) is not None or _is_term(value)


def refuse_type(name: str, value: Any) -> None:
    """BadProgram: the value of the option `name` is one for `type=`."""
    if not isinstance(value, _PLAIN) and is_type(value):
        raise BadProgram(f"{name} is {shown(value, 80)}; write gen(type=...) for it")


_PLAIN = (int, str, NoneType)
"""What options that are no types usually are: `is_type` would take a tenth of the time of a gen."""


def _is_term(value: Any) -> bool:
    """Whether a value is a term of outlines, or a builder of genson, which outlines converts to a term."""
    return type(value).__module__.startswith(("outlines.types.", "genson."))


# ---- SGLang's dtypes -------------------------------------------------------------------------------------------------


def _unquoted(text: str) -> str:
    """The text without its quotes. ValueError: `text` is not in quotes."""
    found = re.fullmatch('"([^"]*)"', text)  # not the regex of the gen: Python's \w has fewer characters than Rust's
    if found is None:
        raise ValueError("it must be in double quotes, with none inside")
    return found[1]


_SPACE = (" ", "\n")
# At most two spaces at the end: after separated reasoning there are no stop strings, so this limit ends the number.
_INT, _FLOAT, _BOOL = r"[-+]?[0-9]+[ \n]{0,2}", r"[-+]?[0-9]*\.?[0-9]+[ \n]{0,2}", "(True|False)"
_DTYPES = {
    "int": OutputType("int", ConstraintSpec("regex", _INT), int, _SPACE),
    "float": OutputType("float", ConstraintSpec("regex", _FLOAT), float, _SPACE),
    "bool": OutputType("bool", ConstraintSpec("regex", _BOOL), {"True": True, "False": False}.__getitem__),
    "str": OutputType("str", ConstraintSpec("regex", r'"[\w\s]*"'), _unquoted),
}
SCHEMAS: dict[str, dict[str, Any]] = {
    _INT: {"type": "integer"},
    _FLOAT: {"type": "number"},
    _BOOL: {"type": "string", "enum": ["True", "False"]},
}
"""Regex of a number or a bool -> the JSON schema of the same values, for an API that takes only schemas."""


def _from_dtype(dtype: type | str) -> OutputType:
    name = dtype.__name__ if dtype in (int, float, bool, str) else dtype
    if not isinstance(name, str) or name not in _DTYPES:
        raise BadProgram(f"dtype is {dtype!r}, but must be one of int, float, bool, str; for any other type, use type=")
    return _DTYPES[name]


# ---- types -----------------------------------------------------------------------------------------------------------


def spelling(kind: Any) -> str:
    """A text that differs for types which are equal for Python but must not share a cached output type, such as
    `Literal[1, 2]` and `Literal[2, 1]`."""
    return "" if isinstance(kind, type) else repr(kind)


@lru_cache(_CACHE_SIZE)
def _from_type(kind: Any, spelling: str) -> OutputType:
    if kind is str:
        return OutputType("str", None, str)
    if kind in (int, float):
        return _from_dtype(kind)
    if kind is bool:
        return _from_choices("bool", [True, False])
    if get_origin(kind) is Literal:
        if any(isinstance(value, bytes) for value in get_args(kind)):
            raise TypeError("the text of a gen is str, not bytes; write the values as str")
        return _from_choices(_label(kind), get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _from_choices(kind.__name__, list(kind))
    if isinstance(kind, re.Pattern):
        return _from_pattern(kind)
    if kind in list(_DATES):  # a list: not all types have a hash
        return OutputType(kind.__name__, ConstraintSpec("regex", _DATES[kind]), kind.fromisoformat)
    if isfunction(kind) or ismethod(kind):
        kind = _arguments(kind)
    schema, decode = json_type(kind)
    return OutputType(_label(kind), ConstraintSpec("json_schema", json.dumps(schema, ensure_ascii=False)), decode)


_DATES: dict[Any, str] = {
    datetime.date: text_forms.DATE,
    datetime.time: text_forms.SECOND,
    datetime.datetime: f"{text_forms.DATE}[T ]{text_forms.SECOND}",
}


def _arguments(function: Any) -> Any:
    """A TypedDict of a function's parameters. TypeError: a parameter cannot be given by name, or has no type hint."""
    from typing_extensions import TypedDict  # pydantic does not take Python 3.11's own

    hints, fields = get_type_hints(function, include_extras=True), dict[str, Any]()
    for name, parameter in signature(function).parameters.items():
        if parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY) or name not in hints:
            raise TypeError(f"its parameter {name!r} cannot be given by name, or has no type hint")
        fields[name] = hints[name] if parameter.default is Parameter.empty else NotRequired[hints[name]]
    return TypedDict(function.__name__, fields)  # type: ignore[operator]


def _from_pattern(pattern: re.Pattern[Any]) -> OutputType:
    """The output type of a compiled pattern. TypeError: it is a pattern of bytes."""
    if not isinstance(pattern.pattern, str):
        raise TypeError("the text of a gen is str; write the pattern as str")

    def parse(text: str) -> str:
        if pattern.fullmatch(text) is None:  # Python's syntax differs from Rust's in some places
            raise ValueError("the pattern does not match the text")
        return text

    spec = ConstraintSpec("regex", text_forms.with_flags(pattern))
    return OutputType(f"match of {pattern.pattern!r:.80}", spec, parse)


def _from_choices(label: str, values: Sequence[Any]) -> OutputType:
    """The output type whose objects are `values`. The model writes one of them as text; of an Enum, its value."""
    texts = [str(one.value if isinstance(one, enum.Enum) else one) for one in values]
    repeated = next((text for text in texts if texts.count(text) > 1), None)
    if not texts:
        raise BadProgram(f"{label} has no values, so no output is possible")
    if "" in texts:
        raise BadProgram(f"{label} has a value whose text is empty; use a select, or give it another value")
    if repeated is not None:
        raise BadProgram(
            f"{label} has two values with the same text {repeated!r}; use a select, or make the texts differ"
        )
    value_of = dict(zip(texts, values, strict=True))
    return OutputType(label, ConstraintSpec("choices", json.dumps(texts, ensure_ascii=False)), value_of.__getitem__)


@lru_cache(_CACHE_SIZE)
def _from_text(kind: Any, text: str) -> OutputType:
    """The output type of a constraint given as text. kind: "regex", "json_schema" or "grammar"."""
    check_option(kind, text)
    names = {"regex": f"match of {text!r:.80}", "grammar": "text of the grammar"}
    if kind != "json_schema":
        return OutputType(names[kind], ConstraintSpec(kind, text), str)
    is_checked, formats = schema_check.needs_check(text), schema_check.unknown_formats(text)
    if is_checked:
        schema_check.check_patterns(text)
    checked = schema_check.Checked(text)
    parse = checked if is_checked else msgspec.json.decode
    spec = ConstraintSpec(kind, text, is_checked=is_checked)
    found = OutputType("value of the JSON schema", spec, parse, parse_free=checked)
    if formats:
        found.note = f"the JSON schema's format {', '.join(map(repr, formats))} only annotates: it restricts no value"
    return found


def _schema_text(schema: Any) -> str:
    """Convert a JSON schema, given as text or as a dict, to text. BadProgram: it is not valid JSON, or not an object or
    a bool."""
    try:
        value = json.loads(schema) if isinstance(schema, str | bytes) else schema
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError) as e:
        raise BadProgram(f"json_schema is not valid JSON: {e}") from e
    if not isinstance(value, dict | bool):
        raise BadProgram(f"json_schema must be the JSON text of an object, or a dict, not {shown(schema, 80)}")
    return text


def reason(error: Exception) -> str:
    """The message of an error that a decoder or validator raised."""
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):  # pydantic's, whose str() is long
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return str(error) or type(error).__name__


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= 200 else f"{text[:100]!r} ... {text[-100:]!r}"


def _label(kind: Any) -> str:
    plain = isinstance(kind, type) and get_origin(kind) is None
    return kind.__name__ if plain or is_typeddict(kind) else str(kind).replace("typing.", "")


def parse_partial(text: str) -> Any:
    """Parse the beginning of a JSON value; the last string or number may be incomplete. ValueError: `text` is not the
    beginning of a value."""
    from pydantic_core import from_json  # lazily, like pydantic

    return from_json(text, allow_partial="trailing-strings")
