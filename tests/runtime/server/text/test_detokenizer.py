from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from banyan.runtime.server.text.detokenizer import Detokenizer
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer

ALPHABET = "ab é€🙂"


def first_stop(text: str, stops: list[str]) -> int:
    """Where the plain text must be cut: at the stop that is complete first, and of those at the longest."""
    found = [(at + len(s), at) for s in stops if (at := text.find(s)) >= 0]
    return min(found)[1] if found else len(text)


def cut(data: bytes, lengths: list[int]) -> list[bytes]:
    """`data` as tokens of these lengths in turn."""
    pieces, k = [], 0
    while data:
        n = lengths[k % len(lengths)]
        pieces.append(data[:n])
        data, k = data[n:], k + 1
    return pieces


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(ALPHABET, max_size=24),
    junk=st.binary(max_size=2),
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    chunk=st.integers(1, 4),
)
def test_however_it_is_cut_the_text_is_the_plain_decode_up_to_the_first_stop(
    text: str, junk: bytes, stops: list[str], lengths: list[int], chunk: int
) -> None:
    data = text.encode() + junk
    spelling = cut(data, lengths)
    d = Detokenizer(spelling, (), stops)
    ids = list(range(len(spelling)))
    shown = ""
    plain = data.decode(errors="replace")
    expected = plain[: first_stop(plain, stops)]
    for at in range(0, len(ids), chunk):
        shown += d.feed(ids[at : at + chunk])
        assert expected.startswith(shown), "shown text is never taken back"
    shown += d.finish()
    assert shown == d.text == expected
    assert (d.matched is not None) == (len(expected) < len(plain) or first_stop(plain, stops) < len(plain))


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(ALPHABET, max_size=24),
    stop=st.text(ALPHABET, min_size=1, max_size=3),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
)
def test_kept_tokens_spell_a_prefix_of_the_text_and_one_more_would_not_fit(
    text: str, stop: str, lengths: list[int]
) -> None:
    spelling = cut(text.encode(), lengths)
    d = Detokenizer(spelling, (), [stop])
    d.feed(range(len(spelling)))
    d.finish()
    n_tokens, n_chars = d.kept()
    assert b"".join(spelling[:n_tokens]).decode() == d.text[:n_chars]
    borders = {0: 0} | {k + 1: len(b"".join(spelling[: k + 1])) for k in range(len(spelling))}
    fits = [k for k, n in borders.items() if text.encode()[:n].decode(errors="ignore").encode() == text.encode()[:n]]
    assert n_tokens == max(k for k in fits if borders[k] <= len(d.text.encode()))


def test_text_that_may_begin_a_stop_is_held_back() -> None:
    d = Detokenizer([b"on", b"e\n", b"\n", b"x"], (), ["\n\nx"])
    assert d.feed([0]) == "on"
    assert d.feed([1]) == "e"
    assert d.feed([2]) == ""
    assert d.feed([0]) == "\n\non"


def test_a_stop_inside_a_token_leaves_the_text_before_it_and_keeps_the_tokens_before_that() -> None:
    d = Detokenizer([b"one", b" two. three"], (), [". "])
    assert d.feed([0, 1]) == "one two"
    assert d.matched == ". "
    assert d.kept() == (1, 3)
    assert d.n_tokens == 2
    assert d.feed([0]) == ""


def test_a_stop_token_gives_the_text_before_its_stop() -> None:
    d = Detokenizer([b"one", b" two. three"], (), [". "])
    d.feed([0])
    assert d.finish(stop_id=1) == " two"
    assert (d.text, d.matched, d.kept(), d.n_tokens) == ("one two", ". ", (1, 3), 1)


def test_characters_come_whole() -> None:
    smile = "🙂".encode()
    d = Detokenizer([smile[:1], smile[1:3], smile[3:]], ())
    assert [d.feed([0]), d.feed([1]), d.feed([2])] == ["", "", "🙂"]


def test_half_a_character_at_the_end_is_shown_as_such_and_its_tokens_stay() -> None:
    d = Detokenizer([b"a", "é".encode()[:1]], ())
    assert d.feed([0, 1]) == "a"
    assert d.finish() == "\ufffd"
    assert d.kept() == (2, 2)


def test_hidden_ids_spell_nothing_and_are_kept() -> None:
    d = Detokenizer([b"<eos>", b"a"], {0})
    assert d.feed([1, 0, 1, 0]) == "aa"
    assert d.kept() == (4, 2)


def test_ids_beyond_the_vocabulary_spell_nothing() -> None:
    assert Detokenizer([b"a"], ()).feed([0, 7, 0]) == "aa"


def test_no_stop_before_min_tokens() -> None:
    spelling = [b"a", b"."]
    d = Detokenizer(spelling, (), ["."], min_tokens=3)
    assert d.feed([0, 1, 0]) == "a.a"
    assert d.feed([1]) == ""
    assert d.matched == "."
    assert d.text == "a.a"


def test_of_several_stops_the_one_complete_first_counts() -> None:
    d = Detokenizer([b"abcd"], (), ["bcd", "c"])
    d.feed([0])
    assert (d.text, d.matched) == ("ab", "c")


def test_real_vocabulary(words: Tokenizer) -> None:
    text = "the quick brown fox: é€🙂 jumps over"
    ids = words.encode([TextSpan(text)])
    d = Detokenizer(words.spelling, words.special, ["€"])
    assert d.feed(ids) + d.finish() == "the quick brown fox: é"
