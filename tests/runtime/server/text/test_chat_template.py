from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from banyan.runtime.errors import BadModel, BadProgram
from banyan.runtime.server.text import chat_template
from banyan.runtime.server.text.chat_template import ChatMessage, ChatTemplate

# Templates with the structure of well-known models' templates.
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
QWEN = (
    "{% if messages[0].role != 'system' %}<|s|>system\nYou are helpful.<|e|>\n{% endif %}"
    "{% for m in messages %}<|s|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}"
    "{% endif %}<|e|>\n{% endfor %}{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set sys = messages[0].content %}"
    "{% set loop_messages = messages[1:] %}{% else %}{% set sys = '' %}{% set loop_messages = messages %}{% endif %}"
    "{% for m in loop_messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[I] {% if loop.first and sys %}{{ sys + '\n\n' }}{% endif %}{{ m.content }} [/I]"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def test_template_is_rendered_with_hugging_face_options() -> None:
    source = "{% for m in messages %}\n  {% if true %}\n{{ m | tojson }} {{ bos_token }}\n  {% endif %}\n{% endfor %}"
    text = ChatTemplate(source, SPECIAL_TOKENS).render([ChatMessage("user", "<é> & 'x'")])
    assert text == '{"role": "user", "content": "<é> & \'x\'"} <s>\n'


TOOLS = (
    "{%- for m in messages %}\n{%- if m['role'] == 'tool' and loop.previtem and loop.previtem.role == 'tool' %}\n"
    "{%- continue %}\n{%- endif %}\n  {{- '<' ~ m.role ~ '>' }}{{ m | tojson(indent=1) }}"
    "{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}\n{{ bos_token if not messages else eos_token }}"
    "{{ strftime_now('%Y') | length }}{% if add_generation_prompt %}>{% endif %}"
)
CONVERSATIONS = [
    [("user", "hi")],
    [("system", "<S>"), ("user", " spaced \n")],
    [("user", 'a"b'), ("assistant", "hm</think>yes"), ("user", "é🙂"), ("assistant", "  ok")],
    [("system", "S"), ("user", "1"), ("assistant", "2"), ("user", "3")],
]


@pytest.mark.parametrize("source", [LLAMA3, QWEN, MISTRAL, TOOLS])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("add_prompt", [False, True])
def test_rendering_matches_transformers(
    words_dir: Path, source: str, conversation: list[tuple[str, str]], add_prompt: bool
) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(words_dir / "tokenizer.json"), **SPECIAL_TOKENS)
    messages = [ChatMessage(*turn) for turn in conversation]
    expected = tokenizer.apply_chat_template(
        [m.as_dict() for m in messages], chat_template=source, tokenize=False, add_generation_prompt=add_prompt
    )
    assert ChatTemplate(source, SPECIAL_TOKENS).render(messages, add_prompt) == expected


def test_generation_tags_render_their_content() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}.{% endfor %}"
    assert ChatTemplate(source, {}).render([ChatMessage("user", "a"), ChatMessage("user", "b")]) == "a.b."


def test_loop_controls_and_namespaces_work() -> None:
    source = "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.content == 'stop' %}{% break %}{% endif %}" \
        "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"  # fmt: skip
    assert ChatTemplate(source, {}).render([ChatMessage("user", "a"), ChatMessage("user", "stop")]) == "1"


def test_comparisons_that_are_paid_for_mean_the_same() -> None:
    source = (
        "{% set n = messages | length %}{{ [0 < n < 3, n < 3 < 1, n in [2], n not in [2], messages == messages,"
        " messages[:1] != messages, 'use' in messages[0].role, {n: 1}[2]] }}"
        "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{% endfor %}"
    )
    text = ChatTemplate(source, {}).render([ChatMessage("user", "a"), ChatMessage("assistant", "b")])
    assert text == "[True, False, True, False, True, True, True, 1]1/1"


def test_template_is_sandboxed() -> None:
    malicious = ChatTemplate("{{ messages.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(BadProgram):
        malicious.render([ChatMessage("user", "a")])


def test_attributes_of_a_turn_are_its_keys_and_the_safe_methods_of_a_dict() -> None:
    source = "{% set m = messages[0] %}{{ m.content }}.{{ m.tool_calls }}.{{ m.keys() | list | length }}.{{ m.clear }}"
    assert ChatTemplate(source, {}).render([ChatMessage("user", "a")]) == "a..2."


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""The switch is that of Qwen3's template."""
CHAT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}"


def test_kwargs_are_variables_of_the_template() -> None:
    template = ChatTemplate(THINKING, {})
    off = template.with_tools((), '{"enable_thinking": false, "unknown": [1]}')
    opened, closed = "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    for one, end in ((template, opened), (off, closed), (template.with_tools((), '{"enable_thinking": 1}'), opened)):
        assert one.render([ChatMessage("user", "a")], prompt=True).endswith(f"a<|im_end|>\n{end}")
        assert one.markers(("user",), "assistant") == ("<|im_start|>user\n", f"<|im_end|>\n{end}")
    assert template.with_tools(()) is template
    both = ChatTemplate("{{ tools | length }}{{ x }}", {}).with_tools(("{}",), '{"x": "y"}')
    assert both.render([]) == "1y"


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "documents", "strftime_now", "bos_token", "raise_exception"]
)
def test_kwargs_cannot_replace_what_the_template_gets(name: str) -> None:
    with pytest.raises(BadProgram, match=f"chat_template_kwargs cannot set '{name}', which the server gives"):
        ChatTemplate(THINKING, SPECIAL_TOKENS).with_tools((), json.dumps({"enable_thinking": False, name: 1}))


@pytest.mark.parametrize("text", ["[]", "1", "{", "[" * 9999, '{"a": ' * 9999])
def test_kwargs_must_be_an_object(text: str) -> None:
    with pytest.raises(BadProgram, match="chat_template_kwargs must be a JSON object"):
        ChatTemplate(THINKING, {}).with_tools((), text)


def test_kwargs_may_have_any_names() -> None:
    template = ChatTemplate("{{ x }}{{ self is defined }}", {})
    assert template.with_tools((), '{"x": 1, "self": 2, "a b": 3}').render([]).startswith("1")


def test_template_that_reads_the_effort_is_known() -> None:
    assert ChatTemplate(THINKING + "{{ reasoning_effort }}", {}).chat_markers().reads_effort
    assert not ChatTemplate(THINKING, {}).chat_markers().reads_effort


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (THINKING, "enable_thinking"),
        ("{% if thinking is not defined %}{% set thinking = false %}{% endif %}" + THINKING, "enable_thinking"),
        (THINKING.replace("enable_thinking", "thinking"), "thinking"),
        (CHAT + "{% if thinking is not defined %}{% set thinking = false %}{% endif %}{{ thinking }}", "thinking"),
        (CHAT + "<thinking>enable_thinking{{ messages[0].thinking }}{% set thinking = 1 %}{{ thinking }}", ""),
    ],
)
def test_switch_of_the_reasoning_is_known(source: str, name: str) -> None:
    assert ChatTemplate(source, {}).chat_markers().thinking_switch == name


def test_strftime_now_uses_the_given_time() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }} {% for m in messages %}{{ m.content }}{% endfor %}", {})
    now = datetime(2024, 2, 29)
    assert template.render([ChatMessage("user", "x")], now=now) == "2024-02-29 x"
    assert template.markers(("user",), None, now) == ("2024-02-29 ", "")
    zoned = ChatTemplate("{{ strftime_now('%H%z%Z') }}", {})
    assert zoned.render([], now=datetime(2024, 2, 29, 7, tzinfo=timezone(timedelta(hours=1)))) == "07"


def test_template_syntax_error_raises_bad_model() -> None:
    with pytest.raises(BadModel, match="compiled"):
        ChatTemplate("{% if %}", {})


def test_template_error_raises_bad_program_with_its_message() -> None:
    with pytest.raises(BadProgram, match="roles must alternate"):
        ChatTemplate(MISTRAL, SPECIAL_TOKENS).render([ChatMessage("user", "a"), ChatMessage("user", "b")])
    with pytest.raises(BadProgram, match="TypeError"):
        ChatTemplate("{{ messages[0].content + 1 }}", {}).render([ChatMessage("user", "b")])


def test_markers_surround_contents() -> None:
    template = ChatTemplate(LLAMA3, SPECIAL_TOKENS)
    assert template.markers(("system", "user")) == (
        "<s><|start|>system<|end|>\n\n", "<|eot|><|start|>user<|end|>\n\n", "<|eot|>",
    )  # fmt: skip
    assert template.markers(("user",), "assistant") == (
        "<s><|start|>user<|end|>\n\n",
        "<|eot|><|start|>assistant<|end|>\n\n",
    )
    assert template.markers((), "user") == ("<s><|start|>user<|end|>\n\n",)


def test_template_that_moves_turns_has_no_markers() -> None:
    doubled = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"
    assert ChatTemplate(doubled, {}).markers(("user",)) is None
    assert ChatTemplate("{{ messages[-1].content }}", {}).markers(("user", "user")) is None


def test_prefix_of_an_assistant_turn_is_the_generation_prompt() -> None:
    thinking = ChatTemplate(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
        "{% if add_generation_prompt %}<assistant><think>{% endif %}",
        {},
    )
    assert thinking.prefix([ChatMessage("user", "a")], "assistant") == "<user>a</><assistant><think>"
    assert thinking.prefix([ChatMessage("user", "a")], "user") == "<user>a</><user>"
    assert ChatTemplate(MISTRAL, SPECIAL_TOKENS).prefix([ChatMessage("user", "a")], "assistant") == "<s>[I] a [/I]"


def test_prefix_of_an_unsupported_role_is_refused() -> None:
    users = ChatTemplate("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", {})
    with pytest.raises(BadProgram, match="'tool'"):
        users.prefix([], "tool")


def test_chat_markers_of_llama3() -> None:
    m = ChatTemplate(LLAMA3, SPECIAL_TOKENS).chat_markers()
    assert m.roles["user"] == ("<s><|start|>user<|end|>\n\n".removeprefix("<s>"), "<|eot|>")
    assert m.roles["assistant"] == ("<|start|>assistant<|end|>\n\n", "<|eot|>")
    assert m.roles["system"] == ("<s><|start|>system<|end|>\n\n", "<|eot|>")
    assert (m.default_system, m.stop) == ("", ("<|eot|>",))


def test_chat_markers_with_a_default_system_prompt() -> None:
    m = ChatTemplate(QWEN, SPECIAL_TOKENS).chat_markers()
    assert m.default_system == "You are helpful."
    assert m.roles["system"] == ("<|s|>system\n", "<|e|>\n")
    assert m.roles["user"] == ("<|s|>user\n", "<|e|>\n")
    assert m.roles["assistant"] == ("<|s|>assistant\n", "<|e|>\n")
    assert m.stop == ("<|e|>",)


def test_chat_markers_of_a_template_without_system_markers() -> None:
    m = ChatTemplate(MISTRAL, SPECIAL_TOKENS).chat_markers()
    assert m.roles["user"] == ("[I] ", " [/I]")
    assert m.roles["assistant"] == ("", "</s>")
    assert "tool" not in m.roles
    assert m.stop == ("</s>",)


def test_eos_after_the_last_turn_is_not_an_end_of_turn() -> None:
    phi = ChatTemplate(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}",
        SPECIAL_TOKENS,
    )
    assert phi.markers(("user",)) == ("<|user|>", "<|end|></s>")
    assert phi.ending(("user",)) == "<|end|>"
    m = phi.chat_markers()
    assert m.roles["user"] == ("<|user|>", "<|end|>")
    assert m.roles["assistant"] == ("<|assistant|>", "<|end|>")
    assert m.stop == ("<|end|>",)


def test_chat_markers_include_an_opened_thought() -> None:
    r1 = ChatTemplate(
        "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}"
        "{% if m.role == 'assistant' %}</s>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant><think>\n{% endif %}",
        SPECIAL_TOKENS,
    )
    assert r1.chat_markers().roles == {
        "user": ("<user>", ""),
        "assistant": ("<assistant><think>\n", "</s>"),
        "system": ("<system>", ""),
        "tool": ("<tool>", ""),
    }


LAUGHS = "{% set ns = namespace(x=['x']) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x, ns.x] %}{% endfor %}"
TWINS = (
    "{%% set ns = namespace(x=1, y=1) %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% set ns.y = %s %%}"
    "{%% endfor %%}"
)
HOSTILE = {
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}"
    "{% endfor %}",
    "times": "{{ 'x' * 10**9 }}",
    "times twice": "{{ ('x' * 100000) * 100000 }}",
    "list times": "{{ ([1] * 100000) * 100000 }}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "product": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "plus": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "lists plus": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "tilde": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "set block": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}",
    "macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='xx') %}"
    "{% for i in range(60) %}{% set ns.x = m(ns.x) %}{% endfor %}",
    "constants": "{% for i in range(99999) %}" + "y" * 9999 + "{% endfor %}",
    "center": "{{ 'x' | center(1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "replace": "{{ ('a' * 9999).replace('a', 'b' * 99999) }}",
    "replace filter": "{{ ('a' * 9999) | replace('a', 'b' * 99999) }}",
    "join": "{{ ('a' * 9999).join(['b'] * 9999) }}",
    "join filter": "{{ (['b'] * 9999) | join('a' * 9999) }}",
    "join of parts": "{{ (['b' * 9999] * 9999) | map('upper') | join }}",
    "sum of lists": "{{ ([[1] * 9999] * 9999) | sum(start=[]) }}",
    "list in a list": LAUGHS + "{{ ns.x }}",
    "as JSON": LAUGHS + "{{ ns.x | tojson }}",
    "as text": LAUGHS + "{{ (ns.x | string) | length }}",
    "beside text": LAUGHS + "{{ (ns.x ~ 'x') | length }}",
    "in a format": LAUGHS + "{{ ('%s' % ns.x) | length }}",
    "JSON indent": "{{ [[1], 2] | tojson(indent=1000000000) }}",
    "JSON separators": "{{ [1, 2] | tojson(separators=['x' * 99999, 'y']) }}",
    "indent": "{{ ('\\n' * 9999) | indent(9999) }}",
    "tabs": "{{ ('\\t' * 9999).expandtabs(9999) }}",
    "round": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "translate": "{{ 'aaa'.translate({97: 'b' * 99999}) }}",
    "lipsum": "{{ lipsum(1000000000) }}",
    "sums of ranges": "{% for i in range(20000) %}{{ range(99999) | sum }}{% endfor %}",
    "tests of ranges": "{% for i in range(20000) %}{% set x = range(99999) | select('odd') | sum %}{% endfor %}",
    "loops that skip all": "{% for i in range(20000) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "loops over a generator": "{% set l = [1] * 9999 %}{% for i in range(20000) %}"
    "{% for j in l | map('abs') if false %}{% endfor %}{% endfor %}",
    "searches": "{% set s = 'x' * 400000 %}{% for i in range(60000) %}{% if 'xxxy' in s %}{% endif %}{% endfor %}",
    "finds": "{% set s = 'x' * 400000 %}{% for i in range(60000) %}{% set x = s.find('xxxy') %}{% endfor %}",
    "slices": "{% set s = 'x' * 400000 %}{% for i in range(60000) %}{% set x = s[::-1] %}{% endfor %}",
    "lists compared": "{% set a = [1] * 99999 %}{% set b = [1] * 99999 %}{% for i in range(60000) %}{% if a == b %}"
    "{% endif %}{% endfor %}",
    "lists tested": "{% set a = [1] * 99999 %}{% set b = [1] * 99999 %}{% for i in range(60000) %}{% if a is eq(b) %}"
    "{% endif %}{% endfor %}",
    "lists searched": "{% set a = [1] * 99999 %}{% for i in range(60000) %}{% if 2 in a %}{% endif %}{% endfor %}",
    "wrapped": "{{ ('x' * 400000) | wordwrap(1) | length }}",
    "nested lists compared": TWINS % ("[ns.x, ns.x]", "[ns.y, ns.y]") + "{{ ns.x == ns.y }}",
    "nested lists searched": TWINS % ("[ns.x, ns.x]", "[ns.y, ns.y]") + "{{ ns.x in [ns.y] }}",
    "nested lists tested": TWINS % ("[ns.x, ns.x]", "[ns.y, ns.y]") + "{{ [ns.x] | select('in', [ns.y]) | list }}",
    "nested lists found": TWINS % ("[ns.x, ns.x]", "[ns.y, ns.y]") + "{{ [ns.x].index(ns.y) }}",
    "nested keys": TWINS % ("(ns.x, ns.x)", "0") + "{{ {ns.x: 1} }}",
    "nested keys looked up": TWINS % ("(ns.x, ns.x)", "0") + "{{ {}[ns.x] }}{{ messages }}",
    "nested keys of dict": TWINS % ("(ns.x, ns.x)", "0") + "{{ dict([(ns.x, 1)]) }}",
    "recursion": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
}


SHORT = ("loops", "times", "plus", "macro", "percent", "join of parts", "lipsum")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, id=name, marks=[] if name in SHORT else [pytest.mark.long])
        for i, (name, source) in enumerate(HOSTILE.items())
    ],
)
def test_hostile_template_fails_fast(source: str) -> None:
    has_peak = reset_peak()
    before, started = resident("VmRSS"), time.thread_time()
    with pytest.raises((BadModel, BadProgram)):
        ChatTemplate(source, {}).render([ChatMessage("user", "a")])
    assert not has_peak or resident("VmHWM") - before < 64 << 20
    assert time.thread_time() - started < 5  # it takes less than 1 s, and minutes without limits


NESTED = "x[1:]"
for _ in range(12):
    NESTED = f"(a < {NESTED} < b)"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "expression",
    [NESTED, "x" + "[1:]" * 150, "x" + "|trim" * 150, " < ".join(map(str, range(200)))],
    ids=["nested chains", "slices", "filters", "a chain"],
)
def test_large_expression_is_compiled_once(expression: str) -> None:
    """Each of these took half a minute or more while operands of a filter or of a chain were visited again."""
    source = f"{{% set x = 'y' * 150 %}}{{% set _ = ({expression}) if messages | length > 99 else 1 %}}done"
    assert ChatTemplate(source, {}).render([ChatMessage("user", "a")]) == "done"


def reset_peak() -> bool:
    """Measure the peak of memory anew from here on; False if this kernel cannot. tracemalloc takes 10 times as long."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def resident(field: str) -> int:
    """Bytes of this process that are in memory now (VmRSS), or were at the peak (VmHWM)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10


def test_template_that_is_hostile_to_long_conversations_fails_on_those_alone() -> None:
    cubic = (
        "{% for m in messages %}{% for n in messages %}{% for o in messages %}{% endfor %}{% endfor %}"
        "{{ m.content }}{% endfor %}"
    )
    template = ChatTemplate(cubic, {})
    assert template.render([ChatMessage("user", "a")] * 8) == "a" * 8
    with pytest.raises(BadProgram, match=r"fails on these 1000 turns: the template takes too much time or memory"):
        template.render([ChatMessage("user", "a")] * 1000)


def test_hostile_template_stops_the_start_with_a_reason() -> None:
    with pytest.raises(BadModel, match="cannot be used: the template takes too much time or memory"):
        ChatTemplate(HOSTILE["loops"], {})
    with pytest.raises(BadModel, match="1048577 characters"):
        ChatTemplate("x" * (1 + (1 << 20)), {})
    with pytest.raises(BadModel, match="cannot be compiled"):
        ChatTemplate("{{ " + "(" * 10_000 + ")" * 10_000 + " }}", {})


@pytest.mark.parametrize("source", [LLAMA3, QWEN, TOOLS])
def test_usual_templates_stay_far_below_the_budget(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BASE", "PER_MESSAGE", "PER_CHARACTER"):
        monkeypatch.setattr(chat_template, name, getattr(chat_template, name) // 8)
    conversation = [ChatMessage(("user", "assistant")[k % 2], "a word " * (k % 50)) for k in range(200)]
    assert ChatTemplate(source, SPECIAL_TOKENS).render(conversation)


def test_cached_markers_stay_below_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "CACHE_BYTES", 100_000)
    template = ChatTemplate(LLAMA3, SPECIAL_TOKENS)
    for k in range(40):
        template.markers((f"role{k}",) * 500)
    assert 90_000 < template.cache.size <= 100_000
    for k in range(100):
        template.with_tools((f'{{"x": "{k}{"y" * 1000}"}}',))
    assert template.cache.size <= 100_000
