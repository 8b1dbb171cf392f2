"""Transfers KV from one engine to another.

The source exports the pages of a prefix (wire.Export), the target takes them over (wire.Pull), and both are told when
the pull is over (wire.EndPull). Requests that need the prefix wait for the pull. If it fails, they are sent anyway, and
the engine computes what is missing. fleet/placement.py decides what is pulled, from the times that earlier pulls took.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from banyan.runtime.fleet.index import BLOCK
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.replica_process import ReplicaProcess

AT_ONCE = 4
"""Maximum number of pulls that run from one engine at the same time; further ones are queued."""
LEAST = 5.0
"""The shortest time limit of a pull, in seconds, because on a busy machine even a small pull may take long. (If an
engine dies, its pulls end immediately.)"""


class PendingPull:
    """One pull that has not ended.

    run          the request whose prompt begins with the prefix
    first, end   the pull moves the tokens first : end of the prefix
    seconds      the time limit that the caller gave; until: when the pull is abandoned
    compute      whether the source first computes those of the tokens that it does not have
    waiting      id of a waiting request -> callback for the end of the pull, whether it succeeded or not
    then         further callbacks for the end of the pull
    """

    def __init__(
        self, number: int, run: wire.Run, source: ReplicaProcess, target: ReplicaProcess, first: int, end: int,
        seconds: float, compute: bool, until: float,
    ) -> None:  # fmt: skip
        self.number, self.run, self.source, self.target = number, run, source, target
        self.first, self.end, self.compute, self.seconds, self.until = first, end, compute, seconds, until
        self.waiting: dict[int, Callable[[], None]] = {}
        self.then: list[Callable[[], None]] = []
        self.started = self.exported = 0.0
        self.n_exported = 0
        self.copying = 0.0  # seconds in which the source copied the pages

    def serves(self, run: wire.Run) -> bool:
        """Whether the pull brings at least one block of a request's prompt."""
        n = 4 * (self.first + BLOCK)
        return run.namespace == self.run.namespace and len(run.ids) >= n and run.ids[:n] == self.run.ids[:n]


class Pulls:
    """All pulls between the engines of a server. call_in: call_in(seconds, call) makes a call later, by the time of
    `clock`. learned: called with the times of a pull: the seconds of waiting, and the seconds of copying per token
    (0.0: not known)."""

    def __init__(
        self,
        clock: Callable[[], float],
        call_in: Callable[[float, Callable[[], None]], object],
        learned: Callable[[float, float], None],
    ) -> None:
        self._clock, self._call_in, self._learned = clock, call_in, learned
        self._pending: dict[int, PendingPull] = {}
        self._queue: deque[PendingPull] = deque()
        self._running: Counter[ReplicaProcess] = Counter()  # by source
        self._n_begun = self._n_done = self._n_failed = self._n_tokens = 0

    def start(
        self, run: wire.Run, source: ReplicaProcess, target: ReplicaProcess, first: int, end: int, seconds: float,
        compute: bool = False,
    ) -> PendingPull | None:  # fmt: skip
        """Begin a pull, or queue it until it may begin. Returns None if pages cannot be moved between these engines.
        first, end: the tokens of the prompt to move; `first` is rounded down to a page. seconds: the time limit; a
        limit below LEAST counts as LEAST. compute: see PendingPull."""
        if source.kv is None or source.kv != target.kv:
            return None
        self._n_begun += 1
        first, until = first - first % source.kv.page, self._clock() + max(seconds, LEAST)
        pull = PendingPull(self._n_begun, run, source, target, first, end, seconds, compute, until)
        self._pending[pull.number] = pull
        source.n_pulls += 1
        self._queue.append(pull)
        self._call_in(max(seconds, LEAST), lambda: self._fail(pull.number))
        self._send_next()
        return pull

    def _send_next(self) -> None:
        """Begin the queued pulls for which `_may_begin` is true, in order."""
        for pull in list(self._queue):
            if self._may_begin(pull):
                self._queue.remove(pull)
                self._running[pull.source] += 1
                pull.started = self._clock()
                run, end = pull.run, 4 * pull.end + 4  # + 4: an engine exports only what is before the last token
                run = run if pull.compute else wire.Run(0, run.ids[:end], namespace=run.namespace)
                left = pull.until - pull.started + LEAST
                pull.source.send(wire.Export(pull.number, run, pull.first, left, pull.compute))

    def _may_begin(self, pull: PendingPull) -> bool:
        """Whether the source runs fewer than AT_ONCE pulls, and no earlier pull brings a part of the same prefix to the
        source or the target."""
        return self._running[pull.source] < AT_ONCE and not any(
            other.number < pull.number and other.target in (pull.source, pull.target) and other.serves(pull.run)
            for other in self._pending.values()
        )

    def serving(self, run: wire.Run, target: ReplicaProcess) -> PendingPull | None:
        """Returns the newest pull that brings a part of a request's prompt to the engine `target`, or None. Older pulls
        of the same prefix end before it does, so a request needs to wait for this one only."""
        found = (pull for pull in reversed(self._pending.values()) if pull.target is target and pull.serves(run))
        return next(found, None)

    def leave(self, pull: PendingPull, rid: int) -> None:
        """Record that request `rid` no longer waits for a pull. If no other request waits for the pull, and the source
        computes the prefix only for it (`compute`), end the pull."""
        pull.waiting.pop(rid, None)
        if pull.compute and not pull.waiting and pull.number in self._pending:
            self._end(pull)

    def exported(self, report: wire.Exported) -> None:
        """Handle the source's report: have the target pull the exported pages. If there are none, the pull fails."""
        if (pull := self._pending.get(report.pull)) is None:
            return
        if not report.n_tokens:
            self._fail(report.pull)
            return
        assert pull.source.kv is not None
        pull.exported, pull.n_exported, pull.copying = self._clock(), report.n_tokens, report.seconds
        ids, left = pull.run.ids[: 4 * report.n_tokens], pull.until - pull.exported + LEAST
        order = wire.Pull(pull.number, ids, pull.first, pull.source.kv, report.places, pull.run.namespace, left)
        pull.target.send(order)

    def pulled(self, report: wire.Pulled) -> None:
        """Handle the target's report that it has taken over pages: end the pull, and learn from its times. If the
        target has taken over nothing, the pull fails."""
        if (pull := self._pending.get(report.pull)) is None:
            return
        if not report.n_tokens:
            self._learned(pull.seconds, 0.0)
            self._fail(report.pull)
            return
        n = max(1, pull.n_exported - pull.first)
        second = self._clock() - pull.exported - report.seconds
        first = second if pull.compute else pull.exported - pull.started - pull.copying
        self._learned(max(0.0, first + second), (pull.copying + report.seconds) / n)
        self._n_done += 1
        self._n_tokens += n
        self._end(pull)

    @property
    def counts(self) -> dict[str, int]:
        return {"pulls": self._n_done, "pulled_tokens": self._n_tokens, "failed_pulls": self._n_failed}

    def _fail(self, number: int) -> None:
        if (pull := self._pending.get(number)) is not None:
            self._n_failed += 1
            if self._clock() >= pull.until and not pull.compute:
                self._learned(pull.until - (pull.started or pull.until), 0.0)
            self._end(pull)

    def _end(self, pull: PendingPull, is_heard: bool = True) -> None:
        del self._pending[pull.number]
        pull.source.n_pulls -= 1
        if pull in self._queue:
            self._queue.remove(pull)
        else:
            self._running[pull.source] -= 1
            pull.source.send(wire.EndPull(pull.number))
            if pull.n_exported:
                pull.target.send(wire.EndPull(pull.number))
        for call in (*pull.then, *(pull.waiting.values() if is_heard else ())):
            call()
        self._send_next()

    def lost(self, replica: ReplicaProcess) -> None:
        """End all pulls from and to an engine that has died or left. Requests that wait for a pull to it get no
        callback: the caller places them again."""
        for pull in list(self._pending.values()):
            if replica in (pull.source, pull.target):
                self._n_failed += 1
                self._end(pull, is_heard=pull.target is not replica)
