"""`banyan batch`: runs a program on each row of a file, and writes the results to another file."""

from __future__ import annotations

import csv
import inspect
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType, NoneType, SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from banyan.cli.parser import suggestion
from banyan.execution.batch import described
from banyan.execution.batch_file import BatchFile
from banyan.lang.program import Program
from banyan.runtime.errors import BatchError, ConfigError

Row = dict[str, Any]
_Read = Callable[[], Iterator[Row]]
_Write = Callable[[Path, _Read], None]
"""A function that writes rows. It iterates over them twice, since it must know all columns before it writes the first
row."""
_CONTINUE = "run the same command again to continue the batch"
N_SHOWN = 5
"""How many errors of rows are printed; the others are only counted."""
N_GROUP = 10_000
"""How many rows of Parquet are in memory at a time."""
_CONVERTED = (int, float, bool, NoneType)
"""A value is converted if its parameter has one of these types, or a union of them."""


def prepare(target: str, rows: Path, out: Path) -> Callable[[Any, int | None], int]:
    """Find the program and check that the rows fit it. Returns a function that takes a backend and a concurrency, runs
    the batch, and returns the exit status.

    ConfigError: a file is missing or has another format, the columns do not fit, or `out` cannot be written.
    """
    program = find(target)
    read, write = _format(rows, "--in")[0], _format(out, "--out")[1]
    columns, unused = arguments(program, read)
    items = Items(program, read, columns)
    if unused:
        print(f"columns of {rows} that {program.name} does not take: {', '.join(unused)}", file=sys.stderr)
    checkpoint = out if out.suffix == ".jsonl" else out.with_name(out.name + ".jsonl")
    for path in (out, checkpoint):
        if path.exists() and path.samefile(rows):
            raise ConfigError(f"--out: {path} is the file that --in reads; name another one")
        if path.is_dir():
            raise ConfigError(f"--out: {path} is a directory; name a file")
    place = out if write is None and out.exists() else out.parent  # a file that exists needs no new one beside it
    if not os.access(place, os.W_OK):
        raise ConfigError(f"--out: {place} is missing or cannot be written to")

    def run(backend: Any, concurrency: int | None) -> int:
        status = 0
        with closing(BatchFile(checkpoint)) as file:
            n_done = file.n_done
        if n_done:  # an edit of the program does not change them, which nothing else would show
            note = f"{n_done} of {len(items)} rows are in {checkpoint} already; delete it to compute them again"
            print(note, file=sys.stderr)
        try:
            records = program.run_batch(
                items, checkpoint=checkpoint, backend=backend, concurrency=concurrency, progress_bar=True
            )
        except BatchError as e:
            records, status = e.results, 1  # type: ignore[assignment]
            for i, error in islice(e.errors.items(), N_SHOWN):
                print(f"row {i}: {described(error)}", file=sys.stderr)
            print(f"banyan: {e.message}", file=sys.stderr)
        except OSError as e:
            raise ConfigError(f"{e}; {_CONTINUE}") from e
        except KeyboardInterrupt:
            print(f"banyan: interrupted; {_CONTINUE}", file=sys.stderr)
            raise
        if write is not None:
            part = out.with_name(out.name + ".part")  # so that a file with the name of the output is never incomplete
            try:
                write(part, lambda: joined(read(), records))
                part.replace(out)
            except (OSError, ValueError, TypeError, ArithmeticError, NotImplementedError, RecursionError) as e:
                # no space, or values that no column of Parquet can have: {}, 2**64, lists in lists in lists ...
                raise ConfigError(f"--out {out}: {e}; the results are in {checkpoint}") from e
            finally:
                part.unlink(missing_ok=True)
        print(f"{records.n_done} of {len(items)} rows have results in {out}", file=sys.stderr)
        return status

    return run


def check_program_file(path: str) -> None:
    """Check that a program file can be read. ConfigError: it is missing or cannot be read."""
    try:
        if not Path(path).is_file():
            raise ConfigError(f"there is no program file {path}")
        open(path, "rb").close()
    except OSError as e:
        raise ConfigError(f"the program file cannot be read: {e}") from None


def find(target: str) -> Program[..., Any]:
    """Return the program that FILE.py or FILE.py:NAME names. The file runs as if it were imported."""
    path, _, name = target.partition(":")
    check_program_file(path)
    sys.path.insert(0, str(Path(path).absolute().parent))
    names = runpy.run_path(path, run_name="__batch__")
    module = sys.modules["__batch__"] = ModuleType("__batch__")  # runpy removes its own; type hints are looked up in it
    vars(module).update(names)
    programs = {key: value for key, value in names.items() if isinstance(value, Program)}
    if name and name not in programs:
        raise ConfigError(f"{path} has no program {name!r}{suggestion(name, programs)}")
    if not name and len(programs) != 1:
        have = f"has the programs {', '.join(programs)}: name one as {path}:NAME" if programs else "has no program"
        raise ConfigError(f"{path} {have}")
    return programs[name] if name else next(iter(programs.values()))


def arguments(program: Program[..., Any], read: _Read) -> tuple[list[str], list[str]]:
    """Returns the columns that the program takes, and the other columns. ConfigError: a column is missing or has the
    name of the program's state, or there is no row."""
    if (first := next(read(), None)) is None:
        raise ConfigError("--in: the file has no rows")
    state, *parameters = inspect.signature(program.func).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        if state.name in first and state.kind is not state.POSITIONAL_ONLY:
            raise ConfigError(f"--in: {program.name} names its state {state.name!r}, so no column can have this name")
        return list(first), []
    names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    needed = [p.name for p in parameters if p.name in names and p.default is p.empty and p.name not in program._bound]
    if missing := [name for name in needed if name not in first]:
        have = ", ".join(first)
        raise ConfigError(f"--in: {program.name} takes {missing[0]!r}, but the file has only the columns {have}")
    return [name for name in names if name in first], [name for name in first if name not in names]


class Items:
    """The rows of a file as arguments of the program. Each loop over them reads the file again. A file such as CSV
    holds only text, so a value is converted if its parameter is annotated as int, float, bool, or a union of these and
    None. "" is then None, if the union has it, or else the parameter's default, if it has one.

    ConfigError: a row does not fit. The constructor reads all rows once, so this error comes before any program runs.
    """

    def __init__(self, program: Program[..., Any], read: _Read, columns: list[str]) -> None:
        parameters = dict(list(inspect.signature(program.func).parameters.items())[1:])  # without the state
        kinds = {name: _evaluated(parameters[name].annotation, program) for name in columns if name in parameters}
        self._kinds = {name: kind for name, kind in kinds.items() if all(one in _CONVERTED for one in _members(kind))}
        self._optional = {p.name for p in parameters.values() if p.default is not p.empty} | program._bound.keys()
        self._read, self._columns = read, columns
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        # parameters without a column in the first row: no later row may have one
        self._others = None if takes_any else parameters.keys() - columns
        self._n = sum(1 for _ in self)

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Row]:
        for i, row in enumerate(self._read()):
            if missing := self._columns - row.keys():
                raise ConfigError(f"row {i} has no {missing.pop()}")
            if others := row.keys() - self._columns if self._others is None else row.keys() & self._others:
                raise ConfigError(f"row {i} has {others.pop()}, which the first row does not have")
            item = {name: row[name] for name in self._columns}
            for name, kind in self._kinds.items():
                if item[name] == "" and NoneType in _members(kind):  # how CSV writes None
                    item[name] = None
                if item[name] == "" and name in self._optional:
                    del item[name]
                    continue
                try:
                    item[name] = msgspec.convert(item[name], kind, strict=False)
                except msgspec.ValidationError as e:
                    raise ConfigError(f"row {i}: {name} is {item[name]!r}: {e}") from None
            yield item


def _evaluated(annotation: Any, program: Program[..., Any]) -> Any:
    """The type that an annotation means. None: it is unknown, for example because a name in it is not imported."""
    names = getattr(inspect.unwrap(program.func), "__globals__", {})
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"it": annotation}), names, include_extras=True)["it"]
    except Exception:
        return None


def _members(kind: Any) -> tuple[Any, ...]:
    """Returns the types of a union. For a type that is not a union, returns a tuple of this type alone."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def joined(rows: Iterator[Row], records: BatchFile) -> Iterator[Row]:
    """Yields each row with columns added for its results: the variables of its run, and "ret_value" if the program
    returned something. A row whose run failed gets no columns. If the row already has a column NAME, the result NAME
    is called `result_NAME`. Lists and objects become JSON text: a column of Parquet cannot hold every mix of them."""
    for row, record in zip(rows, records, strict=True):
        found = record.values | ({} if record.ret_value is None else {"ret_value": record.ret_value})
        for name, value in found.items():
            while name in row:  # not once: the row may have a column of that name too
                name = f"result_{name}"
            row[name] = _cell(value)
        yield row


# ---- formats -------------------------------------------------------------------------------------------------------


def _format(path: Path, flag: str) -> tuple[_Read, _Write | None]:
    """Choose the file format by the suffix of `path`. Returns (a function that reads the rows of `path`, a function
    that writes rows to a path). For .jsonl the second is None, because the batch itself appends the results to the
    --out file. flag: "--in" or "--out", which named `path`. ConfigError: the suffix is unknown, pyarrow is missing, or
    with "--in", the file cannot be read."""
    if flag == "--in":
        if not path.is_file():
            raise ConfigError(f"--in: there is no file {path}")
        try:
            path.open("rb").close()
        except OSError as e:
            raise ConfigError(f"--in: {e}") from None
    match path.suffix:
        case ".jsonl":
            return partial(_read_jsonl, path), None
        case ".csv":
            return partial(_read_csv, path), _write_csv
        case ".parquet":
            try:
                import_module("pyarrow.parquet")
            except ImportError:
                raise ConfigError(f"{flag} {path}: Parquet needs pyarrow; pip install 'banyan[parquet]'") from None
            return partial(_read_parquet, path), _write_parquet
    raise ConfigError(f"{flag} {path}: the name must end in .jsonl, .csv or .parquet")


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError) as e:
                raise ConfigError(f"line {number} of {path}: {e}") from None
            if not isinstance(row, dict | None):
                raise ConfigError(f"line {number} of {path} is not a JSON object")
            if row is not None:
                yield row


def _read_csv(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8-sig") as lines:
        csv.field_size_limit(sys.maxsize)  # the default is 131,072 characters, and results may be longer
        reader = csv.DictReader(lines, strict=True)
        try:
            names = reader.fieldnames or ()
            if len(set(names)) < len(names):
                raise ConfigError(f"two columns of {path} have the same name: {', '.join(names)}")
            for row in reader:
                if None in row or None in row.values():
                    raise ConfigError(
                        f"line {reader.line_num} of {path} has a different number of fields from the first line"
                    )
                yield row
        except csv.Error as e:
            raise ConfigError(f"line {reader.line_num} of {path}: {e}") from None
        except UnicodeDecodeError as e:  # the file is decoded in blocks, so the reader has not reached this line
            with path.open("rb") as data:
                number = next(n for n, line in enumerate(data, 1) if line.decode(errors="ignore").encode() != line)
            raise ConfigError(f"line {number} of {path} is not UTF-8: {e.reason}") from None


def _write_csv(path: Path, rows: _Read) -> None:
    """Write rows as CSV. Lists and objects are written as JSON, and half of a surrogate pair as its escape."""
    columns = dict.fromkeys(name for row in rows() for name in row)
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as lines:
        writer = csv.DictWriter(lines, list(columns))
        writer.writeheader()
        for row in rows():
            writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _read_parquet(path: Path) -> Iterator[Row]:
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            for group in file.iter_batches(N_GROUP):
                yield from group.to_pylist()
    except (OSError, ValueError, arrow.ArrowException) as e:
        raise ConfigError(f"--in {path}: {e}") from None


def _escaped(value: Any) -> Any:
    """The value with each half of a surrogate pair as its escape, as in CSV: UTF-8 cannot encode it."""
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case list():
            return [_escaped(one) for one in value]
        case dict():
            return {_escaped(name): _escaped(one) for name, one in value.items()}
    return value


def _write_parquet(path: Path, rows: _Read) -> None:
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")

    def tables(schema: Any = None) -> Iterator[Any]:
        left = rows()
        while group := list(map(_escaped, islice(left, N_GROUP))):
            columns = dict.fromkeys(name for row in group for name in row)
            yield arrow.Table.from_pylist([dict.fromkeys(columns) | group[0], *group[1:]], schema=schema)

    schema = arrow.schema([])
    for table in tables():
        schema = arrow.unify_schemas([schema, table.schema], promote_options="permissive")
    with parquet.ParquetWriter(path, schema) as writer:
        for table in tables(schema):
            writer.write_table(table)
