"""Engines that die, hang or are stopped under programs that notice nothing: real processes, a fake model."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from banyan.runtime.client import client
from banyan.runtime.errors import Quarantined
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link import recovery
from waits import join as join_thread
from waits import wait_until

Join = Callable[..., client.Client]
COUNT = " ".join(map(str, range(60)))


@pytest.fixture(scope="module")
def boot(write_boot: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
    return write_boot("ipc.HEARTBEAT, ipc.MAX_SILENT = 0.1, 300")


def gen(c: client.Client, text: str, **sampling: Any) -> client.Program:
    program = c.program(text)
    options = {"max_tokens": 300, "temperature": 0.0} | sampling
    program.submit([wire.Append(0, (text,)), wire.Gen(0, 0, wire.Sampling(**options))], last=True)
    return program


def text(program: client.Program, seconds: float = 60.0) -> str:
    value: wire.Value = program.future(0).result(seconds)
    return value.samples[0].text


def engine(c: client.Client) -> int:
    pid: int = c.ask("info")["engine_pid"]
    return pid


def starts(c: client.Client) -> int:
    n: int = c.ask("stats")["server"]["engine_starts"]
    return n


def test_the_engine_killed_at_random_points_costs_no_text(join: Join) -> None:
    c = join(say={"count": COUNT}, step_ms=2)
    chance = random.Random(0)
    programs = [gen(c, f"{k} count") for k in range(8)]
    for _ in range(4):
        time.sleep(chance.random() * 0.3)
        os.kill(engine(c), signal.SIGKILL)
        programs += [gen(c, f"{len(programs)} count")]
    assert [text(program) for program in programs] == [COUNT] * 12
    assert starts(c) == 5


def test_an_engine_that_is_stopped_is_replaced_and_nobody_is_to_blame(join: Join) -> None:
    c = join(say={"count": COUNT}, step_ms=2)
    programs = [gen(c, f"{k} count") for k in range(4)]
    for _ in range(recovery.MAX_DEATHS):
        pid = engine(c)
        os.kill(pid, signal.SIGSTOP)
        programs.append(gen(c, "one more count"))
        wait_until(lambda pid=pid: engine(c) != pid, "another engine")
    assert [text(program) for program in programs] == [COUNT] * 6
    assert starts(c) == 3


def test_an_engine_that_hangs_is_replaced(join: Join) -> None:
    c = join(say={"count": COUNT, "stuck": "free"}, hang_on="stuck", once=True, options={"engine_timeout": 2.0})
    programs = [gen(c, "count"), gen(c, "stuck"), gen(c, "2 count")]
    assert [text(program) for program in programs] == [COUNT, "free", COUNT]
    assert starts(c) == 2


def test_an_engine_without_work_is_left_alone(join: Join) -> None:
    c = join(say={"count": COUNT}, options={"engine_timeout": 1.0})
    pid = engine(c)
    time.sleep(2.5)
    assert engine(c) == pid
    assert text(gen(c, "count")) == COUNT


@pytest.mark.parametrize("fault", ["die_on", "hang_on"])
def test_what_kills_twice_is_not_run_again_and_all_others_live(join: Join, fault: str) -> None:
    c = join(say={"count": COUNT}, step_ms=2, options={"engine_timeout": 2.0}, **{fault: "poison"})
    programs = [gen(c, f"{k} count") for k in range(6)]
    poison = gen(c, "poison")
    programs += [gen(c, f"{k} count") for k in range(6, 9)]
    with pytest.raises(
        Quarantined, match=r"(?s)2 engines died of this request.*program poison.*the prompt ends: 'poison'"
    ):
        text(poison)
    assert [text(program) for program in programs] == [COUNT] * 9
    assert starts(c) == 3
    assert text(gen(c, "count")) == COUNT


def test_two_poisons_do_not_take_each_other_for_innocent_or_the_innocent_for_poison(join: Join) -> None:
    c = join(say={"count": COUNT}, step_ms=2, die_on="poison")
    programs = [gen(c, f"{k} {'poison' if k in (2, 3) else 'count'}") for k in range(6)]
    for k, program in enumerate(programs):
        if k in (2, 3):
            with pytest.raises(Quarantined):
                text(program)
        else:
            assert text(program) == COUNT
    assert starts(c) in (4, 5), "both at once or one after the other, then each of them alone"


def test_an_engine_killed_while_it_loads_is_started_again(join: Join) -> None:
    c = join(say={"count": COUNT}, step_ms=2)
    program = gen(c, "count")
    done = threading.Event()

    def hunt() -> None:
        seen: set[int] = set()
        while len(seen) < 6 and not done.is_set():
            pid = engine(c)
            if pid not in seen:
                seen.add(pid)
                os.kill(pid, signal.SIGKILL)

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        assert text(program) == COUNT
    finally:
        done.set()
        join_thread(hunter)
    assert starts(c) >= 3


# ---- causes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "n_oom", "is_hung", "was_stopped", "how", "is_blameless"),
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
def test_who_ended_the_engine(
    code: int, n_oom: int, is_hung: bool, was_stopped: bool, how: str, is_blameless: bool
) -> None:
    said, blameless = recovery.cause(code, n_oom, is_hung, was_stopped)
    assert how in said
    assert blameless == is_blameless


def test_a_process_is_seen_to_be_stopped() -> None:
    assert not recovery.is_stopped(os.getpid())
    assert not recovery.is_stopped(2**22 + 1)
    assert recovery.n_oom_kills() >= 0
