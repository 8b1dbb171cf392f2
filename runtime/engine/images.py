"""Keeps the images of requests in the engine, first as pixels, then as embeddings, and makes their rows of a batch.

A request that must compute rows of an image waits until the image has arrived (`Scheduler`). If all rows of an image
are in the tree, the request does not need it. The server keeps the files, so the engine can ask again for an image that
it dropped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import to_device
from banyan.kernels.ops import Ragged
from banyan.runtime.engine.scheduling.request import Work
from banyan.runtime.model.images import ImageSpec
from banyan.runtime.model.towers import ImageInputs, ImageSpan
from banyan.runtime.protocol import wire

CACHE_BYTES = 256 << 20
"""Maximum number of bytes of images that are kept for later requests. A request also holds its own images."""


class EngineImage:
    """One image: its pixels until its rows are computed for the first time, then its embeddings."""

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        self.arrays = arrays
        self.values: tuple[Tensor, ...] = ()

    @property
    def n_bytes(self) -> int:
        return sum(one.nbytes for one in (*self.arrays.values(), *self.values))


class EngineImages:
    """The images that requests need, by digest. Images beyond CACHE_BYTES are dropped, the least recently used first.

    spec: how the model takes images; None: it does not take images. tower: see `ImageTower`. device: the model's
    device."""

    def __init__(
        self,
        spec: ImageSpec | None,
        tower: Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]] | None,
        device: torch.device,
    ) -> None:
        self._spec, self._tower, self._device = spec, tower, device
        self._images: OrderedDict[bytes, EngineImage] = OrderedDict()
        self._n_bytes = self.n_encoded = 0

    @property
    def kept(self) -> tuple[int, int]:
        """The bytes of all images, and the maximum."""
        return self._n_bytes, CACHE_BYTES

    def add(self, pixels: wire.ImagePixels) -> None:
        """Store the pixels of an image, which the server has sent on request. ValueError: its arrays are invalid. Does
        nothing if the server sent an error instead."""
        if pixels.error:
            return
        arrays = {
            name: torch.from_numpy(np.frombuffer(bytearray(one.data), one.dtype).reshape(one.shape))
            for name, one in pixels.arrays.items()
        }
        self._forget(pixels.image)
        self._images[pixels.image] = image = EngineImage(arrays)
        self._n_bytes += image.n_bytes
        self._evict()

    def _evict(self) -> None:
        while self._n_bytes > CACHE_BYTES and len(self._images) > 1:
            self._forget(next(iter(self._images)))

    def _forget(self, digest: bytes) -> None:
        if (image := self._images.pop(digest, None)) is not None:
            self._n_bytes -= image.n_bytes

    def find(self, digest: bytes) -> EngineImage | None:
        if digest in self._images:
            self._images.move_to_end(digest)
        return self._images.get(digest)

    def _values(self, digest: bytes, image: EngineImage) -> tuple[Tensor, ...]:
        """The image's embeddings, which the tower computes at the first call."""
        if not image.values:
            assert self._tower is not None
            before = image.n_bytes
            image.values, image.arrays = self._tower(image.arrays), {}
            self.n_encoded += 1
            if self._images.get(digest) is image:
                self._n_bytes += image.n_bytes - before
                self._evict()
        return image.values

    def inputs(self, works: Sequence[Work], ragged: Ragged) -> ImageInputs | None:
        """The image inputs of a step: embeddings for its rows of images, and positions for all of its rows. None if the
        step needs neither. ragged: the layout of the step's rows."""
        if self._spec is None or not any(work.request.run.images for work in works):
            return None
        rows: list[int] = []
        parts: list[tuple[Tensor, ...]] = []
        blocks: list[ImageSpan] = []
        assert ragged.host is not None
        at = ragged.host.position.astype(np.int64)
        axes = at[None].repeat(3, 0) if self._spec.has_grid_positions else None
        row = 0
        for work in works:
            request, start, end = work.request, work.start, work.start + work.n_new
            for one in request.run.images:
                first, last = max(start, one.start), min(end, one.start + one.n)
                if first >= last:
                    continue
                rows.extend(range(row + first - start, row + last - start))
                rows_of_image = slice(one.first + first - one.start, one.first + last - one.start)
                image = request.images[one.image]
                parts.append(tuple(value[rows_of_image] for value in self._values(one.image, image)))
                if self._spec.is_bidirectional:
                    pages, window = work.lease.pages, work.lease.window
                    own = pages if window is None else window.pages
                    blocks.append(ImageSpan(row + first - start, last - first, first, one.start, pages, own))
            n_rows = work.n_new + len(work.draft)
            if axes is not None and request.run.images:
                axes[:, row : row + n_rows] = grid_positions(request.run.images, at[row : row + n_rows])
            row += n_rows
        joined = [torch.cat(values) for values in zip(*parts, strict=True)]
        at_device = None if axes is None else to_device(np.ascontiguousarray(axes), self._device)
        if not joined:
            empty = torch.empty(0, dtype=torch.int64, device=self._device)
            return None if at_device is None else ImageInputs(empty, empty, positions=at_device)
        row_tensor = to_device(np.array(rows, np.int64), self._device)
        return ImageInputs(row_tensor, joined[0], tuple(joined[1:]), at_device, tuple(blocks))


def grid_positions(images: Sequence[wire.ImageRows], positions: np.ndarray) -> np.ndarray:
    """Positions of three axes, int64 [3, n], of tokens at `positions` of a text (M-RoPE; Wang et al., Qwen2-VL, 2024).

    The positions of a row of an image are its time, line and column, counted from the first position after the
    preceding text. The text after the image continues after the largest of these. So a token's positions follow from
    the images before it, and are not stored."""
    axes: np.ndarray = positions[None].repeat(3, 0)
    n_saved = 0
    for one in images:
        row = positions - one.start
        axes[:, row >= one.n] -= one.n - max(one.height, one.width)
        inside = (row >= 0) & (row < one.n)
        row, base = row[inside], one.start - n_saved
        axes[:, inside] = base + np.stack((0 * row, row // one.width, row % one.width))
        n_saved += one.n - max(one.height, one.width)
    return axes
