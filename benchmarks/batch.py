"""A large batch from the command line: memory of its three processes, and kills at random moments.

    python benchmarks/batch.py [--quick] [--items 1000000] [--kill client client client] [--model DIR] [--json FILE]

`banyan batch` labels the rows of a CSV file from examples in the prompt, on its own server. The default model is
M0 of random_models.py, so small that most of the time of an item is not the model's. Each process that --kill names
gets a SIGKILL at a random item ("both": client and server at once), and is started again. In the end each row must have
one result. Memory is RssAnon, sampled four times a second; the peaks up to 10,000 items and up to the end are compared.
A process counts together with those that it replaced: to measure a server that lives through the whole batch, kill only
clients.
"""

from __future__ import annotations

import csv
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))
from random_models import SHAPES, make, words
from report import Report, parser

import banyan as bn
from banyan.execution.batch_file import BatchRecord

WORDS = words(SHAPES["M0"]["vocab_size"])
EXAMPLES = "".join(f"Text:{''.join(WORDS[i : i + 12])}\nLabel:{WORDS[i % 7]}\n" for i in range(100, 352, 12))
KV = "32MiB"
MARKS = (10_000, 100_000)
"""The peaks are noted after so many items, and at the end."""
INTERVAL = 0.25


@bn.function
def label(s: bn.State, text: str) -> None:
    s += EXAMPLES
    s += f"Text:{text}\nLabel:"
    s += bn.gen("label", max_tokens=1, temperature=0)


def memory(pid: int) -> float:
    """MiB of anonymous memory of a process; 0: it has ended."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used; 0: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100


class Batch:
    """The server and the client of one batch. Both can be killed and started again.

    peaks: peak memory of each process in MiB; n_done: lines in the output; cpu: CPU seconds of each process."""

    def __init__(self, folder: Path, model: Path, rows: Path) -> None:
        self._folder, self._model, self._rows = folder, model, rows
        self.out, self._socket = folder / "out.jsonl", folder / "s"
        self._banyan = str(Path(sys.executable).with_name("banyan"))
        self._log = (folder / "log").open("w")
        self._end = 0
        self.n_done = 0
        self.peaks: dict[str, float] = {}
        self.cpu: Counter[tuple[str, int]] = Counter()
        self.start_server()
        self.start_client()

    def start_server(self) -> None:
        command = [self._banyan, "serve", "--model", str(self._model), "--socket", str(self._socket), "--kv-memory", KV]
        self._server = subprocess.Popen([*command, "--log", "quiet"], stdout=self._log, stderr=self._log)
        self._socket.unlink(missing_ok=True)  # left by a server that was killed
        deadline = time.monotonic() + 120  # then `connect` says that there is no server
        while not self._socket.exists() and self._server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        with bn.connect(self._socket, timeout=120) as backend:
            info = backend.get_server_info()
        self._pids = {"server": info["pid"], "engine": info["engine_pid"]}

    def start_client(self) -> None:
        command = [self._banyan, "batch", f"{__file__}:label", "--in", str(self._rows), "--out", str(self.out)]
        self.client = subprocess.Popen([*command, "--socket", str(self._socket)], stdout=self._log, stderr=self._log)

    def kill(self, whom: str) -> None:
        """SIGKILL the process that `whom` names ("client", "server" or "both"), and start again what ended."""
        if whom in ("client", "both"):
            self.client.kill()
        if whom in ("server", "both"):
            self._server.kill()
            self._server.wait()
        self.client.wait(60)  # a client without a server fails
        if whom != "client":
            self.start_server()
        self.start_client()

    def watch(self) -> None:
        """Update `peaks`, `cpu` and `n_done`."""
        for name, pid in ({"client": self.client.pid} | self._pids).items():
            self.peaks[name] = max(self.peaks.get(name, 0.0), memory(pid))
            self.cpu[name, pid] = max(self.cpu[name, pid], cpu(pid))
        if self.out.exists():
            with self.out.open("rb") as lines:
                lines.seek(self._end)
                new = lines.read()
            whole = new.rfind(b"\n") + 1
            self._end += whole
            self.n_done += new.count(b"\n", 0, whole)

    def close(self) -> None:
        for process in (self.client, self._server):
            process.terminate()
            process.wait()
        self._log.close()


def write_rows(file: Path, n: int) -> None:
    """Write n different texts of four words each, as CSV."""
    k = len(WORDS)
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["text"])
        writer.writerows([WORDS[i % 7] + WORDS[i // k // k] + WORDS[i // k % k] + WORDS[i % k]] for i in range(n))


def run(report: Report, model: Path | None, n: int, kills: list[str], seed: int) -> None:
    moments = sorted(random.Random(seed).sample(range(n // 100, n * 9 // 10), len(kills)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.csv", n)
        if model is None:
            make(folder, "M0")
            model = folder / "M0-float32"
        started = time.perf_counter()
        batch = Batch(folder, model, folder / "rows.csv")
        marks: dict[int, dict[str, float]] = {}
        left = list(zip(moments, kills, strict=True))
        try:
            while batch.client.poll() is None:
                time.sleep(INTERVAL)
                batch.watch()
                for mark in MARKS:
                    if batch.n_done >= mark and mark not in marks:
                        marks[mark] = dict(batch.peaks)
                        print(f"{mark} items, {time.perf_counter() - started:.0f} s: {marks[mark]}", flush=True)
                if left and batch.n_done >= left[0][0]:
                    _, whom = left.pop(0)
                    print(f"kill {whom} at {batch.n_done} items", flush=True)
                    batch.kill(whom)
            status, seconds = batch.client.wait(), time.perf_counter() - started
            batch.watch()
        finally:
            batch.close()
        log = (folder / "log").read_text()
        if status or left:
            raise SystemExit(f"the client's status is {status}, {len(left)} kills are left:\n{log[-2000:]}")
        results = check(batch.out, n)
    used: Counter[str] = Counter()
    for (name, _), spent in batch.cpu.items():
        used[name] += spent
    report.row("items", "items/s", n / seconds)
    for name in batch.peaks:
        report.row(f"{name}: CPU of an item", "us", 1e6 * used[name] / n)
        first = marks.get(MARKS[0], batch.peaks)[name]
        for mark, peaks in ({mark: marks[mark] for mark in MARKS[1:] if mark in marks} | {n: batch.peaks}).items():
            target = "ratio >= 0.909" if mark == n else ""
            report.row(f"{name}: peak of {mark:,} items", "MiB", peaks[name], first, f"{MARKS[0]:,}", target)
    report.row("rows with one result", "rows", results, target=f">= {n}")


def check(out: Path, n: int) -> int:
    """Count the rows that have exactly one result. AssertionError: a line of the output is no result of a row."""
    counts, decoder = Counter[int](), msgspec.json.Decoder(BatchRecord)
    with out.open("rb") as lines:
        for line in lines:
            record = decoder.decode(line)
            assert record.values.keys() == {"label"}, record
            counts[record.index] += 1
    assert not counts or max(counts) < n, "a result of no row"
    return sum(count == 1 for count in counts.values())


def main() -> int:
    options = parser(__doc__, quick="20,000 items")
    options.add_argument("--model", type=Path, help="a model's directory")
    options.add_argument("--items", type=int, default=1_000_000)
    options.add_argument("--kill", nargs="*", choices=["client", "server", "both"], default=["client"] * 3)
    options.add_argument("--seed", type=int, default=0, help="seed of the random moments of the kills")
    args = options.parse_args()
    n = 20_000 if args.quick else args.items
    report = Report(
        "batch",
        f"{n:,} items, model {args.model.name if args.model else 'M0'}, KV of {KV}, killed: {', '.join(args.kill)}",
    )
    run(report, args.model, n, args.kill, args.seed)
    return report.end(args.json)


if __name__ == "__main__":
    sys.exit(main())
