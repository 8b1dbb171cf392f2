"""Expressions inside f-strings: what they support, what they refuse, and why they cannot be forged."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import textwrap
from collections.abc import Callable
from typing import Any, Literal

import pytest

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


# ---- positions -----------------------------------------------------------------------------------------------------


def test_every_form_of_turn_accepts_f_strings() -> None:
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


def test_f_string_accepts_turns_selects_refs_and_f_strings() -> None:
    def body(s: bn.State) -> None:
        s += bn.gen("seed")
        inner = f"{bn.select('pick', ['x', 'y'])} of {s.ref('seed')}"
        s += f"{bn.user(f'[{inner}]')}{bn.assistant(bn.gen('end'))}"

    state = run(body, bn.Mock({"seed": "S", "pick": "y", "end": "E"}))
    assert state.text() == "S" + CHATML.format("user", "[y of S]") + CHATML.format("assistant", "E")


def test_types_and_tools_are_kept() -> None:
    def body(s: bn.State) -> None:
        s += bn.user("q") + bn.assistant(
            f"It is {bn.gen('n', type=int, retries=1)}: {bn.gen('t', tools=[look], max_rounds=2)}"
        )

    state = run(body, bn.Mock({"n": "42", "t": [{"look": {"x": 1}}, "done"]}))
    assert (state.value("n"), state["t"]) == (42, "done")
    assert [call.result for call in state.tool_calls("t")] == ["saw 1"]


def test_async_branches_accept_f_strings() -> None:
    @bn.function
    async def body(s: bn.AsyncState) -> list[str]:
        forks = s.fork(2)
        forks += f"{bn.gen('x')}, "
        forks += lambda i: f"{i}{bn.gen('y')}"
        return [await fork.text() for fork in forks]

    state = asyncio.run(body.run_async(backend=bn.Mock(lambda prompt, name: f"<{name}>")))
    assert state.ret_value == ["<x>, 0<y>", "<x>, 1<y>"]


def test_module_level_template_can_be_appended_repeatedly() -> None:
    template = f"Q: {bn.gen('x', type=Literal['a', 'b'])}{bn.gen('y')}"
    assert leaves(template) == leaves(template)

    def body(s: bn.State) -> None:
        for _ in range(3):
            s += template

    assert run(body, bn.Mock({"x": "a", "y": "Y"})).text() == "Q: aY" * 3


def test_strings_around_expressions_can_be_joined_and_split() -> None:
    a, b = f"A{bn.gen('x')}", f"{bn.gen('y')}B"
    for text in (a + " " + b, " ".join((a, b)), f"{a} {b}", "%s %s" % (a, b), f"  {a} {b}\n".strip()):  # noqa: UP031
        assert leaves(text) == ["A", GenExpr("x"), " ", GenExpr("y"), "B"]
    assert leaves((a + " " + b).split(" ")) == ["A", GenExpr("x"), GenExpr("y"), "B"]


# ---- refused -------------------------------------------------------------------------------------------------------

SEALED = f"a{bn.gen('x')}b"


@pytest.mark.parametrize(
    "changed",
    [SEALED[:-5], SEALED[5:], SEALED[:20] + SEALED[25:], SEALED[:50] + SEALED[52:], SEALED.upper(), SEALED.swapcase(),
     json.dumps(SEALED), repr(SEALED), SEALED.encode("ascii", "backslashreplace").decode(),
     "\n".join(textwrap.wrap(SEALED, 20)), SEALED[:40] + SEALED, SEALED.replace(":", ";")],
    ids=range(12),  # the markers differ from process to process
)  # fmt: skip
def test_truncated_or_changed_expression_is_refused(changed: str) -> None:
    with pytest.raises(bn.BadProgram, match="inside this f-string was c"):
        leaves(changed)


def test_format_specification_is_refused() -> None:
    with pytest.raises(bn.BadProgram, match=">10"):
        f"{bn.gen('x'):>10}"


def test_expression_in_plain_text_arguments_is_refused() -> None:
    with pytest.raises(bn.BadProgram, match="raw takes plain text"):
        bn.raw(f"<b>{bn.gen('x')}")
    with pytest.raises(bn.BadProgram, match="a choice must be plain text"):
        bn.select("s", ["a", f"{bn.gen('x')}"])
    with pytest.raises(bn.BadProgram, match="name of a variable is plain text"):
        bn.gen(f"__{bn.gen('x')}")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("stop", ["a", SEALED]),
        ("stop_regex", SEALED),
        ("regex", SEALED),
        ("json_schema", {"enum": [SEALED]}),
        ("schema", json.dumps({"enum": [SEALED]})),
        ("grammar", SEALED),
        ("adapter", SEALED),
        ("chat_template_kwargs", {"date": SEALED}),
    ],
    ids=range(8),  # the markers differ from process to process
)
def test_expression_in_an_option_is_refused(option: str, value: Any) -> None:
    with pytest.raises(bn.BadProgram, match=f"{option} takes plain text"):
        bn.gen("y", **{option: value})
    if option in ("adapter", "chat_template_kwargs"):
        with pytest.raises(bn.BadProgram, match=f"{option} takes plain text"):
            bn.select("y", ["a"], **{option: value})
    if option == "stop":
        with pytest.raises(bn.BadProgram, match="stop takes plain text"):
            run(lambda s: None, stop=value)


def test_expressions_in_a_list_inside_an_f_string_are_refused() -> None:
    def body(s: bn.State) -> None:
        s += bn.gen("a") + bn.gen("b")
        for found in ([s.ref("a"), s.ref("b")], {"a": s.ref("a")}, (bn.gen("c"),), [bn.user("c")]):
            with pytest.raises(bn.BadProgram, match="put into a list or dict"):
                s += f"Compare {found}."

    assert run(body).text() == "<a><b>"


def test_repr_of_an_expression_has_one_address() -> None:
    gen = r"<GenExpr\(name='c', options=GenOptions\(max_tokens=3\)\)"  # no option that was not given
    assert re.fullmatch(gen + " at 0x[0-9]+>", repr(bn.gen("c", max_tokens=3)))
    turn = repr(bn.user(bn.gen("c", max_tokens=3)))
    turns = rf"<Seq\(parts=\(<RoleBegin\(role='user'\)>, {gen}>, <RoleEnd\(role='user'\)>\)\) at 0x[0-9]+>"
    assert re.fullmatch(turns, turn)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: bn.select("s", ["a", x]),
        lambda x: bn.gen("y", max_tokens=x),
        lambda x: bn.gen("y", stop=[x]),
        lambda x: bn.gen("y", regex=x),
        lambda x: bn.gen("y", dtype=x),
        lambda x: bn.gen("y", tools=[x]),
        lambda x: bn.gen(x),
    ],
)
@pytest.mark.parametrize("what", ["ref", "gen"])
def test_errors_about_expressions_can_be_appended(call: Callable[[Any], Any], what: str) -> None:
    def body(s: bn.State) -> None:
        s += bn.gen("a")
        with pytest.raises((bn.BadProgram, bn.Unsupported)) as raised:
            call(s.ref("a") if what == "ref" else bn.gen("c"))
        s += f"{raised.value}"

    run(body)


def test_ref_of_an_ended_program_is_refused() -> None:
    templates: list[str] = []

    def body(s: bn.State) -> None:
        s += bn.gen("x")
        templates.append(f"[{s.ref('x')}]")

    run(body)
    gc.collect()
    with pytest.raises(bn.BadProgram, match="has ended"):
        leaves(templates[0])


def test_refused_expression_appends_nothing() -> None:
    mock = bn.Mock("x")

    def body(s: bn.State) -> None:
        with pytest.raises(bn.BadProgram):
            s += bn.user(f"{bn.gen('a')}") + SEALED[:-5]
        assert "a" not in s

    assert run(body, mock).text() == ""
    assert mock.calls == []


# ---- forgery -------------------------------------------------------------------------------------------------------


def test_text_that_looks_like_an_expression_stays_text() -> None:
    forged = SEALED.replace(fstring._TOKEN, "1" * len(fstring._TOKEN))
    assert leaves(forged) == [forged]
    glyphs = "\ue0b0 main \ue0b1 src \ue0b2"  # characters of shell prompts
    assert leaves(glyphs) == [glyphs]


def test_process_token_has_24_digits() -> None:
    assert len(fstring._TOKEN) == 24
    assert fstring._TOKEN.isdigit()


def test_expression_syntax_in_model_or_user_text_stays_text() -> None:
    text = "{gen('x')} <|im_start|>"

    def body(s: bn.State, words: str) -> None:
        s += bn.user(f"{words}") + bn.assistant(bn.gen("a"))
        s += bn.user(f"You said {s['a']}")

    state = run(body, bn.Mock(text), words=text)
    assert state.messages()[2]["content"] == f"You said {text}"


# ---- memory --------------------------------------------------------------------------------------------------------


def test_embedder_keeps_only_unprintable_parts_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fstring, "MAX_KEPT", 3)
    embedder = fstring.Embedder(GenExpr | SelectExpr | RoleBegin | RoleEnd)
    for k in range(100):
        embedder.embed(GenExpr(f"x{k}"))
    assert not embedder._kept
    parts = [object() for _ in range(4)]
    texts = [embedder.embed(GenExpr("x", output_type=part)) for part in parts]
    expected = [[GenExpr("x", output_type=part)] for part in parts[1:]]
    assert [list(embedder.extract(text)) for text in texts[1:]] == expected
    assert len(embedder._kept) == len(embedder._numbers) == 3
    with pytest.raises(bn.BadProgram, match="is too old"):
        list(embedder.extract(texts[0]))
    again = embedder.embed(GenExpr("x", output_type=parts[1]))
    assert again == texts[1], "a part in use stays"
    embedder.embed(GenExpr("x", output_type=object()))
    assert list(embedder.extract(again)) == [GenExpr("x", output_type=parts[1])]
