"""The tokenizer in a GGUF file encodes as the tokenizer.json that it was made from."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, trainers

from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.gguf import tokenizer as gguf_tokenizer
from banyan.runtime.model.gguf.container import read_header
from banyan.runtime.server.text.encoder import is_known, patterns
from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer
from gguf_files import BYTE, CONTROL, NORMAL, UNKNOWN, read_tokenizer, write, write_gguf

TEXTS = [
    "the quick brown fox", "  two  spaces\n\n\tand tabs ", "don't, they're 1234567 <|im_end|>", "hello", "", " ",
    "é 日本語 \U0001f600", "<|im_start|>user\nhello world<|im_end|>\n", "a\u0301 \u00e1", "x = [1,2];//", "\r\n \r\n",
]  # fmt: skip


def ids(tokenizer, text):
    return [
        tokenizer.encode([TextSpan(text, meant)], at_start) for meant in (True, False) for at_start in (True, False)
    ]


@pytest.fixture
def both(tiny_model, tmp_path):
    """The tokenizer of a tiny model's directory, and that of the same model as GGUF."""
    source, file = tiny_model("llama"), tmp_path / "m.gguf"
    write_gguf(source, file, "llama")
    made = Tokenizer(source, Files.read(source)), Tokenizer(file, Files.read(file))
    yield made
    for tokenizer in made:
        tokenizer.close()


def test_byte_level_tokenizer_equals_its_source(both, tiny_model, tmp_path):
    theirs, ours = both
    assert ours.spelling == theirs.spelling
    assert ours.special == theirs.special
    assert ours.eos_ids == (0, 2), "<|endoftext|> ends an output too, as in llama.cpp"
    assert ours.is_local
    for text in TEXTS:
        assert ids(ours, text) == ids(theirs, text)
    assert Files.read(tmp_path / "m.gguf").template == Files.read(tiny_model("llama")).template


DIGITS = {"type": "Digits", "individual_digits": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("pre", "pieces", "normalizer"),
    [
        ("smollm", [DIGITS, BYTES], None),
        ("llama-bpe", [split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
                             r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), BYTES | {"use_regex": False}], None),
        ("qwen2", [split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                         r"|\s*[\r\n]+|\s+(?!\S)|\s+"), BYTES | {"use_regex": False}], {"type": "NFC"}),
    ],
)  # fmt: skip
def test_texts_are_split_as_the_models_do(tiny_model, tmp_path, pre, pieces, normalizer):
    """pieces, normalizer: of the tokenizer.json of SmolLM2, Llama 3 and Qwen2."""
    source = tiny_model("llama")
    original = json.loads((source / "tokenizer.json").read_text())
    original["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": pieces}
    original["normalizer"] = normalizer
    original["model"]["ignore_merges"] = pre == "llama-bpe"
    theirs = tokenizers.Tokenizer.from_str(json.dumps(original))
    file = write(tmp_path / "m.gguf", read_tokenizer(source) | {"tokenizer.ggml.pre": pre})
    ours = tokenizers.Tokenizer.from_str(json.dumps(gguf_tokenizer.description(metadata_of(file))))
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text, add_special_tokens=False).ids


def metadata_of(file):
    return read_header(file).metadata


def test_regexes_are_known_to_take_linear_time():
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"]}
    for pre in gguf_tokenizer._SPLITS:
        parts = gguf_tokenizer.description(metadata | {"tokenizer.ggml.pre": pre})["pre_tokenizer"]
        assert all(map(is_known, patterns(parts))), pre


@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentencepiece_equals_its_source(tmp_path, has_prefix):
    special = ["<unk>", "<s>", "</s>"]
    pieces = [*special, *(f"<0x{i:02X}>" for i in range(256))]
    theirs = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    prefix = [normalizers.Prepend("\u2581")] if has_prefix else []
    theirs.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "\u2581")])
    theirs.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=pieces, show_progress=False)
    theirs.train_from_iterator([" ".join(TEXTS) * 3, "they think that the other text is there"], trainer)
    data = json.loads(theirs.to_str())
    data["added_tokens"] = [added for added in data["added_tokens"] if added["content"] in special]
    theirs = tokenizers.Tokenizer.from_str(json.dumps(data))
    vocab = sorted(theirs.get_vocab(), key=theirs.token_to_id)
    kinds = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL} | dict.fromkeys(pieces[3:], BYTE)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": [kinds.get(token, NORMAL) for token in vocab],
        "tokenizer.ggml.scores": [float(-i) for i in range(len(vocab))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": has_prefix,
    }
    file = write(tmp_path / "m.gguf", metadata | {"llama.context_length": 8})
    ours = tokenizers.Tokenizer.from_str(json.dumps(gguf_tokenizer.description(metadata_of(file))))
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text).ids[0] == 1, "a begin-of-text token comes first"
    assert ours.decode(ours.encode("the text").ids) == "the text"


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, Unsupported, r"tokenizer\.ggml\.model is 't5'; supported: gpt2, llama"),
        ({"tokenizer.ggml.pre": "chatglm-bpe"}, Unsupported, r"tokenizer\.ggml\.pre is 'chatglm-bpe'; supported: dbrx"),
        ({"tokenizer.ggml.tokens": None}, BadModel, "0 tokens"),
        ({"tokenizer.ggml.token_type": [1]}, BadModel, "2 tokens and 1 token types"),
        ({"tokenizer.ggml.model": "llama"}, BadModel, "2 tokens and 0 scores"),
        ({"tokenizer.ggml.merges": "a b"}, BadModel, r"tokenizer\.ggml\.merges is 'a b', which is no list"),
        ({"tokenizer.ggml.merges": [1]}, BadModel, r"tokenizer\.ggml\.merges has 1, which is no str"),
        ({"tokenizer.ggml.pre": ["gpt-2"]}, BadModel, r"tokenizer\.ggml\.pre is \['gpt-2'\], which is no str"),
        (
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": ["x", "y"]},
            BadModel,
            r"tokenizer\.ggml\.scores has 'x', which is no number",
        ),
    ],
)
def test_tokenizer_that_cannot_be_used_is_named(metadata, error, message):
    plain = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b"]}
    with pytest.raises(error, match=message):
        gguf_tokenizer.description(plain | metadata)
