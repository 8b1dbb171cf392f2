"""Adapters in an engine: whatever is cached, drafted, moved or retracted, each output is that of its merged weights."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

from banyan.runtime.engine import guides
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.model.load import Model, load
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.wire import Ask, Run, Sampling
from banyan.runtime.server.policy.tenants import adapted
from banyan.runtime.server.text.tokenizer import Files, Tokenizer
from forms import in_short
from waits import wait_until

N_OUT = 10
GREEDY = Sampling(temperature=0.0, max_tokens=N_OUT, ignore_eos=True)
ROOT = [(13 * i) % 300 + 3 for i in range(37)]
PROMPTS = [[*ROOT, 40 + k] for k in range(3)]


class World(NamedTuple):
    """A model, directories of adapters, and per adapter ("": none) the greedy outputs of merged weights."""

    model: Model
    adapters: dict[str, Path]
    want: dict[str, list[list[int]]]


@pytest.fixture(scope="module")
def world(
    tiny: Any, tiny_model: Any, module_at: Callable[[Path], ModuleType], tmp_path_factory: pytest.TempPathFactory
) -> World:
    files, path = module_at(Path(__file__).parents[2] / "helpers" / "lora_files.py"), tiny_model("llama")
    folder = tmp_path_factory.mktemp("adapters")
    merged = {"": tiny.reference(path)}
    for k, name in enumerate("ab"):
        merged[name] = files.merge(tiny.reference(path), files.write(folder / name, path, seed=k))
    want = {name: [tiny.reference_greedy(model, prompt, N_OUT) for prompt in PROMPTS] for name, model in merged.items()}
    return World(load(path), {name: folder / name for name in "ab"}, want)


class Bench:
    """An engine with adapters a and b."""

    def __init__(self, fake: ModuleType, world: World, **options: Any) -> None:
        self.e: EngineLoop = fake.engine(world.model, **options)
        self.fake = fake
        self.digests = {"": b""} | {
            name: self.e.adapters.load(str(path), name) for name, path in world.adapters.items()
        }

    def run(self, rid: int, name: str, prompt: list[int], **fields: Any) -> Run:
        digest = self.digests[name]
        options = {"namespace": adapted(b"tenant", digest), "adapter": digest, "order": (0, rid)} | fields
        run: Run = self.fake.run(rid, prompt, GREEDY, **options)
        return run

    def outputs(self, first: int = 0) -> dict[str, list[list[int]]]:
        """Run all prompts with each adapter and without one, all at once."""
        runs = [
            self.run(first + 10 * i + k, name, prompt)
            for k, prompt in enumerate(PROMPTS)
            for i, name in enumerate(self.digests)
        ]
        found = self.fake.drive(self.e, runs, check=True)
        return {
            name: [found[first + 10 * i + k].ids for k in range(len(PROMPTS))] for i, name in enumerate(self.digests)
        }


@pytest.mark.parametrize(
    "options",
    in_short(
        [
            {"speculate": "auto"},
            {"deterministic": True, "step_tokens": 16},
            {"n_pages": 8, "n_host": 40, "host_memory": "1MiB"},
        ],
        [
            {},
            {"cache": False},
            {"step_tokens": 7},
            {"speculate": "auto"},
            {"deterministic": True, "step_tokens": 16},
            {"n_pages": 8},
            {"n_pages": 8, "n_host": 40, "host_memory": "1MiB"},
            {"kv_dtype": "auto", "page": 4},
        ],
    ),
    ids=str,
)
def test_outputs_equal_those_of_merged_weights(options: dict[str, Any], fake: ModuleType, world: World) -> None:
    """Cold and warm, with forks of one prompt, in mixed batches, and with drafts, evictions and a second tier."""
    bench = Bench(fake, world, **options)
    for first in (0, 100):
        assert bench.outputs(first) == world.want
    stats = bench.e.scheduler.stats()
    if options.get("cache", True) and "n_pages" not in options:
        assert stats["cached_tokens"] > 3 * 37 * 3, "prompts are found again, for each adapter"


def test_retracted_request_goes_on_with_its_adapter(fake: ModuleType, world: World) -> None:
    bench = Bench(fake, world, cache=False)
    outputs: dict[int, Any] = {}
    for rid, name in enumerate("ab"):
        bench.e.take(bench.run(rid, name, PROMPTS[0]))
    for _ in range(4):
        fake.step(bench.e, outputs)
    for request in tuple(bench.e.scheduler.running):
        bench.e.scheduler._retract(request)
    fake.drive(bench.e, [], outputs, check=True)
    assert [outputs[rid].ids for rid in (0, 1)] == [world.want[name][0] for name in "ab"]
    assert bench.e.scheduler.stats()["retractions"] == 2


def test_drafts_are_verified_with_the_adapter(fake: ModuleType, world: World) -> None:
    """Of right and wrong drafts, only the text of the adapter is accepted."""
    bench = Bench(fake, world, speculate="tree,ngram")
    want = world.want["a"][0]

    def script(request: Any, n: int) -> list[int]:
        tokens = want[request.n_out :][:n]
        return tokens if request.n_out % 2 else [*tokens[:2], 5][:n]

    fake.use_drafts(bench.e, script)
    runs = [bench.run(0, "a", PROMPTS[0]), bench.run(1, "", PROMPTS[0]), bench.run(2, "b", PROMPTS[0])]
    outputs = fake.drive(bench.e, runs, check=True)
    assert [outputs[i].ids for i in range(3)] == [world.want[name][0] for name in ("a", "", "b")]
    assert outputs[0].finish is not None
    assert outputs[0].finish.n_accepted > 0
    assert len(bench.e.scheduler.requests) == 0


def test_kv_of_adapters_is_never_mixed(fake: ModuleType, world: World) -> None:
    bench = Bench(fake, world)
    cached = []
    for rid, name in enumerate(("", "a", "b", "a", "")):
        found = fake.drive(bench.e, [bench.run(rid, name, PROMPTS[0])])[rid]
        assert found.finish is not None
        cached.append(found.finish.n_cached)
    n = len(PROMPTS[0]) - 1
    assert cached == [0, 0, 0, n, n]


def test_unloaded_adapter_serves_what_runs_and_is_then_freed(fake: ModuleType, world: World) -> None:
    bench = Bench(fake, world)
    e, digest = bench.e, bench.digests["a"]
    outputs: dict[int, Any] = {}
    e.take(bench.run(0, "a", PROMPTS[0]))
    fake.step(e, outputs)
    assert e.answer(Ask(0, "unload_adapter", name=digest.hex())).ok
    assert e.adapters.n_bytes
    e.take(bench.run(1, "a", PROMPTS[1]))  # as if it had been sent before
    fake.drive(e, [], outputs)
    assert [outputs[rid].ids for rid in (0, 1)] == world.want["a"][:2]
    assert digest not in e.adapters.weights
    outputs = fake.drive(e, [bench.run(2, "a", PROMPTS[0]), bench.run(3, "b", PROMPTS[0])])
    assert "was unloaded" in outputs[2].failed.message
    assert outputs[3].ids == world.want["b"][0]
    answer = e.answer(Ask(0, "load_adapter", name="a", path=str(world.adapters["a"])))
    assert answer == wire.Answer(0, True, f'"{digest.hex()}"'.encode())
    assert fake.drive(e, [bench.run(4, "a", PROMPTS[0])])[4].ids == world.want["a"][0]


def test_adapter_that_is_needed_again_while_it_leaves_stays(fake: ModuleType, world: World) -> None:
    bench = Bench(fake, world)
    bench.e.take(bench.run(0, "a", PROMPTS[0]))
    for what in ("unload_adapter", "load_adapter"):
        name = bench.digests["a"].hex() if what == "unload_adapter" else "a"
        assert bench.e.answer(Ask(0, what, name=name, path=str(world.adapters["a"]))).ok  # type: ignore[arg-type]
    fake.drive(bench.e, [])
    assert bench.digests["a"] in bench.e.adapters.weights


def test_request_that_comes_after_the_order_to_load_its_adapter_waits_for_it(fake: ModuleType, world: World) -> None:
    """While a step was in flight, the load was deferred and the request was taken, and failed."""
    bench = Bench(fake, world)
    e = bench.e
    e.adapters.unload(bench.digests["a"])
    e.adapters.free(())
    load_a = Ask(0, "load_adapter", name="a", path=str(world.adapters["a"]))
    orders = [load_a, bench.run(0, "a", PROMPTS[0]), bench.run(1, "b", PROMPTS[0]), wire.Ping()]
    link: Any = SimpleNamespace(drain=lambda block: orders)
    deferred = e._take_new(link)
    assert deferred == orders[:2]
    for order in deferred:
        e.take(order)
    outputs = fake.drive(e, [])
    assert [outputs[rid].ids for rid in (0, 1)] == [world.want[name][0] for name in "ab"]


def test_adapter_stays_while_a_constraint_of_its_request_is_compiled(
    fake: ModuleType, world: World, tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, path, may_end = Bench(fake, world), tiny_model("llama"), threading.Event()
    e, digest, build = bench.e, bench.digests["a"], guides.build

    def slow(*arguments: Any) -> Any:
        may_end.wait(60)
        return build(*arguments)

    monkeypatch.setattr(guides, "build", slow)
    e.take(Tokenizer(path, Files.read(path)).vocabulary())
    sampling = Sampling(temperature=0.0, max_tokens=N_OUT, constraint=wire.ConstraintSpec("regex", "[0-9]+"))
    e.take(msgspec.structs.replace(bench.run(0, "a", PROMPTS[0]), sampling=sampling))
    outputs: dict[int, Any] = {}
    assert e.answer(Ask(0, "unload_adapter", name=digest.hex())).ok
    fake.step(e, outputs)
    may_end.set()

    def has_ended() -> bool:
        fake.step(e, outputs)
        return 0 in outputs and (outputs[0].finish or outputs[0].failed) is not None

    wait_until(has_ended, "the output")
    assert outputs[0].failed is None
    assert digest not in e.adapters.weights


def test_bad_directory_is_answered_with_the_name(fake: ModuleType, world: World, tmp_path: Path) -> None:
    bench = Bench(fake, world)
    why = {tmp_path: b"has no adapter_config.json", tmp_path / ("n" * 300): b"File name too long"}
    for path, reason in why.items():
        answer = bench.e.answer(Ask(0, "load_adapter", name="songs", path=str(path)))
        assert not answer.ok
        assert b"adapter 'songs'" in answer.body
        assert reason in answer.body
