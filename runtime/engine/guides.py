"""The engine's guides: compiles constraints on threads, caches them, and makes the masks of a step.

A Run with a constraint reaches the scheduler only when its guide is compiled. Until then it holds no pages and is not
queued."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from banyan.kernels.attention.ragged import to_device
from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.guide import CompiledConstraint, Guide, Row, clear_bits, set_bits
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.engine.speculation.draft import DraftPosition
from banyan.runtime.errors import BanyanError, ConstraintBroke, ConstraintError, Unsupported, rust_panics_as
from banyan.runtime.protocol.wire import ConstraintSpec, Run
from banyan.runtime.protocol.wire import SetVocabulary as VocabularyMessage

CACHE_BYTES = 256 << 20  # most bytes of cached constraints; beyond that the least recently used are evicted
SLOW, PATIENCE = 0.02, 3
"""A mask that takes more than SLOW CPU seconds delays all requests. After PATIENCE steps in a row with such a mask,
the output fails."""
UNKNOWN, UNREACHABLE = -1, -2
"""Placeholders for the token that a row samples. UNKNOWN: the token depends on a mask. UNREACHABLE: the row is below a
draft token that is known to be wrong, so the token does not count."""
THREADS = 4  # constraints that are compiled at the same time, so that a slow one does not delay all others
STACK_BYTES = 64 << 20  # stack of a compiling thread: a deep schema is compiled by recursion


class Masks(NamedTuple):
    """The masks of a step. masks: int32 [n_masks, n_words]. which: int32 [n_rows], the mask of each row, -1: none."""

    masks: Tensor
    which: Tensor


class Guided(NamedTuple):
    """A Run with its guide, or with the error that explains why there is no guide. end_ids: the Run's stop ids that are
    not text."""

    run: Run
    guide: Guide | None
    end_ids: tuple[int, ...]
    error: BanyanError | None = None


class LapTimer:
    """Measures the CPU seconds of this thread between laps, exact to SLOW / 4 seconds. Reading the CPU clock is a
    system call, at which a busy machine tends to switch processes. So the clock is read only if more than SLOW / 4
    seconds of wall time have passed."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def lap(self) -> float:
        """Return the CPU seconds since the last lap. Returns 0.0 if at most SLOW / 4 seconds of wall time have passed;
        the next lap then includes them."""
        wall = time.perf_counter()
        if wall - self._wall <= SLOW / 4:
            return 0.0
        cpu = time.thread_time()
        seconds, self._wall, self._cpu = cpu - self._cpu, wall, cpu
        return seconds


class Guides:
    """The constraints of an engine and their masks. `wake` is an eventfd that becomes readable when a compilation
    ends."""

    def __init__(
        self, n_vocab: int, device: torch.device, note_compiling: Callable[[list[int]], None] = lambda rids: None
    ) -> None:
        """note_compiling: called on a compiling thread with the rids of all Runs whose constraints are being compiled,
        before the thread begins and after it ends; never on two threads at once."""
        self._n_vocab, self._device, self._note_compiling = n_vocab, device, note_compiling
        self._vocabulary: Vocabulary | BanyanError = Unsupported("constraints: the engine has received no vocabulary")
        self._cache: OrderedDict[ConstraintSpec, CompiledConstraint] = OrderedDict()
        self._waiting: dict[ConstraintSpec, list[Run]] = {}
        self._done: deque[tuple[ConstraintSpec, CompiledConstraint | BanyanError]] = deque()
        self._ready: list[Guided] = []
        self._n_slow: dict[int, int] = {}  # rid -> how many of its latest masks in a row were slow
        self._n_compiling = 0  # compilations whose end `ready` has not yet read from `wake`
        self._compiling: set[int] = set()  # rids for which a thread compiles now
        self._compiling_lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self.wake)

    def set_vocabulary(self, message: VocabularyMessage) -> Vocabulary | None:
        """Use the tokenizer's vocabulary. Returns None if it cannot be used. The vocabulary is prepared now, before any
        request runs, because the preparation blocks other threads."""
        try:
            vocabulary = Vocabulary(message, self._n_vocab)
            with rust_panics_as(Unsupported, "llguidance panicked"):
                _ = vocabulary.llg, vocabulary.spelling
        except Exception as e:  # llguidance rejects the tokenizer; everything but constraints works without
            self._vocabulary = Unsupported(f"constraints on this model: its tokenizer cannot be used for masks ({e})")
            return None
        self._vocabulary = vocabulary
        return vocabulary

    @property
    def n_bytes(self) -> int:
        """Bytes of all cached constraints."""
        return sum(compiled.n_bytes for compiled in self._cache.values())

    # ---- compile ---------------------------------------------------------------------------------------------------

    def submit(self, run: Run) -> None:
        """Find or compile the guide of a Run with a constraint. A later call of `ready` returns the Run with its
        guide."""
        spec = run.sampling.constraint
        assert spec is not None
        if isinstance(self._vocabulary, BanyanError):
            self._ready.append(Guided(run, None, (), self._vocabulary))
        elif (compiled := self._cache.get(spec)) and not compiled.is_spent:
            self._cache.move_to_end(spec)
            self._ready.append(_guided(run, compiled, self._vocabulary))
        elif spec in self._waiting:
            self._waiting[spec].append(run)
        else:
            self._waiting[spec] = [run]
            self._n_compiling += 1
            self._pool().submit(self._compile, spec, self._vocabulary, run.rid)

    @property
    def has_ready(self) -> bool:
        """Whether `ready` has Runs to return that needed no compilation. (When a compilation ends, `wake` becomes
        readable.)"""
        return bool(self._ready)

    @property
    def waiting(self) -> Iterator[Run]:
        """The Runs that were submitted and not yet returned by `ready`: their guides are being compiled, or ready."""
        yield from chain.from_iterable(self._waiting.values())
        yield from (guided.run for guided in self._ready)

    def abort(self, rid: int) -> Run | None:
        """Remove a Run that `ready` has not returned yet. Returns the Run; None if there is none with this rid."""
        for runs in self._waiting.values():
            if run := next((run for run in runs if run.rid == rid), None):
                runs.remove(run)
                return run
        run = next((guided.run for guided in self._ready if guided.run.rid == rid), None)
        self._ready = [guided for guided in self._ready if guided.run is not run]
        return run

    def ready(self) -> list[Guided]:
        """Returns the Runs whose guides have become ready since the last call. A Run whose constraint cannot be
        compiled has an error instead."""
        if self._n_compiling:
            with contextlib.suppress(BlockingIOError):
                self._n_compiling -= os.eventfd_read(self.wake)
        while self._done:
            spec, compiled = self._done.popleft()
            runs = self._waiting.pop(spec)
            if isinstance(compiled, BanyanError):
                self._ready += [Guided(run, None, (), compiled) for run in runs]
                continue
            self._cache[spec] = compiled
            while self.n_bytes > CACHE_BYTES:
                self._cache.popitem(last=False)
            assert isinstance(self._vocabulary, Vocabulary)
            self._ready += [_guided(run, compiled, self._vocabulary) for run in runs]
        ready, self._ready = self._ready, []
        return ready

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            old = threading.stack_size(STACK_BYTES)
            try:
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="banyan-guides")
                barrier = threading.Barrier(THREADS)  # so that all threads start now, with this stack size
                for started in [self._threads.submit(barrier.wait) for _ in range(THREADS)]:
                    started.result()
            finally:
                threading.stack_size(old)
        return self._threads

    def _compile(self, spec: ConstraintSpec, vocabulary: Vocabulary, rid: int) -> None:
        compiled: CompiledConstraint | BanyanError
        with self._compiling_lock:
            self._compiling.add(rid)
            self._note_compiling(sorted(self._compiling))
        try:
            compiled = build(spec, vocabulary)
        except BanyanError as e:
            compiled = e
        except Exception as e:  # the Runs fail, the engine continues
            compiled = ConstraintError(f"the constraint could not be compiled: {e!r}")
        with self._compiling_lock:
            self._compiling.remove(rid)
            self._note_compiling(sorted(self._compiling))
        self._done.append((spec, compiled))
        os.eventfd_write(self.wake, 1)

    # ---- masks -----------------------------------------------------------------------------------------------------

    def masks(self, requests: Sequence[Request | DraftPosition], logits: Tensor | None = None) -> Masks | None:
        """Compute the masks of the rows that sample. requests: for each row, the request, or its position in a draft.
        Returns None if no row needs a mask. On a GPU, the masks are copied asynchronously.

        logits: the logits of these rows. If they are on the CPU, two kinds of rows get no mask. One is a greedy row
        whose best token is allowed: to check one token costs a fifth of a mask. The other is a row after a draft token
        that is known to be wrong, because its sampled token does not count.
        """
        guided = [i for i, r in enumerate(requests) if r.guide is not None]
        if not guided:
            return None
        best = None if logits is None or logits.is_cuda else logits.numpy().argmax(-1).tolist()
        out: list[Row] = []
        slow: dict[int, int] = {}
        which = [-1] * len(requests)
        timer = LapTimer()
        last, n_ahead, depth = requests[guided[0]].guide, 0, 0  # n_ahead: tokens by which `last` is ahead of its text
        assert last is not None
        sampled: list[int] = []  # for each row on the path to the current row: its token, UNKNOWN or UNREACHABLE
        n_done = 0  # rows
        for i in guided:
            if i < n_done:
                continue
            request = requests[i]
            guide = request.guide
            assert guide is not None
            if isinstance(request, DraftPosition):
                depth += 1 - request.n_back
                del sampled[depth:]
                if sampled[-1] == UNKNOWN:
                    guide.rollback(n_ahead + 1 - depth)
                    n_ahead = depth - 1 + guide.accept((request.token,))
                if sampled[-1] not in (request.token, UNKNOWN) or n_ahead < depth:
                    sampled.append(UNREACHABLE)
                    continue
            else:
                last.rollback(n_ahead)
                last, n_ahead, depth = guide, 0, 0
                sampled.clear()
            taken = _take_best(requests, best, i) if best is not None and takes_best(request) else []
            if taken:
                sampled += taken
                n_ahead += len(taken)
                depth += len(taken) - 1
                n_done = i + len(taken)
            else:
                sampled.append(UNKNOWN)
                which[i] = len(out)
                out.append(_mask(request, self._n_vocab))
            if timer.lap() > SLOW and self._gives_up(request, slow):
                which[i] = len(out)
                out.append(_mask(request, self._n_vocab))  # the guide allows no token any more
        last.rollback(n_ahead)
        self._n_slow = slow
        if not out:  # most steps: no call into numpy
            return None
        return Masks(to_device(np.stack(out), self._device), to_device(np.array(which, np.int32), self._device))

    def _gives_up(self, request: Request | DraftPosition, slow: dict[int, int]) -> bool:
        """Count one more step in a row with a slow mask, in `slow` (rid -> steps). After too many, make the request's
        guide give up. Returns whether it gave up."""
        slow[request.rid] = n = self._n_slow.get(request.rid, 0) + 1
        if n < PATIENCE:
            return False
        assert request.guide is not None
        request.guide.give_up(f"in {n} steps in a row, its masks took more than {1000 * SLOW:.0f} ms each")
        return True


def _guided(run: Run, compiled: CompiledConstraint, vocabulary: Vocabulary) -> Guided:
    """Return a Run with its guide, after the guide has accepted the tokens that a previous engine generated. If the
    guide rejects them, return the Run with an error."""
    guide = compiled.guide()
    done = array("i", run.ids)[len(run.ids) // 4 - run.n_done :]
    if guide.accept(done) < len(done):
        guide.find_failure()
        why = guide.error or "it does not allow one of the tokens"
        return Guided(run, None, (), ConstraintBroke(f"the output so far does not match the constraint: {why}"))
    control = vocabulary.control.union(vocabulary.eos)
    end_ids = tuple(i for i in array("i", run.stop_ids) if i in control and i < vocabulary.n_vocab)
    return Guided(run, guide, end_ids)


def takes_best(request: Request | DraftPosition) -> bool:
    """Whether the request's next token is simply the most likely one that its constraint allows."""
    sampling = request.sampling
    return not (sampling.temperature or sampling.logprobs or request.has_edits)


def _take_best(requests: Sequence[Request | DraftPosition], best: Sequence[int], i: int) -> list[int]:
    """Choose tokens without masks: the best token of row i, then those of the draft rows after it, while each draft
    token equals the best token of the row before it. best: the most likely token of each row. Advances the request's
    guide by the chosen tokens, and returns them. Stops before the first token that the constraint forbids; may stop
    before a token that ends the output."""
    request = requests[i]
    guide = request.guide
    assert guide is not None
    if guide.error:
        return []
    tokens: list[int] = []
    for k in range(i, len(requests)):
        row = requests[k]
        if k > i and (not isinstance(row, DraftPosition) or row.n_back or row.token != tokens[-1]):
            break
        if best[k] in request.end_ids:
            break
        tokens.append(best[k])
    return tokens[: guide.accept_masked(tokens)]


def _mask(request: Request | DraftPosition, n_vocab: int) -> Row:
    """Return the mask of a row, int32 [ceil(n_vocab / 32)]. The guide allows tokens of the value; this function also
    allows end_ids where the output may end. While the output has fewer than min_tokens tokens, stop tokens are
    forbidden, unless no other token is allowed."""
    guide = request.guide
    assert guide is not None
    row = np.empty(-(-n_vocab // 32), np.int32)
    guide.fill(row)
    clear_bits(row, request.end_ids)
    if guide.error:
        row[:] = 0
        return row
    if request.n_out < request.sampling.min_tokens:
        without_stops = row.copy()
        clear_bits(without_stops, [i for i in request.stop_ids if i < n_vocab])
        if without_stops.any():
            return without_stops
    if guide.can_stop:
        set_bits(row, request.end_ids)
    return row
