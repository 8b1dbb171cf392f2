"""Constraints are checked once before the engine sees them, in their own process and in bounded time."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from banyan.runtime import launch
from banyan.runtime.errors import BanyanError, ConstraintBusy, ConstraintCrashed, ConstraintError, Unsupported
from banyan.runtime.protocol.wire import ConstraintSpec
from banyan.runtime.server.constraints import constraint_checker, preflight
from banyan.runtime.server.constraints.constraint_checker import ConstraintChecker
from banyan.runtime.server.text.tokenizer import Tokenizer
from forms import in_short

Verdict = ConstraintSpec | BanyanError
TIME_LIMIT = 90.0
"""Seconds, far more than any check takes: no constraint here ends by the time limit."""
HANGING_PREFLIGHT = """
import sys, time
from banyan.runtime.server.constraints import preflight
compiled = preflight.build
def build(spec, vocabulary):
    while spec.text.startswith("hang"):
        time.sleep(0.01)
    while '"slow"' in spec.text:
        time.sleep(0.01)
    while spec.text.startswith("spin"):
        pass
    return compiled(spec, vocabulary)
preflight.build = build
sys.exit(preflight.main(sys.argv[1:]))
"""
"""A preflight whose compiler sleeps on "hang..." and on schemas with "slow", and spins on "spin..."."""


PATIENT_PREFLIGHT = """
import sys
from banyan.runtime.server.constraints import preflight
preflight.FAST_SECONDS = 60.0
sys.exit(preflight.main(sys.argv[1:]))
"""
"""A preflight whose children all count as fast, however busy the machine is."""


class CheckerDriver:
    """A ConstraintChecker that is polled by hand."""

    def __init__(self, words: Tokenizer, path: Path, seconds: float = TIME_LIMIT, engine: str = "llguidance") -> None:
        self.now = 0.0
        self.context: zmq.Context[Any] = zmq.Context()
        self.checker = ConstraintChecker(
            self.context, path, words.vocabulary(), len(words.spelling),
            max_bytes=64 << 10, seconds=seconds, engine=engine, on_sockets_changed=lambda: None,
            clock=lambda: self.now,
        )  # fmt: skip

    def ask(self, *specs: ConstraintSpec, owner: int = 0) -> list[Verdict]:
        """The verdicts on all specs, checked concurrently."""
        verdicts = self.begin(*specs, owner=owner)
        self.wait(lambda: len(verdicts) == len(specs))
        return [verdicts[i] for i in range(len(specs))]

    def begin(self, *specs: ConstraintSpec, owner: int = 0) -> dict[int, Verdict]:
        verdicts: dict[int, Verdict] = {}
        for i, spec in enumerate(specs):
            self.checker.check(spec, owner, lambda verdict, i=i: verdicts.update({i: verdict}))
        return verdicts

    def wait(self, done: Callable[[], bool], timeout: float = 100.0) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            assert time.monotonic() < deadline
            poller = zmq.Poller()
            for source in self.checker.sockets:
                poller.register(source, zmq.POLLIN)
            if poller.poll(100):
                self.checker.receive()

    def close(self) -> None:
        self.checker.close()
        self.context.destroy(0)


@pytest.fixture(scope="module")
def shared(words: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckerDriver]:
    """A driver for costly constraints. Its children keep their priority: on a busy machine, one with low priority would
    need more than TIME_LIMIT."""
    yield from patient_driver(words, tmp_path_factory.mktemp("d") / "s")


def patient_driver(words: Tokenizer, path: Path) -> Iterator[CheckerDriver]:
    """The driver of `shared`, also for another test module, which calls it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraint_checker, "PREFLIGHT", (sys.executable, "-c", PATIENT_PREFLIGHT))
        driver = CheckerDriver(words, path)
        driver.ask(ConstraintSpec("regex", "warm"))
    yield driver
    driver.close()


@pytest.fixture
def driver(words: Tokenizer, tmp_path: Path) -> Iterator[CheckerDriver]:
    driver = CheckerDriver(words, tmp_path / "s")
    yield driver
    driver.close()


@pytest.fixture
def hanging(words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckerDriver]:
    """A started driver with HANGING_PREFLIGHT and a time limit of 3 s."""
    monkeypatch.setattr(constraint_checker, "PREFLIGHT", (sys.executable, "-c", HANGING_PREFLIGHT))
    driver = CheckerDriver(words, tmp_path / "s", seconds=3.0)
    driver.ask(ConstraintSpec("regex", "warm"))
    yield driver
    driver.close()


def refuse_to_start(*_: Any, **options: Any) -> None:
    raise BlockingIOError("too many processes")


def test_constraint_fails_if_no_process_can_be_started_and_can_be_tried_again(
    driver: CheckerDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later gens with the constraint do not wait without end."""
    spec = ConstraintSpec("regex", "[ab]")
    with monkeypatch.context() as patch:
        patch.setattr(launch.ChildProcess, "__init__", refuse_to_start)
        for _ in range(2):
            (error,) = driver.ask(spec)
            assert isinstance(error, ConstraintBusy)
            assert "too many processes; try again" in error.message
        assert (driver.checker.sockets, list(tmp_path.iterdir())) == ((), [])
    assert isinstance(driver.ask(spec)[0], ConstraintSpec)


def test_constraint_fails_if_no_process_can_be_started_in_place_of_one_that_died(
    hanging: CheckerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The OSError does not end the server."""
    verdicts = hanging.begin(ConstraintSpec("regex", "hang"))
    monkeypatch.setattr(launch.ChildProcess, "__init__", refuse_to_start)
    assert hanging.checker._child is not None
    os.kill(hanging.checker._child.pid, signal.SIGKILL)
    hanging.wait(lambda: bool(verdicts))
    assert isinstance(verdicts[0], ConstraintBusy)


def schema(value: Any, **options: Any) -> ConstraintSpec:
    return ConstraintSpec("json_schema", json.dumps(value), **options)


# ---- verdicts ------------------------------------------------------------------------------------------------------


def test_accepted_constraint_is_normalised(shared: CheckerDriver) -> None:
    spec = schema(
        {"title": "n", "x-guidance": {"lenient": True}, "type": "integer"}, style="compact", after=("a",), end="b"
    )
    (verdict,) = shared.ask(spec)
    assert isinstance(verdict, ConstraintSpec)
    assert json.loads(verdict.text) == {"type": "integer"}
    assert (verdict.style, verdict.after, verdict.end) == ("compact", ("a",), "b")
    assert shared.ask(ConstraintSpec("choices", '["b", "a", "b"]')) == [ConstraintSpec("choices", '["b", "a"]')]
    for engine in ("", "outlines_core"):
        named = ConstraintSpec("regex", "[a]", engine=engine)
        assert shared.ask(named) == [named]


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        (ConstraintSpec("regex", "abc("), "constraint_syntax", "invalid regex: unclosed group at offset 3"),
        (ConstraintSpec("regex", "(?=a)"), "constraint_unsupported", "look-around"),
        (ConstraintSpec("json_schema", '{"type": }'), "constraint_syntax", "Expecting value (line 1, column 10)"),
        (ConstraintSpec("json_schema", '{"minimum": NaN}'), "constraint_syntax", "it contains NaN"),
        (ConstraintSpec("json_schema", '{"multipleOf": 1e999}'), "constraint_too_large", "contains 1e999, which is"),
        (ConstraintSpec("json_schema", '{}},{"lark_grammar":"start: /.*/"'), "constraint_syntax", "Extra data"),
        (ConstraintSpec("json_schema", "3"), "constraint_syntax", "an object, or true or false"),
        (schema({"type": "objekt"}), "constraint_syntax", "'objekt' is not a type at /type"),
        (schema({"items": {"contains": {"const": 1}}}), "constraint_unsupported", '"contains"'),
        (schema({"minimum": 5, "maximum": 3, "type": "integer"}), "constraint_unsatisfiable", "maximum (3)"),
        (ConstraintSpec("json_schema", '{"maximum": 1e999}'), "constraint_too_large", "contains 1e999, which is"),
        (schema({"type": "integer", "multipleOf": 999983}), "constraint_too_large", "multipleOf 999983"),
        (schema({"allOf": [{"multipleOf": n * 10**400} for n in (9001, 9973)]}), "constraint_too_large", "too large"),
        (schema({"not": {"const": "a" * 1500}}), "constraint_unsupported", "1500 characters cannot be excluded"),
        (schema({"not": {"const": "a" * 82}}), "constraint_unsupported", "82 characters cannot be excluded"),
        (ConstraintSpec("choices", "[]"), "constraint_syntax", "empty"),
        (ConstraintSpec("choices", '["a", 1]'), "constraint_syntax", "a JSON list of strings"),
        (ConstraintSpec("choices", '["\\ud800"]'), "constraint_syntax", "lone surrogate"),
        (ConstraintSpec("grammar", 'start: <|im_end|> "a"'), "constraint_unsupported", "special tokens"),
        (ConstraintSpec("grammar", "start: x"), "constraint_syntax", 'unknown name: "x"'),
        (ConstraintSpec("regex", "a" * (9 << 10)), "constraint_too_large", "regex has 9216 bytes; the limit is 8192"),
        (ConstraintSpec("grammar", "start: " + "a" * 70000), "constraint_too_large", "grammar has 70007 bytes"),
        (schema({"enum": ["é" * 40000]}), "constraint_too_large", "the limit is 65536"),
        (ConstraintSpec("choices", json.dumps([""] * 10_001)), "constraint_too_large", "10001"),
        (ConstraintSpec("regex", "a", after=("x",) * 17), "constraint_too_large", "`after` has 17 strings"),
        (ConstraintSpec("regex", "a", after=("x" * 300,)), "constraint_too_large", "the limit is 256"),
        (ConstraintSpec("regex", "a", end="x" * 2000), "constraint_too_large", "the limit is 1024"),
        (ConstraintSpec("regex", "a", after=("",)), "constraint_syntax", "empty"),
        (ConstraintSpec("regex", "a", scope="may"), "constraint_syntax", 'scope "may" needs a trigger'),
        (schema({}, engine="outlines_core"), "constraint_unsupported", "regexes and choices only"),
    ],
)  # fmt: skip
def test_invalid_constraint_is_refused_with_its_code_and_message(
    shared: CheckerDriver, spec: ConstraintSpec, code: str, message: str
) -> None:
    (verdict,) = shared.ask(spec)
    assert isinstance(verdict, ConstraintError)
    assert verdict.code == code
    assert message in verdict.message
    assert len(verdict.message) < 500


@pytest.mark.long
def test_outlines_core_compiles_what_it_supports(words: Tokenizer, tmp_path: Path) -> None:
    """That is, regexes and choices. Those that need too much time or too many states are left to llguidance."""
    driver = CheckerDriver(words, tmp_path / "s", engine="outlines_core")
    supported = [ConstraintSpec("regex", "(yes|yes please|no)"), ConstraintSpec("choices", '["a", "b"]')]
    unsupported = [
        ConstraintSpec("regex", "((a{1,100}){1,60}){1,60}"),
        ConstraintSpec("regex", r"\w{1,60}@\w+"),
        ConstraintSpec("regex", "a", after=("x",)),
        schema({"type": "integer"}),
    ]
    verdicts = driver.ask(*supported, *unsupported)
    driver.close()
    assert [getattr(one, "engine", one) for one in verdicts] == ["outlines_core"] * 2 + [""] * 4


# ---- panics --------------------------------------------------------------------------------------------------------


def with_tokenizer(words: Tokenizer, path: Path, change: Callable[[bytes], bytes]) -> CheckerDriver:
    """A driver with a changed tokenizer."""
    known = words.vocabulary()
    known = msgspec.structs.replace(known, tokenizer=change(known.tokenizer))
    return CheckerDriver(SimpleNamespace(vocabulary=lambda: known, spelling=words.spelling), path / "s")  # type: ignore[arg-type]


@pytest.mark.long
def test_preflight_survives_a_tokenizer_that_panics_llguidance(
    tiny: ModuleType, words: Tokenizer, tmp_path: Path
) -> None:
    driver = with_tokenizer(words, tmp_path, tiny.unreadable)
    for _ in range(2):
        (verdict,) = driver.ask(ConstraintSpec("regex", "[ab]"))
        assert isinstance(verdict, Unsupported)
        assert "llguidance panicked" in verdict.message
    assert driver.checker._n_starts == 1
    driver.close()


@pytest.mark.parametrize("engine", in_short([""], ["", "outlines_core"]))
def test_constraint_that_panics_its_compiler_fails_alone(
    tiny: ModuleType, words: Tokenizer, tmp_path: Path, engine: Any
) -> None:
    """outlines_core needs the tokenizer only for forced text."""
    driver = with_tokenizer(words, tmp_path, lambda tokenizer: tiny.without(tokenizer, "q"))
    bad, good = (ConstraintSpec("regex", text, engine=engine) for text in ("hq{2}", "[ab]"))
    verdicts = driver.ask(bad, good)
    assert getattr(verdicts[0], "code", "") == ("" if engine else "constraint_crashed")
    assert verdicts[1] == good
    driver.close()


def test_checked_schema_that_is_too_large_has_a_looser_form(shared: CheckerDriver) -> None:
    """The client validates the value, so the conditions in the schema need not be enforced."""
    spec, code = HOSTILE["conditions"]
    assert [getattr(one, "code", "") for one in shared.ask(spec)] == [code]
    (verdict,) = shared.ask(msgspec.structs.replace(spec, is_checked=True))
    assert isinstance(verdict, ConstraintSpec)
    assert "if" not in json.loads(verdict.text)


@pytest.mark.long
def test_checked_schema_that_takes_too_long_has_a_looser_form(hanging: CheckerDriver) -> None:
    slow = schema({"title": "x", "type": "array", "contains": {"const": "slow"}, "maxItems": 2}, is_checked=True)
    (verdict,) = hanging.ask(slow)
    assert isinstance(verdict, ConstraintSpec)
    assert json.loads(verdict.text) == {"type": "array", "maxItems": 2}
    assert hanging.checker._n_starts == 1


# ---- cache and queue -----------------------------------------------------------------------------------------------


def test_verdicts_are_cached(driver: CheckerDriver) -> None:
    good, bad = ConstraintSpec("regex", "a"), ConstraintSpec("regex", "a(")
    assert driver.checker.sockets == (), "the process is started on demand"
    verdicts = driver.ask(good, good, bad, good)
    assert verdicts[0] == verdicts[1] == verdicts[3] == good
    assert driver.checker._n_checks == 2
    repeated = driver.begin(good, bad)
    assert len(repeated) == 2, "cached verdicts come at once"
    assert driver.checker._n_checks == 2
    driver.now += constraint_checker.ERROR_TTL + 1
    repeated = driver.begin(good, bad)
    assert set(repeated) == {0}, "a cached refusal expires"
    driver.wait(lambda: len(repeated) == 2)
    assert driver.checker._n_checks == 3


@pytest.mark.long
def test_cache_size_is_bounded(driver: CheckerDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = driver.checker.cache
    monkeypatch.setattr(cache, "_max_size", 2 * constraint_checker.ENTRY + 100)
    driver.ask(*(ConstraintSpec("regex", f"aaa{i}") for i in range(5)))
    assert len(cache._values) == 2
    assert cache.size == 2 * constraint_checker.ENTRY + 4 * 4
    # Refused constraints without any text count too, with their triggers and their errors.
    driver.ask(*(ConstraintSpec("choices", "", after=(f"{i}" * 99,)) for i in range(5)))
    assert len(cache._values) == 1
    assert 0 < cache.size - constraint_checker.ENTRY < 300


@pytest.mark.long
def test_constraints_of_clients_that_left_are_bounded(driver: CheckerDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_checker, "WAITING_CHARS", 10 * constraint_checker.ENTRY)
    verdicts = [driver.begin(ConstraintSpec("regex", f"b{i}" * 50), owner=i) for i in range(100)]  # a client each
    assert sum(isinstance(v.get(0), ConstraintBusy) for v in verdicts) > 80
    driver.wait(lambda: all(verdicts))
    assert driver.checker._n_waiting_chars == 0


def test_queue_length_is_limited_per_owner(driver: CheckerDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_checker, "QUEUE", 2)
    specs = [ConstraintSpec("regex", f"a{{{i}}}") for i in range(1, 5)]
    verdicts = driver.begin(*specs)
    for refusal in (verdicts[2], verdicts[3]):
        assert isinstance(refusal, ConstraintBusy)
        assert refusal.__traceback__ is None, "a program that keeps the error would be in a cycle with it"
    other = driver.begin(specs[3], owner=7)
    driver.wait(lambda: len(verdicts) == 4 and len(other) == 1)
    assert verdicts[0] == specs[0]
    assert other[0] == specs[3]
    assert driver.ask(specs[2]) == [specs[2]], "a refused check can be repeated"


# ---- processes -----------------------------------------------------------------------------------------------------


def test_hanging_checks_do_not_delay_other_clients(hanging: CheckerDriver) -> None:
    """A check of another client completes before the first of 12 hanging checks is killed."""
    verdicts = hanging.begin(*(ConstraintSpec("regex", f"hang {i}") for i in range(12)), owner=1)
    other = hanging.begin(ConstraintSpec("regex", "[a-z]+"), owner=2)
    hanging.wait(lambda: bool(other))
    assert not verdicts
    hanging.wait(lambda: len(verdicts) == 12)
    assert {verdict.code for verdict in verdicts.values() if isinstance(verdict, BanyanError)} == {"constraint_timeout"}
    assert "within 3 s" in str(verdicts[0])
    assert hanging.checker._n_starts == 1


def test_dead_preflight_is_replaced(hanging: CheckerDriver) -> None:
    verdicts = hanging.begin(ConstraintSpec("regex", "hang"), ConstraintSpec("regex", "b"))
    assert hanging.checker._child is not None
    os.kill(hanging.checker._child.pid, signal.SIGKILL)
    hanging.wait(lambda: 1 in verdicts)
    assert verdicts[1] == ConstraintSpec("regex", "b")
    assert hanging.checker._n_starts == 2
    hanging.wait(lambda: 0 in verdicts)


@pytest.mark.long
def test_preflight_that_keeps_dying_fails_the_waiting_checks(
    driver: CheckerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraint_checker, "PREFLIGHT", ("/bin/false",))
    verdicts = driver.begin(ConstraintSpec("regex", "a"))
    driver.wait(lambda: bool(verdicts))
    assert isinstance(verdicts[0], ConstraintCrashed)
    assert driver.checker._n_starts == constraint_checker.MAX_DEATHS
    monkeypatch.undo()
    assert driver.ask(ConstraintSpec("regex", "b")) == [ConstraintSpec("regex", "b")]


@pytest.mark.long
def test_preflight_children_are_cleaned_up(hanging: CheckerDriver) -> None:
    driver = hanging
    driver.ask(ConstraintSpec("regex", "a"), ConstraintSpec("regex", "a("), ConstraintSpec("regex", "spin"))
    assert driver.checker._child is not None
    pid = driver.checker._child.pid
    assert len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) <= 1, "the idle one"
    n_files = len(os.listdir(f"/proc/{pid}/fd"))
    driver.ask(*(ConstraintSpec("regex", f"b{i}") for i in range(20)))
    assert len(os.listdir(f"/proc/{pid}/fd")) <= n_files + 5, "those of an idle child"
    driver.checker.close()
    assert not Path(f"/proc/{pid}").exists()
    driver.checker.close()


@pytest.mark.long
def test_accepted_constraint_keeps_its_child_for_the_next_one(
    driver: CheckerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that refused its constraint ends, so that the next check starts with clean memory."""
    monkeypatch.setattr(constraint_checker, "PREFLIGHT", (sys.executable, "-c", PATIENT_PREFLIGHT))
    driver.ask(ConstraintSpec("regex", "c"))
    assert driver.checker._child is not None
    children = Path(f"/proc/{driver.checker._child.pid}/task/{driver.checker._child.pid}/children")
    (warm,) = children.read_text().split()
    for i in range(3):
        driver.ask(ConstraintSpec("regex", f"c{i}"))
        assert children.read_text().split() == [warm]
    driver.ask(ConstraintSpec("regex", "c("))
    assert children.read_text() == ""


@pytest.mark.long
def test_idle_child_that_was_killed_costs_no_constraint(driver: CheckerDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_checker, "PREFLIGHT", (sys.executable, "-c", PATIENT_PREFLIGHT))
    driver.ask(ConstraintSpec("regex", "d"))
    assert driver.checker._child is not None
    pid = driver.checker._child.pid
    (warm,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    os.kill(int(warm), signal.SIGKILL)
    assert driver.ask(ConstraintSpec("regex", "dd")) == [ConstraintSpec("regex", "dd")]


# ---- hostile input -------------------------------------------------------------------------------------------------


def arrays(n: int) -> Any:
    return {"type": "array", "items": arrays(n - 1)} if n else {"type": "string"}


def optional(n: int) -> Any:
    names = {f"property_number_{i}": {"type": "string"} for i in range(n)}
    return {"type": "object", "properties": names, "additionalProperties": False}


def defs(n: int, link: Callable[[Any], Any], leaf: str) -> Any:
    definitions = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(n)}
    return {"$defs": definitions | {f"d{n}": {"type": leaf}}, "$ref": "#/$defs/d0"}


def fan_out(width: int, depth: int) -> Any:
    return defs(depth, lambda ref: {"anyOf": [ref] * width}, "string")


def chain(n: int) -> Any:
    return defs(n, lambda ref: {"type": "object", "properties": {"a": ref}, "required": ["a"]}, "integer")


def rules(n: int) -> str:
    return "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(n)) + f'\nr{n}: "a"'


def doubling(n: int) -> Any:
    s: Any = {"type": "string"}
    for _ in range(n):
        s = {"anyOf": [{"type": "array", "items": s}, {"type": "object", "properties": {"k": s}}]}
    return s


HOSTILE: dict[str, tuple[ConstraintSpec, str]] = {
    "alternatives": (ConstraintSpec("regex", "(a|aa|aaa){1,1000}b"), ""),
    "determinised": (ConstraintSpec("regex", "[ab]*a[ab]{16}"), ""),
    "many quotes": (ConstraintSpec("regex", '[^"]{0,1000}'), ""),
    "words": (ConstraintSpec("regex", r"\w{1,500}"), ""),
    "nested counts": (ConstraintSpec("regex", "((a{1,100}){1,100}){1,100}"), ""),
    "optional a": (ConstraintSpec("regex", "(a?){500}a{500}"), "constraint_too_large"),
    "arrays": (schema(arrays(60)), ""),
    "deep arrays": (schema(arrays(200)), "constraint_too_large"),
    "options": (schema(optional(200)), ""),
    "more options": (schema(optional(700)), ""),
    "fan": (schema(fan_out(100, 3)), ""),
    "long text": (schema({"type": "string", "maxLength": 100_000}), ""),
    "long list": (schema({"type": "array", "minItems": 100_000}), ""),
    "ten texts": (schema({"type": "array", "items": {"type": "string", "maxLength": 2000}, "minItems": 10}), ""),
    "chain": (schema(chain(100)), ""),
    "long chain": (schema(chain(1000)), "constraint_too_large"),
    "alias": (schema(defs(1000, lambda ref: ref, "integer")), ""),
    "rules": (ConstraintSpec("grammar", rules(4000)), ""),
    "two multiples": (schema({"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}),
                      "constraint_too_large"),
    "two multiples of one property": (schema({"allOf": [{"properties": {"a": {"type": "integer", "multipleOf": n}}}
                                                        for n in (9973, 9967)]}), "constraint_too_large"),
    "doubling": (schema(doubling(8)), ""),
    "more doubling": (schema(doubling(12)), "constraint_too_large"),
    "ambiguous": (ConstraintSpec("grammar", 'start: e\ne: e e | "a"'), ""),
    "left recursion": (ConstraintSpec("grammar", 'start: start "a" | "b"'), ""),
    "nothing but itself": (ConstraintSpec("grammar", "start: start"), "constraint_syntax"),
    "braces": (ConstraintSpec("json_schema", "[" * 60000), "constraint_too_large"),
    "digits": (ConstraintSpec("json_schema", '{"const": ' + "9" * 50000 + "}"), "constraint_too_large"),
    "nul": (ConstraintSpec("regex", "a\0b"), ""),
    "big range": (schema({"type": "number", "minimum": 1e300}), "constraint_unsupported"),
    "repeat": (ConstraintSpec("regex", "(((a{9,99}){9,99}){9,99}){9,99}"), "constraint_too_large"),
    "enum": (schema({"enum": [f"value {i}" for i in range(3000)]}), ""),
    "huge enum": (schema({"enum": list(range(10_001))}), "constraint_too_large"),
    "patterns": (schema({"patternProperties": {f"^{c}{{1,50}}$": {"type": "string"} for c in "abcdefgh"}}), ""),
    "negations": (schema({"not": {"anyOf": [{"const": f"{i}"} for i in range(500)]}}), ""),
    "one of many": (schema({"oneOf": [{"required": [f"p{i}"]} for i in range(14)], "type": "object"}), ""),
    "conditions": (schema({"allOf": [{"if": {"properties": {f"a{i}": {"const": 1}}}, "then": {"required": [f"b{i}"]}}
                                     for i in range(14)]}), "constraint_too_large"),
}  # fmt: skip


COSTLY = "two multiples of one property"
"""A hostile constraint that takes 5 s to use up its memory."""


@pytest.mark.parametrize("n", in_short([16], [16, 256]))
def test_out_of_memory_and_crash_have_different_messages(
    words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    """n: the MiB that a child may allocate."""
    code = PATIENT_PREFLIGHT.replace("FAST_SECONDS", f"MEMORY = {n} << 20; preflight.FAST_SECONDS")
    monkeypatch.setattr(constraint_checker, "PREFLIGHT", (sys.executable, "-c", code))
    driver = CheckerDriver(words, tmp_path / "s")
    (verdict,) = driver.ask(HOSTILE[COSTLY][0])
    driver.close()
    assert isinstance(verdict, BanyanError)
    assert verdict.message == f"the constraint needs more than {n} MiB to compile; make it smaller"
    assert preflight._crash(-11, "").message.endswith("its compiler crashed on it (SIGSEGV)")
    assert preflight._crash(1, "Traceback ...\nKeyError: 'x'\n").message.endswith("(KeyError: 'x')")


@pytest.mark.parametrize("name", in_short([name for name in HOSTILE if name != COSTLY], HOSTILE))
def test_hostile_constraint_ends_with_its_code(shared: CheckerDriver, name: str) -> None:
    """Each ends with its code, and the next constraint is checked as usual."""
    spec, code = HOSTILE[name]
    (verdict,) = shared.ask(spec)
    assert (verdict.code if isinstance(verdict, BanyanError) else "") == code, verdict
    assert shared.ask(ConstraintSpec("regex", f"after {len(name)}"))[0].text.startswith("after")  # type: ignore[union-attr]


INVALID_VALUES: list[Any] = [
    None,
    True,
    -1,
    2**70,
    1e300,
    "",
    "^[",
    "string",
    [],
    {},
    {"$ref": "#"},
    ["a", "a"],
    {"a": {"not": {}}},
]


def mutate(rng: random.Random) -> ConstraintSpec:
    """A mutation of a valid or hostile constraint: of the parts of a schema, or of the characters of any text."""
    spec, _ = rng.choice(list(HOSTILE.values()))
    if spec.kind == "json_schema" and len(spec.text) < 20_000 and rng.random() < 0.7:
        return ConstraintSpec(spec.kind, json.dumps(mutate_schema(json.loads(spec.text), rng)))
    kind: Any = rng.choice([spec.kind] * 9 + ["regex", "json_schema", "grammar", "choices"])
    return ConstraintSpec(kind, mutate_text(spec.text, rng))


def mutate_schema(schema: Any, rng: random.Random) -> Any:
    """Replaces parts by other parts or by invalid values."""
    schema = {"root": schema}
    for _ in range(rng.randint(1, 4)):
        locations: list[tuple[Any, Any]] = [(schema, "root")]
        for holder, key in locations:
            child = holder[key]
            keys = list(child) if isinstance(child, dict) else range(len(child)) if isinstance(child, list) else ()
            locations += [(child, one) for one in keys]
        (holder, key), (source, other) = rng.choice(locations), rng.choice(locations)
        holder[key] = copy.deepcopy(rng.choice([source[other], *rng.sample(INVALID_VALUES, 2)]))
    return schema["root"]


def mutate_text(text: str, rng: random.Random) -> str:
    """Removes, repeats, inserts and replaces characters."""
    chars = list(text if len(text) < 300 else text[: rng.choice([50, 300, 3000, len(text)])])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(chars) + 1)
        match rng.randrange(4):
            case 0:
                del chars[at : at + rng.randint(1, 9)]
            case 1:
                chars[at:at] = chars[max(0, at - rng.randint(1, 30)) : at] * rng.randint(1, 5)
            case 2:
                chars[at:at] = rng.choice([*'{}[]()"\\\0é*<', "$ref", "{9,999}", "%json"])
            case 3:
                chars[at : at + 1] = chr(rng.choice([rng.randrange(128), rng.randrange(0xD800), 0x1F642]))
    return "".join(chars)


@pytest.mark.parametrize(
    "seeds",
    [
        range(10),
        pytest.param([*range(10, 40), *range(1000, 2000)], marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
    ids=len,
)
def test_fuzzed_constraints(shared: CheckerDriver, seeds: Sequence[int]) -> None:
    """Every check has a verdict, and only children of the preflight crash."""
    for first in range(0, len(seeds), 20):
        specs = [mutate(random.Random(seed)) for seed in seeds[first : first + 20]]
        for spec, verdict in zip(specs, shared.ask(*specs), strict=True):
            assert isinstance(verdict, ConstraintSpec | ConstraintError), (spec, verdict)
    assert shared.checker._n_starts == 1
