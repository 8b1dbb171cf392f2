"""All that is measured on a GPU, in one command: kernels, steps, whole programs, and the tests.

    python3 benchmarks/gpu.py [--minutes 9.5] [--phases NAME ...] [--quick] [--dry] [--json FILE] [--markdown FILE]

It needs no network and no installation: it looks for what it needs first, and names what is missing. The phases run one
after another in a child process, until the minutes are over. A phase that fails is reported, and the next ones run in a
new process, as the device may be unusable in the old one. What was measured is written in any case.

The ceilings (copies and matrix products by torch) are measured in the same run. Kernels are timed on the device:
medians of events around CUDA graphs, with a flushed L2. The other libraries get the same inputs: SDPA and
flex_attention in contiguous memory, without pages; FlashInfer, if it is installed, on the pages. Whole programs run on
models with random weights, beside transformers and vLLM, if they are installed, one system after another. Targets are
for an H200 in bfloat16.

--dry runs the code of every row on the CPU, in Triton's interpreter, on tiny shapes. It only shows that the code runs;
no results are written.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import RESULTS, ROOT, Report, parser

HERE = Path(__file__).resolve().parent
PHASES = (
    "attention", "steps", "shared-steps", "tests", "overlap", "programs-0.6B", "programs-8B", "small-ops", "few-bits",
)  # fmt: skip
NEEDED = {
    **{name: name for name in ("torch", "triton", "numpy", "transformers", "tokenizers", "safetensors", "jinja2")},
    **{name: name for name in ("msgspec", "psutil", "typing_extensions")},
    "llguidance": "llguidance>=1.9,<2", "zmq": "pyzmq", "re2": "google-re2",
}  # fmt: skip
OPTIONAL = {"vllm": "vllm", "flashinfer": "flashinfer-python", "pytest": "pytest", "hypothesis": "hypothesis"}
"""NEEDED and OPTIONAL: module -> package."""
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (34, 31, 28, 26)] + ["manylinux2014_x86_64"]
"""Platform tags of wheels. pip takes a wheel only if its tag is named."""


def missing() -> list[str]:
    """Print what is installed. Returns the packages that are needed and missing."""
    lacking = [package for module, package in NEEDED.items() if find_spec(module) is None]
    left = [package for module, package in OPTIONAL.items() if find_spec(module) is None]
    shown = [name for name in ("torch", "triton", "transformers", *OPTIONAL.values()) if name not in lacking + left]
    print(f"Python {sys.version.split()[0]}", *(f"{name} {metadata.version(name)}" for name in shown), sep=", ")
    if left:
        print(f"not installed, so without their rows: {', '.join(left)}", flush=True)
    return lacking


def refuse(lacking: list[str]) -> None:
    """Exit, and say how to bring the missing packages to a machine without a network."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    sys.exit(
        f"missing: {', '.join(lacking)}. On a machine with a network and pip:\n"
        f"  pip install --target .gpu --no-deps --only-binary=:all: --python-version {version} "
        + "".join(f"--platform {platform} " for platform in PLATFORMS)
        + " ".join(f"'{package}'" for package in lacking)
        + "\n"
        "Take the folder .gpu along, and run this with PYTHONPATH=.gpu."
    )


def measure_all(report: Report, names: list[str], arguments: list[str], seconds: float) -> dict[str, str]:
    """Run the phases in child processes, and add their rows. Returns the phases that were not measured, and why."""
    failed: dict[str, str] = {}
    end = time.monotonic() + seconds
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]  # Banyan need not be installed
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    while names:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "phases")
            command = [sys.executable, str(HERE / "gpu_measure.py"), *arguments, "--to", str(file), *names]
            child = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
            try:
                why = f"the process ended with status {child.wait(max(0.0, end - time.monotonic()))}"
            except subprocess.TimeoutExpired:
                why = "no time was left"
            finally:
                if child.poll() is None:  # also after Ctrl-C, which does not reach the child's session
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
            lines = file.read_text().split("\n")[:-1] if file.exists() else []
        if not lines:  # it could not even begin
            return failed | dict.fromkeys(names, why)
        for event in (events := [json.loads(line) for line in lines]):
            report.rows += [event["row"]] if "row" in event else []
            report.shape = event.get("shape", report.shape)
        done = {event["ends"] for event in events if "ends" in event}
        names = [name for name in names if name not in done]
        if names and time.monotonic() < end:
            failed[names.pop(0)] = why
        elif names:
            return failed | dict.fromkeys(names, "no time was left")
    return failed


def main() -> int:
    options = parser(__doc__, quick="10 repetitions, not 50")
    options.add_argument("--dry", action="store_true", help="run the code on the CPU with tiny shapes")
    options.add_argument("--minutes", type=float, default=9.5, help="the time for all phases")
    options.add_argument("--phases", nargs="*", choices=PHASES, default=list(PHASES))
    options.add_argument("--markdown", type=Path, metavar="FILE", default=RESULTS / "gpu.md")
    chosen = options.parse_args()
    if lacking := missing():
        refuse(lacking)
    report = Report("gpu", "")
    arguments = ["--dry"] * chosen.dry + ["--quick"] * chosen.quick
    failed = measure_all(report, chosen.phases, arguments, 60 * chosen.minutes)
    table = report.table() + "".join(f"\nNot measured: {name}, as {why}.\n" for name, why in failed.items())
    print(table)
    if chosen.dry:
        return int(bool(failed))
    chosen.markdown.parent.mkdir(parents=True, exist_ok=True)
    chosen.markdown.write_text(f"{report.shape}, {report.machine}, commit {report.commit}\n\n{table}")
    return report.end(chosen.json) or int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
