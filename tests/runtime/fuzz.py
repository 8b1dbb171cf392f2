"""Messages that nobody should send: random bytes, mutated good ones, and well-formed ones that make no sense."""

from __future__ import annotations

import contextlib
import types
import typing
from array import array
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from banyan.runtime.protocol import wire

ODD_INTS = (-1, -2, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63), 2**64 - 1)
ODD_FLOATS = (0.0, -1.0, 1e308, float("nan"), float("inf"), float("-inf"), 1e-308)
ODD_TEXTS = ("", "\0", "<|im_end|>", "é🙂" * 50, "a" * 5000, "{" * 300, "(x+x+)+y", "\ud7ff", "{{7*7}}")


SHARES = {"sense": 20, "wild": 40, "mutated": 20, "cut": 8, "bytes": 8, "deep": 2, "large": 1}


class Fuzzer:
    """An endless source of them, for one direction of the wire."""

    def __init__(self, seed: int, kinds: Sequence[type[Any]]) -> None:
        """kinds: the messages of the direction. Numbers are mostly small, so that messages meet each other."""
        self._chance, self._kinds = Random(seed), list(kinds)
        self._hints = dict[type[Any], dict[str, Any]]()
        self._last = b"\0"

    def message(self) -> bytes:
        chance = self._chance
        kind = chance.choices(list(SHARES), list(SHARES.values()))[0]
        match kind:
            case "sense" | "wild":
                message = self._make(chance.choice(self._kinds), 0.0 if kind == "sense" else 0.15)
                with contextlib.suppress(OverflowError):  # what MessagePack cannot say; the last one again
                    self._last = wire.encode(message)
                return self._last
            case "mutated":
                data = bytearray(self._last)
                for _ in range(chance.randint(1, 4)):
                    at = chance.randrange(len(data) + 1)
                    data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
                return bytes(data)
            case "cut":
                return self._last[: chance.randrange(len(self._last) + 1)]
            case "deep":
                return chance.choice((b"\x91", b"\x81\xa1a")) * chance.randint(1, 5000)
            case "large":
                head = chance.choice((b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xf0"))
                return head + chance.randbytes(chance.randrange(60_000))
        return chance.randbytes(chance.choice((0, 1, 2, 7, 40, 1000)))

    def _make(self, cls: type[Any], wildness: float) -> Any:
        hints = self._hints.setdefault(cls, typing.get_type_hints(cls))
        values: dict[str, Any] = {}
        for field in msgspec.structs.fields(cls):
            if field.required or self._chance.random() < 0.4:
                values[field.name] = self._value(hints[field.name], wildness, field.name)
        return cls(**values)

    def _value(self, kind: Any, wildness: float, name: str = "") -> Any:
        chance = self._chance
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Literal:
            return chance.choice(args) if chance.random() >= wildness else "zzz"
        if origin in (typing.Union, types.UnionType):
            return self._value(chance.choice(args), wildness, name)
        if origin is tuple:
            n = 0 if chance.random() < 0.2 else chance.randint(1, 4)
            return tuple(self._value(one, wildness) for one in ([args[0]] * n if args[-1] is ... else args))
        if origin is dict:
            return {self._value(args[0], wildness): self._value(args[1], wildness) for _ in range(chance.randrange(3))}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._make(kind, wildness)
        return self._leaf(kind, wildness, name)

    def _leaf(self, kind: Any, wildness: float, name: str) -> Any:
        chance, is_odd = self._chance, self._chance.random() < wildness
        if kind is int:
            most = {"version": 1, "max_tokens": 12, "vocab_size": 40}.get(name, 4)
            return chance.choice(ODD_INTS) if is_odd else 1 if name == "version" else chance.randint(0, most)
        if kind is float:
            return chance.choice(ODD_FLOATS) if is_odd else chance.choice((0.0, 0.5, 1.0))
        if kind is str:
            return chance.choice(ODD_TEXTS) if is_odd else chance.choice(("a", "bc", " d", "user", "assistant", "e?"))
        if kind is bytes:
            ids = array("i", (chance.randrange(45) for _ in range(chance.randint(1, 12)))).tobytes()
            return chance.randbytes(chance.choice((0, 3, 8, 11))) if is_odd else ids
        return None if kind is types.NoneType else chance.random() < 0.5
