"""Raw completions for `Runtime.generate` and `Engine.generate`: a prompt is a whole text, without programs or turns."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from banyan.backends.base import Backend
from banyan.execution.program_record import ProgramRecord
from banyan.lang.expr import GenExpr, gen, raw
from banyan.lang.sampling import Options
from banyan.lang.state import State
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.views.transcript import Transcript

_RENAMED = {"ebnf": "grammar", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
"""SGLang's sampling parameter -> the parameter of `gen`."""
_FIXED = {"skip_special_tokens": True, "spaces_between_special_tokens": True, "no_stop_trim": False}


def start(backend: Backend, prompt: str, params: Mapping[str, Any], stream: bool = False) -> State:
    """Start the completion of one prompt. Returns a state whose variable "text" is the completion. Control tokens in
    the prompt, such as <|im_end|>, are recognised as such.

    params: sampling parameters, with SGLang's names or those of `gen`. BadProgram, Unsupported: a parameter is bad.
    """
    if not isinstance(prompt, str):
        raise BadProgram(f"a prompt is text, not {type(prompt).__name__}; the server tokenizes it")
    expr = replace(_gen(params), name="text")
    record = ProgramRecord("generate", backend, Options(stream=stream))
    state = State(record, record.new_handle(), None, Transcript())
    state += raw(prompt) + expr
    record.flush()
    record.end()
    return state


def results(state: State) -> list[dict[str, Any]]:
    """Wait for a completion. Returns the text and meta info of each sample."""
    texts, metas = state["text"], state.get_meta_info("text")
    pairs = [(texts, metas)] if isinstance(texts, str) else zip(texts, metas, strict=True)
    return [{"text": text, "meta_info": meta} for text, meta in pairs]


def start_stream(
    backend: Backend,
    prompt: Any,
    params: Any,
    lora_path: str | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
) -> State:
    """Start a streaming completion of one prompt. Returns a state for `growing` or `growing_async`. Unsupported: the
    arguments ask for several prompts, several samples, or logprobs."""
    has_logprobs = return_logprob or top_logprobs_num or logprob_start_len not in (None, -1)
    is_single = (
        isinstance(prompt, str) and isinstance(params, Mapping | None) and (params or {}).get("n", 1) in (None, 1)
    )
    if not is_single or has_logprobs:
        raise Unsupported("stream=True needs a single prompt, n=1, and no logprobs; for more, write a program")
    return start(backend, prompt, {**(params or {}), **({} if lora_path is None else {"adapter": lora_path})}, True)


def growing(state: State) -> Iterator[dict[str, Any]]:
    """Yields the whole text so far, as a dict with `text` and `meta_info`, whenever new text arrives. Only the last
    dict has meta info."""
    text = ""
    for piece in state.text_iter("text"):
        text += piece
        yield {"text": text, "meta_info": {}}
    yield results(state)[0]


async def growing_async(state: State) -> AsyncIterator[dict[str, Any]]:
    """For an event loop: yields the whole text so far, as a dict with `text` and `meta_info`, whenever new text
    arrives. Only the last dict has meta info."""
    text = ""
    async for piece in state.text_async_iter("text"):
        text += piece
        yield {"text": text, "meta_info": {}}
    yield results(state)[0]  # known by now


def complete(
    backend: Backend,
    prompt: str | Sequence[str],
    params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    **options: Any,
) -> dict[str, Any] | list[dict[str, Any]]:
    """The result of one prompt, or a list of results for several prompts. params: sampling parameters for all prompts,
    or a list with those of each prompt. options: further options of `gen`."""
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    each: list[Any] = list(params) if isinstance(params, list | tuple) else [params] * len(prompts)
    if len(each) != len(prompts):
        raise BadProgram(
            f"there are {len(each)} sampling parameters for {len(prompts)} prompts; give one for all, or one for each"
        )
    if wrong := [one for one in each if not isinstance(one, Mapping | None)]:
        raise BadProgram(f"sampling_params has {wrong[0]!r:.80}; give a dict of sampling parameters")
    given = {name: value for name, value in options.items() if value is not None}
    running = [start(backend, text, {**(one or {}), **given}) for text, one in zip(prompts, each, strict=True)]
    found = [result for state in running for result in results(state)]
    return found[0] if isinstance(prompt, str) and len(found) == 1 else found


class ScoreResult(NamedTuple):
    """scores: for each item, the probability of each label. prompt_tokens: the prompt tokens of all items together."""

    scores: list[list[float]]
    prompt_tokens: int


_FORCED = 1e4
"""A logit bias that forces a token: it exceeds the difference of any two logits. Logprobs do not include it."""


def score(
    backend: Backend,
    query: str,
    items: str | Sequence[str],
    label_token_ids: Sequence[int] | Sequence[Sequence[int]],
    apply_softmax: bool,
    item_first: bool,
) -> ScoreResult:
    """The probability that each label, a token id, is the next token after query + item.

    label_token_ids: labels for all items, or a list of labels for each item. apply_softmax: whether the probabilities
    of an item's labels are scaled to add up to 1. item_first: whether the prompt is item + query instead.
    """
    texts = [items] if isinstance(items, str) else list(items)
    labels: list[Any] = list(label_token_ids)
    each: list[Sequence[int]] = labels if labels and not isinstance(labels[0], int) else [labels] * len(texts)
    if not labels or not all(each) or len(each) != len(texts):
        raise BadProgram(
            f"score: label_token_ids has {len(each)} lists for {len(texts)} items; give one list of ids, or a list for "
            "each item, with at least one id"
        )
    params = {"max_tokens": 1, "temperature": 0, "ignore_eos": True, "return_logprob": True}
    running = [
        [
            start(backend, text + query if item_first else query + text, {**params, "logit_bias": {label: _FORCED}})
            for label in labels_of_item
        ]
        for text, labels_of_item in zip(texts, each, strict=True)
    ]
    metas = [[state.get_meta_info("text") for state in states] for states in running]
    logprobs = [[meta["output_token_logprobs"][0][0] for meta in of_item] for of_item in metas]
    # relative to the item's largest log-probability: the sum stays above 0 even if all probabilities underflow
    bases = [max(of_item) if apply_softmax else 0.0 for of_item in logprobs]
    scores = [[math.exp(one - base) for one in of_item] for of_item, base in zip(logprobs, bases, strict=True)]
    if apply_softmax:
        scores = [[one / math.fsum(of_item) for one in of_item] for of_item in scores]
    return ScoreResult(scores, sum(of_item[0]["prompt_tokens"] for of_item in metas))


def _gen(params: Mapping[str, Any]) -> GenExpr:
    renamed = {_RENAMED.get(name, name): value for name, value in params.items() if name not in _FIXED}
    for name in _FIXED.keys() & params.keys():
        if params[name] != _FIXED[name]:
            raise Unsupported(f"{name}={params[name]!r}: only {_FIXED[name]} is supported; leave it out")
    try:
        expr = gen(**renamed)
    except TypeError as e:
        raise BadProgram(f"sampling_params: {e}") from e
    if not isinstance(expr, GenExpr) or expr.tools is not None or expr.retries or expr.name is not None:
        raise BadProgram("sampling_params: choices, tools, retries and names need a program; write one")
    return expr
