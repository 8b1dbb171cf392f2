"""Tools: the spec made from a function, and which functions a gen accepts."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import functools
import gc
import json
import weakref
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict

import annotated_types
import msgspec
import pydantic
import pytest

import banyan as bn
from banyan.tools.toolbox import Toolbox
from waits import wait_until


@bn.tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


def single_call(call: dict[str, Any], tools: Any) -> bn.ToolCall:
    """Run one call and return it."""

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.assistant(bn.gen("a", tools=tools))

    (tool_call,) = program.run(backend=bn.Mock([call, "done"])).tool_calls("a")
    return tool_call


# ---- functions as tools --------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    red = "red"
    blue = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Row(TypedDict):
    name: str


class Struct(msgspec.Struct):
    size: float


class Model(pydantic.BaseModel):
    size: int
    tags: list[str] = []


def test_tool_with_a_schema_gets_the_arguments_as_they_are() -> None:
    def echo(**arguments: Any) -> Any:
        return arguments

    schema = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 1}}, "required": ["x"]}
    tool = bn.Tool(echo, "echo", "Give it back.", schema)
    assert tool.schema == json.loads(tool.spec)["function"]["parameters"] == schema
    assert single_call({"echo": {"x": 0}}, [tool]).result == '{"x":0}'
    assert single_call({"echo": [1]}, [tool]).is_error


def test_tool_can_be_called_like_its_function() -> None:
    assert add(1, b=2) == 3
    assert (add.__doc__, add.__name__) == ("Add two numbers.", "add")
    assert repr(add) == "<tool add>"

    @bn.tool
    async def later(what: str) -> str:
        "Give it back."
        return what

    assert asyncio.run(later("hi")) == "hi"


def test_spec_describes_the_function() -> None:
    @bn.tool
    def repeat(text: str, times: int = 2) -> str:
        "Say it again."
        return text * times

    assert json.loads(add.spec) == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
    assert repeat.schema["properties"]["times"] == {"type": "integer", "default": 2}
    assert repeat.schema["required"] == ["text"]


def test_annotations_and_docstring_become_descriptions() -> None:
    @bn.tool
    def far(metres: Annotated[float, "as the crow flies"], n: Annotated[int, msgspec.Meta(ge=1)] = 1) -> None:
        """How far it is.

        Args:
            metres: the distance
        """

    assert far.description == "How far it is.\n\nArgs:\n    metres: the distance"
    assert far.schema["properties"]["metres"] == {"type": "number", "description": "as the crow flies"}
    assert far.schema["properties"]["n"] == {"type": "integer", "minimum": 1, "default": 1}
    with pytest.raises(ValueError, match=">= 1"):
        far.arguments('{"metres": 1, "n": 0}')


def test_arguments_of_every_json_type_are_converted() -> None:
    @bn.tool
    def everything(
        c: Colour,
        p: Point,
        r: Row,
        s: Struct,
        k: Literal["a", 1],
        xs: list[Point],
        d: dict[str, int],
        o: int | None = None,
        anything: Any = None,
    ) -> None:
        "All."

    text = '{"c":"red","p":{"x":1},"r":{"name":"n"},"s":{"size":2},"k":1,"xs":[{"x":3,"y":4}],"d":{"z":5}}'
    assert everything.arguments(text) == {
        "c": Colour.red,
        "p": Point(1),
        "r": {"name": "n"},
        "s": Struct(2.0),
        "k": 1,
        "xs": [Point(3, 4)],
        "d": {"z": 5},
    }
    assert everything.schema["$defs"].keys() == {"Colour", "Point", "Row", "Struct"}


def test_pydantic_arguments_are_validated() -> None:
    @bn.tool
    def make(model: Model, n: Annotated[int, "how many"] = 1) -> None:
        "Make."

    assert make.arguments('{"model": {"size": "3"}}') == {"model": Model(size=3)}
    assert make.schema["properties"]["n"] == {"type": "integer", "description": "how many", "default": 1}
    with pytest.raises(ValueError, match=r"^model\.size: Field required$"):
        make.arguments('{"model": {}}')
    with pytest.raises(ValueError, match=r"^more: Extra"):
        make.arguments('{"model": {"size": 1}, "more": 2}')


def test_alias_of_pydantic_names_the_parameter_for_the_model() -> None:
    @bn.tool
    def take(count: Annotated[int, pydantic.Field(alias="n")] = 3, unit: str = "m") -> None:
        "Take."

    assert take.schema["properties"]["n"] == {"type": "integer", "default": 3}
    assert take.schema["properties"]["unit"] == {"type": "string", "default": "m"}
    assert take.arguments('{"n": 4}') == {"count": 4}
    assert take.arguments("{}") == {}


def test_bounds_of_pydantic_are_enforced() -> None:
    @bn.tool
    def wait(seconds: Annotated[int, pydantic.Field(le=60)]) -> None:
        "Wait."

    assert wait.schema["properties"]["seconds"] == {"type": "integer", "maximum": 60}
    with pytest.raises(ValueError, match="less than or equal to 60"):
        wait.arguments('{"seconds": 61}')


def test_bounds_that_nothing_enforces_are_refused() -> None:
    def at(when: Annotated[datetime.datetime, annotated_types.Timezone(None)]) -> None:
        "Wait until then."

    with pytest.raises(bn.BadProgram, match="tool at: pydantic ignores Timezone"):
        bn.tool(at)

    def wait(seconds: Annotated[int, pydantic.Field(le=60)], n: Annotated[int, msgspec.Meta(ge=1)]) -> None:
        "Wait."

    with pytest.raises(bn.BadProgram, match=r"tool wait: .*neither library enforces the other's"):
        bn.tool(wait)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"a": 1}', "missing required field `b`"),
        ('{"a": 1, "b": "x"}', r"Expected `int`, got `str` - at `\$.b`"),
        ('{"a": 1, "b": 2, "c": 3}', "unknown field `c`"),
        ('{"a": 1, "b": 1.5}', "Expected `int`"),
        ("[]", "Expected `object`"),
    ],
)
def test_invalid_arguments_raise(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        add.arguments(text)


def test_numbers_written_as_text_are_accepted() -> None:
    assert add.arguments('{"a": "1", "b": 2.0}') == {"a": 1, "b": 2}


class Opaque:
    pass


def _no_hint(x) -> None:  # type: ignore[no-untyped-def]
    "Doc."


def _opaque(x: Opaque) -> None:
    "Doc."


def _opaque_list(x: list[Opaque]) -> None:
    "Doc."


def _callable(x: Callable[[], int]) -> None:
    "Doc."


def _unknown(x: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821, UP037
    "Doc."


def _args(*args: int) -> None:
    "Doc."


def _kwargs(**kwargs: int) -> None:
    "Doc."


def _positional(x: int, /) -> None:
    "Doc."


def _private(model: Model, _x: int = 3) -> None:
    "Doc."


def _silent(x: int) -> None: ...


def _yields(x: int) -> Any:
    "Doc."
    yield x


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (_no_hint, "parameter 'x' has no type hint"),
        (_opaque, "parameter 'x' is a Opaque, which has no JSON form"),
        (_opaque_list, "no JSON form"),
        (_callable, "no JSON form"),
        (_unknown, "'Nowhere' is not defined"),
        (_args, "'args' cannot be given by name"),
        (_kwargs, "cannot be given by name"),
        (_positional, "cannot be given by name"),
        (_private, "parameter '_x' begins with _"),
        (_silent, "has no docstring"),
        (_yields, "contains a `yield`"),
        (lambda: None, "needs a name="),
    ],
)
def test_function_that_cannot_be_a_tool_is_refused(function: Any, match: str) -> None:
    with pytest.raises(bn.BadProgram, match=match):
        bn.tool(function)


def test_name_and_description_can_be_given() -> None:
    twice = bn.tool(name="twice", description="Doubles.")(lambda: 2)
    assert json.loads(twice.spec)["function"]["name"] == "twice"
    assert twice.description == "Doubles."


def test_method_is_a_tool_of_its_object() -> None:
    class Shop:
        def __init__(self, price: int) -> None:
            self.price = price

        @bn.tool
        def cost(self, n: int) -> int:
            "What n cost."
            return n * self.price

    shop = Shop(7)
    assert list(shop.cost.schema["properties"]) == ["n"]
    assert shop.cost(2) == 14
    assert single_call({"cost": {"n": 3}}, tools=[shop.cost]).result == "21"


def test_plain_function_becomes_a_tool() -> None:
    def half(x: float) -> float:
        "Half of it."
        return x / 2

    assert single_call({"half": {"x": 5}}, tools=[half]).result == "2.5"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tools": []}, "tools is empty"),
        ({"tools": add}, "must be a list of tools"),
        ({"tools": "add"}, "must be a list of tools"),
        ({"tools": [3]}, "3 is not a tool"),
        ({"tools": [add, bn.tool(add.func)]}, "two of the tools have the same name"),
        ({"tools": [add], "max_rounds": -1}, "max_rounds is -1"),
        ({"tools": [add], "tool_timeout": 0}, "tool_timeout is 0"),
        ({"tools": [add], "max_tool_output": 0}, "max_tool_output is 0"),
        ({"max_rounds": 3}, "max_rounds applies to gens with tools"),
        ({"tools": [add], "n": 2}, "one sample"),
        ({"tools": [add], "choices": ["a"]}, "does not take tools"),
    ],
)
def test_invalid_tool_options_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(bn.BadProgram, match=match):
        bn.gen("a", **options)


@pytest.mark.parametrize("form", [{"type": int}, {"dtype": int}, {"regex": "a"}, {"json_schema": "{}"}])
def test_output_form_with_tools_is_unsupported(form: dict[str, Any]) -> None:
    with pytest.raises(bn.Unsupported, match="ask for the object in a second gen"):
        bn.gen("a", tools=[add], **form)


def test_plain_function_is_made_a_tool_once() -> None:
    def low(a: int) -> int:
        "The lower bound."
        return a

    def logged(a: int) -> int:
        return low(a)

    (first,), (again,) = Toolbox([low]).tools.values(), Toolbox((low,)).tools.values()
    assert first is again
    assert Toolbox([functools.update_wrapper(logged, low)]).tools["low"].func is logged


def test_limits_of_a_toolbox() -> None:
    assert Toolbox([add]).timeout == 60.0
    assert Toolbox([add], tool_timeout=float("inf")).timeout is None


@pytest.mark.parametrize("listed", [list, tuple])
@pytest.mark.parametrize("decorate", [bn.tool, lambda function: function])
def test_tool_of_a_run_keeps_nothing_alive(listed: Callable[[Any], Any], decorate: Callable[[Any], Any]) -> None:
    class Files:
        n = 3

    kept: list[weakref.ref[Files]] = []

    @bn.function
    def program(s: bn.State) -> None:
        files = Files()
        kept.append(weakref.ref(files))

        @decorate
        def count() -> int:
            "The number of files."
            return files.n

        s += bn.assistant(bn.gen("a", tools=listed([count])))

    assert program.run(backend=bn.Mock([{"count": {}}, "Three."]))["a"] == "Three."
    wait_until(lambda: gc.collect() >= 0 and kept[0]() is None, "the end of the run's objects", seconds=10)
