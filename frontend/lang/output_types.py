"""Output types of gens: the constraint on the text while it is generated, and the object that the text becomes.

Numbers, bools, Literals, Enums and dates are written as plain text: 42, True, red. All other types are written as JSON.
"""

from __future__ import annotations

import datetime
import enum
import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from inspect import isfunction
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from banyan.runtime.errors import BadOutput, BadProgram
from banyan.runtime.protocol.wire import ConstraintSpec, Sample

Parse: TypeAlias = Callable[[str], Any]

_CACHE_SIZE = 4096


class OutputType:
    """The type of a gen's text."""

    __slots__ = ("is_json", "label", "parse", "spec", "stop")

    def __init__(self, label: str, spec: ConstraintSpec | None, parse: Parse, stop: tuple[str, ...] = ()) -> None:
        """label: the type's name, for errors. spec: the constraint. parse: converts the text to the object; raises if
        the text is invalid. stop: additional stop strings. Without them, a model that goes on after a number could only
        write more digits.
        """
        self.label, self.spec, self.parse, self.stop = label, spec, parse, stop
        self.is_json = spec is not None and spec.kind == "json_schema"

    def __repr__(self) -> str:
        return f"<OutputType {self.label}>"

    def parse_sample(self, sample: Sample) -> Any:
        """The object that the text represents. BadOutput: the text is not valid."""
        if self.spec is not None and sample.finish_reason == "length":
            why = f"max_tokens cut it at {sample.n_tokens}" if sample.n_tokens else "max_tokens cut it"
            raise BadOutput(f"not a valid {self.label}, because {why}: {_shortened(sample.text)}")
        try:
            return self.parse(sample.text)
        except Exception as e:  # decoders, validators and the user's constructors raise anything
            raise BadOutput(f"not a valid {self.label}: {_shortened(sample.text)}: {reason(e)}") from e


def take(options: dict[str, Any]) -> OutputType | None:
    """Remove the option that gives the output type from `options`, and return the type. BadProgram: several do."""
    names = ("dtype", "type", "regex", "json_schema", "schema", "grammar")
    given = {name: options.pop(name) for name in names if name in options}
    if not given:
        return None
    if len(given) > 1:
        raise BadProgram(f"a gen has one type, but {', '.join(given)} were given; give one of them")
    ((name, value),) = given.items()
    if name == "type":
        return output_type(value)
    if name in ("json_schema", "schema"):
        return _from_text("json_schema", _schema_text(value))
    if value == "" or not isinstance(value, str | type if name == "dtype" else str):
        raise BadProgram(f"{name} is {value!r:.80}; it must be a string")
    return _from_dtype(value) if name == "dtype" else _from_text(name, value)


def output_type(kind: Any) -> OutputType:
    """The output type for a Python type. BadProgram: the type cannot be written as a constraint."""
    if isinstance(kind, dict):
        return _from_text("json_schema", _schema_text(kind))
    if isfunction(kind) or type(kind).__module__.partition(".")[0] in ("outlines", "genson"):
        spec = _outlines_spec(kind)
        label = f"{type(kind).__name__} of outlines"
        return OutputType(label, spec, msgspec.json.decode if spec.kind == "json_schema" else str)
    try:
        return _from_type(kind)
    except TypeError as e:
        raise BadProgram(f"type={kind!r} is not supported: {e}") from e


# ---- SGLang's dtypes -------------------------------------------------------------------------------------------------

_SPACE = (" ", "\n")
_DTYPES = {
    "int": OutputType("int", ConstraintSpec("regex", r"[-+]?[0-9]+[ \n]*"), int, _SPACE),
    "float": OutputType("float", ConstraintSpec("regex", r"[-+]?[0-9]*\.?[0-9]+[ \n]*"), float, _SPACE),
    "bool": OutputType("bool", ConstraintSpec("regex", "(True|False)"), lambda text: text == "True"),
    "str": OutputType("str", ConstraintSpec("regex", r'"[\w\s]*"'), lambda text: text[1:-1]),
}


def _from_dtype(dtype: type | str) -> OutputType:
    name = dtype.__name__ if dtype in (int, float, bool, str) else dtype
    if not isinstance(name, str) or name not in _DTYPES:
        raise BadProgram(f"dtype is {dtype!r}; it is one of int, float, bool, str. For any other type, write type=")
    return _DTYPES[name]


# ---- types -----------------------------------------------------------------------------------------------------------


@lru_cache(_CACHE_SIZE)
def _from_type(kind: Any) -> OutputType:
    if kind is str:
        return OutputType("str", None, str)
    if kind in (int, float):
        return _from_dtype(kind)
    if kind is bool:
        return _from_choices("bool", [("True", True), ("False", False)])
    if get_origin(kind) is Literal:
        return _from_choices(_label(kind), [(str(value), value) for value in get_args(kind)])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _from_choices(kind.__name__, [(str(member.value), member) for member in kind])
    if isinstance(kind, re.Pattern):
        return _from_text("regex", kind.pattern)
    if kind in (datetime.date, datetime.time, datetime.datetime):
        return OutputType(kind.__name__, _outlines_spec(kind), kind.fromisoformat)
    return _from_json_type(kind)


def _from_choices(label: str, choices: list[tuple[str, Any]]) -> OutputType:
    values = dict(choices)
    if not values or "" in values or len(values) < len(choices):
        raise BadProgram(f"{label} has no values, an empty value, or two values with the same text; use a select")
    return OutputType(label, ConstraintSpec("choices", json.dumps(list(values))), lambda text: values[text])


@lru_cache(_CACHE_SIZE)
def _from_text(kind: Any, text: str) -> OutputType:
    """The output type of a constraint given as text. kind: "regex", "json_schema" or "grammar"."""
    names = {"regex": f"match of {text!r:.80}", "grammar": "text of the grammar"}
    parse = msgspec.json.decode if kind == "json_schema" else str
    return OutputType(names.get(kind, "value of the JSON schema"), ConstraintSpec(kind, text), parse)


def _schema_text(schema: Any) -> str:
    """A JSON schema, given as text or as a dict, as text."""
    try:
        value = json.loads(schema) if isinstance(schema, str | bytes) else schema
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError) as e:
        raise BadProgram(f"json_schema is not valid JSON: {e}") from e
    if not isinstance(value, dict | bool):
        raise BadProgram(f"json_schema must be the JSON text of an object, or a dict, not {schema!r:.80}")
    return text


def _from_json_type(kind: Any) -> OutputType:
    """The output type of a Python type whose values are written as JSON. TypeError: the type has no JSON schema."""
    decode: Parse
    try:
        schema, decode = msgspec.json.schema(kind), msgspec.json.Decoder(kind).decode
    except (TypeError, RuntimeError, NotImplementedError):  # not a type of msgspec's; pydantic knows more types
        schema, decode = _from_pydantic(kind)
    else:
        for inner in _inner_types(msgspec.inspect.type_info(kind), set()):
            _mend(schema, inner)
    return OutputType(_label(kind), ConstraintSpec("json_schema", json.dumps(_tightened(schema))), decode)


def _inner_types(kind: Any, seen: set[int]) -> Iterator[Any]:
    """A type and all types inside it, as `msgspec.inspect` describes them."""
    if id(kind) in seen:
        return
    seen.add(id(kind))
    yield kind
    for value in msgspec.structs.astuple(kind) if isinstance(kind, msgspec.Struct) else ():
        for one in value if isinstance(value, tuple) else (value,):
            yield from _inner_types(one, seen)


def _mend(schema: dict[str, Any], kind: Any) -> None:
    """Put the keys of a TypedDict, which msgspec sorts by name, in the order of its definition.

    TypeError: a dict has keys other than str, which msgspec's schemas do not constrain.
    """
    if isinstance(kind, msgspec.inspect.DictType):
        if not isinstance(kind.key_type, msgspec.inspect.StrType | msgspec.inspect.AnyType):
            raise TypeError("the keys of a dict are str; where they are known, write a TypedDict")
    elif isinstance(kind, msgspec.inspect.TypedDictType):
        cls = get_origin(kind.cls) or kind.cls
        keys = list(get_type_hints(cls))
        for part in schema.get("$defs", {}).values():
            found = part.get("properties", {})
            if part.get("title", "").partition("[")[0] == cls.__name__ and found.keys() == {*keys}:
                part["properties"] = {key: found[key] for key in keys}


def _from_pydantic(kind: Any) -> tuple[dict[str, Any], Parse]:
    import pydantic  # lazily: it takes longer to import than the rest of the package

    try:
        adapter: Any = pydantic.TypeAdapter(kind)
        return adapter.json_schema(), adapter.validate_json
    except pydantic.errors.PydanticUserError as e:
        raise TypeError(str(e).partition("\n")[0]) from e


_PATTERNS = {
    ("format", "decimal"): r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$",
    ("contentEncoding", "base64"): "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
"""(key, value) by which msgspec marks Decimal and bytes in a schema, without constraining them -> a pattern that
does."""


def _tightened(schema: Any) -> Any:
    """The schema, with additional properties forbidden where it does not mention them, and without `uniqueItems`.

    `uniqueItems` cannot be enforced while the text is generated. When the text is parsed, a set drops duplicates.
    """
    if isinstance(schema, list):
        return [_tightened(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    tight = {
        key: value if key in ("default", "examples", "enum", "const") else _tightened(value)
        for key, value in schema.items()
        if (key, value) != ("uniqueItems", True)
    }
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        tight.setdefault("additionalProperties", False)
    for (key, value), pattern in _PATTERNS.items():
        if schema.get("type") == "string" and schema.get(key) == value:
            tight.setdefault("pattern", pattern)
    return tight


def _outlines_spec(kind: Any) -> ConstraintSpec:
    from banyan.lang.outlines_terms import to_spec  # lazily: outlines takes seconds to import

    return to_spec(kind)


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
    """The JSON value that `text` begins; its last string or number may be incomplete. ValueError: no value begins."""
    from pydantic_core import from_json  # lazily, like pydantic

    return from_json(text, allow_partial="trailing-strings")
