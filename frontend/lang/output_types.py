"""Types of gens: what the model may write for one, and the object that it becomes.

A number, a truth value, a Literal and an Enum are written as they stand in a text: 42, True, red. All other types are
written as JSON. The text is held to that form while it is generated; what a form cannot say (a validator's own check)
is found when the object is made.
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

_KEPT = 4096
"""Answers of each kind that are made once."""


class OutputType:
    """What the text of a gen is to be. spec: what it must match. parse: text to object, raises what is wrong with it.

    stop: what ends it, beside the gen's own: a model that goes on behind its number should not have to add digits.
    """

    __slots__ = ("is_json", "label", "parse", "spec", "stop")

    def __init__(self, label: str, spec: ConstraintSpec | None, parse: Parse, stop: tuple[str, ...] = ()) -> None:
        self.label, self.spec, self.parse, self.stop = label, spec, parse, stop
        self.is_json = spec is not None and spec.kind == "json_schema"

    def __repr__(self) -> str:
        return f"<Answer {self.label}>"

    def of(self, sample: Sample) -> Any:
        """The object that the text is. BadOutput says why it is none."""
        if self.spec is not None and sample.finish_reason == "length":
            why = f"max_tokens cut it at {sample.n_tokens}" if sample.n_tokens else "max_tokens cut it"
            raise BadOutput(f"this is no {self.label}, for {why}: {_short(sample.text)}")
        try:
            return self.parse(sample.text)
        except Exception as e:  # decoders, validators and constructors of the user's own raise what they like
            raise BadOutput(f"this is no {self.label}: {_short(sample.text)}: {_reason(e)}") from e

    def advice(self, error: BadOutput) -> str:
        """What a model is told of an output that does not count."""
        return f"{error.message}\nWrite the {self.label} again, and nothing else."


def asked(wishes: dict[str, Any]) -> OutputType | None:
    """Takes from `wishes` the one that says what the text is to be. BadProgram: there are two, or it cannot be."""
    given = {name: wishes.pop(name) for name in ("dtype", "type", "regex", "json_schema", "grammar") if name in wishes}
    if not given:
        return None
    if len(given) > 1:
        raise BadProgram(f"a gen has one form, but here are {', '.join(given)}; give one of them")
    ((name, value),) = given.items()
    if name == "type":
        return answer(value)
    if name == "json_schema":
        return _of_schema(_schema_text(value))
    if value == "" or not isinstance(value, str | type if name == "dtype" else str):
        raise BadProgram(f"{name} is {value!r:.80}; it must be text")
    if name == "dtype":
        return _of_dtype(value)
    return _of_regex(value) if name == "regex" else _of_grammar(value)


def answer(kind: Any) -> OutputType:
    """The answer of a type. BadProgram: a type that no text can be held to."""
    if isinstance(kind, dict):
        return _of_schema(_schema_text(kind))
    if isfunction(kind) or type(kind).__module__.partition(".")[0] in ("outlines", "genson"):
        return _of_term(kind)
    try:
        return _answer(kind)
    except TypeError as e:
        raise BadProgram(f"type={kind!r} cannot be asked for: {e}") from e


# ---- SGLang's dtypes -----------------------------------------------------------------------------------------------

_SPACE = (" ", "\n")
_DTYPES: dict[str, tuple[str, Parse, tuple[str, ...]]] = {
    "int": (r"[-+]?[0-9]+[ \n]*", int, _SPACE),
    "float": (r"[-+]?[0-9]*\.?[0-9]+[ \n]*", float, _SPACE),
    "bool": ("(True|False)", lambda text: text == "True", ()),
    "str": (r'"[\w\s]*"', lambda text: text[1:-1], ()),
}
"""name -> the form that SGLang's language gives it, the object, and what ends it."""


def _of_dtype(dtype: type | str) -> OutputType:
    name = dtype.__name__ if dtype in (int, float, bool, str) else dtype
    if not isinstance(name, str) or name not in _DTYPES:
        raise BadProgram(f"dtype is {dtype!r}; it is one of int, float, bool, str. For any other type, write type=")
    return _named(name)


@lru_cache
def _named(name: str) -> OutputType:
    regex, parse, stop = _DTYPES[name]
    return OutputType(name, ConstraintSpec("regex", regex), parse, stop)


# ---- types ---------------------------------------------------------------------------------------------------------


@lru_cache(_KEPT)
def _answer(kind: Any) -> OutputType:
    if kind is str:
        return OutputType("str", None, str)
    if kind in (int, float):
        return _of_dtype(kind)
    if kind is bool:
        return _of_choices("bool", [("True", True), ("False", False)])
    if get_origin(kind) is Literal:
        return _of_choices(_label(kind), [(str(value), value) for value in get_args(kind)])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _of_choices(kind.__name__, [(str(member.value), member) for member in kind])
    if isinstance(kind, re.Pattern):
        return _of_regex(kind.pattern)
    if kind in (datetime.date, datetime.time, datetime.datetime):
        return OutputType(kind.__name__, _through_outlines(kind), kind.fromisoformat)
    return _of_json(kind)


def _of_choices(label: str, choices: list[tuple[str, Any]]) -> OutputType:
    values = dict(choices)
    if not values or "" in values or len(values) < len(choices):
        raise BadProgram(f"{label} has no value, one whose text is empty, or two of the same text; write a select")
    return OutputType(label, ConstraintSpec("choices", json.dumps(list(values))), lambda text: values[text])


@lru_cache(_KEPT)
def _of_regex(pattern: str) -> OutputType:
    return OutputType(f"match of {pattern!r:.80}", ConstraintSpec("regex", pattern), str)


@lru_cache(_KEPT)
def _of_grammar(grammar: str) -> OutputType:
    return OutputType("text of the grammar", ConstraintSpec("grammar", grammar), str)


@lru_cache(_KEPT)
def _of_schema(schema: str) -> OutputType:
    return OutputType("value of the JSON schema", ConstraintSpec("json_schema", schema), msgspec.json.decode)


def _schema_text(schema: Any) -> str:
    """A JSON schema, given as text or as a dict, as text."""
    try:
        value = json.loads(schema) if isinstance(schema, str | bytes) else schema
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError) as e:
        raise BadProgram(f"json_schema is not valid JSON: {e}") from e
    if not isinstance(value, dict | bool):
        raise BadProgram(f"json_schema is the JSON text of an object, or a dict, not {schema!r:.80}")
    return text


def _of_json(kind: Any) -> OutputType:
    """A type whose values are written as JSON. TypeError: there is no schema for it."""
    decode: Parse
    try:
        schema, decode = msgspec.json.schema(kind), msgspec.json.Decoder(kind).decode
    except (TypeError, RuntimeError, NotImplementedError):  # not one of msgspec's types: pydantic knows more
        schema, decode = _of_pydantic(kind)
    else:
        inner = list(_inner(msgspec.inspect.type_info(kind), set()))
        _check_keys(inner)
        _as_written(schema, inner)
    return OutputType(_label(kind), ConstraintSpec("json_schema", json.dumps(_closed(schema))), decode)


def _inner(kind: Any, seen: set[int]) -> Iterator[Any]:
    """A type, as msgspec sees it, and all types in it."""
    if id(kind) in seen:
        return
    seen.add(id(kind))
    yield kind
    for value in msgspec.structs.astuple(kind) if isinstance(kind, msgspec.Struct) else ():
        for one in value if isinstance(value, tuple) else (value,):
            yield from _inner(one, seen)


def _check_keys(inner: list[Any]) -> None:
    """TypeError: a dict has keys that msgspec's schemas do not tell of."""
    for kind in inner:
        if isinstance(kind, msgspec.inspect.DictType) and not isinstance(
            kind.key_type, msgspec.inspect.StrType | msgspec.inspect.AnyType
        ):
            raise TypeError("the keys of a dict are str; where they are known, write a TypedDict")


def _as_written(schema: dict[str, Any], inner: list[Any]) -> None:
    """Put the properties of TypedDicts in the order of their definitions, as a model writes them one after the other.
    msgspec sorts them by name."""
    for kind in inner:
        if isinstance(kind, msgspec.inspect.TypedDictType):
            cls = get_origin(kind.cls) or kind.cls
            keys = list(get_type_hints(cls))
            for part in schema.get("$defs", {}).values():
                found = part.get("properties", {})
                if part.get("title", "").partition("[")[0] == cls.__name__ and found.keys() == {*keys}:
                    part["properties"] = {key: found[key] for key in keys}


def _of_pydantic(kind: Any) -> tuple[dict[str, Any], Parse]:
    import pydantic  # here: it takes longer than all of `import banyan`

    try:
        adapter: Any = pydantic.TypeAdapter(kind)
        return adapter.json_schema(), adapter.validate_json
    except pydantic.errors.PydanticUserError as e:
        raise TypeError(str(e).partition("\n")[0]) from e


_SPELLED = {
    ("format", "decimal"): r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$",
    ("contentEncoding", "base64"): "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
"""What msgspec's schemas say of Decimal and bytes, which holds no text to anything -> what holds it."""


def _closed(schema: Any) -> Any:
    """An object has the properties that its type names, and no others, unless the type itself says so.

    That a set holds nothing twice is left to the set: a text cannot be held to it while it is written.
    """
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: value if key in ("default", "examples", "enum", "const") else _closed(value)
              for key, value in schema.items() if (key, value) != ("uniqueItems", True)}  # fmt: skip
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    for (key, value), pattern in _SPELLED.items():
        if schema.get("type") == "string" and schema.get(key) == value:
            closed.setdefault("pattern", pattern)
    return closed


def _of_term(term: Any) -> OutputType:
    """One of outlines' own: Regex, JsonSchema, CFG, Choice, and what is put together of them."""
    spec = _through_outlines(term)
    return OutputType(
        f"{type(term).__name__} of outlines", spec, msgspec.json.decode if spec.kind == "json_schema" else str
    )


def _through_outlines(kind: Any) -> ConstraintSpec:
    from banyan.lang.outlines_terms import to_spec  # here: outlines takes seconds to load

    return to_spec(kind)


def _reason(error: Exception) -> str:
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):  # pydantic's words link to its pages
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return str(error) or type(error).__name__


def _short(text: str) -> str:
    return repr(text) if len(text) <= 200 else f"{text[:100]!r} ... {text[-100:]!r}"


def _label(kind: Any) -> str:
    plain = isinstance(kind, type) and get_origin(kind) is None
    return kind.__name__ if plain or is_typeddict(kind) else str(kind).replace("typing.", "")


# ---- what of a value is there --------------------------------------------------------------------------------------


def partial(text: str) -> Any:
    """The JSON value that `text` begins, as far as it goes; ValueError before it has begun.

    Objects and lists hold what has come; the last string, and the last number, may still go on.
    """
    from pydantic_core import from_json  # here, as above

    return from_json(text, allow_partial="trailing-strings")
