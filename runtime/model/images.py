"""Says which models take images, and how their prompts represent an image. Imports neither torch nor transformers.

A prompt has a row (a placeholder token) for each vector that the vision tower makes from an image. In transformers'
prompts all of these rows have the same token id (`ImageSpec.row_id`). In Banyan's prompts their ids are negative and
computed from the hash of the image's file, so that the radix tree can tell images apart; the engine replaces them by
`row_id`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from banyan.runtime.errors import BadModel

Kind = Literal["llava", "qwen", "gemma3", "idefics3"]

_FAMILIES: dict[str, tuple[Kind, int]] = {
    "gemma3": ("gemma3", 262144),
    "idefics3": ("idefics3", 128257),
    "llava": ("llava", 32000),
    "qwen2_vl": ("qwen", 151655),
    "qwen2_5_vl": ("qwen", 151655),
    "qwen3_vl": ("qwen", 151655),
    "smolvlm": ("idefics3", 128257),
}
"""Family -> its kind, and transformers' default of `ImageSpec.row_id`, for a config.json without this id."""
_PROCESSOR = ("preprocessor_config.json", "processor_config.json")
_TOWERS = {"clip_vision_model": "default", "siglip_vision_model": "full"}
"""llava's vision tower -> the vision_feature_select_strategy with which each patch of the processed image has one row,
so that the number of rows follows from the image's size. "default" leaves out the tower's first vector, which in CLIP
stands for the whole image. Other towers are not supported."""


class ImageShape(msgspec.Struct, frozen=True, array_like=True):
    """The sizes that determine the tokens of an image in a prompt. height, width: how many rows the image has in each
    direction. n_down, n_across: how many tiles a large image is cut into, in each direction; 0: it is not cut. In the
    prompt, the rows of the tiles come first, then the rows of the whole image."""

    height: int
    width: int
    n_down: int = 0
    n_across: int = 0


class RowCount(NamedTuple):
    """A piece of an expanded prompt: n rows of an image."""

    n: int


class ImageSpec(msgspec.Struct, frozen=True):
    """How a model takes images.

    kind      a group of families that take images in the same way
    row_id    the id of a row of an image in transformers' prompts
    mark_id   the id that the chat template writes for an image
    end_id    the id after the rows of an image; -1: none
    per_tile  rows of the image, or of each of its tiles; 0: the number depends on the size of the image
    merge     patches per row, in each direction; for `qwen`
    patch     pixels of the scaled image per row, in each direction; for `llava`
    """

    kind: Kind
    row_id: int
    mark_id: int
    end_id: int = -1
    per_tile: int = 0
    merge: int = 1
    patch: int = 1

    @property
    def has_grid_positions(self) -> bool:
        """Whether rows of an image have positions on three axes, and the text after the image continues from the
        largest one (M-RoPE)."""
        return self.kind == "qwen"

    @property
    def is_bidirectional(self) -> bool:
        """Whether the rows of an image attend to each other in both directions."""
        return self.kind == "gemma3"

    @property
    def alone(self) -> tuple[str, str]:
        """The texts before and after the mark of an image that is not inside a turn."""
        return ("<|vision_start|>", "<|vision_end|>") if self.kind == "qwen" else ("", "")

    def expand(self, shape: ImageShape, mark: str, end: str) -> Iterator[str | RowCount]:
        """Yields what replaces the mark of an image (the token mark_id) in a prompt, as transformers' processor writes
        it: text with control tokens, and RowCount for rows of the image. mark, end: mark_id and end_id as text."""
        match self.kind:
            case "gemma3":
                yield f"\n\n{mark}"
                yield RowCount(self.per_tile)
                yield f"{end}\n\n"
            case "idefics3":
                around = "<fake_token_around_image>"
                for row in range(1, shape.n_down + 1):
                    for column in range(1, shape.n_across + 1):
                        yield f"{around}<row_{row}_col_{column}>"
                        yield RowCount(self.per_tile)
                    yield "\n"
                yield ("\n" if shape.n_down else "") + f"{around}<global-img>"
                yield RowCount(self.per_tile)
                yield around
            case _:
                yield RowCount(shape.height * shape.width)


def same_processor(a: Path, b: Path) -> bool:
    """Whether the image processor's files in two model directories have the same content."""
    return all(_content(a / name) == _content(b / name) for name in _PROCESSOR)


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def image_spec(path: Path, config: dict[str, Any]) -> ImageSpec | str:
    """Returns how the model in a directory takes images, or a string that says why it does not ("": it has no vision
    part). config: its config.json. BadModel: a number in it is invalid."""
    family = config.get("model_type", "")
    if (vision := config.get("vision_config")) is None:
        return ""
    if family not in _FAMILIES:
        known = ", ".join(f"`{name}`" for name in sorted(_FAMILIES))
        return f"images with {family} models are not supported, only text; image input is supported for {known}"
    if not any((path / name).is_file() for name in _PROCESSOR):
        return f"{path} has no preprocessor_config.json, which says how images are scaled"
    if importlib.util.find_spec("PIL") is None:
        return "to read images, the server needs Pillow: pip install 'banyan[images]'"
    kind, default_row_id = _FAMILIES[family]
    row_id = config.get("image_token_id", config.get("image_token_index")) or default_row_id
    try:
        match kind:
            case "gemma3":
                marks = config.get("boi_token_index") or 255999, config.get("eoi_token_index") or 256000
                return ImageSpec(kind, row_id, *marks, per_tile=config.get("mm_tokens_per_image") or 256)
            case "idefics3":
                n_patches = (vision.get("image_size") or 224) // (vision.get("patch_size") or 32)
                return ImageSpec(kind, row_id, row_id, per_tile=n_patches**2 // (config.get("scale_factor") or 2) ** 2)
            case "llava":
                if (tower := vision.get("model_type") or "clip_vision_model") not in _TOWERS:
                    return f"images with llava models whose tower is {tower} are not supported, only text"
                if (strategy := config.get("vision_feature_select_strategy") or "default") != _TOWERS[tower]:
                    return (
                        f"images with llava models whose tower is {tower} and whose vision_feature_select_strategy is "
                        f"{strategy} are not supported, only text"
                    )
                return ImageSpec(kind, row_id, row_id, patch=vision.get("patch_size") or 32)
            case _:
                return ImageSpec(kind, row_id, row_id, merge=vision.get("spatial_merge_size") or 2)
    except (TypeError, ZeroDivisionError) as e:
        raise BadModel(f"{path / 'config.json'}: invalid numbers for images: {e}") from e
