from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banyan.runtime.errors import BadProgram
from banyan.runtime.server.text.detokenizer import Detokenizer
from banyan.runtime.server.text.stop_strings import MAX_CHARS, MAX_STOPS, check_stops
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer
from forms import examples

ALPHABET = "ab é€🙂"


def first_stop(text: str, stops: list[str]) -> int:
    """The start of the stop that is complete first, or the end of the text. If several are complete at the same
    character, it is the start of the longest."""
    matches = [(at + len(s), at) for s in stops if (at := text.find(s)) >= 0]
    return min(matches)[1] if matches else len(text)


def split(data: bytes, lengths: list[int]) -> list[bytes]:
    """`data` as tokens of these lengths in turn."""
    tokens, k = [], 0
    while data:
        n = lengths[k % len(lengths)]
        tokens.append(data[:n])
        data, k = data[n:], k + 1
    return tokens


@examples(
    60,
    400,
    given(
        text=st.text(ALPHABET, max_size=24),
        junk=st.binary(max_size=2),
        stops=st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3),
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
        chunk=st.integers(1, 4),
    ),
)
def test_text_is_the_decoded_text_up_to_the_first_stop(
    text: str, junk: bytes, stops: list[str], lengths: list[int], chunk: int
) -> None:
    data = text.encode() + junk
    spelling = split(data, lengths)
    d = Detokenizer(spelling, (), stops)
    ids = list(range(len(spelling)))
    shown = ""
    plain = data.decode(errors="replace")
    expected = plain[: first_stop(plain, stops)]
    for at in range(0, len(ids), chunk):
        shown += d.feed(ids[at : at + chunk])
        assert expected.startswith(shown), "emitted text is never retracted"
    shown += d.finish()
    assert shown == d.text == expected
    assert (d.matched is not None) == (len(expected) < len(plain) or first_stop(plain, stops) < len(plain))


@examples(
    40,
    200,
    given(
        text=st.text(ALPHABET, max_size=24),
        stop=st.text(ALPHABET, min_size=1, max_size=3),
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    ),
)
def test_kept_tokens_are_the_longest_prefix_of_the_text(text: str, stop: str, lengths: list[int]) -> None:
    spelling = split(text.encode(), lengths)
    d = Detokenizer(spelling, (), [stop])
    d.feed(range(len(spelling)))
    d.finish()
    n_tokens, n_chars = d.kept()
    assert b"".join(spelling[:n_tokens]).decode() == d.text[:n_chars]
    boundaries = {0: 0} | {k + 1: len(b"".join(spelling[: k + 1])) for k in range(len(spelling))}
    fits = [k for k, n in boundaries.items() if text.encode()[:n].decode(errors="ignore").encode() == text.encode()[:n]]
    assert n_tokens == max(k for k in fits if boundaries[k] <= len(d.text.encode()))


def test_possible_start_of_a_stop_is_held_back() -> None:
    d = Detokenizer([b"on", b"e\n", b"\n", b"x"], (), ["\n\nx"])
    assert d.feed([0]) == "on"
    assert d.feed([1]) == "e"
    assert d.feed([2]) == ""
    assert d.feed([0]) == "\n\non"


def test_stop_inside_a_token_keeps_the_text_and_tokens_before_it() -> None:
    d = Detokenizer([b"one", b" two. three"], (), [". "])
    assert d.feed([0, 1]) == "one two"
    assert d.matched == ". "
    assert d.kept() == (1, 3)
    assert d.n_tokens == 2
    assert d.feed([0]) == ""


def test_token_that_ends_with_a_match_is_kept() -> None:
    spelling = [b"ab", b"cd", b"ef"]
    for pattern, text, kept in (("cd", "abcd", (2, 4)), ("bc", "abc", (1, 2))):
        d = Detokenizer(spelling, (), patterns=(pattern,))
        d.feed([0, 1, 2])
        assert (d.text, d.kept(), d.n_tokens) == (text, kept, 2)


def test_stop_token_adds_its_text_before_the_stop() -> None:
    d = Detokenizer([b"one", b" two. three"], (), [". "])
    d.feed([0])
    assert d.finish(stop_id=1) == " two"
    assert (d.text, d.matched, d.kept(), d.n_tokens) == ("one two", ". ", (1, 3), 1)


def test_characters_are_emitted_whole() -> None:
    smile = "🙂".encode()
    d = Detokenizer([smile[:1], smile[1:3], smile[3:]], ())
    assert [d.feed([0]), d.feed([1]), d.feed([2])] == ["", "", "🙂"]


def test_incomplete_character_at_the_end_is_replaced_and_its_tokens_kept() -> None:
    d = Detokenizer([b"a", "é".encode()[:1]], ())
    assert d.feed([0, 1]) == "a"
    assert d.finish() == "\ufffd"
    assert d.kept() == (2, 2)


def test_hidden_ids_have_no_text_and_are_kept() -> None:
    d = Detokenizer([b"<eos>", b"a"], {0})
    assert d.feed([1, 0, 1, 0]) == "aa"
    assert d.kept() == (4, 2)


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    assert Detokenizer([b"a"], ()).feed([0, 7, 0]) == "aa"


def test_stop_is_ignored_before_min_tokens() -> None:
    spelling = [b"a", b"."]
    d = Detokenizer(spelling, (), ["."], min_tokens=3)
    assert d.feed([0, 1, 0]) == "a.a"
    assert d.feed([1]) == ""
    assert d.matched == "."
    assert d.text == "a.a"


def test_detokenizer_with_a_real_vocabulary(words: Tokenizer) -> None:
    text = "the quick brown fox: é€🙂 jumps over"
    ids = words.encode([TextSpan(text)])
    d = Detokenizer(words.spelling, words.special, ["€"])
    assert d.feed(ids) + d.finish() == "the quick brown fox: é"


def test_cost_of_a_token_does_not_depend_on_the_stops() -> None:
    """The beginnings of these stops are all in the text, and overlap with themselves."""
    spelling = [b"a" * 8]

    def seconds(stops: list[str]) -> float:
        d = Detokenizer(spelling, (), stops)
        started = time.thread_time()
        for _ in range(2000):
            d.feed([0])
        return time.thread_time() - started

    many = [f"{'a' * 60}{chr(0x100 + k)}" for k in range(MAX_STOPS)]
    assert min(seconds(many) for _ in range(3)) < 3 * min(seconds(["ab"]) for _ in range(3))


def test_stops_are_limited() -> None:
    check_stops(tuple("x" * (MAX_CHARS // MAX_STOPS) for _ in range(MAX_STOPS)))
    with pytest.raises(BadProgram, match=r"200000 stop strings of 200000 characters; the limits are 64 and 4096"):
        check_stops(("x",) * 200_000)
    with pytest.raises(BadProgram, match="the limits are 64 and 4096"):
        check_stops(("x" * 4097,))
    with pytest.raises(BadProgram, match="empty"):
        check_stops(("x", ""))
