"""What the language costs its process, what it sends and what it holds, beside SGLang's on the same work.

    python benchmarks/language.py [--quick] [--json FILE] [--sglang PYTHON]

--sglang names the interpreter of an environment that has it (how to make one: tree_peers.py); without it the column
stays empty.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from language_peers import N_TURNS, NAME
from report import Report, correct

import banyan as bn
from banyan.runtime import wire
from banyan.runtime.promise import Promise

HERE = Path(__file__).resolve().parent


# ---- a backend that costs next to nothing --------------------------------------------------------------------------


class Instant:
    """Answers each gen as it is submitted or, where it is `held`, when it is let go."""

    def __init__(self, held: bool = False) -> None:
        self.welcome = wire.Welcome(wire.VERSION, model="instant", max_context=1 << 31)
        self.is_held = held
        self.waiting: list[Promise[wire.Value]] = []

    def program(self, name: str = "") -> Open:
        return Open(self)

    def ask(self, what: str) -> Any:
        return {}


class Open:
    first_error: BaseException | None = None

    def __init__(self, backend: Instant) -> None:
        self._backend, self._futures = backend, dict[int, Promise[wire.Value]]()

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        for op in ops:
            if isinstance(op, wire.Gen):
                future = self.future(op.ref)
                if self._backend.is_held:
                    self._backend.waiting.append(future)
                else:
                    future.set_result(ANSWER)

    def future(self, ref: int) -> Promise[wire.Value]:
        if ref not in self._futures:
            self._futures[ref] = Promise()
        return self._futures[ref]

    def on_delta(self, ref: int, callback: Callable[[str], None]) -> None:
        pass

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        pass

    def limit(self, limits: wire.Limits) -> None:
        pass

    def cancel(self) -> None:
        pass


class Templated(Instant):
    """It takes templates too, and answers what they make."""

    def __init__(self) -> None:
        super().__init__()
        self.templates: list[Any] = []

    def define(self, template: Any) -> int:
        self.templates.append(template)
        return len(self.templates) - 1

    def undefine(self, number: int) -> None:
        pass

    def program(self, name: str = "") -> Open:
        return OpenTemplated(self)


class OpenTemplated(Open):
    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        for op in ops:
            if isinstance(op, wire.Use):
                for place in self._backend.templates[op.template].places:  # type: ignore[attr-defined]
                    self.future(op.ref + place.ref).set_result(ANSWER)


ANSWER = wire.Value(0, 0, 0, (wire.Sample("yes", "stop"),))


# ---- the programs --------------------------------------------------------------------------------------------------


@bn.function
def chat(s: bn.State, topic: str) -> None:
    for i in range(N_TURNS):
        s += bn.user(f"Question {i} about {topic}?")
        s += bn.assistant(bn.gen(f"answer {i}", max_tokens=16))


@bn.function
def tree(s: bn.State, topic: str) -> None:
    s += bn.user(f"About {topic}")
    branches = s.fork(4)
    branches += bn.gen("a")
    for branch in branches:
        branch["a"]


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


# ---- figures -------------------------------------------------------------------------------------------------------


def cpu_per_gen(program: Any, backend: Instant, n: int, n_times: int) -> float:
    """Microseconds of CPU, of all threads, in a batch of n programs: the best of `n_times`."""
    items = [{"topic": f"topic {i}"} for i in range(n)]
    program.run_batch(items[:8], backend=backend)
    best = float("inf")
    for _ in range(n_times):
        gc.collect()
        start = time.process_time()
        program.run_batch(items, backend=backend)
        best = min(best, time.process_time() - start)
    return best / (n * N_TURNS) * 1e6


def threads() -> int:
    """At most, beside the main one, while 32 programs wait for the values of 4 branches each."""
    backend = Instant(held=True)
    items = [{"topic": f"{i}"} for i in range(32)]
    batch = threading.Thread(target=tree.run_batch, args=(items,), kwargs={"backend": backend, "num_threads": 32})
    batch.start()
    while len(backend.waiting) < 32 * 4:
        time.sleep(0.01)
    n = threading.active_count() - 2  # this one, and the one that the batch is called from
    for future in backend.waiting:
        future.set_result(ANSWER)
    batch.join()
    return n


def import_ms() -> float:
    """CPU of `import banyan` with all public names, in a process of its own; the best of 5."""
    code = (
        "import sys, time; start = time.process_time(); import banyan\n"
        "[getattr(banyan, name) for name in banyan.__all__]\n"
        "assert not {'torch', 'transformers', 'zmq'} & set(sys.modules)\n"
        "print(1000 * (time.process_time() - start))"
    )
    runs = (subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5))
    return min(float(run.stdout) for run in runs)


class Sent:
    """Counts what a runtime's client sends of programs."""

    def __init__(self, runtime: bn.Runtime) -> None:
        self._client, self.sizes = runtime.client, list[int]()
        self._send = self._client.send

    def __enter__(self) -> Sent:
        def send(data: bytes) -> None:
            message = wire.decode_client(data)
            if isinstance(message, wire.Define) or (isinstance(message, wire.Submit) and message.ops):
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


def programs_at_once(n: int) -> float:
    """KiB of this process for each of n async programs that all wait for a value."""

    @bn.function
    async def waits(s: bn.AsyncState, i: int) -> str:
        s += f"program {i}: " + bn.gen("a")
        return str(await s.value("a"))

    async def main() -> float:
        await waits.run_async(0, backend=Instant())
        gc.collect()
        backend, before = Instant(held=True), resident()
        tasks = [asyncio.create_task(waits.run_async(i, backend=backend)) for i in range(n)]
        while len(backend.waiting) < n:
            await asyncio.sleep(0.01)
        used = resident() - before
        for future in backend.waiting:
            future.set_result(ANSWER)
        states = await asyncio.gather(*tasks)
        assert [state.ret_value for state in states] == ["yes"] * n
        return used / n

    return asyncio.run(main())


def resident() -> float:
    """KiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


def sglang(python: str | None, n: int) -> dict[str, Any]:
    if python is None:
        return {}
    command = [python, str(HERE / "language_peers.py"), "--programs", str(n)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"SGLang could not be measured:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer programs, and not the tests they stand on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--sglang", metavar="PYTHON", help="an interpreter that has SGLang")
    args = parser.parse_args()
    n, n_async, n_times = (100, 1_000, 3) if args.quick else (500, 10_000, 7)
    if not args.quick:
        correct("tests/frontend/test_compiled.py", "tests/frontend/test_batch.py", "tests/runtime/test_traffic.py")
    report = Report("language", f"{N_TURNS} turns a program, batches of {n}")
    peer = sglang(args.sglang, n)
    ours = cpu_per_gen(chat, Instant(), n, n_times)
    report.row("CPU per gen", "us", ours, peer.get("cpu"), NAME if peer else "", target="<= 20")
    template = cpu_per_gen(bn.compile(chat), Templated(), n, n_times)
    report.row("CPU per gen, compiled", "us", template, peer.get("cpu"), NAME if peer else "")
    report.row("threads, 32 programs x fork(4)", "threads", threads(), peer.get("threads"), NAME if peer else "",
               target="<= 36")  # fmt: skip
    report.row(f"{n_async:,} async programs that wait, each", "KiB", programs_at_once(n_async), target="< 20")
    report.row("import banyan, all names", "ms", import_ms(), target="< 300")
    with bn.Runtime(log="quiet") as runtime:
        traffic(report, runtime, 20 if args.quick else 200)
    return report.end(args.json)


if __name__ == "__main__":
    sys.exit(main())
