"""KV that moves between real engines: each value is that of one engine that computes everything itself, to the bit."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import banyan as bn
from banyan.runtime.errors import BanyanError
from waits import wait_until

OPTIONS: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "deterministic": True, "context": 1024, "engine_timeout": 60.0,
}  # fmt: skip


@bn.function
def report(s: Any, number: int, pause: float) -> None:
    s += f"Document {number}. " + f"It says that banyan {number} is a fig, and begins its life as an epiphyte. " * 12
    s += bn.gen("title", max_tokens=6, temperature=1.0, seed=number, ignore_eos=True)
    assert s["title"]
    time.sleep(pause)  # the program rests
    branches = s.fork(4)
    for k, branch in enumerate(branches):
        branch += f"\nQuestion {k}: "
        branch += bn.gen("answer", max_tokens=12, temperature=1.0, seed=10 * number + k, ignore_eos=True)
    branches.join("concate_and_append")
    s += bn.gen("end", max_tokens=6, temperature=0.0, ignore_eos=True)


def texts(runtime: Any, numbers: range, pause: float = 0.0) -> list[str]:
    states = report.run_batch([{"number": k, "pause": pause} for k in numbers], backend=runtime, num_threads=8)
    return [state.text() for state in states]


def pulls(runtime: Any) -> dict[str, int]:
    server = runtime.ask("stats")["server"]
    return {name: server[name] for name in ("pulls", "pulled_tokens", "failed_pulls")}


def check_nothing_is_left(runtime: Any) -> None:
    stats = runtime.ask("stats")
    assert stats["cache"]["n_leased"] == 0
    assert stats["server"]["requests"] == 0
    assert runtime.ask("check") == {}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_values_with_prompts_computed_elsewhere_are_those_of_one_engine(native: object) -> None:
    with bn.Runtime(threads=1, kv_memory="8192 tokens", **OPTIONS) as one:
        expected = texts(one, range(3))
    apart = bn.Runtime(threads=2, replicas=2, prefill_replicas=1, kv_memory="16384 tokens", **OPTIONS)
    with apart as runtime:
        assert texts(runtime, range(2)) == expected[:2]
        found = pulls(runtime)
        assert found["pulls"] > 0
        assert found["pulled_tokens"] > 64
        source = runtime.ask("info")["replicas"]["0"]["pid"]
        os.kill(source, signal.SIGSTOP)  # what it is told to export does not come; the server kills it then
        assert texts(runtime, range(2, 3)) == expected[2:]
        check_nothing_is_left(runtime)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("n_prefill", [0, 1])
def test_kills_and_drains_between_pulls_change_no_value(native: object, n_prefill: int) -> None:
    """Engines die and leave while KV moves from them and to them."""
    n, rng = 24, random.Random(n_prefill)
    with bn.Runtime(threads=1, kv_memory="8192 tokens", **OPTIONS) as one:
        expected = texts(one, range(n))
    options = {"threads": 3, "replicas": 3, "prefill_replicas": n_prefill, "kv_memory": "24576 tokens"}
    with ThreadPoolExecutor(1) as threads, bn.Runtime(**options, **OPTIONS) as runtime:
        work = threads.submit(texts, runtime, range(n), 0.5)
        for event in ("kill", "drain", "add", "kill", "kill"):
            before = pulls(runtime)
            wait_until(lambda b=before: work.done() or pulls(runtime) != b, "a pull")
            engines = {k: v for k, v in runtime.ask("info")["replicas"].items() if v["state"] == "ready"}
            name = rng.choice(list(engines))
            try:
                if event == "kill":
                    os.kill(engines[name]["pid"], signal.SIGKILL)
                elif event == "drain":
                    runtime.client.ask("drain", name=max(engines))
                else:
                    runtime.client.ask("add")
            except BanyanError as e:  # it died meanwhile, or the others did
                assert "ready" in e.message or "no engine" in e.message, e  # noqa: PT017
        assert work.result(300) == expected
        assert pulls(runtime)["pulls"] > 0
        wait_until(lambda: not runtime.ask("stats")["cache"]["n_leased"], "the leases")
        check_nothing_is_left(runtime)
