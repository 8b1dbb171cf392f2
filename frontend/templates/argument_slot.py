"""ArgumentSlot: stands for an argument while the body of a program is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from banyan.execution.source_line import source_line
from banyan.lang.expr import Expr

AWAITED = "something that is awaited"


class ArgumentObserved(BaseException):
    """Raised to end the recording of a program's body, when the body needs the value of an argument or reads a
    generated value. A BaseException, because a body may catch Exception.

    what: a description of what was inspected, or the number of the value that was read. line: the place in the source,
    "file.py:12".
    """

    def __init__(self, what: str | int, line: str) -> None:
        super().__init__(what, line)
        self.what, self.line = what, line


class ArgumentSlot(Expr):
    """An argument without a value. It can be appended, joined to text with `+`, and used in f-strings.

    Any other use raises an ArgumentObserved, because the body may then append other text for another value of the
    argument. The first such error is stored in `observed`, since the body may catch it.
    """

    __slots__ = ("__weakref__", "i", "name", "observed", "on_observed")

    def __init__(self, i: int, name: str) -> None:
        self.i, self.name = i, name
        self.observed: ArgumentObserved | None = None
        self.on_observed: Callable[[ArgumentObserved], None] | None = None

    def __format__(self, spec: str) -> str:
        return self._observe() if spec else super().__format__(spec)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python itself looks for special methods
            raise AttributeError(name)
        self._observe()

    def _observe(self, *_: Any) -> NoReturn:
        self.observed = self.observed or ArgumentObserved(f"argument {self.name!r}", source_line())
        if self.on_observed is not None:
            self.on_observed(self.observed)
        raise self.observed


for _name in (
    *("bool", "bytes", "contains", "delitem", "dir", "eq", "ge", "getitem", "gt", "hash", "int", "float", "complex"),
    *("index", "iter", "le", "len", "lt", "ne", "next", "repr", "reversed", "round", "setitem", "str", "trunc", "ceil"),
    *("floor", "abs", "neg", "pos", "invert", "call", "enter", "fspath", "length_hint", "mod", "rmod", "mul", "rmul"),
    *("sub", "rsub", "truediv", "rtruediv", "floordiv", "rfloordiv", "divmod", "rdivmod", "pow", "rpow", "and", "rand"),
    *("or", "ror", "xor", "rxor", "lshift", "rlshift", "rshift", "rrshift", "matmul", "rmatmul", "copy", "deepcopy"),
    *("reduce_ex", "await", "aiter"),
):
    setattr(ArgumentSlot, f"__{_name}__", ArgumentSlot._observe)
