"""Writes a tiny model's linear layers in the formats of quantised checkpoints. Each packer follows the format's
description number by number, and returns (packed tensors, the float weight that they stand for)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Packed = tuple[dict[str, Tensor], Tensor]
GROUP = 16
NF4 = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302,
       0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]  # fmt: skip


def write(source: Path, target: Path, kind: str, **options: Any) -> Path:
    """Write the model in `source` to `target` with the packer `kind`. Return a directory with the same weights in
    float32, beside it."""
    config, pack = KINDS[kind]
    quantisation = config | options.pop("config", {})
    same = target.with_name(f"{target.name}-floats")
    tensors, floats = {}, {}
    generator = torch.Generator().manual_seed(1)
    for name, tensor in load_file(source / "model.safetensors").items():
        if tensor.ndim == 2 and ".layers." in name and not name.endswith(".gate.weight"):  # routers stay in floats
            packed, floats[name] = pack(tensor, generator, **options)
            tensors |= {f"{name.removesuffix('weight')}{suffix}": t.contiguous() for suffix, t in packed.items()}
        else:
            tensors[name] = floats[name] = tensor
    for folder, held in ((target, tensors), (same, {name: t.contiguous() for name, t in floats.items()})):
        shutil.copytree(source, folder)
        save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    file = target / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": quantisation}))
    return same


def words(numbers: Tensor, n_bits: int) -> Tensor:
    """[n, k] -> int32 [n, ceil(k n_bits / 32)], the first number in the lowest bits."""
    per = 32 // n_bits
    padded = torch.nn.functional.pad(numbers.long(), (0, -numbers.shape[1] % per)).view(len(numbers), -1, per)
    return sum(padded[:, :, i] << n_bits * i for i in range(per)).to(torch.int32)  # type: ignore[union-attr]


def rounded(weight: Tensor, n_bits: int, index: Tensor, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Round a weight. Returns numbers 0 to 2^n_bits - 1 [n_out, n_in], and the scale and zero point of each group
    [n_out, n_groups]. index: the group of each input."""
    most, middle = (1 << n_bits) - 1, 1 << n_bits - 1
    n_groups = int(index.max()) + 1
    members = [weight[:, index == g] for g in range(n_groups)]
    low = torch.stack([m.min(1).values.clamp(max=0) for m in members], 1)
    high = torch.stack([m.max(1).values.clamp(min=0) for m in members], 1)
    scale = torch.maximum(-low, high) / (middle - 1) if symmetric else (high - low) / most
    scale = scale.half().float()
    zero = torch.full_like(scale, middle) if symmetric else (-low / scale).round().clamp(0, most)
    numbers = (weight / scale[:, index] + zero[:, index]).round().clamp(0, most)
    return numbers, scale, zero


def value(numbers: Tensor, scale: Tensor, zero: Tensor, index: Tensor) -> Tensor:
    return ((numbers.double() - zero[:, index]) * scale[:, index].double()).float()


def in_order(n_in: int, group: int) -> Tensor:
    return torch.arange(n_in) // (n_in if group < 0 else group)


def gptq(weight: Tensor, generator: torch.Generator, n_bits: int = 4, group: int = GROUP, symmetric: bool = False,
         act_order: bool = False, stored_less: int = 1) -> Packed:  # fmt: skip
    index = in_order(weight.shape[1], group)
    if act_order:
        index = index[torch.randperm(len(index), generator=generator)]
    numbers, scale, zero = rounded(weight, n_bits, index, symmetric)
    stored = (zero.long() - stored_less) % (1 << n_bits)
    packed = {
        "qweight": words(numbers, n_bits).T,
        "qzeros": words(stored.T, n_bits),
        "scales": scale.T.half(),
        "g_idx": index.int(),
    }
    return packed, value(numbers, scale, zero, index)


def awq(weight: Tensor, generator: torch.Generator, group: int = GROUP) -> Packed:
    index = in_order(weight.shape[1], group)
    numbers, scale, zero = rounded(weight, 4, index, symmetric=False)

    def interleaved(rows: Tensor) -> Tensor:
        order = [8 * word + i for word in range(rows.shape[1] // 8) for i in (0, 2, 4, 6, 1, 3, 5, 7)]
        return words(rows[:, order], 4)

    packed = {"qweight": interleaved(numbers.T), "qzeros": interleaved(zero.T), "scales": scale.T.half()}
    return packed, value(numbers, scale, zero, index)


def pack_quantized(weight: Tensor, generator: torch.Generator, n_bits: int = 4, group: int = GROUP,
                   symmetric: bool = True, act_order: bool = False) -> Packed:  # fmt: skip
    index = in_order(weight.shape[1], group)
    if act_order:
        index = index[torch.randperm(len(index), generator=generator)]
    numbers, scale, zero = rounded(weight, n_bits, index, symmetric)
    packed = {
        "weight_packed": words(numbers, n_bits),
        "weight_scale": scale.half(),
        "weight_shape": torch.tensor(weight.shape),
    }
    packed |= {} if symmetric else {"weight_zero_point": words(zero.T, n_bits).T}
    packed |= {"weight_g_idx": index.int()} if act_order else {}
    return packed, value(numbers, scale, zero, index)


def int_quantized(weight: Tensor, generator: torch.Generator, group: int = -1, symmetric: bool = True) -> Packed:
    index = in_order(weight.shape[1], group)
    numbers, scale, zero = rounded(weight, 8, index, symmetric)
    packed = {"weight": (numbers - 128).to(torch.int8), "weight_scale": scale.half()}
    packed |= {} if symmetric else {"weight_zero_point": (zero - 128).to(torch.int8)}
    return packed, value(numbers, scale, zero, index)


def fp8(weight: Tensor, generator: torch.Generator, rows: int | None = None, columns: int | None = None,
        name: str = "weight_scale_inv") -> Packed:  # fmt: skip
    """Each block of `rows` x `columns` weights has a scale; None: all rows or columns."""
    n_out, n_in = weight.shape
    rows, columns = rows or n_out, columns or n_in
    expand = [torch.arange(n) // size for n, size in ((n_out, rows), (n_in, columns))]
    scale = torch.stack([
        torch.stack([weight[expand[0] == i][:, expand[1] == j].abs().max() / 448 for j in range(-(-n_in // columns))])
        for i in range(-(-n_out // rows))
    ])  # fmt: skip
    full = scale[expand[0]][:, expand[1]]
    numbers = (weight / full).to(torch.float8_e4m3fn)
    stored = scale.reshape(()) if scale.numel() == 1 else scale
    return {"weight": numbers, name: stored, "input_scale": torch.ones(1)}, numbers.float() * full


def e2m1(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The E2M1 codes of the nearest values, and these values."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([values, -values])
    codes = (weight[..., None] - values).abs().argmin(-1)
    return codes, values[codes]


def mxfp4_parts(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[..., n_in] -> codes [..., n_in], exponents [..., n_in / 32] and values."""
    groups = weight.view(*weight.shape[:-1], -1, 32)
    exponents = (groups.abs().amax(-1) / 6).log2().ceil()
    codes, values = e2m1(groups / exponents[..., None].exp2())
    return codes.view(weight.shape), (exponents + 127).to(torch.uint8), (
        values * exponents[..., None].exp2()
    ).view(weight.shape)  # fmt: skip


def mxfp4(weight: Tensor, generator: torch.Generator) -> Packed:
    codes, exponents, values = mxfp4_parts(weight)
    return {"weight_packed": pairs(codes), "weight_scale": exponents}, values


def nvfp4(weight: Tensor, generator: torch.Generator) -> Packed:
    groups = weight.view(len(weight), -1, 16)
    whole = 448 * 6 / weight.abs().max()
    scale = (groups.abs().amax(-1) / 6 * whole).to(torch.float8_e4m3fn)
    full = (scale.float() / whole)[..., None]
    codes, values = e2m1(groups / full)
    packed = {
        "weight_packed": pairs(codes.view(weight.shape)),
        "weight_scale": scale,
        "weight_global_scale": whole.view(1),
    }
    return packed, (values * full).view(weight.shape)


def pairs(codes: Tensor) -> Tensor:
    """Pack two codes of 4 bits into a byte, the first in the low bits."""
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)


def nf4(weight: Tensor, generator: torch.Generator, size: int = 64, nested: bool = False) -> Packed:
    table, flat = torch.tensor(NF4), weight.reshape(-1)
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % size)).view(-1, size)
    absmax = blocks.abs().amax(1)
    state: dict[str, Any] = {
        "quant_type": "nf4",
        "blocksize": size,
        "dtype": "float32",
        "shape": list(weight.shape),
    }
    parts = {"weight.absmax": absmax, "weight.quant_map": table}
    if nested:
        outer_table, offset, outer = torch.linspace(-1, 1, 256), float(absmax.mean()), 256
        rest = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % outer)).view(-1, outer)
        most = rest.abs().amax(1)
        codes = ((rest / most[:, None])[..., None] - outer_table).abs().argmin(-1)
        absmax = (outer_table[codes] * most[:, None] + offset).flatten()[: len(absmax)]
        parts |= {"weight.absmax": codes.flatten()[: len(absmax)].to(torch.uint8), "weight.nested_absmax": most,
                  "weight.nested_quant_map": outer_table}  # fmt: skip
        state |= {"nested_blocksize": outer, "nested_dtype": "float32", "nested_offset": offset}
    codes = ((blocks / absmax[:, None])[..., None] - table).abs().argmin(-1).flatten()[: len(flat)]
    described = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    packed = (codes[::2] << 4 | codes[1::2]).to(torch.uint8)[:, None]
    weight = (table[codes] * absmax.repeat_interleave(size)[: len(flat)]).view(weight.shape)
    return {"weight": packed, "weight.quant_state.bitsandbytes__nf4": described, **parts}, weight


def bnb_int8(weight: Tensor, generator: torch.Generator) -> Packed:
    most = weight.abs().amax(1)
    numbers = (weight / most[:, None] * 127).round().to(torch.int8)
    packed = {"weight": numbers, "SCB": most, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return packed, numbers.float() * most[:, None] / 127


def compressed(layout: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": True} | weights}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group},
            "ignore": ["lm_head"], "quantization_status": "compressed"}  # fmt: skip


KINDS: dict[str, tuple[dict[str, Any], Callable[..., Packed]]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}, gptq),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}, awq),
    "pack-quantized": (compressed("pack-quantized", strategy="group", group_size=GROUP), pack_quantized),
    "int-quantized": (compressed("int-quantized", strategy="channel", num_bits=8), int_quantized),
    "float-quantized": (compressed("float-quantized", strategy="channel", num_bits=8, type="float"), fp8),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, fp8),
    "mxfp4": (compressed("mxfp4-pack-quantized", strategy="group", group_size=32, type="float"), mxfp4),
    "nvfp4": (compressed("nvfp4-pack-quantized", strategy="tensor_group", group_size=16, type="float"), nvfp4),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, nf4),
    "bnb-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb_int8),
}
