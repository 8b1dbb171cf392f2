"""`banyan run`: runs a program file as `python` would, with a default backend that starts at its first use."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import banyan
from banyan.runtime.errors import ConfigError


class LazyBackend:
    """A backend that is created when it is first used: a program that names its own pays for no other."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def _backend(self) -> Any:
        return self._make()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def run(program: str, arguments: Sequence[str], make_backend: Callable[[], Any]) -> int:
    """Run the file as `__main__` with `arguments` as sys.argv[1:]. Returns 0, or raises what the program raises."""
    path = Path(program)
    if not path.is_file():
        raise ConfigError(f"there is no program file {program}")
    banyan.set_default_backend(LazyBackend(make_backend))
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(path.absolute().parent))
    runpy.run_path(program, run_name="__main__")
    return 0
