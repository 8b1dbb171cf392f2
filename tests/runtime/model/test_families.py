"""The families' own words: windows, biases and heads as config.json spells them."""

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
def test_which_parts_a_family_has(config, flags):
    assert (config.has_qkv_bias, config.has_out_bias, config.has_mlp_bias, config.has_qk_norm) == flags


def test_windows_per_layer():
    three = {"num_hidden_layers": 3, "sliding_window": 8}
    assert Mistral(**three).windows == (8, 8, 8)
    assert Mistral(num_hidden_layers=2, sliding_window=None).windows == (0, 0)
    assert Qwen2(**three, max_window_layers=1).windows == (0, 0, 0)  # sliding_window alone switches nothing on
    assert Qwen2(**three, max_window_layers=1, use_sliding_window=True).windows == (0, 8, 8)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert Qwen3(**three, use_sliding_window=True, layer_types=kinds).windows == (8, 0, 8)
    assert Llama(num_hidden_layers=2).windows == (0, 0)


def test_heads():
    assert (Llama(hidden_size=96, num_attention_heads=6).dim, Llama(num_attention_heads=6).n_kv_heads) == (16, 6)
    assert (Llama(head_dim=40).dim, Llama(num_key_value_heads=2).n_kv_heads) == (40, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_field_of_another_family_is_an_error(family):
    foreign = {"llama": "sliding_window", "mistral": "mlp_bias", "qwen2": "mlp_bias", "qwen3": "mlp_bias"}[family]
    with pytest.raises(Unsupported, match=f"'{foreign}', which the {family} decoder does not know"):
        parse({"model_type": family, foreign: True})
    assert parse({"model_type": family, foreign: None}) == FAMILIES[family]()
