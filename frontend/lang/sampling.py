"""What a gen may ask for, and how its wishes and those of the whole run become one `wire.Sampling`."""

from __future__ import annotations

import difflib
import hashlib
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.protocol import wire

Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]


MAX_RETRIES = 100
"""Of a gen: beyond that, its type is one that the model does not write."""


class GenOptions(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, cache_hash=True
):
    """Options of one gen. None: as the run says; where that says nothing either, the default of `wire.Sampling`."""

    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    """Most tokens of output (128). 0 is legal: it only asks what would come."""
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    """Samples (1). With more, the variable is a list, and the prompt goes on with the first."""
    stop: str | tuple[str, ...] | None = None
    """The output ends before the first of these strings, wherever it begins inside a token."""
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: str | tuple[str, ...] | None = None
    """The output ends as soon as one of these patterns (RE2's syntax) matches, behind the match: unlike a stop string,
    what matched stays. A match is 4,096 characters long at most."""
    temperature: Annotated[float, Meta(ge=0.0)] | None = None
    """1.0; 0 is greedy."""
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    """-1: all of them."""
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0)] | None = None
    """Over prompt and output; 1.0 is off."""
    logit_bias: dict[int, float] | None = None
    """Token id -> what is added to its logit."""
    ignore_eos: bool | None = None
    seed: int | None = None
    """On a gen: the seed, as it is. On a run: where the seeds of all its gens come from, a different one for each."""
    return_logprob: bool | None = None
    """Put the log-probability of each output token into the meta info."""
    logprob_start_len: Annotated[int, Meta(ge=-1)] | None = None
    """Put those of the prompt's tokens from this one on into the meta info too (-1: none); needs return_logprob."""
    top_logprobs_num: Annotated[int, Meta(ge=0)] | None = None
    """How many alternatives at each output token; needs return_logprob."""
    return_text_in_logprobs: bool | None = None
    """Put each token's text beside its log-probability."""
    timeout: Annotated[float, Meta(gt=0.0)] | None = None
    """Seconds after which what is not finished raises DeadlineExceeded. On a gen: from its turn on. On a run: from its
    start on, for its body and all that it generates."""
    budget: Annotated[int, Meta(ge=1)] | None = None
    """Tokens that may be generated, over all samples; one more raises BudgetExceeded. On a run: by all its gens."""
    priority: Annotated[int, Meta(ge=-wire.MAX_PRIORITY, le=wire.MAX_PRIORITY)] | None = None
    """-100 to 100 (0): of two gens that wait to be computed, also of other programs, the higher goes first."""
    deadline: Annotated[float, Meta(gt=0.0)] | None = None
    """Seconds; of equal priority, the gen whose deadline comes first goes first. One that is late goes on: that is what
    differs from `timeout`. On a gen: from its turn on. On a run or a batch: from its start on, for all its gens."""

    def __post_init__(self) -> None:
        if self.top_k == 0:
            raise ValueError("top_k is 0, which leaves no token to draw; -1 means all of them")
        for name in ("stop", "stop_regex"):
            if (given := getattr(self, name)) is not None:
                stops = (given,) if isinstance(given, str) else tuple(given)
                if "" in stops:
                    raise ValueError(f"{name} holds an empty string, which would end every output at once")
                msgspec.structs.force_setattr(self, name, stops)

    def over(self, base: wire.Sampling) -> wire.Sampling:
        """`base`, with what is set here in its place. Does not look at `seed`: see `mix`."""
        is_plain = type(self) is GenOptions and self.logit_bias is None  # hashable, and holds on to nothing
        changes = _changes(self) if is_plain else _changes.__wrapped__(self)
        if not changes:
            return base
        merged = msgspec.structs.replace(base, **changes)
        if merged.min_tokens > merged.max_tokens:
            raise BadProgram(f"min_tokens is {merged.min_tokens}, more than max_tokens, which is {merged.max_tokens}")
        if merged.top_logprobs > 0 or merged.logprob_start >= 0:
            merged = _checked_logprobs(merged)
        return merged


class Options(GenOptions, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Options of a whole run: `prog.run(x, opts=Options(temperature=0))` is `prog.run(x, temperature=0)`.

    It is the way that always works: a program whose own parameter is called `n` or `stop` gets that argument itself.
    """

    retries: Annotated[int, Meta(ge=0, le=MAX_RETRIES)] | None = None
    """Those of gens that have a type and no `retries` of their own (0)."""
    stream: bool = False
    """Run the body on a thread of its own and return at once; read with `text_iter`."""
    durable: bool | str = False
    """Wait for a server that was killed to come back, up to two minutes, and go on there with the tokens that it had.
    A name, too: a process that runs the same program again by it goes on where another was. Not with `stream`, and
    only on a server of `banyan serve`."""
    use_thread: bool = True
    """False: `run` returns when all is done, and raises the first error. (SGLang's; no state has a thread here.)"""
    backend: Any = None
    """Where to run; default: that of the program which calls, or the one that `set_default_backend` was given."""

    def __post_init__(self) -> None:
        GenOptions.__post_init__(self)
        if self.stream and self.durable:
            raise Unsupported("durable: text that streams may come a second time; leave out stream=True")
        if self.stream and not self.use_thread:
            raise Unsupported("use_thread=False waits for the end, and stream=True returns at once; give one of them")


def _checked_logprobs(merged: wire.Sampling) -> wire.Sampling:
    wants = {"top_logprobs_num": merged.top_logprobs > 0, "logprob_start_len": merged.logprob_start >= 0}
    if not merged.logprobs:
        raise BadProgram(f"{' and '.join(name for name in wants if wants[name])} needs return_logprob=True")
    return merged


@lru_cache(1024)
def _changes(options: GenOptions) -> dict[str, Any]:
    """What is set in `options`, by the names of Sampling."""
    return {name: value for name, value in zip(_THERE, _wishes(options), strict=True) if value is not None}


_SAME = {
    "return_logprob": "logprobs",
    "top_logprobs_num": "top_logprobs",
    "logprob_start_len": "logprob_start",
}
_HERE = [
    name
    for name in GenOptions.__struct_fields__
    if _SAME.get(name, name) in wire.Sampling.__struct_fields__ and name != "seed"
]
_THERE = [_SAME.get(name, name) for name in _HERE]
_wishes = attrgetter(*_HERE)

RUN_OPTIONS = {("max_new_tokens" if name == "max_tokens" else name): name for name in Options.__struct_fields__}
"""Keyword of `run` -> field of Options."""

T = TypeVar("T", bound=GenOptions)


def make(kind: type[T], asked: dict[str, Any]) -> T:
    """A checked `kind` from what was asked; BadProgram names the value that cannot be."""
    try:
        return msgspec.convert(asked, kind)
    except msgspec.ValidationError as e:
        why, _, name = str(e).rstrip("`").partition(" - at `$.")
        name = name.partition("[")[0]  # of a list, the list
        given = f" {name}={asked[name]!r:.80}" if name in asked else ""
        raise BadProgram(f"bad option{given}: {why[:1].lower() + why[1:]}") from None


def near(name: str, names: Any) -> str:
    """A hint at the name that was probably meant, or ""."""
    if name == "max_tokens":
        return "; for a whole run it is called 'max_new_tokens'"
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def mix(seed: int | None, *path: int) -> int | None:
    """The seed at `path` below `seed`: the same every time, and unlike that of any other path. None stays None."""
    if seed is None:
        return None
    digest = hashlib.blake2b(repr((seed, path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # 63 bits: a seed is a signed int64 wherever it goes
