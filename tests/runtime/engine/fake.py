"""A model without weights and a driver for the engine's tests.

The model stores each token's id and position in the KV pool and reads its whole context back through the page table.
Its logits are a hash of that context, so an output is correct only if every token was in the right slot and page.
"""

from __future__ import annotations

import random
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from banyan.runtime import config as configs
from banyan.runtime.config import Resolved
from banyan.runtime.constraint.guide import set_bits
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.scheduling.request import Request, Work
from banyan.runtime.engine.speculation.depth_control import AcceptanceRate, DepthController
from banyan.runtime.engine.speculation.draft import Drafter, Proposal
from banyan.runtime.engine.speculation.step_cost import Cost
from banyan.runtime.model.spec import ModelSpec
from banyan.runtime.protocol.wire import Abort, Failed, Finish, Run, Sampling, TopLogprobs

VOCAB = 50
GREEDY = Sampling(temperature=0.0, max_tokens=8)


_TOKENS = np.arange(1, VOCAB + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def logits_after(ids: Sequence[int]) -> np.ndarray:
    """float32 [VOCAB]: the fake model's logits after `ids`, peaked enough for sampling filters to matter."""
    return _logits([int32(ids)])[0]


def _logits(texts: Sequence[bytes]) -> np.ndarray:
    """float32 [texts, VOCAB]: the logits after each text, which is the bytes of int32 ids."""
    hashes = np.array([zlib.crc32(text) for text in texts], np.uint64)[:, None]
    x = _TOKENS ^ hashes
    x = (x ^ (x >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return (((x >> np.uint64(40)).astype(np.float64) / 2**24) * 6).astype(np.float32)


def greedy(ids: Sequence[int], n: int) -> list[int]:
    """The fake model's greedy output of n tokens, from the naive loop."""
    text = list(ids)
    for _ in range(n):
        text.append(int(logits_after(text).argmax()))
    return text[len(ids) :]


class FakeModel:
    """See the module docstring. Fails the test if the pool does not hold what was written."""

    windows = ()

    def __init__(self, max_context: int = 512) -> None:
        self.spec = ModelSpec(
            name="fake", family="fake", n_layers=1, n_heads=1, n_kv_heads=1, head_dim=2, hidden=2, vocab_size=VOCAB,
            max_context=max_context, eos_ids=(), dtype="float32", n_parameters=0,
        )  # fmt: skip
        self.steps: list[tuple[int, ...]] = []  # row counts of each forward

    def forward(self, ids: Tensor, positions: Tensor, ragged: Any, kv: Any, rows: Tensor) -> Tensor:
        assert min(ragged.q_lens) > 0
        assert 0 <= int(ids.min()) <= int(ids.max()) < VOCAB, "a real model would index its embedding out of range"
        self.steps.append(ragged.q_lens)
        k = kv[0][0]
        pool, page = k.view(-1, 2), k.shape[1]
        pool[ragged.slots] = torch.stack([ids, positions], 1).float()
        texts, owner = [], np.repeat(np.arange(len(ragged.q_lens)), ragged.q_lens).tolist()
        last, tables, written = positions.tolist(), ragged.page_table.numpy(), pool.numpy()
        offsets, places = np.arange(page), np.arange(max(last, default=0) + 1, dtype=np.float32)
        slots_of: dict[int, np.ndarray] = {}  # by request
        for row in rows.tolist():
            request = owner[row]
            if request not in slots_of:
                slots_of[request] = (tables[request][:, None] * page + offsets).ravel()
            read = written[slots_of[request][visible_slots(ragged, row, request)]]
            own = places[: last[row] + 1]  # a draft branch is stored in other slots
            assert np.array_equal(read[:, 1], own), "a slot holds another position's token"
            texts.append(read[:, 0].astype(np.int32).tobytes())
        return torch.from_numpy(_logits(texts))


def visible_slots(ragged: Any, row: int, request: int) -> slice | np.ndarray:
    """Indices of the request's slots that `row` attends to."""
    last = int(ragged.kv_lens[request]) - int(ragged.q_start[request + 1]) + row
    if ragged.ancestors is None:
        return slice(last + 1)
    at = np.arange(last + 1)
    bit = at - (ragged.kv_lens[request] - 64)
    return at[(bit < 0) | (int(ragged.ancestors[row]) >> np.maximum(bit, 0) & 1 == 1)]


@dataclass
class Output:
    ids: list[int] = field(default_factory=list)
    logprobs: list[TopLogprobs] = field(default_factory=list)
    finish: Finish | None = None
    failed: Failed | None = None


class Pattern:
    """A guide that allows one fixed token per position; None allows any token."""

    error = ""

    def __init__(self, pattern: Sequence[int | None]) -> None:
        self.pattern, self.at = list(pattern), 0

    @property
    def can_stop(self) -> bool:
        return self.at == len(self.pattern)

    must_stop = can_stop

    def fill(self, out: Any) -> None:
        token = None if self.can_stop else self.pattern[self.at]
        out[:] = -1 if token is None else 0
        if token is not None:
            set_bits(out, [token])

    def accept_masked(self, tokens: Sequence[int]) -> int:
        return self.accept(tokens)

    def accept(self, tokens: Sequence[int]) -> int:
        for n, token in enumerate(tokens):
            if self.can_stop or self.pattern[self.at] not in (None, token):
                return n
            self.at += 1
        return len(tokens)

    def rollback(self, n: int) -> None:
        self.at -= n

    def forced_tokens(self, limit: int) -> list[int]:
        forced = []
        for token in self.pattern[self.at : self.at + limit]:
            if token is None:
                break
            forced.append(token)
        return forced


def int32(ids: Iterable[int]) -> bytes:
    return array("i", ids).tobytes()


def run(rid: int, ids: Iterable[int], sampling: Sampling = GREEDY, **fields: Any) -> Run:
    return Run(rid, int32(ids), sampling, **fields)


def forked_runs(n: int, sampling: Sampling) -> list[Run]:
    """n prompts for a tiny model that share their first 37 tokens."""
    rng = random.Random(0)
    prefix = [rng.randrange(3, 320) for _ in range(37)]
    tails = [[rng.randrange(3, 320) for _ in range(1 + 7 * rid % 20)] for rid in range(n)]
    return [run(rid, prefix + tail, sampling, seed=rid, order=(0, rid)) for rid, tail in enumerate(tails)]


def short_runs() -> list[Run]:
    """Runs with prompts of 1 to 6 tokens and outputs of 1 to 5."""
    return [
        run(10 * n + k, [(7 * i + n) % 300 + 3 for i in range(n)], Sampling(temperature=0.0, max_tokens=k))
        for n in range(1, 7)
        for k in (1, 2, 3, 5)
    ]


def engine(
    model: Any = None, *, n_pages: int = 256, n_host: int = 0, context: int | None = None, weights: str = "",
    state_memory: int = 0, n_window_pages: int = 0, **options: Any,
) -> EngineLoop:  # fmt: skip
    model = model or FakeModel()
    resolved = Resolved(
        device="cpu", dtype="float32", context=context or model.spec.max_context, n_pages=n_pages,
        n_host=n_host, threads=1, decisions=(), state_memory=state_memory, n_window_pages=n_window_pages,
    )  # fmt: skip
    config = configs.make(**({"speculate": "grammar"} | options))  # tests enable other drafters explicitly
    return EngineLoop(config, model, resolved, clock=lambda: 0.0, weights=weights, stopwatch=lambda: 0.0)


Script = Callable[[Request, int], Sequence[int]]


class ScriptedDrafter(Drafter):
    """A drafter that proposes `script(request, n)`, at most n tokens."""

    n_kinds = 1

    def __init__(self, script: Script, name: str = "first") -> None:
        self.script, self.name, self.ended = script, name, list[int]()

    def propose(self, request: Request, n: int) -> Sequence[Proposal]:
        tokens = self.script(request, n)
        assert len(tokens) <= n
        return [Proposal(array("i", tokens))] if tokens else []

    def end(self, request: Request) -> None:
        self.ended.append(request.rid)


def use_drafts(e: EngineLoop, scripts: Script | Sequence[Script], jumps: bool = True) -> None:
    """Replace the engine's drafters by scripted ones of depth 8, regardless of cost. Several scripts form a tree."""
    scripts = [scripts] if callable(scripts) else scripts
    names = ("first", "second", "third")
    drafters = [ScriptedDrafter(script, name) for script, name in zip(scripts, names, strict=False)]
    drafting = DepthController(drafters, jumps, Cost(1.0, 0.0, 1e-9), max_depth=8)
    drafting.cost.note = lambda *_: None  # type: ignore[method-assign]
    drafting.add_drafts = partial(_add_full_drafts, drafting.add_drafts, drafting)  # type: ignore[method-assign]
    drafting.max_tree = e.drafting.max_tree
    e.drafting = e.scheduler.drafting = drafting


def _add_full_drafts(
    add_drafts: Callable[..., None], drafting: DepthController, works: list[Work], budget: int
) -> None:
    """Add drafts with all learned acceptance rates reset to optimistic values."""
    drafting._hit_rate = 1.0
    for history in drafting._histories.values():
        history.max_length, history.n_misses, history.own = 8, 0, [AcceptanceRate() for _ in drafting.drafters]
    drafting._kind_rates = [[AcceptanceRate(1.0, 0.9)] for _ in drafting.drafters]
    drafting._other_rates = [[AcceptanceRate(1.0, 0.2)] for _ in drafting.drafters]
    add_drafts(works, budget)


def always_draft(e: EngineLoop) -> Any:
    """Make the engine's model drafter run whenever it can draft, and return it."""
    (drafter,) = (drafter for drafter in e.drafting.drafters if drafter.cost is not None)
    e.drafting.cost, drafter.cost = Cost(1.0, 0.0, 1e-9), Cost(1e-9, 0.0, 0.0)
    for cost in (e.drafting.cost, drafter.cost):
        cost.note = lambda *_: None  # type: ignore[method-assign]
    e.drafting._chance = lambda *_: 0.9  # type: ignore[method-assign]
    return drafter


def engine_with_drafts(scripts: Script | Sequence[Script], model: Any = None, **options: Any) -> EngineLoop:
    e = engine(model, **options)
    use_drafts(e, scripts)
    return e


def step(e: EngineLoop, outputs: dict[int, Output]) -> None:
    """Run one step and add its report to `outputs` by request."""
    report = e.step()
    ids = iter(array("i", report.ids))
    for rid, n in zip(array("q", report.rids), array("i", report.counts), strict=True):
        outputs.setdefault(rid, Output()).ids += [next(ids) for _ in range(n)]
    for rid, entries in report.logprobs.items():
        outputs[rid].logprobs += entries
    for finish in report.finished:
        outputs.setdefault(finish.rid, Output()).finish = finish
    for failed in e.failed:
        outputs.setdefault(failed.program, Output()).failed = failed
    e.failed.clear()


def drive(e: EngineLoop, commands: Iterable[Run | Abort], outputs: dict[int, Output] | None = None, check: bool = False,
          limit: int = 10_000) -> dict[int, Output]:  # fmt: skip
    """Submit all commands at once and step until the engine is idle."""
    outputs = {} if outputs is None else outputs
    for command in commands:
        e.take(command)
    for _ in range(limit):
        if e.scheduler.is_idle:
            step(e, outputs)  # report requests that failed on arrival
            return outputs
        step(e, outputs)
        if check:
            e.scheduler.check()
    raise AssertionError(f"not idle after {limit} steps: {e.scheduler.stats()}")
