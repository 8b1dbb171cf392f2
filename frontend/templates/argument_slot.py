"""What stands for the arguments of a program while it is recorded."""

from __future__ import annotations

from typing import Any, NoReturn

from banyan.execution.source_line import source_line
from banyan.lang.expr import Expr

AWAITED = "something that is awaited"


class ArgumentObserved(BaseException):
    """Ends a body that is recorded, where it looks at what is not there. No Exception: bodies may catch those.

    what: it looked at; a number is that of a value in the making.
    """

    def __init__(self, what: str | int, line: str) -> None:
        super().__init__(what, line)
        self.what, self.line = what, line


class Slot(Expr):
    """An argument that is not given yet. It can be appended, joined to other text with `+`, and stand in f-strings.

    Whatever else is done to it raises Observed, and is remembered: a body that compares it, measures it or takes it
    apart does other things for other arguments.
    """

    __slots__ = ("__weakref__", "i", "name", "observed")

    def __init__(self, i: int, name: str) -> None:
        self.i, self.name = i, name
        self.observed: ArgumentObserved | None = None

    def __format__(self, spec: str) -> str:
        return self._observe() if spec else super().__format__(spec)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked by Python itself, to find out what this can do
            raise AttributeError(name)
        self._observe()

    def _observe(self, *_: Any) -> NoReturn:
        self.observed = self.observed or ArgumentObserved(f"argument {self.name!r}", source_line())
        raise self.observed


for _name in (
    *("bool", "bytes", "contains", "delitem", "dir", "eq", "ge", "getitem", "gt", "hash", "int", "float", "complex"),
    *("index", "iter", "le", "len", "lt", "ne", "next", "repr", "reversed", "round", "setitem", "str", "trunc", "ceil"),
    *("floor", "abs", "neg", "pos", "invert", "call", "enter", "fspath", "length_hint", "mod", "rmod", "mul", "rmul"),
    *("sub", "rsub", "truediv", "rtruediv", "floordiv", "rfloordiv", "divmod", "rdivmod", "pow", "rpow", "and", "rand"),
    *("or", "ror", "xor", "rxor", "lshift", "rlshift", "rshift", "rrshift", "matmul", "rmatmul", "copy", "deepcopy"),
    *("reduce_ex", "await", "aiter"),
):
    setattr(Slot, f"__{_name}__", Slot._observe)
