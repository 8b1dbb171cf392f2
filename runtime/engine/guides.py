"""The engine's guides: constraints compiled on a thread, kept, and asked for the masks of a step.

A Run with a constraint does not reach the scheduler before its guide is there; so it holds no place in a batch and no
page while it waits, and the loop never compiles.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import to_device
from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.guide import CompiledConstraint, Guide, clear_bits, set_bits
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.draft import DraftPosition
from banyan.runtime.errors import BanyanError, ConstraintBroke, ConstraintError, Unsupported, rust_panics_as
from banyan.runtime.protocol.wire import ConstraintSpec, Run
from banyan.runtime.protocol.wire import SetVocabulary as VocabularyMessage

KEPT_BYTES = 256 << 20
"""Of compiled constraints; of more, those that were not used for the longest go."""
SLOW, PATIENCE = 0.02, 3
"""CPU seconds that a mask may take, as all others wait for it; so many in a row that took longer fail the output."""
UNKNOWN, NOTHING = -1, -2
"""In place of the token that a row draws: it depends on the mask; the row does not count."""
THREADS = 4
"""Constraints that are compiled at the same time. One that takes long, but not too long, does not keep all others."""
STACK = 64 << 20
"""Bytes of a compiling thread's stack: a deep schema is compiled by recursion."""


class Masks(NamedTuple):
    """masks: int32 [n_masks, n_words]. which: int32 [n_rows], a row's mask, -1 for none."""

    masks: Tensor
    which: Tensor


class Guided(NamedTuple):
    """A Run and its guide; or the error that keeps it from one. ends: stop ids that are no text."""

    run: Run
    guide: Guide | None
    ends: tuple[int, ...]
    error: BanyanError | None = None


class Watch:
    """CPU seconds of this thread, lap by lap, good to a quarter of SLOW. Its clock is a system call, at which a busy
    machine likes to take the CPU away: it is asked only where the wall's, which is none, says that time has passed."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def lap(self) -> float:
        """Since the last lap; 0 for a short one, which counts to the next."""
        wall = time.perf_counter()
        if wall - self._wall <= SLOW / 4:
            return 0.0
        cpu = time.thread_time()
        took, self._wall, self._cpu = cpu - self._cpu, wall, cpu
        return took


class Guides:
    """All constraints of an engine. `wake` is an eventfd, readable when some Run became ready."""

    def __init__(
        self, n_vocab: int, device: torch.device, has_in_hand: Callable[[list[int]], None] = lambda rids: None
    ) -> None:
        """has_in_hand: called on the thread, with the rid of the Run that it compiles for."""
        self._n_vocab, self._device, self._has_in_hand = n_vocab, device, has_in_hand
        self._vocabulary: Vocabulary | BanyanError = Unsupported("constraints: nobody told the engine its vocabulary")
        self._kept: OrderedDict[ConstraintSpec, CompiledConstraint] = OrderedDict()
        self._waiting: dict[ConstraintSpec, list[Run]] = {}
        self._done: deque[tuple[ConstraintSpec, CompiledConstraint | BanyanError]] = deque()
        self._ready: list[Guided] = []
        self._n_slow: dict[int, int] = {}  # by rid: how many masks in a row were
        self._n_compiling = 0  # of which `wake` has not told yet
        self._threads: ThreadPoolExecutor | None = None
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self.wake)

    def learn(self, message: VocabularyMessage) -> Vocabulary | None:
        """The tokenizer's vocabulary; None where it cannot be used. Opens it here, where nothing runs yet: that keeps
        other threads from running."""
        try:
            vocabulary = Vocabulary(message, self._n_vocab)
            with rust_panics_as(Unsupported, "llguidance panicked"):
                _ = vocabulary.llg, vocabulary.spelling
        except Exception as e:  # a tokenizer that llguidance does not take; all but constraints work without
            self._vocabulary = Unsupported(f"constraints on this model: its tokenizer cannot be used for masks ({e})")
            return None
        self._vocabulary = vocabulary
        return vocabulary

    # ---- compile ---------------------------------------------------------------------------------------------------

    def submit(self, run: Run) -> None:
        """Find or make the guide of a Run with a constraint: it is in `ready` now or later."""
        spec = run.sampling.constraint
        assert spec is not None
        if isinstance(self._vocabulary, BanyanError):
            self._ready.append(Guided(run, None, (), self._vocabulary))
        elif compiled := self._kept.get(spec):
            self._kept.move_to_end(spec)
            self._ready.append(_begin(run, compiled, self._vocabulary))
        elif spec in self._waiting:
            self._waiting[spec].append(run)
        else:
            self._waiting[spec] = [run]
            self._n_compiling += 1
            self._pool().submit(self._compile, spec, self._vocabulary, run.rid)

    def abort(self, rid: int) -> Run | None:
        """Forget a Run that waits here, and return it; None if none does."""
        for runs in self._waiting.values():
            for run in runs:
                if run.rid == rid:
                    runs.remove(run)
                    return run
        for guided in self._ready:
            if guided.run.rid == rid:
                self._ready.remove(guided)
                return guided.run
        return None

    def ready(self) -> list[Guided]:
        """Runs whose guide is there, each once."""
        if self._n_compiling:
            with contextlib.suppress(BlockingIOError):
                self._n_compiling -= os.eventfd_read(self.wake)
        while self._done:
            spec, made = self._done.popleft()
            if not isinstance(made, BanyanError):
                self._keep(spec, made)
            for run in self._waiting.pop(spec):
                if isinstance(made, BanyanError):
                    self._ready.append(Guided(run, None, (), made))
                else:
                    assert isinstance(self._vocabulary, Vocabulary)
                    self._ready.append(_begin(run, made, self._vocabulary))
        ready, self._ready = self._ready, []
        return ready

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            old = threading.stack_size(STACK)
            try:
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="banyan-guides")
                together = threading.Barrier(THREADS)  # so each of them starts now, while the size holds
                for started in [self._threads.submit(together.wait) for _ in range(THREADS)]:
                    started.result()
            finally:
                threading.stack_size(old)
        return self._threads

    def _compile(self, spec: ConstraintSpec, vocabulary: Vocabulary, rid: int) -> None:
        made: CompiledConstraint | BanyanError
        self._has_in_hand([rid])
        try:
            made = build(spec, vocabulary)
        except BanyanError as e:
            made = e
        except Exception as e:  # the Runs fail, the engine goes on
            made = ConstraintError(f"the constraint could not be compiled: {e!r}")
        self._has_in_hand([])
        self._done.append((spec, made))
        os.eventfd_write(self.wake, 1)

    def _keep(self, spec: ConstraintSpec, compiled: CompiledConstraint) -> None:
        self._kept[spec] = compiled
        while sum(c.n_bytes for c in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)

    # ---- masks -----------------------------------------------------------------------------------------------------

    def masks(self, requests: Sequence[Request | DraftPosition], logits: Tensor | None = None) -> Masks | None:
        """The masks of the rows that draw for `requests`; None where nobody needs one. On a GPU asynchronous.

        logits: of these rows, where they are known by now. Where the best token of a row is allowed, who takes the best
        needs no mask: to ask for one token costs a fifth of a mask.

        A guide goes along its request's draft, and at the end back to where it was. Where it is known what a row draws,
        no other row below it counts, and none of these gets a mask.
        """
        guided = [i for i, r in enumerate(requests) if r.guide is not None]
        if not guided:
            return None
        best = None if logits is None or logits.is_cuda else logits.numpy().argmax(-1).tolist()
        out: list[np.ndarray] = []
        slow: dict[int, int] = {}
        which = [-1] * len(requests)
        watch = Watch()
        last, n_ahead, depth = requests[guided[0]].guide, 0, 0  # n_ahead: so many tokens is its guide ahead of its text
        assert last is not None
        drawn: list[int] = []  # along the path to the row in hand: what each draws, or UNKNOWN, or NOTHING
        n_done = 0  # rows
        for i in guided:
            if i < n_done:
                continue
            request = requests[i]
            guide = request.guide
            assert guide is not None
            if isinstance(request, DraftPosition):
                depth += 1 - request.n_back
                del drawn[depth:]
                if drawn[-1] == UNKNOWN:
                    guide.rollback(n_ahead + 1 - depth)
                    n_ahead = depth - 1 + guide.accept((request.token,))
                if drawn[-1] not in (request.token, UNKNOWN) or n_ahead < depth:
                    drawn.append(NOTHING)
                    continue
            else:
                last.rollback(n_ahead)
                last, n_ahead, depth = guide, 0, 0
                drawn.clear()
            taken = _take(request, _foreseen(requests, best, i)) if best is not None and takes_best(request) else []
            if taken:
                drawn += taken
                n_ahead += len(taken)
                depth += len(taken) - 1
                n_done = i + len(taken)
            else:
                drawn.append(UNKNOWN)
                which[i] = len(out)
                out.append(_mask(request, self._n_vocab))
            if watch.lap() > SLOW and self._gives_up(request, slow):
                if which[i] < 0:
                    which[i] = len(out)
                    out.append(_mask(request, self._n_vocab))
                out[which[i]][:] = 0
        last.rollback(n_ahead)
        self._n_slow = slow
        if not out:  # most steps: no call into numpy
            return None
        return Masks(to_device(np.stack(out), self._device), to_device(np.array(which, np.int32), self._device))

    def _gives_up(self, request: Request | DraftPosition, slow: dict[int, int]) -> bool:
        """Its mask took long: whether too many in a row did, and its guide goes no further."""
        slow[request.rid] = n = self._n_slow.get(request.rid, 0) + 1
        if n < PATIENCE:
            return False
        assert request.guide is not None
        request.guide.give_up(f"{n} masks in a row took more than {1000 * SLOW:.0f} ms each")
        return True


def _begin(run: Run, compiled: CompiledConstraint, vocabulary: Vocabulary) -> Guided:
    """A guide that stands where the Run does: behind what an engine before this one generated."""
    guide = compiled.guide()
    done = array("i", run.ids)[len(run.ids) // 4 - run.n_done :]
    if guide.accept(done) < len(done):
        why = guide.error or "a token that it does not allow"
        return Guided(run, None, (), ConstraintBroke(f"the output so far does not match the constraint: {why}"))
    marks = vocabulary.control.union(vocabulary.eos)
    ends = tuple(i for i in array("i", run.stop_ids) if i in marks and i < vocabulary.n_vocab)
    return Guided(run, guide, ends)


def takes_best(request: Request | DraftPosition) -> bool:
    """Whether its next token is the best of its row, of those that its constraint allows."""
    sampling = request.sampling
    return not (sampling.temperature or sampling.logprobs or request.has_edits)


def _foreseen(requests: Sequence[Request | DraftPosition], best: Sequence[int], i: int) -> list[int]:
    """The best token of row i, and those of the rows behind it, as long as each stands behind the best one before."""
    out = [best[i]]
    for k in range(i + 1, len(requests)):
        row = requests[k]
        if not isinstance(row, DraftPosition) or row.n_back or row.token != out[-1]:
            break
        out.append(best[k])
    return out


def _take(request: Request | DraftPosition, tokens: list[int]) -> list[int]:
    """Have its guide go on by the tokens, as far as `_mask` has them. May say no of one that ends the output."""
    guide = request.guide
    assert guide is not None
    end = next((n for n, token in enumerate(tokens) if token in request.ends), len(tokens))
    return tokens[: guide.accept_masked(tokens[:end])] if not guide.error else []


def _mask(request: Request | DraftPosition, n_vocab: int) -> np.ndarray:
    """The guide's mask, and the tokens that end the output where it may end; min_tokens yields to a full value."""
    guide = request.guide
    assert guide is not None
    row = np.empty(-(-n_vocab // 32), np.int32)
    guide.fill(row)
    clear_bits(row, request.ends)
    if guide.error:
        row[:] = 0
    elif guide.can_stop and (request.n_out >= request.sampling.min_tokens or not row.any()):
        set_bits(row, request.ends)
    return row
