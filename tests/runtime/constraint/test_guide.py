"""Guides of all kinds: exact masks, rollback, and forced tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "tall": {"type": "boolean"}, "age": {"type": "integer"}},
    "required": ["name", "tall"],
    "additionalProperties": False,
}
SPECS: list[tuple[str, Any, dict[str, Any]]] = [
    ("regex", "[0-9]{3}-[0-9]{4}", {}),
    ("regex", "(foo)(baz)?|fo+d", {}),
    ("regex", "[^a]{0,4}é*", {}),
    ("choices", ["yes", "yes please", "no", "né"], {}),
    ("json_schema", PERSON, {}),
    ("json_schema", PERSON, {"style": "compact"}),
    ("json_schema", {"enum": ["there", {"a": [1, None]}]}, {"style": "flexible", "end": "\n</x>"}),
    ("grammar", 'start: "(" start ")" | "a"+', {}),
    ("json_schema", {"type": "integer"}, {"after": ("<tool_call>",), "end": ";", "scope": "repeat"}),
    ("regex", "e[ab]|r", {"after": ("th", "e t"), "scope": "may"}),
    ("regex", "(the |[a-c]{2,4}-){2}[0-9]+", {"engine": "outlines_core"}),
    ("choices", ["yes", "yes please", "no", "né"], {"engine": "outlines_core"}),
]


@pytest.fixture(params=range(len(SPECS)), ids=lambda i: f"{SPECS[i][0]}-{i}")
def compiled(request: pytest.FixtureRequest, bench: Any) -> Any:
    kind, text, options = SPECS[request.param]
    return bench.compile(kind, text, **options)


def walk(bench: Any, compiled: Any, chance: random.Random, n: int) -> tuple[Any, list[int]]:
    """A guide after at most n random allowed tokens."""
    guide, taken = compiled.guide(), []
    for _ in range(n):
        allowed = sorted(bench.allowed(guide))
        if not allowed:
            break
        taken.append(chance.choice(allowed))
        assert guide.accept(taken[-1:]) == 1
    return guide, taken


@pytest.mark.parametrize("seed", range(3))
def test_a_mask_says_what_is_accepted(bench: Any, compiled: Any, seed: int) -> None:
    chance = random.Random(seed)
    guide, _ = walk(bench, compiled, chance, chance.randrange(12))
    allowed = bench.allowed(guide)
    forced = guide.forced_tokens(1)
    assert not forced or allowed == set(forced)  # another cut of the same text would be accepted, but is not drawn
    ends = set(bench.vocabulary.eos) | bench.vocabulary.special
    for token in set(range(bench.vocabulary.n_vocab)) - ends:
        n = guide.accept([token])
        assert n == (token in allowed) or (forced and n), bench.spell([token])
        guide.rollback(n)
    for token in range(bench.vocabulary.n_vocab):
        is_taken = guide.accept_masked([token]) == 1
        assert is_taken == (token in allowed), bench.spell([token])
        guide.rollback(is_taken)
    assert bench.allowed(guide) == allowed
    assert not allowed & set(bench.vocabulary.eos)
    assert allowed or guide.must_stop
    assert guide.can_stop or not guide.must_stop
    assert guide.error == ""


@pytest.mark.parametrize("seed", range(3))
def test_what_was_taken_back_never_happened(bench: Any, compiled: Any, seed: int) -> None:
    chance = random.Random(100 + seed)
    guide, taken = walk(bench, compiled, chance, 20)
    n = chance.randint(0, len(taken))
    guide.rollback(n)
    fresh = compiled.guide()
    assert fresh.accept(taken[: len(taken) - n]) == len(taken) - n
    for one in (guide, fresh):
        assert (one.can_stop, one.must_stop) == (fresh.can_stop, fresh.must_stop)
    assert bench.allowed(guide) == bench.allowed(fresh)
    assert guide.forced_tokens(99) == fresh.forced_tokens(99)
    with pytest.raises(IndexError):
        guide.rollback(len(taken) - n + 1)
    assert guide.accept(taken[len(taken) - n :]) == n


@pytest.mark.parametrize("seed", range(3))
def test_a_state_does_not_depend_on_its_history(bench: Any, compiled: Any, seed: int) -> None:
    """Walks back and forth along diverging texts, and compares with a new guide that never rolled back."""
    chance = random.Random(200 + seed)
    texts = [walk(bench, compiled, chance, 16)[1] for _ in range(4)]
    guide, at, text = compiled.guide(), 0, texts[0]
    for _ in range(40):
        if chance.random() < 0.4:
            back = chance.randint(0, at)
            guide.rollback(back)
            at -= back
            text = chance.choice([other for other in texts if other[:at] == text[:at]])
        n = chance.randint(0, len(text) - at)
        assert (guide.accept_masked if chance.random() < 0.5 else guide.accept)(text[at : at + n]) == n
        at += n
        fresh = compiled.guide()
        assert fresh.accept(text[:at]) == at
        if chance.random() < 0.5:
            assert guide.forced_tokens(99) == fresh.forced_tokens(99)
        if chance.random() < 0.3:
            assert bench.allowed(guide) == bench.allowed(fresh)
            assert (guide.can_stop, guide.must_stop) == (fresh.can_stop, fresh.must_stop)


def test_tokens_are_taken_as_far_as_masks_have_them(bench: Any) -> None:
    guide = bench.guide("regex", "yes please|no")
    (first, *rest) = guide.forced_tokens(99) or bench.ids("yes")
    assert guide.accept_masked([first, *rest, *bench.ids("!")]) == 1 + len(rest)
    guide.rollback(1 + len(rest))
    assert guide.accept_masked(bench.ids("!")) == 0
    assert guide.accept_masked([]) == 0


def test_a_refused_token_leaves_the_state(bench: Any) -> None:
    guide = bench.guide("regex", "ab*")
    assert guide.accept(bench.ids("x")) == 0
    assert guide.accept([*bench.ids("a"), *bench.ids("x"), *bench.ids("b")]) == 1
    assert guide.can_stop
    assert bench.takes(guide, "bbb")


@settings(max_examples=60, deadline=None)
@given(
    choices=st.lists(st.text('abé there\n"\\{', max_size=8), min_size=1, max_size=6, unique=True),
    seed=st.integers(0, 2**16),
)
def test_choices_against_their_prefixes(bench: Any, choices: list[str], seed: int) -> None:
    """Oracle: a token is allowed if its text continues one of the choices."""
    chance, whole = random.Random(seed), [choice.encode() for choice in choices]
    guide, said = bench.guide("choices", choices), b""
    while True:
        assert guide.can_stop == (said in whole)
        assert not guide.must_stop or said in whole
        spelling = bench.vocabulary.spelling
        may = {
            token
            for token, spelled in enumerate(spelling)
            if spelled and token not in bench.vocabulary.special and any(w.startswith(said + spelled) for w in whole)
        }
        allowed, forced = bench.allowed(guide), guide.forced_tokens(99)
        assert allowed <= may
        if forced:  # then only the canonical token
            assert allowed == {forced[0]}
            assert all(w.startswith(said + bench.spell(forced)) for w in whole if w.startswith(said))
        else:
            assert allowed == may
        if not allowed or (guide.can_stop and chance.random() < 0.3):
            break
        token = chance.choice(sorted(allowed))
        assert guide.accept([token]) == 1
        said += spelling[token]


@pytest.mark.parametrize("seed", range(5))
def test_forced_tokens_are_what_drawing_gives(bench: Any, compiled: Any, seed: int) -> None:
    """Drawing from the masks gives the forced tokens: each mask allows only the next of them."""
    chance = random.Random(300 + seed)
    guide, _ = walk(bench, compiled, chance, chance.randrange(15))
    forced = guide.forced_tokens(99)
    assert guide.forced_tokens(1) == forced[:1]
    for token in forced:
        assert bench.allowed(guide) == {token}
        assert not guide.can_stop
        assert guide.accept([token]) == 1
    assert bench.spell(bench.ids(bench.spell(forced))) == bench.spell(forced)


def test_every_token_can_be_cut_anywhere(bench: Any) -> None:
    """A text is accepted with any tokenization, even with tokens that split characters."""
    text = '{"name": "né🙂", "tall": true}'
    guide = bench.guide("json_schema", PERSON)
    single = {spelled: token for token, spelled in enumerate(bench.vocabulary.spelling) if len(spelled) == 1}
    ids = [single[bytes([b])] for b in text.encode()]
    n = 0
    while n < len(ids):  # where a run is forced, only its canonical tokens are
        run = guide.forced_tokens(99)
        if run:
            assert text.encode()[n:].startswith(bench.spell(run))
            assert guide.accept(run) == len(run)
            n += len(bench.spell(run))
        else:
            assert guide.accept(ids[n : n + 1]) == 1
            n += 1
    assert guide.can_stop
    assert json.loads(text)


def test_a_guide_costs_nothing_to_make(bench: Any) -> None:
    compiled = bench.compile("json_schema", PERSON)
    first, second = compiled.guide(), compiled.guide()
    assert first.accept(bench.ids('{"name')) > 0
    assert bench.allowed(second) == bench.allowed(compiled.guide())
    assert compiled.n_bytes > 0


def test_flexible_space_ends(bench: Any) -> None:
    guide = bench.guide("json_schema", {"type": "array", "items": {"type": "integer"}}, style="flexible")
    assert bench.takes(guide, "[\n\t 1 ,\n 2]")
    assert not bench.takes(guide, "[" + " " * 60 + "1]")


@pytest.mark.parametrize(
    ("style", "text"), [("spaced", '{"a": [1, 2]}'), ("compact", '{"a":[1,2]}'), ("flexible", '{ "a" :[1,\n2]}')]
)
def test_styles(bench: Any, style: str, text: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
    texts = {'{"a": [1, 2]}', '{"a":[1,2]}', '{ "a" :[1,\n2]}'}
    guide = bench.guide("json_schema", schema, style=style)
    assert {one for one in texts if bench.takes(guide, one)} == (texts if style == "flexible" else {text})


def test_the_end_belongs_to_what_is_forced(bench: Any, allowed_by: Callable[[Any], list[int]]) -> None:
    for kind, text, value in (("regex", "[ab]", "a"), ("choices", ["a"], "a"), ("json_schema", {"const": 7}, "7")):
        guide = bench.guide(kind, text, end="\n</tool_call>")
        assert bench.takes(guide, value + "\n</tool_call>")
        assert not bench.takes(guide, value)
        guide.accept(bench.ids(value + "\n</tool_call>"))
        assert guide.must_stop
        row = bench.row()
        guide.fill(row)
        assert allowed_by(row) == []


def test_control_tokens_are_never_text(bench: Any) -> None:
    """The name of a control token is plain text inside a value, and the token itself in `end`."""
    value = "<|im_end|></tool_call>"
    for kind, text, said in (("json_schema", {"const": value}, json.dumps(value)), ("regex", "[a<].*", f"<{value}")):
        guide = bench.guide(kind, text, end="</tool_call>")
        ids = bench.ids(said.encode())
        assert not bench.vocabulary.control & set(ids)
        assert guide.accept(ids) == len(ids)
        assert not bench.vocabulary.control & bench.allowed(bench.compile(kind, text).guide())
        assert guide.accept(bench.ids("</tool_call>")) == 1
        assert guide.must_stop
    assert bench.guide("json_schema", {"type": "string"}).accept(bench.ids('"<|im_end|>"')) == 1
