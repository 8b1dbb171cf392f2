from __future__ import annotations

import re

import pytest
from tokenizers import Tokenizer

from banyan.runtime import errors
from banyan.runtime.errors import BadModel, BanyanError, ProgramError, from_code, rust_panics_as


def error_classes(cls: type[BanyanError] = BanyanError) -> list[type[BanyanError]]:
    return [cls, *(deeper for sub in cls.__subclasses__() for deeper in error_classes(sub))]


ERROR_CLASSES = [
    cls for cls in dict.fromkeys(error_classes()) if cls.__module__ == errors.__name__
]  # multiple inheritance lists some twice


def test_docstring_shows_the_class_tree() -> None:
    assert errors.__doc__ is not None
    entries = re.findall(r"^    ([ │├└─]*)(\w+)", errors.__doc__, re.MULTILINE)
    path: list[tuple[int, str]] = []
    parents = {}
    for indent, name in entries:
        while path and path[-1][0] >= len(indent):
            path.pop()
        parents[name] = path[-1][1] if path else "Exception"
        path.append((len(indent), name))
    assert parents == {cls.__name__: cls.__bases__[0].__name__ for cls in ERROR_CLASSES}


def test_error_codes_are_unique() -> None:
    codes = [cls.code for cls in ERROR_CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


@pytest.mark.parametrize("cls", ERROR_CLASSES, ids=lambda cls: cls.__name__)
def test_error_round_trips_by_its_code(cls: type[BanyanError]) -> None:
    error = from_code(cls.code, "what to do", program="p", gen="g", line="f.py:3", prompt_tail="end")
    assert type(error) is cls
    assert error.message == "what to do"
    if isinstance(error, ProgramError):
        assert (error.program, error.gen, error.line, error.prompt_tail) == ("p", "g", "f.py:3", "end")
        assert str(error) == "what to do [program p, gen 'g', f.py:3]\n  the prompt ends: 'end'"
    else:
        assert str(error) == "what to do"


def test_unknown_code_is_kept_in_the_message() -> None:
    error = from_code("future_code", "hm")
    assert type(error) is BanyanError
    assert str(error) == "hm (code 'future_code')"


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.BadProgram, ValueError),
        (errors.UnknownVariable, KeyError),
        (errors.DeadlineExceeded, TimeoutError),
    ],
)
def test_errors_derive_from_builtin_exceptions(cls: type[BanyanError], builtin: type[Exception]) -> None:
    error = cls("words")
    assert isinstance(error, builtin)
    assert str(error) == "words"


INVALID_TOKENIZER = '{"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}, "model": {"type": "BPE"}}'


def test_rust_panic_is_translated() -> None:
    with pytest.raises(BaseException, match="charsmap") as raised:
        Tokenizer.from_str(INVALID_TOKENIZER)
    assert not isinstance(raised.value, Exception), "a panic is not an Exception"
    with (
        pytest.raises(BadModel, match=r"it panicked: .*charsmap") as translated,
        rust_panics_as(BadModel, "it panicked"),
    ):
        Tokenizer.from_str(INVALID_TOKENIZER)
    assert type(translated.value.__cause__) is type(raised.value)


class PanicException(BaseException):
    """Has the name of pyo3's exception, but another module."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, ValueError, BadModel, PanicException])
def test_other_exceptions_are_not_translated(kind: type[BaseException]) -> None:
    error = kind("as it was")
    with pytest.raises(kind) as raised, rust_panics_as(BadModel, "it panicked"):
        raise error
    assert raised.value is error
    with rust_panics_as(BadModel, "it panicked"):
        pass
