"""Parses `quantization_config` in a config.json: how the weights are stored. Imports no torch.

Only what is needed to read the weights is parsed. Layers that are stored in floats are recognised by their tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.stored import Stored


class Scheme(msgspec.Struct, frozen=True):
    """How the weight of a linear layer is stored."""

    format: str  # a key of PACKED
    n_bits: int
    group: int = -1  # inputs per scale; -1: all
    block: tuple[int, int] | None = None  # outputs and inputs per scale, if scales form a grid
    is_w8a8: bool = False  # the checkpoint expects activations in 8 bits of the same type


class Quantisation(msgspec.Struct, frozen=True):
    """How a checkpoint stores its quantised linear layers: one scheme, or several for different layers."""

    title: str
    schemes: tuple[tuple[tuple[str, ...], Scheme], ...]  # (targets: patterns of the layers, scheme); see `scheme`

    def scheme(self, module: str) -> Scheme:
        """The scheme of the quantised linear layer `module`. A checkpoint with one scheme uses it for all layers. With
        several schemes, the first target that fits decides: the name of the layer, then a pattern ("re:...") that
        matches the start of the name, then "Linear". BadModel: no target fits."""
        if len(self.schemes) == 1:
            return self.schemes[0][1]
        for is_hit in (lambda target: target == module, lambda target: _fits(target, module),
                       lambda target: target == "Linear"):  # fmt: skip
            for targets, scheme in self.schemes:
                if any(map(is_hit, targets)):
                    return scheme
        raise BadModel(f"quantization_config has no group for {module}")

    def packs(self, tensors: Mapping[str, Stored], module: str) -> bool:
        """Whether the weight of `module` is stored quantised, not in floats. tensors: those of the checkpoint, by
        name."""
        for _, scheme in self.schemes:
            suffix, dtype = PACKED[scheme.format]
            if (stored := tensors.get(f"{module}.{suffix}")) is not None and stored.dtype == dtype:
                return True
        return False

    def __str__(self) -> str:
        parts = []
        for _, scheme in self.schemes:
            groups = f" in groups of {scheme.group}" if scheme.group > 0 else ""
            parts.append(f"{scheme.n_bits} bits{groups}")
        return f"{self.title}, {' and '.join(dict.fromkeys(parts))}"


PACKED = {
    "gptq": ("qweight", "I32"),
    "gptq_v2": ("qweight", "I32"),
    "awq": ("qweight", "I32"),
    "fp8": ("weight", "F8_E4M3"),
    "mxfp4": ("weight_packed", "U8"),
    "nvfp4": ("weight_packed", "U8"),
    "pack-quantized": ("weight_packed", "I32"),
    "int-quantized": ("weight", "I8"),
    "bitsandbytes-int8": ("weight", "I8"),
    "bitsandbytes-4bit": ("weight", "U8"),
}
"""Format -> the tensor that stores a layer's quantised weight: its name without that of the layer, and its dtype."""
EXPERTS = "_blocks", "_scales"
"""The ends of the names of the tensors in which gpt-oss stores experts in MXFP4."""
_BITS = {"I32": 32, "U8": 8, "I8": 8, "F8_E4M3": 8}
_INSTEAD = "load a checkpoint in a supported format, or in 16 bits (on a CPU weight_dtype='int8' quantizes it)"


def parse(config: Mapping[str, Any]) -> Quantisation | None:
    """The quantisation that a config.json describes; None if the weights are floats. Unsupported: the format, or an
    option of it, is not supported; BadModel: a value is invalid."""
    found = config.get("quantization_config") or config.get("compression_config")
    if _is_mlx(found or config.get("quantization")):
        raise Unsupported("the weights are in the format of MLX (Apple); load the model that they were made from")
    if not found:
        return None
    if not isinstance(found, dict):
        raise BadModel(f"quantization_config is {found!r}, but must be an object")
    method = found.get("quant_method")
    if method is None and (found.get("load_in_4bit") or found.get("load_in_8bit")):
        method = "bitsandbytes"  # older versions of bitsandbytes write no quant_method
    if not isinstance(method, str) or method not in _METHODS:
        raise Unsupported(f"quantization_config: quant_method {method!r} is not supported; supported: "
                          f"{', '.join(_METHODS)}; {_INSTEAD}")  # fmt: skip
    return _METHODS[method](found)


def _is_mlx(found: Any) -> bool:
    """Whether `found` is a quantisation object of MLX. Such an object does not name its format; it is recognised by
    integer `bits` and `group_size` without `quant_method`. MLX writes it to the field quantization of config.json, and
    mostly to quantization_config too."""
    fields = ("bits", "group_size")
    return isinstance(found, dict) and not found.get("quant_method") and all(type(found.get(f)) is int for f in fields)


def n_parameters(tensors: Mapping[str, Stored], quantisation: Quantisation) -> int:
    """The number of weights that the tensors of a checkpoint stand for, without scales and zero points."""
    total = 0
    for name, stored in tensors.items():
        module, suffix = split(name)
        if stored.dtype not in _BITS:
            is_scale = "scale" in suffix or suffix == "SCB" or suffix.startswith("weight.")
            total += 0 if is_scale or stored.dtype == "I64" else stored.n_elements
        elif suffix.endswith(EXPERTS[0]):
            total += 2 * stored.n_elements
        elif (suffix, stored.dtype) in PACKED.values() and quantisation.packs(tensors, module):
            total += stored.n_elements * (_BITS[stored.dtype] // quantisation.scheme(module).n_bits)
    return total


def split(name: str) -> tuple[str, str]:
    """The module of a tensor, and the tensor's name in it: a.q_proj.weight.absmax -> a.q_proj and weight.absmax."""
    module, found, rest = name.partition(".weight.")
    if found:
        return module, f"weight.{rest}"
    module, _, suffix = name.rpartition(".")
    return module, suffix


def _fits(target: str, module: str) -> bool:
    """Whether a target is a pattern ("re:...") that matches the start of a module's name. Unsupported: re2 cannot read
    the pattern."""
    import re2  # takes linear time, unlike re; the pattern comes from the checkpoint

    try:
        return target.startswith("re:") and re2.match(target[3:], module) is not None
    except re2.error as e:
        raise Unsupported(f"quantization_config: the target {target!r} is not a pattern for re2: {e}") from e


def _one_of(config: Mapping[str, Any], field: str, *known: Any, default: Any = None) -> Any:
    """The value of a field. Unsupported: the value is not one of `known`; upper and lower case count as equal."""
    value = config.get(field, default)
    value = default if value is None else value.lower() if isinstance(value, str) else value
    if value not in known or isinstance(value, bool) != isinstance(known[0], bool):
        names = ", ".join(map(repr, known))
        raise Unsupported(f"quantization_config: {field} is {value!r}; supported: {names}; {_INSTEAD}")
    return value


def _group(config: Mapping[str, Any], field: str = "group_size") -> int:
    group = config.get(field)
    if group is None:
        return -1
    if not isinstance(group, int) or isinstance(group, bool) or not (group > 0 or group == -1):
        raise BadModel(
            f"quantization_config: {field} is {group!r}, but must be a positive number, or -1 for all inputs"
        )
    return group


def _block(config: Mapping[str, Any], field: str) -> tuple[int, int] | None:
    match config.get(field):
        case None:
            return None
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
        case other:
            raise BadModel(f"quantization_config: {field} is {other!r}, but must be two positive numbers")


def _uniform(title: str, scheme: Scheme) -> Quantisation:
    return Quantisation(title, ((("Linear",), scheme),))


def _gptq(config: Mapping[str, Any]) -> Quantisation:
    _one_of(config, "is_marlin_format", False, default=False)
    _one_of(config, "pack_dtype", "int32", default="int32")
    field = "checkpoint_format" if config.get("checkpoint_format") else "format"
    version = _one_of(config, field, "gptq", "gptq_v2", default="gptq")
    return _uniform("GPTQ", Scheme(version, _one_of(config, "bits", 4, 8), _group(config)))


def _awq(config: Mapping[str, Any]) -> Quantisation:
    _one_of(config, "version" if config.get("version") else "format", "gemm", default="gemm")
    bits, group = ("bits", "group_size") if config.get("bits") else ("w_bit", "q_group_size")
    return _uniform("AWQ", Scheme("awq", _one_of(config, bits, 4), _group(config, group)))


def _fp8(config: Mapping[str, Any]) -> Quantisation:
    _one_of(config, "fmt", "e4m3", default="e4m3")
    return _uniform("FP8", Scheme("fp8", 8, -1, _block(config, "weight_block_size"), True))


def _bitsandbytes(config: Mapping[str, Any]) -> Quantisation:
    if config.get("load_in_8bit"):
        return _uniform("bitsandbytes int8", Scheme("bitsandbytes-int8", 8))
    kind = _one_of(config, "bnb_4bit_quant_type", "nf4", "fp4", default="fp4")
    _one_of(config, "bnb_4bit_quant_storage", "uint8", default="uint8")
    return _uniform(f"bitsandbytes {kind}", Scheme("bitsandbytes-4bit", 4))


def _compressed_tensors(config: Mapping[str, Any]) -> Quantisation:
    for field, what in {"sparsity_config": "sparse weights", "transform_config": "rotated weights"}.items():
        value = config.get(field)
        if value and not (isinstance(value, dict) and (value.get("format") == "dense" or not any(value.values()))):
            raise Unsupported(f"quantization_config has {field}: {what} are not supported; {_INSTEAD}")
    groups = config.get("config_groups")
    if not isinstance(groups, dict):
        raise BadModel("quantization_config has no config_groups")
    schemes = []
    for group in groups.values():
        if not isinstance(group, dict):
            raise Unsupported(f"quantization_config: a group is {group!r}; its scheme must be written out")
        weights, targets = group.get("weights"), group.get("targets")
        if not weights:
            continue  # a group that quantises only activations
        if not isinstance(weights, dict) or not isinstance(targets, list):
            raise BadModel("quantization_config: a group needs an object of weights and a list of targets")
        layout, activations = group.get("format") or config.get("format"), group.get("input_activations")
        scheme = _compressed_scheme(weights | {"format": layout})
        if isinstance(activations, dict):
            kinds = [(each.get("num_bits", 8), each.get("type", "int")) for each in (weights, activations)]
            is_w8a8 = scheme.n_bits == kinds[0][0] == 8 and kinds[0] == kinds[1]
            scheme = msgspec.structs.replace(scheme, is_w8a8=is_w8a8)
        schemes.append((tuple(map(str, targets)), scheme))
    if not schemes:
        raise BadModel("quantization_config: no group is for weights")
    return Quantisation("compressed-tensors", tuple(schemes))


def _compressed_scheme(weights: Mapping[str, Any]) -> Scheme:
    """The scheme of one group in compressed-tensors' config_groups. weights: the object `weights` of the group, and its
    `format`."""
    kind = _one_of(weights, "type", "int", "float", default="int")
    layout = _one_of(weights, "format", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
                     "mxfp4-pack-quantized", "nvfp4-pack-quantized")  # fmt: skip
    if layout in ("mxfp4-pack-quantized", "nvfp4-pack-quantized"):
        return Scheme(layout.partition("-")[0], 4, _group(weights))
    if layout == "pack-quantized":
        _one_of(weights, "type", "int", default="int")
        return Scheme(layout, _one_of(weights, "num_bits", 4, 8), _group(weights))
    if kind == "float":
        _one_of(weights, "num_bits", 8)
        group = _group(weights)
        return Scheme("fp8", 8, block=(1, group) if group > 0 else _block(weights, "block_structure"))
    _one_of(weights, "num_bits", 4, 8)  # one number per byte
    return Scheme("int-quantized", 8, _group(weights))


_METHODS: dict[str, Callable[[Mapping[str, Any]], Quantisation]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": lambda _: _uniform("MXFP4", Scheme("mxfp4", 4, 32)),
    "bitsandbytes": _bitsandbytes,
}
