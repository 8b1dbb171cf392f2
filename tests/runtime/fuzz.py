"""Invalid messages: random bytes, mutated valid messages, and well-formed messages with odd values."""

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

WEIGHTS = {"valid": 20, "odd": 40, "mutated": 20, "cut": 8, "bytes": 8, "deep": 2, "large": 1}


class Fuzzer:
    """An endless source of fuzzed messages for one direction of the wire."""

    def __init__(self, seed: int, kinds: Sequence[type[Any]]) -> None:
        """kinds: the direction's message types. Numbers are mostly small, so that messages name the same programs."""
        self._rng, self._kinds = Random(seed), list(kinds)
        self._hints = dict[type[Any], dict[str, Any]]()
        self._last = b"\0"

    def message(self) -> bytes:
        rng = self._rng
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        match kind:
            case "valid" | "odd":
                message = self._make(rng.choice(self._kinds), 0.0 if kind == "valid" else 0.15)
                with contextlib.suppress(OverflowError):  # not encodable as MessagePack: repeat the last message
                    self._last = wire.encode(message)
                return self._last
            case "mutated":
                data = bytearray(self._last)
                for _ in range(rng.randint(1, 4)):
                    at = rng.randrange(len(data) + 1)
                    data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
                return bytes(data)
            case "cut":
                return self._last[: rng.randrange(len(self._last) + 1)]
            case "deep":
                return rng.choice((b"\x91", b"\x81\xa1a")) * rng.randint(1, 5000)
            case "large":
                head = rng.choice((b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xf0"))
                return head + rng.randbytes(rng.randrange(60_000))
        return rng.randbytes(rng.choice((0, 1, 2, 7, 40, 1000)))

    def _make(self, cls: type[Any], p_odd: float) -> Any:
        hints = self._hints.setdefault(cls, typing.get_type_hints(cls))
        values: dict[str, Any] = {}
        for field in msgspec.structs.fields(cls):
            if field.required or self._rng.random() < 0.4:
                values[field.name] = self._value(hints[field.name], p_odd, field.name)
        return cls(**values)

    def _value(self, kind: Any, p_odd: float, name: str = "") -> Any:
        rng = self._rng
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Literal:
            return rng.choice(args) if rng.random() >= p_odd else "zzz"
        if origin in (typing.Union, types.UnionType):
            return self._value(rng.choice(args), p_odd, name)
        if origin is tuple:
            n = 0 if rng.random() < 0.2 else rng.randint(1, 4)
            return tuple(self._value(one, p_odd) for one in ([args[0]] * n if args[-1] is ... else args))
        if origin is dict:
            return {self._value(args[0], p_odd): self._value(args[1], p_odd) for _ in range(rng.randrange(3))}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._make(kind, p_odd)
        return self._leaf(kind, p_odd, name)

    def _leaf(self, kind: Any, p_odd: float, name: str) -> Any:
        rng, is_odd = self._rng, self._rng.random() < p_odd
        if kind is int:
            upper = {"version": 1, "max_tokens": 12, "vocab_size": 40}.get(name, 4)
            return rng.choice(ODD_INTS) if is_odd else 1 if name == "version" else rng.randint(0, upper)
        if kind is float:
            return rng.choice(ODD_FLOATS) if is_odd else rng.choice((0.0, 0.5, 1.0))
        if kind is str:
            return rng.choice(ODD_TEXTS) if is_odd else rng.choice(("a", "bc", " d", "user", "assistant", "e?"))
        if kind is bytes:
            ids = array("i", (rng.randrange(45) for _ in range(rng.randint(1, 12)))).tobytes()
            return rng.randbytes(rng.choice((0, 3, 8, 11))) if is_odd else ids
        return None if kind is types.NoneType else rng.random() < 0.5
