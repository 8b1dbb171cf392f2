"""The language's CPU time, messages, memory and hangs, compared with SGLang's on the same work.

    python benchmarks/language.py [--quick] [--json FILE] [--sglang PYTHON]

--sglang: the interpreter of an SGLang environment (tree_peers.py says how to make one); without it that column is
empty.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import concurrency
import language_hangs
from instant import server
from language_peers import N_TIMES, N_TURNS, NAME
from report import Report, correct, parser, run_tests

import banyan as bn
from banyan.backends.base import ProgramDefaults
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import decoders, wire

HERE = Path(__file__).resolve().parent
LONGEST = 600.0
"""Seconds that a figure may take; a run that exceeds them ends with a traceback."""
FAULTS = (
    "tests/frontend/execution/test_faults.py",
    "tests/runtime/test_faults.py",
    "tests/runtime/protocol/test_lost_messages.py",
)


class Instant:
    """A backend that answers each gen at once."""

    def __init__(self) -> None:
        self.welcome = wire.Welcome(wire.VERSION, model="instant", max_context=1 << 31)
        self.templates: list[Any] = []

    def program(self, name: str = "") -> InstantProgram:
        return InstantProgram(self)

    def define(self, template: Any) -> int:
        self.templates.append(template)
        return len(self.templates) - 1

    def undefine(self, number: int) -> None:
        pass

    def ask(self, what: str) -> Any:
        return {}


class InstantProgram(ProgramDefaults):
    def __init__(self, backend: Instant) -> None:
        self._backend, self._futures = backend, dict[int, ValueFuture[wire.Value]]()

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        for op in ops:
            if isinstance(op, wire.Gen):
                self.future(op.ref).set_result(ANSWER)
            elif isinstance(op, wire.Use):
                for place in self._backend.templates[op.template].places:
                    self.future(op.ref + place.ref).set_result(ANSWER)

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        if ref not in self._futures:
            self._futures[ref] = ValueFuture()
        return self._futures[ref]


ANSWER = wire.Value(0, 0, 0, (wire.Sample("yes", "stop"),))


@bn.function
def chat(s: bn.State, topic: str) -> None:
    for i in range(N_TURNS):
        s += bn.user(f"Question {i} about {topic}?")
        s += bn.assistant(bn.gen(f"answer {i}", max_tokens=16))


@bn.function
def turns(s: bn.State, n: int, looks: bool) -> None:
    for i in range(n):
        s += bn.user(f"Turn {i:03}: what comes next?") + bn.assistant(bn.gen("a", max_tokens=2, ignore_eos=True))
        if looks:
            s["a"]


@bn.function
def review(s: bn.State, words: str) -> None:
    s += bn.system("You read what people say of things, and tell whether they liked them. " * 8)
    s += bn.user(f"They say: {words}") + bn.assistant(bn.gen("good", max_tokens=2))


def cpu_per_gen(program: Any, backend: Any, n: int) -> float:
    """CPU microseconds of all threads per gen in a batch of n programs: the best of N_TIMES."""
    items = [{"topic": f"topic {i}"} for i in range(n)]
    program.run_batch(items[:8], backend=backend)
    best = float("inf")
    for _ in range(N_TIMES):
        gc.collect()
        start = time.process_time()
        program.run_batch(items, backend=backend)
        best = min(best, time.process_time() - start)
    return best / (n * N_TURNS) * 1e6


def import_ms() -> float:
    """CPU ms of `import banyan` with all public names in a new process; the best of 5."""
    code = (
        "import sys, time; start = time.process_time(); import banyan\n"
        "[getattr(banyan, name) for name in banyan.__all__]\n"
        "assert not {'torch', 'transformers', 'zmq'} & set(sys.modules)\n"
        "print(1000 * (time.process_time() - start))"
    )
    runs = (subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
            for _ in range(5))  # fmt: skip
    return min(float(run.stdout) for run in runs)


class Sent:
    """Records the sizes of the messages that a client sends for programs; retransmissions count once."""

    def __init__(self, runtime: bn.Runtime) -> None:
        self._client, self.sizes, self._seen = runtime.client, list[int](), set[bytes]()
        self._send = self._client.send

    def __enter__(self) -> Sent:
        def send(data: bytes) -> None:
            message = decoders.decode_client(data)
            is_of_programs = isinstance(message, wire.Define) or (isinstance(message, wire.Submit) and message.ops)
            if is_of_programs and data not in self._seen:
                self._seen.add(data)
                self.sizes.append(len(data))
            self._send(data)

        self._client.send = send  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._client.send = self._send  # type: ignore[method-assign]


def traffic(report: Report, runtime: bn.Runtime, n_items: int) -> None:
    with Sent(runtime) as straight:
        turns.run(20, False, backend=runtime).sync()
    report.row("messages of 20 gens in a line", "messages", len(straight.sizes), target="<= 1")
    with Sent(runtime) as looking:
        state = turns.run(20, True, backend=runtime)
    texts = state.text()
    n_turn = len(texts) / 20
    report.row(
        "20 turns, each looked at", "bytes", sum(looking.sizes),
        baseline=sum(n_turn * k for k in range(1, 21)), baseline_name="characters, were all text sent anew",
    )  # fmt: skip
    report.row(
        "of them, turns 11-20 to turns 1-10",
        "times",
        sum(looking.sizes[10:]) / sum(looking.sizes[:10]),
        target="<= 1.05",
    )
    items = [(f"number {i} is fine",) for i in range(n_items)]
    with Sent(runtime) as plainly:
        review.run_batch(items, backend=runtime)
    with Sent(runtime) as compiled:
        bn.compile(review).run_batch(items, backend=runtime)
    define, *uses = compiled.sizes
    report.row(
        "an item of a compiled batch", "bytes", sum(uses) / len(uses),
        baseline=sum(plainly.sizes) / len(plainly.sizes), baseline_name="the same program, not compiled",
    )  # fmt: skip
    report.row("its template, once", "bytes", define)


def hangs_under_faults(is_long: bool) -> tuple[int, int]:
    """Runs the fault tests: servers and engines that die or hang, cut connections, lost messages, tools and programs
    that raise, at every point of a two-stage fork and in random programs. Each test checks that every run ends in time
    and with the right error. Returns (number of tests that fail, number of tests)."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "junit.xml"
        marks = [] if is_long else ["-m", "not long"]
        run_tests(f"--junit-xml={file}", *FAULTS, *marks, timeout=6 * LONGEST if is_long else LONGEST)
        (suite,) = ElementTree.parse(file).getroot().iter("testsuite")
    return int(suite.get("failures", 0)) + int(suite.get("errors", 0)), int(suite.get("tests", 0))


def sglang(python: str | None, n: int) -> dict[str, Any]:
    if python is None:
        return {}
    command = [python, str(HERE / "language_peers.py"), "--programs", str(n)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    if done.returncode:
        sys.exit(f"SGLang could not be measured:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Bounded(Report):
    """A report that limits the time of each figure to LONGEST."""

    def row(self, *arguments: Any, **options: Any) -> None:
        super().row(*arguments, **options)
        faulthandler.dump_traceback_later(LONGEST, exit=True)


def costs(report: Report, peer: dict[str, Any], n: int) -> None:
    """Adds rows for the CPU time of the client process, which runs the programs."""
    name = NAME if peer else ""
    report.row("import banyan, all names", "ms", import_ms(), target="< 300")
    ours = cpu_per_gen(chat, Instant(), n)
    report.row("CPU per gen", "us", ours, peer.get("cpu"), name, target="<= 20")
    template = cpu_per_gen(bn.compile(chat), Instant(), n)
    report.row("CPU per gen, compiled", "us", template, peer.get("cpu"), name)
    with server() as path, bn.connect(path) as endpoint:
        report.row("CPU per gen, over a socket", "us", cpu_per_gen(chat, endpoint, n))


def endings(report: Report, peer: dict[str, Any], is_quick: bool, is_long: bool) -> None:
    """Adds rows that say whether all programs end."""
    backend = bn.Mock(lambda prompt, name: language_hangs.answer(prompt))
    ours, n = len(language_hangs.hangs(bn, backend)), len(language_hangs.programs(bn))
    report.row(f"hangs, {n} ways to hang", "programs", ours, peer.get("hangs"), NAME if peer else "", target="<= 0")
    if not is_quick:
        faulthandler.cancel_dump_traceback_later()  # these tests have their own limits
        n_failed, n = hangs_under_faults(is_long)
        report.row(f"hangs or wrong errors, {n} tests of faults", "tests", n_failed, target="<= 0")


def main() -> int:
    options = parser(__doc__, quick="fewer programs, and no tests first")
    options.add_argument("--long", action="store_true", help="run the long fault tests too (minutes)")
    options.add_argument("--sglang", metavar="PYTHON", help="the interpreter of an environment that has SGLang")
    args = options.parse_args()
    n = 200 if args.quick else 500
    if not args.quick:
        correct(
            "tests/frontend/templates/test_compiled.py",
            "tests/frontend/execution/test_batch.py",
            "tests/runtime/protocol/test_traffic.py",
        )
    report = Bounded("language", f"{N_TURNS} turns a program, batches of {n}")
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    peer = sglang(args.sglang, n)
    costs(report, peer, n)
    concurrency.rows(report, args.quick, peer.get("threads"), NAME if peer else "")
    with bn.Runtime(log="quiet", launch_timeout=LONGEST / 2) as runtime:
        traffic(report, runtime, 20 if args.quick else 200)
    endings(report, peer, args.quick, args.long)
    faulthandler.cancel_dump_traceback_later()
    return report.end(args.json)


if __name__ == "__main__":
    sys.exit(main())
