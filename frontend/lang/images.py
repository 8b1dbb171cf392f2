"""Reads images and recognises their file format."""

from __future__ import annotations

import io
import os
from base64 import b64encode
from pathlib import Path
from typing import Any

from banyan.runtime.errors import BadProgram

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
}
ORIENTATION = 0x0112
"""The tag of EXIF data that says how to turn the image."""
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""The orientation in an image's EXIF data -> the Transpose of PIL that makes the image upright. (exif_transpose of PIL
also writes the EXIF data anew, which fails with other errors if they are malformed.)"""


def read(image: Any) -> bytes:
    """The bytes of an image file. image: its path, its bytes, or a PIL image. BadProgram: the image cannot be read."""
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str) and image.startswith(("http://", "https://", "data:")):
        raise BadProgram(f"image({image[:60]!r}): image takes no URLs; read the image, and give its bytes")
    if isinstance(image, str | os.PathLike):
        try:
            return Path(image).expanduser().read_bytes()
        except OSError as e:
            raise BadProgram(f"image({str(image)!r}) cannot be read: {e.strerror}") from e
        except (ValueError, RuntimeError) as e:  # a null character, or a user without a home
            raise BadProgram(f"image({str(image)!r}) cannot be read: {e}") from e
    if hasattr(image, "save"):
        return _png(image)
    raise BadProgram(f"image takes a path, bytes or a PIL image, not {type(image).__name__}")


def _png(image: Any) -> bytes:
    """A PIL image as a PNG file. The pixels are turned upright, because the file gets no EXIF orientation."""
    try:
        turn = _TURNS.get(image.getexif().get(ORIENTATION))
        upright = image if turn is None else image.transpose(turn)
        try:
            return _saved(upright)
        except OSError:  # a PNG cannot hold its mode, such as CMYK
            return _saved(upright.convert("RGB"))
    except (OSError, ValueError) as e:  # for example, the image's file is cut off
        raise BadProgram(f"the PIL image cannot be written as a PNG: {e}") from e


def _saved(image: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format="PNG", exif=b"")  # without the orientation
    return file.getvalue()


def kind_of(data: bytes) -> str:
    """The media type of an image file, such as "image/png", by its first bytes. BadProgram: the format is unknown."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    for signature, kind in _SIGNATURES.items():
        if data.startswith(signature):
            return kind
    raise BadProgram(f"these {len(data)} bytes are not an image; PNG, JPEG, WEBP, GIF and BMP are supported")


def message_part(data: bytes, kind: str) -> dict[str, Any]:
    """The part of a message, in the form of OpenAI's API, that holds an image. kind: its media type."""
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{b64encode(data).decode()}"}}
