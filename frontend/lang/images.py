"""Reads images and recognises their file format."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from banyan.runtime.errors import BadProgram

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
}


def read(image: Any) -> bytes:
    """The bytes of an image file, given by its path, as bytes or as a PIL image. BadProgram: it cannot be read."""
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        try:
            return Path(image).expanduser().read_bytes()
        except OSError as e:
            raise BadProgram(f"image({str(image)!r}) cannot be read: {e.strerror}") from e
    if hasattr(image, "save"):
        file = io.BytesIO()
        image.save(file, format="PNG")
        return file.getvalue()
    raise BadProgram(f"image takes a path, bytes or a PIL image, not {type(image).__name__}")


def kind_of(data: bytes) -> str:
    """The media type, such as "image/png", by the first bytes. BadProgram: an unknown format."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    for signature, kind in _SIGNATURES.items():
        if data.startswith(signature):
            return kind
    raise BadProgram(f"these {len(data)} bytes are not an image; PNG, JPEG, WEBP, GIF and BMP are supported")
