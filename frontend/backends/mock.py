"""A backend without a model, for tests of programs. It executes programs and answers their gens from a script."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple, TypeAlias

import msgspec

from banyan.backends.base import Question
from banyan.backends.job import ALL, CHATML, Job, as_banyan_error, features
from banyan.backends.local import LocalProgram
from banyan.execution.clock import Alarm, clock
from banyan.execution.thread_pool import SerialQueue, ThreadPool
from banyan.runtime.errors import BanyanError, BudgetExceeded, ConfigError, Unsupported, copy_of
from banyan.runtime.executor.executor import Executor
from banyan.runtime.executor.generation import Generation
from banyan.runtime.executor.generator import Attempt, Done, GenOutcome
from banyan.runtime.executor.select_scoring import decide, with_tokens
from banyan.runtime.protocol import wire

CHAT = CHATML
"""The default role markers in the prompts of a Mock."""
INTERNAL_THREADS = frozenset({"banyan-clock", "banyan-flush", "banyan-tools", "banyan-check"})
"""Names of the threads that serve all programs of the process. A script must not hold them up, and must not end
them."""

Calls: TypeAlias = "Mapping[str, Mapping[str, Any]]"
Answer: TypeAlias = "str | wire.Sample | Mapping[str, float] | Calls | tuple[Calls, ...] | BaseException"
Answers: TypeAlias = "Answer | Sequence[Answer] | Callable[[str, str], Answer]"
Script: TypeAlias = "Answers | Mapping[Any, Any]"
"""A Mapping has str and re.Pattern[str] as keys, and Answers as values. Type checkers would refuse a dict[str, ...] if
this named them, because the keys of a Mapping may not have a narrower type."""


class MockCall(NamedTuple):
    """One gen or select that a Mock answered, and its prompt."""

    prompt: str
    name: str
    op: wire.Gen | wire.Select


class Mock:
    """Answers gens and selects from `script`.

    The script is a string (always the same answer), a list of answers in the order of calls, a function
    (prompt, name) -> answer, or a dict whose values are any of these. The keys of a dict are names of gens, or patterns
    (`re.compile(...)`) that are searched for in the prompt. A key that equals the name of the gen is used first, then
    the first pattern that is found. For a gen with n > 1 the script is asked n times.

    An answer takes the place of the model's output, and is cut in the same way: before the first of the gen's stop
    strings, after the first match of its stop_regex, or before the text that ends the turn. A word, with its white
    space, counts as one token, for usage and for budget=. max_tokens and the other sampling options, priority and
    deadline have no effect, but `calls` holds the options of each gen. durable is refused. An answer may also be a
    `wire.Sample`, which sets finish_reason, n_tokens and logprobs and is not cut. The answer to a select is one of its
    choices, or a dict from each choice to its log-probability: then the best choice is taken or, with a temperature,
    one is drawn.

    The answer to a gen with tools may be calls: {"add": {"a": 1, "b": 2}}, or a tuple of such dicts. Then the script is
    asked for the next answer, with a prompt that contains the results, and before them the text of each call:
    `<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>`.

    If an answer is an exception, or a function raises one, the gen fails. Banyan's errors are raised unchanged
    (`RuntimeLost("gone")`); any other exception becomes the cause of a ProgramError.

    refuses: features to refuse with Unsupported: options of gens ("top_k", "return_logprob"), constraints ("regex",
    "json_schema", "grammar", "choices"), "select" and its methods, "tools", "image", "raw", "roles" and "stream".

    latency: seconds until an answer comes, or a function that returns them for a MockCall. With 0, the answer comes at
    once, in the caller's thread, or on a thread of the Mock if a tool or a timer resumes the program. The text of
    a gen that streams comes word by word, spread over the latency.
    """

    def __init__(
        self,
        script: Script = "",
        *,
        chat: wire.ChatMarkers | None = CHAT,
        latency: float | Callable[[MockCall], float] = 0.0,
        refuses: Collection[str] = ("image",),
    ) -> None:
        self.refuses = frozenset(refuses)
        if unknown := self.refuses - ALL:
            raise ConfigError(f"refuses: unknown feature {min(unknown)!r}; choose from {', '.join(sorted(ALL))}")
        self.welcome = wire.Welcome(
            version=wire.VERSION, model="mock", max_context=1 << 31, chat=chat, images="image" not in self.refuses
        )
        self.calls: list[MockCall] = []
        """All gens and selects so far, in the order in which they started."""
        self.submits: list[tuple[wire.Op, ...]] = []
        """The ops of each message so far."""
        if not callable(latency) and not latency >= 0:
            raise ConfigError(f"latency is {latency}; it must be 0 or more seconds")
        self._script, self._latency = script, latency
        given = (latency, *(script.values() if isinstance(script, Mapping) else (script,)))
        self._has_functions = any(map(callable, given))
        self._n_answered: dict[Any, int] = {}
        self._n_spent: Counter[int] = Counter()  # number of a budget -> tokens
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Mock, {len(self.calls)} calls>"

    def program(self, name: str = "") -> LocalProgram:
        return _MockProgram(self, name)

    def ask(self, what: Question) -> Any:
        """Returns a dict with the name "mock", the number of calls, and the number of messages. The answer is the same
        for each `what`."""
        return {"model": "mock", "n_calls": len(self.calls), "n_submits": len(self.submits)}

    def start(self, job: Job) -> None:
        """Answer a gen or select, after the latency. Called by programs."""
        for what in features(job):
            if what in self.refuses:
                raise Unsupported(f"{what}: this Mock was made to refuse it (refuses=)")
        call = MockCall(job.text, job.op.name, job.op)
        self.calls.append(call)
        scripts = job.owner.scripts if self._has_functions and isinstance(job.owner, _MockProgram) else None
        if scripts is not None and (scripts.is_running or threading.current_thread().name in INTERNAL_THREADS):
            scripts.run(partial(self._answer_on_pool, job, call))
        else:
            self._answer(job, call)

    def _answer_on_pool(self, job: Job, call: MockCall) -> None:
        try:
            if not job.is_over:
                self._answer(job, call)
        except BaseException as e:  # such as pytest.fail: there is no caller to get it
            job.finish(as_banyan_error(e, "the script of the Mock raised"))

    def _answer(self, job: Job, call: MockCall) -> None:
        seconds = self._latency(call) if callable(self._latency) else self._latency
        pieces: list[str] = []
        try:
            scripted = self._scripted(job, call)
            outcome: GenOutcome | BanyanError = scripted
            if isinstance(job.op, wire.Gen) and job.op.stream and not scripted.calls:
                pieces = _words(scripted.text)
        except Exception as e:
            outcome = as_banyan_error(e, "the script of the Mock raised")
        now = time.monotonic()
        for k, piece in enumerate(pieces, 1):
            _call(now, seconds * k / (len(pieces) + 1), partial(job.deliver, piece))
        if (alarm := _call(now, seconds, partial(job.finish, outcome))) is not None:
            job.on_stop(alarm.cancel)

    def _scripted(self, job: Job, call: MockCall) -> GenOutcome:
        op = job.op
        if isinstance(op, wire.Select):
            answer = self.answer(call.prompt, call.name)
            if isinstance(answer, Mapping):
                return _chosen(op, answer)
            sample = _sample(answer, ())
            if sample.text not in op.choices:
                raise ValueError(f"{sample.text!r} is not among the choices: {', '.join(op.choices)}")
            return GenOutcome((sample,))
        answers: list[Any] = [self.answer(call.prompt, call.name) for _ in range(op.sampling.n)]
        if op.tools is not None and isinstance(answers[0], Mapping | tuple):
            calls = _calls(answers[0], job.round)
            samples: tuple[wire.Sample, ...] = (_sample("".join(map(_call_text, calls)), ()),)
        else:
            calls = ()
            samples = tuple(_sample(answer, job.stops, op.sampling.stop_regex) for answer in answers)
        usage = wire.TokenUsage(generated=sum(sample.n_tokens for sample in samples))
        return GenOutcome(samples, usage, calls=calls)

    def answer(self, prompt: str, name: str) -> Answer:
        """Returns the script's next answer to the gen or select `name` with this prompt. LookupError: the script has no
        entry for it, or its list of answers is used up."""
        script: Any = self._script
        key = None
        if isinstance(script, Mapping):
            key = self._key(script, prompt, name)
            script = script[key]
        if callable(script):
            return script(prompt, name)  # type: ignore[no-any-return]
        if isinstance(script, str | wire.Sample | Mapping | BaseException):
            return script
        with self._lock:
            i = self._n_answered.get(key, 0)
            self._n_answered[key] = i + 1
        if i >= len(script):
            which = "" if key is None else f" for {getattr(key, 'pattern', key)!r}"
            raise LookupError(f"it has only {len(script)} answers{which}, but one more is needed")
        return script[i]  # type: ignore[no-any-return]

    def _key(self, script: Mapping[Any, Answers], prompt: str, name: str) -> Any:
        if name in script:
            return name
        patterns = [key for key in script if isinstance(key, re.Pattern)]
        for pattern in patterns:
            if pattern.search(prompt):
                return pattern
        names = ", ".join(key for key in script if isinstance(key, str)) or "no name"
        and_patterns = f", and none of its {len(patterns)} patterns matches the prompt" if patterns else ""
        raise LookupError(f"it has no answer for {name!r}, only for {names}{and_patterns}")


class _MockProgram(LocalProgram):
    """A program whose messages are kept in `Mock.submits`. As on a server, the gen that exceeds a budget of its run or
    batch fails; the frontend alone would stop only what comes after it."""

    def __init__(self, mock: Mock, name: str) -> None:
        super().__init__(mock, name)
        self._mock, self._budgets = mock, tuple[wire.TokenLimit, ...]()
        self.scripts = SerialQueue(_threads) if mock._has_functions else None

    def limit(self, limits: wire.ProgramLimits) -> None:
        if limits.durable:
            raise Unsupported("durable: a Mock ends with its process; use a server of `banyan serve --socket PATH`")
        self._budgets = limits.budgets

    def submit(self, ops: Sequence[wire.Op], last: bool = False) -> None:
        self._mock.submits.append(tuple(ops))
        super().submit(ops, last)

    def attempt(self, program: Executor, generation: Generation, done: Done) -> Job:
        return super().attempt(program, generation, partial(self._spend, done) if self._budgets else done)

    def _spend(self, done: Done, attempt: Attempt, outcome: GenOutcome | BanyanError) -> None:
        if isinstance(outcome, GenOutcome):
            n_spent = self._mock._n_spent
            with self._mock._lock:
                n_spent.update({budget.number: outcome.usage.generated for budget in self._budgets})
                over = next((budget for budget in self._budgets if n_spent[budget.number] > budget.tokens), None)
            if over is not None:
                outcome = BudgetExceeded.of(over.of, over.tokens)
        done(attempt, outcome)


def _call(now: float, seconds: float, action: Callable[[], None]) -> Alarm | None:
    """Call `action` `seconds` after `now`, on the clock's thread; if `seconds` is 0, on this thread, now."""
    if seconds:
        return clock().call(now + seconds, action)
    action()
    return None


def _sample(answer: Answer, stops: Sequence[str], patterns: Sequence[str] = ()) -> wire.Sample:
    """Returns the answer, cut before the first stop string or after the first match of a pattern. If the answer is an
    exception, raises it."""
    if isinstance(answer, BanyanError):
        raise copy_of(answer)  # the error gets the place of the gen, and the script may use `answer` again
    if isinstance(answer, BaseException):
        raise answer
    if isinstance(answer, wire.Sample):
        return answer
    if not isinstance(answer, str):
        raise TypeError(f"a script answers with a string, a wire.Sample or an exception, not {answer!r}")
    found = min(((at, stop) for stop in stops if (at := answer.find(stop)) >= 0), default=None)
    for pattern in patterns:  # the shortest match, as on the server
        ends = range(1, len(answer) + 1 if found is None else found[0] + 1)
        if (end := next((end for end in ends if re.search(pattern, answer[:end])), None)) is not None:
            found = end, pattern
    end, matched = found or (len(answer), None)
    return wire.Sample(answer[:end], "stop", matched, n_tokens=len(_words(answer[:end])))


def _words(text: str) -> list[str]:
    """The words of a text, each with the white space after it: the tokens of a Mock."""
    return re.findall(r"\S+\s*|\s+", text)


def _chosen(op: wire.Select, logprobs: Mapping[str, Any]) -> GenOutcome:
    """Select as if each choice were one token with the log-probability that `logprobs` gives it."""
    if logprobs.keys() != set(op.choices):
        raise ValueError(f"{', '.join(logprobs)} have log-probabilities, but the choices are {', '.join(op.choices)}")
    values = [(float(logprobs[choice]),) for choice in op.choices]
    decision = decide("token_length_normalized", values, (), op.temperature, Random(op.seed))
    scores = with_tokens(decision, values, ids=[(0,)] * len(values))
    return GenOutcome((wire.Sample(op.choices[decision.chosen], "stop"),), scores=scores)


def _calls(answer: Calls | tuple[Calls, ...], number: int) -> tuple[wire.WireToolCall, ...]:
    pairs = [pair for calls in (answer if isinstance(answer, tuple) else (answer,)) for pair in calls.items()]
    return tuple(
        wire.WireToolCall(f"call_{number}_{i}", name, msgspec.json.encode(arguments).decode())
        for i, (name, arguments) in enumerate(pairs)
    )


def _call_text(call: wire.WireToolCall) -> str:
    written = {"name": call.name, "arguments": json.loads(call.arguments)}
    return f"<tool_call>{json.dumps(written, ensure_ascii=False)}</tool_call>"


_threads = ThreadPool(name="banyan-mock")
