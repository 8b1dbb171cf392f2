"""Answers questions about a running engine, and repairs its tree when an invariant does not hold."""

from __future__ import annotations

import sys
import time

import msgspec

from banyan.radix_cache.snapshot import snapshot
from banyan.runtime.engine.scheduling.scheduler import Scheduler
from banyan.runtime.protocol.wire import Answer, Ask


class Inspector:
    """facts: what "info" answers: the model and the options."""

    def __init__(self, scheduler: Scheduler, facts: dict[str, object]) -> None:
        self._scheduler, self._facts = scheduler, facts

    def answer(self, ask: Ask) -> Answer:
        """See `Ask` for the questions."""
        cache = self._scheduler.cache
        result: object = {}
        match ask.what:
            case "check":
                try:
                    self._scheduler.check()
                except AssertionError as e:
                    n_withdrawn = self.repair(str(e))
                    message = f"an invariant did not hold: {e}; {n_withdrawn} pages were withdrawn, and it goes on"
                    return Answer(ask.id, False, message.encode())
            case "flush":
                cache.reset()
            case "tree":
                result = snapshot(cache, ask.limit)
            case "events":
                news = cache.listen(time.time_ns() // 1000).since(ask.since)
                result = news._asdict() | {"events": [event._asdict() for event in news.events]}
            case "stats":
                result = {"engine": self._scheduler.stats(), "cache": cache.stats()._asdict()}
            case "info":
                result = self._facts
        return Answer(ask.id, True, msgspec.json.encode(result))

    def repair(self, why: str) -> int:
        """Withdraw the part of the tree that a bug has damaged. Returns the number of withdrawn pages. Raises
        AssertionError, which ends the engine, where the tree cannot be used any more."""
        cache = self._scheduler.cache
        before = cache.stats()
        self._scheduler.repair()
        after = cache.stats()
        n = after.n_quarantined - before.n_quarantined
        print(
            f"banyan: the tree's counters did not balance: {why}; {n} pages are withdrawn, {after.n_cached} of "
            f"{before.n_cached} stay cached. This is a bug; please report it",
            file=sys.stderr,
            flush=True,
        )
        return n
