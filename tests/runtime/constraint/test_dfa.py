"""The automata of outlines_core agree with llguidance on the same patterns."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from banyan.runtime.constraint import automaton, dfa
from banyan.runtime.errors import BanyanError, ConstraintUnsupported

PATTERNS = (
    r"[0-9]{3}-[0-9]{4}", r"^(foo)(baz)?$", r"(yes|yes please|no)", r"[0-9]{1,3}?", r"a.{20}b", r'[^"]{0,40}', "a?",
    r"(the |[a-c]{2,4}-){3}[0-9]+", r"\d+(\.\d+)?", r".*x.{0,3}y", r"(ac|[^a])+", r"(?i)hello( there)?", r"\S+",
    r"\p{Lu}\p{Ll}*", r"[^\d\s]*", r"the answer is (42|43)", r"[\u00e0-\u00ff]{1,4}", r"é+\n", r"[[:alpha:]]+",
    r"[a-z&&[^aeiou]]+", r"\D\W[\D]?", r"(?:a|b)\.\\\$", r"(?P<n>[ -~]){2}", r"[\]\[]+", r"\x41\u0042\x{43}",
)  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_engines_have_the_same_masks_and_ends(bench: Any, pattern: str) -> None:
    """By itself, outlines_core 0.2.14 drops the longer of two alternatives."""
    compiled = bench.compile("regex", pattern, engine="outlines_core")
    assert isinstance(compiled, dfa.DfaConstraint)
    reference = bench.compile("regex", pattern)
    for seed in range(8):
        rng, a, b = Random(seed), compiled.guide(), reference.guide()
        for _ in range(25):
            allowed = bench.allowed(a)
            assert allowed == bench.allowed(b)
            assert (a.can_stop, a.must_stop) == (b.can_stop, b.must_stop)
            if not allowed:
                break
            token = rng.choice(sorted(allowed))
            assert a.accept([token]) == b.accept([token]) == 1


def test_choices_are_literal_text(bench: Any) -> None:
    guide = bench.guide("choices", ["a.b", "a", "(x)|[y]", "the other\n", "é-^$&~#"], engine="outlines_core")
    assert all(bench.accepts(guide, text) for text in ("a.b", "a", "(x)|[y]", "the other\n", "é-^$&~#"))
    assert not any(bench.accepts(guide, text) for text in ("axb", "a.", "(x)", ""))
    single = bench.guide("choices", ["the answer is 42"], engine="outlines_core")
    assert bench.spell(single.forced_tokens(99)) == b"the answer is 42"
    assert single.accept(single.forced_tokens(99)) > 0
    assert single.must_stop


UNSUPPORTED = (
    "(?=a)", r"\bword", "a^b", "a$b", "^a|b", "(?x) a",
    "[]a]", r"(a)\1", r"\x{10FFFF}", "[a", "\U0010ffff", "a(",
)  # fmt: skip


@pytest.mark.parametrize("pattern", UNSUPPORTED)
def test_ambiguous_pattern_is_refused(bench: Any, pattern: str) -> None:
    with pytest.raises(ConstraintUnsupported):
        bench.compile("regex", pattern, engine="outlines_core")


def test_too_large_or_empty_pattern_is_refused(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automaton, "STATES", 50)
    for pattern, code in ((r"[a-z]{60}", "constraint_too_large"), ("[a&&b]", "constraint_unsupported")):
        with pytest.raises(BanyanError) as caught:
            bench.compile("regex", pattern, engine="outlines_core")
        assert caught.value.code == code


def test_ids_without_text_are_refused_and_a_guide_can_give_up(bench: Any) -> None:
    guide = bench.guide("regex", "[a-z ]{3,9}", engine="outlines_core")
    assert guide.accept([0, *bench.ids("the fox")]) == 0, "a control token is not text"
    assert guide.accept([10**6]) == 0
    guide.give_up("slow")
    assert guide.error == "slow"


def test_number_of_cached_masks_is_bounded(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dfa, "ROWS", 200)
    compiled = bench.compile("regex", "[0-9]{3}[a-z]{3}[A-Z]{3}", engine="outlines_core")
    assert [compiled.mask(state).any() for state in range(9)] == [True] * 9
    assert len(compiled._unique) <= 6
