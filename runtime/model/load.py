"""From a directory to a model that runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from banyan.kernels.dispatch_report import why_not_deterministic
from banyan.kernels.ops import Pool, Ragged
from banyan.runtime.errors import ConfigError, OutOfMemory, Unsupported
from banyan.runtime.model import decoder
from banyan.runtime.model.spec import DTYPES, ModelSpec, read_spec, resolve
from banyan.runtime.model.weights import Checkpoint, Progress

KV = Sequence[tuple[Pool, Pool]]  # per layer K and V pools, [n_pages, page_size, n_kv_heads, head_dim]


class Model(Protocol):
    """What the engine knows of a model."""

    spec: ModelSpec

    @property
    def windows(self) -> Sequence[int]:
        """Of its layers: tokens that a token sees, 0: all."""

    def forward(self, ids: Tensor, positions: Tensor, ragged: Ragged, kv: KV, rows: Tensor) -> Tensor:
        """One step: write K and V of the new rows into `kv`, return logits of the rows asked for.

        ids, positions  int64 [n_rows]: tokens, and where each stands in its own request
        ragged          which rows belong to which request, and where its keys and values lie
        kv              one pair of pools per layer, changed in place
        rows            int64 [n_out]: rows whose logits are wanted
        Returns         float32 [n_out, vocab_size], in the order of `rows`
        """
        ...


def load(
    path: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    max_context: int | None = None,
    deterministic: bool = False,
    weight_dtype: str = "auto",
    progress: Progress | None = None,
) -> Model:
    """Read a model directory (or hub id) onto a device.

    dtype         what it computes in: float32, bfloat16 or float16
    max_context   tokens of the longest request that will be served, at most the model's own (the default); it decides
                  between longrope's short and long factors, see `rope`
    deterministic a row's logits are the same bits whatever rows stand beside it
    weight_dtype  auto: dtype; int8: those of linear layers in 8 bits, a scale for each output
    progress      called with (bytes read, bytes in all); `weights.bar` makes one

    Raises ModelNotFound, BadModel, Unsupported, ConfigError, or OutOfMemory.
    """
    directory = resolve(path)
    spec = read_spec(directory)
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")
    context = spec.max_context if max_context is None else max_context
    if context > spec.max_context:
        raise ConfigError(f"context is {context}, but {spec.name} was made for at most {spec.max_context} tokens")
    if deterministic:
        _check_deterministic(spec, device, getattr(torch, dtype))
    is_int8 = weight_dtype == "int8"
    if is_int8 and spec.dense is None:
        raise Unsupported(f"weight_dtype='int8' with {spec.name}: {spec.family} runs in transformers' own code")
    at = torch.device(device), getattr(torch, dtype), context
    try:
        if spec.dense is None:
            from banyan.runtime.model import hf

            return hf.build(spec, directory, *at, progress)
        with Checkpoint(directory, progress) as weights:
            return decoder.build(spec, weights, *at, deterministic, is_int8)
    except RuntimeError as e:
        if not isinstance(e, torch.OutOfMemoryError) and "can't allocate memory" not in str(e):
            raise
        raise OutOfMemory(
            f"the weights of {spec.name} ({spec.n_parameters:,} numbers in {dtype}) do not fit on {device}: {e}"
        ) from e


def _check_deterministic(spec: ModelSpec, device: str, dtype: torch.dtype) -> None:
    if spec.dense is None:
        raise Unsupported(
            f"deterministic with {spec.name}: {spec.family} runs in transformers' own code, whose bits depend on the "
            "batch; native families are llama, mistral, qwen2 and qwen3"
        )
    if device == "cpu" and (reason := why_not_deterministic(device, dtype, spec.head_dim)):
        raise ConfigError(f"deterministic is not possible here: {reason}")
