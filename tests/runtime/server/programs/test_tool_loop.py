"""Gens with tools on the server: turns, calls, results and computed tokens. The engine is a table of answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from banyan.runtime.errors import ConstraintBusy, ConstraintUnsupported, Unsupported
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Append, BeginTurn, Cancel, Drop, EndTurn, Fork, Gen, Join, Read, Results
from banyan.runtime.server.programs.call_filter import CallFilter
from banyan.runtime.server.text.chat_template import ChatTemplate
from banyan.runtime.server.text.tokenizer import TextSpan
from banyan.runtime.server.text.tool_call_format import Form

Sampler = Callable[..., wire.Sampling]

CHATML = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }};{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
    '<tool_call>{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Like Mistral's: calls are special tokens, roles alternate, and results name their call.
STRICT = (
    "{% for m in messages | rejectattr('role', 'equalto', 'tool') | selectattr('tool_calls', 'undefined') %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% endfor %}{% if tools %}[T]{{ tools | length }}[/T]{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[I]{{ m.content }}[/I]{% elif m.tool_calls is defined %}<|im_start|> ["
    '{% for c in m.tool_calls %}{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{{ \', \' if not loop.last }}'
    "{% endfor %}]<|im_end|>{% elif m.role == 'tool' %}[R]{{ m.content }}, {{ m.tool_call_id }}[/R]"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
ESCAPING = CHATML.replace(
    "{{ m.content }}", "{% if m.role == 'tool' %}{{ {'out': m.content} | tojson }}{% else %}{{ m.content }}{% endif %}"
)


def spec(name: str) -> str:
    return json.dumps({"type": "function", "function": {"name": name}})


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


TOOLS = wire.Tools((spec("f"), spec("g")))
ASK = Append(0, (BeginTurn("user"), "ask", EndTurn(), BeginTurn("assistant")))
OPEN = "<|im_start|>assistant\n"
START = f"<|im_start|>system\nf;g;<|im_end|>\n<|im_start|>user\nask<|im_end|>\n{OPEN}"


@pytest.fixture
def begin(bench: Any, greedy: Sampler) -> Callable[..., Any]:
    """`begin({"end of a prompt": "output"})` -> the bench after the first turn of a gen with tools."""

    def start(outputs: dict[str, str], source: str = CHATML, tools: wire.Tools = TOOLS, stream: bool = False) -> Any:
        b = bench({k: v + "<|im_end|>" for k, v in outputs.items()}, ChatTemplate(source, {}))
        b.submit(ASK, Gen(0, 0, greedy(max_tokens=160), stream, "a", tools=tools), Append(0, (EndTurn(),)))
        b.run()
        return b

    return start


def called(b: Any) -> wire.Called:
    return b.messages(wire.Called)[-1]  # type: ignore[no-any-return]


def test_gen_without_calls_has_one_turn(begin: Callable[..., Any]) -> None:
    b = begin({OPEN: "42"})
    assert b.text(0) == "42"
    assert b.messages(wire.Called) == []
    assert b.prompts() == [START]


def test_calls_are_sent_and_results_appended_as_turns(begin: Callable[..., Any]) -> None:
    turn = call("f", x=1) + call("g")
    b = begin({f"ask<|im_end|>\n{OPEN}": turn, f"two<|im_end|>\n{OPEN}": "done"})
    assert called(b).calls == (
        wire.WireToolCall("000000000", "f", '{"x": 1}'),
        wire.WireToolCall("000000001", "g", "{}"),
    )
    assert (called(b).round, called(b).text) == (0, turn)
    assert b.messages(wire.Value) == []
    first = b.ids()
    b.submit(Results(0, 0, 0, ("one", "two")), Read(0, 1))
    b.run()
    assert b.text(0) == "done"
    answers = "".join(f"<|im_start|>tool\n{result}<|im_end|>\n" for result in ("one", "two"))
    assert b.prompts()[1] == f"{START}{turn}<|im_end|>\n{answers}{OPEN}"
    output_ids = b.words.encode([TextSpan(turn)])
    assert b.ids()[: len(first) + len(output_ids)] == first + output_ids, "the generated tokens are kept"
    assert b.text(1) == b.prompts()[1] + "done<|im_end|>\n"


def test_usage_sums_over_all_turns(begin: Callable[..., Any]) -> None:
    b = begin({f"ask<|im_end|>\n{OPEN}": call("f"), f"one<|im_end|>\n{OPEN}": "done"})
    n_first, n_generated = len(b.ids()), called(b).usage.generated
    assert called(b).usage.prompt == n_first
    b.submit(Results(0, 0, 0, ("one",)))
    b.run()
    usage = b.value(0).usage
    assert (usage.prompt, usage.generated) == (n_first + len(b.ids()), n_generated + b.value(0).samples[0].n_tokens)
    assert b.value(0).times.ready < b.value(0).times.ended


def test_adapter_unloaded_while_a_tool_runs_fails_the_gen(bench: Any, greedy: Sampler) -> None:
    b = bench({OPEN: call("f") + "<|im_end|>", "plain": "x<|im_end|>"}, ChatTemplate(CHATML, {}))
    b.adapters.add("a", "/a", b"A")
    gen = Gen(0, 0, greedy(max_tokens=160), name="g", tools=TOOLS, adapter="a")
    b.submit(ASK, gen, Append(0, ("plain",)), Gen(0, 1, adapter="a"))
    b.run()
    assert [run.adapter for run in b.engine.runs] == [b"A"]
    b.adapters.remove("a")
    b.submit(Results(0, 0, 0, ("one",)))
    b.run()
    for ref in (0, 1):
        assert b.failed(ref).code == "bad_program"
        assert "there is no adapter 'a'" in b.failed(ref).message
    assert len(b.engine.runs) == 1
    b.submit(Append(0, ("plain",)), Gen(0, 0, greedy(), adapter=""), program=1)
    b.run()
    assert b.text(0, program=1) == "x"


@pytest.mark.parametrize("last", [Results(0, 0, 0, ("one",)), Gen(1, 1, adapter="a")], ids=["round", "gen"])
def test_adapter_replaced_while_a_program_runs_ends_it(bench: Any, greedy: Sampler, last: wire.Op) -> None:
    """The next round, or the next gen, does not go on with the other adapter."""
    b = bench({OPEN: call("f") + "<|im_end|>"}, ChatTemplate(CHATML, {}))
    b.adapters.add("a", "/a", b"A")
    gen = Gen(0, 0, greedy(max_tokens=160), name="g", tools=TOOLS, adapter="a")
    b.submit(wire.Fork(0, (1,)), Append(1, ("x",)), ASK, gen)
    b.run()
    b.adapters.remove("a")
    b.adapters.add("a", "/b", b"B")
    b.submit(last)
    b.run()
    assert (b.failed(None).code, len(b.engine.runs)) == ("bad_program", 1)
    assert "adapter 'a' was replaced while this program ran" in b.failed(None).message
    b.submit(ASK, gen, program=1)
    b.run()
    assert [run.adapter for run in b.engine.runs] == [b"A", b"B"]


def test_later_ops_wait_for_the_tools(begin: Callable[..., Any], greedy: Sampler) -> None:
    b = begin(
        {f"ask<|im_end|>\n{OPEN}": call("f"), f"one<|im_end|>\n{OPEN}": "done", "so ": "and on", "child ": "born"}
    )
    b.submit(
        Append(0, ("so ",)),
        Gen(0, 1, greedy()),
        Fork(0, (1,)),
        Append(1, ("child ",)),
        Gen(1, 2, greedy()),
        Join(0, (1,)),
    )
    b.run()
    assert b.messages(wire.Value) == [], "later ops wait for the tools"
    b.submit(Results(0, 0, 0, ("one",)))
    b.run()
    assert [b.text(k) for k in range(3)] == ["done", "and on", "born"]


def test_unexpected_results_are_ignored(begin: Callable[..., Any]) -> None:
    b = begin(
        {f"ask<|im_end|>\n{OPEN}": call("f"), f"one<|im_end|>\n{OPEN}": call("g"), f"two<|im_end|>\n{OPEN}": "end"}
    )
    b.submit(Results(0, 0, 1, ("too early",)), Results(0, 7, 0, ("of another",)))
    b.submit(Results(0, 0, 0, ("one",)))
    b.submit(Results(0, 0, 0, ("twice",)))
    b.run()
    assert called(b).round == 1
    b.submit(Results(0, 0, 0, ("late",)))
    b.submit(Results(0, 0, 1, ("two",)), last=True)
    b.run()
    assert b.text(0) == "end"
    assert [m.round for m in b.messages(wire.Called)] == [0, 1]


def test_results_are_the_only_ops_after_the_last_message(bench: Any, greedy: Sampler) -> None:
    outputs = {f"ask<|im_end|>\n{OPEN}": call("f"), f"one<|im_end|>\n{OPEN}": call("g")}
    b = bench({k: v + "<|im_end|>" for k, v in outputs.items()}, ChatTemplate(CHATML, {}))
    b.submit(ASK, Gen(0, 0, greedy(max_tokens=160), tools=TOOLS), last=True)
    b.run()
    b.submit(Results(0, 0, 0, ("one",)))
    b.run()
    assert called(b).round == 1
    b.submit(Results(0, 0, 1, ("two",)), Read(0, 1))
    assert b.failed(None).code == "bad_message"
    assert "Read after its last message" in b.failed(None).message
    assert len(b.programs) == 0


def test_calls_beyond_max_rounds_fail(begin: Callable[..., Any]) -> None:
    b = begin({OPEN: call("f") + call("g") + call("f")}, tools=wire.Tools(TOOLS.specs, max_rounds=1))
    b.submit(Results(0, 0, 0, ("1", "2", "3")))
    b.run()
    assert b.failed(0).code == "tool"
    assert b.failed(0).message == "the model still calls tools (f, g) after 1 rounds, the limit of max_rounds"
    assert begin({OPEN: call("f")}, tools=wire.Tools(TOOLS.specs, max_rounds=0)).failed(0).code == "tool"


def test_wrong_number_of_results_fails(begin: Callable[..., Any]) -> None:
    b = begin({OPEN: call("f")})
    b.submit(Results(0, 0, 0, ("1", "2")), Read(0, 1))
    assert "2 results came for 1 calls" in b.failed(0).message
    assert b.failed(1).code == "bad_program"


@pytest.mark.parametrize("how", ["cancel", "drop", "leave"])
def test_gen_that_waits_for_results_can_be_stopped(how: str, begin: Callable[..., Any]) -> None:
    b = begin({OPEN: call("f")})
    match how:
        case "cancel":
            b.programs.cancel(b"me", Cancel(0, 9))
        case "drop":
            b.submit(Drop(0))
            assert b.failed(0).code == "cancelled"
        case "leave":
            b.leave()
    assert b.programs.check() == ""
    if how == "drop":
        b.submit(Results(0, 0, 0, ("late",)))
    assert len(b.engine.runs) == 1


def test_running_turn_can_be_dropped(bench: Any, greedy: Sampler) -> None:
    b = bench({}, ChatTemplate(CHATML, {}))
    b.submit(ASK, Gen(0, 0, greedy(max_tokens=500), tools=TOOLS))
    b.run(3)
    b.submit(Drop(0))
    assert b.failed(0).code == "cancelled"
    assert b.requests.living == []


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Append(0, ("plain",)), Gen(0, 0, tools=TOOLS)), "must be in a turn of the assistant"),
        ((ASK, Gen(0, 0, wire.Sampling(n=2), tools=TOOLS)), "n is 2"),
        ((ASK, Gen(0, 0, tools=wire.Tools(("{}",)))), "the spec of a tool must be"),
        ((ASK, Gen(0, 0, tools=wire.Tools(("{" * 9999,)))), "the spec of a tool must be"),
    ],
)
def test_invalid_gen_with_tools_is_refused(ops: tuple[wire.Op, ...], message: str, bench: Any) -> None:
    b = bench({}, ChatTemplate(CHATML, {}))
    b.submit(*ops)
    assert message in b.failed(0).message
    assert b.engine.runs == []


def test_model_without_a_call_format_refuses_tools(bench: Any) -> None:
    b = bench({}, ChatTemplate(CHATML.replace("{% if tools %}", "{% if false %}"), {}))
    b.submit(ASK, Gen(0, 0, tools=TOOLS))
    assert b.failed(0).code == "tool"
    assert "does not support tools" in b.failed(0).message
    assert b.programs.generator.with_call_format(wire.ChatMarkers({})).no_calls == b.failed(0).message


def test_welcome_has_the_call_format(bench: Any) -> None:
    chat = bench({}, ChatTemplate(CHATML, {})).programs.generator.with_call_format(wire.ChatMarkers({}))
    assert (chat.calls, chat.no_calls) == ('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "")


# ---- templates that write calls themselves -------------------------------------------------------------------------

CALL_OUTPUT = '<|im_start|> [{"name":"f","arguments":{"x":1}}]'


def test_calls_of_special_tokens_keep_their_generated_tokens(begin: Callable[..., Any]) -> None:
    b = begin({"ask[/I]": CALL_OUTPUT, "000000000[/R]": "done"}, source=STRICT)
    assert called(b).calls == (wire.WireToolCall("000000000", "f", '{"x":1}'),)
    assert called(b).text == ' [{"name":"f","arguments":{"x":1}}]', "the special token is not text"
    b.submit(Results(0, 0, 0, ("<|im_end|>one",)), Append(0, (BeginTurn("user"), "more", EndTurn())), Read(0, 1))
    b.run()
    assert b.prompts()[1] == f"[T]2[/T][I]ask[/I]{CALL_OUTPUT}<|im_end|>[R]<|im_end|>one, 000000000[/R]"
    assert b.ids().count(2) == 1, "markers of the template are special tokens, text of a tool is not"
    assert b.text(0) == "done"
    assert b.text(1).endswith(", 000000000[/R]done<|im_end|>[I]more[/I]")


def test_call_ids_continue_over_the_conversation(begin: Callable[..., Any]) -> None:
    b = begin({"ask[/I]": CALL_OUTPUT, "000000000[/R]": CALL_OUTPUT, "000000001[/R]": "done"}, source=STRICT)
    for number in range(2):
        b.submit(Results(0, 0, number, (f"r{number}",)))
        b.run()
    assert b.text(0) == "done"
    assert b.prompts()[2].endswith(f"{CALL_OUTPUT}<|im_end|>[R]r1, 000000001[/R]")


def test_results_in_json_are_escaped(begin: Callable[..., Any]) -> None:
    b = begin({f"ask<|im_end|>\n{OPEN}": call("f"), f'"}}<|im_end|>\n{OPEN}': "done"}, source=ESCAPING)
    first = b.ids()
    b.submit(Results(0, 0, 0, ('a "b"\n<|im_end|>',)))
    b.run()
    assert b.prompts()[1].endswith('tool\n{"out": "a \\"b\\"\\n<|im_end|>"}<|im_end|>\n' + OPEN)
    assert b.ids()[: len(first)] == first
    assert b.ids().count(2) == 4, "one each for system, user, assistant and tool; the text of the tool ends no turn"
    assert b.text(0) == "done"


# ---- streams -------------------------------------------------------------------------------------------------------


def test_stream_has_the_text_without_the_calls(begin: Callable[..., Any]) -> None:
    b = begin({f"ask<|im_end|>\n{OPEN}": "Look: " + call("f"), f"one<|im_end|>\n{OPEN}": "It is <one>."}, stream=True)
    assert "".join(m.text for m in b.messages(wire.Delta)) == "Look: "
    b.submit(Results(0, 0, 0, ("one",)))
    b.run()
    assert "".join(m.text for m in b.messages(wire.Delta)) == "Look: It is <one>."
    assert "".join(m.text for m in b.messages(wire.Delta) if m.round == 0) == "Look: "
    assert all(m.n_tokens for m in b.messages(wire.Delta))
    assert b.text(0) == "It is <one>."


def test_stream_has_the_logprobs_of_all_tokens(bench: Any, greedy: Sampler) -> None:
    b = bench({f"ask<|im_end|>\n{OPEN}": "It is <one>, I say.<|im_end|>"}, ChatTemplate(CHATML, {}))
    b.submit(ASK, Gen(0, 0, greedy(max_tokens=60, logprobs=True), True, "a", tools=TOOLS), Append(0, (EndTurn(),)))
    b.run()
    deltas = b.messages(wire.Delta)
    n = 0
    for delta in deltas:
        n += len(delta.logprobs)
        assert n == delta.n_tokens
    assert n > 3


@pytest.mark.parametrize(
    ("form", "pieces", "is_call", "expected"),
    [
        (Form("<call>"), ["a <", "c", "all", "> {", "}"], True, ["a "]),
        (Form("<call>"), ["a <", "b> <cal"], False, ["a ", "<b> ", "<cal"]),
        (Form(""), [" ", "{", "}"], True, []),
        (Form(""), [" ", "{", "}"], False, [" {}"]),
        (Form(""), [" ", "a", "{"], False, [" a", "{"]),
    ],
)
def test_call_filter_hides_calls(form: Form, pieces: list[str], is_call: bool, expected: list[str]) -> None:
    actual: list[str] = []
    call_filter = CallFilter(form, actual.append)
    for piece in pieces:
        call_filter.feed(piece)
    call_filter.end(is_call)
    assert actual == expected


@pytest.mark.parametrize("name", ["name", None])
def test_call_filter_hides_what_follows_a_control_token(name: str | None) -> None:
    for pieces, is_call, expected in (
        ([("[", 0), ("1]", 0)], True, []),
        ([("a ", -1), ("b [", 4), ("1]", 4)], True, ["a ", "b "]),
        ([("a", 2), (" [", 2)], True, ["a", " "]),
        ([("{", -1), ("1}", -1)], False, ["{", "1}"]),
        ([("a ", -1), ("b [", 4), ("1]", 4)], False, ["a ", "b ", "[1]"]),
    ):
        actual: list[str] = []
        call_filter = CallFilter(Form("[C]", name, is_hidden=True), actual.append)
        for piece, mark_at in pieces:
            call_filter.feed(piece, mark_at)
        call_filter.end(is_call)
        assert actual == expected


# ---- constraint of calls --------------------------------------------------------------------------------------------


def test_calls_are_constrained_to_the_tools(begin: Callable[..., Any]) -> None:
    b = begin({OPEN: "42"})
    constraint = b.engine.runs[0].sampling.constraint
    assert (constraint.after, constraint.scope, constraint.end) == (("<tool_call>",), "repeat", "</tool_call>")
    assert "additionalProperties" in constraint.text


def test_unsupported_constraint_falls_back_to_names_then_to_none(bench: Any, greedy: Sampler) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "array"}}}}
    tools = wire.Tools((json.dumps({"type": "function", "function": function}),))
    b = bench({OPEN: "42<|im_end|>"}, ChatTemplate(CHATML, {}))
    b.checks = []
    b.submit(ASK, Gen(0, 0, greedy(max_tokens=160), tools=tools))
    assert '"x"' in b.checks[0][0].text
    b.checks[0][-1](ConstraintUnsupported("no"))
    assert '"x"' not in b.checks[1][0].text
    b.checks[1][-1](Unsupported("this model"))
    b.run()
    assert b.engine.runs[0].sampling.constraint is None
    assert b.text(0) == "42"


def test_busy_constraint_compiler_fails_the_gen(bench: Any, greedy: Sampler) -> None:
    b = bench({OPEN: "42<|im_end|>"}, ChatTemplate(CHATML, {}))
    b.checks = []
    b.submit(ASK, Gen(0, 0, greedy(max_tokens=160), tools=TOOLS))
    b.checks[0][-1](ConstraintBusy("try again"))
    assert b.failed(0).code == "constraint_busy"
