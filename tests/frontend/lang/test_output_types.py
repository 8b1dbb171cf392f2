"""Output types: the constraint sent to the server, and the object parsed from the text."""

from __future__ import annotations

import asyncio
import datetime
import enum
import functools
import json
import math
import re
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import annotated_types
import jsonschema
import msgspec
import pydantic
import pytest
import typing_extensions

import banyan as bn
from banyan.lang import output_types
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.protocol import wire

UUID = "12345678-1234-4234-8234-123456789abc"


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Point(TypedDict):
    x: int


@dataclass
class Hero:
    name: str
    points: list[Point]


class Packed(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(ge=0)]


def even(n: int) -> int:
    if n % 2:
        raise ValueError("n must be even")
    return n


class Model(pydantic.BaseModel):
    n: Annotated[int, pydantic.AfterValidator(even)]


def run(answer: bn.Mock | str | wire.Sample, **options: Any) -> bn.State:
    mock = answer if isinstance(answer, bn.Mock) else bn.Mock(lambda prompt, name: answer)
    return bn.function(lambda s: s.__iadd__("?" + bn.gen("x", **options))).run(backend=mock)


def spec(**options: Any) -> wire.ConstraintSpec:
    mock = bn.Mock("1")
    run(mock, **options)
    op = mock.calls[0].op
    assert isinstance(op, wire.Gen)
    assert op.sampling.constraint is not None
    return op.sampling.constraint


TYPES: list[tuple[Any, str, Any]] = [
    (int, "-42", -42),
    (float, "2.5", 2.5),
    (bool, "False", False),
    (str, "any text", "any text"),
    (Literal["a", 1, True], "1", 1),
    (Literal["a", 1, True], "True", True),
    (Literal[Colour.RED, "b"], "red", Colour.RED),
    (Colour, "red", Colour.RED),
    (Colour, "2", Colour.BLUE),
    (re.compile("a+"), "aa", "aa"),
    (list[int], "[1, 2]", [1, 2]),
    (set[int], "[1, 2, 1]", {1, 2}),
    (dict[str, float], '{"a": 1.5}', {"a": 1.5}),
    (list[Decimal], '["-1.50"]', [Decimal("-1.50")]),
    (bytes, '"aGk="', b"hi"),
    (int | None, "null", None),
    (tuple[int, str], '[1, "b"]', (1, "b")),
    (Point, '{"x": 3}', {"x": 3}),
    (Hero, '{"name": "A", "points": [{"x": 1}]}', Hero("A", [{"x": 1}])),
    (Packed, '{"n": 1}', Packed(1)),
    (Annotated[int, msgspec.Meta(le=3)], "3", 3),
    (Model, '{"n": 4}', Model(n=4)),
    (list[Model], '[{"n": 4}]', [Model(n=4)]),
    ({"type": "array"}, "[1]", [1]),
]


@pytest.mark.parametrize(("kind", "text", "expected"), TYPES, ids=str)
def test_typed_gen_keeps_its_text_and_has_an_object(kind: Any, text: str, expected: Any) -> None:
    state = run(text, type=kind)
    assert state["x"] == text
    assert state.text() == "?" + text
    assert state.value("x") == expected
    assert type(state.value("x")) is type(expected)
    assert state.value("x") is state.value("x")


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"type": Literal["a", 1]}, "choices", '["a", "1"]'),
        ({"type": Literal[Colour.RED, "b"]}, "choices", '["red", "b"]'),
        ({"type": bool}, "choices", '["True", "False"]'),
        ({"type": Colour}, "choices", '["red", "2"]'),
        ({"regex": "a|b"}, "regex", "a|b"),
        ({"grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"json_schema": '{"type":   "null"}'}, "json_schema", '{"type": "null"}'),
        ({"json_schema": {"type": "null"}}, "json_schema", '{"type": "null"}'),
        ({"schema": {"type": "null"}}, "json_schema", '{"type": "null"}'),
        ({"schema": {"properties": {"a": {}}}}, "json_schema", '{"properties": {"a": {}}}'),
        ({"type": list[int]}, "json_schema", '{"type": "array", "items": {"type": "integer"}}'),
        ({"type": set[int]}, "json_schema", '{"type": "array", "items": {"type": "integer"}}'),
        ({"dtype": "bool"}, "regex", "(True|False)"),
    ],
)
def test_type_becomes_a_constraint(options: dict[str, Any], kind: str, text: str) -> None:
    assert (spec(**options).kind, spec(**options).text) == (kind, text)


@pytest.mark.parametrize("kind", [Point, Hero, Packed, Model, list[Model]])
def test_object_schemas_forbid_additional_properties(kind: Any) -> None:
    schema = json.loads(spec(type=kind).text)
    objects = [part for part in [schema, *schema.get("$defs", {}).values()] if "properties" in part]
    assert objects
    assert all(part["additionalProperties"] is False for part in objects)


@dataclass
class BoundedData:
    n: Annotated[int, pydantic.Field(ge=0, le=5)]


@dataclass
class DefaultData:
    n: int = pydantic.Field(ge=0, le=5)


@pydantic.dataclasses.dataclass
class PydanticData:
    n: Annotated[int, pydantic.Field(ge=0, le=5)]


@dataclass
class ValidatedData:
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def at_most_five(cls, n: int) -> int:
        return min(n, 5)


class BoundedRow(typing_extensions.TypedDict):
    n: NotRequired[Annotated[int, annotated_types.Ge(0), annotated_types.Le(5)]]


class BoundedTuple(NamedTuple):
    n: Annotated[int, pydantic.Field(ge=0, le=5)]


class Inherited(BoundedData):
    pass


Digit = NewType("Digit", Annotated[int, annotated_types.Interval(ge=0, le=5)])  # type: ignore[valid-newtype]


@pytest.mark.parametrize(
    ("kind", "valid", "invalid"),
    [
        (Annotated[int, pydantic.Field(ge=0, le=5)], "5", "99"),
        (pydantic.PositiveInt, "1", "-44"),
        (pydantic.conint(ge=0, le=3), "3", "-44"),
        (pydantic.constr(max_length=2), '"ab"', '"abc"'),
        (pydantic.conlist(int, min_length=1), "[1]", "[]"),
        (Annotated[int, annotated_types.Ge(0)], "0", "-1"),
        (Digit, "5", "6"),
        (list[Digit], "[5]", "[6]"),
        (list[Digit] | None, "[5]", "[6]"),
        (dict[str, Digit], '{"a": 5}', '{"a": 6}'),
        (dict[Annotated[str, pydantic.Field(pattern="^a$")], int], '{"a": 5}', '{"b": 5}'),
        (dict[pydantic.PositiveInt, int], '{"1": 5}', '{"-1": 5}'),
        (list[pydantic.PositiveInt], "[1]", "[0]"),
        (Annotated[list[int], pydantic.Field(max_length=1)], "[1]", "[1, 2]"),
        (Annotated[set[int], pydantic.Field(min_length=2)], "[1, 2]", "[1]"),
        (Annotated[float, annotated_types.MultipleOf(0.5)], "1.5", "1.25"),
        (BoundedData, '{"n": 5}', '{"n": 99}'),
        (DefaultData, '{"n": 5}', '{"n": 99}'),
        (PydanticData, '{"n": 5}', '{"n": 99}'),
        (BoundedRow, '{"n": 5}', '{"n": 99}'),
        (list[Inherited], '[{"n": 5}]', '[{"n": 99}]'),
        (BoundedTuple, "[5]", "[99]"),
    ],
    ids=str,
)
def test_bounds_of_pydantic_are_enforced(kind: Any, valid: str, invalid: str) -> None:
    schema = json.loads(spec(type=kind).text)
    jsonschema.validate(json.loads(valid), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(invalid), schema)
    run(valid, type=kind).value("x")
    with pytest.raises(bn.BadOutput):
        run(invalid, type=kind).value("x")


@pytest.mark.parametrize(
    "kind",
    [
        Annotated[int, pydantic.AfterValidator(even)],
        Annotated[Literal[1, 2], pydantic.AfterValidator(even)],
        Annotated[int, annotated_types.Predicate(lambda n: n % 2 == 0)],
    ],
    ids=["type", "literal", "predicate"],
)
def test_validators_are_called(kind: Any) -> None:
    assert run("2", type=kind).value("x") == 2
    with pytest.raises(bn.BadOutput, match=r"even|Predicate"):
        run("1", type=kind).value("x")


def test_pydantic_methods_of_a_dataclass_are_called() -> None:
    assert run('{"n": 9}', type=ValidatedData).value("x") == ValidatedData(5)


class BoundedStruct(msgspec.Struct):
    n: Annotated[int, pydantic.Field(ge=0)]


class DescribedStruct(msgspec.Struct):
    n: Annotated[int, pydantic.Field(description="of apples")]


class MetaModel(pydantic.BaseModel):
    n: Annotated[int, msgspec.Meta(ge=0)]


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (BoundedStruct, r"Ge\(ge=0\) belongs to pydantic and BoundedStruct to msgspec"),
        (list[BoundedStruct], "BoundedStruct"),
        (MetaModel, r"MetaModel belongs to pydantic and msgspec.Meta\(ge=0\) to msgspec"),
        (Annotated[int, msgspec.Meta(ge=0), pydantic.Field(le=5)], "neither library enforces the other's"),
        (Annotated[Decimal, msgspec.Meta(ge=0)], "needs msgspec, which says: Can only set `ge` on a numeric type"),
        (Annotated[datetime.datetime, annotated_types.Timezone(None)], "pydantic ignores Timezone"),
    ],
    ids=str,
)
def test_bound_that_nothing_enforces_is_refused(kind: Any, match: str) -> None:
    with pytest.raises(bn.BadProgram, match=match):
        bn.gen("x", type=kind)


CRASHING = """
from typing import Annotated, Generic, NamedTuple, TypeVar
import msgspec
from typing_extensions import TypeAliasType
import banyan as bn

T = TypeVar("T")
AtLeast3 = Annotated[int, msgspec.Meta(ge=3)]
Short = Annotated[str, msgspec.Meta(max_length=3)]
Pair = TypeAliasType("Pair", tuple[int, str])

class Box(msgspec.Struct, Generic[T]):
    below: "Box[T] | None"
    x: T | tuple[int, str]

class Named(NamedTuple):
    n: int

@bn.tool
def right(a: Named | AtLeast3, b: tuple[int, ...] | Short, c: tuple[AtLeast3, str] | int, d: Box[int]):
    "A tool."

for kind in (tuple[int, str] | AtLeast3, list[tuple[()] | None | Short], Pair | AtLeast3, Box[Short]):
    def wrong(a: kind = 3):
        "A tool."
    for make in (lambda: bn.gen("x", type=kind), lambda: bn.tool(wrong)):
        try:
            make()
        except bn.BadProgram as e:
            print("write a NamedTuple" in str(e))
"""


def test_equal_types_keep_their_own_order() -> None:
    """`Literal["a", "b"] == Literal["b", "a"]`, but their choices have an order."""
    for values in (["x", "y"], ["y", "x"]):
        kind: Any = Literal[tuple(values)]
        for found in (output_types.output_type(kind), bn.gen(type=kind).output_type):
            assert json.loads(found.spec.text) == values
    for members in (int | str, str | int):
        (schema,) = [json.loads(output_types.output_type(list[members]).spec.text)]
        assert [part["type"] for part in schema["items"]["anyOf"]] == [
            {int: "integer", str: "string"}[member] for member in members.__args__
        ]


def test_union_that_crashes_msgspec_is_refused() -> None:
    completed = subprocess.run([sys.executable, "-c", CRASHING], capture_output=True, text=True, timeout=110)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.split() == ["True"] * 8


def test_multiple_that_msgspec_misreads_is_refused() -> None:
    kind = Annotated[float, msgspec.Meta(multiple_of=0.01)]
    for make in (lambda: bn.gen("x", type=kind), lambda: bn.gen("x", type=dict[str, list[kind] | None])):
        with pytest.raises(bn.BadProgram, match=r"write pydantic.Field\(multiple_of=0.01\)"):
            make()
    assert run("0.07", type=Annotated[float, pydantic.Field(multiple_of=0.01)]).value("x") == 0.07
    for multiple, text in ((0.25, "0.75"), (1.5, "4.5"), (3, "9.0")):
        assert run(text, type=Annotated[float, msgspec.Meta(multiple_of=multiple)]).value("x") == float(text)


@dataclass
class Versioned:
    a: int
    version: int = field(init=False, default=1)


@dataclass
class Constants:
    a: int
    unit: ClassVar[str] = "m"


class HoldsVersioned(pydantic.BaseModel):
    held: Versioned


def test_field_that_no_constructor_takes_is_refused() -> None:
    for kind in (Versioned, list[Versioned]):
        with pytest.raises(bn.BadProgram, match=r"the field 'version' of Versioned, which has init=False"):
            bn.gen("x", type=kind)
    assert run('{"a": 2}', type=Constants).value("x") == Constants(2)
    # pydantic calls the constructor
    assert run('{"held": {"a": 2, "version": 7}}', type=HoldsVersioned).value("x").held == Versioned(2)


def test_field_that_is_read_from_a_path_is_refused() -> None:
    path = pydantic.AliasPath("p", "q")
    for alias in (path, pydantic.AliasChoices(path, pydantic.AliasPath("p", 1))):
        read: Any = (int, pydantic.Field(validation_alias=alias))
        model = pydantic.create_model("ByPath", x=read)
        for kind in (model, list[model], typing_extensions.TypedDict("Row", {"x": Annotated[read]})):
            with pytest.raises(bn.BadProgram, match=r"the field 'x' is read from AliasPath\('p', 'q'\)"):
                bn.gen("x", type=kind)
        by_name = pydantic.create_model("ByName", __config__=pydantic.ConfigDict(validate_by_name=True), x=read)
        assert run('{"x": 1}', type=by_name).value("x") == by_name(x=1)
    for alias in (pydantic.AliasPath("p"), pydantic.AliasChoices(path, "p")):
        by_key = pydantic.create_model("ByKey", x=(int, pydantic.Field(validation_alias=alias)))
        assert run('{"p": 1}', type=by_key).value("x").x == 1


def test_description_is_no_bound() -> None:
    assert run('{"n": 3}', type=DescribedStruct).value("x") == DescribedStruct(3)


def test_metadata_without_a_hash_is_accepted() -> None:
    assert run("3", type=Annotated[int, {"unit": "m"}]).value("x") == 3


@pytest.mark.parametrize(
    ("kind", "valid", "invalid"),
    [
        (datetime.datetime, ["2024-02-29T23:59:59", "2024-01-01T00:00:00.5+01:00"], ["2023-02-29T00:00:00", "now"]),
        (datetime.time, ["12:00:00", "00:00:00.25Z"], ["24:00:00", "noon"]),
        (Annotated[datetime.time, msgspec.Meta(tz=True)], ["12:00:00Z"], ["12:00:00"]),
        (Annotated[datetime.datetime, msgspec.Meta(tz=False)], ["2024-01-01T00:00:00"], ["2024-01-01T00:00:00Z"]),
        (pydantic.AwareDatetime, ["2024-01-01T00:00:00Z"], ["2024-01-01T00:00:00"]),
        (pydantic.NaiveDatetime, ["2024-01-01T00:00:00"], ["2024-01-01T00:00:00Z"]),
        (datetime.timedelta, ["P1DT2H", "-PT0.5S"], ["P1Y", "PT", "P", "1 day"]),
        (complex, ["1+2j", "-0.5", "3j"], ["one", "", "1+2"]),
        (Decimal, ["0", "-12.50", "3", "0.10"], ["", "1.", "-", "01", "e3", "1e5", "x"]),
        (bytes, ["", "aGk=", "aGkhIQ=="], ["a", "aGk", "=aGk"]),
        (Annotated[Decimal, pydantic.Field(max_digits=4, decimal_places=2)], ["99.99", "0"], ["100", "1.234"]),
        (Annotated[Decimal, pydantic.Field(max_digits=2)], ["99", "9.9", "0.12"], ["100", "9.99"]),
        (Annotated[Decimal, pydantic.Field(max_digits=2, decimal_places=2)], ["0.12"], ["0", "0.123"]),
        (Annotated[bytes, msgspec.Meta(min_length=2, max_length=4)], ["AAA=", "AAAAAA=="], ["AA==", "AAAAAAA=", ""]),
        (pydantic.HttpUrl, ["https://a-b.example.org:80/x?y#z", "http://127.0.0.1"], ["ftp://a", "http://", "a.b"]),
        (pydantic.UUID4, ["12345678-1234-4234-8234-123456789abc"], ["12345678-1234-1234-8234-123456789abc"]),
    ],
    ids=str,
)
def test_values_inside_json_have_a_pattern(kind: Any, valid: list[str], invalid: list[str]) -> None:
    schema = json.loads(spec(type=list[kind]).text)["items"]
    assert schema["type"] == "string"
    assert not [text for text in valid if not re.search(schema["pattern"], text)]
    assert not [text for text in invalid if re.search(schema["pattern"], text)]
    assert len(run(json.dumps(valid), type=list[kind]).value("x")) == len(valid)


class Number(enum.Enum):
    ONE = 1
    TWO = 2


@pytest.mark.parametrize("key", [Number, Literal[1, 2], tuple[int, int], None, Number | tuple[int, int]], ids=str)
def test_keys_that_are_no_text_are_refused(key: Any) -> None:
    with pytest.raises(bn.BadProgram, match="keys of a dict must be str"):
        bn.gen("x", type=pydantic.create_model("Keyed", by=(dict[key, int], ...)))


@pytest.mark.parametrize(
    ("key", "valid", "invalid"),
    [
        (datetime.date, "2024-02-29", "2023-02-29"),
        (datetime.datetime, "2024-02-29T00:00:00", "2024-02-29"),
        (datetime.timedelta, "P1D", "P1Y"),
        (uuid.UUID, UUID, "x"),
        (pydantic.UUID4, UUID, UUID.replace("-4", "-1")),
        (float, "-1.5", "x"),
        (bool, "true", "x"),
        (Decimal, "1.50", "x"),
        (Annotated[Decimal, pydantic.Field(ge=0)], "1.50", "-1"),
        (Annotated[int, pydantic.Field(ge=0)], "1", "-1"),
        (Colour, "red", "2"),
        (Literal["a", 1], "a", "1"),
        (int | float, "-1.5", "x"),
        (int | None, "5", "x"),
        (datetime.date | bool, "true", "x"),
        (int | Literal["auto"], "auto", "x"),
        (int | Literal["a.b", "c d"], "a.b", "a-b"),
        (bool | Literal["x"], "x", "y"),
        (int | Colour, "red", "blue"),
        (Literal["x"] | None, "x", "y"),
    ],
    ids=str,
)
def test_keys_of_a_dict_have_the_form_of_their_type(key: Any, valid: str, invalid: str) -> None:
    kind = pydantic.create_model("Keyed", by=(dict[key, int], ...))
    canonical(spec(type=kind))  # the server takes it
    schema = json.loads(spec(type=kind).text)
    jsonschema.validate({"by": {valid: 1}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"by": {invalid: 1}}, schema)
    ((found, _),) = run(json.dumps({"by": {valid: 1}}), type=kind).value("x").by.items()
    assert found == pydantic.TypeAdapter(key).validate_strings(valid)


@pytest.mark.parametrize("key", [str, Any, str | int, str | None], ids=str)
def test_keys_of_any_text_are_free(key: Any) -> None:
    kind = pydantic.create_model("Keyed", by=(dict[key, int], ...))
    canonical(spec(type=kind))  # the server takes it
    assert run('{"by": {"a": 1}}', type=kind).value("x").by == {"a": 1}


def test_bounded_decimal_keeps_its_digits() -> None:
    kind = Annotated[Decimal, pydantic.Field(ge=0, lt=10**18, decimal_places=2)]
    (value,) = run('["12345678901234567.89"]', type=list[kind]).value("x")
    assert str(value) == "12345678901234567.89"
    pattern = json.loads(spec(type=kind).text)["pattern"]
    assert [text for text in ("0.05", "-1", "1.005") if re.search(pattern, text)] == ["0.05"]
    for wrong in ("-1", "1000000000000000000", "1.005"):
        with pytest.raises(bn.BadOutput):
            run(f'"{wrong}"', type=kind).value("x")
    below = Annotated[Decimal, pydantic.Field(gt=-5, multiple_of=Decimal("0.5"))]
    assert run('"-4.5"', type=below).value("x") == Decimal("-4.5")
    for wrong in ("-5", "0.25"):
        with pytest.raises(bn.BadOutput):
            run(f'"{wrong}"', type=below).value("x")


@dataclass
class Nested:
    when: list[datetime.time] | Point | None
    default: Point


class Leaf(msgspec.Struct, tag=True):
    at: datetime.time


class Branch(msgspec.Struct, tag=True):
    below: Leaf | datetime.time | Branch | None
    packed: Packed1 | None = None


class Packed1(msgspec.Struct, tag=True, array_like=True):
    at: datetime.time


def test_patterns_reach_every_part_of_a_schema() -> None:
    defs = json.loads(spec(type=tuple[Nested, Branch]).text)["$defs"]
    assert "pattern" in defs["Nested"]["properties"]["when"]["anyOf"][0]["items"]
    assert "pattern" in defs["Leaf"]["properties"]["at"]
    assert "pattern" in defs["Branch"]["properties"]["below"]["anyOf"][0]
    assert "pattern" in defs["Packed1"]["prefixItems"][1]


class HasDefault(TypedDict):
    default: tuple[Decimal, int]


def test_property_named_like_a_keyword_is_constrained() -> None:
    schema = json.loads(spec(type=HasDefault).text)
    assert "pattern" in schema["$defs"]["HasDefault"]["properties"]["default"]["prefixItems"][0]


class NanModel(pydantic.BaseModel):
    default: float = math.nan
    examples: list[float] = pydantic.Field([math.inf], examples=[[math.inf]])


@dataclass
class NanData:
    default: float = math.nan
    examples: tuple[float, ...] = (math.inf,)


class NanStruct(msgspec.Struct):
    default: float = math.nan
    examples: tuple[float, ...] = (-math.inf,)


@pytest.mark.parametrize("kind", [NanModel, NanData, NanStruct])
def test_default_that_is_no_json_is_not_sent(kind: Any) -> None:
    asked = spec(type=kind)
    assert "NaN" not in asked.text
    assert "Infinity" not in asked.text
    canonical(asked)  # the server takes it
    assert run('{"default": 2.5, "examples": [1.5]}', type=kind).value("x").examples in ([1.5], (1.5,))


class Files(pydantic.BaseModel):
    path: Path
    id: pydantic.UUID4


def test_formats_of_pydantic_are_not_sent() -> None:
    assert '"format"' not in spec(type=Files).text
    text = '{"path": "a/b", "id": "12345678-1234-4234-8234-123456789abc"}'
    assert run(text, type=Files).value("x").path == Path("a/b")


class Species(enum.StrEnum):
    DOG = "dog"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    n: int = 1


class Dog(pydantic.BaseModel):
    kind: Literal[Species.DOG] = Species.DOG
    name: str
    friends: list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]] = []


class Fish(pydantic.BaseModel):
    kind: Literal["fish"] = "fish"


class Bird(pydantic.BaseModel):
    kind: Literal["bird"] = "bird"
    colour: Literal["red"] = pydantic.Field("red", alias="Colour")


class Crow(pydantic.BaseModel):
    kind: Literal["bird"] = "bird"
    colour: Literal["black"] = pydantic.Field("black", alias="Colour")


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
Coloured = Annotated[Bird | Crow, pydantic.Field(discriminator="colour")]
Flying = Annotated[Fish | Coloured, pydantic.Field(discriminator="kind")]


@pytest.mark.parametrize(
    ("kind", "tags", "text"),
    [
        (Pet, {"Cat": {"kind"}, "Dog": {"kind", "name"}}, '{"kind": "cat"}'),
        (list[Pet], {"Cat": {"kind"}, "Dog": {"kind", "name"}}, '[{"kind": "dog", "name": "A", "friends": []}]'),
        (
            Flying,
            {"Fish": {"kind"}, "Bird": {"kind", "Colour"}, "Crow": {"kind", "Colour"}},
            '{"kind": "bird", "Colour": "black"}',
        ),
    ],
    ids=["union", "in a list", "union of unions"],
)
def test_tag_of_a_discriminated_union_is_required(kind: Any, tags: dict[str, set[str]], text: str) -> None:
    defs = json.loads(spec(type=kind).text)["$defs"]
    assert {name: set(defs[name]["required"]) for name in tags} == tags
    canonical(spec(type=kind))  # the server takes it
    assert run(text, type=kind).value("x") == pydantic.TypeAdapter(kind).validate_json(text)


class Few(pydantic.BaseModel):
    n: int


class Many(pydantic.BaseModel):
    n: int
    note: str = ""


def by_number(value: Any) -> str:
    return "few" if (value["n"] if isinstance(value, dict) else value.n) < 5 else "many"


def test_tag_of_a_union_may_come_from_a_function() -> None:
    few, many = Annotated[Few, pydantic.Tag("few")], Annotated[Many, pydantic.Tag("many")]
    kind: Any = Annotated[few | many, pydantic.Discriminator(by_number)]
    canonical(spec(type=kind))  # the server takes it, although a text may be of both types
    assert [run(text, type=kind).value("x") for text in ('{"n": 1}', '{"n": 7}')] == [Few(n=1), Many(n=7)]
    with pytest.raises(bn.BadProgram, match="`Tag` not provided"):
        bn.gen("x", type=Annotated[few | Many, pydantic.Discriminator(by_number)])


@pytest.mark.parametrize("options", [{"type": dict[str, int]}, {"json_schema": {"type": "object"}}], ids=str)
def test_repeated_key_is_invalid(options: dict[str, Any]) -> None:
    assert run('{"a": 1, "b": {"a": 2}}' if "json_schema" in options else '{"a": 1}', **options).value("x")
    with pytest.raises(bn.BadOutput, match="the key 'a' occurs twice"):
        run('{"a": 1, "a": 2}', **options).value("x")


def test_options_of_json() -> None:
    assert (spec(json_schema={}).style, spec(json_schema={}).order) == ("either", "schema")
    asked = spec(type=list[int], whitespace="compact", order="any")
    assert (asked.style, asked.order) == ("compact", "any")
    for options in ({"regex": "a"}, {"type": int}, {}):
        with pytest.raises(bn.BadProgram, match="apply only to output that is JSON"):
            bn.gen("x", whitespace="any", **options)
    with pytest.raises(bn.BadProgram, match="whitespace must be spaced, compact"):
        bn.gen("x", json_schema={}, whitespace="none")


def test_unknown_format_is_noted() -> None:
    forms: list[dict[str, Any]] = [{}, {"whitespace": "compact"}, {"order": "any"}]
    for form in forms:
        with pytest.warns(UserWarning, match="format 'colour' only annotates"):
            bn.gen("x", json_schema={"type": "string", "format": "colour"}, **form)
    bn.gen("x", json_schema={"properties": {"format": {"format": "date"}, "b": {"format": "int32"}}})


NAMES = {"patternProperties": {r"^[^\W\d]$|^\u00e4$": {"type": "integer"}}, "additionalProperties": False}
LETTERS = {"patternProperties": {r"^\p{L}+$": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "array", "uniqueItems": True}, '["a", "b"]', '["a", "a"]'),
        ({"oneOf": [{"minimum": 3}, {"maximum": 5}]}, "9", "4"),
        ({"not": {"pattern": "a"}, "pattern": r"^\p{L}$"}, '"b"', '"a"'),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "pattern": "^(?!no)"}, '"yes"', '"no"'),
        ({"pattern": "^(?!x)a$"}, '"a"', r'"a\n"'),
        ({"pattern": r"^(?!0)\d[\d\]][$.].$"}, '"12$a"', '"1\u0662$a"'),
        ({"pattern": r"^(?!x)\w\W\$$"}, '"a\u00e4$"', '"\u00e4\u00e4$"'),
        ({"pattern": r"^(?!x).\D\b-$"}, '"\u0662a-"', r'"\ra-"'),
        ({"pattern": r"^(?<y>\d{4})-(?!00)\d\d$"}, '"2024-05"', '"zz"'),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, '{"type": "null"}', '{"type": 1}'),
        ({"multipleOf": 0.00012345}, "0.0002469", "1"),
        ({"uniqueItems": True, "items": {"multipleOf": 0.01}}, "[19.99, 0.07, true]", "[0.075]"),
        ({"uniqueItems": True, "items": {"multipleOf": 0.25}}, "[1000000000000000.25, 1e300]", "[0.3]"),
        ({"pattern": r"^[\W_][^\D5][^\W\d]$", "not": {"const": "x"}}, '"\u00e41a"', '"\u00e4\u0662a"'),
        ({"pattern": r"^[^]a][^\W]$", "not": {"const": "x"}}, '"xa]b"', '"xa]\u00e4"'),
        ({"not": {"const": 1}, **NAMES}, '{"a": 1, "\u00e4": 2}', '{"a": "b"}'),
        ({"not": {"const": 1}, **NAMES}, '{"a": 1}', '{"a": 1, "-": 2}'),
        ({"minProperties": 1, **LETTERS, "additionalProperties": False}, '{"a": 1}', "{}"),
        ({"minProperties": 1, **LETTERS, "additionalProperties": {"type": "null"}}, '{"a": 1}', "{}"),
        ({"allOf": [LETTERS], "unevaluatedProperties": False, "minProperties": 1}, '{"a": 1}', "{}"),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, '{"a": 1}', '{"b": 1}'),
        ({"oneOf": [{"format": "ipv4"}, {"type": "string", "format": "ipv6"}]}, '"1.2.3.4"', '"1.2.3"'),
        ({"not": {"format": "email"}, "type": "string"}, '"a"', '"a@b.org"'),
        ({"type": "object", "propertyNames": {"format": "uuid"}}, f'{{"{UUID}": 1}}', '{"x": 1}'),
        ({"contains": {"type": "string", "format": "date"}}, '["x", "2024-02-29"]', '["x"]'),
        ({"contains": {"format": "binary"}}, '["x"]', "[]"),
        ({"$dynamicRef": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "null", "1"),
    ],
    ids=str,
)
def test_keywords_that_masks_cannot_enforce_are_checked(schema: Any, right: str, wrong: str) -> None:
    assert spec(json_schema=schema).is_checked
    assert run(right, json_schema=schema).value("x") == json.loads(right)
    with pytest.raises(bn.BadOutput):
        run(wrong, json_schema=schema).value("x")
    answers = iter((wrong, right))
    mock = bn.Mock(lambda prompt, name: next(answers))
    assert run(mock, json_schema=schema, retries=1).value("x") == json.loads(right)


@pytest.mark.parametrize("pattern", [r"^(?!x)\p{L}+$", r"^(?=.*\p{Lu}).{8,}$", "(?<=a*)b", r"(?!x)\u{41}"])
def test_pattern_that_nothing_enforces_is_refused(pattern: str) -> None:
    with pytest.raises(bn.BadProgram, match=r"without look-around") as failed:
        bn.gen("x", json_schema={"properties": {"a": {"pattern": pattern}}})
    assert repr(pattern) in str(failed.value)
    bn.gen("x", json_schema={"type": "string", "pattern": r"^\p{L}$"})  # the masks enforce it


def test_other_schemas_are_not_checked() -> None:
    assert not spec(json_schema={"type": "object", "properties": {"note": {"type": "string"}}}).is_checked


def test_flags_of_a_pattern_are_kept() -> None:
    assert spec(type=re.compile("a b", re.IGNORECASE | re.VERBOSE)).text == "(?ix)a b"
    digits = re.compile(r"\d", re.ASCII)
    assert run("7", type=digits).value("x") == "7"
    with pytest.raises(bn.BadOutput, match="does not match"):
        run("\u0667", type=digits).value("x")
    with pytest.raises(bn.BadProgram, match="str"):
        bn.gen("x", type=re.compile(b"a"))


def test_bounds_of_a_functions_arguments_are_enforced() -> None:
    def weather(city: str, days: Annotated[int, pydantic.Field(ge=1)], exact: bool = False) -> None:
        pass

    assert run('{"city": "Rome", "days": 2}', type=weather).value("x") == {"city": "Rome", "days": 2}
    with pytest.raises(bn.BadOutput, match="days"):
        run('{"city": "Rome", "days": 0}', type=weather).value("x")
    with pytest.raises(bn.BadProgram, match="no type hint"):
        bn.gen("x", type=lambda city: city)


def remove(path: Literal["a"]) -> None:
    pytest.fail("a model's output called the function")


class Remover:
    def remove_one(self, path: Literal["a"]) -> None:
        remove(path)


class HoldsFunction(pydantic.BaseModel):
    call: remove  # type: ignore[valid-type]


@pytest.mark.parametrize(
    "kind",
    [list[remove], tuple[int, remove], dict[str, Remover().remove_one], HoldsFunction, functools.partial(remove)],  # type: ignore
    ids=["list", "tuple", "dict", "model", "partial"],
)
def test_function_inside_a_type_is_refused_and_not_called(kind: Any) -> None:
    with pytest.raises(bn.BadProgram, match=r"would call .*a function; write a TypedDict of its parameters"):
        bn.gen("x", type=kind)


def test_method_as_a_type_is_its_arguments() -> None:
    assert run('{"path": "a"}', type=Remover().remove_one).value("x") == {"path": "a"}


@pytest.mark.parametrize(("dtype", "text", "expected"), [(int, "7", 7), ("float", ".5", 0.5), (bool, "True", True)])
def test_dtype_keeps_text_and_has_a_value(dtype: Any, text: str, expected: Any) -> None:
    state = run(text, dtype=dtype)
    assert state["x"] == text
    assert state.value("x") == expected
    assert run('"a b"', dtype=str)["x"] == '"a b"'
    assert run('"a b"', dtype=str).value("x") == "a b"


@pytest.mark.parametrize(
    ("dtype", "text"), [(bool, "true"), (bool, "maybe"), (str, "a b"), (str, ""), (str, '"'), (str, '"a" or "b"')]
)
def test_text_that_is_invalid_for_a_dtype_raises_bad_output(dtype: Any, text: str) -> None:
    with pytest.raises(bn.BadOutput, match=f"not a valid {dtype.__name__}"):
        run(text, dtype=dtype).value("x")


@pytest.mark.parametrize(("text", "end"), [(" 42", "' '"), ("\n42", r"'\\n'")])
def test_number_behind_whitespace_is_refused_with_the_reason(text: str, end: str) -> None:
    with pytest.raises(bn.BadOutput, match=f"not a valid int: the text begins with {end}, which ends a number"):
        run(bn.Mock(text), type=int).value("x")
    with pytest.raises(bn.BadOutput, match="not a valid int: ''"):
        run(bn.Mock(""), type=int).value("x")


def test_number_stops_at_whitespace_and_at_the_gens_own_stops() -> None:
    stop = ["!"]
    mock = bn.Mock("42 apples")
    state = run(mock, type=int, stop=stop)
    assert (state["x"], state.value("x"), stop) == ("42", 42, ["!"])
    assert isinstance(op := mock.calls[0].op, wire.Gen)
    assert op.sampling.stop == ("!", " ", "\n")


def test_invalid_object_raises_where_it_is_read() -> None:
    state = run('{"n": 3}', type=Model)
    assert state["x"] == '{"n": 3}'
    with pytest.raises(
        bn.BadOutput, match=r"(?s)not a valid Model.*n must be even.*gen 'x', test_output_types\.py"
    ) as raised:
        state.value("x")
    assert isinstance(raised.value.__cause__, pydantic.ValidationError)
    assert state.error() is None, "an invalid output does not fail the program"
    state.sync()


def test_invalid_object_does_not_fail_an_item_of_a_batch() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("x", type=int)

    (state,) = program.run_batch([{}], backend=bn.Mock("zz"))
    assert (state["x"], state.error()) == ("zz", None)
    with pytest.raises(bn.BadOutput, match="not a valid int: 'zz'"):
        state.value("x")


def test_truncated_value_raises() -> None:
    truncated = wire.Sample("12", "length", n_tokens=2)
    with pytest.raises(bn.BadOutput, match="max_tokens cut it at 2"):
        run(truncated, type=int).value("x")
    assert run(truncated, type=str).value("x") == "12"


def test_typed_samples_and_branches_have_lists_of_values() -> None:
    script = iter(["1", "2", "3", "4"])
    mock = bn.Mock(lambda prompt, name: next(script))

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("many", type=int, n=2)
        forks = s.fork(2)
        forks += bn.gen("one", type=int)
        forks.join()
        s["set"] = "by hand"

    state = program.run(backend=mock)
    assert (state.value("many"), state.value("one"), state.value("set")) == ([1, 2], [3, 4], "by hand")
    assert (state["many"], state["one"]) == (["1", "2"], ["3", "4"])


class Opaque:
    pass


@dataclass
class Keyed:
    inner: list[Keyed]
    by: dict[Literal["a"], int] | None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"type": int, "regex": "a"}, "type, regex|regex, type"),
        ({"dtype": int, "json_schema": "{}"}, "one type"),
        ({"schema": "{}", "json_schema": "{}"}, "one type"),
        ({"dtype": list}, "int, float, bool, str"),
        ({"dtype": []}, "dtype"),
        ({"json_schema": "{"}, "not valid JSON"),
        ({"json_schema": "[1]"}, "JSON text of an object"),
        ({"json_schema": {"a": object()}}, "not valid JSON"),
        ({"regex": ""}, "regex is .*not empty"),
        ({"regex": ["a"]}, "regex"),
        ({"grammar": 5}, "grammar"),
        ({"type": Opaque}, "Opaque"),
        ({"type": enum.Enum("Empty", [])}, "no value"),
        ({"type": dict[int, str]}, "keys of a dict must be str"),
        ({"type": list[Keyed]}, "keys of a dict must be str"),
        ({"type": Literal["1", 1]}, "same text"),
        ({"type": Literal["red", Colour.RED]}, "same text"),
        ({"type": Literal["a", b"a"]}, "bytes"),
        ({"retries": 1}, "add type="),
        ({"type": int, "retries": -1}, "retries"),
        ({"type": int, "retries": "2"}, "retries"),
    ],
)
def test_invalid_form_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(bn.BadProgram, match=match):
        bn.gen("x", **options)


def test_output_type_is_cached() -> None:
    assert output_types.output_type(Hero) is output_types.output_type(Hero)
    assert output_types.output_type(Literal[1]) is not output_types.output_type(Literal[True])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": "x', {"a": 1, "b": "x"}),
        ('{"a": [{"b": "c', {"a": [{"b": "c"}]}),
        ('{"a": tr', {}),
        ("[1, 2", [1, 2]),
    ],
)
def test_parse_partial_returns_the_complete_part(text: str, value: Any) -> None:
    assert output_types.parse_partial(text) == value
    with pytest.raises(ValueError, match="EOF"):
        output_types.parse_partial("")


@bn.function
def typed_fields(s: bn.State, retries: int = 0) -> None:
    s += "?" + bn.gen("hero", type=Hero, retries=retries) + bn.gen("n", type=int)


HERO_TEXT = '{"name": "Ada L", "points": [{"x": 1}, {"x": 2}]}'
PARTS = [
    {"name": "Ada "},
    {"name": "Ada L", "points": [{"x": 1}]},
    Hero("Ada L", [{"x": 1}, {"x": 2}]),
]


def test_partial_objects_grow_to_the_object() -> None:
    mock = bn.Mock({"hero": HERO_TEXT, "n": "42"})
    state = typed_fields.run(stream=True, backend=mock)
    partials = list(state.partials("hero"))
    assert partials[-1] == PARTS[-1]
    assert [part for part in PARTS[:-1] if part not in partials] == []
    assert len(partials) == len({repr(part) for part in partials}), "no repeated objects"
    assert list(state.partials("n")) == [42]
    assert list(state.partials("hero")) == partials, "each reader gets all objects"
    assert list(typed_fields.run(backend=mock).partials("hero")) == [PARTS[-1]], "one object without a stream"


def test_partial_objects_restart_with_a_retry(tmp_path: Path) -> None:
    first_try = '{"name": "Bob B", "points": 5}'
    mock = bn.Mock({"hero": [first_try, HERO_TEXT], "n": "42"})
    with bn.Record(mock, tmp_path / "run.jsonl") as recorder:
        state = typed_fields.run(1, stream=True, backend=recorder)
        partials = list(state.partials("hero"))
    retry_start = partials.index({"name": "Ada "})
    assert {"name": "Bob B", "points": 5} in partials[:retry_start]
    assert [part for part in PARTS if part not in partials[retry_start:]] == []
    assert partials[-1] == PARTS[-1]
    assert list(state.text_iter("hero")) == [HERO_TEXT], "only the final text is streamed"
    replayed = typed_fields.run(1, stream=True, backend=bn.Replay(tmp_path / "run.jsonl"))
    assert list(replayed.partials("hero")) == partials

    mock = bn.Mock({"hero": [first_try, HERO_TEXT], "n": "42"})
    with bn.stream(typed_fields, 1, backend=mock) as run:
        tokens = [e for e in run.events() if isinstance(e, bn.Token) and e.name == "hero"]
    assert ["".join(e.text for e in tokens if e.round == n) for n in range(2)] == [first_try, HERO_TEXT]


def test_partial_objects_are_async_iterable() -> None:
    async def main() -> list[Any]:
        state = await typed_fields.run_async(stream=True, backend=bn.Mock({"hero": HERO_TEXT, "n": "42"}))
        return [part async for part in state.partials("hero")]

    partials = asyncio.run(main())
    assert [part for part in PARTS if part not in partials] == []
    assert partials[-1] == PARTS[-1]


def test_partial_objects_of_invalid_output_end_with_the_error() -> None:
    state = typed_fields.run(stream=True, backend=bn.Mock({"hero": '{"name": 5}', "n": "1"}))
    parts = state.partials("hero")
    assert {"name": 5} in (next(parts), next(parts))
    with pytest.raises(bn.BadOutput, match="Expected `str`"):
        list(parts)


def test_partials_iterator_keeps_the_program_alive() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("stock", type=dict[str, int])

    mock = bn.Mock('{"lamp": 3, "desk": 12}', latency=0.05)
    assert list(program.run(backend=mock, stream=True).partials("stock"))[-1] == {"lamp": 3, "desk": 12}


class Verdicts(pydantic.BaseModel):
    n: int


@dataclass
class Plain:
    n: int


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (["a", "b"], r"choices=, or type=Literal"),
        (("a", "b"), r"choices=, or type=Literal"),
        ({"a"}, r"choices=, or type=Literal"),
        (r"\d+", "regex=, json_schema= or grammar="),
        ('{"type": "integer"}', "regex=, json_schema= or grammar="),
        (Plain(1), "write its class, Plain"),
        (Verdicts(n=1), "write its class, Verdicts"),
    ],
)
def test_value_that_is_no_type_is_refused_with_what_to_write(value: Any, match: str) -> None:
    with pytest.raises(bn.BadProgram, match=f"is not supported: .*{match}"):
        bn.gen("x", type=value)


def test_unknown_object_is_refused_without_advice_that_does_not_help() -> None:
    with pytest.raises(bn.BadProgram, match=r"is not supported: Unable to generate .* for <object object at \w+>$"):
        bn.gen("x", type=object())


@pytest.mark.parametrize("option", ["regex", "json_schema", "schema", "grammar", "max_tokens"])
@pytest.mark.parametrize("value", [int, Literal["a"], list[int], re.compile("a"), Verdicts], ids=str)
def test_type_in_another_option_is_refused_with_the_right_option(option: str, value: Any) -> None:
    with pytest.raises(bn.BadProgram, match=rf"^{option} is .*; write gen\(type=\.\.\.\) for it$"):
        bn.gen("x", **{option: value})


@pytest.mark.long
def test_outlines_types_are_supported(tmp_path: Any) -> None:
    code = (
        "import datetime, sys, warnings; warnings.simplefilter('ignore')\n"
        "import banyan as bn\n"
        "assert 'outlines' not in sys.modules\n"
        "def run(kind, text):\n"
        "    state = bn.function(lambda s: s.__iadd__(bn.gen('x', type=kind))).run(backend=(mock := bn.Mock(text)))\n"
        "    print(mock.calls[0].op.sampling.constraint.kind, repr(state.value('x')))\n"
        "run(int, '4'); assert 'outlines' not in sys.modules\n"
        "run(datetime.date, '2026-01-02')\n"
        "from outlines.types import CFG, Choice, JsonSchema, Regex\n"
        "run(Regex('a+'), 'aa'); run(Choice(['a', 'b']), 'b'); run(JsonSchema({'type': 'integer'}), '5')\n"
        "run(CFG('start: \"a\"'), 'a')\n"
        "def weather(city: str, days: int): pass\n"
        'run(weather, \'{"city": "Rome", "days": 2}\')\n'
        "assert 'torch' not in sys.modules\n"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=110)
    assert completed.stderr == ""
    assert completed.stdout.splitlines() == [
        "regex 4",
        "regex datetime.date(2026, 1, 2)",
        "regex 'aa'",
        "choices 'b'",
        "json_schema 5",
        "grammar 'a'",
        "json_schema {'city': 'Rome', 'days': 2}",
    ]


@pytest.mark.long
def test_outlines_term_in_a_field_restricts_the_whole_text() -> None:
    from outlines.types import ipv4, regex  # takes seconds

    host = pydantic.create_model("Host", address=(ipv4, ...), kinds=(list[regex("a|b")], ...))  # type: ignore[misc]
    kind = output_types.output_type(host)
    properties = json.loads(kind.spec.text)["properties"]  # type: ignore[union-attr]
    patterns = [properties["address"]["pattern"], properties["kinds"]["items"]["pattern"]]
    assert [bool(re.search(pattern, text)) for pattern, text in zip(patterns, ["10.0.0.1", "a"], strict=True)] == [
        True
    ] * 2
    for pattern, text in zip(patterns * 2, ["x10.0.0.1", "xa", "10.0.0.1x", "ax"], strict=True):
        assert re.search(pattern, text) is None
    assert kind.parse('{"address": "10.0.0.1", "kinds": ["b"]}').address == "10.0.0.1"
    annotated = output_types.output_type(list[Annotated[str, regex("a|b")]])  # type: ignore[valid-type]
    assert json.loads(annotated.spec.text)["items"]["pattern"] == "^(?:(a|b))$"  # type: ignore[union-attr]


class Verdict(TypedDict):
    reason: str
    again: NotRequired[bool]
    score: int
    about: Point


T = TypeVar("T")


class Boxed(TypedDict, Generic[T]):
    what: T
    how: str


@pytest.mark.parametrize(
    ("kind", "name", "keys"),
    [
        (Verdict, "Verdict", ["reason", "again", "score", "about"]),
        (list[Verdict], "Verdict", ["reason", "again", "score", "about"]),
        (Boxed[int], "Boxed_int_", ["what", "how"]),
    ],
)
def test_typed_dict_schema_keeps_the_order_of_definition(kind: Any, name: str, keys: list[str]) -> None:
    schema = json.loads(output_types.output_type(kind).spec.text)  # type: ignore[union-attr]
    assert list(schema["$defs"][name]["properties"]) == keys, "the reason must precede the score"


def test_value_with_a_type_has_that_type() -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("typed", type=int) + bn.gen("digits", regex="[0-9]+") + bn.gen("list") + bn.gen("two", n=2)
        s["own"] = [1]

    state = program.run(backend=bn.Mock({"typed": "7", "digits": "42", "list": '["a"]', "two": ["1", "2"]}))
    assert (state.value("typed", int), state.value("typed", str), state.value("digits", int)) == (7, "7", 42)
    assert (state.value("list", list[str]), state.value("own", list[int])) == (["a"], [1])
    with pytest.raises(bn.BadOutput, match="not a valid int: '\\[\"a\"\\]'") as caught:
        state.value("list", int)
    assert (caught.value.gen, caught.value.program) == ("list", "program")
    with pytest.raises(bn.BadProgram, match="2 samples"):
        state.value("two", int)
    with pytest.raises(bn.BadProgram, match=r"holds a list that was not generated, .* read as <class 'int'>"):
        state.value("own", int)
