"""The preflight of constraints: each is tried in a process of its own, which may die of it.

    python -m banyan.runtime.server.constraints.preflight --socket ipc://... --alive-fd N --vocabulary V
                                                          --seconds S --engine E

This process learns the vocabulary once and then only forks. A child reads the spec, compiles it and walks some steps
into it, under limits of memory and CPU time; one that is not done in `seconds` is killed. So a constraint that hangs,
or brings its compiler down, costs its own child and nothing else, and the next one starts from the same clean memory.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections import deque
from random import Random

import msgspec
import numpy as np
import zmq

from banyan.runtime import launch
from banyan.runtime.constraint.build import build
from banyan.runtime.constraint.canonical import canonical
from banyan.runtime.constraint.guide import CompiledConstraint
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.errors import BanyanError, ConstraintCrashed, ConstraintTimeout, ConstraintTooLarge, Unsupported
from banyan.runtime.protocol import wire

CHILDREN, FRESH, SPRINT = 8, 2, 0.25
"""Constraints that are tried at the same time; of one client, and not for longer than so many seconds: those that take
longer go on behind all others. So nobody waits for another's, and only for a moment for the own ones."""
MEMORY = 256 << 20
"""Bytes that a child may take beyond what it begins with."""
STACK = 64 << 20
TRY = 1.0
"""Seconds that outlines_core has; of what takes it longer, llguidance takes care."""
WORDS = 64 << 10
"""Bytes of a child's stderr."""
N_STEPS = 16
"""Steps walked at random: most limits of an engine that show only in use show here."""


class PreflightProcess:
    """One constraint that is being tried."""

    def __init__(self, check: wire.Check, pid: int, pipe: int, words: int, now: float, seconds: float) -> None:
        """pipe: what it says. words: a file of what it wrote to stderr."""
        self.check, self.pid, self.pipe, self.words = check, pid, pipe, words
        self.deadline, self.tires = now + seconds, now + SPRINT
        self.is_fresh = True
        self.said = b""

    def tire(self) -> None:
        self.is_fresh = False
        os.setpriority(os.PRIO_PROCESS, self.pid, 19)


class Preflight:
    """The loop: orders in, children out, verdicts back."""

    def __init__(
        self, socket: zmq.Socket[bytes], alive_fd: int, n_vocab: int, seconds: float, engine: str = "llguidance"
    ) -> None:
        self._socket, self._alive_fd, self._n_vocab, self._seconds = socket, alive_fd, n_vocab, seconds
        self._engine = engine
        self._vocabulary: Vocabulary | BanyanError | None = None
        self._queues: dict[int, deque[wire.Check]] = {}  # by client, in turn
        self._children: dict[int, PreflightProcess] = {}  # by pipe
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(alive_fd, zmq.POLLIN)

    def run(self) -> None:
        """Until the parent is gone."""
        while True:
            times = [child.tires if child.is_fresh else child.deadline for child in self._children.values()]
            wait = int(max(0.0, 1000 * (min(times) - time.monotonic()))) + 1 if times else None
            ready = dict(self._poller.poll(wait))
            if self._alive_fd in ready:
                return
            if self._socket in ready:
                self._receive()
            for child in [self._children[fd] for fd in ready if fd in self._children]:
                self._read(child)
            self._look_at_the_clock(time.monotonic())
            while (check := self._next()) is not None:
                self._fork(check)

    def _receive(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                order = wire.decode_check(self._socket.recv(zmq.NOBLOCK))
                if isinstance(order, wire.SetVocabulary):
                    self._learn(order)
                elif isinstance(self._vocabulary, BanyanError):
                    error = self._vocabulary
                    self._socket.send(wire.encode(wire.CheckResult(order.id, code=error.code, message=error.message)))
                else:
                    self._queues.setdefault(order.owner, deque()).append(order)

    def _look_at_the_clock(self, now: float) -> None:
        for child in list(self._children.values()):
            if child.deadline <= now:
                os.kill(child.pid, signal.SIGKILL)
                late = f"the constraint did not compile within {self._seconds:g} s"
                self._end(child, wire.CheckResult(child.check.id, code=ConstraintTimeout.code, message=late))
            elif child.is_fresh and child.tires <= now:
                child.tire()

    def _next(self) -> wire.Check | None:
        """The next constraint to try: clients take turns."""
        if len(self._children) >= CHILDREN:
            return None
        for owner, queue in self._queues.items():
            if sum(child.is_fresh and child.check.owner == owner for child in self._children.values()) < FRESH:
                del self._queues[owner]
                check = queue.popleft()
                if queue:
                    self._queues[owner] = queue  # at the end of the line
                return check
        return None

    def _learn(self, message: wire.SetVocabulary) -> None:
        """Open the vocabulary here: what is known before a fork, each child knows."""
        try:
            vocabulary = Vocabulary(message, self._n_vocab)
            _ = vocabulary.llg
        except Exception as e:  # a tokenizer that llguidance does not take: each constraint is told so
            self._vocabulary = Unsupported(f"constraints on this model: its tokenizer cannot be used for masks ({e})")
        else:
            self._vocabulary = vocabulary
            gc.freeze()

    def _fork(self, check: wire.Check) -> None:
        assert isinstance(self._vocabulary, Vocabulary), "the vocabulary comes first"
        (pipe, there), words = os.pipe(), os.memfd_create("stderr")
        pid = os.fork()
        if not pid:
            _be_child(check, self._vocabulary, there, words, self._seconds, self._engine)
        os.close(there)
        self._children[pipe] = PreflightProcess(check, pid, pipe, words, time.monotonic(), self._seconds)
        self._poller.register(pipe, zmq.POLLIN)

    def _read(self, child: PreflightProcess) -> None:
        data = os.read(child.pipe, 1 << 16)
        child.said += data
        if not data:  # it has ended
            self._end(child)

    def _end(self, child: PreflightProcess, verdict: wire.CheckResult | None = None) -> None:
        """Bury it, and send the verdict: this one, its own, or why it gave none."""
        self._poller.unregister(child.pipe)
        os.close(child.pipe)
        del self._children[child.pipe]
        status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        words = os.pread(child.words, WORDS, 0).decode(errors="replace")
        os.close(child.words)
        if verdict is None:
            try:
                verdict = wire.decode_check_result(child.said)
            except msgspec.DecodeError:
                error = _post_mortem(status, words)
                verdict = wire.CheckResult(child.check.id, code=error.code, message=error.message)
        self._socket.send(wire.encode(verdict))


def _post_mortem(status: int, words: str) -> BanyanError:
    """Why a child gave no verdict. status: its exit code, or minus its signal. words: its stderr."""
    if "memory allocation of" in words:  # what Rust writes before it aborts
        return _short_of_memory()
    why = signal.Signals(-status).name if status < 0 else words.strip().rpartition("\n")[2][:200]
    return ConstraintCrashed(f"the constraint could not be compiled: its compiler crashed on it ({why})")


def _short_of_memory() -> ConstraintTooLarge:
    return ConstraintTooLarge(f"the constraint needs more than {MEMORY >> 20} MiB to compile; make it smaller")


def _be_child(check: wire.Check, vocabulary: Vocabulary, pipe: int, words: int, seconds: float, engine: str) -> None:
    """Give the verdict and end; never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive the one who watches the time
        os.dup2(words, 2)
        _limit(seconds)
        said = wire.encode(_verdict(check, vocabulary, engine))
        while said:
            said = said[os.write(pipe, said) :]
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def _limit(seconds: float) -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY + STACK,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (WORDS, WORDS))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 2,) * 2)


def _verdict(check: wire.Check, vocabulary: Vocabulary, engine: str) -> wire.CheckResult:
    try:
        spec = _with_engine(canonical(check.spec), vocabulary, engine)
        _walk(_compile(spec, vocabulary), vocabulary)
    except BanyanError as e:
        return wire.CheckResult(check.id, code=e.code, message=e.message)
    except MemoryError:
        error = _short_of_memory()
        return wire.CheckResult(check.id, code=error.code, message=error.message)
    return wire.CheckResult(check.id, spec)


def _with_engine(spec: wire.ConstraintSpec, vocabulary: Vocabulary, engine: str) -> wire.ConstraintSpec:
    """The spec with the engine that takes it. outlines_core is tried in a process of its own: it may need more memory
    and time than there is where the other engine needs none."""
    is_for = spec.kind in ("regex", "choices") and not spec.after and not spec.end
    if not is_for or (engine != "outlines_core" and spec.engine != "outlines_core"):
        return spec
    asked = msgspec.structs.replace(spec, engine="outlines_core")
    pid = os.fork()
    if not pid:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            build(asked, vocabulary)
        except BaseException:
            os._exit(1)
        os._exit(0)
    life = os.pidfd_open(pid)
    if not launch.is_readable(life, TRY):
        os.kill(pid, signal.SIGKILL)
    os.close(life)
    is_done = os.waitpid(pid, 0)[1] == 0
    return asked if is_done else msgspec.structs.replace(spec, engine="")


def _compile(spec: wire.ConstraintSpec, vocabulary: Vocabulary) -> CompiledConstraint:
    """On a thread with a stack as large as in the engine."""
    made: list[CompiledConstraint | Exception] = []

    def work() -> None:
        try:
            made.append(build(spec, vocabulary))
        except Exception as e:
            made.append(e)

    threading.stack_size(STACK)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]


def _walk(compiled: CompiledConstraint, vocabulary: Vocabulary) -> None:
    guide, chance = compiled.guide(), Random(0)
    row = np.empty(vocabulary.n_words, np.int32)
    for _ in range(N_STEPS):
        guide.fill(row)
        if guide.error:
            raise ConstraintTooLarge(f"the constraint is too complex to be followed: {guide.error}")
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if not len(allowed):
            return
        guide.accept([int(chance.choice(allowed))])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m banyan.runtime.server.constraints.preflight")
    parser.add_argument("--socket", required=True, help="ZeroMQ address that the server's PAIR is bound to")
    parser.add_argument("--alive-fd", type=int, required=True, help="end at EOF of this file descriptor")
    parser.add_argument("--vocabulary", type=int, required=True, help="rows of the model's logits")
    parser.add_argument("--engine", default="llguidance", help="of regexes and choices")
    parser.add_argument("--seconds", type=float, required=True, help="time that a constraint has to compile")
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
