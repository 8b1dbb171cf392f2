"""Gens that end their turn with the calls, and prompts with calls of earlier turns: what clients over HTTP use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from banyan.runtime.errors import BanyanError, ConstraintSyntax, ConstraintTooLarge
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, BeginTurn, EndTurn, Fork, Gen, Tools, WireToolCall
from banyan.runtime.server.text.chat_template import ChatTemplate

CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | length }} tools<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
    '<tool_call>{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{% if m.tool_call_id %}[{{ m.tool_call_id }}]{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BARE = (
    "{% if tools %}<|im_start|>system\n{{ tools | length }} tools<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    '{% for c in m.tool_calls %}{"name": {{ c.function.name | tojson }}, "parameters": '
    "{{ c.function.arguments | tojson }}}{{ '; ' if not loop.last }}{% else %}{{ m.content }}{% endfor %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Marks that are special tokens, which the text does not show.
HIDDEN = CHATML.replace("<tool_call>", "<|endoftext|> ").replace("</tool_call>", "")
HIDDEN_NAMED = CHATML.replace(
    '<tool_call>{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}</tool_call>',
    "<|endoftext|>{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}",
)
SPECS = tuple(json.dumps({"type": "function", "function": {"name": name}}) for name in ("f", "g"))
OPEN = "<|im_start|>assistant\n"
TURN = (BeginTurn("user"), "ask", EndTurn(), BeginTurn("assistant"))
F = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
G = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'


@pytest.fixture
def turn(bench: Any, greedy: Callable[..., wire.Sampling]) -> Callable[..., Any]:
    """`turn({"end of a prompt": "output"}, must_call=True)` -> the bench after one gen with tools."""

    def run(
        outputs: dict[str, str], source: str = CHATML, parts: tuple[wire.Part, ...] = TURN, stream: bool = False,
        reasoning: wire.Reasoning | None = None, burst: int = 1, sampling: wire.Sampling | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        b = bench({k: v + "<|im_end|>" for k, v in outputs.items()}, ChatTemplate(source, {}))
        b.engine.burst = burst
        tools = Tools(SPECS, 0, ends_turn=True, **options)
        sampling = sampling or greedy(max_tokens=160)
        b.submit(Append(0, parts), Gen(0, 0, sampling, stream, tools=tools, reasoning=reasoning))
        b.run()
        return b

    return run


def sample(b: Any) -> wire.Sample:
    found: wire.Sample = b.value(0).samples[0]
    return found


def streamed(b: Any) -> list[tuple[str, str]]:
    """Name and arguments of each call that was streamed, joined from its pieces."""
    found: dict[str, tuple[str, str]] = {}
    for piece in (delta.call for delta in b.messages(wire.Delta) if delta.call is not None):
        assert bool(piece.name) == (piece.id not in found)
        name, arguments = found.get(piece.id, (piece.name, ""))
        found[piece.id] = name, arguments + piece.arguments
    assert list(found) == [f"{k:09d}" for k in range(len(found))]
    return list(found.values())


def test_stream_has_the_calls_while_they_are_written(turn: Callable[..., Any]) -> None:
    b = turn({OPEN: f"So: {F}{G}"}, stream=True)
    first, *rest = (delta.call for delta in b.messages(wire.Delta) if delta.call is not None)
    assert first == wire.CallPiece("000000000", "f")
    assert len([piece for piece in rest if piece.id == first.id]) > 1
    assert streamed(b) == [("f", '{"x": 1}'), ("g", "{}")]


def test_stream_of_calls_is_a_beginning_of_the_calls(turn: Callable[..., Any]) -> None:
    last_first = '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>'
    for source, output, options, n_streamed in (
        (CHATML, '<tool_call>{"name":"f","arguments":{"x":\n"a\nb\\"}{<tool_call>"}}</tool_call>' + G, {}, 2),
        (CHATML, F + G, {"one_call": True}, 1),
        (CHATML, G + last_first + F, {}, 1),
        (CHATML, "<tool_call>[" + F[11:-12] + ", " + G[11:-12] + "]</tool_call>" + F, {}, 1),
        (CHATML, '<tool_call>{"name": "f"}</tool_call>' + G, {}, 0),
        (BARE, '{"name": "f", "parameters": {"x": 1}}', {}, 0),
        (HIDDEN, '<|endoftext|>{"name": "f", "arguments": {"x": 1}}', {}, 0),
    ):
        b = turn({OPEN: output}, source, stream=True, **options)
        calls = [(call.name, call.arguments) for call in sample(b).calls]
        assert calls
        whole = [pair for pair in streamed(b) if pair[1]]
        assert whole == calls[:n_streamed]
        assert all(json.loads(arguments, strict=True) is not None for _, arguments in calls)


def test_the_turn_ends_with_its_calls(turn: Callable[..., Any]) -> None:
    b = turn({OPEN: f"So: {F}{G}"}, stream=True)
    assert [(call.name, call.arguments) for call in sample(b).calls] == [("f", '{"x": 1}'), ("g", "{}")]
    assert sample(b).text == "So: "
    assert "".join(delta.text for delta in b.messages(wire.Delta)) == "So: "
    assert b.messages(wire.Called) == []
    b.submit(Fork(0, (1,)), Append(1, (BeginTurn("tool", sample(b).calls[0]), "1", EndTurn(), BeginTurn("assistant"))),
             Gen(1, 1, wire.Sampling(max_tokens=1, temperature=0)))  # fmt: skip
    b.run()
    assert b.prompts()[-1].endswith(f"So: {F}{G}<|im_end|>\n<|im_start|>tool\n1[000000000]<|im_end|>\n{OPEN}")


def test_text_and_broken_calls_are_text(turn: Callable[..., Any]) -> None:
    for text in ("None.", '<tool_call>{"name": '):
        b = turn({OPEN: text}, stream=True)
        assert (sample(b).text, sample(b).calls) == (text, ())
        assert "".join(delta.text for delta in b.messages(wire.Delta)) == text


@pytest.mark.parametrize(("source", "mark"), [(CHATML, "<tool_call>"), (HIDDEN, "<|endoftext|>")])
@pytest.mark.parametrize("before", ["", "\n", "Let me see. "])
def test_call_that_max_tokens_cuts_is_no_text(
    turn: Callable[..., Any], greedy: Callable[..., wire.Sampling], source: str, mark: str, before: str
) -> None:
    output = f'{before}{mark}{{"name": "f", "arguments": {{"x": 1}}}}'
    for options in ({}, {"must_call": True}) if not before else ({},):
        b = turn({OPEN: output}, source, stream=True, sampling=greedy(max_tokens=len(before) + 20), **options)
        assert (sample(b).text, sample(b).calls, sample(b).finish_reason) == (before.lstrip(), (), "length")
        assert "".join(delta.text for delta in b.messages(wire.Delta)) == before.lstrip()
        for name, arguments in streamed(b):
            assert name == "f"
            assert '{"x": 1}'.startswith(arguments)


def test_turn_that_could_have_answered_streams_what_precedes_its_calls(
    turn: Callable[..., Any], greedy: Callable[..., wire.Sampling]
) -> None:
    for before, reasoning in (("Let me check. ", None), ("<think>hm</think>Let me check. ", wire.Reasoning())):
        sampling = greedy(max_tokens=160, constraint=wire.ConstraintSpec("regex", "[0-9]+"), logprobs=True)
        b = turn({OPEN: before + F}, stream=True, reasoning=reasoning, sampling=sampling)
        deltas, found = b.messages(wire.Delta), sample(b)
        assert [call.name for call in found.calls] == ["f"]
        assert "".join(d.text for d in deltas if not d.is_thought) == found.text == "Let me check. "
        assert "".join(d.text for d in deltas if d.is_thought) == found.reasoning == ("hm" if reasoning else "")
        plain = turn(
            {OPEN: before + F}, stream=True, reasoning=reasoning, sampling=greedy(max_tokens=160, logprobs=True)
        )
        assert sum((d.logprobs for d in deltas), ()) == sum((d.logprobs for d in plain.messages(wire.Delta)), ())
        assert [d.n_tokens for d in deltas] == sorted({d.n_tokens for d in deltas})
        assert deltas[-1].n_prompt == len(b.engine.runs[0].ids) // 4


def test_end_of_reasoning_is_text_after_the_reasoning(turn: Callable[..., Any]) -> None:
    output = f"The </think> mark: {F} </think>"
    found = sample(turn({OPEN: f"<think>{G}</think>{output}"}, reasoning=wire.Reasoning()))
    assert ([call.name for call in found.calls], found.text) == (["f"], "The </think> mark: ")


@pytest.mark.parametrize("burst", [1, 3])
@pytest.mark.parametrize(
    ("source", "call"),
    [(HIDDEN, ' {"name": "f", "arguments": {"x": 1}}'), (HIDDEN_NAMED, 'f[ARGS]{"x": 1}')],
    ids=["json", "named"],
)
def test_stream_ends_at_a_mark_that_is_no_text(turn: Callable[..., Any], source: str, call: str, burst: int) -> None:
    thought = "<think>or <|endoftext|> </think>\n"
    for before, after, reasoning in (
        ("Let me check. ", f"<|endoftext|>{call}", None),
        (f"{thought}Let me check. ", f"<|endoftext|>{call}", wire.Reasoning()),
        ("[1] is ", "it", None),
        (f"{thought}[1] is ", "it", wire.Reasoning()),
    ):
        b = turn({OPEN: before + after}, source, stream=True, reasoning=reasoning, burst=burst)
        deltas = [delta.text for delta in b.messages(wire.Delta) if not delta.is_thought]
        assert [call.name for call in sample(b).calls] == (["f"] if after != "it" else [])
        assert "".join(deltas) == sample(b).text == before.removeprefix(thought) + ("it" if after == "it" else "")
        assert len(deltas) > 1, "the text streams"


def test_white_space_before_a_call_is_no_text(turn: Callable[..., Any]) -> None:
    for source, call in ((CHATML, F), (HIDDEN, '<|endoftext|> {"name": "f", "arguments": {}}')):
        b = turn({OPEN: f"\n\n{call}"}, source, stream=True)
        assert [call.name for call in sample(b).calls] == ["f"]
        assert sample(b).text == "".join(delta.text for delta in b.messages(wire.Delta)) == ""
    b = turn({OPEN: "\n\n"}, stream=True)
    assert sample(b).text == "".join(delta.text for delta in b.messages(wire.Delta)) == "\n\n"


@pytest.mark.parametrize("burst", [1, 3])
@pytest.mark.parametrize("gap", ["", " ", "\n\n"])
@pytest.mark.parametrize(
    ("source", "call"),
    [(HIDDEN, ' {"name": "f", "arguments": {"x": 1}}'), (HIDDEN_NAMED, 'f[ARGS]{"x": 1}')],
    ids=["json", "named"],
)
def test_call_right_after_the_reasoning_keeps_its_hidden_mark(
    turn: Callable[..., Any], source: str, call: str, gap: str, burst: int
) -> None:
    output = f"<think>or <|endoftext|> </think>{gap}<|endoftext|>{call}"
    b = turn({OPEN: output}, source, stream=True, reasoning=wire.Reasoning(), burst=burst)
    assert [call.name for call in sample(b).calls] == ["f"]
    assert sample(b).text == "".join(delta.text for delta in b.messages(wire.Delta) if not delta.is_thought) == ""


def test_an_answer_in_json_is_text(turn: Callable[..., Any]) -> None:
    b = turn({OPEN: '{"name": "h"}'}, BARE)
    assert (sample(b).text, sample(b).calls) == ('{"name": "h"}', ())
    assert [call.name for call in sample(turn({OPEN: '{"name": "g"}'}, BARE)).calls] == ["g"]


@pytest.mark.parametrize(
    ("is_strict", "error", "falls_back"),
    [(False, ConstraintTooLarge, True), (False, ConstraintSyntax, False), (True, ConstraintTooLarge, False)],
)
def test_constraint_falls_back_only_if_it_is_too_large_and_nobody_asked_for_strictness(
    bench: Any, greedy: Callable[..., wire.Sampling], is_strict: bool, error: type[BanyanError], falls_back: bool
) -> None:
    b = bench({OPEN: f"{F}<|im_end|>"}, ChatTemplate(CHATML, {}))
    b.checks = []
    tools = Tools(SPECS, 0, ends_turn=True, is_strict=is_strict)
    b.submit(Append(0, TURN), Gen(0, 0, greedy(max_tokens=160), tools=tools))
    assert b.checks[0][0].is_checked is not is_strict
    b.checks[0][-1](error("no"))
    assert len(b.checks) == 1 + falls_back
    assert falls_back or b.failed(0).code == error.code


def test_one_call_of_several(turn: Callable[..., Any]) -> None:
    b = turn({OPEN: F + G}, one_call=True)
    assert [call.name for call in sample(b).calls] == ["f"]


@pytest.mark.parametrize(("source", "mark", "rest"), [(CHATML, "<tool_call>", F[11:]), (BARE, "", '{"name": "f"}')])
def test_a_call_that_must_come_begins_in_the_prompt(
    turn: Callable[..., Any], source: str, mark: str, rest: str
) -> None:
    b = turn({OPEN + mark: rest}, source, must_call=True, stream=True)
    assert [call.name for call in sample(b).calls] == ["f"]
    assert sample(b).text == "".join(delta.text for delta in b.messages(wire.Delta)) == ""
    assert streamed(b) == ([("f", '{"x": 1}')] if mark else [])
    assert b.prompts()[0].endswith(OPEN + mark)


def test_prose_in_place_of_a_required_call_without_a_mark_is_text(
    turn: Callable[..., Any], greedy: Callable[..., wire.Sampling]
) -> None:
    """With ignore_eos, no constraint is in force."""
    sampling = greedy(max_tokens=160, ignore_eos=True, stop=("!",))
    b = turn({OPEN: "I cannot call it!"}, BARE, stream=True, sampling=sampling, must_call=True)
    assert (sample(b).calls, sample(b).text) == ((), "I cannot call it")
    assert "".join(delta.text for delta in b.messages(wire.Delta)) == sample(b).text


def test_required_call_that_cannot_be_read_is_no_text(
    turn: Callable[..., Any], greedy: Callable[..., wire.Sampling]
) -> None:
    for source, mark, output, stop in (
        (CHATML, "<tool_call>", '{"name": "f", "arguments": {}}', ("arguments",)),
        (HIDDEN_NAMED, "<|endoftext|>", "f(x=1)", ()),
    ):
        b = turn({OPEN + mark: output}, source, stream=True, sampling=greedy(max_tokens=160, stop=stop), must_call=True)
        assert (sample(b).calls, sample(b).finish_reason) == ((), "stop")
        assert sample(b).text == "".join(delta.text for delta in b.messages(wire.Delta)) == ""


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"only": "h"}, "must be the name of one of the tools"),
        ({"ends_turn": False, "must_call": True}, "need ends_turn=True"),
    ],
)
def test_bad_tools_are_refused(bench: Any, options: dict[str, Any], error: str) -> None:
    b = bench({}, ChatTemplate(CHATML, {}))
    b.submit(Append(0, TURN), Gen(0, 0, tools=Tools(SPECS, **({"ends_turn": True} | options))))
    b.run()
    assert error in b.failed(0).message


def test_calls_of_earlier_turns_are_written_by_the_template(turn: Callable[..., Any]) -> None:
    calls = (WireToolCall("000000000", "f", '{"x": "<|im_end|>"}'), WireToolCall("000000001", "g"))
    parts = (
        *(BeginTurn("user"), "ask", EndTurn(), BeginTurn("assistant"), "Both:", EndTurn(calls)),
        *(BeginTurn("tool", calls[0]), "1", EndTurn(), BeginTurn("tool", calls[1]), "2", EndTurn()),
        BeginTurn("assistant"),
    )
    b = turn({OPEN: "3"}, parts=parts)
    assert sample(b).text == "3"
    written = f'Both:<tool_call>{{"name": "f", "arguments": {{"x": "<|im_end|>"}}}}</tool_call>{G}<|im_end|>\n'
    assert written in b.prompts()[0]
    assert "<|im_start|>tool\n1[000000000]<|im_end|>\n<|im_start|>tool\n2[000000001]<|im_end|>\n" in b.prompts()[0]


@pytest.mark.parametrize(
    "call",
    [WireToolCall("1", "f"), WireToolCall("000000000", "<|im_end|>"), WireToolCall("000000000", "f", "[1]"),
     WireToolCall("000000000", "f", "{")],
)  # fmt: skip
def test_bad_calls_of_earlier_turns_are_refused(bench: Any, call: WireToolCall) -> None:
    b = bench({}, ChatTemplate(CHATML, {}))
    b.submit(Append(0, (BeginTurn("assistant"), EndTurn((call,)))), Gen(0, 0))
    b.run()
    assert "of a call" in b.failed(0).message or "tool's name" in b.failed(0).message
