"""Whole programs on a CPU, compared with other runtimes on the same model, texts and machine.

    python benchmarks/random_models.py models
    python benchmarks/serving.py models/M2-bfloat16 --vllm ~/vllm/bin/python --transformers .venv/bin/python

The six workloads of serving_work.py run through the whole path (language, socket, server, engine). Each peer runs in
its own environment with its best settings. The systems take turns, and are stopped in between, so that polling costs
the others nothing. Every run begins with an empty cache. Decoding is greedy, ignores end-of-sequence and does not
speculate. Rows show the run with the median wall time. Outputs are compared in all runs, except for the calls that
follow a call whose outputs differ, because their prompts differ. `--page FILE` writes a table between the marks of this
benchmark in a Markdown file, and a plot next to it.

`--http` adds the same server through its HTTP process: `programs`, the same programs with a RuntimeEndpoint, and
`completions`, where each call is a streamed request to /v1/completions with its whole prompt, as clients of other
servers send it. `--server` starts another system's server, which gets the same requests; its wall time is compared with
that of `completions`. Its cache is not emptied between runs, but no two runs have the same texts. In its command,
{port} is a free port, {model} the model's folder, and {gguf} the same weights for llama.cpp:

    python benchmarks/serving.py models/M2-bfloat16 --workloads W2 W4 --http \\
        --server vllm 'vllm serve {model} --port {port} --max-model-len 8192 --max-num-seqs 64' \\
        --server llamacpp 'llama-server -m {gguf} --port {port} -c 65536 -np 16 --kv-unified'
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))
from peer_process import LONGEST, PeerProcess, ProcessTree
from random_models import gguf_of, words
from report import Report, fill, parser, percentile
from serving_floor import Ceilings, Shape, ceilings, floor
from serving_work import WORKLOADS, Call, every, work

import banyan as bn
from banyan.runtime import config, launch
from waits import wait_until

HERE = Path(__file__).resolve().parent
KV = "2GiB"
PEERS = {"vllm": "Python", "sglang": "Python", "transformers": "Python", "llamacpp": "llama-server"}
"""Peer -> what its option names."""
BOUNDS = {"W1": 0.67, "W2": 0.85, "W3": 0.8, "W4": 0.75, "W5": 1.0, "W6": 0.67}
"""Targets: upper limits of our wall time, as a share of vLLM's."""
HTTP = {"programs", "completions"}
"""Systems that are our server over HTTP. Their wall time may be at most HTTP_BOUND times that over the socket."""
HTTP_BOUND = 1.1


class Run(NamedTuple):
    """One run of a workload. wall, ttft, itl: seconds; itl is a call's mean time between tokens. computed: prompt
    tokens that were not cached; None: the system does not report cached tokens."""

    wall: float
    n_out: int
    computed: int | None
    ttft: list[float]
    itl: list[float]
    out: list[str]


@bn.function
def run_call(s: bn.State, call: Call, outputs: dict[int, tuple[bn.State, str]], depth: int = 0) -> None:
    """Runs a tree of calls. A call that follows another waits for its output, as a user would."""
    while True:
        name = f"out{depth}"
        s += call.text + bn.gen(name, max_tokens=call.n_out, ignore_eos=True, temperature=0)
        outputs[id(call)] = s, name
        if len(call.children) != 1:
            break
        s[name]
        (call,), depth = call.children, depth + 1
    if call.children:
        branches = s.fork(len(call.children))
        for branch, child in zip(branches, call.children, strict=True):
            run_call.inline(branch, child, outputs, depth + 1)
        branches.join()


@bn.function
def first_token(s: bn.State) -> None:
    s += "Hello" + bn.gen(max_tokens=1)


class Ours:
    """Banyan: a server and an engine process, with the client in this process."""

    def __init__(self, model: Path, dtype: str, **options: Any) -> None:
        started = time.perf_counter()
        others = {child.pid for child in psutil.Process().children()}
        options = {"device": "cpu", "kv_memory": KV, "speculate": "off", **options}
        self.runtime = bn.Runtime(str(model), dtype=dtype, **options)
        first_token.run(backend=self.runtime).sync()
        self.startup = time.perf_counter() - started
        (server,) = (child.pid for child in psutil.Process().children() if child.pid not in others)
        self._tree = ProcessTree(server)
        self.vocabulary = words(json.loads((model / "config.json").read_text())["vocab_size"])

    @property
    def peak(self) -> int:
        return self._tree.peak

    def run(self, name: str, seed: int, backend: bn.RuntimeEndpoint | None = None) -> Run:
        calls = work(name, self.vocabulary, seed)
        self.runtime.flush_cache()
        outputs: dict[int, tuple[bn.State, str]] = {}
        started = time.perf_counter()
        items = [{"call": call, "outputs": outputs} for call in calls]
        run_call.run_batch(items, backend=backend or self.runtime)
        wall = time.perf_counter() - started
        metas, out = [], []
        for call in every(calls):
            state, name = outputs[id(call)]
            metas.append(state.get_meta_info(name))
            out.append(state[name])
        return Run(
            wall,
            sum(meta["completion_tokens"] for meta in metas),
            sum(meta["prompt_tokens"] - meta["cached_tokens"] for meta in metas),
            [meta["time_to_first_token"] for meta in metas],
            [(meta["e2e_latency"] - meta["time_to_first_token"]) / (meta["completion_tokens"] - 1) for meta in metas],
            out,
        )

    def close(self) -> None:
        self.runtime.shutdown()


class OverHTTP:
    """The server of `ours`, used through an HTTP process. kind: a name in HTTP."""

    def __init__(self, ours: Ours, kind: str) -> None:
        started = time.perf_counter()
        self._ours, self._kind = ours, kind
        self._gateway = launch.start_gateway(config.HTTPConfig(socket=str(ours.runtime.socket), address="0"))
        self._backend = bn.RuntimeEndpoint(self._gateway.url)
        self._tree = ProcessTree(self._gateway.pid)
        self.startup = time.perf_counter() - started

    @property
    def peak(self) -> int:
        return self._tree.peak

    def run(self, name: str, seed: int) -> Run:
        if self._kind == "programs":
            return self._ours.run(name, seed, self._backend)
        self._ours.runtime.flush_cache()
        return run_completions(self._gateway.url, work(name, self._ours.vocabulary, seed))

    def close(self) -> None:
        self._backend.close()
        self._gateway.close()


class Server:
    """Another system's OpenAI-compatible server. SIGSTOP stops it between runs. Its output goes to a log file."""

    def __init__(self, name: str, command: str, model: Path, vocabulary: list[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._url, self._vocabulary = f"http://127.0.0.1:{port}", vocabulary
        gguf = gguf_of(model) if "{gguf}" in command else ""
        started = time.perf_counter()
        with Path(tempfile.gettempdir(), f"serving-{name}.log").open("wb") as log:
            line = shlex.split(command.format(port=port, model=model, gguf=gguf))
            self._process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._tree = ProcessTree(self._process.pid)
        try:
            what = f"an answer of {name}, which writes to {log.name}"
            wait_until(self._answers, what, alive=lambda: self._process.poll() is None, seconds=LONGEST)
        except BaseException:
            self.close()
            raise
        self.startup = time.perf_counter() - started
        self._tree.signal(signal.SIGSTOP)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=10):
                return True
        except (urllib.error.URLError, OSError):  # nobody listens yet, or it is still loading
            return False

    @property
    def peak(self) -> int:
        return self._tree.peak

    def run(self, name: str, seed: int) -> Run:
        self._tree.signal(signal.SIGCONT)
        try:
            return run_completions(self._url, work(name, self._vocabulary, seed))
        finally:
            self._tree.signal(signal.SIGSTOP)

    def close(self) -> None:
        self._tree.signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._tree.signal(signal.SIGKILL)
            self._process.wait()


def run_completions(url: str, calls: list[Call]) -> Run:
    """Run the calls with the first model of an OpenAI-compatible server."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=LONGEST) as answer:
        model = json.load(answer)["data"][0]["id"]
    started = time.perf_counter()
    try:
        answers = asyncio.run(asyncio.wait_for(complete_all(url, model, calls), LONGEST))
    except TimeoutError:
        raise SystemExit(f"{url} has not answered all calls within {LONGEST:g} s") from None
    wall = time.perf_counter() - started
    prompts = [
        (one.usage["prompt_tokens"], (one.usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
        for one in answers
    ]
    return Run(
        wall,
        sum(one.usage["completion_tokens"] for one in answers),
        n_computed(prompts),
        [one.first for one in answers],
        [(one.last - one.first) / (one.usage["completion_tokens"] - 1) for one in answers],
        [one.text for one in answers],
    )


def n_computed(prompts: Iterable[tuple[int, int | None]]) -> int | None:
    """The number of prompt tokens that were computed; None if a cached count is None. prompts: (tokens, cached tokens)
    of each."""
    n = 0
    for n_prompt, n_cached in prompts:
        if n_cached is None:
            return None
        n += n_prompt - n_cached
    return n


class Answer(NamedTuple):
    """A streamed completion. first, last: seconds from the request to its first and last text."""

    text: str
    first: float
    last: float
    usage: dict[str, Any]


async def complete(url: str, body: dict[str, Any]) -> Answer:
    """Send one request over a plain socket, which costs the client little."""
    started, times, text, usage = time.perf_counter(), [], "", {}
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(data)}\r\n"
    writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + data)
    if b" 200 " not in (status := await reader.readline()):
        raise SystemExit(f"{url}: {status.decode()}{(await reader.read()).decode()}")
    async for line in reader:
        if line.startswith(b"data: {"):
            found = json.loads(line[6:])
            usage = found.get("usage") or usage
            if found["choices"] and found["choices"][0]["text"]:
                text += found["choices"][0]["text"]
                times.append(time.perf_counter() - started)
    writer.close()
    return Answer(text, times[0], times[-1], usage)


async def complete_all(url: str, model: str, calls: list[Call]) -> list[Answer]:
    """The answers to all calls, in the order of `every`."""
    answers: dict[int, Answer] = {}
    options = {"model": model, "temperature": 0, "ignore_eos": True, "stream": True}

    async def grow(before: str, call: Call) -> None:
        prompt = before + call.text
        body = options | {"prompt": prompt, "max_tokens": call.n_out, "stream_options": {"include_usage": True}}
        answer = answers[id(call)] = await complete(url, body)
        await asyncio.gather(*(grow(prompt + answer.text, child) for child in call.children))

    await asyncio.gather(*(grow("", call) for call in calls))
    return [answers[id(call)] for call in every(calls)]


class Peer(PeerProcess):
    """A peer in its own environment (serving_peers.py)."""

    def __init__(self, name: str, place: Path, model: Path, dtype: str) -> None:
        from transformers import AutoTokenizer

        is_python = PEERS[name] == "Python"
        command = [str(place) if is_python else sys.executable, str(HERE / "serving_peers.py"), name]
        super().__init__([*command, str(model.resolve()), dtype, *([] if is_python else [str(place)])])
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self.startup: float = self.ready["startup"]

    def run(self, name: str, seed: int) -> Run:
        result = self.ask(f"{name} {seed}")
        calls = result["calls"]
        return Run(
            result["wall"],
            sum(len(call["out"]) for call in calls),
            n_computed((call["prompt"], call["cached"]) for call in calls),
            [call["times"][0] for call in calls],
            [(call["times"][-1] - call["times"][0]) / (len(call["out"]) - 1) for call in calls],
            [self._tokenizer.decode(call["out"], skip_special_tokens=True) for call in calls],
        )


def median(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.wall)[(len(runs) - 1) // 2]


System = Ours | OverHTTP | Server | Peer


def measure(systems: dict[str, System], names: list[str], n_times: int) -> dict[str, dict[str, list[Run]]]:
    """Runs all workloads on all systems in turns. Runs with the same index have the same texts."""
    for system in systems.values():
        for seed in range(2):
            system.run("warm-up", seed)
    runs: dict[str, dict[str, list[Run]]] = {}
    for name in names:
        runs[name] = {system: [] for system in systems}
        for seed in range(n_times):
            for system, driver in systems.items():
                runs[name][system].append(driver.run(name, seed))
                print(f"{name} {system} {runs[name][system][-1].wall:.2f} s", file=sys.stderr, flush=True)
    return runs


def agreement(calls: list[Call], ours: list[str], theirs: list[str]) -> tuple[float, int]:
    """(Share of calls with the same output, number of calls), among the calls whose prompts were the same."""
    at = {id(call): i for i, call in enumerate(every(calls))}
    same: list[bool] = []

    def walk(call: Call) -> None:
        i = at[id(call)]
        same.append(ours[i] == theirs[i])
        for child in call.children if same[-1] else ():
            walk(child)

    for call in calls:
        walk(call)
    return statistics.mean(same), len(same)


Runs = dict[str, dict[str, list[Run]]]
"""workload -> system -> runs."""


def add_rows(
    report: Report, runs: Runs, servers: set[str], vocabulary: list[str], shape: Shape, ceiling: Ceilings
) -> None:
    """Add the rows of all workloads. servers: the systems of --server, compared with `completions` if that ran."""
    bases = dict.fromkeys(servers, "completions") if "completions" in next(iter(runs.values())) else {}
    for name, by_system in runs.items():
        ours = median(by_system["banyan"])
        least = floor(work(name, vocabulary, by_system["banyan"].index(ours)), shape, ceiling)
        report.row(f"{name} floor", "s", least)
        report.row(f"{name} wall, of the floor", "x", ours.wall / least)
        for peer in by_system:
            if peer != "banyan":
                compare(report, name, bases.get(peer, "banyan"), peer, by_system, vocabulary)
    for peer in next(iter(runs.values())):
        if peer != "banyan":
            base = bases.get(peer, "banyan")
            ratios = [median(by_system[peer]).wall / median(by_system[base]).wall for by_system in runs.values()]
            target = f"<= {HTTP_BOUND}" if peer in HTTP else ">= 1.25" if peer == "vllm" and not bases else ">= 1"
            mean = statistics.geometric_mean(ratios)
            report.row(f"times as fast as {peer}, geometric mean", "x", mean, target=target)


def compare(
    report: Report, name: str, base: str, peer: str, by_system: dict[str, list[Run]], vocabulary: list[str]
) -> None:
    ours, theirs = median(by_system[base]), median(by_system[peer])
    bound = 1 / BOUNDS[name] if (base, peer) == ("banyan", "vllm") else 1
    target = f"ratio <= {HTTP_BOUND}" if peer in HTTP else f"ratio >= {bound:.3g}"
    name = name if base == "banyan" else f"{name} {base}"
    report.row(f"{name} wall", "s", ours.wall, theirs.wall, peer, target)
    rates = ours.n_out / ours.wall, theirs.n_out / theirs.wall
    report.row(f"{name} output", "tokens/s", *rates, peer, more_is_better=True)
    if ours.computed is not None and theirs.computed is not None:
        report.row(f"{name} prompt tokens computed", "", ours.computed, theirs.computed, peer)
    for what, mine, other in (("first token", ours.ttft, theirs.ttft), ("between tokens", ours.itl, theirs.itl)):
        for share in (0.5, 0.99):
            label = f"{name} {what}, p{100 * share:.0f}"
            report.row(label, "ms", 1e3 * percentile(mine, share), 1e3 * percentile(other, share), peer)
    pairs = enumerate(zip(by_system[base], by_system[peer], strict=True))
    found = [agreement(work(name.split()[0], vocabulary, seed), a.out, b.out) for seed, (a, b) in pairs]
    n = sum(n for _, n in found)
    share = sum(share * n for share, n in found) / n
    report.row(f"{name} outputs that are {peer}'s, of {n}", "%", 100 * share)


def write_page(file: Path, model: str, runs: Runs, report: Report) -> None:
    """Write the wall times as a table between this benchmark's marks, and as bars in an SVG file. Runs with peers but
    without vLLM have their own table, as those peers take many times as long."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    systems = list(next(iter(runs.values())))
    walls = {name: [median(by_system[system]).wall for system in systems] for name, by_system in runs.items()}
    floors = {row["name"].split()[0]: row["ours"] for row in report.rows if row["name"].split()[1:] == ["floor"]}
    lines = ["| workload | floor | " + " | ".join(systems) + " |", "|---" * (len(systems) + 2) + "|"]
    lines += [
        f"| {name}: {(WORKLOADS[name].__doc__ or '').rstrip('.')} | {floors[name]:.2f} | "
        + " | ".join([f"{row[0]:.2f}", *(f"{wall:.2f}, {wall / row[0]:.2f} x" for wall in row[1:])])
        + " |"
        for name, row in walls.items()
    ]
    shown = ("times as fast", "start of", "peak memory", "matrix", "memory read")
    more = [
        f"- {row['name']}: {row['ours']:,.{0 if row['ours'] >= 1000 else 2}f} {row['unit']}"
        for row in report.rows
        if row["name"].startswith(shown) or (" outputs that are " in row["name"] and model.endswith("float32"))
    ]
    kind = "-others" if len(systems) > 1 and "vllm" not in systems else ""
    plot = file.with_name(f"{report.name}-{model}{kind}.svg")
    figure, axes = pyplot.subplots(figsize=(8, 3.2), layout="constrained")
    width = 0.8 / len(systems)
    for i, system in enumerate(systems):
        bars = [row[i] / row[0] for row in walls.values()]
        axes.bar([x + i * width for x in range(len(walls))], bars, width, label=system)
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(walls))], list(walls))
    axes.set_yscale("log", base=2)
    axes.set_ylabel("wall time, banyan = 1")
    axes.legend()
    figure.savefig(plot, metadata={"Date": None})
    head = f"{report.shape}. {report.machine}, commit {report.commit}. Wall seconds."
    body = [head, "", *lines, "", f"![wall times]({plot.name})", "", *more, ""]
    fill(file, f"{report.name} {model}{kind}", "\n".join(body))


def main() -> None:
    options = parser(__doc__, quick="one run of each workload")
    options.add_argument("model", type=Path, help="a folder made by random_models.py")
    for peer, what in PEERS.items():
        options.add_argument(f"--{peer}", type=Path, help=f"the {what} of an environment that has it")
    options.add_argument(
        "--peer-dtype", choices=("float32", "bfloat16"), help="for vLLM, SGLang and transformers; default: the model's"
    )
    options.add_argument("--http", action="store_true", help="also through the HTTP process")
    options.add_argument("--server", nargs=2, action="append", default=[], metavar=("NAME", "COMMAND"))
    options.add_argument("--workloads", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    options.add_argument("--times", type=int, default=3)
    options.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="options of bn.Runtime")
    options.add_argument("--page", type=Path, help="also write a table and a plot here")
    args = options.parse_args()
    args.times = 1 if args.quick else args.times
    if args.peer_dtype and args.llamacpp:
        options.error("--peer-dtype does not change llama.cpp's dtype")
    named = ["banyan", *HTTP, *(name for name, _ in args.server), *(peer for peer in PEERS if getattr(args, peer))]
    if twice := [name for name, n in Counter(named).items() if n > 1]:
        options.error(f"--server needs a name other than {', '.join(twice)}, which another system has")
    dtype = args.model.name.rpartition("-")[2]
    ours = {name: json.loads(value) for name, value in (option.split("=", 1) for option in args.set)}
    ceiling = ceilings(dtype)
    banyan = Ours(args.model, dtype, **ours)
    systems: dict[str, System] = {"banyan": banyan}
    shape = [args.model.name, f"{os.cpu_count()} cores", f"median of {args.times}", *args.set]
    report = Report("serving", ", ".join([*shape, *([f"peers in {args.peer_dtype}"] if args.peer_dtype else [])]))
    try:
        for kind in sorted(HTTP) if args.http else ():
            systems[kind] = OverHTTP(banyan, kind)
        for name, command in args.server:
            systems[name] = Server(name, command, args.model, banyan.vocabulary)
        for peer in PEERS:
            if place := getattr(args, peer):
                systems[peer] = Peer(peer, place, args.model, args.peer_dtype or dtype)
        runs = measure(systems, args.workloads, args.times)
        for name, driver in systems.items():
            report.row(f"start of {name}", "s", driver.startup)
            report.row(f"peak memory of {name}", "MiB", driver.peak / 2**20)
    finally:
        for system in reversed(systems.values()):
            system.close()
    report.row("matrix products", "GFLOP/s", ceiling.operations / 1e9)
    report.row("memory read", "GB/s", ceiling.bytes / 1e9)
    vocabulary = words(json.loads((args.model / "config.json").read_text())["vocab_size"])
    add_rows(report, runs, {name for name, _ in args.server}, vocabulary, Shape.read(args.model, dtype), ceiling)
    if args.page:
        write_page(args.page, args.model.name, runs, report)
    raise SystemExit(report.end(args.json))


if __name__ == "__main__":
    main()
