from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from banyan.runtime.errors import BadModel, BadProgram
from banyan.runtime.server.text.chat_template import ChatMessage, ChatTemplate

# The same shapes that well-known models have, written anew.
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
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


def test_it_renders_as_hugging_face_does() -> None:
    source = "{% for m in messages %}\n  {% if true %}\n{{ m | tojson }} {{ bos_token }}\n  {% endif %}\n{% endfor %}"
    text = ChatTemplate(source, NAMES).render([ChatMessage("user", "<é> & 'x'")])
    assert text == '{"role": "user", "content": "<é> & \'x\'"} <s>\n'


TOOLS = (
    "{%- for m in messages %}\n{%- if m['role'] == 'tool' and loop.previtem and loop.previtem.role == 'tool' %}\n"
    "{%- continue %}\n{%- endif %}\n  {{- '<' ~ m.role ~ '>' }}{{ m | tojson(indent=1) }}"
    "{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}\n{{ bos_token if not messages else eos_token }}"
    "{{ strftime_now('%Y') | length }}{% if add_generation_prompt %}>{% endif %}"
)
TALKS = [
    [("user", "hi")],
    [("system", "<S>"), ("user", " spaced \n")],
    [("user", 'a"b'), ("assistant", "hm</think>yes"), ("user", "é🙂"), ("assistant", "  ok")],
    [("system", "S"), ("user", "1"), ("assistant", "2"), ("user", "3")],
]


@pytest.mark.parametrize("source", [LLAMA3, QWEN, MISTRAL, TOOLS])
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("prompt", [False, True])
def test_it_is_the_text_that_transformers_gives(
    words_dir: Path, source: str, talk: list[tuple[str, str]], prompt: bool
) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(words_dir / "tokenizer.json"), **NAMES)
    messages = [ChatMessage(*turn) for turn in talk]
    expected = theirs.apply_chat_template(
        [m.as_dict() for m in messages], chat_template=source, tokenize=False, add_generation_prompt=prompt
    )
    assert ChatTemplate(source, NAMES).render(messages, prompt) == expected


def test_generation_tags_are_their_text() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}.{% endfor %}"
    assert ChatTemplate(source, {}).render([ChatMessage("user", "a"), ChatMessage("user", "b")]) == "a.b."


def test_loop_controls_and_namespaces_work() -> None:
    source = "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.content == 'stop' %}{% break %}{% endif %}" \
        "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"  # fmt: skip
    assert ChatTemplate(source, {}).render([ChatMessage("user", "a"), ChatMessage("user", "stop")]) == "1"


def test_a_template_cannot_reach_python() -> None:
    evil = ChatTemplate("{{ messages.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(BadProgram):
        evil.render([ChatMessage("user", "a")])


def test_time_is_an_argument() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }} {% for m in messages %}{{ m.content }}{% endfor %}", {})
    now = datetime(2024, 2, 29)
    assert template.render([ChatMessage("user", "x")], now=now) == "2024-02-29 x"
    assert template.markers(("user",), None, now) == ("2024-02-29 ", "")


def test_a_broken_template_is_the_models_fault() -> None:
    with pytest.raises(BadModel, match="compiled"):
        ChatTemplate("{% if %}", {})


def test_a_refusal_keeps_the_templates_words() -> None:
    with pytest.raises(BadProgram, match="roles must alternate"):
        ChatTemplate(MISTRAL, NAMES).render([ChatMessage("user", "a"), ChatMessage("user", "b")])
    with pytest.raises(BadProgram, match="TypeError"):
        ChatTemplate("{{ messages[0].content + 1 }}", {}).render([ChatMessage("user", "b")])


def test_markers_stand_around_contents() -> None:
    t = ChatTemplate(LLAMA3, NAMES)
    assert t.markers(("system", "user")) == (
        "<s><|start|>system<|end|>\n\n", "<|eot|><|start|>user<|end|>\n\n", "<|eot|>",
    )  # fmt: skip
    assert t.markers(("user",), "assistant") == (
        "<s><|start|>user<|end|>\n\n",
        "<|eot|><|start|>assistant<|end|>\n\n",
    )
    assert t.markers((), "user") == ("<s><|start|>user<|end|>\n\n",)


def test_a_template_that_moves_turns_has_no_markers() -> None:
    doubled = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"
    assert ChatTemplate(doubled, {}).markers(("user",)) is None
    assert ChatTemplate("{{ messages[-1].content }}", {}).markers(("user", "user")) is None


def test_an_assistants_turn_opens_with_the_generation_prompt() -> None:
    thinking = ChatTemplate(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
        "{% if add_generation_prompt %}<assistant><think>{% endif %}",
        {},
    )
    assert thinking.prefix([ChatMessage("user", "a")], "assistant") == "<user>a</><assistant><think>"
    assert thinking.prefix([ChatMessage("user", "a")], "user") == "<user>a</><user>"
    assert ChatTemplate(MISTRAL, NAMES).prefix([ChatMessage("user", "a")], "assistant") == "<s>[I] a [/I]"


def test_a_role_that_is_not_written_cannot_open() -> None:
    users = ChatTemplate("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", {})
    with pytest.raises(BadProgram, match="'tool'"):
        users.prefix([], "tool")


def test_chat_markers_of_llama3() -> None:
    m = ChatTemplate(LLAMA3, NAMES).chat_markers()
    assert m.roles["user"] == ("<s><|start|>user<|end|>\n\n".removeprefix("<s>"), "<|eot|>")
    assert m.roles["assistant"] == ("<|start|>assistant<|end|>\n\n", "<|eot|>")
    assert m.roles["system"] == ("<s><|start|>system<|end|>\n\n", "<|eot|>")
    assert (m.default_system, m.stop) == ("", ("<|eot|>",))


def test_chat_markers_with_a_default_system_prompt() -> None:
    m = ChatTemplate(QWEN, NAMES).chat_markers()
    assert m.default_system == "You are helpful."
    assert m.roles["system"] == ("<|s|>system\n", "<|e|>\n")
    assert m.roles["user"] == ("<|s|>user\n", "<|e|>\n")
    assert m.roles["assistant"] == ("<|s|>assistant\n", "<|e|>\n")
    assert m.stop == ("<|e|>",)


def test_chat_markers_of_a_template_without_system_markers() -> None:
    m = ChatTemplate(MISTRAL, NAMES).chat_markers()
    assert m.roles["user"] == ("[I] ", " [/I]")
    assert m.roles["assistant"] == ("", "</s>")
    assert "tool" not in m.roles
    assert m.stop == ("</s>",)


def test_an_end_of_text_that_stands_only_at_the_very_end_ends_no_turn() -> None:
    phi = ChatTemplate(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}",
        NAMES,
    )
    assert phi.markers(("user",)) == ("<|user|>", "<|end|></s>")
    assert phi.ending(("user",)) == "<|end|>"
    m = phi.chat_markers()
    assert m.roles["user"] == ("<|user|>", "<|end|>")
    assert m.roles["assistant"] == ("<|assistant|>", "<|end|>")
    assert m.stop == ("<|end|>",)


def test_a_template_that_opens_a_thought_says_so_in_its_markers() -> None:
    r1 = ChatTemplate(
        "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}"
        "{% if m.role == 'assistant' %}</s>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant><think>\n{% endif %}",
        NAMES,
    )
    assert r1.chat_markers().roles == {
        "user": ("<user>", ""),
        "assistant": ("<assistant><think>\n", "</s>"),
        "system": ("<system>", ""),
        "tool": ("<tool>", ""),
    }
