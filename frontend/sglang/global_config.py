"""SGLang's process-wide options. Most of them configure SGLang's interpreter; here their values are fixed."""

from __future__ import annotations

from typing import Any, Final

from banyan.backends import default
from banyan.backends.base import Backend
from banyan.runtime.errors import BadProgram, Unsupported

_FIXED: Final[dict[str, tuple[bool, str]]] = {
    "skip_special_tokens_in_output": (True, "special tokens are never part of a text"),
    "spaces_between_special_tokens_in_out": (True, "special tokens are never part of a text"),
    "enable_precache_with_tracing": (True, "the common prefix of a batch is always computed once"),
    "enable_parallel_encoding": (False, "join('concate_and_append') is exact: its text is computed in its place"),
}
"""Option -> (its only value, why no other value is possible)."""


class GlobalConfig:
    """SGLang's `global_config`. verbosity: if it is 2 or more, each `run` prints its text at its end. default_backend:
    the backend of programs that name none, as set by `set_default_backend`.

    Other options of SGLang have one fixed value. Setting one to another value raises Unsupported.
    """

    verbosity: int = 0

    @property
    def default_backend(self) -> Backend | None:
        """The backend of programs that name no backend."""
        return default._default

    @default_backend.setter
    def default_backend(self, backend: Backend | None) -> None:
        default.set_default_backend(backend)

    def __getattr__(self, name: str) -> bool:
        if name not in _FIXED:
            raise AttributeError(f"global_config has no option {name!r}")
        return _FIXED[name][0]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "verbosity" and (not isinstance(value, int) or value < 0):
            raise BadProgram(f"global_config.verbosity is {value!r}; it must be an integer of at least 0")
        if name in ("verbosity", "default_backend"):
            object.__setattr__(self, name, value)
        elif value != getattr(self, name):
            fixed, why = _FIXED[name]
            raise Unsupported(f"global_config.{name} = {value!r} is not supported: {why}; leave it at {fixed}")


global_config = GlobalConfig()
