"""Options of gens and of runs, and how they are merged into one `wire.Sampling`."""

from __future__ import annotations

import difflib
import hashlib
import json
from functools import lru_cache
from math import inf
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from banyan.lang.fstring import check_option, check_unicode, shown
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_COUNT, MAX_NUMBER, MAX_PRIORITY, MAX_TEMPLATE_KWARGS

Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]

MAX_RETRIES = 100
"""The upper bound of `retries`. A model that fails so often cannot write the type."""


class GenOptions(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    forbid_unknown_fields=True,
    cache_hash=True,
):
    """Options of one gen. An option that is None has the value given for the run; if that is None too, the default.

    The generation_config.json of a model may set other defaults for temperature, top_p, top_k, min_p and
    repetition_penalty; `banyan models` lists these.
    """

    max_tokens: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    """The largest number of output tokens. With 0, only the KV of the prompt is computed."""
    max_new_tokens: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    """The largest number of output tokens: another name of max_tokens. The struct keeps the value as max_tokens."""
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    """The smallest number of output tokens. Until then, no end-of-sequence token or stop token is drawn, and no stop
    string or stop_regex ends the output."""
    n: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None = None
    """Number of samples. With more than one, the variable is a list, and the prompt continues with the first sample."""
    stop: wire.Stop | wire.Stops | None = None
    """The output ends before the first of these strings, even if it begins inside a token. At most 64 strings of 4,096
    characters in all."""
    stop_token_ids: wire.StopIds | None = None
    """The output ends at the first of these token ids, as at an end-of-sequence token. At most 1,024 ids."""
    stop_regex: wire.Stop | wire.Stops | None = None
    """The output ends after the first match of one of these patterns (RE2's syntax). Unlike a stop string, the match is
    kept. A match has at most 4,096 characters."""
    temperature: Annotated[float, Meta(ge=0.0)] | None = None
    """The logits are divided by this number, 0 or more. With 0, the most likely token is taken."""
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    """A probability, above 0 to 1: draw from the fewest most likely tokens whose probabilities add up to this."""
    top_k: Annotated[int, Meta(ge=-1, le=MAX_COUNT)] | None = None
    """Draw from this number of most likely tokens; -1: from all."""
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    """A share, 0 to 1: draw from the tokens that have at least this share of the most likely token's probability."""
    frequency_penalty: Penalty | None = None
    """-2 to 2: subtracted from a token's logit once for each time that the output contains the token."""
    presence_penalty: Penalty | None = None
    """-2 to 2: subtracted from a token's logit if the output contains the token."""
    repetition_penalty: Annotated[float, Meta(gt=0.0)] | None = None
    """A factor above 0. Above 1, tokens that the prompt or the output contains become less likely; 1 is off."""
    logit_bias: wire.LogitBias | None = None
    """Token id -> value added to its logit."""
    ignore_eos: bool | None = None
    """Whether the output continues after an end-of-sequence token."""
    seed: wire.Seed | None = None
    """A 64-bit integer; without one, the server chooses. For a gen: its own seed. For a run: each gen, and each program
    that its body calls without a seed, gets its own seed, which is derived from this one."""
    return_logprob: bool | None = None
    """Include the log-probability of each output token in the meta info. With False, the meta info has no
    log-probabilities at all."""
    logprob_start_len: Annotated[int, Meta(ge=-1, le=MAX_COUNT)] | None = None
    """Include the log-probabilities of the prompt tokens starting at this position, in tokens (-1: none). Implies
    return_logprob."""
    top_logprobs_num: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    """Number of alternatives for each output token in the meta info. Implies return_logprob, unless that is False."""
    return_text_in_logprobs: bool | None = None
    """Include the text of each token with its log-probability."""
    adapter: wire.Name | None = None
    """The name of the runtime's adapter (LoRA) for the prompt and the output; "": the model without an adapter."""
    chat_template_kwargs: dict[str, Any] | str | None = None
    """Variables for the model's chat template, such as {"enable_thinking": False}: a dict of JSON values, or its JSON
    text, of at most 16,384 characters. The whole conversation is rendered with them. A template ignores variables
    that it does not read."""
    timeout: Annotated[float, Meta(gt=0.0)] | None = None
    """Seconds after which an unfinished value raises DeadlineExceeded. For a gen: counted from the time when all values
    before it are done. For a run: counted from its start, for its body, its gens and the programs that it calls."""
    budget: Annotated[int, Meta(ge=1, le=MAX_NUMBER)] | None = None
    """Tokens that may be generated, summed over all samples; the next token raises BudgetExceeded. For a run:
    summed over all its gens, and those of the programs that it calls."""
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    """-100 to 100. Of two waiting gens, also of different programs, the one with the higher priority runs first."""
    deadline: Annotated[float, Meta(gt=0.0)] | None = None
    """Seconds until the gen should be done. Of two waiting gens with equal priority, the one with the earlier deadline
    runs first. A late gen is not stopped, unlike with `timeout`. For a gen: counted from the time when all values
    before it are done. For a run or batch: counted from its start, for all its gens."""

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None:
            if self.max_tokens is not None:
                raise ValueError("max_tokens and max_new_tokens are the same; give one of them")
            msgspec.structs.force_setattr(self, "max_tokens", self.max_new_tokens)
            msgspec.structs.force_setattr(self, "max_new_tokens", None)
        for name in ("temperature", "repetition_penalty", "deadline"):
            if getattr(self, name) == inf:
                raise ValueError(f"{name} is inf; it must be finite")
        if self.top_k == 0:
            raise ValueError("top_k is 0, which leaves no token to draw; -1 means all of them")
        for name in ("stop", "stop_regex"):
            if (given := getattr(self, name)) is not None:
                stops = (given,) if isinstance(given, str) else tuple(given)
                if "" in stops:
                    raise ValueError(f"{name} holds an empty string, which would end every output at once")
                for stop in stops:
                    check_unicode(stop)
                    check_option(name, stop)
                msgspec.structs.force_setattr(self, name, stops)
        if isinstance(self.chat_template_kwargs, dict):
            msgspec.structs.force_setattr(self, "chat_template_kwargs", _as_json(self.chat_template_kwargs))
        kwargs: Any = self.chat_template_kwargs or ""  # never a dict by now
        if len(kwargs) > MAX_TEMPLATE_KWARGS:
            raise ValueError(f"chat_template_kwargs has more than {MAX_TEMPLATE_KWARGS} characters as JSON")
        check_option("chat_template_kwargs", kwargs)
        check_option("adapter", self.adapter or "")

    def over(self, base: wire.Sampling) -> wire.Sampling:
        """Returns a copy of `base` with the options of this object that are not None. `seed` is not copied. BadProgram:
        min_tokens is more than max_tokens."""
        is_cacheable = type(self) is GenOptions and self.logit_bias is None  # hashable, and references no backend
        changes = _changes(self) if is_cacheable else _changes.__wrapped__(self)
        if not changes:
            return base
        merged = msgspec.structs.replace(base, **changes)
        if merged.min_tokens > merged.max_tokens:
            raise BadProgram(f"min_tokens is {merged.min_tokens}, more than max_tokens, which is {merged.max_tokens}")
        if not merged.logprobs and (merged.top_logprobs > 0 or merged.logprob_start >= 0):
            if self.return_logprob is False:
                return msgspec.structs.replace(merged, top_logprobs=0, logprob_start=-1)
            return msgspec.structs.replace(merged, logprobs=True)
        return merged


class Options(GenOptions, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Options of a whole run: `prog.run(x, opts=Options(temperature=0))` is `prog.run(x, temperature=0)`.

    Options are needed for a program that has a parameter with the name of an option, such as `n`: `run(n=2)` sets the
    parameter, `run(opts=Options(n=2))` the option.

    temperature, top_p, top_k, min_p and repetition_penalty default to the values in the model's generation_config.json.
    The defaults below apply if it has none, or if the server runs with `sampling_defaults="openai"`.
    """

    retries: Annotated[int, Meta(ge=0, le=MAX_RETRIES)] | None = None
    """Number of further tries after a text that is not a valid object, for gens with a type but no `retries` of their
    own."""
    stream: bool | None = None
    """Whether to run the body on another thread and return immediately; `text_iter` reads the text while it grows."""
    durable: bool | str | None = None
    """If the server is killed, wait up to two minutes for its restart, and continue with the tokens so far. With a
    name: if this process ends, another process that runs the same program under that name continues the run. Only on a
    server of `banyan serve`, and not with `stream`."""
    use_thread: bool | None = None
    """False: `run` waits for all gens and raises the first error. (SGLang's name; states have no threads here.)"""
    backend: Any = None
    """The backend that runs the program. Default: the backend of the calling program, or the one given to
    `set_default_backend`."""

    def __post_init__(self) -> None:
        GenOptions.__post_init__(self)
        if self.stream and self.durable:
            raise Unsupported("durable: streamed text may be repeated after a restart; leave out stream=True")
        if self.stream and self.use_thread is False:
            raise Unsupported("use_thread=False waits for the end, and stream=True returns at once; give one of them")


def _as_json(kwargs: dict[str, Any]) -> str:
    try:
        text = json.dumps(kwargs, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"chat_template_kwargs must hold JSON values: {e}") from None
    check_unicode(text)
    return text


@lru_cache(1024)
def _changes(options: GenOptions) -> dict[str, Any]:
    """Returns the options that are not None, by their names in wire.Sampling."""
    values = zip(_SAMPLING_FIELDS, _get_options(options), strict=True)
    return {name: value for name, value in values if value is not None}


RENAMED = {"return_logprob": "logprobs", "top_logprobs_num": "top_logprobs", "logprob_start_len": "logprob_start"}
"""Option of a gen -> its field in wire.Sampling, where the two names differ."""
_OPTION_FIELDS = [
    name
    for name in GenOptions.__struct_fields__
    if RENAMED.get(name, name) in wire.Sampling.__struct_fields__ and name != "seed"
]
_SAMPLING_FIELDS = [RENAMED.get(name, name) for name in _OPTION_FIELDS]
_get_options = attrgetter(*_OPTION_FIELDS)

RUN_OPTIONS = frozenset(Options.__struct_fields__)
"""The names of the options of `run`."""

_COUNTS = frozenset(
    ("max_tokens", "max_new_tokens", "min_tokens", "n", "top_k", "logprob_start_len", "top_logprobs_num", "budget")
)
"""Options that may also be given as floats without a fraction, such as the result of a division: 16.0 is 16."""

T = TypeVar("T", bound=GenOptions)


def make(kind: type[T], asked: dict[str, Any]) -> T:
    """Create options of class `kind` from a dict. BadProgram: an option is invalid; the message names the option."""
    whole = {
        name: int(value)
        for name, value in asked.items()
        if isinstance(value, float) and value.is_integer() and name in _COUNTS
    }
    asked = asked | whole if whole else asked
    try:
        return msgspec.convert(asked, kind)
    except msgspec.ValidationError as e:
        why, _, name = str(e).rstrip("`").partition(" - at `$.")
        name = name.partition("[")[0]  # for an item of a list, name the list
        given = f" {name}={shown(asked[name], 80)}" if name in asked else ""
        raise BadProgram(f"bad option{given}: {why[:1].lower() + why[1:]}") from None


def near(name: str, names: Any) -> str:
    """The end of an error message, which suggests the option that was probably meant; "" if none is similar."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def mix(seed: int | None, *path: int) -> int | None:
    """Derive a seed from `seed` and `path`. Different paths give different seeds. If `seed` is None, returns None."""
    if seed is None:
        return None
    digest = hashlib.blake2b(repr((seed, path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # 63 bits: a seed must fit a signed int64
