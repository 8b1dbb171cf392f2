"""A program: a decorated function whose first parameter is the state that it writes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, overload

from msgspec import structs

from banyan.backends.base import Backend
from banyan.backends.default import find
from banyan.execution.batch import BatchRun, OnError
from banyan.execution.program_run import P, ProgramRun, aside, finished, finished_on_thread
from banyan.execution.run_limits import BatchLimits
from banyan.lang.async_state import AsyncState
from banyan.lang.inline import Inlined, checked
from banyan.lang.sampling import RUN_OPTIONS, Options, make, near
from banyan.lang.state import State
from banyan.lang.state_base import StateBase
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.protocol import wire

if TYPE_CHECKING:
    from banyan.execution.async_batch import AsyncBatch
    from banyan.templates.recorder import Recording
    from banyan.templates.tracing import Trace
    from banyan.views.graph import Graph

OPTS = "opts"
"""The one keyword of `run` that no program can have as a parameter."""


class Program:
    """What `@function` makes of a function. `run` runs it on a new state; so does a call.

    The body runs once, for real, in the caller's thread, and `run` returns when the body does: what it generates may
    still be on its way, and is waited for where it is read.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        bound: Mapping[str, Any] | None = None,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        self.func, self.num_api_spec_tokens = func, num_api_spec_tokens
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
        return self if instance is None else self._with(self.func.__get__(instance, owner), self._bound)

    def bind(self, **arguments: Any) -> Self:
        """The same program with some arguments given. Those given later, to `run` or to another `bind`, win."""
        if not self._takes_any:
            for name in arguments:
                if name not in self._parameters:
                    raise TypeError(f"{self.name} has no parameter {name!r}{near(name, self._parameters)}")
        return self._with(self.func, {**self._bound, **arguments})

    def _with(self, func: Callable[..., Any], bound: Mapping[str, Any]) -> Self:
        return type(self)(func, bound, self.num_api_spec_tokens)

    def run(self, *args: Any, opts: Options | None = None, **kwargs: Any) -> State:
        """Run the body with these arguments. What it raises is raised here, and what it started is stopped.

        Keyword arguments that are parameters of the program go to it. The others are options of the run, which all its
        gens share: max_new_tokens=128, temperature=1.0 and the other fields of Options, also `stream=True` and
        `backend=`. They can be given as `opts=Options(...)` as well.
        """
        self._refuse_to_block("run")
        items = self._item(args, kwargs, opts)
        run = self._begin(State, items, 0)
        if items.options.stream:
            return aside(run)
        try:
            run.play()
            if not items.options.use_thread:
                run.state.sync()
        except BaseException:
            run.record.notice.is_given = True
            raise
        return run.state

    __call__ = run

    def inline(self, state: StateBase, /, *args: Any, **kwargs: Any) -> Any:
        """Run the body on the state of another program, as a part of that: all that it appends and names is there.

            s += summarise.inline(s, text)
            n = count.inline(s, text).ret_value

        The run's options are those of the other program's run. Gives what adds nothing when it is appended, with the
        body's `ret_value`; where this is an `async def`, `await` gives it.
        """
        checked(state, self.name)
        arguments = self._arrange(args, kwargs)
        return Inlined((), self.func(state, *arguments.args, **arguments.kwargs))

    async def run_async(self, *args: Any, opts: Options | None = None, **kwargs: Any) -> AsyncState:
        """`run` on an event loop, which it never holds up. Returns when all that the program does is done.

        The body of an `async def` runs in the task that awaits this, that of a `def` on one of a bounded number of
        threads. Raises what the body raised, or the first error of what it appended. Who cancels the task, also by
        `asyncio.timeout` or Ctrl-C, stops the program on the server. With `stream=True`, gens can be read as they come.
        """
        items = self._item(args, kwargs, opts)
        if self.is_async:
            return await finished(self._begin(AsyncState, items, 0))
        return await finished_on_thread(self._begin(State, items, 0))

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ProgramRun[Any]:
        """A run with the arguments of `run` that has not begun, and streams when it does. For `stream`."""
        items = self._item(args, kwargs, kwargs.pop("opts", None))
        items = items._replace(options=structs.replace(items.options, stream=True))
        return self._begin(AsyncState if self.is_async else State, items, 0)

    @overload
    def run_batch(
        self,
        batch_kwargs: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        concurrency: int | None = None,
        progress_bar: bool = False,
        generator_style: Literal[False] = False,
        ordered: Literal[True] = True,
        on_error: OnError = "raise",
        timeout: float | None = None,
        budget: int | None = None,
        deadline: float | None = None,
        opts: Options | None = None,
        **kwargs: Any,
    ) -> list[State]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        concurrency: int | None = None,
        progress_bar: bool = False,
        generator_style: bool = False,
        ordered: bool = True,
        on_error: OnError = "raise",
        timeout: float | None = None,
        budget: int | None = None,
        deadline: float | None = None,
        opts: Options | None = None,
        **kwargs: Any,
    ) -> list[State] | Iterator[State]: ...
    def run_batch(
        self,
        batch_kwargs: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        concurrency: int | None = None,
        progress_bar: bool = False,
        generator_style: bool = False,
        ordered: bool = True,
        on_error: OnError = "raise",
        timeout: float | None = None,
        budget: int | None = None,
        deadline: float | None = None,
        opts: Options | None = None,
        **kwargs: Any,
    ) -> list[State] | Iterator[State]:
        """Run the body once for each item: a dict of arguments, or a tuple of them in the order of the parameters.

        Gives the states in the order of the items, each one finished; with `generator_style`, an iterator that gives
        each as soon as it and all before it are finished; with `ordered=False`, one that gives each as soon as it is
        finished (`state.index` is its item). At most `concurrency` programs are on their way at once (256), and their
        bodies run on `num_threads` threads ("auto": one per item, at most 64).

        on_error: "raise" lets all items finish and then raises a BatchError, which holds the results of all the others
        too (an iterator raises the item's own error when it comes to it, and stops the rest). "return" gives the state
        of an item that failed like any other: its `error()` says what happened.

        timeout, budget: seconds and tokens of the batch; what is not finished then fails, each item for itself.
        deadline: seconds until the batch should be done (see Options). Other keywords are options of each run, as for
        `run`, and so is all that `opts` says.
        """
        self._refuse_to_block("run_batch")
        items = self._items(batch_kwargs, opts, kwargs)
        if num_threads != "auto" and num_threads < 1:
            raise BadProgram(f"num_threads is {num_threads}; it must be at least 1, or 'auto'")
        batch = BatchRun(
            len(items.arguments),
            start=partial(self._begin, State, items),
            n_threads=min(64, len(items.arguments)) if num_threads == "auto" else num_threads,
            title=self.name if progress_bar else None,
            **_checked_batch(on_error, concurrency, (timeout, budget, deadline)),
        )
        return batch.results(on_error, ordered) if generator_style or not ordered else batch.all(on_error)

    def run_batch_async(
        self,
        batch_kwargs: Iterable[Mapping[str, Any] | Sequence[Any]],
        *,
        concurrency: int | None = None,
        progress_bar: bool = False,
        ordered: bool = True,
        on_error: OnError = "raise",
        timeout: float | None = None,
        budget: int | None = None,
        deadline: float | None = None,
        opts: Options | None = None,
        **kwargs: Any,
    ) -> AsyncBatch:
        """`run_batch` on an event loop: `await` it for the list of all states, or take them one by one, in order or as
        they are finished, with `async for state in ...`. Whoever stops to listen stops what still runs."""
        from banyan.execution.async_batch import AsyncBatch  # here: it loads asyncio

        items = self._items(batch_kwargs, opts, kwargs)
        return AsyncBatch(
            len(items.arguments),
            start=partial(self._begin, AsyncState if self.is_async else State, items),
            finish=finished if self.is_async else finished_on_thread,
            on_error=on_error,
            ordered=ordered,
            title=self.name if progress_bar else None,
            **_checked_batch(on_error, concurrency, (timeout, budget, deadline)),
        )

    def graph(self, *args: Any, backend: Backend | None = None, opts: Options | None = None, **kwargs: Any) -> Graph:
        """What a run with these arguments appends, sends and waits for; it takes what `run` takes.

        Without a `backend` no model runs, and the graph ends where the body first looks at a generated value, or awaits
        anything. Of an `async def` that ran on a backend, the graph is `Graph(state)`.
        """
        from banyan.templates.recorder import record
        from banyan.views.graph import Graph  # here: most programs are never looked at

        own, options = self._sort(kwargs, opts)
        arguments = self._arrange(args, own)
        if options.stream:
            raise Unsupported("stream: a graph is of a run that has ended; leave it out")
        if backend is None:
            kind = AsyncState if self.is_async else State
            return Graph(record(self.name, self._body(arguments), options, _NO_MODEL, kind))
        self._refuse_to_block("run")
        run = self._begin(State, _Items([arguments], backend, options), 0)
        run.play()
        run.state.sync()
        return Graph(run.state)

    def trace(self, *, backend: Backend | None = None, **kwargs: Any) -> Trace:
        """What the body appends, without a model: SGLang's `trace`; `graph` tells more.

        Arguments that are not given stand by their names. It ends where the body looks at one of them, or at a value.
        backend: whose chat markers hold.
        """
        from banyan.templates.tracing import Trace

        return Trace(*self._recorded(kwargs, _NO_MODEL if backend is None else backend.welcome))

    def cache(self, backend: Backend | None = None) -> None:
        """Have what all runs begin with, up to the first argument or value, computed now, and wait for it.

        Runs share it anyway: this is for the first of them to find it there.
        """
        from banyan.templates.tracing import cache_prefix

        found = find(backend)
        cache_prefix(self._recorded({}, found.welcome)[0], found, self.name)

    def _recorded(self, kwargs: dict[str, Any], welcome: wire.Welcome) -> tuple[Recording, list[str]]:
        from banyan.templates.tracing import recorded

        for name in kwargs:
            if name not in self._parameters and not self._takes_any:
                raise TypeError(f"{self.name} has no parameter {name!r}{near(name, self._parameters)}")
        kind = AsyncState if self.is_async else State
        return recorded(self.name, self.func, self._signature, {**self._bound, **kwargs}, welcome, kind)

    # ---- arguments -------------------------------------------------------------------------------------------------

    def _sort(self, kwargs: dict[str, Any], opts: Options | None) -> tuple[dict[str, Any], Options]:
        """Keywords of `run` into arguments and options. A name that could be both is the program's."""
        own, asked = {}, {}
        for name, value in kwargs.items():
            if name in self._parameters:
                own[name] = value
            elif name in RUN_OPTIONS:
                asked[name] = value
            elif self._takes_any:
                own[name] = value
            else:
                hint = near(name, [*self._parameters, *RUN_OPTIONS])
                raise TypeError(f"{self.name} has no parameter {name!r}, and run no such option{hint}")
        return own, _options(asked, opts)

    def _item(self, args: Sequence[Any], kwargs: dict[str, Any], opts: Options | None) -> _Items:
        own, options = self._sort(kwargs, opts)
        return _Items([self._arrange(args, own)], find(options.backend), options)

    def _arrange(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """The body's arguments, but for the state; what `bind` gave fills the gaps. TypeError if they do not fit."""
        try:
            if self._bound:
                given = self._signature.bind_partial(*args, **kwargs).arguments
                kwargs = {name: value for name, value in self._bound.items() if name not in given} | dict(kwargs)
            return self._signature.bind(*args, **kwargs)
        except TypeError as e:
            hint = ""
            if args and isinstance(args[0], StateBase):
                hint = f": it makes a state of its own; to go on with this one, write {self.name}.inline(s, ...)"
            raise TypeError(f"program {self.name}: {e}{hint}") from None

    def _arrange_item(self, i: int, item: Mapping[str, Any] | Sequence[Any]) -> inspect.BoundArguments:
        try:
            if isinstance(item, Mapping):
                return self._arrange((), item)
            if isinstance(item, tuple | list):
                return self._arrange(item, {})
        except TypeError as e:
            raise TypeError(f"item {i} of the batch: {e}") from None
        raise TypeError(f"item {i} of the batch is a {type(item).__name__}; it must be a dict or a tuple of arguments")

    def _items(self, batch_kwargs: Iterable[Any], opts: Options | None, kwargs: dict[str, Any]) -> _Items:
        if unknown := kwargs.keys() - RUN_OPTIONS.keys():
            name = unknown.pop()
            raise TypeError(f"run_batch has no option {name!r}{near(name, RUN_OPTIONS)}")
        options = _options(kwargs, opts)
        if options.stream:
            raise Unsupported("stream: a batch gives finished states; use generator_style=True, or run(stream=True)")
        arguments = [self._arrange_item(i, item) for i, item in enumerate(batch_kwargs)]
        return _Items(arguments, find(options.backend), options)

    def _body(self, arguments: inspect.BoundArguments) -> Callable[[Any], Any]:
        """The function with all its arguments but the state."""
        return partial(_call, self.func, arguments.args, arguments.kwargs)

    def _begin(self, kind: type[P], items: _Items, i: int, batch: BatchLimits | None = None) -> ProgramRun[P]:
        path = () if batch is None else (i,)
        run = ProgramRun(self.name, self._body(items.arguments[i]), items.backend, items.options, kind, batch, *path)
        if self.num_api_spec_tokens is not None:
            run.record.program.generate_ahead(self.num_api_spec_tokens)
        return run

    def _refuse_to_block(self, name: str) -> None:
        """For programs whose bodies need an event loop."""


class AsyncProgram(Program):
    """What `@function` makes of an `async def`: it runs on the event loop that awaits it. A call is `run_async`."""

    __call__ = Program.run_async  # type: ignore[assignment]  # awaited, as a call of any `async def` is

    is_async = True

    async def inline(self, state: StateBase, /, *args: Any, **kwargs: Any) -> Inlined:
        """`Program.inline`, awaited."""
        checked(state, self.name)
        if not isinstance(state, AsyncState):
            raise BadProgram(f"{self.name} is an `async def`; it is inlined where it can be awaited, in another one")
        arguments = self._arrange(args, kwargs)
        return Inlined((), await self.func(state, *arguments.args, **arguments.kwargs))

    def _refuse_to_block(self, name: str) -> None:
        raise BadProgram(
            f"{self.name} is an `async def`, which runs on an event loop: write `await {self.name}.{name}_async(...)`, "
            f"or, where there is no loop, `asyncio.run({self.name}.{name}_async(...))`"
        )


def _call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], state: Any) -> Any:
    return func(state, *args, **kwargs)


class _Items(NamedTuple):
    """What is to be run: each item's arguments, where, and how."""

    arguments: list[inspect.BoundArguments]
    backend: Backend
    options: Options


def _checked_batch(on_error: str, concurrency: int | None, limits: tuple[Any, ...]) -> dict[str, Any]:
    if on_error not in ("raise", "return"):
        raise BadProgram(f"on_error is {on_error!r}; it must be 'raise' or 'return'")
    if concurrency is not None and concurrency < 1:
        raise BadProgram(f"concurrency is {concurrency}; it must be at least 1")
    named = zip(("timeout", "budget", "deadline"), limits, strict=True)
    make(Options, {name: value for name, value in named if value is not None})
    return {"concurrency": concurrency, "limits": limits}


def _options(asked: dict[str, Any], opts: Options | None) -> Options:
    if not asked and opts is None:
        return _NONE
    if not isinstance(opts, Options | None):
        raise TypeError(f"opts is a {type(opts).__name__}; it must be bn.Options(...)")
    named = {RUN_OPTIONS[name]: value for name, value in asked.items() if value is not None}
    return make(Options, {**(structs.asdict(opts) if opts else {}), **named})


_NONE = Options()
_NO_MODEL = wire.Welcome(wire.VERSION, model="none", max_context=1 << 31, images=True)


@overload
def function(func: Callable[..., Coroutine[Any, Any, Any]], num_api_spec_tokens: int | None = None) -> AsyncProgram: ...
@overload
def function(func: Callable[..., Any], num_api_spec_tokens: int | None = None) -> Program: ...
@overload
def function(func: None = None, num_api_spec_tokens: int | None = None) -> Callable[[Callable[..., Any]], Program]: ...
def function(
    func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function, with or without parentheses. Its first parameter, of any name, is the state.

    An `async def` makes an AsyncProgram, whose state is an AsyncState.

    num_api_spec_tokens: on an API whose requests are paid for one by one (`OpenAI`), a gen with stop strings asks for
    so many tokens and goes on behind its stop; where the texts and gens that come next are found in what the model said
    there, they cost no request. It takes the place of max_tokens in those gens. On a chat API it is also how a turn of
    the assistant can begin with text, or hold several gens: the model has to write the turn as the program does. On a
    runtime nothing changes: there a program is one message anyway.

    BadProgram: a function without parameters, a generator, or one with a parameter called "opts".
    """
    if func is None:
        return partial(function, num_api_spec_tokens=num_api_spec_tokens)
    if num_api_spec_tokens is not None and (not isinstance(num_api_spec_tokens, int) or num_api_spec_tokens < 1):
        raise BadProgram(f"num_api_spec_tokens is {num_api_spec_tokens!r}; it must be at least 1")
    return _checked(func, num_api_spec_tokens)


def _checked(func: Callable[..., Any], num_api_spec_tokens: int | None) -> Program:
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
    kind = AsyncProgram if inspect.iscoroutinefunction(func) else Program
    return kind(func, num_api_spec_tokens=num_api_spec_tokens)
