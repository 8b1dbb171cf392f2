from __future__ import annotations

import json
import threading
import time
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from banyan.runtime.errors import BadModel, BadProgram, Unsupported
from banyan.runtime.protocol import wire
from banyan.runtime.server.text import encoder
from banyan.runtime.server.text.chat_template import ChatTemplate
from banyan.runtime.server.text.encoder import LocalEncoder
from banyan.runtime.server.text.prompt import PromptText, pack, unpack
from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer, merge
from forms import examples, in_short


def save(path: Path, tokenizer: Any, **config: Any) -> Tokenizer:
    path.mkdir(exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(path, Files.read(path))


def sentencepiece(path: Path) -> Tokenizer:
    """Like Llama 2's: a space before every text, bytes as <0x..>, and bos from the post-processor."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab", "c", "d"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("▁", "ab")]
    t = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    return save(path, t, bos_token="<s>", eos_token="</s>")


def test_ids_of_a_client_are_its_prompt_as_they_are(tmp_path: Path) -> None:
    spaced = sentencepiece(tmp_path)
    prompt = PromptText(tokenizer=spaced)
    for part in (wire.TokenIds(pack([4, 5])), " ab", wire.TokenIds(pack([2])), wire.TokenIds(b"")):
        prompt.append_part(part)
    assert unpack(prompt.tokens(spaced, None, datetime.now())[0].ids) == [4, 5, *spaced.encode([TextSpan(" ab")]), 2]
    assert prompt.read(spaced, None, datetime.now()) == "\x01\x02 ab</s>"
    for ids in (b"\1", pack([-1]), pack([len(spaced.spelling)])):
        with pytest.raises(BadProgram, match=r"vocabulary|bytes"):
            prompt.append_part(wire.TokenIds(ids))


@pytest.mark.parametrize("reads", [False, True])
def test_ids_of_a_client_may_be_cut_inside_of_a_character(words: Tokenizer, chatml: ChatTemplate, reads: bool) -> None:
    """The HTTP process cuts the ids of a long prompt; its echo has no marks of broken text there."""
    text, now = "a€🙂é\U0001f333b€", datetime.now()
    ids = words.encode([TextSpan(text)])
    for size in range(3, 7):
        prompt = PromptText(tokenizer=words)
        for part in (wire.BeginTurn("user"), "x", wire.EndTurn(), *(
            wire.TokenIds(pack(ids[at : at + size])) for at in range(0, len(ids), size)
        )):  # fmt: skip
            prompt.append_part(part)
            if reads:
                prompt.tokens(words, chatml, now)
        assert prompt.read(words, chatml, now) == f"<|im_start|>user\nx<|im_end|>\n{text}"
        found, whole = prompt.tokens(words, chatml, now)
        assert unpack(found.ids)[-len(ids) :] == ids
        assert sum(unpack(found.lengths)) == len(whole)
        assert whole.endswith(text)
        assert prompt.n_chars == len("x" + text)


def test_ids_decode_to_their_text(words: Tokenizer) -> None:
    for text in ("", "hello there", " the  quick\n\n", "é€🙂", "\x00\x7f", "<|im_end|>"):
        assert words.text_of(words.encode([TextSpan(text)])) == text


def test_control_tokens_in_data_are_encoded_as_text(words: Tokenizer) -> None:
    assert words.encode([TextSpan("a<|im_end|>b", meant=True)])[1] == 2
    data = words.encode([TextSpan("a<|im_end|>b")])
    assert not words.special.intersection(data)
    assert words.text_of(data) == "a<|im_end|>b"
    mixed = words.encode(
        [TextSpan("<|im_start|>", meant=True), TextSpan("<|im_end|>"), TextSpan("<|im_end|>", meant=True)]
    )
    assert (mixed[0], mixed[-1]) == (1, 2)
    assert len(words.special.intersection(mixed[1:-1])) == 0


def test_ids_do_not_depend_on_span_boundaries(words: Tokenizer) -> None:
    text = "there is another thing in the text"
    whole = words.encode([TextSpan(text)])
    for k in range(len(text)):
        assert words.encode([TextSpan(text[:k]), TextSpan(text[k:], meant=True)]) == whole


def test_stop_ids_are_the_tokens_containing_the_string(words: Tokenizer) -> None:
    for stop in ("th", "e", " a", "\n", "é", "zzz"):
        expected = {i for i, s in enumerate(words.spelling) if stop.encode() in s and i not in words.special}
        assert words.stop_ids(stop) == expected
    assert words.stop_ids("im_end") == frozenset(), "control tokens have no text"


def test_bos_is_added_once_at_the_start(tmp_path: Path) -> None:
    t = sentencepiece(tmp_path)
    assert t.blank == [1]
    assert t.encode([TextSpan("ab")], at_start=True)[0] == 1
    assert t.encode([TextSpan("<s>ab", meant=True)], at_start=True).count(1) == 1
    assert t.encode([TextSpan("<s>ab")], at_start=True).count(1) == 1, "as data it is text after bos"
    assert 1 not in t.encode([TextSpan("ab")])
    assert t.encode([], at_start=True) == [1]


def test_leading_space_is_added_only_at_the_start(tmp_path: Path) -> None:
    t = sentencepiece(tmp_path)
    assert t.text_of(t.encode([TextSpan("ab")], at_start=True)[1:]) == " ab"
    for text in ("ab", " ab", "a", "\nab", "é", ".", "cd ab"):
        assert t.text_of(t.encode([TextSpan(text)])) == text
    assert t.text_of(t.encode([TextSpan("ab</s>")])) == "ab</s>"
    assert t.encode([TextSpan("a</s>", meant=True)])[-1] == 2


def test_sentencepiece_byte_tokens(tmp_path: Path) -> None:
    t = sentencepiece(tmp_path)
    assert t.spelling[3 + 0xE2] == b"\xe2"
    assert t.spelling[3 + 256 + 3] == b" a"
    assert t.eos_ids == (2,)


def test_added_runs_of_spaces_are_spelled_as_spaces(tmp_path: Path) -> None:
    """Gemma's vocabulary adds runs of the character that stands for a space. In names of control tokens, it stays."""
    library = sentencepiece(tmp_path)._tokenizer
    library.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in ("▁▁", "<｜a▁b｜>")])
    library.add_special_tokens(["c▁d"])
    t = save(tmp_path, library)
    assert t.stop_ids("  ") == {t.added["▁▁"]}
    assert [t.spelling[t.added[token]].decode() for token in ("▁▁", "<｜a▁b｜>", "c▁d")] == ["  ", "<｜a▁b｜>", "c▁d"]


def test_eos_ids_come_from_all_config_files(words_dir: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((words_dir / name).read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 0]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 5, "text_config": {"eos_token_id": 6}}')
    assert Tokenizer(tmp_path, Files.read(tmp_path)).eos_ids == (7, 0, 5, 6, 2)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [-1, 7]}')  # some exporters write -1 for none
    (tmp_path / "config.json").write_text('{"eos_token_id": true, "text_config": {"eos_token_id": 1099511627776}}')
    assert Tokenizer(tmp_path, Files.read(tmp_path)).eos_ids == (7, 2)


def test_template_file_takes_precedence_over_the_config_and_this_over_the_processor(tmp_path: Path) -> None:
    """Mistral Small 3.1 has its template only in chat_template.json."""
    (tmp_path / "chat_template.json").write_text('{"chat_template": "of the processor"}')
    assert Files.read(tmp_path).template == "of the processor"
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})
    )
    assert Files.read(tmp_path).template == "d"
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert Files.read(tmp_path).template == "from the file"


def test_special_tokens_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<a>", "eos_token": "<old>"}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<b>"}, "pad_token": null, "x": "y"}')
    assert Files.read(tmp_path).special_tokens == {"bos_token": "<a>", "eos_token": "<b>"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "nonsense"),
        ("tokenizer_config.json", "[" * 100_000),
        ("chat_template.jinja", "\udcff"),
    ],
    ids=lambda text: text[:30].encode(errors="backslashreplace").decode(),
)
def test_broken_file_is_named_in_the_error(words_dir: Path, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes((words_dir / "tokenizer.json").read_bytes())
    (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(BadModel, match=name):
        Tokenizer(tmp_path, Files.read(tmp_path))


@pytest.mark.parametrize("template", ["3", '{"default": "x"}', '[{"name": "default", "template": 3}]'])
def test_chat_template_that_is_not_text_is_refused(tmp_path: Path, template: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {template}}}')
    with pytest.raises(BadModel, match=r"chat template in .* which is not text"):
        Files.read(tmp_path)


def test_named_chat_templates_without_a_default_are_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": ["x", {"name": "other", "template": "y"}, {}]}')
    assert Files.read(tmp_path).template is None


def test_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path, Files.read(tmp_path))


def test_unsupported_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    t = tokenizers.Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.decoder = decoders.WordPiece()
    with pytest.raises(Unsupported, match="WordPiece"):
        save(tmp_path, t)


def test_text_that_panics_the_library_is_refused_and_others_work(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "SECONDS", 60.0)  # a panic takes 0.2 s, and other processes may be running
    tiny.make_tokenizer(tmp_path)
    bad = tiny.make_backtracking(tmp_path)
    t = Tokenizer(tmp_path, Files.read(tmp_path))
    good, results = [TextSpan("the quick xxy ")], []
    before = t.encode(good)
    for spans in (
        [TextSpan(bad)],
        [TextSpan("the "), TextSpan(bad)],
        [TextSpan("<|im_start|>", True), TextSpan(bad)],
    ) * 2:
        with pytest.raises(BadProgram, match=r"cannot encode a text of \d+ characters: it panicked: .*retry-limit"):
            t.encode(spans)
        assert t.encode([TextSpan(f"{len(results)} brown")]), "a text that is not cached yet"
        results.append(t.encode(good))
    threads = [threading.Thread(target=lambda: results.append(t.encode([TextSpan("quick foxes")]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results[:6] == [before] * 6
    assert results[6:] == [t.encode([TextSpan("quick foxes")])] * 4, "also on other threads"


def test_regex_that_backtracks_too_long_is_stopped(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.make_tokenizer(tmp_path)
    tiny.make_backtracking(tmp_path)
    t = Tokenizer(tmp_path, Files.read(tmp_path))
    assert not t.is_local
    before = t.encode([TextSpan("the quick")])
    monkeypatch.setattr(encoder, "SECONDS", 0.05)
    with pytest.raises(BadProgram, match=r"cannot encode a text of 21000 characters: it takes more than 0\.\d s"):
        t.encode([TextSpan(("x" * 20 + " ") * 1000)])  # 12 ms for each 20 characters
    monkeypatch.setattr(encoder, "SECONDS", 20.0)
    assert t.encode([TextSpan("the quick ")]) == [*before, *t.encode([TextSpan(" ")])]
    t.close()


def test_process_that_encodes_gives_the_same_ids(tiny: ModuleType, tmp_path: Path) -> None:
    tiny.make_tokenizer(tmp_path)
    local = LocalEncoder(tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
    process = encoder.EncoderProcess((tmp_path / "tokenizer.json").read_bytes())
    for text in ("hello there", " the  quick\n\n", "é€🙂", "\x00\x7f", "<|im_end|>", ""):
        for options in ((False, False), (True, True)):
            ours, expected = process.encode(text, *options), local.encode(text, *options)
            assert [*map(list, ours)] == [*map(list, expected)]
    with pytest.raises(Exception, match="surrogates"):
        process.encode("\ud800")
    assert process.encode("a").ids == local.encode("a").ids
    process.close()
    process.close()


@pytest.mark.parametrize("pattern", in_short(sorted(encoder.KNOWN)[::6], sorted(encoder.KNOWN)))
def test_known_regexes_take_time_linear_in_the_text(pattern: str) -> None:
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")

    def seconds(text: str) -> float:
        started = time.thread_time()
        split.pre_tokenize_str(text)
        return time.thread_time() - started

    for kind in (" ", "\n", "a", "A", "1", "'", "語", " \n", "A'", "ʰ"):
        for tail in ("", "x", " ", "!"):
            text = (kind * 4000)[:4000] + tail
            # In quadratic time, at 10 ns for each pair of characters, 4,000 characters would take 160 ms.
            assert seconds(text) < 0.05 or min(seconds(text) for _ in range(5)) < 0.05


def test_regexes_of_a_tokenizer_are_found() -> None:
    part = {"type": "Sequence", "pretokenizers": [{"pattern": {"Regex": "a+"}}, {"pattern": {"String": "b"}}]}
    assert list(encoder.patterns([None, part])) == ["a+"]
    assert not encoder.is_known("a+")
    pocket = Path(encoder.__file__).parents[2] / "model/pocket/weights/pocket"
    assert Tokenizer(pocket, Files.read(pocket)).is_local


BROKEN: dict[str, dict[str, Any]] = {
    "when read": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
    "when encoding": {
        "post_processor": {
            "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}], "pair": [],
            "special_tokens": {},
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_tokenizer_that_panics_the_library_raises_bad_model(
    tiny: ModuleType, tmp_path: Path, change: dict[str, Any]
) -> None:
    tiny.make_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(BadModel, match="panicked"):
        Tokenizer(tmp_path, Files.read(tmp_path))


def test_truncation_and_padding_of_the_file_are_ignored(tiny: ModuleType, tmp_path: Path) -> None:
    tiny.make_tokenizer(tmp_path)
    t = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    t.enable_truncation(4)
    t.enable_padding(length=8)
    assert len(save(tmp_path, t).encode([TextSpan("x y z " * 20)])) > 30
    assert len(save(tmp_path, t).encode([TextSpan("x")])) == 1


def test_adjacent_spans_of_a_kind_are_merged() -> None:
    spans = [
        TextSpan("a"),
        TextSpan(""),
        TextSpan("b"),
        TextSpan("", True),
        TextSpan("c", True),
        TextSpan("d", True),
        TextSpan("e"),
    ]
    assert merge(spans) == [TextSpan("ab"), TextSpan("cd", True), TextSpan("e")]


MARKERS = ["<tool_call>", "</tool_call>", "<think>", "<|im_end|>", "[INST]"]
PARTS = [*MARKERS, "<tool", "_call>", "<|im_", "end|>", "    ", "banyan ", "the "]


@examples(40, 300, given(st.lists(st.tuples(st.sampled_from(PARTS), st.booleans()))))
def test_unflagged_control_tokens_in_data_are_encoded_as_text(marked: Tokenizer, parts: list[tuple[str, bool]]) -> None:
    spans = [TextSpan(*part) for part in parts]
    ids = marked.encode(spans)
    assert marked.text_of(ids) == "".join(text for text, _ in parts)
    control_ids = {marked.added[mark] for mark in MARKERS}
    n_meant = sum(span.text.count(mark) for span in merge(spans) if span.meant for mark in MARKERS)
    assert sum(i in control_ids for i in ids) == n_meant


def test_added_words_and_spaces_stay_one_token_in_data(marked: Tokenizer) -> None:
    for text in ("banyan", "    "):
        assert marked.encode([TextSpan(text)]) == [marked.added[text]]
        assert marked.added[text] in marked.encode([TextSpan(text + "<think>")])


def test_control_token_produced_by_merges_is_split_in_data(tmp_path: Path) -> None:
    pieces = ["<", "t", ">", "<t", "<t>", "a"]
    t = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [("<", "t"), ("<t", ">")]))
    t.decoder = decoders.ByteLevel()
    t.add_tokens(["<t>"])
    tokenizer = save(tmp_path, t)
    assert tokenizer.encode([TextSpan("a<t>a", meant=True)]) == [5, 4, 5]
    assert tokenizer.encode([TextSpan("a<t>a")]) == [5, 0, 1, 2, 5]
