"""A program: a decorated function whose first parameter is the state that it writes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self, overload

from msgspec import structs

from banyan.async_state import AsyncState
from banyan.backends.base import Backend
from banyan.backends.default import find
from banyan.batch import Batch
from banyan.running import P, Run, aside, finished, finished_on_thread
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.sampling import LATER, RUN_OPTIONS, Options, make, near, refuse
from banyan.state import State

OPTS = "opts"
"""The one keyword of `run` that no program can have as a parameter."""


class Program:
    """What `@function` makes of a function. `run` runs it on a new state; so does a call.

    The body runs once, for real, in the caller's thread, and `run` returns when the body does: what it generates may
    still be on its way, and is waited for where it is read.
    """

    def __init__(self, func: Callable[..., Any], bound: Mapping[str, Any] | None = None) -> None:
        self.func = func
        self.name: str = getattr(func, "__name__", type(func).__name__)
        self._bound = dict(bound or {})
        _state, *rest = inspect.signature(func).parameters.values()
        self._signature = inspect.Signature(rest)
        self._parameters = frozenset(p.name for p in rest if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in rest)
        functools.update_wrapper(self, func)

    is_async = False
    """Whether the body is an `async def`."""

    def __repr__(self) -> str:
        return f"<program {self.name}>"

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """A program that is a method: its state is the parameter after `self`."""
        return self if instance is None else type(self)(self.func.__get__(instance, owner), self._bound)

    def bind(self, **arguments: Any) -> Self:
        """The same program with some arguments given. Those given later, to `run` or to another `bind`, win."""
        if not self._takes_any:
            for name in arguments:
                if name not in self._parameters:
                    raise TypeError(f"{self.name} has no parameter {name!r}{near(name, self._parameters)}")
        return type(self)(self.func, {**self._bound, **arguments})

    def run(self, *args: Any, opts: Options | None = None, **kwargs: Any) -> State:
        """Run the body with these arguments. What it raises is raised here, and what it started is stopped.

        Keyword arguments that are parameters of the program go to it. The others are options of the run, which all its
        gens share: max_new_tokens=128, temperature=1.0 and the other fields of Options, also `stream=True` and
        `backend=`. They can be given as `opts=Options(...)` as well.
        """
        self._refuse_to_block("run")
        own, options = self._sort(kwargs, opts)
        arguments = self._arrange(args, own)
        run = self._begin(State, arguments, find(options.backend), options)
        if options.stream:
            return aside(run)
        run.play()
        return run.state

    __call__ = run

    async def run_async(self, *args: Any, opts: Options | None = None, **kwargs: Any) -> AsyncState:
        """`run` on an event loop, which it never holds up. Returns when all that the program does is done.

        The body of an `async def` runs in the task that awaits this, that of a `def` on one of a bounded number of
        threads. Raises what the body raised, or the first error of what it appended. Who cancels the task, also by
        `asyncio.timeout` or Ctrl-C, stops the program on the server. With `stream=True`, gens can be read as they come.
        """
        own, options = self._sort(kwargs, opts)
        arguments = self._arrange(args, own)
        if self.is_async:
            return await finished(self._begin(AsyncState, arguments, find(options.backend), options))
        return await finished_on_thread(self._begin(State, arguments, find(options.backend), options))

    @overload
    def run_batch(
        self,
        batch_kwargs: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[False] = False,
        on_error: Literal["raise", "return"] = "raise",
        opts: Options | None = None,
        **kwargs: Any,
    ) -> list[State]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[True],
        on_error: Literal["raise", "return"] = "raise",
        opts: Options | None = None,
        **kwargs: Any,
    ) -> Iterator[State]: ...
    def run_batch(
        self,
        batch_kwargs: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        on_error: Literal["raise", "return"] = "raise",
        opts: Options | None = None,
        **kwargs: Any,
    ) -> list[State] | Iterator[State]:
        """Run the body once for each item: a dict of arguments, or a tuple of them in the order of the parameters.

        Gives the states in the order of the items, each one finished; with `generator_style`, an iterator that gives
        each as soon as it and all before it are finished. Bodies run on `num_threads` threads ("auto": one per item, at
        most 64), and at most 256 programs are on their way at once. Other keywords are options, as for `run`.

        on_error: "raise" lets all items finish and then raises a BatchError, which holds the results of all the others
        too (an iterator raises the item's own error when it comes to it, and stops the rest). "return" gives the state
        of an item that failed like any other: its `error()` says what happened.
        """
        self._refuse_to_block("run_batch")
        if on_error not in ("raise", "return"):
            raise BadProgram(f"on_error is {on_error!r}; it must be 'raise' or 'return'")
        if num_threads != "auto" and num_threads < 1:
            raise BadProgram(f"num_threads is {num_threads}; it must be at least 1, or 'auto'")
        asked = {name: value for name, value in kwargs.items() if name in RUN_OPTIONS or name in LATER}
        if unknown := kwargs.keys() - asked.keys():
            name = unknown.pop()
            raise TypeError(f"run_batch has no option {name!r}{near(name, RUN_OPTIONS)}")
        options = _options(asked, opts)
        if options.stream:
            raise Unsupported("stream: a batch gives finished states; use generator_style=True, or run(stream=True)")
        arguments = [self._arrange_item(i, item) for i, item in enumerate(batch_kwargs)]
        backend = find(options.backend)
        batch = Batch(
            len(arguments),
            start=lambda i: self._begin(State, arguments[i], backend, options, i),
            n_threads=min(64, len(arguments)) if num_threads == "auto" else num_threads,
            title=self.name if progress_bar else None,
        )
        return batch.results(on_error) if generator_style else batch.all(on_error)

    # ---- arguments -------------------------------------------------------------------------------------------------

    def _sort(self, kwargs: dict[str, Any], opts: Options | None) -> tuple[dict[str, Any], Options]:
        """Keywords of `run` into arguments and options. A name that could be both is the program's."""
        own, asked = {}, {}
        for name, value in kwargs.items():
            if name in self._parameters:
                own[name] = value
            elif name in RUN_OPTIONS or name in LATER:
                asked[name] = value
            elif self._takes_any:
                own[name] = value
            else:
                hint = near(name, [*self._parameters, *RUN_OPTIONS])
                raise TypeError(f"{self.name} has no parameter {name!r}, and run no such option{hint}")
        return own, _options(asked, opts)

    def _arrange(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """The body's arguments, but for the state; what `bind` gave fills the gaps. TypeError if they do not fit."""
        try:
            if self._bound:
                given = self._signature.bind_partial(*args, **kwargs).arguments
                kwargs = {name: value for name, value in self._bound.items() if name not in given} | dict(kwargs)
            return self._signature.bind(*args, **kwargs)
        except TypeError as e:
            raise TypeError(f"program {self.name}: {e}") from None

    def _arrange_item(self, i: int, item: Mapping[str, Any] | Sequence[Any]) -> inspect.BoundArguments:
        try:
            if isinstance(item, Mapping):
                return self._arrange((), item)
            if isinstance(item, tuple | list):
                return self._arrange(item, {})
        except TypeError as e:
            raise TypeError(f"item {i} of the batch: {e}") from None
        raise TypeError(f"item {i} of the batch is a {type(item).__name__}; it must be a dict or a tuple of arguments")

    def _begin(
        self, kind: type[P], arguments: inspect.BoundArguments, backend: Backend, options: Options, *path: int
    ) -> Run[P]:
        body = partial(_call, self.func, arguments.args, arguments.kwargs)
        return Run(self.name, body, backend, options, kind, *path)

    def _refuse_to_block(self, name: str) -> None:
        """For programs whose bodies need an event loop."""


class AsyncProgram(Program):
    """What `@function` makes of an `async def`: it runs on the event loop that awaits it. A call is `run_async`."""

    __call__ = Program.run_async  # type: ignore[assignment]  # awaited, as a call of any `async def` is

    is_async = True

    def _refuse_to_block(self, name: str) -> None:
        raise BadProgram(
            f"{self.name} is an `async def`, which runs on an event loop: write `await {self.name}.{name}_async(...)`, "
            f"or, where there is no loop, `asyncio.run({self.name}.{name}_async(...))`"
        )


def _call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], state: Any) -> Any:
    return func(state, *args, **kwargs)


def _options(asked: dict[str, Any], opts: Options | None) -> Options:
    if not asked and opts is None:
        return _NONE
    refuse(asked)
    if not isinstance(opts, Options | None):
        raise TypeError(f"opts is a {type(opts).__name__}; it must be bn.Options(...)")
    named = {RUN_OPTIONS[name]: value for name, value in asked.items() if value is not None}
    return make(Options, {**(structs.asdict(opts) if opts else {}), **named})


_NONE = Options()


@overload
def function(func: Callable[..., Coroutine[Any, Any, Any]], num_api_spec_tokens: None = None) -> AsyncProgram: ...
@overload
def function(func: Callable[..., Any], num_api_spec_tokens: None = None) -> Program: ...
@overload
def function(func: None = None, num_api_spec_tokens: None = None) -> Callable[[Callable[..., Any]], Program]: ...
def function(
    func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function, with or without parentheses. Its first parameter, of any name, is the state.

    An `async def` makes an AsyncProgram, whose state is an AsyncState.

    BadProgram: a function without parameters, a generator, or one with a parameter called "opts".
    Unsupported: num_api_spec_tokens.
    """
    if num_api_spec_tokens is not None:
        raise Unsupported("num_api_spec_tokens: nothing here guesses ahead over an API; leave it out")
    return function if func is None else _checked(func)


def _checked(func: Callable[..., Any]) -> Program:
    parameters = list(inspect.signature(func).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise BadProgram(f"the first parameter of a program is its state, and {func.__name__} has none")
    if any(p.name == OPTS for p in parameters):
        raise BadProgram(f"no parameter of a program can be called {OPTS!r}: that is how `run` takes its options")
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise BadProgram(f"{func.__name__} holds a `yield`; a program writes its state, and returns what it has to say")
    return AsyncProgram(func) if inspect.iscoroutinefunction(func) else Program(func)
