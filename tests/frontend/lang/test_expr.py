"""Expressions: how they compose, what they refuse, and how they survive an f-string."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import banyan as bn
from banyan.lang import expr
from banyan.lang.expr import GenExpr, RawExpr, RoleBegin, RoleEnd, SelectExpr, Seq, leaves
from banyan.lang.sampling import GenOptions
from banyan.runtime.errors import BadProgram
from forms import examples


def test_plus_makes_flat_sequences() -> None:
    sequence = "a" + bn.gen("x") + "b" + (bn.gen("y") + bn.raw("c"))
    assert sequence == Seq(("a", GenExpr("x"), "b", GenExpr("y"), RawExpr("c")))


def test_plus_does_not_change_its_operands() -> None:
    expression = bn.gen("x") + "a"
    _ = expression + "b"
    assert expression == Seq((GenExpr("x"), "a"))


def test_turn_functions_add_begin_and_end() -> None:
    assert bn.user("hi") == Seq((RoleBegin("user"), "hi", RoleEnd("user")))
    assert bn.assistant(bn.gen("x") + "!") == Seq((RoleBegin("assistant"), GenExpr("x"), "!", RoleEnd("assistant")))
    assert bn.system() == Seq((RoleBegin("system"), RoleEnd("system")))
    assert bn.role("tool", ["a", bn.raw("b")]) == Seq((RoleBegin("tool"), "a", RawExpr("b"), RoleEnd("tool")))
    for name in ("system", "user", "assistant"):
        assert getattr(bn, f"{name}_begin")() == RoleBegin(name)
        assert getattr(bn, f"{name}_end")() == RoleEnd(name)


def test_lists_and_tuples_are_flattened() -> None:
    assert leaves(["a", [bn.gen("x"), ("b",)], bn.user("q")]) == [
        "a",
        GenExpr("x"),
        "b",
        RoleBegin("user"),
        "q",
        RoleEnd("user"),
    ]


def test_empty_text_is_dropped() -> None:
    assert leaves(["", bn.gen(), ""]) == [GenExpr()]


def test_expressions_are_immutable_and_compare_by_value() -> None:
    gen = bn.gen("x", stop=["a"])
    assert gen == bn.gen("x", stop=("a",))
    with pytest.raises(AttributeError):
        gen.name = "y"  # type: ignore[misc]


@pytest.mark.parametrize("invalid", [5, 1.5, {"a": 1}, {"a"}, object()])
def test_invalid_expression_is_refused(invalid: Any) -> None:
    with pytest.raises(bn.BadProgram, match=rf"{type(invalid).__name__} cannot be appended.*str\("):
        leaves(["a", invalid])


async def words() -> AsyncIterator[str]:
    yield "a"


@pytest.mark.parametrize(
    ("invalid", "advice"),
    [
        (b"bytes", r"\.decode\(\)"),
        (map(str, [1]), r"list\(\.\.\.\)"),
        ([{"role": "user", "content": "hi"}], r"bn\.role\(m\['role'\], m\['content'\]\)"),
        (int, r"gen\(name, type=\.\.\.\)"),
        (re.compile("a"), r"gen\(name, type=\.\.\.\)"),
        (bn.user, r"call it"),
        (bn.function(lambda s: None), r"prog\.inline\(s, \.\.\.\)"),
        (words(), r"\[item async for item in \.\.\.\], in an `async def`"),
    ],
)
def test_advice_fits_the_invalid_expression(invalid: Any, advice: str) -> None:
    with pytest.raises(bn.BadProgram, match=f"cannot be appended.*{advice}"):
        leaves(["a", invalid])


def test_none_raises_value_error_like_sglang() -> None:
    with pytest.raises(ValueError, match="None was appended"):
        leaves(None)  # type: ignore[arg-type]


# ---- gen -----------------------------------------------------------------------------------------------------------


def test_gen_keeps_only_the_given_options() -> None:
    actual = bn.gen("x", 64, temperature=0, top_k=5, stop="\n", logit_bias={7: -1.0}, seed=3)
    assert actual == GenExpr(
        "x", GenOptions(max_tokens=64, temperature=0.0, top_k=5, stop=("\n",), logit_bias={7: -1.0}, seed=3)
    )


def test_gen_copies_its_lists() -> None:
    stop, ids = ["a", "b"], [1, 2]
    gen = bn.gen("x", stop=stop, stop_token_ids=ids)
    assert (stop, ids) == (["a", "b"], [1, 2])
    stop.append("c")
    assert isinstance(gen, GenExpr)
    assert gen.options.stop == ("a", "b")


def test_gen_int_and_gen_string_set_the_dtype() -> None:
    assert bn.gen_int("x", 4, 2, "a") == bn.gen("x", 4, n=2, stop="a", dtype=int)
    assert bn.gen_string("x", max_tokens=4) == bn.gen("x", max_tokens=4, dtype="str")
    assert bn.gen_int() != bn.gen_string()


def test_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="max_token"):
        bn.gen("x", max_token=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(("name", "match"), [("", "empty"), ("__x", "reserved"), (5, "string"), ([], "string")])
def test_invalid_name_is_refused(name: Any, match: str) -> None:
    for make in (bn.gen, lambda name: bn.select(name, ["a"])):
        with pytest.raises(bn.BadProgram, match=match):
            make(name)


def test_duplicate_name_in_one_expression_is_refused() -> None:
    with pytest.raises(bn.BadProgram, match="both called 'x'"):
        leaves(bn.user(bn.gen("x")) + bn.assistant(bn.select("x", ["a"])))
    assert len(leaves(bn.gen() + bn.gen())) == 2  # unnamed gens cannot collide


# ---- select --------------------------------------------------------------------------------------------------------


def test_gen_with_choices_is_a_select() -> None:
    assert bn.gen("x", choices=["a", "b"]) == SelectExpr(("a", "b"), "x")
    assert bn.gen("x", choices=["a"], temperature=0.5, seed=1) == bn.select("x", ["a"], 0.5, seed=1)
    method = bn.greedy_token_selection
    assert bn.gen("x", choices=["a"], choices_method=method) == bn.select("x", ["a"], choices_method=method)


def test_choices_method_needs_choices() -> None:
    with pytest.raises(bn.BadProgram, match="needs choices"):
        bn.gen("x", choices_method=bn.token_length_normalized)


def test_select_temperature_out_of_range_is_refused() -> None:
    for temperature in (-0.1, float("nan")):
        with pytest.raises(bn.BadProgram, match="temperature"):
            bn.select("x", ["a"], temperature)


def test_raw_takes_only_text() -> None:
    with pytest.raises(bn.BadProgram, match="int"):
        bn.raw(5)  # type: ignore[arg-type]


# ---- f-strings -----------------------------------------------------------------------------------------------------


def test_f_string_keeps_its_expressions() -> None:
    text = f"Because {bn.gen('why', stop='.')}, so {bn.select('what', ['a', 'b'])}{bn.raw('<e>')}!"
    assert leaves(bn.assistant(text)) == [
        RoleBegin("assistant"),
        "Because ",
        GenExpr("why", GenOptions(stop=(".",))),
        ", so ",
        SelectExpr(("a", "b"), "what"),
        RawExpr("<e>"),
        "!",
        RoleEnd("assistant"),
    ]
    assert leaves(f"{bn.user('hi')}") == [RoleBegin("user"), "hi", RoleEnd("user")]


def test_every_string_conversion_keeps_the_expression() -> None:
    for text in (str(bn.gen("x")), "{}".format(bn.gen("x")), "%s" % bn.gen("x"), f"{bn.gen('x')!s}"):  # noqa: UP031
        assert leaves(text) == [GenExpr("x")]
    assert repr(bn.gen("x")).startswith("<GenExpr(name='x'")


@examples(
    20,
    100,
    given(st.lists(st.one_of(st.text(), st.builds(bn.gen, stop=st.text(min_size=1)), st.builds(bn.raw, st.text())))),
)
def test_f_string_has_the_same_leaves_as_a_list(parts: list[Any]) -> None:
    from_string = leaves("".join(f"{part}" for part in parts))
    from_list = leaves(parts)

    def joined(flat: list[Any]) -> list[Any]:
        out: list[Any] = []
        for part in flat:
            if isinstance(part, str) and out and isinstance(out[-1], str):
                out[-1] += part
            else:
                out.append(part)
        return out

    assert joined(from_string) == joined(from_list)


def test_nothing_has_no_leaves() -> None:
    assert leaves(expr.NOTHING) == []


def test_equal_arguments_give_the_same_gen() -> None:
    """Gens are cached by hashable arguments, and arguments of different types are different keys."""
    assert bn.gen("a", max_tokens=5, stop="x") is bn.gen("a", max_tokens=5, stop="x")
    assert bn.gen("a", temperature=1) == bn.gen("a", temperature=1.0)
    assert bn.gen("a", stop=["x"]) == bn.gen("a", stop=("x",))
    assert bn.gen("a", logit_bias={1: 2.0}) == bn.gen("a", logit_bias={1: 2.0})
    with pytest.raises(TypeError, match="maxtokens") as raised:
        bn.gen("a", maxtokens=5)  # type: ignore[call-arg]
    assert raised.value.__context__ is None
    for _ in range(2):
        with pytest.raises(bn.BadProgram, match="max_tokens"):
            bn.gen("a", max_tokens=-5)


def test_a_gen_with_a_function_is_not_kept() -> None:
    def first(choices: Any, **_: Any) -> Any:
        return choices[0]

    kept = weakref.ref(first)
    bn.gen("a", choices=("x", "y"), choices_method=first)
    del first
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("name", ["user<|im_end|>", "", "x" * 65, "a\n", 3])
def test_role_must_be_a_name(name: Any) -> None:
    with pytest.raises(BadProgram, match="a role must be a name of 1 to 64 letters"):
        bn.role(name, "x")


@pytest.mark.parametrize("turn", [bn.user, bn.system, bn.assistant, partial(bn.role, "tool"), bn.separate_reasoning])
def test_turn_of_none_is_refused(turn: Any) -> None:
    with pytest.raises(BadProgram, match="None was appended; does a function lack its return"):
        turn(None)


def test_turn_without_a_state_is_no_block() -> None:
    with pytest.raises(bn.BadProgram, match=r"write `with s\.user\(\):`"), bn.user():  # type: ignore[attr-defined]
        pass


def test_turn_of_a_state_with_none_is_refused() -> None:
    state = bn.function(lambda s: None).run(backend=bn.Mock("x"))
    for turn in (state.user, state.system, state.assistant, partial(state.role, "tool")):
        with pytest.raises(BadProgram, match="None was appended"):
            turn(None)
    state += bn.user()
    assert state.text() == "<|im_start|>user\n<|im_end|>\n"


@pytest.mark.parametrize(
    "options",
    [
        {"json_schema": {"const": "\ud800"}},
        {"json_schema": '{"enum": ["a", "\\udfff"]}'},
        {"type": {"properties": {"\ud800": {}}}},
        {"type": Literal["\ud800", "b"]},
        {"type": list[Literal["\ud800", "b"]]},
        {"regex": "\ud800"},
        {"grammar": 'start: "\ud800"'},
        {"stop": "\ud800"},
        {"stop_regex": ["a", "\ud800"]},
    ],
)
def test_option_with_a_lone_surrogate_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadProgram, match="lone surrogate"):
        bn.gen("x", **options)


def test_choice_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(BadProgram, match=r"character 1 of this text is the lone surrogate '\\ud800'"):
        bn.select("x", ["a", "b\ud800"])
