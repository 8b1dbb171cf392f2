"""Every message of Banyan, as types: client <-> server <-> engine. The one protocol, on one page.

Frozen msgspec structs in tagged unions, encoded as MessagePack; no pickle anywhere. Fields are only ever appended, each
with a default, so that old readers take new messages and the reverse; VERSION changes only when that cannot be kept.
Token ids travel as little-endian int32 `bytes` (8,192 ids: 0.5 us to decode against 140 us as a list).

    client -> server   Hello, Submit, Define, Undefine, Cancel, Ask, Ping, Resend, Sync
    server -> client   Welcome, Delta, Called, Value, Failed, Answer, Pong, Resend, Sync
    server -> engine   Vocabulary, Run, Abort, Over, Hold, Release, Bury, Ask, Ping
    engine -> server   Ready, Step, Failed, Answer, Pong

A **program** is a number that its client chose. Inside it, a **state** is a running prompt (0 is the first; forks make
more) and a **ref** is a value in the making (what a Gen, Select or Read gives); both are numbers the client counts up.
Ops of one state run in order; different states run at the same time, held back only by the refs they use. That is the
DAG: no edge is sent that order and refs do not already say.

`seq` counts the messages of one program from 0, each way. A message whose seq was seen before is a duplicate and is
ignored, so that sending again is always safe; where one is missing, a Resend asks for it and what came too early is
ignored as well. Both sides keep the last messages that the other may not have, and a Sync finds losses that no later
message shows.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

VERSION = 1
"""Handshake version. Peers with another one are refused by name."""

MAX_PRIORITY = 100
"""Of programs and gens, either way from 0."""

MAX_NUMBER = 2**63 - 1
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
"""What a client numbers: programs, messages, states, refs, marks, templates. Checked when a message is decoded."""


class Wire(msgspec.Struct, frozen=True, gc=False, tag_field="t", tag=str.lower, omit_defaults=True):
    """Base of all messages; the tag is the class name in lower case. In no cycle, and so no work for the collector."""


# ---- what a program is made of -------------------------------------------------------------------------------------


class Raw(Wire, frozen=True):
    """Text whose control tokens are meant: encoded with special tokens on. All other text is data."""

    text: str


class Ref(Wire, frozen=True):
    """The text of value `ref`, spliced here once it is known. As data: encoded with special tokens off."""

    ref: Number


class Begin(Wire, frozen=True):
    """A turn of `role` begins. The marker's text is the tokenizer's own chat template's."""

    role: str


class End(Wire, frozen=True):
    """The open turn ends."""


class Image(Wire, frozen=True):
    """A picture, as the bytes of its file. kind: "image/png" and so on. Only where Welcome.images says so."""

    data: bytes
    kind: str


class Arg(Wire, frozen=True):
    """In a template only: the text of the `i`-th argument of its Use. As data."""

    i: Number


Part = str | Raw | Ref | Begin | End | Arg | Image


class ConstraintSpec(Wire, frozen=True):
    """What the output of a gen must match, from its first character to its last. The server compiles it; an output that
    ended by itself (finish_reason "stop", `matched` no stop string) is whole and matches.

    text: a regex (Rust's syntax; no look-around, no back-references) | a JSON Schema, as JSON | a context-free grammar
    in Lark, as llguidance reads it | a JSON list of strings, of which the output is one.
    style: how JSON is spaced: {"a": 1, "b": 2}, {"a":1,"b":2}, or any whitespace.
    after: free text comes first, until one of these strings stands in it; from there on (a little whitespace is free)
    the constraint holds. (): from the first token. Special tokens count as what they spell ("</think>").
    scope: with `after`, whether the output may also end without a value: "must" not, "may", "repeat": may, and after
    each value free text goes on and may come to another.
    end: stands right behind each value, and belongs to what is forced ("\\n</tool_call>").
    since: with `after`, before this string nothing switches it on: what a model thinks is its own.
    engine: what compiles it; "": llguidance, or what the server has for its kind. outlines_core takes regexes and
    choices without a trigger; of those that are too much for it, llguidance takes care.
    """

    kind: Literal["regex", "json_schema", "grammar", "choices"]
    text: str
    style: Literal["spaced", "compact", "flexible"] = "spaced"
    after: tuple[str, ...] = ()
    scope: Literal["must", "may", "repeat"] = "must"
    end: str = ""
    since: str = ""
    engine: Literal["", "outlines_core"] = ""


class Sampling(Wire, frozen=True, cache_hash=True):
    """How one gen draws its tokens. One value, built once in the language and carried untouched to the sampler.

    temperature 0 is greedy. top_k -1, top_p 1.0, min_p 0.0 are off. Penalties are OpenAI's (frequency, presence: over
    output tokens) and CTRL's (repetition: over prompt and output). `stop` strings end the text before them, wherever
    they begin inside a token. A draw is a function of (seed, sample, position) alone; seed None lets the server choose.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    constraint: ConstraintSpec | None = None
    """Masks what may come next: last of all edits, before temperature. Logprobs stay the model's own."""
    stop_regex: tuple[str, ...] = ()
    """Patterns (RE2's syntax). As soon as one matches, the text ends, behind the match."""
    logprob_start: int = -1
    """With logprobs, those of the prompt's tokens too, from this one on. -1: none."""


class WireToolCall(Wire, frozen=True):
    """What the model wants to be called, as it wrote it, in the order of its calls.

    arguments: a JSON object. error: why this is no call that can be made (its JSON breaks off ...); "" if it is one.
    """

    id: str
    name: str
    arguments: str = "{}"
    error: str = ""


class Tools(Wire, frozen=True):
    """What a gen may call. specs: one JSON each, {"type": "function", "function": {name, description, parameters}};
    the model's chat template writes them where it sees fit. max_rounds: turns with calls, after which it must answer.
    """

    specs: tuple[str, ...]
    max_rounds: int = 4


class Append(Wire, frozen=True):
    """Put `parts` at the end of a state."""

    state: Number
    parts: tuple[Part, ...]


class Reasoning(Wire, frozen=True):
    """How a model marks what it thinks before it speaks. is_forced: an output begins inside, mark or none."""

    start: str = "<think>"
    end: str = "</think>"
    is_forced: bool = False


class Gen(Wire, frozen=True):
    """Generate at the end of a state; the text becomes value `ref` and part of the state (sample 0 where n > 1)."""

    state: Number
    ref: Number
    sampling: Sampling = Sampling()
    stream: bool = False
    """Send a Delta for each piece of text (sample 0), of what it thinks too, and of outputs that may not count."""
    name: str = ""
    line: str = ""
    """Source position of the append, for errors: "file.py:12"."""
    tools: Tools | None = None
    """With tools the gen stands in an assistant's turn, and goes on over several: where the model calls, the turn ends,
    a Called goes to the client, the Results that come back are turns of tools, and the model has the next turn. The
    value is what it says in the one where it calls nothing. Sampling is of each turn."""
    reasoning: Reasoning | None = None
    """Told apart: the value and the state are what the model says, and what it thinks is in Sample.reasoning alone."""
    retries: int = 0
    """> 0: the client looks at each output before it counts. A Called without calls goes to it; a Results with no text
    takes the output, one with a text says what is wrong with it, and the model tries again, at most so often. Only the
    last output becomes part of the state."""
    timeout: float = 0.0
    """Seconds from its turn on (when all before it is done) after which it fails; 0: none."""
    budget: int = 0
    """Tokens, over all its samples and turns, after which it fails; 0: none."""
    priority: int | None = None
    """In the place of its program's; see Limits."""
    deadline: float = 0.0
    """In the place of its program's, in seconds from its turn on; 0: that of the program."""
    adapter: str = ""
    """Which adapter (LoRA) of the model speaks; "": none. Part of the root key, as other weights compute other KV."""


ChoicesMethod = Literal["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]


class Select(Wire, frozen=True):
    """Score each choice as the continuation of a state; the best becomes value `ref` and part of the state.

    temperature 0 takes the best score; above, the choice is drawn from softmax(score / temperature) with `seed`.
    """

    state: Number
    ref: Number
    choices: tuple[str, ...]
    method: ChoicesMethod = "token_length_normalized"
    temperature: float = 0.0
    seed: int | None = None
    name: str = ""
    line: str = ""
    timeout: float = 0.0
    """As of a Gen."""
    adapter: str = ""
    """As of a Gen."""
    asks: bool = False
    """The client decides: a Called with the scores goes to it, and the one text of the Results is the choice."""


class Fork(Wire, frozen=True):
    """Each of `children` becomes a state equal to `state` as it stands here. No text is sent again."""

    state: Number
    children: tuple[Number, ...]


class Join(Wire, frozen=True):
    """Append to `state`, in order, the text that each child got since it was forked.

    adopt: the state goes on as its one child instead, which was forked from it or from another that was: all that the
    child has, tokens too, takes the place of what the state has.
    """

    state: Number
    children: tuple[Number, ...]
    adopt: bool = False


class Mark(Wire, frozen=True):
    """Remember the state's end under `mark`, for a Read from here."""

    state: Number
    mark: Number


class Read(Wire, frozen=True):
    """The state's text, markers included, from `mark` (None: from its start) to here becomes value `ref`.

    tokens: its tokens too, in Value.tokens; only of the whole state, without a mark.
    """

    state: Number
    ref: Number
    mark: Number | None = None
    tokens: bool = False


class Drop(Wire, frozen=True):
    """The state will not be used again: stop what runs in it, let its KV go first.

    tree: the same for all that was forked from it, at any depth.
    """

    state: Number
    tree: bool = False


class Keep(Wire, frozen=True):
    """What becomes of the state's KV, as it stands here, while nothing runs in it. Changes no answer.

    pin: seconds for which it goes after all else, whether or not the program lives; 0 ends a pin before. steps: it is
    needed again in about so many steps of the engine. prefetch: what of it lies in host memory comes back now.
    """

    state: Number
    pin: float | None = None
    steps: float | None = None
    prefetch: bool = False


class Use(Wire, frozen=True):
    """All ops of a template, in order, with `args` where its Args stand.

    The template's state 0 is `state`; its other states, its refs and its marks are numbered on from `child`, `ref` and
    `mark`. seeds: of its gens and selects that have none, in order; (): they stay without.
    """

    state: Number
    template: Number
    args: tuple[str, ...] = ()
    child: Number = 1
    ref: Number = 0
    mark: Number = 0
    seeds: tuple[int, ...] = ()


class Results(Wire, frozen=True):
    """What the calls of a Called gave, one text for each, in order. Not queued: gen `ref` of the state waits for it.

    Results that nothing waits for any more are ignored.
    """

    state: Number
    ref: Number
    round: Number
    texts: tuple[str, ...]


Op = Append | Gen | Select | Fork | Join | Mark | Read | Drop | Keep | Use | Results
TemplateOp = Append | Gen | Select | Fork | Join | Mark | Read | Drop | Keep


# ---- client -> server ----------------------------------------------------------------------------------------------


class Hello(Wire, frozen=True):
    """First message of a client; nothing else is answered before it."""

    version: int
    client: str = ""
    token: str = ""
    """Says whose the client is, where the server asks for one."""


class ProgramLimits(Wire, frozen=True):
    """What a program may take, and how urgent it is. What is not finished when something runs out fails, with an error
    that says what it was.

    timeout: in seconds, as its user gave it (0: none); left: how much of that is left when the message is sent. budget:
    tokens that its gens may make, all together (0: no limit). Programs of one client with the same `batch` (-1: none)
    share batch_budget. timeout_of: whose the timeout is. priority: of two programs that wait, the higher goes first.
    deadline: of equal priority, the earlier; in seconds from this message on, 0: none. Nothing fails that misses it.
    """

    timeout: float = 0.0
    left: float = 0.0
    timeout_of: Literal["run", "batch"] = "run"
    budget: int = 0
    batch: int = -1
    batch_budget: int = 0
    priority: int = 0
    deadline: float = 0.0
    durable: str = ""
    """Which program it is, to a server that was killed and started again: it goes on with the tokens that it had. Two
    of one tenant at a time cannot be the same one; the later takes over. "": it is not durable."""


class Submit(Wire, frozen=True):
    """Ops to add to a program; the first Submit (seq 0) makes it. `last`: no more ops will come."""

    program: Number
    seq: Number
    ops: tuple[Op, ...]
    last: bool = False
    name: str = ""
    limits: ProgramLimits | None = None
    """Only of the first one."""


class Define(Wire, frozen=True):
    """From now on the client's programs may Use `template`, a number that the client chose. Its ops are those of a
    whole program: state 0 is there, and all others come from Forks among them."""

    template: Number
    ops: tuple[TemplateOp, ...]


class Undefine(Wire, frozen=True):
    """No message after this one uses the template."""

    template: Number


class Cancel(Wire, frozen=True):
    """Stop the program and forget it; what is not finished fails with code "cancelled"."""

    program: Number
    seq: Number


class Ask(Wire, frozen=True):
    """A question outside any program; answered by an Answer with the same id.

    "stats": counters as JSON. "flush": empty the tree of all that no program uses. "check": walk every invariant
    (the answer's `ok` is False where one does not hold). "info": the model and options as JSON. "tree": what stands in
    the tree, `most` of its nodes at most, and of each the text that it begins with (`radix_cache.snapshot`, as JSON).
    "events": which prefixes came to the engine's pages and left them since the number `since`, that the last answer
    gave as `next`; -1: all that are there (`radix_cache.events`, as JSON).
    """

    id: Number
    what: Literal["stats", "flush", "check", "info", "tree", "events"]
    most: int = 0
    since: int = -1


class Ping(Wire, frozen=True):
    pass


# ---- both ways, when messages are lost -----------------------------------------------------------------------------


class Resend(Wire, frozen=True):
    """Send your messages of this program again, from `seq` on: one before those that came did not."""

    program: Number
    seq: Number


class Sync(Wire, frozen=True):
    """int64 `bytes`, three per program: its number, how many messages I sent, how many of yours came.

    A client says so now and then of what it waits for, and once more when it has all; the server answers with its own
    numbers for the same programs. Who learns that it missed something asks for it; what came need not be kept.
    """

    programs: bytes


# ---- server -> client ----------------------------------------------------------------------------------------------


class ChatMarkers(Wire, frozen=True):
    """What the model's chat template writes around a turn, for those who show or stop at it.

    roles: role -> (prefix, suffix). default_system: the system text that the template adds where the first turn is not
    the system's ("" if none). stop: strings that end an assistant turn. calls: how it writes a call of `f` with x = 1
    ("": a gen cannot have tools here, and no_calls says why).
    """

    roles: dict[str, tuple[str, str]]
    default_system: str = ""
    stop: tuple[str, ...] = ()
    calls: str = ""
    no_calls: str = ""


class Welcome(Wire, frozen=True):
    """The server's answer to Hello."""

    version: int
    model: str
    max_context: int
    chat: ChatMarkers | None = None
    """None: the model has no chat template, and role turns are refused."""
    max_message: int = 64 << 20
    """Bytes of the largest message that the server takes."""
    images: bool = False
    """Whether the model looks at pictures."""
    credit: int = 0
    """Programs that the client may have here at a time; 0: not told. One more waits with the client until another has
    ended, or is refused, where none of the others will end by itself."""


class TokenUsage(Wire, frozen=True):
    """Tokens of one gen. prompt = cached + computed (of the prompt); generated is the output, all samples.

    drafted: proposed for the output before they were computed; accepted: so many of those became part of it.
    """

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0


class Times(Wire, frozen=True):
    """When a gen or select got how far, in seconds of the monotonic clock that all processes of a machine share.

    ready: its turn had come. sent: its text was ids. started: the engine began to compute it. first: there was a first
    token. ended: its output was complete. 0.0: not known, or it did not happen (a select has no first token).
    """

    ready: float = 0.0
    sent: float = 0.0
    started: float = 0.0
    first: float = 0.0
    ended: float = 0.0


class Tokens(Wire, frozen=True):
    """A text as tokens. ids: int32 `bytes`. lengths: int32 `bytes`, characters of each (0: ends inside a character).

    made: (n_tokens, whether a gen made them) of one stretch after the other.
    """

    ids: bytes = b""
    lengths: bytes = b""
    made: tuple[tuple[int, bool], ...] = ()


class TokenLogprob(Wire, frozen=True):
    """One token: its id, text, log-probability, and the best `top_logprobs` alternatives as (id, text, logprob)."""

    id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


FinishReason = Literal["stop", "length", "abort"]


class Sample(Wire, frozen=True):
    """One finished output. `matched`: the stop string, pattern or id that ended it, None where max_tokens did.

    drafted: int32 `bytes`, which of its tokens (from 0) were proposed before they were computed. drafts: by drafter,
    how many tokens it proposed and how many were right; where there were several attempts or turns, of the last.
    """

    text: str
    finish_reason: FinishReason
    matched: str | int | None = None
    n_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    drafted: bytes = b""
    drafts: dict[str, tuple[int, int]] = {}


class Scores(Wire, frozen=True):
    """Why a select chose: per choice the mean logprob, the (logprob, id) of each scored token, and the weight it had in
    the draw; `unconditional` only for the method that needs it."""

    normalized: tuple[float, ...]
    tokens: tuple[tuple[tuple[float, int], ...], ...]
    weights: tuple[float, ...]
    unconditional: tuple[tuple[tuple[float, int], ...], ...] = ()


class Delta(Wire, frozen=True):
    """More text of a streaming gen; never half a character, never text that a stop string may still cut.

    n_tokens: so many its output has by now. is_thought: it is of what the model thinks (see Gen.reasoning). round: of a
    gen with tools or retries, which turn or output it is of, from 0; with retries only the last round counts. logprobs:
    of the tokens since the piece before, where Sampling.logprobs asks for them. n_prompt, n_cached: as in Usage, of
    this turn or output; 0: not known yet.
    """

    program: int
    seq: int
    ref: int
    text: str
    n_tokens: int = 0
    is_thought: bool = False
    round: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    n_prompt: int = 0
    n_cached: int = 0


class Called(Wire, frozen=True):
    """The gen `ref` calls tools, for the `round`-th time (from 0), or shows its `round`-th output (see Gen.retries), or
    the select `ref` shows its scores (see Select.asks), and waits for Results.

    text: the whole of its turn, the calls as the model wrote them. usage: of this turn alone.
    """

    program: int
    seq: int
    ref: int
    round: int
    calls: tuple[WireToolCall, ...]
    text: str = ""
    usage: TokenUsage = TokenUsage()
    finish_reason: FinishReason = "stop"
    scores: Scores | None = None


class Value(Wire, frozen=True):
    """A ref is known. Gen: one Sample per n. Select and Read: one Sample with the text."""

    program: int
    seq: int
    ref: int
    samples: tuple[Sample, ...]
    usage: TokenUsage = TokenUsage()
    scores: Scores | None = None
    times: Times = Times()
    tokens: Tokens | None = None
    """Of a Read that asked for them."""
    prompt: tuple[TokenLogprob, ...] = ()
    """Of a Gen that asked for them (Sampling.logprob_start). The first token of a text has the logprob nan."""


class Failed(Wire, frozen=True):
    """A ref will never be known (ref None: the whole program). code and message are an error of runtime/errors.py.

    Refs that depend on a failed one fail too, each with its own Failed. From the engine: program is the request id.
    program -1: it is the peer itself that is refused (a wrong version, bytes that are no message), or, from an engine
    that was not Ready yet, its start that failed.
    """

    program: int
    seq: int
    code: str
    message: str
    ref: int | None = None
    prompt_tail: str = ""


class Answer(Wire, frozen=True):
    id: int
    ok: bool
    body: bytes = b""
    """JSON, or a UTF-8 message where not ok."""


class Pong(Wire, frozen=True):
    pass


# ---- server <-> engine ---------------------------------------------------------------------------------------------


class Run(Wire, frozen=True):
    """One generation for the engine, which knows nothing but ids.

    ids: the whole prompt. sample: which of n samples this is (a draw is a function of (seed, sample, position)).
    stop_ids: int32 ids that end the output *and are not part of it* (eos, stop_token_ids, and every token that contains
    a stop string whole). The one that stopped it is named in Finish.
    n_done: how many of the last ids were generated before (a replay after an engine died); penalties, min_tokens and
    draws go on from there.
    score_from: >= 0 asks for the logprob of each prompt token from that index on (>= 1), in Finish; max_tokens may then
    be 0. namespace: the root key (tenant, adapter, weights version); nothing is shared across two.
    """

    rid: int
    ids: bytes
    sampling: Sampling = Sampling()
    stop_ids: bytes = b""
    seed: int = 0
    sample: int = 0
    n_done: int = 0
    score_from: int = -1
    namespace: bytes = b""
    order: tuple[int, ...] = ()
    """Where it stands among its kin: (program, state, ...); siblings of a fork compare close."""
    client: int = 0
    """Whose program it is; clients have equal shares."""
    priority: int = 0
    """Of two waiting, the higher one goes first."""
    deadline: float = 0.0
    """Of equal priority, the earlier one goes first; seconds of the clock of Times, 0.0: none."""


class SetVocabulary(Wire, frozen=True):
    """What the engine's guides need to know of the tokenizer. Sent once, before the first Run that has a constraint.

    text: what the ids spell, one behind the other; ends: int32 `bytes`, where each one's spelling ends in it. special:
    ids that no text has; control: those, and others that mark more than they spell. eos: those that end an output.
    tokenizer: the tokenizer itself, as tokenizer.json.
    """

    text: bytes
    ends: bytes
    special: bytes
    control: bytes
    eos: bytes
    tokenizer: bytes


class Abort(Wire, frozen=True):
    rid: int


class Over(Wire, frozen=True):
    """The program, by its number in Run.order, will send no more Runs."""

    client: int
    program: int


class Hold(Wire, frozen=True):
    """A prefix that is needed again. Nothing of it is computed, and what is not in the tree now is not held.

    hold: a number of the server's; one that is there already gives way. steps: until it is needed, about; below 0: not
    known. seconds: it is pinned for so long. prefetch: first, what lies in host memory comes back, as far as there is
    room that nobody holds.
    """

    hold: int
    ids: bytes
    steps: float = -1.0
    seconds: float = 0.0
    prefetch: bool = False
    namespace: bytes = b""


class Release(Wire, frozen=True):
    """The hold is over; unknown ones are those that ended by themselves, or with an engine before this one."""

    hold: int


class Bury(Wire, frozen=True):
    """Nobody needs what goes on from the first n_shared ids of this prefix, nor what goes on from all of them: it goes
    before anything else, but for what somebody runs on or holds."""

    ids: bytes
    n_shared: int = 0
    namespace: bytes = b""


class Finish(Wire, frozen=True):
    """How a request ended. stop_id: the id of stop_ids that ended it (-1: none did).

    scores: float32 `bytes`, the logprobs that score_from asked for. n_cached: prompt tokens that came from the tree.
    started: when the engine began to compute it (see Times). n_drafted, n_accepted: as in Usage.
    drafted: as in Sample. tops: with scores, the alternatives to each token, where Sampling.top_logprobs asks for some.
    """

    rid: int
    reason: FinishReason
    stop_id: int = -1
    n_prompt: int = 0
    n_cached: int = 0
    scores: bytes = b""
    started: float = 0.0
    n_drafted: int = 0
    n_accepted: int = 0
    drafted: bytes = b""
    tops: tuple[TopLogprobs, ...] = ()
    drafts: dict[str, tuple[int, int]] = {}
    """(drafted, accepted) by drafter."""


class TopLogprobs(Wire, frozen=True):
    """Logprobs of one new token: its own, and the best k as int32 ids and float32 logprobs."""

    logprob: float
    top_ids: bytes = b""
    top_logprobs: bytes = b""


class Step(Wire, frozen=True):
    """What one engine step gave, for all requests at once.

    rids: int64 `bytes`, the requests that got tokens. counts: int32, how many each. ids: int32, all of them in order.
    logprobs: rid -> one entry per new token, only for those that asked. A finished request is in `finished` of the step
    that ended it, and is gone from the engine then. cached: rid -> prompt tokens that came from the tree, of those that
    got their first token.
    """

    rids: bytes = b""
    counts: bytes = b""
    ids: bytes = b""
    logprobs: dict[int, tuple[TopLogprobs, ...]] = {}
    finished: tuple[Finish, ...] = ()
    cached: dict[int, int] = {}


class Ready(Wire, frozen=True):
    """The engine has loaded its model and claimed its pages."""

    n_pages: int
    page: int
    max_context: int
    report: tuple[str, ...] = ()
    """Lines for a person: what was chosen and why (device, dtype, memory, threads)."""
    step_seconds: float = 0.0
    """What the largest step took as the engine started."""
    weights: bytes = b""
    """Which weights they are (`weights.fingerprint`), for the root keys."""


# ---- server <-> preflight ------------------------------------------------------------------------------------------


class Check(Wire, frozen=True):
    """Try a constraint in a process that may die of it. owner: the client who asks; nobody waits for another's."""

    id: int
    spec: ConstraintSpec
    owner: int = 0


class Verdict(Wire, frozen=True):
    """What came of it: the spec that the engine gets, or (code not empty) an error of runtime/errors.py. id -1: the
    process is up."""

    id: int
    spec: ConstraintSpec | None = None
    code: str = ""
    message: str = ""


ClientMessage = Hello | Submit | Define | Undefine | Cancel | Ask | Ping | Resend | Sync
ServerMessage = Welcome | Delta | Called | Value | Failed | Answer | Pong | Resend | Sync
EngineOrder = Run | Abort | Over | Hold | Release | Bury | Ask | SetVocabulary | Ping
EngineReport = Ready | Step | Failed | Answer | Pong

PreflightOrder = SetVocabulary | Check

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What the decoders raise at bytes that are no message: a text that is no UTF-8 is a ValueError."""

encode = msgspec.msgpack.Encoder().encode
decode_client = msgspec.msgpack.Decoder(ClientMessage).decode
decode_server = msgspec.msgpack.Decoder(ServerMessage).decode
decode_order = msgspec.msgpack.Decoder(EngineOrder).decode
decode_report = msgspec.msgpack.Decoder(EngineReport).decode
decode_check = msgspec.msgpack.Decoder(PreflightOrder).decode
decode_verdict = msgspec.msgpack.Decoder(Verdict).decode
"""One encoder for all, one decoder per direction: a peer that sends another direction's message fails to decode."""
