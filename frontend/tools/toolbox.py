"""Tools: functions that a model may call while it generates. `tools/caller.py` executes the calls.

The model reads a tool's name, its docstring and the JSON Schema of its parameters.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Annotated, Any, NamedTuple, Self, Union, get_args, get_origin, get_type_hints, overload

import msgspec

from banyan.lang import fstring
from banyan.lang.json_types import needs_pydantic
from banyan.lang.output_types import reason
from banyan.runtime.errors import BadProgram
from banyan.runtime.protocol import wire

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The length is OpenAI's limit, so that a tool works with each backend. Our HTTP interface takes longer names."""
_NOT_BY_NAME = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Tool:
    """A function that a model may call, made by `@tool`. Python code can call it like the function itself."""

    def __init__(
        self,
        func: Callable[..., Any],
        name: str | None = None,
        description: str | None = None,
        schema: dict[str, Any] | None = None,
    ) -> None:
        """schema: the JSON Schema of an object with all parameters; `func` then checks the arguments itself. None: the
        schema follows from the type hints, and the tool checks the arguments."""
        functools.update_wrapper(self, func)
        self.func = func
        self.name = str(name or getattr(func, "__name__", ""))
        self.description = inspect.cleandoc(func.__doc__ or "") if description is None else description
        self._schema = schema
        self._parameters = list(inspect.signature(func).parameters.values())
        is_method = bool(self._parameters) and self._parameters[0].name == "self"
        if not is_method:
            _ = self.spec  # raises here, where the tool is defined

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Bind a tool that is a method to its instance. The model does not see the parameter `self`."""
        if instance is None:
            return self
        return type(self)(self.func.__get__(instance, owner), self.name, self.description, self._schema)

    @property
    def is_async(self) -> bool:
        """Whether the function is an `async def`. It then runs on the program's event loop."""
        return inspect.iscoroutinefunction(self.func)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the tool's parameters: the schema of one object."""
        return self._arguments.schema

    @cached_property
    def spec(self) -> str:
        """The tool's name, description and schema as JSON, in OpenAI's format. The model reads them."""
        if not _NAME.fullmatch(self.name):
            raise BadProgram(f"bad tool name {self.name!r}; it needs a name= of at most 64 letters, digits, _ and -")
        if not self.description:
            raise BadProgram(f"tool {self.name} has no docstring; the model needs one to know when to call it")
        if inspect.isgeneratorfunction(self.func) or inspect.isasyncgenfunction(self.func):
            raise BadProgram(f"tool {self.name} contains a `yield`; a tool returns its result")
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return msgspec.json.encode({"type": "function", "function": function}).decode()

    def arguments(self, text: str) -> dict[str, Any]:
        """Parse the JSON text of a call's arguments. Returns them as a dict, name -> value. ValueError: they are not
        valid; the error's message is written for the model."""
        return self._arguments.parse(text)

    @cached_property
    def _arguments(self) -> _Arguments:
        if self._schema is not None:
            return _Arguments(self._schema, msgspec.json.Decoder(dict[str, Any]).decode)
        try:
            hints = get_type_hints(self.func, include_extras=True)
        except Exception as e:  # evaluating a hint can raise anything
            raise BadProgram(f"tool {self.name}: its type hints cannot be read: {e}") from e
        hints.pop("return", None)
        for p in self._parameters:
            if p.kind in _NOT_BY_NAME:
                why = "a tool has no *args, no **kwargs and no positional-only parameters"
                raise BadProgram(f"tool {self.name}: parameter {p.name!r} cannot be given by name; {why}")
            if p.name not in hints:
                raise BadProgram(f"tool {self.name}: parameter {p.name!r} has no type hint; the model needs its type")
        try:
            make = _pydantic_arguments if needs_pydantic(*hints.values()) else _msgspec_arguments
        except TypeError as e:
            raise BadProgram(f"tool {self.name}: {e}") from e
        return make(self.name, hints, self._parameters)


@overload
def tool(func: Callable[..., Any], *, name: str | None = None, description: str | None = None) -> Tool: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    func: Callable[..., Any] | None = None, *, name: str | None = None, description: str | None = None
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, sync or async. The decorator works with and without parentheses.

    Each parameter needs a type hint with a JSON form. This includes Literal, Enum, dataclasses, TypedDict,
    msgspec.Struct and pydantic models. `Annotated[int, "in metres"]` adds a description. The docstring tells the model
    what the tool does.
    """
    if func is None:
        return functools.partial(Tool, name=name, description=description)
    return Tool(func, name, description)


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a model made. round: the number of the turn with the call, from 0. arguments: {} if they were
    not valid JSON. result: the text that the model got. is_error: whether `result` describes an error; if the tool
    raised an exception, its traceback is in the log (logger "banyan", level DEBUG). seconds: the duration of the call.
    """

    round: int
    name: str
    arguments: dict[str, Any]
    result: str
    is_error: bool = False
    seconds: float = 0.0


class Toolbox:
    """The tools of a gen and their limits. timeout: seconds per call; None: no limit. max_output: maximum number of
    characters of a result that the model gets."""

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]],
        max_rounds: int = 4,
        tool_timeout: float = 60.0,
        max_tool_output: int = 8192,
    ) -> None:
        """max_rounds: how many turns may call tools. tool_timeout: seconds per call; inf: no limit. max_tool_output:
        see `max_output`. BadProgram: a limit is out of range, or the tools are not a list of distinct functions."""
        if isinstance(tools, str | Tool) or not isinstance(tools, Iterable):
            raise BadProgram(f"tools is {fstring.shown(tools, 80)}; it must be a list of tools")
        if not isinstance(max_rounds, int) or not 0 <= max_rounds <= 1000:
            raise BadProgram(f"max_rounds is {max_rounds!r}; it must be an integer from 0 to 1000")
        if not isinstance(tool_timeout, int | float) or not tool_timeout > 0:
            raise BadProgram(f"tool_timeout is {tool_timeout!r}; it must be more than 0 seconds (inf: no limit)")
        if not isinstance(max_tool_output, int) or max_tool_output < 1:
            raise BadProgram(
                f"max_tool_output is {max_tool_output!r}; it must be an integer of at least 1 (characters)"
            )
        checked = [item if isinstance(item, Tool) else _tool_of(item) for item in tools]
        self.tools = {tool.name: tool for tool in checked}
        self.timeout = None if tool_timeout == float("inf") else tool_timeout
        self.max_output = max_tool_output
        self.wire = wire.Tools(tuple(tool.spec for tool in checked), max_rounds)
        if len(self.tools) < len(checked):
            raise BadProgram(f"two of the tools have the same name: {', '.join(tool.name for tool in checked)}")
        if not checked:
            raise BadProgram("tools is empty; leave it out if the model should not call tools")


def _tool_of(function: Callable[..., Any]) -> Tool:
    """The Tool of a plain function. Making a Tool takes 0.5 ms, so it is made once and stored as an attribute of the
    function. BadProgram: `function` is no function.

    A cache outside the function would keep the function alive, and with it all objects that the function refers to.
    """
    if not callable(function):
        raise BadProgram(f"{fstring.shown(function, 80)} is not a tool; decorate a function with @bn.tool")
    if not inspect.isfunction(function):
        return Tool(function)
    found: Tool | None = vars(function).get("_banyan_tool")
    if found is None or found.func is not function:  # functools.wraps copies the attributes of the wrapped function
        found = function._banyan_tool = Tool(function)  # type: ignore[attr-defined]
    return found


# ---- parameters ----------------------------------------------------------------------------------------------------


class _Arguments(NamedTuple):
    schema: dict[str, Any]
    parse: Callable[[str], dict[str, Any]]


def _with_description(hint: Any, meta: Callable[..., Any]) -> Any:
    """Replace the text in `Annotated[int, "text"]` by `meta(description="text")`. meta: msgspec.Meta, or its
    equivalent for pydantic. Returns any other hint unchanged."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    text = " ".join(note for note in notes if isinstance(note, str))
    notes = [note for note in notes if not isinstance(note, str)] + ([meta(description=text)] if text else [])
    return Annotated[(kind, *notes)] if notes else kind


def _msgspec_arguments(name: str, hints: dict[str, Any], parameters: list[inspect.Parameter]) -> _Arguments:
    fields: list[Any] = []
    for p in parameters:
        hint = _with_description(hints[p.name], msgspec.Meta)
        try:
            msgspec.json.schema(hint)
        except (TypeError, NameError) as e:
            raise BadProgram(
                f"tool {name}: parameter {p.name!r} is a {getattr(hint, '__name__', None) or hint}, which has no JSON "
                "form; use str, int, float, bool, list, dict, Literal, Enum, dataclass, TypedDict, msgspec or pydantic "
                "models"
            ) from e
        optional: Any = Union[hint, msgspec.UnsetType]  # noqa: UP007 - not every hint supports `|`
        fields.append((p.name, hint) if p.default is p.empty else (p.name, optional, msgspec.UNSET))
    kind = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    decode = msgspec.json.Decoder(kind, strict=False).decode

    def parse(text: str) -> dict[str, Any]:
        return {key: value for key, value in msgspec.structs.asdict(decode(text)).items() if value is not msgspec.UNSET}

    schema = _simplified(msgspec.json.schema(kind))
    for p in parameters:
        if p.default is not p.empty and isinstance(p.default, str | int | float):
            schema["properties"][p.name]["default"] = p.default
    return _Arguments(schema, parse)


def _pydantic_arguments(name: str, hints: dict[str, Any], parameters: list[inspect.Parameter]) -> _Arguments:
    from banyan.lang import pydantic_types  # lazily: pydantic takes longer to import than the rest of the package

    for p in parameters:
        if p.name.startswith("_"):
            raise BadProgram(
                f"tool {name}: parameter {p.name!r} begins with _, which makes it private for pydantic; rename it"
            )
    fields = {
        p.name: (_with_description(hints[p.name], pydantic_types.describe), ... if p.default is p.empty else p.default)
        for p in parameters
    }
    try:
        schema, validate = pydantic_types.arguments(name, fields)
    except TypeError as e:
        raise BadProgram(f"tool {name}: its parameters have no JSON form: {e}") from e

    def parse(text: str) -> dict[str, Any]:
        try:
            return validate(text)
        except ValueError as e:
            raise ValueError(reason(e)) from e

    return _Arguments(_simplified(schema), parse)


def _simplified(schema: dict[str, Any]) -> dict[str, Any]:
    """Simplify the JSON schema that msgspec or pydantic wrote for a tool's parameters. Returns an object's schema with
    `properties`, `required` and `$defs` only; the properties have no titles."""
    definitions = dict(schema.get("$defs", {}))
    if "$ref" in schema:
        schema = definitions.pop(schema["$ref"].rpartition("/")[2])
    properties = {
        key: {word: value for word, value in one.items() if word != "title"}
        for key, one in schema.get("properties", {}).items()
    }
    result: dict[str, Any] = {"type": "object", "properties": properties, "required": schema.get("required", [])}
    return result | ({"$defs": definitions} if definitions else {})
