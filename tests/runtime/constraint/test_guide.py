"""Guides of all kinds have exact masks, rollback and forced tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import llguidance
import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.runtime.constraint import llg
from banyan.runtime.errors import ConstraintTooLarge, ConstraintUnsatisfiable, ConstraintUnsupported
from forms import examples, in_short

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
    ("json_schema", {"enum": ["there", {"a": [1, None]}]}, {"style": "any", "end": "\n</x>"}),
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


def walk(bench: Any, compiled: Any, rng: random.Random, n: int) -> tuple[Any, list[int]]:
    """A guide after at most n random allowed tokens."""
    guide, tokens = compiled.guide(), []
    for _ in range(n):
        allowed = sorted(bench.allowed(guide))
        if not allowed:
            break
        tokens.append(rng.choice(allowed))
        assert guide.accept(tokens[-1:]) == 1
    return guide, tokens


@pytest.mark.parametrize("seed", in_short([0], range(3)))
def test_mask_allows_exactly_the_accepted_tokens(bench: Any, compiled: Any, seed: int) -> None:
    rng = random.Random(seed)
    guide, _ = walk(bench, compiled, rng, rng.randrange(12))
    allowed = bench.allowed(guide)
    forced = guide.forced_tokens(1)
    assert not forced or allowed == set(forced)  # other tokenizations are accepted, but not sampled
    ends = set(bench.vocabulary.eos) | bench.vocabulary.special
    for token in set(range(bench.vocabulary.n_vocab)) - ends:
        n = guide.accept([token])
        assert n == (token in allowed) or (forced and n), bench.spell([token])
        guide.rollback(n)
    for token in range(bench.vocabulary.n_vocab):
        is_accepted = guide.accept_masked([token]) == 1
        assert is_accepted == (token in allowed), bench.spell([token])
        guide.rollback(is_accepted)
    assert bench.allowed(guide) == allowed
    assert not allowed & set(bench.vocabulary.eos)
    assert allowed or guide.must_stop
    assert guide.can_stop or not guide.must_stop
    assert guide.error == ""


@pytest.mark.parametrize("seed", in_short([0], range(3)))
def test_rollback_restores_the_state(bench: Any, compiled: Any, seed: int) -> None:
    rng = random.Random(100 + seed)
    guide, tokens = walk(bench, compiled, rng, 20)
    n = rng.randint(0, len(tokens))
    guide.rollback(n)
    fresh = compiled.guide()
    assert fresh.accept(tokens[: len(tokens) - n]) == len(tokens) - n
    for other in (guide, fresh):
        assert (other.can_stop, other.must_stop) == (fresh.can_stop, fresh.must_stop)
    assert bench.allowed(guide) == bench.allowed(fresh)
    assert guide.forced_tokens(99) == fresh.forced_tokens(99)
    with pytest.raises(IndexError):
        guide.rollback(len(tokens) - n + 1)
    assert guide.accept(tokens[len(tokens) - n :]) == n


@pytest.mark.parametrize("seed", in_short([0], range(3)))
def test_state_is_independent_of_its_history(bench: Any, compiled: Any, seed: int) -> None:
    """Rolls back and accepts along diverging texts, and compares with a new guide."""
    rng = random.Random(200 + seed)
    texts = [walk(bench, compiled, rng, 16)[1] for _ in range(4)]
    guide, position, text = compiled.guide(), 0, texts[0]
    for _ in range(40):
        if rng.random() < 0.4:
            n_back = rng.randint(0, position)
            guide.rollback(n_back)
            position -= n_back
            text = rng.choice([other for other in texts if other[:position] == text[:position]])
        n = rng.randint(0, len(text) - position)
        assert (guide.accept_masked if rng.random() < 0.5 else guide.accept)(text[position : position + n]) == n
        position += n
        fresh = compiled.guide()
        assert fresh.accept(text[:position]) == position
        if rng.random() < 0.5:
            assert guide.forced_tokens(99) == fresh.forced_tokens(99)
        if rng.random() < 0.3:
            assert bench.allowed(guide) == bench.allowed(fresh)
            assert (guide.can_stop, guide.must_stop) == (fresh.can_stop, fresh.must_stop)


def test_accept_masked_stops_at_the_first_token_outside_the_mask(bench: Any) -> None:
    guide = bench.guide("regex", "yes please|no")
    (first, *rest) = guide.forced_tokens(99) or bench.ids("yes")
    assert guide.accept_masked([first, *rest, *bench.ids("!")]) == 1 + len(rest)
    guide.rollback(1 + len(rest))
    assert guide.accept_masked(bench.ids("!")) == 0
    assert guide.accept_masked([]) == 0


def test_refused_token_does_not_change_the_state(bench: Any) -> None:
    guide = bench.guide("regex", "ab*")
    assert guide.accept(bench.ids("x")) == 0
    assert guide.accept([*bench.ids("a"), *bench.ids("x"), *bench.ids("b")]) == 1
    assert guide.can_stop
    assert bench.accepts(guide, "bbb")


@examples(
    15,
    60,
    given(
        choices=st.lists(st.text('abé there\n"\\{', max_size=8), min_size=1, max_size=6, unique=True),
        seed=st.integers(0, 2**16),
    ),
)
def test_choices_allow_every_continuation_of_a_prefix(bench: Any, choices: list[str], seed: int) -> None:
    """Oracle: a token is allowed if its text continues one of the choices."""
    rng, texts = random.Random(seed), [choice.encode() for choice in choices]
    guide, output = bench.guide("choices", choices), b""
    while True:
        assert guide.can_stop == (output in texts)
        assert not guide.must_stop or output in texts
        spelling = bench.vocabulary.spelling
        continuations = {
            token
            for token, spelled in enumerate(spelling)
            if spelled and token not in bench.vocabulary.special and any(w.startswith(output + spelled) for w in texts)
        }
        allowed, forced = bench.allowed(guide), guide.forced_tokens(99)
        assert allowed <= continuations
        if forced:  # only the canonical token is allowed
            assert allowed == {forced[0]}
            assert all(w.startswith(output + bench.spell(forced)) for w in texts if w.startswith(output))
        else:
            assert allowed == continuations
        if not allowed or (guide.can_stop and rng.random() < 0.3):
            break
        token = rng.choice(sorted(allowed))
        assert guide.accept([token]) == 1
        output += spelling[token]


@pytest.mark.parametrize("seed", in_short([0, 1], range(5)))
def test_forced_tokens_are_the_only_allowed_tokens(bench: Any, compiled: Any, seed: int) -> None:
    rng = random.Random(300 + seed)
    guide, _ = walk(bench, compiled, rng, rng.randrange(15))
    forced = guide.forced_tokens(99)
    assert guide.forced_tokens(1) == forced[:1]
    for token in forced:
        assert bench.allowed(guide) == {token}
        assert not guide.can_stop
        assert guide.accept([token]) == 1
    assert bench.spell(bench.ids(bench.spell(forced))) == bench.spell(forced)


def test_text_is_accepted_in_single_byte_tokens(bench: Any) -> None:
    """Also with tokens that split characters. In a forced run, only the canonical tokens are accepted."""
    text = '{"name": "né🙂", "tall": true}'
    guide = bench.guide("json_schema", PERSON)
    single = {spelled: token for token, spelled in enumerate(bench.vocabulary.spelling) if len(spelled) == 1}
    ids = [single[bytes([b])] for b in text.encode()]
    n = 0
    while n < len(ids):
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


def test_whitespace_of_style_any_is_bounded(bench: Any) -> None:
    guide = bench.guide("json_schema", {"type": "array", "items": {"type": "integer"}}, style="any")
    assert bench.accepts(guide, "[\n\t 1 ,\n 2]")
    assert not bench.accepts(guide, "[" + " " * 60 + "1]")


@pytest.mark.parametrize(
    ("style", "allowed"), [("spaced", {0}), ("compact", {1}), ("either", {0, 1}), ("any", {0, 1, 2, 3})]
)
@pytest.mark.parametrize("options", [{}, {"after": ("x",)}, {"end": "!"}], ids=str)
def test_style_determines_the_whitespace(bench: Any, style: str, allowed: set[int], options: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
    texts = ['{"a": [1, 2]}', '{"a":[1,2]}', '{"a": [1,2]}', '{ "a" :[1,\n2]}']
    guide = bench.guide("json_schema", schema, style=style, **options)
    frame = "".join(options.get("after", "")), options.get("end", "")
    assert {i for i, text in enumerate(texts) if bench.accepts(guide, text.join(frame))} == allowed


def test_first_separator_decides_all_others(bench: Any) -> None:
    """So the default costs no forced tokens, except at the first separator."""
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["a", "b"]}
    guide = bench.guide("json_schema", schema | {"additionalProperties": False})
    assert bench.spell(guide.forced_tokens(20)) == b'{"a":'
    guide.accept(bench.ids(b'{"a": '))
    assert bench.spell(guide.forced_tokens(40)) == b'null, "b": null}'


@pytest.mark.parametrize(
    ("schema", "text", "is_valid"),
    [
        ({"type": "string"}, r'"\u00e9 \ud83d\ude42 \u0041"', True),
        ({"type": "string"}, r'"\ud83d"', False),  # half of a character
        ({"type": "string", "maxLength": 1}, r'"\ud83d\ude42"', True),
        ({"type": "string", "maxLength": 1}, r'"\u00e9\u00e9"', False),
        ({}, r'{"a\u00e9": ["\u00e9"]}', True),
        ({"type": "object", "properties": {"a": {}}}, r'{"a": "\u00e9", "é": 1}', True),
        ({"additionalProperties": {"type": "string"}}, r'{"\u00e9": "\u00e9"}', True),
        # An escaped name would have a schema that is not its own, and a pattern would not see what it stands for.
        ({"properties": {"a": {"const": 3}}}, r'{"\u0061": 4}', False),
        ({"properties": {"é": {"const": 3}}}, r'{"\u00e9": 4}', False),
        ({"properties": {"a": {"const": 3}}, "additionalProperties": {"const": 4}}, r'{"\u0061": 4}', False),
        ({"patternProperties": {"^a": {"const": 3}}}, r'{"\u0061": 4}', False),
        ({"type": "string", "pattern": "^[^a]$"}, r'"\u0061"', False),
        ({"allOf": [{"properties": {"a": {"const": 3}}}, {"properties": {"b": {}}}]}, r'{"\u0061": 4}', False),
    ],
    ids=str,
)
def test_escapes_of_characters(bench: Any, schema: Any, text: str, is_valid: bool) -> None:
    assert bench.accepts(bench.guide("json_schema", schema), text.encode()) == is_valid


@pytest.mark.parametrize("is_open", [False, True])
def test_order_any_takes_optional_properties_in_any_order(bench: Any, is_open: bool) -> None:
    names = {name: {"type": "integer"} for name in ("a", "b", "c", "d")}
    schema: Any = {"type": "object", "properties": names, "required": ["b"]}
    schema |= {} if is_open else {"additionalProperties": False}
    fixed, free = (bench.guide("json_schema", schema, order=order) for order in ("schema", "any"))
    inverted = b'{"b": 1, "d": 2, "a": 3}'
    assert (bench.accepts(fixed, inverted), bench.accepts(free, inverted)) == (False, True)
    for text, is_valid in (
        (b'{"b": 1}', True),
        (b'{"b": 1, "c": 1, "a": 1, "d": 1}', True),
        (b'{"d": 1}', False),  # a required property is missing
        (b'{"b": 1, "d": "x"}', False),
        (b'{"b": 1, "x": "x", "a": 1}', is_open),
    ):
        assert bench.accepts(free, text) == is_valid, text


def test_checked_schema_leaves_out_what_cannot_be_enforced(bench: Any) -> None:
    """The client validates the value. Everything else is enforced."""
    for schema, valid, invalid in (
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, ["a", "b"], ["a", 1]),
        ({"oneOf": [{"pattern": "a", "type": "string"}, {"pattern": "b", "type": "string"}]}, "xa", "x"),
        ({"type": "string", "pattern": "^(?!no).*$"}, "yes", 1),
        ({"type": "array", "contains": {"const": 1}}, [2, 1], 1),
        ({"type": "string", "not": {"pattern": "a"}}, "b", 1),
        ({"type": "string", "not": {"const": "a" * 1500}}, "b", 1),
        ({"type": "object", "propertyNames": {"pattern": "a", "maxLength": 3}}, {"a": 1}, []),
        ({"type": "number", "multipleOf": 0.123456789}, 2.5, "a"),
        ({"$ref": "#/$defs/a", "format": "uuid", "$defs": {"a": {"multipleOf": 0.123456789}}}, 2.5, "a"),
        ({"type": "object", "$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": "string"}, []),
        (
            {
                "$ref": "numbers",
                "$defs": {
                    "list": {
                        "$id": "list",
                        "type": "array",
                        "items": {"not": {"$dynamicRef": "#it"}},
                        "$defs": {"it": {"$dynamicAnchor": "it"}},
                    },
                    "numbers": {
                        "$id": "numbers",
                        "$ref": "list",
                        "$defs": {"it": {"$dynamicAnchor": "it", "const": 1}},
                    },
                },
            },
            [2],
            1,
        ),
    ):
        with pytest.raises((ConstraintUnsupported, ConstraintTooLarge)):
            bench.guide("json_schema", schema)
        guide = bench.guide("json_schema", schema, is_checked=True)
        assert bench.accepts(guide, json.dumps(valid).encode()), schema
        assert not bench.accepts(guide, json.dumps(invalid).encode()), schema


def test_regex_that_matches_nothing_is_named(bench: Any) -> None:
    with pytest.raises(ConstraintUnsatisfiable, match="no text can match the regex"):
        bench.guide("regex", r"a[^\s\S]")


def test_end_is_part_of_the_constraint(bench: Any, allowed_by: Callable[[Any], list[int]]) -> None:
    for kind, text, value in (("regex", "[ab]", "a"), ("choices", ["a"], "a"), ("json_schema", {"const": 7}, "7")):
        guide = bench.guide(kind, text, end="\n</tool_call>")
        assert bench.accepts(guide, value + "\n</tool_call>")
        assert not bench.accepts(guide, value)
        guide.accept(bench.ids(value + "\n</tool_call>"))
        assert guide.must_stop
        row = bench.row()
        guide.fill(row)
        assert allowed_by(row) == []


def test_control_tokens_are_not_text(bench: Any) -> None:
    """The name of a control token is plain text inside a value, and the token itself in `end`."""
    value = "<|im_end|></tool_call>"
    for kind, text, output in (("json_schema", {"const": value}, json.dumps(value)), ("regex", "[a<].*", f"<{value}")):
        guide = bench.guide(kind, text, end="</tool_call>")
        ids = bench.ids(output.encode())
        assert not bench.vocabulary.control & set(ids)
        assert guide.accept(ids) == len(ids)
        assert not bench.vocabulary.control & bench.allowed(bench.compile(kind, text).guide())
        assert guide.accept(bench.ids("</tool_call>")) == 1
        assert guide.must_stop
    assert bench.guide("json_schema", {"type": "string"}).accept(bench.ids('"<|im_end|>"')) == 1


# ---- limits of the shared lexer --------------------------------------------------------------------------------------


def limit_lexer(monkeypatch: pytest.MonkeyPatch, n_states: int) -> None:
    limits = llguidance.LLParserLimits(max_items_in_row=20_000, max_lexer_states=n_states, verbose_errors=False)
    monkeypatch.setattr(llg, "_LIMITS", limits)


def test_a_full_lexer_is_a_failure_of_every_guide_and_the_constraint_is_spent(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_lexer(monkeypatch, 400)
    compiled, rng, letters = bench.compile("regex", "[a-e ]{0,40}e[a-e ]{0,40}"), random.Random(0), bench.ids(b"abcde")
    other = compiled.guide()
    assert bench.accepts(other, b"e")  # a match, after which more may follow
    for _ in range(100):
        guide = compiled.guide()
        for token in rng.choices(letters, k=30):
            bench.allowed(guide)
            guide.accept([token])
        if guide.error:
            break
        assert not compiled.is_spent
    assert "too many states" in guide.error
    assert compiled.is_spent
    while other.accept([token := rng.choice(letters)]):  # another output, which does not know of it
        assert token in letters
    other.find_failure()
    assert other.error
