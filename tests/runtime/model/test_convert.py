"""A model written in few bits runs, loses little, and is what compressed-tensors reads."""

import json
import random
from itertools import product

import pytest
import torch
from safetensors.torch import load_file

from banyan.runtime.errors import ConfigError, Unsupported
from banyan.runtime.model.load import load
from banyan.runtime.model.quantised import convert
from banyan.runtime.model.quantised.rounding import awq, gptq, rtn, smoothquant
from banyan.runtime.model.spec import read_spec
from forms import short_form

TEXT = random.Random(0).choices(range(3, 320), k=300)
WIDE = {"intermediate_size": 128}


@pytest.mark.parametrize(
    ("n_bits", "method"),
    short_form(
        product([4, 8], ["rtn", "gptq", "awq", "smoothquant"]),
        lambda n_bits, method: (method, n_bits) in (("rtn", 8), ("gptq", 4), ("smoothquant", 4)),
    ),
)
def test_logits_are_close_to_those_of_the_model(method, n_bits, tiny_model, tmp_path):
    source = tiny_model("llama", **WIDE, attention_bias=True, mlp_bias=True)
    seen = []
    convert.quantise(source, tmp_path / "q", TEXT, method, n_bits, 32, lambda *done: seen.append(done))
    assert seen == [(1, 2), (2, 2)]
    loss = convert.measure(source, tmp_path / "q", TEXT)
    assert 0 < loss.kl < (0.1 if n_bits == 4 else 0.001)
    spec = read_spec(tmp_path / "q")
    assert str(spec.quantisation) == f"compressed-tensors, {n_bits} bits in groups of 32"
    assert spec.n_parameters == read_spec(source).n_parameters


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
def test_every_native_family(family, tiny_model, tmp_path):
    source = tiny_model(family, **WIDE)
    convert.quantise(source, tmp_path / "q", TEXT, "awq", 8, 32)
    assert convert.measure(source, tmp_path / "q", TEXT).kl < 0.001


def test_template_of_a_processor_is_copied(tiny, tmp_path):
    source = tiny.make_tiny(tmp_path / "m", "llama", **WIDE)
    (source / "chat_template.json").write_text('{"chat_template": "text"}')
    convert.quantise(source, tmp_path / "q", [], "rtn", 8, 32)
    assert (tmp_path / "q" / "chat_template.json").read_text() == '{"chat_template": "text"}'


def test_methods_change_outputs_less_than_rounding_does():
    """On inputs of which few are large, as in trained models."""
    torch.manual_seed(0)
    weight, inputs = torch.randn(48, 128), torch.randn(256, 128) @ torch.randn(128, 128) / 8
    inputs[:, ::16] *= 20
    products = inputs.T @ inputs

    def error(got):
        return float(((got - weight) @ inputs.T).square().mean())

    plain = error(rtn(weight, 4, 32, torch.float32).dequantise())
    factors = awq(weight, products, 4, 32, torch.float32)
    assert error(rtn(weight * factors, 4, 32, torch.float32).dequantise() / factors) < plain * 0.8
    assert error(gptq(weight, products, 4, 32, torch.float32).dequantise()) < plain * 0.8


def test_smoothquant_shrinks_the_error_of_rounded_inputs():
    """With one scale for a row of inputs, of which few are large."""
    torch.manual_seed(0)
    weight, inputs = torch.randn(48, 128), torch.randn(256, 128)
    inputs[:, ::16] *= 50

    def error(factors):
        x = inputs / factors
        scale = x.abs().amax(1, keepdim=True) / 127
        rounded = (x / scale).round() * scale
        got = rounded @ rtn(weight * factors, 8, 128, torch.float32).dequantise().T
        return float((got - inputs @ weight.T).square().mean())

    assert error(smoothquant(weight, inputs.abs().amax(0))) < 0.3 * error(torch.ones(128))


def test_inputs_that_are_always_zero_change_nothing():
    weight, products = torch.randn(8, 64), torch.zeros(64, 64)
    products[0, 0] = 1.0
    for found in (gptq(weight, products, 4, 32, torch.bfloat16), rtn(torch.zeros(8, 64), 8, 32, torch.bfloat16)):
        assert found.dequantise().isfinite().all()
    assert awq(weight, products, 4, 32, torch.bfloat16).isfinite().all()
    factors = smoothquant(torch.zeros(8, 64), products[0])
    assert factors.isfinite().all()
    assert factors.min() > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n_bits", [4, 8])
def test_compressed_tensors_reads_what_is_written(n_bits, tiny_model, tmp_path):
    library = pytest.importorskip("compressed_tensors.compressors")
    from compressed_tensors.quantization import QuantizationConfig

    convert.quantise(tiny_model("llama", **WIDE), tmp_path / "q", [], "rtn", n_bits, 32)
    written = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(written)
    scheme = config.config_groups["group_0"]
    compressor = library.BaseCompressor.get_value_from_registry(config.format)
    held = load_file(tmp_path / "q" / "model.safetensors")
    name = "model.layers.1.mlp.down_proj."
    parts = {key.removeprefix(name): tensor for key, tensor in held.items() if key.startswith(name)}
    want = compressor.decompress(parts, scheme)["weight"]
    got = rtn(load_file(tiny_model("llama", **WIDE) / "model.safetensors")[f"{name}weight"], n_bits, 32, torch.float32)
    torch.testing.assert_close(got.dequantise(), want.float())


def test_what_cannot_be_quantised_is_refused(tiny_model, tmp_path):
    source = tiny_model("llama", **WIDE)
    with pytest.raises(ConfigError, match="exists already"):
        convert.quantise(source, tmp_path, TEXT, "rtn", 4, 32)
    with pytest.raises(ConfigError, match="group is 48, but layers have 64, 64, 128 inputs"):
        convert.quantise(source, tmp_path / "q", TEXT, "rtn", 4, 48)
    with pytest.raises(ConfigError, match="gptq needs a text of at least 256 tokens, and gets 9"):
        convert.quantise(source, tmp_path / "q", TEXT[:9], "gptq", 4, 32)
    with pytest.raises(Unsupported, match="must be of a native family"):
        convert.quantise(tiny_model("gpt2"), tmp_path / "q", TEXT, "rtn", 4, 32)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot create the directory .*file/q: Not a directory"):
        convert.quantise(source, tmp_path / "file" / "q", TEXT, "rtn", 4, 32, lambda *_: pytest.fail("a layer is done"))
    convert.quantise(source, tmp_path / "q", TEXT, "rtn", 4, 32)
    with pytest.raises(Unsupported, match=r"4 bits in groups of 32\) cannot be quantised"):
        convert.quantise(tmp_path / "q", tmp_path / "again", TEXT, "rtn", 4, 32)
    assert load(tmp_path / "q").spec.quantisation is not None


def test_a_directory_is_removed_if_its_model_is_not_finished(tiny_model, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    source = tiny_model("llama", **WIDE)
    with pytest.raises(KeyboardInterrupt):
        convert.quantise(source, tmp_path / "q", TEXT, "rtn", 4, 32, interrupt)
    convert.quantise(source, tmp_path / "q", TEXT, "rtn", 4, 32)
