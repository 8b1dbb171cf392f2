"""What drafts are worth on the pocket model: output tokens a second with them and without, turn by turn in one process.

    python benchmarks/speculation.py [--quick] [--json FILE] [--vllm PYTHON]

replay: conversations of agents with tools, which run again over the tree that the first time left. json: records from
texts that are new, under a JSON Schema. chat: small talk, memories and readings, new ones. noise: small talk drawn at
temperature 8, which nobody foresees. All are held out of the model's training; the rest is greedy, and all of it is
refused where outputs differ (in bfloat16, where more than a tenth do). A second is one of CPU of the engine's one
thread, so that what else the machine does counts for neither side; on an idle one it is a second. What drafts give
json, and that they do not cost where they do not pay, is measured on one engine, with drafting on and off in turns.
With --vllm, the python of vLLM's environment: agent replay and json beside vLLM without speculation, with its n-grams,
and with suffixes where it has arctic-inference; one thread each, in float32 and in the checkpoint's own bfloat16, in
seconds of the wall, in turn.
"""

from __future__ import annotations

import argparse
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
from report import Report, correct

from banyan.runtime import config as configs
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.engine.loop import EngineLoop
from banyan.runtime.engine.process import build, settle
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.drafters import make_controller
from banyan.runtime.engine.speculation.ngram import NgramDrafter
from banyan.runtime.engine.speculation.tree import TreeDrafter
from banyan.runtime.model import pocket
from banyan.runtime.model.pocket.chat import Sample, render
from banyan.runtime.model.pocket.data import samples
from banyan.runtime.model.pocket.score import acceptance
from banyan.runtime.protocol.wire import ConstraintSpec, ProgramEnded, Run, Sampling
from banyan.runtime.server.text.tokenizer import Files, TextSpan, Tokenizer

N_OUT = 96
TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}
TESTS = (
    "tests/runtime/engine/speculation",
    "tests/runtime/engine/test_speculation.py",
    "tests/test_same_answer.py::test_drafters_change_no_output",
    "tests/test_same_answer.py::test_drafters_change_no_constrained_output",
)


class Job(NamedTuple):
    """One generation: its prompt, its constraint, and how it is drawn."""

    ids: bytes
    constraint: ConstraintSpec | None = None
    temperature: float = 0.0


class Arm:
    """An engine with its drafters, and what its runs took."""

    def __init__(self, speculate: str, batch: int, vocabulary: Any, end: int, dtype: str = "float32") -> None:
        draft_model = "draft" if "model" in speculate else ""
        options = {"speculate": speculate, "draft_model": draft_model, "max_running": batch, "dtype": dtype}
        self.engine: EngineLoop = build(configs.make(device="cpu", threads=1, kv_memory="128MB", **options))
        settle()
        self.engine.take(vocabulary)
        self.stops, self.n_runs = array("i", [end]).tobytes(), 0
        self.seconds, self.n_tokens, self.n_steps, self.drafts = 0.0, 0, 0, [0, 0]

    def run(self, jobs: Sequence[Job], counts: bool = True) -> list[list[int]]:
        """All jobs, as many at a time as fit. Only what `counts` is part of the figures."""
        e, first = self.engine, self.n_runs
        self.n_runs += len(jobs)
        for i, job in enumerate(jobs):
            sampling = Sampling(temperature=job.temperature, max_tokens=N_OUT, constraint=job.constraint)
            e.take(Run(first + i, job.ids, sampling, self.stops, seed=first + i, order=(first + i,)))
        said: dict[int, list[int]] = {first + i: [] for i in range(len(jobs))}
        n_left, n_steps, seconds = len(jobs), e.scheduler.counts["steps"], -time.thread_time()
        while n_left:
            step = e.step()
            ids = iter(array("i", step.ids))
            for rid, n in zip(array("q", step.rids), array("i", step.counts), strict=True):
                said[rid] += [next(ids) for _ in range(n)]
            for finish in step.finished:
                e.take(ProgramEnded(0, finish.rid))  # a program is one generation here
                n_left -= 1
                if counts:
                    self.drafts[0] += finish.n_drafted
                    self.drafts[1] += finish.n_accepted
            assert not e.failed, e.failed
        if counts:
            self.seconds += seconds + time.thread_time()
            self.n_steps += e.scheduler.counts["steps"] - n_steps
            self.n_tokens += sum(map(len, said.values()))
        return list(said.values())

    @property
    def speed(self) -> float:
        return self.n_tokens / self.seconds

    @property
    def accepted(self) -> float:
        return self.drafts[1] / self.drafts[0] if self.drafts[0] else 0.0


class Bench:
    """Workloads, and arms that run them turn by turn."""

    def __init__(self, n: int, rounds: int) -> None:
        directory = pocket.path()
        self.tokenizer = Tokenizer(directory, Files.read(directory))
        self.n, self.rounds = n, rounds
        (self.end,) = self.tokenizer.encode([TextSpan("<|im_end|>", meant=True)])

    def ids(self, sample: Sample, n_turns: int) -> bytes:
        """The prompt of an assistant's turn: all before it, and its marker."""
        text = "".join(span.text for span in render(sample.messages[:n_turns], sample.tools))
        return array("i", self.tokenizer.encode([TextSpan(f"{text}<|im_start|>assistant\n", meant=True)])).tobytes()

    def turns(self, family: str, seed: int) -> list[Job]:
        """Of new conversations, each turn that the model has."""
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
        """Each drafters' arm on the same jobs, one after the other in each round, in a new order each time."""
        arms = {name: Arm(name, batch, self.tokenizer.vocabulary(), self.end, dtype) for name in names}
        for r in range(-1, self.rounds):
            jobs, said = work(r), {}
            for name in sorted(arms, key=lambda name, r=r: hash((name, r))):
                said[name] = arms[name].run(jobs, counts=r >= 0)
            same(list(said.values()), dtype)
        return arms

    def in_turns(
        self, work: Callable[[int], list[Job]], batch: int, names: Sequence[str], dtype: str = "float32"
    ) -> dict[str, float]:
        """The speed of each over that without, on one engine, a few jobs at a time: where its memory lies, by which
        engines differ by a twentieth, is the same for all. Nothing is cached but what drafters have learned."""
        arm = Arm("off", batch, self.tokenizer.vocabulary(), self.end, dtype)
        engine, chance = arm.engine, random.Random(0)
        kinds = {how: make_controller(configs.drafters(how, "")) for how in ("off", *names)}
        known = Vocabulary(self.tokenizer.vocabulary(), engine.model.model.spec.vocab_size)
        for drafting in kinds.values():
            drafting.set_vocabulary(known.spelling, known.control)
            drafting.warm_up(0)
        n_at_once, seconds = 4 * batch, {how: list[float]() for how in kinds}
        for r in range(-1, self.rounds * (4 if batch == 1 else 8)):  # they differ, by what else the machine does
            jobs, took = work(r), dict.fromkeys(kinds, 0.0)
            for at in range(0, len(jobs), n_at_once):
                said = []
                for how in chance.sample(list(kinds), len(kinds)):
                    engine.cache.reset()
                    kinds[how].max_tree = engine.drafting.max_tree
                    engine.drafting = engine.scheduler.drafting = kinds[how]
                    arm.seconds, arm.n_runs = 0.0, at  # a run's number is its seed
                    said.append(arm.run(jobs[at : at + n_at_once]))
                    took[how] += arm.seconds
                same(said, dtype)
            if r >= 0:
                for how, spent in took.items():
                    seconds[how].append(spent)
        return {how: statistics.median(map(truediv, seconds["off"], seconds[how])) for how in names}


def same(said: Sequence[list[list[int]]], dtype: str) -> None:
    """End here where outputs of the same jobs differ. In bfloat16 rows of a batch are rounded as its size has it, so
    that a tenth of them may."""
    equal = min(sum(map(list.__eq__, one, said[0])) / len(one) for one in said)
    if equal < (1.0 if dtype == "float32" else 0.9):
        sys.exit("outputs differ with drafts and without: no figure stands on that")


def look(drafter: Any, n_texts: int) -> float:
    """us per request and step, with as many texts of 2,048 tokens indexed; the best of some."""
    chance = random.Random(0)

    def request(rid: int, n: int) -> Request:
        ids = array("i", (chance.randrange(1 << 30) for _ in range(n)))
        made = Request(Run(rid, ids.tobytes(), Sampling(max_tokens=1 << 20)), 1 << 20)
        made.n_cached = 0
        return made

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
    "suffix": {"method": "suffix"},  # where its environment has arctic-inference
}


def beside_vllm(bench: Bench, report: Report, python: str) -> None:
    """Each engine over what a first round left in its cache: agents run again, and JSON of texts that are new."""
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
            said = arm.run(rounds[1])
            seconds = time.perf_counter() - began
            for name, method in methods.items():
                theirs = ask_vllm(python, {"speculate": method, "dtype": dtype, "batch": batch, "rounds": tasks,
                                           "end": bench.end})  # fmt: skip
                equal = sum(a == b for a, b in zip(said, theirs["said"], strict=True)) / len(said)
                n_tokens, n_theirs = sum(map(len, said)), sum(map(len, theirs["said"]))
                report.row(f"{workload}, batch {batch}, {dtype}, auto, wall: speed", "tokens/s", n_tokens / seconds,
                           n_theirs / theirs["seconds"], f"vLLM, {name}; {equal:.0%} of outputs equal", "ratio >= 2.0",
                           more_is_better=True)  # fmt: skip


def ask_vllm(python: str, task: dict[str, Any]) -> Any:
    command = [python, str(Path(__file__).with_name("speculation_peers.py"))]
    line = json.dumps(task | {"model": str(pocket.path()), "n_out": N_OUT}) + "\n"
    done = subprocess.run(command, input=line, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"vLLM ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer conversations, and no tests before")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--vllm", help="the python of an environment that has vLLM")
    args = parser.parse_args()
    if not args.quick:
        correct(*TESTS)
    bench = Bench(*((12, 2) if args.quick else (24, 3)))
    report = Report(
        "speculation",
        f"pocket model, float32 if not said, one thread, {bench.n} samples a family, {bench.rounds} rounds",
    )
    report.row("a look, 1 M tokens: tree", "us", look(TreeDrafter(), 512), target="<= 20")
    report.row("a look, 2 k tokens: ngram", "us", look(NgramDrafter(), 0), target="<= 20")
    if not args.quick:
        share = acceptance(pocket.path(), pocket.path("draft"), n=12)
        report.row("the pocket draft's tokens at depth 3, greedy: accepted", "share", share, target=">= 0.6")
    ours = "tree,grammar"
    for workload, work, on_one_engine in (
        ("agent replay", bench.replay, ()),  # which lives of what is cached
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
