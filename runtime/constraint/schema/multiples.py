"""Checks `multipleOf`. If several of them apply to one number, it must be a multiple of their least common multiple,
which may be too large for the compiler."""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm
from typing import Any

from banyan.runtime.constraint.schema.read import DIGITS, Schema, coefficient, subschemas, target_name
from banyan.runtime.errors import ConstraintTooLarge

_ANY = Fraction(0)
"""The multiple that stands for no `multipleOf`."""


def check_multiples(root: dict[str, Any], defs: dict[str, Schema]) -> None:
    """Raises ConstraintTooLarge if the `multipleOf`s that apply to one value have too large a least common multiple."""
    cached: dict[int, set[Fraction]] = {}  # id of a schema -> the multiples that its alternatives require

    def alternatives(schema: Schema) -> set[Fraction]:
        if isinstance(schema, bool):
            return {_ANY}
        if id(schema) in cached:
            return cached[id(schema)]
        cached[id(schema)] = {_ANY}  # ends a recursion into itself
        found = {Fraction(str(schema.get("multipleOf", 0)))}
        if "$ref" in schema:
            found = _both(found, alternatives(defs[target_name(schema["$ref"])]))
        for one in schema.get("allOf", ()):
            found = _both(found, alternatives(one))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                found = _both(found, set[Fraction]().union(*map(alternatives, schema[key])) or {_ANY})
        cached[id(schema)] = found
        return found

    todo: list[Schema] = [root, *defs.values()]
    try:
        while todo:
            alternatives(schema := todo.pop())
            todo += subschemas(schema)
    except RecursionError:
        raise ConstraintTooLarge("the schema is nested too deeply") from None


def _both(some: set[Fraction], others: set[Fraction]) -> set[Fraction]:
    return {_lcm(a, b) for a in some for b in others}


def _lcm(a: Fraction, b: Fraction) -> Fraction:
    """The least common multiple of two decimal fractions. Raises ConstraintTooLarge if its digits exceed DIGITS."""
    if _ANY in (a, b):
        return a + b
    both = Fraction(lcm(a.numerator, b.numerator), gcd(a.denominator, b.denominator))
    if coefficient(both) > DIGITS:
        raise ConstraintTooLarge(
            f"multipleOf {float(a):g} and multipleOf {float(b):g} on one value ask for a multiple of "
            f"{float(both):.16g}, which is too large (limit {DIGITS})"
        )
    return both
