"""Constraints before the engine: tried once, in a process that may die of them, in bounded time, never on the loop."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from banyan.runtime.errors import BanyanError, ConstraintBusy, ConstraintCrashed, ConstraintError, Unsupported
from banyan.runtime.protocol.wire import ConstraintSpec
from banyan.runtime.server.constraints import constraint_checker, preflight
from banyan.runtime.server.constraints.constraint_checker import ConstraintChecker
from banyan.runtime.server.text.tokenizer import Tokenizer

Verdict = ConstraintSpec | BanyanError
SECONDS = 90.0
"""Far more than anything here takes, so that each constraint ends of what is wrong with it and not of the clock."""
HANGING = """
import sys, time
from banyan.runtime.server.constraints import preflight
compiled = preflight.build
def build(spec, vocabulary):
    while spec.text.startswith("hang"):
        time.sleep(0.01)
    while spec.text.startswith("spin"):
        pass
    return compiled(spec, vocabulary)
preflight.build = build
sys.exit(preflight.main(sys.argv[1:]))
"""
"""The preflight, with a compiler that never ends on some constraints and needs no memory for that."""
SECONDS = 90.0
HANGS = ConstraintSpec("json_schema", '{"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}')


class Desk:
    """Grammars, polled by hand."""

    def __init__(self, words: Tokenizer, path: Path, seconds: float = SECONDS, engine: str = "llguidance") -> None:
        self.now = 0.0
        self.context: zmq.Context[Any] = zmq.Context()
        self.n_changes = 0
        self.grammars = ConstraintChecker(
            self.context, path, words.vocabulary(), len(words.spelling),
            max_bytes=64 << 10, seconds=seconds, engine=engine, on_sockets_changed=self._changed,
            clock=lambda: self.now,
        )  # fmt: skip

    def _changed(self) -> None:
        self.n_changes += 1

    def ask(self, *specs: ConstraintSpec, owner: int = 0) -> list[Verdict]:
        """The verdicts on all of them, asked for at once."""
        told = self.begin(*specs, owner=owner)
        self.wait(lambda: len(told) == len(specs))
        return [told[i] for i in range(len(specs))]

    def begin(self, *specs: ConstraintSpec, owner: int = 0) -> dict[int, Verdict]:
        told: dict[int, Verdict] = {}
        for i, spec in enumerate(specs):
            self.grammars.check(spec, owner, lambda verdict, i=i: told.update({i: verdict}))
        return told

    def wait(self, done: Callable[[], bool], timeout: float = 100.0) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            assert time.monotonic() < deadline
            poller = zmq.Poller()
            for source in self.grammars.sockets:
                poller.register(source, zmq.POLLIN)
            if poller.poll(100):
                self.grammars.receive()

    def close(self) -> None:
        self.grammars.close()
        self.context.destroy(0)


@pytest.fixture(scope="module")
def shared(words: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(words, tmp_path_factory.mktemp("d") / "s")
    yield desk
    desk.close()


@pytest.fixture
def desk(words: Tokenizer, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(words, tmp_path / "s")
    yield desk
    desk.close()


@pytest.fixture
def hanging(words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A desk of 3 seconds that hangs on "hang...", and is up."""
    monkeypatch.setattr(constraint_checker, "PREFLIGHT", (sys.executable, "-c", HANGING))
    desk = Desk(words, tmp_path / "s", seconds=3.0)
    desk.ask(ConstraintSpec("regex", "warm"))
    yield desk
    desk.close()


def schema(value: Any, **options: Any) -> ConstraintSpec:
    return ConstraintSpec("json_schema", json.dumps(value), **options)


# ---- verdicts ------------------------------------------------------------------------------------------------------


def test_what_passes_comes_back_in_words_the_compiler_knows(shared: Desk) -> None:
    spec = schema(
        {"title": "n", "x-guidance": {"lenient": True}, "type": "integer"}, style="compact", after=("a",), end="b"
    )
    (verdict,) = shared.ask(spec)
    assert isinstance(verdict, ConstraintSpec)
    assert json.loads(verdict.text) == {"type": "integer"}
    assert (verdict.style, verdict.after, verdict.end) == ("compact", ("a",), "b")
    assert shared.ask(ConstraintSpec("choices", '["b", "a", "b"]')) == [ConstraintSpec("choices", '["b", "a"]')]
    assert shared.ask(ConstraintSpec("regex", "[a]")) == [ConstraintSpec("regex", "[a]")]


@pytest.mark.parametrize(
    ("spec", "code", "says"),
    [
        (ConstraintSpec("regex", "abc("), "constraint_syntax", "invalid regex: unclosed group at offset 3"),
        (ConstraintSpec("regex", "(?=a)"), "constraint_unsupported", "look-around"),
        (ConstraintSpec("json_schema", '{"type": }'), "constraint_syntax", "Expecting value (line 1, column 10)"),
        (ConstraintSpec("json_schema", '{"minimum": NaN}'), "constraint_syntax", "it contains NaN"),
        (ConstraintSpec("json_schema", "3"), "constraint_syntax", "an object, or true or false"),
        (schema({"type": "objekt"}), "constraint_syntax", "'objekt' is not a type at /type"),
        (schema({"items": {"contains": {"const": 1}}}), "constraint_unsupported", '"contains"'),
        (schema({"minimum": 5, "maximum": 3, "type": "integer"}), "constraint_unsatisfiable", "maximum (3)"),
        (schema({"type": "integer", "multipleOf": 999983}), "constraint_too_large", "multipleOf 999983"),
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
        (ConstraintSpec("regex", "a", scope="may"), "constraint_syntax", "needs a trigger"),
    ],
)  # fmt: skip
def test_what_is_refused_and_in_which_words(shared: Desk, spec: ConstraintSpec, code: str, says: str) -> None:
    (verdict,) = shared.ask(spec)
    assert isinstance(verdict, ConstraintError)
    assert verdict.code == code
    assert says in verdict.message
    assert len(verdict.message) < 500


def test_a_spliced_schema_is_no_schema(shared: Desk) -> None:
    (verdict,) = shared.ask(ConstraintSpec("json_schema", '{"type":"integer"}},{"lark_grammar":"start: /.*/"'))
    assert isinstance(verdict, ConstraintError)
    assert "Extra data" in verdict.message


def test_the_other_engine_takes_what_it_can(words: Tokenizer, tmp_path: Path) -> None:
    """Of regexes and choices; what would take it too long, or too many states, is llguidance's."""
    desk = Desk(words, tmp_path / "s", engine="outlines_core")
    easy = [ConstraintSpec("regex", "(yes|yes please|no)"), ConstraintSpec("choices", '["a", "b"]')]
    others = [
        ConstraintSpec("regex", "((a{1,100}){1,60}){1,60}"),
        ConstraintSpec("regex", r"\w{1,60}@\w+"),
        ConstraintSpec("regex", "a", after=("x",)),
        schema({"type": "integer"}),
    ]
    verdicts = desk.ask(*easy, *others)
    desk.close()
    assert [getattr(one, "engine", one) for one in verdicts] == ["outlines_core"] * 2 + [""] * 4


def test_the_other_engine_is_for_regexes_and_choices(shared: Desk) -> None:
    (verdict,) = shared.ask(schema({"type": "integer"}, engine="outlines_core"))
    assert isinstance(verdict, BanyanError)
    assert (verdict.code, "regexes and choices only" in verdict.message) == ("constraint_unsupported", True)
    spec = ConstraintSpec("regex", "[a]", engine="outlines_core")
    assert shared.ask(spec) == [spec], "who asks for it gets it"


# ---- panics --------------------------------------------------------------------------------------------------------


def told(words: Tokenizer, path: Path, change: Callable[[bytes], bytes]) -> Desk:
    """A desk with another tokenizer."""
    known = words.vocabulary()
    known = msgspec.structs.replace(known, tokenizer=change(known.tokenizer))
    return Desk(SimpleNamespace(vocabulary=lambda: known, spelling=words.spelling), path / "s")  # type: ignore[arg-type]


def test_a_tokenizer_at_which_llguidance_panics_leaves_the_preflight_up(
    tiny: ModuleType, words: Tokenizer, tmp_path: Path
) -> None:
    desk = told(words, tmp_path, tiny.unreadable)
    for _ in range(2):
        (verdict,) = desk.ask(ConstraintSpec("regex", "[ab]"))
        assert isinstance(verdict, Unsupported)
        assert "llguidance panicked" in verdict.message
    assert desk.grammars._n_starts == 1
    desk.close()


@pytest.mark.parametrize("engine", ["", "outlines_core"])
def test_a_constraint_at_which_its_compiler_panics_fails_alone(
    tiny: ModuleType, words: Tokenizer, tmp_path: Path, engine: Any
) -> None:
    """outlines_core does without the tokenizer, but for what is forced."""
    desk = told(words, tmp_path, lambda tokenizer: tiny.without(tokenizer, "q"))
    bad, good = (ConstraintSpec("regex", text, engine=engine) for text in ("hq{2}", "[ab]"))
    verdicts = desk.ask(bad, good)
    assert getattr(verdicts[0], "code", "") == ("" if engine else "constraint_crashed")
    assert verdicts[1] == good
    desk.close()


# ---- what the desk remembers ---------------------------------------------------------------------------------------


def test_everything_is_tried_once(desk: Desk) -> None:
    good, bad = ConstraintSpec("regex", "a"), ConstraintSpec("regex", "a(")
    assert desk.grammars.sockets == (), "no process before it is needed"
    verdicts = desk.ask(good, good, bad, good)
    assert verdicts[0] == verdicts[1] == verdicts[3] == good
    assert desk.grammars._n_checks == 2
    told = desk.begin(good, bad)
    assert len(told) == 2, "known: at once"
    assert desk.grammars._n_checks == 2
    desk.now += constraint_checker.ERROR_TTL + 1
    told = desk.begin(good, bad)
    assert set(told) == {0}, "a refusal is forgotten after a while"
    desk.wait(lambda: len(told) == 2)
    assert desk.grammars._n_checks == 3


def test_memory_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_checker, "CACHE_CHARS", 10)
    desk.ask(*(ConstraintSpec("regex", f"aaa{i}") for i in range(5)))
    assert len(desk.grammars._cache) == 2
    assert desk.grammars._n_chars == 8


def test_too_many_at_once_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_checker, "QUEUE", 2)
    specs = [ConstraintSpec("regex", f"a{{{i}}}") for i in range(1, 5)]
    told = desk.begin(*specs)
    assert all(isinstance(told[i], ConstraintBusy) for i in (2, 3))
    other = desk.begin(specs[3], owner=7)
    desk.wait(lambda: len(told) == 4 and len(other) == 1)
    assert told[0] == specs[0]
    assert other[0] == specs[3]
    assert desk.ask(specs[2]) == [specs[2]], "and are not held against anybody"


# ---- processes -----------------------------------------------------------------------------------------------------


def test_nobody_waits_for_one_that_hangs(hanging: Desk) -> None:
    """Twelve that hang, of one client: another's is through before the first of them is killed."""
    told = hanging.begin(*(ConstraintSpec("regex", f"hang {i}") for i in range(12)), owner=1)
    other = hanging.begin(ConstraintSpec("regex", "[a-z]+"), owner=2)
    hanging.wait(lambda: bool(other))
    assert not told
    hanging.wait(lambda: len(told) == 12)
    assert {verdict.code for verdict in told.values() if isinstance(verdict, BanyanError)} == {"constraint_timeout"}
    assert "within 3 s" in str(told[0])
    assert hanging.grammars._n_starts == 1


def test_a_preflight_that_dies_is_replaced(hanging: Desk) -> None:
    told = hanging.begin(ConstraintSpec("regex", "hang"), ConstraintSpec("regex", "b"))
    assert hanging.grammars._child is not None
    os.kill(hanging.grammars._child.pid, signal.SIGKILL)
    hanging.wait(lambda: 1 in told)
    assert told[1] == ConstraintSpec("regex", "b")
    assert hanging.grammars._n_starts == 2
    hanging.wait(lambda: 0 in told)


def test_one_that_never_stays_up_fails_what_waits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_checker, "PREFLIGHT", ("/bin/false",))
    told = desk.begin(ConstraintSpec("regex", "a"))
    desk.wait(lambda: bool(told))
    assert isinstance(told[0], ConstraintCrashed)
    assert desk.grammars._n_starts == constraint_checker.MAX_DEATHS
    monkeypatch.undo()
    assert desk.ask(ConstraintSpec("regex", "b")) == [ConstraintSpec("regex", "b")]


def test_children_leave_nothing_behind(hanging: Desk) -> None:
    desk = hanging
    desk.ask(ConstraintSpec("regex", "a"), ConstraintSpec("regex", "a("), ConstraintSpec("regex", "spin"))
    assert desk.grammars._child is not None
    pid = desk.grammars._child.pid
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""
    n_files = len(os.listdir(f"/proc/{pid}/fd"))
    desk.ask(*(ConstraintSpec("regex", f"b{i}") for i in range(20)))
    assert len(os.listdir(f"/proc/{pid}/fd")) <= n_files + 1
    desk.grammars.close()
    assert not Path(f"/proc/{pid}").exists()
    desk.grammars.close()


# ---- hostile input -------------------------------------------------------------------------------------------------


def arrays(n: int) -> Any:
    return {"type": "array", "items": arrays(n - 1)} if n else {"type": "string"}


def optional(n: int) -> Any:
    names = {f"property_number_{i}": {"type": "string"} for i in range(n)}
    return {"type": "object", "properties": names, "additionalProperties": False}


def defs(n: int, link: Callable[[Any], Any], leaf: str) -> Any:
    found = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(n)}
    return {"$defs": found | {f"d{n}": {"type": leaf}}, "$ref": "#/$defs/d0"}


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
    "multiple": (schema({"type": "integer", "multipleOf": 999983}), "constraint_too_large"),
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


def test_a_compiler_that_takes_too_much_is_told_from_one_that_crashes(shared: Desk) -> None:
    (verdict,) = shared.ask(HOSTILE["two multiples of one property"][0])
    assert isinstance(verdict, BanyanError)
    assert verdict.message == "the constraint needs more than 256 MiB to compile; make it smaller"
    assert preflight._crash(-11, "").message.endswith("its compiler crashed on it (SIGSEGV)")
    assert preflight._crash(1, "Traceback ...\nKeyError: 'x'\n").message.endswith("(KeyError: 'x')")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(shared: Desk, name: str) -> None:
    """Each ends as it must, and the next constraint is tried as if nothing had happened."""
    spec, code = HOSTILE[name]
    (verdict,) = shared.ask(spec)
    assert (verdict.code if isinstance(verdict, BanyanError) else "") == code, verdict
    assert shared.ask(ConstraintSpec("regex", f"after {len(name)}"))[0].text.startswith("after")  # type: ignore[union-attr]


JUNK: list[Any] = [
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


def mutant(chance: random.Random) -> ConstraintSpec:
    """A good or hostile constraint that was broken: a schema in its parts, or any text in its characters."""
    spec, _ = chance.choice(list(HOSTILE.values()))
    if spec.kind == "json_schema" and len(spec.text) < 20_000 and chance.random() < 0.7:
        return ConstraintSpec(spec.kind, json.dumps(transplanted(json.loads(spec.text), chance)))
    kind: Any = chance.choice([spec.kind] * 9 + ["regex", "json_schema", "grammar", "choices"])
    return ConstraintSpec(kind, scratched(spec.text, chance))


def transplanted(schema: Any, chance: random.Random) -> Any:
    """Parts of it are replaced by others, or by junk."""
    schema = {"root": schema}
    for _ in range(chance.randint(1, 4)):
        places: list[tuple[Any, Any]] = [(schema, "root")]
        for holder, key in places:
            below = holder[key]
            keys = list(below) if isinstance(below, dict) else range(len(below)) if isinstance(below, list) else ()
            places += [(below, one) for one in keys]
        (holder, key), (giver, other) = chance.choice(places), chance.choice(places)
        holder[key] = copy.deepcopy(chance.choice([giver[other], *chance.sample(JUNK, 2)]))
    return schema["root"]


def scratched(text: str, chance: random.Random) -> str:
    """Characters are dropped, doubled, swapped, replaced."""
    some = list(text if len(text) < 300 else text[: chance.choice([50, 300, 3000, len(text)])])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(some) + 1)
        match chance.randrange(4):
            case 0:
                del some[at : at + chance.randint(1, 9)]
            case 1:
                some[at:at] = some[max(0, at - chance.randint(1, 30)) : at] * chance.randint(1, 5)
            case 2:
                some[at:at] = chance.choice([*'{}[]()"\\\0é*<', "$ref", "{9,999}", "%json"])
            case 3:
                some[at : at + 1] = chr(chance.choice([chance.randrange(128), chance.randrange(0xD800), 0x1F642]))
    return "".join(some)


def fuzz(desk: Desk, seeds: range) -> None:
    """No crash but of the children's own, and always an answer."""
    for first in range(seeds.start, seeds.stop, 20):
        some = [mutant(random.Random(seed)) for seed in range(first, first + 20)]
        for spec, verdict in zip(some, desk.ask(*some), strict=True):
            assert isinstance(verdict, ConstraintSpec | ConstraintError), (spec, verdict)
    assert desk.grammars._n_starts == 1


@pytest.mark.timeout(300)
def test_fuzzed(shared: Desk) -> None:
    fuzz(shared, range(100))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fuzzed_long(shared: Desk) -> None:
    fuzz(shared, range(1000, 2000))
