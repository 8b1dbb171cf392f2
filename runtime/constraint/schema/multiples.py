"""`multipleOf` where several hold for one number: together they ask for a multiple of their least common multiple."""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm
from typing import Any

from banyan.runtime.constraint.schema.read import DIGITS, Schema, coefficient, subschemas, target_name
from banyan.runtime.errors import ConstraintTooLarge

_ANY = Fraction(0)
"""Nothing is asked for."""


def check_multiples(root: dict[str, Any], defs: dict[str, Schema]) -> None:
    """Raises ConstraintTooLarge where keywords that hold for one value ask for a multiple that is too large."""
    met: dict[int, set[Fraction]] = {}  # id of a schema -> what each way to fit it asks for

    def ways(schema: Schema) -> set[Fraction]:
        if isinstance(schema, bool):
            return {_ANY}
        if id(schema) not in met:
            met[id(schema)] = {_ANY}  # where it leads back to itself
            met[id(schema)] = _all(schema)
        return met[id(schema)]

    def _all(schema: dict[str, Any]) -> set[Fraction]:
        found = {Fraction(str(schema.get("multipleOf", 0)))}
        if "$ref" in schema:
            found = _both(found, ways(defs[target_name(schema["$ref"])]))
        for one in schema.get("allOf", ()):
            found = _both(found, ways(one))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                found = _both(found, set[Fraction]().union(*map(ways, schema[key])) or {_ANY})
        return found

    todo: list[Schema] = [root, *defs.values()]
    try:
        while todo:
            ways(schema := todo.pop())
            todo += subschemas(schema)
    except RecursionError:
        raise ConstraintTooLarge("the schema is nested too deeply") from None


def _both(some: set[Fraction], others: set[Fraction]) -> set[Fraction]:
    return {_least(a, b) for a in some for b in others}


def _least(a: Fraction, b: Fraction) -> Fraction:
    """The least common multiple of two decimal fractions."""
    if _ANY in (a, b):
        return a + b
    both = Fraction(lcm(a.numerator, b.numerator), gcd(a.denominator, b.denominator))
    if coefficient(both) > DIGITS:
        raise ConstraintTooLarge(
            f"multipleOf {float(a):g} and multipleOf {float(b):g} on one value ask for a multiple of "
            f"{float(both):.16g}, which is too large (limit {DIGITS})"
        )
    return both
