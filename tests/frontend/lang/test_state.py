"""States: turns, variables, text, messages, and refused appends."""

from __future__ import annotations

import copy
import re
import threading
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.protocol import wire


def text_of(body: Any, **options: Any) -> str:
    return bn.function(body).run(**options).text()


# ---- turns ---------------------------------------------------------------------------------------------------------


def _expression(s: bn.State) -> None:
    s += bn.system("S") + bn.user("U")
    s += bn.assistant(bn.gen("a"))


def _halves(s: bn.State) -> None:
    s += bn.system_begin() + "S" + bn.system_end()
    s += bn.user_begin()
    s += "U"
    s += bn.user_end()
    s += bn.assistant_begin() + bn.gen("a") + bn.assistant_end()


def _methods(s: bn.State) -> None:
    s.system("S")
    s.user("U")
    s.assistant(bn.gen("a"))


def _methods_that_are_appended(s: bn.State) -> None:
    s += s.system("S")
    s += s.user("U")
    s += s.assistant(bn.gen("a"))


def _blocks(s: bn.State) -> None:
    with s.system():
        s += "S"
    with s.user() as inner:
        inner += "U"
    with s.assistant():
        s += bn.gen("a")


def _roles(s: bn.State) -> None:
    s += bn.role("system", "S")
    s.role("user", "U")
    with s.role("assistant"):
        s += bn.gen("a")


def _lists(s: bn.State) -> None:
    s += [bn.system("S"), bn.user("U"), bn.assistant(bn.gen("a"))]


def _f_strings(s: bn.State) -> None:
    s += f"{bn.system('S')}{bn.user('U')}"
    s += bn.assistant(f"{bn.gen('a')}")


FORMS = [_expression, _halves, _methods, _methods_that_are_appended, _blocks, _roles, _lists, _f_strings]


@pytest.mark.parametrize("body", FORMS)
def test_all_forms_of_turns_are_equivalent(mock: bn.Mock, body: Any) -> None:
    state = bn.function(body).run()
    assert state.text() == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<a><|im_end|>\n"
    )
    assert state.messages() == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "<a>"},
    ]
    assert mock.submits[0] == (
        wire.Append(
            0,
            (
                wire.BeginTurn("system"),
                "S",
                wire.EndTurn(),
                wire.BeginTurn("user"),
                "U",
                wire.EndTurn(),
                wire.BeginTurn("assistant"),
            ),
        ),
        mock.calls[0].op,
        wire.Append(0, (wire.EndTurn(),)),
    )


def test_role_accepts_any_name(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        s += bn.role("tool", "42")

    assert text_of(body) == "<|im_start|>tool\n42<|im_end|>\n"


def test_turn_ends_if_its_block_raises(mock: bn.Mock) -> None:
    def raises(s: bn.State) -> None:
        with s.user():
            s += "before"
            raise ZeroDivisionError

    def body(s: bn.State) -> None:
        with pytest.raises(ZeroDivisionError):
            raises(s)
        s += bn.assistant("after")

    assert text_of(body) == "<|im_start|>user\nbefore<|im_end|>\n<|im_start|>assistant\nafter<|im_end|>\n"


def test_turns_do_not_nest(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        with s.user():
            for invalid in (bn.assistant("x"), bn.user("x"), bn.assistant_end()):
                with pytest.raises(bn.BadProgram, match=r"inside a turn of 'user'|open one is 'user'"):
                    s += invalid
        with pytest.raises(bn.BadProgram, match="open one is None"):
            s += bn.user_end()

    assert text_of(body) == "<|im_start|>user\n<|im_end|>\n"


def test_turn_may_stay_open(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        s += bn.assistant_begin() + bn.gen("a")

    state = bn.function(body).run()
    assert state.text() == "<|im_start|>assistant\n<a>"
    assert state.messages() == []


def test_append_is_all_or_nothing(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        invalid: Any
        for invalid in (
            "a" + bn.user_end(),
            ["a", 5],
            "a" + bn.gen("x", min_tokens=500),
            "a" + bn.user("b") + bn.gen("y") + bn.user_end(),
        ):
            with pytest.raises(bn.BadProgram):
                s += invalid
        assert "x" not in s
        assert "y" not in s

    assert text_of(body) == ""
    assert mock.calls == []


@pytest.mark.parametrize("text", ["é\ud800", bn.raw("x\udcff")])
def test_lone_surrogate_is_refused_where_it_is_appended(mock: bn.Mock, text: Any) -> None:
    @bn.function
    def p(s: bn.State) -> None:
        s += "a"
        with pytest.raises(bn.BadProgram, match=r"character 1 of this text is the lone surrogate '\\ud"):
            s += text
        with pytest.raises(bn.BadProgram, match="lone surrogate"):
            s += bn.user(text)
        s += "b"

    assert p.run().text() == "ab"


def test_default_system_turn_of_the_template_is_a_message() -> None:
    chat = wire.ChatMarkers(roles={r: (f"<{r}>", f"</{r}>") for r in ("system", "user")}, default_system="Be good.")
    backend = bn.Mock(chat=chat)

    @bn.function
    def program(s: bn.State, own: bool) -> None:
        s += bn.system("Mine.") if own else ""
        s += bn.user("  U ")

    messages = program.run(False, backend=backend).messages()
    assert messages == [{"role": "system", "content": "Be good."}, {"role": "user", "content": "U "}]
    assert program.run(True, backend=backend).messages()[0] == {"role": "system", "content": "Mine."}
    streamed = program.run(False, backend=backend, stream=True)
    assert "".join(streamed.text_iter()) == "<system>Be good.</system><user>  U </user>"


# ---- variables -----------------------------------------------------------------------------------------------------


def test_variables_can_be_set_and_read(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> str:
        s += "1" + bn.gen("a") + bn.gen()
        assert "a" in s
        assert "b" not in s
        s["b"] = [1, 2]
        s.set_var("c", None)
        return str(s["a"])

    state = program.run()
    assert (state["a"], state.get_var("b"), state["c"], state.ret_value) == ("<a>", [1, 2], None, "<a>")
    assert state.text() == str(state) == "1<a><>"


def test_state_is_no_sequence(mock: bn.Mock) -> None:
    state = bn.function(lambda s: None).run()
    with pytest.raises(TypeError, match="'State' object is not iterable"):
        list(state)  # type: ignore[call-overload]


def test_later_gen_replaces_the_variable(mock: bn.Mock) -> None:
    backend = bn.Mock({"x": ["one", "two", "three"]})

    @bn.function
    def program(s: bn.State) -> list[str]:
        values = []
        for _ in range(3):
            s += bn.gen("x") + ","
            values.append(s["x"])
        return values

    state = program.run(backend=backend)
    assert state.ret_value == ["one", "two", "three"]
    assert state["x"] == "three"


def test_unknown_variable_error_lists_the_known_ones(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("ans")

    state = program.run()
    with pytest.raises(
        bn.UnknownVariable, match=r"'answer'; the variables are: 'ans' \[program program, test_state.py:\d+\]"
    ):
        state["answer"]
    with pytest.raises(KeyError):
        state.get_meta_info("answer")


@pytest.mark.parametrize("name", ["", "__x", None, 3])
def test_invalid_variable_name_is_refused(mock: bn.Mock, name: Any) -> None:
    def body(s: bn.State) -> None:
        with pytest.raises(bn.BadProgram, match="variable"):
            s[name] = 1
        with pytest.raises(bn.BadProgram, match="variable"), s.var_scope(name):
            pass

    assert text_of(body) == ""


@pytest.mark.parametrize(("expr", "call"), [(bn.gen("x"), "gen"), (bn.select("x", ["a"]), "select")])
def test_an_assigned_gen_is_refused(mock: bn.Mock, expr: Any, call: str) -> None:
    def body(s: bn.State) -> None:
        with pytest.raises(bn.BadProgram, match=rf"to generate one, write s \+= bn\.{call}\('x', \.\.\.\)"):
            s["x"] = expr

    assert text_of(body) == ""


def test_var_scope_captures_the_text_of_its_block(mock: bn.Mock) -> None:
    def raises(s: bn.State) -> None:
        with s.var_scope("broken"):
            s += "half"
            raise ZeroDivisionError

    @bn.function
    def program(s: bn.State) -> None:
        s += "before "
        with s.var_scope("block"):
            s += bn.user("U" + bn.gen("a"))
            assert "block" not in s
        with pytest.raises(ZeroDivisionError):
            raises(s)
        s += " after"

    state = program.run()
    assert state["block"] == "<|im_start|>user\nU<a><|im_end|>\n"
    assert state["broken"] == "half"
    assert len(mock.submits) == 1


def test_refs_are_spliced_without_waiting(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "1" + bn.gen("a")
        s["given"] = "text"
        s["list"] = [1]
        (branch,) = s.fork(1)
        s += "2" + bn.gen("b")
        branch += ["|", s.ref("b"), f"|{s.ref('a')}|", s.ref("given"), bn.gen("c")]
        with pytest.raises(bn.BadProgram, match=r"s\['list'\]"):
            s.ref("list")
        s["branch"] = branch

    state = program.run()
    assert len(mock.submits) == 1, "no read before the end"
    assert state["branch"].text() == "1<a>|<b>|<a>|text<c>"
    assert wire.Append(1, ("|", wire.Ref(1), "|", wire.Ref(0), "|", "text")) in mock.submits[0]


def test_ref_of_another_program_is_refused(mock: bn.Mock) -> None:
    @bn.function
    def inner(s: bn.State) -> None:
        s += bn.gen("x")

    @bn.function
    def outer(s: bn.State) -> None:
        child = inner()
        for ref in (child.ref("x"), f"{child.ref('x')}"):
            with pytest.raises(bn.BadProgram, match=r"another program.*state\['x'\]"):
                s += ref
        s += child["x"]

    assert outer.run().text() == "<x>"


def test_raw_text_is_sent_as_raw(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        s += bn.user("<|im_end|>") + bn.raw("<|im_end|>")

    text_of(body)
    _, *parts = mock.submits[0][0].parts  # type: ignore[union-attr]
    assert parts == ["<|im_end|>", wire.EndTurn(), wire.Raw("<|im_end|>")]


def test_turns_written_as_plain_text_warn(mock: bn.Mock) -> None:
    def body(s: bn.State) -> None:
        s += "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

    with pytest.warns(UserWarning, match=r"'<\|im_end\|>', but is sent as plain text.*bn\.raw") as warned:
        text_of(body)
    assert warned[0].filename == __file__


def test_markers_of_other_templates_or_for_an_api_do_not_warn() -> None:
    def body(s: bn.State) -> None:
        s += "was <s>10</s> 5 EUR <|im_end|>"

    chat = wire.ChatMarkers({}, stop=("</s>",))
    text_of(body, backend=bn.Mock(chat=chat))
    text_of(body, backend=bn.Mock(refuses=("raw",)))


# ---- reading -------------------------------------------------------------------------------------------------------


def test_sync_waits_and_error_is_none(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a")
        s.sync()
        assert len(mock.calls) == 1
        assert s.error() is None

    assert program.run().error() is None


def test_repr_does_not_wait(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a")
        assert repr(s) == "<State of program program, variables: a>"
        assert re.fullmatch("<Ref a of program program at 0x[0-9]+>", repr(s.ref("a")))
        assert mock.submits == []

    program.run()


@pytest.mark.parametrize("what", ["b", bn.gen("x"), ["b"]])
def test_plus_names_append_and_fork(mock: bn.Mock, what: Any) -> None:
    def body(s: bn.State) -> None:
        with pytest.raises(bn.BadProgram, match=r"write s \+= .* t = s\.fork\(\)\[0\] and t \+= "):
            s + what
        s += "a"

    assert text_of(body) == "a"


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_copy_module_is_refused(mock: bn.Mock, make: Any) -> None:
    state = bn.function(lambda s: s.__iadd__("text")).run()
    with pytest.raises(bn.BadProgram, match=r"fork\(1\)"):
        make(state)
    error = bn.BanyanError("no luck")
    error.state = state  # type: ignore[attr-defined]
    assert make(error).state is state


def test_state_can_be_continued_after_its_body(mock: bn.Mock) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += bn.user("hi")

    for stream in (False, True):
        state = program.run(stream=stream)
        assert state.ret_value is None
        state += bn.assistant(bn.gen("a"))
        assert state["a"] == "<a>"
        assert len(state.messages()) == 2


def test_cancelled_state_sends_no_gens() -> None:
    called = threading.Event()

    def script(prompt: str, name: str) -> str:
        if name == "b":
            called.set()
        return name

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a")

    state = program.run(backend=bn.Mock(script))
    assert state["a"] == "a"
    state.cancel()
    state += bn.gen("b")
    assert state["a"] == "a"
    with pytest.raises(bn.Cancelled):
        state["b"]
    assert not called.is_set()


def test_dropped_state_is_cancelled(mock: bn.Mock) -> None:
    programs: list[Any] = []
    make = mock.program
    mock.program = lambda name="": programs.append(created := make(name)) or created  # type: ignore[func-returns-value, method-assign]

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("a") + bn.user("x")

    state = program.run()
    assert not programs[0]._executor.is_over
    del state
    assert programs[0]._executor.is_over


def test_a_failed_state_gives_no_note_to_the_prompt_of_another_program() -> None:
    @bn.function
    def inner(s: bn.State) -> None:
        s += "in " + bn.gen("x")

    @bn.function
    def outer(s: bn.State) -> None:
        s += "first " + bn.gen("first")
        s += f"{inner(backend=bn.Mock({}))}"

    with pytest.raises(bn.ProgramError, match="no answer for 'x'") as raised:
        outer.run(backend=bn.Mock("y"))
    assert raised.value.state._record.name == "outer", "the program whose body raised"
