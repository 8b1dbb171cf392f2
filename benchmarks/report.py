"""What all benchmarks share: command-line options, rows with targets, results files, and tests that must pass first.

    args = parser(__doc__).parse_args()
    report = Report("tree", "100k nodes, page 16")
    report.row("match 4k, 1 node", "us", ours=0.6, baseline=4.4, baseline_name="SGLang 0.5.23, Rust", target="<= 2")
    sys.exit(report.end(args.json))

A row's ratio says how many times better ours is; more than 1 means that we win, whether more or less is better.
Needs only the standard library.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COMPARE = {"<=": float.__le__, ">=": float.__ge__, "<": float.__lt__, ">": float.__gt__}


def parser(doc: str | None, quick: str = "") -> argparse.ArgumentParser:
    """Options of a benchmark, its docstring as help. quick: what --quick does; without it there is no such option."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if quick:
        found.add_argument("--quick", action="store_true", help=quick)
    found.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    return found


class Report:
    """The rows of one run. shape: what was measured, for the heading."""

    def __init__(self, name: str, shape: str) -> None:
        self.name, self.shape = name, shape
        self.machine, self.commit = machine(), commit()
        self.rows: list[dict[str, Any]] = []

    def row(
        self,
        name: str,
        unit: str,
        ours: float,
        baseline: float | None = None,
        baseline_name: str = "",
        target: str = "",
        more_is_better: bool = False,
    ) -> None:
        """Add a row and print it. target: "<= 2" compares `ours`, "ratio >= 1" compares the ratio."""
        ratio = None
        if baseline is not None:
            more, less = (ours, baseline) if more_is_better else (baseline, ours)
            ratio = more / less if less else math.inf if more else 1.0
        self.rows.append({
            "name": name, "unit": unit, "ours": ours, "baseline": baseline, "baseline_name": baseline_name,
            "ratio": ratio if ratio != math.inf else None, "target": target, "holds": _holds(target, ours, ratio),
        })  # fmt: skip
        if len(self.rows) == 1:
            print(f"{self.name}: {self.shape}\n{self.machine}, commit {self.commit}\n")
        print(_line(self.rows[-1]), flush=True)

    def table(self) -> str:
        """All rows in Markdown."""
        lines = ["| what | ours | baseline | | ratio | target |", "|---|--:|--:|---|--:|---|"]
        for row in self.rows:
            baseline = "" if row["baseline"] is None else f"{row['baseline']:,.4g}"
            ratio = f"{row['ratio']:.2f} x" if row["ratio"] is not None else ""
            target = row["target"] + {True: ": holds", False: ": **missed**", None: ""}[row["holds"]]
            cells = (row["name"], f"{row['ours']:,.4g} {row['unit']}", baseline, row["baseline_name"], ratio, target)
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def fill_page(self, file: Path, subject: str = "") -> None:
        """Write the table into a Markdown page, between the marks with this report's name."""
        fill(file, self.name, f"{subject}{self.machine}, commit {self.commit}.\n\n{self.table()}")

    def end(self, file: Path | None) -> int:
        """Write the rows to `file` and append them, with machine and commit, to the results folder. Returns 1 if a
        target is missed, else 0."""
        facts = {"time": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": self.machine, "commit": self.commit,
                 "shape": self.shape, "arguments": sys.argv[1:]}  # fmt: skip
        if file is not None:
            file.write_text(json.dumps(self.rows, indent=1) + "\n")
        RESULTS.mkdir(exist_ok=True)
        with (RESULTS / f"{self.name}.jsonl").open("a") as results:
            results.write(json.dumps(facts | {"rows": self.rows}) + "\n")
        return int(any(row["holds"] is False for row in self.rows))


def _holds(target: str, ours: float, ratio: float | None) -> bool | None:
    """Whether the target is met; None without a target or without a baseline for it."""
    if not target:
        return None
    *what, sign, bound = target.split()
    value = ratio if what == ["ratio"] else ours
    return None if value is None else COMPARE[sign](float(value), float(bound))


def _line(row: dict[str, Any]) -> str:
    line = f"{row['name']:44}{row['ours']:>12,.3f} {row['unit']:10}"
    if row["baseline"] is not None:
        line += f"{row['baseline']:>12,.3f} {row['baseline_name']:34}"
        line += f"{row['ratio']:>9.2f} x" if row["ratio"] is not None else ""
    if row["holds"] is not None:
        line += f"   {row['target']}: {'holds' if row['holds'] else 'MISSED'}"
    return line.rstrip()


def correct(*tests: str) -> None:
    """Run the tests that the figures depend on, and exit if one fails."""
    if not passes(*tests):
        sys.exit(f"the tests that these figures depend on fail: {' '.join(tests)}")


def passes(*tests: str, marks: str = "not long") -> bool:
    """Whether the tests pass. Prints the output of those that fail."""
    done = run_tests("-x", "-m", marks, *tests)
    if done.returncode:
        print(done.stdout[-4000:])
    return done.returncode == 0


def run_tests(*arguments: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run pytest in its own process."""
    # Not `python -m pytest`, which would put the root, and so a package called `kernels`, on sys.path.
    command = [sys.executable, "-c", "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))", "-q"]
    command += ["-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)


def fill(file: Path, mark: str, text: str) -> None:
    """Replace the text of a Markdown file between the comments `<!-- MARK -->` and `<!-- end of MARK -->`. ValueError
    if it has no such comments."""
    page = file.read_text()
    start, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    if start not in page or end not in page:
        raise ValueError(f"{file} does not contain {start.strip()} and {end.strip()}")
    head, _, rest = page.partition(start)
    file.write_text(head + start + text + end + rest.partition(end)[2])


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def machine() -> str:
    """CPU and Python of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.processor())
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}"


def commit() -> str:
    """The short hash of the commit, with a + if files of the four packages differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    is_dirty = git("status", "--porcelain", "--", "radix_cache", "runtime", "frontend", "kernels")
    return git("rev-parse", "--short", "HEAD") + ("+" if is_dirty else "")
