"""Loads a model directory into a model that the engine can run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from banyan.kernels.dispatch_report import why_not_deterministic
from banyan.kernels.lora.adapted import AdaptedRows
from banyan.kernels.native import build as native
from banyan.kernels.ops import Pool, Ragged
from banyan.runtime.errors import ConfigError, OutOfMemory
from banyan.runtime.model import decoder
from banyan.runtime.model.parallel import Shard, sharded
from banyan.runtime.model.spec import DTYPES, ModelSpec, read_spec, resolve, windowed
from banyan.runtime.model.weights import Checkpoint, Progress

KV = Sequence[tuple[Pool, Pool]]  # layer -> K and V pools, [n_pages, page_size, n_kv_heads, head_dim]

N_BITS = {"int8": 8, "int4": 4}
"""weight_dtype -> the number of bits to which weights are rounded"""


def keeps_fp4(spec: ModelSpec, weight_dtype: str) -> bool:
    """Whether experts that are stored in MXFP4 stay quantised in a model that transformers computes."""
    schemes = () if spec.quantisation is None else spec.quantisation.schemes
    return weight_dtype == "auto" and any(scheme.format == "mxfp4" for _, scheme in schemes)


class Model(Protocol):
    """The interface between the engine and a model. A model with a recurrent state, or that takes images, is an
    `HfModel`, which has more methods."""

    spec: ModelSpec

    @property
    def windows(self) -> Sequence[int]:
        """The sliding window of each layer: how many tokens a token attends to; 0: all."""

    def forward(
        self, ids: Tensor, positions: Tensor, ragged: Ragged, kv: KV, rows: Tensor, adapted: AdaptedRows | None = None
    ) -> Tensor:
        """Compute one step: write K and V of the new rows into `kv` and return logits.

        ids, positions  int64 [n_rows]: the tokens and their positions in their requests
        ragged          which rows belong to which request, and which slots hold its keys and values
        kv              one pair of K and V pools per layer, written in place
        rows            int64 [n_out]: the rows whose logits are needed
        adapted         the rows that use an adapter; only for a native family
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
    window: int = 0,
    sinks: int = 0,
    shard: Shard | None = None,
    progress: Progress | None = None,
) -> Model:
    """Load a model directory, .gguf file or hub id onto a device.

    dtype         the dtype to compute in: float32, bfloat16 or float16
    max_context   tokens of the longest request; default: the model's own limit, which may be exceeded only with a
                  `window`. Selects longrope's short or long factors, see `rope`
    deterministic the bits of a row's logits do not depend on the other rows of the batch
    weight_dtype  how the weights of linear layers are kept. auto: as they are stored if quantised, else in `dtype`;
                  int8, int4: rounded to 8 or 4 bits in groups of 32; a weight that is stored in no more bits than that
                  is kept as it is. dtype: dequantised to `dtype`
    window, sinks see `spec.windowed`
    shard         load only the part of this rank; the model's `spec` describes that part
    progress      called with (bytes read, bytes in total); `weights.bar` makes one

    Raises ModelNotFound, BadModel, Unsupported, ConfigError, or OutOfMemory.
    """
    directory = resolve(path)
    spec = windowed(read_spec(directory), window, sinks)
    if shard is not None:
        sharded(spec, shard.n_ranks)  # raises if the model cannot be cut
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")
    context = spec.max_context if max_context is None else max_context
    if context > spec.max_context and not window:
        raise ConfigError(f"context is {context}, but {spec.name} supports at most {spec.max_context} tokens")
    at = torch.device(device), getattr(torch, dtype), context
    if deterministic:
        spec.native("deterministic", "whose bits depend on the batch")
        if device == "cpu" and (reason := why_not_deterministic(at[1], spec.head_dim)):
            raise ConfigError(f"deterministic is not possible here: {reason}")
    if weight_dtype in N_BITS and device == "cpu" and (native.library() is None or at[1] not in native.DTYPES):
        why = "" if native.library() else f", and the kernels could not be built: {native.why_not()}"
        raise ConfigError(
            f"weight_dtype={weight_dtype!r} on a CPU needs a C++ compiler, GCC 12 or newer or Clang (see `banyan "
            f"kernels`), and float32 or bfloat16; here dtype is {dtype}{why}; leave it out"
        )
    try:
        if spec.dense is None:
            from banyan.runtime.model import hf

            return hf.build(spec, directory, *at, N_BITS.get(weight_dtype, 0), keeps_fp4(spec, weight_dtype), progress)
        with Checkpoint(directory, progress, at[1]) as weights:
            return decoder.build(spec, weights, *at, deterministic, weight_dtype, shard)
    except RuntimeError as e:
        if not isinstance(e, torch.OutOfMemoryError) and "can't allocate memory" not in str(e):
            raise
        raise OutOfMemory(
            f"the weights of {spec.name} ({spec.n_parameters:,} numbers in {dtype}) do not fit on {device}: {e}"
        ) from e
