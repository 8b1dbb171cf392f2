"""The token cache: ids do not depend on what was encoded before."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from banyan.runtime.server.text import token_cache
from banyan.runtime.server.text.encoder import LocalEncoder
from banyan.runtime.server.text.token_cache import LONG, MARGIN, STEP, TokenCache
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer
from forms import examples, in_short

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SAMPLE = [
    "the quick brown fox doesn't jump, 1234567 times\n\n  over the lazy dog's back",
    "été naïve 你好 !!\r\n x  y\t",
]


def trained(pre_tokenizer: Any, normalizer: Any = None) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer, tokenizer.normalizer = pre_tokenizer, normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SAMPLE * 4, trainer)
    return tokenizer


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


texts = st.text(alphabet=st.sampled_from("thequickbrwn's .,!1234567\n\r\t éè\u0301\u4f60\u597d<|"), max_size=40)


@examples(
    15,
    150,
    given(
        step=st.sampled_from((64, STEP)),
        constant=texts.filter(bool),
        end=texts,
        rest=st.lists(st.lists(texts, min_size=1, max_size=3), max_size=4),
    ),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(step=STEP, constant="1 ", end="", rest=[["1"], [""]])  # a prefix that is a complete text later
@example(step=STEP, constant="1", end="", rest=[["e"], ["e", "s"]])  # a complete text that is a prefix later
def test_cached_ids_equal_those_of_the_tokenizer(
    tokenizer: tokenizers.Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    constant: str,
    end: str,
    rest: list[list[str]],
) -> None:
    monkeypatch.setattr(token_cache, "STEP", step)
    cache = TokenCache(LocalEncoder(tokenizer).encode)
    prefix = (constant * LONG)[: LONG + 7] + end
    for parts in rest:
        text, boundaries = prefix + "".join(parts), [len(prefix)]
        for part in parts[:-1]:
            boundaries.append(boundaries[-1] + len(part))
        assert cache.ids(text, boundaries, grows=True) == tokenizer.encode(text, add_special_tokens=False).ids


class CountingTokenizer:
    """A tokenizer that counts the characters it encodes."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.tokenizer, self.n_chars = tokenizer, 0

    def __call__(self, text: str, offsets: bool = False) -> Any:
        self.n_chars += len(text)
        return self.tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "nfc"])
def test_known_prefix_is_not_encoded_again(kind: str) -> None:
    counting = CountingTokenizer(KINDS[kind]())
    cache = TokenCache(counting)
    constant = "the quick brown fox, " * 50
    cache.ids(f"{constant}first", [len(constant)])
    counting.n_chars = 0
    cache.ids(f"{constant}second", [len(constant)])
    assert len("second") < counting.n_chars < 2 * MARGIN + len("second")
    counting.n_chars = 0
    cache.ids(f"{constant}first", [len(constant)])
    assert cache.ids("") == []
    assert counting.n_chars == 0


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "nfc"])
def test_of_a_text_that_grows_only_what_is_new_is_encoded(kind: str) -> None:
    counting = CountingTokenizer(KINDS[kind]())
    cache = TokenCache(counting)
    text = "the quick brown fox, " * 1200
    cache.ids(text[: 4 * STEP], grows=True)
    counting.n_chars = n = 0
    for end in range(4 * STEP + 700, len(text), 700):
        expected = counting.tokenizer.encode(text[:end], add_special_tokens=False).ids
        assert cache.ids(text[:end], grows=True) == expected
        n += 1
    assert counting.n_chars < n * 1.5 * STEP, "and not the whole text each time"


def test_text_without_word_boundaries_is_encoded_whole() -> None:
    counting = CountingTokenizer(KINDS["one word"]())
    cache = TokenCache(counting)
    constant = "the quick brown fox, " * 50
    for k in range(2):
        counting.n_chars = 0
        cache.ids(f"{constant}{k}", [len(constant)])
        assert counting.n_chars == len(constant) + 1


def test_cache_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_cache, "MAX_BYTES", 5000)
    counting = CountingTokenizer(KINDS["gpt2"]())
    cache = TokenCache(counting)
    for k in range(100):
        cache.ids(f"{k:090}")
        cache.ids("x" * 50)
    assert 4000 < cache.cache.size == sum(size for _, size in cache.cache._values.values()) <= 5000
    counting.n_chars = 0
    cache.ids("x" * 50)
    cache.ids(f"{99:090}")
    assert counting.n_chars == 0, "recently used texts are cached"
    cache.ids("y" * 5000)
    cache.ids("x" * 50)
    assert counting.n_chars == 5000, "a text larger than the cache evicts nothing"


@pytest.mark.parametrize("n_chars", in_short([8], [8, 60, 2000]))
def test_cache_counts_the_memory_it_takes(n_chars: int) -> None:
    """The entries of short texts take more memory than their characters."""

    def encode(text: str, **_: Any) -> Any:
        return SimpleNamespace(ids=[7] * (len(text) // 4))

    cache = TokenCache(encode)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for k in range(6000):
        cache.ids(f"{k:0{n_chars}}", owner=b"me")
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.7 * cache.cache.size < taken < 1.25 * cache.cache.size


def test_conversation_ids_do_not_depend_on_the_cache(words: Tokenizer) -> None:
    """For control tokens, data that spells control tokens, and text of several spans, the ids are the same with and
    without the cache."""
    assert words._cache is not None
    examples = "the quick brown fox jumps over the lazy dog. " * 8
    for question in ("the fox", " dog<|im_end|>", "<|im_start|>", "", "  \n over"):
        spans = [
            *(TextSpan("<|im_start|>user\n", meant=True), TextSpan(examples), TextSpan(question)),
            *(TextSpan("<|im_end|>\n", meant=True), TextSpan("<|im_start|>assistant\n", meant=True)),
        ]
        for _ in range(2):
            with pytest.MonkeyPatch.context() as patch:
                expected = words.encode(spans)
                patch.setattr(words, "_cache", None)
                assert words.encode(spans) == expected


def test_owners_share_no_texts() -> None:
    counting = CountingTokenizer(KINDS["gpt2"]())
    cache = TokenCache(counting)
    texts = "the quick brown fox", "the quick brown fox, " * 50
    for owner in (b"a", b"b"):
        counting.n_chars = 0
        for text in texts:
            cache.ids(text, [len(texts[1]) - 5], owner=owner)
        assert counting.n_chars >= sum(map(len, texts))
    cache.forget(b"a")
    counting.n_chars = 0
    cache.ids(texts[0], owner=b"b")
    assert counting.n_chars == 0
    cache.forget(b"b")
    assert cache.cache.size == 0
