"""What happens to requests, gathered until it is sent. No torch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from banyan.runtime.engine.scheduling.request import Request
from banyan.runtime.protocol.wire import Failed, Finish, FinishReason, Step, TopLogprobs


class StepReport:
    """Tokens, ends and failures since the last `take`."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._rids, self._n_new, self._ids = array("q"), array("i"), array("i")
        self._logprobs: dict[int, tuple[TopLogprobs, ...]] = {}
        self._cached: dict[int, int] = {}
        self._finished: list[Finish] = []
        self._failed: list[Failed] = []

    def tokens(self, request: Request, tokens: Sequence[int]) -> None:
        """More tokens of output, which the request has by now."""
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
        """Those of its last tokens; none where they were not asked for."""
        if tops:
            self._logprobs[request.rid] = (*self._logprobs.get(request.rid, ()), *tops)

    def finish(self, request: Request, reason: FinishReason, stop_id: int, drafts: dict[str, tuple[int, int]]) -> None:
        """Its output is over. drafts: by drafter, tokens that were drafted and accepted."""
        self._finished.append(
            Finish(
                request.rid,
                reason,
                stop_id,
                request.n_prompt,
                max(request.n_cached, 0),
                request.scores.tobytes(),
                request.started,
                sum(n for n, _ in drafts.values()),
                sum(n for _, n in drafts.values()),
                request.drafted.tobytes(),
                tuple(request.tops),
                drafts,
            )
        )

    def fail(self, rid: int, code: str, message: str) -> None:
        self._failed.append(Failed(rid, 0, code, message))

    def take(self) -> tuple[Step, Sequence[Failed]]:
        """All of it, once."""
        step = Step(
            self._rids.tobytes(),
            self._n_new.tobytes(),
            self._ids.tobytes(),
            self._logprobs,
            tuple(self._finished),
            self._cached,
        )
        failed = self._failed
        self._clear()
        return step, failed
