"""All messages between client, server and engine, in one file.

Messages are frozen msgspec structs in tagged unions, encoded as MessagePack. New fields go at the end of a struct and
have a default, so that peers of different releases understand each other. Token ids travel as little-endian int32
`bytes`: 8,192 ids decode in 0.5 us, and in 140 us as a list.

    client -> server   Hello, Submit, Define, Undefine, Cancel, Acknowledge, Ask, Ping
    server -> client   Welcome, Delta, Called, Value, Failed, Answer, Pong
    server -> engine   SetVocabulary, Listen, Run, Abort, ProgramEnded, Hold, Release, EvictFirst, Ask, Ping,
                       ImagePixels, Export, Pull, EndPull
    engine -> server   Notice, Ready, Step, TreeEvents, Failed, Answer, EnginePong, WantImages, Exported, Pulled
    engine host        HostHello, EngineStarted, EngineEnded, OtherWork to the server;
                       StartEngine, EndEngine, Dismiss, Ping to it
    preflight          CheckResult to the server; SetVocabulary, Check to it

The client numbers its programs, and in each program its states (running prompts; 0 is the first, and forks make more)
and refs (values that a Gen, Select or Read will produce). Ops of one state run in order. Ops of different states run
concurrently and wait only for the refs that they use.

`seq` counts the messages of one program from 0, separately in each direction. A wrong `seq` fails the program.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from banyan.runtime.protocol import limits

VERSION = 3
"""Protocol version. The handshake refuses a peer with a different one."""

# Types with a range or a length, which decoders check; see limits.py.
Number = Annotated[int, Meta(ge=0, le=limits.MAX_NUMBER)]
"""A number that a client assigns: of a program, message, state, ref, mark or template."""
Int32 = Annotated[int, Meta(ge=-limits.MAX_COUNT - 1, le=limits.MAX_COUNT)]
Seed = Annotated[int, Meta(ge=-limits.MAX_NUMBER - 1, le=limits.MAX_NUMBER)]
Name = Annotated[str, Meta(max_length=limits.MAX_NAME)]
Line = Annotated[str, Meta(max_length=limits.MAX_LINE)]
Stop = Annotated[str, Meta(max_length=limits.MAX_STOP)]
Stops = Annotated[tuple[Stop, ...], Meta(max_length=limits.MAX_STOPS)]
StopIds = Annotated[tuple[Int32, ...], Meta(max_length=limits.MAX_STOP_IDS)]
LogitBias = Annotated[dict[Int32, float], Meta(max_length=limits.MAX_BIASES)]
Numbers = Annotated[tuple[Number, ...], Meta(max_length=limits.MAX_ITEMS)]
Texts = Annotated[tuple[str, ...], Meta(max_length=limits.MAX_ITEMS)]
TemplateKwargs = Annotated[str, Meta(max_length=limits.MAX_TEMPLATE_KWARGS)]
ToolSpecs = Annotated[tuple[Annotated[str, Meta(max_length=limits.MAX_SPEC)], ...], Meta(max_length=limits.MAX_TOOLS)]


class Wire(msgspec.Struct, frozen=True, gc=False, tag_field="t", tag=str.lower, omit_defaults=True):
    """Base of all messages. The tag is the class name in lower case. No message can be part of a reference cycle, so
    the garbage collector does not track them."""


# ---- parts of a prompt ---------------------------------------------------------------------------------------------


class Raw(Wire, frozen=True):
    """Text in which control tokens such as `<|im_end|>` are encoded as control tokens. In other text they are data."""

    text: str


class Ref(Wire, frozen=True):
    """The text of value `ref`, inserted once the value is known. The text is data: control tokens in it are not encoded
    as control tokens."""

    ref: Number


class WireToolCall(Wire, frozen=True):
    """A tool call as the model wrote it. arguments: a JSON object. error: why the call is invalid, "" if it is
    valid."""

    id: str
    name: str
    arguments: str = "{}"
    error: str = ""


class BeginTurn(Wire, frozen=True, tag="begin"):
    """A chat turn of `role` begins. The chat template of the model determines the text of its markers."""

    role: Annotated[str, Meta(max_length=limits.MAX_ROLE)]
    answers: WireToolCall | None = None
    """For a tool's turn, the call whose result the turn is. Only the call's id and name count. The id has nine digits,
    as Mistral's templates require."""


class EndTurn(Wire, frozen=True, tag="end"):
    """The open chat turn ends. calls: the tool calls of an assistant's turn; the chat template writes them."""

    calls: Annotated[tuple[WireToolCall, ...], Meta(max_length=limits.MAX_RESULTS)] = ()


class Image(Wire, frozen=True):
    """An image file. kind: its MIME type, such as "image/png". Allowed only if Welcome.images is set."""

    data: bytes
    kind: Name


class TokenIds(Wire, frozen=True, tag="ids"):
    """Tokens of the model's vocabulary (int32), including control tokens. The prompt gets exactly these tokens; no
    begin-of-text token is put before them."""

    ids: Annotated[bytes, Meta(max_length=4 * limits.MAX_IDS)]


class Arg(Wire, frozen=True):
    """Only in a template: the text of argument `i` of the Use. Like the text of a Ref, it is data."""

    i: Number


Part = str | Raw | Ref | BeginTurn | EndTurn | Arg | Image | TokenIds


# ---- options of a generation ---------------------------------------------------------------------------------------


class ConstraintSpec(Wire, frozen=True):
    """What the whole output of a gen must match. The output is guaranteed to be complete only if its finish_reason is
    "stop" and no stop string ended it.

    text        by `kind`: a regex in Rust's syntax (no look-around, no back-references), a JSON Schema, a context-free
                grammar in llguidance's Lark dialect or in GBNF, or a JSON list of strings
    style       the whitespace in JSON. spaced: as in {"a": 1, "b": 2}; compact: as in {"a":1,"b":2}; either: one of
                these two throughout a value; any: any whitespace
    after       trigger strings. The output is free text until it contains one of them, as text or as a special token;
                then the constraint applies. (): the constraint applies from the first token
    scope       with triggers: the output must contain one constrained value ("must"), may contain one ("may"), or may
                contain any number, with free text in between ("repeat")
    end         text that is forced directly after each value, such as "\\n</tool_call>"
    since       the triggers have no effect before this string, which ends the model's reasoning
    engine      the library that compiles the constraint. "": llguidance, or the server's default for the kind.
                outlines_core: for regexes and choices without triggers; llguidance compiles those that are too complex
                for outlines_core
    order       the order of a JSON Schema's optional properties. schema: as in the schema; any: any order, after the
                required properties
    is_checked  the client validates the value against the JSON Schema, or takes it unchecked (Tools.is_strict).
                Keywords that cannot be enforced while the value is generated are then left out, and not refused
    """

    kind: Literal["regex", "json_schema", "grammar", "choices"]
    text: str
    style: Literal["spaced", "compact", "either", "any"] = "either"
    after: Stops = ()
    scope: Literal["must", "may", "repeat"] = "must"
    end: Stop = ""
    since: Stop = ""
    engine: Literal["", "outlines_core"] = ""
    order: Literal["schema", "any"] = "schema"
    is_checked: bool = False


class Sampling(Wire, frozen=True, cache_hash=True):
    """Sampling parameters of one gen. The client sends them, and the engine's sampler applies them.

    temperature 0 is greedy. top_k -1, top_p 1.0 and min_p 0.0 are off. Frequency and presence penalties are defined as
    OpenAI defines them and count output tokens. The repetition penalty is defined as in CTRL and counts prompt and
    output tokens. The text ends before a `stop` string. The random number of a token depends only on (seed, index of
    the sample in 0 .. n - 1, position of the token). With seed None the server chooses a seed.
    """

    max_tokens: Int32 = 128
    min_tokens: Int32 = 0
    n: Int32 = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Int32 = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: LogitBias = {}
    stop: Stops = ()
    stop_token_ids: StopIds = ()
    ignore_eos: bool = False
    seed: Seed | None = None
    logprobs: bool = False
    top_logprobs: Int32 = 0
    constraint: ConstraintSpec | None = None
    """The mask is applied after all other logit edits and before temperature. Logprobs are computed without it."""
    stop_regex: Stops = ()
    """Patterns in RE2's syntax. The text ends after the first match."""
    logprob_start: Int32 = -1
    """With `logprobs`, also return the logprobs of prompt tokens starting at this index. -1: none."""


class Tools(Wire, frozen=True):
    """Tools that a gen may call. specs: one JSON document each, {"type": "function", "function": {name, description,
    parameters}}. max_rounds: maximum number of turns with calls; after them, the model must answer."""

    specs: ToolSpecs
    max_rounds: Int32 = 4
    ends_turn: bool = False
    """The gen has one turn only. If the model calls tools in it, the turn ends with the calls, which are in
    Sample.calls; Sample.text is the text before them. An invalid call counts as text. A constraint of the gen applies
    only if the model calls no tool: then the output is generated a second time."""
    must_call: bool = False
    """With ends_turn: apart from reasoning, the output must be a call and nothing else."""
    only: Name = ""
    """The only tool that may be called; "": all of them. The model reads the specs of all tools in any case."""
    one_call: bool = False
    """A turn must have at most one call."""
    is_strict: bool = False
    """With ends_turn: the gen fails if the parameters of a tool cannot be enforced while a call is written. Otherwise
    what cannot be enforced is left out. (Without ends_turn, the client validates the arguments.)"""


class Reasoning(Wire, frozen=True):
    """How a model marks its reasoning. start, end: the marks before and after the reasoning. is_forced: the output
    begins inside the reasoning, with or without `start`.

    answer, close: what the model writes before and after its answer, if anything. They are not part of the answer.
    """

    start: Stop = "<think>"
    end: Stop = "</think>"
    is_forced: bool = False
    answer: Stop = ""
    close: Stop = ""


# ---- ops -----------------------------------------------------------------------------------------------------------


class Append(Wire, frozen=True):
    """Append `parts` to a state."""

    state: Number
    parts: Annotated[tuple[Part, ...], Meta(max_length=limits.MAX_PARTS)]


class Gen(Wire, frozen=True):
    """Generate at the end of a state. The text becomes value `ref` and part of the state (sample 0 if n > 1)."""

    state: Number
    ref: Number
    sampling: Sampling = Sampling()
    stream: bool = False
    """Send a Delta for each piece of text of sample 0, including reasoning and outputs that are later retried."""
    name: Name = ""
    line: Line = ""
    """Source position, for errors: "file.py:12"."""
    tools: Tools | None = None
    """The gen must be inside an assistant turn. When the model calls tools, the server ends the turn, sends Called,
    appends the Results as tool turns and generates again. The value is the text of the first turn without calls."""
    reasoning: Reasoning | None = None
    """Separate reasoning from the answer: it goes to Sample.reasoning, and not into the value or the state."""
    retries: Int32 = 0
    """> 0: the client validates each output. The server sends Called (without calls); Results with an empty text accept
    it, any other text is an error message for the model, which tries again. Only the last output enters the state."""
    timeout: float = 0.0
    """Seconds after which the gen fails, counted from when its state reaches the gen; 0: no limit."""
    budget: Number = 0
    """Tokens, over all samples and turns, after which the gen fails; 0: no limit."""
    priority: Int32 | None = None
    """Overrides the program's priority; see ProgramLimits."""
    deadline: float = 0.0
    """Overrides the program's deadline, in seconds from when its state reaches the gen; 0: the program's deadline
    applies."""
    adapter: Name = ""
    """Name of the LoRA adapter to use; "": none. Different adapters never share KV."""
    chat_template_kwargs: TemplateKwargs = ""
    """A JSON object: variables for the chat template, such as {"enable_thinking": false}; "": none. The template
    renders the whole conversation with them. BadProgram: the server itself sets a variable of this name."""


ChoicesMethod = Literal["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]


class Select(Wire, frozen=True):
    """Score each choice as the continuation of a state. The chosen one becomes value `ref` and part of the state.
    temperature 0 takes the best score; otherwise the choice is drawn from softmax(score / temperature) with `seed`.
    name, line, timeout, adapter, chat_template_kwargs: as for Gen."""

    state: Number
    ref: Number
    choices: Texts
    method: ChoicesMethod = "token_length_normalized"
    temperature: float = 0.0
    seed: Seed | None = None
    name: Name = ""
    line: Line = ""
    timeout: float = 0.0
    adapter: Name = ""
    client_decides: bool = False
    """The server sends the scores in a Called; the client answers with Results, whose one text is its choice."""
    chat_template_kwargs: TemplateKwargs = ""


class Fork(Wire, frozen=True):
    """Create `children` as copies of `state` at this point."""

    state: Number
    children: Numbers


class Join(Wire, frozen=True):
    """Append to `state`, in order, the text that each child has got since its fork. adopt: do not append; instead,
    `state` takes over the content of its only child, with the same tokens. The marks that `state` made since the fork
    are kept."""

    state: Number
    children: Numbers
    adopt: bool = False


class Mark(Wire, frozen=True):
    """Remember the current end of the state as `mark`, for a later Read."""

    state: Number
    mark: Number


class Read(Wire, frozen=True):
    """The state's text from `mark` to this op becomes value `ref`, chat markers included. mark None: the text of the
    whole state. tokens: also return the state's tokens; only with mark None."""

    state: Number
    ref: Number
    mark: Number | None = None
    tokens: bool = False


class Drop(Wire, frozen=True):
    """The state is not used again: stop its requests, and evict its KV before other KV. tree: also drop all its
    descendants."""

    state: Number
    tree: bool = False


class CacheHint(Wire, frozen=True):
    """A hint about the KV of a state at this point; it changes no output. pin: seconds for which the KV is evicted
    last, even after the program has ended; 0 removes a pin. steps: about how many engine steps pass until the program
    uses the KV again. prefetch: copy the KV's pages back from host memory now."""

    state: Number
    pin: float | None = None
    steps: float | None = None
    prefetch: bool = False


class Use(Wire, frozen=True):
    """All ops of a template, in order, with `args` in place of its Args. Its state 0 is `state`; its other states, its
    refs and its marks are numbered from `child`, `ref` and `mark` on. seeds: for its gens and selects that have no
    seed, in order; (): the server chooses."""

    state: Number
    template: Number
    args: Texts = ()
    child: Number = 1
    ref: Number = 0
    mark: Number = 0
    seeds: Annotated[tuple[Seed, ...], Meta(max_length=limits.MAX_ITEMS)] = ()


class Results(Wire, frozen=True):
    """The client's reply to a Called: one text for each call, in order. It is not queued after other ops. The server
    ignores Results for which nothing waits."""

    state: Number
    ref: Number
    round: Number
    texts: Annotated[tuple[str, ...], Meta(max_length=limits.MAX_RESULTS)]


Op = Append | Gen | Select | Fork | Join | Mark | Read | Drop | CacheHint | Use | Results
TemplateOp = Append | Gen | Select | Fork | Join | Mark | Read | Drop | CacheHint
Ops = Annotated[tuple[Op, ...], Meta(max_length=limits.MAX_OPS)]
TemplateOps = Annotated[tuple[TemplateOp, ...], Meta(max_length=limits.MAX_OPS)]
SlicedOps = Annotated[tuple[msgspec.Raw, ...], Meta(max_length=limits.MAX_OPS)]


# ---- client -> server ----------------------------------------------------------------------------------------------


class Hello(Wire, frozen=True):
    """The first message of a client. client: its name for the log. token: its access token, if the server asks for
    one. tenant: the tenant for which an operator wants to act, without an operator's rights."""

    version: Int32
    client: Name = ""
    token: Annotated[str, Meta(max_length=limits.MAX_SECRET)] = ""
    tenant: Name = ""


class TokenLimit(Wire, frozen=True):
    """A budget of output tokens. number: all programs of one client with the same number share the budget; -1: no other
    program shares it. of: whether the budget belongs to a run or to a batch."""

    tokens: Annotated[int, Meta(ge=1, le=limits.MAX_NUMBER)]
    number: Annotated[int, Meta(ge=-1, le=limits.MAX_NUMBER)] = -1
    of: Literal["run", "batch"] = "run"


class ProgramLimits(Wire, frozen=True):
    """Limits and priority of a program. When a limit is reached, everything unfinished fails with an error that names
    the limit.

    timeout: seconds, as the user gave it (0: none). left: the seconds of the timeout that are left when the message is
    sent. timeout_of: whether the timeout belongs to a run or to a batch. budgets: the tokens of all gens count against
    each of them. priority: waiting programs with a higher one go first. deadline: orders programs of equal priority, in
    seconds from now (0: none); missing it is not an error. durable: a name under which the program continues after the
    server was killed and started again; a tenant's later program of the same name takes over. "": not durable. salt:
    the program shares KV only with programs of its tenant that have the same salt.
    """

    timeout: float = 0.0
    left: float = 0.0
    timeout_of: Literal["run", "batch"] = "run"
    budgets: Annotated[tuple[TokenLimit, ...], Meta(max_length=limits.MAX_BUDGETS)] = ()
    priority: Int32 = 0
    deadline: float = 0.0
    durable: Name = ""
    salt: Name = ""


class Submit(Wire, frozen=True):
    """Add ops to a program. The first Submit (seq 0) creates it and may carry limits. last: no more ops
    follow, except Results."""

    program: Number
    seq: Number
    ops: Ops
    last: bool = False
    name: Name = ""
    limits: ProgramLimits | None = None


class Define(Wire, frozen=True):
    """Define template number `template` for this client. Its ops form a whole program: state 0 exists and all other
    states come from its Forks."""

    template: Number
    ops: TemplateOps


class Undefine(Wire, frozen=True):
    """Delete a template. No later message uses it."""

    template: Number


class Cancel(Wire, frozen=True):
    """Stop the program. Everything unfinished fails with code "cancelled"."""

    program: Number
    seq: Number


class Acknowledge(Wire, frozen=True):
    """The client has all values of this durable program, so the server may delete its journal."""

    program: Number


Topic = (
    Literal["stats", "flush", "check", "info", "tree", "events", "programs"]
    | Literal["load_adapter", "unload_adapter", "add", "drain", "roll"]
)
"""The subject of a question; see Ask."""


class Ask(Wire, frozen=True):
    """A question outside any program. The Answer has the same id, and JSON in its body.

    stats           counters, and the bytes of caches with their maximum; with several engines, their sums
    flush           evict all KV that no program uses
    check           verify all invariants; ok is False if one is violated
    info            the model and the limits of a client, and for an operator all options, paths and processes
    tree            up to `limit` nodes of each engine's radix tree (`radix_cache.snapshot`)
    events          prefixes stored and evicted since event number `since`, the `next` of the previous answer; -1: all
                    prefixes stored now (`radix_cache.events`). With several engines, those of the engine `name`
    programs        programs that run, that are idle, and that have ended, the newest first (`server.programs.overview`)
    load_adapter    load the adapter in the directory `path` of the server's machine, for gens that name it `name`
    unload_adapter  new gens cannot name the adapter; its memory is freed when the requests that use it have ended. (The
                    engine gets the adapter's digest in hex as `name`.)
    add             start one more engine; the answer comes when it is ready
    drain           place no more programs in the engine `name`; the answer comes when the engine has ended
    roll            replace the engines one at a time by engines with the weights of the model `path`; the answer comes
                    when all have them
    """

    id: Number
    what: Topic
    limit: Annotated[int, Meta(ge=0, le=limits.MAX_NODES)] = 0
    since: Annotated[int, Meta(ge=-1, le=limits.MAX_NUMBER)] = -1
    name: Name = ""
    path: str = ""


class Ping(Wire, frozen=True):
    """The sender is alive and wants a Pong."""


# ---- how the server takes client messages apart --------------------------------------------------------------------


class SlicedSubmit(Submit, frozen=True, tag="submit"):
    """A Submit as the server receives it: its ops are encoded bytes. The server decodes each op when the op is about to
    run."""

    ops: SlicedOps  # type: ignore[assignment]


class SlicedDefine(Define, frozen=True, tag="define"):
    """A Define as the server receives it: its ops are encoded bytes, which the server decodes later."""

    ops: SlicedOps  # type: ignore[assignment]


class OpSource(msgspec.Struct, frozen=True):
    """The part of an op that is decoded if the whole op cannot be decoded: its tag, name and source line, for the error
    message."""

    t: Name = ""
    name: Name = ""
    line: Line = ""


# ---- server -> client ----------------------------------------------------------------------------------------------


class ChatMarkers(Wire, frozen=True):
    """What the model's chat template writes around turns. roles: role -> (prefix, suffix). default_system: the system
    prompt that the template adds if the first turn is not a system turn. stop: strings that end an assistant turn.
    calls: how the template writes a call of `f` with x = 1; "": tools are not supported, and no_calls says why.
    reasoning: how the model marks its reasoning, if the template shows that it reasons. reads_effort: whether the
    template reads a variable `reasoning_effort`. thinking_switch: the variable that switches the reasoning on and off,
    enable_thinking or thinking; "": the template reads neither."""

    roles: dict[str, tuple[str, str]]
    default_system: str = ""
    stop: tuple[str, ...] = ()
    calls: str = ""
    no_calls: str = ""
    reasoning: Reasoning | None = None
    reads_effort: bool = False
    thinking_switch: str = ""


class Welcome(Wire, frozen=True):
    """The server's answer to Hello."""

    version: int
    model: str
    max_context: int
    chat: ChatMarkers | None = None
    """None: the model has no chat template, and the server refuses role turns."""
    max_message: int = 1 << 20
    """Size limit of a message to the server, in bytes."""
    images: bool = False
    """Whether prompts may contain images."""
    max_programs: int = 0
    """Programs that the client may run at a time; 0: not known. The client queues programs above the limit."""
    sampling: Sampling = Sampling()
    """The model's defaults, for gens and runs without options of their own."""
    max_client: int = 1 << 30
    """Bytes that the server keeps for the client's programs."""
    no_images: str = ""
    """Why prompts must not contain images, if the reason is not simply that the model takes only text."""


class TokenUsage(Wire, frozen=True):
    """Token counts of one gen or select. prompt: prompt tokens; tokens that samples or choices share count once.
    cached: how many of the prompt tokens were found in the radix tree. generated: output tokens of all samples.
    reasoning: how many output tokens come before the content, if reasoning is separated. drafted: draft tokens proposed
    for the output. accepted: how many draft tokens became part of the output."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    reasoning: int = 0


class Times(Wire, frozen=True):
    """When a gen or select reached each stage, on the monotonic clock that all processes of a machine share. ready: the
    state reached the gen. sent: the server sent its request to the engine. started: the engine began to compute it.
    first, ended: the first and the last token came. 0.0: unknown, or the stage was not reached."""

    ready: float = 0.0
    sent: float = 0.0
    started: float = 0.0
    first: float = 0.0
    ended: float = 0.0


class Tokens(Wire, frozen=True):
    """A text as tokens. ids: int32 `bytes`. lengths: int32 `bytes`, characters of each token (0: the token ends inside
    a character). spans: consecutive stretches as (n_tokens, whether a gen produced them)."""

    ids: bytes = b""
    lengths: bytes = b""
    spans: tuple[tuple[int, bool], ...] = ()


class TokenLogprob(Wire, frozen=True):
    """One token: its id, text, logprob, and the best `top_logprobs` alternatives as (id, text, logprob).

    spelling: the bytes of the token, if it may hold part of a character, which `text` cannot show; top_spellings: the
    same for each alternative. Empty: `text` shows the whole token."""

    id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()
    spelling: bytes = b""
    top_spellings: tuple[bytes, ...] = ()


FinishReason = Literal["stop", "length", "abort"]


class Sample(Wire, frozen=True):
    """One finished output. matched: the stop string, pattern or token id that ended it, if any.
    drafted: int32 `bytes`, indices of output tokens that were drafted. drafts: drafter -> (tokens proposed, tokens
    accepted). end: the token `matched` with its logprob, if the gen has logprobs; `logprobs` does not contain it. After
    retries or tool rounds, `drafts` is summed over all outputs, like Value.usage; the other fields describe the last
    output."""

    text: str
    finish_reason: FinishReason
    matched: str | int | None = None
    n_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    drafted: bytes = b""
    drafts: dict[str, tuple[int, int]] = {}
    calls: tuple[WireToolCall, ...] = ()
    """For a Gen whose tools have ends_turn."""
    end: TokenLogprob | None = None


class Scores(Wire, frozen=True):
    """Scores of a select, for each choice. normalized: the mean logprob. tokens: (logprob, id) of each scored token.
    weights: the choice's weight in the draw. unconditional: like `tokens`, but computed without the prompt; only with
    the method unconditional_likelihood_normalized."""

    normalized: tuple[float, ...]
    tokens: tuple[tuple[tuple[float, int], ...], ...]
    weights: tuple[float, ...]
    unconditional: tuple[tuple[tuple[float, int], ...], ...] = ()


class CallPiece(Wire, frozen=True):
    """A part of a tool call that the model is writing. id: that of the whole call in Sample.calls. name: the tool's
    name in the first piece of a call, "" in further ones. arguments: more of the JSON."""

    id: str
    name: str = ""
    arguments: str = ""


class Delta(Wire, frozen=True):
    """More text of a streaming gen. It contains whole characters only, and no text that a stop string may still cut.

    n_tokens: output tokens so far. is_thought: the text is reasoning (see Gen.reasoning). round: the number, from 0, of
    the turn (with tools) or attempt (with retries); the value is the text of the last attempt only. logprobs: the
    logprobs of the tokens since the previous Delta, if requested; a Delta with is_thought and no text has the logprobs
    of the marks after the reasoning. n_prompt, n_cached: as in TokenUsage, for this round; 0: not known yet.
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
    call: CallPiece | None = None
    """With Tools.ends_turn, in a Delta without text. The pieces of a call, joined, are the beginning of the one in
    Sample.calls. If the call is cut off or turns out to be invalid, Sample.calls does not have it."""


class Called(Wire, frozen=True):
    """Value `ref` needs Results from the client: for tool calls, for an output to validate (Gen.retries), or for a
    choice (Select.client_decides). round: the number of the turn or attempt, from 0. text: the whole turn, with the
    calls as the model wrote them. usage: of this turn only."""

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
    """Tells the client that value `ref` is known. samples: the n outputs of a Gen; one item, with the text, for a
    Select or Read."""

    program: int
    seq: int
    ref: int
    samples: tuple[Sample, ...]
    usage: TokenUsage = TokenUsage()
    scores: Scores | None = None
    times: Times = Times()
    tokens: Tokens | None = None
    """For a Read with `tokens`."""
    prompt: tuple[TokenLogprob, ...] = ()
    """For a Gen with logprob_start. The first token of a text has the logprob nan."""
    rounds: tuple[TokenUsage, ...] = ()
    """The parts of `usage` by turn or attempt, for a Gen whose tools or retries led to more than one turn or
    attempt."""


class Failed(Wire, frozen=True):
    """Value `ref` failed (ref None: the whole program). code and message are those of an error in errors.py. In a
    message from the engine, `program` is the request id. program -1: the server refuses the client, or the engine could
    not start."""

    program: int
    seq: int
    code: str
    message: str
    ref: int | None = None
    prompt_tail: str = ""


class Answer(Wire, frozen=True):
    """The answer to an Ask. ok: whether the question could be answered. body: JSON, or a UTF-8 error message if not ok.
    code: which error of runtime/errors.py the client raises if not ok; "": BanyanError."""

    id: int
    ok: bool
    body: bytes = b""
    code: str = ""


class Pong(Wire, frozen=True):
    """The reply to a Ping. The server also sends it without a Ping: if the send fails, the client has disconnected."""


# ---- server <-> engine ---------------------------------------------------------------------------------------------


class ImageRows(Wire, frozen=True):
    """Rows of an image in a prompt. start, n: the tokens start .. start + n - 1 of the prompt are these rows. first:
    the number of the first of them among all rows of the image. image: the digest of the image's file, from which the
    tokens' negative ids are computed. height, width: the size of the grid of all rows, if the model has M-RoPE
    positions; else 0."""

    start: int
    n: int
    image: bytes
    first: int = 0
    height: int = 0
    width: int = 0


class Run(Wire, frozen=True):
    """One generation for the engine. The engine works on token ids, and on images.

    ids: the whole prompt, int32. sample: the index among the gen's n samples. stop_ids: int32 ids that end the output
    and are not part of it: eos, stop_token_ids, and, if min_tokens is 0, every token that contains a whole stop string.
    n_done: how many ids at the end of `ids` are output that was generated before an engine died; penalties, min_tokens
    and random numbers count them as output. score_from: if >= 1, return the logprobs of prompt tokens starting at this
    index, in Finish; max_tokens may then be 0. namespace: root key of the KV (tenant, adapter, weights). Requests of
    two namespaces share nothing.
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
    """(program serial, state, ...). Siblings of a fork compare close to each other."""
    client: int = 0
    """The client's number. The scheduler gives clients equal shares."""
    priority: int = 0
    """Waiting requests with a higher priority go first."""
    deadline: float = 0.0
    """Orders requests of equal priority: the request with the earlier deadline goes first. On the clock of Times; 0.0:
    none."""
    adapter: bytes = b""
    """Digest of the adapter that computes the request; b"": none."""
    images: tuple[ImageRows, ...] = ()
    """The rows of images in the prompt, in ascending order. The engine asks for the images that it needs."""
    is_trial: bool = False
    """An engine has died while it ran this request, and this is its trial (server/engine_link/recovery.py)."""


class PixelArray(Wire, frozen=True):
    """An array of numbers, in C order. dtype: numpy's name for it."""

    shape: tuple[int, ...]
    dtype: str
    data: bytes


class ImagePixels(Wire, frozen=True):
    """The answer to WantImages for one image: the output of transformers' image processor. error: why there are no
    pixels; then the requests that wait for the image fail."""

    image: bytes
    arrays: dict[str, PixelArray] = {}
    error: str = ""


class SetVocabulary(Wire, frozen=True):
    """What guides need to know about the tokenizer. Sent once, before the first Run with a constraint. text: the
    spelling of all ids, concatenated. ends: int32 `bytes`, the end of each spelling in `text`. special: ids that are
    never shown in text. control: special ids and other ids that act as markers. eos: ids that end an output. tokenizer:
    the content of tokenizer.json."""

    text: bytes
    ends: bytes
    special: bytes
    control: bytes
    eos: bytes
    tokenizer: bytes


class Listen(Wire, frozen=True):
    """Send TreeEvents from now on: first everything that is stored now, then with each step what has changed."""


class Abort(Wire, frozen=True):
    """Stop request `rid`. The engine reports it as finished with reason "abort"."""

    rid: int


class ProgramEnded(Wire, frozen=True):
    """No more Runs of this program will come, and all its requests have ended or were aborted. program: its serial, the
    first number of Run.order."""

    client: int
    program: int


class Hold(Wire, frozen=True):
    """Protect the cached part of a prefix from eviction. hold: the server's number for this hold; a new Hold with the
    same number replaces the old one. steps: about how many engine steps pass until the prefix is needed; < 0: unknown.
    seconds: for how long the prefix is pinned. prefetch: first copy its pages back from host memory, into pages that
    are free or that neither a request nor a hold uses."""

    hold: int
    ids: bytes
    steps: float = -1.0
    seconds: float = 0.0
    prefetch: bool = False
    namespace: bytes = b""


class Release(Wire, frozen=True):
    """End a hold. The engine ignores numbers that it does not know: a hold may have expired."""

    hold: int


class EvictFirst(Wire, frozen=True):
    """Evict part of the KV of a prefix before anything else, because no program will continue from there: the KV of all
    `ids` after the first n_shared. KV that a request or a hold uses stays."""

    ids: bytes
    n_shared: int = 0
    namespace: bytes = b""


class TopLogprobs(Wire, frozen=True):
    """Logprob of one token, and the best k alternatives as int32 ids and float32 logprobs."""

    logprob: float
    top_ids: bytes = b""
    top_logprobs: bytes = b""


class Finish(Wire, frozen=True):
    """How a request ended. stop_id: the id of Run.stop_ids that ended it (-1: none). scores: float32 `bytes`, the
    logprobs that score_from asked for; tops: the alternatives of each of these tokens, if Sampling.top_logprobs > 0.
    end: the logprobs of stop_id, if Sampling.logprobs. n_cached: prompt tokens found in the tree. started: as in Times.
    n_drafted, n_accepted: as in TokenUsage. drafted, drafts: as in Sample."""

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
    end: TopLogprobs | None = None


class EnginePong(Wire, frozen=True):
    """The engine's reply to a Ping. According to the latest measurements, a step with n rows takes fixed + n * row
    seconds; 0.0: too few steps were measured."""

    fixed: float = 0.0
    row: float = 0.0


class Step(Wire, frozen=True):
    """The output of one engine step. rids: int64 `bytes`, the requests that got tokens. counts: int32, how many each.
    ids: int32, the tokens of all, in that order. logprobs: rid -> one entry per new token, where requested. finished:
    requests that ended with this step. cached: rid -> prompt tokens found in the tree, for requests that got their
    first token."""

    rids: bytes = b""
    counts: bytes = b""
    ids: bytes = b""
    logprobs: dict[int, tuple[TopLogprobs, ...]] = {}
    finished: tuple[Finish, ...] = ()
    cached: dict[int, int] = {}


class TreeEvent(Wire, frozen=True):
    """Consecutive pages of one text that were stored or removed. digests: 16 bytes for each page
    (`radix_cache.events`). first: the index of the first of these pages in the text, counted in pages."""

    digests: bytes
    first: int = 0
    is_removed: bool = False


class TreeEvents(Wire, frozen=True):
    """What the tree has stored and evicted since the last such message. is_all: instead of the changes, the message has
    everything that is stored now."""

    events: tuple[TreeEvent, ...]
    is_all: bool = False


class KVFormat(Wire, frozen=True):
    """What must be equal in two engines so that they can exchange pages. layout: the version of a page's layout.
    weights: `weights.fingerprint`. context: the context length, on which the positions of some models depend. heads:
    the number of key-value heads."""

    layout: int
    weights: bytes
    device: str
    dtype: str
    kv_dtype: str
    page: int
    layers: int
    heads: int
    head_dim: int
    context: int
    deterministic: bool


class Export(Wire, frozen=True):
    """Pull number `pull` begins. Copy the stored pages of a prefix of run.ids, starting at token `first`, to a place
    where another engine can read them, and keep the copy until EndPull, or for `seconds`. compute: first compute the
    part of the prefix that is not stored, as this Run, without an output."""

    pull: int
    run: Run
    first: int = 0
    seconds: float = 10.0
    compute: bool = False


class Pull(Wire, frozen=True):
    """Take over exported pages: the pages of `ids` starting at token `first`. kv: the format of the engine that
    exported them. places: where they are, one place for each transport that can read them."""

    pull: int
    ids: bytes
    first: int
    kv: KVFormat
    places: tuple[str, ...]
    namespace: bytes = b""
    seconds: float = 10.0


class EndPull(Wire, frozen=True):
    """The pull is over. Sent to the engine that exports and to the one that reads; both free the memory that they hold
    for the pull."""

    pull: int


class Exported(Wire, frozen=True):
    """The source's answer to Export. n_tokens: where the exported prefix ends, in tokens from the start of the prompt;
    0: nothing was exported, and `why` says the reason. places: as in Pull. seconds: how long the copying took."""

    pull: int
    n_tokens: int = 0
    places: tuple[str, ...] = ()
    seconds: float = 0.0
    why: str = ""


class Pulled(Wire, frozen=True):
    """The answer to Pull. n_tokens: the length of the prefix that is stored now; 0: nothing was taken over, and `why`
    says the reason. seconds: how long the copying took."""

    pull: int
    n_tokens: int = 0
    seconds: float = 0.0
    why: str = ""


class Notice(Wire, frozen=True):
    """A line for people: what slows down the start of an engine, or what is missing."""

    text: str


class WantImages(Wire, frozen=True):
    """The engine needs the pixels of these images, which are named by digest, for its requests."""

    images: tuple[bytes, ...]


class Ready(Wire, frozen=True):
    """The engine has loaded its model and allocated its pages. page: slots of a page. report: lines that tell people
    what was chosen. step_seconds: the time of the largest step, measured at start. weights: `weights.fingerprint`, for
    root keys."""

    n_pages: int
    page: int
    max_context: int
    report: tuple[str, ...] = ()
    step_seconds: float = 0.0
    weights: bytes = b""
    adapters: dict[str, bytes] = {}
    """Name -> digest, for the adapters in the configuration."""
    threads: int = 0
    """CPU threads of a step, over all processes of the engine; 0: it computes on a GPU."""
    n_cores: int = 0
    """CPU cores of the engine's machine."""
    layout: str = ""
    """The dtypes of the computation and of KV. They are equal for all engines of a server."""
    kv: KVFormat | None = None
    """The format of the engine's pages. None: they cannot be moved to other engines."""


class OtherWork(Wire, frozen=True):
    """How much work other servers have in an engine that the receiving server shares with them; the engine's host sends
    this. n_prompt: how many prompt tokens of their requests probably still have to be computed. n_running: how many
    requests they have in the engine."""

    n_prompt: int = 0
    n_running: int = 0


# ---- server <-> engine host: after an empty frame; a message of one frame is for the engine or from it -------------


class HostHello(Wire, frozen=True):
    """The first message of an engine host. clock: its time.monotonic()."""

    version: int
    clock: float


class EngineStarted(Wire, frozen=True):
    """The host has started an engine, which loads its model now."""

    pid: int


class EngineEnded(Wire, frozen=True):
    """The engine of the host has ended. how: a description for people. is_blameless: whether the engine was ended from
    outside, so that no request is suspected. rids: the requests that it was working on."""

    how: str
    is_blameless: bool = False
    rids: tuple[int, ...] = ()


class StartEngine(Wire, frozen=True):
    """Start an engine, and end the previous one. config: the server's Config as JSON; the host replaces the options of
    config.OWN by its own. model: the model to load in place of the host's own; "": the host's own."""

    config: bytes
    model: str = ""


class EndEngine(Wire, frozen=True):
    """Kill the engine. is_hung: True if it gives no sign of life, False if it has sent an invalid message."""

    is_hung: bool = False


class Dismiss(Wire, frozen=True):
    """The host must end its engine and itself, and not connect again. is_error: the server cannot use the host."""

    why: str
    is_error: bool = False


# ---- server <-> preflight ------------------------------------------------------------------------------------------


class Check(Wire, frozen=True):
    """Try to compile a constraint in the preflight process. owner: the client's number, for fair queueing. is_loose:
    leave out all costly keywords of a JSON Schema that the client checks (ConstraintSpec.is_checked)."""

    id: int
    spec: ConstraintSpec
    owner: int = 0
    is_loose: bool = False


class CheckResult(Wire, frozen=True):
    """The outcome of a Check: the spec for the engine, or an error of errors.py (code not empty). id -1: the preflight
    process is ready."""

    id: int
    spec: ConstraintSpec | None = None
    code: str = ""
    message: str = ""


ClientMessage = Hello | Submit | Define | Undefine | Cancel | Acknowledge | Ask | Ping
ServerMessage = Welcome | Delta | Called | Value | Failed | Answer | Pong
SlicedMessage = Hello | SlicedSubmit | SlicedDefine | Undefine | Cancel | Acknowledge | Ask | Ping
EngineCommand = (
    Run | Abort | ProgramEnded | Hold | Release | EvictFirst | Ask | SetVocabulary | Listen | Ping | ImagePixels
    | Export | Pull | EndPull
)  # fmt: skip
EngineReport = (
    Ready | Step | TreeEvents | Failed | Answer | EnginePong | Notice | WantImages | Exported | Pulled | OtherWork
)  # fmt: skip

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoders raise on invalid bytes. Invalid UTF-8 is a ValueError, deep nesting a RecursionError."""

encode = msgspec.msgpack.Encoder().encode
decode_server = msgspec.msgpack.Decoder(ServerMessage).decode
"""The decoder of a client. decoders.py has all others."""
