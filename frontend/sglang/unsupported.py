"""Names and options of SGLang without an equivalent here. Each raises an error that says what to use instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from banyan.runtime.errors import ConfigError, Unsupported

OPTIONS = {
    "chunked_prefill_size": "step_tokens",
    "context_length": "context",
    "disable_radix_cache": "cache",
    "enable_deterministic_inference": "deterministic",
    "enable_hierarchical_cache": "host_memory",
    "grammar_backend": "constraint_engine",
    "hicache_size": "host_memory",
    "kv_cache_dtype": "kv_dtype",
    "max_running_requests": "max_running",
    "mem_fraction_static": "kv_memory",
    "page_size": "page",
    "quantization": "weight_dtype",
    "radix_eviction_policy": "eviction",
    "schedule_policy": "schedule",
    "speculative_algorithm": "speculate",
    "speculative_draft_model_path": "draft_model",
}
"""Option of SGLang's server -> the corresponding option here, which takes other values."""

NOT_HERE = {
    "chat_template": "the chat template comes from the model's tokenizer",
    "host": "a Runtime listens on a local socket, not on a port",
    "port": "a Runtime listens on a local socket, not on a port",
    "random_seed": "each run has its own seed: prog.run(..., seed=1)",
    "tokenizer_path": "the tokenizer comes from the model's directory",
    "tp_size": "a server uses one device; start one server per device",
    "trust_remote_code": "a model cannot run code here",
}
"""Option of SGLang's server -> why it does not exist here."""


def refuse_options(given: Iterable[str]) -> None:
    """Raise a ConfigError that says what to write, if one of the options belongs to SGLang's server."""
    for name in given:
        if name in OPTIONS:
            raise ConfigError(f"{name} is SGLang's; here it is {OPTIONS[name]}= (`banyan serve --help` has its values)")
        if name in NOT_HERE:
            raise ConfigError(f"{name} is SGLang's, and not needed here: {NOT_HERE[name]}")


class _Elsewhere:
    """A backend of SGLang that does not exist here. Its constructor raises Unsupported, with the text of the class."""

    def __new__(cls, *_: Any, **__: Any) -> NoReturn:
        """Raises Unsupported, which says what to write instead."""
        raise Unsupported(f"{cls.__name__}: {' '.join(str(cls.__doc__).split())}")


class Anthropic(_Elsewhere):
    """Not supported. Anthropic has an OpenAI-compatible API, without select: bn.OpenAI(model_name,
    base_url='https://api.anthropic.com/v1/', api_key=...)."""


class LiteLLM(_Elsewhere):
    """Not supported. Start LiteLLM's proxy, and write bn.OpenAI(model_name, base_url='http://localhost:4000',
    api_key=...)."""


class VertexAI(_Elsewhere):
    """Not supported. Vertex AI has an OpenAI-compatible API: bn.OpenAI('google/' + model_name, api_key=ACCESS_TOKEN,
    base_url='https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/endpoints/openapi')."""


class Crusoe(_Elsewhere):
    """Not supported. Crusoe has OpenAI's API: bn.OpenAI(model_name, base_url=..., api_key=...)."""


def video(path: str, num_frames: int) -> NoReturn:
    """Not supported: no model here reads videos. Use `image` for single frames."""
    raise Unsupported(
        f"video({path!r}, {num_frames}): no backend supports videos; append some of its frames with bn.image(...)"
    )
