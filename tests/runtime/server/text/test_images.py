"""Images of prompts: what stands in their place, and the process that decodes them."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_images import picture, png

from banyan.runtime.errors import BadProgram, PromptTooLong, Unsupported
from banyan.runtime.model.images import ImageShape, ImageSpec, RowCount, image_spec
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_IMAGES
from banyan.runtime.server.text import images as module
from banyan.runtime.server.text.chat_template import ChatMessage, ChatTemplate
from banyan.runtime.server.text.images import ImageFile, Images, ImageTokens
from banyan.runtime.server.text.prompt import PromptText, TokenRun, image_rows, unpack
from banyan.runtime.server.text.tokenizer import Files, Tokenizer

SPEC = ImageSpec("qwen", 7, 7, merge=2)
PIXELS = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
          "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16}}  # fmt: skip
MARK = "<|im_start|>"  # any control token of the tiny tokenizer may be the mark
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}"
    "{% if m['content'] is string %}:{{ m['content'] | trim }}"
    "{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<|im_start|>{% else %}-{{ p['text'] | trim }}{% endif %}{% endfor %}{% endif %}]"
    "{% endfor %}{% if add_generation_prompt %}[assistant:{% endif %}"
)


def make(path: Path) -> Images:
    (path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "vision_config": {}}))
    (path / "preprocessor_config.json").write_text(json.dumps(PIXELS))
    return Images(path, SPEC, lambda i: MARK)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    found = make(tmp_path_factory.mktemp("images"))
    yield found
    found.close()


def huge_png(width: int, height: int) -> bytes:
    """The first part of a PNG of this size, whose pixels would be decoded to zeros."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1 << 20)))


def jpeg(size: int) -> bytes:
    file = io.BytesIO()
    picture(300, 200).save(file, "JPEG")
    return file.getvalue()[:size]


def test_tokens_follow_from_the_file(images: Images) -> None:
    tokens = images.tokens(file := ImageFile(png(120, 60, 1)))
    assert tokens.shape == ImageShape(2, 4)
    (ids,) = tokens.parts
    assert isinstance(ids, bytes)
    rows = unpack(ids)
    assert len(set(rows)) == 8
    assert max(rows) < 0
    assert images.tokens(ImageFile(file.data)) == tokens
    (others,) = images.tokens(ImageFile(png(120, 60, 2))).parts
    assert isinstance(others, bytes)
    assert not set(rows) & set(unpack(others))


def test_pixels_are_kept_or_made_again(images: Images) -> None:
    file = ImageFile(png(120, 60, 3))
    images.tokens(file)
    first = images.pixels(file.digest)
    assert first.arrays["pixel_values"].shape == (32, 1176)
    images.pixel_cache.drop(lambda key: True)
    assert images.pixels(file.digest) == first
    images.pixel_cache.drop(lambda key: True)
    digest = file.digest
    del file
    assert "not on the server any more" in images.pixels(digest).error


def test_file_is_kept_as_long_as_a_prompt_with_it(images: Images) -> None:
    first, second = ImageFile(png(121, 60)), ImageFile(png(121, 60))
    kept = [images.tokens(file).file for file in (first, second)]
    assert kept == [first, first]
    digest = second.digest
    images.pixel_cache.drop(lambda key: True)
    del first, second
    assert not images.pixels(digest).error
    images.pixel_cache.drop(lambda key: True)
    kept.clear()
    assert images.pixels(digest).error


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "not a readable image"),
        (b"text", "not a readable image"),
        (png(300, 200)[:200], "cannot be decoded"),
        (jpeg(60), "not a readable image|cannot be decoded"),
        (huge_png(100_000, 100_000), "100000 x 100000 pixels; at most 33,554,432 are allowed"),
        (huge_png(6000, 6000), "6000 x 6000 pixels"),
        (png(900, 4), "image processor refuses it: absolute aspect ratio"),
    ],
)
def test_hostile_image_costs_an_error(images: Images, data: bytes, match: str) -> None:
    images.tokens(ImageFile(png(60, 60)))
    assert images._helper.child is not None
    before = images._helper.child.pid
    with pytest.raises(BadProgram, match=match):
        images.tokens(ImageFile(data))
    images.tokens(ImageFile(png(61, 60)))
    assert images._helper.child.pid == before


@pytest.mark.long
def test_process_that_died_is_started_again(images: Images) -> None:
    images.tokens(ImageFile(png(62, 60)))
    assert images._helper.child is not None
    os.kill(images._helper.child.pid, signal.SIGKILL)
    with pytest.raises(BadProgram, match="died while it read an image of"):
        images.tokens(ImageFile(png(63, 60)))
    assert images.tokens(ImageFile(png(63, 60))).shape == ImageShape(2, 2)


@pytest.mark.long
def test_slow_image_is_given_up(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    images.tokens(ImageFile(png(64, 60)))
    monkeypatch.setattr(module, "SECONDS", 0.0)
    with pytest.raises(BadProgram, match="takes more than 0 s"):
        images.tokens(ImageFile(png(2000, 2000)))
    monkeypatch.undo()
    images.tokens(ImageFile(png(64, 61)))


@pytest.mark.long
def test_unreadable_processor_is_an_error(tmp_path: Path) -> None:
    found = make(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("none")
    with pytest.raises(BadProgram, match="image processor cannot be loaded"):
        found.tokens(ImageFile(png(60, 60)))
    found.close()


def test_images_whose_first_ids_are_equal_get_others(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._row_ids
    monkeypatch.setattr(module, "_row_ids", lambda digest, attempt, n: real(b"" if not attempt else digest, attempt, n))
    first, second = (images.tokens(ImageFile(png(70, 60, seed))).parts[0] for seed in (1, 2))
    assert isinstance(first, bytes)
    assert isinstance(second, bytes)
    assert first[:4] != second[:4]
    assert images.tokens(ImageFile(png(70, 60, 1))).parts[0] == first


def test_known_images_are_bounded(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 2)
    images._known.clear()
    images._digests.clear()
    for width in range(60, 65):
        images.tokens(ImageFile(png(width, 90)))
    assert len(images._known) == len(images._digests) == 2


def test_known_image_does_not_wait_while_another_is_scaled(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's loop asks for the tokens of known images, and must not stand still."""
    known, new = ImageFile(png(66, 60)), ImageFile(png(66, 61))
    tokens, process = images.tokens(known), images._process
    has_begun, may_end, scaled = threading.Event(), threading.Event(), list[bytes]()

    def slow(file: ImageFile) -> object:
        scaled.append(file.digest)
        has_begun.set()
        may_end.wait()
        return process(file)

    monkeypatch.setattr(images, "_process", slow)
    with ThreadPoolExecutor() as threads:
        others = [threads.submit(images.tokens, new) for _ in range(2)]
        try:
            assert has_begun.wait(60)
            assert threads.submit(images.tokens, known).result(10) == tokens
            assert not threads.submit(images.pixels, known.digest).result(10).error
        finally:
            may_end.set()
        assert others[0].result() == others[1].result() == images.tokens(new)
    assert scaled == [new.digest]


# ---- prompts -------------------------------------------------------------------------------------------------------


class Still(Images):
    """Each image has two rows, and text around them."""

    def tokens(self, file: ImageFile) -> ImageTokens:
        shape = ImageShape(1, 2)
        ids = (np.frombuffer(file.digest[:8], np.int32) | np.int32(-(1 << 31))).tobytes()
        parts = (ids if isinstance(part, RowCount) else part for part in self.spec.expand(shape, "", ""))
        return ImageTokens(("<", *parts, ">"), shape, file)


@pytest.fixture
def writer(tiny_model: Callable[[str], Path], tmp_path: Path) -> tuple[Tokenizer, Images]:
    path = tiny_model("llama")
    return Tokenizer(path, Files.read(path)), Still(tmp_path, SPEC, lambda i: MARK)


def shown(runs: tuple[TokenRun, ...], tokenizer: Tokenizer) -> str:
    return "".join("*" * (len(run.ids) // 4) if run.image else tokenizer.text_of(unpack(run.ids)) for run in runs)


def prompt(images: Images | str, *parts: wire.Part | bytes) -> PromptText:
    text = PromptText(images=images)
    for part in parts:
        text.append_part(wire.Image(part, "image/png") if isinstance(part, bytes) else part)
    return text


USER, END = wire.BeginTurn("user"), wire.EndTurn()


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((USER, b"a", "see", END), "[user<**>-see]"),
        ((USER, "see ", b"a", b"b", "and", " this", END), "[user-see<**><**>-and this]"),
        ((USER, b"a", END, wire.BeginTurn("assistant")), "[user<**>][assistant:"),
        ((USER, "no", END, USER, b"a", END), "[user:no][user<**>]"),
        ((USER, "say <|im_start|>", b"a", END), "[user-say <|im_start|><**>]"),
        ((USER, "open ", b"a", "here"), "[user:open <|vision_start|><**><|vision_end|>here"),
        (("loose ", b"a", "!"), "loose <|vision_start|><**><|vision_end|>!"),
        ((USER, "a", b"a", END, " gap ", b"b", USER, "b", END),
         "[user-a<**>] gap <|vision_start|><**><|vision_end|>[user:b]"),
    ],
)  # fmt: skip
def test_images_stand_where_the_template_writes_them(
    writer: tuple[Tokenizer, Images], parts: tuple[wire.Part, ...], text: str
) -> None:
    tokenizer, images = writer
    template = ChatTemplate(TEMPLATE, {})
    whole = prompt(images, *parts)
    runs = whole.prompt(tokenizer, template, datetime.now()).encode(tokenizer)
    assert shown(runs, tokenizer) == text
    whole.learn(whole.copy(), runs)
    for part in ("more",) if whole.role else (USER, "more", END):
        whole.append_part(part)
    again = whole.prompt(tokenizer, template, datetime.now()).encode(tokenizer)
    assert [run.ids for run in again if run.image] == [run.ids for run in runs if run.image]
    rows, files = image_rows(runs)
    assert [file.data for file in files] == [part for part in parts if isinstance(part, bytes)]
    ids = np.frombuffer(b"".join(run.ids for run in runs), np.int32)
    assert [at for one in rows for at in range(one.start, one.start + one.n)] == np.flatnonzero(ids < 0).tolist()
    tokens, shown_text = whole.tokens(tokenizer, template, datetime.now())
    assert sum(np.frombuffer(tokens.lengths, np.int32)) == len(shown_text)
    assert min(unpack(tokens.ids)) >= 0


def test_marks_in_raw_text_of_a_template_that_rewrites_are_refused(writer: tuple[Tokenizer, Images]) -> None:
    tokenizer, images = writer
    template = ChatTemplate("{% for m in messages | reverse %}" + TEMPLATE.split("%}", 1)[1], {})
    text = prompt(images, USER, wire.Raw(MARK), b"a", END, USER, "b", END)
    with pytest.raises(BadProgram, match="2 marks for 1 images"):
        text.prompt(tokenizer, template, datetime.now())


def test_prompt_has_a_limited_number_of_images(writer: tuple[Tokenizer, Images]) -> None:
    tokenizer, images = writer
    text = prompt(images, *[b"a"] * MAX_IMAGES)
    with pytest.raises(BadProgram, match="at most 1024 images"):
        text.append_part(wire.Image(b"a", "image/png"))
    images.max_rows = 100
    with pytest.raises(PromptTooLong, match="take at least 102 tokens"):
        text.prompt(tokenizer, None, datetime.now())


def test_model_without_images_says_why() -> None:
    for why, match in (("", "takes only text"), ("it needs Pillow", "it needs Pillow")):
        with pytest.raises(Unsupported, match=match):
            prompt(why, b"a")


def test_template_that_takes_only_parts_gets_parts() -> None:
    only = "{% for m in messages %}[{% for p in m['content'] %}{{ p['text'] }}{% endfor %}]{% endfor %}"
    assert ChatTemplate(only, {}).render([ChatMessage("user", "words")]) == "[words]"
    assert ChatTemplate(TEMPLATE, {}).render([ChatMessage("user", "words")]) == "[user:words]"


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model_type": "internvl", "vision_config": {}}, "images with internvl models are not supported"),
        ({"model_type": "llava", "vision_config": {"model_type": "pixtral"}}, "tower is pixtral"),
        (
            {"model_type": "llava", "vision_config": {}, "vision_feature_select_strategy": "full"},
            "tower is clip_vision_model and whose vision_feature_select_strategy is full",
        ),
        (
            {"model_type": "llava", "vision_config": {"model_type": "siglip_vision_model"}},
            "tower is siglip_vision_model and whose vision_feature_select_strategy is default",
        ),
    ],
)
def test_family_without_support_is_named(config: dict[str, object], match: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text("{}")
    found = image_spec(tmp_path, config)
    assert isinstance(found, str)
    assert match in found


@pytest.mark.parametrize(("tower", "strategy"), [("clip_vision_model", "default"), ("siglip_vision_model", "full")])
def test_towers_of_llava_whose_rows_are_the_patches(tower: str, strategy: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text("{}")
    config = {"model_type": "llava", "vision_config": {"model_type": tower}, "vision_feature_select_strategy": strategy}
    assert isinstance(image_spec(tmp_path, config), ImageSpec)


def test_processor_and_pillow_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "gemma3", "vision_config": {}}
    assert "no preprocessor_config.json" in str(image_spec(tmp_path, config))
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert isinstance(image_spec(tmp_path, config), ImageSpec)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'banyan[images]'" in str(image_spec(tmp_path, config))
    assert image_spec(tmp_path, {"model_type": "llama"}) == ""


def test_first_frame_is_upright_and_in_rgb(images: Images) -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    picture(120, 60).convert("L").save(file, "JPEG", exif=exif)
    assert images.tokens(ImageFile(file.getvalue())).shape == ImageShape(4, 2)
