"""The spec of a model directory, and the errors for invalid directories."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from banyan.runtime.errors import BadModel, ModelNotFound, Unsupported
from banyan.runtime.model import spec as spec_module
from banyan.runtime.model.families import FAMILIES
from banyan.runtime.model.spec import ModelSpec, read_config, read_spec, resolve, sampling_defaults
from forms import in_short


@pytest.fixture
def copy(tiny_model, tmp_path):
    """`copy(family, **fields) -> Path`: a model directory with fields of its config.json changed (... removes one)."""

    def make(family: str = "llama", **fields) -> Path:
        path = shutil.copytree(tiny_model(family), tmp_path / "model", dirs_exist_ok=True)
        config = json.loads((path / "config.json").read_text()) | fields
        (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
        return path

    return make


def test_spec_has_the_sizes_of_the_model(tiny_model, reference):
    path = tiny_model("qwen3", tie_word_embeddings=True)
    spec = read_spec(path)
    assert (spec.name, spec.family, spec.dtype) == (path.name, "qwen3", "float32")
    assert (spec.n_layers, spec.n_heads, spec.n_kv_heads, spec.head_dim, spec.hidden) == (2, 4, 2, 24, 64)
    assert (spec.vocab_size, spec.max_context, spec.eos_ids) == (320, 512, (2,))
    assert spec.n_parameters == sum(p.numel() for p in reference(path).parameters())
    assert spec.kv_elements == 2 * 2 * 2 * 24
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=dict)["dense"]["num_hidden_layers"] == 2


def test_read_spec_of_a_native_model_does_not_import_torch(tiny_model):
    code = "import sys; from banyan.runtime.model.spec import read_spec; read_spec(sys.argv[1]); " \
           "sys.exit(bool({'torch', 'transformers', 'safetensors', 'huggingface_hub'} & set(sys.modules)))"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code, tiny_model()], timeout=60).returncode == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_equal_those_of_transformers(family):
    from transformers import CONFIG_MAPPING

    expected = CONFIG_MAPPING[family]()
    actual = FAMILIES[family]()
    for field in msgspec.structs.fields(FAMILIES[family]):
        if field.name not in ("rope", "head_dim", "num_key_value_heads", "layer_types", "sliding_window"):
            assert getattr(actual, field.name) == getattr(expected, field.name), field.name
    head_dim = getattr(expected, "head_dim", expected.hidden_size // expected.num_attention_heads)
    assert (actual.dim, actual.n_kv_heads) == (head_dim, expected.num_key_value_heads)
    assert actual.rope.rope_theta == expected.rope_parameters["rope_theta"]
    assert set(actual.windows) == {expected.sliding_window if family == "mistral" else 0}


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, {}),
        ({"temperature": 0, "top_p": 0.95, "top_k": 0}, {"temperature": 0.0, "top_p": 0.95, "top_k": -1}),
        ({"top_k": 20, "min_p": None, "repetition_penalty": 1.05}, {"top_k": 20, "repetition_penalty": 1.05}),
        ({"temperature": -1}, BadModel),
        ({"top_p": 0}, BadModel),
        ({"top_k": 2.5}, BadModel),
        ({"min_p": "0.1"}, BadModel),
        ({"repetition_penalty": True}, BadModel),
    ],
)
def test_generation_config_sets_sampling_defaults(tmp_path, generation, expected):
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    if expected is BadModel:
        with pytest.raises(BadModel, match=next(iter(generation))):
            sampling_defaults(tmp_path)
    else:
        assert sampling_defaults(tmp_path) == expected


def test_generation_config_overrides_eos_ids(copy):
    path = copy(eos_token_id=5)
    (path / "generation_config.json").unlink()
    assert read_spec(path).eos_ids == (5,)
    (path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert read_spec(path).eos_ids == (7, 8)
    (path / "generation_config.json").write_text("{}")
    assert read_spec(path).eos_ids == (5,)
    path = copy(eos_token_id=None)
    (path / "generation_config.json").unlink()
    assert read_spec(path).eos_ids == ()


@pytest.mark.parametrize("invalid", ["</s>", True, 1.0, 2**31, [2, 2**70]])
def test_eos_id_that_is_no_token_id_raises_bad_model(copy, invalid):
    path = copy()
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": invalid}))
    with pytest.raises(BadModel, match="eos_token_id is"):
        read_spec(path)


def test_negative_eos_id_means_none(copy):
    path = copy(eos_token_id=-1)
    (path / "generation_config.json").unlink()
    assert read_spec(path).eos_ids == ()
    (path / "generation_config.json").write_text('{"eos_token_id": [-1, 7]}')
    assert read_spec(path).eos_ids == (7,)


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", "bfloat16"), (..., "float32")])
def test_dtype_is_read_from_the_config(copy, dtype, expected):
    assert read_spec(copy(dtype=dtype)).dtype == expected
    assert read_spec(copy(dtype=..., torch_dtype=dtype)).dtype == expected


def test_yarn_extends_the_context(copy):
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert read_spec(copy(rope_parameters=..., rope_scaling=yarn)).max_context == 2048


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"attn_logit_softcapping": 50.0}, Unsupported, "'attn_logit_softcapping'"),
        ({"sliding_window": 128}, Unsupported, "'sliding_window'"),  # not supported in a llama
        ({"num_experts": 8, "scale_depth": 1.4}, Unsupported, "'num_experts', 'scale_depth'"),
        ({"hidden_act": "gelu"}, Unsupported, "hidden_act is 'gelu'"),
        ({"partial_rotary_factor": 0.5}, Unsupported, "'partial_rotary_factor'"),
        ({"rope_parameters": {"rope_type": "spiral"}}, Unsupported, "'spiral'"),
        ({"quantization_config": {"quant_method": "hqq"}}, Unsupported, "'hqq' is not supported; supported: gptq, awq"),
        ({"is_encoder_decoder": True}, Unsupported, "encoder-decoder"),
        ({"vision_config": {"depth": 3}}, Unsupported, "vision_config"),
        ({"architectures": ["LlamaForSequenceClassification"]}, Unsupported, "LlamaForSequenceClassification"),
        ({"dtype": "float8_e4m3fn"}, Unsupported, "float8_e4m3fn"),
        ({"model_type": "abacus"}, Unsupported, "no model_type 'abacus'"),
        ({"model_type": ...}, BadModel, "no model_type"),
        ({"architectures": -1}, BadModel, "architectures -1, which is no list of names"),
        ({"architectures": [1]}, BadModel, r"architectures \[1\], which is no list of names"),
        ({"hidden_size": "64"}, BadModel, r"\$.hidden_size"),
        ({"num_hidden_layers": 0}, BadModel, "not positive"),
        ({"num_attention_heads": 0, "head_dim": ...}, BadModel, "not positive"),
        ({"num_attention_heads": 80, "head_dim": ...}, BadModel, "not positive"),  # of size 0 each
        ({"num_hidden_layers": 2**70}, BadModel, "num_hidden_layers is 1180591620717411303424; at most 10000"),
        ({"hidden_size": "\ud800"}, BadModel, "surrogates not allowed"),
        ({"num_key_value_heads": 3}, BadModel, "4 heads cannot share 3"),
        ({"head_dim": 15}, BadModel, "even head_dim, not 15"),
        ({"rms_norm_eps": math.nan}, BadModel, "rms_norm_eps is nan"),
        ({"rms_norm_eps": -1}, BadModel, "rms_norm_eps is -1"),
        (
            {"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 64}}
            | {"max_position_embeddings": "512"},
            BadModel,
            r"\$.max_position_embeddings",
        ),
    ],
)
def test_unknown_feature_or_invalid_value_is_named(copy, fields, error, message):
    with pytest.raises(error, match=message):
        read_spec(copy(**fields))


def test_fields_without_effect_are_ignored(copy):
    expected = read_spec(copy())
    ignored_fields = {"unsloth_version": "1", "_name_or_path": "x", "attn_logit_softcapping": None, "use_magic": False}
    assert read_spec(copy(**ignored_fields, pretraining_tp=2)) == expected


def test_negative_window_raises_bad_model(copy):
    with pytest.raises(BadModel, match="sliding_window is -5"):
        read_spec(copy("mistral", sliding_window=-5))


def test_invalid_layer_types_of_qwen_raise_bad_model(copy):
    with pytest.raises(BadModel, match="1 layer_types for 2 layers"):
        read_spec(copy("qwen2", layer_types=["full_attention"]))
    with pytest.raises(BadModel, match="linear_attention"):
        read_spec(copy("qwen2", layer_types=["full_attention", "linear_attention"]))


def test_broken_file_raises_bad_model_with_its_name(copy):
    path = copy()
    for text in ("{", "[]", '"x"', '{"a": ' + "[" * 100_000):
        (path / "config.json").write_text(text)
        with pytest.raises(BadModel, match=r"config.json"):
            read_spec(path)
    (path / "config.json").unlink()
    with pytest.raises(BadModel, match=r"has no config.json"):
        read_spec(path)
    path = copy()
    (path / "generation_config.json").write_text("{")
    with pytest.raises(BadModel, match=r"generation_config.json"):
        read_spec(path)


ADAPTER = '{"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-0.6B"}'


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"adapter_config.json": ADAPTER, "adapter_model.safetensors": ""},
            r"an adapter .*\(Qwen/Qwen3-0\.6B\).*--adapter NAME=DIR",
        ),
        ({"adapter_config.json": "{}"}, "load its base model with it"),
        ({"modules.json": "[]"}, "an embedding model"),
        ({"model_index.json": "{}"}, "diffusers"),
        ({"consolidated.00.pth": ""}, "Meta's own format"),
        ({"README.md": "", "x/config.json": "{}"}, "did you mean .*/x"),
        ({}, r"no config\.json"),
    ],
)
def test_directory_of_another_format_is_named_with_what_to_do(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(BadModel, match=message):
        read_config(tmp_path)


def test_gguf_is_named_by_a_repository(tmp_path):
    (tmp_path / "Qwen3-GGUF").mkdir()
    with pytest.raises(BadModel, match=r"holds GGUF, .*download one \.gguf file .*without -GGUF"):
        read_config(tmp_path / "Qwen3-GGUF")


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("BertModel", "an encoder"),
        ("BertForMaskedLM", "masked words"),
        ("Qwen2ForRewardModel", "scores"),
        ("Odd", "not a causal"),
    ],
)
def test_model_that_generates_no_text_is_named(copy, architecture, kind):
    with pytest.raises(Unsupported, match=f"{architecture}: it is .*{kind}.* load one of those"):
        read_spec(copy(architectures=[architecture]))


def test_missing_weights_raise_in_read_spec(copy):
    path = copy()
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(BadModel, match="pickled"):
        read_spec(path)


# ---- resolve -------------------------------------------------------------------------------------------------------


def test_directory_resolves_to_itself(tiny_model, monkeypatch):
    path = tiny_model()
    assert resolve(path) == path
    monkeypatch.chdir(path.parent)
    assert resolve(path.name) == path
    monkeypatch.chdir(path)
    assert read_spec(".").name == path.name


def test_file_or_missing_path_raises(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadModel, match="is a file; give the directory"):
        resolve(tmp_path / "config.json")
    for missing in (
        tmp_path / "missing",
        "./missing",
        "~/missing",
        "a/b/c",
        "../x",
        "",
        "a b",
        "/" + "n" * 300,
        "~nobody-here/x",
    ):
        with pytest.raises(ModelNotFound, match="no model directory"):
            resolve(missing)


def test_shipped_name_resolves_to_the_package(tmp_path, monkeypatch):
    (tmp_path / "shipped" / "acorn").mkdir(parents=True)
    monkeypatch.setattr(spec_module, "SHIPPED", tmp_path / "shipped")
    assert resolve("acorn") == tmp_path / "shipped" / "acorn"


@pytest.mark.parametrize("name", ["acorn", "smol"])
def test_path_is_not_taken_for_the_name_of_a_model(name, tmp_path, monkeypatch):
    """Not even when it is resolved again, as a Path or as a string that another process gets."""
    for folder in ("shipped", "here"):
        (tmp_path / folder / name).mkdir(parents=True)
    monkeypatch.setattr(spec_module, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(spec_module, "PACKAGED", {"smol": ("no_such_package", "a model")})
    monkeypatch.chdir(tmp_path / "here")
    path = resolve(f"./{name}")
    assert path == resolve(Path(name)) == resolve(path) == resolve(str(path)) == tmp_path / "here" / name


def test_hub_model_is_downloaded_without_pickles_or_code(tiny_model, tmp_path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    request = {}
    snapshot = tmp_path / "models--acme--tree-1b" / "snapshots" / "0a1b"
    shutil.copytree(tiny_model(), snapshot)

    def download(name, **options):
        request.update(options, name=name)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert read_spec("acme/tree-1b").name == "acme/tree-1b"
    assert request.pop("name") == "acme/tree-1b"
    wanted = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "merges.txt",
             "chat_template.jinja", "model.safetensors", "model-00001-of-00002.safetensors",
             "model.safetensors.index.json"]  # fmt: skip
    unwanted = ["pytorch_model.bin", "model.pt", "modeling_tree.py", "consolidated.safetensors",
                "original/a.safetensors", "onnx/model.onnx", "README.md"]  # fmt: skip
    assert list(filter_repo_objects(wanted + unwanted, **request)) == wanted


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("RepositoryNotFoundError", "has no 'acme/tree' either"),
        ("GatedRepoError", "set HF_TOKEN"),
        ("LocalEntryNotFoundError", "cannot be reached"),
    ],
)
def test_errors_of_the_hub_raise_model_not_found(error, message, monkeypatch):
    import huggingface_hub

    cls = getattr(huggingface_hub.errors, error)

    def download(name, **options):
        raise cls.__new__(cls)  # the constructors need a response of the HTTP library of the hub client

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFound, match=message) as caught:
        resolve("acme/tree")
    assert type(caught.value.__cause__).__name__ == error


@pytest.mark.parametrize(
    "variable",
    in_short([("HF_ENDPOINT", "http://127.0.0.1:9")], [("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:9")]),
)
def test_unreachable_hub_raises_model_not_found_in_bounded_time(variable, tmp_path):
    code = "from banyan.runtime.model.spec import resolve\n" \
           "try: resolve('acme/tree')\nexcept Exception as e: print(type(e).__name__, e)"  # fmt: skip
    env = os.environ | {"HF_HOME": str(tmp_path), variable[0]: variable[1]}
    started = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert result.stdout.startswith(
        "ModelNotFound there is no model directory 'acme/tree', and the Hugging Face hub cannot"
    )
    assert time.monotonic() - started < 30


def test_spec_is_an_immutable_value(tiny_model):
    spec = read_spec(tiny_model())
    assert isinstance(spec, ModelSpec)
    assert spec == read_spec(tiny_model())
    with pytest.raises(AttributeError):
        spec.n_layers = 3
