"""The negation of a schema, and a test whether two schemas are disjoint.

Each keyword restricts values of one type and allows all others. So a schema is a conjunction of "if the value has this
type, then ...", and its negation is a disjunction of "the value has this type, and not ...". Keywords whose negation
JSON Schema cannot express are rejected by name. One approximation is made, which allows fewer values: the negation of
integers excludes fractions.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any, cast

from banyan.runtime.constraint.schema.read import Document, Schema
from banyan.runtime.errors import ConstraintUnsupported

TYPES = ("null", "boolean", "object", "array", "number", "string")
_OPPOSITE = {"maximum": "exclusiveMinimum", "minimum": "exclusiveMaximum",
             "exclusiveMaximum": "minimum", "exclusiveMinimum": "maximum"}  # fmt: skip
_COUNTED = {"Length": "string", "Items": "array", "Properties": "object"}
_MAX_REFS = 16  # references that a negation follows
_MAX_WORD = 81  # characters of a string that is excluded: the compiler takes 250 nested parentheses, three for each


def any_of(schemas: list[Schema]) -> Schema:
    """Return a schema that allows the values that any of `schemas` allows: True, False, a single schema, or an
    `anyOf`."""
    kept = [one for one in schemas if one is not False]
    if True in kept or {} in kept:
        return True
    return False if not kept else kept[0] if len(kept) == 1 else {"anyOf": kept}


def all_of(schemas: list[Schema]) -> Schema:
    """Return a schema that allows the values that all of `schemas` allow: True, False, a single schema, or an
    `allOf`."""
    kept = [one for one in schemas if one is not True and one != {}]
    if False in kept:
        return False
    return True if not kept else kept[0] if len(kept) == 1 else {"allOf": kept}


def types_of(schema: Schema) -> set[str]:
    """The JSON types that a schema's own `type`, `enum` and `const` allow. "number" includes integers, so "integer" is
    returned only without "number"."""
    if isinstance(schema, bool):
        return set(TYPES) if schema else set()
    named = schema.get("type", TYPES)
    found = {named} if isinstance(named, str) else set(named)
    if (values := _values(schema)) is not None:
        found = meet(found, {type_of(value) for value in values})
    return found - {"integer"} if "number" in found else found


def type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {int: "number", float: "number", str: "string", dict: "object", list: "array"}
    return "null" if value is None else kinds[type(value)]


def negation(schema: Schema, document: Document, depth: int = 0) -> Schema:
    """A schema that allows what `schema` does not. Raises ConstraintUnsupported if a keyword cannot be negated."""
    if isinstance(schema, bool):
        return not schema
    if depth > _MAX_REFS:
        raise ConstraintUnsupported('JSON Schema keyword "not" around a schema that refers to itself is not supported')

    def no(below: Schema) -> Schema:
        return negation(below, document, depth + 1)

    rest, parts = dict(schema), []
    if "$ref" in rest:
        parts.append(no(document.target(rest.pop("$ref"))))
    if "if" in rest:
        condition, then, other = (rest.pop(key, True) for key in ("if", "then", "else"))
        parts += [all_of([condition, no(then)]), all_of([no(condition), no(other)])]
    if "contains" in rest:
        minimum, maximum = rest.pop("minContains", 1), rest.pop("maxContains", None)
        if maximum is not None or minimum > 1:
            raise _unsupported("minContains" if maximum is None else "maxContains")
        below = rest.pop("contains")
        parts.append({"type": "array", "items": no(below)} if minimum else False)
    if "items" in rest or "prefixItems" in rest:
        before = rest.pop("prefixItems", [])
        for n, one in enumerate(before):
            parts.append({"type": "array", "minItems": n + 1, "prefixItems": [*[True] * n, no(one)]})
        if rest.get("items", True) is False:
            parts.append({"type": "array", "minItems": len(before) + 1})
        elif rest.get("items", True) is not True:
            raise _unsupported("items")
        rest.pop("items", None)
    parts += [_negated(key, value, no) for key, value in rest.items()]
    return any_of(parts)


def _negated(key: str, value: Any, no: Any) -> Schema:
    """Return the negation of one keyword, whose meaning does not depend on other keywords. no: function that negates a
    subschema. Raises ConstraintUnsupported if JSON Schema cannot express the negation."""
    match key:
        case "type":
            named = {value} if isinstance(value, str) else set(value)
            left = [one for one in TYPES if one not in named and not (one == "number" and "integer" in named)]
            return {"type": left} if left else False
        case "const":
            return _not_among([value])
        case "enum":
            return _not_among(value)
        case "not":
            return cast(Schema, value)
        case "allOf":
            return any_of([no(one) for one in value])
        case "anyOf":
            return all_of([no(one) for one in value])
        case "required":
            return any_of([{"type": "object", "properties": {name: False}} for name in value])
        case "properties":
            held = [(name, no(below)) for name, below in value.items()]
            return any_of(
                [{"type": "object", "required": [n], "properties": {n: b}} for n, b in held if b is not False]
            )
        case "dependentRequired":
            return any_of([
                {"type": "object", "required": [name], "properties": {need: False}}
                for name, needs in value.items()
                for need in needs
            ])  # fmt: skip
        case "dependentSchemas":
            return any_of([all_of([{"type": "object", "required": [n]}, no(one)]) for n, one in value.items()])
        case "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems" if value is True:
            return False
        case "maximum" | "minimum" | "exclusiveMaximum" | "exclusiveMinimum":
            return {"type": "number", _OPPOSITE[key]: value}
        case "maxLength" | "maxItems" | "maxProperties":
            return {"type": _COUNTED[key[3:]], f"min{key[3:]}": value + 1}
        case "minLength" | "minItems" | "minProperties":
            return {"type": _COUNTED[key[3:]], f"max{key[3:]}": value - 1} if value else False
    raise _unsupported(key)


def _unsupported(key: str) -> ConstraintUnsupported:
    return ConstraintUnsupported(f'JSON Schema keyword "{key}" is not supported under "not", "if" or "oneOf"')


def _not_among(values: list[Any]) -> Schema:
    """Return a schema that allows all values but the given ones. Raises ConstraintUnsupported if they include an object
    or array that is not empty."""
    by_type: dict[str, list[Any]] = {}
    for value in values:
        by_type.setdefault(type_of(value), []).append(value)
    open_types = [one for one in TYPES if one not in by_type]
    parts: list[Schema] = [{"type": open_types}] if open_types else []
    if "boolean" in by_type:
        parts.append({"enum": [one for one in (False, True) if one not in by_type["boolean"]]})
    if "string" in by_type:
        parts.append({"type": "string", "pattern": f"^(?:{all_but(by_type['string'])})$"})
    if "number" in by_type:
        points = sorted(set(by_type["number"]))
        edges = [None, *points, None]
        for low, high in pairwise(edges):
            bounds = {"exclusiveMinimum": low, "exclusiveMaximum": high}
            parts.append({"type": "number"} | {key: point for key, point in bounds.items() if point is not None})
    for kind, minimum in (("object", "minProperties"), ("array", "minItems")):
        if any(by_type.get(kind, ())):
            raise ConstraintUnsupported(f'"const" and "enum" of {kind}s are not supported under "not", "if" or "oneOf"')
        if kind in by_type:
            parts.append({"type": kind, minimum: 1})
    return any_of([one for one in parts if one != {"enum": []}])


def all_but(words: list[str]) -> str:
    """A regex for all strings but `words`. A match leaves the prefix tree of the words, or ends at a node at which no
    word ends. Raises ConstraintUnsupported if a word is too long."""
    if (n := max(map(len, words), default=0)) > _MAX_WORD:
        raise ConstraintUnsupported(f"a string of {n} characters cannot be excluded; the limit is {_MAX_WORD}")
    heads = sorted({word[0] for word in words if word})
    leave = f"[^{''.join(map(_in_class, heads))}][\\s\\S]*" if heads else "[\\s\\S]+"
    below = [re.escape(head) + f"(?:{all_but([word[1:] for word in words if word[:1] == head])})" for head in heads]
    return "|".join([leave, *below, *([] if "" in words else [""])])


def _in_class(character: str) -> str:
    return f"\\{character}" if character in "\\]^-[&~" else character


def disjoint(a: Schema, b: Schema, document: Document, types: set[str], depth: int = 0) -> bool:
    """Whether no value of these types is allowed by both schemas. False if that cannot be decided."""
    if depth > _MAX_REFS:
        return False
    a, b = resolve(a, document), resolve(b, document)
    if a is False or b is False:
        return True
    if a is True or b is True:
        return False
    left = meet(meet(types_of(a), types_of(b)), types)
    if not left:
        return True
    for one, other in ((a, b), (b, a)):
        for key in ("anyOf", "oneOf"):
            if key in one and all(disjoint(x, other, document, types, depth + 1) for x in one[key]):
                return True
    values, others = _values(a), _values(b)
    if values is not None and others is not None:
        return not {canonical(value) for value in values} & {canonical(value) for value in others}
    if left <= {"number", "integer"}:
        return _above(a, b) or _above(b, a)
    if left != {"object"}:
        return False
    return any(
        disjoint(_property(a, name), _property(b, name), document, set(TYPES), depth + 1)
        for name in {*a.get("required", ()), *b.get("required", ())}
    )


def resolve(schema: Schema, document: Document) -> Schema:
    """The target of a schema that consists of one reference or an `allOf` of one schema; else the schema itself."""
    for _ in range(_MAX_REFS):
        if isinstance(schema, dict) and schema.keys() == {"$ref"}:
            schema = document.target(schema["$ref"])
        elif isinstance(schema, dict) and schema.keys() == {"allOf"} and len(schema["allOf"]) == 1:
            schema = schema["allOf"][0]
        else:
            break
    return schema


def meet(a: set[str], b: set[str]) -> set[str]:
    """The types in both sets. "number" includes "integer": if one set has "number" and the other "integer", the result
    has "integer"."""
    return a & b | ({"integer"} if ("number" in a and "integer" in b) or ("integer" in a and "number" in b) else set())


def canonical(value: Any) -> str:
    """A string that is equal for values that JSON Schema considers equal, such as 1 and 1.0."""

    def plain(one: Any) -> Any:
        if isinstance(one, float) and one.is_integer():
            return int(one)
        if isinstance(one, list):
            return [plain(below) for below in one]
        return {key: plain(below) for key, below in one.items()} if isinstance(one, dict) else one

    return json.dumps(plain(value), sort_keys=True)


def _values(schema: dict[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _property(schema: dict[str, Any], name: str) -> Schema:
    """What a schema requires of a property's value; True if unknown."""
    if name in schema.get("properties", ()):
        value: Schema = schema["properties"][name]
        return value
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return not closed


def _above(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether all numbers that `a` allows are greater than all that `b` allows."""
    lows = [(a[key], key == "minimum") for key in ("minimum", "exclusiveMinimum") if key in a]
    highs = [(b[key], key == "maximum") for key in ("maximum", "exclusiveMaximum") if key in b]
    return any(low > high or (low == high and not (i and j)) for low, i in lows for high, j in highs)
