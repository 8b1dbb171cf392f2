"""Tiny configs of transformers' model families. Most are made by the field names that their configs share."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "n_hidden", "dim", "embed_dim", "out_hidden_size"), 64),
    **dict.fromkeys(("intermediate_size", "intermediate_size_mlp", "ffn_dim", "ffn_hidden_size", "n_inner"), 112),
    **dict.fromkeys(("moe_intermediate_size", "expert_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("shared_intermediate_size", "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "depth"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("head_dim", "swa_head_dim", "swa_v_head_dim", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 512),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "sliding_window", "rotary_dim"), 8),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size", "mamba_dt_rank", "laurel_rank"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "num_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "global_head_dim"), 32),
    **dict.fromkeys(("n_groups", "mamba_n_groups"), 1),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "index_head_dim", "index_topk"), 16),
    **dict.fromkeys(("linear_num_key_heads", "index_n_heads", "mlp_ratio"), 2),
    "vocab_size_per_layer_input": 320,
}
LAYERS = ("layer_types", "mlp_layer_types", "layers_block_type", "layer_block_types")
IDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
VISION = {"fullatt_block_indexes": [1], "deepstack_visual_indexes": [1], "image_size": 28}

OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cwm": IDS,
    "deepseek_v2": {"num_experts_per_tok": 2},
    "falcon_h1": {"mamba_d_ssm": 128},
    "granitemoehybrid": {key: ["mamba", "attention"] for key in ("layer_types", "layers_block_type")},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"head_dim": 32},
    "mimo_v2_flash": {"swa_num_key_value_heads": 4},
    "ministral": {"head_dim": 16},
    "modernbert-decoder": IDS | {"cls_token_id": 0, "sep_token_id": 0, "mask_token_id": 0},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
}
"""Family -> fields that SMALL does not set right."""
TEXT_OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "glm4v": {"rope_parameters": MROPE["rope_parameters"] | {"partial_rotary_factor": 1.0}},
    "qwen2_vl": MROPE,
    "qwen2_5_vl": MROPE,
}


def tiny_config(family: str) -> dict[str, Any]:
    """Fields that make the default config of a family tiny, with one layer of each of its kinds, and at least two
    layers."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[family]()
    if (text := getattr(config, "text_config", None)) is None:
        return _shrunk(config) | OVERRIDES.get(family, {})
    fields: dict[str, Any] = {"text_config": _shrunk(text) | IDS | {"vocab_size": 320} | TEXT_OVERRIDES.get(family, {})}
    if (vision := getattr(config, "vision_config", None)) is not None:
        fields["vision_config"] = _shrunk(vision) | {k: v for k, v in VISION.items() if _has(vision, k)}
    tokens = [k for k in config.to_dict() if k.endswith(("token_id", "token_index")) and k not in IDS]
    return fields | {name: 300 + i for i, name in enumerate(tokens)}


def _has(config: Any, name: str) -> bool:
    """Whether the field is set, and may be changed."""
    name = config.attribute_map.get(name, name)
    if isinstance(field := getattr(type(config), name, None), property) and field.fset is None:
        return False
    return _get(config, name) is not None


def _get(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # it differs by layer
        return getattr(config.per_layer_config[0], name, None)


def _shrunk(config: Any) -> dict[str, Any]:
    fields = {name: value for name, value in SMALL.items() if _has(config, name)}
    if "kv_lora_rank" in fields:  # keys of all heads are made from the latent, and a head has two parts
        fields.pop("head_dim", None)
        fields["num_key_value_heads"] = 4
    kinds = {name: list(dict.fromkeys(_get(config, name))) for name in LAYERS if _has(config, name)}
    n_layers = max([2, *map(len, kinds.values())])
    fields |= {name: (each * n_layers)[:n_layers] for name, each in kinds.items() if each}
    return fields | {
        name: n_layers for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers") if name in fields
    }
