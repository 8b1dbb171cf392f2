"""Batches with a checkpoint: each item has one record, whatever interrupts the batch."""

from __future__ import annotations

import datetime
import io
import random
import re
import resource
import subprocess
import sys
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy
import pydantic
import pytest
from PIL import Image

import banyan as bn
from banyan.execution import batch_file
from banyan.execution.batch_file import BatchFile
from forms import short_form


@bn.function
def item(s: bn.State, x: int) -> int:
    s += f"{x}" + bn.gen("a")
    return 2 * x


def rows(n: int) -> Iterator[dict[str, int]]:
    return ({"x": i} for i in range(n))


def test_records_are_those_of_the_runs(mock: bn.Mock, tmp_path: Path) -> None:
    records = item.run_batch(rows(10), checkpoint=tmp_path / "out.jsonl")
    assert len(records) == 10
    assert [(r.index, r.values, r.ret_value) for r in records] == [(i, {"a": "<a>"}, 2 * i) for i in range(10)]
    assert records[3].ret_value == 6
    assert [r.index for r in records[7:]] == [7, 8, 9]


def test_finished_items_are_not_run_again(mock: bn.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_file, "CHUNK", 7)
    path = tmp_path / "out.jsonl"
    item.run_batch(rows(20), checkpoint=path)
    assert len(mock.submits) == 20
    records = item.run_batch(rows(50), checkpoint=path)
    assert len(mock.submits) == 50
    assert [r.ret_value for r in records] == [2 * i for i in range(50)]


@pytest.mark.parametrize("cut", [1, 9, 40])
def test_torn_line_is_cut_and_its_item_runs_again(cut: int, mock: bn.Mock, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    item.run_batch(rows(5), checkpoint=path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    records = item.run_batch(rows(5), checkpoint=path)
    assert len(mock.submits) == 6
    assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())
    assert len(records) == 5


def test_failed_items_have_no_record_and_run_again(mock: bn.Mock, tmp_path: Path) -> None:
    is_broken = True

    @bn.function
    def program(s: bn.State, x: int) -> int:
        s += f"{x}" + bn.gen("a")
        if is_broken and x % 4 == 1:
            raise ValueError("odd")
        return s.index

    path = tmp_path / "out.jsonl"
    with pytest.raises(bn.BatchError, match=r"3 of 10 items failed; run the batch again.*item \d+: .*odd") as e:
        program.run_batch(rows(10), checkpoint=path)
    assert set(e.value.errors) == {1, 5, 9}
    assert [r["a"] for i, r in enumerate(e.value.results) if i not in e.value.errors] == 7 * ["<a>"]
    assert len(path.read_bytes().splitlines()) == 7
    records = program.run_batch(rows(10), checkpoint=path, on_error="return")
    assert repr(records) == f"<BatchFile {path}: 7 items finished, 3 failed>"
    for x, record in zip(range(10), records, strict=True):
        assert (record.index, "a" in record) == (x, x % 4 != 1)
        if x % 4 == 1:
            assert (str(record.error()), record.values, record.ret_value) == ("odd", {}, None)
            with pytest.raises(ValueError, match="odd"):
                record["a"]
        else:
            assert (record.error(), record["a"], record.ret_value) == (None, "<a>", x)
    assert [r.index for r in (records[-1], records[-10], *records[-2:], *reversed(records))] == [
        *(9, 0, 8, 9),
        *range(9, -1, -1),
    ]
    for i in (10, -11):
        with pytest.raises(IndexError, match=f"there is no item {i}; the batch has 10 items"):
            records[i]
    with pytest.raises(KeyError, match="there is no variable 'b'; the variables are: 'a'"):
        records[0]["b"]
    is_broken = False
    assert [r.ret_value for r in program.run_batch(rows(10), checkpoint=path)] == list(range(10))


def test_every_failed_item_has_an_error_but_not_its_own(
    mock: bn.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error holds its run, so memory would grow with the number of items that fail."""
    monkeypatch.setattr(batch_file, "MAX_ERRORS", 2)

    @bn.function
    def program(s: bn.State, x: int) -> None:
        raise ValueError(f"odd {x}")

    with pytest.raises(bn.BatchError, match=r"5 of 5 items failed.*: ValueError: odd \d \[test_batch_file") as e:
        program.run_batch(rows(5), checkpoint=tmp_path / "out.jsonl")
    assert set(e.value.errors) == {*range(5)}
    errors = [r.error() for r in e.value.results]
    assert sum(isinstance(error, ValueError) for error in errors) == 2
    assert len({*map(id, errors)}) == 3


def test_item_with_an_invalid_object_has_no_record_and_runs_again(tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State, q: str) -> None:
        s += bn.user(q) + bn.assistant(bn.gen("a", type=dict[str, int], retries=1))

    path = tmp_path / "out.jsonl"
    cut = bn.Mock({re.compile("bad"): '{"x": 1', re.compile(""): '{"x": 1}'})
    with pytest.raises(bn.BatchError, match="1 of 2 items failed") as e:
        program.run_batch([("good",), ("bad",)], checkpoint=path, backend=cut)
    assert isinstance(e.value.errors[1], bn.BadOutput)
    assert [r.error() for r in e.value.results] == [None, e.value.errors[1]]
    records = program.run_batch([("good",), ("bad",)], checkpoint=path, backend=bn.Mock('{"x": 2}'))
    assert [r.values for r in records] == [{"a": {"x": 1}}, {"a": {"x": 2}}]


def test_values_of_typed_gens_are_written_as_json(tmp_path: Path) -> None:
    class Aliased(pydantic.BaseModel):
        full_name: str = pydantic.Field(alias="name")

    @bn.function
    def program(s: bn.State) -> None:
        s += bn.gen("person", type=Aliased) + bn.gen("n", type=int) + bn.gen("sure", type=bool)
        s += bn.gen("day", type=datetime.date) + bn.gen("kind", type=Literal["a", 7]) + bn.gen("text", regex="[0-9]")
        s += bn.gen("many", type=list[int], n=2)
        branches = s.fork(2)
        branches += bn.gen("d", type=int)
        branches.join()

    texts = {"person": '{"name": "Ann"}', "n": "4", "sure": "True", "day": "2026-01-02", "kind": "7", "text": "5"}
    backend = bn.Mock({**texts, "many": ["[1]", "[2]"], "d": "3"})
    (record,) = program.run_batch([()], checkpoint=tmp_path / "out.jsonl", backend=backend)
    assert record.values == {
        "person": {"name": "Ann"},
        "n": 4,
        "sure": True,
        "day": "2026-01-02",
        "kind": 7,
        "text": "5",
        "many": [[1], [2]],
        "d": [3, 3],
    }


def test_file_with_the_texts_of_typed_gens_is_continued(tmp_path: Path) -> None:
    """Until 2026-11-28 the values of typed gens were written as their texts."""

    @bn.function
    def program(s: bn.State, x: int) -> None:
        s += bn.gen("n", type=int)

    path, backend = tmp_path / "out.jsonl", bn.Mock("4")
    program.run_batch(rows(1), checkpoint=path, backend=backend)
    line = path.read_text()
    path.write_text(line.replace('{"n":4}', '{"n":"4"}'))
    assert [r["n"] for r in program.run_batch(rows(2), checkpoint=path, backend=backend)] == ["4", 4]


def test_body_that_deals_with_an_invalid_object_has_a_record(tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State) -> int:
        s += bn.gen("a", type=int)
        try:
            return s.value("a", int)
        except bn.BadOutput:
            return -1

    (record,) = program.run_batch([()], checkpoint=tmp_path / "out.jsonl", backend=bn.Mock("many"))
    assert (record.values, record.ret_value) == ({"a": "many"}, -1)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_number_that_json_does_not_have_fails_its_item(number: str, mock: bn.Mock, tmp_path: Path) -> None:
    """It was null in the record, and None when the batch was run again."""

    class Score(pydantic.BaseModel):
        x: float

    @bn.function
    def program(s: bn.State, x: float, is_model: bool) -> Any:
        return [Score(x=x)] if is_model else {"scores": (0.5, x)}

    items = [(1.0, False), (1.0, True), (float(number), False), (float(number), True)]
    with pytest.raises(bn.BatchError, match="what the body returned contains nan or inf") as e:
        program.run_batch(items, checkpoint=tmp_path / "out.jsonl")
    assert {i: type(error) for i, error in e.value.errors.items()} == {2: bn.BadProgram, 3: bn.BadProgram}
    assert [r.ret_value for r in e.value.results] == [{"scores": [0.5, 1.0]}, [{"x": 1.0}], None, None]


@pytest.mark.parametrize("is_returned", [False, True])
def test_object_without_a_text_fails_its_item(is_returned: bool, mock: bn.Mock, tmp_path: Path) -> None:
    """Its record was "<__main__.Plain object at 0x7f...>"."""

    @bn.function
    def program(s: bn.State, x: Any) -> Any:
        s["kept"] = None if is_returned else x
        return [x] if is_returned else None

    items, name = [(Fraction(1, 2),), (Plain(),)], "what the body returned" if is_returned else "the variable 'kept'"
    with pytest.raises(bn.BatchError, match=f"item 1: {name} holds an object of class Plain, which has no text") as e:
        program.run_batch(items, checkpoint=tmp_path / "out.jsonl")
    record = e.value.results[0]
    assert (record["kept"], record.ret_value) == ((None, ["1/2"]) if is_returned else ("1/2", None))


def test_ref_in_a_list_fails_its_item(tmp_path: Path) -> None:
    """Its record was the text that stands for it in an f-string."""

    @bn.function
    def program(s: bn.State, is_list: bool) -> None:
        s += bn.gen("a")
        s["kept"] = [s.ref("a")] if is_list else s.ref("a")

    with pytest.raises(bn.BatchError, match=r"item 1: the variable 'kept' holds an expression.*store its text") as e:
        program.run_batch([(False,), (True,)], checkpoint=tmp_path / "out.jsonl", backend=bn.Mock("x"))
    assert e.value.results[0]["kept"] == "x"


def test_vote_without_an_invalid_object_has_a_record(tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State) -> Any:
        branches = s.fork(3)
        branches += bn.gen("a", type=int)
        winner = branches.vote("a", on_error="collect").value("a")
        branches.join()
        return winner

    (record,) = program.run_batch([()], checkpoint=tmp_path / "out.jsonl", backend=bn.Mock(["n/a", "2", "2"]))
    assert (record.values, record.ret_value) == ({"a": ["n/a", 2, 2]}, 2)


def test_joined_branch_with_an_invalid_object_fails_the_item(tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State) -> None:
        branches = s.fork(2)
        branches += bn.gen("a", type=int)
        branches.join()

    with pytest.raises(bn.BatchError, match="branch 0 failed"):
        program.run_batch([()], checkpoint=tmp_path / "out.jsonl", backend=bn.Mock("many"))


@pytest.mark.parametrize("chunk", [2, 4096])
def test_items_before_an_error_of_the_iterable_are_run(
    chunk: int, mock: bn.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_file, "CHUNK", chunk)

    def torn() -> Iterator[dict[str, int]]:
        yield from rows(5)
        raise OSError("connection reset")

    path = tmp_path / "out.jsonl"
    with pytest.raises(OSError, match="connection reset"):
        item.run_batch(torn(), checkpoint=path)
    assert len(path.read_bytes().splitlines()) == 5
    item.run_batch(rows(6), checkpoint=path)
    assert len(mock.submits) == 6


def test_lost_server_ends_the_batch(mock: bn.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_file, "CHUNK", 4)

    @bn.function
    def program(s: bn.State, x: int) -> None:
        if x == 6:
            raise bn.RuntimeLost("gone")

    with pytest.raises(bn.RuntimeLost, match="gone"):
        program.run_batch(rows(10**9), checkpoint=tmp_path / "out.jsonl")


def test_other_items_are_refused(mock: bn.Mock, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    item.run_batch([{"x": 1}, {"x": 2}], checkpoint=path)
    with pytest.raises(bn.ConfigError, match=r"out\.jsonl: item 1 was recorded with different arguments"):
        item.run_batch([{"x": 1}, {"x": 3}], checkpoint=path)


class Person(pydantic.BaseModel):
    name: str
    age: int = 3
    note: Any = None


class Row:
    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"<Row {self.number} of {object.__repr__(self)}>"


class Plain:
    pass


def long_array(middle: Any) -> Any:
    """An array whose text leaves its middle out."""
    items = numpy.zeros(2001, object if isinstance(middle, str) else None)
    items[1000] = middle
    return items


def palette_image(red: int) -> Image.Image:
    image = Image.new("P", (2, 2))
    image.putpalette([red, 0, 0])
    return image


def turned_image(orientation: int) -> Image.Image:
    image = Image.new("L", (2, 2))
    image.getexif()[0x0112] = orientation
    return image


KINDS: dict[str, Callable[[str], Any]] = {
    "path": Path,
    "pydantic": lambda name: Person(name=name),
    "nested": lambda name: [Person(name=name, note=Plain())],
    "repr": lambda name: Row(ord(name)),
    "image": lambda name: Image.new("L", (2, 2), ord(name)),
    "palette": lambda name: palette_image(ord(name)),
    "orientation": lambda name: turned_image(ord(name) - ord("a") + 1),
    "array": lambda name: long_array(ord(name)),
    "shape": lambda name: numpy.zeros({"a": (100, 600), "b": (200, 300), "c": (300, 200), "d": (600, 100)}[name]),
    "array of objects": lambda name: long_array(f"{name} {name}"),  # not interned, so at a new address
    "array of Python": lambda name: array("I", [ord(name)]),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_other_objects_are_refused(make: Callable[[str], Any], mock: bn.Mock, tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State, x: Any, bound: Any) -> None: ...

    path, bound = tmp_path / "out.jsonl", program.bind(bound=Plain())
    bound.run_batch([{"x": make("b")}, {"x": make("c")}], checkpoint=path)
    assert len(bound.run_batch([{"x": make(name)} for name in "bcd"], checkpoint=path)) == 3
    with pytest.raises(bn.ConfigError, match="item 0 was recorded with different arguments"):
        bound.run_batch([{"x": make(name)} for name in "abc"], checkpoint=path)


def test_a_record_has_what_a_body_appended_to_a_joined_list(mock: bn.Mock, tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State, changes: bool) -> None:
        forks = s.fork(2)
        forks += bn.gen("n", type=int)
        forks.join()
        if changes:
            s["n"].append("more")

    records = program.run_batch([(True,), (False,)], backend=bn.Mock("7"), checkpoint=tmp_path / "out.jsonl")
    assert [record["n"] for record in records] == [["7", "7", "more"], [7, 7]]


def test_a_broken_image_fails_only_its_item(mock: bn.Mock, tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State, image: Image.Image) -> str:
        return str(image.tobytes()[:1])

    whole = Image.new("L", (1, 1), 65)
    whole.save(file := io.BytesIO(), "PNG")
    with Image.open(file) as closed:
        pass
    records = program.run_batch([(closed,), (whole,)], checkpoint=tmp_path / "out.jsonl", on_error="return")
    assert [record.error() is None for record in records] == [False, True]


DIGEST = """
import sys, banyan as bn
from banyan.execution.batch_file import BatchFile

class Step:
    def __repr__(self):
        return f"Step({self.what!r})"

step = Step()
step.what = [bn.assistant(bn.gen("x"))]
print(BatchFile(sys.argv[1]).digest({"x": step}))
"""


def test_objects_that_show_an_expression_are_the_same_in_each_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DIGEST, str(tmp_path / "out.jsonl")]
    first, second = (subprocess.check_output(command, timeout=100) for _ in range(2))
    assert first == second


def test_bodies_may_change_their_arguments(mock: bn.Mock, tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State, messages: list[str], done: list[str]) -> None:
        messages.append("more")
        done.append(messages[0])
        s += messages[0] + bn.gen("x")

    path = tmp_path / "out.jsonl"
    for n in (2, 3):
        items = [{"messages": [f"{i}"]} for i in range(n)]
        assert len(program.bind(done=[]).run_batch(items, checkpoint=path)) == n
    assert len(mock.submits) == 3


def test_items_that_json_does_not_have_are_errors(mock: bn.Mock, tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State, x: Any) -> int:
        return s.index

    path, endless = tmp_path / "out.jsonl", list[Any]()
    endless.append(endless)
    items = [{"x": x} for x in (1, "\ud800", endless, 2)]
    with pytest.raises(bn.BatchError, match=r"2 of 4 items failed.*item [12] cannot be distinguished from others") as e:
        program.run_batch(items, checkpoint=path)
    assert set(e.value.errors) == {1, 2}
    assert [r.ret_value for r in e.value.results] == [0, None, None, 3]


def test_keys_of_items_need_not_be_text(mock: bn.Mock, tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State, m: dict[Any, Any], bound: dict[int, str]) -> dict[Any, Any]:
        s += bn.gen("x")
        return m

    path = tmp_path / "out.jsonl"
    for item in ({2: "a", 1: "b"}, {1: "b", 2: "a"}):
        items = [{"m": item}, {"m": {"c": {(1, None): "d", None: 0.5}}}]
        records = program.bind(bound={1: "e"}).run_batch(items, checkpoint=path)
        assert [r.ret_value for r in records] == [{"2": "a", "1": "b"}, {"c": {"(1, None)": "d", "None": 0.5}}]
    assert len(mock.submits) == 2
    for bound, other in (({1: "e"}, [{"m": {2: "a", 1: "c"}}, items[1]]), ({1: "f"}, items)):
        with pytest.raises(bn.ConfigError, match="item 0 was recorded with different arguments or a different program"):
            program.bind(bound=bound).run_batch(other, checkpoint=path)


def test_fewer_items_are_refused(mock: bn.Mock, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    item.run_batch(rows(5), checkpoint=path)
    for items in (rows(4), [*rows(4)]):
        with pytest.raises(bn.ConfigError, match=r"has a record of item 4, but there are 4 items"):
            item.run_batch(items, checkpoint=path)


def test_other_program_is_refused(mock: bn.Mock, tmp_path: Path) -> None:
    @bn.function
    def other(s: bn.State, x: int, y: int = 0) -> int:
        return x + y

    path = tmp_path / "out.jsonl"
    item.run_batch(rows(2), checkpoint=path)
    with pytest.raises(bn.ConfigError, match="or a different program"):
        other.run_batch(rows(2), checkpoint=path)
    path = tmp_path / "bound.jsonl"
    assert other.bind(y=1).run_batch(rows(2), checkpoint=path)[1].ret_value == 2
    assert other.bind(y=1).run_batch(rows(2), checkpoint=path)[1].ret_value == 2
    with pytest.raises(bn.ConfigError, match="or a different program"):
        other.bind(y=2).run_batch(rows(2), checkpoint=path)


def test_values_that_json_does_not_have_are_errors_of_their_item(mock: bn.Mock, tmp_path: Path) -> None:
    values: list[Any] = [1, "\ud800", 1 << 70, 2]
    values[1:1] = [values]

    @bn.function
    def program(s: bn.State, i: int) -> Any:
        return values[i]

    path = tmp_path / "out.jsonl"
    with pytest.raises(bn.BatchError, match="2 of 5 items failed") as e:
        program.run_batch([{"i": i} for i in range(5)], checkpoint=path)
    assert set(e.value.errors) == {1, 2}
    assert [r.ret_value for r in e.value.results] == [1, None, None, 1 << 70, 2]


def test_pydantic_objects_are_written_with_their_fields(tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State) -> list[Person]:
        s += bn.gen("x", type=Person)
        s["person"] = s.value("x")
        return [s.value("x")]

    backend = bn.Mock('{"name":"Ann","age":4}')
    (record,) = program.run_batch([{}], checkpoint=tmp_path / "out.jsonl", backend=backend)
    person = {"name": "Ann", "age": 4, "note": None}
    assert (record.ret_value, record.values["person"]) == ([person], person)


def test_variable_without_a_value_is_an_error_of_its_item(tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State, x: int) -> None:
        branches = s.fork(2)
        branches += f"{x}" + bn.gen("d")
        s["first"] = branches[0].ref("d")
        s += bn.gen("z")

    def answer(prompt: str, name: str) -> str:
        if prompt.startswith("1"):
            raise bn.ProgramError("no luck")
        return "fine"

    path, backend = tmp_path / "out.jsonl", bn.Mock({"d": answer, "z": "Z"})
    records = program.run_batch(rows(3), checkpoint=path, backend=backend, on_error="return")
    finished = {"first": "fine", "z": "Z"}
    assert [r.values for r in records] == [finished, {}, finished]
    with pytest.raises(bn.BatchError, match=r"1 of 3 items failed.*no luck"):
        program.run_batch(rows(3), checkpoint=path, backend=backend)


def test_value_of_a_dropped_branch_does_not_end_the_batch(tmp_path: Path) -> None:
    @bn.function
    def program(s: bn.State, x: int) -> None:
        branches = s.fork(2)
        for branch, delay in zip(branches, ("at once", "late" if x == 1 else "at once"), strict=True):
            branch += delay + bn.gen("d")
        branches.join()
        branches.first()

    backend = bn.Mock("fine", latency=lambda call: 30.0 if "late" in call.prompt else 0.0)
    records = program.run_batch(rows(3), checkpoint=tmp_path / "out.jsonl", backend=backend, on_error="return")
    assert [r.values for r in records] == [{"d": ["fine", "fine"]}, {}, {"d": ["fine", "fine"]}]


@pytest.mark.parametrize("n_bytes", [700, 731, 760])
def test_full_disk_leaves_whole_lines_and_the_batch_goes_on(n_bytes: int, mock: bn.Mock, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))  # writes take a part, then fail
    try:
        with pytest.raises(OSError, match="File too large") as e:
            item.run_batch(rows(40), checkpoint=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert e.value.filename == str(path)
    lines = path.read_bytes()
    assert lines.endswith(b"\n")
    assert n_bytes - 100 < len(lines) < n_bytes
    assert [r.ret_value for r in item.run_batch(rows(40), checkpoint=path)] == [2 * i for i in range(40)]
    assert path.read_bytes().startswith(lines)
    assert len(path.read_bytes().splitlines()) == 40


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"index": -1, "item": 3, "values": {}}\n')
    with pytest.raises(bn.ConfigError, match=r"line 1 of .* is not a record of a batch"):
        BatchFile(path)
    path.write_text("what was here before\n")
    with pytest.raises(bn.ConfigError, match=r"line 1 of .* is not a record of a batch"):
        BatchFile(path)
    assert path.read_text() == "what was here before\n"
    path.write_text("without the end of the line")
    with pytest.raises(bn.ConfigError, match="line 1 of"):
        BatchFile(path)
    assert path.read_text() == "without the end of the line"
    with pytest.raises(bn.ConfigError, match="cannot be opened: Is a directory"):
        BatchFile(tmp_path)


def test_file_that_is_open_elsewhere_is_refused(tmp_path: Path) -> None:
    first = BatchFile(tmp_path / "out.jsonl")
    with pytest.raises(bn.ConfigError, match="is open in another process"):
        BatchFile(tmp_path / "out.jsonl")
    first.close()
    BatchFile(tmp_path / "out.jsonl").close()


@pytest.mark.parametrize("options", [{"timeout": 1.0}, {"budget": 5}, {"deadline": 1.0}, {"generator_style": True}])
def test_options_that_a_checkpoint_excludes(options: dict[str, Any], mock: bn.Mock, tmp_path: Path) -> None:
    with pytest.raises(bn.Unsupported, match="a batch with a checkpoint"):
        item.run_batch(rows(2), checkpoint=tmp_path / "out.jsonl", **options)


KILLED = """
import os, sys, banyan as bn
left = int(sys.argv[2])
@bn.function
def item(s, x):
    global left
    s += f"{x}" + bn.gen("a")
    left -= 1
    if left == 0:
        os.kill(os.getpid(), 9)
    return 2 * x
item.run_batch(({"x": i} for i in range(300)), checkpoint=sys.argv[1], backend=bn.Mock("fine"))
"""


def test_each_item_has_one_record_after_three_kills(tmp_path: Path) -> None:
    path, draw = tmp_path / "out.jsonl", random.Random(0)
    statuses = [
        subprocess.run([sys.executable, "-c", KILLED, str(path), str(left)], timeout=100, check=False).returncode
        for left in (*(draw.randint(1, 90) for _ in range(3)), -1)
    ]
    assert statuses == [-9, -9, -9, 0]
    file = BatchFile(path)
    file.close()
    assert [(r.index, r.ret_value) for r in file] == [(i, 2 * i) for i in range(300)]
    assert len(path.read_bytes().splitlines()) == 300


@pytest.mark.parametrize(
    ("n_few", "n_many", "mebibytes"), short_form([(100, 400, 4), (200, 1000, 10)], lambda n_few, *_: n_few == 100)
)
def test_memory_does_not_grow_with_the_items(
    mock: bn.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_few: int, n_many: int, mebibytes: int
) -> None:
    monkeypatch.setattr(batch_file, "CHUNK", 50)

    @bn.function
    def program(s: bn.State, x: int) -> str:
        return f"{x}" + "y" * 40_000

    def peak(n: int) -> int:
        tracemalloc.reset_peak()
        program.run_batch(rows(n), checkpoint=tmp_path / f"{n}.jsonl")
        return tracemalloc.get_traced_memory()[1]

    peak(100)
    tracemalloc.start()
    try:
        few = peak(n_few)
        assert peak(n_many) < few + (mebibytes << 20), "300 results are 12 MB, 800 are 32"
    finally:
        tracemalloc.stop()


def test_records_of_passed_items_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_bytes(b"".join(b'{"index":%d,"item":1,"values":{}}\n' % i for i in range(50_000)))
    tracemalloc.start()
    try:
        file = BatchFile(path)
        before = tracemalloc.get_traced_memory()[0]
        assert not file.has(50_000, file.digest(()))
        assert before - tracemalloc.get_traced_memory()[0] > 190_000
    finally:
        tracemalloc.stop()
    file.close()
