"""The patterns of stop_regex: where they match, and that their time is bounded."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.runtime.errors import BadProgram
from banyan.runtime.server.text import stop_patterns
from banyan.runtime.server.text.detokenizer import Detokenizer
from banyan.runtime.server.text.stop_patterns import MAX_LENGTH, MAX_PATTERNS, REACH, Patterns, compiled
from forms import examples

REGEXES = [r"a+b", r"^b", r"b$", r"\bab", r"é.", r"(?i)AB", r"[^a ]{2}", r"a\b", r"(ab|b a)+", r"(?s)a.*b.*a"]


def first_match(text: str, regexes: list[str]) -> tuple[int, str] | None:
    """(end, regex) of the shortest prefix of the text in which a regex matches."""
    for end in range(1, len(text) + 1):
        for regex in dict.fromkeys(regexes):
            if re.search(regex, text[:end], re.ASCII):
                return end, regex
    return None


@examples(
    40,
    300,
    given(
        text=st.text("ab é", max_size=20),
        regexes=st.lists(st.sampled_from(REGEXES), min_size=1, max_size=3),
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
        min_tokens=st.sampled_from([0, 0, 2]),
    ),
)
def test_text_ends_after_the_first_match(text: str, regexes: list[str], lengths: list[int], min_tokens: int) -> None:
    data, spelling = text.encode(), []
    while data:
        n = lengths[len(spelling) % len(lengths)]
        spelling, data = [*spelling, data[:n]], data[n:]
    d = Detokenizer(spelling, (), min_tokens=min_tokens, patterns=regexes)
    shown = d.feed(range(len(spelling))) + d.finish()
    assert shown == d.text
    if min_tokens:
        assert text.startswith(d.text)
        assert d.matched is None or d.n_tokens >= min_tokens or d.n_tokens == len(spelling)
        return
    found = first_match(text, regexes)
    assert (len(d.text), d.matched) == (found or (len(text), None))


def test_first_complete_stop_or_pattern_wins() -> None:
    spelling = [b"one ", b"two", b" three"]
    for stop, pattern, text, matched in [
        ("two", r"t.r", "one ", "two"),
        ("two t", r"w.", "one two", "w."),
        ("wo", r"two", "one t", "wo"),
    ]:
        d = Detokenizer(spelling, (), [stop], patterns=[pattern])
        d.feed([0, 1, 2])
        assert (d.text, d.matched) == (text, matched)


def test_matches_may_span_up_to_the_reach() -> None:
    d = Detokenizer([b"a", b"x" * 1000, b"b"], (), patterns=[r"ax+b", r"^x"])
    d.feed([0, 1, 1, 1, 2])
    assert d.matched == r"ax+b"
    d = Detokenizer([b"a", b"x" * 1000, b"b"], (), patterns=[r"ax+b", r"^x"])
    d.feed([0, *[1] * 5, 2])
    assert d.matched is None, f"a match has at most {REACH} characters, and ^ does not match at the window's start"


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("(", "missing \\)"),
        (r"(?=a)", "RE2's syntax"),
        (r"(a)\1", "RE2's syntax"),
        ("a*", "empty"),
        ("$", "empty"),
        ("x" * (MAX_LENGTH + 1), "characters"),
        (r"\w{1,500}Z", "steps"),
        (r"((a{1,100}){1,100}){1,100}", "repetition"),
        (r"\p{L}{1,1000}", "large|steps"),
    ],
)
def test_unusable_pattern_is_refused_with_the_reason(pattern: str, error: str) -> None:
    with pytest.raises(BadProgram, match=error):
        compiled(pattern)


def test_number_of_patterns_is_limited() -> None:
    with pytest.raises(BadProgram, match=f"limit is {MAX_PATTERNS}"):
        Patterns(["a"] * (MAX_PATTERNS + 1))


@pytest.mark.parametrize(
    "pattern", [r"(x+x+)+y", r"(x|x)*y", r"(.*)(.*)(.*)(.*)y", r"([ax]*a[ax]{400})y", r"x*x*x*x*x*y"]
)
def test_hostile_patterns_run_in_bounded_time(pattern: str) -> None:
    spelling = [b"xxxx", b"axax"]
    started = time.thread_time()
    d = Detokenizer(spelling, (), patterns=[pattern])
    with contextlib.suppress(BadProgram):
        for k in range(1000):
            d.feed([k % 2])
    seconds = time.thread_time() - started
    assert seconds < stop_patterns.ALLOWANCE + 1000 * stop_patterns.PER_SEARCH + 1.0
    assert d.matched is None


def test_slow_patterns_fail_the_gen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_patterns, "ALLOWANCE", 0.0)
    monkeypatch.setattr(stop_patterns, "PER_SEARCH", 0.0)
    d = Detokenizer([b"x"], (), patterns=["y"])
    with pytest.raises(BadProgram, match="stop_regex take too long"):
        d.feed([0])
