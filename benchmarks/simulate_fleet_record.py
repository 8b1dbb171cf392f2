"""Records real runs for `simulate_fleet.py --recorded`: the programs of examples/agents, on the pocket model.

    python benchmarks/simulate_fleet_record.py [--seed 0] [--out benchmarks/simulate_fleet_recording.json]

The programs get random inputs: questions for tools, number puzzles, batches of notes to label after one of several sets
of examples, batches of sentences to turn into JSON, and conversations. After each gen the client reads the exact tokens
of the state from the server. It notes when it sent each request or tool result, and when it got each answer. The file
has no text: it has a tree of pieces of token sequences, with their lengths, and the order, lengths and waits of the
requests. The runs follow one another, so waits are those of a client without other work. A request that the client sent
before it had the answer that the request continues counts as started by the server. Runs that fail are left out, and
counted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "agents"))
import chat
import extract
import few_shot
import react_tools
import tree_of_thought
from report import commit
from simulate_fleet import RECORDING
from simulate_fleet_recording import Generated, Recording, pieces_of, program_of

import banyan as bn
from banyan.backends.base import Backend, ProgramDefaults
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire
from pocket.words import DAYS, Draw

READS = 1 << 40
"""The read after the gen `ref` has the ref READS + ref."""
N_RUNS = {"agent": 120, "tree of thought": 24, "few-shot": 24, "JSON": 40, "chat": 80}
N_SETS = 8
"""Sets of examples for few-shot batches."""


class Watching:
    """A backend whose programs are `WatchedProgram`s, which it keeps in `programs`."""

    refuses: frozenset[str] = frozenset()

    def __init__(self, backend: Backend) -> None:
        self._backend, self.welcome, self.ask = backend, backend.welcome, backend.ask
        self.programs: list[WatchedProgram] = []

    def program(self, name: str = "") -> WatchedProgram:
        self.programs.append(program := WatchedProgram(self._backend, name))
        return program


class WatchedProgram(ProgramDefaults):
    """A program that also reads the state's tokens after each gen, and notes the times of requests and answers."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._program = backend.program(name)
        self.on_delta, self.limit, self.cancel = self._program.on_delta, self._program.limit, self._program.cancel
        self._sent: defaultdict[int, list[float]] = defaultdict(list)  # ref of a gen -> when each round was sent
        self._answered: defaultdict[int, list[float]] = defaultdict(list)

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        now, more = time.monotonic(), list[wire.Op]()
        for op in ops:
            more.append(op)
            if isinstance(op, wire.Gen | wire.Results):
                self._sent[op.ref].append(now)
            if isinstance(op, wire.Gen):
                self.future(op.ref).add_done_callback(partial(self._note, op.ref))
                more.append(wire.Read(op.state, READS + op.ref, tokens=True))
        self._program.submit(more, last)

    def future(self, ref: int) -> ValueFuture[wire.Value]:
        return self._program.future(ref)

    def on_call(self, ref: int, callback: Callable[[wire.Called], None]) -> None:
        def called(call: wire.Called) -> None:
            self._note(ref)
            callback(call)

        self._program.on_call(ref, called)

    def _note(self, ref: int, _: object = None) -> None:
        self._answered[ref].append(time.monotonic())

    def generated(self) -> list[Generated]:
        """The program's requests, in the order in which they were answered."""
        found = []
        for ref, times in self._sent.items():
            value, read = self.future(ref).result(), self.future(READS + ref).result(60)
            assert read.tokens is not None
            ids = tuple(array("i", read.tokens.ids))
            for sent, answered, usage in zip(times, self._answered[ref], value.rounds or (value.usage,), strict=True):
                text = ids[: usage.prompt + usage.generated]
                found.append(Generated(sent, answered, text, usage.prompt, max(usage.generated, 1)))
        return sorted(found, key=lambda one: one.answered)


def runs(backend: Watching, seed: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields (kind, run) of each run. Keep what `run` returns until the states have been read."""
    d = Draw(f"fleet {seed}")
    sets = [d.some(few_shot.NOTES, len(few_shot.NOTES)) for _ in range(N_SETS)]
    for _ in range(N_RUNS["agent"]):
        yield "agent", partial(react_tools.agent.run, question(d), backend=backend)
    for _ in range(N_RUNS["tree of thought"]):
        numbers = tuple(d.number(2, 20) for _ in range(3))
        (a, b, c), (first, second) = d.some(numbers, 3), (d.pick("+*"), d.pick("+*"))
        target = tree_of_thought.step(f"{a}{first}{b}", numbers)[-1]
        target = target * c if second == "*" else target + c
        yield "tree of thought", partial(tree_of_thought.solve.run, numbers, target, backend=backend)
    for i in range(N_RUNS["few-shot"]):
        examples, rest = sets[i % N_SETS][:12], sets[i % N_SETS][12:]
        shown = "".join(f"Text: {note['text']}\nLabel: {note['label']}\n\n" for note in examples)
        few_shot.PREFIX = f"Label each text.\n{shown}"
        notes = [{"text": note["text"]} for note in d.some(rest, d.number(4, 40))]
        yield "few-shot", partial(few_shot.label.run_batch, notes, backend=backend)
    for _ in range(N_RUNS["JSON"]):
        yield "JSON", partial(extract.extract.run_batch, [sentence(d) for _ in range(d.number(1, 8))], backend=backend)
    for _ in range(N_RUNS["chat"]):
        yield "chat", partial(chat.conversation.run, turns(d), backend=backend)


def question(d: Draw) -> str:
    items, units = d.some(tuple(react_tools.PRICES), 2), d.some(tuple(react_tools.METRES), 2)
    return d.pick((
        f"What is {d.value()} {d.pick(('times', 'plus'))} {d.value()}?",
        f"{d.name()} buys {d.number(2, 99)} {items[0]}s. What is the price?",
        f"How much do a {items[0]} and a {items[1]} cost?",
        f"Convert {d.value()} {units[0]} to {units[1]}.",
        f"What date is {d.number(2, 99)} days after {d.date()}?",
    ))  # fmt: skip


def sentence(d: Draw) -> dict[str, object]:
    if d.chance(0.5):
        bought = f"{d.full_name()} bought {d.number(2, 99)} {d.item()}s (order {d.code()})"
        return {"schema": extract.ORDER, "text": f"On {d.date()}, {bought} and paid {d.value()} euros."}
    name, age, job, city = d.full_name(), d.number(18, 90), d.pick(("carpenter", "dentist", "baker")), d.city()
    return {"schema": extract.PERSON, "text": f"Meet {name}: {age} years old, {job}, living in {city}."}


def turns(d: Draw) -> list[str]:
    known = {
        f"My name is {d.name()}.": "Who am I?",
        f"I bought a {d.item()}.": "What did I buy?",
        f"My exam is on {d.pick(DAYS)}.": "When is my exam?",
        f"I live in {d.city()}.": "Where do I live?",
    }
    told = d.some(tuple(known), d.number(1, 4))
    talk = d.some(("What is a banyan tree?", "Thanks!", "Who are you?", "How are you?"), d.number(1, 3))
    return [*(["Hello!"] if d.chance(0.5) else []), *told, *talk, *(known[one] for one in d.some(told, len(told)))]


def record(backend: Backend, seed: int, most: int | None = None) -> tuple[Recording, int]:
    """(The recording, number of runs that failed). most: the maximum number of runs of each kind."""
    watching, n_failed = Watching(backend), 0
    kinds: defaultdict[str, int] = defaultdict(int)
    found: list[tuple[str, list[list[Generated]]]] = []
    for kind, run in runs(watching, seed):
        kinds[kind] += 1
        if most is not None and kinds[kind] > most:
            continue
        watching.programs.clear()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                states = run()
            found.append((kind, [program.generated() for program in watching.programs]))
            del states
        except bn.ProgramError:
            n_failed += 1
    pieces, ends = pieces_of(one.ids for _, programs in found for program in programs for one in program)
    name = f"examples/agents on {backend.welcome.model}, seed {seed}, commit {commit()}"
    programs = [(kind, [program_of(one, ends) for one in several]) for kind, several in found]
    return Recording(name, pieces, programs), n_failed


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, default=RECORDING)
    args = options.parse_args()
    with bn.Runtime() as runtime:
        recording, n_failed = record(runtime, args.seed)
    args.out.write_bytes(msgspec.json.encode(recording))
    requests = [len(program.requests) for _, programs in recording.runs for program in programs]
    print(f"{len(recording.runs)} runs, {len(requests)} programs, {sum(requests)} requests; {n_failed} runs failed")
    print(f"{len(recording.pieces)} pieces; {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
