"""The config.json of each family: windows, biases and heads."""

import pytest

from banyan.runtime.errors import Unsupported
from banyan.runtime.model.families import FAMILIES, Llama, Mistral, Qwen2, Qwen3, parse


@pytest.mark.parametrize(
    ("config", "flags"),
    [
        (Llama(), (False, False, False, False)),
        (Llama(attention_bias=True), (True, True, False, False)),
        (Llama(mlp_bias=True), (False, False, True, False)),
        (Mistral(), (False, False, False, False)),
        (Qwen2(), (True, False, False, False)),
        (Qwen3(), (False, False, False, True)),
        (Qwen3(attention_bias=True), (True, True, False, True)),
    ],
)
def test_biases_and_norms_of_a_family(config, flags):
    assert (config.has_qkv_bias, config.has_out_bias, config.has_mlp_bias, config.has_qk_norm) == flags


def test_window_of_each_layer():
    three_layers = {"num_hidden_layers": 3, "sliding_window": 8}
    assert Mistral(**three_layers).windows == (8, 8, 8)
    assert Mistral(num_hidden_layers=2, sliding_window=None).windows == (0, 0)
    assert Qwen2(**three_layers, max_window_layers=1).windows == (0, 0, 0)  # sliding_window alone has no effect
    assert Qwen2(**three_layers, max_window_layers=1, use_sliding_window=True).windows == (0, 8, 8)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert Qwen3(**three_layers, use_sliding_window=True, layer_types=kinds).windows == (8, 0, 8)
    assert Llama(num_hidden_layers=2).windows == (0, 0)


def test_head_dim_and_kv_heads():
    assert (Llama(hidden_size=96, num_attention_heads=6).dim, Llama(num_attention_heads=6).n_kv_heads) == (16, 6)
    assert (Llama(head_dim=40).dim, Llama(num_key_value_heads=2).n_kv_heads) == (40, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_field_of_another_family_is_refused(family):
    foreign = {"llama": "sliding_window", "mistral": "mlp_bias", "qwen2": "mlp_bias", "qwen3": "mlp_bias"}[family]
    with pytest.raises(Unsupported, match=f"'{foreign}', which the {family} decoder does not know"):
        parse({"model_type": family, foreign: True})
    assert parse({"model_type": family, foreign: None}) == FAMILIES[family]()


def test_attention_to_later_tokens_is_refused():
    config = {"model_type": "qwen2", "hidden_size": 64}
    assert parse(config | {"is_causal": True}) == parse(config)
    with pytest.raises(Unsupported, match="is_causal"):
        parse(config | {"is_causal": False})


USUAL = {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "use_cache": True,
         "initializer_range": 0.02, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
         "transformers_version": "4.51.0", "rms_norm_eps": 1e-05}  # fmt: skip
CHECKPOINTS = {  # excerpts of config.json of well-known checkpoints
    "llama-3.1": {"model_type": "llama", "head_dim": 64, "mlp_bias": False, "pretraining_tp": 1, "rope_theta": 500000.0,
                  "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                                   "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
    "llama-1": {"model_type": "llama", "max_sequence_length": 2048, "pad_token_id": -1, "num_key_value_heads": None},
    "smollm": {"model_type": "llama", "is_llama_config": True, "rope_interleaved": False, "rope_scaling": None,
               "transformers.js_config": {"dtype": "q4"}},
    "vicuna": {"model_type": "llama", "max_length": 4096, "temperature": 0.9, "tokenizer_padding_side": "right"},
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 128},
    "qwen2.5": {"model_type": "qwen2", "use_mrope": False, "use_sliding_window": False, "max_window_layers": 28},
    "qwen3": {"model_type": "qwen3", "attention_bias": False, "rope_scaling": None, "rope_theta": 1000000},
    "unsloth": {"model_type": "qwen3", "unsloth_fixed": True, "_attn_implementation_autoset": True},
}  # fmt: skip


@pytest.mark.parametrize("fields", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_configs_of_known_checkpoints_are_read(fields):
    assert parse(USUAL | fields).rms_norm_eps == 1e-05
