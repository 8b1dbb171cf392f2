"""Quantises a dense model, writes it as a checkpoint in compressed-tensors' format (pack-quantized), and measures the
loss."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from banyan.kernels.linear.grouped import Grouped
from banyan.kernels.ops import Pool, Ragged, ragged
from banyan.runtime.errors import ConfigError, Unsupported
from banyan.runtime.model.decoder import Decoder, Layer
from banyan.runtime.model.gguf.model import read_bytes
from banyan.runtime.model.linear import Linear
from banyan.runtime.model.load import load
from banyan.runtime.model.quantised.layer import pack
from banyan.runtime.model.quantised.rounding import Method, awq, gptq, rtn, smoothquant
from banyan.runtime.model.spec import read_spec
from banyan.runtime.model.weights import Checkpoint, Progress

_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Field of Layer -> the matrices of a checkpoint that it joins."""
_LENGTH = 512  # tokens of a text that run in one forward pass
_PAGE = 16
_TEXT_FILES = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
               "chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt", "tokenizer.model")  # fmt: skip


class Loss(NamedTuple):
    """The perplexity of a text before and after quantising, and the mean KL divergence of the next token's
    distribution, in nats."""

    before: float
    after: float
    kl: float


class Observed:
    """A linear layer that records statistics of its inputs x [n, n_in] over all calls. products: the sum of x^T x,
    [n_in, n_in]. largest: the largest absolute value of each input, [n_in]."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear
        self.products, self.largest = torch.zeros(()), torch.zeros(())

    def __call__(self, x: Tensor) -> Tensor:
        self.products = self.products + x.T @ x
        self.largest = self.largest.maximum(x.abs().amax(0))
        return self._linear(x)


def quantise(source: Path, out: Path, ids: Sequence[int], method: Method, n_bits: int, group: int,
             progress: Progress | None = None) -> None:  # fmt: skip
    """Write the model in `source` to the new directory `out`, with its linear layers quantised to `n_bits` and a scale
    per `group` inputs; embedding and head are not quantised. ids: a text of a few thousand tokens, on which the methods
    other than rtn observe the layers' inputs. progress: called with (layers done, layers).

    Raises ConfigError: `out` exists or cannot be created, or `group` does not divide the layers' inputs; Unsupported:
    the model is not dense, or is quantised already.
    """
    spec = read_spec(source)
    if spec.dense is None or spec.quantisation is not None:
        raise Unsupported(f"{spec.name} ({spec.kind}) cannot be quantised: it must be of a native family, in floats")
    sizes = spec.dense.hidden_size, spec.n_heads * spec.head_dim, spec.dense.intermediate_size
    if group < 1 or any(size % group for size in sizes):
        raise ConfigError(f"group is {group}, but layers have {', '.join(map(str, sizes))} inputs; it must divide them")
    if method != "rtn" and len(ids) < _LENGTH // 2:
        raise ConfigError(f"{method} needs a text of at least {_LENGTH // 2} tokens, and gets {len(ids)}")
    with _new_directory(out):
        model, dtype = _decoder(source), getattr(torch, spec.dtype)
        _write(source, out, _quantised(source, model, ids, method, (n_bits, group, dtype), progress), n_bits, group)


@contextmanager
def _new_directory(path: Path) -> Iterator[None]:
    """Create a directory before the work for it, which can take hours, and remove it if the work fails."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; name a new directory") from None
    except OSError as e:
        raise ConfigError(f"cannot create the directory {path}: {e.strerror or e}") from e
    try:
        yield
    except BaseException:
        shutil.rmtree(path)
        raise


def _quantised(source: Path, model: Decoder, ids: Sequence[int], method: Method, how: tuple[int, int, torch.dtype],
               progress: Progress | None) -> dict[str, Tensor]:  # fmt: skip
    """Return the tensors of the quantised checkpoint. how: n_bits, group and dtype, as for `rtn`."""
    layers, dtype = model.layers, how[2]
    texts = [] if method == "rtn" else [F.embedding(torch.tensor(part), model.embed) for part in _windows(ids, model)]
    tensors: dict[str, Tensor] = {}
    with Checkpoint(source, None, torch.float32) as weights:
        left = set(weights.tensors)
        for i, layer in enumerate(layers):
            names = {field: [f"model.layers.{i}.{part}" for part in parts] for field, parts in _PARTS.items()}
            raw = {field: torch.cat([weights.take(f"{name}.weight").float() for name in parts])
                   for field, parts in names.items()}  # fmt: skip
            layer, packed = _round(model, layer, raw, texts, method, how)
            texts = [_run(model, layer, x) for x in texts]
            for field, parts in names.items():
                left -= {f"{name}.weight" for name in parts}
                rows = [weights.tensors[f"{name}.weight"].shape[0] for name in parts]
                for name, part in zip(parts, _split(packed[field], rows), strict=True):
                    tensors |= {f"{name}.{suffix}": t for suffix, t in _stored(part).items()}
                if (bias := getattr(layer, field).bias) is not None:
                    tensors |= {f"{name}.bias": t for name, t in zip(parts, torch.split(bias, rows), strict=True)}
            tensors[f"model.layers.{i}.input_layernorm.weight"] = layer.attention_norm
            tensors[f"model.layers.{i}.post_attention_layernorm.weight"] = layer.mlp_norm
            if progress is not None:
                progress(i + 1, len(layers))
        tensors |= {name: weights.take(name) for name in left - tensors.keys()}
    return {name: (t.to(dtype) if t.is_floating_point() else t).contiguous().clone() for name, t in tensors.items()}


def _round(model: Decoder, layer: Layer, raw: dict[str, Tensor], texts: Sequence[Tensor], method: Method,
           how: tuple[int, int, torch.dtype]) -> tuple[Layer, dict[str, Grouped]]:  # fmt: skip
    """Quantises one layer. raw: field of Layer -> weight in float32. texts: the layer's inputs, [n, hidden] each. how:
    n_bits, group and dtype, as for `rtn`. Returns the layer with the rounded weights, and field -> quantised weight.
    With the method rtn, which needs no inputs, the layer is returned unchanged."""
    if method == "rtn":
        return layer, {field: rtn(weight, *how) for field, weight in raw.items()}
    observed: dict[str, Any] = {field: Observed(getattr(layer, field)) for field in _PARTS}
    for x in texts:
        _run(model, layer._replace(**observed), x)
    if method == "gptq":
        packed = {field: gptq(weight, observed[field].products, *how) for field, weight in raw.items()}
    else:
        factors = {
            field: awq(raw[field], observed[field].products, *how)
            if method == "awq"
            else smoothquant(raw[field], observed[field].largest)
            for field in ("qkv", "gate_up", "down")
        }
        layer, raw = _balanced(layer, raw, factors)
        packed = {field: rtn(weight, *how) for field, weight in raw.items()}
    rounded: dict[str, Any] = {field: Linear(weight.dequantise(), getattr(layer, field).bias)
                               for field, weight in packed.items()}  # fmt: skip
    return layer._replace(**rounded), packed


def measure(source: Path, out: Path, ids: Sequence[int], rounds_inputs: bool = False) -> Loss:
    """Measures the loss from quantising `source` to `out`, on a text that was not used for quantising. rounds_inputs:
    the inputs of linear layers are rounded to 8 bits too, as they are on a CPU."""
    before, after = _decoder(source), _decoder(out, "auto" if rounds_inputs else "dtype")
    sums, n = torch.zeros(3, dtype=torch.float64), 0
    for part in _windows(ids, before):
        rows = torch.arange(len(part))
        p, q = (model.forward(torch.tensor(part), rows, _batch(len(part)), _pools(model, len(part)), rows[:-1])
                .log_softmax(-1) for model in (before, after))  # fmt: skip
        targets = torch.tensor(part[1:])[:, None]
        sums += torch.stack([-p.gather(1, targets).sum(), -q.gather(1, targets).sum(), (p.exp() * (p - q)).sum()])
        n += len(part) - 1
    p_loss, q_loss, kl = (sums / max(1, n)).tolist()
    return Loss(math.exp(p_loss), math.exp(q_loss), kl)


def _decoder(path: Path, weight_dtype: str = "dtype") -> Decoder:
    model = load(path, weight_dtype=weight_dtype)
    assert isinstance(model, Decoder)
    return model


def _balanced(layer: Layer, raw: dict[str, Tensor], factors: dict[str, Tensor]) -> tuple[Layer, dict[str, Tensor]]:
    """Multiplies the columns of a layer's weights by `factors`, and divides the inputs of these weights by the same
    factors, so that the layer computes the same. To divide the inputs, it changes the norms before qkv and gate_up, and
    the rows of `up`, which compute the inputs of down. `out` is not changed: its inputs are values, which heads share
    (GQA). Returns the layer with the new norms, and the new weights."""
    raw = {field: weight * factors.get(field, 1.0) for field, weight in raw.items()}
    back = torch.cat([torch.ones_like(factors["down"]), 1 / factors["down"]])  # gate and up
    raw["gate_up"] *= back[:, None]
    gate_up = layer.gate_up
    if gate_up.bias is not None:
        gate_up.bias = gate_up.bias * back
    norms = layer.attention_norm / factors["qkv"], layer.mlp_norm / factors["gate_up"]
    return layer._replace(attention_norm=norms[0], mlp_norm=norms[1]), raw


def _windows(ids: Sequence[int], model: Decoder) -> Iterator[Sequence[int]]:
    """Cuts a text into pieces, each for one forward pass; a short last piece is left out."""
    length = min(_LENGTH, model.spec.max_context, len(ids))
    return (ids[at : at + length] for at in range(0, len(ids) - length + 1, max(1, length)))


def _run(model: Decoder, layer: Layer, x: Tensor) -> Tensor:
    """Runs one layer: hidden states before it -> hidden states after it, [n, hidden]."""
    model.layers = (layer,)
    angles = torch.arange(len(x))[:, None] * model.frequencies
    cos_sin = angles.cos() * model.rope_scale, angles.sin() * model.rope_scale
    h, x = model.layer_by_layer(x, cos_sin, _batch(len(x)), _pools(model, len(x))[:1], None, None)
    return h + x


def _batch(n: int) -> Ragged:
    """The Ragged (which rows belong to which request, and where its KV lies) of a step with one text of n tokens."""
    return ragged([n], [n], [range(-(-n // _PAGE))], _PAGE)


def _pools(model: Decoder, n: int) -> list[tuple[Pool, Pool]]:
    """K and V pools for each layer, with enough pages for one text of n tokens."""
    shape = -(-n // _PAGE), _PAGE, model.spec.n_kv_heads, model.spec.head_dim
    return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(model.spec.n_layers)]


def _split(weight: Grouped, rows: list[int]) -> Iterator[Grouped]:
    parts = zip(torch.split(weight.numbers, rows), torch.split(weight.scale, rows), strict=True)
    return (Grouped(numbers, scale, None, weight.n_bits) for numbers, scale in parts)


def _stored(weight: Grouped) -> dict[str, Tensor]:
    unsigned = weight.numbers + (8 if weight.n_bits == 4 else -128)  # in a byte, -128 is 128
    return {
        "weight_packed": pack(unsigned.view(torch.uint8), weight.n_bits),
        "weight_scale": weight.scale,
        "weight_shape": torch.tensor(weight.numbers.shape),
    }


def _write(source: Path, out: Path, tensors: dict[str, Tensor], n_bits: int, group: int) -> None:
    """Write a model directory: `tensors`, config.json, and the other text files of `source`, such as those of the
    tokenizer."""
    config = json.loads(read_bytes(source / "config.json"))
    weights = {"num_bits": n_bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": group,
               "dynamic": False}  # fmt: skip
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": None,
                "output_activations": None,
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }
    # the config.json of a GGUF file has no architectures
    config.setdefault("architectures", [f"{config['model_type'].capitalize()}ForCausalLM"])
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for name in _TEXT_FILES:
        try:
            (out / name).write_bytes(read_bytes(source / name))
        except FileNotFoundError:
            continue
    (out / "config.json").write_text(json.dumps(config, indent=1))
