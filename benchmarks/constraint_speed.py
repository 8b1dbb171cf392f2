"""Output characters per second of JSON requests: with a constraint, without one, and with vLLM's structured output."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any, NamedTuple

import constraint_work as work
import psutil
from report import Report

import banyan as bn

N_REQUESTS, N_ALONE = 64, 16
"""How many requests a round has: N_REQUESTS if 16 run at a time, N_ALONE if they run one by one."""
SETTINGS = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
OPTIONS = (
    "--dtype=float32", "--max-model-len=1024", "--max-num-seqs=16", "--block-size=32", "--host=127.0.0.1",
    "--disable-log-stats", "--uvicorn-log-level=error",
)  # fmt: skip
START_TIMEOUT = 300.0  # seconds


@bn.function
def extract(s: bn.State, prompt: str, schema: Any) -> None:
    s += bn.raw(prompt) + bn.gen("record", json_schema=schema, max_tokens=work.MAX_TOKENS, temperature=0)


class Round(NamedTuple):
    """One run of the requests: its wall seconds, the CPU seconds of all processes including the client, and the
    answers."""

    seconds: float
    cpu: float
    texts: list[str]

    @property
    def n_chars(self) -> int:
        return sum(map(len, self.texts))


class System:
    """A system under test. Its processes are the children of this process that are not in `before`."""

    name: str

    def __init__(self, requests: list[work.Extraction], before: set[psutil.Process]) -> None:
        self._requests = requests
        self._processes = set(psutil.Process().children()) - before

    def round(self, n_at_once: int) -> Round:
        """Run all requests, n_at_once at a time, or only N_ALONE of them if n_at_once is 1."""
        requests = self._requests if n_at_once > 1 else self._requests[:N_ALONE]
        cpu, start = self._cpu(), time.perf_counter()
        texts = self.answers(requests, n_at_once)
        return Round(time.perf_counter() - start, self._cpu() - cpu, texts)

    def answers(self, requests: list[work.Extraction], n_at_once: int) -> list[str]:
        raise NotImplementedError

    def _cpu(self) -> float:
        there = [one for process in self._processes for one in (process, *process.children(recursive=True))]
        return time.process_time() + sum(sum(one.cpu_times()[:2]) for one in there)


class Served(System):
    """Banyan: a server and an engine process, with the client in this process."""

    def __init__(
        self, requests: list[work.Extraction], before: set[psutil.Process], runtime: bn.Runtime, name: str = ""
    ) -> None:
        super().__init__(requests, before)
        self._runtime, self.name = runtime, name

    def answers(self, requests: list[work.Extraction], n_at_once: int) -> list[str]:
        all_ = [one._asdict() for one in requests]
        if n_at_once > 1:
            return [state["record"] for state in extract.run_batch(all_, backend=self._runtime)]
        return [extract.run(**one, backend=self._runtime)["record"] for one in all_]

    def share_forced(self) -> float:
        """Percentage of forced tokens among all output tokens so far."""
        counts = self._runtime.ask("stats")["engine"]
        return 100 * float(counts["forced_tokens"]) / float(counts["generated_tokens"])


class Peer(System):
    """vLLM's server in its own environment, over HTTP."""

    def __init__(self, python: str, requests: list[work.Extraction]) -> None:
        version = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
        found = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True).stdout
        self.name = f"vLLM {found.strip()}, xgrammar"
        self._model, before = str(work.resolve("pocket")), set(psutil.Process().children())
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            self._port = any_port.getsockname()[1]
        command = [python, "-m", "vllm.entrypoints.openai.api_server", f"--model={self._model}", f"--port={self._port}"]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the server)
        self._process = subprocess.Popen(
            [*command, *OPTIONS], env=os.environ | SETTINGS, cwd="/", stdout=self._log, stderr=self._log,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                self._log.seek(0)
                sys.exit(f"vLLM did not start:\n{self._log.read().decode(errors='replace')[-3000:]}")
            time.sleep(0.5)
        super().__init__(requests, before)

    def _is_ready(self) -> bool:
        try:
            self._ask("/health")
        except OSError:
            return False
        return True

    def _ask(self, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self._port}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bytes(answer.read())

    def _complete(self, one: work.Extraction) -> str:
        body = {
            "model": self._model, "prompt": one.prompt, "max_tokens": work.MAX_TOKENS, "temperature": 0,
            "structured_outputs": {"json": one.schema},
        }  # fmt: skip
        return str(json.loads(self._ask("/v1/completions", body))["choices"][0]["text"])

    def answers(self, requests: list[work.Extraction], n_at_once: int) -> list[str]:
        with ThreadPoolExecutor(N_REQUESTS if n_at_once > 1 else 1) as pool:
            return list(pool.map(self._complete, requests))

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(timeout=60)


def speed(report: Report, n_rounds: int, vllm: str | None) -> None:
    """Adds rows for output characters per second of the same requests with a constraint, without one, and with a
    constraint whose forced tokens are sampled like others. The systems take turns, and the fastest round counts,
    because other load only adds. Prompts are cached. Of the drafters only the grammar is used: the others would copy
    the previous round."""
    requests = work.extractions(N_REQUESTS)
    free = [one._replace(schema=None) for one in requests]
    with ExitStack() as stack:

        def served(speculate: str, *some: tuple[list[work.Extraction], str]) -> list[Served]:
            before = set(psutil.Process().children())
            runtime = bn.Runtime("pocket", speculate=speculate, max_running=16, threads=1, dtype="float32")
            stack.enter_context(runtime)
            return [Served(requests, before, runtime, name) for requests, name in some]

        (ours,) = served("grammar", (requests, ""))
        others = served("off", (free, "the same without"), (requests, "forced tokens drawn"))
        systems: list[System] = [ours, *others]
        if vllm:
            systems.append(stack.enter_context(closing(Peer(vllm, requests))))
        for n_at_once in (1, 16):
            runs: list[list[Round]] = [[] for _ in systems]
            for number in range(n_rounds + 1):  # the first round computes prompts and compiles schemas
                for system, some in zip(systems, runs, strict=True):
                    done = system.round(n_at_once)
                    some += [done] if number else []
            compare(report, what := f"JSON, {n_at_once} at a time", systems, runs)
            share = {system.name: share_valid(some, requests) for system, some in zip(systems, runs, strict=True)}
            other = systems[-1].name
            report.row(f"{what}: valid answers", "%", share[""], share[other], other, ">= 100", more_is_better=True)
        report.row("output tokens that were forced", "%", ours.share_forced())


def compare(report: Report, what: str, systems: list[System], runs: list[list[Round]]) -> None:
    """Adds rows that compare the fastest round of the first system with those of the others."""
    for unit, took in (("chars/s", lambda one: one.seconds), ("chars/CPU s", lambda one: one.cpu)):
        ours, *others = [max(one.n_chars / took(one) for one in some) for some in runs]
        for system, rate in zip(systems[1:], others, strict=True):
            report.row(what, unit, ours, rate, system.name, "ratio >= 1", more_is_better=True)


def share_valid(rounds: list[Round], requests: list[work.Extraction]) -> float:
    """Percentage of answers that are complete and match their schema."""
    verdicts = [
        work.judge(one.schema, text) for done in rounds for one, text in zip(requests, done.texts, strict=False)
    ]
    return 100 * verdicts.count("valid") / len(verdicts)
