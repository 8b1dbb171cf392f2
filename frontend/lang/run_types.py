"""The static types of `run` and its relatives. A type checker checks a call's arguments against the program's function,
and its options against `Options`.

A ParamSpec cannot be extended by keywords. So a call without options is checked exactly, by the first overload of
RunCall, and a call with options is accepted if one of its keywords is an option and has the right type. If
`bind(opts=...)` sets the options, calls keep the exact check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypedDict, overload

from typing_extensions import ParamSpec, TypeVar

from banyan.backends.base import Backend
from banyan.execution.batch import OnError
from banyan.lang.sampling import Options

Args = ParamSpec("Args", default=...)
"""The parameters of a program's function, without its state."""
R_co = TypeVar("R_co", covariant=True, default=Any)
"""What the body of a program returns."""
R = TypeVar("R")
Out = TypeVar("Out", covariant=True, default=Any)

Texts: TypeAlias = str | Sequence[str]


class ItemOptions(TypedDict, total=False):
    """Options that apply to each run of a batch. BatchOptions adds the options of the batch as a whole, such as timeout
    and budget."""

    max_tokens: int | None
    max_new_tokens: int | None
    min_tokens: int | None
    n: int | None
    stop: Texts | None
    stop_token_ids: Sequence[int] | None
    stop_regex: Texts | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: dict[int, float] | None
    ignore_eos: bool | None
    seed: int | None
    return_logprob: bool | None
    logprob_start_len: int | None
    top_logprobs_num: int | None
    return_text_in_logprobs: bool | None
    adapter: str | None
    chat_template_kwargs: dict[str, Any] | str | None
    priority: int | None
    retries: int | None
    durable: bool | str
    use_thread: bool
    backend: Backend | None


class BatchOptions(ItemOptions, total=False):
    """All options of `run_batch` that do not change the type of its result."""

    num_threads: int | Literal["auto"]
    concurrency: int | None
    progress_bar: bool
    on_error: OnError
    timeout: float | None
    budget: int | None
    deadline: float | None
    opts: Options | None


class RunCall(Protocol[Args, Out]):
    """A method that takes the arguments of a program and the options of a run."""

    @overload
    def __call__(self, *args: Args.args, **kwargs: Args.kwargs) -> Out: ...
    @overload
    def __call__(self, *args: Any, opts: Options | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, max_tokens: int | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, max_new_tokens: int | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, min_tokens: int | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, n: int | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, stop: Texts | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, stop_token_ids: Sequence[int] | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, stop_regex: Texts | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, temperature: float | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, top_p: float | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, top_k: int | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, min_p: float | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, frequency_penalty: float | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, presence_penalty: float | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, repetition_penalty: float | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, logit_bias: dict[int, float] | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, ignore_eos: bool | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, seed: int | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, return_logprob: bool | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, logprob_start_len: int | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, top_logprobs_num: int | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, return_text_in_logprobs: bool | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, adapter: str | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, chat_template_kwargs: dict[str, Any] | str | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, timeout: float | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, budget: int | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, priority: int | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, deadline: float | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, retries: int | None, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, stream: bool, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, durable: bool | str, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, use_thread: bool, **kwargs: Any) -> Out: ...
    @overload
    def __call__(self, *args: Any, backend: Backend | None, **kwargs: Any) -> Out: ...


class Typed(Generic[Args, R_co]):
    """Base class of programs. It tells type checkers the parameters and the return type of a program's function."""


class RunMethod(Generic[Out]):
    """The static type of a method of Program that `typed_run` decorates."""

    @overload
    def __get__(self, instance: None, owner: Any = None) -> RunMethod[Out]: ...
    @overload
    def __get__(self, instance: Typed[Args, Any], owner: Any = None) -> RunCall[Args, Out]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise NotImplementedError


def typed_run(method: Callable[..., Out]) -> RunMethod[Out]:
    """Gives a method the static type RunMethod: it takes the arguments and options of `run`. Returns `method`."""
    return method  # type: ignore[return-value]
