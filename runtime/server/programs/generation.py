"""Answers gens and selects with requests to the engine: prompts become token ids, and outputs become text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any

import msgspec

from banyan.runtime.errors import (
    BadProgram,
    BanyanError,
    Cancelled,
    ConstraintCrashed,
    ConstraintSyntax,
    ConstraintTimeout,
    ConstraintTooLarge,
    ConstraintUnsatisfiable,
    ConstraintUnsupported,
    PromptTooLong,
    ToolError,
    Unsupported,
    copy_of,
)
from banyan.runtime.executor import select_scoring
from banyan.runtime.executor.generation import Generation, Retries, ToolLoop, add_usage
from banyan.runtime.executor.generator import Attempt, Done, GenOutcome, Prompt
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_READ
from banyan.runtime.protocol.roles import ASSISTANT
from banyan.runtime.server.engine_link.adapters import AdapterNames
from banyan.runtime.server.engine_link.requests import (
    EngineRequest,
    EngineRequests,
    StreamPiece,
)
from banyan.runtime.server.programs.call_filter import CallFilter
from banyan.runtime.server.programs.call_reader import CallReader
from banyan.runtime.server.programs.running_program import RunningProgram
from banyan.runtime.server.programs.scheduling import check_priority, check_seconds
from banyan.runtime.server.text.chat_template import ChatTemplate
from banyan.runtime.server.text.images import Images
from banyan.runtime.server.text.prompt import (
    IMAGE,
    PIECE,
    TURN,
    GeneratedText,
    Piece,
    PromptText,
    TokenRun,
    TurnEnd,
    TurnStart,
    image_rows,
    pack,
    unpack,
)
from banyan.runtime.server.text.reasoning_output import ReasoningOutput, ends_with
from banyan.runtime.server.text.stop_patterns import Patterns
from banyan.runtime.server.text.stop_strings import check_stops
from banyan.runtime.server.text.tokenizer import TextSpan, Tokenizer
from banyan.runtime.server.text.tool_call_format import Form, Scope, example, form_of

UNUSABLE = (
    *(ConstraintSyntax, ConstraintTimeout, ConstraintTooLarge, ConstraintCrashed, ConstraintUnsatisfiable),
    *(ConstraintUnsupported, Unsupported),
)
"""The errors for which a constraint on tool calls is replaced by a looser one, if the client checks the arguments."""
UNCOMPILED = ConstraintTimeout, ConstraintTooLarge, ConstraintCrashed, Unsupported
"""The same, if nobody checks the arguments: an invalid schema is an error."""

CHOICE, SAMPLE, LOGPROB = 40, 12, 4
"""Costs, in units of encoding one character. CHOICE: of preparing a choice, besides encoding its text; also of its
scores. SAMPLE: of a sample. LOGPROB: of the logprob of a token or of an alternative token."""
SPEC = 5
"""The cost of making constraints, for each character of the tools' specs, in units of encoding one character."""
PACKED = 4096
"""An outcome that costs at least this much, in units of encoding one character, is encoded before the loop gets it."""

Offload = Callable[[int, int, Callable[[], Any], Callable[[Any], None], bool], None]
"""(client, n_chars, work, then, has_images): run `work`, on a thread if `n_chars` is large, then call `then` on the
loop, with the result or the exception of `work`. n_chars: the cost of `work`, in units of encoding one character.
has_images: use the thread where images are decoded."""

Encoded = tuple[PromptText, list[tuple[TokenRun, ...]]]
"""The copy of the prompt that was encoded, and for each suffix the token runs of prompt and suffix."""

Read = GenOutcome | BanyanError

CheckConstraint = Callable[[wire.ConstraintSpec, int, Callable[[wire.ConstraintSpec | BanyanError], None]], None]
"""(spec, client, then): check a constraint, and call `then` on the loop; see ConstraintChecker.check."""


class EngineGenerator:
    """Makes the prompts of a server's programs, and answers their gens and selects with requests to the engine."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        requests: EngineRequests,
        offload: Offload,
        rng: Random,
        check: CheckConstraint,
        adapters: AdapterNames,
        images: Images | str = "",
    ) -> None:
        """template: the model's chat template; None: the model has none. offload: runs long work on a thread. check:
        checks a constraint before it is sent to the engine. images: the server's Images; a str says why the model takes
        no images."""
        self.images = images
        self.tokenizer, self.template, self.requests = tokenizer, template, requests
        self._offload, self.rng, self.check, self.adapters = offload, rng, check, adapters
        self._max_context = 0
        chat = template.chat_markers() if template is not None else wire.ChatMarkers(roles={})
        self.turn_end, self.turn_end_text = turn_end(chat, tokenizer)
        self.turn_start = chat.roles.get(ASSISTANT, ("", ""))[0]
        self._call_format: Form | ToolError
        try:
            self._call_format = form_of(template, tokenizer)
        except ToolError as e:
            self._call_format = e

    def offload(
        self, program: RunningProgram, n_chars: int, work: Callable[[], Any], then: Callable[[Any], None],
        has_images: bool = False,
    ) -> None:  # fmt: skip
        """Run `work`, on a thread if it is long, and then call `then` on the loop with the result or the exception. If
        `then` raises, the program ends with that error.

        n_chars: the cost of `work`, in units of encoding one character. If the tokenizer runs in another process, all
        work that encodes text is done on a thread. If the program ends before the work begins, `then` gets Cancelled.
        has_images: use the thread where images are decoded."""
        n_chars = n_chars if self.tokenizer.is_local or not n_chars else sys.maxsize

        def unless_over() -> Any:
            if program.is_over:
                raise Cancelled("the program has ended")
            return work()

        def guarded_then(result: Any) -> None:
            try:
                then(result)
            except Exception as e:  # after work on a thread, the loop would only print it, and the program would hang
                program.crashed(e)

        self._offload(program.scheduling.client, n_chars, unless_over, guarded_then, has_images)

    @property
    def call_format(self) -> Form:
        """The format in which the model writes tool calls. ToolError: the model has no such format."""
        if isinstance(self._call_format, ToolError):
            raise ToolError(self._call_format.message)
        return self._call_format

    def with_call_format(self, chat: wire.ChatMarkers) -> wire.ChatMarkers:
        """Returns the chat markers with an example of a tool call added or, if the model has no known format for tool
        calls, the reason."""
        if isinstance(self._call_format, ToolError):
            return msgspec.structs.replace(chat, no_calls=self._call_format.message)
        return msgspec.structs.replace(chat, calls=example(self._call_format))

    def prompt(self, program: RunningProgram) -> PromptText:
        return PromptText(tokenizer=self.tokenizer, images=self.images)

    def attempt(self, program: RunningProgram, generation: Generation, done: Done) -> Attempt:
        if isinstance(generation.op, wire.Select):
            return SelectAttempt(self, program, generation, done)
        if generation.op.tools is not None:
            return ToolTurn(self, program, generation, done)
        return GenAttempt(self, program, generation, done)

    def read(
        self, program: RunningProgram, prompt: Prompt, start: int, has_tokens: bool, then: Callable[[Read], None]
    ) -> None:
        assert isinstance(prompt, PromptText)
        if prompt.n_chars > MAX_READ:
            then(BadProgram(f"the state has {prompt.n_chars} characters; at most {MAX_READ} can be read"))
            return
        copy = prompt.copy()

        def work() -> GenOutcome:
            owner, tokens = program.scheduling.namespace, None
            if has_tokens:
                tokens, text = copy.tokens(self.tokenizer, self.template, program.started, owner)
            if not has_tokens or not copy.n_images:
                text = copy.read(self.tokenizer, self.template, program.started, start)
            return GenOutcome((wire.Sample(text, "stop"),), tokens=tokens)

        n_chars, has_images = copy.n_chars + TURN * len(copy.pieces), has_tokens and bool(copy.n_images)
        n_chars += IMAGE * has_images
        self.offload(program, n_chars, work, lambda read: then(_known_error(read)), has_images)

    def encode(self, program: RunningProgram, prompt: Prompt, then: Callable[[bytes], None]) -> None:
        """Compute the ids that a gen after `prompt` would get, and call then(ids) on the loop. The ids are int32 bytes;
        b"" if they cannot be computed, for example because the chat template refuses the turns."""
        assert isinstance(prompt, PromptText)
        copy, owner = prompt.copy(), program.scheduling.namespace

        def work() -> tuple[TokenRun, ...]:
            known = copy.prompt(self.tokenizer, self.template, program.started)
            return known.encode(self.tokenizer, owner=owner)

        def encoded(runs: tuple[TokenRun, ...] | Exception) -> None:  # the template may refuse the turns so far
            then(b"" if isinstance(runs, Exception) else b"".join(run.ids for run in runs))

        self.offload(program, copy.work, work, encoded, bool(copy.n_images))

    def set_context(self, n_tokens: int) -> None:
        """Set the model's context length in tokens. Called once the engine has reported it."""
        self._max_context = n_tokens
        self.tokenizer.set_context(n_tokens)
        if isinstance(self.images, Images):
            self.images.max_rows = n_tokens

    def check_length(self, n_chars: int) -> None:
        """Check the length of a text. PromptTooLong: it has more characters than can fit, whatever its tokens are."""
        limit = self._max_context * self.tokenizer.longest
        if n_chars > limit > 0:
            n_tokens = -(-n_chars // self.tokenizer.longest)
            raise PromptTooLong.of(
                f"the prompt has {n_chars} characters and therefore at least", n_tokens, self._max_context
            )


def _known_error(result: Any) -> Any:
    """Returns the result of offloaded work, which may be an exception. An exception that is not a BanyanError (such as
    one of the tokenizers library) is replaced by a BanyanError."""
    if isinstance(result, BanyanError):
        _forget_frames(result)
    elif isinstance(result, Exception):
        return BanyanError(f"the text cannot be encoded: {result!r}")
    return result


def _forget_frames(error: BaseException | None) -> None:
    """Remove the tracebacks of an error and of its causes. The program keeps the error, and their frames refer to the
    program: the cycle would last until no program runs."""
    while error is not None:
        error.__traceback__, error = None, error.__cause__ or error.__context__


def _packed(outcome: GenOutcome) -> GenOutcome:
    """Return the outcome with its long lists already encoded: all samples but the first, and the lists of logprobs and
    of tokens' scores. Called on a thread, so that the loop only has to copy them.

    Each item is encoded by itself, because one call for millions of objects would hold up all threads."""

    def pack(items: Iterable[Any]) -> Any:
        return tuple(msgspec.Raw(wire.encode(item)) for item in items)

    first, *others = (msgspec.structs.replace(one, logprobs=pack(one.logprobs)) for one in outcome.samples)
    scores = outcome.scores
    if scores is not None:
        tokens, unconditional = pack(scores.tokens), pack(scores.unconditional)
        scores = msgspec.structs.replace(scores, tokens=tokens, unconditional=unconditional)
    return outcome._replace(samples=(first, *pack(others)), prompt=pack(outcome.prompt), scores=scores)


class EngineAttempt(Attempt):
    """An attempt that answers a gen or select with requests to the engine. It ends when all its requests have ended, or
    when one fails."""

    prompt: PromptText
    suffixes: Sequence[str] = ("",)
    """Texts that follow the prompt: it is encoded once with each of them."""

    def __init__(self, generator: EngineGenerator, program: RunningProgram, generation: Generation, done: Done) -> None:
        assert isinstance(generation.prompt, PromptText)
        super().__init__(generation.op, generation.prompt, generation.round, done)
        self._generator, self._engine, self._program = generator, generator.requests, program
        has_rounds = isinstance(generation, Retries | ToolLoop)
        self._order = (program.serial, *generation.order, *((self.round,) if has_rounds else ()))
        self.requests: list[EngineRequest] = []
        self._n_open = 0  # requests that have not ended, or not begun
        self._ready = self._engine.clock()

    def start(self) -> None:
        self._check()
        self._generator.check_length(self.prompt.n_chars + max(map(len, self.suffixes)))
        self._encode()

    def stop(self) -> None:
        super().stop()
        self._abort_requests()

    def finish(self, outcome: GenOutcome | BanyanError) -> None:
        if not self.is_over:
            self._abort_requests()
        if isinstance(outcome, BanyanError):
            _forget_frames(outcome)
        super().finish(outcome)

    def _abort_requests(self) -> None:
        """Stop the requests that run. Forgets all of them: they refer to this attempt, and a reference cycle would be
        freed only by a collection of the whole heap."""
        requests, self.requests = self.requests, []
        self._engine.abort(*requests)

    def _check(self) -> None:
        """Check the options that the engine does not check. Raises BanyanError."""
        self._adapter = self._generator.adapters.digest(self.op.adapter)
        if self._program.adapters.setdefault(self.op.adapter, self._adapter) != self._adapter:
            error = BadProgram(f"adapter {self.op.adapter!r} was replaced while this program ran; run it again")
            self._program.crashed(error)  # end the whole program, so that no state mixes both adapters
            raise error
        check_seconds("timeout", self.op.timeout)
        self.prompt.kwargs = self.op.chat_template_kwargs

    def _encode(self) -> None:
        """Tokenize the prompt followed by each text in `suffixes`, and then start the requests. Long prompts are
        tokenized on a thread, from a copy."""
        generator, suffixes = self._generator, self.suffixes
        copy, owner = self.prompt.copy(), self._program.scheduling.namespace

        def work() -> Encoded:
            self._examine()
            known = copy.prompt(generator.tokenizer, generator.template, self._program.started)
            prompts = [known.encode(generator.tokenizer, suffix, owner) for suffix in suffixes]
            self._prepare(prompts)
            return copy, prompts

        n_suffix_chars = sum(map(len, suffixes))
        n_chars = copy.work * len(suffixes) + n_suffix_chars + self._n_prepare()
        generator.offload(self._program, n_chars, work, self._encoded, bool(copy.n_images))

    def _n_prepare(self) -> int:
        """The cost of `_examine` and `_prepare`, in units of encoding one character."""
        return 0

    def _examine(self) -> None:
        """A hook for subclasses: long work to do before the prompt is encoded. Called on any thread. Raises
        BanyanError."""

    def _prepare(self, encoded: list[tuple[TokenRun, ...]]) -> None:
        """A hook for subclasses: long work to do after the prompt is encoded. Called on any thread. Raises BanyanError.

        encoded: for each text in `suffixes`, the token runs of the prompt followed by this text."""

    def _fail(self, error: Exception) -> None:
        """End the attempt with an error. If this is not a BanyanError, it is a bug, and the whole program ends."""
        if isinstance(error, BanyanError):
            self.finish(error)
        else:
            self._program.crashed(error)

    def _encoded(self, encoded: Encoded | Exception) -> None:
        if self.is_over:
            return
        try:
            if isinstance(encoded := _known_error(encoded), BanyanError):
                raise encoded
            copy, prompts = encoded
            self.prompt.learn(copy, prompts[0] if self.suffixes == ("",) else None)
            self._run(prompts)
        except Exception as e:
            self._fail(e)

    def _run(self, encoded: list[tuple[TokenRun, ...]]) -> None:
        """Start the requests of the attempt. encoded: for each text in `suffixes`, the token runs of the prompt
        followed by this text."""
        raise NotImplementedError

    def _start_each(self, n: int, start: Callable[[int], EngineRequest]) -> None:
        """Call start(k) for k in 0 .. n - 1. When the time slice is over, the remaining calls wait until the client has
        its turn again."""
        self._n_open = n
        steps = self._starts(n, start)
        for _ in steps:
            if self._program.is_late():
                self._program.later(steps)
                return

    def _starts(self, n: int, start: Callable[[int], EngineRequest]) -> Iterator[None]:
        try:
            for k in range(n):
                if self.is_over:
                    return
                self.requests.append(start(k))
                yield
        except Exception as e:
            self._fail(e)

    def _request_ended(self, request: EngineRequest) -> None:
        """Count a request that has ended. The first request that fails ends the attempt. If none fails, the attempt
        ends when all requests have ended."""
        self._n_open -= 1
        if request.error is not None:
            self.finish(request.error)
        elif not self._n_open:
            self._end_stream()  # on the loop, because only the loop may use the socket
            n_work = self._outcome_work()
            work = self._outcome if n_work <= PACKED else lambda: _packed(self._outcome())
            self._generator.offload(self._program, n_work, work, self._made)

    def _end_stream(self) -> None:
        """Stream the text that was held back because it could have been the start of a reasoning mark."""

    def _outcome_work(self) -> int:
        """The cost of `_outcome`, in units of encoding one character."""
        raise NotImplementedError

    def _made(self, outcome: GenOutcome | Exception) -> None:
        if isinstance(outcome, GenOutcome):
            self.finish(outcome)
        elif not self.is_over:  # such as Cancelled, if the program has ended before this attempt
            self._fail(outcome)

    def _outcome(self) -> GenOutcome:
        """Make the outcome from the requests, which have ended. May be called on a thread."""
        raise NotImplementedError

    def _times(self) -> wire.Times:
        """The times from the first request that began to the last that ended."""
        started = [r.finish.started for r in self.requests if r.finish is not None and r.finish.started]
        first = [r.first for r in self.requests if r.first]
        return wire.Times(
            ready=self._ready,
            sent=min(r.sent for r in self.requests),
            started=min(started, default=0.0),
            first=min(first, default=0.0),
            ended=max(r.ended for r in self.requests),
        )

    def _seed(self, seed: int | None) -> int:
        return self._generator.rng.getrandbits(62) if seed is None else seed


class GenAttempt(EngineAttempt):
    """A gen: one request for each sample."""

    op: wire.Gen
    _reasoning: ReasoningOutput | None = None

    def _check(self) -> None:
        super()._check()
        sampling = self.op.sampling
        if sampling.n < 1:
            raise BadProgram(f"n is {sampling.n}; a gen has at least one sample")
        if sampling.constraint is not None and sampling.ignore_eos:
            raise BadProgram("ignore_eos cannot be combined with a constraint, which itself ends the output")
        check_stops(sampling.stop)
        if (marks := self.op.reasoning) is not None and not (marks.start and marks.end):
            raise BadProgram("a marker of the reasoning is empty; both start and end need some text")
        check_priority(self.op.priority or 0, self.op.deadline)
        Patterns(sampling.stop_regex)

    def _n_prepare(self) -> int:
        return sum(map(self._generator.tokenizer.stop_work, self.op.sampling.stop))

    def _prepare(self, encoded: list[tuple[TokenRun, ...]]) -> None:
        for stop in self.op.sampling.stop:
            self._generator.tokenizer.stop_ids(stop)

    def _constraint(self) -> wire.ConstraintSpec | None:
        return self.op.sampling.constraint

    def _run(self, encoded: list[tuple[TokenRun, ...]]) -> None:
        if (constraint := self._constraint()) is None:
            self._start_requests(None)
        else:
            constraint = self._as_prompted(constraint)
            self._generator.check(constraint, self._program.scheduling.client, self._checked)

    def _as_prompted(self, constraint: wire.ConstraintSpec) -> wire.ConstraintSpec:
        """Returns the constraint adapted to the prompt. The client made it without knowing what chat_template_kwargs
        change in the prompt: they may turn reasoning on or off. So the constraint may have to apply at once, or only
        after the reasoning."""
        if (marks := self.op.reasoning) is None or not self.op.chat_template_kwargs:
            return constraint
        # If there is an answer mark, the end mark may include the start of the next message. Then any prompt may end
        # with it, also if reasoning follows.
        if not marks.answer and ends_with(self.prompt.runs, marks.end):
            after = tuple(trigger for trigger in constraint.after if trigger != marks.end)
            return msgspec.structs.replace(constraint, after=after, since="")
        if ends_with(self.prompt.runs, marks.start) and not constraint.after:
            return msgspec.structs.replace(constraint, after=(marks.end + marks.answer,))
        return constraint

    def _checked(self, constraint: wire.ConstraintSpec | BanyanError) -> None:
        if self.is_over:
            return
        try:
            if isinstance(constraint, BanyanError):
                raise copy_of(constraint)  # others get this one too, and the executor adds to it
            self._start_requests(constraint)
        except Exception as e:
            self._fail(e)

    def _start_requests(self, constraint: wire.ConstraintSpec | None) -> None:
        op, generator, runs = self.op, self._generator, self.prompt.runs
        sampling = op.sampling
        turn_ends: tuple[int, ...] = ()
        visible: set[int] = set()
        if (marks := op.reasoning) is not None:
            texts = (marks.start, marks.end, marks.answer, marks.close)
            visible = {token for text in texts for *_, token in generator.tokenizer.controls(text)}
        if sampling.constraint is not constraint:
            sampling = msgspec.structs.replace(sampling, constraint=constraint)
        if self._is_logprobs_only:
            sampling = msgspec.structs.replace(
                sampling, max_tokens=1, n=1, stop=(), stop_token_ids=(), stop_regex=(), ignore_eos=True
            )
        elif self.prompt.role == ASSISTANT and not sampling.ignore_eos:
            if generator.turn_end is not None and generator.turn_end not in visible:
                turn_ends = (generator.turn_end,)
            elif generator.turn_end_text:
                sampling = msgspec.structs.replace(sampling, stop=(*sampling.stop, generator.turn_end_text))
        listener = self._stream if op.stream and not self._is_logprobs_only else None
        if marks is not None:
            reasoning = self._reasoning = ReasoningOutput(marks, runs, listener)
            listener = None if listener is None else lambda piece: reasoning.stream(piece, self.requests[0])
        ids = b"".join(run.ids for run in runs)
        self._engine.check_room(self._program.scheduling.client, sampling.n * len(ids))
        images, files = image_rows(runs)
        first = max(1, sampling.logprob_start)
        has_prompt_logprobs = sampling.logprobs and sampling.logprob_start >= 0 and first < len(ids) // 4
        seed = self._seed(sampling.seed)
        priority = self._program.scheduling.priority if op.priority is None else op.priority
        deadline = self._ready + op.deadline if op.deadline else 0.0

        def start_sample(k: int) -> EngineRequest:
            score_from = first if has_prompt_logprobs and k == 0 else -1
            run = wire.Run(
                0, ids, sampling, seed=seed, sample=k, score_from=score_from, order=(*self._order, k),
                priority=priority, deadline=deadline, adapter=self._adapter, images=images,
            )  # fmt: skip
            return self._engine.start(
                run, self._request_ended, owner=self._program, turn_ends=turn_ends,
                listener=None if k else listener, visible=visible, files=files,
            )  # fmt: skip

        self._start_each(sampling.n, start_sample)

    def _stream(self, piece: StreamPiece) -> None:
        self._program.stream(self.op.ref, piece._replace(round=self.round) if self.round else piece)

    @property
    def _is_logprobs_only(self) -> bool:
        """Whether the gen generates no text, and only asks for the logprobs of the next token: max_tokens is 0."""
        return self.op.sampling.max_tokens == 0 and self.op.sampling.logprobs

    def _outcome_work(self) -> int:
        n_tokens = sum(len(request.logprobs) for request in self.requests)
        if self.op.sampling.logprob_start >= 0:
            n_tokens += len(self.requests[0].run.ids) // 4
        n = SAMPLE * len(self.requests) + n_tokens * LOGPROB * (1 + self.op.sampling.top_logprobs)
        return n + (PIECE * len(self.prompt.pieces) if self.op.tools is not None else 0)

    def _end_stream(self) -> None:
        if self._reasoning is not None:
            self._reasoning.end_stream(self.requests[0])

    def _outcome(self) -> GenOutcome:
        first = self.requests[0]
        samples = tuple(map(self._engine.sample, self.requests))
        usage = _usage(self.requests, n_shared=len(first.run.ids) // 4)
        pieces: tuple[Piece, ...] = ()
        if self._is_logprobs_only:
            samples = (wire.Sample("", "length", logprobs=samples[0].logprobs),) * self.op.sampling.n
            usage = msgspec.structs.replace(usage, generated=0)
        elif self._reasoning is not None:
            samples, pieces, n_reasoning = self._reasoning.end(samples, self.requests)
            usage = msgspec.structs.replace(usage, reasoning=n_reasoning)
        else:
            n_kept, n_chars = first.text.kept()
            text = first.text.text
            pieces = GeneratedText(text[:n_chars], bytes(first.ids[: 4 * n_kept])), TextSpan(text[n_chars:])
        return GenOutcome(samples, usage, times=self._times(), prompt=self._engine.prompt(first), pieces=pieces)


class ToolTurn(GenAttempt):
    """One turn of a gen with tools. `_outcome` parses the output text for tool calls. A constraint forces the arguments
    of each call to match the JSON schema of the tool's parameters. If that constraint is unusable, the turn runs again
    with a looser one, then with none; where nobody checks the arguments, only if the constraint cannot be compiled, and
    not with Tools.is_strict."""

    def __init__(self, generator: EngineGenerator, program: RunningProgram, generation: Generation, done: Done) -> None:
        super().__init__(generator, program, generation, done)
        assert self.op.tools is not None
        self._generation, self._tools = generation, self.op.tools
        self._names: list[str] = []  # of the tools
        self._left: list[wire.ConstraintSpec | None] = []
        self._last = StreamPiece("")  # the last piece, with all logprobs that the client does not have yet
        self._filter: CallFilter | None = None
        self._reader: CallReader | None = None
        self._mark_at = -1  # index in the content of a call mark that the text does not show; -1: there is none yet
        self._n_seen = 0  # output tokens that have been searched for that mark
        self._begins_call = False  # the output must begin with a call
        self._opened = ""  # the mark of that call, which ends the prompt; "": none does, so the output may be prose
        self._is_broken = False  # the output has a part of a call that was cut off, which is no content
        self._answers = False  # this is the second output of a turn that may answer under a constraint
        self._n_refused = 0  # tokens of the first output
        self._held: list[StreamPiece] | None = []  # pieces of an output that may be refused; None: it has calls

    def _constraints(self) -> list[wire.ConstraintSpec | None]:
        """The constraints on calls, the strictest first. The turn uses the first one that is usable; None: no
        constraint."""
        form, sampling, tools = self._generator.call_format, self.op.sampling, self._tools
        if sampling.ignore_eos or (sampling.constraint is not None and not tools.ends_turn):
            return [sampling.constraint]
        since = "" if self.op.reasoning is None else self.op.reasoning.end
        specs = tuple(spec for spec in tools.specs if tools.only in ("", json.loads(spec)["function"]["name"]))
        scope: Scope = "at_once" if self._begins_call else "must" if tools.must_call else "repeat"
        if scope == "repeat" and tools.one_call:
            scope = "may"
        is_checked = tools.ends_turn and not tools.is_strict
        strictest = form.constraint(specs, since, True, scope, is_checked)
        if tools.ends_turn and tools.is_strict:
            return [strictest]
        return [strictest, form.constraint(specs, since, False, scope), None]

    def _constraint(self) -> wire.ConstraintSpec | None:
        return self._left[0]

    def _check(self) -> None:
        super()._check()
        tools = self._tools
        if (tools.must_call or tools.only or tools.one_call) and not tools.ends_turn:
            raise BadProgram("must_call, only and one_call need ends_turn=True")
        if tools.ends_turn and (self.prompt.role != ASSISTANT or self.op.sampling.n != 1):
            raise BadProgram("a gen with tools must be in a turn of the assistant, and have one sample")
        self.prompt.tools = tools.specs
        # If the model may reason first, the constraint applies from the call mark in the output. Otherwise the mark, if
        # calls have one, is appended to the prompt.
        self._begins_call = tools.must_call and not self._reasons()
        if self._begins_call and (mark := self._generator.call_format.mark):
            self._opened = mark
            self.prompt.append_part(wire.Raw(mark))

    def _n_prepare(self) -> int:
        n_chars = 0 if self._generation.memo is not None else sum(map(len, self._tools.specs))
        return super()._n_prepare() + SPEC * n_chars

    def _examine(self) -> None:
        if self._generation.memo is None:
            names, only = list(map(_check_tool, self._tools.specs)), self._tools.only
            if only and only not in names:
                raise BadProgram(f"only is {only!r}, but must be the name of one of the tools ({', '.join(names)})")
            self._generation.memo = names, self._constraints()
        self._names, constraints = self._generation.memo
        if not self._left:
            self._left = constraints

    @property
    def _may_answer(self) -> bool:
        """Whether the output may be a constrained answer in place of calls.

        If the model then makes no call, its output is discarded, and another one is generated under the answer's
        constraint. So the first output is streamed only after its end, and only if it made calls."""
        return self.op.sampling.constraint is not None and self._tools.ends_turn and not self._tools.must_call

    def finish(self, outcome: GenOutcome | BanyanError) -> None:
        if isinstance(outcome, GenOutcome) and self._may_answer and not self._answers and not outcome.calls:
            self._answers, self._n_refused, self._left = True, outcome.usage.generated, [self.op.sampling.constraint]
            self._filter, self._reader, self.requests, self._held = None, None, [], []
            self._encode()
            return
        if isinstance(outcome, GenOutcome) and self._n_refused:
            n_generated = outcome.usage.generated + self._n_refused
            outcome = outcome._replace(usage=msgspec.structs.replace(outcome.usage, generated=n_generated))
        loosened = UNCOMPILED if self._tools.ends_turn else UNUSABLE
        if isinstance(outcome, loosened) and len(self._left) > 1 and not self.is_over:
            self._held = []
            del self._left[0]  # parameters may say more than a grammar can
            self._abort_requests()
            self._encode()
            return
        super().finish(outcome)

    def _stream(self, piece: StreamPiece) -> None:
        if self._may_answer and not self._answers and self._held is not None:
            self._held.append(piece)
            return
        if piece.is_thought or self._answers:
            super()._stream(piece)
            return
        self._last = piece._replace(logprobs=self._last.logprobs + piece.logprobs)
        form = self._generator.call_format
        if not self._opened:
            if self._filter is None:
                self._filter = CallFilter(form, self._stream_text)
            if form.is_hidden and self._mark_at < 0:
                self._mark_at = self._find_mark()
            self._filter.feed(piece.text, self._mark_at)
        if self._tools.ends_turn and form.mark and not form.is_hidden:  # otherwise the text does not show the calls
            if self._reader is None:
                is_open, one_call = bool(self._opened), self._tools.one_call
                self._reader = CallReader(form, self._stream_call, self._n_before, is_open, one_call)
            self._reader.feed(piece.text)

    def _find_mark(self) -> int:
        """Search the new output tokens for the call mark, by its first special token. Returns the index of the mark in
        the content (the output after the reasoning); -1: the mark has not come, or it has no special token and the text
        shows it."""
        tokenizer, request = self._generator.tokenizer, self.requests[0]
        controls = tokenizer.controls(self._generator.call_format.mark)
        n_before, mark = next(((at, token) for at, _, token in controls if token in tokenizer.special), (0, None))
        if mark is None:
            return -1
        reasoning = self._reasoning
        first, start = (0, 0) if reasoning is None else (reasoning.marks_end, reasoning.content_start)
        for token in unpack(bytes(request.ids[4 * self._n_seen :])):
            if token == mark and (at := request.text.n_chars(self._n_seen)) >= first:
                return max(0, at - start - n_before)
            self._n_seen += 1
        return -1

    def _stream_text(self, text: str) -> None:
        super()._stream(self._last._replace(text=text))
        self._last = self._last._replace(logprobs=())

    def _stream_call(self, piece: wire.CallPiece) -> None:
        super()._stream(self._last._replace(text="", logprobs=(), call=piece))

    @property
    def _n_before(self) -> int:
        """The number of earlier calls: each of them is answered by its own turn."""
        return sum(isinstance(piece, TurnStart) and piece.answers is not None for piece in self.prompt.pieces)

    def _outcome(self) -> GenOutcome:
        outcome, form = super()._outcome(), self._generator.call_format
        spell = self._generator.tokenizer.text_of
        spelled = "".join(
            spell(unpack(piece.ids)) if isinstance(piece, GeneratedText) else piece.text for piece in outcome.pieces
        )
        is_separated = self._reasoning is not None
        shown, written = self._opened + outcome.text, self._opened + spelled
        calls = form.read(shown, written, self._n_before, self._names, is_separated)
        if self._answers:
            return outcome
        if self._tools.ends_turn:
            calls = tuple(call for call in calls if not call.error)[: 1 if self._tools.one_call else None]
        before = None if self._begins_call else form.text_before(outcome.text, spelled, is_separated)
        self._is_broken = not calls and self._is_cut(outcome, before)
        if self._tools.ends_turn and (calls or self._is_broken):
            sample = msgspec.structs.replace(outcome.samples[0], text=before or "", calls=calls)
            outcome = outcome._replace(samples=(sample,))
        outcome = outcome._replace(calls=calls)
        if not calls:
            return outcome
        return outcome._replace(pieces=(*outcome.pieces, TurnEnd(() if form.is_plain else calls)))

    def _is_cut(self, outcome: GenOutcome, before: str | None) -> bool:
        """Whether an output without calls ends inside a call, or is a required call that cannot be read. before: the
        text before a call mark; None if there is none."""
        is_part = self._tools.must_call or (self._tools.ends_turn and before is not None)
        return bool(self._opened) or (is_part and outcome.samples[0].finish_reason == "length")

    def _made(self, outcome: GenOutcome | Exception) -> None:
        if isinstance(outcome, GenOutcome) and not self._answers and not self.is_over:
            if self._may_answer and outcome.calls and self._held is not None:
                held, self._held = self._held, None
                for piece in held:
                    self._stream(piece)
            if self._filter is not None:
                self._filter.end(bool(outcome.calls) or self._is_broken)
        super()._made(outcome)

    def _reasons(self) -> bool:
        """Whether the model may reason before it calls a tool."""
        marks = self.op.reasoning
        return marks is not None and (marks.is_forced or self._generator.turn_start.rstrip().endswith(marks.start))


class SelectAttempt(EngineAttempt):
    """Answers a select. One request scores each choice after the prompt. With unconditional_likelihood_normalized, one
    more request for each choice scores it without the prompt."""

    op: wire.Select

    def _check(self) -> None:
        super()._check()
        if not self.op.choices:
            raise BadProgram("a select has no choices; it needs at least one")
        if not 0 <= self.op.temperature < float("inf"):
            raise BadProgram(f"temperature is {self.op.temperature}; it must be 0 or more")
        if self.op.method == "greedy_token_selection" and self.op.temperature:
            raise BadProgram("greedy_token_selection gives no scores from which to draw; use temperature=0")
        self.suffixes = ("", *self.op.choices)

    def _outcome_work(self) -> int:
        return sum(CHOICE + len(ids) for ids in self._choice_ids)

    def _n_prepare(self) -> int:
        return CHOICE * len(self.op.choices)

    def _prepare(self, encoded: list[tuple[TokenRun, ...]]) -> None:
        n_bytes = sum(len(run.ids) for runs in encoded[1:] for run in runs)
        self._engine.check_room(self._program.scheduling.client, n_bytes)  # before the prompts are copied
        alone, *prompts = (b"".join(run.ids for run in runs) for runs in encoded)
        start = select_scoring.score_from(alone, prompts)
        self._n_shared, self._choice_ids = start, [prompt[4 * start :] for prompt in prompts]
        self._images = image_rows(encoded[0])  # those of the prompt; choices have none
        self._scored = [(prompt, start) for prompt in prompts]
        if self.op.method == "unconditional_likelihood_normalized":
            blank = self._generator.tokenizer.blank
            self._scored += [(pack(blank) + ids, len(blank)) for ids in self._choice_ids]

    def _run(self, encoded: list[tuple[TokenRun, ...]]) -> None:
        sampling = wire.Sampling(max_tokens=0, temperature=0.0)
        seed = self._seed(self.op.seed)  # for the draw of a choice; requests carry it, so that the journal keeps it

        def start_choice(k: int) -> EngineRequest:
            ids, start = self._scored[k]
            images, files = self._images if k < len(self.op.choices) else ((), ())
            run = wire.Run(
                0, ids, sampling, seed=seed, score_from=start, order=(*self._order, k),
                priority=self._program.scheduling.priority, adapter=self._adapter, images=images,
            )  # fmt: skip
            return self._engine.start(run, self._request_ended, owner=self._program, files=files)

        self._start_each(len(self._scored), start_choice)

    def _outcome(self) -> GenOutcome:
        op, n = self.op, len(self.op.choices)
        scores = [request.scores for request in self.requests]
        draw = Random(self.requests[0].run.seed)
        choice = select_scoring.decide(op.method, scores[:n], scores[n:], op.temperature, draw)
        sample = wire.Sample(op.choices[choice.chosen], "stop", n_tokens=len(self._choice_ids[choice.chosen]) // 4)
        # No pieces: the state gets the choice as text, to be encoded together with what follows.
        return GenOutcome(
            (sample,),
            add_usage(_usage(self.requests[:n], self._n_shared), _usage(self.requests[n:], n_shared=0)),
            select_scoring.with_tokens(choice, scores[:n], scores[n:], [unpack(ids) for ids in self._choice_ids]),
            self._times(),
        )


def turn_end(chat: wire.ChatMarkers, tokenizer: Tokenizer) -> tuple[int | None, str]:
    """Returns what ends an assistant turn: (id, "") if the template's text after the turn begins with the control token
    `id`, else (None, that text)."""
    suffix = "".join(chat.stop)
    ids = tokenizer.encode([TextSpan(suffix, meant=True)])
    if ids and ids[0] in tokenizer.added.values():
        return ids[0], ""
    return None, suffix


def _check_tool(spec: str) -> str:
    """The name of a tool. BadProgram: its spec has no name."""
    try:
        name = json.loads(spec)["function"]["name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise BadProgram(
            f'the spec of a tool must be {{"type": "function", "function": {{"name": ...}}}}, but is {spec[:80]}'
        )
    return name


def _usage(requests: Sequence[EngineRequest], n_shared: int) -> wire.TokenUsage:
    """Returns the token usage of all requests together.

    The first `n_shared` prompt tokens are the same in all requests, and are counted once. Of these, the smallest number
    of cache hits counts: later requests also hit what the first one has just computed."""
    ends = [request.finish for request in requests if request.finish is not None]
    return wire.TokenUsage(
        prompt=n_shared + sum(max(0, end.n_prompt - n_shared) for end in ends),
        cached=min((min(end.n_cached, n_shared) for end in ends), default=0)
        + sum(max(0, end.n_cached - n_shared) for end in ends),
        generated=sum(request.text.n_tokens for request in requests),
        drafted=sum(end.n_drafted for end in ends),
        accepted=sum(end.n_accepted for end in ends),
    )
