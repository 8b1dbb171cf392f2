"""`banyan run`: a program file as `python` would run it, with a runtime at hand if it needs one."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import banyan
from banyan.runtime.errors import ConfigError


class Lazy:
    """A backend that is made when it is first used."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Any:
        return self._make()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


def run(program: str, arguments: Sequence[str], make_backend: Callable[[], Any]) -> int:
    """Run the file as `__main__`, with `arguments` as sys.argv[1:]; returns 0, or raises what the program raises.

    Its default backend is made at first use: a program that names its own pays for no other.
    """
    path = Path(program)
    if not path.is_file():
        raise ConfigError(f"there is no program file {program}")
    banyan.set_default_backend(Lazy(make_backend))
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(path.absolute().parent))
    runpy.run_path(program, run_name="__main__")
    return 0
