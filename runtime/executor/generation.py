"""A gen or select in progress in a state. A generation takes several attempts if the client answers between them: with
tool results, or with a correction of the output.

The classes are state machines without side effects: `take` and `answer` return what the executor does next.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from banyan.runtime.errors import BadProgram, BanyanError, BudgetExceeded, ToolError, Unsupported
from banyan.runtime.executor.generator import Attempt, GenOutcome, Prompt
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.roles import ASSISTANT

NextStep: TypeAlias = GenOutcome | BanyanError | wire.Called | None
"""What the executor does next. An outcome: the generation has ended. A Called: send it to the client, and wait for the
Results. None: make another attempt."""


class Generation:
    """A gen or select in progress. This class makes one attempt; its subclasses may make several.

    order: the sort key of its requests within the program, as in wire.Run.
    called: the question to the client that has no answer yet; None if there is none.
    memo: data that the generator keeps between the attempts.
    """

    def __init__(self, op: wire.Gen | wire.Select, prompt: Prompt, order: tuple[int, ...]) -> None:
        self.op, self.prompt, self.order = op, prompt, order
        self.round = 0
        self.attempt: Attempt | None = None
        self.called: wire.Called | None = None
        self.memo: Any = None
        self._usage, self._times = wire.TokenUsage(), wire.Times()  # over all attempts so far
        self._rounds: tuple[wire.TokenUsage, ...] = ()  # the usage of each attempt so far
        self._drafts: dict[str, tuple[int, int]] = {}  # over all attempts so far, as in wire.Sample
        self._asked: GenOutcome | None = None  # about which the client was asked last

    def take(self, outcome: GenOutcome | BanyanError) -> NextStep:
        """Take the outcome of the current attempt, and return the next step. An outcome returned as the final one has
        the summed usage and times of all attempts."""
        if isinstance(outcome, BanyanError):
            return outcome
        usage = outcome.usage
        self._rounds += (usage,)
        if self.round:
            times = replace(self._times, ended=outcome.times.ended)
            sample = replace(outcome.samples[0], drafts=_add_drafts(self._drafts, outcome.samples[0].drafts))
            outcome = outcome._replace(
                samples=(sample,), usage=add_usage(self._usage, usage), times=times, rounds=self._rounds
            )
        self._usage, self._times, self._drafts = outcome.usage, outcome.times, outcome.samples[0].drafts
        if isinstance(self.op, wire.Gen) and 0 < self.op.budget < outcome.usage.generated:
            return BudgetExceeded.of("gen", self.op.budget)
        return self._review(outcome, usage)

    def _review(self, outcome: GenOutcome, usage: wire.TokenUsage) -> NextStep:
        """Return the next step after an attempt. outcome: the attempt's outcome, whose field `usage` is the sum over
        all attempts so far. usage: the usage of this attempt alone."""
        return outcome

    def answer(self, texts: tuple[str, ...]) -> NextStep:
        """Take `texts`, the client's answer to the question `called`, and return the next step. BanyanError: the answer
        is invalid."""
        raise NotImplementedError

    def _ask(self, outcome: GenOutcome, usage: wire.TokenUsage) -> wire.Called:
        self._asked, sample = outcome, outcome.samples[0]
        return wire.Called(
            0, 0, self.op.ref, self.round, outcome.calls, sample.text, usage, sample.finish_reason, outcome.scores
        )


class Retries(Generation):
    """A gen whose client checks each output and accepts it or returns a correction, for at most `op.retries` retries.

    For a retry, the prompt gets the refused output and the correction: as a user turn if the gen is in a turn of the
    assistant, otherwise as a paragraph. The state gets only the last output.
    """

    def __init__(self, op: wire.Gen, prompt: Prompt, order: tuple[int, ...]) -> None:
        if op.tools is not None or op.sampling.n != 1:
            raise BadProgram("a gen with retries must have one sample, and no tools")
        super().__init__(op, prompt, order)
        self._n_retries = op.retries

    def _review(self, outcome: GenOutcome, usage: wire.TokenUsage) -> NextStep:
        return outcome if self.round >= self._n_retries else self._ask(outcome, usage)

    def answer(self, texts: tuple[str, ...]) -> NextStep:
        assert self._asked is not None
        if not texts:
            return self._asked
        prompt = self.prompt.copy()
        prompt.append_output(self._asked)
        for part in correction(self.prompt.role, texts):
            prompt.append_part(part)
        self.prompt = prompt
        self.round += 1
        return None


class ToolLoop(Generation):
    """A gen with tools: turns of the assistant. Between two turns, the client runs the tools that the model called, and
    sends the results."""

    def __init__(self, op: wire.Gen, tools: wire.Tools, prompt: Prompt, order: tuple[int, ...]) -> None:
        if prompt.role != ASSISTANT:
            raise BadProgram("a gen with tools must be in a turn of the assistant, where the model can call them")
        if op.sampling.n != 1:
            raise BadProgram(f"n is {op.sampling.n}; a gen with tools must have one sample")
        super().__init__(op, prompt, order)
        self._max_rounds = tools.max_rounds
        self._calls: tuple[wire.WireToolCall, ...] = ()

    def _review(self, outcome: GenOutcome, usage: wire.TokenUsage) -> NextStep:
        if not outcome.calls:
            return outcome
        if self.round >= self._max_rounds:
            names = ", ".join(dict.fromkeys(call.name or "?" for call in outcome.calls))
            n = self._max_rounds
            message = f"the model still calls tools ({names}) after {n} rounds, the limit of max_rounds"
            return ToolError(message)
        self.prompt.append_calls(outcome)
        self._calls = outcome.calls
        return self._ask(outcome, usage)

    def answer(self, texts: tuple[str, ...]) -> NextStep:
        if len(texts) != len(self._calls):
            raise BadProgram(f"{len(texts)} results came for {len(self._calls)} calls; there must be one for each")
        self.prompt.append_results(self._calls, texts)
        self.round += 1
        return None


class ClientChoice(Generation):
    """A select in which the client gets the scores of all choices and picks one."""

    def __init__(self, op: wire.Select, prompt: Prompt, order: tuple[int, ...]) -> None:
        super().__init__(op, prompt, order)
        self._choices = op.choices

    def _review(self, outcome: GenOutcome, usage: wire.TokenUsage) -> NextStep:
        if outcome.scores is None:
            return Unsupported(
                "your own choices_method needs the scores of the choices, which this backend does not return"
            )
        return self._ask(outcome, usage)

    def answer(self, texts: tuple[str, ...]) -> NextStep:
        assert self._asked is not None
        assert self._asked.scores is not None
        if len(texts) != 1 or texts[0] not in self._choices:
            raise BadProgram(f"{' '.join(texts)[:200]!r} is not one of the choices")
        scores = self._asked.scores
        chosen = self._choices.index(texts[0])
        weights = tuple(float(k == chosen) for k in range(len(self._choices)))
        tokens: Any = scores.tokens[chosen]
        if isinstance(tokens, msgspec.Raw):  # the server encodes large scores before they come here
            tokens = msgspec.msgpack.decode(tokens)
        sample = replace(self._asked.samples[0], text=texts[0], n_tokens=len(tokens))
        return self._asked._replace(samples=(sample,), pieces=(), scores=replace(scores, weights=weights))


def generation_of(op: wire.Gen | wire.Select, prompt: Prompt, order: tuple[int, ...]) -> Generation:
    """Return a new generation of the kind that `op` asks for. order: see `Generation`. BadProgram: the options of `op`
    cannot be combined, or a gen with tools is not in a turn of the assistant."""
    if isinstance(op, wire.Select):
        return ClientChoice(op, prompt, order) if op.client_decides else Generation(op, prompt, order)
    if op.retries:
        return Retries(op, prompt, order)
    if op.tools is not None and not op.tools.ends_turn:
        return ToolLoop(op, op.tools, prompt, order)
    return Generation(op, prompt, order)


def correction(role: str | None, texts: tuple[str, ...]) -> tuple[str | wire.BeginTurn | wire.EndTurn, ...]:
    """The prompt parts that tell the model that its output was wrong: a user's turn in a chat, else a paragraph."""
    text = " ".join(texts)
    if role == ASSISTANT:
        return wire.EndTurn(), wire.BeginTurn("user"), text, wire.EndTurn(), wire.BeginTurn(ASSISTANT)
    return (f"\n\n{text}\n\n",)


def _add_drafts(one: dict[str, tuple[int, int]], other: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    none = (0, 0)
    return {
        name: (one.get(name, none)[0] + other.get(name, none)[0], one.get(name, none)[1] + other.get(name, none)[1])
        for name in one | other
    }


def add_usage(one: wire.TokenUsage, other: wire.TokenUsage, sign: int = 1) -> wire.TokenUsage:
    """Add two usages; with sign -1, subtract the second."""
    names = wire.TokenUsage.__struct_fields__
    return wire.TokenUsage(*(getattr(one, name) + sign * getattr(other, name) for name in names))
