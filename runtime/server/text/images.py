"""The images of prompts on the server: the tokens that stand for them, and the pixels that the engine needs.

A separate process (image_process.py) decodes and scales files: once when a prompt is encoded, and again if the engine
asks for pixels that are no longer kept. If the process dies, another one is started."""

from __future__ import annotations

import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cached_property
from hashlib import blake2b, shake_128
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from banyan.runtime.errors import BadProgram, BanyanError
from banyan.runtime.model.images import ImageShape, ImageSpec, RowCount
from banyan.runtime.protocol import wire
from banyan.runtime.server.text.bounded_cache import BoundedCache
from banyan.runtime.server.text.helper_process import HelperProcess
from banyan.runtime.server.text.image_process import ProcessedImage, ProcessStart

COMMAND = (sys.executable, "-m", "banyan.runtime.server.text.image_process")

SECONDS = 20.0
"""The time limit for one image in the process, in seconds. 12 megapixels take 0.5 s of CPU."""
PIXEL_BYTES = 128 << 20
"""Maximum number of bytes of scaled pixels that are kept until the engine asks for them."""
MAX_KNOWN = 1 << 16
"""Maximum number of images whose shapes and first ids are kept."""


class ImageFile:
    """The file of an image in prompts. Copies of a prompt share this object, which exists as long as a prompt or a
    request needs it."""

    __slots__ = ("__dict__", "__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def digest(self) -> bytes:
        return blake2b(self.data, digest_size=32).digest()


class ImageTokens(NamedTuple):
    """The tokens that replace an image's mark in a prompt.

    parts: in order, texts with control tokens (str), and ids of the image's rows (bytes of int32). shape: the shape of
    the image's grid. file: the image file, kept because the engine may ask for its pixels; equal files share one
    object."""

    parts: tuple[str | bytes, ...]
    shape: ImageShape
    file: ImageFile


class _KnownImage(NamedTuple):
    shape: ImageShape
    attempt: int
    """How many first ids of this image were already taken by other images; see _row_ids."""


class Images:
    """The images of all prompts of a server. Thread-safe.

    spell: returns the text of an id."""

    def __init__(self, directory: Path, spec: ImageSpec, spell: Callable[[int], str]) -> None:
        self.spec = spec
        self.max_rows = 0
        """Maximum number of rows that the images of a prompt may have; 0 until the model's context is known."""
        self.mark, self._end = spell(spec.mark_id), spell(spec.end_id) if spec.end_id >= 0 else ""
        self._lock = threading.Lock()  # for the dicts; the loop takes it, so it is not held while an image is scaled
        self._scaling = threading.Lock()  # so that no two threads scale the same image
        self._helper = HelperProcess(COMMAND, _hello(directory, spec), "the model's image processor")
        self._files: WeakValueDictionary[bytes, ImageFile] = WeakValueDictionary()
        self._known: OrderedDict[bytes, _KnownImage] = OrderedDict()  # by digest
        self._digests: dict[int, bytes] = {}  # first id of an image -> its digest
        self.pixel_cache: BoundedCache[dict[str, wire.PixelArray]] = BoundedCache(PIXEL_BYTES)

    def move(self, directory: Path) -> None:
        """Read the image processor from `directory` when the process is started again. The directory has the same
        processor files as the one before, which may be deleted."""
        self._helper.hello = _hello(directory, self.spec)

    def tokens(self, file: ImageFile) -> ImageTokens:
        """The tokens of an image. BadProgram: the file is not an image that the model can take."""
        digest = file.digest
        with self._lock:
            file = self._files.setdefault(digest, file)
        if (known := self._find(digest)) is None:
            known = self._learn(digest, file)
        parts = list(self.spec.expand(known.shape, self.mark, self._end))
        ids = _row_ids(digest, known.attempt, sum(part.n for part in parts if isinstance(part, RowCount)))
        return ImageTokens(tuple(_filled(parts, ids)), known.shape, file)

    def _find(self, digest: bytes) -> _KnownImage | None:
        with self._lock:
            if (known := self._known.get(digest)) is not None:
                self._known.move_to_end(digest)
            return known

    def _learn(self, digest: bytes, file: ImageFile) -> _KnownImage:
        with self._scaling:
            if (known := self._find(digest)) is not None:  # another thread has learnt it meanwhile
                return known
            shape, _ = self._process(file)
            with self._lock:
                known = self._known[digest] = _KnownImage(shape, self._first_attempt(digest))
                if len(self._known) > MAX_KNOWN:
                    oldest, gone = self._known.popitem(last=False)
                    self._digests.pop(_row_ids(oldest, gone.attempt, 1)[0], None)
            return known

    def _first_attempt(self, digest: bytes) -> int:
        """Returns the smallest `attempt` for which the image gets a first id that no other image has (see _row_ids).

        Ids have 31 bits, so the first ids of two images can be equal by chance. The images would then share a row in
        the radix tree."""
        attempt = 0
        while self._digests.setdefault(_row_ids(digest, attempt, 1)[0], digest) != digest:
            attempt += 1
        return attempt

    def pixels(self, digest: bytes) -> wire.ImagePixels:
        """The pixels of an image whose tokens were asked for, or the reason why there are none."""
        with self._lock:
            arrays, file = self.pixel_cache.get(digest), self._files.get(digest)
        if arrays is None and file is not None:
            try:
                with self._scaling:
                    arrays = self.pixel_cache.get(digest) or self._process(file)[1]
            except BanyanError as e:
                return wire.ImagePixels(digest, error=e.message)
        if arrays is None:
            return wire.ImagePixels(digest, error="the image is not on the server any more")
        return wire.ImagePixels(digest, arrays)

    def close(self) -> None:
        """End the process, if there is one. Idempotent."""
        self._helper.close()

    def _process(self, file: ImageFile) -> tuple[ImageShape, dict[str, wire.PixelArray]]:
        what = f"an image of {len(file.data)} bytes"
        try:
            answer = msgspec.msgpack.decode(self._helper.ask(file.data, SECONDS), type=ProcessedImage)
        except TimeoutError:
            raise BadProgram(f"{what} takes more than {SECONDS:.0f} s to scale") from None
        except (EOFError, OSError) as e:
            raise BadProgram(f"the process that scales images died while it read {what}") from e
        if answer.error:
            raise BadProgram(f"{what}: {answer.error}")
        self.pixel_cache.put(file.digest, answer.arrays, sum(len(one.data) for one in answer.arrays.values()))
        return answer.shape, answer.arrays


def _hello(directory: Path, spec: ImageSpec) -> bytes:
    return msgspec.msgpack.encode(ProcessStart(str(directory), spec))


def _row_ids(digest: bytes, attempt: int, n: int) -> array[int]:
    """Returns the ids of the `n` rows of an image: negative int32 numbers computed from its digest. attempt: another
    number gives the image other ids."""
    ids = array("I", shake_128(digest + attempt.to_bytes(4, "little")).digest(4 * n))
    return array("i", array("I", (i | 1 << 31 for i in ids)).tobytes())


def _filled(parts: list[str | RowCount], ids: array[int]) -> Iterator[str | bytes]:
    """Yields the parts, with each RowCount replaced by that many of the `ids`, as bytes of int32."""
    at = 0
    for part in parts:
        if isinstance(part, RowCount):
            yield ids[at : at + part.n].tobytes()
            at += part.n
        else:
            yield part
