"""Values in the making: what a gen, a select or a read will give, once the server has it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from banyan.execution.feed import Feed
from banyan.execution.source_line import source_line
from banyan.lang.expr import Expr
from banyan.runtime.errors import (
    BadOutput,
    BadProgram,
    BanyanError,
    BudgetExceeded,
    Cancelled,
    DeadlineExceeded,
    ForkError,
    ProgramError,
    Unsupported,
)
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire

if TYPE_CHECKING:
    from banyan.execution.program_record import ProgramRecord, StateHandle
    from banyan.lang.output_types import OutputType
    from banyan.tools.caller import Caller
    from banyan.tools.checks import Checker, Chooser
    from banyan.tools.toolbox import ToolCall

E = TypeVar("E", bound=BanyanError)


class LazyValue(Expr):
    """A value in the making. Appended to a state, it is spliced on the server: nobody waits for it here."""

    __slots__ = (
        *(
            "__weakref__",
            "_lane",
            "_objects",
            "_value",
            "answer",
            "before",
            "caller",
            "checker",
            "heard",
            "line",
            "name",
            "number",
        ),
        *("choices", "chooser", "method", "record", "with_text"),
    )

    def __init__(
        self, record: ProgramRecord, lane: StateHandle, before: LazyValue | None, name: str = "", line: str = ""
    ) -> None:
        self.record, self.number, self.name, self.line = record, record.new_ref(), name, line
        self.before = before
        """The value that comes before it in its state: a failure began at the first of them that failed."""
        self.heard: Feed[wire.Delta] | None = None
        """Its text as it comes, where the program streams."""
        self.with_text = False
        """Whether the meta info shows the text of each token."""
        self.answer: OutputType | None = None
        """What its text is to be."""
        self.method: wire.ChoicesMethod | None = None
        """How its choices are scored, where it is a select."""
        self.choices: tuple[str, ...] = ()
        self.caller: Caller | None = None
        """Who makes the calls of a gen with tools."""
        self.checker: Checker | None = None
        """Who looks at the outputs of a gen with retries."""
        self.chooser: Chooser | None = None
        """Who decides a select, where that is the user."""
        self._lane: StateHandle | None = lane
        lane.last = self.number
        self._value: wire.Value | None = None
        self._objects: list[Any] | None = None

    def __repr__(self) -> str:
        return f"<Ref {self.name or self.number} of program {self.record.name}>"

    @property
    def future(self) -> ValueFuture[wire.Value]:
        return self.record.program.future(self.number)

    @property
    def is_done(self) -> bool:
        """Whether reading it waits for nothing: it is known, or known to have failed."""
        return self._value is not None or self.future.done()

    @property
    def state(self) -> int:
        """The number of the state that it is made in; -1 once it is known."""
        return -1 if self._lane is None else self._lane.number

    def twin(self, record: ProgramRecord, lane: StateHandle, before: LazyValue | None, number: int) -> LazyValue:
        """The same value in the making, in another run."""
        ref = LazyValue.__new__(LazyValue)
        for name in LazyValue.__slots__:
            if name != "__weakref__":
                setattr(ref, name, getattr(self, name))
        ref.record, ref._lane, ref.before, ref.number = record, lane, before, number
        lane.last = number
        return ref

    def stream(self) -> None:
        """Collect the text as it comes. To be called before the op is sent."""
        heard = self.heard = Feed[wire.Delta]()
        put = heard.put if self.caller is None else self.caller.stream(heard)
        if self.record.events is not None:
            put = self.record.events.heard(self, put)
        self.record.program.on_delta(self.number, put)
        self.future.add_done_callback(lambda _: heard.close())

    def wait(self) -> wire.Value:
        """The value; waits for it. Raises what came instead: the error of the first gen that led to it."""
        if self._value is None:
            try:
                if self.future.done():
                    self._value = self.future.result()
                else:
                    with self.waiting():
                        self._value = self.future.result()
            except BanyanError as e:
                self.record.notice.is_given = True
                error = self._explained(e)
                raise error from error.__cause__ or e.__cause__
            self._lane = None  # known, and so the state need not live on for it
        return self._value

    def waiting(self) -> AbstractContextManager[None]:
        """Send it, if it was not sent yet; the block that waits for it is noted."""
        name, line = self.name or "the text", source_line()
        self.record.flush(f"{line} looked at {name!r}")
        return self.record.trace.span("wait", name, self.state, line)

    def _explained(self, error: BanyanError) -> BaseException:
        if self.record.error is not None:  # the body raised, and took its gens with it
            return self.record.error
        place, ref = self, self.before
        while ref is not None:
            if ref.future.done() and isinstance(found := ref.future.exception(), BanyanError):
                error, place = found, ref
            ref = ref.before
        if isinstance(error, Cancelled) and (failure := self.record.failure) is not None:
            if not isinstance(failure, BanyanError):
                return failure
            error = failure
        return placed(error, place)

    # ---- what users see of a value ---------------------------------------------------------------------------------

    def read(self) -> str | list[str]:
        """The text; with n > 1, a list of all n."""
        samples = self.wait().samples
        return samples[0].text if len(samples) == 1 else [sample.text for sample in samples]

    def text(self) -> str:
        """The text that stands in the prompt: that of the first sample."""
        return self.wait().samples[0].text

    def value(self) -> Any:
        """The object that the text is, where it has a type; with n > 1, a list of all n. BadOutput: it is none."""
        samples = self.wait().samples
        if self.answer is None:
            return self.read()
        if self._objects is None:
            try:
                self._objects = [self.answer.of(sample) for sample in samples]
            except BadOutput as e:
                if self.checker is not None:
                    e.message += f" (it was told so {self.checker.n_refused} times)"
                raise placed(e, self) from e.__cause__
        return self._objects[0] if len(samples) == 1 else self._objects

    def tool_calls(self) -> list[ToolCall]:
        """The calls of a gen with tools, also of one that failed."""
        with suppress(BanyanError):
            self.wait()
        return [] if self.caller is None else [call for turn in self.caller.rounds for call in turn.calls]

    def meta_info(self) -> dict[str, Any] | list[dict[str, Any]]:
        """What is known about how the text came about; with n > 1, a list of all n."""
        value = self.wait()
        if value.scores is not None:
            own = {} if self.chooser is None else self.chooser.meta_info
            return meta_of_select(value.scores, self.method if self.chooser is None else None) | own
        metas = [meta_of_sample(k, sample, value, self.with_text) for k, sample in enumerate(value.samples)]
        if self.caller is not None:
            for meta in metas:
                meta["rounds"] = self.caller.usage_per_round(value.usage)
        return metas[0] if len(metas) == 1 else metas


def meta_of_sample(k: int, sample: wire.Sample, value: wire.Value, with_text: bool) -> dict[str, Any]:
    """What is known of the k-th sample. with_text: whether the text of each token is shown."""
    usage, times = value.usage, value.times
    reason: dict[str, Any] = {"type": sample.finish_reason}
    if sample.matched is not None:
        reason["matched"] = sample.matched
    if sample.finish_reason == "length":
        reason["length"] = sample.n_tokens
    drafts = {name: {"drafted": n, "accepted": right} for name, (n, right) in sample.drafts.items()}
    meta: dict[str, Any] = ({"drafts": drafts} if drafts else {}) | {
        "id": f"{value.program}-{value.ref}-{k}",
        "finish_reason": reason,
        "prompt_tokens": usage.prompt,
        "completion_tokens": sample.n_tokens,
        "cached_tokens": usage.cached,
        "spec_verify_ct": usage.generated - usage.accepted if usage.drafted else 0,
        "time_to_first_token": max(0.0, times.first - times.ready),
        "e2e_latency": max(0.0, times.ended - times.ready),
    }
    if sample.logprobs or value.prompt:
        meta |= _meta_of_logprobs(sample.logprobs, with_text)
        meta["input_token_logprobs"] = [
            (None if math.isnan(t.logprob) else t.logprob, t.id, t.text if with_text else None) for t in value.prompt
        ]
        meta["input_top_logprobs"] = [_top(t, with_text) if t.top else None for t in value.prompt]
    return meta


def meta_of_piece(delta: wire.Delta, logprobs: Sequence[wire.TokenLogprob], with_text: bool) -> dict[str, Any]:
    """What is known of a gen's first sample when a piece of it comes. logprobs: of all its tokens so far.

    An API tells the tokens of a prompt with the last piece: before that they are None.
    """
    meta: dict[str, Any] = {
        "id": f"{delta.program}-{delta.ref}-0",
        "finish_reason": None,
        "prompt_tokens": delta.n_prompt or None,
        "completion_tokens": delta.n_tokens,
        "cached_tokens": delta.n_cached if delta.n_prompt else None,
    }
    return meta | (_meta_of_logprobs(logprobs, with_text) if logprobs else {})


def _meta_of_logprobs(logprobs: Sequence[wire.TokenLogprob], with_text: bool) -> dict[str, Any]:
    return {
        "output_token_logprobs": [(t.logprob, t.id, t.text if with_text else None) for t in logprobs],
        "output_top_logprobs": [_top(t, with_text) for t in logprobs],
    }


def _top(t: wire.TokenLogprob, with_text: bool) -> list[tuple[float, int, str | None]]:
    return [(logprob, token, words if with_text else None) for token, words, logprob in t.top]


def meta_of_select(scores: wire.Scores, method: wire.ChoicesMethod | None) -> dict[str, Any]:
    """Per choice: its score, the (logprob, id, None) of each scored token, and its weight in the draw."""
    meta: dict[str, Any] = {
        "normalized_prompt_logprobs": list(scores.normalized),
        "input_token_logprobs": [[(logprob, token, None) for logprob, token in one] for one in scores.tokens],
        "output_token_logprobs": [[] for _ in scores.tokens],
        "weights": list(scores.weights),
    }
    if method == "greedy_token_selection":
        longest = max(map(len, scores.tokens))
        meta["greedy_logprob_matrix"] = [
            [logprob for logprob, _ in one] + [mean] * (longest - len(one))
            for one, mean in zip(scores.tokens, scores.normalized, strict=True)
        ]
    if scores.unconditional:
        meta["unconditional_token_logprobs"] = [
            [(logprob, token, None) for logprob, token in one] for one in scores.unconditional
        ]
        pairs = zip(scores.tokens, scores.unconditional, strict=True)
        gains = [[a[0] - b[0] for a, b in zip(with_, without, strict=True)] for with_, without in pairs]
        meta["normalized_unconditional_prompt_logprobs"] = [sum(gain) / len(gain) for gain in gains]
    return meta


class Thought:
    """What a gen thinks, where that is told apart from what it says."""

    __slots__ = ("ref",)

    def __init__(self, ref: LazyValue) -> None:
        self.ref = ref

    def read(self) -> str | list[str]:
        """The text; with n > 1, a list of all n."""
        samples = self.ref.wait().samples
        return samples[0].reasoning if len(samples) == 1 else [sample.reasoning for sample in samples]


class JoinedValues:
    """One variable of all branches that were joined, read when somebody asks. None: a branch that never made it."""

    __slots__ = ("collects", "values")

    def __init__(self, values: list[Any], collects: bool = False) -> None:
        """collects: the error of a branch that failed stands in its place; else it is raised."""
        self.values, self.collects = values, collects

    def each(self, get: Callable[[Any], Any]) -> list[Any]:
        """What `get` gives for each. ForkError says which branch failed."""
        found: list[Any] = []
        for i, value in enumerate(self.values):
            try:
                found.append(get(value))
            except ProgramError as e:
                if isinstance(e, Cancelled | DeadlineExceeded | BudgetExceeded):
                    raise  # that is no matter of a branch
                error = fork_error(i, e)
                if not self.collects:
                    raise error from e
                found.append(error)
        return found


def is_done(value: Any) -> bool:
    """Whether `read` waits for nothing."""
    if isinstance(value, JoinedValues):
        return all(map(is_done, value.values))
    if isinstance(value, Thought):
        return value.ref.is_done
    return not isinstance(value, LazyValue) or value.is_done


def read(value: Any) -> Any:
    """What `s[name]` gives for what is stored there; waits for what is still in the making."""
    if isinstance(value, LazyValue | Thought):
        return value.read()
    if isinstance(value, JoinedValues):
        return value.each(read)
    return value


def read_object(value: Any) -> Any:
    """What `s.value(name)` gives: as `read`, with the objects of gens that have a type."""
    if isinstance(value, LazyValue):
        return value.value()
    if isinstance(value, JoinedValues):
        return value.each(read_object)
    return read(value)


def tool_calls(value: Any) -> Any:
    """The calls of what is stored under a name; [] for what has none."""
    if isinstance(value, JoinedValues):
        return [tool_calls(one) for one in value.values]
    return value.tool_calls() if isinstance(value, LazyValue) else []


def meta_info(value: Any) -> Any:
    """The meta info of what is stored under a name; None for what was not generated."""
    if isinstance(value, LazyValue):
        return value.meta_info()
    if isinstance(value, JoinedValues):
        return value.each(meta_info)
    return None


def dist(value: Any) -> Any:
    """The probability of each choice of a select. BadProgram: it is none."""
    if isinstance(value, JoinedValues):
        return value.each(dist)
    if not isinstance(value, LazyValue) or not value.choices:
        raise BadProgram("dist is of a variable that a select made")
    scores = value.wait().scores
    if scores is None:
        raise Unsupported("dist: this backend chooses without telling what the choices score")
    logprobs = [math.fsum(logprob for logprob, _ in tokens) for tokens in scores.tokens]
    top = max(logprobs)
    odds = [math.exp(logprob - top) for logprob in logprobs]
    return {choice: one / math.fsum(odds) for choice, one in zip(value.choices, odds, strict=True)}


def fork_error(i: int, error: BanyanError, before: str = "") -> ForkError:
    """What is raised for branch `i`. before: what else there is to say."""
    where = {}
    if isinstance(error, ProgramError):
        where = {"program": error.program, "line": error.line, "gen": error.gen, "prompt_tail": error.prompt_tail}
    fork = ForkError(f"{before}branch {i} failed: {error.message}", index=i, **where)
    fork.__cause__ = error
    return fork


def copy_of(error: E) -> E:
    """A fresh error of the same content: one that is raised twice would mix its tracebacks."""
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    if notes := getattr(error, "__notes__", None):
        fresh.__notes__ = list(notes)
    return fresh


def placed(error: BanyanError, ref: LazyValue) -> BanyanError:
    """A fresh error that says where it happened."""
    fresh = copy_of(error)
    if isinstance(fresh, ProgramError):
        fresh.program = fresh.program or ref.record.name
        fresh.gen, fresh.line = fresh.gen or ref.name, fresh.line or ref.line
        fresh.attempts = 1 if ref.checker is None else ref.checker.n_refused + 1
        fresh.usage = ref.record.spent()
    else:  # the runtime failed, not the program: it stays what it is, so that it can be caught as that
        fresh.add_note(
            f"while program {ref.record.name} waited for {ref.name or 'its text'!r} ({ref.line or 'no line'})"
        )
    return fresh
