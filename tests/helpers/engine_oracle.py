"""Engines with a tiny model, and the output of transformers with the same model as their oracle."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from banyan.radix_cache.windows import WindowPages
from banyan.runtime import config as configs
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.scheduling.request import Request
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

    def least_window_pages(self, step_tokens: int, page: int) -> int:
        """Pages of windowed layers that one request needs."""
        ahead = configs.tokens_ahead(configs.make(step_tokens=step_tokens, page=page), "cpu")
        return WindowPages.need(self.model.spec.window, ahead, page, self.model.spec.n_first)

    def windowed_engine(self, n_more: int = 40, step_tokens: int = 16, page: int = 8, **options: Any) -> EngineLoop:
        """An engine with n_more pages of windowed layers than one request needs."""
        n_window = self.least_window_pages(step_tokens, page) + n_more
        e = self.engine(n_window_pages=n_window, step_tokens=step_tokens, page=page, **options)
        assert e.cache.window is not None
        return e

    def run(self, e: EngineLoop, prompts: list[list[int]], check: bool = True) -> None:
        """Run all prompts at once, and compare their outputs with the expected ones."""
        runs = [self.fake.run(i, ids, GREEDY) for i, ids in enumerate(prompts)]
        outputs = self.fake.drive(e, runs, check=check)
        for i, ids in enumerate(prompts):
            assert outputs[i].failed is None, outputs[i].failed
            assert outputs[i].ids == self.expected(ids, draft=outputs[i].ids)

    def run_cold_and_warm(self, e: EngineLoop, prompts: list[list[int]]) -> None:
        """Run prompts twice. With a cache, the second run computes only the last token of each prompt and its output.
        Then all pages become free."""
        self.run(e, prompts)
        before = computed(e)
        self.run(e, prompts)
        if e.cache.enabled:
            assert computed(e) - before == len(prompts) * N_OUT
        e.cache.reset()
        e.scheduler.check()
        assert e.cache.stats().n_free == e.cache.n_pages
        assert e.cache.window is None or len(e.cache.window.free) == e.cache.window.n_slots

    def run_random_forks(
        self, e: EngineLoop, rng: random.Random, n_rounds: int = 8, n_tail: int = 30, longest: int = 60
    ) -> None:
        """Run texts that continue earlier texts or outputs from any token on, and evict pages between the rounds.
        n_tail: most new tokens of a text. longest: most tokens of a text."""
        texts = [text(12, rng.randrange(10**6))]
        for _ in range(n_rounds):
            for _ in range(rng.randint(1, 3)):
                old = rng.choice(texts)
                new = old[: rng.randint(1, len(old))] + text(rng.randint(0, n_tail), rng.randrange(10**6))
                texts.append(new[:longest])
            self.run(e, rng.choices(texts, k=rng.randint(1, 4)))
            old = rng.choice(texts)
            texts.append((old + self.expected(old))[:longest])
            e.cache.hints.evict(rng.choice([0, 0, 3]))
            e.scheduler.check()


def two_branches(whole: list[int]) -> list[Callable[[Request, int], Sequence[int]]]:
    """Scripts of drafters that continue the text `whole` with right tokens at first, then with others. They make a tree
    whose branches lie side by side."""

    def script(n_right: int) -> Callable[[Request, int], Sequence[int]]:
        return lambda request, n: [
            token if i < n_right else token ^ 1 for i, token in enumerate(whole[request.n_total : request.n_total + n])
        ]

    return [script(1), script(5)]


def text(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 320), k=n)


def computed(e: EngineLoop) -> int:
    return e.scheduler.counts["computed_tokens"]
