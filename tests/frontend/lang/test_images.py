"""Images: the inputs that are read, and the error of a model that takes only text."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from msgspec.structs import replace
from PIL import Image, ImageOps

import banyan as bn
from banyan.lang import images as pictures
from banyan.runtime.protocol import wire


def encoded(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (2, 1), "red").save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif", "bmp"])
def test_image_is_read_from_path_bytes_and_pil_image(kind: str, tmp_path: Path) -> None:
    data = encoded(kind)
    file = tmp_path / "picture"
    file.write_bytes(data)
    for given in (str(file), file, data, bytearray(data)):
        assert bn.image(given) == bn.image(data)
    assert pictures.kind_of(data) == f"image/{kind}"
    with Image.open(file) as opened:
        assert pictures.kind_of(pictures.read(opened)) == "image/png"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pil_image_is_what_its_file_shows(orientation: int) -> None:
    """A JPEG may be turned by its EXIF data, and in a mode that a PNG cannot hold."""
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.linear_gradient("L").resize((32, 16)).rotate(30).convert("CMYK").save(file, "JPEG", exif=exif)
    with Image.open(file) as opened, Image.open(io.BytesIO(pictures.read(opened))) as found:
        assert (found.size, found.mode) == ((16, 32) if orientation > 4 else (32, 16), "RGB")
        shown = ImageOps.exif_transpose(opened).convert("RGB")
        assert found.convert("RGB").tobytes() == shown.tobytes()


def test_pil_image_with_malformed_exif_is_turned() -> None:
    """A width in EXIF that is a text: PIL reads it, but does not write it."""
    width, orientation = struct.pack("<HHL4s", 0x100, 2, 4, b"abc"), struct.pack("<HHLHH", 0x112, 3, 1, 6, 0)
    exif = b"Exif\0\0II*\0" + struct.pack("<LH", 8, 2) + width + orientation + bytes(4)
    Image.new("RGB", (32, 16)).save(file := io.BytesIO(), "JPEG", exif=exif)
    with Image.open(file) as opened, Image.open(io.BytesIO(pictures.read(opened))) as found:
        assert found.size == (16, 32)


def test_pil_image_whose_file_is_cut_off_is_refused() -> None:
    Image.linear_gradient("L").save(file := io.BytesIO(), "PNG")
    cut = io.BytesIO(file.getvalue()[:100])
    with Image.open(cut) as opened, pytest.raises(bn.BadProgram, match="cannot be written as a PNG"):
        pictures.read(opened)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("/no/such/file.png", "No such file"),
        ("a\0b", "null"),
        ("~no such user/x.png", "home"),
        (b"text", "not an image"),
        (5, "not int"),
        ("https://example.org/a.png", "takes no URLs"),
        ("data:image/png;base64,iVBORw0KGgo=", "takes no URLs"),
    ],
)
def test_invalid_image_is_refused(given: object, match: str) -> None:
    with pytest.raises(bn.BadProgram, match=match):
        bn.image(given)


@bn.function
def describe(s: bn.State) -> None:
    s += bn.user(["What is ", bn.image(encoded("png")), f"and {bn.image(encoded('gif'))}?"])
    s += bn.assistant(bn.gen("x"))


def test_text_only_model_refuses_images_before_sending(mock: bn.Mock) -> None:
    with pytest.raises(bn.Unsupported, match="image: the model mock takes only text"):
        describe.run()
    assert mock.submits == []


def test_image_outside_of_turns_is_in_no_message(mock: bn.Mock) -> None:
    mock.welcome, mock.refuses = replace(mock.welcome, images=True), frozenset()

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.image(encoded("png")) + bn.user("hi")

    assert program.run().messages() == [{"role": "user", "content": "hi"}]


def test_image_model_gets_the_bytes_in_place(mock: bn.Mock) -> None:
    mock.welcome, mock.refuses = replace(mock.welcome, images=True), frozenset()
    state = describe.run()
    parts = [part for op in mock.submits[0] if isinstance(op, wire.Append) for part in op.parts]
    assert [part.kind for part in parts if isinstance(part, wire.Image)] == ["image/png", "image/gif"]
    assert parts[1:4] == ["What is ", wire.Image(encoded("png"), "image/png"), "and "]
    before, first, between, second, after = state.messages()[0]["content"]
    texts = [{"type": "text", "text": text} for text in ("What is ", "and ", "?")]
    assert [before, between, after] == texts
    assert first["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert second["image_url"]["url"].startswith("data:image/gif;base64,")
    assert state["x"] == "<x>"
