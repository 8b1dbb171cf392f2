"""Recorded programs for simulate_fleet.py: the file format, its making, and drawing programs from it.

Text that several programs of a recording share is the same in all drawn programs. All other text is new in each drawn
program, even if the same program is drawn again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))
from simulate_fleet_engine import Request, Turn
from simulate_fleet_work import Library, SimulatedProgram, digests_of, n_common, numbered

PAGE = 16
"""Tokens of a page of KV, as in the engine. The programs of simulate_fleet_work.py have longer prompts and use 64."""


class Generated(NamedTuple):
    """One request as its client saw it. sent, answered: times in seconds. ids: the tokens of its prompt and its output,
    without those after a stop string."""

    sent: float
    answered: float
    ids: tuple[int, ...]
    n_prompt: int
    n_out: int


class RecordedRequest(NamedTuple):
    """One request of a recorded program. start: the number of its turn; ~i: it starts when the program's request i has
    ended. text: the last piece of its text, prompt and output. n_prompt, n_out: tokens of the prompt and of the
    output."""

    start: int
    text: int
    n_prompt: int
    n_out: int


class RecordedProgram(NamedTuple):
    """What the client of one program did.

    turns     for each turn: (number of requests that had ended before it, wait in seconds). The wait begins at the last
              of these ends or at the start of the turn before, whichever is later. Requests of a turn start together
    requests  in the order of their ends
    """

    turns: list[tuple[int, float]]
    requests: list[RecordedRequest]


class Recording(msgspec.Struct):
    """A recording. about: how it was made. pieces: the tree of all texts: for each piece, (number of the piece before
    it, number of tokens); piece 0 is the empty text. runs: for each run, its kind and the programs that it starts
    together."""

    about: str
    pieces: list[tuple[int, int]]
    runs: list[tuple[str, list[RecordedProgram]]]

    @staticmethod
    def read(path: Path) -> Recording:
        return msgspec.json.decode(path.read_bytes(), type=Recording)

    def path(self, piece: int) -> list[int]:
        """The pieces of the text that ends with `piece`, in order."""
        found = []
        while piece:
            found.append(piece)
            piece = self.pieces[piece][0]
        return found[::-1]

    def shared(self) -> set[int]:
        """The pieces that occur in more than one program."""
        n = Counter[int]()
        for _, programs in self.runs:
            for program in programs:
                n.update({piece for request in program.requests for piece in self.path(request.text)})
        return {piece for piece, n_programs in n.items() if n_programs > 1}


def pieces_of(texts: Iterable[tuple[int, ...]]) -> tuple[list[tuple[int, int]], dict[tuple[int, ...], int]]:
    """Make a tree of texts, as in `Recording`. Returns its pieces, and for each text the number of its last piece."""
    pieces, ends, before = [(0, 0)], dict[tuple[int, ...], int](), tuple[int, ...]()
    stack = [(0, 0)]  # (piece, tokens up to its end), for the pieces of the text before
    for text in sorted(set(texts)):
        common = n_common([before, text])
        cut = None
        while stack[-1][1] > common:
            cut = stack.pop()
        if cut is not None and (start := stack[-1])[1] < common:  # the piece is cut in two
            pieces.append((start[0], common - start[1]))
            pieces[cut[0]] = len(pieces) - 1, cut[1] - common
            stack.append((len(pieces) - 1, common))
        if len(text) > common:
            pieces.append((stack[-1][0], len(text) - common))
            stack.append((len(pieces) - 1, len(text)))
        ends[text], before = stack[-1][0], text
    return pieces, ends


def program_of(generated: list[Generated], ends: dict[tuple[int, ...], int]) -> RecordedProgram:
    """The recorded program of these requests, which must be in the order of their ends. Requests that the client sent
    at the same time, after the same text, are one turn."""
    found: dict[tuple[float, int], list[int]] = {}
    starts = [0] * len(generated)
    for i, one in enumerate(generated):
        continued = [
            k for k, other in enumerate(generated[:i]) if other.ids == one.ids[: one.n_prompt][: len(other.ids)]
        ]
        parent = max(continued, key=lambda k: len(generated[k].ids), default=-1)
        if parent >= 0 and one.sent < generated[parent].answered:
            starts[i] = ~parent
        else:
            found.setdefault((one.sent, ends[generated[parent].ids] if parent >= 0 else -1), []).append(i)
    turns, last = list[tuple[int, float]](), min(one.sent for one in generated)
    for k, ((sent, _), together) in enumerate(sorted(found.items())):
        n_ended = sum(one.answered <= sent for one in generated)
        last = max([last, *(one.answered for one in generated[:n_ended])])
        turns.append((n_ended, round(max(sent - last, 0.0), 6)))
        last = sent
        for i in together:
            starts[i] = k
    requests = [
        RecordedRequest(start, ends[one.ids], one.n_prompt, one.n_out)
        for start, one in zip(starts, generated, strict=True)
    ]
    return RecordedProgram(turns, requests)


def recorded(recording: Recording, seed: int, n: int, rate: float) -> list[SimulatedProgram]:
    """Draws n runs with replacement, which arrive with `rate` per second. All programs of a run become one program
    here, although the server places the programs of a batch one by one."""
    library, known, now, found = Library(seed, 0), dict[bytes, bytes](), 0.0, []
    shared = {0: ""} | {piece: library.new(recording.pieces[piece][1]) for piece in sorted(recording.shared())}
    for i, (kind, programs) in enumerate(library.chance.choices(recording.runs, k=n)):
        now += library.chance.expovariate(rate)
        turns = [turn for program in programs for turn in _redrawn(i, program, recording, shared, library, known)]
        found.append(SimulatedProgram(kind, now, turns))
    return numbered(found)


def _redrawn(
    number: int,
    program: RecordedProgram,
    recording: Recording,
    shared: dict[int, str],
    library: Library,
    known: dict[bytes, bytes],
) -> list[Turn]:
    """The turns of a recorded program, with new text for each piece that no other program has."""
    own: dict[int, str] = {}

    def text(last: int) -> str:
        pieces = recording.path(last)
        for piece in pieces:
            if piece not in shared and piece not in own:
                own[piece] = library.new(recording.pieces[piece][1])
        return "".join(shared[piece] if piece in shared else own[piece] for piece in pieces)

    texts = [text(one.text) for one in program.requests]
    requests = [
        Request(number, digests_of(text, known, PAGE), one.n_prompt, 0, one.n_out, PAGE)
        for one, text in zip(program.requests, texts, strict=True)
    ]
    befores = [0, *(n_ended for n_ended, _ in program.turns)]
    turns = [
        Turn(number, wait, n_ended - before + bool(k))
        for k, (before, (n_ended, wait)) in enumerate(zip(befores, program.turns, strict=False))
    ]
    for turn, then in pairwise(turns):
        turn.then = then
    for k, (turn, (n_ended, _)) in enumerate(zip(turns, program.turns, strict=True)):
        for request in requests[befores[k] : n_ended]:
            request.turn = turn
        together = [i for i, one in enumerate(program.requests) if one.start == k]
        turn.requests = [requests[i] for i in together]
        prompts = [texts[i][: requests[i].n_prompt] for i in together]
        if len(together) > 1:
            trunk = n_common(prompts)
        else:
            trunk = max((len(one) for one in texts[:n_ended] if prompts[0].startswith(one)), default=len(prompts[0]))
        for request in turn.requests:
            request.n_own = request.n_prompt - trunk
    for one, request in zip(program.requests, requests, strict=True):
        if one.start < 0:
            request.parent = requests[~one.start]
            request.parent.children.append(request)
            request.n_own = request.n_prompt - len(texts[~one.start])
    return turns
