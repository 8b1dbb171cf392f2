"""The checkpoint file of a batch: a JSON line for each finished item.

A line is written when its item has finished, so the file tells which items are left to run. A process that is killed
leaves at most one incomplete line, which the next process cuts off. So each finished item has one line in the end.
To recognise finished items, the process keeps a digest of 4 bytes for each item up to the last one in the file, and
frees the digests when the batch has passed that item.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import closing
from functools import cached_property, partial
from hashlib import blake2b
from itertools import count, islice
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, overload

import msgspec

from banyan.execution.batch import BatchRun, OnError, bar, check
from banyan.lang import images
from banyan.lang.json_types import plain
from banyan.lang.lazy_value import JoinedValues, LazyValue, read
from banyan.lang.state import State
from banyan.lang.state_base import with_state
from banyan.runtime.errors import (
    BadProgram,
    BanyanError,
    ConfigError,
    ProgramError,
    RuntimeLost,
    UnknownVariable,
    copy_of,
)

if TYPE_CHECKING:
    from banyan.execution.progress import Bar

CHUNK = 4096
"""Items in memory at a time. At the end of a chunk, for about the duration of one run, fewer programs run at once than
the concurrency allows."""
MAX_ERRORS = 100
"""Maximum number of errors that are kept, because an error holds the run that failed. Further items share one error."""


class BatchRecord(msgspec.Struct):
    """The results of an item of a batch with a checkpoint; `record["x"]` is the value of variable x. The record of a
    finished item is a JSON line of the file. That of a failed item has only its error, which reading a variable raises.

    The value of a gen with a type is written as JSON: a number, a list, an object. A pydantic model is written as an
    object. Any other value that JSON does not have is written as its text. An item fails whose results contain nan or
    inf, or an object without its own text.
    """

    index: Annotated[int, msgspec.Meta(ge=0)]
    """The index of the item in the batch."""
    item: Annotated[int, msgspec.Meta(gt=0, lt=1 << 32)]
    """A digest of the program and the item's arguments."""
    values: dict[str, Any]
    """The variables: name -> value."""
    ret_value: Any = None
    """What the body returned."""

    def __getitem__(self, name: str) -> Any:
        """The value of a variable. UnknownVariable (a KeyError): there is no such variable. If the item failed, raises
        its error."""
        if name not in self.values:
            have = ", ".join(map(repr, self.values)) or "none"
            raise UnknownVariable(f"there is no variable {name!r}; the variables are: {have}")
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def error(self) -> BaseException | None:
        """The error of the item. None: the item has finished."""
        return None


class _FailedRecord(BatchRecord):
    """Placeholder for an item that failed, and so has no line in the file."""

    failure: Any = None

    def __getitem__(self, name: str) -> Any:
        raise copy_of(self.failure) if isinstance(self.failure, BanyanError) else self.failure

    def error(self) -> BaseException | None:
        return self.failure  # type: ignore[no-any-return]


class BatchFile(Sequence[BatchRecord]):
    """The records of all items of a batch: a sequence by item index, read from the file one record at a time. For a
    failed item, which has no record in the file, it has one without values.

    program: everything on which the results depend besides the items, such as the program's name and its bound
    arguments. ConfigError: the file cannot be opened, is not a checkpoint, or another process has it open.
    """

    def __init__(self, path: str | Path, program: Any = None) -> None:
        self.path = Path(path)
        self._program = msgspec.Raw(_digested(program))  # made now, because the runs may change a bound argument
        try:
            self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ConfigError(f"checkpoint {path} is open in another process; name another file, or wait") from None
        except OSError as e:
            raise ConfigError(f"checkpoint {path} cannot be opened: {e.strerror}") from e
        # index -> digest of an item that had a record when the file was opened; 0: it had none
        self._digests = array("I")
        self._end = 0
        self._read()
        self.n_done = sum(map(bool, self._digests))
        """The number of items that have finished."""
        self.n_items = 0
        """The number of all items, once they have run."""
        self.errors: dict[int, BaseException] = {}
        """Index of a failed item -> its error."""

    def __repr__(self) -> str:
        return f"<BatchFile {self.path}: {self.n_done} items finished, {len(self.errors)} failed>"

    def _read(self) -> None:
        """Note which items have a record, and cut an incomplete line off the end."""
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and line[: len(_START)] == _START[: len(line)]:
                    self._file.truncate(self._end)
                    break
                try:
                    record = _DECODER.decode(line)
                except msgspec.DecodeError as e:
                    self.close()
                    raise ConfigError(
                        f"line {number} of {self.path} is not a record of a batch ({e}); "
                        "name another file as checkpoint"
                    ) from None
                _put(self._digests, record.index, record.item)
                self._end += len(line)

    def digest(self, item: Any) -> int:
        """A 32-bit digest of the program and the item's arguments; 0 if there is none. Must be called before the run of
        the item, which may change its arguments."""
        try:
            data = _digested((self._program, item))
        except Exception:  # half of a surrogate pair; a list in itself; from an object's own code, as of a broken image
            return 0
        return int.from_bytes(blake2b(data, digest_size=4).digest(), "little") or 1

    def has(self, index: int, digest: int) -> bool:
        """Whether an item had a record when the file was opened. Must be called in the order of the items.
        ConfigError: the record belongs to other arguments, or to another program."""
        if index >= len(self._digests):
            self._digests = array("I")  # no later item had one
            return False
        if not self._digests[index]:
            return False
        if self._digests[index] != digest:
            raise ConfigError(
                f"{self.path}: item {index} was recorded with different arguments or a different program; "
                "name another file as checkpoint"
            )
        return True

    def check_number(self, n: int) -> None:
        """Check that all records belong to the first `n` items. ConfigError: there is a record of a later item."""
        if len(self._digests) > n:
            raise ConfigError(
                f"{self.path} has a record of item {len(self._digests) - 1}, but there are {n} items; "
                "name another file as checkpoint"
            )

    def write(self, index: int, digest: int, state: State) -> None:
        """Add the record of an item that has finished. OSError: the file cannot grow; then no part of the record is in
        it. BadOutput: a text that the body did not read is not a valid object of its gen's type. BadProgram: the item
        has no digest, or JSON cannot hold its results."""
        if not digest:
            raise BadProgram(
                f"item {index} cannot be distinguished from others: it contains half of a surrogate pair, "
                "a broken image, or itself"
            )
        values = {name: _json_value(_result(value), f"the variable {name!r}") for name, value in state._values.items()}
        record = BatchRecord(index, digest, values, _json_value(state.ret_value, "what the body returned"))
        line = memoryview(msgspec.json.encode(record, enc_hook=plain) + b"\n")
        end = self._end + len(line)
        try:
            while line:
                line = line[self._file.write(line) :]  # a disk that is nearly full may take only a part
        except OSError as e:
            self._file.truncate(self._end)
            raise OSError(e.errno, e.strerror, str(self.path)) from e
        self._end = end
        self.n_done += 1

    def close(self) -> None:
        """Close the file for writing. Its records can still be read."""
        self._file.close()
        self._digests = array("I")

    @cached_property
    def _places(self) -> array[int]:
        """For each item, the position of its record in the file, in bytes, plus 1; 0: the item has no record."""
        places, end = array("I" if self._end < 1 << 32 else "Q", [0]) * self.n_items, 1
        with open(self.path, "rb") as lines:
            for line in lines:
                _put(places, _DECODER.decode(line).index, end)
                end += len(line)
        return places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> BatchRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[BatchRecord]: ...
    def __getitem__(self, index: int | slice) -> BatchRecord | list[BatchRecord]:
        """The record of an item. IndexError: there is no such item."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no item {index}; the batch has {len(self)} items")
        with open(self.path, "rb") as lines:
            return self._record(index % len(self), lines)

    def __iter__(self) -> Iterator[BatchRecord]:
        """The records in the order of their items."""
        with open(self.path, "rb") as lines:
            for index in range(len(self)):
                yield self._record(index, lines)

    def _record(self, index: int, lines: BinaryIO) -> BatchRecord:
        if not (place := self._places[index]):
            error = self.errors.get(index) or ProgramError(f"item {index} has no record in {self.path}")
            return _FailedRecord(index, 0, {}, failure=error)
        lines.seek(place - 1)
        return _DECODER.decode(lines.readline())


_START = b'{"index":'
_NOT_KEPT = ProgramError(
    f"the item failed; a batch with a checkpoint keeps the errors of {MAX_ERRORS} items only: run it again for others"
)
_ADDRESS = re.compile(" at 0x[0-9a-f]+", re.IGNORECASE)
_DECODER = msgspec.json.Decoder(BatchRecord)


def _put(numbers: array[int], index: int, number: int) -> None:
    """Set numbers[index] to number. If the array is too short, fill it up with zeros first."""
    if (missing := index + 1 - len(numbers)) > 0:
        numbers.frombytes(bytes(missing * numbers.itemsize))
    numbers[index] = number


def _digested(value: Any) -> bytes:
    """The JSON text of a value, from which digests are made."""
    try:
        return msgspec.json.encode(value, enc_hook=_in_digest, order="sorted")
    except TypeError:  # only keys that are text can be sorted
        value = msgspec.json.decode(msgspec.json.encode(value, enc_hook=_in_digest))
        return msgspec.json.encode(value, order="sorted")


def _in_digest(value: Any) -> Any:
    """Returns what is hashed in place of a value that JSON does not have: its fields or its text, and the data of an
    image or array. The result must be the same in each process, so memory addresses are removed. All objects of a class
    without a text are the same."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    kind: Any = type(value)
    if hasattr(kind, "model_dump_json"):  # a pydantic model
        return value.model_dump()
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return kind.__qualname__
    text = f"{kind.__qualname__} {_ADDRESS.sub('', str(value))}"
    return text if (data := _data(value)) is None else [text, data]


def _data(value: Any) -> Any:
    """What the text of a PIL image or of an array leaves out: a hash of the pixels or items, and what else makes two of
    them differ; or the items. None for any other value."""
    kind = type(value)
    if not getattr(value, "ndim", 1):  # a number, whose text is complete
        return None
    if hasattr(kind, "tobytes") and not getattr(getattr(value, "dtype", None), "hasobject", False):
        palette = value.getpalette("RGBA") if hasattr(kind, "getpalette") else None
        orientation = value.getexif().get(images.ORIENTATION) if hasattr(kind, "getexif") else None
        data = blake2b(value.tobytes(), digest_size=16).hexdigest()
        return [data, getattr(value, "shape", None), palette, orientation]
    return value.tolist() if hasattr(kind, "tolist") else None  # of Python objects, `tobytes` has the addresses


def _json_value(value: Any, name: str) -> Any:
    """Convert a result to the types of JSON, except the keys of dicts. name: what the result is called in errors.
    BadProgram: it contains an object without a text, or nan or inf, which msgspec would write as null."""
    try:
        found = msgspec.to_builtins(value, enc_hook=partial(plain, holder=name))
    except TypeError as e:
        raise BadProgram(str(e)) from e
    if not _is_finite(found):
        raise BadProgram(f"{name} contains nan or inf, which JSON does not have")
    return found


def _is_finite(value: Any) -> bool:
    match value:
        case float():
            return isfinite(value)
        case dict():
            return all(map(_is_finite, value.values()))
        case list() | tuple():
            return all(map(_is_finite, value))
    return True


def _until_error(items: Iterable[Any], errors: list[Exception]) -> Iterator[Any]:
    """Yields the items. If the iterable raises an exception, adds the exception to `errors` and ends."""
    try:
        yield from items
    except Exception as e:
        errors.append(e)


def _result(value: Any) -> Any:
    """What the record of an item holds of a variable. The value of a gen with a type is that of the type; if the type
    is written as JSON, it is the JSON value. The text instead, if the body has already got the BadOutput for it: the
    body has dealt with it. BadOutput: the text is not valid for the type; for a variable of joined branches: ForkError.
    An item with an invalid text must get no record, because an item with a record never runs again."""
    if isinstance(value, JoinedValues):
        return value.read() if value.is_changed else value.each(_result)
    if not isinstance(value, LazyValue) or value.was_refused:
        return read(value)
    found = value.value()
    if value.output_type is None or not value.output_type.is_json:
        return found
    texts = value.read()
    return json.loads(texts) if isinstance(texts, str) else [*map(json.loads, texts)]


def run_to_file(
    items: Iterable[Any],
    file: BatchFile,
    start: Callable[[dict[int, Any], Bar | None], BatchRun],
    title: str | None,
    on_error: OnError,
) -> BatchFile:
    """Run the items that the file has no record of, CHUNK at a time, so that memory does not grow with their number.

    start: makes a BatchRun of {index: item}; its runs are counted in the bar, if one is shown. title: the title of the
    progress bar; None: no bar. BatchError: items failed; RuntimeLost: the server is gone. If `items` raises, its error
    is raised once the items before it have been run.
    """
    total = len(items) if isinstance(items, Sized) else None
    with closing(file), bar(title, total) as shown:
        if shown is not None:
            shown.skip(file.n_done)
        if total is not None:
            file.check_number(total)
        numbers, broken = count(), list[Exception]()
        numbered = zip(_until_error(items, broken), numbers, strict=False)
        digested = ((i, item, file.digest(item)) for item, i in numbered)
        left = ((i, (item, digest)) for i, item, digest in digested if not file.has(i, digest))
        while chunk := dict(islice(left, CHUNK)):
            run = start({i: item for i, (item, _) in chunk.items()}, shown)
            for state in run.results("return", ordered=False):
                assert state.index is not None
                if (error := state.error()) is None:
                    try:
                        file.write(state.index, chunk[state.index][1], state)
                        continue
                    except (BanyanError, ValueError, RecursionError) as e:
                        # an invalid object; a variable of a branch that failed or was dropped; half of a surrogate
                        # pair; a list in itself
                        error = e
                if isinstance(error, RuntimeLost):
                    raise with_state(error, state)
                file.errors[state.index] = error if len(file.errors) < MAX_ERRORS else _NOT_KEPT
        if broken:
            raise broken[0]
        file.n_items = next(numbers)
        file.check_number(file.n_items)
    if on_error == "raise":
        check(file.errors, file.n_items, file, "run the batch again to repeat only these; ")
    return file
