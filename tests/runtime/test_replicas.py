"""Several engines of one server that die, do not start, are added and drained: real processes, a fake model."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import banyan as bn
from banyan.cli import cluster
from banyan.runtime import launch
from banyan.runtime.client import client
from banyan.runtime.errors import BanyanError, Quarantined
from banyan.runtime.protocol import wire
from forms import in_short
from waits import wait_until

Join = Callable[..., client.Client]
OUTPUT = " ".join(map(str, range(60)))
TWO = {"replicas": 2, "engine_timeout": 2.0}
FULL = """
import json
from pathlib import Path
from banyan.runtime import launch
start = launch.ChildProcess.__init__
def start_or_fail(self, command, **options):
    if "--flight-fd" in command:
        full = Path(json.loads(command[command.index("--config") + 1])["model"], "full")
        if full.exists():
            full.unlink()
            raise BlockingIOError("too many processes")
    start(self, command, **options)
launch.ChildProcess.__init__ = start_or_fail
"""
"""With a file `full` in the model's directory, the next start of an engine fails."""


@pytest.fixture(scope="module")
def boot(write_boot: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
    scaling = "from banyan.runtime.fleet.scaling import LoadScaler; LoadScaler.started = lambda self, _: None; "
    scaling += "from banyan.runtime.fleet import scaling; scaling.LEAST_START = 0.2"
    return write_boot(f"ipc.HEARTBEAT, ipc.MAX_SILENT = 0.1, 300; {scaling}\n{FULL}")


def submit(c: client.Client, text: str) -> client.Program:
    program = c.program(text)
    gen = wire.Gen(0, 0, wire.Sampling(max_tokens=300, temperature=0.0))
    program.submit([wire.Append(0, (text,)), gen], last=True)
    return program


def text(program: client.Program, ref: int = 0) -> str:
    value: wire.Value = program.future(ref).result(60)
    return value.samples[0].text


def engines(c: client.Client) -> dict[str, Any]:
    replicas: dict[str, Any] = c.ask("info")["replicas"]
    return replicas


def test_request_that_kills_two_engines_takes_no_other_with_it(join: Join) -> None:
    c = join(say={"count": OUTPUT}, step_ms=2, die_on="poison", options=TWO)
    programs = [submit(c, f"{k} count") for k in range(6)]
    poison = submit(c, "poison")
    with pytest.raises(Quarantined, match="2 engines died of this request"):
        text(poison)
    assert [text(program) for program in programs] == [OUTPUT] * 6
    starts = sorted(row["starts"] for row in c.ask("stats")["replicas"].values())
    assert starts == [1, 3], "both died on one replica"


def test_engines_are_killed_drained_and_added_without_loss(join: Join) -> None:
    c = join(say={"count": OUTPUT}, step_ms=2, options=TWO)
    programs = [submit(c, f"{k} count") for k in range(8)]
    pid = engines(c)["0"]["pid"]
    os.kill(pid, signal.SIGKILL)
    c.ask("add")
    programs += [submit(c, f"{k} count") for k in range(8)]
    c.ask("drain", name="1")
    programs += [submit(c, f"{k} count") for k in range(8)]
    assert [text(program) for program in programs] == [OUTPUT] * 24
    wait_until(lambda: {one["state"] for one in engines(c).values()} == {"ready"}, "engine 0")
    assert list(engines(c)) == ["0", "2"]
    assert c.ask("check") == {}
    with pytest.raises(BanyanError, match="unknown engine '1'; choose one of 0, 2"):
        c.ask("drain", name="1")
    c.ask("drain", name="0")
    with pytest.raises(BanyanError, match="engine 2 is the only one that is ready"):
        c.ask("drain", name="2")
    c.ask("add")
    with pytest.raises(BanyanError, match="has its own events"):
        c.ask("events")
    assert c.ask("events", name="3")["events"] == []


@pytest.mark.long
def test_server_goes_on_without_an_engine_that_does_not_start(join: Join, tmp_path: Path) -> None:
    c = join(say={"count": OUTPUT}, step_ms=2, options=TWO)
    (tmp_path / "model/fake.json").write_text('{"fail": ["out_of_memory", "no room"]}')
    with pytest.raises(BanyanError, match="no room"):
        c.ask("add")
    programs = [submit(c, f"{k} count") for k in range(4)]
    os.kill(engines(c)["1"]["pid"], signal.SIGKILL)
    assert [text(program) for program in programs] == [OUTPUT] * 4
    wait_until(lambda: list(engines(c)) == ["0"], "the end of engine 1")
    assert text(submit(c, "count")) == OUTPUT


def test_engine_that_cannot_be_started_now_is_started_later(join: Join, tmp_path: Path) -> None:
    """The OSError ended the server."""
    c = join(say={"count": OUTPUT}, step_ms=2, options=TWO | {"replicas": 1})
    c.ask("load_adapter", name="poems", path="/poems")
    programs = [submit(c, f"{k} count") for k in range(4)]
    (full := tmp_path / "model/full").touch()
    os.kill(engines(c)["0"]["pid"], signal.SIGKILL)
    assert [text(program) for program in programs] == [OUTPUT] * 4
    assert not full.exists()
    assert c.ask("info")["adapters"] == ["poems"]
    full.touch()
    with pytest.raises(BanyanError, match="no engine can be started now: too many processes"):
        c.ask("add")
    c.ask("add")
    assert {one["state"] for one in engines(c).values()} == {"ready"}


@pytest.mark.long
def test_drained_engine_stays_if_the_other_one_does_not_start_again(join: Join, tmp_path: Path) -> None:
    """Both ended, and a server without an engine went on."""
    c = join(say={"count": OUTPUT}, pause=9, step_ms=2, options=TWO)
    programs = [submit(c, f"{k} count") for k in range(4)]
    wait_until(lambda: c.ask("stats")["replicas"]["0"]["engine"].get("running"), "requests on engine 0")
    c.ask("stats")  # engine 0 answers after a step, so its requests have output
    with ThreadPoolExecutor() as threads:
        drained = threads.submit(c.ask, "drain", 60, name="0")
        wait_until(lambda: engines(c)["0"]["state"] == "draining", "the drain")
        (tmp_path / "model/fake.json").write_text('{"fail": ["out_of_memory", "no room"]}')
        os.kill(engines(c)["1"]["pid"], signal.SIGKILL)
        with pytest.raises(BanyanError, match="engine 1 is gone, so engine 0 stays"):
            drained.result(60)
    assert {name: one["state"] for name, one in engines(c).items()} == {"0": "ready"}
    (tmp_path / "model/go").touch()
    assert [text(program) for program in (*programs, submit(c, "count"))] == [OUTPUT] * 5


def test_engines_are_added_one_at_a_time(join: Join) -> None:
    c = join(options=TWO)
    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(c.ask, "add") for _ in range(2)]
        errors = [str(e) for answer in answers if (e := answer.exception(60)) is not None]
    assert errors == ["engine 2 is being added; add another when it is ready"]
    assert list(engines(c)) == ["0", "1", "2"]
    c.ask("add")
    assert list(engines(c)) == ["0", "1", "2", "3"]


def test_adapter_is_loaded_by_all_engines_and_by_those_that_come_later(join: Join) -> None:
    c = join(say={"count": OUTPUT}, options=TWO)
    c.ask("load_adapter", name="poems", path="/poems")
    pid = engines(c)["1"]["pid"]
    os.kill(pid, signal.SIGKILL)
    c.ask("add")
    wait_until(lambda: len(engines(c)) == 3 and engines(c)["1"]["pid"] != pid, "the engines")
    assert c.ask("info")["adapters"] == ["poems"]
    c.ask("unload_adapter", name="poems")
    assert c.ask("info")["adapters"] == []


def test_server_serves_others_while_a_drained_engine_ends(join: Join) -> None:
    """The loop waited for the end of the process, up to 5 s."""
    c = join(say={"count": OUTPUT}, end_seconds=3, options=TWO)
    pid = engines(c)["0"]["pid"]
    with ThreadPoolExecutor() as threads:
        drained = threads.submit(c.ask, "drain", 60, name="0")
        wait_until(lambda: list(engines(c)) == ["1"], "the drain")
        assert text(submit(c, "count")) == OUTPUT
        os.kill(pid, 0)  # it has not ended
        assert not drained.done()
        drained.result(60)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_engines_end_together_with_their_server(serve: Callable[..., launch.ServerProcess]) -> None:
    """One after the other, they took longer than the server's parent waits."""
    server = serve(end_seconds=3, options={"replicas": 2})
    server.close()
    assert server.process.returncode == 0


def test_command_shows_drains_and_adds_engines(join: Join, capsys: pytest.CaptureFixture[str]) -> None:
    class Connected:
        client = join(options=TWO)

    cluster.add(Connected)
    cluster.drain(Connected, "0")
    assert capsys.readouterr().out == "engine 2 is ready\nengine 0 has ended; its programs continue elsewhere\n"
    cluster.status(Connected, 0.1)
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["replica", "1", "2"]


@bn.function
def chat(s: Any, assistant: int, topic: int) -> None:
    s += f"You are assistant number {assistant}. " + "Answer briefly and kindly, and cite what you know. " * 12
    for turn in range(3):
        s += f"\nUser: tell me about topic {topic}, part {turn}.\nAssistant: "
        s += bn.gen(f"turn {turn}", max_tokens=16, temperature=0.0, ignore_eos=True)


@bn.function
def questions(s: Any, document: int) -> None:
    s += f"Document {document}. " + "It says that the banyan is a fig that begins its life as an epiphyte. " * 10
    branches = s.fork(4)
    for number, branch in enumerate(branches):
        branch += f"\nQuestion {number}: "
        branch += bn.gen("answer", max_tokens=12, temperature=0.0, ignore_eos=True)
    branches.join("concate_and_append")
    s += bn.gen("end", max_tokens=8, temperature=0.0, ignore_eos=True)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_hit_rate_is_nearly_that_of_one_engine_with_the_same_memory() -> None:
    rates = {}
    for n in (1, 2, 4):
        rng = random.Random(1)
        with bn.Runtime(replicas=n, threads=n, device="cpu", dtype="float32", kv_memory="16384 tokens") as runtime:
            for batch in range(8):
                chats = [{"assistant": rng.randrange(6), "topic": 12 * batch + k} for k in range(12)]
                chat.run_batch(chats, backend=runtime)
                questions.run_batch([{"document": rng.randrange(8)} for _ in range(6)], backend=runtime)
            cache = runtime.ask("stats")["cache"]
        assert cache["n_leased"] == 0
        rates[n] = cache["n_hit_tokens"] / cache["n_query_tokens"]
    assert min(rates[2], rates[4]) > 0.95 * rates[1], rates


class Resting:
    """A program that has made a gen behind `prompt` and stays open. Its next gen, behind the same text, is value 1."""

    def __init__(self, c: client.Client, prompt: str) -> None:
        self.program, self._prompt = c.program("resting"), prompt
        self._gen = wire.Gen(0, 0, wire.Sampling(max_tokens=9, temperature=0.0))
        self.program.submit([wire.Append(0, (prompt,)), self._gen])

    def go_on(self) -> None:
        second = msgspec.structs.replace(self._gen, ref=1)
        self.program.submit([wire.Append(0, (f" {self._prompt}",)), second], last=True)


@pytest.mark.parametrize("n", in_short([2], [1, 2]))
def test_weights_change_while_programs_end_on_those_that_they_began_with(
    join: Join, other_model: Callable[..., Path], n: int
) -> None:
    options = TWO | {"replicas": n}
    c = join(say={"count": OUTPUT, "on": "old"}, weights="old", step_ms=5, options=options)
    new = other_model("new", say={"count": "new", "on": "new"}, weights="new", step_ms=5)
    if n > 1:
        (new / "full").touch()  # the first of them is started later
    began = [submit(c, f"{k} count") for k in range(6)]
    resting = Resting(c, "on")
    assert text(resting.program) == "old"
    with ThreadPoolExecutor() as threads:
        rolled = threads.submit(c.ask, "roll", 60, path=str(new))
        wait_until(lambda: text(submit(c, "count")) == "new", "an engine with the new weights")
        with pytest.raises(BanyanError, match="the weights are being changed"):
            c.ask("add")
        assert not rolled.done(), "a program with the old weights has not ended"
        assert [text(program) for program in began] == [OUTPUT] * 6
        resting.go_on()
        assert text(resting.program, 1) == "old"
        rolled.result(60)
    assert [engine["state"] for engine in engines(c).values()] == ["ready"] * n
    assert [text(submit(c, "count")) for _ in range(4)] == ["new"] * 4
    pid = next(iter(engines(c).values()))["pid"]
    os.kill(pid, signal.SIGKILL)
    c.ask("add")
    assert [text(submit(c, "count")) for _ in range(6)] == ["new"] * 6, "engines that come later have them too"
    assert c.ask("check") == {}


def test_only_engine_stays_if_the_one_with_the_new_weights_is_lost(
    join: Join, other_model: Callable[..., Path]
) -> None:
    c = join(say={"count": "old"}, weights="old", options=TWO | {"replicas": 1})
    new = other_model("new", say={"count": "new"}, weights="new")
    resting = Resting(c, "count")
    assert text(resting.program) == "old"
    with ThreadPoolExecutor() as threads:
        rolled = threads.submit(c.ask, "roll", 60, path=str(new))
        wait_until(lambda: text(submit(c, "count")) == "new", "an engine with the new weights")
        (new / "fake.json").write_text('{"fail": ["out_of_memory", "no room"]}')
        (lost,) = [one["pid"] for name, one in engines(c).items() if name != "0"]
        os.kill(lost, signal.SIGKILL)
        with pytest.raises(BanyanError, match="the engine that had the new weights is gone"):
            rolled.result(60)
    assert [engine["state"] for engine in engines(c).values()] == ["ready"]
    resting.go_on()
    assert text(resting.program, 1) == "old"
    assert text(submit(c, "count")) == "old"
    c.ask("add")
    assert [text(submit(c, "count")) for _ in range(4)] == ["old"] * 4


def test_weights_that_cannot_be_loaded_leave_the_engines_as_they_were(
    join: Join, other_model: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    c = join(say={"count": OUTPUT}, weights="old", options=TWO | {"log": "info"})
    with pytest.raises(BanyanError, match="no room"):
        c.ask("roll", 60, path=str(other_model("large", fail=["out_of_memory", "no room"], is_late=True)))
    wait_until(lambda: {one["state"] for one in engines(c).values()} == {"ready"}, "the engine with the old weights")
    capfd.readouterr()
    pids = {one["pid"] for one in engines(c).values()}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not pids & {one["pid"] for one in engines(c).values()}, "their successors")
    assert "the engine process died (engine 0: SIGKILL); starting another" in capfd.readouterr().err
    wait_until(lambda: {one["state"] for one in engines(c).values()} == {"ready"}, "the new engines")
    with pytest.raises(BanyanError, match="a different context"):
        c.ask("roll", 60, path=str(other_model("short", context=64, weights="new")))
    (stranger := other_model("stranger") / "tokenizer.json").write_text(stranger.read_text() + " ")
    with pytest.raises(BanyanError, match="a different tokenizer"):
        c.ask("roll", 60, path=str(stranger.parent))
    wait_until(lambda: {one["state"] for one in engines(c).values()} == {"ready"}, "the engines")
    assert text(submit(c, "count")) == OUTPUT
    assert len(engines(c)) == 2


def test_weights_that_change_again_during_their_change_are_refused(
    join: Join, other_model: Callable[..., Path]
) -> None:
    c = join(say={"count": "old"}, weights="old", options=TWO)
    new = other_model("new", say={"count": "new"}, weights="new")
    resting = Resting(c, "count")
    assert text(resting.program) == "old"
    with ThreadPoolExecutor() as threads:
        rolled = threads.submit(c.ask, "roll", 60, path=str(new))
        wait_until(lambda: text(submit(c, "count")) == "new", "an engine with the new weights")
        (new / "fake.json").write_text('{"say": {"count": "newer"}, "weights": "newer"}')
        resting.go_on()
        with pytest.raises(BanyanError, match="has weights that differ from the running engines"):
            rolled.result(60)
    assert text(resting.program, 1) == "old"
    wait_until(lambda: {one["state"] for one in engines(c).values()} == {"ready"}, "the engine with the old weights")
    assert [text(submit(c, "count")) for _ in range(4)] == ["new"] * 4


def test_engine_for_prompts_takes_programs_if_its_kv_cannot_be_moved(join: Join) -> None:
    """It had nothing to do: those of fake engines cannot."""
    c = join(say={"count": OUTPUT}, step_ms=5, options=TWO | {"prefill_replicas": 1})
    programs = [submit(c, f"{k} count") for k in range(8)]

    def running() -> list[int]:
        return [one["engine"]["running"] for one in c.ask("stats")["replicas"].values()]

    wait_until(lambda: all(running()), "work on both engines", seen=running)
    assert [text(program) for program in programs] == [OUTPUT] * 8


@pytest.mark.long
def test_engines_are_added_and_removed_by_load(join: Join) -> None:
    c = join(say={"count": OUTPUT}, step_ms=10, options={"max_replicas": 2, "slo": "ttft=1ms"})
    programs = [submit(c, f"{k} count") for k in range(100)]
    wait_until(lambda: len(engines(c)) == 2, "a second engine", seen=lambda: c.ask("stats")["server"])
    assert [text(program) for program in programs] == [OUTPUT] * 100
    wait_until(lambda: len(engines(c)) == 1, "the end of an engine of no use")
    assert text(submit(c, "count")) == OUTPUT
