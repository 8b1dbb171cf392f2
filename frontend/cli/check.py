"""`banyan check`: the invariants of a runtime, walked, and the facts of what it runs on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

from rich.console import Console

from banyan.lang.expr import gen
from banyan.lang.program import function
from banyan.runtime.errors import BanyanError

PACKAGES = ("banyan", "torch", "triton", "transformers", "tokenizers", "pyzmq", "outlines")


@function
def _load(s: Any) -> None:
    """A prompt, a gen, three branches below it and their join: what the tree shares, and what it must give back."""
    s += "A banyan is a tree whose branches root again: "
    s += gen("trunk", max_tokens=12, temperature=0.0)
    branches = s.fork(3)
    for i, branch in enumerate(branches):
        branch += f" Branch {i}: "
        branch += gen("branch", max_tokens=12, temperature=0.0)
    branches.join("concate_and_append")


def check(runtime: Any, *, is_private: bool) -> int:
    """Print facts and findings; returns 0, or raises a BanyanError that names what does not hold.

    A private runtime first runs a small program twice: the second run must say the same, and find its prompt in the
    tree. A shared one is left alone: its invariants are walked between two of its steps.
    """
    console = Console(highlight=False, soft_wrap=True)

    def say(title: str, *lines: str) -> None:
        for line in lines:
            console.print(f"[bold]{title:11}[/]{line}")
            title = ""

    info = runtime.ask("info")
    say("machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
    say(
        "software",
        ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)]),
    )
    say("server", f"pid {info['pid']}, engine pid {info['engine_pid']}, protocol {info['protocol']}")
    say("engine", *info["engine"]["report"])
    if is_private:
        first, second = _load.run(backend=runtime), _load.run(backend=runtime)
        if first.text() != second.text():
            raise BanyanError("one greedy program said two things: what the tree gave back is not what was computed")
        if info["config"].get("cache", True) and second.usage.cached == 0:
            raise BanyanError("a program that ran before found nothing of itself in the tree")
        say(
            "load",
            f"4 gens on 3 branches, twice: the same text; {second.usage.cached} of {second.usage.prompt} tokens cached",
        )
    runtime.ask("check")
    say("invariants", "hold: every page is free, leased or in the tree, exactly once")
    return 0
