"""Pictures: from what users have to the bytes of a file, and what kind of file that is."""

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


def read(picture: Any) -> bytes:
    """The bytes of a picture that is given as a path, as bytes, or as a PIL image. BadProgram says what is wrong."""
    if isinstance(picture, bytes | bytearray | memoryview):
        return bytes(picture)
    if isinstance(picture, str | os.PathLike):
        try:
            return Path(picture).expanduser().read_bytes()
        except OSError as e:
            raise BadProgram(f"image({str(picture)!r}) cannot be read: {e.strerror}") from e
    if hasattr(picture, "save"):
        file = io.BytesIO()
        picture.save(file, format="PNG")
        return file.getvalue()
    raise BadProgram(f"image takes a path, bytes or a PIL image, not {type(picture).__name__}")


def kind_of(data: bytes) -> str:
    """ "image/png" and so on, by the first bytes. BadProgram: none of the kinds that models know."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    for signature, kind in _SIGNATURES.items():
        if data.startswith(signature):
            return kind
    raise BadProgram(f"these {len(data)} bytes are no picture: PNG, JPEG, WEBP, GIF and BMP are known")
