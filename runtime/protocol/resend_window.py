"""What one side of a program sent and the other may not have got: kept, in order, to be sent again when asked for."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

N_KEPT = 512
"""Messages of one program, one way, that are kept at most. What is lost and kept no longer is an error, not a wait."""

M = TypeVar("M")


class ResendWindow(Generic[M]):
    """The last messages of one program, one way. `n`: how many there were so far, which is the next one's seq."""

    __slots__ = ("_kept", "n")

    def __init__(self) -> None:
        self.n = 0
        self._kept: list[M] = []

    def put(self, message: M) -> None:
        """It was sent, with seq `n`."""
        self.n += 1
        self._kept.append(message)
        if len(self._kept) > N_KEPT:
            del self._kept[0]

    def came(self, n: int) -> None:
        """The other side has the first `n`."""
        if self._kept:
            del self._kept[: max(0, n - self.n + len(self._kept))]

    @property
    def is_empty(self) -> bool:
        """Whether all that was sent is known to have come."""
        return not self._kept

    def since(self, seq: int) -> list[M] | None:
        """The messages from `seq` on, for sending again; None: they are not all kept any more."""
        first = self.n - len(self._kept)
        return None if seq < first else self._kept[seq - first :]


def pack(numbers: Iterable[tuple[int, int, int]]) -> bytes:
    """(program, sent, seen) of each, as a Sync carries them."""
    return array("q", (number for three in numbers for number in three)).tobytes()


def unpack(programs: bytes) -> Iterator[tuple[int, int, int]]:
    """What `pack` packed. ValueError: bytes that it never gave."""
    if len(programs) % 24:
        raise ValueError("a Sync holds three numbers for each program")
    numbers = memoryview(programs).cast("q").tolist()
    return zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
