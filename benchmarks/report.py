"""How a benchmark reports: rows, each with what we did, what another did in the same run, and if a target holds.

    report = Report("tree", "100k nodes, page 16")
    report.row("match 4k, 1 node", "us", ours=0.6, baseline=4.4, baseline_name="SGLang 0.5.23, Rust", target="<= 2")
    report.end(json_file)

A row's ratio is how many times better ours is (more than 1: we win), whichever way its unit counts.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COMPARE = {"<=": float.__le__, ">=": float.__ge__, "<": float.__lt__, ">": float.__gt__}


class Report:
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
        """Add a row, and print it. target: such as "<= 2": of `ours`; or "ratio >= 1"."""
        ratio = None
        if baseline is not None and ours and baseline:
            ratio = ours / baseline if more_is_better else baseline / ours
        self.rows.append({
            "name": name, "unit": unit, "ours": ours, "baseline": baseline, "baseline_name": baseline_name,
            "ratio": ratio, "target": target, "holds": _holds(target, ours, ratio),
        })  # fmt: skip
        if len(self.rows) == 1:
            print(f"{self.name}: {self.shape}\n{self.machine}, commit {self.commit}\n")
        print(_line(self.rows[-1]), flush=True)

    def table(self) -> str:
        """All rows in Markdown."""
        lines = ["| what | ours | beside | ratio | goal |", "|---|--:|--:|--:|---|"]
        for row in self.rows:
            beside = "" if row["baseline"] is None else f"{row['baseline']:,.4g} ({row['baseline_name']})"
            ratio = f"{row['ratio']:.2f} x" if row["ratio"] else ""
            goal = row["target"] + {True: ": holds", False: ": **missed**", None: ""}[row["holds"]]
            lines.append(f"| {row['name']} | {row['ours']:,.4g} {row['unit']} | {beside} | {ratio} | {goal} |")
        return "\n".join(lines) + "\n"

    def end(self, file: Path | None) -> int:
        """Write all rows to `file`, and append them to the results with the machine and the commit. Returns
        how many targets do not hold."""
        facts = {"time": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": self.machine, "commit": self.commit,
                 "shape": self.shape, "arguments": sys.argv[1:]}  # fmt: skip
        if file is not None:
            file.write_text(json.dumps(self.rows, indent=1) + "\n")
        RESULTS.mkdir(exist_ok=True)
        with (RESULTS / f"{self.name}.jsonl").open("a") as results:
            results.write(json.dumps(facts | {"rows": self.rows}) + "\n")
        return sum(row["holds"] is False for row in self.rows)


def _holds(target: str, ours: float, ratio: float | None) -> bool | None:
    """None: there is no target, or nobody to compare with."""
    if not target:
        return None
    *what, sign, bound = target.split()
    value = ratio if what == ["ratio"] else ours
    return None if value is None else COMPARE[sign](float(value), float(bound))


def _line(row: dict[str, Any]) -> str:
    line = f"{row['name']:44}{row['ours']:>12,.3f} {row['unit']:10}"
    if row["baseline"] is not None:
        line += f"{row['baseline']:>12,.3f} {row['baseline_name']:34}"
        line += f"{row['ratio']:>9.2f} x" if row["ratio"] else ""
    if row["holds"] is not None:
        line += f"   {row['target']}: {'holds' if row['holds'] else 'MISSED'}"
    return line.rstrip()


def correct(*tests: str) -> None:
    """Run the tests that a figure stands on; ends the program where one fails. No speed-up is told on a red gate."""
    if not passes(*tests):
        sys.exit(f"the tests that these figures stand on fail: {' '.join(tests)}")


def passes(*tests: str, marks: str = "not long") -> bool:
    """Run tests; what one that fails says is printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marks, *tests]
    command[1:3] = ["-c", "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"]  # the root stays off sys.path
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-4000:])
    return done.returncode == 0


def fill(file: Path, mark: str, text: str) -> None:
    """Put `text` in a Markdown file between the comments `<!-- MARK -->` and `<!-- end of MARK -->`. ValueError: there
    are none."""
    page = file.read_text()
    start, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    if start not in page or end not in page:
        raise ValueError(f"{file} has no marks {start.strip()} and {end.strip()} to write between")
    head, _, rest = page.partition(start)
    file.write_text(head + start + text + end + rest.partition(end)[2])


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.processor())
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}"


def commit() -> str:
    """The commit, and whether what was measured is it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    is_dirty = git("status", "--porcelain", "--", "radix_cache", "runtime", "frontend", "kernels")
    return git("rev-parse", "--short", "HEAD") + ("+" if is_dirty else "")
