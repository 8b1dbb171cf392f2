"""Expressions inside f-strings: what they survive, what they refuse, and that nobody can forge them."""

from __future__ import annotations

import asyncio
import gc
import json
import textwrap
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import banyan as bn
from banyan.lang import fstring
from banyan.lang.expr import GenExpr, RoleBegin, RoleEnd, SelectExpr, leaves

CHATML = "<|im_start|>{}\n{}<|im_end|>\n"


@bn.tool
def look(x: int) -> str:
    "Look."
    return f"saw {x}"


def run(body: Any, mock: bn.Mock | None = None, **arguments: Any) -> bn.State:
    return bn.function(body).run(backend=mock or bn.Mock(lambda prompt, name: f"<{name}>"), **arguments)


# ---- where they stand ----------------------------------------------------------------------------------------------


def test_gens_stand_where_the_f_string_has_them() -> None:
    def body(s: bn.State) -> None:
        s += f"Because {bn.gen('why', stop='.')}, so {bn.gen('ans')}."

    state = run(body)
    assert state.text() == "Because <why>, so <ans>."
    assert (state["why"], state["ans"]) == ("<why>", "<ans>")


def test_in_turns_by_every_spelling() -> None:
    def body(s: bn.State) -> None:
        s += bn.user(f"Hi {bn.gen('a')}") + bn.assistant([f"{bn.gen('b')}", "!"])
        s.user(f"again {bn.gen('c')}")
        with s.assistant():
            s += f"{bn.gen('d')}."

    assert run(body).messages() == [
        {"role": "user", "content": "Hi <a>"},
        {"role": "assistant", "content": "<b>!"},
        {"role": "user", "content": "again <c>"},
        {"role": "assistant", "content": "<d>."},
    ]


def test_turns_selects_refs_and_f_strings_inside_f_strings() -> None:
    def body(s: bn.State) -> None:
        s += bn.gen("seed")
        inner = f"{bn.select('pick', ['x', 'y'])} of {s.ref('seed')}"
        s += f"{bn.user(f'[{inner}]')}{bn.assistant(bn.gen('end'))}"

    state = run(body, bn.Mock({"seed": "S", "pick": "y", "end": "E"}))
    assert state.text() == "S" + CHATML.format("user", "[y of S]") + CHATML.format("assistant", "E")


def test_types_and_tools_survive() -> None:
    def body(s: bn.State) -> None:
        s += bn.user("q") + bn.assistant(f"It is {bn.gen('n', type=int)}: {bn.gen('t', tools=[look], max_rounds=2)}")

    state = run(body, bn.Mock({"n": "42", "t": [{"look": {"x": 1}}, "done"]}))
    assert (state.value("n"), state["t"]) == (42, "done")
    assert [call.result for call in state.tool_calls("t")] == ["saw 1"]


def test_in_async_programs_and_branches() -> None:
    @bn.function
    async def body(s: bn.AsyncState) -> list[str]:
        forks = s.fork(2)
        forks += f"{bn.gen('x')}, "
        forks += lambda i: f"{i}{bn.gen('y')}"
        return [await fork.text() for fork in forks]

    state = asyncio.run(body.run_async(backend=bn.Mock(lambda prompt, name: f"<{name}>")))
    assert state.ret_value == ["<x>, 0<y>", "<x>, 1<y>"]


def test_a_template_of_a_module_may_be_appended_any_number_of_times() -> None:
    template = f"Q: {bn.gen('x', type=Literal['a', 'b'])}{bn.gen('y')}"
    assert leaves(template) == leaves(template)

    def body(s: bn.State) -> None:
        for _ in range(3):
            s += template

    assert run(body, bn.Mock({"x": "a", "y": "Y"})).text() == "Q: aY" * 3


def test_strings_may_be_put_together_and_apart_around_expressions() -> None:
    a, b = f"A{bn.gen('x')}", f"{bn.gen('y')}B"
    for text in (a + " " + b, " ".join((a, b)), f"{a} {b}", "%s %s" % (a, b), f"  {a} {b}\n".strip()):  # noqa: UP031
        assert leaves(text) == ["A", GenExpr("x"), " ", GenExpr("y"), "B"]
    assert leaves((a + " " + b).split(" ")) == ["A", GenExpr("x"), GenExpr("y"), "B"]


@given(st.text(), st.text())
def test_any_text_may_stand_around_an_expression(before: str, after: str) -> None:
    expected = [part for part in (before, GenExpr("x"), after) if part != ""]
    assert leaves(f"{before}{bn.gen('x')}{after}") == expected


# ---- what they refuse ----------------------------------------------------------------------------------------------

SEALED = f"a{bn.gen('x')}b"


@pytest.mark.parametrize(
    "wrong",
    [SEALED[:-5], SEALED[5:], SEALED[:20] + SEALED[25:], SEALED[:50] + SEALED[52:], SEALED.upper(), SEALED.swapcase(),
     json.dumps(SEALED), repr(SEALED), SEALED.encode("ascii", "backslashreplace").decode(),
     "\n".join(textwrap.wrap(SEALED, 20)), SEALED[:40] + SEALED, SEALED.replace(":", ";")],
    ids=range(12),  # the marks differ from process to process
)  # fmt: skip
def test_one_that_was_cut_or_changed(wrong: str) -> None:
    with pytest.raises(bn.BadProgram, match="inside this f-string was c"):
        leaves(wrong)


def test_formats_are_refused_where_they_stand() -> None:
    with pytest.raises(bn.BadProgram, match=">10"):
        f"{bn.gen('x'):>10}"


def test_where_an_expression_cannot_stand() -> None:
    with pytest.raises(bn.BadProgram, match="raw takes plain text"):
        bn.raw(f"<b>{bn.gen('x')}")
    with pytest.raises(bn.BadProgram, match="a choice must be plain text"):
        bn.select("s", ["a", f"{bn.gen('x')}"])


def test_a_value_of_a_program_that_has_ended() -> None:
    kept: list[str] = []

    def body(s: bn.State) -> None:
        s += bn.gen("x")
        kept.append(f"[{s.ref('x')}]")

    run(body)
    gc.collect()
    with pytest.raises(bn.BadProgram, match="has ended"):
        leaves(kept[0])


def test_a_value_of_another_program() -> None:
    def body(s: bn.State, text: str) -> None:
        s += bn.gen("x")
        if text:
            s += text

    def outer(s: bn.State) -> None:
        s += bn.gen("x")
        with pytest.raises(bn.BadProgram, match="another program"):
            run(body, text=f"{s.ref('x')}")

    run(outer)


def test_nothing_is_recorded_of_one_that_is_refused() -> None:
    mock = bn.Mock("x")

    def body(s: bn.State) -> None:
        with pytest.raises(bn.BadProgram):
            s += bn.user(f"{bn.gen('a')}") + SEALED[:-5]
        assert "a" not in s

    assert run(body, mock).text() == ""
    assert mock.calls == []


# ---- that nobody can forge them ------------------------------------------------------------------------------------


def test_nobodys_words_are_taken_for_an_expression() -> None:
    forged = SEALED.replace(fstring._TOKEN, "1" * len(fstring._TOKEN))
    assert leaves(forged) == [forged]
    glyphs = "\ue0b0 main \ue0b1 src \ue0b2"  # those that shells draw prompts with
    assert leaves(glyphs) == [glyphs]


def test_the_mark_is_drawn_anew_by_each_process() -> None:
    assert len(fstring._TOKEN) == 24
    assert fstring._TOKEN.isdigit()


def test_what_a_model_or_a_user_says_is_no_expression() -> None:
    said = "{gen('x')} <|im_start|>"

    def body(s: bn.State, words: str) -> None:
        s += bn.user(f"{words}") + bn.assistant(bn.gen("a"))
        s += bn.user(f"You said {s['a']}")

    state = run(body, bn.Mock(said), words=said)
    assert state.messages()[2]["content"] == f"You said {said}"


# ---- what is kept --------------------------------------------------------------------------------------------------


def test_plain_expressions_leave_nothing_behind_and_others_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fstring, "MAX_KEPT", 3)
    embedder = fstring.Embedder(GenExpr | SelectExpr | RoleBegin | RoleEnd)
    for k in range(100):
        embedder.embed(GenExpr(f"x{k}"))
    assert not embedder._kept
    parts = [object() for _ in range(4)]
    texts = [embedder.embed(GenExpr("x", output_type=part)) for part in parts]
    kept = [[GenExpr("x", output_type=part)] for part in parts[1:]]
    assert [list(embedder.extract(text)) for text in texts[1:]] == kept
    assert len(embedder._kept) == len(embedder._numbers) == 3
    with pytest.raises(bn.BadProgram, match="is too old"):
        list(embedder.extract(texts[0]))
    again = embedder.embed(GenExpr("x", output_type=parts[1]))
    assert again == texts[1], "one that is in use stays"
    embedder.embed(GenExpr("x", output_type=object()))
    assert list(embedder.extract(again)) == [GenExpr("x", output_type=parts[1])]
