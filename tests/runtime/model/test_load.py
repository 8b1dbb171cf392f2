"""Loading a model: progress, and errors in the directory."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from banyan.kernels import ops
from banyan.runtime.errors import BadModel, ConfigError, OutOfMemory, Unsupported
from banyan.runtime.model import decoder
from banyan.runtime.model.load import load


@pytest.fixture
def change(tiny_model, tmp_path):
    """`change(edit, family) -> Path`: a model directory whose tensors went through `edit`."""

    def make(edit, family="llama", **overrides):
        path = shutil.copytree(tiny_model(family, **overrides), tmp_path / "model")
        tensors = load_file(path / "model.safetensors")
        edit(tensors)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return path

    return make


NORM, BIAS = "model.layers.1.input_layernorm.weight", "model.layers.0.self_attn.q_proj.bias"


@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_a_missing_tensor_is_named(family, change):
    name = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(BadModel, match=f"no tensor {name}"):
        load(change(lambda tensors: tensors.pop(name), family))


@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_a_wrong_shape_is_a_bad_model(family, change):
    def cut(tensors):
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()

    with pytest.raises(BadModel, match=r"model.norm.weight has shape \[63\]|mismatch"):
        load(change(cut, family))


@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_weights_that_nobody_uses_are_named(family, change):
    with pytest.raises(Unsupported, match=BIAS):
        load(change(lambda tensors: tensors.update({BIAS: torch.zeros(64)}), family))


def test_void_tensors_of_older_checkpoints_are_let_through(change, tiny, tiny_model):
    def add(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
        tensors["lm_head.weight"] = torch.zeros(320, 64)  # the head is tied: what is stored here has no meaning

    path = change(add, tie_word_embeddings=True)
    ids = list(range(3, 20))
    want = tiny.Paged(load(tiny_model(tie_word_embeddings=True))).run(ids, chunk=20)
    assert torch.equal(tiny.Paged(load(path)).run(ids, chunk=20), want)


@pytest.mark.parametrize("family", ["llama", "qwen2_moe"])
def test_shards_are_read_as_one_and_progress_reaches_the_end(family, tiny, tiny_model, reference, tmp_path):
    path = tiny_model(family)
    reference(path).save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    seen = []
    model = load(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 300_000
    ids = list(range(3, 20))
    got = tiny.Paged(model).run(ids, chunk=20)
    torch.testing.assert_close(got, tiny.reference_logits(reference(path), ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_weights_do_not_depend_on_the_file_once_loaded(family, tiny, tiny_model, tmp_path):
    path = shutil.copytree(tiny_model(family), tmp_path / "model")
    model = load(path)
    ids = list(range(3, 20))
    want = tiny.Paged(model).run(ids, chunk=20)
    with (path / "model.safetensors").open("r+b") as f:  # the same file, other bytes
        f.write(bytes((path / "model.safetensors").stat().st_size))
    assert torch.equal(tiny.Paged(model).run(ids, chunk=20), want)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_in_int8_give_nearly_the_same_logits(tied, tiny, tiny_model):
    if not isinstance(ops.pack(torch.randn(8, 16)), ops.Packed):
        pytest.skip("no C++ compiler")
    path, ids = tiny_model(tie_word_embeddings=tied), list(range(3, 40))
    small = load(path, weight_dtype="int8")
    held = [small.head, *(one for layer in small.layers for one in (layer.qkv, layer.out, layer.gate_up, layer.down))]
    assert {linear.weight.panels.dtype for linear in held} == {torch.int8}
    want, got = (tiny.Paged(model).run(ids, chunk=20) for model in (load(path), small))
    assert not torch.equal(got, want)
    assert torch.nn.functional.cosine_similarity(got, want).min() > 0.99


def test_weights_in_int8_are_refused_where_transformers_computes(tiny_model):
    with pytest.raises(Unsupported, match="transformers' own code"):
        load(tiny_model("olmo2"), weight_dtype="int8")


def test_a_context_beyond_the_models_own_is_refused_with_both_numbers(tiny_model):
    with pytest.raises(ConfigError, match=r"context is 4096.*at most 512"):
        load(tiny_model(), max_context=4096)


@pytest.mark.parametrize(
    "failure",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_too_little_memory_says_the_numbers(failure, tiny_model, monkeypatch):
    def build(*_):
        raise failure

    monkeypatch.setattr(decoder, "build", build)
    with pytest.raises(OutOfMemory, match=r"108,864 numbers in float32.*cpu"):
        load(tiny_model())


def test_the_spec_of_a_loaded_model_says_what_it_computes_in(tiny_model, tmp_path):
    path = shutil.copytree(tiny_model(), tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    assert load(path).spec.dtype == "float32"
