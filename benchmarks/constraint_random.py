"""For constraints.py and tests: JSON Schemas made at random from all keywords, and public ones. The jsonschema package
judges texts that are drawn token by token under each constraint, and values that are made from them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import numpy as np
from jsonschema_specifications import REGISTRY

from banyan.lang.json_types import check_keys
from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.constraint.guide import CompiledConstraint
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.errors import BanyanError, ConstraintTooLarge, ConstraintUnsatisfiable, ConstraintUnsupported
from banyan.runtime.protocol.wire import ConstraintSpec

NAMES = ("a", "b", "key", "é")
VALUES = (None, True, 0, 1, 2.5, -3, "", "a", "ab", "é", [], [1], ["a", "a"], {}, {"a": 1}, {"b": "a", "key": None})
CHECKED = jsonschema.FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
"""Formats that the validator checks without more packages."""
N_TOKENS = 120
"""A drawn text that has not ended after so many tokens is given up."""
_ENDS = (b'"', b"}", b"]", b'"}', b'"]')


def any_schema(chance: Random, depth: int = 2) -> Any:
    """A schema of some keywords of all kinds. It may be unsatisfiable."""

    def below() -> Any:
        return any_schema(chance, depth - 1)

    def some(n: int) -> list[Any]:
        return [below() for _ in range(chance.randint(1, n))]

    def names(least: int = 0) -> list[str]:
        return chance.sample(NAMES, chance.randint(least, 3))

    if depth < 0 or chance.random() < 0.05:
        return chance.choice([True, {}, {"type": "string"}, {"type": "integer"}, {"const": 1}])
    low, more = chance.randint(0, 2), chance.randint(0, 2)
    by_type: dict[str, dict[str, Any]] = {
        "string": {"minLength": low, "maxLength": low + more, "pattern": chance.choice(["^[ab]*$", "a", "^.{1,3}$"]),
                   "format": chance.choice(["date", "ipv4", "colour"])},
        "number": {"minimum": -low, "exclusiveMinimum": -low, "maximum": more, "exclusiveMaximum": more + 1,
                   "multipleOf": chance.choice([1, 2, 0.5])},
        "array": {"items": lambda: below(), "prefixItems": lambda: some(2), "minItems": low, "maxItems": low + more,
                  "contains": lambda: below(), "uniqueItems": True, "unevaluatedItems": False},
        "object": {"properties": lambda: {name: below() for name in names(1)}, "required": names(),
                   "additionalProperties": lambda: chance.choice([False, below()]), "minProperties": low,
                   "maxProperties": low + more, "patternProperties": lambda: {"^k": below()},
                   "propertyNames": {"maxLength": 3}, "dependentRequired": {"a": ["b"]},
                   "dependentSchemas": lambda: {"b": below()}, "unevaluatedProperties": False},
    }  # fmt: skip
    kind = chance.choice([*by_type, "object", "array", "any"])
    schema: dict[str, Any] = {}
    if kind != "any":
        schema["type"] = kind if chance.random() < 0.8 else [kind, "null"]
        known = by_type[kind]
        for key in chance.sample(list(known), min(len(known), chance.randint(0, 3))):
            schema[key] = known[key]() if callable(known[key]) else known[key]
    if chance.random() < (1.0 if kind == "any" else 0.25):
        key = chance.choice(["anyOf", "oneOf", "allOf", "not", "if", "enum", "const"])
        if key in ("anyOf", "oneOf", "allOf"):
            schema[key] = some(3)
        elif key == "if":
            schema |= {"if": below(), "then": below()} | ({"else": below()} if chance.random() < 0.5 else {})
        else:
            values: dict[str, Any] = {"enum": chance.sample(VALUES, 3), "const": chance.choice(VALUES)}
            schema[key] = below() if key == "not" else values[key]
    return schema


def public_schemas(folder: Path) -> Iterator[tuple[Any, list[tuple[Any, bool]]]]:
    """Yields the schemas in the JSON files of a folder, each with its test values and whether these are valid. A file
    holds a schema; or {"schema": ..., "tests": [{"data": ..., "valid": ...}]}, or a list of such objects, as in the
    standard's suite."""
    for file in sorted(folder.rglob("*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        groups = found if isinstance(found, list) else [found]
        for group in groups:
            if isinstance(group, dict) and "tests" in group and "schema" in group:
                yield group["schema"], [(test["data"], test["valid"]) for test in group["tests"]]
            elif isinstance(group, dict):
                yield group, []


class Handled:
    """A compiled schema. is_checked: the masks do not enforce all its keywords, so finished values are checked too."""

    def __init__(self, schema: Any, vocabulary: Vocabulary) -> None:
        """Raises a BanyanError if the schema is refused."""
        self.schema, self._vocabulary, self.is_checked = schema, vocabulary, False
        try:
            self.compiled = self._compile()
        except ConstraintUnsatisfiable:
            raise
        except BanyanError:
            self.is_checked = True
            try:
                self.compiled = self._compile()
            except (ConstraintTooLarge, ConstraintUnsupported):  # as the preflight does
                self.compiled = self._compile(is_loose=True)
        draft = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        self.validator = draft(schema, registry=REGISTRY, format_checker=CHECKED)

    def _compile(self, is_loose: bool = False) -> CompiledConstraint:
        spec = ConstraintSpec("json_schema", json.dumps(self.schema), is_checked=self.is_checked)
        return build(canonical(spec, is_loose), self._vocabulary)

    def accepts(self, value: Any) -> bool:
        """Whether the masks let a model write the value, and the check, if there is one, passes."""
        text = json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
        guide, ids = self.compiled.guide(), self._vocabulary.llg.tokenize_bytes(text)
        return (
            guide.accept(ids) == len(ids) and guide.can_stop and (not self.is_checked or self.validator.is_valid(value))
        )

    def draw(self, chance: Random) -> str | None:
        """Draw a text token by token; return None if it did not end. Tokens that close a string, object or array are
        preferred."""
        guide, row, ids = self.compiled.guide(), np.empty(self._vocabulary.n_words, np.int32), list[int]()
        while len(ids) < N_TOKENS and not guide.must_stop and not (guide.can_stop and chance.random() < 0.5):
            guide.fill(row)
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            if not len(allowed):
                break
            ends = [i for i in allowed if self._vocabulary.spelling[i] in _ENDS]
            ids.append(int(chance.choice(ends if ends and chance.random() < 0.4 else allowed)))
            guide.accept(ids[-1:])
        return b"".join(self._vocabulary.spelling[i] for i in ids).decode() if guide.can_stop else None


def judged(schemas: Iterable[Any], vocabulary: Vocabulary, n_texts: int, seed: int = 0) -> Counter[str]:
    """Return counts of schemas: "enforced", "checked", "unsatisfiable", "refused: ...", "refers to other files"; of
    drawn texts: "valid", "INVALID", "not ended", and "caught" by the check or for a repeated name; and of values:
    "accepted", "valid but refused", "INVALID ACCEPTED"."""
    found = Counter[str]()
    for n, schema in enumerate(schemas):
        try:
            one = Handled(schema, vocabulary)
        except BanyanError as e:
            known = {"points outside of the schema" in e.message: "refers to other files",
                     isinstance(e, ConstraintUnsatisfiable): "unsatisfiable"}  # fmt: skip
            found[known.get(True, f"refused: {e.code}")] += 1
            continue
        found["checked" if one.is_checked else "enforced"] += 1
        with contextlib.suppress(re.error, OverflowError):  # Python cannot read a pattern, or a number is too large
            found += _judged(one, n_texts, Random(f"{seed} {n}"))
    return found


def _judged(one: Handled, n_texts: int, chance: Random) -> Counter[str]:
    found, values = Counter[str](), list[Any](VALUES)
    for _ in range(n_texts):
        if (text := one.draw(chance)) is None:
            found["not ended"] += 1
            continue
        value = json.loads(text)
        values += [value, _changed(value, chance)]
        is_valid = one.validator.is_valid(value)
        try:
            check_keys(text)
            found["valid" if is_valid else "caught" if one.is_checked else "INVALID"] += 1
        except ValueError:
            found["caught"] += 1
    for value in values:
        is_valid, is_accepted = one.validator.is_valid(value), one.accepts(value)
        if is_valid:
            found["accepted" if is_accepted else "valid but refused"] += 1
        elif is_accepted:
            found["INVALID ACCEPTED"] += 1
    return found


def given(schema: Any, tests: list[tuple[Any, bool]], vocabulary: Vocabulary) -> Counter[str]:
    """Count the test values of a schema: "valid", "invalid"; and those that our constraint accepts: "accepted valid",
    "accepted invalid"."""
    kinds = [("valid" if is_valid else "invalid", value) for value, is_valid in tests]
    found = Counter(kind for kind, _ in kinds)
    try:
        one = Handled(schema, vocabulary)
        return found + Counter(f"accepted {kind}" for kind, value in kinds if one.accepts(value))
    except (BanyanError, re.error):
        return found


def _changed(value: Any, chance: Random) -> Any:
    """The value with one part removed or replaced."""
    value = copy.deepcopy(value)
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        return chance.choice(VALUES)
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if chance.random() < 0.4:
        del value[key]
    else:
        value[key] = _changed(value[key], chance)
    return value
