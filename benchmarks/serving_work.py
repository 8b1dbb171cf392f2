"""Six workloads of programs that call a model many times. Each is a list of trees of calls, which all systems run.

A call's prompt is its parent's prompt, its parent's output and its own text; its children begin when it has ended.
Sizes are in tokens: a text of n words has n tokens (random_models.py). Needs only the standard library, because it also
runs in the peers' environments.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Call(NamedTuple):
    text: str
    n_out: int
    children: tuple[Call, ...] = ()


class Source:
    """Seeded texts and numbers."""

    def __init__(self, words: list[str], seed: str) -> None:
        self._words, self._random = words, random.Random(seed)

    def text(self, n: int) -> str:
        return "".join(self._random.choices(self._words, k=n))

    def between(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


def chain(texts: list[str], n_out: int) -> Call:
    """A call for each text, each the only child of the one before."""
    call = Call(texts[-1], n_out)
    for text in reversed(texts[:-1]):
        call = Call(text, n_out, (call,))
    return call


def few_shot(s: Source) -> list[Call]:
    """64 questions of 30-50 tokens after one prefix of 1,500, 8 out."""
    prefix = s.text(1500)
    return [Call(prefix + s.text(s.between(30, 50)), 8) for _ in range(64)]


def chat(s: Source) -> list[Call]:
    """16 conversations of 4 turns, 80-120 tokens in and 64 out each."""
    return [chain([s.text(s.between(80, 120)) for _ in range(4)], 64) for _ in range(16)]


def tree_of_thought(s: Source) -> list[Call]:
    """A root of 600 tokens, then 4 branches three levels deep: 84 calls, 48 out."""

    def grow(depth: int) -> tuple[Call, ...]:
        return tuple(Call(s.text(6), 48, grow(depth - 1)) for _ in range(4)) if depth else ()

    root = s.text(600)
    return [call._replace(text=root + call.text) for call in grow(3)]


def agents(s: Source) -> list[Call]:
    """8 agents behind one tool prompt of 1,000 tokens: 6 steps of 40 out, and 60 tokens observed after each."""
    tools = s.text(1000)
    return [chain([tools + s.text(s.between(40, 60)), *(s.text(60) for _ in range(5))], 40) for _ in range(8)]


def nothing_shared(s: Source) -> list[Call]:
    """64 prompts of 200-600 tokens, 64 out."""
    return [Call(s.text(s.between(200, 600)), 64) for _ in range(64)]


def long_context(s: Source) -> list[Call]:
    """4 prompts of 6,000 tokens that share 5,500, 32 out."""
    prefix = s.text(5500)
    return [Call(prefix + s.text(500), 32) for _ in range(4)]


def warm_up(s: Source) -> list[Call]:
    """A few prompts of different lengths."""
    return [Call(s.text(n), 8) for n in (16, 60, 200, 700, *[40] * 8)]


N_DECODES = 8


def decodes(s: Source) -> list[Call]:
    """8 prompts of 40 tokens, 150 out."""
    return [Call(s.text(40), 150) for _ in range(N_DECODES)]


def long_prompts(s: Source) -> list[Call]:
    """3 prompts of 3,000 tokens, one after another."""
    return [Call(s.text(10), 20 + 40 * k, (Call(s.text(3000), 4),)) for k in range(3)]


def interrupted(s: Source) -> list[Call]:
    """The 8 decodes and the 3 long prompts together."""
    return [*decodes(s), *long_prompts(s)]


UNTIMED = {"warm-up": warm_up, "decodes": decodes, "interrupted": interrupted, "long-prompts": long_prompts}
"""Workloads of other benchmarks."""

WORKLOADS: dict[str, Callable[[Source], list[Call]]] = {
    "W1": few_shot,
    "W2": chat,
    "W3": tree_of_thought,
    "W4": agents,
    "W5": nothing_shared,
    "W6": long_context,
}


def work(name: str, words: list[str], seed: int) -> list[Call]:
    return (WORKLOADS | UNTIMED)[name](Source(words, f"{name} {seed}"))


def every(calls: tuple[Call, ...] | list[Call]) -> Iterator[Call]:
    """All calls of the trees, parents first."""
    for call in calls:
        yield call
        yield from every(call.children)
