"""Rotary frequencies agree with transformers. Valid and invalid settings in config.json."""

import math

import pytest
import torch

from banyan.runtime.errors import BadModel, Unsupported
from banyan.runtime.model import rope
from banyan.runtime.model.rope import frequencies, parse_rope

BASE = {"max_position_embeddings": 4096, "hidden_size": 256, "num_attention_heads": 4}  # 32 pairs of dimensions
FACTORS = {"short_factor": [1 + i / 50 for i in range(32)], "long_factor": [1 + i for i in range(32)]}
EQUAL = {"low_freq_factor": 4.0, "high_freq_factor": 4.0}

KINDS = [
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "truncate": False},
    {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 40.0, "beta_fast": 16, "beta_slow": 4, "mscale": 0.7, "mscale_all_dim": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.8},
    {"rope_type": "longrope", "original_max_position_embeddings": 1024, **FACTORS},
    {"rope_type": "longrope", "original_max_position_embeddings": 1024, "factor": 1.0, **FACTORS},
    {"rope_type": "longrope", "original_max_position_embeddings": 1024, "attention_factor": 1.1, **FACTORS},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
    {"rope_type": "proportional"},
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind['rope_type']}-{len(kind)}")
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("context", [1024, 4096])
def test_frequencies_equal_transformers(kind, theta, context):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind["rope_type"] not in ROPE_INIT_FUNCTIONS:
        pytest.skip(f"this transformers has no {kind['rope_type']} rope")
    fields = BASE | {"rope_parameters": kind | {"rope_theta": theta}}
    expected, expected_scale = ROPE_INIT_FUNCTIONS[kind["rope_type"]](LlamaConfig(**fields), seq_len=context)
    actual, scale = frequencies(parse_rope(fields), 64, context)
    torch.testing.assert_close(actual, expected, atol=0, rtol=2e-6)
    assert scale == pytest.approx(expected_scale, abs=1e-12)


def test_every_kind_of_rope_in_transformers_is_known():
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert ROPE_INIT_FUNCTIONS.keys() | {"default"} <= {kind.__struct_config__.tag for kind in rope.Rope.__args__}


def test_older_form_equals_the_newer():
    scaling = {"type": "linear", "factor": 2.0}
    older = parse_rope({"rope_theta": 5e5, "rope_scaling": scaling, "max_position_embeddings": 64})
    newer = parse_rope({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}})
    assert older == newer == rope.LinearScaling(factor=2.0, rope_theta=5e5)
    assert parse_rope({}) == parse_rope({"rope_scaling": None}) == rope.NoScaling(rope_theta=10000.0)


@pytest.mark.parametrize("in_scaling", [None, 512])
@pytest.mark.parametrize("in_config", [None, 256])
def test_trained_context_is_read_from_the_same_place_as_in_transformers(in_scaling, in_config):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    fields = BASE | {"rope_scaling": llama3 | ({"original_max_position_embeddings": in_scaling} if in_scaling else {})}
    fields |= {"original_max_position_embeddings": in_config} if in_config else {}
    actual = parse_rope(fields)
    assert actual.original_max_position_embeddings == (in_config or in_scaling or 4096)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**fields))
    torch.testing.assert_close(frequencies(actual, 64, 4096)[0], expected, atol=0, rtol=2e-6)


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 16384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
        ({"rope_type": "dynamic", "factor": 4.0}, 4096),
    ],
)
def test_reach_is_the_extended_context(scaling, context):
    assert parse_rope({"rope_scaling": scaling, "max_position_embeddings": 4096}).reach(4096) == context


@pytest.mark.parametrize(
    ("scaling", "error", "message"),
    [
        ({"rope_type": "mrope", "mrope_section": [1, 2]}, Unsupported, "'mrope'"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, Unsupported, "'mrope_section'"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3.0}, Unsupported, "'beta_fast'"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, Unsupported, "'partial_rotary_factor'"),
        ({"full_attention": {"rope_type": "default"}, "rope_type": None}, Unsupported, "'full_attention'"),
        ({"rope_type": "linear"}, BadModel, "`factor`"),
        ({"rope_type": "linear", "factor": "two"}, BadModel, r"\$.factor"),
        ({"rope_type": "llama3", "factor": 2.0}, BadModel, "`low_freq_factor`"),
        ({"rope_type": "llama3", "factor": 2.0, **EQUAL}, BadModel, r"_factor is 4, .* less than high_freq_factor, 4"),
        (["a"], BadModel, r"rope settings are \['a'\]"),
        ("dynamic", BadModel, "rope settings are 'dynamic'"),
        ({"rope_type": ["x"]}, BadModel, r"rope_type is \['x'\]"),
        ({"rope_type": "linear", "factor": math.inf}, BadModel, r"\$.factor"),
        ({"rope_type": "linear", "factor": math.nan}, BadModel, r"\$.factor"),
        ({"rope_type": "linear", "factor": 0}, BadModel, r"\$.factor"),
        ({"rope_type": "linear", "factor": -2.0}, BadModel, r"\$.factor"),
        ({"rope_type": "linear", "factor": 2.0, "rope_theta": -1}, BadModel, r"\$.rope_theta"),
        ({"rope_type": "yarn", "factor": 1e308}, BadModel, r"\$.factor"),
        ({"rope_type": "yarn", "factor": 2.0, "attention_factor": math.nan}, BadModel, r"\$.attention_factor"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_fast": -1}, BadModel, r"\$.beta_fast"),
        ({"rope_type": "yarn", "factor": 2.0, "mscale": math.inf}, BadModel, r"\$.mscale"),
        ({"rope_type": "yarn", "original_max_position_embeddings": "x"}, BadModel, r"\$.original_max_position"),
        ({"rope_type": "yarn", "original_max_position_embeddings": -8}, BadModel, r"\$.original_max_position"),
        ({"rope_type": "longrope", "original_max_position_embeddings": "4096", **FACTORS}, BadModel, r"\$.original"),
        ({"rope_type": "longrope", "short_factor": [1], "long_factor": [0]}, BadModel, r"\$.long_factor\[0\]"),
        ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1}, BadModel, r"\$.rope_theta"),
        ({"rope_type": "longrope", "original_max_position_embeddings": 1, **FACTORS}, BadModel, r"\$.original"),
    ],
)
def test_unknown_or_invalid_setting_is_named(scaling, error, message):
    with pytest.raises(error, match=message):
        parse_rope({"rope_scaling": scaling, "max_position_embeddings": 4096})


def test_longrope_with_too_few_factors_raises_bad_model():
    short = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0], "factor": 2.0}
    with pytest.raises(BadModel, match="1 factors, but 32 pairs"):
        frequencies(parse_rope({"rope_scaling": short, "max_position_embeddings": 64}), 64, 64)
