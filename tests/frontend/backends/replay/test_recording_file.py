"""Record and Replay: a run is replayed without its backend, and differences are named."""

from __future__ import annotations

import asyncio
import json
import math
import re
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tiny_images import png

import banyan as bn
from banyan.backends.replay.record import _RecordedProgram
from banyan.backends.replay.recording_file import Digest
from banyan.runtime.errors import Unsupported
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire
from forks import in_child


@bn.function
def conversation(s: bn.State, topic: str, temperature: float = 1.0) -> None:
    s += bn.system("Be brief.") + bn.user(topic)
    s += bn.assistant("So: " + bn.gen("a", temperature=temperature, stop=["\n"]))
    forks = s.fork(3)
    forks += bn.user("more") + bn.assistant(bn.gen("b"))
    forks.join()
    s += bn.user(["again ", s.ref("a")]) + bn.assistant(bn.select("c", ["yes", "no"]))
    with s.var_scope("v"), s.copy() as t:
        t += bn.raw("<|x|>") + bn.gen("d")
    s += bn.gen("e")


class NumberedMock(bn.Mock):
    """Numbers its answers, and adds usage, scores and logprobs."""

    def start(self, job: Any) -> None:
        self.calls.append(None)  # type: ignore[arg-type]
        if isinstance(job.op, wire.Select):
            scores = wire.Scores((-0.5, -1.0), (((-0.5, 7),), ((-1.0, 8),)), (0.6, 0.4))
            return job.finish(GenOutcome((wire.Sample("no", "stop"),), wire.TokenUsage(9, 3, 0), scores))  # type: ignore[no-any-return]
        text = f"answer {len(self.calls)} ✓\0"
        for piece in (text[:3], text[3:]) if job.op.stream else ():
            job.deliver(piece)
        logprobs = (wire.TokenLogprob(5, "a", -0.25, ((6, "b", -1.5),)),)
        return job.finish(  # type: ignore[no-any-return]
            GenOutcome((wire.Sample(text, "length", n_tokens=4, logprobs=logprobs),), wire.TokenUsage(10, 5, 4))
        )


def snapshot(state: bn.State) -> Any:
    names = ("a", "b", "c", "d", "e", "v")
    metas = repr([state.get_meta_info(name) for name in names])
    metas = re.sub(r"'(id|e2e_latency|time_to_first_token)': [^,}]*", "", metas)  # differ between runs
    return state.text(), state.messages(), [state[name] for name in names], metas, state.usage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def test_replay_returns_the_recorded_run(path: Path) -> None:
    with bn.Record(NumberedMock(), path) as recorder:
        assert "Record of <Mock" in repr(recorder)
        first = snapshot(conversation.run("trees", backend=recorder, return_logprob=True))
        assert bn.get_server_info(recorder) == {"model": "mock", "n_calls": 7, "n_submits": 2}
    replay = bn.Replay(path)
    assert (replay.welcome.model, replay.welcome.chat) == ("mock", recorder.welcome.chat)
    assert len(replay.unused) == 7
    assert replay.unused[0] == ("conversation", "a")
    assert snapshot(conversation.run("trees", backend=replay, return_logprob=True)) == first
    assert replay.unused == []
    assert replay.ask("info") == {"model": "mock", "n_entries": 7, "n_unused": 0}
    assert "7 gens" in repr(replay)


def test_recording_of_a_replay_is_identical(path: Path) -> None:
    with bn.Record(NumberedMock(), path) as recorder:
        conversation.run("trees", backend=recorder).sync()
    copy = path.with_name("copy")
    with bn.Record(bn.Replay(path), copy) as recorder:
        conversation.run("trees", backend=recorder).sync()
    assert copy.read_bytes() == path.read_bytes()


def test_replay_streams_the_recorded_pieces(path: Path) -> None:
    with bn.Record(NumberedMock(), path) as recorder:
        state = conversation.run("trees", backend=recorder, stream=True)
        first = list(state.text_iter("a"))
        state.sync()
    assert len(first) == 2
    state = conversation.run("trees", backend=bn.Replay(path), stream=True)
    assert list(state.text_iter("a")) == first
    assert conversation.run("trees", backend=bn.Replay(path))["a"] == "".join(first), (
        "a recorded stream also answers a gen without stream"
    )


def test_batch_is_replayed_in_any_order(path: Path) -> None:
    topics = [(f"topic {i % 7}",) for i in range(40)]
    with bn.Record(bn.Mock(lambda prompt, name: f"{len(prompt)}" if name != "c" else "yes"), path) as recorder:
        first = [s.text() for s in conversation.run_batch(topics, backend=recorder)]
    assert [s.text() for s in conversation.run_batch(topics, backend=bn.Replay(path))] == first
    backwards = conversation.run_batch(topics[::-1], backend=bn.Replay(path), num_threads=3)
    assert [s.text() for s in backwards] == first[::-1]


def test_each_piece_of_a_prompt_is_digested_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @bn.function
    def long(s: bn.State, n: int) -> None:
        for i in range(n):
            s += bn.user(f"{i}?") + bn.assistant(bn.gen("a"))
            assert s["a"] == "yes"

    n_put = 0
    put = Digest.put

    def counted(digest: Digest, part: Any) -> None:
        nonlocal n_put
        n_put += 1
        put(digest, part)

    monkeypatch.setattr(Digest, "put", counted)
    with bn.Record(bn.Mock("yes"), path) as recorder:
        long.run(50, backend=recorder)
    long.run(50, backend=bn.Replay(path))
    assert n_put <= 50 * (6 + 1 + 6), "six pieces of a turn; the recorder also digests each output when it is known"


def test_shared_prompt_is_stored_once(path: Path) -> None:
    @bn.function
    def long_program(s: bn.State) -> None:
        for _ in range(50):
            s += bn.user("x" * 200) + bn.assistant(bn.gen("a"))

    with bn.Record(bn.Mock("y"), path) as recorder:
        long_program.run(backend=recorder).sync()
    assert path.stat().st_size < 50 * 700
    assert long_program.run(backend=bn.Replay(path))["a"] == "y"


def test_failures_are_recorded(path: Path) -> None:
    @bn.function
    def fails(s: bn.State) -> None:
        s += "Q" + bn.gen("a") + bn.gen("bad") + bn.gen("after")

    mock = bn.Mock({"a": "x", "bad": bn.PromptTooLong("9 tokens too many")})
    with bn.Record(mock, path) as recorder, pytest.raises(bn.PromptTooLong):
        fails.run(backend=recorder).sync()
    assert len(path.read_text().splitlines()) == 3, "the header, the answer and the failure, not its consequences"
    state = fails.run(backend=bn.Replay(path))
    assert state["a"] == "x"
    with pytest.raises(bn.PromptTooLong, match="9 tokens too many") as raised:
        state["after"]
    assert raised.value.gen == "bad"


# ---- differences from the recording --------------------------------------------------------------------------------


@pytest.fixture
def replay(path: Path) -> bn.Replay:
    with bn.Record(NumberedMock(), path) as recorder:
        conversation.run("trees", backend=recorder).sync()
    return bn.Replay(path)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            lambda b: conversation.run("traps", backend=b),
            r"the prompt of gen 'a' differs from the recorded one at character 28: "
            r"recorded '.*trees\]\[assistant: So: ', now '.*traps\]\[assistant: So: '",
        ),
        (
            lambda b: conversation.run("trees", 0.5, backend=b),
            r"but differs in temperature: recorded 1.0, now 0.5 ",
        ),
        (lambda b: conversation.run("trees", top_k=4, backend=b), "differs in top_k: recorded -1, now 4"),
        (
            lambda b: bn.function(lambda s: s.__iadd__(bn.gen("a"))).run(backend=b),
            "has no gen 'a' of program '<lambda>'; it has no gen of this program",
        ),
    ],
)
def test_first_difference_is_named(replay: bn.Replay, run: Callable[[Any], bn.State], message: str) -> None:
    state = run(replay)
    with pytest.raises(bn.ReplayMismatch, match=message) as raised:
        state["a"]
    assert raised.value.gen == "a"
    assert raised.value.line.startswith("test_recording_file.py:")


def test_entry_answers_once(replay: bn.Replay) -> None:
    conversation.run("trees", backend=replay).sync()
    with pytest.raises(bn.ReplayMismatch, match="gen 'a' was recorded once with this prompt, but runs once more"):
        conversation.run("trees", backend=replay).sync()


def test_unrecorded_gen_raises(replay: bn.Replay) -> None:
    @bn.function
    def conversation(s: bn.State) -> None:
        s += bn.gen("other")

    with pytest.raises(bn.ReplayMismatch, match="no gen 'other' of program 'conversation'; of this program it has 'a'"):
        conversation.run(backend=replay)["other"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "not a recording"),
        (b"hello\n", "not a recording"),
        (b'{"model":"x"}\n', "not a recording"),
        (b'{"banyan":"recording","version":99}\n', "version 99, but this release reads version 1"),
        (b'{"banyan":"recording","version":1}\n{"program":"x"}\n', "line 2 .* missing required field"),
    ],
)
def test_invalid_recording_raises(path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(bn.ConfigError, match=message):
        bn.Replay(path)


def test_record_to_an_unwritable_path_raises(tmp_path: Path) -> None:
    with pytest.raises(bn.ConfigError, match="cannot be written"):
        bn.Record(bn.Mock(), tmp_path / "no" / "such" / "folder")


@bn.function
def two_answers(s: bn.State) -> None:
    s += "Q" + bn.gen("a") + bn.gen("b")


def test_entry_for_which_there_is_no_space_is_an_error_of_the_block(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(bn.ConfigError, match=r"recording .* is incomplete: .*File too large") as raised:  # noqa: SIM117, PT012
        with bn.Record(bn.Mock({"a": "x" * 5000, "b": "y"}), path) as recorder:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 3000, hard))  # takes a part, then fails
            try:
                state = two_answers.run(backend=recorder)
                assert (state["a"], state["b"]) == ("x" * 5000, "y")
                recorder._programs.copy().pop().settle()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(raised.value.__cause__, OSError)
    recorder.close()
    assert bn.Replay(path).unused == [("two_answers", "b")], "the program goes on, and the file stays readable"


def test_entry_that_json_cannot_hold_is_an_error_of_the_block(path: Path) -> None:
    mock = bn.Mock({"a": "\ud83d", "b": "y"})
    with (
        pytest.raises(bn.ConfigError, match=r"is incomplete: .*surrogates not allowed"),
        bn.Record(mock, path) as record,
    ):
        assert two_answers.run(backend=record)["b"] == "y"
    with pytest.raises(ValueError, match="invalid literal") as raised, bn.Record(mock, path) as record:
        int(two_answers.run(backend=record)["b"])
    assert "is incomplete" in raised.value.__notes__[0]


def test_entry_after_one_that_could_not_be_written_is_replayed(path: Path) -> None:
    @bn.function
    def apart(s: bn.State) -> None:
        forks = s.fork(2)
        forks += ["P" + bn.gen("a"), "Q" + bn.gen("b")]
        forks.join()

    with pytest.raises(bn.ConfigError), bn.Record(bn.Mock({"a": "\ud83d", "b": "y"}), path) as recorder:
        apart.run(backend=recorder).sync()
    state = bn.function(lambda s: s.__iadd__("Q" + bn.gen("b"))).run(backend=bn.Replay(path))
    assert state["b"] == "y"


def test_entry_that_could_not_be_written_is_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = bn.Record(bn.Mock({"a": "\ud83d", "b": "\ud83d"}), path)
    two_answers.run(backend=recorder).sync()
    (line,) = caplog.messages  # nobody has closed the Record
    assert re.search("the recording .* is incomplete: .*surrogates not allowed", line)


def test_record_to_a_full_device_raises() -> None:
    with pytest.raises(bn.ConfigError, match=r"/dev/full cannot be written: .*No space left"):
        bn.Record(bn.Mock(), "/dev/full")


@pytest.mark.parametrize("n_cut", [1, 2, 100])
def test_last_line_that_was_cut_is_left_out(path: Path, n_cut: int) -> None:
    with bn.Record(bn.Mock({"a": "x", "b": "y"}), path) as recorder:
        two_answers.run(backend=recorder).sync()
    path.write_bytes(path.read_bytes()[:-n_cut])
    whole = [("two_answers", "a"), ("two_answers", "b")]
    assert bn.Replay(path).unused == whole[: 2 if n_cut == 1 else 1], "without the line feed alone it is whole"


def test_record_block_waits_for_pending_gens(path: Path) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks += "Q" + bn.gen("a")
        forks.join()

    with bn.Record(bn.Mock("yes", latency=0.3), path) as recorder:
        program.run(backend=recorder).sync()  # nothing reads the branches
        state = program.run(backend=recorder)
    assert state["a"] == ["yes", "yes"]
    assert program.run(backend=bn.Replay(path))["a"] == ["yes", "yes"]


def test_record_block_waits_for_entries_that_are_being_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Threaded(bn.Mock):
        def start(self, job: Any) -> None:
            threading.Thread(target=super().start, args=(job,)).start()

    @bn.function
    def program(s: bn.State) -> None:
        forks = s.fork(2)
        forks += ["P" + bn.gen("a"), "Q" + bn.gen("b")]
        forks.join()

    def finish_late(program: Any, question: Any) -> None:
        time.sleep(0.2)
        finish(program, question)

    finish = _RecordedProgram._finish
    monkeypatch.setattr(_RecordedProgram, "_finish", finish_late)
    with bn.Record(Threaded("x"), path) as recorder:
        program.run(backend=recorder).sync()
    assert sorted(bn.Replay(path).unused) == [("program", "a"), ("program", "b")]


def test_record_block_does_not_wait_after_an_exception(path: Path) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "Q" + bn.gen("a")

    start = time.monotonic()
    with suppress(KeyError), bn.Record(bn.Mock("late", latency=60), path) as recorder:
        state = program.run(backend=recorder)
        raise KeyError
    assert time.monotonic() - start < 30
    state.cancel()


def test_record_block_does_not_block_the_event_loop(path: Path) -> None:
    @bn.function
    async def program(s: bn.AsyncState) -> None:
        s += "Q" + bn.gen("a")
        await s.value("a")

    async def main() -> None:
        with bn.Record(bn.Mock("late", latency=60), path) as recorder:
            task = asyncio.create_task(program.run_async(backend=recorder))
            await asyncio.sleep(0.1)
        task.cancel()

    start = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - start < 30


def test_closed_recording_is_not_extended(path: Path) -> None:
    recorder = bn.Record(bn.Mock("x"), path)
    recorder.close()
    recorder.close()
    size = path.stat().st_size
    assert conversation.run("trees", backend=bn.Record(bn.Mock("yes"), path.with_name("b")))["a"] == "yes"
    assert bn.function(lambda s: s.__iadd__(bn.gen("a"))).run(backend=recorder)["a"] == "x"
    assert path.stat().st_size == size


def test_recording_is_one_json_object_per_line(path: Path) -> None:
    with bn.Record(bn.Mock({"a": "x", "b": "y", "c": "yes", "d": "z", "e": "e"}), path) as recorder:
        conversation.run("trees", backend=recorder).sync()
    header, *entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert (header["banyan"], header["version"]) == ("recording", 1)
    assert [entry["name"] for entry in entries] == ["a", "b", "b", "b", "c", "d", "e"]
    assert entries[1]["after"] == entries[0]["key"]


def test_images_are_replayed(path: Path) -> None:
    @bn.function
    def look(s: bn.State) -> None:
        s += bn.user("What is this? " + bn.image(png(8, 8))) + bn.assistant(bn.gen("a"))

    with bn.Record(bn.Mock("a square", refuses=()), path) as recorder:
        assert look.run(backend=recorder)["a"] == "a square"
    assert look.run(backend=bn.Replay(path))["a"] == "a square"
    text_only = NumberedMock()
    text_only.welcome = replace(text_only.welcome, images=False, no_images="it has no eyes")
    with bn.Record(text_only, path):
        pass
    with pytest.raises(Unsupported, match="it has no eyes"):
        look.run(backend=bn.Replay(path)).sync()


def test_logprobs_of_prompts_and_of_impossible_tokens_are_replayed(path: Path) -> None:
    class Scored(bn.Mock):
        def start(self, job: Any) -> None:
            prompt = (wire.TokenLogprob(1, "q", math.nan), wire.TokenLogprob(2, " r", -math.inf, ((3, "s", -0.5),)))
            sample = wire.Sample("a", "stop", 5, 1, (wire.TokenLogprob(5, "a", 0.0, ((6, "b", -math.inf),)),))
            job.finish(GenOutcome((sample,), prompt=prompt))

    @bn.function
    def score(s: bn.State) -> None:
        s += "q r" + bn.gen("a", return_logprob=True, top_logprobs_num=1, logprob_start_len=0)

    def metas(backend: Any) -> str:
        meta = score.run(backend=backend).get_meta_info("a")
        return repr({name: value for name, value in meta.items() if "logprobs" in name})

    with bn.Record(Scored("a"), path) as recorder:
        recorded = metas(recorder)
    assert "(None, 1, None), (-inf, 2, None)" in recorded
    assert metas(bn.Replay(path)) == recorded
    assert all(json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines())


# ---- rounds --------------------------------------------------------------------------------------------------------


def test_replay_calls_tools_but_not_the_model(path: Path) -> None:
    sums_computed: list[int] = []

    @bn.tool
    def add(a: int, b: int) -> int:
        "Adds."
        sums_computed.append(a + b)
        return a + b

    @bn.function
    def sums(s: bn.State) -> None:
        s += bn.user("1+2+3?") + bn.assistant(bn.gen("a", tools=[add])) + bn.user("sure?")
        s += bn.assistant(bn.gen("b"))

    mock = bn.Mock({"a": [{"add": {"a": 1, "b": 2}}, {"add": {"a": 3, "b": 3}}, "6"], "b": "yes"})
    with bn.Record(mock, path) as recorder:
        first = sums.run(backend=recorder)
        texts = first.text(), first["b"]
    assert [json.loads(line).get("name") for line in path.read_text().splitlines()[1:]] == ["a", "a", "a", "b"]
    state = sums.run(backend=bn.Replay(path))
    assert (state.text(), state["b"]) == texts
    assert sums_computed == [3, 6, 3, 6]
    with pytest.raises(bn.ReplayMismatch, match=r"prompt of gen 'a' differs .*\[tool: 3\].*, now .*\[tool: -1\]"):
        bn.function(with_wrong_tool(sums, add)).run(backend=bn.Replay(path))["a"]


def with_wrong_tool(program: Any, add: Any) -> Any:
    """The same program with a tool of other results."""

    @bn.tool(name="add", description="Adds.")
    def negative_add(a: int, b: int) -> int:
        return -1

    def sums(s: bn.State) -> None:
        s += bn.user("1+2+3?") + bn.assistant(bn.gen("a", tools=[negative_add]))

    return sums


@pytest.mark.parametrize("in_turn", [True, False])
def test_retries_are_replayed(path: Path, in_turn: bool) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        gen = bn.gen("n", type=int, retries=3)
        s += bn.user("?") + bn.assistant(gen) if in_turn else "?" + gen
        s += bn.gen("after")

    with bn.Record(bn.Mock({"n": ["one", "two", "3"], "after": "x"}), path) as recorder:
        state = program.run(backend=recorder)
        assert state.value("n") == 3
        text = state.text()
    state = program.run(backend=bn.Replay(path))
    assert (state.value("n"), state.text()) == (3, text)


def test_adopted_branch_is_replayed(path: Path) -> None:
    @bn.function
    def tree(s: bn.State) -> None:
        outer = s.fork(1)[0]
        outer += "Q" + bn.gen("q")
        first = outer.fork(2)
        first += lambda i: f"{i}:" + bn.gen("a")
        inner = first[1].fork(2)
        inner += bn.gen("b")
        first[1].adopt(inner.best(lambda s: s["b"]))
        outer.adopt(first[1])
        outer += "!" + bn.gen("c")
        s += "back: "
        s["outer"] = outer

    mock = bn.Mock({"q": "q", "a": ["x", "y"], "b": ["1", "2"], "c": "z"})
    with bn.Record(mock, path) as recorder:
        first = tree.run(backend=recorder)["outer"].text()
    assert first == "Qq1:y2!z"
    assert tree.run(backend=bn.Replay(path))["outer"].text() == first


# ---- races and timeouts --------------------------------------------------------------------------------------------

RACES: dict[str, Callable[[Any], bn.State]] = {
    "first": lambda branches: branches.first(),
    "first of two": lambda branches: branches.first(2)[0],
    "second of two": lambda branches: branches.first(2)[1],
    "vote": lambda branches: branches.vote("a"),
}


@bn.function
def race(s: bn.State, name: str) -> None:
    s += bn.user("Q")
    branches = s.fork(4)
    branches += lambda i: bn.assistant(f"{i}:" + bn.gen("a") + bn.gen("b"))
    s.adopt(RACES[name](branches))
    s += bn.user("sure?") + bn.assistant(bn.gen("c"))


@pytest.mark.parametrize("name", RACES)
def test_race_has_the_same_winner(path: Path, name: str) -> None:
    seconds = {"0:": 60.0, "1:": 0.1, "2:": 0.01, "3:": 0.05}
    mock = bn.Mock("x", latency=lambda call: seconds.get(call.prompt[-2:], 0.0))
    with bn.Record(mock, path) as recorder:
        first = race.run(name, backend=recorder).text()
    assert "0:" not in first
    replay = bn.Replay(path)
    assert race.run(name, backend=replay).text() == first
    assert replay.unused == []


def test_gen_that_was_dropped_in_the_recording_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @bn.function
    def program(s: bn.State, waits: bool) -> None:
        fork = s.fork(1)
        fork += "slow" + bn.gen("slow")
        s += "fast" + bn.gen("fast")
        assert s["fast"] == "x"
        if waits:
            assert fork[0]["slow"]
        fork[0].drop()

    monkeypatch.setattr("banyan.backends.replay.replay.PATIENCE", 0.01)
    with bn.Record(bn.Mock("x", latency=lambda call: 60.0 if call.name == "slow" else 0.0), path) as recorder:
        program.run(False, backend=recorder).sync()
    program.run(False, backend=bn.Replay(path)).sync()
    with pytest.raises(bn.ReplayMismatch, match="'slow' was recorded without an answer"):
        program.run(True, backend=bn.Replay(path))


@pytest.mark.parametrize("of", ["run", "batch"])
def test_timeout_is_replayed_at_once(path: Path, of: str) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "Q" + bn.gen("a") + bn.gen("b")

    def error(backend: Any, **limit: Any) -> bn.BanyanError | None:
        if of == "run":
            return program.run(opts=bn.Options(backend=backend, **limit)).error()
        return program.run_batch([()], backend=backend, on_error="return", **limit)[0].error()

    with bn.Record(bn.Mock({"a": "x", "b": "y"}, latency=lambda c: 60.0 * (c.name == "b")), path) as recorder:
        first = error(recorder, timeout=0.1)
    again = error(bn.Replay(path))
    assert isinstance(first, bn.DeadlineExceeded)
    assert isinstance(again, bn.DeadlineExceeded)
    assert first.message == again.message == f"the {of}'s timeout of 0.1 s ran out"


def test_run_that_the_user_cancelled_is_replayed_up_to_there(path: Path) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        s += "Q" + bn.gen("a")
        assert s["a"] == "x"
        s += bn.gen("b")

    mock = bn.Mock({"a": "x", "b": "y"}, latency=lambda c: 60.0 * (c.name == "b"))
    with bn.Record(mock, path) as recorder:
        state = program.run(backend=recorder)
        state._record.flush()
        state.cancel()
    assert len(mock.calls) == 2
    state = program.run(backend=bn.Replay(path))
    assert state["a"] == "x"
    with pytest.raises(bn.ReplayMismatch):
        state["b"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_does_not_write_to_the_recording_of_its_parent(tmp_path: Path) -> None:
    with bn.Record(NumberedMock(), tmp_path / "r") as recorder:
        conversation.run("it", backend=recorder).sync()
        before = recorder.path.read_bytes()

        def work() -> str:
            with recorder, pytest.raises(bn.ConfigError) as raised:
                conversation.run("it", backend=recorder).sync()
            return str(raised.value)

        assert "make a Record here" in in_child(work)
        assert recorder.path.read_bytes() == before
        conversation.run("other", backend=recorder).sync()
    assert recorder.path.stat().st_size > len(before)
