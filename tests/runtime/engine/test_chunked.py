"""Layers that attend within their chunk (Llama 4), in the engine: whatever is cached, forked or drafted, the output is
that of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from engine_oracle import Tiny, text

from banyan.runtime.errors import ConfigError


@pytest.fixture(scope="module")
def llama4(tiny_model: Callable[..., Path], fake: ModuleType, reference: Callable[[Path], Any]) -> Tiny:
    return Tiny(tiny_model("llama4_text"), fake, reference)


@pytest.mark.parametrize("options", [{}, {"step_tokens": 7, "page": 8}, {"step_tokens": 23, "cache": False}])
def test_cold_warm_and_forked_are_equal(llama4: Tiny, options: dict[str, Any]) -> None:
    e = llama4.engine(**options)
    root = text(45)
    prompts = [root, root + text(9, 1), root[:21] + text(5, 2), text(17, 3), text(16, 4), text(15, 5)]
    llama4.run_cold_and_warm(e, prompts)


def test_drafts_do_not_branch(llama4: Tiny) -> None:
    e, prompt = llama4.engine(speculate="tree"), text(40)
    for _ in range(3):  # the tree proposes what it has seen
        llama4.run(e, [prompt, prompt[:30]])


def test_chunks_that_are_no_whole_pages_are_refused(tiny_model: Callable[..., Path]) -> None:
    from banyan.runtime.engine.capacity import size

    path = str(tiny_model("llama4_text"))
    with pytest.raises(ConfigError, match="attends in chunks of 16 tokens; choose a smaller page"):
        size(path, "1GB", page=32)
    size(path, "1GB", context=16, page=32)  # one chunk
