"""One gen or select of a state: from its text to requests in the engine, from their outputs to a value and new text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from random import Random
from typing import Any, NamedTuple

import msgspec

from banyan.runtime.errors import BadProgram, BanyanError, Unsupported
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.requests import (
    EngineRequest,
    EngineRequests,
    Listener,
    check_seconds,
    check_urgency,
)
from banyan.runtime.server.programs import select_scoring
from banyan.runtime.server.text.chat_template import ASSISTANT, ChatTemplate
from banyan.runtime.server.text.prompt import GeneratedText, Piece, PromptText, TokenRun, pack, unpack
from banyan.runtime.server.text.reasoning_output import ReasoningOutput
from banyan.runtime.server.text.stop_patterns import Patterns
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer

Offload = Callable[[int, Callable[[], Any], Callable[[Any], None]], None]
"""(n_chars, work, then): run `work`, on a thread if there is much to do, and `then` on the loop, with what it returned
or, from a thread, raised."""


class Error(NamedTuple):
    """An error of runtime/errors.py on its way to the client. tail: the end of the prompt it happened at."""

    code: str
    message: str
    tail: str = ""

    def because(self, why: str) -> Error:
        """The same error, for what depends on it."""
        return Error(self.code, f"{why}: {self.message}", self.tail)


class GenOutcome(NamedTuple):
    """What the client gets, and what the state gets."""

    samples: tuple[wire.Sample, ...]
    pieces: tuple[Piece, ...]
    usage: wire.TokenUsage
    scores: wire.Scores | None = None
    times: wire.Times = wire.Times()
    tokens: wire.Tokens | None = None
    prompt: tuple[wire.TokenLogprob, ...] = ()


class Generation:
    """A gen or select under way. `stop` ends it without an outcome."""

    def __init__(
        self, op: wire.Gen | wire.Select, requests: EngineRequests, done: Callable[[GenOutcome | Error], None]
    ) -> None:
        self.op, self._requests, self._done = op, requests, done
        self.requests: list[EngineRequest] = []
        self.thinking: ReasoningOutput | None = None
        self.ready = requests.clock()
        self.is_over = False

    def stop(self) -> None:
        self.is_over = True
        for request in self.requests:
            self._requests.abort(request)

    def end(self, outcome: GenOutcome | Error) -> None:
        if not self.is_over:
            self.stop()
            self._done(outcome)

    def have_ended(self) -> bool:
        """Whether all requests have ended well. The first that failed ends the generation, and the others."""
        for request in self.requests:
            if request.failed is not None:
                self.end(Error(request.failed.code, request.failed.message))
        return not self.is_over and all(request.finish is not None for request in self.requests)

    def times(self) -> wire.Times:
        """Of all requests that have ended: from the first that began to the last that ended."""
        started = [r.finish.started for r in self.requests if r.finish is not None and r.finish.started]
        first = [r.first for r in self.requests if r.first]
        return wire.Times(
            ready=self.ready,
            sent=min(r.sent for r in self.requests),
            started=min(started, default=0.0),
            first=min(first, default=0.0),
            ended=max(r.ended for r in self.requests),
        )


class Generator:
    """Starts gens and selects."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        requests: EngineRequests,
        offload: Offload,
        rng: Random,
        check: Callable[[wire.ConstraintSpec, int, Callable[[wire.ConstraintSpec | BanyanError], None]], None],
    ) -> None:
        """`check`: tries a constraint, and calls back on the loop; see `Grammars.check`."""
        self.tokenizer, self.template = tokenizer, template
        self.keeper = requests.keeper
        self._requests, self._offload, self._rng, self._try = requests, offload, rng, check
        self._turn_end, self._turn_end_text = turn_end(template, tokenizer)

    def start(
        self,
        op: wire.Gen | wire.Select,
        text: PromptText,
        now: datetime,
        order: tuple[int, ...],
        done: Callable[[GenOutcome | Error], None],
        listener: Listener | None = None,
    ) -> Generation:
        """Run `op` at the end of `text`; `done` is called once, at the end, on the loop. Raises BanyanError for what
        can be seen at once: values that make no sense, or a conversation that the template refuses."""
        _check(op)
        prompt = text.prompt(self.tokenizer, self.template, now)
        extras = op.choices if isinstance(op, wire.Select) else ("",)
        generation = Generation(op, self._requests, done)

        def work() -> list[tuple[TokenRun, ...]]:
            return [prompt.encode(self.tokenizer, extra) for extra in extras]

        def go_on(encoded: list[tuple[TokenRun, ...]] | Exception) -> None:
            if generation.is_over:
                return
            with self._failing(generation, order):
                if isinstance(encoded, BanyanError):
                    raise encoded
                if isinstance(encoded, Exception):
                    generation.end(Error(BanyanError.code, f"the text cannot be encoded: {encoded!r}"))
                elif isinstance(op, wire.Gen):
                    text.runs = encoded[0]
                    then = partial(self._gen, generation, text, order, listener)
                    self._constrain(generation, op.sampling, order, then)
                else:
                    self._select(generation, op, encoded, order)

        self._offload(prompt.n_chars * len(extras) + sum(map(len, extras)), work, go_on)
        return generation

    @contextlib.contextmanager
    def _failing(self, generation: Generation, order: tuple[int, ...]) -> Iterator[None]:
        """What is raised in here ends the generation; a bug of ours, its whole program."""
        try:
            yield
        except BanyanError as e:
            generation.end(Error(e.code, e.message))
        except Exception as e:
            generation.stop()
            self._requests.crashed(order[0], e)

    def ids(self, text: PromptText, now: datetime, then: Callable[[bytes], None]) -> None:
        """What a gen at the end of `text` would be given, to `then`, on the loop; b"" where that cannot be told."""

        def go_on(encoded: tuple[TokenRun, ...] | Exception) -> None:
            then(b"" if isinstance(encoded, Exception) else b"".join(run.ids for run in encoded))

        try:
            prompt = text.prompt(self.tokenizer, self.template, now)
        except BanyanError:  # a conversation that the template refuses as yet
            then(b"")
        else:
            self._offload(prompt.n_chars, partial(prompt.encode, self.tokenizer), go_on)

    # ---- gen -------------------------------------------------------------------------------------------------------

    def _constrain(
        self,
        generation: Generation,
        sampling: wire.Sampling,
        order: tuple[int, ...],
        then: Callable[[wire.Sampling], None],
    ) -> None:
        """Go on when the constraint, if there is one, is known to be good."""
        if sampling.constraint is None:
            return then(sampling)

        def told(spec: wire.ConstraintSpec | BanyanError) -> None:
            if generation.is_over:
                return
            with self._failing(generation, order):
                if isinstance(spec, BanyanError):
                    raise spec
                then(msgspec.structs.replace(sampling, constraint=spec))

        return self._try(sampling.constraint, self._requests.standing(order[0]).client, told)

    def _gen(
        self,
        generation: Generation,
        text: PromptText,
        order: tuple[int, ...],
        listener: Listener | None,
        sampling: wire.Sampling,
    ) -> None:
        turn_ends: tuple[int, ...] = ()
        if text.role == ASSISTANT and not sampling.ignore_eos:
            if self._turn_end is not None:
                turn_ends = (self._turn_end,)
            elif self._turn_end_text:
                sampling = msgspec.structs.replace(sampling, stop=(*sampling.stop, self._turn_end_text))
        if _is_look(sampling):
            turn_ends = ()
            sampling = msgspec.structs.replace(
                sampling, max_tokens=1, n=1, stop=(), stop_token_ids=(), stop_regex=(), ignore_eos=True
            )
        assert isinstance(generation.op, wire.Gen)
        shown: tuple[str, ...] = ()
        if (marks := generation.op.reasoning) is not None:
            thinking = generation.thinking = ReasoningOutput(marks, text.runs, listener)
            listener, shown = (None if listener is None else thinking.hear), (marks.start, marks.end)
        urgency = _urgency(generation.op, generation.ready)
        ids = b"".join(run.ids for run in text.runs)
        seed = self._rng.getrandbits(62) if sampling.seed is None else sampling.seed
        for k in range(sampling.n):
            request = self._requests.start(
                ids,
                sampling,
                partial(self._gen_ended, generation),
                turn_ends=turn_ends,
                seed=seed,
                sample=k,
                score_from=_score_from(sampling, len(ids) // 4) if k == 0 else -1,
                order=(*order, k),
                listener=None if k else listener,
                shown=shown,
                urgency=urgency,
            )
            generation.requests.append(request)

    def _gen_ended(self, generation: Generation, _: EngineRequest) -> None:
        if not generation.have_ended():
            return
        first = generation.requests[0]
        samples = tuple(map(self._requests.sample, generation.requests))
        usage = _usage(generation.requests, n_prompts=1)
        assert isinstance(generation.op, wire.Gen)
        if _is_look(generation.op.sampling):
            samples = (wire.Sample("", "length", logprobs=samples[0].logprobs),) * generation.op.sampling.n
            pieces: tuple[Piece, ...] = ()
            usage = msgspec.structs.replace(usage, generated=0)
        elif generation.thinking is not None:
            samples, pieces = generation.thinking.end(samples, first)
        else:
            n_kept, n_chars = first.text.kept()
            text = first.text.text
            pieces = GeneratedText(text[:n_chars], bytes(first.ids[: 4 * n_kept])), TextSpan(text[n_chars:])
        times, prompt = generation.times(), self._requests.prompt(first)
        generation.end(GenOutcome(samples, pieces, usage, times=times, prompt=prompt))

    # ---- select ----------------------------------------------------------------------------------------------------

    def _select(
        self, generation: Generation, op: wire.Select, encoded: list[tuple[TokenRun, ...]], order: tuple[int, ...]
    ) -> None:
        prompts = [unpack(b"".join(run.ids for run in runs)) for runs in encoded]
        start = select_scoring.score_from(prompts)
        tails = [prompt[start:] for prompt in prompts]
        jobs = [(prompt, start) for prompt in prompts]
        if op.method == "unconditional_likelihood_normalized":
            jobs += [([*self.tokenizer.blank, *tail], len(self.tokenizer.blank)) for tail in tails]
        nothing = wire.Sampling(max_tokens=0, temperature=0.0)
        done = partial(self._select_ended, generation, op, tails)
        for k, (ids, at) in enumerate(jobs):
            request = self._requests.start(pack(ids), nothing, done, score_from=at, order=(*order, k))
            generation.requests.append(request)

    def _select_ended(
        self, generation: Generation, op: wire.Select, tails: Sequence[list[int]], _: EngineRequest
    ) -> None:
        if not generation.have_ended():
            return
        n = len(op.choices)
        scores = [request.scores for request in generation.requests]
        rng = Random(self._rng.getrandbits(62) if op.seed is None else op.seed)
        choice = select_scoring.decide(op.method, scores[:n], scores[n:], op.temperature, rng)
        text = op.choices[choice.chosen]
        tokens = [tuple(zip(one, tails[k % n], strict=True)) for k, one in enumerate(scores)]
        generation.end(
            GenOutcome(
                samples=(wire.Sample(text=text, finish_reason="stop", n_tokens=len(tails[choice.chosen])),),
                # As text, not tokens: what follows is encoded together with it, as the choice was with what precedes.
                pieces=(TextSpan(text),),
                usage=_usage(generation.requests, n_prompts=len(generation.requests)),
                scores=wire.Scores(choice.normalized, tuple(tokens[:n]), choice.weights, tuple(tokens[n:])),
                times=generation.times(),
            )
        )


def turn_end(template: ChatTemplate | None, tokenizer: Tokenizer) -> tuple[int | None, str]:
    """What ends an assistant's turn: the control token that its suffix begins with, else the suffix as a string."""
    suffix = "".join(template.chat_markers().stop) if template is not None else ""
    ids = tokenizer.encode([TextSpan(suffix, meant=True)])
    if ids and ids[0] in tokenizer.added.values():
        return ids[0], ""
    return None, suffix


def _check(op: wire.Gen | wire.Select) -> None:
    """What only the server can refuse; the engine checks the rest of Sampling."""
    if op.adapter:
        raise Unsupported(f"adapter {op.adapter!r}: this runtime has the weights of its model, and no adapters (LoRA)")
    check_seconds("timeout", op.timeout)
    if isinstance(op, wire.Gen):
        if op.sampling.n < 1:
            raise BadProgram(f"n is {op.sampling.n}; a gen has at least one sample")
        if op.sampling.constraint is not None and op.sampling.ignore_eos:
            raise BadProgram("ignore_eos cannot be combined with a constraint: its output ends where its value does")
        if not all(op.sampling.stop):
            raise BadProgram("a stop string is empty; it would stop before anything")
        if op.reasoning is not None and not (op.reasoning.start and op.reasoning.end):
            raise BadProgram("a mark of reasoning is empty; both its start and its end must be some text")
        check_urgency(op.priority or 0, op.deadline)
        Patterns(op.sampling.stop_regex)
        return
    if not op.choices:
        raise BadProgram("a select has no choices; it needs at least one")
    if not 0 <= op.temperature < float("inf"):
        raise BadProgram(f"temperature is {op.temperature}; it must be 0 or more")
    if op.method == "greedy_token_selection" and op.temperature:
        raise BadProgram("greedy_token_selection has no scores to draw from; use temperature=0")


def _urgency(op: wire.Gen, ready: float) -> dict[str, float]:
    """What of its program's standing is another for a gen whose turn came at `ready`."""
    urgency: dict[str, float] = {} if op.priority is None else {"priority": op.priority}
    return urgency | ({"deadline": ready + op.deadline} if op.deadline else {})


def _is_look(sampling: wire.Sampling) -> bool:
    """Whether nothing is to be generated, and only told what would come."""
    return sampling.max_tokens == 0 and sampling.logprobs


def _score_from(sampling: wire.Sampling, n_prompt: int) -> int:
    """The first token of the prompt whose logprob is asked for and can be had; -1: there is none."""
    start = max(1, sampling.logprob_start)
    return start if sampling.logprobs and sampling.logprob_start >= 0 and start < n_prompt else -1


def _usage(requests: Sequence[EngineRequest], n_prompts: int) -> wire.TokenUsage:
    """The tokens of all requests. n_prompts 1: they have one prompt, which counts once."""
    ends = [request.finish for request in requests if request.finish is not None]
    computed = sum(end.n_prompt - end.n_cached for end in ends)
    prompt = sum(end.n_prompt for end in ends[:n_prompts])
    n_generated = sum(request.text.n_tokens for request in requests)
    return wire.TokenUsage(
        prompt=prompt,
        cached=max(0, prompt - computed),
        generated=n_generated,
        drafted=sum(end.n_drafted for end in ends),
        accepted=sum(end.n_accepted for end in ends),
    )
