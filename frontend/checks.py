"""Looks at what a gen with retries wrote, and says to the server whether it counts."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from contextvars import copy_context

from banyan.pool import Pool
from banyan.record import Record
from banyan.runtime import wire
from banyan.runtime.errors import BadOutput
from banyan.typed import Answer

N_THREADS = 8
"""Checks that run at once at most: a validator is the user's code, and may take its time."""


class Checker:
    """Checks the outputs of one gen."""

    def __init__(self, record: Record, state: int, ref: int, answer: Answer) -> None:
        """state, ref: of the gen, as the server numbers them."""
        self._record = weakref.ref(record)  # whoever waits for the gen holds it; a program that nobody holds ends
        self._state, self._ref, self._answer = state, ref, answer
        self._context = copy_context()
        self.n_refused = 0
        """Outputs that did not count."""
        record.program.on_call(ref, self._called)

    def _called(self, called: wire.Called) -> None:
        """Called by the backend, on its thread."""
        self._context.copy().run(_threads.run, lambda: self._check(called))

    def _check(self, called: wire.Called) -> None:
        texts: tuple[str, ...] = ()
        try:
            self._answer.of(wire.Sample(called.text, called.finish_reason))
        except BadOutput as e:
            self.n_refused += 1
            texts = (self._answer.advice(e),)
        except BaseException as e:  # SystemExit and its like are meant for the program
            error = BadOutput(f"the check of a {self._answer.label} raised {type(e).__name__}: {e}")
            error.__cause__ = e
            if (record := self._record()) is not None:
                record.stop(error)
            return
        if (record := self._record()) is not None:
            with suppress(Exception):  # the record keeps it for those who observe
                record.add(wire.Results(self._state, self._ref, called.round, texts))
                record.flush()


def _renew() -> None:
    global _threads
    _threads = Pool(N_THREADS, "banyan-check")


_threads = Pool(N_THREADS, "banyan-check")
os.register_at_fork(after_in_child=_renew)  # threads do not follow into a forked child
