"""Reads a JSON Schema of any draft into one normal form: draft 2020-12, only assertions, all references to $defs.

Keywords that do not restrict values are dropped: titles, comments, formats that only annotate, unknown keywords.
Keywords of earlier drafts (tuples as `items`, `dependencies`, a boolean `exclusiveMinimum`, ignored neighbours of
`$ref`) are converted. Schemas in normal form can be split and combined without resolving addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from jsonschema_specifications import REGISTRY

from banyan.runtime.constraint.schema.form import check_form
from banyan.runtime.errors import ConstraintSyntax, ConstraintTooLarge, ConstraintUnsatisfiable, ConstraintUnsupported
from banyan.runtime.protocol import text_forms

Schema = bool | dict[str, Any]

NODES, DEPTH, CHAIN, ENUM, DIGITS = 20_000, 128, 128, 10_000, 9_999
"""Limits of subschemas, nesting depth, chained references, values of an enum, and the coefficient of a multipleOf."""
MULTIPLE = 1e300
"""The limit of a multipleOf. The least common multiple of two numbers within this limit and DIGITS is still a float."""
LEAST = 100_000
"""Maximum number of items, characters or properties that a schema may require a value to have."""

ONE = ("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems",
       "unevaluatedProperties")  # fmt: skip
MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED = ("dependentSchemas", "patternProperties", "properties")
"""Keywords whose value is a schema, a list of schemas, or an object of schemas."""
DEFS = ("$defs", "definitions")
REFS = ("$ref", "$dynamicRef", "$recursiveRef")
COUNTS = tuple(f"{end}{what}" for end in ("max", "min") for what in ("Contains", "Items", "Length", "Properties"))
PLAIN = ("const", "dependentRequired", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maximum", "minimum",
         "multipleOf", "pattern", "required", "type", "uniqueItems", *COUNTS)  # fmt: skip


class _SchemaLocation(NamedTuple):
    """A schema in the document, the base address of its references, and its JSON pointer."""

    schema: Any
    base: str
    path: str


class Document:
    """A schema and the definitions that it refers to, in normal form.

    root        the schema
    defs        name -> definition; a reference is {"$ref": "#/$defs/NAME"}, possibly with other keywords beside it
    is_partial  whether something was left out, because the finished value is validated anyway: a reference that
                cannot be followed, or a `multipleOf` with too many digits
    """

    def __init__(self, schema: Schema, is_checked: bool = False) -> None:
        """Read the schema. is_checked: the finished value is validated, so some parts that cannot be enforced are left
        out (see `is_partial`) instead of refused. Raises a ConstraintError that says what is wrong and where."""
        self._is_checked, self.is_partial = is_checked, False
        dialect = schema.get("$schema", "") if isinstance(schema, dict) else ""
        found = re.search(r"draft-0([3-7])", dialect) if isinstance(dialect, str) else None
        self._draft = int(found[1]) if found else 2020
        _check_depth(schema)
        check_form(schema)
        self._roots: dict[str, _SchemaLocation] = {}  # address -> schema
        self._anchors: dict[str, _SchemaLocation] = {}
        self._dynamic: dict[str, set[str]] = {}  # name of a dynamic anchor -> addresses that define it
        self._index(_SchemaLocation(schema, "", ""))
        self._roots.setdefault("", _SchemaLocation(schema, "", ""))
        self._names: dict[int, str] = {}  # id of a referenced schema -> its name
        self._queue: list[tuple[str, _SchemaLocation]] = []
        self._n_nodes = 0
        self.defs: dict[str, Schema] = {}
        self.root = self._read(_SchemaLocation(schema, "", ""))
        while self._queue:
            name, place = self._queue.pop()
            self.defs[name] = self._read(place)
        self._check_chains()

    def target(self, ref: str) -> Schema:
        """The definition that {"$ref": ref} refers to."""
        return self.defs[target_name(ref)]

    # ---- addresses -------------------------------------------------------------------------------------------------

    def _base_of(self, schema: Any, base: str) -> str:
        own = schema.get("id" if self._draft == 4 else "$id") if isinstance(schema, dict) else None
        if not isinstance(own, str) or (self._draft <= 7 and "$ref" in schema):
            return base
        return urldefrag(_join(base, own)).url

    def _index(self, place: _SchemaLocation) -> None:
        """Record all addresses and anchors in a schema."""
        schema = place.schema
        if not isinstance(schema, dict):
            return
        base = self._base_of(schema, place.base)
        if base != place.base or not place.path:
            self._roots[base] = place
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self._anchors[f"{base}#{schema[key]}"] = place
        if isinstance(schema.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(schema["$dynamicAnchor"], set()).add(base)
        own = schema.get("$id")
        if self._draft <= 7 and isinstance(own, str) and own.startswith("#"):  # how earlier drafts wrote an anchor
            self._anchors[f"{base}{own}"] = place
        for _, _, below in _below(schema, place.path, base, (*NAMED, *DEFS)):
            self._index(below)

    def _find(self, ref: str, base: str, path: str) -> _SchemaLocation:
        address, fragment = urldefrag(_join(base, ref))
        root = self._roots.get(address)
        if root is None:
            raise ConstraintUnsupported(
                f"the reference {ref[:200]!r} at {path or '/'} points outside of the schema; copy that document into "
                "$defs, with its address as $id"
            )
        if fragment and not fragment.startswith("/"):
            if (anchor := self._anchors.get(f"{address}#{unquote(fragment)}")) is None:
                raise ConstraintSyntax(f"invalid JSON Schema: there is no anchor for {ref[:200]!r} at {path or '/'}")
            return anchor
        at, where, base = root.schema, root.path, root.base
        for part in fragment.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            base = self._base_of(at, base)
            if isinstance(at, dict) and key in at:
                at = at[key]
            elif isinstance(at, list) and key.isdecimal() and int(key) < len(at):
                at = at[int(key)]
            else:
                raise ConstraintSyntax(f"invalid JSON Schema: {ref[:200]!r} at {path or '/'} has no target")
            where += f"/{part}"
        if not isinstance(at, dict | bool):
            raise ConstraintSyntax(f"invalid JSON Schema: {ref[:200]!r} at {path or '/'} does not point to a schema")
        return _SchemaLocation(at, base, where)

    def _name(self, ref: str, place: _SchemaLocation) -> str:
        """Return the name under which a reference's target is in `defs`, and queue the target to be read if it is new.
        If the target is only a reference itself, its own target is taken. place: the schema that contains the reference
        `ref`."""
        seen = set()
        while True:
            place = self._find(ref, self._base_of(place.schema, place.base), place.path)
            schema, key = place.schema, id(place.schema)
            if key in seen:
                raise ConstraintSyntax(f"invalid JSON Schema: the reference at {place.path or '/'} points to itself")
            seen.add(key)
            if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and self._is_alias(schema)):
                break
            if not self._is_followed("$ref", place):
                break
            ref = schema["$ref"]
        if key not in self._names:
            self._names[key] = f"d{len(self._names)}"
            self._queue.append((self._names[key], place))
        return self._names[key]

    def _is_alias(self, schema: dict[str, Any]) -> bool:
        """Whether a schema has no restriction beside its `$ref`."""
        assertions = {"$dynamicRef", *ONE, *MANY, *NAMED, *PLAIN, "additionalItems", "dependencies"}
        return self._draft <= 7 or not assertions & schema.keys()

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _read(self, place: _SchemaLocation) -> Schema:
        self._n_nodes += 1
        if self._n_nodes > NODES:
            raise ConstraintTooLarge(f"the schema has more than {NODES} subschemas")
        schema = place.schema
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise ConstraintSyntax(f"invalid JSON Schema: {str(schema)[:80]!r} is not a schema at {place.path or '/'}")
        base = self._base_of(schema, place.base)
        out: dict[str, Any] = {}
        refs = [key for key in REFS if isinstance(schema.get(key), str) and self._is_followed(key, place)]
        names = [self._name(schema[key], place) for key in refs]
        if names:
            out["$ref"] = f"#/$defs/{names[0]}"
            if self._draft <= 7:
                return out
        schema = _modern(schema)
        for key in PLAIN:
            if self._is_checked and key == "multipleOf" and _is_long(schema.get(key, 1)):
                self.is_partial = True
            elif key in schema:
                out |= _plain(key, schema[key], f"{place.path}/{key}")
        for key, name, below in _below(schema, place.path, base, NAMED):
            value = self._read(below)
            if key in ONE:
                out[key] = value
            elif key in MANY:
                out.setdefault(key, []).append(value)
            else:
                out.setdefault(key, {})[name] = value
        if names and "properties" in out:  # so that the schema's own properties are written first
            out.setdefault("allOf", []).append({"$ref": out.pop("$ref")})
        for name in names[1:]:
            out.setdefault("allOf", []).append({"$ref": f"#/$defs/{name}"})
        for keyword, dependents in (("if", ("then", "else")), ("contains", ("minContains", "maxContains"))):
            if keyword not in out:
                for dependent in dependents:  # these have no meaning without `keyword`
                    out.pop(dependent, None)
        return out

    def _is_followed(self, key: str, place: _SchemaLocation) -> bool:
        """Whether a reference can be followed. If not, the reference is left out and `is_partial` set if the finished
        value is validated; otherwise a ConstraintUnsupported is raised, here or when the target is looked up. These
        cannot be followed: a `$recursiveRef`; a `$dynamicRef` to an anchor that several schemas define (any other one
        is read as a `$ref`); a reference to a metaschema. key: the keyword, one of REFS."""
        address, name = urldefrag(_join(self._base_of(place.schema, place.base), place.schema[key]))
        if key == "$ref":
            is_followed = not self._is_checked or address in self._roots or address not in REGISTRY
        else:
            anchors = self._dynamic.get(name, ())
            is_followed = key == "$dynamicRef" and (address not in anchors or len(anchors) == 1)
            if not (is_followed or self._is_checked):
                raise ConstraintUnsupported(f'JSON Schema keyword "{key}" at {place.path or "/"} is not supported')
        self.is_partial |= not is_followed
        return is_followed

    def _check_chains(self) -> None:
        """Raise ConstraintTooLarge if references are nested more than CHAIN deep, because the compiler follows them by
        recursion."""
        links = {name: sorted(_refs(schema)) for name, schema in self.defs.items()}
        seen: set[str] = set()
        for name in sorted(_refs(self.root)):
            stack = [(name, 1)]
            while stack:
                name, depth = stack.pop()
                if name in seen:
                    continue
                seen.add(name)
                if depth > CHAIN:
                    raise ConstraintTooLarge(f"references are nested more than {CHAIN} deep")
                stack += [(below, depth + 1) for below in links[name]]


def _join(base: str, ref: str) -> str:
    return base + ref if ref.startswith("#") else urljoin(base, ref)  # urljoin would lose a URN


def _below(
    schema: dict[str, Any], path: str, base: str, named: tuple[str, ...]
) -> Iterator[tuple[str, str, _SchemaLocation]]:
    """Yield (keyword, name, location) of each direct subschema of a schema: of the values of the keywords ONE, MANY and
    `named`. The name is "" for the keywords ONE and MANY. named: keywords whose value is an object of schemas. path,
    base: JSON pointer of the schema, and base address of its references."""
    for key in named:
        value = schema.get(key)
        for name, one in (value if isinstance(value, dict) else {}).items():
            yield key, name, _SchemaLocation(one, base, f"{path}/{key}/{name.replace('~', '~0').replace('/', '~1')}")
    for key in ONE:
        if key in schema:
            yield key, "", _SchemaLocation(schema[key], base, f"{path}/{key}")
    for key in MANY:
        value = schema.get(key)
        for i, one in enumerate(value if isinstance(value, list) else ()):
            yield key, "", _SchemaLocation(one, base, f"{path}/{key}/{i}")


def _refs(schema: Any) -> set[str]:
    """Names of all definitions that a normalized schema refers to."""
    found, todo = set(), [schema]
    while todo:
        one = todo.pop()
        if isinstance(one, dict) and "$ref" in one:
            found.add(target_name(one["$ref"]))
        todo += subschemas(one)
    return found


def target_name(ref: str) -> str:
    """The name of the definition that a reference of the normal form refers to."""
    return ref.removeprefix("#/$defs/")


def subschemas(schema: Schema) -> list[Schema]:
    """The direct subschemas of a normalized schema."""
    found: list[Schema] = []
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key in ONE:
            found.append(value)
        elif key in MANY:
            found += value
        elif key in NAMED:
            found += value.values()
    return found


def coefficient(multiple: Fraction) -> int:
    """Return the digits of a multiple as an int, without decimal point and trailing zeros: 25 for 0.25. They determine
    the size of the compiled automaton. A coefficient of 9,999 takes 67 ms and 4 MB (one core of an AMD EPYC)."""
    while multiple.denominator > 1:
        multiple *= 10
    return int(str(multiple.numerator).rstrip("0") or 0)


def _is_long(multiple: float) -> bool:
    return multiple > MULTIPLE or coefficient(Fraction(str(multiple))) > DIGITS


def _modern(schema: dict[str, Any]) -> dict[str, Any]:
    """Converts keywords of earlier drafts to 2020-12."""
    out = dict(schema)
    if isinstance(out.get("items"), list):
        out["prefixItems"] = out.pop("items")
        if "additionalItems" in out:
            out["items"] = out["additionalItems"]
    for key, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(out.get(key), bool) and out.pop(key) and bound in out:
            out[key] = out.pop(bound)
    for name, needs in (out.pop("dependencies", None) or {}).items():
        key = "dependentRequired" if isinstance(needs, list) else "dependentSchemas"
        out[key] = {**out.get(key, {}), name: needs}
    return out


def _plain(key: str, value: Any, path: str) -> dict[str, Any]:
    """Checks a keyword that has no subschemas. Returns its normal form; {} if it restricts nothing."""
    if key in COUNTS:
        if key.startswith("min") and value > LEAST:
            raise ConstraintUnsatisfiable(
                f"no value can satisfy the constraint within limits: {key} at {path} is {value}; the limit is {LEAST}"
            )
        return {key: int(value)}
    if key == "enum" and len(value) > ENUM:
        raise ConstraintTooLarge(f"the enum at {path} has {len(value)} values; the limit is {ENUM}")
    if key == "multipleOf" and _is_long(value):
        raise ConstraintTooLarge(f"multipleOf {str(value)[:40]} at {path} is too large (limit {DIGITS})")
    if key == "uniqueItems" and not value:
        return {}
    if key == "format":
        return {key: value} if value in text_forms.ENFORCED_FORMATS else {}
    return {key: value}


def _check_depth(schema: Any) -> None:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > DEPTH:
            raise ConstraintTooLarge(f"the schema is nested more than {DEPTH} deep")
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
            elif isinstance(one, list):
                below += one
        level = [one for one in below if isinstance(one, dict | list)]
