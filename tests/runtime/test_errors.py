from __future__ import annotations

import re

import pytest
from tokenizers import Tokenizer

from banyan.runtime import errors
from banyan.runtime.errors import BadModel, BanyanError, ProgramError, from_code, rust_panics_as


def tree(cls: type[BanyanError] = BanyanError) -> list[type[BanyanError]]:
    return [cls, *(deeper for sub in cls.__subclasses__() for deeper in tree(sub))]


ALL = [cls for cls in dict.fromkeys(tree()) if cls.__module__ == errors.__name__]  # some are found twice


def test_the_tree_is_drawn_as_it_is() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^    ([ │├└─]*)(\w+)", errors.__doc__, re.MULTILINE)
    path: list[tuple[int, str]] = []
    parents = {}
    for lines, name in drawn:
        while path and path[-1][0] >= len(lines):
            path.pop()
        parents[name] = path[-1][1] if path else "Exception"
        path.append((len(lines), name))
    assert parents == {cls.__name__: cls.__bases__[0].__name__ for cls in ALL}


def test_each_error_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in ALL]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_an_error_crosses_the_wire_unchanged(cls: type[BanyanError]) -> None:
    error = from_code(cls.code, "what to do", program="p", gen="g", line="f.py:3", prompt_tail="end")
    assert type(error) is cls
    assert error.message == "what to do"
    if isinstance(error, ProgramError):
        assert (error.program, error.gen, error.line, error.prompt_tail) == ("p", "g", "f.py:3", "end")
        assert str(error) == "what to do [program p, gen 'g', f.py:3]\n  the prompt ends: 'end'"
    else:
        assert str(error) == "what to do"


def test_an_unknown_code_keeps_its_name() -> None:
    error = from_code("of_tomorrow", "hm")
    assert type(error) is BanyanError
    assert str(error) == "hm (code 'of_tomorrow')"


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.BadProgram, ValueError),
        (errors.UnknownVariable, KeyError),
        (errors.DeadlineExceeded, TimeoutError),
    ],
)
def test_errors_are_also_what_python_calls_them(cls: type[BanyanError], builtin: type[Exception]) -> None:
    error = cls("words")
    assert isinstance(error, builtin)
    assert str(error) == "words"


def test_a_program_error_without_a_place_is_its_message() -> None:
    assert str(ProgramError("words")) == "words"


PANICS = '{"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}, "model": {"type": "BPE"}}'


def test_a_panic_of_a_rust_library_is_an_error() -> None:
    with pytest.raises(BaseException, match="charsmap") as raised:
        Tokenizer.from_str(PANICS)
    assert not isinstance(raised.value, Exception), "else nobody would need to translate it"
    with pytest.raises(BadModel, match=r"it panicked: .*charsmap") as mended, rust_panics_as(BadModel, "it panicked"):
        Tokenizer.from_str(PANICS)
    assert type(mended.value.__cause__) is type(raised.value)


class PanicException(BaseException):
    """Of another module than pyo3's."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, ValueError, BadModel, PanicException])
def test_what_is_no_panic_passes(kind: type[BaseException]) -> None:
    error = kind("as it was")
    with pytest.raises(kind) as raised, rust_panics_as(BadModel, "it panicked"):
        raise error
    assert raised.value is error
    with rust_panics_as(BadModel, "it panicked"):
        pass
