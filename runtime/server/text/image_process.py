"""The process that decodes images and scales them for a model. A hostile image can crash only this process.

    python -m banyan.runtime.server.text.image_process --fd N --alive-fd M

It uses transformers' image processors with Pillow and numpy (their "pil" backend), which need no torchvision."""

from __future__ import annotations

import io
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from banyan.runtime.model.images import ImageShape, ImageSpec
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_PIXELS
from banyan.runtime.server.text.helper_process import serve

MAX_MEMORY = 4 << 30
"""Maximum number of bytes of address space that the process may use."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


class ProcessStart(msgspec.Struct, frozen=True):
    """The first message to the image process. directory: of the model. spec: how the model takes images."""

    directory: str
    spec: ImageSpec


class ProcessedImage(msgspec.Struct, frozen=True):
    """The answer to a message with the bytes of a file. error: why the file is not an image that the model can take."""

    shape: ImageShape = ImageShape(0, 0)
    arrays: dict[str, wire.PixelArray] = {}
    error: str = ""


class _InvalidImage(Exception):
    pass


class ImageProcessor:
    """The image processor that transformers has for a model. Called with the bytes of an image file; returns a
    ProcessedImage."""

    def __init__(self, start: ProcessStart) -> None:
        from transformers import AutoImageProcessor

        self._spec = start.spec
        self._processor: Any = AutoImageProcessor.from_pretrained(
            Path(start.directory), backend="pil", local_files_only=True, trust_remote_code=False
        )

    def __call__(self, data: bytes) -> ProcessedImage:
        image = _decode(data)
        kind, options = self._spec.kind, dict[str, Any]()
        if kind == "idefics3":
            options["return_row_col_info"] = True
        elif kind == "gemma3":
            options["do_pan_and_scan"] = False  # as transformers' processor of images and text does
        try:
            found = self._processor([[image]] if kind == "idefics3" else [image], return_tensors="np", **options)
        except ValueError as e:
            raise _InvalidImage(f"the model's image processor refuses it: {e}") from e
        pixels = found["pixel_values"]
        match kind:
            case "idefics3":
                shape = ImageShape(0, 0, int(found["rows"][0][0]), int(found["cols"][0][0]))
            case "qwen":
                _, height, width = found["image_grid_thw"][0].tolist()
                shape = ImageShape(height // self._spec.merge, width // self._spec.merge)
            case _:
                shape = ImageShape(*(size // self._spec.patch for size in pixels.shape[-2:]))
        names = ("pixel_values", "pixel_attention_mask", "image_grid_thw")
        arrays = {
            name: wire.PixelArray(found[name].shape, found[name].dtype.str, found[name].tobytes())
            for name in names
            if name in found
        }
        return ProcessedImage(shape, arrays)


def _decode(data: bytes) -> Any:
    """Decode the bytes of an image file. Returns a PIL image, upright and in RGB, as transformers loads it. Raises
    _InvalidImage if the file cannot be decoded, or has too many pixels."""
    from PIL import Image, ImageFile, ImageOps

    Image.MAX_IMAGE_PIXELS = None  # Pillow's own limit is off, since there is one below
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Exception as e:  # decoders raise anything
        raise _InvalidImage(f"not a readable image ({', '.join(FORMATS)}): {e}") from e
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise _InvalidImage(f"{width} x {height} pixels; at most {MAX_PIXELS:,} are allowed")
    try:
        return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as e:
        raise _InvalidImage(f"{width} x {height} pixels, which cannot be decoded: {e}") from e


def _start(hello: bytes) -> Callable[[bytes], bytes]:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    sys.modules["torch"] = None  # type: ignore[assignment]  # transformers' processors do without, and start sooner
    process = ImageProcessor(msgspec.msgpack.decode(hello, type=ProcessStart))

    def answer(data: bytes) -> bytes:
        try:
            found = process(data)
        except _InvalidImage as e:
            found = ProcessedImage(error=str(e))
        except MemoryError:
            found = ProcessedImage(error=f"it takes more than {MAX_MEMORY >> 30} GiB to scale it")
        except Exception as e:
            found = ProcessedImage(error=f"the model's image processor fails on it: {type(e).__name__}: {e}")
        return msgspec.msgpack.encode(found)

    return answer


if __name__ == "__main__":
    serve(_start)
