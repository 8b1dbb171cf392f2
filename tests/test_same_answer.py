"""Greedy output does not depend on the engine's configuration or on its cache.

The reference is the naive loop over transformers' own model, in float32, without a cache. The configurations: prefix
cache on or off, chunks of 7 or 64 tokens or whole prompts, 1 to 8 requests in a step, pages of 1 or 16 slots, separate
or forked prompts, a cold or warm cache, and KV pools so small that requests are preempted repeatedly (a "retraction").

Constrained outputs also cover forced tokens that are sampled one by one or appended as a run, and an engine that is
replaced after any token. Their reference is the naive loop under the constraint's masks.
"""

from __future__ import annotations

import json
import random
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from itertools import count, product
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
from forms import in_short, short_form

N_OUT = 12
WHOLE = 512

Text = tuple[int, ...]


def prompts(vocab: int) -> list[Text]:
    """Eight prompts: two share nothing, and six share prefixes that end on and off page boundaries. One of these is a
    prefix of others."""
    rng = random.Random(7)

    def tokens(n: int) -> Text:
        return tuple(rng.randrange(3, vocab) for _ in range(n))

    root = tokens(37)
    left, right = root + tokens(11), root + tokens(20)
    return [
        tokens(5),
        tokens(70),
        left,
        left + tokens(3),
        left + tokens(16),
        right + tokens(1),
        right + tokens(1),
        root[:33],
    ]


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> Model:
    return load(tiny_model("llama"))


@pytest.fixture(scope="module")
def expected(
    tiny: ModuleType, tiny_model: Callable[..., Path], reference: Callable[[Path], Any], model: Model
) -> dict[Text, list[int]]:
    return naive_outputs(tiny, reference(tiny_model("llama")), model)


def naive_outputs(tiny: ModuleType, reference_model: Any, model: Model) -> dict[Text, list[int]]:
    """The naive loop's output for each prompt. The engine's output serves as a draft, which saves forward passes and
    does not change the result."""
    drafts = generate(engine(model, cache=False), prompts(model.spec.vocab_size))
    return {text: tiny.reference_greedy(reference_model, text, N_OUT, draft) for text, draft in drafts.items()}


def engine(model: Model, n_pages: int = 0, n_host: int = 0, small: Model | None = None, **options: Any) -> EngineLoop:
    """An engine with a clock that ticks equally in each run. small: a draft model."""
    options |= {"draft_model": "it"} if small else {}
    config = configs.make(**options)
    n_pages = n_pages or 2048 // config.page
    resolved = Resolved(
        device="cpu", dtype="float32", context=256, n_pages=n_pages, n_host=n_host, threads=1, decisions=()
    )
    ticks = count()  # the same times in each run
    return EngineLoop(config, model, resolved, lambda: next(ticks) / 1000, stopwatch=lambda: 0.0, draft_model=small)


def generate(e: EngineLoop, inputs: Iterable[Text]) -> dict[Text, list[int]]:
    """Run all prompts at once and check the engine's invariants."""
    by_rid = dict(enumerate(inputs))
    for rid, text in by_rid.items():
        sampling = Sampling(max_tokens=N_OUT, temperature=0.0)
        e.take(Run(rid, array("i", text).tobytes(), sampling, order=(0, rid)))
    outputs: dict[Text, list[int]] = {text: [] for text in by_rid.values()}
    while not e.scheduler.is_idle:
        step = e.step()
        ids = iter(array("i", step.ids))
        for rid, n in zip(array("q", step.rids), array("i", step.counts), strict=True):
            outputs[by_rid[rid]] += [next(ids) for _ in range(n)]
    assert not e.failed
    e.scheduler.check()
    return outputs


@pytest.mark.parametrize(
    ("page", "step_tokens", "cache"),
    short_form(
        product([1, 16], [7, 64, WHOLE], [True, False]),
        lambda *case: case in ((1, 7, True), (16, 64, True), (16, WHOLE, False)),
    ),
)
def test_output_does_not_depend_on_cache_chunks_or_page_size(
    model: Model, expected: dict[Text, list[int]], page: int, step_tokens: int, cache: bool
) -> None:
    e = engine(model, page=page, step_tokens=step_tokens, cache=cache)
    assert generate(e, expected) == expected, "cold"
    computed = e.scheduler.counts["computed_tokens"]
    assert generate(e, expected) == expected, "warm"
    again = e.scheduler.counts["computed_tokens"] - computed
    assert again == (len(expected) * N_OUT if cache else computed)  # the last token of each prompt, N_OUT - 1 outputs


@pytest.mark.parametrize("batch", short_form(product(range(1, 9)), lambda batch: batch in (1, 3)))
def test_output_does_not_depend_on_the_batch_size(model: Model, expected: dict[Text, list[int]], batch: int) -> None:
    assert generate(engine(model, max_running=batch), expected) == expected


@pytest.mark.parametrize("step_tokens", in_short([7], [7, WHOLE]))
def test_output_does_not_depend_on_shared_prefixes(
    model: Model, expected: dict[Text, list[int]], step_tokens: int
) -> None:
    forked = engine(model, step_tokens=step_tokens)
    for text, output in expected.items():
        assert generate(engine(model, step_tokens=step_tokens), [text]) == {text: output}, "alone"
        assert generate(forked, [text]) == {text: output}, "one after the other with a shared cache"
        longer = (*text, *output[:-1])
        (token,) = {tuple(x) for x in generate(forked, [longer]).values()}
        assert token[0] == output[-1], "an output that became a prompt"


@pytest.mark.parametrize("page", in_short([16], [1, 16]))
def test_output_survives_retraction(
    model: Model, expected: dict[Text, list[int]], page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)  # admit whatever fits now
    longest = max(map(len, expected)) + N_OUT
    e = engine(model, n_pages=-(-longest // page) + 32 // page, page=page)
    for _ in range(2):
        assert generate(e, expected) == expected
    assert e.scheduler.counts["retractions"] > 0


@pytest.mark.parametrize(
    ("page", "policy"),
    short_form(
        product([1, 16], ["lru", "slru", "lfu", "fifo", "priority"]),
        lambda *case: case in ((1, "lru"), (16, "priority")),
    ),
)
def test_output_survives_moves_to_the_host_tier(
    model: Model, expected: dict[Text, list[int]], page: int, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    longest = max(map(len, expected)) + N_OUT
    n_pages = -(-longest // page) + 32 // page
    e = engine(model, n_pages=n_pages, n_host=2 * n_pages, page=page, eviction=policy)
    for _ in range(3):
        assert generate(e, expected) == expected
    stats = e.cache.stats()
    assert stats.n_moved_in > 0
    assert stats.n_host_hit_tokens > 0
    assert e.scheduler.counts["retractions"] > 0


@pytest.mark.parametrize("page", in_short([4], [4, 16]))
def test_output_does_not_depend_on_a_cache_file(
    model: Model, expected: dict[Text, list[int]], page: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"page": page, "host_memory": "1MB", "host_file": str(tmp_path / "kv")}
    cold = engine(model, n_host=1024 // page, **options)
    assert generate(cold, expected) == expected
    cold.close()
    warm = engine(model, n_host=1024 // page, **options)
    assert generate(warm, expected) == expected
    whole = sum((len(text) - 1) // page * page for text in expected)
    assert warm.scheduler.counts["cached_tokens"] >= whole, "all whole pages of the prompts are cached"
    warm.close()


@pytest.mark.parametrize("options", [{"speculate": "off"}, {"speculate": "auto"}, {"deterministic": True}], ids=str)
def test_lookahead_steps_change_no_output(
    model: Model, expected: dict[Text, list[int]], module_at: Callable[[Path], ModuleType], options: dict[str, Any]
) -> None:
    """Lookahead steps run on a fake device that computes a step only when its tokens are read."""
    late = module_at(Path(__file__).parent / "runtime/engine/late.py")
    sampling = Sampling(max_tokens=N_OUT, temperature=0.0)
    e = engine(model, max_running=5, step_tokens=64, **options)
    runs = {3 * i: [Run(i, array("i", text).tobytes(), sampling)] for i, text in enumerate(expected)}
    assert late.play(e, runs).outputs == dict(enumerate(expected.values()))
    least = 0.8 if options.get("speculate") == "off" else 0.0  # at first drafters are asked often
    assert e.scheduler.counts["steps_ahead"] > least * e.scheduler.counts["steps"]


# ---- with drafts ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def fake(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(Path(__file__).parent / "runtime" / "engine" / "fake.py")


def noisy_scripts(known: dict[Text, list[int]], vocab: int, shape: str) -> list[Callable[[Request, int], list[int]]]:
    """Draft scripts that propose the known output with one token in four wrong: one script for a chain, three for a
    tree."""
    return [_noisy_script(known, vocab, random.Random(seed)) for seed in ((11, 12, 13) if shape == "tree" else (11,))]


def _noisy_script(known: dict[Text, list[int]], vocab: int, rng: random.Random) -> Callable[[Request, int], list[int]]:
    def script(request: Request, n: int) -> list[int]:
        text = next(text for text in known if list(request.ids[: request.n_prompt]) == list(text))
        draft = known[text][request.n_out :][: rng.randrange(n + 1)]
        return [token if rng.randrange(4) else rng.randrange(vocab) for token in draft]

    return script


@pytest.mark.parametrize(
    ("speculate", "page", "step_tokens"),
    short_form(
        product(["tree", "ngram", "auto", "off"], [1, 16], [7, WHOLE]),
        lambda *case: case in (("auto", 1, WHOLE), ("ngram", 16, 7)),
    ),
)
def test_drafters_change_no_output(
    model: Model, expected: dict[Text, list[int]], speculate: str, page: int, step_tokens: int
) -> None:
    e = engine(model, page=page, step_tokens=step_tokens, speculate=speculate)
    for _ in range(3):
        assert generate(e, expected) == expected
    if speculate in ("tree", "auto") and step_tokens == WHOLE:
        assert e.drafting.stats()["accepted_tree"] > 2 * N_OUT, "earlier outputs are proposed again"
    for text, output in expected.items():  # repeat prompt and output in a prompt, so that ngram has matches
        both = (*text, *output, *text)
        assert generate(e, [both])[both] == generate(engine(model, speculate="off"), [both])[both]


@pytest.mark.parametrize(
    ("speculate", "page", "step_tokens"),
    short_form(
        product(["model", "auto"], [1, 16], [7, WHOLE]),
        lambda *case: case in (("model", 1, WHOLE), ("auto", 16, 7)),
    ),
)
def test_draft_model_changes_no_output(
    model: Model, expected: dict[Text, list[int]], fake: ModuleType, speculate: str, page: int, step_tokens: int
) -> None:
    """The draft model is the model itself, so that many drafts are correct."""
    e = engine(model, small=model, page=page, step_tokens=step_tokens, speculate=speculate)
    fake.always_draft(e)
    for _ in range(2):
        assert generate(e, expected) == expected
    assert step_tokens == 7 or e.drafting.stats()["accepted_model"] > N_OUT


@pytest.mark.parametrize(
    ("page", "step_tokens", "cache", "shape"),
    short_form(
        product([1, 4, 16], [7, 64], [True, False], ["chain", "tree"]),
        lambda *case: case in ((1, 7, True, "chain"), (4, 64, True, "tree"), (16, 7, False, "tree")),
    ),
)
def test_partly_wrong_drafts_change_no_output(
    model: Model,
    expected: dict[Text, list[int]],
    fake: ModuleType,
    page: int,
    step_tokens: int,
    cache: bool,
    shape: str,
) -> None:
    e = engine(model, page=page, step_tokens=step_tokens, cache=cache)
    fake.use_drafts(e, noisy_scripts(expected, model.spec.vocab_size, shape))
    for _ in range(2):
        assert generate(e, expected) == expected
    stats = e.drafting.stats()
    assert 0 < stats["accepted_first"] < stats["drafted_first"]


@pytest.mark.parametrize(
    ("shape", "page"), short_form(product(["chain", "tree"], [1, 16]), lambda *case: case == ("tree", 16))
)
def test_drafts_under_page_pressure_change_no_output(
    model: Model, expected: dict[Text, list[int]], fake: ModuleType, monkeypatch: pytest.MonkeyPatch, shape: str,
    page: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    n_pages = -(-(max(map(len, expected)) + N_OUT) // page)
    e = engine(model, n_pages=n_pages, page=page, n_host=n_pages)
    fake.use_drafts(e, noisy_scripts(expected, model.spec.vocab_size, shape))
    for _ in range(2):
        assert generate(e, expected) == expected
    assert e.scheduler.counts["retractions"] > 0
    assert e.drafting.stats()["accepted_first"] > 0


@pytest.mark.parametrize(
    "family", in_short(["mistral"], ["mistral", "gemma2"])
)  # sliding windows count from a row's position
def test_draft_trees_in_other_families_change_no_output(
    tiny: ModuleType, tiny_model: Callable[..., Path], reference: Callable[[Path], Any], fake: ModuleType, family: str
) -> None:
    other = load(tiny_model(family))
    outputs = naive_outputs(tiny, reference(tiny_model(family)), other)
    e = engine(other)
    fake.use_drafts(e, noisy_scripts(outputs, other.spec.vocab_size, "tree"))
    assert generate(e, outputs) == outputs
    assert e.drafting.stats()["accepted_second"] > 0


# A sliding window; q and k norms; transformers' own code.
@pytest.mark.parametrize("family", in_short(["gemma2"], ["mistral", "qwen3", "gemma2"]))
def test_output_of_other_families_matches_the_naive_loop(
    tiny: ModuleType, tiny_model: Callable[..., Path], reference: Callable[[Path], Any], family: str
) -> None:
    other = load(tiny_model(family))
    outputs = naive_outputs(tiny, reference(tiny_model(family)), other)
    e = engine(other, step_tokens=23, max_running=5)
    assert generate(e, outputs) == outputs, "cold"
    assert generate(e, outputs) == outputs, "warm"


# ---- with constraints ----------------------------------------------------------------------------------------------

N_CONSTRAINED = 30
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
Outcomes = dict[Text, tuple[list[int], str]]
"""Prompt -> output and finish reason."""


@pytest.fixture(scope="module")
def vocabulary(tiny_model: Callable[..., Path], model: Model) -> Vocabulary:
    directory = tiny_model("llama")
    return Vocabulary(Tokenizer(directory, Files.read(directory)).vocabulary(), model.spec.vocab_size)


@pytest.fixture(scope="module")
def constrained(
    tiny_model: Callable[..., Path], reference: Callable[[Path], Any], vocabulary: Vocabulary, model: Model
) -> Outcomes:
    """The naive loop's output for each prompt under its constraint's masks."""
    reference_model, outputs = reference(tiny_model("llama")), {}
    for text, spec in zip(prompts(model.spec.vocab_size), SPECS, strict=False):
        ids, guides, reason = list(text), build(spec, vocabulary).guide(), "length"
        row = np.empty(vocabulary.n_words, np.int32)
        while len(ids) < len(text) + N_CONSTRAINED:
            guides.fill(row)
            allowed = np.unpackbits(row.view(np.uint8), bitorder="little")[: model.spec.vocab_size].astype(bool)
            allowed[list(vocabulary.eos)] = guides.can_stop
            with torch.inference_mode():
                logits = reference_model(torch.tensor([ids])).logits[0, -1].numpy()
            token = int(np.where(allowed, logits, -np.inf).argmax())
            if token in vocabulary.eos:
                reason = "stop"
                break
            assert guides.accept([token]) == 1
            ids.append(token)
            if guides.must_stop:
                reason = "stop"
                break
        outputs[text] = ids[len(text) :], reason
    return outputs


def generate_constrained(e: EngineLoop, vocabulary: Vocabulary, inputs: Outcomes, n_done: int = 0) -> Outcomes:
    """Run all prompts at once under their constraints, after the first `n_done` tokens of their expected outputs."""
    specs = dict(zip(prompts(vocabulary.n_vocab), SPECS, strict=False))
    outputs: dict[int, list[int]] = {}
    reasons: dict[int, str] = {}
    e.take(vocabulary.message)
    for rid, (text, (whole, _)) in enumerate(inputs.items()):
        done = whole[:n_done]
        outputs[rid] = list(done)
        sampling = Sampling(max_tokens=N_CONSTRAINED, temperature=0.0, constraint=specs[text])
        stops = array("i", vocabulary.eos).tobytes()
        e.take(Run(rid, array("i", [*text, *done]).tobytes(), sampling, stops, n_done=len(done), order=(0, rid)))
    deadline = time.monotonic() + 60
    while len(reasons) < len(inputs):
        assert time.monotonic() < deadline
        step = e.step()
        ids = iter(array("i", step.ids))
        for rid, n in zip(array("q", step.rids), array("i", step.counts), strict=True):
            outputs[rid] += [next(ids) for _ in range(n)]
        reasons |= {finish.rid: finish.reason for finish in step.finished}
        assert not e.failed
    e.scheduler.check()
    return {text: (outputs[rid], reasons[rid]) for rid, text in enumerate(inputs)}


def test_expected_outputs_include_complete_and_cut_values(constrained: Outcomes) -> None:

    assert len(constrained) == len(SPECS)
    assert {reason for _, reason in constrained.values()} == {"stop", "length"}


@pytest.mark.parametrize(
    ("page", "step_tokens", "cache", "jump"),
    short_form(
        product([1, 16], [7, WHOLE], [True, False], [True, False]),
        lambda *case: case in ((1, 7, True, True), (16, WHOLE, False, False)),
    ),
)
def test_constrained_output_does_not_depend_on_cache_chunks_or_jumps(
    model: Model, vocabulary: Vocabulary, constrained: Outcomes, monkeypatch: pytest.MonkeyPatch,
    page: int, step_tokens: int, cache: bool, jump: bool,
) -> None:  # fmt: skip
    if not jump:
        monkeypatch.setattr(LlgGuide, "forced_tokens", lambda self, limit: [])
    e = engine(model, page=page, step_tokens=step_tokens, cache=cache)
    assert generate_constrained(e, vocabulary, constrained) == constrained, "cold"
    assert (e.scheduler.counts["forced_tokens"] > 0) == jump
    assert generate_constrained(e, vocabulary, constrained) == constrained, "warm"


@pytest.mark.parametrize("batch", in_short([3], [1, 3, 8]))
def test_constrained_output_does_not_depend_on_the_batch_size(
    model: Model, vocabulary: Vocabulary, constrained: Outcomes, batch: int
) -> None:
    assert generate_constrained(engine(model, max_running=batch), vocabulary, constrained) == constrained


@pytest.mark.parametrize(
    ("step_tokens", "n_done"),
    short_form(((7, 0), (WHOLE, 0), (WHOLE, 1), (WHOLE, 3), (WHOLE, 8)), lambda step_tokens, _: step_tokens == 7),
)
def test_constrained_output_is_the_same_with_outlines_core(
    model: Model, vocabulary: Vocabulary, constrained: Outcomes, monkeypatch: pytest.MonkeyPatch, step_tokens: int,
    n_done: int,
) -> None:  # fmt: skip
    """outlines_core supports regexes and choices without a trigger."""
    others = tuple(
        msgspec.structs.replace(spec, engine="outlines_core")
        if spec.kind in ("regex", "choices") and not spec.after else spec
        for spec in SPECS
    )  # fmt: skip
    assert sum(spec.engine == "outlines_core" for spec in others) == 2
    monkeypatch.setattr(sys.modules[__name__], "SPECS", others)
    e = engine(model, step_tokens=step_tokens)
    assert generate_constrained(e, vocabulary, constrained, n_done) == constrained


def test_constrained_output_is_the_same_alone(model: Model, vocabulary: Vocabulary, constrained: Outcomes) -> None:
    e = engine(model)
    for text, outcome in constrained.items():
        assert generate_constrained(e, vocabulary, {text: outcome}) == {text: outcome}


@pytest.mark.parametrize("page", in_short([16], [1, 16]))
def test_constrained_output_survives_retraction(
    model: Model, vocabulary: Vocabulary, constrained: Outcomes, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(scheduler, "FORESIGHT", 0)
    inputs = {text: outcome for text, outcome in constrained.items() if page == 1 or len(text) < 70}
    longest = max(map(len, inputs)) + N_CONSTRAINED
    for room in (longest, 3 * longest // 2):  # for the longest alone, and for parts of others beside it
        e = engine(model, n_pages=-(-room // page), page=page, cache=page == 1)
        for _ in range(2):  # the second time all guides are compiled, so all run at once
            assert generate_constrained(e, vocabulary, inputs) == inputs
    assert e.scheduler.counts["retractions"] > 0


@pytest.mark.parametrize(
    ("page", "jumps", "shape"),
    short_form(
        product([1, 16], [True, False], ["chain", "tree"]),
        lambda *case: case in ((1, True, "tree"), (16, False, "chain")),
    ),
)
def test_drafts_change_no_constrained_output(
    model: Model, vocabulary: Vocabulary, constrained: Outcomes, fake: ModuleType, page: int, jumps: bool, shape: str
) -> None:
    """The drafts include some that the constraint forbids, from their first token or from a later one."""
    e = engine(model, page=page)
    known = {text: output for text, (output, _) in constrained.items()}
    fake.use_drafts(e, noisy_scripts(known, model.spec.vocab_size, shape), jumps)
    assert generate_constrained(e, vocabulary, constrained) == constrained
    assert e.drafting.stats()["accepted_first"] > 2 * len(constrained)
    assert (e.scheduler.counts["forced_tokens"] > 0) == jumps


@pytest.mark.parametrize("shape", in_short(["tree"], ["chain", "tree"]))
def test_masks_for_all_rows_change_no_constrained_output(
    model: Model, vocabulary: Vocabulary, constrained: Outcomes, fake: ModuleType, monkeypatch: pytest.MonkeyPatch,
    shape: str,
) -> None:  # fmt: skip
    """All rows get a mask, as on a GPU. (On a CPU, a row whose best token is allowed needs none.)"""
    n_rows = []
    masks_of_rows = guides.Guides.masks

    def masks_of_all_rows(self: guides.Guides, requests: Any, logits: Any) -> Any:
        masks = masks_of_rows(self, requests, None)
        n_rows.append((len(masks.masks), len(requests)) if masks else (0, 0))
        return masks

    monkeypatch.setattr(guides.Guides, "masks", masks_of_all_rows)
    e = engine(model)
    known = {text: output for text, (output, _) in constrained.items()}
    fake.use_drafts(e, noisy_scripts(known, model.spec.vocab_size, shape))
    assert generate_constrained(e, vocabulary, constrained) == constrained
    assert max(n_rows)[0] > len(constrained)
    assert all(n == n_asked for n, n_asked in n_rows)


@pytest.mark.parametrize("speculate", in_short(["auto", "ngram,grammar"], ["auto", "off", "tree", "ngram,grammar"]))
def test_drafters_change_no_constrained_output(
    model: Model, vocabulary: Vocabulary, constrained: Outcomes, speculate: str
) -> None:
    e = engine(model, speculate=speculate)
    for _ in range(3):
        assert generate_constrained(e, vocabulary, constrained) == constrained


@pytest.mark.parametrize("page", in_short([16], [1, 16]))
def test_draft_model_changes_no_constrained_output(
    model: Model, vocabulary: Vocabulary, constrained: Outcomes, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    # Compilation threads decide which requests share a batch, so drafts must always pay.
    for margin in ("MIN_MODEL_SPEEDUP", "MIN_SPEEDUP"):
        monkeypatch.setattr(depth_control, margin, 0.0)
    e = engine(model, small=model, page=page, speculate="model,grammar")
    for _ in range(3):
        assert generate_constrained(e, vocabulary, constrained) == constrained
    assert e.drafting.stats()["drafted_model"] > 0


@pytest.mark.parametrize("n_done", short_form(product(range(N_CONSTRAINED + 1)), lambda n_done: n_done in (1, 8, 20)))
def test_constrained_output_continues_in_a_new_engine(
    model: Model, vocabulary: Vocabulary, constrained: Outcomes, n_done: int
) -> None:
    """The engine is replaced after any token, also in the middle of a forced run."""
    assert generate_constrained(engine(model), vocabulary, constrained, n_done) == constrained
