from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from banyan.runtime.errors import BadProgram
from banyan.runtime.executor.piece_list import PieceList
from banyan.runtime.protocol import wire
from banyan.runtime.server.text.chat_template import ChatTemplate
from banyan.runtime.server.text.prompt import (
    GAP,
    NEW_ROLE,
    PIECE,
    TURN,
    GeneratedText,
    Piece,
    PromptText,
    TurnEnd,
    TurnStart,
    pack,
    unpack,
)
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer
from forms import examples, short_form

NOW = datetime(2024, 1, 1)


def growth(work: Callable[[int], object], n: int) -> float:
    """CPU time of `work(4 * n)` divided by that of `work(n)`: near 4 if it is linear, near 16 if it is quadratic. Both
    are measured at least twice, and up to five times until they look linear, because other load can raise them."""

    def cost(n: int) -> float:
        started = time.thread_time()
        work(n)
        return time.thread_time() - started

    small, large = cost(n), cost(4 * n)
    for _ in range(4):
        small, large = min(small, cost(n)), min(large, cost(4 * n))
        if large < 6 * small:
            break
    return large / small


TRIM = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEFAULT_SYSTEM = "{% if messages[0].role != 'system' %}<|im_start|>system\nBe good.<|im_end|>\n{% endif %}" + TRIM
DROP_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM_IN_USER = (
    "{% set sys = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}"
    "{% if loop.last %} ({{ sys }}){% endif %}<|im_end|>{% elif m.role == 'assistant' %}{{ m.content }}<|endoftext|>"
    "{% endif %}{% endfor %}"
)


class Writer:
    """Builds the prompt text of a state; `generate` appends a model's output."""

    def __init__(self, words: Tokenizer, source: str) -> None:
        self.words, self.template, self.text = words, ChatTemplate(source, {}), PromptText()

    def put(self, *pieces: Piece | str) -> Writer:
        for piece in pieces:
            self.text.append(TextSpan(piece) if isinstance(piece, str) else piece)
        return self

    def generate(self, text: str) -> Writer:
        """Seals the prompt, then appends one token per character."""
        self.seal()
        ids = [self.words.encode([TextSpan(c)]) for c in text]
        return self.put(GeneratedText(text, pack(i for char_ids in ids for i in char_ids)))

    def turn(self, role: str, text: str) -> Writer:
        return self.put(TurnStart(role), text, TurnEnd())

    def seal(self) -> list[int]:
        self.text.runs = self.text.prompt(self.words, self.template, NOW).encode(self.words)
        return self.ids

    @property
    def ids(self) -> list[int]:
        return unpack(b"".join(run.ids for run in self.text.runs))

    @property
    def spelled(self) -> str:
        return self.words.text_of(self.seal())

    def read(self, mark: int = 0) -> str:
        return self.text.read(self.words, self.template, NOW, mark)


@pytest.fixture
def write(words: Tokenizer) -> Any:
    return lambda source=TRIM: Writer(words, source)


def test_adjacent_texts_are_encoded_as_one_string(write: Any, words: Tokenizer) -> None:
    w = write().put("th", "e qu", "ick")
    assert w.seal() == words.encode([TextSpan("the quick")])


def test_sealing_twice_changes_nothing(write: Any) -> None:
    w = write().turn("user", "hi").put(TurnStart("assistant"))
    assert w.seal() == w.seal()
    w.generate("ok").put(TurnEnd())
    once = w.seal()
    assert w.seal() == once


def test_encoded_runs_are_reused(write: Any, words: Tokenizer) -> None:
    w = write().turn("user", "hi").put(TurnStart("assistant")).generate("ok")
    prompt = w.text.prompt(words, w.template, NOW)
    assert [run.text for run in prompt.runs] == ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"]
    assert not any(isinstance(atom, TextSpan) for atom in prompt.rest)
    w.put(TurnEnd())
    w.seal()
    assert w.text.prompt(words, w.template, NOW).rest == ()


def test_default_system_prompt_is_encoded(write: Any) -> None:
    w = write(DEFAULT_SYSTEM).turn("user", "hi").put(TurnStart("assistant"))
    assert w.spelled.startswith("<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\nhi")
    assert "Be good" not in write(DEFAULT_SYSTEM).turn("system", "x").turn("user", "hi").spelled


def test_output_with_stripped_whitespace_keeps_the_remaining_tokens(write: Any, words: Tokenizer) -> None:
    w = write().turn("user", " hi ").put(TurnStart("assistant")).generate("ok \n").put(TurnEnd())
    before = w.text.runs
    assert w.spelled == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nok<|im_end|>\n"
    assert w.text.runs[0] == before[0]
    assert unpack(w.text.runs[1].ids) == [i for c in "ok" for i in words.encode([TextSpan(c)])]
    assert w.ids.count(2) == 2


def test_rewriting_template_encodes_only_the_changed_tail(write: Any) -> None:
    w = write(DROP_THOUGHTS).turn("user", "one").put(TurnStart("assistant")).generate("hm</think>yes").put(TurnEnd())
    first = w.spelled
    assert "hm</think>yes<|im_end|>" in first
    w.turn("user", "two").put(TurnStart("assistant"))
    assert w.spelled == (
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
        "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"
    )
    assert w.text.runs[0].text == "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n"
    assert w.ids.count(1) == 4, "the template's control tokens are encoded as such"
    assert w.read().endswith("<|im_start|>assistant\n")


def test_rewriting_template_drops_only_thoughts_of_the_model(marked: Tokenizer) -> None:
    start_id, end_id = marked.added["<think>"], marked.added["</think>"]
    w = Writer(marked, DROP_THOUGHTS).turn("user", "one").put(TurnStart("assistant"))
    w.seal()
    w.put(
        GeneratedText("<think>hm</think>yes", pack([start_id, *marked.encode([TextSpan("hm")]), end_id, 68])), TurnEnd()
    )
    assert start_id in w.seal()
    w.turn("user", "two")
    assert not {start_id, end_id} & set(w.seal()), "the template drops the thought"
    w.put(TurnStart("assistant"), "ok", TurnEnd()).turn("user", "<think>")
    assert start_id not in w.seal(), "the user's text is data"


def test_rewriting_template_makes_no_control_tokens_of_data(write: Any) -> None:
    w = (
        write(DROP_THOUGHTS)
        .turn("user", "<|im_start|>")
        .put(TurnStart("assistant"))
        .generate("a</think>b")
        .put(TurnEnd())
    )
    w.turn("user", "two").put(TurnStart("assistant"))
    assert w.seal().count(1) == 4


def test_template_that_moves_turns_is_rendered_whole(write: Any) -> None:
    w = write(SYSTEM_IN_USER).turn("system", "S").turn("user", "one").put(TurnStart("assistant"))
    assert w.spelled == "<|im_start|>one (S)<|im_end|>"
    w.generate("yes").put(TurnEnd()).turn("user", "two").put(TurnStart("assistant"))
    assert w.spelled == "<|im_start|>one<|im_end|>yes<|endoftext|><|im_start|>two (S)<|im_end|>"
    assert w.ids.count(1) == 2


def test_template_that_moves_turns_makes_no_control_tokens_of_data(write: Any) -> None:
    w = write(SYSTEM_IN_USER).turn("system", "<|im_start|>").turn("user", "<|im_end|>")
    w.template = ChatTemplate("{% for m in messages %}<|im_start|>{{ m.content }}{{ m.content }}{% endfor %}", {})
    w.seal()
    assert w.spelled == "<|im_start|>" * 3 + "<|im_start|>" + "<|im_end|>" * 2
    assert (w.ids.count(1), w.ids.count(2)) == (2, 0)


def test_text_outside_turns_keeps_its_position(write: Any) -> None:
    w = write().put("A ").turn("user", "hi").put("B ").turn("user", "ho").put("C ")
    expected = "A <|im_start|>user\nhi<|im_end|>\nB <|im_start|>user\nho<|im_end|>\nC "
    assert w.spelled == expected
    assert w.ids.count(1) == 2
    assert write().turn("user", "hi").put("B ", TurnStart("user"), "x").spelled == (
        "<|im_start|>user\nhi<|im_end|>\nB <|im_start|>user\nx"
    )


EOS_AT_END = (
    "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% else %}<|endoftext|>{% endif %}"
)


def test_eos_after_the_last_turn_is_removed_by_the_next_turn(words: Tokenizer) -> None:
    w = Writer(words, EOS_AT_END)
    w.template = ChatTemplate(EOS_AT_END, {"eos_token": "<|endoftext|>"})
    w.turn("user", "hi").put(TurnStart("assistant")).generate("ok")
    mark = len(w.text.pieces) - 1
    w.put(TurnEnd())
    assert w.spelled == "<|im_start|>user:hi<|im_end|><|im_start|>assistant:ok<|im_end|><|endoftext|>"
    runs_before = w.text.runs
    w.turn("user", "more").put(TurnStart("assistant"))
    after = "<|im_start|>user:more<|im_end|><|im_start|>assistant:"
    assert w.spelled == "<|im_start|>user:hi<|im_end|><|im_start|>assistant:ok<|im_end|>" + after
    assert w.text.runs[:2] == runs_before[:2]
    assert w.read(mark) == "ok<|im_end|>" + after


def test_empty_text_is_not_text_outside_turns(write: Any) -> None:
    w = (
        write(DROP_THOUGHTS)
        .put("")
        .turn("user", "one")
        .put(TurnStart("assistant"))
        .generate("hm</think>yes")
        .put(TurnEnd(), "")
    )
    assert "hm" not in w.turn("user", "two").spelled, "the template still rewrites the conversation"


def test_text_outside_turns_needs_turns_in_order(write: Any) -> None:
    w = write().turn("user", "hi").put("between")
    w.template = ChatTemplate("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", {})
    with pytest.raises(BadProgram, match="do not put text between the turns"):
        w.seal()


def test_role_refused_by_the_template_raises_its_message(write: Any) -> None:
    w = write().turn("judge", "hi")
    w.template = ChatTemplate("{{ raise_exception('no judges here') }}", {})
    with pytest.raises(BadProgram, match="no judges here"):
        w.seal()


def test_output_without_text_is_encoded_once(write: Any) -> None:
    w = write().put("a")
    w.seal()
    w.put(GeneratedText("", pack([2, 2])), "b")
    w.seal()
    assert w.seal().count(2) == 2
    w.put(GeneratedText("", pack([0])), GeneratedText("", b""), "c")
    assert w.seal().count(0) == 1
    assert w.seal().count(2) == 2
    assert w.spelled == "a<|im_end|><|im_end|>b<|endoftext|>c"


def test_prompt_of_an_empty_state(write: Any, words: Tokenizer) -> None:
    assert write().seal() == words.blank
    w = write().generate("x")
    assert w.seal() == [*words.blank, *words.encode([TextSpan("x")])]


def test_copies_are_independent(write: Any) -> None:
    w = write().put("a")
    w.seal()
    copy = w.text.copy()
    w.put("b")
    copy.append(TextSpan("c"))
    assert w.spelled == "ab"
    w.text = copy
    assert w.spelled == "ac"
    assert copy.n_inherited == 1


def test_read_inside_a_turn_returns_the_appended_text(write: Any) -> None:
    w = write().put(TurnStart("user"), " padded ")
    mark = len(w.text.pieces)
    w.put("x ")
    assert w.read(mark) == "x "
    w.put(TurnEnd())
    assert w.read(mark) == "x <|im_end|>\n"
    assert w.read() == "<|im_start|>user\npadded x<|im_end|>\n"


def test_gens_of_one_turn_render_the_conversation_once(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    w = write().turn("user", "hi").turn("assistant", "yes").turn("user", "more").put(TurnStart("assistant"))
    rendered: list[int] = []
    render = ChatTemplate.render

    def counting(self: ChatTemplate, messages: Any, *args: Any, **options: Any) -> str:
        rendered.append(len(messages))
        return render(self, messages, *args, **options)

    monkeypatch.setattr(ChatTemplate, "render", counting)
    w.seal()
    n = len(rendered)
    for k in range(10):
        w.generate(f"word {k}").put(" and ")
    fork = w.text.copy()
    fork.append(TextSpan("else"))
    fork.prompt(w.words, w.template, NOW)
    assert len(rendered) == n
    assert w.spelled.endswith("word 9 and ")
    w.put(TurnEnd()).turn("user", "last").put(TurnStart("assistant")).seal()
    assert len(rendered) > n, "a new turn may change what the template writes before it"


ROLES = ("user", "assistant", "system")
TEMPLATES = (TRIM, DEFAULT_SYSTEM, DROP_THOUGHTS, SYSTEM_IN_USER, EOS_AT_END)


@examples(
    20,
    150,
    given(
        source=st.sampled_from(TEMPLATES),
        steps=st.lists(
            st.tuples(
                st.sampled_from(["turn", "open", "close", "gap", "text", "gen", "gen", "fork"]),
                st.sampled_from(ROLES),
                st.sampled_from(["a", " b ", "", "hm</think>yes", "<|im_end|>"]),
            ),
            max_size=20,
        ),
    ),
)
def test_tokens_do_not_depend_on_what_is_remembered(
    words: Tokenizer, source: str, steps: list[tuple[str, str, str]]
) -> None:
    """Runs that are remembered as valid are the same as those that are compared with the text."""
    remembering, comparing = Writer(words, source), Writer(words, source)
    for kind, role, text in steps:
        for w in (remembering, comparing):
            is_open = w.text.role is not None
            if kind == "turn" and not is_open:
                w.turn(role, text)
            elif kind == "open" and not is_open:
                w.put(TurnStart(role))
            elif kind == "close" and is_open:
                w.put(TurnEnd())
            elif kind in ("text", "gap") and is_open == (kind == "text"):
                w.put(text)
            elif kind == "fork":
                w.text = w.text.copy()
            elif kind == "gen":
                if w is comparing:
                    w.text._head = None
                try:
                    copy = w.text.copy()
                    runs = copy.prompt(w.words, w.template, NOW).encode(w.words)
                    w.text.learn(copy, runs)
                except BadProgram:
                    continue
                w.put(GeneratedText(text, pack(i for c in text for i in words.encode([TextSpan(c)]))))
        assert remembering.text.runs == comparing.text.runs
    assert list(remembering.text.pieces) == list(comparing.text.pieces)


ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' %}<|endoftext|>{% endif %}{% endfor %}"
)
NEIGHBOURS = (
    "{% for m in messages %}{% if not loop.first and loop.previtem.role == m.role %}+"
    "{% else %}<{{ m.role }}>{% endif %}"
    "{{ m.content }}{% if loop.last or loop.nextitem.role != m.role %}</{{ m.role }}>{% endif %}{% endfor %}"
)


@examples(
    12,
    60,
    given(
        source=st.sampled_from([*TEMPLATES, ALTERNATING, NEIGHBOURS]),
        roles=st.lists(st.sampled_from([*ROLES, "tool"]), min_size=17, max_size=32)
        | st.just(["user", "assistant"] * 14),
    ),
)
def test_ends_of_turns_are_found_without_rendering_all_turns(source: str, roles: list[str]) -> None:
    template = ChatTemplate(source, {"eos_token": "<|endoftext|>"})
    assume(template._try(tuple(roles), None, NOW) is not None)  # else text between turns is refused
    ends = [*range(17, len(roles)), len(roles)]
    assert template.endings(tuple(roles), ends, NOW) == [template.ending(tuple(roles[:k]), NOW) for k in ends]


def conversation(n: int, gap: str = "", roles: Callable[[int], str] = lambda k: ROLES[k % 2]) -> PromptText:
    prompt = PromptText()
    for k in range(n):
        for piece in (TurnStart(roles(k)), TextSpan(f"text {k}"), TurnEnd(), TextSpan(gap)):
            prompt.append(piece)
    prompt.append(TurnStart("assistant"))
    return prompt


@pytest.mark.parametrize(
    ("gap", "roles"),
    short_form(
        [("", lambda k: ROLES[k % 2]), ("gap", lambda k: ROLES[k % 2]), ("gap", lambda k: f"role{k}")],
        lambda gap, roles: roles(0) == ROLES[0],
    ),
    ids=["turns", "text between turns", "a role for each turn"],
)
def test_work_is_linear_in_the_turns(words: Tokenizer, gap: str, roles: Callable[[int], str]) -> None:
    def work(n: int) -> None:
        prompt = conversation(n, gap, roles)
        prompt.prompt(words, ChatTemplate(TRIM, {}), NOW).encode(words)
        prompt.read(words, ChatTemplate(TRIM, {}), NOW, 3)

    work(10)
    assert growth(work, 100) < 8


def test_work_is_linear_in_the_calls_of_tools(words: Tokenizer) -> None:
    template = ChatTemplate(
        "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}[{{ c.id }}:{{ c.function.name }}]{% endfor %}<|im_end|>{% endfor %}",
        {},
    )

    def work(n: int) -> None:
        prompt = PromptText(pieces=[TurnStart("user"), TextSpan("x"), TurnEnd()])
        for k in range(n):
            call = wire.WireToolCall(f"{k}", "f")
            for piece in (TurnStart("assistant"), TurnEnd((call,)), TurnStart("tool", call), TextSpan("1"), TurnEnd()):
                prompt.append(piece)
        prompt.prompt(words, template, NOW).encode(words)

    work(10)
    assert growth(work, 50) < 8


def test_work_is_linear_in_the_pieces_of_a_turn(words: Tokenizer) -> None:
    def work(n: int) -> None:
        prompt = PromptText()
        for _ in range(n):
            prompt.append(TextSpan("<|im_start|> the quick brown fox ", meant=True))
            prompt.append(TextSpan("jumps <|im_end|> over"))
        prompt.prompt(words, None, NOW).encode(words)

    assert growth(work, 250) < 8


@pytest.mark.parametrize("before", [[], [TurnStart("user"), TextSpan("hi"), TurnEnd(), TurnStart("assistant")]])
def test_read_from_a_mark_in_the_last_turn_looks_at_the_pieces_after_it_only(write: Any, before: list[Piece]) -> None:
    class Counting(PieceList[Piece]):
        n_read = 0

        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            self.n_read += len(found) if isinstance(found, list) else 1
            return found

        def __iter__(self) -> Iterator[Piece]:
            self.n_read += len(self)
            return super().__iter__()

    w = write().put(*before)
    w.text.pieces = counting = Counting(w.text.pieces)
    for k in range(20):
        w.put("some ", "more ")
        assert w.read(len(before) + 2 * k) == "some more "
    assert counting.n_read == 20 * 2


def test_gens_of_one_turn_look_at_new_text_only(words: Tokenizer) -> None:
    prompt = conversation(300)
    template = ChatTemplate(TRIM, {})
    prompt.learn(prompt, prompt.prompt(words, template, NOW).encode(words))
    assert prompt.work == 0
    prompt.append(TextSpan("more"))
    assert prompt.work == 4 + PIECE
    assert prompt.prompt(words, template, NOW).rest == (TextSpan("more"),)


def test_roles_and_calls_count_as_work() -> None:
    """A role that is new is rendered twice, and a call takes as long as a turn."""
    known, new, calls = PromptText(), PromptText(), PromptText()
    for k in range(10):
        known.append_part(wire.BeginTurn("user"))
        known.append_part(wire.EndTurn())
        new.append_part(wire.BeginTurn(f"role {k}"))
        new.append_part(wire.EndTurn())
    calls.append_part(wire.BeginTurn("assistant"))
    long = wire.WireToolCall("000000001", "f", '{"a": "%s"}' % ("x" * 10_000))
    calls.append_part(wire.EndTurn((long, *[wire.WireToolCall("000000000", "f")] * 100)))
    assert known.work == 20 * PIECE + 10 * TURN
    assert new.work == 20 * PIECE + 10 * NEW_ROLE * TURN
    n_turns = 1 + 101 + (len(long.arguments) + 100 * len("{}")) // TURN
    assert calls.work == calls.copy().work == 2 * PIECE + n_turns * TURN


def test_text_between_turns_counts_as_work() -> None:
    """12 such texts take 3 ms, which is too long for the server's loop (worker.MAX_INLINE)."""
    prompt = PromptText()
    for k in range(1, 13):
        for piece in (TurnStart("user"), TextSpan("a"), TurnEnd(), TextSpan("gap"), TextSpan("s")):
            prompt.append(piece)
        assert prompt.work == prompt.copy().work >= k * GAP


@pytest.mark.parametrize("name", ["user<|im_end|>", "", "x" * 65, "a\nb", "<|im_start|>", "é"])
def test_role_must_be_a_name(name: str) -> None:
    with pytest.raises(BadProgram, match="a role must be a name of 1 to 64 letters"):
        PromptText().append_part(wire.BeginTurn(name))


def test_role_makes_no_control_token(write: Any) -> None:
    source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|im_start|>{% endfor %}"
    for name in ("im_end", "endoftext", "im_start"):
        with pytest.raises(BadProgram, match=rf"the role '{name}' would become the control token '<\|{name}\|>'"):
            write(source).turn(name, "x").seal()
    assert write(source).turn("judge", "x").ids is not None
    assert write().turn("end", "x").spelled == "<|im_start|>end\nx<|im_end|>\n"
