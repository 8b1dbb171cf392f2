"""Says where a tensor of a checkpoint lies, and in which form."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple


class Stored(NamedTuple):
    """The place and form of a tensor. offset: bytes from the start of the file."""

    file: Path
    dtype: str  # the name that safetensors or GGUF has for it: F32, BF16, Q4_0, ...
    shape: tuple[int, ...]
    offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)
