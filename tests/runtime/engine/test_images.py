"""Models that take images in the engine: whatever is cached, forked, cut or retracted, the output is that of
transformers with the same image processor."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tiny_images import MODELS, Oracle, Prompts, make_image_model, png, turn

import banyan as bn
from banyan.radix_cache.windows import WindowPages
from banyan.runtime import config as configs
from banyan.runtime.engine import loop
from banyan.runtime.engine.images import grid_positions
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.process import build
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.errors import BadMessage, BadProgram
from banyan.runtime.model.load import load
from banyan.runtime.protocol import wire
from forms import in_short, short_form

GREEDY = wire.Sampling(temperature=0.0, max_tokens=6, ignore_eos=True)
CAT, DOG, TALL = png(90, 60, 1), png(90, 60, 2), png(60, 200, 3)
PARTS: list[tuple[str | bytes, ...]] = [
    (CAT, "what is it?"),
    (DOG, "what is it?"),
    ("first ", CAT, "then", TALL, " and?"),
    (CAT, "where?"),
    ("no image",),
]
SHORT = ("qwen3_vl",)


def flatten(file: Path) -> None:
    """Write a config.json of Qwen2-VL or Qwen2.5-VL as the hub has it: the text model's fields are at the top level."""
    config = json.loads(file.read_text())
    text = config.pop("text_config") | {"model_type": config["model_type"]}
    rope = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    file.write_text(json.dumps(config | text | {"rope_scaling": scaling, "rope_theta": rope["rope_theta"]}))


class Model:
    """A tiny model in an engine, and what transformers generates with it."""

    def __init__(self, path: Path, family: str, fake: ModuleType, tiny: ModuleType, is_flat: bool = False) -> None:
        make_image_model(path, family, tiny)
        if is_flat:
            flatten(path / "config.json")
        self.model: Any = load(path)
        self.fake, self.prompts = fake, Prompts(path)
        self._oracle = Oracle(path, family)
        self._known: dict[tuple[str | bytes, ...], list[int]] = {}

    def expected(self, parts: tuple[str | bytes, ...]) -> list[int]:
        if parts not in self._known:
            self._known[parts] = self._oracle.greedy(parts, GREEDY.max_tokens)
        return self._known[parts]

    def engine(self, **options: Any) -> EngineLoop:
        engine: EngineLoop = self.fake.engine(self.model, **{"context": 256, "n_pages": 64} | options)
        return engine

    def answer(self, e: EngineLoop) -> int:
        """Send the images that the engine asked for; returns how many."""
        asked = [digest for one in e.answers if isinstance(one, wire.WantImages) for digest in one.images]
        e.answers = []
        for digest in asked:
            e.take(self.prompts.images.pixels(digest))
        return len(asked)

    def run(self, e: EngineLoop, several: list[tuple[str | bytes, ...]]) -> dict[int, Any]:
        """Run prompts at once, and compare their outputs with those of transformers."""
        outputs: dict[int, Any] = {}
        for rid, parts in enumerate(several):
            e.take(self.prompts.run(rid, turn(*parts), GREEDY))
        for _ in range(1000):
            if not e.scheduler.requests:
                break
            self.fake.step(e, outputs)
            e.scheduler.check()
            self.answer(e)
        for rid, parts in enumerate(several):
            assert outputs[rid].failed is None, outputs[rid].failed
            assert outputs[rid].ids == self.expected(parts), parts[-1]
        return outputs


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory, fake: ModuleType, tiny: ModuleType) -> Model:
    return Model(tmp_path_factory.mktemp("llava") / "model", "llava", fake, tiny)


@pytest.mark.parametrize(
    ("family", "is_long"),
    short_form([(name, True) for name in MODELS] + [(name, False) for name in SHORT], lambda _, is_long: not is_long),
)
def test_families_are_equal_cold_warm_and_forked(
    family: str, is_long: bool, tmp_path: Path, fake: ModuleType, tiny: ModuleType
) -> None:
    own = Model(tmp_path / "model", family, fake, tiny)
    for step_tokens in (7, 20, 512) if is_long else (20,):
        e = own.engine(step_tokens=step_tokens)
        for parts in PARTS:
            own.run(e, [parts])
        own.run(e, PARTS)
        own.run(own.engine(step_tokens=step_tokens), PARTS)
    own.run(own.engine(n_pages=9, step_tokens=20), PARTS[:2] * 3)
    own.run(own.engine(speculate="tree"), PARTS * 2)


@pytest.mark.parametrize("family", in_short(["qwen2_5_vl"], ["qwen2_vl", "qwen2_5_vl"]))
def test_config_without_a_text_config_is_read(family: str, tmp_path: Path, fake: ModuleType, tiny: ModuleType) -> None:
    own = Model(tmp_path / "model", family, fake, tiny, is_flat=True)
    assert "text_config" not in json.loads((tmp_path / "model" / "config.json").read_text())
    own.run(own.engine(step_tokens=20), PARTS)


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory, fake: ModuleType, tiny: ModuleType) -> Model:
    """An image has 16 rows, and the window of the first layer 12 tokens."""
    return Model(tmp_path_factory.mktemp("gemma3") / "model", "gemma3", fake, tiny)


AROUND_WINDOW: list[tuple[str | bytes, ...]] = [
    (CAT, "the answer is six tokens, and the image is not in their window"),
    ("the window begins in the image: ", DOG, "?"),
    ("a text that is longer than a window, ", TALL, CAT, DOG, "and one after three images"),
    ("a text that is longer than a window, ", TALL, CAT, "is forked before the third image"),
]


@pytest.mark.parametrize("n_more", in_short([0], [0, 8]))
@pytest.mark.parametrize("page", in_short([4], [1, 4, 16]))
@pytest.mark.parametrize("step_tokens", [4, 20])
def test_windowed_layers_give_back_pages_of_images(gemma3: Model, step_tokens: int, page: int, n_more: int) -> None:
    """With n_more 0, there are pages for a single request with the largest step, which computes all of an image."""
    ahead = configs.tokens_ahead(configs.make(step_tokens=step_tokens, page=page), "cpu", 16)
    n_window = WindowPages.need(12, ahead, page) + n_more
    options: dict[str, Any] = {"n_window_pages": n_window, "page": page, "step_tokens": step_tokens}
    sizes = {"n_pages": 1024 // page}
    for more in ({}, {"speculate": "tree"}, {"cache": False}):
        e = gemma3.engine(**options, **sizes, **more)
        for parts in AROUND_WINDOW * 2:
            gemma3.run(e, [parts])
        gemma3.run(e, AROUND_WINDOW * 2)
    gemma3.run(gemma3.engine(**options, n_pages=200 // page), AROUND_WINDOW[:2] * 3)


@pytest.mark.parametrize("is_lazy", [False, True])
def test_steps_that_are_planned_ahead_compute_whole_images(
    gemma3: Model, late: ModuleType, is_lazy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fewest pages of windowed layers that a GPU's engine has."""
    monkeypatch.setattr(loop, "tokens_ahead", lambda config, _, n: configs.tokens_ahead(config, "cuda", n))
    ahead = configs.tokens_ahead(configs.make(step_tokens=4, page=4), "cuda", 16)
    e = gemma3.engine(n_window_pages=WindowPages.need(12, ahead, 4), page=4, step_tokens=4, n_pages=256)
    runs = [gemma3.prompts.run(rid, turn(*parts), GREEDY) for rid, parts in enumerate(AROUND_WINDOW)]
    for digest in {one.image for run in runs for one in run.images}:
        e.take(gemma3.prompts.images.pixels(digest))
    box = late.play(e, {0: runs}, is_lazy)
    assert e.scheduler.counts["steps_ahead"]
    assert box.outputs == {rid: gemma3.expected(parts) for rid, parts in enumerate(AROUND_WINDOW)}


@pytest.mark.parametrize("n_before", [-2, 1, 9, 15])
def test_match_that_ends_in_an_image_computes_the_rest_of_it(
    gemma3: Model, n_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest attends to rows that are in the tree, as far as the window reaches."""
    prompt = AROUND_WINDOW[2]
    e = gemma3.engine(n_window_pages=128, page=1, n_pages=256, step_tokens=20)
    gemma3.run(e, [prompt])
    n = gemma3.prompts.run(0, turn(*prompt), GREEDY).images[1].start + n_before
    monkeypatch.setattr(Request, "n_reusable", n)
    assert gemma3.run(e, [prompt])[0].finish.n_cached == n


def test_size_says_how_many_pages_windowed_layers_have_beside_images(
    tmp_path: Path, fake: ModuleType, tiny: ModuleType
) -> None:
    own = Model(tmp_path / "model", "gemma3", fake, tiny)
    options: dict[str, Any] = {"device": "cpu", "threads": 1, "kv_memory": "2048 tokens", "page": 4, "step_tokens": 4}
    e = build(configs.make(model=str(tmp_path / "model"), speculate="grammar", **options))
    own.run(e, AROUND_WINDOW)
    planned = bn.size(str(tmp_path / "model"), "1GB", **options)
    assert planned.n_window_pages == e.model.store.n_window_pages > 0
    assert planned.n_pages == e.model.store.n_pages
    assert planned.request_window_pages == WindowPages.need(12, 4 + 15 + 2 * 4, 4)


def test_forks_compute_an_image_once(llava: Model) -> None:
    e = llava.engine()
    forks: list[tuple[str | bytes, ...]] = [(CAT, f"{i} {'x' * i}?") for i in range(8)]
    outputs = llava.run(e, forks)
    assert e.images.n_encoded == 1
    shared = sorted(output.finish.n_cached for output in outputs.values())
    (rows,) = llava.prompts.run(0, turn(*forks[0]), GREEDY).images
    assert shared[0] == 0
    assert shared[1] >= rows.start + rows.n


def test_cached_image_is_not_asked_for(llava: Model) -> None:
    e = llava.engine()
    llava.run(e, [PARTS[0]])
    e.images._images.clear()
    e.take(llava.prompts.run(0, turn(*PARTS[0]), GREEDY))
    outputs: dict[int, Any] = {}
    while e.scheduler.requests:
        llava.fake.step(e, outputs)
        assert not llava.answer(e)
    assert outputs[0].ids == llava.expected(PARTS[0])
    assert e.images.n_encoded == 1


def test_request_whose_image_is_missing_preempts_nobody(llava: Model) -> None:
    e = llava.engine(max_running=1)
    outputs: dict[int, Any] = {}
    e.take(llava.prompts.run(0, turn("no image"), GREEDY))
    llava.fake.step(e, outputs)
    e.take(llava.prompts.run(1, turn(CAT, "?"), GREEDY, priority=1))
    llava.fake.step(e, outputs)
    assert e.scheduler.counts["retractions"] == 0
    assert llava.answer(e) == 1, "it is asked for although no place is free"
    llava.fake.step(e, outputs)
    assert e.scheduler.counts["retractions"] == 1
    while e.scheduler.requests:
        llava.fake.step(e, outputs)
        e.scheduler.check()
    assert outputs[0].ids == llava.expected(("no image",))
    assert outputs[1].ids == llava.expected((CAT, "?"))


def test_images_of_one_size_share_nothing(llava: Model) -> None:
    first, second = (llava.prompts.run(0, turn(data, "?"), GREEDY) for data in (CAT, DOG))
    (rows,) = first.images
    ids = [np.frombuffer(run.ids, np.int32) for run in (first, second)]
    assert (ids[0][: rows.start] == ids[1][: rows.start]).all()
    own = [one[rows.start : rows.start + rows.n] for one in ids]
    assert max(own[0].max(), own[1].max()) < 0
    assert (own[0] != own[1]).all()
    e = llava.engine()
    outputs = llava.run(e, [(CAT, "?")]) | {1: llava.run(e, [(DOG, "?")])[0]}
    assert outputs[1].finish.n_cached == rows.start
    assert e.images.n_encoded == 2


def test_dropped_image_is_asked_for_again(llava: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("banyan.runtime.engine.images.CACHE_BYTES", 1)
    e = llava.engine(cache=False)
    for _ in range(2):
        for parts in PARTS[:2]:
            llava.run(e, [parts])
    assert e.images.n_encoded == 4
    assert e.images.kept[0] == sum(image.n_bytes for image in e.images._images.values())
    assert len(e.images._images) == 1


def test_embeddings_that_need_more_room_than_pixels_drop_older_images(
    llava: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = [llava.prompts.run(0, turn(data), GREEDY).images[0].image for data in (CAT, DOG)]
    e = llava.engine()
    for digest in digests:
        e.take(llava.prompts.images.pixels(digest))
    monkeypatch.setattr("banyan.runtime.engine.images.CACHE_BYTES", e.images.kept[0])
    tower = e.images._tower
    e.images._tower = lambda arrays: (torch.cat([*tower(arrays)] * 1000),)
    llava.run(e, [PARTS[1]])
    assert [*e.images._images] == digests[1:]


def test_failed_image_fails_its_requests_only(llava: Model) -> None:
    e = llava.engine()
    outputs: dict[int, Any] = {}
    for rid, parts in enumerate(((CAT, "?"), (DOG, "?"), ("text",))):
        e.take(llava.prompts.run(rid, turn(*parts), GREEDY))
    llava.fake.step(e, outputs)
    (wanted,) = (one for one in e.answers if isinstance(one, wire.WantImages))
    assert len(wanted.images) == 2
    e.take(wire.ImagePixels(wanted.images[0], error="it is gone"))
    e.take(llava.prompts.images.pixels(wanted.images[1]))
    while not e.scheduler.is_idle:
        llava.fake.step(e, outputs)
        e.scheduler.check()
    failed = [output.failed for output in outputs.values() if output.failed]
    assert [(one.code, one.message) for one in failed] == [(BadProgram.code, "it is gone")]
    assert outputs[2].ids == llava.expected(("text",))


def test_request_that_waits_for_an_image_can_be_aborted(llava: Model) -> None:
    e = llava.engine()
    e.take(llava.prompts.run(0, turn(CAT, "?"), GREEDY))
    outputs: dict[int, Any] = {}
    llava.fake.step(e, outputs)
    assert e.scheduler.is_idle
    e.take(wire.Abort(0))
    e.scheduler.check()
    assert llava.answer(e) == 1
    llava.run(e, [(CAT, "?")])


def test_few_requests_ask_at_a_time(llava: Model) -> None:
    e = llava.engine(max_running=16)
    images = [png(20, 20, i) for i in range(8)]
    for rid, data in enumerate(images):
        e.take(llava.prompts.run(rid, turn(data, "?"), GREEDY))
    outputs: dict[int, Any] = {}
    llava.fake.step(e, outputs)
    assert llava.answer(e) == 4
    while e.scheduler.requests:
        llava.fake.step(e, outputs)
        llava.answer(e)
    assert e.images.n_encoded == 8
    assert all(len(output.ids) == GREEDY.max_tokens for output in outputs.values())


def test_false_rows_are_refused(llava: Model) -> None:
    run = llava.prompts.run(0, turn(CAT, "?"), GREEDY)
    (rows,) = run.images
    for images in ((), (wire.ImageRows(rows.start + 1, rows.n, rows.image),), (wire.ImageRows(0, rows.n, rows.image),)):
        e = llava.engine()
        e.take(wire.Run(0, run.ids, GREEDY, images=images))
        outputs: dict[int, Any] = {}
        llava.fake.step(e, outputs)
        assert outputs[0].failed.code in (BadMessage.code, BadProgram.code)


@pytest.mark.parametrize(("n_text", "n_exported"), [(20, 16), (36, 32), (4, 0)])
def test_export_that_is_computed_ends_before_an_image_that_its_pages_would_cut(
    llava: Model, n_text: int, n_exported: int
) -> None:
    """The last whole page of the prompt ends within the 20 rows of the image."""
    e = llava.engine(page=16)
    ids = [*range(3, 3 + n_text), *[-5] * 20, *range(3, 9)]
    run = llava.fake.run(0, ids, images=(wire.ImageRows(n_text, 20, b"cat"),))
    e.take(wire.Export(1, run, compute=True))
    for _ in range(20):
        e.step()
    (exported,) = e.exchange.work(0.0)
    assert exported.n_tokens == n_exported
    assert bool(exported.why) == (not n_exported)


def test_penalties_and_scores_of_prompts_with_images(llava: Model) -> None:
    e = llava.engine()
    sampling = wire.Sampling(temperature=0.0, max_tokens=6, repetition_penalty=1.3, logprobs=True)
    e.take(llava.prompts.run(0, turn(CAT, "?"), sampling, score_from=1))
    outputs: dict[int, Any] = {}
    while e.scheduler.requests:
        llava.fake.step(e, outputs)
        llava.answer(e)
    n_prompt = len(llava.prompts.run(0, turn(CAT, "?"), sampling).ids) // 4
    scores = np.frombuffer(outputs[0].finish.scores, np.float32)
    assert len(scores) == n_prompt - 1
    assert np.isfinite(scores).all()


def test_positions_of_three_axes_are_those_of_transformers(tmp_path: Path, tiny: ModuleType) -> None:
    make_image_model(tmp_path, "qwen2_5_vl", tiny)
    oracle, prompts = Oracle(tmp_path, "qwen2_5_vl"), Prompts(tmp_path)
    run = prompts.run(0, turn("first ", CAT, "then", TALL, " and?"), GREEDY)
    ids = torch.from_numpy(np.frombuffer(run.ids, np.int32).astype(np.int64))[None]
    is_row = (ids < 0).int()
    grids = torch.tensor([[1, 2 * one.height, 2 * one.width] for one in run.images])
    want, offset = oracle.model.model.get_rope_index(ids.clamp(min=0), is_row, image_grid_thw=grids)
    n = ids.shape[1]
    got = grid_positions(run.images, np.arange(n + 3))
    assert (got[:, :n] == want[:, 0].numpy()).all()
    assert (got[:, n:] == np.arange(n, n + 3) + int(offset)).all()
    tail = grid_positions(run.images, np.arange(20, n))
    assert (tail == got[:, 20:n]).all()
