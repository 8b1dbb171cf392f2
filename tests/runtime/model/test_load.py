"""Loading a model: progress, and errors in the directory."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from banyan.kernels.native import build
from banyan.runtime.errors import BadModel, ConfigError, OutOfMemory, Unsupported
from banyan.runtime.model import decoder
from banyan.runtime.model.load import load
from banyan.runtime.model.size import measure, weight_size
from banyan.runtime.model.spec import read_spec


@pytest.fixture
def edited_model(tiny_model, tmp_path):
    """`edited_model(edit, family) -> Path`: a model directory with tensors changed by `edit`."""

    def make(edit, family="llama", **overrides):
        path = shutil.copytree(tiny_model(family, **overrides), tmp_path / "model")
        tensors = load_file(path / "model.safetensors")
        edit(tensors)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return path

    return make


NORM, BIAS = "model.layers.1.input_layernorm.weight", "model.layers.0.self_attn.q_proj.bias"


@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_missing_tensor_is_named(family, edited_model):
    name = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(BadModel, match=f"no tensor {name}"):
        load(edited_model(lambda tensors: tensors.pop(name), family))


@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_wrong_shape_raises_bad_model(family, edited_model):
    def cut(tensors):
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()

    with pytest.raises(BadModel, match=r"model.norm.weight has shape \[63\]|mismatch"):
        load(edited_model(cut, family))


@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_unused_weights_are_named(family, edited_model):
    with pytest.raises(Unsupported, match=BIAS):
        load(edited_model(lambda tensors: tensors.update({BIAS: torch.zeros(64)}), family))


def test_obsolete_tensors_of_older_checkpoints_are_ignored(edited_model, tiny, tiny_model):
    def add(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()  # ignored: the head is tied

    path = edited_model(add, tie_word_embeddings=True)
    ids = list(range(3, 20))
    expected = tiny.Paged(load(tiny_model(tie_word_embeddings=True))).run(ids, chunk=20)
    assert torch.equal(tiny.Paged(load(path)).run(ids, chunk=20), expected)


def test_head_that_is_not_the_embedding_is_not_tied(edited_model, tiny, reference):
    """As in transformers, which some versions do only where config.json says so."""

    def add(tensors):
        tensors["lm_head.weight"] = torch.randn(320, 64, generator=torch.Generator().manual_seed(1)) / 8

    path, ids = edited_model(add, tie_word_embeddings=True), list(range(3, 20))
    model = load(path)
    assert weight_size(path, read_spec(path), "cpu", "float32", 512, False, "auto") == measure(model)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    expected = tiny.reference_logits(reference(path), ids)
    torch.testing.assert_close(tiny.Paged(model).run(ids, chunk=20), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2_moe"])
def test_all_shards_are_loaded_and_progress_reaches_the_end(family, tiny, tiny_model, reference, tmp_path):
    path = tiny_model(family)
    reference(path).save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    progress = []
    model = load(tmp_path, progress=lambda done, total: progress.append((done, total)))
    assert progress == sorted(progress)
    assert progress[-1][0] == progress[-1][1] > 300_000
    ids = list(range(3, 20))
    actual = tiny.Paged(model).run(ids, chunk=20)
    torch.testing.assert_close(actual, tiny.reference_logits(reference(path), ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_loaded_weights_are_independent_of_the_file(family, tiny, tiny_model, tmp_path):
    path = shutil.copytree(tiny_model(family), tmp_path / "model")
    model = load(path)
    ids = list(range(3, 20))
    expected = tiny.Paged(model).run(ids, chunk=20)
    with (path / "model.safetensors").open("r+b") as f:  # overwrites the file in place
        f.write(bytes((path / "model.safetensors").stat().st_size))
    assert torch.equal(tiny.Paged(model).run(ids, chunk=20), expected)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("n_bits", "least"), [(8, 0.99), (4, 0.7)])
def test_weights_in_few_bits_give_similar_logits(tied, n_bits, least, tiny, tiny_model, device):
    path, ids = tiny_model(tie_word_embeddings=tied), list(range(3, 40))
    quantized = load(path, device=device, weight_dtype=f"int{n_bits}")
    linears = [
        quantized.head,
        *(one for layer in quantized.layers for one in (layer.qkv, layer.out, layer.gate_up, layer.down)),
    ]
    assert {linear.weight.n_bits for linear in linears} == {n_bits}
    expected = tiny.Paged(load(path)).run(ids, chunk=20)
    actual = tiny.Paged(quantized, device=device).run(ids, chunk=20)
    assert not torch.equal(actual, expected)
    assert torch.nn.functional.cosine_similarity(actual, expected).min() > least


def test_few_bits_are_refused_where_no_kernel_computes_with_them(tiny_model):
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler.* here dtype is float16"):
        load(tiny_model(), weight_dtype="int4", dtype="float16")


def test_few_bits_without_the_library_say_why_it_lacks(tiny_model, monkeypatch):
    monkeypatch.setattr(build, "library", lambda: None)
    monkeypatch.setattr(build, "why_not", lambda: "the folder is full")
    with pytest.raises(ConfigError, match="could not be built: the folder is full; leave it out"):
        load(tiny_model(), weight_dtype="int4")


def test_context_beyond_the_model_is_refused_with_both_numbers(tiny_model):
    with pytest.raises(ConfigError, match=r"context is 4096.*at most 512"):
        load(tiny_model(), max_context=4096)


@pytest.mark.parametrize(
    "failure",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_out_of_memory_error_names_size_and_dtype(failure, tiny_model, monkeypatch):
    def build(*_):
        raise failure

    monkeypatch.setattr(decoder, "build", build)
    with pytest.raises(OutOfMemory, match=r"108,864 numbers in float32.*cpu"):
        load(tiny_model())


def test_spec_of_a_loaded_model_has_the_dtype_of_computation(tiny_model, tmp_path):
    path = shutil.copytree(tiny_model(), tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    assert load(path).spec.dtype == "float32"
