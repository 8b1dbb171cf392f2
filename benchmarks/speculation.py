"""Speculation on the pocket model: output tokens per second with drafts and without, measured in turns in one process.

    python benchmarks/speculation.py [--quick] [--json FILE] [--vllm PYTHON]

replay: agents with tools, run a second time over the radix tree that the first run left. json: records from new texts,
with a JSON Schema. chat: new small talk, recall and reading. noise: small talk at temperature 8, which no drafter can
predict. All prompts are held out of the model's training; all but noise is greedy. The benchmark fails if outputs
differ (in bfloat16, if more than a tenth do). Seconds are CPU seconds of the engine's one thread, so that other load
does not count. The gain on json, and the cost on chat and noise, where drafts hardly help, are measured on one engine
that switches drafting on and off.

--vllm PYTHON, the interpreter of a vLLM environment: agent replay and json compared with vLLM without speculation, with
n-grams, and with suffixes if it has arctic-inference; one thread each, in float32 and bfloat16, in wall seconds.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import product
from operator import truediv
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from report import Report, correct, parser

from banyan.runtime import config as configs
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.process import build, settle
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.drafters import make_controller
from banyan.runtime.engine.speculation.ngram import NgramDrafter
from banyan.runtime.engine.speculation.tree import TreeDrafter
from banyan.runtime.model.pocket import path
from banyan.runtime.protocol.wire import ConstraintSpec, ProgramEnded, Run, Sampling
from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer
from pocket.chat import Sample, render
from pocket.data import samples
from pocket.score import acceptance

N_OUT = 96
TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}
TESTS = (
    "tests/runtime/engine/speculation",
    "tests/runtime/engine/test_speculation.py",
    "tests/test_same_answer.py::test_drafters_change_no_output",
    "tests/test_same_answer.py::test_drafters_change_no_constrained_output",
)


class Job(NamedTuple):
    """One generation: prompt ids, constraint and temperature."""

    ids: bytes
    constraint: ConstraintSpec | None = None
    temperature: float = 0.0


class Arm:
    """An engine with the drafters that `speculate` names, and the totals of its runs. drafts: [drafted tokens, accepted
    tokens]."""

    def __init__(self, speculate: str, batch: int, vocabulary: Any, end: int, dtype: str = "float32") -> None:
        draft_model = "draft" if "model" in speculate else ""
        options = {"speculate": speculate, "draft_model": draft_model, "max_running": batch, "dtype": dtype}
        self.engine: EngineLoop = build(configs.make(device="cpu", threads=1, kv_memory="128MB", **options))
        settle()
        self.engine.take(vocabulary)
        self.stops, self.n_runs = array("i", [end]).tobytes(), 0
        self.seconds, self.n_tokens, self.n_steps, self.drafts = 0.0, 0, 0, [0, 0]

    def run(self, jobs: Sequence[Job], counts: bool = True) -> list[list[int]]:
        """Run all jobs, as many at a time as fit, and return their outputs. counts: add to the totals."""
        e, first = self.engine, self.n_runs
        self.n_runs += len(jobs)
        for i, job in enumerate(jobs):
            sampling = Sampling(temperature=job.temperature, max_tokens=N_OUT, constraint=job.constraint)
            e.take(Run(first + i, job.ids, sampling, self.stops, seed=first + i, order=(first + i,)))
        outputs: dict[int, list[int]] = {first + i: [] for i in range(len(jobs))}
        n_left, n_steps, seconds = len(jobs), e.scheduler.counts["steps"], -time.thread_time()
        while n_left:
            step = e.step()
            ids = iter(array("i", step.ids))
            for rid, n in zip(array("q", step.rids), array("i", step.counts), strict=True):
                outputs[rid] += [next(ids) for _ in range(n)]
            for finish in step.finished:
                e.take(ProgramEnded(0, finish.rid))  # each program is one generation
                n_left -= 1
                if counts:
                    self.drafts[0] += finish.n_drafted
                    self.drafts[1] += finish.n_accepted
            assert not e.failed, e.failed
        if counts:
            self.seconds += seconds + time.thread_time()
            self.n_steps += e.scheduler.counts["steps"] - n_steps
            self.n_tokens += sum(map(len, outputs.values()))
        return list(outputs.values())

    @property
    def speed(self) -> float:
        return self.n_tokens / self.seconds

    @property
    def accepted(self) -> float:
        return self.drafts[1] / self.drafts[0] if self.drafts[0] else 0.0


class Bench:
    """The workloads, and comparisons of drafter combinations that run them in turns."""

    def __init__(self, n: int, rounds: int) -> None:
        directory = path()
        self.tokenizer = Tokenizer(directory, Files.read(directory))
        self.n, self.rounds = n, rounds
        (self.end,) = self.tokenizer.encode([TextSpan("<|im_end|>", meant=True)])

    def ids(self, sample: Sample, n_turns: int) -> bytes:
        """The prompt of an assistant turn: all turns before it and the role marker."""
        text = "".join(span.text for span in render(sample.messages[:n_turns], sample.tools))
        return array("i", self.tokenizer.encode([TextSpan(f"{text}<|im_start|>assistant\n", meant=True)])).tobytes()

    def turns(self, family: str, seed: int) -> list[Job]:
        """All assistant turns of new conversations."""
        return [
            Job(self.ids(sample, i))
            for sample in samples(family, self.n, seed)
            for i, message in enumerate(sample.messages)
            if message["role"] == "assistant"
        ]

    def replay(self, seed: int) -> list[Job]:
        return self.turns("tools", 0)

    def records(self, seed: int) -> list[Job]:
        jobs = []
        for sample in samples("json", self.n, seed):
            known = json.loads(sample.messages[-1]["content"])
            schema = {
                "type": "object",
                "properties": {key: {"type": TYPES[type(value)]} for key, value in known.items()},
                "required": list(known),
                "additionalProperties": False,
            }
            spec = canonical(ConstraintSpec("json_schema", json.dumps(schema)))
            jobs.append(Job(self.ids(sample, len(sample.messages) - 1), spec))
        return jobs

    def chat(self, seed: int) -> list[Job]:
        return [job for family in ("chat", "recall", "reading") for job in self.turns(family, seed)]

    def noise(self, seed: int) -> list[Job]:
        return [job._replace(temperature=8.0) for job in self.turns("chat", seed)]

    def compare(
        self, work: Callable[[int], list[Job]], batch: int, names: Sequence[str], dtype: str = "float32"
    ) -> dict[str, Arm]:
        """Run the same jobs on one arm for each combination of drafters, with the arms in a different order in each
        round."""
        arms = {name: Arm(name, batch, self.tokenizer.vocabulary(), self.end, dtype) for name in names}
        for r in range(-1, self.rounds):
            jobs, outputs = work(r), {}
            for name in sorted(arms, key=lambda name, r=r: hash((name, r))):
                outputs[name] = arms[name].run(jobs, counts=r >= 0)
            same(list(outputs.values()), dtype)
        return arms

    def in_turns(
        self, work: Callable[[int], list[Job]], batch: int, names: Sequence[str], dtype: str = "float32"
    ) -> dict[str, float]:
        """Combination of drafters -> speed relative to no drafters. All run on one engine, in turns of a few jobs,
        because two engines would differ by 5 % due to their memory layout. The cache is emptied between turns; depth
        controllers keep what they learned."""
        arm = Arm("off", batch, self.tokenizer.vocabulary(), self.end, dtype)
        engine, chance = arm.engine, random.Random(0)
        controllers = {how: make_controller(configs.drafters(how, "")) for how in ("off", *names)}
        vocabulary = Vocabulary(self.tokenizer.vocabulary(), engine.model.model.spec.vocab_size)
        for controller in controllers.values():
            for drafter in controller.drafters:
                drafter.set_vocabulary(vocabulary.spelling, vocabulary.control)
                drafter.warm_up(0)
        n_at_once, seconds = 4 * batch, {how: list[float]() for how in controllers}
        for r in range(-1, self.rounds * (4 if batch == 1 else 8)):  # rounds differ by other load
            jobs, took = work(r), dict.fromkeys(controllers, 0.0)
            for at in range(0, len(jobs), n_at_once):
                outputs = []
                for how in chance.sample(list(controllers), len(controllers)):
                    engine.cache.reset()
                    controllers[how].max_tree = engine.drafting.max_tree
                    engine.drafting = engine.scheduler.drafting = controllers[how]
                    arm.seconds, arm.n_runs = 0.0, at  # a run's number is its seed
                    outputs.append(arm.run(jobs[at : at + n_at_once]))
                    took[how] += arm.seconds
                same(outputs, dtype)
            if r >= 0:
                for how, spent in took.items():
                    seconds[how].append(spent)
        return {how: statistics.median(map(truediv, seconds["off"], seconds[how])) for how in names}


def same(outputs: Sequence[list[list[int]]], dtype: str) -> None:
    """Exit if outputs of the same jobs differ. In bfloat16 rounding depends on the batch size, so a tenth may
    differ."""
    equal = min(sum(map(list.__eq__, one, outputs[0])) / len(one) for one in outputs)
    if equal < (1.0 if dtype == "float32" else 0.9):
        sys.exit("outputs differ with drafts and without, so the figures are meaningless")


def look(drafter: Any, n_texts: int) -> float:
    """CPU microseconds of one `propose`, with n_texts texts of 2,048 tokens indexed: the mean of 128 calls, and the
    best of several requests."""
    chance = random.Random(0)

    def request(rid: int, n: int) -> Request:
        ids = array("i", (chance.randrange(1 << 30) for _ in range(n)))
        found = Request(Run(rid, ids.tobytes(), Sampling(max_tokens=1 << 20)), 1 << 20)
        found.n_cached = 0
        return found

    for rid in range(n_texts):
        drafter.end(request(rid, 2048))
    best = 1.0
    for rid in range(1000, 1012):
        some = request(rid, 2048)
        drafter.propose(some, 16)
        start = time.thread_time()
        for _ in range(128):
            some.extend((chance.randrange(1 << 30),))
            drafter.propose(some, 16)
        best = min(best, (time.thread_time() - start) / 128)
    return 1e6 * best


VLLM = {
    "off": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 1},
    "suffix": {"method": "suffix"},  # if its environment has arctic-inference
}


def beside_vllm(bench: Bench, report: Report, python: str) -> None:
    """Add rows for the second of two rounds on each engine, with the cache that the first left: the same agents again,
    and new texts for JSON."""
    can_suffix = subprocess.run([python, "-c", "import arctic_inference"], capture_output=True).returncode == 0
    methods = {name: method for name, method in VLLM.items() if name != "suffix" or can_suffix}
    for workload, rounds in (
        ("agent replay", (bench.replay(0), bench.replay(0))),
        ("json", (bench.records(0), bench.records(1))),
    ):
        tasks = [[(array("i", job.ids).tolist(), job.constraint and job.constraint.text) for job in r] for r in rounds]
        for batch, dtype in product((1, 16), ("float32", "bfloat16")):
            arm = Arm("auto", batch, bench.tokenizer.vocabulary(), bench.end, dtype)
            arm.run(rounds[0])
            began = time.perf_counter()
            outputs = arm.run(rounds[1])
            seconds = time.perf_counter() - began
            for name, method in methods.items():
                theirs = ask_vllm(python, {"speculate": method, "dtype": dtype, "batch": batch, "rounds": tasks,
                                           "end": bench.end})  # fmt: skip
                equal = sum(a == b for a, b in zip(outputs, theirs["outputs"], strict=True)) / len(outputs)
                n_tokens, n_theirs = sum(map(len, outputs)), sum(map(len, theirs["outputs"]))
                report.row(f"{workload}, batch {batch}, {dtype}, auto, wall: speed", "tokens/s", n_tokens / seconds,
                           n_theirs / theirs["seconds"], f"vLLM, {name}; {equal:.0%} of outputs equal", "ratio >= 2.0",
                           more_is_better=True)  # fmt: skip


def ask_vllm(python: str, task: dict[str, Any]) -> Any:
    command = [python, str(Path(__file__).with_name("speculation_peers.py"))]
    line = json.dumps(task | {"model": str(path()), "n_out": N_OUT}) + "\n"
    done = subprocess.run(command, input=line, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"vLLM ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def main() -> int:
    options = parser(__doc__, quick="fewer conversations, and no tests first")
    options.add_argument("--vllm", metavar="PYTHON", help="the interpreter of an environment that has vLLM")
    args = options.parse_args()
    if not args.quick:
        correct(*TESTS)
    bench = Bench(*((12, 2) if args.quick else (24, 3)))
    report = Report(
        "speculation",
        f"pocket model, float32 unless noted, one thread, {bench.n} samples a family, {bench.rounds} rounds",
    )
    report.row("a look, 1 M tokens: tree", "us", look(TreeDrafter(), 512), target="<= 20")
    report.row("a look, 2 k tokens: ngram", "us", look(NgramDrafter(), 0), target="<= 20")
    if not args.quick:
        share = acceptance(path(), path("draft"), n=12)
        report.row("the pocket draft's tokens at depth 3, greedy: accepted", "share", share, target=">= 0.6")
    ours = "tree,grammar"
    for workload, work, on_one_engine in (
        ("agent replay", bench.replay, ()),  # it needs the cache
        ("json", bench.records, (ours, "auto")),
        ("chat", bench.chat, ("auto",)),
        ("noise", bench.noise, ("auto",)),
    ):
        for batch, least in ((1, 2.5), (16, 1.3)):
            rest = ("tree", "ngram", "grammar", "model", ours, "auto") if batch == 1 else ("model", ours, "auto")
            arms = bench.compare(work, batch, ("off", *rest))
            off, goals = arms.pop("off"), {ours: f">= {least}", "auto": ">= 0.97"}
            for name, arm in arms.items():
                where = f"{workload}, batch {batch}, {name}"
                goal = f"ratio {goals[name]}" if name in goals and not on_one_engine else ""
                report.row(f"{where}: speed", "tokens/s", arm.speed, off.speed, "off", goal, more_is_better=True)
                report.row(f"{where}: tokens a step", "tokens", arm.n_tokens / arm.n_steps, off.n_tokens / off.n_steps,
                           "off", more_is_better=True)  # fmt: skip
                report.row(f"{where}: accepted", "share", arm.accepted)
            if on_one_engine:
                for name, ratio in bench.in_turns(work, batch, on_one_engine).items():
                    where = f"{workload}, batch {batch}, {name} on the same engine"
                    report.row(f"{where}: speed", "times off", ratio, target=goals[name])
    for batch, least in ((1, 2.5), (16, 1.3)):
        arms = bench.compare(bench.replay, batch, ("off", ours), "bfloat16")
        report.row(f"agent replay, batch {batch}, {ours}, bfloat16: speed", "tokens/s", arms[ours].speed,
                   arms["off"].speed, "off", f"ratio >= {least}", more_is_better=True)  # fmt: skip
        for name, ratio in bench.in_turns(bench.records, batch, (ours,), "bfloat16").items():
            where = f"json, batch {batch}, {name} on the same engine, bfloat16"
            report.row(f"{where}: speed", "times off", ratio, target=f">= {least}")
    if args.vllm:
        beside_vllm(bench, report, args.vllm)
    return report.end(args.json)


if __name__ == "__main__":
    sys.exit(main())
