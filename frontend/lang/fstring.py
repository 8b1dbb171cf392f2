"""Expressions inside f-strings: `f"Because {gen('why')}"` is a string that knows where its gen stands.

An expression is carried through a string as text: its bytes, between two marks that hold a number drawn by this
process, so that nobody's words can be taken for one. Nothing has to be remembered for it, so nothing leaks and it may
be appended any number of times. Only what is no plain value is looked up: a value in the making, which lives as long as
its state, and the last `N_KEPT` types and toolboxes of gens.

A string that was changed on the way (cut, escaped, changed in case) is refused when it is appended.
"""

from __future__ import annotations

import base64
import itertools
import re
import secrets
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec

from banyan.runtime.errors import BadProgram

N_KEPT = 65_536

# Digits, as they survive `upper()` and JSON; on both sides, so that a string that was cut holds at least one of them.
_TOKEN = str(10**23 + secrets.randbelow(9 * 10**23))
_OPEN, _CLOSE = f"\ue0b1{_TOKEN}:", f":{_TOKEN}\ue0b2"
_HINT = _OPEN[:8]  # what a line break inside the token leaves
_sealed = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)


class Seals:
    """Puts expressions into strings and finds them there. kinds: the union of those that are plain values."""

    def __init__(self, kinds: Any) -> None:
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._numbered).encode
        self._decode = msgspec.msgpack.Decoder(kinds, ext_hook=self._named).decode
        self._count = itertools.count()
        self._values: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._kept: OrderedDict[int, Any] = OrderedDict()  # number -> a part of an expression that is no plain value
        self._numbers: dict[int, int] = {}  # id of the part -> its number; ids hold as long as the part is kept

    def seal(self, expression: Any) -> str:
        if isinstance(expression, msgspec.Struct):
            body = base64.b64encode(self._encode(expression)).decode()
        else:
            self._values[body := f"&{next(self._count)}"] = expression
        return f"{_OPEN}{body}{_CLOSE}"

    def unseal(self, text: str) -> Iterator[Any]:
        """Text and expressions, in order. BadProgram: a seal is broken, or what it stood for is gone."""
        for k, part in enumerate(_sealed.split(text)):
            if k % 2:
                yield self._opened(part)
            elif part:
                refuse(
                    part, "an expression inside this f-string was cut apart or changed; append the f-string as it is"
                )
                yield part

    def _opened(self, body: str) -> Any:
        try:
            return self._values[body] if body.startswith("&") else self._decode(base64.b64decode(body, validate=True))
        except LookupError:
            raise BadProgram(
                "an expression inside this f-string is of a program that has ended, or was made long ago; write the "
                "f-string where it is appended"
            ) from None
        except (ValueError, msgspec.DecodeError):
            raise BadProgram("an expression inside this f-string was changed; append the f-string as it is") from None

    def _numbered(self, part: Any) -> msgspec.msgpack.Ext:
        number = self._numbers.get(id(part))
        if number is None:
            number = self._numbers[id(part)] = next(self._count)
            self._kept[number] = part
            if len(self._kept) > N_KEPT:
                _, old = self._kept.popitem(last=False)
                del self._numbers[id(old)]
        else:
            self._kept.move_to_end(number)
        return msgspec.msgpack.Ext(1, number.to_bytes(8, "big"))

    def _named(self, _: int, number: memoryview) -> Any:
        return self._kept[int.from_bytes(number, "big")]


def holds(text: str) -> bool:
    """Whether an expression stands in `text`, or what is left of one."""
    return _TOKEN in text or _HINT in text


def refuse(text: str, why: str) -> None:
    """BadProgram, if `text` holds an expression."""
    if holds(text):
        raise BadProgram(why)
