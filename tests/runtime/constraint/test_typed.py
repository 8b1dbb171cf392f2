"""Types made at random from the constraints of pydantic, annotated_types and msgspec: outputs sampled under the
constraint of each type are valid for pydantic."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import itertools
import random
import re
import uuid
from collections import Counter
from typing import Annotated, Any, Literal, NamedTuple

import annotated_types as at
import msgspec
import pydantic
import pytest
import typing_extensions
from pydantic import Field

from banyan.lang.output_types import output_type
from banyan.runtime.errors import BadOutput, ConstraintError
from banyan.runtime.protocol.wire import Sample

MAX_TOKENS = 400
NUMBERS = itertools.count()


class RandomType(NamedTuple):
    """kind: the type of the gen. judge: the same type in pydantic's words. is_held: whether a schema can express all of
    it, so that no sampled output is invalid."""

    kind: Any
    judge: Any
    is_held: bool = True


class Types:
    """Makes types with the constraints of one library."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.is_msgspec = self.rng.random() < 0.4

    def any(self, depth: int = 2) -> RandomType:
        make = self.rng.choice([self.number, self.text, self.fixed, *[self.container, self.record] * depth])
        return make(depth - 1)

    def bounded(self, base: Any, bounds: dict[str, Any], is_held: bool = True) -> RandomType:
        """The type `base` with these bounds, in one of the ways to write them."""
        judge = Annotated[base, Field(**bounds)]
        if self.is_msgspec:
            return RandomType(Annotated[base, msgspec.Meta(**bounds)], judge, is_held)
        ways = [Annotated[base, Field(**bounds)]]
        marks = {"ge": at.Ge, "gt": at.Gt, "le": at.Le, "lt": at.Lt, "multiple_of": at.MultipleOf,
                 "min_length": at.MinLen, "max_length": at.MaxLen}  # fmt: skip
        if bounds.keys() <= marks.keys():
            ways.append(Annotated[(base, *(marks[key](value) for key, value in bounds.items()))])
        if base in (int, float):
            ways.append((pydantic.conint if base is int else pydantic.confloat)(**bounds))
        if base is str:
            ways.append(Annotated[str, pydantic.StringConstraints(**bounds)])
        return RandomType(self.rng.choice(ways), judge, is_held)

    def number(self, _: int) -> RandomType:
        rng, base = self.rng, self.rng.choice([int, float])
        low = rng.randint(-200, 200)
        high = low + rng.randint(3, 300)
        bounds: dict[str, Any] = {rng.choice(["ge", "gt"]): low} if rng.random() < 0.8 else {}
        if rng.random() < 0.8 or not bounds:
            bounds[rng.choice(["le", "lt"])] = high
        if rng.random() < 0.3:
            bounds["multiple_of"] = rng.choice([2, 3]) if base is int else 0.5
        return self.bounded(base, bounds)

    def text(self, _: int) -> RandomType:
        rng = self.rng
        if rng.random() < 0.4:
            return self.bounded(str, {"pattern": rng.choice(["^[a-c]{2,4}$", "^x+-[0-9]{3}$", "^(one|two)$"])})
        shortest = rng.randint(0, 3)
        return self.bounded(str, {"min_length": shortest, "max_length": shortest + rng.randint(0, 3)})

    def fixed(self, _: int) -> RandomType:
        rng = self.rng
        same = [bool, datetime.date, datetime.datetime, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal,
                Literal["a", "b", 3]]  # fmt: skip
        if self.is_msgspec:
            kind = rng.choice([*same, "tz"])
            if kind != "tz":
                return RandomType(kind, kind)
            kind, has_zone = rng.choice([datetime.datetime, datetime.time]), rng.random() < 0.5
            judge = Annotated[kind, pydantic.AfterValidator(lambda one: one if _has_zone(one) == has_zone else 1 / 0)]
            return RandomType(Annotated[kind, msgspec.Meta(tz=has_zone)], judge)
        bound = rng.choice([{"max_digits": 5, "decimal_places": 2}, {"max_digits": 3}, {"decimal_places": 1},
                            {"ge": 0, "le": 9, "decimal_places": 2}])  # fmt: skip
        kind = rng.choice([
            *(*same, complex, pydantic.UUID4, pydantic.AwareDatetime, pydantic.NaiveDatetime),
            *(pydantic.PositiveInt, pydantic.NegativeFloat, Annotated[decimal.Decimal, Field(**bound)]),
            Annotated[int, at.Predicate(lambda n: n % 2 == 0)],
            Annotated[datetime.date, Field(ge=datetime.date(2000, 1, 1))],
        ])  # fmt: skip
        # a pattern holds neither the first day nor the largest decimal number
        is_held = not any(mark in repr(kind) for mark in ("Predicate", "Ge(ge=datetime", "Le(le=9)"))
        return RandomType(kind, kind, is_held)

    def container(self, depth: int) -> RandomType:
        form = self.rng.choice(["list", "set", "tuple", "dict", "optional", "union"])
        kind, judge, is_held = self.text(0) if form == "set" else self.any(depth)
        if form in ("list", "set"):
            shortest = self.rng.randint(0, 2)
            length = {"min_length": shortest, "max_length": shortest + self.rng.randint(1, 2)}
            base: Any = list if form == "list" else set
            found = self.bounded(base[kind], length)
            return RandomType(found.kind, Annotated[base[judge], Field(**length)], is_held and form == "list")
        forms: dict[str, Any] = {"tuple": lambda one: tuple[one, int], "dict": lambda one: dict[str, one],
                                 "optional": lambda one: one | None, "union": lambda one: bool | one}  # fmt: skip
        return RandomType(forms[form](kind), forms[form](judge), is_held and form != "dict")

    def record(self, depth: int) -> RandomType:
        fields = [self.any(depth) for _ in range(self.rng.randint(1, 3))]
        kinds = {f"f{n}": one.kind for n, one in enumerate(fields)}
        judges = {f"f{n}": one.judge for n, one in enumerate(fields)}
        makers: list[Any] = [_dataclass, _typed_dict, _struct if self.is_msgspec else _model]
        kind = self.rng.choice(makers)(kinds)
        return RandomType(kind, _dataclass(judges), all(one.is_held for one in fields))


def _has_zone(one: Any) -> bool:
    return one.tzinfo is not None


def _dataclass(fields: dict[str, Any]) -> Any:
    return dataclasses.make_dataclass(f"Record{next(NUMBERS)}", fields.items())


def _typed_dict(fields: dict[str, Any]) -> Any:
    return typing_extensions.TypedDict(f"Row{next(NUMBERS)}", fields)  # type: ignore[operator]


def _struct(fields: dict[str, Any]) -> Any:
    return msgspec.defstruct(f"Packed{next(NUMBERS)}", fields.items())


def _model(fields: dict[str, Any]) -> Any:
    return pydantic.create_model(f"Model{next(NUMBERS)}", **{name: (kind, ...) for name, kind in fields.items()})


def matching(pattern: Any) -> Any:
    return Annotated[str, Field(pattern=pattern)]


class Row(msgspec.Struct, array_like=True):
    n: int
    name: str = ""


@pytest.mark.parametrize(
    ("kind", "valid", "invalid"),
    [
        (Row, ["[1]", '[1, "a"]'], ["[]", '["a"]', '[1, "a", 5]']),
        (matching(r"^[^\d]+$"), ['"a"', '"é"'], ['"5"', '"٣"']),
        (matching(r"^[^]\d]$"), ['"a"'], ['"]"', '"5"', '"٣"']),
        (matching(r"^\D[\D]$"), ['"a."', '"é²"'], ['"٣a"', '"a٣"']),
        (matching(r"^\W[^\w][\W]$"), ['"-–."'], ['"é-."', '"-é."', '"--é"', '"²-."', '"Ⓐ-."', '"-\u0301."']),
        (matching(r"^[^\\W\D]\\D[^\W]$"), [r'"5\\Dw"'], [r'"5\\5w"', r'"\\\\Dw"']),
        (dict[matching(r"^\D$"), int], ['{"a": 1}'], ['{"٣": 1}']),
        (list[Annotated[bytes, Field(max_length=4)]], ['["aaaa", ""]'], ['["éééé"]', '["aaaaa"]']),
        (dict[Annotated[bytes, Field(max_length=2)], int], ['{"aa": 1, "": 2}'], ['{"éé": 1}', '{"aaa": 1}']),
        (list[Annotated[bytes, Field(min_length=2)]], ['["aa"]', '["ééé"]'], ['["a"]']),
        (list[Annotated[pydantic.Base64Bytes, Field(max_length=4)]], ['["aGk="]'], ['["a\\nb="]', '["aGkhaGk="]']),
        (re.compile(r"\w[\s-]\d", re.ASCII), ["a 1", "_-9"], ["é 1", "a\xa01", "a ٣"]),
        (re.compile(r"\W[^\w]\S\D[\W_]", re.ASCII), ["-é.٣_"], ["a-.a-", "-_.a-", "--.1-", "-- a-", "--.aa"]),
        (re.compile(r"\w # \d", re.ASCII | re.VERBOSE), ["a"], ["é", "a1"]),
        (matching(re.compile(r"^\S[\w-]\W$", re.ASCII)), ['"é-é"'], ['"-éé"', '"---a"', '" --"']),
        (matching(re.compile("^a b$", re.VERBOSE)), ['"ab"'], ['"a b"']),
        (matching(re.compile("^[^a].$", re.IGNORECASE | re.DOTALL)), [r'"B\n"'], ['"Ab"']),
    ],
)
def test_mask_allows_the_texts_that_the_decoder_reads(
    bench: Any, kind: Any, valid: list[str], invalid: list[str]
) -> None:
    out = output_type(kind)
    assert out.spec is not None
    compiled = bench.compile(out.spec.kind, out.spec.text)
    for text in valid:
        out.parse_sample(Sample(text, "stop"))
    assert [text for text in valid if not bench.accepts(compiled.guide(), text)] == []
    assert [text for text in invalid if bench.accepts(compiled.guide(), text)] == []


def sampled(bench: Any, compiled: Any, rng: random.Random) -> str | None:
    """A text that the constraint allows, drawn token by token; None if it is not complete in time."""
    guide, ids, closing = compiled.guide(), list[int](), set(bench.ids('"') + bench.ids("]") + bench.ids("}"))
    for _ in range(MAX_TOKENS):
        if guide.can_stop and (guide.must_stop or rng.random() < 0.3):
            return str(bench.spell(ids).decode())
        allowed = bench.allowed(guide)
        ends = sorted(allowed & closing)
        if not allowed:
            return None
        token = rng.choice(ends) if ends and rng.random() < 0.3 else rng.choice(sorted(allowed))
        assert guide.accept([token]) == 1
        ids.append(token)
    return None


def judged(kind: RandomType, output: Any, is_json: bool) -> bool:
    """Whether pydantic finds the JSON text, or the object, valid."""
    adapter = pydantic.TypeAdapter(kind.judge)
    try:
        adapter.validate_json(output) if is_json else adapter.validate_python(output)
    except (pydantic.ValidationError, ZeroDivisionError):
        return False
    return True


def check(bench: Any, seeds: range, n_outputs: int) -> Counter[str]:
    counts = Counter[str]()
    for seed in seeds:
        kind, rng = Types(seed).any(), random.Random(seed)
        out = output_type(kind.kind)
        assert out.spec is not None
        try:
            compiled = bench.compile(out.spec.kind, out.spec.text)
        except ConstraintError as e:
            counts[f"refused: {type(e).__name__}"] += n_outputs
            continue
        for _ in range(n_outputs):
            if (text := sampled(bench, compiled, rng)) is None:
                counts["length"] += 1
                continue
            try:
                value = out.parse_sample(Sample(text, "stop"))
            except BadOutput as e:
                if kind.is_held:
                    pytest.fail(f"{seed}: {kind.kind}: {e}")
                counts["invalid, and found"] += 1
                continue
            assert judged(kind, text if out.is_json else value, out.is_json), (seed, kind.kind, text)
            counts["valid"] += 1
    return counts


def test_no_bound_of_a_type_is_lost(bench: Any) -> None:
    counts = check(bench, range(40), 3)
    assert counts["valid"] > 0.7 * counts.total(), counts


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_bound_of_thousands_of_types_is_lost(bench: Any) -> None:
    counts = check(bench, range(1000, 5000), 3)
    assert counts["valid"] > 0.7 * counts.total(), counts
