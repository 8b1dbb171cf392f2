"""Flags of SGLang's and vLLM's servers that `banyan` has under another name, or does not need."""

from __future__ import annotations

from collections.abc import Collection

from banyan.sglang.server_options import NO_EFFECT, NOT_HERE, ONLY, RENAMED, TRANSLATED

HERE: dict[str, str] = {
    **{name: ours for name, (ours, _) in TRANSLATED.items()},
    **RENAMED,
    # The flags here are not the fields of Config.
    "disable_radix_cache": "no_cache",
    "no_enable_prefix_caching": "no_cache",
    "lora_modules": "adapter",
    "lora_paths": "adapter",
    # These have no effect where a command listens on no port.
    "host": "http",
    "port": "http",
    "api_key": "http_keys",
    "served_model_name": "http_models",
    "model_path": "model",
    "dp": "replicas",
}
"""Option of another server -> the flag here. The values may differ."""

NOT_NEEDED: dict[str, str] = {
    **dict.fromkeys(NO_EFFECT, "it has no effect here"),
    **{name: why for name, (_, why) in ONLY.items()},
    **NOT_HERE,
}
"""Option of another server -> why there is no such flag here."""


def hint(flag: str, known: Collection[str]) -> str:
    """Returns "; ..." with what to write in place of SGLang's or vLLM's `flag`; "" if they have no such flag, or if the
    command has nothing in its place. known: the flags of the command."""
    name = flag.removeprefix("--").replace("-", "_")
    if (ours := "--" + HERE.get(name, "").replace("_", "-")) in known:
        return f"; {flag} is {ours} here"
    if name in NOT_NEEDED and "--model" in known:
        return f"; leave {flag} out: {NOT_NEEDED[name]}"
    return ""
