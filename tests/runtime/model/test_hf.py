"""Architectures that transformers computes over our pages: the same results, or an error that names the reason."""

import json
import random

import pytest
import torch
from tiny_configs import tiny_config

from banyan.kernels import ops
from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model.hf import HfModel
from banyan.runtime.model.load import load
from banyan.runtime.model.spec import read_spec
from forms import in_short

RULES = {  # family -> the expected (window, softcap) of each layer
    "gemma2": [(8, 3.0), (0, 3.0)],  # also caps the final logits
    "gemma3_text": [(8, 0.0), (0, 0.0)],  # one rope per kind of layer
    "gpt2": [(0, 0.0)] * 2,  # learned positions, no rope
    "gpt_neox": [(0, 0.0)] * 2,  # partial rotary, parallel residual
    "gpt_oss": [(8, 0.0), (0, 0.0)],  # sinks, experts
    "llama4_text": [(0, 0.0)] * 2,  # chunks of 16, then queries scaled by position
    "mixtral": [(0, 0.0)] * 2,  # experts
    "olmo2": [(0, 0.0)] * 2,  # norms after the sublayers
    "phi3": [(0, 0.0)] * 2,  # fused weights
    "qwen2_moe": [(0, 0.0)] * 2,  # experts, one is shared
}


def random_ids(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 320), k=n)


def test_mixture_of_experts_says_so(tiny_model):
    assert read_spec(tiny_model("mixtral")).kind == "a mixture of 4 experts, in transformers' code"
    assert read_spec(tiny_model("lfm2")).kind == "a recurrent state, in transformers' code"
    assert read_spec(tiny_model("llama")).kind == ""


def test_windows_that_config_and_model_say_are_equal(tiny_model):
    model = load(path := tiny_model("phi3", sliding_window=9))
    assert read_spec(path).windows == model.spec.windows == (9, 9)
    path = tiny_model("mixtral", sliding_window=9, layer_types=["full_attention", "sliding_attention"])
    assert read_spec(path).windows == (0, 9)
    assert load(path).spec.windows == (), "its code gives all layers the window"


@pytest.mark.parametrize("family", in_short(["gpt2", "gpt_oss", "gemma2"], RULES))
def test_logits_and_greedy_tokens_equal_transformers(family, tiny, tiny_model, reference, device):
    path = tiny_model(family)
    model, expected_model = load(path, device=device), reference(path)
    assert isinstance(model, HfModel)
    assert [model.rules[i][:2] for i in range(2)] == RULES[family]
    assert (model.spec.windows or (0, 0)) == tuple(window for window, _ in RULES[family])
    ids, prompt = random_ids(70), random_ids(40, seed=1)
    logits = tiny.reference_logits(expected_model, ids)
    for page in (1, 16):
        actual = tiny.Paged(model, page, n_pages=80, device=device).run(ids, chunk=29)
        torch.testing.assert_close(actual, logits, atol=1e-4, rtol=1e-4)
        answer = tiny.Paged(model, page, n_pages=80, device=device).greedy(prompt, 30, chunk=13)
        assert answer == tiny.reference_greedy(expected_model, prompt, 30, answer)


LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 8, "long_factor": [2.0 + i for i in range(8)],
            "short_mscale": 1.1, "long_mscale": 1.4}  # fmt: skip


@pytest.mark.parametrize("max_context", [64, 65])
def test_longrope_of_phimoe_follows_the_configured_context(max_context, tiny, tmp_path, monkeypatch, reference):
    """transformers' code chooses the scale by the longest sequence of the batch, and always takes the short factors."""
    monkeypatch.setitem(tiny.TINY, "phimoe", tiny_config("phimoe"))
    model = load(path := tiny.make_tiny(tmp_path / "m", "phimoe", rope_parameters=LONGROPE), max_context=max_context)
    if max_context > 64:
        long = LONGROPE | {"short_factor": LONGROPE["long_factor"]}
        path = tiny.make_tiny(tmp_path / "long", "phimoe", rope_parameters=long)
    ids = random_ids(64 if max_context == 64 else 100)
    actual = tiny.Paged(model).run(ids, chunk=30)
    torch.testing.assert_close(actual, tiny.reference_logits(reference(path), ids), atol=1e-4, rtol=1e-4)


def test_scales_of_longrope_that_the_family_ignores_are_refused(tiny_model):
    with pytest.raises(Unsupported, match="Phi3RotaryEmbedding: rope of kind longrope with unknown parameters"):
        load(tiny_model("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=64))


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    ("rope", "max_context"),
    [
        (YARN, 1024),
        (YARN | {"factor": 1.5}, 512),
        ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, 512),
    ],
)
def test_yarn_extends_the_context(rope, max_context, tiny, tiny_model, reference):
    path = tiny_model("qwen2_moe", rope_parameters=rope)
    assert read_spec(path).max_context == max_context
    ids = random_ids(min(max_context, 600))
    actual = tiny.Paged(load(path), n_pages=80).run(ids, chunk=300)
    torch.testing.assert_close(actual, tiny.reference_logits(reference(path), ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["cohere", "cohere2"])
def test_context_of_command_r_is_its_model_max_length(family, tiny, tmp_path, reference, monkeypatch):
    fields = {"num_hidden_layers": 2, "model_max_length": 1024}
    monkeypatch.setitem(tiny.TINY, family, TINY | fields)
    path = tiny.make_tiny(tmp_path / "m", family)
    assert read_spec(path).max_context == 1024
    ids = random_ids(600)
    actual = tiny.Paged(load(path), n_pages=80).run(ids, chunk=300)
    torch.testing.assert_close(actual, tiny.reference_logits(reference(path), ids), atol=1e-4, rtol=1e-4)


def test_yarn_with_a_factor_that_is_no_number_is_named(tiny, tmp_path):
    path = tiny.make_tiny(tmp_path / "m", "qwen2_moe", rope_parameters=YARN)
    config = json.loads((path / "config.json").read_text())
    config["rope_parameters"]["factor"] = [4]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadModel, match="rope_parameters"):
        read_spec(path)


def test_window_beyond_the_context_is_disabled(tiny_model):
    assert load(tiny_model("gemma2"), max_context=8).rules[0].window == 0
    assert load(tiny_model("gemma2"), max_context=9).rules[0].window == 8


def test_spec_of_a_transformers_model(tiny_model, reference):
    path = tiny_model("gpt2")
    spec = read_spec(path)
    assert (spec.family, spec.n_layers, spec.n_heads, spec.n_kv_heads, spec.head_dim) == ("gpt2", 2, 4, 4, 16)
    assert (spec.hidden, spec.vocab_size, spec.max_context, spec.eos_ids) == (64, 320, 512, (2,))
    assert (spec.dtype, spec.dense) == ("float32", None)
    assert spec.n_parameters == sum(p.numel() for p in reference(path).parameters())


@pytest.mark.parametrize("family", in_short(["gemma2", "mamba2"], ["gemma2", "jamba", "mamba2"]))
def test_half_precision_is_close(family, tiny, tmp_path, reference, monkeypatch, device):
    """transformers' Mamba 1, as in Jamba, ignores the state in a call with several rows."""
    monkeypatch.setitem(tiny.TINY, family, tiny.TINY.get(family) or tiny_config(family))
    path = tiny.make_tiny(tmp_path / "m", family)
    model = load(path, device=device, dtype="bfloat16")
    assert model.spec.dtype == "bfloat16"
    ids = random_ids(40)
    actual = tiny.Paged(model, device=device).run(ids, chunk=16)
    expected = tiny.reference_logits(reference(path), ids)
    assert ((actual - expected).norm() / expected.norm()) < 0.1


@pytest.mark.parametrize(("n_bits", "most"), [(8, 0.1), (4, 0.8)])
def test_linear_layers_in_few_bits(n_bits, most, tiny, tiny_model, reference, device):
    path = tiny_model("gemma2")
    model = load(path, device=device, weight_dtype=f"int{n_bits}")
    packed = [m for m in model._model.modules() if type(m).__name__ == "_PackedLinear"]
    assert len(packed) == 2 * 7 + 1
    assert all(m.packed.weight.n_bits == n_bits for m in packed)
    ids = random_ids(40)
    actual = tiny.Paged(model, device=device).run(ids, chunk=16)
    expected = tiny.reference_logits(reference(path), ids)
    assert 1e-4 < ((actual - expected).norm() / expected.norm()) < most


TINY = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512}  # fmt: skip
RWKV = {"hidden_size": 64, "attention_hidden_size": 64, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("rwkv", RWKV, "recurrent state in their own cache"),
        ("bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4}, "max_position_embeddings"),
        ("bert", TINY, "neither causal nor a causal window"),
        ("doge", TINY, "makes its own attention mask"),
        ("diffllama", TINY, "differ from transformers' own|0 of 2 layers"),  # depends on the version of transformers
        ("minimax", TINY | {"num_local_experts": 2}, "cache of its own"),
        ("openai-gpt", {"n_embd": 64, "n_layer": 2, "n_head": 4}, "0 of 2 layers go through"),
    ],
)
def test_unsupported_architecture_is_refused_by_name(family, fields, message, tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(tiny.TINY, family, fields)
    with pytest.raises(Unsupported, match=message):
        load(tiny.make_tiny(tmp_path / family, family))


def test_unknown_attention_option_is_named(tiny_model, monkeypatch):
    from transformers.models.olmo2 import modeling_olmo2

    forward = modeling_olmo2.Olmo2Attention.forward
    monkeypatch.setattr(
        modeling_olmo2.Olmo2Attention, "forward", lambda *a, **kw: forward(*a, **kw, position_bias=torch.ones(1))
    )
    with pytest.raises(Unsupported, match="Olmo2Attention: its attention takes position_bias"):
        load(tiny_model("olmo2"))


def test_chunked_attention_is_detected_in_the_mask(tiny_model, monkeypatch):
    from transformers.masking_utils import create_chunked_causal_mask
    from transformers.models.olmo2 import modeling_olmo2

    def chunked(config, **options):
        config.attention_chunk_size = 200
        return create_chunked_causal_mask(config, **options)

    monkeypatch.setattr(modeling_olmo2, "create_causal_mask", chunked)
    with pytest.raises(Unsupported, match="olmo2: its attention mask is no causal window"):
        load(tiny_model("olmo2"))


def test_different_logits_are_refused(tiny_model, monkeypatch):
    attention = ops.attention
    monkeypatch.setattr(ops, "attention", lambda *a, **kw: attention(*a, **kw) * 1.05)
    with pytest.raises(Unsupported, match=r"phi3: through paged attention its logits differ .* by \d"):
        load(tiny_model("phi3"))


def test_state_across_rows_is_refused(tiny_model, monkeypatch):
    from transformers.models.olmo2 import modeling_olmo2

    forward = modeling_olmo2.Olmo2MLP.forward

    def shifted(self, x):  # each token also reads the previous one, as in RWKV or a short convolution
        return forward(self, x) + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1] * 0.1

    monkeypatch.setattr(modeling_olmo2.Olmo2MLP, "forward", shifted)
    with pytest.raises(Unsupported, match="olmo2: through paged attention its logits differ"):
        load(tiny_model("olmo2"))


def test_config_that_transformers_refuses_raises(tiny, tmp_path):
    path = tiny.make_tiny(tmp_path / "m", "olmo2")
    text = (path / "config.json").read_text().replace('"hidden_size": 64', '"hidden_size": "wide"')
    (path / "config.json").write_text(text)
    with pytest.raises((BadModel, Unsupported), match="hidden_size"):
        read_spec(path)
