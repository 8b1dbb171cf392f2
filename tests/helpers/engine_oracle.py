"""Engines with a tiny model, and the output of transformers with the same model as their oracle."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.model.load import load
from banyan.runtime.protocol.wire import Sampling

N_OUT = 6
GREEDY = Sampling(temperature=0.0, max_tokens=N_OUT)


class Tiny:
    """A tiny model, engines that run it, and the expected output, from transformers."""

    def __init__(self, path: Path, fake: ModuleType, reference: Callable[[Path], Any]) -> None:
        self.model: Any = load(path)
        self.fake = fake
        self._reference = reference(path)
        self._known: dict[tuple[int, ...], int] = {}

    def expected(self, prompt: list[int], n: int = N_OUT, draft: Sequence[int] = ()) -> list[int]:
        """The n greedy tokens, computed without a KV cache. One pass checks all of `draft`; if it is right, no other is
        needed."""
        ids, drafted = list(prompt), [*prompt, *draft[: n - 1]]
        for _ in range(n):
            if tuple(ids) not in self._known:
                whole = drafted if drafted[: len(ids)] == ids else ids
                with torch.no_grad():
                    logits = self._reference(input_ids=torch.tensor([whole]), use_cache=False).logits
                for end, token in enumerate(logits[0, len(ids) - 1 :].argmax(-1).tolist(), len(ids)):
                    self._known[tuple(whole[:end])] = token
            ids.append(self._known[tuple(ids)])
        return ids[len(prompt) :]

    def engine(self, n_slots: int = 16, **options: Any) -> EngineLoop:
        options = {"context": 256, "n_pages": 128} | options
        return self.fake.engine(self.model, state_memory=n_slots * getattr(self.model, "state_bytes", 0), **options)

    def run(self, e: EngineLoop, prompts: list[list[int]], check: bool = True) -> None:
        """Run all prompts at once, and compare their outputs with the expected ones."""
        runs = [self.fake.run(i, ids, GREEDY) for i, ids in enumerate(prompts)]
        outputs = self.fake.drive(e, runs, check=check)
        for i, ids in enumerate(prompts):
            assert outputs[i].failed is None, outputs[i].failed
            assert outputs[i].ids == self.expected(ids, draft=outputs[i].ids)


def text(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 320), k=n)


def computed(e: EngineLoop) -> int:
    return e.scheduler.counts["computed_tokens"]
