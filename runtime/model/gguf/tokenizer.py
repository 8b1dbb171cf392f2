"""Converts the tokenizer in a GGUF file's metadata to tokenizer.json and tokenizer_config.json.

Two kinds are supported. Byte-level BPE ("gpt2"): GGUF gives only a name for the regex that splits text into words, so
the regexes are listed here. SentencePiece ("llama"): GGUF gives a score for each piece, from which the merges
follow.
"""

from __future__ import annotations

from numbers import Number
from typing import Any

from banyan.runtime.errors import BadModel, Unsupported

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # types of tokens; tokens of other types are pieces of text
_SPACE = "\u2581"
_ENDS_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>",
                 "<|endoftext|>", "<|end_of_text|>")  # fmt: skip
"""Control tokens that end an output, as in llama.cpp. The list is needed because many files name only one such
token."""

WORDS, ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s*[\r\n]+|\s+(?!\S)|\s+"


def gpt_4(digits: str, words: str = WORDS) -> str:
    """Make the regex that splits a text into words, for a tokenizer like that of GPT-4. digits: the regex of a number.
    words: the regex of contractions such as 'll."""
    return rf"{words}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{ENDS}"


def o200k(digits: str, words: str) -> str:
    """Make the regex that splits a text into words, for a tokenizer like that of GPT-4o. digits: the regex of a number.
    words: the regex of contractions such as 'll; "": none."""
    start, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    cased = rf"{start}{upper}*{lower}+{words}|{start}{upper}+{lower}*{words}"
    return rf"{cased}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{ENDS}"


_SPLITS = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt"), ""),
    **dict.fromkeys(("smollm", "starcoder", "refact"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"), gpt_4(r"\p{N}{1,3}")),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), gpt_4(r"\p{N}")),
    "tekken": o200k(r"\p{N}", ""),
    "gpt-4o": o200k(r"\p{N}{1,3}", f"{WORDS}?"),
}
"""tokenizer.ggml.pre -> the regex of a word; "": GPT-2's, "digits": GPT-2's with single digits."""
_WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"}
"""In tokenizers of these kinds, a word that is a token is not merged from parts, and a begin-of-text token comes before
every text."""


def _key(metadata: dict[str, Any], name: str, kind: type) -> Any:
    """Return the tokenizer setting `name` from the metadata; None: it is not set. BadModel: it is not of the type
    `kind`."""
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is not None and not isinstance(value, kind):
        raise BadModel(f"tokenizer.ggml.{name} is {value!r:.40}, which is no {kind.__name__}")
    return value


def _list(metadata: dict[str, Any], name: str, kind: type) -> list[Any]:
    """The tokenizer's list `name`; [] if there is none. In GGUF all items of a list have one type. BadModel: the type
    is not `kind`."""
    found = _key(metadata, name, list) or []
    if found and not isinstance(found[0], kind):
        raise BadModel(f"tokenizer.ggml.{name} has {found[0]!r:.40}, which is no {kind.__name__.lower()}")
    return found


def _tokens(metadata: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Return the texts of all tokens, by id, and the type of each token. BadModel: there are none, or the two lists
    differ in length."""
    tokens: list[str] = _list(metadata, "tokens", str)
    types = _list(metadata, "token_type", Number) or [1] * len(tokens)
    if not tokens or len(types) != len(tokens):
        raise BadModel(f"its metadata has {len(tokens)} tokens and {len(types)} token types")
    return tokens, types


def _id(metadata: dict[str, Any], name: str) -> int | None:
    """The id of the token with the role `name`, such as eos; None if no token has this role."""
    i: int | None = _key(metadata, f"{name}_token_id", int)
    return i if i is None or 0 <= i < len(_tokens(metadata)[0]) else None


def eos_ids(metadata: dict[str, Any]) -> list[int]:
    """The ids of the tokens that end an output."""
    named = [_id(metadata, name) for name in ("eos", "eot", "eom")]
    tokens, types = _tokens(metadata)
    control = {token: i for i, token in enumerate(tokens) if types[i] == _CONTROL}
    return sorted({i for i in (*named, *map(control.get, _ENDS_OF_TURN)) if i is not None})


def config(metadata: dict[str, Any]) -> dict[str, Any]:
    """Make the content of tokenizer_config.json from a file's metadata: the control tokens by role, such as eos_token,
    and the chat template."""
    tokens, _ = _tokens(metadata)
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {role: _id(metadata, name) for role, name in roles.items()}
    found: dict[str, Any] = {f"{role}_token": tokens[i] for role, i in ids.items() if i is not None}
    return found | {"chat_template": metadata.get("tokenizer.chat_template")}


def description(metadata: dict[str, Any]) -> dict[str, Any]:
    """Make the content of tokenizer.json from a file's metadata. Unsupported: the tokenizer is neither "gpt2" nor
    "llama", or its regex is unknown."""
    match kind := metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            parts = _byte_level(metadata)
        case "llama":
            parts = _sentencepiece(metadata)
        case _:
            raise Unsupported(f"tokenizer.ggml.model is {kind!r}; supported: gpt2, llama")
    tokens, types = _tokens(metadata)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": tokens[i], "special": types[i] != _USER_DEFINED} | flags
        for i, of in enumerate(types)
        if of in (_UNKNOWN, _CONTROL, _USER_DEFINED) and tokens[i]
    ]
    return {"version": "1.0", "added_tokens": added, "post_processor": _bos_first(metadata)} | parts


def _byte_level(metadata: dict[str, Any]) -> dict[str, Any]:
    if (name := _key(metadata, "pre", str)) not in _SPLITS:
        raise Unsupported(f"tokenizer.ggml.pre is {name!r}; supported: {', '.join(sorted(_SPLITS))}")
    split = _SPLITS[name]
    first: dict[str, Any] = {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
    if split == "digits":
        first = {"type": "Digits", "individual_digits": True}
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    pieces = [*([first] if split else ()), to_bytes | {"use_regex": split in ("", "digits")}]
    tokens, _ = _tokens(metadata)
    merges = _list(metadata, "merges", str)
    return {
        "normalizer": {"type": "NFC"} if name == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pieces},
        "decoder": to_bytes | {"use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [(merge[:cut], merge[cut + 1 :]) for merge in merges if (cut := merge.find(" ", 1)) > 0],
            "ignore_merges": name in _WHOLE_WORDS,
        },
    }


def _sentencepiece(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens, types = _tokens(metadata)
    scores = _list(metadata, "scores", Number)
    if len(scores) != len(tokens):
        raise BadModel(f"its metadata has {len(tokens)} tokens and {len(scores)} scores")
    pieces = {token: i for i, token in enumerate(tokens) if types[i] in (1, _USER_DEFINED)}
    merges = [
        (-scores[i], pieces[piece[:cut]], pieces[piece[cut:]])
        for piece, i in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    spaces = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if _key(metadata, "add_space_prefix", bool) is not False:
        spaces.insert(0, {"type": "Prepend", "prepend": _SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = _id(metadata, "unknown")
    return {
        "normalizer": {"type": "Sequence", "normalizers": spaces},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [(tokens[left], tokens[right]) for _, left, right in sorted(merges)],
            "unk_token": None if unknown is None else tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


def _bos_first(metadata: dict[str, Any]) -> dict[str, Any] | None:
    """Make the post-processor for tokenizer.json that puts the begin-of-text token before every text. None: this
    tokenizer adds no such token."""
    is_added = _key(metadata, "add_bos_token", bool)
    if is_added is None:
        is_added = metadata.get("tokenizer.ggml.model") == "llama" or metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS
    if not is_added or (bos := _id(metadata, "bos")) is None:
        return None
    token = _tokens(metadata)[0][bos]
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text, second = ({"Sequence": {"id": which, "type_id": 0}} for which in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, second],
        "special_tokens": {token: {"id": token, "ids": [bos], "tokens": [token]}},
    }
