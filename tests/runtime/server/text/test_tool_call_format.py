"""The format of tool calls, detected from chat templates, and tool calls parsed from a model's output."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.errors import ToolError
from banyan.runtime.protocol.wire import WireToolCall
from banyan.runtime.server.text.chat_template import ChatMessage, ChatTemplate
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer
from banyan.runtime.server.text.tool_call_format import N_CALLS, Form, example, form_of
from forms import examples

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

# Templates with the structure of well-known models' templates.
HERMES = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}\n"
    "<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls %}{% set f = call.function %}"
    "{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
    '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}" + PROMPT
)
# Qwen 3: the last assistant turn has an empty thought.
QWEN3 = HERMES.replace(
    "<|im_start|>{{ m.role }}\n{{ m.content }}",
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}",
)
LLAMA3 = (
    "{{ bos_token }}{% if tools %}<|h|>system<|/h|>\n\nEnvironment: ipython<|eot|>{% endif %}{% for m in messages %}"
    "{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}<|h|>assistant<|/h|>\n\n"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|eot|>'
    "{% elif m.role == 'tool' %}<|h|>ipython<|/h|>\n\n{{ {'output': m.content} | tojson }}<|eot|>"
    "{% else %}<|h|>{{ m.role }}<|/h|>\n\n"
    "{% if tools and loop.first %}{% for tool in tools %}{{ tool | tojson(indent=4) }}\n\n{% endfor %}{% endif %}"
    "{{ m.content | trim }}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}"
)
REQUIRE_LENGTH_9 = "{% if ID | length != 9 %}{{ raise_exception('ids have length 9') }}{% endif %}"
MISTRAL = (
    "{% for m in messages | rejectattr('role', 'equalto', 'tool') | selectattr('tool_calls', 'undefined') %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% endfor %}{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and m == users[-1] %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ m.content }}[/INST]{% elif m.tool_calls is defined %}[TOOL_CALLS] ["
    "{% for call in m.tool_calls %}" + REQUIRE_LENGTH_9.replace("ID", "call.id") + "{{ (call.function | tojson)[:-1] }}"
    ', "id": "{{ call.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}'
    "{% elif m.role == 'tool' %}"
    + REQUIRE_LENGTH_9.replace("ID", "m.tool_call_id")
    + '[TOOL_RESULTS] {"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
MISTRAL_NAMED = (
    "{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}"
    "[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% else %}{{ m.content }}{% for call in m.tool_calls %}"
    "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)
XML = HERMES.replace(
    '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}',
    "<function={{ f.name }}>{% for k, v in f.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}</function>",
)

FORMS = {
    HERMES: Form("<tool_call>", "name", "arguments", close="\n</tool_call>"),
    QWEN3: Form("<tool_call>", "name", "arguments", close="\n</tool_call>"),
    LLAMA3: Form("", "name", "parameters"),
    MISTRAL: Form("[TOOL_CALLS]", "name", "arguments", is_list=True, is_plain=False),
    MISTRAL_NAMED: Form("[TOOL_CALLS]", None, "", split="[ARGS]"),
}


@pytest.mark.parametrize(("source", "form"), FORMS.items(), ids=["hermes", "qwen3", "llama3", "mistral", "named"])
def test_form_is_detected_from_the_template(source: str, form: Form, words: Tokenizer) -> None:
    assert form_of(ChatTemplate(source, SPECIAL_TOKENS), words) == form


def test_marker_that_is_a_special_token_is_hidden(words: Tokenizer) -> None:
    special = HERMES.replace("<tool_call>\n", "<|im_start|>call")
    assert form_of(ChatTemplate(special, SPECIAL_TOKENS), words).is_hidden


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "does not support tools"),
        (XML, "a tool call in an unsupported format: '<tool_call>\\\\n<function=zqnamezq0>"),
        (HERMES.replace("{% for call in m.tool_calls %}", "{% for call in [] %}"), "unsupported format: ''"),
        (
            HERMES.replace("<tool_call>\n", "{% if loop.first %}<calls>{% endif %}<call>\n"),
            "two tool calls in an unsupported format",
        ),
        (
            HERMES.replace("{% set f = call.function %}", "{% set f = call.function + 1 %}"),
            "refuses tool calls: the model's chat template fails",
        ),
    ],
)
def test_undetectable_form_is_refused_with_the_reason(source: str, error: str, words: Tokenizer) -> None:
    with pytest.raises(ToolError) as e:
        form_of(ChatTemplate(source, SPECIAL_TOKENS), words)
    assert error.replace("\\\\", "\\") in str(e.value)


def test_missing_template_is_refused(words: Tokenizer) -> None:
    with pytest.raises(ToolError, match="no chat template"):
        form_of(None, words)


def test_example_of_each_form() -> None:
    assert example(FORMS[HERMES]) == '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    assert example(FORMS[LLAMA3]) == '{"name": "f", "parameters": {"x": 1}}'
    assert example(FORMS[MISTRAL]) == '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]'
    assert example(FORMS[MISTRAL_NAMED]) == '[TOOL_CALLS]f[ARGS]{"x": 1}'


# ---- parsing -------------------------------------------------------------------------------------------------------

HERMES_FORM, LLAMA_FORM, MISTRAL_FORM, NAMED_FORM = (FORMS[s] for s in (HERMES, LLAMA3, MISTRAL, MISTRAL_NAMED))


def read(form: Form, text: str, n_before: int = 0) -> list[tuple[Any, ...]]:
    return [
        (call.id, call.name, json.loads(call.arguments)) if not call.error else (call.name, call.error)
        for call in form.read(text, text, n_before, names=("f", "g"))
    ]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES_FORM, 'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"x": [1, "é"]}}\n</tool_call>'),
        (HERMES_FORM, '<tool_call>{"arguments":{"x":[1,"\\u00e9"]},"name":"f"}'),
        (HERMES_FORM, '<think>a <tool_call> is needed</think><tool_call>{"name": "f", "arguments": {"x": [1, "é"]}}'),
        (HERMES_FORM, '<tool_call>{"name": "f", "arguments": "{\\"x\\": [1, \\"é\\"]}"}</tool_call>'),
        (LLAMA_FORM, ' {"name": "f", "parameters": {"x": [1, "é"]}}\n'),
        (LLAMA_FORM, '<think>{"a": 1}?</think>\n{"name": "f", "parameters": {"x": [1, "é"]}}'),
        (LLAMA_FORM, '{"type": "function", "name": "f", "parameters": {"x": [1, "é"]}}'),
        (LLAMA_FORM, '{"name": "f", "arguments": {"x": [1, "é"]}}'),
        (HERMES_FORM, '<tool_call>{"name": "f", "parameters": {"x": [1, "é"]}}'),
        (MISTRAL_FORM, '[TOOL_CALLS] [{"name": "f", "arguments": {"x": [1, "é"]}, "id": "whatever"}]'),
        (MISTRAL_FORM, '[TOOL_CALLS]{"name": "f", "arguments": {"x": [1, "é"]}}'),
        (NAMED_FORM, '[TOOL_CALLS]f[ARGS]{"x": [1, "é"]}'),
    ],
)
def test_call_is_parsed(form: Form, text: str) -> None:
    assert read(form, text, 3) == [("000000003", "f", {"x": [1, "é"]})]


def test_call_without_a_mark_may_be_a_name_alone_or_have_a_wrong_name() -> None:
    assert read(LLAMA_FORM, '{"name": "f"}; {"name": "g"}') == [("000000000", "f", {}), ("000000001", "g", {})]
    assert read(LLAMA_FORM, '{"name": "ff", "parameters": {}}') == [("000000000", "ff", {})], "the model gets an error"


DATA = '{"x": "a </think> b"}'


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES_FORM, f'<tool_call>\n{{"name": "f", "arguments": {DATA}}}\n</tool_call>'),
        (MISTRAL_FORM, f'[TOOL_CALLS] [{{"name": "f", "arguments": {DATA}}}]'),
        (NAMED_FORM, f"[TOOL_CALLS]f[ARGS]{DATA}"),
        (LLAMA_FORM, f'{{"name": "f", "parameters": {DATA}}}'),
    ],
)
def test_end_of_reasoning_inside_a_call_is_data(form: Form, text: str) -> None:
    thought = f"<think>a </think> or {form.mark} or {text} </think>"
    for before in ("", thought):
        assert read(form, f"{before}{text};{text}") == [(f"00000000{k}", "f", json.loads(DATA)) for k in range(2)]
    if form.mark:
        assert form.text_before(f"{thought}Now: {text}", f"{thought}Now: {text}") == "Now: "


def test_reasoning_ends_at_its_last_mark_unless_it_is_separated() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call> ends a </think>'
    assert read(HERMES_FORM, text) == []
    assert [call.name for call in HERMES_FORM.read(text, text, is_separated=True)] == ["f"]
    assert HERMES_FORM.text_before(f"</think>{text}", "", is_separated=True) == "</think>"


def test_several_calls_are_parsed_in_order() -> None:
    first, second = '{"name": "f", "arguments": {"x": "</tool_call><tool_call>"}}', '{"name": "g", "arguments": {}}'
    expected = [("000000000", "f", {"x": "</tool_call><tool_call>"}), ("000000001", "g", {})]
    assert read(HERMES_FORM, f"<tool_call>{first}</tool_call>\n<tool_call>\n{second}</tool_call>") == expected
    assert read(MISTRAL_FORM, f"[TOOL_CALLS] [{first}, {second}]") == expected
    assert read(NAMED_FORM, '[TOOL_CALLS]f[ARGS]{"x": "</tool_call><tool_call>"}[TOOL_CALLS]g[ARGS]{}') == expected
    assert read(LLAMA_FORM, f"{first}; {second}".replace("arguments", "parameters")) == expected


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES_FORM, 'It is {"name": "f", "arguments": {}}.'),
        (LLAMA_FORM, 'Say {"name": "f", "parameters": {}}'),
        (LLAMA_FORM, '{"name": "Ada", "parameters": 3}'),
        (LLAMA_FORM, '{"city": "Rome"}'),
        (LLAMA_FORM, '{"name": "Alice"}'),
        (LLAMA_FORM, '{"name": "Alice", "age": 3}'),
        (LLAMA_FORM, '[{"name": "Alice"}, {"name": "Bob"}]'),
        (LLAMA_FORM, '[{"name": "f"}, {"name": "Bob"}]'),
        (LLAMA_FORM, '{"name": ["f"]}'),
        (LLAMA_FORM, '{"name": "f", "description": "?", "parameters": {}}'),
        (LLAMA_FORM, "42"),
        (LLAMA_FORM, ""),
        (LLAMA_FORM, '{"name": "f", "parameters": {}} is what I would call'),
    ],
)
def test_text_without_a_call_has_no_calls(form: Form, text: str) -> None:
    assert read(form, text) == []


@pytest.mark.parametrize(
    ("form", "text", "name", "error"),
    [
        (HERMES_FORM, '<tool_call>{"name": "f", "argum', "", "JSON is broken"),
        (HERMES_FORM, "<tool_call></tool_call>", "", "JSON is broken"),
        (HERMES_FORM, '<tool_call>{"tool": "f"}</tool_call>', "", "names no tool; it must be an object with 'name'"),
        (HERMES_FORM, '<tool_call>["f"]</tool_call>', "", "names no tool"),
        (HERMES_FORM, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "f", "must be a JSON object"),
        (HERMES_FORM, '<tool_call>{"name": "f", "arguments": "{x"}</tool_call>', "f", "JSON is broken"),
        (HERMES_FORM, "<tool_call>" + "[" * 100_000, "", "too deep"),
        (HERMES_FORM, '<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}", "", "JSON is broken"),
        (HERMES_FORM, '<tool_call>{"name": "f", "arguments": {"x": 1e999}}', "f", "not finite"),
        (HERMES_FORM, '<tool_call>{"name": "f", "arguments": {"x": [NaN]}}', "f", "not finite"),
        (NAMED_FORM, "[TOOL_CALLS]f", "", "JSON is broken"),
    ],
)
def test_broken_call_has_an_error(form: Form, text: str, name: str, error: str) -> None:
    ((actual_name, actual_error),) = read(form, text)
    assert actual_name == name
    assert error in actual_error


def test_call_after_a_broken_call_is_parsed() -> None:
    text = '<tool_call>{"name": </tool_call><tool_call>{"name": "g", "arguments": {}}</tool_call>'
    assert read(HERMES_FORM, text)[1] == ("000000001", "g", {})


def test_calls_beyond_the_limit_are_errors() -> None:
    actual = read(HERMES_FORM, '<tool_call>{"name": "f", "arguments": {}}' * (N_CALLS + 1))
    assert actual[N_CALLS - 1][1:] == ("f", {})
    assert "one more" in actual[N_CALLS][1]


def test_hidden_markers_are_found_in_the_text_with_special_tokens() -> None:
    form = MISTRAL_FORM._replace(is_hidden=True)
    output = '[{"name": "f", "arguments": {}}]'
    assert form.read(output, f"[TOOL_CALLS] {output}") == (WireToolCall("000000000", "f", "{}"),)
    assert form.read(output, output) == (), "JSON without the marker is not a call"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@cache
def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, SPECIAL_TOKENS)


CALLS = st.tuples(st.text("abcxyz_", min_size=1, max_size=8), st.dictionaries(st.text(), JSON, max_size=3))


@examples(10, 50, given(st.lists(CALLS, max_size=3)))
def test_calls_written_by_a_template_round_trip(calls: list[tuple[str, dict[str, Any]]]) -> None:
    written = tuple(WireToolCall(f"{k:09d}", name, json.dumps(value)) for k, (name, value) in enumerate(calls))
    for source in (HERMES, QWEN3, MISTRAL, MISTRAL_NAMED) if written else ():
        text = template(source).calling(written)
        actual = FORMS[source].read(text, text)
        assert [(c.id, c.name, json.loads(c.arguments), c.error) for c in actual] == [
            (c.id, c.name, json.loads(c.arguments), "") for c in written
        ]


@pytest.mark.parametrize("source", [HERMES, QWEN3], ids=["hermes", "qwen3"])
def test_end_mark_of_reasoning_in_arguments_is_kept(source: str) -> None:
    text = template(source).calling((WireToolCall("1", "f", '{"s": "a </think> b"}'),))
    assert [json.loads(call.arguments) for call in FORMS[source].read(text, text)] == [{"s": "a </think> b"}]


@settings(deadline=None)
@given(st.text(alphabet='<tool_call>/{}[]":,name argumentsf\\1'))
def test_parser_accepts_any_text(text: str) -> None:
    for form in FORMS.values():
        for call in form.read("<tool_call>" + text, "[TOOL_CALLS]" + text):
            assert isinstance(json.loads(call.arguments), dict)


# ---- conversations with calls --------------------------------------------------------------------------------------


def test_template_renders_calls_and_results() -> None:
    call = WireToolCall("000000007", "f", '{"x": 1}')
    conversation = [
        ChatMessage("user", "?"),
        ChatMessage("assistant", calls=(call,)),
        ChatMessage("tool", "3", answers=call),
    ]
    text = ChatTemplate(MISTRAL, SPECIAL_TOKENS).render(conversation)
    assert text == (
        '<s>[INST] ?[/INST][TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "000000007"}]</s>'
        '[TOOL_RESULTS] {"content": 3, "call_id": "000000007"}[/TOOL_RESULTS]'
    )


def test_markers_of_turns_with_calls() -> None:
    call = WireToolCall("000000007", "f")
    shapes = ("user", ChatMessage("assistant", calls=(call,)), ChatMessage("tool", answers=call))
    assert ChatTemplate(MISTRAL, SPECIAL_TOKENS).markers(shapes) == (
        "<s>[INST] ",
        "[/INST]",
        '</s>[TOOL_RESULTS] {"content": ',
        ', "call_id": "000000007"}[/TOOL_RESULTS]',
    )
    assert ChatTemplate(MISTRAL, SPECIAL_TOKENS).chat_markers().roles["tool"] == (
        '[TOOL_RESULTS] {"content": ',
        ', "call_id": "000000000"}[/TOOL_RESULTS]',
    )


def test_template_with_tools_is_cached_per_tools() -> None:
    template = ChatTemplate(HERMES, SPECIAL_TOKENS)
    spec = '{"type": "function", "function": {"name": "f"}}'
    assert template.with_tools(()) is template
    assert template.with_tools((spec,)) is template.with_tools((spec,))
    assert template.with_tools((spec,)).markers(("user",)) == (
        f"<|im_start|>system\n{spec}\n<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n",
    )
    assert template.markers(("user",)) == ("<|im_start|>user\n", "<|im_end|>\n")


# ---- constraints on calls ------------------------------------------------------------------------------------------

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
LOOKUP = json.dumps({"type": "function", "function": {"name": "lookup", "parameters": {
    "type": "object", "properties": {"key": {"type": "string"}, "at": {"$ref": "#/$defs/Point"}}, "required": ["key"],
    "$defs": {"Point": POINT}}}})  # fmt: skip
MOVE = json.dumps({"type": "function", "function": {"name": "move", "parameters": {
    "type": "object", "properties": {"to": {"$ref": "#/$defs/Point"}}, "required": ["to"], "$defs": {
        "Point": {"enum": ["north", "south"]}}}}})  # fmt: skip
BARE = json.dumps({"type": "function", "function": {"name": "now"}})


def accepts_turn(form: Form, words: Tokenizer, text: str, is_strict: bool = True, since: str = "") -> bool:
    """Whether the constraint accepts this turn of a model."""
    vocabulary = Vocabulary(words.vocabulary(), len(words.spelling))
    spec = form.constraint((LOOKUP, MOVE, BARE), since, is_strict)
    assert spec is not None
    guide = build(canonical(spec), vocabulary).guide()
    ids = words.encode([TextSpan(text)])
    return guide.accept(ids) == len(ids) and guide.can_stop


TURNS = {
    "Let me see. <tool_call>\n{}\n</tool_call>": Form("<tool_call>", close="\n</tool_call>"),
    "[TOOL_CALLS] [{}]": Form("[TOOL_CALLS]", is_list=True),
}


@pytest.mark.parametrize("turn", TURNS)
def test_constraint_enforces_the_tools_schema(turn: str, words: Tokenizer) -> None:
    def accepts(call: str, is_strict: bool = True) -> bool:
        return accepts_turn(TURNS[turn], words, turn.replace("{}", call), is_strict)

    assert accepts('{"name": "lookup", "arguments": {"key": "a", "at": {"x": 3}}}')
    assert accepts('{"name": "move", "arguments": {"to": "north"}}')
    assert accepts('{"name": "now", "arguments": {}}')
    assert not accepts('{"name": "look", "arguments": {}}')
    for wrong in ('{"key": 1}', "{}", '{"key": "a", "more": 1}', '{"key": "a", "at": "north"}'):
        assert not accepts(f'{{"name": "lookup", "arguments": {wrong}}}')
        assert accepts(f'{{"name": "lookup", "arguments": {wrong}}}', is_strict=False)
    assert not accepts('{"name": "lookup", "arguments": "a"}', is_strict=False)


def strict_calls(words: Tokenizer, *parameters: dict[str, Any]) -> Callable[[int, str], bool]:
    """A function that tells whether a call may follow its mark. Its arguments: the number of the tool, and the JSON of
    the call's arguments. parameters: those of each tool."""
    tools = [{"name": f"f{k}", "parameters": one} for k, one in enumerate(parameters)]
    specs = tuple(json.dumps({"type": "function", "function": one}) for one in tools)
    spec = Form("<tool_call>").constraint(specs, "", True)
    assert spec is not None
    constraint = build(canonical(spec), Vocabulary(words.vocabulary(), len(words.spelling)))

    def accepts(k: int, arguments: str) -> bool:
        guide = constraint.guide()
        ids = words.encode([TextSpan(f'<tool_call>{{"name": "f{k}", "arguments": {arguments}}}')])
        return guide.accept(ids) == len(ids) and guide.can_stop

    return accepts


def test_references_and_drafts_of_parameters_are_those_of_their_tool(words: Tokenizer) -> None:
    trees = {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#"}}}}
    older = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "at": {"type": "array", "items": [{"$ref": "#/definitions/X"}]},
            "to": {"$ref": "#/properties/at"},
        },
        "definitions": {"X": {"enum": [1]}},
    }
    either = {"type": "object", "anyOf": [{"properties": {"x": {"enum": [2]}}, "required": ["x"]}, {"required": ["y"]}]}
    accepts = strict_calls(words, trees, older, either)
    assert accepts(0, '{"below": [{"below": []}]}')
    assert not accepts(0, '{"below": [{"name": "f0"}]}')
    assert accepts(1, '{"at": [1], "to": [1]}')
    assert not accepts(1, '{"at": [2]}')
    assert accepts(2, '{"x": 2}')
    assert not accepts(2, '{"x": 1}')


@pytest.mark.parametrize(
    ("first", "second"),
    [({"$id": "https://a/b"}, {"$id": "https://a/b"}), ({"$id": "a"}, {"$id": "a#"}), ({"$id": "tool:1"}, {})],
)
def test_tools_with_the_same_id_keep_their_own_definitions(first: Any, second: Any, words: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"p": {"$ref": "#/$defs/P"}}}
    accepts = strict_calls(
        words, schema | first | {"$defs": {"P": {"enum": [1]}}}, schema | second | {"$defs": {"P": {"enum": [2]}}}
    )
    found = [(k, p) for k in range(2) for p in (1, 2) if accepts(k, f'{{"p": {p}}}')]
    assert found == [(0, 1), (1, 2)]


@pytest.mark.parametrize("ids", [{}, {"id": "https://a/b"}])
def test_references_of_draft_4_are_those_of_their_tool(ids: dict[str, str], words: Tokenizer) -> None:
    schema = {
        **ids,
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {"p": {"$ref": "#/definitions/P"}},
    }
    first, second = (schema | {"definitions": {"P": {"enum": [p]}}} for p in (1, 2))
    accepts = strict_calls(words, first, second, {"type": "object"})
    found = [(k, p) for k in range(2) for p in (1, 2) if accepts(k, f'{{"p": {p}}}')]
    assert found == [(0, 1), (1, 2)]


def test_constraint_of_a_form_with_a_separate_name(words: Tokenizer) -> None:
    form = Form("[TOOL_CALLS]", None, "", split="[ARGS]")
    assert accepts_turn(form, words, 'so: [TOOL_CALLS]move[ARGS]{"to": "south"} [TOOL_CALLS]now[ARGS]{}')
    assert not accepts_turn(form, words, '[TOOL_CALLS]move[ARGS]{"to": "up"}')
    assert not accepts_turn(form, words, "[TOOL_CALLS]fly[ARGS]{}")


def test_constraint_ignores_the_thought(words: Tokenizer) -> None:
    form = Form("<tool_call>", close="</tool_call>")
    call = '<tool_call>{"name": "move", "arguments": {"to": "%s"}}</tool_call>'
    assert accepts_turn(form, words, f"I may <tool_call>, or not</think> {call % 'north'} and", since="</think>")
    assert not accepts_turn(form, words, f"I may <tool_call>, or not</think> {call % 'up'}", since="</think>")


def test_form_without_a_visible_marker_has_no_constraint(words: Tokenizer) -> None:
    assert Form("", "name", "parameters").constraint((BARE,), "", True) is None
    assert Form("[TOOL_CALLS]", None, "", split="[ARGS]", is_hidden=True).constraint((BARE,), "", True) is None


def test_lone_surrogate_in_a_call_stays_an_escape() -> None:
    form = Form("<tool_call>")
    (call,) = form.read(text := '<tool_call>{"name": "f", "arguments": {"x": "\\ud800é"}}', text)
    assert call.arguments == '{"x": "\\ud800é"}'
    (call,) = form.read(text := '<tool_call>{"name": "\\ud800", "arguments": {}}', text)
    assert (call.name, call.error) == ("", "the name of the tool has a lone surrogate")
