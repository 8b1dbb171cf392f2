"""The tools that the pocket model learns to call: functions and one-line descriptions."""

import ast
import datetime
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Function = Callable[..., str]

_BINARY: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# Unit -> (base unit of the same kind, factor). Temperatures have no factor; see `convert`.
_FACTORS = {
    "km": ("m", 1000.0), "m": ("m", 1.0), "cm": ("m", 0.01), "miles": ("m", 1609.344), "feet": ("m", 0.3048),
    "inches": ("m", 0.0254), "yards": ("m", 0.9144), "kg": ("kg", 1.0), "grams": ("kg", 0.001),
    "pounds": ("kg", 0.45359237), "ounces": ("kg", 0.028349523125), "litres": ("l", 1.0), "gallons": ("l", 3.785411784),
    "pints": ("l", 0.473176473), "cups": ("l", 0.2365882365), "seconds": ("s", 1.0), "minutes": ("s", 60.0),
    "hours": ("s", 3600.0), "days": ("s", 86400.0), "weeks": ("s", 604800.0),
}  # fmt: skip


class Tool(NamedTuple):
    """One tool: `parameters` maps each argument to its JSON type."""

    name: str
    description: str
    parameters: dict[str, str]

    @property
    def line(self) -> str:
        """The line that the chat template writes between `<tools>` and `</tools>`."""
        return json.dumps(
            {"name": self.name, "description": self.description, "parameters": self.parameters}, ensure_ascii=False
        )

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the format of `apply_chat_template(tools=[...])` and OpenAI."""
        properties = {name: {"type": kind} for name, kind in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


def number(value: float) -> str:
    """A number as text, with at most two decimals."""
    rounded = round(value, 2)
    return str(int(rounded)) if rounded == int(rounded) else str(rounded)


def calculator(expression: str) -> str:
    """The value of an expression with numbers, + - * / and brackets; `error: ...` for anything else."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        raise ValueError("not arithmetic")

    try:
        return number(value(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError) as error:
        return f"error: {error}"


def convert(value: float | str, from_unit: str, to_unit: str) -> str:
    """Converts a value to another unit of the same kind."""
    amount = float(value)
    if (from_unit, to_unit) == ("Celsius", "Fahrenheit"):
        return number(amount * 9 / 5 + 32)
    if (from_unit, to_unit) == ("Fahrenheit", "Celsius"):
        return number((amount - 32) * 5 / 9)
    kind, factor = _FACTORS.get(from_unit, ("", 1.0))
    to_kind, to_factor = _FACTORS.get(to_unit, ("?", 1.0))
    return number(amount * factor / to_factor) if kind == to_kind else f"error: {from_unit} to {to_unit}"


def add_days(date: str, days: int) -> str:
    """The ISO date `days` days after `date`; a negative number gives an earlier date."""
    return (datetime.date.fromisoformat(date) + datetime.timedelta(days=int(days))).isoformat()


def days_between(start: str, end: str) -> str:
    """Days from one ISO date to another."""
    return str((datetime.date.fromisoformat(end) - datetime.date.fromisoformat(start)).days)


def table_lookup(tables: Mapping[str, Mapping[str, str]]) -> Function:
    """A `lookup(table, key)` over the given tables."""

    def lookup(table: str, key: str) -> str:
        return tables.get(table, {}).get(key, "error: not found")

    return lookup


CALCULATOR = Tool("calculator", "Work out an arithmetic expression.", {"expression": "string"})
CONVERT = Tool(
    "convert", "Convert a value between units.", {"value": "number", "from_unit": "string", "to_unit": "string"}
)
ADD_DAYS = Tool("add_days", "Add days to a date.", {"date": "string", "days": "integer"})
DAYS_BETWEEN = Tool("days_between", "Count the days between two dates.", {"start": "string", "end": "string"})
LOOKUP = Tool("lookup", "Find a key in a table.", {"table": "string", "key": "string"})

FUNCTIONS: dict[str, Function] = {
    "calculator": calculator,
    "convert": convert,
    "add_days": add_days,
    "days_between": days_between,
}


def run(name: str, arguments: Mapping[str, Any], functions: Mapping[str, Function]) -> str:
    """Calls a tool as an agent does: a wrong name or wrong arguments result in `error: ...`."""
    if name not in functions:
        return f"error: no tool {name}"
    try:
        return functions[name](**arguments)
    except (TypeError, ValueError, OverflowError) as error:
        return f"error: {error}"
