"""`banyan check`: checks the invariants of a runtime and prints what it runs on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.text import Text

from banyan.lang.expr import gen
from banyan.lang.program import function
from banyan.runtime.errors import BanyanError

PACKAGES = ("banyan", "torch", "triton", "transformers", "tokenizers", "pyzmq", "outlines")


@function
def _load(s: Any) -> None:
    """The program that `banyan check` runs as a test: a gen, then a fork into three branches with a gen each, then the
    join of the branches. It makes the server share pages between branches, and free them."""
    s += "A banyan is a tree whose branches root again: "
    s += gen("trunk", max_tokens=12, temperature=0.0)
    branches = s.fork(3)
    for i, branch in enumerate(branches):
        branch += f" Branch {i}: "
        branch += gen("branch", max_tokens=12, temperature=0.0)
    branches.join("concate_and_append")


def check(runtime: Any, *, is_private: bool) -> int:
    """Print what the runtime runs on, and check its invariants. Returns 0. BanyanError: a check failed, or this client
    is not an operator.

    is_private: this command started the runtime. Then also run a small program twice: its texts must be equal, and the
    second run must find tokens in the cache.
    """
    console = Console(highlight=False, soft_wrap=True)

    def report(title: str, *lines: str) -> None:
        for line in lines:
            console.print(Text.assemble((f"{title:11}", "bold"), line))
            title = ""

    info = runtime.ask("info")
    if "pid" not in info:
        raise BanyanError("only an operator may check this server; see docs/security.md")
    report("machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
    versions = [f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in PACKAGES)]
    report("software", ", ".join(versions))
    report("server", f"pid {info['pid']}, engine pid {info['engine_pid']}, protocol {info['protocol']}")
    report("engine", *info["engine"]["report"])
    if is_private:
        first, second = _load.run(backend=runtime), _load.run(backend=runtime)
        if first.text() != second.text():
            raise BanyanError("a greedy program gave two different texts: cached KV differs from computed KV")
        if info["config"].get("cache", True) and second.usage.cached == 0:
            raise BanyanError("a program that ran twice found nothing in the cache the second time")
        cached = f"{second.usage.cached} of {second.usage.prompt} tokens cached"
        report("load", f"4 gens on 3 branches, twice: the same text; {cached}")
    runtime.ask("check")
    report("invariants", "hold: every page is free, leased or in the tree, exactly once")
    return 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # such as triton, which comes only with torch for GPUs
        return "is not installed"
