"""Replays a recording: a backend without a model, which gives the recorded answers, or says what differs."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from banyan.backends.base import Question
from banyan.backends.job import CallTurn, Job, LocalPrompt, Output, Piece, ToolResults, n_common
from banyan.backends.local import LocalProgram
from banyan.backends.replay.recording_file import OF_MODEL, Asked, DigestedPrompt, TapeEntry, asked_of, read
from banyan.execution.clock import clock
from banyan.runtime.errors import Cancelled, ReplayMismatch, from_code
from banyan.runtime.executor.executor import Executor
from banyan.runtime.executor.generator import GenOutcome
from banyan.runtime.protocol import wire

PATIENCE = 60.0
"""Seconds until a gen fails that has no answer in the recording because its branch was dropped. A program that waits
for it does not do what was recorded, and must not wait for ever."""


class Replay:
    """Answers gens and selects from the file `path` that a `Record` wrote.

    Each entry of the file answers once. If a gen runs again with the same prompt and options, it gets the next entry
    that was recorded for them; entries of the same state come first. Gens of one message are answered in the order of
    the file, so that a race has the same winner. A gen whose branch was dropped before it was answered waits until the
    branch is dropped again; after a minute it fails with ReplayMismatch. So does, at once, a gen that was not
    recorded; the error names the first difference. ConfigError: the file cannot be read, is not a recording, or has
    another version.
    """

    refuses: frozenset[str] = frozenset()
    """Empty, because a gen with a feature that was not recorded fails with ReplayMismatch anyway."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        header, entries = read(self.path)
        self.welcome = wire.Welcome(version=wire.VERSION, **{name: getattr(header, name) for name in OF_MODEL})
        self.enforces_schemas = header.enforces_schemas
        self._entries = entries
        self._left: dict[str, list[tuple[int, TapeEntry]]] = defaultdict(list)
        for place, entry in enumerate(entries):
            self._left[entry.key].append((place, entry))
        self._by_key = {entry.key: entry for entry in entries}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Replay of {self.path}, {len(self._entries)} gens>"

    @property
    def unused(self) -> list[tuple[str, str]]:
        """(program, gen) of each entry that has not answered yet, in the order of the recording."""
        with self._lock:
            left = sorted(place for entries in self._left.values() for place, _ in entries)
        return [(self._entries[place].program, self._entries[place].name) for place in left]

    def program(self, name: str = "") -> LocalProgram:
        return _ReplayedProgram(self, name)

    def ask(self, what: Question) -> Any:
        """Returns a dict with the model's name, the number of entries, and the number of entries that have not answered
        yet. The answer is the same for each `what`."""
        return {"model": self.welcome.model, "n_entries": len(self._entries), "n_unused": len(self.unused)}

    def start(self, job: Job) -> None:
        """Answer a gen or select; called by programs."""
        assert isinstance(job.prompt, DigestedPrompt)
        assert isinstance(job.owner, _ReplayedProgram)
        key = job.prompt.digest().key(asked_of(job.op))
        with self._lock:
            left = self._left.get(key, [])
            found = next((one for one in left if one[1].state == job.state), left[0] if left else None)
            if found is not None:
                left.remove(found)
        if found is None:
            raise self._mismatch(job, key)
        job.owner.answer(found[0], job, found[1])

    # ---- mismatches ------------------------------------------------------------------------------------------------

    def _mismatch(self, job: Job, key: str) -> ReplayMismatch:
        what = f"gen {job.op.name!r}" if isinstance(job.op, wire.Gen) else f"select {job.op.name!r}"
        if key in self._by_key:
            n = sum(entry.key == key for entry in self._entries)
            times = "once" if n == 1 else f"{n} times"
            return ReplayMismatch(f"{self.path}: {what} was recorded {times} with this prompt, but runs once more")
        same = [entry for entry in self._entries if (entry.program, entry.name) == (job.program, job.op.name)]
        if not same:
            names = ", ".join(dict.fromkeys(repr(e.name) for e in self._entries if e.program == job.program))
            have = f"; of this program it has {names}" if names else "; it has no gen of this program"
            return ReplayMismatch(f"{self.path} has no {what} of program {job.program!r}{have}")
        now = _plain(job.prompt.pieces)
        prompts = {id(entry): _plain(self._prompt(entry)) for entry in same}
        asked = asked_of(job.op)
        # The longest common beginning of the prompt, then the fewest different options.
        nearest = max(same, key=lambda e: (n_common(prompts[id(e)], now), -len(_differences(e.asked, asked))))
        then = prompts[id(nearest)]
        if then != now:
            at = n_common(then, now)
            return ReplayMismatch(
                f"{self.path}: the prompt of {what} differs from the recorded one at character {at}: "
                f"recorded {_around(then, at)}, now {_around(now, at)}"
            )
        differences = "; ".join(_differences(nearest.asked, asked)) or "images, raw texts or tool calls of the prompt"
        return ReplayMismatch(f"{self.path}: {what} has the text of the recorded prompt, but differs in {differences}")

    def _prompt(self, entry: TapeEntry) -> list[Piece]:
        """The recorded prompt of an entry."""
        chain = [entry]
        while (before := self._by_key.get(chain[-1].after)) is not None:
            chain.append(before)
        pieces: list[Piece] = []
        calls: tuple[wire.WireToolCall, ...] = ()
        for one in reversed(chain):
            if one.answers:
                pieces.append(ToolResults(tuple(zip([call.id for call in calls], one.answers, strict=False))))
            pieces += one.parts
            if one is not entry:
                calls = one.calls
                pieces += [CallTurn(x.text, calls) if calls else Output(x.text) for x in one.samples[:1]]
        return [*pieces, *(text for pair in entry.refused for text in pair)]


class _ReplayedProgram(LocalProgram):
    """A program whose jobs, if started together, are answered in the order of their entries."""

    def __init__(self, replay: Replay, name: str) -> None:
        super().__init__(replay, name)
        self._answers: list[tuple[int, Job, TapeEntry]] = []  # a heap
        self._is_answering = False

    def prompt(self, program: Executor) -> DigestedPrompt:
        return DigestedPrompt(self._backend.welcome.chat, self.name)

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        with self._answering():
            super().submit(ops, last)

    def answer(self, place: int, job: Job, entry: TapeEntry) -> None:
        """Answer a job once all jobs of the current message that can start have started. place: that of the entry."""
        with self._lock:
            heappush(self._answers, (place, job, entry))
        with self._answering():
            pass

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Give all answers after the block, or after another such block that is open on any thread."""
        with self._lock:
            is_outer, self._is_answering = not self._is_answering, True
        try:
            yield
        finally:
            while is_outer:
                with self._lock:
                    if not self._answers:
                        self._is_answering = False
                        break
                    _, job, entry = heappop(self._answers)
                _give(job, entry)


def _give(job: Job, entry: TapeEntry) -> None:
    """Answer a job with an entry."""
    if entry.error is not None and entry.error.code == Cancelled.code:
        missing = ReplayMismatch(f"{entry.name!r} was recorded without an answer, because its branch was dropped")
        job.on_stop(clock().call(time.monotonic() + PATIENCE, partial(job.fail, missing)).cancel)
    elif entry.error is not None:
        job.fail(from_code(entry.error.code, entry.error.message))
    else:
        if isinstance(job.op, wire.Gen) and job.op.stream:
            for text in entry.thoughts or (entry.samples[0].reasoning,):
                job.deliver_separated(text, is_thought=True)
            for text in entry.pieces or (() if entry.calls else (entry.samples[0].text,)):
                job.deliver_separated(text)
        outcome = GenOutcome(entry.samples, entry.usage, entry.scores, calls=entry.calls, prompt=entry.prompt)
        job.finish(outcome, is_separated=True)


def _plain(pieces: Iterable[Piece]) -> str:
    """A prompt as text for an error message, with its turns in brackets."""
    pieces = list(pieces)
    roles = {"assistant", "tool", *(piece.role for piece in pieces if isinstance(piece, wire.BeginTurn))}
    prompt = LocalPrompt(wire.ChatMarkers({role: (f"[{role}: ", "]") for role in roles}), "")
    for piece in pieces:
        prompt.pieces.append(piece)
    return prompt.text


def _around(text: str, at: int) -> str:
    if at >= len(text):
        return f"the end, after {text[-20:]!r}"
    return repr(text[max(0, at - 20) : at + 30])


def _differences(then: Asked, now: Asked) -> list[str]:
    if type(then) is not type(now):
        return [f"kind: a {'gen' if isinstance(then, wire.Gen) else 'select'} was recorded"]
    found = []
    for name in then.__struct_fields__:
        one, other = getattr(then, name), getattr(now, name)
        if isinstance(one, wire.Sampling):
            pairs = [(field, getattr(one, field), getattr(other, field)) for field in one.__struct_fields__]
        else:
            pairs = [(name, one, other)]
        found += [f"{field}: recorded {a!r}, now {b!r}" for field, a, b in pairs if a != b]
    return found
