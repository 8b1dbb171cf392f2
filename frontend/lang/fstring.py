"""Expressions inside f-strings: `f"Because {gen('why')}"` is a string that contains its gen.

The string holds the expression in encoded form between two marks. The marks contain a random number that this process
draws, so that other text cannot imitate them. Parts that cannot be encoded stay in memory, and the string holds their
numbers. The number of a LazyValue is valid as long as its state lives. The number of an output type or toolbox is valid
until MAX_KEPT newer ones were embedded. Appending a string that was changed after the embedding raises BadProgram.
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

from banyan.runtime.errors import BadProgram, describe_surrogate

MAX_KEPT = 65_536

# `upper()` and JSON leave digits as they are. The number is in both marks, so that each half of a cut string has it.
_TOKEN = str(10**23 + secrets.randbelow(9 * 10**23))
_OPEN, _CLOSE = f"\ue0b1{_TOKEN}:", f":{_TOKEN}\ue0b2"
_HINT = _OPEN[:8]  # what remains if a line break splits the token
_CHANGED = (
    "an expression inside this f-string was changed, cut apart, or put into a list or dict; append it as it is, or put "
    "it directly into the f-string"
)
MARK = f" at 0x{_TOKEN}"
"""Part of the repr of each expression. A string with this mark is refused: it holds a repr, not the expression, because
a list was formatted. The mark looks like an address, so that code that removes addresses from reprs removes it too."""
_embedded = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)


def check_unicode(text: str) -> None:
    """BadProgram: the text has a lone surrogate, for example from `open(..., errors="surrogateescape")`."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise BadProgram(
            f"character {e.start} of this text is {describe_surrogate(e)}; replace it, as with "
            "text.encode(errors='replace').decode()"
        ) from None


class Embedder:
    """Writes expressions into strings, in encoded form between two marks, and reads them from such strings."""

    def __init__(self, kinds: Any) -> None:
        """kinds: the union of the classes whose instances can be encoded."""
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._to_number).encode
        self._decode = msgspec.msgpack.Decoder(kinds, ext_hook=self._from_number).decode
        self._count = itertools.count()
        self._values: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._kept: OrderedDict[int, Any] = OrderedDict()  # number -> a part that cannot be encoded; the oldest first
        self._numbers: dict[int, int] = {}  # id(part) -> its number; ids are valid while the part is kept

    def embed(self, expression: Any) -> str:
        if isinstance(expression, msgspec.Struct):
            body = base64.b64encode(self._encode(expression)).decode()
        else:
            self._values[body := f"&{next(self._count)}"] = expression
        return f"{_OPEN}{body}{_CLOSE}"

    def extract(self, text: str) -> Iterator[Any]:
        """Yields the texts and expressions in `text`. BadProgram: an expression was changed or no longer exists."""
        for k, part in enumerate(_embedded.split(text)):
            if k % 2:
                yield self._decode_body(part)
            elif part:
                refuse(part, _CHANGED)
                yield part

    def _decode_body(self, body: str) -> Any:
        try:
            return self._values[body] if body.startswith("&") else self._decode(base64.b64decode(body, validate=True))
        except LookupError:
            raise BadProgram(
                "an expression inside this f-string belongs to a program that has ended, or is too old; create the "
                "f-string where it is appended"
            ) from None
        except (ValueError, msgspec.DecodeError):
            raise BadProgram("an expression inside this f-string was changed; append the f-string as it is") from None

    def _to_number(self, part: Any) -> msgspec.msgpack.Ext:
        number = self._numbers.get(id(part))
        if number is None:
            number = self._numbers[id(part)] = next(self._count)
            self._kept[number] = part
            if len(self._kept) > MAX_KEPT:
                _, old = self._kept.popitem(last=False)
                del self._numbers[id(old)]
        self._kept.move_to_end(number)
        return msgspec.msgpack.Ext(1, number.to_bytes(8, "big"))

    def _from_number(self, _: int, number: memoryview) -> Any:
        return self._kept[int.from_bytes(number, "big")]


def holds_expression(text: str) -> bool:
    """Whether `text` contains an embedded expression or a part of one."""
    return _TOKEN in text or _HINT in text


def shown(value: object, length: int | None = None) -> str:
    """Return the repr of `value` for an error message, cut to `length` characters (None: not cut). Removes the random
    number by which this process recognises embedded expressions: users append error messages to prompts, and a prompt
    that contains the number is refused."""
    return repr(value).replace(MARK, "").replace(_TOKEN, "")[:length]


def check_option(name: str, text: str) -> None:
    """Check that `text`, the value of the option `name`, contains no embedded expression. BadProgram: it contains an
    expression, which only prompts can."""
    refuse(text, f"{name} takes plain text, but this contains an expression; s['x'] is the text of a gen")


def refuse(text: str, message: str) -> None:
    """Raise BadProgram if `text` contains an embedded expression."""
    if holds_expression(text):
        raise BadProgram(message)
