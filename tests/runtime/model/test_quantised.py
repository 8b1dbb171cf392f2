"""A checkpoint in few bits computes the logits of the weights that its numbers stand for; others raise clear errors.

The helper `few_bits` packs the weights; compressed-tensors, bitsandbytes and transformers are oracles where they are
installed.
"""

import json
import random
import shutil
from itertools import product

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_configs import tiny_config

import few_bits
from banyan.kernels.linear.grouped import FLOAT4, Grouped
from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.load import load
from banyan.runtime.model.moe import PackedExperts
from banyan.runtime.model.quantised import config as quantised
from banyan.runtime.model.quantised import fp4, readers
from banyan.runtime.model.size import measure, weight_size
from banyan.runtime.model.spec import read_spec
from banyan.runtime.model.weights import Checkpoint
from forms import in_short, short_form

IDS = random.Random(0).choices(range(3, 320), k=24)
Q = "model.layers.0.self_attn.q_proj"
WIDE = {"intermediate_size": 128}  # whole groups of 32

# (packer, its options, fields of quantization_config, whether the result is in groups)
CASES = {
    "gptq": ("gptq", {}, {}, True),
    "gptq symmetric": ("gptq", {"symmetric": True}, {"sym": True}, True),
    "gptq v2": ("gptq", {"stored_less": 0}, {"checkpoint_format": "gptq_v2"}, True),
    "gptq 8 bits": ("gptq", {"n_bits": 8}, {"bits": 8}, True),
    "gptq 8 bits symmetric": ("gptq", {"n_bits": 8, "symmetric": True}, {"bits": 8}, True),
    "gptq act order": ("gptq", {"act_order": True}, {"desc_act": True}, False),
    "gptq one group": ("gptq", {"group": -1}, {"group_size": -1}, True),
    "awq one group": ("awq", {"group": -1}, {"group_size": 10**30}, True),
    "gptq uneven groups": ("gptq", {"group": 48}, {"group_size": 48}, False),
    "awq": ("awq", {}, {}, True),
    "awq of older versions": ("awq", {}, {"bits": None, "w_bit": 4, "q_group_size": 16, "version": "GEMM"}, True),
    "pack-quantized": ("pack-quantized", {}, {}, True),
    "pack-quantized asymmetric": ("pack-quantized", {"symmetric": False}, {}, True),
    "pack-quantized act order": ("pack-quantized", {"act_order": True}, {}, False),
    "pack-quantized channel": ("pack-quantized", {"group": -1, "symmetric": False},
                               few_bits.compressed("pack-quantized", strategy="channel"), True),
    "pack-quantized 8 bits": ("pack-quantized", {"n_bits": 8},
                              few_bits.compressed("pack-quantized", num_bits=8, group_size=16), True),
    "int-quantized": ("int-quantized", {}, {}, True),
    "int-quantized asymmetric": ("int-quantized", {"symmetric": False}, {}, True),
    "float-quantized": ("float-quantized", {"rows": 1, "name": "weight_scale"}, {}, True),
    "fp8 tensor": ("fp8", {"name": "weight_scale"}, {}, True),
    "fp8 blocks": ("fp8", {"rows": 48, "columns": 32}, {"weight_block_size": [48, 32]}, True),
    "fp8 uneven blocks": ("fp8", {"rows": 48, "columns": 48}, {"weight_block_size": [48, 48]}, False),
    "mxfp4": ("mxfp4", {}, {}, True),
    "nvfp4": ("nvfp4", {}, {}, True),
    "nf4": ("nf4", {}, {}, False),
    "nf4 nested": ("nf4", {"nested": True}, {"bnb_4bit_use_double_quant": True}, False),
    "bnb-int8": ("bnb-int8", {}, {}, True),
}  # fmt: skip
SHORT = ("gptq act order", "awq", "pack-quantized asymmetric", "fp8 blocks", "nvfp4", "nf4 nested", "bnb-int8")


@pytest.fixture
def pack(tiny_model, tmp_path):
    """pack(kind, family, ...) -> a directory in few bits, and one with the same weights in float32."""

    def make(kind, family="llama", fields=None, **options):
        target = tmp_path / "few-bits"
        return target, few_bits.write(
            tiny_model(family, **(WIDE if fields is None else fields)), target, kind, **options
        )

    return make


def logits(tiny, path, weight_dtype="dtype"):
    return tiny.Paged(load(path, weight_dtype=weight_dtype)).run(IDS, 24)


@pytest.mark.parametrize("case", in_short(SHORT, CASES))
def test_logits_equal_those_of_the_dequantised_weights(case, pack, tiny):
    kind, options, fields, is_grouped = CASES[case]
    path, same = pack(kind, config=fields, **options)
    exact = logits(tiny, same)
    torch.testing.assert_close(logits(tiny, path), exact, rtol=1e-4, atol=1e-4)
    kept = logits(tiny, path, "auto")  # computes with the weights as they are stored, and with rounded activations
    assert (kept - exact).norm() < 0.03 * exact.norm()
    spec = read_spec(path)
    with Checkpoint(path) as weights:
        weight = readers.read_linear(weights, spec.quantisation, Q, 64, 64)
    assert isinstance(weight, Grouped) == is_grouped
    assert spec.n_parameters == read_spec(same).n_parameters
    assert weight_size(path, spec, "cpu", "float32", spec.max_context, False, "auto") == measure(load(path))


@pytest.mark.parametrize(
    ("kind", "family"),
    short_form(
        product(["gptq", "awq", "pack-quantized", "fp8", "nf4"], ["llama", "qwen2", "qwen3"]),
        lambda *case: case in (("gptq", "llama"), ("fp8", "qwen2"), ("nf4", "qwen3")),
    ),
)
def test_families_with_biases_and_layers_in_floats(kind, family, pack, tiny):
    fields = {"attention_bias": True, "mlp_bias": True} if family == "llama" else {}
    path, same = pack(kind, family, WIDE | fields)
    held, plain = load_file(path / "model.safetensors"), load_file(same / "model.safetensors")
    for name in [name for name in held if name.startswith(f"{Q}.") and not name.endswith("bias")]:
        del held[name]
    save_file(held | {f"{Q}.weight": plain[f"{Q}.weight"]}, path / "model.safetensors")
    torch.testing.assert_close(logits(tiny, path), logits(tiny, same), rtol=1e-4, atol=1e-4)


def test_gptq_with_layers_of_other_bits_and_biases_of_zeros(tiny_model, pack, tiny, tmp_path):
    path, same = pack("gptq")
    few_bits.write(tiny_model("llama", **WIDE), tmp_path / "8", "gptq", n_bits=8)
    other = [load_file(tmp_path / name / "model.safetensors") for name in ("8", "8-floats")]
    for folder, tensors in zip((path, same), other, strict=True):
        held = load_file(folder / "model.safetensors")
        held |= {name: tensor for name, tensor in tensors.items() if name.startswith(Q)}
        save_file(held, folder / "model.safetensors")
    held = load_file(path / "model.safetensors") | {f"{Q}.bias": torch.zeros(64)}
    save_file(held, path / "model.safetensors")
    torch.testing.assert_close(logits(tiny, path), logits(tiny, same), rtol=1e-4, atol=1e-4)
    save_file(held | {f"{Q}.bias": torch.ones(64)}, path / "model.safetensors")
    with pytest.raises(Unsupported, match=r"does not use: .*q_proj\.bias"):
        load(path)


def test_gptq_in_transformers_code_with_biases_of_zeros(pack, tiny):
    path, same = pack("gptq", "olmo2")
    held = load_file(path / "model.safetensors")
    save_file(held | {f"{Q}.bias": torch.zeros(64)}, path / "model.safetensors")
    torch.testing.assert_close(logits(tiny, path), logits(tiny, same), rtol=1e-4, atol=1e-4)
    save_file(held | {f"{Q}.bias": torch.ones(64)}, path / "model.safetensors")
    with pytest.raises(Unsupported, match=r"does not use: .*q_proj\.bias"):
        load(path)


def test_layers_of_several_groups(pack, tiny):
    """Group 0 has a pattern and group 1 the rest; a name wins over both."""
    path, _ = pack("pack-quantized")
    groups = [few_bits.compressed("pack-quantized", num_bits=bits)["config_groups"]["group_0"] for bits in (8, 4, 4)]
    groups[0] |= {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 8, "group_size": 16}}
    groups[1]["targets"] = ["Linear"]
    groups[2]["targets"] = ["model.layers.0.mlp.up_proj"]
    groups.append({"targets": ["Attention"], "weights": None})
    edit(path, config_groups=dict(enumerate(groups)))
    scheme = read_spec(path).quantisation.scheme
    names = ("mlp.down_proj", "self_attn.o_proj", "mlp.up_proj")
    assert [scheme(f"model.layers.0.{name}").n_bits for name in names] == [8, 4, 4]
    groups[1]["targets"] = ["re:.*self_attn.*"]
    edit(path, config_groups=dict(enumerate(groups[1:])))
    with pytest.raises(BadModel, match=r"no group for model\.layers\.\d\.mlp"):
        load(path)
    groups[1]["targets"] = ["re:(?<!x)mlp"]
    edit(path, config_groups=dict(enumerate(groups[1:])))
    with pytest.raises(Unsupported, match="not a pattern for re2"):
        load(path)


def edit(path, **fields):
    """Change fields of quantization_config; None: remove it."""
    config = json.loads((path / "config.json").read_text())
    held = config["quantization_config"] | fields
    config["quantization_config"] = {name: value for name, value in held.items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        ("gptq", {}, "GPTQ, 4 bits in groups of 16"),
        ("gptq", {"group_size": -1}, "GPTQ, 4 bits"),
        ("fp8", {}, "FP8, 8 bits"),
        ("nf4", {}, "bitsandbytes nf4, 4 bits"),
        ("pack-quantized", {}, "compressed-tensors, 4 bits in groups of 16"),
    ],
)
def test_spec_says_the_format_and_bits(kind, fields, text, pack):
    path, _ = pack(kind, config=fields)
    assert read_spec(path).kind == text


@pytest.mark.parametrize(
    ("kind", "activations", "is_w8a8"),
    [
        ("fp8", None, True),
        ("gptq", None, False),
        ("int-quantized", None, False),
        ("int-quantized", {"num_bits": 8, "type": "int", "dynamic": True}, True),
        ("float-quantized", {"num_bits": 8, "type": "float", "dynamic": True}, True),
        ("pack-quantized", {"num_bits": 8, "type": "int"}, False),  # weights in 4 bits
        ("int-quantized", {"num_bits": 8, "type": "float"}, False),
        ("int-quantized", {"num_bits": 16, "type": "int"}, False),
    ],
)
def test_checkpoint_says_whether_activations_have_8_bits(kind, activations, is_w8a8, pack):
    path, _ = pack(kind)
    config = json.loads((path / "config.json").read_text())
    for group in config["quantization_config"].get("config_groups", {}).values():
        group["input_activations"] = activations
    (path / "config.json").write_text(json.dumps(config))
    with Checkpoint(path) as weights:
        weight = readers.read_linear(weights, read_spec(path).quantisation, Q, 64, 64)
    assert weight.is_w8a8 == is_w8a8


def test_fp8_keeps_its_bits_on_a_gpu_and_becomes_floats_on_a_cpu(pack):
    path, same = pack("fp8", rows=32, columns=32, config={"weight_block_size": [32, 32]})

    def size(source, device):
        return weight_size(source, read_spec(source), device, "bfloat16", 64, False, "auto").n_bytes

    config = json.loads((path / "config.json").read_text())
    hidden, width, heads = (config[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
    per_head = hidden // heads
    n = config["num_hidden_layers"] * hidden * (3 * width + (2 * heads + 2 * config["num_key_value_heads"]) * per_head)
    assert size(path, "cpu") == size(same, "cpu")
    assert size(same, "cuda") - size(path, "cuda") == 2 * n - (n + 4 * n // 32)  # a scale in float32 for 32 inputs


def test_size_of_fp8_without_scales_is_refused(pack):
    path, _ = pack("fp8")
    held = load_file(path / "model.safetensors")
    save_file({name: x for name, x in held.items() if "weight_scale" not in name}, path / "model.safetensors")
    spec = read_spec(path)
    with pytest.raises(BadModel, match="has no weight_scale; the checkpoint is incomplete"):
        weight_size(path, spec, "cuda", "bfloat16", 64, False, "auto")


C = few_bits.compressed
GPTQ = {"quant_method": "gptq", "bits": 4}


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"quant_method": "hqq"}, Unsupported, "'hqq' is not supported; supported: gptq, awq, compressed-tensors, fp8"),
        ({"bits": 4}, Unsupported, "quant_method None is not supported"),
        ({"quant_method": ["gptq"]}, Unsupported, r"quant_method \['gptq'\] is not supported"),
        ("gptq", BadModel, "'gptq', but must be an object"),
        (GPTQ | {"bits": 3}, Unsupported, "bits is 3; supported: 4, 8"),
        (GPTQ | {"bits": True}, Unsupported, "bits is True"),
        (GPTQ | {"bits": [4]}, Unsupported, r"bits is \[4\]"),
        (GPTQ | {"checkpoint_format": "marlin"}, Unsupported, "checkpoint_format is 'marlin'"),
        (GPTQ | {"is_marlin_format": True}, Unsupported, "is_marlin_format is True"),
        (GPTQ | {"group_size": 0}, BadModel, "group_size is 0"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, Unsupported, "version is 'gemv'; supported: 'gemm'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, BadModel, "two positive numbers"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, Unsupported, "fmt is 'e5m2'"),
        ({"quant_method": "bitsandbytes", "bnb_4bit_quant_storage": "bfloat16"}, Unsupported, "quant_storage"),
        (C("marlin-24"), Unsupported, "format is 'marlin-24'"),
        (C("pack-quantized", num_bits=3), Unsupported, "num_bits is 3"),
        (C("float-quantized", type="float", num_bits=4), Unsupported, "num_bits is 4"),
        (C("pack-quantized") | {"sparsity_config": {"format": "sparse-24-bitmask"}}, Unsupported, "sparsity_config"),
        (C("pack-quantized") | {"transform_config": {"config_groups": {"R1": {}}}}, Unsupported, "rotated weights"),
        (C("pack-quantized") | {"config_groups": None}, BadModel, "no config_groups"),
        (C("pack-quantized") | {"config_groups": {"W4A16": ["Linear"]}}, Unsupported, "must be written out"),
        (C("pack-quantized") | {"config_groups": {}}, BadModel, "no group is for weights"),
    ],
)
def test_unknown_formats_are_refused_by_name(config, error, message):
    with pytest.raises(error, match=message):
        quantised.parse({"quantization_config": config})


@pytest.mark.parametrize("fields", [["quantization"], ["quantization_config"], ["quantization", "quantization_config"]])
def test_format_of_mlx_is_named(fields):
    config = {field: {"group_size": 64, "bits": 4, "mode": "affine"} for field in fields}
    with pytest.raises(Unsupported, match=r"in the format of MLX \(Apple\); load the model that they were made from"):
        quantised.parse(config)


def test_what_switches_nothing_on_is_accepted():
    config = C("pack-quantized") | {"sparsity_config": {"format": "dense"}, "transform_config": {"config_groups": {}}}
    assert quantised.parse({"compression_config": config}).scheme("any").format == "pack-quantized"
    assert quantised.parse({"quantization_config": {"load_in_8bit": True}}).title == "bitsandbytes int8"
    assert quantised.parse({"quantization_config": None}) is None


def drop(suffix):
    return lambda held: held.pop(f"{Q}.{suffix}")


def replace(suffix, change):
    def apply(held):
        held[f"{Q}.{suffix}"] = change(held[f"{Q}.{suffix}"]).contiguous()

    return apply


def described(text):
    return lambda _: torch.tensor(list(text.encode()), dtype=torch.uint8)


STATE = "weight.quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("kind", "options", "damage", "error", "message"),
    [
        ("gptq", {}, drop("scales"), BadModel, "no matrix scales"),
        ("gptq", {}, drop("qzeros"), BadModel, "no tensor .*qzeros"),
        ("gptq", {}, drop("g_idx"), BadModel, "no tensor .*g_idx"),
        ("gptq", {}, replace("qzeros", lambda t: t[:1]), BadModel, "qzeros has shape"),
        ("gptq", {}, replace("g_idx", lambda t: t[1:]), BadModel, "g_idx has shape"),
        ("gptq", {}, replace("g_idx", lambda t: t[:0]), BadModel, "g_idx has shape"),
        ("gptq", {}, replace("g_idx", lambda t: t + 1), BadModel, "1 to 4, but it has 4"),
        ("gptq", {}, replace("g_idx", lambda t: t - 1), BadModel, "-1 to 2, but it has 4"),
        ("gptq", {}, replace("qweight", lambda t: t[:4]), BadModel, "g_idx has shape"),
        ("gptq", {}, replace("qweight", lambda t: t.long()), BadModel, "no tensor .*weight"),
        ("gptq", {}, replace("scales", lambda t: t.int()), Unsupported, "scales is stored as I32"),
        ("gptq", {}, lambda held: held.update({f"{Q}.channel_scale": torch.ones(64)}), Unsupported,
         "channel_scale, which its format does not have"),
        ("awq", {}, replace("scales", lambda t: t[:2]), BadModel, "qzeros has shape"),
        ("awq", {"group": 32}, lambda held: None, BadModel, "0 to 3, but it has 2"),
        ("pack-quantized", {}, replace("weight_shape", lambda t: t * 2), BadModel, "weight_shape"),
        ("pack-quantized", {}, replace("weight_shape", lambda t: t * 0 - 5), BadModel, "weight_shape"),
        ("pack-quantized", {}, replace("weight_shape", lambda t: t[:1]), BadModel, "weight_shape"),
        ("pack-quantized", {}, replace("weight_scale", lambda t: t[:32]), BadModel, "fit 64 outputs"),
        ("pack-quantized", {}, replace("weight_scale", lambda t: t[:, :3]), BadModel, "to 3, but it has 3"),
        ("pack-quantized", {}, replace("weight_scale", lambda t: torch.cat([t, t], 1)), BadModel, "to 3, but it has 8"),
        ("pack-quantized", {"symmetric": False}, replace("weight_zero_point", lambda t: t[:, :3]), BadModel,
         "zero_point has shape"),
        ("pack-quantized", {"act_order": True}, replace("weight_g_idx", lambda t: t + 9), BadModel, "12, but it has 4"),
        ("int-quantized", {"symmetric": False}, replace("weight_zero_point", lambda t: torch.cat([t, t], 1)), BadModel,
         "zero points"),
        ("int-quantized", {}, drop("weight_scale"), BadModel, "no tensor .*weight_scale"),
        ("fp8", {"rows": 32, "columns": 32}, lambda held: None, BadModel, "scale for each 64 x 64"),
        ("fp8", {"rows": 1}, drop("weight_scale_inv"), BadModel, "no tensor .*weight_scale"),
        ("mxfp4", {}, replace("weight_scale", lambda t: t[:, :1]), BadModel, "weight_scale has shape"),
        ("mxfp4", {}, replace("weight_packed", lambda t: t[:, :9]), BadModel, "not a multiple of 32"),
        ("nf4", {}, drop(STATE), BadModel, "no tensor .*quant_state"),
        ("nf4", {}, replace(STATE, described("{")), BadModel, "quant_state cannot be read"),
        ("nf4", {}, replace(STATE, described('{"shape": [64, 64], "blocksize": 1000000000}')), BadModel, "quant_state"),
        ("nf4", {}, replace(STATE, described('{"shape": [9999999, 64], "blocksize": 64}')), BadModel, "has shape"),
        ("nf4", {}, replace(STATE, described('{"shape": [128, 32], "blocksize": 64}')), BadModel, "requires .64, 64"),
        ("nf4", {}, replace("weight.quant_map", lambda t: t[:8]), BadModel, "quant_map has shape"),
        ("bnb-int8", {}, replace("weight_format", lambda t: t + 1), BadModel, "weight_format must be 0"),
        ("bnb-int8", {}, replace("SCB", lambda t: t[:8]), BadModel, "SCB has shape"),
    ],
)  # fmt: skip
def test_broken_layer_is_refused(kind, options, damage, error, message, pack):
    path, _ = pack(kind, **options)
    held = load_file(path / "model.safetensors")
    damage(held)
    save_file(held, path / "model.safetensors")
    with pytest.raises(error, match=message):
        load(path)


def test_huge_blocks_take_no_memory(pack, tiny):
    path, same = pack("fp8", rows=64, columns=64, config={"weight_block_size": [10**12, 10**12]}, fields={
        "intermediate_size": 64, "num_key_value_heads": 4})  # fmt: skip
    torch.testing.assert_close(logits(tiny, path), logits(tiny, same), rtol=1e-4, atol=1e-4)


def test_few_bits_without_a_description_are_refused(pack):
    path, _ = pack("int-quantized")
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported, match=r"is stored as I8, but config\.json requires a float"):
        load(path)


# ---- other libraries as oracles ------------------------------------------------------------------------------------


def read(tensors, config, tmp_path):
    """The weight of a layer `x` that holds `tensors`, by our reader."""
    found = quantised.parse({"quantization_config": config})
    save_file({f"x.{name}": t.contiguous() for name, t in tensors.items()}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as weights:
        return readers.floats(readers.read_linear(weights, found, "x", 48, 64), torch.float32)


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("pack-quantized", {"num_bits": 4, "group_size": 32}),
        ("pack-quantized", {"num_bits": 4, "group_size": 16, "symmetric": False}),
        ("pack-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
        ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
        ("int-quantized", {"num_bits": 8, "strategy": "tensor", "symmetric": False}),
        ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
        ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
        ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]}),
        ("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}),
        ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_compressed_tensors_agrees(layout, options, tmp_path):
    library = pytest.importorskip("compressed_tensors.compressors")
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    torch.manual_seed(0)
    args = QuantizationArgs(**options)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=layout)
    strategy, group = args.strategy, options.get("group_size")
    n_groups = {"channel": (48, 1), "tensor": (1,), "block": (2, 2)}.get(strategy) or (48, 64 // group)
    scale = torch.rand(n_groups) * 0.1 + 0.01
    state = {"weight": torch.randn(48, 64), "weight_scale": scale}
    if layout.startswith("mxfp4"):
        state["weight_scale"] = (scale * 4).log2().floor().exp2()
    if layout.startswith("nvfp4"):
        state |= {
            "weight_scale": (scale * 50).to(torch.float8_e4m3fn).float(),
            "weight_global_scale": torch.tensor([9.0]),
        }
    if not args.symmetric:
        state["weight_zero_point"] = torch.randint(-5, 5, n_groups, dtype=torch.int8)
    compressor = library.BaseCompressor.get_value_from_registry(layout)
    packed = compressor.compress(state, scheme)
    want = compressor.decompress(packed, scheme)["weight"].float()
    config = few_bits.compressed(layout)
    config["config_groups"] = {"group_0": json.loads(scheme.model_dump_json())}
    precision = {"rtol": 1e-2, "atol": 1e-2} if layout.startswith("nvfp4") else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(read(packed, config, tmp_path), want, **precision)  # of nvfp4 it computes bfloat16


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_bitsandbytes_agrees(kind, nested, tmp_path):
    library = pytest.importorskip("bitsandbytes.functional")
    packed, state = library.quantize_4bit(torch.randn(48, 64), quant_type=kind, compress_statistics=nested)
    tensors = {"weight": packed} | {f"weight.{name}": t for name, t in state.as_dict(packed=True).items()}
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    want = library.dequantize_4bit(packed, state)
    torch.testing.assert_close(read(tensors, config, tmp_path), want, rtol=1e-5, atol=1e-6)


def test_transformers_agrees_about_experts():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8)
    scales = torch.randint(100, 140, (2, 6, 3), dtype=torch.uint8)
    want = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
    assert torch.equal(fp4.read_experts(blocks, scales, torch.bfloat16), want)


# ---- through transformers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "family"),
    short_form(
        [("gptq", "olmo2"), ("fp8", "gemma2"), ("pack-quantized", "mixtral"), ("nf4", "phi3")],
        lambda kind, _: kind == "pack-quantized",
    ),
)
def test_fallback_families_are_computed_in_floats(kind, family, pack, tiny):
    path, same = pack(kind, family)
    torch.testing.assert_close(logits(tiny, path), logits(tiny, same), rtol=1e-4, atol=1e-4)
    assert read_spec(path).kind.startswith(read_spec(path).quantisation.title)


@pytest.mark.parametrize(
    ("kind", "family"), short_form([("fp8", "deepseek_v3"), ("awq", "qwen3_vl")], lambda kind, _: kind == "fp8")
)
def test_latent_attention_and_models_with_towers(kind, family, pack, tiny, monkeypatch):
    monkeypatch.setitem(tiny.TINY, family, tiny_config(family))
    path, same = pack(kind, family, {})
    torch.testing.assert_close(logits(tiny, path), logits(tiny, same), rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_experts_in_mxfp4(tiny_model, tiny, tmp_path):
    source, path, same = tiny_model("gpt_oss", intermediate_size=64), tmp_path / "mxfp4", tmp_path / "floats"
    held, floats = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        held[name] = floats[name] = tensor
        if tensor.ndim == 3 and "experts" in name:
            codes, exponents, values = few_bits.mxfp4_parts(tensor.transpose(1, 2).contiguous())
            packed = few_bits.pairs(codes)
            held[f"{name}_blocks"] = packed.view(*packed.shape[:2], -1, 16)
            held[f"{name}_scales"] = exponents
            floats[name] = values.transpose(1, 2).contiguous()
            del held[name]
    for folder, tensors in ((path, held), (same, floats)):
        shutil.copytree(source, folder)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (path / "config.json").write_text(json.dumps(config))
    torch.testing.assert_close(logits(tiny, path), logits(tiny, same), rtol=1e-4, atol=1e-4)
    kept = load(path)
    experts = [module.packed for module in kept._model.modules() if isinstance(module, PackedExperts)]
    assert [weight.n_bits for own in experts for weight in own[:2]] == [FLOAT4] * 4
    got, want = tiny.Paged(kept).run(IDS, 24), logits(tiny, same)
    assert (got - want).norm() < 0.02 * want.norm()
    planned = weight_size(path, read_spec(path), "cpu", "float32", 512, False, "auto")
    assert planned == measure(kept._model)
    assert read_spec(path).n_parameters == read_spec(same).n_parameters
    assert read_spec(path).kind == "MXFP4, 4 bits in groups of 32, a mixture of 4 experts, in transformers' code"
    save_file(held | {name: t[:1] for name, t in held.items() if name.endswith("_scales")}, path / "model.safetensors")
    with pytest.raises(BadModel, match="has blocks of shape"):
        load(path)


def test_transposed_layers_are_refused(tiny_model, tmp_path):
    few_bits.write(tiny_model("gpt2"), tmp_path / "m", "fp8", rows=1)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["model_type"] == "gpt2"
    with pytest.raises(Unsupported, match="gpt2 stores its weights transposed"):
        load(tmp_path / "m")
