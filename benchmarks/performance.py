"""Measures every figure of docs/performance.md and writes it there.

    python benchmarks/random_models.py models
    python benchmarks/performance.py models --vllm PYTHON --sglang PYTHON --transformers PYTHON --llamacpp LLAMA_SERVER

Runs one command per benchmark, and prints it. If a command fails, its old table stays. Peers that are not named are
left out. On an idle machine this takes half an hour with vLLM, and an hour more with all others. --quick: one run of
each workload, and 1,000 items.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import ROOT
from serving import PEERS

PAGE = ROOT / "docs" / "performance.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="the folder that random_models.py wrote")
    for peer, what in PEERS.items():
        parser.add_argument(f"--{peer}", help=f"the {what} of an environment that has it")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    named = {peer: [f"--{peer}", place] for peer in PEERS if (place := getattr(args, peer))}
    first = named.pop("vllm", [])
    others = [word for words in named.values() for word in words]
    times, items = ("1", "1000") if args.quick else ("3", "10000")
    wide = str(args.models / "M2-bfloat16")
    failed = []
    for name, *words in (
        ["serving.py", wide, *first, "--times", times],
        *([["serving.py", wide, *others, "--times", times]] if others else []),
        ["serving.py", str(args.models / "M1-bfloat16"), *first, "--times", times],
        ["serving.py", str(args.models / "M1-float32"), *first, "--times", times],  # the outputs are comparable
        ["serving_step.py", wide],
        ["serving_use.py", "--model", wide, "--items", items],
    ):
        command = [sys.executable, f"benchmarks/{name}", *words, "--page", str(PAGE)]
        print("\n$", shlex.join(command), flush=True)
        started, before = time.perf_counter(), PAGE.read_text()
        status = subprocess.run(command, cwd=ROOT).returncode  # also 1 if a target is missed
        print(f"{time.perf_counter() - started:.0f} s, status {status}", flush=True)
        if PAGE.read_text() == before:
            failed.append(f"{name} {' '.join(words)}")
    if failed:
        raise SystemExit("wrote no table: " + "; ".join(failed))


if __name__ == "__main__":
    main()
