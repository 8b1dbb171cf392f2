"""Kept pieces: whatever was encoded before, the ids are those of the text alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from banyan.runtime.server.text import token_cache
from banyan.runtime.server.text.token_cache import LONG, MARGIN, TokenCache
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SAMPLE = [
    "the quick brown fox doesn't jump, 1234567 times\n\n  over the lazy dog's back",
    "été naïve 你好 !!\r\n x  y\t",
]


def trained(pre_tokenizer: Any, normalizer: Any = None) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer, made.normalizer = pre_tokenizer, normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(SAMPLE * 4, trainer)
    return made


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "gpt2": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama3": lambda: trained(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    ),
    "nfc": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC()),
    "one word": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    return KINDS[request.param]()


words = st.text(alphabet=st.sampled_from("thequickbrwn's .,!1234567\n\r\t éè\u0301\u4f60\u597d<|"), max_size=40)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(constant="1 ", end="", rest=[["1"], [""]])  # a beginning that is a whole piece later
@example(constant="1", end="", rest=[["e"], ["e", "s"]])  # a whole piece that is a beginning later
@given(constant=words.filter(bool), end=words, rest=st.lists(st.lists(words, min_size=1, max_size=3), max_size=4))
def test_the_ids_are_those_of_the_text_alone(
    tokenizer: tokenizers.Tokenizer, constant: str, end: str, rest: list[list[str]]
) -> None:
    kept = TokenCache(lambda text: tokenizer.encode(text, add_special_tokens=False))
    beginning = (constant * LONG)[: LONG + 7] + end
    for parts in rest:
        text, borders = beginning + "".join(parts), [len(beginning)]
        for part in parts[:-1]:
            borders.append(borders[-1] + len(part))
        assert kept.ids(text, borders) == tokenizer.encode(text, add_special_tokens=False).ids


class Counted:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.tokenizer, self.n_chars = tokenizer, 0

    def __call__(self, text: str) -> Any:
        self.n_chars += len(text)
        return self.tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "nfc"])
def test_what_is_known_is_not_encoded_again(kind: str) -> None:
    count = Counted(KINDS[kind]())
    kept = TokenCache(count)
    constant = "the quick brown fox, " * 50
    kept.ids(f"{constant}first", [len(constant)])
    count.n_chars = 0
    kept.ids(f"{constant}second", [len(constant)])
    assert len("second") < count.n_chars < 2 * MARGIN + len("second")
    count.n_chars = 0
    kept.ids(f"{constant}first", [len(constant)])
    assert kept.ids("") == []
    assert count.n_chars == 0


def test_where_a_text_is_one_word_all_of_it_is_encoded() -> None:
    count = Counted(KINDS["one word"]())
    kept = TokenCache(count)
    constant = "the quick brown fox, " * 50
    for k in range(2):
        count.n_chars = 0
        kept.ids(f"{constant}{k}", [len(constant)])
        assert count.n_chars == len(constant) + 1


def test_there_is_a_bound_on_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_cache, "MAX_CHARS", 1000)
    count = Counted(KINDS["gpt2"]())
    kept = TokenCache(count)
    for k in range(100):
        kept.ids(f"{k:090}")
        kept.ids("x" * 50)
    assert kept._n_chars == sum(len(text) for _, text in kept._cache) <= 1000
    count.n_chars = 0
    kept.ids("x" * 50)
    kept.ids(f"{99:090}")
    assert count.n_chars == 0, "what was used last is there"
    kept.ids("y" * 2000)
    kept.ids("x" * 50)
    assert count.n_chars == 2000, "what is larger than all that is kept throws nothing out"


def test_a_conversation_is_encoded_as_it_was_without_them(words: Tokenizer) -> None:
    """Control tokens, meant and not, beside text of several parts: as one string, or the old way piece by piece."""
    assert words._cache is not None
    shots = "the quick brown fox jumps over the lazy dog. " * 8
    for question in ("the fox", " dog<|im_end|>", "<|im_start|>", "", "  \n over"):
        spans = [
            *(TextSpan("<|im_start|>user\n", meant=True), TextSpan(shots), TextSpan(question)),
            *(TextSpan("<|im_end|>\n", meant=True), TextSpan("<|im_start|>assistant\n", meant=True)),
        ]
        for _ in range(2):
            with pytest.MonkeyPatch.context() as patch:
                found = words.encode(spans)
                patch.setattr(words, "_cache", None)
                assert words.encode(spans) == found
