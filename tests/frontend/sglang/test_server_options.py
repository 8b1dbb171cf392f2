"""Options of SGLang's server, given to `Runtime` and `Engine`."""

from __future__ import annotations

from typing import Any

import pytest

import banyan as sgl
from banyan.runtime.config import Config
from banyan.sglang import server_options
from banyan.sglang.server_options import translate


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dp_size": 2}, {"replicas": 2}),
        ({"nnodes": 1, "port": 30000, "trust_remote_code": True, "load_format": "auto"}, {}),
        ({"attention_backend": "triton", "disable_cuda_graph": True, "reasoning_parser": "qwen3"}, {}),
        ({"max_total_tokens": 2048, "context_length": 512}, {"kv_memory": "2048 tokens", "context": 512}),
        ({"disable_radix_cache": True, "dtype": "half"}, {"cache": False, "dtype": "float16"}),
        ({"max_running_requests": 4, "page_size": 32, "tp_size": 2}, {"max_running": 4, "page": 32, "tp": 2}),
        ({"lora_paths": {"a": "/p"}}, {"adapters": {"a": "/p"}}),
        ({"lora_paths": ["p/q", "a=/q=r"]}, {"adapters": {"p/q": "p/q", "a": "/q=r"}}),
        ({"lora_paths": [{"lora_name": "a", "lora_path": "/p", "pinned": True}]}, {"adapters": {"a": "/p"}}),
        ({"enable_deterministic_inference": True}, {"deterministic": True}),
        ({"speculative_draft_model_path": "draft"}, {"draft_model": "draft"}),
        ({"quantization": None, "chat_template": None, "context_length": None, "tp_size": None}, {}),
        ({"disable_custom_all_reduce": True, "schedule_conservativeness": 0.5, "enable_metrics": True}, {}),
        ({"model": "/m", "tokenizer_path": "/m", "tokenizer": "/m"}, {"model": "/m"}),
        (
            {"tensor_parallel_size": 2, "max_model_len": 4096, "max_num_seqs": 8},
            {"tp": 2, "context": 4096, "max_running": 8},
        ),
        ({"enable_prefix_caching": False, "enforce_eager": True, "pipeline_parallel_size": 1}, {"cache": False}),
        ({"device": "cpu", "threads": 1}, {"device": "cpu", "threads": 1}),
    ],
)
def test_options_with_the_same_meaning_are_accepted(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert translate(options) == expected


def test_all_refused_options_are_named_at_once() -> None:
    with pytest.raises(sgl.ConfigError) as refused:
        sgl.Runtime(nnodes=2, mem_fraction_static=0.8, random_seed=1, nonsense=1, load_format="dummy", port=1)
    assert refused.value.message.split("\n") == [
        "nnodes=2 is not supported, only 1: an engine is on one machine; tp_size cuts its layers",
        "mem_fraction_static is kv_memory= here (`banyan serve --help` has its values)",
        "leave random_seed out: each run has its own seed: prog.run(..., seed=1)",
        f"there is no option 'nonsense'; the options are {', '.join(Config.__struct_fields__)}",
        "load_format='dummy' is not supported, only 'auto' or 'safetensors': weights are read from safetensors",
    ]
    with pytest.raises(sgl.ConfigError, match="context_length and context are the same"):
        sgl.Engine(context_length=1, context=1)
    with pytest.raises(sgl.ConfigError, match="tensor_parallel_size and tp_size are the same; give one of them"):
        translate({"tp_size": 2, "context_length": 1, "tensor_parallel_size": 4})
    assert translate({"tp_size": 2, "tensor_parallel_size": None}) == {"tp": 2}


def test_tokenizer_of_another_directory_is_refused() -> None:
    with pytest.raises(sgl.ConfigError, match="leave tokenizer_path out: the tokenizer comes"):
        translate({"model": "/m", "tokenizer_path": "/other"})


def test_dtype_that_is_no_text_is_refused() -> None:
    with pytest.raises(sgl.ConfigError, match="dtype"):
        sgl.Runtime(dtype=["half"])


def test_adapters_in_no_form_of_sglang_are_refused() -> None:
    with pytest.raises(sgl.ConfigError, match=r"lora_paths has \{'name': 'a'\}; give"):
        translate({"lora_paths": [{"name": "a"}]})


def test_each_option_is_in_one_table_and_has_an_equivalent() -> None:
    tables = server_options.TRANSLATED, server_options.ONLY, server_options.RENAMED, server_options.NOT_HERE
    names = [name for table in (*tables, server_options.NO_EFFECT) for name in table]
    assert len(names) == len(set(names))
    assert not set(names) & set(Config.__struct_fields__)
    assert {ours for ours, _ in server_options.TRANSLATED.values()} <= set(Config.__struct_fields__)
    assert set(server_options.RENAMED.values()) <= set(Config.__struct_fields__)
