"""Computes the memory of a model's weights from config.json and the checkpoint's headers alone.

The model is built as `load` builds it, but from tensors that have a shape and no content. So the code that packs, pads
or rounds a weight also determines its size, and there are no formulas that must follow the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from banyan.runtime.model import decoder
from banyan.runtime.model.linear import Linear
from banyan.runtime.model.load import N_BITS, keeps_fp4
from banyan.runtime.model.parallel import Shard
from banyan.runtime.model.spec import ModelSpec
from banyan.runtime.model.weights import Headers


class WeightSize(NamedTuple):
    """The size of a model's weights in bytes. n_bytes: all weights. per_step: the weights that a decode step reads.
    This is all weights, including all experts, but without the embedding, of which a step reads only a few rows. An
    embedding that is also the head (tied) counts."""

    n_bytes: int
    per_step: int


def weight_size(
    path: Path, spec: ModelSpec, device: str, dtype: str, context: int, deterministic: bool, weight_dtype: str,
    shard: Shard | None = None,
) -> WeightSize:  # fmt: skip
    """The bytes of weights that `load` with these arguments will keep in memory. path, spec: the results of `resolve`
    and `read_spec`.

    The result is exact, with three exceptions. First, the data of a quantised checkpoint is not read. It may show that
    all zero points of a layer are in the middle of their range, which makes the layer smaller, or that its groups are
    scattered (act order), which makes `load` keep the layer in floats. Second, a head that is stored although
    config.json ties it to the embedding is counted, but `load` drops it if it is a copy. Third, oneDNN's packed layout
    is assumed to be as large as the weight. Raises what `load` raises for a model that cannot be loaded.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # here, because this import takes a second

    number = getattr(torch, dtype)
    Linear(torch.zeros(1, 1, dtype=number), dtype=number)  # its cached tests, such as `_can_pack`, need real tensors
    # On a CPU, weights have their own layouts, so empty tensors must report the device cpu, as fake tensors do.
    is_cpu = device == "cpu"
    at = torch.device("cpu" if is_cpu else "meta")
    with FakeTensorMode(allow_non_fake_inputs=True) if is_cpu else nullcontext():
        if spec.dense is None:
            from banyan.runtime.model import hf

            kept = N_BITS.get(weight_dtype, 0), keeps_fp4(spec, weight_dtype)
            return measure(hf.build_empty(spec, path, at, number, *kept))
        weights = Headers(path, at, number)
        return measure(decoder.build(spec, weights, at, number, context, deterministic, weight_dtype, shard))


def least_bytes(path: Path, spec: ModelSpec, dtype: str, weight_dtype: str) -> int:
    """A lower bound of the weights' size in bytes, computed without reading any file: for each parameter half a byte if
    the weights are quantised, else the size of `dtype`."""
    is_stored_small = spec.quantisation is not None or path.suffix == ".gguf"
    is_small = weight_dtype in N_BITS or (weight_dtype == "auto" and is_stored_small)
    return spec.n_parameters // 2 if is_small else spec.n_parameters * int(getattr(torch, dtype).itemsize)


@torch.library.register_fake("mkldnn::_reorder_linear_weight")  # type: ignore[untyped-decorator]
def _reordered(weight: Tensor, batch_size: int | None = None) -> Tensor:
    return torch.empty_like(weight)


def measure(model: Any) -> WeightSize:
    """Adds up the weights of a `load.Model`, or of a module of transformers."""
    model = getattr(model, "module", model)
    tensors = {id(tensor): tensor for tensor in tensors_of(model)}
    n_bytes = sum(tensor.nbytes for tensor in tensors.values())
    if isinstance(model, decoder.Decoder):
        embed, head = model.embed, model.head
    else:
        embed, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    is_tied = getattr(head, "weight", None) is embed
    return WeightSize(n_bytes, n_bytes - (0 if is_tied else embed.nbytes))


def tensors_of(thing: object) -> Iterator[Tensor]:
    """Yields all tensors of a model, a layer, or a nested list of these. A tensor may occur several times."""
    match thing:
        case Tensor():
            yield thing
        case tuple() | list():
            for part in thing:
                yield from tensors_of(part)
        case Linear():
            yield from tensors_of((thing.weight, thing.bias))
        case decoder.Decoder():
            yield from tensors_of((thing.embed, thing.layers, thing.norm, thing.head, thing.frequencies))
        case nn.Module():
            yield from (*thing.parameters(), *thing.buffers())
            yield from tensors_of([module.packed for module in thing.modules() if hasattr(module, "packed")])
