"""Tools: functions that a model may call while it generates.

    @bn.tool
    def lookup(table: str, key: Annotated[str, "what to look for"]) -> str:
        "Find a key in a table."

    s += bn.assistant(bn.gen("answer", tools=[lookup], max_rounds=4))

What the model is told of a tool is its name, its docstring, and the JSON Schema of its parameters. It is called in this
process; calls.py does that.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import Annotated, Any, NamedTuple, Self, Union, get_args, get_origin, get_type_hints, overload

import msgspec

from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CANNOT = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Tool:
    """What `@tool` makes of a function. Called, it is that function."""

    def __init__(self, func: Callable[..., Any], name: str | None = None, description: str | None = None) -> None:
        functools.update_wrapper(self, func)
        self.func = func
        self.name = str(name or getattr(func, "__name__", ""))
        self.description = inspect.cleandoc(func.__doc__ or "") if description is None else description
        self._parameters = list(inspect.signature(func).parameters.values())
        if not self._is_method:
            _ = self.spec  # what is wrong with it is said where it is made

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """A tool that is a method: the model knows nothing of its `self`."""
        if instance is None:
            return self
        return type(self)(self.func.__get__(instance, owner), self.name, self.description)

    @property
    def is_async(self) -> bool:
        """Whether it is an `async def`, which runs on the program's event loop."""
        return inspect.iscoroutinefunction(self.func)

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of its parameters, as an object."""
        return self._arguments.schema

    @cached_property
    def spec(self) -> str:
        """What the model is told, as JSON; see wire.Tools."""
        if not _NAME.fullmatch(self.name):
            raise BadProgram(
                f"a tool is called {self.name!r}; it needs a name= of letters, digits, _ and -, at most 64"
            )
        if not self.description:
            raise BadProgram(f"tool {self.name} has no docstring; the model needs one to know when to call it")
        if inspect.isgeneratorfunction(self.func) or inspect.isasyncgenfunction(self.func):
            raise BadProgram(f"tool {self.name} holds a `yield`; a tool returns its result")
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return msgspec.json.encode({"type": "function", "function": function}).decode()

    def arguments(self, text: str) -> dict[str, Any]:
        """The keyword arguments that a JSON object says. ValueError, in words for the model: they do not fit."""
        return self._arguments.read(text)

    @property
    def _is_method(self) -> bool:
        return bool(self._parameters) and self._parameters[0].name == "self"

    @cached_property
    def _arguments(self) -> _Arguments:
        hints = self._hints()
        pydantic = sys.modules.get("pydantic")  # not imported here: who hints with its models has done that
        if pydantic is not None and any(map(_holds_model(pydantic), hints.values())):
            return _by_pydantic(pydantic, self.name, hints, self._parameters)
        return _by_msgspec(self.name, hints, self._parameters)

    def _hints(self) -> dict[str, Any]:
        for p in self._parameters:
            if p.kind in _CANNOT:
                raise BadProgram(
                    f"tool {self.name}: parameter {p.name!r} cannot be given by name; a tool has no *args, no **kwargs "
                    "and no positional-only parameters"
                )
        try:
            hints = get_type_hints(self.func, include_extras=True)
        except Exception as e:  # a hint is any expression
            raise BadProgram(f"tool {self.name}: its type hints cannot be read: {e}") from e
        for p in self._parameters:
            if p.name not in hints:
                raise BadProgram(f"tool {self.name}: parameter {p.name!r} has no type hint; the model needs its type")
        return {p.name: hints[p.name] for p in self._parameters}


@overload
def tool(func: Callable[..., Any], *, name: str | None = None, description: str | None = None) -> Tool: ...
@overload
def tool(
    func: None = None, *, name: str | None = None, description: str | None = None
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    func: Callable[..., Any] | None = None, *, name: str | None = None, description: str | None = None
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, sync or async, with or without parentheses.

    Its type hints say what the model may give for each parameter: all that JSON holds, also Literal, Enum, dataclasses,
    TypedDict, msgspec.Struct and pydantic models; `Annotated[int, "in metres"]` says more. Its docstring says what it
    does; `name` and `description` replace the function's own.

    BadProgram: a parameter without a hint or with one that JSON cannot hold, `*args`, no docstring.
    """
    if func is None:
        return functools.partial(Tool, name=name, description=description)
    return Tool(func, name, description)


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that a model made. round: from 0. result: the text that the model was given for it.

    arguments: as the model wrote them, parsed; {} where they are no JSON. is_error: the result is what went wrong.
    seconds: from the call to its result.
    """

    round: int
    name: str
    arguments: dict[str, Any]
    result: str
    is_error: bool = False
    seconds: float = 0.0


class Toolbox:
    """The tools of a gen, and its limits. timeout: seconds for each call, None: any; max_output: characters of each
    result."""

    def __init__(self, tools: tuple[Tool, ...], max_rounds: int, timeout: float | None, max_output: int) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.timeout, self.max_output = timeout, max_output
        self.wire = wire.Tools(tuple(tool.spec for tool in tools), max_rounds)
        if len(self.tools) < len(tools):
            raise BadProgram(f"two of the tools have one name: {', '.join(tool.name for tool in tools)}")
        if not tools:
            raise BadProgram("tools is empty; leave it out where the model can call nothing")


def toolbox(
    tools: Iterable[Tool | Callable[..., Any]],
    max_rounds: int = 4,
    tool_timeout: float = 60.0,
    max_tool_output: int = 8192,
) -> Toolbox:
    """The checked toolbox of a gen. BadProgram: a limit that cannot be, or what is no tool."""
    if isinstance(tools, str | Tool) or not isinstance(tools, Iterable):
        raise BadProgram(f"tools is {tools!r:.80}; it must be a list of tools")
    if not isinstance(max_rounds, int) or not 0 <= max_rounds <= 1000:
        raise BadProgram(f"max_rounds is {max_rounds!r}; it must be a number from 0 to 1000")
    if not isinstance(tool_timeout, int | float) or not tool_timeout > 0:
        raise BadProgram(f"tool_timeout is {tool_timeout!r}; it must be more than 0 seconds (inf: no limit)")
    if not isinstance(max_tool_output, int) or max_tool_output < 1:
        raise BadProgram(f"max_tool_output is {max_tool_output!r}; it must be at least 1 character")
    limit = None if tool_timeout == float("inf") else tool_timeout
    return _toolbox(tuple(map(_tool, tools)), max_rounds, limit, max_tool_output)


_toolbox = lru_cache(1024)(Toolbox)


def _tool(what: Any) -> Tool:
    if isinstance(what, Tool):
        return what
    if callable(what):
        return _of_function(what)
    raise BadProgram(f"{what!r:.80} is no tool; decorate a function with @bn.tool")


_of_function = lru_cache(1024)(Tool)


# ---- parameters ----------------------------------------------------------------------------------------------------


class _Arguments(NamedTuple):
    schema: dict[str, Any]
    read: Callable[[str], dict[str, Any]]


def _described(hint: Any, note: Callable[..., Any]) -> Any:
    """`Annotated[int, "words"]` as a library writes it into a schema. note: its own note, such as msgspec.Meta."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    words = " ".join(one for one in notes if isinstance(one, str))
    kept = [one for one in notes if not isinstance(one, str)]
    if words:
        kept.append(note(description=words))
    return Annotated[(kind, *kept)] if kept else kind


def _by_msgspec(name: str, hints: dict[str, Any], parameters: list[inspect.Parameter]) -> _Arguments:
    fields: list[Any] = []
    hints = {key: _described(hint, msgspec.Meta) for key, hint in hints.items()}
    for p in parameters:
        try:
            msgspec.json.schema(hints[p.name])
        except (TypeError, NameError) as e:
            raise BadProgram(
                f"tool {name}: parameter {p.name!r} is a {_shown(hints[p.name])}, which has no JSON form; "
                "use str, int, float, bool, list, dict, Literal, Enum, dataclass, TypedDict, msgspec or pydantic models"
            ) from e
        is_needed = p.default is p.empty
        fields.append((p.name, hints[p.name]) if is_needed else (p.name, _or_unset(hints[p.name]), msgspec.UNSET))
    kind = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    decode = msgspec.json.Decoder(kind, strict=False).decode

    def read(text: str) -> dict[str, Any]:
        given = msgspec.structs.asdict(decode(text))
        return {key: value for key, value in given.items() if value is not msgspec.UNSET}

    return _Arguments(_plain(msgspec.json.schema(kind), parameters), read)


def _or_unset(hint: Any) -> Any:
    return Union[hint, msgspec.UnsetType]  # noqa: UP007 - not every hint knows `|`


def _by_pydantic(pydantic: Any, name: str, hints: dict[str, Any], parameters: list[inspect.Parameter]) -> _Arguments:
    fields: dict[str, Any] = {
        p.name: (_described(hints[p.name], pydantic.Field), ... if p.default is p.empty else p.default)
        for p in parameters
    }
    try:
        kind = pydantic.create_model(name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
        schema = kind.model_json_schema()
    except Exception as e:  # its errors have no common base
        raise BadProgram(f"tool {name}: its parameters have no JSON form: {e}") from e

    def read(text: str) -> dict[str, Any]:
        try:
            given = kind.model_validate_json(text)
        except pydantic.ValidationError as e:  # its own words are for people, and link to its pages
            wrong = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in e.errors())
            raise ValueError("; ".join(wrong)) from e
        return {key: getattr(given, key) for key in given.model_fields_set}

    return _Arguments(_plain(schema, parameters), read)


def _holds_model(pydantic: Any) -> Callable[[Any], bool]:
    def holds(hint: Any) -> bool:
        if isinstance(hint, type) and issubclass(hint, pydantic.BaseModel):
            return True
        return any(map(holds, get_args(hint)))

    return holds


def _plain(schema: dict[str, Any], parameters: list[inspect.Parameter]) -> dict[str, Any]:
    """The schema as an object of its own, without the titles that libraries add, with the defaults."""
    others = dict(schema.get("$defs", {}))
    if "$ref" in schema:
        schema = others.pop(schema["$ref"].rpartition("/")[2])
    properties = {
        key: {word: value for word, value in one.items() if word != "title"}
        for key, one in schema.get("properties", {}).items()
    }
    for p in parameters:
        if p.default is not p.empty and isinstance(p.default, str | int | float):
            properties[p.name]["default"] = p.default
    plain: dict[str, Any] = {"type": "object", "properties": properties, "required": schema.get("required", [])}
    return plain | ({"$defs": others} if others else {})


def _shown(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)
