"""The same answer by every road: greedy output does not depend on how the engine came to it.

The truth is the naive loop over transformers' own model, in float32, without any cache. The roads: tree on or off,
chunks of 7 or 64 tokens or whole prompts, 1 to 8 requests in a step, pages of 1 or 16 slots, prompts alone or forked
from one another, a tree that is cold or that knows all, and pools so small that requests are retracted again and again.

Constrained outputs take the same roads, and some of their own: forced tokens drawn one by one or appended as a run, and
an engine that dies after any token. Their truth is the naive loop under the constraint's masks.
"""

from __future__ import annotations

import json
import random
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from banyan.runtime import config as configs
from banyan.runtime.config import Resolved
from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.llg import LlgGuide
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.engine import guides
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.scheduling import scheduler
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation import depth_control
from banyan.runtime.model.load import Model, load
from banyan.runtime.protocol.wire import ConstraintSpec, Run, Sampling
from banyan.runtime.server.text.tokenizer import Files, Tokenizer

N_OUT = 12
WHOLE = 512

Text = tuple[int, ...]


def texts(vocab: int) -> list[Text]:
    """Eight prompts: two alone, six that fork at different depths, on and off page borders; one is another's prefix."""
    chance = random.Random(7)

    def some(n: int) -> Text:
        return tuple(chance.randrange(3, vocab) for _ in range(n))

    root = some(37)
    left, right = root + some(11), root + some(20)
    return [some(5), some(70), left, left + some(3), left + some(16), right + some(1), right + some(1), root[:33]]


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> Model:
    return load(tiny_model("llama"))


@pytest.fixture(scope="module")
def truth(tiny_model: Callable[..., Path], reference: Callable[[Path], Any], model: Model) -> dict[Text, list[int]]:
    return naive(reference(tiny_model("llama")), model.spec.vocab_size)


def naive(oracle: Any, vocab: int) -> dict[Text, list[int]]:
    """What the naive loop says after each text."""
    said = {}
    for text in texts(vocab):
        ids = list(text)
        for _ in range(N_OUT):
            with torch.inference_mode():
                ids.append(int(oracle(torch.tensor([ids])).logits[0, -1].argmax()))
        said[text] = ids[len(text) :]
    return said


def engine(model: Model, n_pages: int = 0, n_host: int = 0, small: Model | None = None, **options: Any) -> EngineLoop:
    """small: a model that drafts."""
    options |= {"draft_model": "it"} if small else {}
    config = configs.make(**options)
    n_pages = n_pages or 2048 // config.page
    resolved = Resolved(
        device="cpu", dtype="float32", context=256, n_pages=n_pages, n_host=n_host, threads=1, decisions=()
    )
    return EngineLoop(config, model, resolved, stopwatch=lambda: 0.0, draft_model=small)


def answers(e: EngineLoop, some: Iterable[Text]) -> dict[Text, list[int]]:
    """Run all at once, and check the engine's books."""
    by_rid = dict(enumerate(some))
    for rid, text in by_rid.items():
        sampling = Sampling(max_tokens=N_OUT, temperature=0.0)
        e.take(Run(rid, array("i", text).tobytes(), sampling, order=(0, rid)))
    said: dict[Text, list[int]] = {text: [] for text in by_rid.values()}
    while not e.scheduler.is_idle:
        step = e.step()
        ids = iter(array("i", step.ids))
        for rid, n in zip(array("q", step.rids), array("i", step.counts), strict=True):
            said[by_rid[rid]] += [next(ids) for _ in range(n)]
    assert not e.failed
    e.scheduler.check()
    return said


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("step_tokens", [7, 64, WHOLE])
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no-cache"])
def test_the_tree_chunks_and_pages(
    model: Model, truth: dict[Text, list[int]], page: int, step_tokens: int, cache: bool
) -> None:
    e = engine(model, page=page, step_tokens=step_tokens, cache=cache)
    assert answers(e, truth) == truth, "cold"
    computed = e.scheduler.counts["computed_tokens"]
    assert answers(e, truth) == truth, "warm"
    again = e.scheduler.counts["computed_tokens"] - computed
    assert again == (len(truth) * N_OUT if cache else computed)  # one prompt token each, and N_OUT - 1 of the output


@pytest.mark.parametrize("batch", range(1, 9))
def test_the_batch(model: Model, truth: dict[Text, list[int]], batch: int) -> None:
    assert answers(engine(model, max_running=batch), truth) == truth


@pytest.mark.parametrize("step_tokens", [7, WHOLE])
def test_alone_or_forked(model: Model, truth: dict[Text, list[int]], step_tokens: int) -> None:
    forked = engine(model, step_tokens=step_tokens)
    for text, said in truth.items():
        assert answers(engine(model, step_tokens=step_tokens), [text]) == {text: said}, "alone"
        assert answers(forked, [text]) == {text: said}, "one after the other, over the same tree"
        longer = (*text, *said[:-1])
        (token,) = {tuple(x) for x in answers(forked, [longer]).values()}
        assert token[0] == said[-1], "an answer that became a prompt"


@pytest.mark.parametrize("page", [1, 16])
def test_short_of_pages(model: Model, truth: dict[Text, list[int]], page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)  # start what fits now, whatever comes
    longest = max(map(len, truth)) + N_OUT
    e = engine(model, n_pages=-(-longest // page) + 32 // page, page=page)
    assert answers(e, truth) == truth
    assert answers(e, truth) == truth
    assert e.scheduler.counts["retractions"] > 0


@pytest.mark.parametrize("policy", ["lru", "slru", "lfu", "fifo", "priority"])
@pytest.mark.parametrize("page", [1, 16])
def test_the_second_tier(
    model: Model, truth: dict[Text, list[int]], page: int, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    longest = max(map(len, truth)) + N_OUT
    n_pages = -(-longest // page) + 32 // page
    e = engine(model, n_pages=n_pages, n_host=2 * n_pages, page=page, eviction=policy)
    for _ in range(3):
        assert answers(e, truth) == truth
    stats = e.cache.stats()
    assert stats.n_moved_in > 0
    assert stats.n_host_hit_tokens > 0
    assert e.scheduler.counts["retractions"] > 0


@pytest.mark.parametrize("page", [4, 16])
def test_a_tree_from_a_file(model: Model, truth: dict[Text, list[int]], page: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"page": page, "host_memory": "1MB", "host_file": str(tmp_path / "kv")}
    cold = engine(model, n_host=1024 // page, **options)
    assert answers(cold, truth) == truth
    cold.close()
    warm = engine(model, n_host=1024 // page, **options)
    assert answers(warm, truth) == truth
    whole = sum((len(text) - 1) // page * page for text in truth)
    assert warm.scheduler.counts["cached_tokens"] >= whole, "all whole pages of the prompts are there"
    warm.close()


@pytest.mark.parametrize("options", [{"speculate": "off"}, {"speculate": "auto"}, {"deterministic": True}], ids=str)
def test_a_step_ahead(
    model: Model, truth: dict[Text, list[int]], module_at: Callable[[Path], ModuleType], options: dict[str, Any]
) -> None:
    """On a device that computes nothing of a step before somebody asks for its tokens."""
    late = module_at(Path(__file__).parent / "runtime/engine/late.py")
    sampling = Sampling(max_tokens=N_OUT, temperature=0.0)
    e = engine(model, max_running=5, step_tokens=64, **options)
    runs = {3 * i: [Run(i, array("i", text).tobytes(), sampling)] for i, text in enumerate(truth)}
    assert late.play(e, runs).said == dict(enumerate(truth.values()))
    least = 0.8 if options.get("speculate") == "off" else 0.0  # drafters are asked often at first
    assert e.scheduler.counts["steps_ahead"] > least * e.scheduler.counts["steps"]


# ---- with drafts ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def fake(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).parent / "runtime" / "engine" / "fake.py")


def nearly(known: dict[Text, list[int]], vocab: int, shape: str) -> list[Callable[[Request, int], list[int]]]:
    """Say what is known to come, of any length, with one token in four wrong: a chain, or three that make a tree."""
    return [_nearly(known, vocab, random.Random(seed)) for seed in ((11, 12, 13) if shape == "tree" else (11,))]


def _nearly(known: dict[Text, list[int]], vocab: int, chance: random.Random) -> Callable[[Request, int], list[int]]:
    def says(request: Request, n: int) -> list[int]:
        text = next(text for text in known if list(request.ids[: request.n_prompt]) == list(text))
        draft = known[text][request.n_out :][: chance.randrange(n + 1)]
        return [token if chance.randrange(4) else chance.randrange(vocab) for token in draft]

    return says


@pytest.mark.parametrize("speculate", ["tree", "ngram", "auto", "off"])
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("step_tokens", [7, WHOLE])
def test_every_drafter(model: Model, truth: dict[Text, list[int]], speculate: str, page: int, step_tokens: int) -> None:
    e = engine(model, page=page, step_tokens=step_tokens, speculate=speculate)
    for _ in range(3):
        assert answers(e, truth) == truth
    if speculate in ("tree", "auto") and step_tokens == WHOLE:
        assert e.drafting.stats()["accepted_tree"] > 2 * N_OUT, "what was said before is said again"
    for text, said in truth.items():  # outputs that became prompts, so that the own text has something to copy
        both = (*text, *said, *text)
        assert answers(e, [both])[both] == answers(engine(model, speculate="off"), [both])[both]


@pytest.mark.parametrize("speculate", ["model", "auto"])
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("step_tokens", [7, WHOLE])
def test_a_smaller_model(
    model: Model, truth: dict[Text, list[int]], fake: ModuleType, speculate: str, page: int, step_tokens: int
) -> None:
    """The model itself, so that much is right."""
    e = engine(model, small=model, page=page, step_tokens=step_tokens, speculate=speculate)
    fake.asked(e)
    for _ in range(2):
        assert answers(e, truth) == truth
    assert step_tokens == 7 or e.drafting.stats()["accepted_model"] > N_OUT


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("step_tokens", [7, 64])
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_right_and_wrong_drafts(
    model: Model, truth: dict[Text, list[int]], fake: ModuleType, page: int, step_tokens: int, cache: bool, shape: str
) -> None:
    e = engine(model, page=page, step_tokens=step_tokens, cache=cache)
    fake.tell(e, nearly(truth, model.spec.vocab_size, shape))
    for _ in range(2):
        assert answers(e, truth) == truth
    stats = e.drafting.stats()
    assert 0 < stats["accepted_told"] < stats["drafted_told"]


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_drafts_short_of_pages(
    model: Model, truth: dict[Text, list[int]], fake: ModuleType, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    for page in (1, 16):
        n_pages = -(-(max(map(len, truth)) + N_OUT) // page)
        e = engine(model, n_pages=n_pages, page=page, n_host=n_pages)
        fake.tell(e, nearly(truth, model.spec.vocab_size, shape))
        for _ in range(2):
            assert answers(e, truth) == truth
        assert e.scheduler.counts["retractions"] > 0
        assert e.drafting.stats()["accepted_told"] > 0


@pytest.mark.parametrize("family", ["mistral", "gemma2"])  # windows: a row's is counted from its place in the text
def test_trees_in_other_families(
    tiny_model: Callable[..., Path], reference: Callable[[Path], Any], fake: ModuleType, family: str
) -> None:
    other = load(tiny_model(family))
    said = naive(reference(tiny_model(family)), other.spec.vocab_size)
    e = engine(other)
    fake.tell(e, nearly(said, other.spec.vocab_size, "tree"))
    assert answers(e, said) == said
    assert e.drafting.stats()["accepted_other"] > 0


@pytest.mark.parametrize("family", ["mistral", "qwen3", "gemma2"])  # a window; norms of q and k; transformers' own code
def test_other_families(tiny_model: Callable[..., Path], reference: Callable[[Path], Any], family: str) -> None:
    other = load(tiny_model(family))
    said = naive(reference(tiny_model(family)), other.spec.vocab_size)
    e = engine(other, step_tokens=23, max_running=5)
    assert answers(e, said) == said, "cold"
    assert answers(e, said) == said, "warm"


# ---- with constraints ----------------------------------------------------------------------------------------------

N_HELD = 30
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "the other": {"enum": ["there", "then"]}},
    "required": ["name", "the other"],
    "additionalProperties": False,
}
SPECS = (
    ConstraintSpec("json_schema", json.dumps(PERSON)),
    ConstraintSpec("regex", "(the |[a-c]{2,4}-){3}[0-9]+"),
    ConstraintSpec("choices", '["hello there", "hello", "another"]'),
    ConstraintSpec("json_schema", '{"type": "array", "items": {"type": "boolean"}, "minItems": 3}', "compact"),
    ConstraintSpec("json_schema", '{"const": {"the answer": 42, "is": ["hello", null]}}'),
    ConstraintSpec("grammar", 'start: "(" start ")" | "the"'),
    ConstraintSpec("regex", "[0-9]{2}", after=("e", "t"), end=" fox", scope="repeat"),
)
Held = dict[Text, tuple[list[int], str]]
"""Prompt -> output, and why it ended."""


@pytest.fixture(scope="module")
def vocabulary(tiny_model: Callable[..., Path], model: Model) -> Vocabulary:
    directory = tiny_model("llama")
    return Vocabulary(Tokenizer(directory, Files.read(directory)).vocabulary(), model.spec.vocab_size)


@pytest.fixture(scope="module")
def held_truth(
    tiny_model: Callable[..., Path], reference: Callable[[Path], Any], vocabulary: Vocabulary, model: Model
) -> Held:
    """What the naive loop says after each text, where a mask leaves the tokens that the constraint allows."""
    oracle, said = reference(tiny_model("llama")), {}
    for text, spec in zip(texts(model.spec.vocab_size), SPECS, strict=False):
        ids, guides, reason = list(text), build(spec, vocabulary).guide(), "length"
        row = np.empty(vocabulary.n_words, np.int32)
        while len(ids) < len(text) + N_HELD:
            guides.fill(row)
            allowed = np.unpackbits(row.view(np.uint8), bitorder="little")[: model.spec.vocab_size].astype(bool)
            allowed[list(vocabulary.eos)] = guides.can_stop
            with torch.inference_mode():
                logits = oracle(torch.tensor([ids])).logits[0, -1].numpy()
            token = int(np.where(allowed, logits, -np.inf).argmax())
            if token in vocabulary.eos:
                reason = "stop"
                break
            assert guides.accept([token]) == 1
            ids.append(token)
            if guides.must_stop:
                reason = "stop"
                break
        said[text] = ids[len(text) :], reason
    return said


def held_answers(e: EngineLoop, vocabulary: Vocabulary, some: Held, n_done: int = 0) -> Held:
    """Run all at once under their constraints, after the first `n_done` tokens of what they said in another engine."""
    specs = dict(zip(texts(vocabulary.n_vocab), SPECS, strict=False))
    said: dict[int, list[int]] = {}
    reasons: dict[int, str] = {}
    e.take(vocabulary.message)
    for rid, (text, (whole, _)) in enumerate(some.items()):
        done = whole[:n_done]
        said[rid] = list(done)
        sampling = Sampling(max_tokens=N_HELD, temperature=0.0, constraint=specs[text])
        stops = array("i", vocabulary.eos).tobytes()
        e.take(Run(rid, array("i", [*text, *done]).tobytes(), sampling, stops, n_done=len(done), order=(0, rid)))
    deadline = time.monotonic() + 60
    while len(reasons) < len(some):
        assert time.monotonic() < deadline
        step = e.step()
        ids = iter(array("i", step.ids))
        for rid, n in zip(array("q", step.rids), array("i", step.counts), strict=True):
            said[rid] += [next(ids) for _ in range(n)]
        reasons |= {finish.rid: finish.reason for finish in step.finished}
        assert not e.failed
    e.scheduler.check()
    return {text: (said[rid], reasons[rid]) for rid, text in enumerate(some)}


def test_constraints_hold(held_truth: Held) -> None:
    """The truth is worth comparing with: whole values and cut ones, some of them forced."""
    assert len(held_truth) == len(SPECS)
    assert {reason for _, reason in held_truth.values()} == {"stop", "length"}


@pytest.mark.parametrize("jump", [True, False], ids=["run", "one-by-one"])
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("step_tokens", [7, WHOLE])
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no-cache"])
def test_constrained(
    model: Model, vocabulary: Vocabulary, held_truth: Held, monkeypatch: pytest.MonkeyPatch,
    page: int, step_tokens: int, cache: bool, jump: bool,
) -> None:  # fmt: skip
    if not jump:
        monkeypatch.setattr(LlgGuide, "forced_tokens", lambda self, limit: [])
    e = engine(model, page=page, step_tokens=step_tokens, cache=cache)
    assert held_answers(e, vocabulary, held_truth) == held_truth, "cold"
    assert (e.scheduler.counts["forced_tokens"] > 0) == jump
    assert held_answers(e, vocabulary, held_truth) == held_truth, "warm"


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_constrained_in_a_batch(model: Model, vocabulary: Vocabulary, held_truth: Held, batch: int) -> None:
    assert held_answers(engine(model, max_running=batch), vocabulary, held_truth) == held_truth


def test_constrained_by_the_other_engine(
    model: Model, vocabulary: Vocabulary, held_truth: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regexes and choices without a trigger are outlines_core's too."""
    others = tuple(
        msgspec.structs.replace(spec, engine="outlines_core")
        if spec.kind in ("regex", "choices") and not spec.after else spec
        for spec in SPECS
    )  # fmt: skip
    assert sum(spec.engine == "outlines_core" for spec in others) == 2
    monkeypatch.setattr(sys.modules[__name__], "SPECS", others)
    for step_tokens in (7, WHOLE):
        assert held_answers(engine(model, step_tokens=step_tokens), vocabulary, held_truth) == held_truth
    for n_done in (1, 3, 8):
        assert held_answers(engine(model), vocabulary, held_truth, n_done) == held_truth


def test_constrained_alone(model: Model, vocabulary: Vocabulary, held_truth: Held) -> None:
    e = engine(model)
    for text, said in held_truth.items():
        assert held_answers(e, vocabulary, {text: said}) == {text: said}


def test_constrained_and_short_of_pages(
    model: Model, vocabulary: Vocabulary, held_truth: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    for page, some in ((1, held_truth), (16, {text: said for text, said in held_truth.items() if len(text) < 70})):
        longest = max(map(len, some)) + N_HELD
        for room in (longest, 3 * longest // 2):  # for the longest alone, and for the beginning of others beside it
            e = engine(model, n_pages=-(-room // page), page=page, cache=page == 1)
            for _ in range(2):  # the second time their guides are there, and so they all run at once
                assert held_answers(e, vocabulary, some) == some
        assert e.scheduler.counts["retractions"] > 0


@pytest.mark.parametrize("jumps", [True, False], ids=["run", "one-by-one"])
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_constrained_with_drafts(
    model: Model, vocabulary: Vocabulary, held_truth: Held, fake: ModuleType, page: int, jumps: bool, shape: str
) -> None:
    """Also drafts that the constraint forbids, in the middle and at once."""
    e = engine(model, page=page)
    known = {text: said for text, (said, _) in held_truth.items()}
    fake.tell(e, nearly(known, model.spec.vocab_size, shape), jumps)
    assert held_answers(e, vocabulary, held_truth) == held_truth
    assert e.drafting.stats()["accepted_told"] > 2 * len(held_truth)
    assert (e.scheduler.counts["forced_tokens"] > 0) == jumps


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_constrained_by_masks_alone(
    model: Model, vocabulary: Vocabulary, held_truth: Held, fake: ModuleType, monkeypatch: pytest.MonkeyPatch,
    shape: str,
) -> None:  # fmt: skip
    """As on a GPU: no row is spared its mask because its best token is allowed."""
    n_rows = []
    whole = guides.Guides.masks

    def masks(self: guides.Guides, requests: Any, logits: Any) -> Any:
        made = whole(self, requests, None)
        n_rows.append((len(made.masks), len(requests)) if made else (0, 0))
        return made

    monkeypatch.setattr(guides.Guides, "masks", masks)
    e = engine(model)
    fake.tell(e, nearly({text: said for text, (said, _) in held_truth.items()}, model.spec.vocab_size, shape))
    assert held_answers(e, vocabulary, held_truth) == held_truth
    assert max(n_rows)[0] > len(held_truth)
    assert all(n == n_asked for n, n_asked in n_rows)


@pytest.mark.parametrize("speculate", ["auto", "off", "tree", "ngram,grammar"])
def test_constrained_with_every_drafter(model: Model, vocabulary: Vocabulary, held_truth: Held, speculate: str) -> None:
    e = engine(model, speculate=speculate)
    for _ in range(3):
        assert held_answers(e, vocabulary, held_truth) == held_truth


@pytest.mark.parametrize("page", [1, 16])
def test_constrained_with_a_smaller_model(
    model: Model, vocabulary: Vocabulary, held_truth: Held, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    for margin in (
        "MIN_MODEL_SPEEDUP",
        "MIN_SPEEDUP",
    ):  # who is in a batch with whom is up to the threads that compile: drafts always pay
        monkeypatch.setattr(depth_control, margin, 0.0)
    e = engine(model, small=model, page=page, speculate="model,grammar")
    for _ in range(3):
        assert held_answers(e, vocabulary, held_truth) == held_truth
    assert e.drafting.stats()["drafted_model"] > 0


@pytest.mark.parametrize("n_done", range(N_HELD + 1))
def test_constrained_in_the_next_engine(model: Model, vocabulary: Vocabulary, held_truth: Held, n_done: int) -> None:
    """An engine died after any token; the next one goes on from the ids, in the middle of a forced run too."""
    assert held_answers(engine(model), vocabulary, held_truth, n_done) == held_truth
