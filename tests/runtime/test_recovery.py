"""Engines that die, hang or are stopped are replaced, and programs do not notice: real processes, a fake model."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from banyan.runtime.client import client
from banyan.runtime.errors import EngineLost, Quarantined
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link import recovery
from forms import in_short
from waits import join as join_thread
from waits import wait_until

Join = Callable[..., client.Client]
OUTPUT = " ".join(map(str, range(60)))


@pytest.fixture(scope="module")
def boot(write_boot: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
    return write_boot("ipc.HEARTBEAT, ipc.MAX_SILENT = 0.1, 300")


def submit(c: client.Client, text: str, **sampling: Any) -> client.Program:
    program = c.program(text)
    options = {"max_tokens": 300, "temperature": 0.0} | sampling
    program.submit([wire.Append(0, (text,)), wire.Gen(0, 0, wire.Sampling(**options))], last=True)
    return program


def text(program: client.Program, seconds: float = 60.0) -> str:
    value: wire.Value = program.future(0).result(seconds)
    return value.samples[0].text


def engine_pid(c: client.Client) -> int:
    pid: int = c.ask("info")["engine_pid"]
    return pid


def engine_starts(c: client.Client) -> int:
    n: int = c.ask("stats")["server"]["engine_starts"]
    return n


def test_engine_killed_at_random_points_loses_no_text(join: Join) -> None:
    c = join(say={"count": OUTPUT}, step_ms=2)
    rng = random.Random(0)
    programs = [submit(c, f"{k} count") for k in range(8)]
    for _ in range(4):
        time.sleep(rng.random() * 0.3)
        os.kill(engine_pid(c), signal.SIGKILL)
        programs += [submit(c, f"{len(programs)} count")]
    assert [text(program) for program in programs] == [OUTPUT] * 12
    assert engine_starts(c) == 5


def test_stopped_engine_is_replaced_without_blaming_a_request(join: Join) -> None:
    c = join(say={"count": OUTPUT}, step_ms=2)
    programs = [submit(c, f"{k} count") for k in range(4)]
    for _ in range(recovery.MAX_DEATHS):
        pid = engine_pid(c)
        os.kill(pid, signal.SIGSTOP)
        programs.append(submit(c, "one more count"))
        wait_until(lambda pid=pid: engine_pid(c) != pid, "another engine")
    assert [text(program) for program in programs] == [OUTPUT] * 6
    assert engine_starts(c) == 3


def test_hanging_engine_is_replaced(join: Join) -> None:
    c = join(say={"count": OUTPUT, "stuck": "free"}, hang_on="stuck", once=True, options={"engine_timeout": 2.0})
    programs = [submit(c, "count"), submit(c, "stuck"), submit(c, "2 count")]
    assert [text(program) for program in programs] == [OUTPUT, "free", OUTPUT]
    assert engine_starts(c) == 2


def test_idle_engine_is_not_replaced(join: Join) -> None:
    c = join(say={"count": OUTPUT}, options={"engine_timeout": 1.0})
    pid = engine_pid(c)
    time.sleep(2.5)
    assert engine_pid(c) == pid
    assert text(submit(c, "count")) == OUTPUT


@pytest.mark.parametrize("fault", in_short(["die_on"], ["die_on", "hang_on"]))
def test_request_that_kills_two_engines_is_quarantined(join: Join, fault: str) -> None:
    c = join(say={"count": OUTPUT}, step_ms=2, options={"engine_timeout": 2.0}, **{fault: "poison"})
    programs = [submit(c, f"{k} count") for k in range(6)]
    poison = submit(c, "poison")
    programs += [submit(c, f"{k} count") for k in range(6, 9)]
    with pytest.raises(
        Quarantined, match=r"(?s)2 engines died of this request.*program poison.*the prompt ends: 'poison'"
    ):
        text(poison)
    assert [text(program) for program in programs] == [OUTPUT] * 9
    assert engine_starts(c) == 3
    assert text(submit(c, "count")) == OUTPUT


def test_two_poisonous_requests_are_quarantined_and_no_others(join: Join) -> None:
    c = join(say={"count": OUTPUT}, step_ms=2, die_on="poison")
    programs = [submit(c, f"{k} {'poison' if k in (2, 3) else 'count'}") for k in range(6)]
    for k, program in enumerate(programs):
        if k in (2, 3):
            with pytest.raises(Quarantined):
                text(program)
        else:
            assert text(program) == OUTPUT
    assert engine_starts(c) in (4, 5), "both deaths at once or one after the other, then each request alone"


def test_engine_killed_during_startup_is_restarted(join: Join) -> None:
    c = join(say={"count": OUTPUT}, step_ms=2)
    program = submit(c, "count")
    done = threading.Event()

    def kill_engines() -> None:
        seen: set[int] = set()
        while len(seen) < 6 and not done.is_set():
            pid = engine_pid(c)
            if pid not in seen:
                seen.add(pid)
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_engines)
    killer.start()
    try:
        assert text(program) == OUTPUT
    finally:
        done.set()
        join_thread(killer)
    assert engine_starts(c) >= 3


def test_question_to_an_engine_that_dies_is_no_refusal(join: Join, tmp_path: Path) -> None:
    """The HTTP process told whoever looked at its page that only operators may, and `banyan top` ended."""
    c = join(say={"stuck": "free"}, hang_on="stuck", once=True)
    pid, program = engine_pid(c), submit(c, "stuck")
    wait_until((tmp_path / "model" / "died").exists, "an engine that hangs")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(c.ask, "stats")
        wait_until(lambda: c._answers, "the question", alive=lambda: not asked.done())
        time.sleep(0.1)
        assert engine_pid(c) == pid, "the server has read the question before this one"
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineLost, match="the engine process died"):
            asked.result(30)
    assert text(program) == "free"


# ---- causes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "n_oom", "is_hung", "was_stopped", "message", "is_blameless"),
    [
        (-9, 0, False, False, "SIGKILL", True),
        (-9, 1, False, False, "out of memory", False),
        (-9, 0, True, False, "no sign of life", False),
        (-9, 0, True, True, "stopped by a signal", True),
        (-11, 0, False, False, "SIGSEGV", False),
        (-6, 0, False, False, "SIGABRT", False),
        (-15, 0, False, False, "SIGTERM", True),
        (0, 0, False, False, "exit code 0", True),
        (1, 0, False, False, "exit code 1", False),
    ],
)
def test_cause_of_an_engine_death(
    code: int, n_oom: int, is_hung: bool, was_stopped: bool, message: str, is_blameless: bool
) -> None:
    actual, actual_blameless = recovery.cause(code, n_oom, is_hung, was_stopped)
    assert message in actual
    assert actual_blameless == is_blameless


def test_running_or_missing_process_is_not_stopped() -> None:
    assert not recovery.is_stopped(os.getpid())
    assert not recovery.is_stopped(2**22 + 1)
    assert recovery.n_oom_kills() >= 0
