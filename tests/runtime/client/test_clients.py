"""Clients that die or do not read free their resources at once and do not block other clients; limits of a client."""

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

import banyan as bn
from banyan.runtime import config, launch
from banyan.runtime.client import client
from banyan.runtime.protocol import ipc, wire
from forms import in_short, short_form
from waits import wait_until

CLIENT_SCRIPT = """
import sys, time
from pathlib import Path
from banyan.runtime.client import client
from banyan.runtime.protocol import wire
c = client.connect(Path(sys.argv[1]))
endless = wire.Sampling(max_tokens=2000, ignore_eos=True, temperature=0.0)
for k in range(60):
    ops = [wire.Append(0, (f"program {k}",)), wire.Fork(0, (1, 2))]
    c.program("p").submit([*ops, *(wire.Gen(s, s, endless) for s in range(3))])
c.ask("stats")
print("running", flush=True)
time.sleep(100)
"""


def test_killed_client_frees_its_resources_at_once(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("llama", max_position_embeddings=2048)  # so long that no program ends before its client
    options = config.make(model=str(model), threads=1, kv_memory="16MB", device="cpu", max_running=12)
    with (
        contextlib.closing(launch.start(options, timeout=100)) as server,
        contextlib.closing(client.connect(server.socket)) as other,
    ):
        process = subprocess.Popen([sys.executable, "-c", CLIENT_SCRIPT, str(server.socket)], stdout=subprocess.PIPE)
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
            in_use = [stats["server"][name] for name in ("programs", "requests")]
            in_use += [stats["engine"][name] for name in ("running", "waiting")] + [stats["cache"]["n_leased"]]
            return {} if any(in_use) else stats

        stats = wait_until(stats_if_free, "freed resources before the silence timeout", seconds=ipc.MAX_SILENT / 2)
        assert stats["server"]["clients"] == 1
        assert other.ask("check", timeout=60) == {}


def run_programs(c: client.Client, n: int) -> None:
    """Runs n programs to their values."""
    programs = [c.program(str(k)) for k in range(n)]
    for program in programs:
        program.submit([wire.Append(0, ("count",)), wire.Gen(0, 0, wire.Sampling(max_tokens=200))], last=True)
    for program in programs:
        assert program.future(0).result(100).samples[0].n_tokens > 40


@pytest.mark.timeout(300)
def test_client_that_does_not_read_blocks_nobody_and_loses_nothing(serve: Callable[..., launch.ServerProcess]) -> None:
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
            run_programs(c, 8)  # hangs if the server blocks on the slow client
            next_seq: dict[int, int] = {}
            ended: set[int] = set()
            while len(ended) < 5:
                assert slow.poll(60_000)
                message = wire.decode_server(slow.recv())
                if isinstance(message, wire.Delta | wire.Value):
                    assert message.seq == next_seq.get(message.program, 0)
                    next_seq[message.program] = message.seq + 1
                if isinstance(message, wire.Value):
                    ended.add(message.program)
    finally:
        context.destroy(linger=0)


def test_programs_beyond_the_limit_wait_in_the_client_for_credit(
    serve: Callable[..., launch.ServerProcess],
) -> None:
    server = serve(say={"count": "1 2 3"}, options={"max_programs": 3}, step_ms=1)
    with contextlib.closing(client.connect(server.socket)) as c:
        n_running, programs = set[int](), [c.program(str(k)) for k in range(40)]
        for program in programs:
            program.submit([wire.Append(0, ("count",)), wire.Gen(0, 0, wire.Sampling(max_tokens=50))], last=True)
        last = programs[-1].future(0)
        wait_until(lambda: n_running.add(c.ask("stats")["server"]["programs"]) or last.done(), "the last program")
        for program in programs:
            assert program.future(0).result(60).samples[0].text == "1 2 3"
        assert 1 <= max(n_running) <= 3
        wait_until(lambda: not c._admitted and not c._programs, "the admission slots to be free")


@pytest.mark.parametrize(
    "options",
    in_short(
        [{}, {"generator_style": True}], [{}, {"generator_style": True}, {"ordered": False}, {"checkpoint": "b.jsonl"}]
    ),
)
def test_only_a_batch_that_keeps_its_states_is_limited_in_its_items(
    options: dict[str, Any], serve: Callable[..., launch.ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = serve(say={"count": "1 2 3"}, options={"max_programs": 12}, step_ms=1)

    @bn.function
    def program(s: bn.State, k: int) -> None:
        s += f"{k} count" + bn.gen("a", max_tokens=50)

    with contextlib.closing(bn.RuntimeEndpoint(server.socket)) as backend:
        errors = [
            state.error() if isinstance(state, bn.State) else None
            for state in program.run_batch(
                [(k,) for k in range(20)], backend=backend, concurrency=2, on_error="return", **options
            )
        ]
    assert len(errors) == 20
    failed = [str(error) for error in errors if error is not None]
    advice = "keeps none with a checkpoint, and with generator_style those that it has not yielded yet"
    assert all(advice in error for error in failed)
    assert len(failed) == (0 if options else 20 - 12)


def test_program_waiting_for_credit_can_be_cancelled(
    serve: Callable[..., launch.ServerProcess],
) -> None:
    server = serve(options={"max_programs": 2}, step_ms=5)
    slow = (wire.Append(0, ("a",)), wire.Gen(0, 0, wire.Sampling(max_tokens=60)))
    with contextlib.closing(client.connect(server.socket)) as c:
        first_open = c.program("first open")
        first_open.submit([wire.Read(0, 0)])
        first_open.future(0).result(30)
        running, waiting, queued = c.program("running"), c.program("waiting"), c.program("queued")
        for program in (running, waiting, queued):
            program.submit(slow, last=True)
        waiting.cancel()
        with pytest.raises(client.BanyanError, match="cancelled"):
            waiting.future(0).result(30)
        assert running.future(0).result(60).samples[0].n_tokens == 60
        assert queued.future(0).result(60).samples[0].n_tokens == 60
        second_open = c.program("second open")
        second_open.submit([wire.Read(0, 0)])
        second_open.future(0).result(30)
        third_open = c.program("third open")
        third_open.submit([wire.Read(0, 0)])
        with pytest.raises(client.BanyanError, match="2 programs at once"):
            third_open.future(0).result(30)


@pytest.mark.parametrize(
    ("options", "ops", "error"),
    short_form(
        [
            ({"max_message": 70_000}, (wire.Select(0, 0, ("x" * 70_000,)),), r"70\d{3} bytes.* 65904 at once"),
            (
                {},
                (wire.Append(0, ("one two " * 800,)), wire.Gen(0, 0)),
                r"has \d{4,} tokens; this model's maximum context length is 512",
            ),
            (
                {"max_program": 5000},
                (wire.Append(0, ("x" * 6000,)), wire.Read(0, 0)),
                r"more than 0\.0 MiB .*max_program",
            ),
            (
                {"max_client": 5000},
                (wire.Append(0, ("x" * 6000,)), wire.Read(0, 0)),
                r"1 programs .*0\.0 MiB.*max_client",
            ),
            ({"max_width": 7}, (wire.Fork(0, tuple(range(1, 9))), wire.Read(0, 0)), "makes 8 branches; at most 7 are"),
            ({"max_width": 7}, (wire.Gen(0, 0, wire.Sampling(n=8)),), "a gen has 8 samples; at most 7 are"),
            (
                {"constraint_bytes": 9},
                (wire.Gen(0, 0, wire.Sampling(constraint=wire.ConstraintSpec("regex", "a" * 10))),),
                r"10 bytes.* 9",
            ),
        ],
        lambda options, ops, error: options in ({"max_message": 70_000}, {}, {"max_program": 5000}),
    ),
)
def test_exceeding_a_limit_raises_with_its_numbers(
    serve: Callable[..., launch.ServerProcess], options: dict[str, Any], ops: tuple[wire.Op, ...], error: str
) -> None:
    server = serve(options=options)
    with contextlib.closing(client.connect(server.socket)) as c:
        program = c.program()

        def run() -> None:
            program.submit(ops)
            program.future(0).result(30)

        with pytest.raises(client.BanyanError, match=error):
            run()
