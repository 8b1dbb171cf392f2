"""Prompts that are whole texts, as `Runtime.generate` and `Engine.generate` take them: no program, no turns."""

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

_CALLED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
"""Sampling parameter -> what `gen` calls it."""
_FIXED = {"skip_special_tokens": True, "spaces_between_special_tokens": True, "no_stop_trim": False}


class Completion:
    """What the model writes behind one prompt, which is taken as it is: its control tokens are meant."""

    def __init__(self, backend: Backend, prompt: str, params: Mapping[str, Any], stream: bool = False) -> None:
        """params: sampling parameters by SGLang's names or by those of `gen`. BadProgram, Unsupported: what cannot be
        asked for."""
        if not isinstance(prompt, str):
            raise BadProgram(f"a prompt is text, not {type(prompt).__name__}; ids are for the server to find")
        made = _gen(params)
        sampling = made.sampling(wire.Sampling())
        if made.options.seed is not None:
            sampling = replace(sampling, seed=made.options.seed)
        self._with_text = bool(made.options.return_text_in_logprobs)
        self._program = backend.program("generate")
        self._future = self._program.future(0)
        self.pieces: Feed[str] = Feed()
        """The text as it comes, of one that streams."""
        if stream:
            put = self.pieces.put  # not ourselves: who is not held any more ends
            self._program.on_delta(0, lambda delta: put(delta.text))
            self._future.add_done_callback(lambda _: self.pieces.close())
        self._program.submit([wire.Append(0, (wire.Raw(prompt),)), wire.Gen(0, 0, sampling, stream)])

    def __del__(self) -> None:
        if (program := getattr(self, "_program", None)) is not None:
            program.cancel()

    def results(self) -> list[dict[str, Any]]:
        """A text and its meta info for each sample. Waits."""
        value = self._future.result()
        return [
            {"text": sample.text, "meta_info": meta_of_sample(k, sample, value, self._with_text)}
            for k, sample in enumerate(value.samples)
        ]

    def growing(self) -> Iterator[dict[str, Any]]:
        """The text so far, again and again; its meta info is {} but for the last."""
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
    """One result of one prompt, or a list of all. params: of all prompts, or one for each. options: of `gen`."""
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    each = list(params) if isinstance(params, list | tuple) else [params] * len(prompts)
    if len(each) != len(prompts):
        raise BadProgram(f"{len(each)} sampling parameters came for {len(prompts)} prompts; give one, or one for each")
    given = {name: value for name, value in options.items() if value is not None}
    pairs: Iterator[tuple[str, Any]] = zip(prompts, each, strict=True)
    running = [Completion(backend, text, {**(one or {}), **given}) for text, one in pairs]
    made = [result for completion in running for result in completion.results()]
    return made[0] if isinstance(prompt, str) and len(made) == 1 else made


def _gen(params: Mapping[str, Any]) -> GenExpr:
    asked = {_CALLED.get(name, name): value for name, value in params.items() if name not in _FIXED}
    for name in _FIXED.keys() & params.keys():
        if params[name] != _FIXED[name]:
            raise Unsupported(f"{name}={params[name]!r}: it is always {_FIXED[name]} here; leave it out")
    if "ebnf" in asked:
        raise Unsupported("ebnf: write the grammar in Lark's notation, as grammar=")
    try:
        made = gen(**asked)
    except TypeError as e:
        raise BadProgram(f"sampling_params: {e}") from e
    if not isinstance(made, GenExpr) or made.tools is not None or made.retries or made.name is not None:
        raise BadProgram("sampling_params: choices, tools, retries and names are of programs; write one")
    return made
