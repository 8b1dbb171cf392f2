"""Clients that vanish, or do not read: what they had is free at once, and nobody else waits for them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.protocol import ipc, wire
from waits import wait_until

VANISHING = """
import sys, time
from pathlib import Path
from banyan.runtime.client import client
from banyan.runtime.protocol import wire
c = client.connect(Path(sys.argv[1]))
endless = wire.Sampling(max_tokens=400, ignore_eos=True, temperature=0.0)
for k in range(60):
    ops = [wire.Append(0, (f"program {k}",)), wire.Fork(0, (1, 2))]
    c.program("p").submit([*ops, *(wire.Gen(s, s, endless) for s in range(3))])
c.ask("stats")
print("running", flush=True)
time.sleep(100)
"""


def test_a_client_that_vanishes_frees_all_that_it_had_at_once(tiny_model: Callable[..., Path]) -> None:
    options = config.make(model=str(tiny_model("llama")), threads=1, kv_memory="16MB", device="cpu", max_running=12)
    with (
        contextlib.closing(launch.start(options, timeout=100)) as server,
        contextlib.closing(client.connect(server.socket)) as other,
    ):
        process = subprocess.Popen([sys.executable, "-c", VANISHING, str(server.socket)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        before = other.ask("stats", timeout=60)
        assert (before["server"]["clients"], before["server"]["programs"]) == (2, 60)
        assert before["engine"]["running"] == 12
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        process.stdout.close()

        def stats_if_free() -> dict[str, Any]:
            stats: dict[str, Any] = other.ask("stats", timeout=60)
            left = [stats["server"][name] for name in ("programs", "requests")]
            left += [stats["engine"][name] for name in ("running", "waiting")] + [stats["cache"]["n_leased"]]
            return {} if any(left) else stats

        stats = wait_until(stats_if_free, "an end before the client is given up as silent", seconds=ipc.MAX_SILENT / 2)
        assert stats["server"]["clients"] == 1
        assert other.ask("check", timeout=60) == {}


def finish(c: client.Client, n: int) -> None:
    """So many programs, from their first message to their value."""
    programs = [c.program(str(k)) for k in range(n)]
    for program in programs:
        program.submit([wire.Append(0, ("count",)), wire.Gen(0, 0, wire.Sampling(max_tokens=200))], last=True)
    for program in programs:
        assert program.future(0).result(100).samples[0].n_tokens > 40


@pytest.mark.timeout(300)
def test_who_does_not_read_holds_up_nobody_and_loses_nothing(serve: Callable[..., launch.ServerProcess]) -> None:
    server = serve(say={"count": " ".join(map(str, range(30)))})
    context: Any = zmq.Context()
    try:
        with contextlib.closing(client.connect(server.socket)) as c:
            slow, _ = ipc.connect(context, server.socket)
            slow.setsockopt(zmq.RCVHWM, 1)
            slow.send(wire.encode(wire.Hello(wire.VERSION)))
            stream = (wire.Append(0, ("x",)), wire.Gen(0, 0, wire.Sampling(max_tokens=100), stream=True))
            for k in range(5):
                slow.send(wire.encode(wire.Submit(k, 0, stream)))
            for k in range(1000):
                slow.send(wire.encode(wire.Ask(k, "info")))
            finish(c, 8)  # a server that waited to be read would stand still
            seen: dict[int, int] = {}
            ended: set[int] = set()
            while len(ended) < 5:
                assert slow.poll(60_000)
                message = wire.decode_server(slow.recv())
                if isinstance(message, wire.Delta | wire.Value):
                    assert message.seq == seen.get(message.program, 0)
                    seen[message.program] = message.seq + 1
                if isinstance(message, wire.Value):
                    ended.add(message.program)
    finally:
        context.destroy(linger=0)


def test_programs_wait_for_credit_with_the_client_and_none_is_refused(
    serve: Callable[..., launch.ServerProcess],
) -> None:
    server = serve(say={"count": "1 2 3"}, options={"max_programs": 3}, step_ms=1)
    with contextlib.closing(client.connect(server.socket)) as c:
        seen, programs = set[int](), [c.program(str(k)) for k in range(40)]
        for program in programs:
            program.submit([wire.Append(0, ("count",)), wire.Gen(0, 0, wire.Sampling(max_tokens=50))], last=True)
        last = programs[-1].future(0)
        wait_until(lambda: seen.add(c.ask("stats")["server"]["programs"]) or last.done(), "the last program")
        for program in programs:
            assert program.future(0).result(60).samples[0].text == "1 2 3"
        assert 1 <= max(seen) <= 3
        wait_until(lambda: not c._admitted and not c._programs, "the admission slots to be free")


def test_who_waits_for_credit_can_be_cancelled_and_nobody_waits_for_what_never_ends(
    serve: Callable[..., launch.ServerProcess],
) -> None:
    server = serve(options={"max_programs": 2}, step_ms=5)
    slow = (wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(max_tokens=60)))
    with contextlib.closing(client.connect(server.socket)) as c:
        lives = c.program("it stays open")
        lives.submit([wire.Read(0, 0)])
        lives.future(0).result(30)
        ends, waits, more = c.program("ends"), c.program("waits"), c.program("more")
        for program in (ends, waits, more):
            program.submit(slow, last=True)
        waits.cancel()
        with pytest.raises(client.BanyanError, match="cancelled"):
            waits.future(0).result(30)
        assert ends.future(0).result(60).samples[0].n_tokens == 60
        assert more.future(0).result(60).samples[0].n_tokens == 60
        second = c.program("it stays open, too")
        second.submit([wire.Read(0, 0)])
        second.future(0).result(30)
        third = c.program("of which there is no end")
        third.submit([wire.Read(0, 0)])
        with pytest.raises(client.BanyanError, match="2 programs at once"):
            third.future(0).result(30)


@pytest.mark.parametrize(
    ("options", "ops", "says"),
    [
        ({"max_message": 70_000}, (wire.Append(0, ("x" * 70_000,)), wire.Read(0, 0)), r"70\d{3} bytes.* 70000 at once"),
        ({}, (wire.Append(0, ("one two " * 2000,)), wire.Gen(0, 0)), r"the prompt has \d{4,} tokens, the context 512"),
        ({"max_program": 5000}, (wire.Append(0, ("x" * 6000,)), wire.Read(0, 0)), r"more than 0\.0 MiB .*max_program"),
        ({"max_client": 5000}, (wire.Append(0, ("x" * 6000,)), wire.Read(0, 0)), r"1 programs .*0\.0 MiB.*max_client"),
        ({"max_width": 7}, (wire.Fork(0, tuple(range(1, 9))), wire.Read(0, 0)), "makes 8 branches; 7 are the most"),
        ({"max_width": 7}, (wire.Gen(0, 0, wire.Sampling(n=8)),), "a gen has 8 samples; 7 are the most"),
        ({"constraint_bytes": 9}, (wire.Gen(0, 0, wire.Sampling(constraint=wire.ConstraintSpec("regex", "a" * 10))),),
         r"10 bytes.* 9"),
    ],
)  # fmt: skip
def test_each_maximum_is_refused_with_its_numbers(
    serve: Callable[..., launch.ServerProcess], options: dict[str, Any], ops: tuple[wire.Op, ...], says: str
) -> None:
    server = serve(options=options)
    with contextlib.closing(client.connect(server.socket)) as c:
        program = c.program()

        def run() -> None:
            program.submit(ops)
            program.future(0).result(30)

        with pytest.raises(client.BanyanError, match=says):
            run()


@pytest.mark.parametrize("option", ["max_programs", "max_width", "max_program"])
def test_limits_are_the_configs(serve: Callable[..., launch.ServerProcess], option: str) -> None:
    server = serve(options={option: 2})
    with contextlib.closing(client.connect(server.socket)) as c:
        programs = [c.program(str(k)) for k in range(3)]
        for program in programs:
            program.submit([wire.Append(0, ("a",)), wire.Fork(0, (1, 2, 3)), wire.Read(0, 0)])
        with pytest.raises(client.BanyanError, match=option):
            programs[2].future(0).result(30)
