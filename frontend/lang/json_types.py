"""Python types whose values are written as JSON: their JSON schema, and the function that reads the text.

msgspec describes a type, unless the type contains metadata or classes for pydantic, or msgspec does not know it; then
pydantic describes it. Each library ignores the other's bounds. So a type that has bounds of both is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from types import FunctionType, MethodType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import inspect

from banyan.lang.fstring import holds_expression
from banyan.runtime.protocol import text_forms

Parse: TypeAlias = Callable[[str], Any]


class JsonType(NamedTuple):
    """A Python type that is written as JSON. schema: its JSON schema. decode: makes the object from a JSON text, and
    raises if the text is invalid."""

    schema: dict[str, Any]
    decode: Parse


def json_type(kind: Any) -> JsonType:
    """The JSON schema and decoder of a Python type. TypeError: the type has no JSON schema, or a bound in it would not
    be enforced."""
    parts = _parts(kind)
    if not _asks_pydantic(parts):
        try:
            schema, decoder = msgspec.json.schema(kind), msgspec.json.Decoder(kind)
        except KeyError as e:
            raise TypeError(f"it contains two classes of the same name, {_shown(e.args[0])}") from e
        except (TypeError, RuntimeError, NotImplementedError) as e:  # pydantic knows more types
            if ours := _msgspec_parts(parts):
                raise TypeError(f"{_shown(ours[0])} needs msgspec, which says: {str(e).splitlines()[-1]}") from e
        else:
            _mend(schema, inspect.type_info(kind), schema.get("$defs", {}), set())
            return JsonType(tightened(schema), decoder.decode)
    from banyan.lang.pydantic_types import schema_and_decoder  # lazily: pydantic is slow to import

    schema, decode = schema_and_decoder(kind)
    return JsonType(tightened(schema), decode)


# ---- what a type contains --------------------------------------------------------------------------------------------


class _Parts(NamedTuple):
    """The classes that occur in a type (itself, its fields, its type arguments and so on), and the metadata of each
    `Annotated` in it."""

    classes: list[type]
    metadata: list[Any]


def _parts(*kinds: Any) -> _Parts:
    """Collect the classes and the metadata that occur in the types `kinds`, at any depth. TypeError: the type hints of
    a class cannot be read, a function stands for a type, or a union would crash msgspec."""
    parts, todo, seen = _Parts([], []), list(kinds), dict[int, Any]()
    unions, values = list[Any](), dict[Any, list[Any]]()  # values: TypeVar of a generic class -> its arguments
    while todo:
        kind = todo.pop()
        if id(kind) in seen:
            continue
        seen[id(kind)] = kind  # kept, so that no other object gets its id
        origin = get_origin(kind)
        if origin is Annotated:
            parts.metadata.extend(kind.__metadata__)
            todo.append(kind.__origin__)
        elif origin is not None and origin is not Literal:
            if origin in _UNIONS:
                unions.append(kind)
            else:
                for variable, value in zip(getattr(origin, "__parameters__", ()), get_args(kind), strict=False):
                    values.setdefault(variable, []).append(value)
            todo += [origin, *get_args(kind)]
        elif isinstance(kind, type):
            parts.classes.append(kind)
            todo += _fields(kind, parts.metadata)
        elif isinstance(kind, TypeVar):
            todo += [kind.__bound__, *kind.__constraints__]
        elif isinstance(kind, FunctionType | MethodType | partial):
            name = getattr(kind, "__qualname__", kind)
            raise TypeError(f"pydantic would call {name}, a function; write a TypedDict of its parameters")
        else:  # NewType, and an alias made by `type X = ...`
            todo += [getattr(kind, "__supertype__", None), getattr(kind, "__value__", None)]
    for union in unions:
        _check_union(union, values)
    return parts


_UNIONS = (Union, UnionType)


def _check_union(union: Any, values: dict[Any, list[Any]]) -> None:
    """TypeError: the union has both a tuple of fixed length and a bound on a number or a length. msgspec 0.22.0
    confuses the two, and crashes the process. values: TypeVar -> the types that it stands for."""
    bounds, tuples, todo, seen = list[msgspec.Meta](), list[Any](), [union], list[Any]()
    while todo:
        kind = todo.pop()
        origin, args = get_origin(kind), get_args(kind)
        if origin is Annotated:
            bounds += [one for one in kind.__metadata__ if isinstance(one, msgspec.Meta) and _has_bound(one, _SIZES)]
            todo.append(kind.__origin__)
        elif origin in _UNIONS:
            todo += args
        elif origin is tuple and Ellipsis not in args:
            tuples.append(kind)
        elif isinstance(kind, TypeVar) and kind not in seen:
            seen.append(kind)  # a TypeVar may stand for itself
            todo += [kind.__bound__, *kind.__constraints__, *values.get(kind, ())]
        else:  # NewType, and an alias made by `type X = ...`
            names = ("__supertype__", "__value__")
            todo += [getattr(kind, name) for name in names if hasattr(kind, name)]
    if bounds and tuples:
        raise TypeError(
            f"msgspec cannot read {tuples[0]} in a union with {bounds[0]}; write a NamedTuple for the tuple"
        )


def _fields(cls: type, metadata: list[Any]) -> Iterable[Any]:
    """Returns the types of the fields of a class; () for a class without declared fields. A pydantic model keeps the
    metadata of a field separate from its type: this metadata is added to `metadata`. TypeError: the type hints cannot
    be read."""
    if isinstance(fields := getattr(cls, "__pydantic_fields__", None), dict):
        for field in fields.values():
            metadata.extend(field.metadata)
        return [field.annotation for field in fields.values()]
    marks = ("__dataclass_fields__", "__required_keys__", "_fields", "__struct_fields__", "__attrs_attrs__")
    if not any(hasattr(cls, mark) for mark in marks):
        return ()
    try:
        return get_type_hints(cls, include_extras=True).values()
    except Exception as e:  # evaluating a hint can raise anything
        raise TypeError(f"the type hints of {cls.__name__} cannot be read: {e}") from e


def needs_pydantic(*kinds: Any) -> bool:
    """Whether the types contain something that only pydantic enforces. If not, msgspec enforces everything in them.

    TypeError: the types contain something that only pydantic enforces and something that only msgspec enforces;
    msgspec would misread a value; or type hints cannot be read.
    """
    return _asks_pydantic(_parts(*kinds))


def _asks_pydantic(parts: _Parts) -> bool:
    theirs, ours = _pydantic_parts(parts), _msgspec_parts(parts)
    if theirs and ours:
        theirs = [one for one in theirs if getattr(one, "metadata", True)]  # drop a Field() without bounds
        if theirs:
            raise TypeError(
                f"{_shown(theirs[0])} belongs to pydantic and {_shown(ours[0])} to msgspec, and neither library "
                "enforces the other's; write msgspec.Meta(ge=0) in a Struct, pydantic.Field(ge=0) elsewhere"
            )
    if theirs:
        from banyan.lang.pydantic_types import check_metadata  # lazily: pydantic is slow to import

        check_metadata(parts.metadata)
    else:
        _check_msgspec(parts)
    return bool(theirs)


def _check_msgspec(parts: _Parts) -> None:
    """Check that msgspec reads the types correctly. TypeError: a class has a field with init=False, which msgspec would
    read from the text, or a type has a `multiple_of` that a float cannot represent exactly."""
    for cls in parts.classes:
        fields = (*getattr(cls, "__dataclass_fields__", {}).values(), *getattr(cls, "__attrs_attrs__", ()))
        if name := next((field.name for field in fields if not field.init), None):
            raise TypeError(
                f"msgspec would read the field {name!r} of {cls.__name__}, which has init=False, from the output; "
                "make it a property, or read a class without it and make this one from that"
            )
    for one in parts.metadata:
        # msgspec computes with floats, which is exact only if a float can represent the multiple
        multiple = one.multiple_of if isinstance(one, msgspec.Meta) else None
        if multiple is not None and Fraction(multiple) != Fraction(str(multiple)):
            raise TypeError(
                f"msgspec computes with floats, in which 0.07 is no multiple of 0.01, so multiple_of={multiple} would "
                f"refuse valid values; write pydantic.Field(multiple_of={multiple}), which allows for rounding"
            )


_SIZES = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length")
_BOUNDS = (*_SIZES, "pattern", "tz")


def _msgspec_parts(parts: _Parts) -> list[Any]:
    """The entries of `parts` that only msgspec enforces: Structs, which pydantic does not know, and msgspec.Meta with
    bounds, which pydantic ignores."""
    return [one for one in parts.classes if hasattr(one, "__struct_fields__")] + [
        one for one in parts.metadata if isinstance(one, msgspec.Meta) and _has_bound(one, _BOUNDS)
    ]


def _has_bound(meta: msgspec.Meta, names: Iterable[str]) -> bool:
    return any(getattr(meta, name) is not None for name in names)


def _pydantic_parts(parts: _Parts) -> list[Any]:
    """The entries of `parts` that msgspec ignores: metadata that pydantic enforces, and classes that define their own
    validation for pydantic."""
    return [one for one in parts.metadata if _is_pydantic(one)] + [
        one for one in parts.classes if not hasattr(one, "__struct_fields__") and _has_hooks(one)
    ]


def _is_pydantic(one: Any) -> bool:
    cls = one if isinstance(one, type) else type(one)
    if cls.__name__ == "DocInfo":  # annotated_types' description
        return False
    modules = {base.__module__.partition(".")[0] for base in cls.__mro__}
    return not modules.isdisjoint(("annotated_types", "pydantic")) or hasattr(one, "__get_pydantic_core_schema__")


def _has_hooks(cls: type) -> bool:
    """Whether a class has methods or attributes that pydantic reads, such as a `field_validator` or a `Field()`."""
    return any(
        name.startswith(("__pydantic_", "__get_pydantic_")) or type(value).__module__.partition(".")[0] == "pydantic"
        for base in cls.__mro__
        for name, value in vars(base).items()
    )


def _shown(one: Any) -> str:
    if isinstance(one, type):
        return one.__name__
    return f"{next(iter(getattr(one, 'metadata', ())), one)!r:.80}"  # for a Field(), its first bound


# ---- schemas ---------------------------------------------------------------------------------------------------------


def _mend(part: dict[str, Any], info: Any, defs: dict[str, Any], seen: set[str]) -> None:
    """Complete `part`, the schema that msgspec wrote for a type, in place: add patterns of dates, times and bytes, and
    restore the order of a TypedDict's keys, which msgspec sorts by name. info: the type's description by
    msgspec.inspect. defs: the definitions of the whole schema. seen: the names of the definitions already completed.

    TypeError: a dict has keys other than str, which msgspec's schemas do not constrain.
    """
    while isinstance(info, inspect.Metadata):
        info = info.type
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        if name in seen:
            return
        seen.add(name)
        part = defs[name]
    below: Iterable[tuple[Any, Any]] = ()
    match info:
        case inspect.DateTimeType(tz=has_zone) | inspect.TimeType(tz=has_zone):
            write = text_forms.date_time if isinstance(info, inspect.DateTimeType) else text_forms.time
            part["pattern"] = f"^{write(has_zone)}$"
            part.pop("format", None)
        case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
            part["pattern"] = f"^{text_forms.base64(info.min_length or 0, info.max_length)}$"
            for bound in ("minLength", "maxLength"):
                part.pop(bound, None)
        case inspect.CollectionType():
            below = [(part.get("items"), info.item_type)]
        case inspect.TupleType():
            below = zip(part.get("prefixItems", ()), info.item_types, strict=True)
        case inspect.DictType() | inspect.FrozenDictType():
            key = info.key_type
            while isinstance(key, inspect.Metadata):
                key = key.type
            if not isinstance(key, inspect.StrType | inspect.AnyType):
                raise TypeError("the keys of a dict must be str; if the keys are known, write a TypedDict")
            below = [(part.get("additionalProperties"), info.value_type)]
        case inspect.UnionType():
            below = zip(_options(part), sorted(info.types, key=_place_in_union), strict=True)
        case inspect.TypedDictType():
            keys = get_type_hints(get_origin(info.cls) or info.cls)
            part["properties"] = {key: part["properties"][key] for key in keys}
            below = [(part["properties"][field.encode_name], field.type) for field in info.fields]
        case inspect.StructType() | inspect.DataclassType() | inspect.NamedTupleType():
            found = [*part.get("properties", {}).values(), *part.get("prefixItems", ())]
            # a tagged Struct begins with its tag
            below = zip(found[len(found) - len(info.fields) :], (one.type for one in info.fields), strict=True)
    for one, inner in below:
        if isinstance(one, dict):
            _mend(one, inner, defs, seen)


def _place_in_union(info: Any) -> int:
    """The key by which the types of a union are sorted into the order of msgspec's schema: other types first, Structs
    after them, None last. `info` describes the type. Types with equal keys keep their order."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    is_struct = isinstance(info, inspect.StructType) and not info.array_like
    return 2 if isinstance(info, inspect.NoneType) else int(is_struct)


def _options(part: dict[str, Any]) -> list[Any]:
    """The schemas of a union's types as one flat list: msgspec puts several Structs into a nested union."""
    return [
        one
        for option in part["anyOf"]
        for one in (option["anyOf"] if isinstance(option, dict) and "discriminator" in option else [option])
    ]


_STANDARD = ("date", "date-time", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
"""String formats that the server enforces in the same way as the libraries."""
_NAMED = ("$defs", "patternProperties", "properties")
_ANNOTATIONS = ("default", "examples")  # their values may be invalid JSON, such as NaN
_VALUES = ("const", "enum")


def tightened(schema: Any) -> Any:
    """Returns a stricter copy of a JSON schema that msgspec or pydantic made for a type. An object may have only the
    properties, and a tuple only the items, that the schema names, unless the schema allows others explicitly. String
    formats that JSON Schema lacks or defines differently, such as "decimal", become patterns. Defaults and examples
    are dropped.

    `uniqueItems` is dropped, because it cannot be enforced while the text is generated; when the text is parsed, a set
    drops duplicates. Formats that the server does not enforce are dropped: they are checked when the text is parsed.
    """
    if isinstance(schema, list):
        return [tightened(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    tight = dict[str, Any]()
    for key, value in schema.items():
        if key in _NAMED:
            named = _as_decoded if key == "patternProperties" else str
            tight[key] = {named(name): tightened(one) for name, one in value.items()}
        elif key == "pattern":
            tight[key] = _as_decoded(value)
        elif (
            key in _ANNOTATIONS or (key == "format" and value not in _STANDARD) or (key, value) == ("uniqueItems", True)
        ):
            continue
        else:
            tight[key] = value if key in _VALUES else tightened(value)
    if schema.get("type") == "object" and not schema.keys().isdisjoint(("patternProperties", "properties")):
        tight.setdefault("additionalProperties", False)
    if schema.get("type") == "array" and "prefixItems" in schema:
        tight.setdefault("items", False)
    if schema.get("type") == "string" and schema.get("format") in text_forms.FORMATS:
        tight.setdefault("pattern", f"^(?:{text_forms.FORMATS[schema['format']]})$")
    return tight


def _as_decoded(pattern: str) -> str:
    r"""Rewrite a pattern so that all text that is generated under it also passes when it is parsed. While the text is
    generated, \d and \w match only ASCII characters. When it is parsed, they match other digits and letters too. So \D
    and \W, and \d and \w after [^, are replaced by classes of the characters that match in both cases."""
    return text_forms.with_classes(pattern, _COMPLEMENTS)


_WORD = r"\u200c\u200d\p{Alphabetic}\p{M}\p{N}\p{Pc}"
r"""The characters that \w matches in Python or in Rust."""
_COMPLEMENTS = {
    "": {r"\D": r"\P{Nd}", r"\W": f"[^{_WORD}]"},
    "[": {r"\D": r"\P{Nd}", r"\W": r"\x01-/:-@\[-\^`{-\x7f"},  # only ASCII: a class cannot contain a negated class
    "[^": {r"\d": r"\p{Nd}", r"\w": _WORD},
}
"""Place of an escape (outside of brackets, or after "[" or "[^") -> escape -> what replaces it."""


# ---- JSON text -------------------------------------------------------------------------------------------------------


def check_keys(text: str) -> None:
    """Check the keys of a JSON text. ValueError: an object has a key twice; decoders would keep only the last value."""
    json.loads(text, object_pairs_hook=_check_pairs, parse_int=str, parse_float=str)


def _check_pairs(pairs: list[tuple[str, Any]]) -> None:
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {key!r} occurs twice in one object")
        seen.add(key)


_only_address = re.compile("<[^=:,(]* at 0x[0-9a-fA-F]+>+")
"""Matches the repr of a function, a method or an object without a text. A repr with one of =:,( has content and does
not match."""


def plain(value: Any, holder: str = "the result") -> Any:
    """Convert a value that msgspec does not know: a pydantic model to a dict, any other value to its text. holder: what
    holds the value, for the error. TypeError: the text says only the class and the address, as in "<Foo object at
    0x7f...>", or the value is an expression."""
    if hasattr(type(value), "model_dump_json"):
        return value.model_dump(mode="json")
    text = str(value)
    if holds_expression(text):
        raise TypeError(f"{holder} holds an expression, such as s.ref('x'); store its text, s['x']")
    if _only_address.fullmatch(text):
        name = type(value).__qualname__
        raise TypeError(f"{holder} holds an object of class {name}, which has no text; make it a str or a dict")
    return text
