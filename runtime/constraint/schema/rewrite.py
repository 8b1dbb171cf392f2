"""Rewrites a JSON Schema so that it uses only keywords that the grammar compiler supports.

`not` becomes the negated schema. `if` becomes two alternatives; `dependent...` becomes one alternative without the
property and one with what the property requires. `oneOf` becomes `anyOf` if its branches are disjoint, else each branch
excludes the others. `unevaluated...` becomes `additionalProperties` or `items`, once per combination of branches that
evaluate different properties or items. Counts of properties become one alternative per set of optional properties. A
keyword that cannot be rewritten is rejected by name, or left out if the finished value is checked. Apart from what is
left out, the result never allows a value that the schema does not.
"""

from __future__ import annotations

import math
import re
from itertools import combinations, permutations
from typing import Any, Literal, NamedTuple

from banyan.runtime.constraint.schema.finite import check_finite
from banyan.runtime.constraint.schema.multiples import check_multiples
from banyan.runtime.constraint.schema.negate import (
    TYPES,
    all_but,
    all_of,
    any_of,
    canonical,
    disjoint,
    meet,
    negation,
    resolve,
    types_of,
)
from banyan.runtime.constraint.schema.pattern import to_rust
from banyan.runtime.constraint.schema.read import MANY, NAMED, NODES, ONE, Document, Schema, subschemas
from banyan.runtime.errors import ConstraintTooLarge, ConstraintUnsatisfiable, ConstraintUnsupported
from banyan.runtime.protocol.text_forms import ENFORCED_FORMATS, LOOKS_AROUND

_MAX_ALTERNATIVES = 64
"""Maximum number of alternatives that one keyword may become."""
_MAX_ARRAYS = 400
"""Maximum number of arrays that `uniqueItems` may become."""
_NO_OBJECT = {"type": [one for one in TYPES if one != "object"]}


def rewrite(
    schema: Schema, order: Literal["schema", "any"] = "schema", is_checked: bool = False, is_loose: bool = False
) -> dict[str, Any]:
    """Return a schema for the compiler that allows only values that `schema` allows, and as many of them as possible.

    order: "any" allows optional properties in any order, after the required ones. An output may then repeat a name.
    is_checked: the finished value is validated. So a keyword that cannot be enforced while the value is generated is
    left out. is_loose: all keywords that would have to be rewritten, or that the compiler may refuse, are left out.

    Raises a ConstraintError that says what is wrong or what cannot be enforced.
    """
    document = Document(schema, is_checked)
    writer = _SchemaWriter(document, order, is_checked, is_loose or document.is_partial)
    root = writer.write(document.root, set(TYPES))
    if root is False:
        raise ConstraintUnsatisfiable("no value can satisfy the constraint: the schema is false")
    root = {} if root is True else root
    defs = {name: writer.write(one, set(TYPES)) for name, one in document.defs.items()}
    check_multiples(root, defs)
    check_finite(root, defs)
    escapes = {} if writer.names_are_open else {"x-guidance": {"json_allowed_escapes": 'nrbtf\\"'}}
    return root | ({"$defs": defs} if defs else {}) | escapes


class _SchemaWriter:
    """Rewrites the schemas of one document.

    names_are_open   whether each object schema that names properties gets a pattern "" for the names that it does not
                     list. Without this pattern, the compiler takes a listed name that is written with an escape
                     (`"\\u0061"` for "a") for an unlisted one, and allows it a wrong value. So if False, `rewrite`
                     forbids such escapes in strings
    """

    def __init__(self, document: Document, order: str, is_checked: bool, is_loose: bool) -> None:
        self._document, self._order, self._is_checked, self._is_loose = document, order, is_checked, is_loose
        self._n_written = 0
        self.names_are_open = not any(map(_restricts_names, (document.root, *document.defs.values())))

    def write(self, schema: Schema, types: set[str]) -> Schema:
        """Rewrite a schema and its subschemas. types: the JSON types that the value can have, as far as the schemas
        around this one say."""
        ref = schema.get("$ref") if isinstance(schema, dict) else None
        if isinstance(schema, dict) and ref and isinstance(target := self._document.target(ref), bool):
            schema = target and {key: one for key, one in schema.items() if key != "$ref"}
        if isinstance(schema, bool):
            return schema
        self._n_written += 1
        if self._n_written > NODES:
            raise ConstraintTooLarge(f"the schema has more than {NODES} subschemas after it is rewritten")
        types = meet(types_of(schema), types)
        rest, also = dict(schema), list[Schema]()
        for key, step in _STEPS.items():
            if key in rest:
                before = dict(rest)
                try:
                    if self._is_loose and key != "format":
                        raise ConstraintUnsupported(key)
                    more = step(self, rest, types)
                except ConstraintUnsupported:
                    if not self._is_checked:
                        raise
                    more = self._loosened(key, rest, before)
                also += [self.write(one, types) for one in more]
        if self._is_checked and re.search(LOOKS_AROUND, rest.get("pattern", "")):
            del rest["pattern"]
        if self._is_loose and len(rest.get("patternProperties", ())) > 1:
            rest = {key: one for key, one in rest.items() if key not in ("patternProperties", "additionalProperties")}
        if self._is_loose and "$ref" in rest:
            rest = {"$ref": rest["$ref"]}
        if "object" in types:
            self._order_and_close(rest)
        if "number" in types:
            self._exclude_ends(rest)
        out = {key: self._below(key, value, types) for key, value in rest.items()}
        if out.get("allOf") == [] or out.get("anyOf") == []:
            out = {key: value for key, value in out.items() if value != []}
        return all_of([out, *also])

    def _below(self, key: str, value: Any, types: set[str]) -> Any:
        inner = types if key in ("allOf", "anyOf", "oneOf") else set(TYPES)
        if key in MANY:
            return [self.write(one, inner) for one in value]
        if key in ONE:
            return self.write(value, inner)
        if key in NAMED:
            named = to_rust if key == "patternProperties" else str
            return {named(name): self.write(one, inner) for name, one in value.items()}
        return to_rust(value) if key == "pattern" else value

    @staticmethod
    def _loosened(key: str, rest: dict[str, Any], before: dict[str, Any]) -> list[Schema]:
        """Remove a keyword that cannot be enforced from `rest`, with the keywords that depend on it. Returns schemas to
        use instead, which allow more; [] if there are none. before: the schema before the attempt to rewrite the
        keyword."""
        for one in (key, *_DEPENDENTS.get(key, ())):
            rest.pop(one, None)
        if key == "oneOf":
            return [any_of(before["oneOf"])]
        if key == "if":
            return [any_of([all_of([before["if"], before.get("then", True)]), before.get("else", True)])]
        return []

    def _order_and_close(self, rest: dict[str, Any]) -> None:
        """Rewrite the properties of an object schema, in place. With order "any", two or more optional properties
        become patterns, because patterns may match in any order. Unlisted names, if they are allowed, get a pattern in
        this case, and whenever `names_are_open` is True."""
        properties, needed = rest.get("properties", {}), rest.get("required", ())
        is_open = rest.get("additionalProperties", True) is not False
        free = [name for name, one in properties.items() if name not in needed and one is not False]
        if self._order == "any" and len(free) > 1 and not rest.keys() & {"minProperties", "maxProperties"}:
            patterns = {f"^{re.escape(name)}$": properties[name] for name in free}
            rest["properties"] = {name: one for name, one in properties.items() if name not in free}
            if is_open:
                patterns[f"^(?:{all_but([*properties, *needed])})$"] = rest.get("additionalProperties", True)
            elif "patternProperties" not in rest:
                rest["maxProperties"] = len({*properties, *needed})
            rest["patternProperties"] = {**rest.get("patternProperties", {}), **patterns}
            rest["additionalProperties"] = False
        elif self.names_are_open and is_open and (properties or needed):
            rest |= {"patternProperties": {"": True}, "additionalProperties": False}

    @staticmethod
    def _exclude_ends(rest: dict[str, Any]) -> None:
        """Work around a fault of the compiler (llguidance 1.9.1): it allows an exclusive bound itself if the bound is a
        whole number and the range's other end is not, as in 0 < x < 0.5. So if an `exclusiveMinimum` >= 0 or an
        `exclusiveMaximum` <= 0 is a whole number, add an inclusive bound just inside it. The new bound is at least 2
        ulp away, because the compiler reads bounds only to 1 ulp."""
        for key, inner, sign in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
            end = sign * rest.get(key, -sign)
            if 0 <= end < 2**51 and end == int(end):  # above, floats have no fractions left
                first = end + max(1e-9, 2 * math.ulp(end))
                rest[inner] = sign * max(first, sign * rest.get(inner, sign * first))

    # One method per keyword: it removes the keyword from `rest` and returns schemas that must hold as well.

    def _not(self, rest: dict[str, Any], _: set[str]) -> list[Schema]:
        return [negation(rest.pop("not"), self._document)]

    def _if(self, rest: dict[str, Any], _: set[str]) -> list[Schema]:
        condition, then, other = (rest.pop(key, True) for key in ("if", "then", "else"))
        if then is True and other is True:
            return []
        return [any_of([all_of([condition, then]), all_of([negation(condition, self._document), other])])]

    def _dependent_required(self, rest: dict[str, Any], _: set[str]) -> list[Schema]:
        return [
            any_of([{"properties": {name: False}}, {"required": [*(need for need in needs if need != name), name]}])
            for name, needs in rest.pop("dependentRequired").items()
            if needs
        ]

    def _dependent_schemas(self, rest: dict[str, Any], _: set[str]) -> list[Schema]:
        return [
            any_of([{"properties": {name: False}}, all_of([{"required": [name]}, one])])
            for name, one in rest.pop("dependentSchemas").items()
        ]

    def _format(self, rest: dict[str, Any], _: set[str]) -> list[Schema]:
        """Replace `format` by the pattern with which finished values are validated, because the compiler's own formats
        differ. Removes `format` from `rest`, and returns a schema with the pattern that must hold too."""
        return [{"pattern": f"^(?:{ENFORCED_FORMATS[rest.pop('format')]})$"}]

    def _one_of(self, rest: dict[str, Any], types: set[str]) -> list[Schema]:
        branches = [one for one in rest.pop("oneOf") if one is not False]
        pairs = [
            (i, j)
            for i, j in combinations(range(len(branches)), 2)
            if not disjoint(branches[i], branches[j], self._document, types)
        ]
        ways = []
        for i, branch in enumerate(branches):
            others = [branches[j] for pair in pairs if i in pair for j in pair if j != i]
            try:
                ways.append(all_of([branch, *(negation(other, self._document) for other in others)]))
            except ConstraintUnsupported as e:
                raise ConstraintUnsupported(
                    f'"oneOf" whose branches may hold for one value is not supported; use "anyOf" ({e.message})'
                ) from None
        return [any_of(ways)]

    def _property_names(self, rest: dict[str, Any], _: set[str]) -> list[Schema]:
        names = resolve(rest.pop("propertyNames"), self._document)
        if names is True or (isinstance(names, dict) and names.keys() <= {"type"} and "string" in types_of(names)):
            return []
        if names is False or "string" not in types_of(names):
            return [{"maxProperties": 0}]
        if "patternProperties" in rest:
            raise ConstraintUnsupported(
                'JSON Schema keyword "propertyNames" beside "patternProperties" is not supported'
            )
        asked = {key: value for key, value in names.items() if key != "type"}
        if asked.keys() <= {"enum", "const"} and asked:
            values = asked.get("enum", [asked.get("const")])
            allowed = [one for one in values if isinstance(one, str) and asked.get("const", one) == one]
            count = max(rest.get("minProperties", 0), rest.get("maxProperties", 0))
            if count > 1 and "properties" not in rest:  # `_counts` reads them; the compiler counts to 1
                rest["properties"] = dict.fromkeys(allowed, rest.get("additionalProperties", True))
                rest["additionalProperties"] = False
                return []
            return [{"properties": dict.fromkeys(allowed, True), "additionalProperties": False}]
        if asked.keys() == {"pattern"}:
            return [{"patternProperties": {asked["pattern"]: True}, "additionalProperties": False}]
        if asked.keys() <= {"minLength", "maxLength"}:
            length = f"{asked.get('minLength', 0)},{asked.get('maxLength', '')}"
            return [{"patternProperties": {f"^[\\s\\S]{{{length}}}$": True}, "additionalProperties": False}]
        raise ConstraintUnsupported('JSON Schema keyword "propertyNames" takes an enum, a pattern or lengths, not more')

    def _contains(self, rest: dict[str, Any], _: set[str]) -> list[Schema]:
        below = rest.pop("contains")
        minimum, maximum = rest.pop("minContains", 1), rest.pop("maxContains", None)
        if minimum == 0 and maximum is None:
            return []
        longest = _longest(rest)
        if maximum is not None or longest is None or math.comb(longest, minimum) > _MAX_ALTERNATIVES:
            raise ConstraintUnsupported('JSON Schema keyword "contains" is not supported without a small "maxItems"')
        ways: list[Schema] = [
            {"prefixItems": [below if i in at else True for i in range(at[-1] + 1)], "minItems": at[-1] + 1}
            for at in combinations(range(longest), minimum)
        ]
        return [any_of(ways or [{"type": [one for one in TYPES if one != "array"]}])]

    def _unique(self, rest: dict[str, Any], types: set[str]) -> list[Schema]:
        del rest["uniqueItems"]
        longest = _longest(rest)
        if (longest is not None and longest <= 1) or "array" not in types:
            return []
        items = resolve(rest.get("items", True), self._document)
        if isinstance(items, dict) and "enum" in items and "prefixItems" not in rest:
            values = list({canonical(value): value for value in items["enum"]}.values())
            maximum = min(longest if longest is not None else len(values), len(values))
            if sum(math.perm(len(values), n) for n in range(maximum + 1)) <= _MAX_ARRAYS:
                arrays = [list(some) for n in range(maximum + 1) for some in permutations(values, n)]
                return [any_of([{"enum": arrays}, {"type": [one for one in TYPES if one != "array"]}])]
        raise ConstraintUnsupported(
            'JSON Schema keyword "uniqueItems" is supported for few items out of a small enum only'
        )

    def _counts(self, rest: dict[str, Any], types: set[str]) -> list[Schema]:
        """Rewrite `minProperties` and `maxProperties`, because the compiler counts only required and unlisted
        properties. Instead, there is one alternative for each set of optional properties that the counts allow. It
        requires the set, or forbids the optional properties outside of it, or does both. Returns the alternatives as a
        schema that must hold too, or [] if none are needed."""
        needed = set(rest.get("required", ()))
        free = [name for name, one in rest.get("properties", {}).items() if one is not False and name not in needed]
        is_closed = rest.get("additionalProperties") is False and "patternProperties" not in rest
        low, high = rest.get("minProperties", 0) - len(needed), rest.get("maxProperties", math.inf) - len(needed)
        if low <= 0:
            rest.pop("minProperties", None)
        if is_closed and high < 0:  # the maximum is below the number of required ones
            for key in ("minProperties", "maxProperties"):
                rest.pop(key, None)
            return [_NO_OBJECT]
        if is_closed and high >= len(free):
            rest.pop("maxProperties", None)
        if not free or "object" not in types or not rest.keys() & {"minProperties", "maxProperties"}:
            return []
        ways: list[Schema] = []
        if is_closed and low <= 0:  # the maximum number of properties
            sets = [(high, False)]
        else:
            sets = [(n, True) for n in range(len(free) + 1) if n <= high and (n >= low or not is_closed)]
            if high == math.inf:  # at least the minimum, and any other properties
                sets = [one for one in sets if one[0] < low] + [(low, True)] * (low <= len(free))
        if sum(math.comb(len(free), int(n)) for n, _ in sets) > _MAX_ALTERNATIVES:
            key = "minProperties" if low > 0 else "maxProperties"
            raise ConstraintUnsupported(f'JSON Schema keyword "{key}" over so many properties is not supported')
        for n, is_required in sets:
            for some in combinations(free, int(n)):
                others = {} if high == math.inf and n >= low else {name: False for name in free if name not in some}
                ways.append(
                    ({"required": list(some)} if is_required else {}) | ({"properties": others} if others else {})
                )
        if is_closed:
            for key in ("minProperties", "maxProperties"):
                rest.pop(key, None)
        return [any_of([*ways, _NO_OBJECT])] if ways else [_NO_OBJECT]

    def _unevaluated_properties(self, rest: dict[str, Any], _: set[str]) -> list[Schema]:
        below = rest.pop("unevaluatedProperties")
        if below is True:
            return []
        ways = []
        for way in self._evaluations(rest, 0):
            close = {
                "properties": dict.fromkeys(way.names, True),
                "patternProperties": dict.fromkeys(way.patterns, True),
                "additionalProperties": below,
            }
            ways.append(all_of([*way.when, True if way.all_names else {k: v for k, v in close.items() if v != {}}]))
        return [any_of(ways)]

    def _unevaluated_items(self, rest: dict[str, Any], _: set[str]) -> list[Schema]:
        below = rest.pop("unevaluatedItems")
        if below is True:
            return []
        ways = []
        for way in self._evaluations(rest, 0):
            if way.some_items:
                raise ConstraintUnsupported('JSON Schema keyword "contains" beside "unevaluatedItems" is not supported')
            close: Schema = {"prefixItems": [True] * way.n_items, "items": below} if way.n_items else {"items": below}
            ways.append(all_of([*way.when, True if way.all_items else close]))
        return [any_of(ways)]

    def _evaluations(self, schema: Schema, depth: int) -> list[_Evaluated]:
        """Return the ways to match a schema, for `unevaluatedProperties` and `unevaluatedItems`. Each way is an
        `_Evaluated`: which properties and items the schema then evaluates. depth: how deep the schema is nested in the
        first one; beyond 16, ConstraintUnsupported is raised."""
        if depth > 16:
            raise ConstraintUnsupported('JSON Schema keyword "unevaluated..." beside a loop of "$ref" is not supported')
        if isinstance(schema, bool):
            return [_Evaluated()]
        way = _Evaluated(
            tuple(schema.get("properties", ())),
            tuple(schema.get("patternProperties", ())),
            len(schema.get("prefixItems", ())),
            "additionalProperties" in schema or "unevaluatedProperties" in schema,
            "items" in schema or "unevaluatedItems" in schema,
            "contains" in schema,
        )
        sets = [[way]]
        if "$ref" in schema:
            sets.append(self._evaluations(self._document.target(schema["$ref"]), depth + 1))
        sets += [self._evaluations(one, depth + 1) for one in schema.get("allOf", ())]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                sets.append(self._branches(schema[key], depth, maximum=len(schema[key]) if key == "anyOf" else 1))
        if "if" in schema:
            condition = schema["if"]
            yes = self._under([condition, schema.get("then", True)], depth)
            no = self._under([schema.get("else", True)], depth, negation(condition, self._document))
            sets.append(yes + no)
        for name, one in schema.get("dependentSchemas", {}).items():
            without = _Evaluated(when=({"properties": {name: False}},))
            sets.append([without, *self._under([one], depth, {"required": [name]})])
        return self._product(sets)

    def _branches(self, branches: list[Schema], depth: int, maximum: int) -> list[_Evaluated]:
        """Return the ways to match the branches of an `anyOf` or `oneOf`: for each combination of 1 to `maximum`
        branches that match together, but at most 3. depth: see `_evaluations`."""
        ways = []
        for n in range(1, min(maximum, 3) + 1):
            for some in combinations(branches, n):
                ways += self._under(list(some), depth)
        return ways

    def _under(self, schemas: list[Schema], depth: int, when: Schema = True) -> list[_Evaluated]:
        """Return the ways to match all of `schemas`, and `when`. Each way has all these schemas among its conditions
        (`_Evaluated.when`). depth: see `_evaluations`."""
        found = self._product([self._evaluations(one, depth + 1) for one in schemas])
        held = tuple(one for one in (when, *schemas) if one is not True)
        return [way._replace(when=(*held, *way.when)) for way in found]

    def _product(self, sets: list[list[_Evaluated]]) -> list[_Evaluated]:
        ways = [_Evaluated()]
        for some in sets:
            ways = [way.combined(other) for way in ways for other in some]
            if len(ways) > _MAX_ALTERNATIVES:
                raise ConstraintUnsupported(
                    'JSON Schema keyword "unevaluated..." beside that many alternatives is not supported'
                )
        return ways


_DEPENDENTS = {"if": ("then", "else"), "contains": ("minContains", "maxContains")}


def _restricts_names(schema: Schema) -> bool:
    """Whether a schema, or a part of it, restricts property names by a pattern, or the values of unlisted names by a
    schema while it lists other names. To forbid all unlisted names does not count."""
    if isinstance(schema, bool):
        return False
    keys = schema.keys()
    # the names beside "unevaluatedProperties" may be listed elsewhere, such as behind a reference
    others = ["unevaluatedProperties", *(["additionalProperties"] if keys & {"properties", "required"} else [])]
    is_mixed = any(isinstance(one, dict) and one for one in map(schema.get, others))
    return bool(keys & {"patternProperties", "propertyNames"} or is_mixed) or any(
        map(_restricts_names, subschemas(schema))
    )


def _longest(schema: dict[str, Any]) -> int | None:
    """The maximum number of items of an array, None if unbounded."""
    bounds = [schema["maxItems"]] if "maxItems" in schema else []
    bounds += [len(schema.get("prefixItems", ()))] if schema.get("items") is False else []
    return min(bounds, default=None)


class _Evaluated(NamedTuple):
    """The properties and items that a schema evaluates if the value matches all schemas in `when`. Names and patterns
    of properties; n_items: the first so many items; all_names, all_items: all of them; some_items: those that match a
    `contains`."""

    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    n_items: int = 0
    all_names: bool = False
    all_items: bool = False
    some_items: bool = False
    when: tuple[Schema, ...] = ()

    def combined(self, other: _Evaluated) -> _Evaluated:
        """The properties and items that are evaluated if the value matches the schemas of both."""
        return _Evaluated(
            tuple(dict.fromkeys((*self.names, *other.names))),
            tuple(dict.fromkeys((*self.patterns, *other.patterns))),
            max(self.n_items, other.n_items),
            self.all_names or other.all_names,
            self.all_items or other.all_items,
            self.some_items or other.some_items,
            (*self.when, *other.when),
        )


_STEPS = {
    # these come first: they read what the others remove
    "unevaluatedProperties": _SchemaWriter._unevaluated_properties,
    "unevaluatedItems": _SchemaWriter._unevaluated_items,
    "not": _SchemaWriter._not,
    "if": _SchemaWriter._if,
    "dependentRequired": _SchemaWriter._dependent_required,
    "dependentSchemas": _SchemaWriter._dependent_schemas,
    "oneOf": _SchemaWriter._one_of,
    "propertyNames": _SchemaWriter._property_names,
    "contains": _SchemaWriter._contains,
    "uniqueItems": _SchemaWriter._unique,
    "minProperties": _SchemaWriter._counts,
    "maxProperties": _SchemaWriter._counts,
    "format": _SchemaWriter._format,
}
