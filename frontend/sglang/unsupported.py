"""Names of SGLang's language for what is not done here: each says what to use in its place."""

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
"""Option of SGLang's server -> the one here that is for the same; their values differ."""

NOT_HERE = {
    "chat_template": "the template is the one of the model's tokenizer",
    "host": "a Runtime has a socket of its own, and no port",
    "port": "a Runtime has a socket of its own, and no port",
    "random_seed": "runs have one each: prog.run(..., seed=1)",
    "tokenizer_path": "the tokenizer is the one in the model's directory",
    "tp_size": "a server has one device; start one for each",
    "trust_remote_code": "no model runs code of its own here",
}
"""Option of SGLang's server -> why there is none here."""


def refuse_options(given: Iterable[str]) -> None:
    """ConfigError, with what to write, if one of them is of SGLang's server alone."""
    for name in given:
        if name in OPTIONS:
            raise ConfigError(f"{name} is SGLang's; here it is {OPTIONS[name]}= (`banyan serve --help` has its values)")
        if name in NOT_HERE:
            raise ConfigError(f"{name} is SGLang's, and not needed here: {NOT_HERE[name]}")


class _Elsewhere:
    """A backend that is not here."""

    instead = ""

    def __new__(cls, *_: Any, **__: Any) -> NoReturn:
        """Unsupported, with what to write."""
        raise Unsupported(f"{cls.__name__}: there is no such backend; {cls.instead}")


class Anthropic(_Elsewhere):
    """Refused: use `OpenAI` with Anthropic's OpenAI-compatible address."""

    instead = (
        "Anthropic serves OpenAI's API too: bn.OpenAI(model_name, base_url='https://api.anthropic.com/v1/', "
        "api_key=...), without select"
    )


class LiteLLM(_Elsewhere):
    """Refused: use `OpenAI` with the address of LiteLLM's proxy."""

    instead = "start LiteLLM's proxy and write bn.OpenAI(model_name, base_url='http://localhost:4000', api_key=...)"


class VertexAI(_Elsewhere):
    """Refused: use `OpenAI` with Vertex AI's OpenAI-compatible address."""

    instead = (
        "Vertex AI serves OpenAI's API too: bn.OpenAI('google/' + model_name, "
        "base_url='https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/endpoints/openapi'"
        ", api_key=ACCESS_TOKEN)"
    )


class Crusoe(_Elsewhere):
    """Refused: use `OpenAI` with Crusoe's address."""

    instead = "Crusoe serves OpenAI's API: bn.OpenAI(model_name, base_url=..., api_key=...)"


def video(path: str, num_frames: int) -> NoReturn:
    """Refused: no model here looks at videos."""
    raise Unsupported(
        f"video({path!r}, {num_frames}): no backend takes videos; append some of its frames with bn.image(...)"
    )
