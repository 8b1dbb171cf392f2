"""Raw completions for `Runtime.generate` and `Engine.generate`: a prompt is a whole text, without programs or turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from banyan.backends.base import Backend
from banyan.execution.feed import Feed
from banyan.lang.expr import GenExpr, gen
from banyan.lang.meta_info import meta_of_sample
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.protocol import wire

_RENAMED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
"""SGLang's sampling parameter -> the parameter of `gen`."""
_FIXED = {"skip_special_tokens": True, "spaces_between_special_tokens": True, "no_stop_trim": False}


class Completion:
    """The completion of one prompt. Control tokens in the prompt take effect."""

    def __init__(self, backend: Backend, prompt: str, params: Mapping[str, Any], stream: bool = False) -> None:
        """params: sampling parameters, with SGLang's names or those of `gen`. BadProgram, Unsupported: a bad one."""
        if not isinstance(prompt, str):
            raise BadProgram(f"a prompt is text, not {type(prompt).__name__}; the server tokenizes it")
        expr = _gen(params)
        sampling = expr.sampling(wire.Sampling())
        if expr.options.seed is not None:
            sampling = replace(sampling, seed=expr.options.seed)
        self._with_text = bool(expr.options.return_text_in_logprobs)
        self._program = backend.program("generate")
        self._future = self._program.future(0)
        self.pieces: Feed[str] = Feed()
        """The text piece by piece, if `stream`."""
        if stream:
            put = self.pieces.put  # no reference to self, so that an unused completion is collected and cancelled
            self._program.on_delta(0, lambda delta: put(delta.text))
            self._future.add_done_callback(lambda _: self.pieces.close())
        self._program.submit([wire.Append(0, (wire.Raw(prompt),)), wire.Gen(0, 0, sampling, stream)])

    def __del__(self) -> None:
        if (program := getattr(self, "_program", None)) is not None:
            program.cancel()

    def results(self) -> list[dict[str, Any]]:
        """The text and meta info of each sample. Waits."""
        value = self._future.result()
        return [
            {"text": sample.text, "meta_info": meta_of_sample(k, sample, value, self._with_text)}
            for k, sample in enumerate(value.samples)
        ]

    def growing(self) -> Iterator[dict[str, Any]]:
        """Yields all text so far after each piece. Only the last item has meta info."""
        text = ""
        for piece in self.pieces:
            text += piece
            yield {"text": text, "meta_info": {}}
        yield self.results()[0]


def complete(
    backend: Backend,
    prompt: str | Sequence[str],
    params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    **options: Any,
) -> dict[str, Any] | list[dict[str, Any]]:
    """The result of one prompt, or a list of results for several prompts. params: sampling parameters for all prompts,
    or a list with one for each. options: further options of `gen`."""
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    each: list[Any] = list(params) if isinstance(params, list | tuple) else [params] * len(prompts)
    if len(each) != len(prompts):
        raise BadProgram(f"there are {len(each)} sampling parameters for {len(prompts)} prompts; give one, or one each")
    given = {name: value for name, value in options.items() if value is not None}
    running = [Completion(backend, text, {**(one or {}), **given}) for text, one in zip(prompts, each, strict=True)]
    results = [result for completion in running for result in completion.results()]
    return results[0] if isinstance(prompt, str) and len(results) == 1 else results


def _gen(params: Mapping[str, Any]) -> GenExpr:
    renamed = {_RENAMED.get(name, name): value for name, value in params.items() if name not in _FIXED}
    for name in _FIXED.keys() & params.keys():
        if params[name] != _FIXED[name]:
            raise Unsupported(f"{name}={params[name]!r}: only {_FIXED[name]} is supported; leave it out")
    if "ebnf" in renamed:
        raise Unsupported("ebnf is not supported; write the grammar in Lark's notation, as grammar=")
    try:
        expr = gen(**renamed)
    except TypeError as e:
        raise BadProgram(f"sampling_params: {e}") from e
    if not isinstance(expr, GenExpr) or expr.tools is not None or expr.retries or expr.name is not None:
        raise BadProgram("sampling_params: choices, tools, retries and names need a program; write one")
    return expr
