"""One engine for several servers: each server gets its own reports, and what it leaves behind ends."""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import msgspec
import pytest

from banyan.runtime.protocol import decoders, wire
from banyan.runtime.server.engine_link.recovery import Death
from banyan.runtime.server.engine_link.shared_engine import SHIFT, NotShared, SharedEngine


class Shared:
    """A shared engine, a fake engine behind it, and what each server has received."""

    def __init__(self, fake: ModuleType, n: int) -> None:
        self.shared, self.servers = SharedEngine(), set(range(n))
        self.engine = fake.FakeEngine(lambda ids: [*ids[-3:], ids[0]])
        self.got: defaultdict[int, list[Any]] = defaultdict(list)
        self.commands: list[wire.EngineCommand] = []
        self.report(self.engine.ready)

    def send(self, server: int, command: wire.EngineCommand) -> None:
        self.pass_on(self.shared.take(server, wire.encode(command)))

    def pass_on(self, commands: Iterable[bytes]) -> None:
        for data in commands:
            command = decoders.decode_command(data)
            self.commands.append(command)
            self.engine.take(command)

    def report(self, *reports: wire.EngineReport) -> None:
        for report in reports:
            self.deliver(*self.shared.report(wire.encode(report), self.servers))

    def deliver(self, sent: Iterable[tuple[int, bytes]], commands: Iterable[bytes]) -> None:
        for server, data in sent:
            self.got[server].append(decoders.decode_report(data))
        self.pass_on(commands)

    def step(self) -> None:
        self.report(*self.engine.step())

    def leave(self, server: int) -> None:
        self.servers.remove(server)
        self.deliver(*self.shared.leave(server, self.servers))


@pytest.fixture
def three(fake_engine: ModuleType) -> Shared:
    return Shared(fake_engine, 3)


def run(rid: int, *ids: int, **more: Any) -> wire.Run:
    return wire.Run(rid, array("i", ids or (rid, 5, 6)).tobytes(), wire.Sampling(max_tokens=9), **more)


def outputs(reports: Iterable[Any]) -> dict[int, tuple[list[int], list[wire.TopLogprobs], str]]:
    """rid -> (tokens, logprobs, finish reason). Each request finishes once."""
    tokens: defaultdict[int, list[int]] = defaultdict(list)
    logprobs: defaultdict[int, list[wire.TopLogprobs]] = defaultdict(list)
    reasons: dict[int, str] = {}
    for step in (report for report in reports if isinstance(report, wire.Step)):
        at, ids = 0, memoryview(step.ids).cast("i").tolist()
        for rid, n in zip(memoryview(step.rids).cast("q"), memoryview(step.counts).cast("i"), strict=True):
            assert rid not in reasons
            tokens[rid] += ids[at : (at := at + n)]
        assert at == len(ids)
        for rid, entries in step.logprobs.items():
            logprobs[rid] += entries
        for finish in step.finished:
            assert finish.rid not in reasons
            reasons[finish.rid] = finish.reason
    return {rid: (tokens[rid], logprobs[rid], reason) for rid, reason in reasons.items()}


@pytest.mark.parametrize("seed", range(20))
def test_each_server_gets_what_it_would_get_from_an_engine_of_its_own(fake_engine: ModuleType, seed: int) -> None:
    """All servers use the same numbers for their requests."""
    rng = random.Random(seed)
    shared, alone = Shared(fake_engine, 3), [Shared(fake_engine, 1) for _ in range(3)]
    for rid in range(12):
        for server in shared.servers:
            ids = [rng.randrange(1000) for _ in range(rng.randrange(1, 9))]
            sampling = wire.Sampling(max_tokens=rng.randrange(1, 7), logprobs=rng.random() < 0.3)
            order = (rid // 3, rng.randrange(3))
            command = wire.Run(rid, array("i", ids).tobytes(), sampling, client=rid % 2, order=order)
            if rng.random() < 0.1:
                command = msgspec.structs.replace(command, ids=bytes(4 * 600))  # too long
            for one in (shared, alone[server]):
                one.send(server if one is shared else 0, command)
        if rng.random() < 0.6:
            for one in (shared, *alone):
                one.step()
    for one in (shared, *alone):
        while one.engine.running:
            one.step()
        one.step()
    for server in shared.servers:
        mine, reference = shared.got[server], alone[server].got[0]
        assert outputs(mine) == outputs(reference)
        failed = [[report.program for report in of if isinstance(report, wire.Failed)] for of in (mine, reference)]
        assert failed[0] == failed[1]
    assert not shared.shared._living


@pytest.mark.parametrize("seed", range(20))
def test_servers_that_come_and_go_get_only_their_own_and_leave_nothing(fake_engine: ModuleType, seed: int) -> None:
    rng, three = random.Random(seed), Shared(fake_engine, 3)
    sent: defaultdict[int, set[int]] = defaultdict(set)  # server -> its requests
    held, programs, n_come = set[int](), set[int](), 3
    for rid in range(150):
        if len(three.servers) < 3:
            three.servers.add(n_come)
            n_come += 1
        server = rng.choice(sorted(three.servers))
        match rng.choice(["run"] * 8 + ["trial", "abort", "hold", "release", "end", "step", "step", "leave", "die"]):
            case "run" | "trial" as kind:
                rid = len(sent[server])  # a server that has started anew counts from 0
                three.send(server, run(rid, 1, rid, client=1, order=(rid % 9, 0), is_trial=kind == "trial"))
                sent[server].add(rid)
            case "abort":
                three.send(server, wire.Abort(rng.choice([*sent[server], 0])))
            case "hold":
                three.send(server, wire.Hold(rid % 5, b""))
            case "release":
                three.send(server, wire.Release(rid % 5))
            case "end":
                three.send(server, wire.ProgramEnded(1, rid % 9))
            case "step":
                three.step()
            case "leave":
                three.leave(server)
            case "die":
                three.engine = fake_engine.FakeEngine(three.engine.speak)
                three.shared.start()
                three.report(three.engine.ready)
                three.commands.clear()
        for one, reports in three.got.items():
            assert outputs(reports).keys() <= sent[one], "a report of a request of another server"
    for server in sorted(three.servers):
        three.leave(server)
    while three.engine.running or three.engine.finished:
        three.step()
    for command in three.commands:
        match command:
            case wire.Hold(hold=hold):
                held.add(hold)
            case wire.Release(hold=hold):
                held.discard(hold)
            case wire.Run(order=order):
                programs.add(order[0])
            case wire.ProgramEnded(program=program):
                programs.discard(program)
    assert (held, programs) == (set(), set())
    shared = three.shared
    left = (shared._living, shared._waiting, shared._programs, shared._holds, shared._pulls, shared._asked)
    assert not any(left)
    assert shared._on_trial == -1


def test_answers_go_to_the_server_that_asked(three: Shared) -> None:
    for server in three.servers:
        three.send(server, wire.Ask(0, "tree"))
        three.send(server, wire.Ask(1 + server, "check"))
        three.send(server, wire.Ping())
    three.report(wire.Exported(2 << SHIFT | 7, 16), wire.Pulled(1 << SHIFT | 7, 16))
    three.step()
    three.report(wire.Notice("compiling"))
    for server in three.servers:
        answers = [report.id for report in three.got[server] if isinstance(report, wire.Answer)]
        assert answers == [0, 1 + server]
        assert three.got[server].count(wire.EnginePong()) == 1
        assert three.got[server].count(wire.Notice("compiling")) == 1
    assert wire.Exported(7, 16) in three.got[2]
    assert wire.Pulled(7, 16) in three.got[1]
    assert len([one for of in three.got.values() for one in of if isinstance(one, wire.Exported | wire.Pulled)]) == 2


def test_commands_have_numbers_of_their_own_for_each_server(three: Shared) -> None:
    for server in three.servers:
        three.send(server, wire.Hold(3, b""))
        three.send(server, wire.Pull(3, b"", 0, wire.KVFormat(1, b"", "", "", "", 16, 1, 1, 1, 1, False), ()))
        three.send(server, wire.Export(3, run(3, order=(3,))))
        three.send(server, run(3, order=(3,), client=3))
    numbers = [
        (type(command), getattr(command, name)) for command in three.commands for name in ("hold", "pull", "rid")
        if hasattr(command, name)
    ]  # fmt: skip
    assert len(set(numbers)) == len(numbers) == 12
    runs = [command for command in three.commands if isinstance(command, wire.Run)]
    assert len({one.client for one in runs}) == 3


def test_programs_are_numbered_as_they_come(three: Shared) -> None:
    """The numbers of a server that has run for long are large; its programs must not wait for all those of another."""
    three.send(0, run(1, order=(900, 1)))
    three.send(1, run(1, order=(2, 0)))
    three.send(0, run(2, order=(901,)))
    three.send(0, run(3, order=(900, 2)))
    assert [one.order for one in three.engine.runs] == [(0, 1), (1, 0), (2,), (0, 2)]
    three.send(1, wire.ProgramEnded(0, 2))
    three.send(0, wire.ProgramEnded(0, 2))  # not one of its programs
    assert [one.program for one in three.commands if isinstance(one, wire.ProgramEnded)] == [1]


def test_what_a_server_leaves_behind_ends(three: Shared) -> None:
    for server in three.servers:
        three.send(server, run(1, order=(4,), client=2))
        three.send(server, wire.Hold(5, b""))
        three.send(server, wire.Hold(6, b""))
        three.send(server, wire.Release(6))
        three.send(server, wire.Hold(7, b"", seconds=9.0))  # it expires by itself
        three.send(server, wire.Export(1, run(2, order=(5,))))  # no request of that program follows
        three.send(server, wire.Export(2, run(2)))
        three.report(wire.Exported(server << SHIFT | 2, 16))  # the copy stays until EndPull
        three.send(server, wire.Pull(3, b"", 0, wire.KVFormat(1, b"", "", "", "", 16, 1, 1, 1, 1, False), ()))
        three.send(server, wire.Export(4, run(2)))
        three.send(server, wire.EndPull(4))
        three.send(server, wire.Listen())
    three.commands.clear()
    three.got.clear()
    three.leave(1)
    rid, client, hold = three.engine.runs[1].rid, three.engine.runs[1].client, 1 << SHIFT | 5
    pulls = (wire.EndPull(1 << SHIFT | pull) for pull in (1, 2, 3))
    assert three.commands == [wire.Abort(rid), wire.Release(hold), *pulls, wire.ProgramEnded(client, 1)]
    while three.engine.running:
        three.step()
    three.report(wire.TreeEvents(()))
    assert three.got[1] == []
    assert {rid for server in (0, 2) for rid in outputs(three.got[server])} == {1}
    assert three.shared._living == {}


def test_trials_are_run_one_at_a_time_and_only_they_are_blamed(three: Shared) -> None:
    three.send(0, run(1, is_trial=True))
    three.send(1, run(1, is_trial=True))
    three.send(2, run(1, is_trial=True))
    three.send(2, run(2))
    assert [one.rid >> SHIFT for one in three.engine.runs] == [0, 2]
    death = Death("SIGSEGV", rids=frozenset(one.rid for one in three.engine.runs))
    assert three.shared.death_of(death, 0).rids == {1}
    for server in (1, 2):
        assert three.shared.death_of(death, server) == Death("SIGSEGV", is_blameless=True)
    three.send(2, wire.Abort(1))  # it waits, and never runs
    while three.engine.running:
        three.step()
    assert [one.rid >> SHIFT for one in three.engine.runs] == [0, 2, 1]
    death = Death("SIGSEGV", rids=frozenset({2 << SHIFT | 2}))
    assert three.shared.death_of(death, 2).rids == {2}, "a request that has ended is not to blame"
    unknown = Death("SIGSEGV")
    assert three.shared.death_of(unknown, 2) == unknown


def test_trial_of_a_server_that_left_lets_the_next_one_run(three: Shared) -> None:
    for server in three.servers:
        three.send(server, run(1, is_trial=True))
    three.leave(1)
    three.leave(0)
    three.step()
    three.step()
    assert [one.rid >> SHIFT for one in three.engine.runs] == [0, 2]


def test_adapter_is_unloaded_when_no_server_uses_it(three: Shared) -> None:
    digest = b"a".hex()
    for server in (0, 1):
        three.send(server, wire.Ask(0, "load_adapter", name="a", path="dir"))
    three.step()
    unloaded = []
    for server in (0, 1):
        three.send(server, wire.Ask(1, "unload_adapter", name=digest))
        unloaded.append(three.commands[-1].name)  # type: ignore[union-attr]
    assert unloaded == ["", digest]


def test_adapter_that_another_server_loads_meanwhile_is_not_unloaded(three: Shared) -> None:
    digest = b"a".hex()
    three.send(0, wire.Ask(0, "load_adapter", name="a", path="dir"))
    three.step()
    three.send(1, wire.Ask(0, "load_adapter", name="a", path="dir"))
    three.send(0, wire.Ask(1, "unload_adapter", name=digest))
    three.step()
    three.send(2, wire.Ask(0, "load_adapter", name="b", path="dir"))
    three.send(1, wire.Ask(1, "unload_adapter", name=digest))
    unloads = [command.name for command in three.commands if getattr(command, "what", "") == "unload_adapter"]
    assert unloads == ["", ""]
    n = sum(map(len, three.got.values()))
    three.step()
    unloads = [command.name for command in three.commands if getattr(command, "what", "") == "unload_adapter"]
    assert unloads == ["", "", digest]
    three.step()
    assert sum(map(len, three.got.values())) == n + 2, "the answers of servers 1 and 2"


def test_server_that_left_while_its_adapter_loaded_does_not_keep_it(three: Shared) -> None:
    digest = b"a".hex()
    three.send(0, wire.Ask(0, "load_adapter", name="a", path="dir"))
    three.leave(0)
    three.send(1, wire.Ask(0, "load_adapter", name="a", path="dir"))
    three.step()
    three.send(1, wire.Ask(1, "unload_adapter", name=digest))
    assert three.commands[-1].name == digest  # type: ignore[union-attr]


def test_server_gets_the_adapters_of_its_configuration(three: Shared) -> None:
    three.report(wire.Ready(64, 16, 512, adapters={"a": b"1", "b": b"2"}))
    ready = decoders.decode_report(three.shared.ready_for(0, {"a": "dir"}))
    assert ready.adapters == {"a": b"1"}
    with pytest.raises(NotShared, match="without the adapter 'c'"):
        three.shared.ready_for(1, {"a": "dir", "c": "dir"})
    three.send(1, wire.Ask(1, "unload_adapter", name=b"1".hex()))
    assert three.commands[-1].name == "", "server 0 uses it"  # type: ignore[union-attr]
    three.send(0, wire.Ask(1, "unload_adapter", name=b"1".hex()))
    with pytest.raises(NotShared):
        three.shared.ready_for(0, {"a": "dir"})


def test_servers_have_the_same_vocabulary(three: Shared) -> None:
    vocabulary = wire.SetVocabulary(b"ab", b"", b"", b"", b"", b"")
    three.send(0, vocabulary)
    three.send(1, vocabulary)
    assert three.commands == [vocabulary]
    with pytest.raises(NotShared, match="tokenizer"):
        three.send(2, msgspec.structs.replace(vocabulary, text=b"abc"))
    three.shared.start()
    three.send(1, vocabulary)
    assert three.commands == [vocabulary] * 2, "the next engine needs it, too"


def test_images_are_asked_of_the_server_whose_request_has_them(three: Shared) -> None:
    for server in (0, 2):
        three.send(server, run(1, images=(wire.ImageRows(0, 1, b"%d" % server),)))
    three.report(wire.WantImages((b"0", b"2")))
    assert three.got == {0: [wire.WantImages((b"0",))], 2: [wire.WantImages((b"2",))]}


def with_image(rid: int, digest: bytes = b"X") -> wire.Run:
    return run(rid, images=(wire.ImageRows(0, 1, digest),))


def test_image_of_a_server_that_left_is_asked_of_another(three: Shared) -> None:
    """The engine asks for an image only once, so the request of another server would wait for it forever."""
    three.send(0, with_image(1))
    three.report(wire.WantImages((b"X", b"Y")))
    three.send(1, with_image(1))
    three.leave(0)
    assert three.got[1] == [wire.WantImages((b"X",))]
    assert three.got[2] == []
    three.send(1, wire.ImagePixels(b"X"))
    three.leave(1)
    pixels = [command for command in three.commands if isinstance(command, wire.ImagePixels)]
    assert [(one.image, bool(one.error)) for one in pixels] == [(b"Y", True), (b"X", False)]


def test_image_that_no_server_has_any_more_fails(three: Shared) -> None:
    three.send(0, with_image(1))
    three.send(2, with_image(1))
    three.report(wire.WantImages((b"X",)))
    three.leave(0)
    assert not any(isinstance(command, wire.ImagePixels) for command in three.commands), "server 2 was asked, too"
    assert three.got[2] == [wire.WantImages((b"X",))]
    three.leave(2)
    last = three.commands[-1]
    assert isinstance(last, wire.ImagePixels)
    assert (last.image, bool(last.error)) == (b"X", True)


def test_image_fails_when_all_servers_that_were_asked_have_failed(three: Shared) -> None:
    for server in (0, 2):
        three.send(server, with_image(1))
    three.report(wire.WantImages((b"X",)))
    three.commands.clear()
    three.send(0, wire.ImagePixels(b"X", error="not on the server any more"))
    assert three.commands == []
    three.send(2, wire.ImagePixels(b"X", error="no image"))
    assert three.commands == [wire.ImagePixels(b"X", error="no image")]


def test_image_of_a_prefix_to_export_is_asked_of_its_server(three: Shared) -> None:
    three.send(1, wire.Export(1, with_image(1), compute=True))
    three.send(2, wire.Export(1, with_image(1, b"Y")))  # what is stored needs no image
    three.report(wire.WantImages((b"X",)))
    assert three.got == {1: [wire.WantImages((b"X",))]}
    three.send(1, wire.ImagePixels(b"X"))
    three.report(wire.Exported(1 << SHIFT | 1, 16))
    three.send(1, wire.Export(2, with_image(1), compute=True))
    for pull in (1, 2):
        three.send(1, wire.EndPull(pull))
    three.send(2, wire.EndPull(1))
    assert not three.shared._pulls


def test_servers_learn_the_work_of_the_others(three: Shared) -> None:
    def news() -> dict[int, wire.OtherWork]:
        return {server: decoders.decode_report(data) for server, data in three.shared.news(three.servers)}

    assert not three.shared.has_news
    three.send(0, run(1, *range(40)))
    three.send(0, run(2, *range(40)))
    three.send(1, run(1, *range(20)))
    assert three.shared.has_news
    assert news() == {0: wire.OtherWork(10, 1), 1: wire.OtherWork(40, 2), 2: wire.OtherWork(50, 3)}
    assert not three.shared.has_news
    assert news() == {}
    three.step()
    assert news() == {0: wire.OtherWork(0, 1), 1: wire.OtherWork(0, 2), 2: wire.OtherWork(0, 3)}
    while three.engine.running:
        three.step()
    assert set(news().values()) == {wire.OtherWork()}


@pytest.mark.parametrize("number", [-1, 1 << SHIFT])
def test_number_that_could_be_of_another_server_is_refused(three: Shared, number: int) -> None:
    for command in (wire.Abort(number), run(number, 1), wire.Release(number), wire.Ask(number, "tree")):
        with pytest.raises(ValueError, match=r"0"):
            three.send(1, command)
