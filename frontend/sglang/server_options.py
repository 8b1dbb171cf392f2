"""The options of SGLang's and vLLM's servers, as `Runtime` and `Engine` take them: each is translated, ignored because
it has no effect here, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from banyan.runtime import config
from banyan.runtime.errors import ConfigError


def _adapters(paths: Any) -> dict[str, Any]:
    """`lora_paths` as {name: path}. SGLang takes a dict, or a list of "path", "name=path" and dicts of both."""
    if isinstance(paths, dict):
        return paths
    found: dict[str, Any] = {}
    for one in paths if isinstance(paths, list | tuple) else [paths]:
        match one:
            case str():
                name, is_named, path = one.partition("=")
                found[name] = path if is_named else name
            case {"lora_name": str(name), "lora_path": path}:
                found[name] = path
            case _:
                raise ConfigError(
                    f"lora_paths has {one!r:.80}; give {{name: path}}, or a list of 'path', 'name=path' or "
                    "{'lora_name': name, 'lora_path': path}"
                )
    return found


TRANSLATED: dict[str, tuple[str, Callable[[Any], Any] | None]] = {
    "context_length": ("context", None),
    "disable_radix_cache": ("cache", lambda is_off: not is_off),
    "dp_size": ("replicas", None),
    "enable_deterministic_inference": ("deterministic", None),
    "max_running_requests": ("max_running", None),
    "lora_paths": ("adapters", _adapters),
    "max_total_tokens": ("kv_memory", lambda n: f"{n} tokens"),
    "page_size": ("page", None),
    "speculative_draft_model_path": ("draft_model", str),
    "tp_size": ("tp", None),
    # vLLM's
    "block_size": ("page", None),
    "data_parallel_size": ("replicas", None),
    "enable_prefix_caching": ("cache", None),
    "max_model_len": ("context", None),
    "max_num_batched_tokens": ("step_tokens", None),
    "max_num_seqs": ("max_running", None),
    "tensor_parallel_size": ("tp", None),
}
"""Option of another server -> (the option here with the same meaning, its value as a function of the other's)."""

NO_EFFECT = frozenset(
    (
        *("host", "port", "nccl_port", "dist_init_addr", "dist_timeout", "served_model_name", "skip_server_warmup"),
        *("log_level_http", "log_requests", "log_requests_level", "log_requests_format", "decode_log_interval"),
        *("crash_dump_folder", "enable_metrics", "enable_cache_report", "show_time_cost"),
        *("attention_backend", "prefill_attention_backend", "decode_attention_backend", "sampling_backend"),
        *("mm_attention_backend", "moe_runner_backend", "enable_multimodal", "triton_attention_reduce_in_fp32"),
        *("disable_custom_all_reduce", "enable_p2p_check", "enable_nccl_nvls", "enable_symm_mem"),
        *("max_prefill_tokens", "num_continuous_decode_steps", "schedule_conservativeness", "load_balance_method"),
        *("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
        *("cuda_graph_bs", "cuda_graph_max_bs", "disable_cuda_graph", "disable_cuda_graph_padding"),
        *("disable_overlap_schedule", "enable_mixed_chunk", "enable_torch_compile", "stream_interval"),
        *("enable_lora", "lora_backend", "max_lora_rank", "max_loaded_loras", "max_loras_per_batch"),
        *("reasoning_parser", "tool_call_parser", "trust_remote_code", "watchdog_timeout"),
        *("disable_log_stats", "enable_auto_tool_choice", "enable_chunked_prefill", "enforce_eager", "max_loras"),
    )
)
"""Options of the other servers that never change an output. A Runtime takes and ignores them: it listens on a local
socket, selects kernels and CUDA graphs by itself, and runs no code from a model's files. Each program itself names
its reasoning format and tools."""

ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(
        ("pp_size", "pipeline_parallel_size", "ep_size", "nnodes"),
        ((1,), "an engine is on one machine; tp_size cuts its layers"),
    ),
    **dict.fromkeys(("base_gpu_id", "node_rank"), ((0,), "set CUDA_VISIBLE_DEVICES")),
    "is_embedding": ((False,), "there are no embeddings"),
    "load_format": (("auto", "safetensors"), "weights are read from safetensors"),
    "skip_tokenizer_init": ((False,), "prompts are text, which the server tokenizes"),
    "tokenizer_mode": (("auto",), "the tokenizer comes from the model's directory"),
}
"""Option of another server -> (its only values, why no others are possible)."""

RENAMED = {
    "chunked_prefill_size": "step_tokens",
    "enable_hierarchical_cache": "host_memory",
    "generation_config": "sampling_defaults",
    "gpu_memory_utilization": "kv_memory",
    "grammar_backend": "constraint_engine",
    "hicache_size": "host_memory",
    "kv_cache_dtype": "kv_dtype",
    "mem_fraction_static": "kv_memory",
    "quantization": "weight_dtype",
    "radix_eviction_policy": "eviction",
    "schedule_policy": "schedule",
    "scheduling_policy": "schedule",
    "speculative_algorithm": "speculate",
    "speculative_config": "speculate",
}
"""Option of another server -> the corresponding option here, which takes other values."""

NOT_HERE = {
    "api_key": "a Runtime listens on a socket that only this user can open",
    "chat_template": "the chat template comes from the model's tokenizer",
    "download_dir": "models come from Hugging Face's cache; the environment variable HF_HUB_CACHE says where it is",
    "random_seed": "each run has its own seed: prog.run(..., seed=1)",
    "revision": "give the directory of that revision as the model",
    "seed": "each run has its own seed: prog.run(..., seed=1)",
    **dict.fromkeys(("tokenizer", "tokenizer_path"), "the tokenizer comes from the model's directory"),
}
"""Option of another server -> why it does not exist here."""

_DTYPES = {"half": "float16", "float": "float32"}


def translate(options: Mapping[str, Any]) -> dict[str, Any]:
    """The `options` of a Runtime, with those of other servers translated. An option of theirs that is None is left out.

    ConfigError: options are unknown or cannot be translated. Its message names all of them, and what to write instead.
    """
    found: dict[str, Any] = {}
    names: dict[str, str] = {}  # translated option -> the name by which it was given
    refused: list[str] = []
    for name, value in options.items():
        if name in config.Config.__struct_fields__:
            found[name] = _DTYPES.get(value, value) if name == "dtype" and isinstance(value, str) else value
        elif name in NO_EFFECT or (value is None and any(name in one for one in (TRANSLATED, ONLY, RENAMED, NOT_HERE))):
            continue
        elif name in TRANSLATED:
            ours, function = TRANSLATED[name]
            found[ours] = value if function is None else function(value)
            if (other := ours if ours in options else names.setdefault(ours, name)) != name:
                refused.append(f"{name} and {other} are the same; give one of them")
        elif name in ONLY:
            values, why = ONLY[name]
            if value not in values:
                allowed = " or ".join(map(repr, values))
                refused.append(f"{name}={value!r} is not supported, only {allowed}: {why}")
        elif name in RENAMED:
            refused.append(f"{name} is {RENAMED[name]}= here (`banyan serve --help` has its values)")
        elif name in NOT_HERE:
            if name not in ("tokenizer", "tokenizer_path") or str(value) != options.get("model"):
                refused.append(f"leave {name} out: {NOT_HERE[name]}")
        else:
            refused.append(config.unknown_option(name))
    if refused:
        raise ConfigError("\n".join(refused))
    return found
