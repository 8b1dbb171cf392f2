"""`banyan batch`: rows in, results out, in each format."""

from __future__ import annotations

import csv
import json
import resource
from pathlib import Path
from typing import Any

import pytest

import banyan as bn
from banyan.cli import batch
from banyan.cli import main as cli

PROGRAM = """
import banyan as bn

@bn.function
def label(s, text: str, n: int = 2):
    s += text + bn.gen("label")
    assert text != "bad"
    return [n, n + 1]
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def run(program: Path, rows: Path, out: Path) -> int:
    return batch.prepare(str(program), rows, out)(bn.Mock("fine"), None)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        batch._write_csv(path, lambda: iter(rows))
    else:
        batch._write_parquet(path, lambda: iter(rows))


@pytest.mark.parametrize("source", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("target", [".jsonl", ".csv", ".parquet"])
def test_formats(source: str, target: str, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if ".parquet" in (source, target):
        pytest.importorskip("pyarrow")
    rows, out = tmp_path / f"rows{source}", tmp_path / f"out{target}"
    write(rows, [{"text": f"ünd {i}", "n": i, "note": "x"} for i in range(3)])
    assert run(program, rows, out) == 0
    assert "columns of" in (err := capsys.readouterr().err)
    assert "does not take: note" in err
    if target == ".jsonl":
        found = [json.loads(line) for line in out.read_text().splitlines()]
        assert {r["index"]: (r["values"], r["ret_value"]) for r in found} == {
            i: ({"label": "fine"}, [i, i + 1]) for i in range(3)
        }
        return
    read = batch._format(out, "--in")[0]
    assert [(r["text"], int(r["n"]), r["note"], r["label"]) for r in read()] == [
        (f"ünd {i}", i, "x", "fine") for i in range(3)
    ]
    assert [*read()][-1]["ret_value"] == "[2, 3]"


@pytest.mark.parametrize("target", [".jsonl", ".csv", ".parquet"])
def test_values_of_typed_gens_are_not_encoded_twice(target: str, tmp_path: Path) -> None:
    if target == ".parquet":
        pytest.importorskip("pyarrow")
    program, rows, out = tmp_path / "program.py", tmp_path / "rows.jsonl", tmp_path / f"out{target}"
    program.write_text(
        "import banyan as bn\n@bn.function\ndef label(s, text):\n"
        "    s += text + bn.gen('n', type=int) + bn.gen('counts', type=dict[str, int])"
    )
    write(rows, [{"text": "a", "box": {"w": 1}}, {"text": "b", "box": {"w": 2}}])
    backend = bn.Mock({"n": "4", "counts": lambda prompt, _: '{"x":1}' if prompt.startswith("a") else "{}"})
    assert batch.prepare(str(program), rows, out)(backend, None) == 0
    if target == ".jsonl":
        found = sorted((row["index"], row["values"]) for row in map(json.loads, out.read_text().splitlines()))
        assert found == [(0, {"n": 4, "counts": {"x": 1}}), (1, {"n": 4, "counts": {}})]
        return
    table = [*batch._format(out, "--in")[0]()]
    assert [(row["n"], row["counts"]) for row in table] == [
        ("4" if target == ".csv" else 4, text) for text in ('{"x": 1}', "{}")
    ]
    assert table[0]["box"] == ('{"w": 1}' if target == ".csv" else {"w": 1}), "a column of the input stays as it is"


def test_text_becomes_what_a_union_of_numbers_and_none_takes(tmp_path: Path) -> None:
    program, rows, out = tmp_path / "program.py", tmp_path / "rows.csv", tmp_path / "out.jsonl"
    program.write_text(
        "from typing import Optional\nimport banyan as bn\n@bn.function\n"
        "def show(s, n: int | None, x: Optional[float], mixed: int | str, many: list[int]):\n"
        "    return [n, x, mixed, many]"
    )
    rows.write_text("n,x,mixed,many\n5,0.5,6,7\n,,,\n")
    assert run(program, rows, out) == 0
    found = sorted(map(json.loads, out.read_text().splitlines()), key=lambda row: row["index"])
    assert [row["ret_value"] for row in found] == [[5, 0.5, "6", "7"], [None, None, "", ""]]
    rows.write_text("n,x,mixed,many\nfive,,,\n")
    with pytest.raises(bn.ConfigError, match=r"row 0: n is 'five': Expected `int \| null`"):
        run(program, rows, tmp_path / "other.jsonl")


def test_empty_cell_is_the_default_of_a_number(tmp_path: Path) -> None:
    program, rows, out = tmp_path / "program.py", tmp_path / "rows.csv", tmp_path / "out.jsonl"
    program.write_text(
        "import banyan as bn\n@bn.function\n"
        "def show(s, level: int = 1, x: float | None = 0.5, word: str = 'w'):\n    return [level, x, word]"
    )
    rows.write_text("level,x,word\n5,2,y\n,,\n")
    assert run(program, rows, out) == 0
    found = sorted(map(json.loads, out.read_text().splitlines()), key=lambda row: row["index"])
    assert [row["ret_value"] for row in found] == [[5, 2.0, "y"], [1, None, ""]]


def test_failed_rows_are_named_and_have_no_results(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    write(rows, [{"text": "bad"}, {"text": "good"}])
    assert run(program, rows, out) == 1
    err = capsys.readouterr().err
    assert "row 0: AssertionError: " in err
    assert "1 of 2 items failed" in err
    assert f"1 of 2 rows have results in {out}" in err
    with out.open(newline="") as lines:
        assert [row["label"] for row in csv.DictReader(lines)] == ["", "fine"]


def test_rows_that_are_done_already_are_said(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After an edit of the program, old results looked like new ones."""
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    write(rows, [{"text": "bad"}, {"text": "good"}])
    said = f"1 of 2 rows are in {out}.jsonl already; delete it to compute them again\n"
    assert run(program, rows, out) == 1
    assert said not in capsys.readouterr().err
    program.write_text(PROGRAM.replace('assert text != "bad"', ""))
    out.unlink()
    assert run(program, rows, out) == 0
    assert said in capsys.readouterr().err


def test_interrupted_command_says_how_it_goes_on(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    write(tmp_path / "rows.csv", [{"text": "x"}])
    monkeypatch.setattr(bn.Program, "run_batch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(program, tmp_path / "rows.csv", tmp_path / "out.csv")
    expected = "banyan: interrupted; run the same command again to continue the batch\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("error", [OverflowError, NotImplementedError, RecursionError])
def test_value_that_cannot_be_written_is_one_line(
    error: type[Exception], program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of pyarrow, which may not be here: for numbers of 65 bits and for objects without fields."""

    def refuse(*_: Any) -> None:
        raise error("no column has this")

    monkeypatch.setattr(batch, "_write_csv", refuse)
    rows = tmp_path / "rows.jsonl"
    write(rows, [{"text": "x"}])
    with pytest.raises(bn.ConfigError, match=r"no column has this; the results are in .*out.csv.jsonl"):
        run(program, rows, tmp_path / "out.csv")


def test_results_take_no_column_of_the_row(program: Path, tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    write(rows, [{"text": "x", "label": "gold", "result_label": "of before"}])
    assert run(program, rows, out) == 0
    (row,) = batch._format(out, "--in")[0]()
    assert row == {
        "text": "x",
        "label": "gold",
        "result_label": "of before",
        "result_result_label": "fine",
        "ret_value": "[2, 3]",
    }


@pytest.mark.parametrize("target", [".csv", ".parquet"])
def test_columns_that_only_some_rows_have(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if target == ".parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(batch, "N_GROUP", 2)
    program, rows, out = tmp_path / "program.py", tmp_path / "rows.jsonl", tmp_path / f"out{target}"
    program.write_text(
        "import banyan as bn\n@bn.function\ndef label(s, text):\n    if text in 'ce': s += bn.gen(text)\n"
        "    return {'d': 1, 'e': 0.5}.get(text)"
    )
    write(rows, [{"text": "a"}, {"text": "b", "note": 1}, {"text": "c", "c": "gold"}, {"text": "d"}, {"text": "e"}])
    assert run(program, rows, out) == 0
    found = [*batch._format(out, "--in")[0]()]
    assert {name: [row[name] or None for row in found] for name in found[0]} == {
        "text": [*"abcde"],
        "note": [None, "1" if target == ".csv" else 1, None, None, None],
        "c": [None, None, "gold", None, None],
        "result_c": [None, None, "fine", None, None],
        "ret_value": [None, None, None, *(("1", "0.5") if target == ".csv" else (1.0, 0.5))],
        "e": [None, None, None, None, "fine"],
    }
    assert not [*tmp_path.glob("*.part")]


@pytest.mark.parametrize("value", ["n if n < 2 else 'two'", "2**64"])
def test_values_that_a_column_cannot_have_stay_in_the_checkpoint(value: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    program, rows, out = tmp_path / "program.py", tmp_path / "rows.csv", tmp_path / "out.parquet"
    program.write_text(f"import banyan as bn\n@bn.function\ndef mix(s, n: int):\n    return {value}")
    write(rows, [{"n": n} for n in range(3)])
    with pytest.raises(bn.ConfigError, match=r"--out .*out.parquet: .*; the results are in .*out.parquet.jsonl"):
        run(program, rows, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.parquet.jsonl", "program.py", "rows.csv"]
    assert run(program, rows, tmp_path / "out.parquet.jsonl") == 0


@pytest.mark.parametrize("target", [".csv", ".parquet"])
def test_half_of_a_surrogate_pair_is_written_as_its_escape(target: str, program: Path, tmp_path: Path) -> None:
    if target == ".parquet":
        pytest.importorskip("pyarrow")
    rows, out = tmp_path / "rows.jsonl", tmp_path / f"out{target}"
    rows.write_text('{"text": "ok", "note": "\\ud83d", "many": ["\\ud83d"]}\n{"text": "ok", "note": "x", "many": []}\n')
    assert run(program, rows, out) == 0
    found = [*batch._format(out, "--in")[0]()]
    assert [(row["note"], row["label"]) for row in found] == [("\\ud83d", "fine"), ("x", "fine")]
    assert found[0]["many"] == ('["\\ud83d"]' if target == ".csv" else ["\\ud83d"])


def test_escapes_reach_all_text_of_a_value() -> None:
    value = {"\ud83d": ["a\ud83d", {"x": "\U0001f642"}], "n": 1}
    assert batch._escaped(value) == {"\\ud83d": ["a\\ud83d", {"x": "\U0001f642"}], "n": 1}


def test_long_fields_of_csv_are_read(program: Path, tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    write(rows, [{"text": "x" * 200_000}])
    assert run(program, rows, out) == 0
    assert [len(row["text"]) for row in batch._format(out, "--in")[0]()] == [200_000]


def test_input_is_not_overwritten(program: Path, tmp_path: Path) -> None:
    for name, out in (("rows.csv", "rows.csv"), ("rows.csv.jsonl", "rows.csv")):
        write(tmp_path / name, [{"text": "good"}])
        with pytest.raises(bn.ConfigError, match="is the file that --in reads"):
            run(program, tmp_path / name, tmp_path / out)


@pytest.mark.parametrize("out", ["folder.csv", "folder.jsonl", "results.csv", "none/out.jsonl"])
def test_results_that_cannot_be_written_are_refused_before_a_row_runs(out: str, program: Path, tmp_path: Path) -> None:
    write(tmp_path / "rows.csv", [{"text": "good"}])
    for name in ("folder.csv", "folder.jsonl", "results.csv.jsonl"):
        (tmp_path / name).mkdir()
    with pytest.raises(bn.ConfigError, match=r"--out: .* is a directory|none is missing or cannot be written to"):
        batch.prepare(str(program), tmp_path / "rows.csv", tmp_path / out)


def test_disk_that_is_full_is_an_error_and_the_batch_goes_on(program: Path, tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    write(rows, [{"text": "good", "n": n} for n in range(40)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for n_bytes, message in ((700, "out.csv.jsonl'; run the same command again"), (1000, "run the same command again")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
        try:
            with pytest.raises(bn.ConfigError, match=f"File too large.*{message}"):
                run(program, rows, out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not out.exists()
    assert run(program, rows, out) == 0
    with out.open(newline="") as lines:
        assert [int(row["n"]) for row in csv.DictReader(lines)] == [*range(40)]


@pytest.mark.parametrize(
    ("rows", "text", "message"),
    [
        ("rows.txt", "x", "must end in .jsonl, .csv or .parquet"),
        ("none.csv", None, "there is no file"),
        ("rows.csv", "", "has no rows"),
        ("rows.csv", "words\nx\n", "label takes 'text', but the file has only the columns words"),
        ("rows.csv", "text,n,n\nx,1,2\n", "two columns of .* have the same name: text, n, n"),
        ("rows.csv", "text,n\nx,1,2\n", "line 2 of .* has a different number of fields"),
        ("rows.csv", 'text\n"x\n', "line 1 of .*: unexpected end of data"),
        ("rows.csv", b"text\nx\n\xe9t\xe9\n", "line 3 of .* is not UTF-8"),
        ("rows.jsonl", '{"text": "x"}\n[1]\n', "line 2 of .* is not a JSON object"),
        ("rows.jsonl", '{"text": "x"}\n{"text\n', "line 2 of "),
        ("rows.csv", "text,n\nx,1\nx,two\n", "row 1: n is 'two'"),
        ("rows.jsonl", '{"text": "x", "n": 1}\n{"text": "x"}\n', "row 1 has no n"),
        ("rows.jsonl", '{"text": "x"}\n{"text": "x", "n": 1}\n', "row 1 has n, which the first row does not have"),
    ],
)
def test_rows_that_do_not_fit(rows: str, text: str | bytes | None, message: str, program: Path, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / rows).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(bn.ConfigError, match=message):
        run(program, tmp_path / rows, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_row_of_too_many_nested_lists_is_named(program: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "x"}\n{"text": ' + 100_000 * "[")
    with pytest.raises(bn.ConfigError, match=r"line 2 of .*recursion"):
        run(program, rows, tmp_path / "out.jsonl")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_rows_that_cannot_be_opened(
    suffix: str, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    rows = tmp_path / f"rows{suffix}"
    rows.touch()
    monkeypatch.setattr(Path, "open", refuse)  # not `chmod`, which does not stop root
    with pytest.raises(bn.ConfigError, match=r"--in: .*Permission denied: .*rows\."):
        run(program, rows, tmp_path / "out.jsonl")


@pytest.mark.parametrize("damage", ["empty", "footer", "page"])
def test_corrupt_parquet_is_an_error(damage: str, program: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = tmp_path / "rows.parquet"
    write(rows, [{"text": f"a text {i}"} for i in range(1000)])
    data = rows.read_bytes()
    middle = len(data) // 2
    broken = {"empty": b"", "footer": data[:middle], "page": data[:4] + b"\xff" * middle + data[4 + middle :]}
    rows.write_bytes(broken[damage])
    with pytest.raises(bn.ConfigError, match=r"--in .*rows.parquet: "):
        run(program, rows, tmp_path / "out.jsonl")


def test_program_is_found_by_name(program: Path, tmp_path: Path) -> None:
    assert batch.find(str(program)).name == "label"
    program.write_text(PROGRAM + PROGRAM.replace("def label", "def other"))
    with pytest.raises(bn.ConfigError, match=r"has the programs label, other: name one as .*program.py:NAME"):
        batch.find(str(program))
    assert batch.find(f"{program}:other").name == "other"
    with pytest.raises(bn.ConfigError, match="no program 'labels'; did you mean label"):
        batch.find(f"{program}:labels")
    with pytest.raises(bn.ConfigError, match="there is no program file"):
        batch.find(str(tmp_path / "nothing.py"))


def test_program_file_that_cannot_be_read_is_one_line(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(program))

    (tmp_path / "rows.csv").write_text("text\nx\n")
    monkeypatch.setattr(batch, "open", refuse, raising=False)  # not `chmod`, which does not stop root
    monkeypatch.setattr("runpy.run_path", refuse)
    rest = ["--in", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "out.jsonl")]
    for command in (["run", str(program)], ["batch", str(program), *rest]):
        assert cli.main(command) == 2
        err = capsys.readouterr().err
        assert err.startswith("banyan: the program file cannot be read: [Errno 13] Permission denied: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize("text", ['{"text": "x", "s": "y"}\n', '{"text": "x"}\n{"text": "x", "s": "y"}\n'])
def test_column_with_the_name_of_the_state_is_not_taken(
    text: str, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.csv"
    rows.write_text(text)
    assert run(program, rows, out) == 0
    is_in_first = text.count("\n") == 1
    assert ("does not take: s" in capsys.readouterr().err) == is_in_first
    with out.open(newline="") as lines:
        found = list(csv.DictReader(lines))
    assert (found[-1]["s"], found[-1]["label"]) == ("y", "fine")
    program.write_text("import banyan as bn\n@bn.function\ndef every(s, **row): pass\n")
    with pytest.raises(bn.ConfigError, match=r"every names its state 's'|row 1 has s, which the first row does not"):
        run(program, rows, tmp_path / "other.csv")
    program.write_text("import banyan as bn\n@bn.function\ndef every(s, /, **row): return row.get('s')\n")
    if is_in_first:  # a state without a keyword leaves its name free
        assert run(program, rows, tmp_path / "free.jsonl") == 0
        assert '"y"' in (tmp_path / "free.jsonl").read_text()


def test_bound_parameter_needs_no_column(program: Path, tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.csv", tmp_path / "out.jsonl"
    program.write_text(
        "import banyan as bn\n@bn.function\ndef base(s, text, style): return f'{text} {style}'\n"
        "short = base.bind(style='short')\n"
    )
    rows.write_text("text\nx\n")
    assert batch.prepare(f"{program}:short", rows, out)(bn.Mock("fine"), None) == 0
    assert json.loads(out.read_text())["ret_value"] == "x short"
    rows.write_text("text,style\nx,long\n")
    out.unlink()
    assert batch.prepare(f"{program}:short", rows, out)(bn.Mock("fine"), None) == 0
    assert json.loads(out.read_text())["ret_value"] == "x long", "as a keyword of `run`, a column overrides"


def test_type_hints_of_the_file_are_read_when_the_program_runs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import Literal\n"
        "import banyan as bn\n@dataclass\nclass Ticket:\n    kind: Literal['a', 'b']\n"
        "@bn.function\ndef label(s, text: str):\n    s += text + bn.gen('ticket', type=Ticket)"
    )
    state = batch.find(str(program)).run("x", backend=bn.Mock('{"kind":"a"}'))
    assert state.value("ticket").kind == "a"


def test_only_annotations_of_columns_are_evaluated(tmp_path: Path) -> None:
    program, rows, out = tmp_path / "program.py", tmp_path / "rows.csv", tmp_path / "out.jsonl"
    program.write_text(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nimport banyan as bn\n"
        "if TYPE_CHECKING:\n    from banyan import State\n    from texts import Text\n"
        "@bn.function\ndef label(s: State, text: Text, n: int):\n    return [text, n]"
    )
    rows.write_text("text,n\nx,1\n")
    assert run(program, rows, out) == 0
    assert json.loads(out.read_text())["ret_value"] == ["x", 1]
