"""The loaded LoRA adapters, by digest."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch

from banyan.kernels.lora.adapted import AdapterWeights
from banyan.runtime.errors import BadModel, BanyanError, OutOfMemory
from banyan.runtime.model import lora
from banyan.runtime.model.spec import ModelSpec


class LoadedAdapters:
    """The adapters that a Run can use. weights: by the digest in Run.adapter. names: name -> digest, for the adapters
    in the configuration."""

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        self._spec, self._device = spec, device
        self.weights: dict[bytes, AdapterWeights] = {}
        self.names: dict[str, bytes] = {}
        self.leaving: set[bytes] = set()  # adapters that were unloaded, but may still be in use

    def load(self, directory: str, name: str) -> bytes:
        """Load the adapter in a directory, and return its digest. Raises what `lora.read` raises, BadModel if a file
        cannot be read, or OutOfMemory. The message contains the adapter's name."""
        try:
            digest, weights = lora.read(Path(directory), self._spec, self._device, getattr(torch, self._spec.dtype))
        except BanyanError as e:
            raise type(e)(f"adapter {name!r}: {e.message}") from e
        except OSError as e:  # no permission, a name that is too long, a file that vanished
            raise BadModel(f"adapter {name!r} cannot be read: {e}") from e
        except torch.OutOfMemoryError as e:
            raise OutOfMemory(f"adapter {name!r} does not fit on {self._device}: {e}") from e
        self.weights.setdefault(digest, weights)
        self.leaving.discard(digest)
        return digest

    def unload(self, digest: bytes) -> None:
        """Mark an adapter as unloaded. The next `free` that finds it unused frees it."""
        if digest in self.weights:
            self.leaving.add(digest)

    def free(self, used: Collection[bytes]) -> None:
        """Free the unloaded adapters that are not in `used`."""
        for digest in self.leaving.difference(used):
            self.leaving.remove(digest)
            del self.weights[digest]

    @property
    def n_bytes(self) -> int:
        return sum(weights.n_bytes for weights in self.weights.values())
