"""Jinja for untrusted templates: Hugging Face's environment, with a budget for each rendering.

A chat template comes with the model, and is a program. The sandbox of Jinja keeps it from files and from Python's
internals, but not from nested loops or `'x' * 10**9`. Here everything that costs time or memory is charged to a budget:
each block of the template, each text that it makes, each call. A unit of the budget is about one character.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView
from contextlib import contextmanager
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

BASE, PER_MESSAGE, PER_CHARACTER = 1 << 20, 4096, 32
"""The budget of a rendering, in units: BASE, plus PER_MESSAGE for each message, plus PER_CHARACTER for each character
of messages and tools. BASE units take at most 30 ms. Templates of known models need about 100 units, plus 3 for each
character."""

BLOCK, ITEM, SHARE = 16, 8, 16
"""BLOCK: the price, in units, of entering a block or of a call. ITEM: the price of an item of a list from which a text
is made. SHARE: how many items of a list can be passed on for one unit."""

MAX_NUMBER, MAX_POWER, MAX_BITS, MAX_INDENT = 10_000, 64, 4096, 16
"""The largest number that a filter or a string method accepts; the largest exponent; the maximum number of bits of a
product; the largest indent."""

# Filters that take no time, filters that pass items on, and string methods whose results are not longer than the
# string.
_FREE = frozenset({"length", "count", "first", "last", "default", "d", "attr"})
_LAZY = frozenset({"map", "select", "reject", "selectattr", "rejectattr", "list", "reverse", "items", "batch", "slice"})
_PLAIN = frozenset({"split", "rsplit", "strip", "lstrip", "rstrip", "startswith", "endswith", "partition", "rpartition",
                    "find", "lower"})  # fmt: skip
_COMPARING = frozenset({"==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge", "<", "lt", "lessthan",
                        "<=", "le", "in"})  # fmt: skip
_OF_DICTS = frozenset(dir(dict))
_WIDE = re.compile(r"\d{4}|\*")


TemplateError = jinja2.TemplateError


class BudgetSpent(TemplateError):
    """The template takes more time or memory than the budget of its rendering allows."""


class _Spending(threading.local):
    left = BASE


_spending = _Spending()


@contextmanager
def budget(units: int) -> Iterator[None]:
    """A context in which the template renderings of this thread may use at most `units` of work. A rendering that needs
    more raises BudgetSpent."""
    before, _spending.left = _spending.left, units
    try:
        yield
    finally:
        _spending.left = before


def pay(units: int) -> None:
    _spending.left -= units
    if _spending.left < 0:
        raise BudgetSpent("the template takes too much time or memory")


class _Generator(CodeGenerator):
    def blockvisit(self, body: Iterable[nodes.Node], frame: Frame) -> None:
        body = list(body)
        outputs = (node for node in body if isinstance(node, nodes.Output))
        n = sum(len(one.data) for output in outputs for one in output.nodes if isinstance(one, nodes.TemplateData))
        self.writeline(f"environment.pay({BLOCK + n})")
        super().blockvisit(body, frame)


class _Payments(NodeTransformer):
    """Puts filters around operands whose length determines how long an expression takes. The filters charge this work
    to the rendering's budget of time and memory."""

    def visit_Compare(self, node: nodes.Compare) -> Any:
        """Searches (`in`) are paid for, comparisons in which no operand is a constant, and all operands of a chain."""
        first, *more = node.ops
        self.generic_visit(node)
        if more:  # a chain split in two would have its middle operands twice, at each level of nested chains
            node.expr = _filtered(node.expr, _weighed)
            for operand in node.ops:
                operand.expr = _filtered(operand.expr, _weighed)
            return node
        if first.op in ("in", "notin"):
            found = _filtered(node.expr, _found, first.expr)
            return found if first.op == "in" else nodes.Not(found)
        if not isinstance(node.expr, nodes.Const) and not isinstance(first.expr, nodes.Const):
            node.expr = _filtered(node.expr, _weighed)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(node.node, _passed)
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), _concatenated)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.test is not None:  # it also looks at items for which no block is entered
            node.iter = _filtered(node.iter, _counted)
        return self.generic_visit(node)

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        if not isinstance(node.key, nodes.Const):
            node.key = _filtered(node.key, _weighed)
        return self.generic_visit(node)


def _filtered(node: nodes.Node, filter_: Callable[..., Any], *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, filter_.__name__, [*args], [], None, None)


class _Generation(jinja2.ext.Extension):
    """The tag {% generation %} ... {% endgeneration %}, with which templates mark assistant text for training. The
    server renders only its content."""

    tags = {"generation"}  # noqa: RUF012 - the interface of jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja for chat templates: with Hugging Face's settings, in a sandbox, and with a budget of time and memory.

    The settings are trimmed blocks, `tojson`, `raise_exception`, and the tags for generations and loop controls."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    pay = staticmethod(pay)

    def __init__(self) -> None:
        extensions: list[Any] = [_Generation, "jinja2.ext.loopcontrols"]
        # Not optimized: Jinja's optimizer visits the operands of each filter again, which makes long chains cubic.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_paid, optimized=False)
        self.filters["tojson"] = _to_json
        self.filters = {name: _limited(name, one) for name, one in self.filters.items()}
        self.filters |= {one.__name__: one for one in (_weighed, _counted, _found, _passed, _concatenated)}
        self.tests |= {name: _limited_test(name, one) for name, one in self.tests.items() if name in _COMPARING}
        self.globals["raise_exception"] = _refuse
        del self.globals["lipsum"]

    def variables(self, source: str) -> set[str]:
        """The variables that a template reads before it sets them. TemplateError: the template is not valid."""
        return find_undeclared_variables(self.parse(source))

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        _Payments().visit(source)
        source.set_environment(self)
        return super()._generate(source, *args, **kwargs)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, _weighed(argument))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_format(left, right)
        elif operator == "**" and not (abs(right) <= MAX_POWER and abs(left) <= MAX_NUMBER):
            raise BudgetSpent(f"{left!r:.20} ** {right!r:.20} is too large")
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                if left.bit_length() + right.bit_length() > MAX_BITS:
                    raise BudgetSpent("a product is too large")
            else:
                pay(_length(left) * max(0, right) if isinstance(right, int) else 0)
                pay(_length(right) * max(0, left) if isinstance(left, int) else 0)
        elif operator == "+":
            pay(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        pay(BLOCK)
        if type(text := getattr(__obj, "__self__", None)) is str:
            pay(len(text) // SHARE)
            if __obj.__name__ not in _PLAIN:
                args = _checked_call(__obj.__name__, text, args, kwargs)
        if not isinstance(__obj, Macro):
            for one in (text, *args):
                if isinstance(one, list | tuple):
                    _pay_for(one)
        result = super().call(__context, __obj, *args, **kwargs)
        pay(_length(result))
        return result

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _OF_DICTS:  # as jinja2, but without an AttributeError that is caught
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Any:
        if type(value) is str or (format_ := super().wrap_str_format(value)) is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, (*args, *kwargs.values()))
            return format_(*args, **kwargs)

        return checked


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Does not escape <, > and &, unlike jinja's filter.
    if any(_length(one) > MAX_INDENT for one in (indent, *(separators or ()))):
        raise BudgetSpent("the indent or a separator of tojson is too long")
    if isinstance(indent, int) and indent > MAX_INDENT:
        raise BudgetSpent(f"the indent of tojson is {indent}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict | range) else 0


def _weighed(value: Any) -> Any:
    """Return `value`, which the template compares or looks up. The work, which grows with the number of items in the
    value, is charged to the rendering's budget of time and memory."""
    if isinstance(value, list | tuple | dict):
        _pay_for(value)
    else:
        pay(_length(value) // SHARE)
    return value


def _pay_for_search(value: Any, place: Any) -> None:
    """Charge the search `value in place` to the rendering's budget of time and memory."""
    before = _spending.left
    _weighed(value)
    if not isinstance(place, dict):
        pay(_length(place) // SHARE * (1 + (0 if isinstance(place, str) else (before - _spending.left) // SHARE)))


def _found(value: Any, place: Any) -> bool:
    """Return the result of the operator `in`. The work is first charged to the rendering's budget of time and
    memory."""
    _pay_for_search(value, place)
    return value in place


def _passed(value: Any) -> Any:
    """Return `value`, which the template slices. The work of the slice is charged to the rendering's budget of time and
    memory."""
    pay(_length(value) // SHARE)
    return value


def _concatenated(values: Sequence[Any]) -> str:
    """Return the result of the operator `~`, the values joined as text. The work is first charged to the rendering's
    budget of time and memory."""
    for value in values:
        _pay_for(value)
    return "".join(map(str, values))


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values, and charge each to the rendering's budget of time and memory."""
    for value in values:
        pay(ITEM)
        yield value


def _pay_for(value: Any) -> None:
    """Charge the conversion of a value to text, with all items in it, to the rendering's budget of time and memory."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            pay(ITEM + len(one))
            continue
        pay(ITEM + (one.bit_length() // 3 if isinstance(one, int) else _length(one)))
        if isinstance(one, dict):
            left += one.keys()
            left += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            left += one


def _paid(value: Any) -> Any:
    """Return `value`, which the template writes. Its length is charged to the rendering's budget of time and memory."""
    if type(value) is str:
        _spending.left -= len(value)  # checked at the next block; a template can write only a limited amount until then
    else:
        _pay_for(value)
    return value


def _check_format(text: str, values: Any) -> None:
    """Charge `text % values` or `text.format(*values)` to the rendering's budget of time and memory. Raises BudgetSpent
    if the format has a large or computed width."""
    if _WIDE.search(text):
        raise BudgetSpent("the width in a format has four digits or more, or is computed")
    _pay_for(values)
    items = values if isinstance(values, tuple) else (values,)
    pay(text.count("%" if "%" in text else "{") * max(map(_length, items), default=0) + 1000 * text.count("{"))


def _checked_call(name: str, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Charge the call of a string method, or of the filter with the same name, to the rendering's budget of time and
    memory. Used before the call. Returns the arguments for the call. Raises BudgetSpent if the call is too expensive or
    not allowed."""
    numbers = [one for one in (*args, *kwargs.values()) if isinstance(one, int)]
    if any(abs(one) > MAX_NUMBER for one in numbers):
        raise BudgetSpent(f"{name} has an argument larger than {MAX_NUMBER}")
    match name:
        case "replace" if len(args) >= 2:
            pay(text.count(str(args[0])) * len(str(args[1])))
        case "join" if args:
            args = (list(args[0]), *args[1:])
            _pay_for(args[0])
            pay(len(text) * len(args[0]))
        case "expandtabs" | "indent":
            n_lines = text.count("\t") + text.count("\n") + 1
            pay(n_lines * max(8, *numbers, *map(_length, (*args, *kwargs.values()))))
        case "wordwrap":  # copies what is left of a word at each line
            pay(len(text) ** 2 // 4096)
        case "translate":
            raise BudgetSpent("translate is not available in chat templates")
    return args


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter of Jinja, so that each call is charged to the rendering's budget of time and memory."""
    is_free = name in _FREE
    at = 1 if hasattr(function, "jinja_pass_arg") else 0  # the value follows a context or an environment

    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        if is_free:
            pay(BLOCK)
            return function(*args, **kwargs)
        value, rest = args[at], args[at + 1 :]
        if type(value) is str and not (rest or kwargs):
            pay(BLOCK + 2 * len(value))
            return function(*args)
        pay(BLOCK)
        if name not in _LAZY and isinstance(value, Iterator | range | ItemsView | KeysView | ValuesView):
            value = list(value)
        if name == "join":
            value = list(value)
            pay(len(str(rest[0] if rest else kwargs.get("d", ""))) * len(value))
        elif name == "format":
            _check_format(str(value), (*rest, *kwargs.values()))
        else:
            _checked_call(name, value if isinstance(value, str) else "", rest, kwargs)
        if name in _LAZY:
            pay(_length(value) // SHARE)
        else:
            _pay_for(value)
        result = function(*args[:at], value, *rest, **kwargs)
        pay(len(result) if isinstance(result, str) else _length(result) // SHARE)
        return _counted(result) if isinstance(result, Iterator) else result

    return limited


def _limited_test(name: str, function: Any) -> Callable[[Any, Any], Any]:
    """Wrap a test of Jinja that compares values, so that each call is charged to the rendering's budget of time and
    memory."""

    @functools.wraps(function)
    def limited(value: Any, other: Any) -> Any:
        _pay_for_search(value, other if name == "in" else ())
        return function(value, other)

    return limited
