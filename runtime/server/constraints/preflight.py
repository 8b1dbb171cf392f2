"""The preflight process: tries constraints in child processes, which may crash.

    python -m banyan.runtime.server.constraints.preflight --socket ipc://... --alive-fd N --vocabulary V
                                                          --seconds S --engine E

This process reads the vocabulary once, and then only forks. A child compiles one constraint at a time and generates
some random tokens with it, with limits on memory and CPU time. After `seconds` the child is killed. So a constraint
that hangs or crashes its compiler affects no other constraint. A child that accepted a small constraint is warm, and
one such child is kept for the next constraint: it takes a third of the CPU time of a new one. Any other child ends with
its constraint.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from random import Random

import msgspec
import numpy as np
import zmq
from msgspec.structs import replace

from banyan.runtime import launch
from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.constraint.guide import CompiledConstraint
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.errors import (
    BanyanError,
    ConstraintCrashed,
    ConstraintTimeout,
    ConstraintTooLarge,
    ConstraintUnsatisfiable,
    ConstraintUnsupported,
    Unsupported,
    rust_panics_as,
)
from banyan.runtime.protocol import decoders, wire

MAX_CHILDREN, MAX_FAST, FAST_SECONDS = 8, 2, 0.25
"""MAX_CHILDREN: most children at a time. MAX_FAST: most fast children of one client at a time. A child is fast for its
first FAST_SECONDS seconds. After that it runs with the lowest priority, and the client's next constraint can start. So
clients do not wait for each other's constraints, and only briefly for their own."""
MEMORY = 256 << 20
"""Maximum number of bytes that a child may allocate, besides its stack."""
STACK = 64 << 20
OUTLINES_SECONDS = 1.0
"""Time limit of outlines_core for one constraint. If it takes longer, llguidance compiles the constraint."""
MAX_STDERR = 64 << 10
MAX_CHECKS, MAX_GROWTH = 100, 32 << 20
"""A child ends after MAX_CHECKS constraints, or when it has MAX_GROWTH bytes more in memory than at its start."""
N_STEPS = 16
"""Random tokens that a child generates after compiling, because some limits of the library show only in use."""


class PreflightProcess:
    """A child that tries constraints."""

    def __init__(self, pid: int, pipe: int, start: int, input_: int, stderr: int) -> None:
        """pipe: the child's results are read from it. Each follows its length, and a byte that says whether the child
        can be used again. start: writing a byte here starts the check that is in the file `input_`. stderr: the file
        that receives the child's stderr."""
        self.pid, self.pipe, self.files = pid, pipe, (pipe, start, input_, stderr)
        self.output, self.is_warm = b"", False

    def begin(self, check: wire.Check, now: float, seconds: float) -> None:
        """Start a check. seconds: its time limit."""
        self.check: wire.Check | None = check
        self.deadline, self.fast_until, self.is_fast = now + seconds, now + FAST_SECONDS, True
        self.output = b""
        _, start, input_, _ = self.files
        os.ftruncate(input_, 0)
        os.pwrite(input_, wire.encode(check), 0)
        with contextlib.suppress(BrokenPipeError):  # the child has ended, and `pipe` will show it
            os.write(start, b".")


class Preflight:
    """The loop of the preflight process: receives checks, forks children, sends results."""

    def __init__(
        self, socket: zmq.Socket[bytes], alive_fd: int, n_vocab: int, seconds: float, engine: str = "llguidance"
    ) -> None:
        self._socket, self._alive_fd, self._n_vocab, self._seconds = socket, alive_fd, n_vocab, seconds
        self._engine = engine
        self._vocabulary: Vocabulary | BanyanError | None = None
        self._queues: dict[int, deque[wire.Check]] = {}  # client -> its waiting checks; the first client is next
        self._children: dict[int, PreflightProcess] = {}  # children with a check, by pipe
        self._idle: PreflightProcess | None = None
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(alive_fd, zmq.POLLIN)

    def run(self) -> None:
        """Run until the parent is gone."""
        while True:
            times = [child.fast_until if child.is_fast else child.deadline for child in self._children.values()]
            wait = int(max(0.0, 1000 * (min(times) - time.monotonic()))) + 1 if times else None
            ready = dict(self._poller.poll(wait))
            if self._alive_fd in ready:
                return
            if self._socket in ready:
                self._receive()
            for child in [self._children[fd] for fd in ready if fd in self._children]:
                self._read(child)
            self._check_deadlines(time.monotonic())
            while (check := self._next()) is not None:
                self._try(check)

    def _receive(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                message = decoders.decode_check(self._socket.recv(zmq.NOBLOCK))
                if isinstance(message, wire.SetVocabulary):
                    self._set_vocabulary(message)
                elif isinstance(self._vocabulary, BanyanError):
                    self._socket.send(wire.encode(_failure(message, self._vocabulary)))
                else:
                    self._queues.setdefault(message.owner, deque()).append(message)

    def _check_deadlines(self, now: float) -> None:
        for child in list(self._children.values()):
            if child.deadline <= now:
                os.kill(child.pid, signal.SIGKILL)
                check = _check_of(child)
                if check.spec.is_checked and not check.is_loose:
                    self._reap(child)
                    self._put_first(replace(check, is_loose=True))
                    continue
                error = ConstraintTimeout(f"the constraint did not compile within {self._seconds:g} s")
                self._end(child, _failure(check, error))
            elif child.is_fast and child.fast_until <= now:
                child.is_fast = False
                os.setpriority(os.PRIO_PROCESS, child.pid, 19)

    def _next(self) -> wire.Check | None:
        """The next constraint to try; None: none may start now. Clients take turns."""
        if len(self._children) >= MAX_CHILDREN:
            return None
        for owner, queue in self._queues.items():
            if sum(one.is_fast and _check_of(one).owner == owner for one in self._children.values()) < MAX_FAST:
                del self._queues[owner]
                check = queue.popleft()
                if queue:
                    self._queues[owner] = queue  # the client goes to the end of the queue
                return check
        return None

    def _put_first(self, check: wire.Check) -> None:
        self._queues.setdefault(check.owner, deque()).appendleft(check)

    def _set_vocabulary(self, message: wire.SetVocabulary) -> None:
        """Prepare the vocabulary before any fork, so that all children share it."""
        try:
            vocabulary = Vocabulary(message, self._n_vocab)
            with rust_panics_as(Unsupported, "llguidance panicked"):
                _ = vocabulary.llg
            warm_up()
        except Exception as e:  # llguidance does not support the tokenizer: all constraints fail with this error
            self._vocabulary = Unsupported(f"constraints on this model: its tokenizer cannot be used for masks ({e})")
        else:
            self._vocabulary = vocabulary
            gc.freeze()

    def _try(self, check: wire.Check) -> None:
        """Give the check to the idle child, or to a new one."""
        child, self._idle = self._idle or self._fork(), None
        child.begin(check, time.monotonic(), self._seconds)
        self._children[child.pipe] = child
        self._poller.register(child.pipe, zmq.POLLIN)

    def _fork(self) -> PreflightProcess:
        assert isinstance(self._vocabulary, Vocabulary), "the vocabulary must come first"
        (pipe, write_end), (read_end, start) = os.pipe(), os.pipe()
        input_, stderr = os.memfd_create("check"), os.memfd_create("stderr")
        pid = os.fork()
        if not pid:
            _run_child(self._vocabulary, write_end, read_end, input_, stderr, self._seconds, self._engine)
        os.close(write_end)
        os.close(read_end)
        return PreflightProcess(pid, pipe, start, input_, stderr)

    def _read(self, child: PreflightProcess) -> None:
        """Read a part of a child's result, and send the result once it is complete. Then keep the child as the idle
        child if it was fast and can be used again, and no other child is idle; otherwise end it."""
        data = os.read(child.pipe, 1 << 16)
        child.output += data
        if not data:
            return self._end(child)
        size, stays = int.from_bytes(child.output[:8], "little"), child.output[8:9] == b"+"
        if len(child.output) < 9 + size:
            return None
        if self._idle is not None or not child.is_fast or not stays:
            os.kill(child.pid, signal.SIGKILL)
            return self._end(child)
        self._socket.send(child.output[9:])
        self._forget(child)
        child.check, child.is_warm, self._idle = None, True, child
        return None

    def _forget(self, child: PreflightProcess) -> None:
        self._poller.unregister(child.pipe)
        del self._children[child.pipe]

    def _end(self, child: PreflightProcess, result: wire.CheckResult | None = None) -> None:
        """Wait for the end of a child, and send its result. If a warm child ended without a result, its check is queued
        again instead. result: what to send in place of what the child wrote."""
        status, words = self._reap(child)
        if result is None:
            try:
                result = decoders.decode_check_result(child.output[9:])
            except msgspec.DecodeError:
                if child.is_warm:  # it may have ended for another reason while it was idle
                    return self._put_first(_check_of(child))
                result = _failure(_check_of(child), _crash(status, words))
        self._socket.send(wire.encode(result))
        return None

    def _reap(self, child: PreflightProcess) -> tuple[int, str]:
        """Wait for a child's end. Returns its exit code, or minus the number of its signal; and its stderr."""
        self._forget(child)
        pipe, start, input_, stderr = child.files
        for file in (pipe, start, input_):
            os.close(file)
        status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        words = os.pread(stderr, MAX_STDERR, 0).decode(errors="replace")
        os.close(stderr)
        return status, words


def warm_up() -> None:
    """Compile the metaschemas of JSON schema before any fork, so that no child needs to."""
    for draft in ("draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12"):
        dialect = f"http{'s' if '/' in draft else ''}://json-schema.org/{draft}/schema{'' if '/' in draft else '#'}"
        canonical(wire.ConstraintSpec("json_schema", f'{{"$schema": "{dialect}", "type": "string", "pattern": "a"}}'))


def _check_of(child: PreflightProcess) -> wire.Check:
    assert child.check is not None, "an idle child is not among the children"
    return child.check


def _failure(check: wire.Check, error: BanyanError) -> wire.CheckResult:
    return wire.CheckResult(check.id, code=error.code, message=error.message)


def _crash(status: int, stderr: str) -> BanyanError:
    """The error of a child that ended without a result. status: its exit code, or minus the number of its signal."""
    if "memory allocation of" in stderr:  # Rust writes this before it aborts
        return _out_of_memory()
    why = signal.Signals(-status).name if status < 0 else stderr.strip().rpartition("\n")[2][:200]
    return ConstraintCrashed(f"the constraint could not be compiled: its compiler crashed on it ({why})")


def _out_of_memory() -> ConstraintTooLarge:
    return ConstraintTooLarge(f"the constraint needs more than {MEMORY >> 20} MiB to compile; make it smaller")


def _run_child(
    vocabulary: Vocabulary, pipe: int, start: int, input_: int, stderr: int, seconds: float, engine: str
) -> None:
    """In a child: try the constraints that `input_` holds, one at a time, write the results to `pipe`, and exit."""
    code = 1
    try:
        launch.tie_to_parent()  # which enforces the time limit
        os.dup2(stderr, 2)
        _, first = _allocated()
        with open(pipe, "wb") as file:
            for n in range(MAX_CHECKS):
                if not os.read(start, 1):
                    break
                _set_limits(seconds)
                check = decoders.decode_check(os.pread(input_, os.fstat(input_).st_size, 0))
                assert isinstance(check, wire.Check)
                result = _try(check, vocabulary, engine)
                stays = n + 1 < MAX_CHECKS and not result.code and _allocated()[1] < first + MAX_GROWTH
                data = wire.encode(result)
                file.write(len(data).to_bytes(8, "little") + (b"+" if stays else b"-") + data)
                file.flush()
                if not stays:
                    break
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def _allocated() -> tuple[int, int]:
    """Returns how many bytes of address space this process has, and how many bytes are in memory."""
    with open("/proc/self/statm") as file:
        space, resident = file.read().split()[:2]
    return int(space) * resource.getpagesize(), int(resident) * resource.getpagesize()


def _set_limits(seconds: float) -> None:
    """Limit the memory and CPU time of this process for the next constraint. seconds: the time limit that the parent
    enforces. The limit on CPU time is a little higher; it ends the process if the parent does not."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_AS, (_allocated()[0] + MEMORY + STACK, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 2, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_STDERR, MAX_STDERR))


def _try(check: wire.Check, vocabulary: Vocabulary, engine: str) -> wire.CheckResult:
    try:
        with rust_panics_as(ConstraintCrashed, "the constraint could not be compiled: its compiler panicked"):
            for is_loose in (True,) if check.is_loose else (False, True):
                try:
                    spec = _with_engine(canonical(check.spec, is_loose), vocabulary, engine)
                    _walk(_compile(spec, vocabulary), vocabulary)
                    break
                except (ConstraintTooLarge, ConstraintUnsupported):
                    if is_loose or not check.spec.is_checked:
                        raise
    except BanyanError as e:
        return _failure(check, e)
    except MemoryError:
        return _failure(check, _out_of_memory())
    return wire.CheckResult(check.id, spec)


def _with_engine(spec: wire.ConstraintSpec, vocabulary: Vocabulary, engine: str) -> wire.ConstraintSpec:
    """Returns the spec with the library that will compile it in `engine`: outlines_core, if the server or the spec asks
    for it and it can compile the constraint within OUTLINES_SECONDS; else llguidance (""). outlines_core is tried in
    its own process, because it may need much more memory and time than llguidance."""
    is_supported = spec.kind in ("regex", "choices") and not spec.after and not spec.end
    if not is_supported or (engine != "outlines_core" and spec.engine != "outlines_core"):
        return spec
    with_outlines = msgspec.structs.replace(spec, engine="outlines_core")
    pid = os.fork()
    if not pid:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            launch.tie_to_parent()
            build(with_outlines, vocabulary)
        except BaseException:
            os._exit(1)
        os._exit(0)
    life = os.pidfd_open(pid)
    if not launch.is_readable(life, OUTLINES_SECONDS):
        os.kill(pid, signal.SIGKILL)
    os.close(life)
    is_done = os.waitpid(pid, 0)[1] == 0
    return with_outlines if is_done else msgspec.structs.replace(spec, engine="")


def _compile(spec: wire.ConstraintSpec, vocabulary: Vocabulary) -> CompiledConstraint:
    """Compile a constraint on a thread whose stack is as large as in the engine, so that deep nesting fails here if it
    would fail there. Returns the compiled constraint, or raises what the compiler raises."""
    threading.stack_size(STACK)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(build, spec, vocabulary).result()


def _walk(compiled: CompiledConstraint, vocabulary: Vocabulary) -> None:
    """Generate random tokens with the constraint. ConstraintTooLarge: the constraint exceeds a limit of the
    library. ConstraintUnsatisfiable: the constraint forces endless text."""
    guide, chance = compiled.guide(), Random(0)
    row = np.empty(vocabulary.n_words, np.int32)
    for _ in range(N_STEPS):
        guide.fill(row)
        if guide.error:
            if "ff_tokens" in guide.error:
                raise ConstraintUnsatisfiable(
                    "no output within the limits can match the constraint: it forces endless text"
                )
            raise ConstraintTooLarge(f"the constraint is too complex to be enforced: {guide.error}")
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if not len(allowed):
            return
        guide.accept([int(chance.choice(allowed))])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m banyan.runtime.server.constraints.preflight")
    parser.add_argument("--socket", required=True, help="ZeroMQ address that the server's PAIR is bound to")
    parser.add_argument("--alive-fd", type=int, required=True, help="end at EOF of this file descriptor")
    parser.add_argument("--vocabulary", type=int, required=True, help="size of the model's logits")
    parser.add_argument("--engine", default="llguidance", help="library for regexes and choices")
    parser.add_argument("--seconds", type=float, required=True, help="time limit of one constraint")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    launch.tie_to_parent()
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(args.socket)
        socket.send(wire.encode(wire.CheckResult(-1)))
        Preflight(socket, args.alive_fd, args.vocabulary, args.seconds, args.engine).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
