"""Collects what happens to requests until it is sent to the server. No torch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.protocol.wire import Failed, Finish, FinishReason, Step, TopLogprobs


class StepReport:
    """New tokens, finished and failed requests of one report."""

    def __init__(self) -> None:
        self._rids, self._n_new, self._ids = array("q"), array("i"), array("i")
        self._logprobs: dict[int, tuple[TopLogprobs, ...]] = {}
        self._cached: dict[int, int] = {}
        self._finished: list[Finish] = []
        self.failed: list[Failed] = []

    def tokens(self, request: Request, tokens: Sequence[int]) -> None:
        """Add output tokens, which the request already has."""
        if not tokens:
            return
        if request.n_out == len(tokens):
            self._cached[request.rid] = max(request.n_cached, 0)
        self._ids.extend(tokens)
        if self._rids and self._rids[-1] == request.rid:
            self._n_new[-1] += len(tokens)
        else:
            self._rids.append(request.rid)
            self._n_new.append(len(tokens))

    def logprobs(self, request: Request, tops: Sequence[TopLogprobs]) -> None:
        """Add the logprobs of a request's latest tokens; empty where they were not requested."""
        if tops:
            self._logprobs[request.rid] = (*self._logprobs.get(request.rid, ()), *tops)

    def finish(self, request: Request, reason: FinishReason, stop_id: int, drafts: dict[str, tuple[int, int]]) -> None:
        """Add a finished request. drafts: by drafter, how many tokens were drafted and how many accepted."""
        n_drafted, n_accepted = (sum(n) for n in zip(*drafts.values(), strict=True)) if drafts else (0, 0)
        r = request
        self._finished.append(
            Finish(r.rid, reason, stop_id, r.n_prompt, max(r.n_cached, 0), r.scores.tobytes(), r.start_time,
                   n_drafted, n_accepted, r.drafted.tobytes(), tuple(r.tops), drafts)
        )  # fmt: skip

    def step(self) -> Step:
        ids = self._rids.tobytes(), self._n_new.tobytes(), self._ids.tobytes()
        return Step(*ids, self._logprobs, tuple(self._finished), self._cached)
