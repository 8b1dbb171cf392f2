"""Programs: decorated functions. Their first parameter is the state to which they append."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    Unpack,
    overload,
)

from msgspec import structs

from banyan.backends.base import Backend
from banyan.backends.default import find
from banyan.execution.batch import BatchPlan, BatchRun, OnError, bar
from banyan.execution.batch_file import BatchFile, run_to_file
from banyan.execution.program_record import abandon, inherited_seed
from banyan.execution.program_run import P, ProgramRun, finished, read_only_view, start_on_thread
from banyan.execution.run_limits import Limits
from banyan.lang.async_state import AsyncState
from banyan.lang.expr import Appended
from banyan.lang.run_types import Args, BatchOptions, ItemOptions, R, R_co, Typed, typed_run
from banyan.lang.sampling import RUN_OPTIONS, Options, make, near
from banyan.lang.state import State
from banyan.lang.state_base import StateBase, with_state
from banyan.runtime.errors import BadProgram, Unsupported
from banyan.runtime.protocol import wire

if TYPE_CHECKING:
    from banyan.execution.async_batch import AsyncBatch
    from banyan.execution.progress import Bar
    from banyan.templates.recorder import Recording
    from banyan.templates.tracing import Trace
    from banyan.views.graph import Graph

Batch: TypeAlias = Iterable[Mapping[str, Any] | Sequence[Any]]
"""The items of a batch: each item is the arguments of one run."""


class Inlined(Appended, Generic[R_co], frozen=True):
    """Returned by `inline`, which has appended all text itself. So `s += prog.inline(s)` appends nothing more."""

    ret_value: R_co = None  # type: ignore[assignment]
    """What the body returned."""


class Program(Typed[Args, R_co]):
    """What `@function` returns. `run`, or a call, runs the function's body on a new state.

    The body runs once, in the caller's thread. `run` returns when the body returns. The gens may still be running then;
    reading a value waits for it.
    """

    def __init__(
        self,
        func: Callable[Concatenate[Any, Args], R_co | Coroutine[Any, Any, R_co]],
        bound: Mapping[str, Any] | None = None,
        num_api_spec_tokens: int | None = None,
        defaults: Options | None = None,
    ) -> None:
        """func: the function; its first parameter is the state. bound, defaults: arguments and options of all runs, as
        set by `bind`. num_api_spec_tokens: see `function`."""
        self.func: Callable[..., Any] = func
        self.num_api_spec_tokens, self._defaults = num_api_spec_tokens, defaults
        self.name: str = getattr(func, "__name__", type(func).__name__)
        self._bound = dict(bound or {})
        state, *rest = inspect.signature(func).parameters.values()
        self._lacks_self = state.name == "self" and _is_method(func)
        self._signature = inspect.Signature(rest)
        self._parameters = frozenset(p.name for p in rest if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in rest)
        functools.update_wrapper(self, func)

    is_async = False
    """Whether the body is an `async def`."""

    def __repr__(self) -> str:
        return f"<program {self.name}>"

    def __reduce__(self) -> str:
        """Pickles a program as its name, like a function: another process imports its module."""
        return str(getattr(self, "__qualname__", self.name))

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Bind a program that is a method to its instance. The state is the parameter after `self`."""
        return self if instance is None else self._with(self.func.__get__(instance, owner), self._bound, self._defaults)

    @overload
    def bind(self, *, opts: Options) -> Self: ...
    @overload
    def bind(self, *, opts: Options | None = None, **arguments: Any) -> Any: ...
    def bind(self, *, opts: Options | None = None, **arguments: Any) -> Any:
        """The same program with values for some of its parameters, and with options for its runs.

        `run` or another `bind` can override each of them.
        """
        for name in arguments:
            if name in RUN_OPTIONS and name not in self._parameters and not self._takes_any:
                raise TypeError(f"{self.name} has no parameter {name!r}; for an option, write opts=Options({name}=...)")
        self._check_names(arguments)
        for p in self._signature.parameters.values():
            if p.kind is p.POSITIONAL_ONLY and p.name in arguments:
                raise TypeError(f"parameter {p.name!r} of {self.name} is positional-only; it cannot be bound")
        return self._with(self.func, {**self._bound, **arguments}, _options({}, opts, self._defaults))

    def _with(self, func: Callable[..., Any], bound: Mapping[str, Any], defaults: Options | None) -> Self:
        return type(self)(func, bound, self.num_api_spec_tokens, defaults)

    @typed_run
    def run(self, *args: Any, opts: Options | None = None, **kwargs: Any) -> State:
        """Run the body with these arguments. If the body raises, its gens are stopped.

        Keywords that are not parameters of the program are options of the run, and apply to all its gens:
        max_new_tokens=128, temperature=1.0 and the other fields of Options. They can also be given as
        `opts=Options(...)`.
        """
        self._refuse_to_block("run")
        item = self._item(args, kwargs, opts)
        run = self._begin(State, item)
        if item.options.stream:
            view = read_only_view(run.state)
            # When nobody can read the state any more, stop the program: the body ends at its next read.
            weakref.finalize(view, abandon, weakref.ref(run.record), run.record.program).atexit = False
            start_on_thread(run)
            return view
        try:
            run.play()
            if item.options.use_thread is False:
                run.state.sync()
        except BaseException as e:
            run.record.error_flag.is_seen = True
            with_state(e, run.state)
            raise
        return run.state

    __call__ = run

    def inline(self, state: StateBase, /, *args: Args.args, **kwargs: Args.kwargs) -> Inlined[R_co]:
        """Run the body on a state of another program. This state gets all text and variables of the body.

            s += summarise.inline(s, text)
            n = count.inline(s, text).ret_value

        The options of the other program's run apply. Returns an expression that appends nothing; its `ret_value` is
        what the body returned. If the program is an `async def`, await the call.
        """
        self._check_inline(state)
        arguments = self._arrange(args, kwargs)
        return Inlined(self.func(state, *arguments.args, **arguments.kwargs))

    @typed_run
    async def run_async(self, *args: Any, opts: Options | None = None, **kwargs: Any) -> AsyncState:
        """`run` for an event loop. Never blocks the loop. Returns when all gens are done.

        An `async def` body runs in the task that awaits this call, a `def` body on a thread. Raises what the body
        raised, or else the first error of its gens. Cancelling the task stops the program. With `stream=True`, the body
        can read the text of its gens while they run.
        """
        return await finished(self._begin(self._state_class, self._item(args, kwargs, opts)))

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ProgramRun[Any]:
        """Create a streaming run, with the arguments of `run`, but do not start it. Used by `stream`."""
        item = self._item(args, kwargs, kwargs.pop("opts", None))
        return self._begin(self._state_class, item._replace(options=structs.replace(item.options, stream=True)))

    @overload
    def run_batch(
        self,
        batch_kwargs: Batch,
        *,
        generator_style: Literal[False] = False,
        ordered: Literal[True] = True,
        **options: Unpack[BatchOptions],
    ) -> list[State]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Batch,
        *,
        generator_style: Literal[True],
        ordered: bool = True,
        **options: Unpack[BatchOptions],
    ) -> Iterator[State]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Iterable[Any],
        *,
        checkpoint: str | Path,
        **options: Unpack[BatchOptions],
    ) -> BatchFile: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Batch,
        *,
        generator_style: bool = False,
        ordered: bool = True,
        **options: Unpack[BatchOptions],
    ) -> list[State] | Iterator[State]: ...
    def run_batch(
        self,
        batch_kwargs: Batch,
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
        checkpoint: str | Path | None = None,
        opts: Options | None = None,
        **kwargs: Any,
    ) -> list[State] | Iterator[State] | BatchFile:
        """Run the body once for each item: a dict of arguments, or a tuple of them in the order of the parameters.

        Returns the finished states in order. generator_style: returns an iterator instead, which yields each state when
        it and all states before it have finished; with `ordered=False`, when it has finished (`state.index` is the
        index of its item). At most `concurrency` programs run concurrently (default: 256), and their bodies run on at
        most `num_threads` threads ("auto": 64). Each state that is kept counts as one of the server's `max_programs`
        (default: 65,536): for more items, use an iterator and keep no states, or use `checkpoint`. The iterator reads
        items without a length, such as a generator, as their runs start, on other threads. It reads no further while
        4,096 states have finished and were not taken. If the items raise, the error comes after all states before it.

        on_error: with "raise", all items finish, and then a BatchError with all results is raised if any item failed;
        an iterator raises the error of the failed item, and the others are stopped. With "return", the state of a
        failed item is returned too. Without a checkpoint, an output that is not valid for its type does not make its
        item fail; reading it by `value` raises BadOutput. progress_bar: show it on stderr or in the notebook. timeout,
        budget: seconds and tokens for the whole batch; when they run out, the unfinished items fail. deadline: seconds
        until the batch should be done (see Options). Other keywords, and `opts`, are options of each run.

        checkpoint: a file to which the variables of each finished item are appended, a JSON line each. Items that have
        a line in the file are not run again, so a batch that was interrupted continues where it stopped. Failed items
        have no line. Items with an output that is not valid for its type have none either, unless the body caught the
        BadOutput. A file that belongs to another program (by name), other bound arguments or other items is refused.
        Lines are in the order in which items finish. Items can be any iterable, which is read 4,096 at a time. If it
        raises, the items before the error run first. The result is a sequence of BatchRecords, one for each item, in
        order. A record is read from the file when it is needed; that of a failed item has only an error. The first 100
        errors are kept; the items that fail after them share one error.
        """
        self._refuse_to_block("run_batch")
        if num_threads != "auto" and (not isinstance(num_threads, int) or num_threads < 1):
            raise BadProgram(f"num_threads is {num_threads!r}; it must be an int of at least 1, or 'auto'")
        limits = {"timeout": timeout, "budget": budget, "deadline": deadline}

        options, title = self._batch_options(opts, kwargs), self.name if progress_bar else None

        def start(
            items: Iterable[_Item], shown: Callable[[int | None], AbstractContextManager[Bar | None]]
        ) -> BatchRun:
            plan = self._plan_batch(State, items, shown, on_error, concurrency, limits)
            n_threads = 64 if plan.n is None else min(64, plan.n)
            return BatchRun(plan, n_threads if num_threads == "auto" else num_threads)

        if checkpoint is not None:
            if given := [name for name, value in limits.items() if value is not None]:
                raise Unsupported(f"{given[0]}: another process may continue a batch with a checkpoint; leave it out")
            if generator_style or not ordered:
                raise Unsupported("a batch with a checkpoint returns records; leave out generator_style and ordered")
            file = BatchFile(checkpoint, (self.name, self._bound))
            return run_to_file(
                batch_kwargs,
                file,
                lambda items, bar: start([*self._indexed(options, items.items())], lambda _: nullcontext(bar)),
                title,
                on_error,
            )
        items = self._indexed(options, enumerate(batch_kwargs))
        shown = partial(bar, title)
        if not generator_style and ordered:
            return start([*items], shown).all(on_error)
        return start([*items] if isinstance(batch_kwargs, Sized) else items, shown).results(on_error, ordered)

    def run_batch_async(
        self,
        batch_kwargs: Batch,
        *,
        concurrency: int | None = None,
        progress_bar: bool = False,
        ordered: bool = True,
        on_error: OnError = "raise",
        timeout: float | None = None,
        budget: int | None = None,
        deadline: float | None = None,
        opts: Options | None = None,
        **kwargs: Unpack[ItemOptions],
    ) -> AsyncBatch:
        """`run_batch` for an event loop: `await` it for the list of all states, or iterate over them with `async for`.

        Leaving the loop stops the items that still run. The loop reads items without a length as their runs start.
        """
        from banyan.execution.async_batch import AsyncBatch  # lazily: it imports asyncio

        if only := [name for name in ("checkpoint", "generator_style", "num_threads") if name in kwargs]:
            raise TypeError(f"run_batch_async has no option {only[0]!r}; run_batch of a `def` program has it")
        items = self._indexed(self._batch_options(opts, kwargs), enumerate(batch_kwargs))
        shown = partial(bar, self.name if progress_bar else None)
        limits = {"timeout": timeout, "budget": budget, "deadline": deadline}
        known = [*items] if isinstance(batch_kwargs, Sized) else items
        plan = self._plan_batch(self._state_class, known, shown, on_error, concurrency, limits)
        return AsyncBatch(plan, on_error, ordered)

    @typed_run
    def graph(self, *args: Any, backend: Backend | None = None, opts: Options | None = None, **kwargs: Any) -> Graph:
        """The graph of a run: what it appends, sends and waits for. Takes the arguments of `run`.

        Without a `backend` no model runs, and the graph ends where the body first reads a generated value or awaits
        something. For the run of an `async def` on a backend, use `Graph(state)`.
        """
        from banyan.templates.recorder import record
        from banyan.views.graph import Graph

        own, options = self._sort(kwargs, opts)
        arguments = self._arrange(args, own)
        if options.stream:
            raise Unsupported("stream: a graph shows a finished run; leave it out")
        if backend is None:
            return Graph(record(self.name, self._body(arguments), options, _NO_MODEL, self._state_class))
        self._refuse_to_block("run")
        run = self._begin(State, _Item(arguments, backend, options))
        run.play()
        run.state.sync()
        return Graph(run.state)

    def trace(self, *, backend: Backend | None = None, **kwargs: Any) -> Trace:
        """Find out what the body appends, by running it without a model, like SGLang's `trace`. `graph` shows more.

        The trace ends where the body inspects an argument that was not given, or reads a generated value. backend: the
        backend whose role markers are used.
        """
        from banyan.templates.tracing import Trace

        return Trace(*self._recorded(kwargs, _NO_MODEL if backend is None else backend.welcome))

    def cache(self, backend: Backend | None = None) -> None:
        """Compute the KV of the text that all runs begin with, and wait until it is in the cache. The text ends at the
        first argument without a default or a value from `bind`, or at the first generated value, gen or fork.

        Runs share this KV anyway. After this call, even the first run finds it in the cache.
        """
        from banyan.templates.tracing import cache_prefix

        found = find(backend)
        cache_prefix(self._recorded({}, found.welcome)[0], found, self.name)

    def _recorded(self, kwargs: dict[str, Any], welcome: wire.Welcome) -> tuple[Recording, list[str]]:
        """Record the body. Returns (the recording, the names of the arguments that are not given)."""
        from banyan.templates.argument_slot import ArgumentSlot
        from banyan.templates.recorder import record

        self._check_names(kwargs)
        given = {**self._bound, **kwargs}
        for p in self._signature.parameters.values():
            if p.kind is p.VAR_KEYWORD:
                given[p.name] = {name: given.pop(name) for name in [*given] if name not in self._parameters}
        missing = [
            p.name
            for p in self._signature.parameters.values()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in given and p.default is p.empty
        ]
        slots = {name: ArgumentSlot(i, name) for i, name in enumerate(missing)}
        body = self._body(inspect.BoundArguments(self._signature, {**given, **slots}))
        return record(self.name, body, Options(), welcome, self._state_class, slots.values()), missing

    # ---- arguments ---------------------------------------------------------------------------------------------------

    @property
    def _state_class(self) -> type[State] | type[AsyncState]:
        return AsyncState if self.is_async else State

    def _check_names(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._parameters and not self._takes_any:
                raise TypeError(f"{self.name} has no parameter {name!r}{near(name, self._parameters)}")

    def _check_inline(self, state: object) -> None:
        if not isinstance(state, StateBase):
            raise BadProgram(f"{self.name}.inline takes the state to continue, not a {type(state).__name__}")
        state._check_open()

    def _sort(self, kwargs: dict[str, Any], opts: Options | None) -> tuple[dict[str, Any], Options]:
        """Split keywords of `run`. Returns (arguments, options). A name that could be both is an argument."""
        own, given = {}, {}
        for name, value in kwargs.items():
            if name in self._parameters or (self._takes_any and name not in RUN_OPTIONS):
                own[name] = value
            elif name in RUN_OPTIONS:
                given[name] = value
            else:
                hint = _hint(name, value, [*self._parameters, *RUN_OPTIONS])
                raise TypeError(f"{self.name} has no parameter {name!r}, and run no such option{hint}")
        return own, _options(given, opts, self._defaults)

    def _item(self, args: Sequence[Any], kwargs: dict[str, Any], opts: Options | None) -> _Item:
        own, options = self._sort(kwargs, opts)
        backend = find(options.backend)
        return _Item(self._arrange(args, own), backend, _seeded(options, backend))

    def _arrange(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Returns all arguments of the body except the state; `bind` gave some of them. TypeError: the arguments do not
        fit the body's parameters."""
        if self._lacks_self:
            raise TypeError(f"{self.func.__qualname__} is a method; call it on an object: x.{self.name}(...)")
        try:
            if self._bound:
                given = self._signature.bind_partial(*args, **kwargs).arguments
                kwargs = {name: value for name, value in self._bound.items() if name not in given} | dict(kwargs)
            return self._signature.bind(*args, **kwargs)
        except TypeError as e:
            hint = ""
            if args and isinstance(args[0], StateBase):
                hint = f": it creates its own state; to continue this one, write {self.name}.inline(s, ...)"
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

    def _indexed(self, options: Options, items: Iterable[tuple[int, Any]]) -> Iterator[_Item]:
        """The runs of a batch, with the arguments of each item bound to the parameters; read as they are needed. items:
        (index in the batch, arguments: a dict or tuple)."""
        backend = find(options.backend)
        return (_Item(self._arrange_item(i, item), backend, options, i) for i, item in items)

    def _batch_options(self, opts: Options | None, kwargs: Mapping[str, Any]) -> Options:
        if unknown := kwargs.keys() - RUN_OPTIONS:
            name = unknown.pop()
            raise TypeError(f"a batch has no option {name!r}{_hint(name, kwargs[name], RUN_OPTIONS)}")
        options = _options(kwargs, opts, self._defaults)
        if options.stream:
            raise Unsupported("stream: a batch returns finished states; use generator_style=True, or run(stream=True)")
        return _seeded(options, find(options.backend))

    def _plan_batch(
        self,
        state_class: type[State] | type[AsyncState],
        items: Iterable[_Item],
        shown: Callable[[int | None], AbstractContextManager[Bar | None]],
        on_error: str,
        concurrency: int | None,
        limits: dict[str, Any],
    ) -> BatchPlan:
        if on_error not in ("raise", "return"):
            raise BadProgram(f"on_error is {on_error!r}; it must be 'raise' or 'return'")
        if concurrency is not None and (not isinstance(concurrency, int) or concurrency < 1):
            raise BadProgram(f"concurrency is {concurrency!r}; it must be an int of at least 1")
        make(Options, {name: value for name, value in limits.items() if value is not None})  # raises if a limit is bad
        start, limit = partial(self._begin, state_class), partial(Limits, "batch", **limits)
        return BatchPlan(items, start, concurrency, limit, shown)

    def _body(self, arguments: inspect.BoundArguments) -> Callable[[Any], Any]:
        """The body with all arguments bound except the state; Compiled overrides it."""
        return lambda state: self.func(state, *arguments.args, **arguments.kwargs)

    def _begin(self, state_class: type[P], item: _Item, batch: Limits | None = None) -> ProgramRun[P]:
        body = self._body(item.arguments)
        run = ProgramRun(self.name, body, item.backend, item.options, state_class, batch, item.number)
        if self.num_api_spec_tokens is not None:
            run.record.program.generate_ahead(self.num_api_spec_tokens)
        return run

    def _refuse_to_block(self, name: str) -> None:
        """Called by methods that block the thread, such as `run`. Does nothing in this class. AsyncProgram overrides it
        to raise an error, because its body needs an event loop. name: the method that blocks."""


class AsyncProgram(Program[Args, R_co]):
    """What `@function` returns for an `async def`. Calling it is the same as `run_async`: the body runs on the event
    loop on which the call is awaited."""

    __call__ = Program.run_async  # type: ignore[assignment]  # awaited, like a call of any `async def`

    is_async = True

    async def inline(  # type: ignore[override]
        self, state: StateBase, /, *args: Args.args, **kwargs: Args.kwargs
    ) -> Inlined[R_co]:
        """Run the body on a state of another `async def` program. This state gets all text and variables of the body.
        Must be awaited:

            s += await prog.inline(s, text)

        Returns an expression that appends nothing; its `ret_value` is what the body returned.
        """
        self._check_inline(state)
        if not isinstance(state, AsyncState):
            raise BadProgram(f"{self.name} is an `async def`; only another `async def` program can await and inline it")
        arguments = self._arrange(args, kwargs)
        return Inlined(await self.func(state, *arguments.args, **arguments.kwargs))

    def _refuse_to_block(self, name: str) -> None:
        raise BadProgram(
            f"{self.name} is an `async def`, which runs on an event loop: write `await {self.name}.{name}_async(...)`, "
            f"or, where there is no loop, `asyncio.run({self.name}.{name}_async(...))`"
        )


class _Item(NamedTuple):
    """The arguments, the backend and the options of one run. number: the index of its item in the batch; None outside
    one."""

    arguments: inspect.BoundArguments
    backend: Backend
    options: Options
    number: int | None = None


def _options(given: Mapping[str, Any], opts: Options | None, defaults: Options | None) -> Options:
    """Merge the options of a run. Each option comes from `given`, else from `opts`, else from `defaults`. None in
    `given`, and Options' own default in the others, count as absent. TypeError: `opts` is not an Options."""
    if not given and opts is None:
        return defaults or _NO_OPTIONS
    if not isinstance(opts, Options | None):
        raise TypeError(f"opts is a {type(opts).__name__}; it must be bn.Options(...)")
    named = {name: value for name, value in given.items() if value is not None}
    base = _chosen(defaults) | _chosen(opts)
    if "max_new_tokens" in named:
        base.pop("max_tokens", None)
    return make(Options, base | named)


def _seeded(options: Options, backend: Backend) -> Options:
    """The options of a run or batch on `backend`. Without a seed of its own, it gets one from the calling program."""
    if options.seed is not None or (seed := inherited_seed(backend)) is None:
        return options
    return structs.replace(options, seed=seed)


def _chosen(opts: Options | None) -> dict[str, Any]:
    """Returns the options that differ from the defaults of Options, by name."""
    asked = {} if opts is None else structs.asdict(opts)
    return {name: value for name, value in asked.items() if value != getattr(_NO_OPTIONS, name)}


def _hint(name: str, value: Any, names: Iterable[str]) -> str:
    """The end of the error message for an unknown option `name`, which suggests what to write instead."""
    if hasattr(value, "program"):
        return "; the backend of a run is given as backend="
    return near(name, names) or f"; the options of a run are {', '.join(sorted(RUN_OPTIONS))}"


_NO_OPTIONS = Options()
_NO_MODEL = wire.Welcome(wire.VERSION, model="none", max_context=1 << 31, images=True)


class Method(Protocol[Args, R_co]):
    """The static type of a program that is a method: its `run` does not take the instance."""

    def __get__(self, instance: object, owner: Any = None) -> Program[Args, R_co]: ...


class AsyncMethod(Protocol[Args, R_co]):
    """The static type of an `async def` program that is a method: its `run_async` does not take the instance."""

    def __get__(self, instance: object, owner: Any = None) -> AsyncProgram[Args, R_co]: ...


def _typed_decorator(function: Callable[..., Any]) -> Decorator:
    return function


class Decorator(Protocol):
    """The static type of the decorator `function`."""

    @overload
    def __call__(self, func: None = None, num_api_spec_tokens: int | None = None) -> Decorator: ...
    @overload
    def __call__(
        self,
        func: Callable[Concatenate[AsyncState, Args], Coroutine[Any, Any, R]],
        num_api_spec_tokens: int | None = None,
    ) -> AsyncProgram[Args, R]: ...
    @overload
    def __call__(
        self,
        func: Callable[Concatenate[Any, AsyncState, Args], Coroutine[Any, Any, R]],
        num_api_spec_tokens: int | None = None,
    ) -> AsyncMethod[Args, R]: ...
    @overload
    def __call__(
        self, func: Callable[Concatenate[State, Args], R], num_api_spec_tokens: int | None = None
    ) -> Program[Args, R]: ...
    @overload
    def __call__(
        self, func: Callable[Concatenate[Any, State, Args], R], num_api_spec_tokens: int | None = None
    ) -> Method[Args, R]: ...


def _is_method(func: Callable[..., Any]) -> bool:
    """Whether a function was defined in a class."""
    holder = getattr(func, "__qualname__", "").rpartition(".")[0]
    return bool(holder) and not holder.endswith("<locals>")


@_typed_decorator
def function(func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None) -> Any:
    """Decorator, with or without parentheses: makes a program of a function. The first parameter is the state.

    An `async def` becomes an AsyncProgram, whose state is an AsyncState. In a method, the state comes after `self`.
    BadProgram: there is no parameter, one is called "opts", a method's first parameter is not `self`, or the
    function is a generator.

    num_api_spec_tokens: for APIs that charge per request (`OpenAI`). A gen with stop strings requests this many tokens,
    if max_tokens is less, and keeps the output after its stop string. If the program's next texts occur in the kept
    output, its next gens take their values from there, without a request. On a chat API, a turn of the assistant may
    then begin with text or have several gens. A runtime ignores this option.
    """
    if func is None:
        return partial(function, num_api_spec_tokens=num_api_spec_tokens)
    if num_api_spec_tokens is not None and (not isinstance(num_api_spec_tokens, int) or num_api_spec_tokens < 1):
        raise BadProgram(f"num_api_spec_tokens is {num_api_spec_tokens!r}; it must be at least 1")
    parameters = list(inspect.signature(func).parameters.values())
    if not parameters or parameters[0].kind > inspect.Parameter.POSITIONAL_OR_KEYWORD:
        raise BadProgram(f"the first parameter of a program is its state, and {func.__name__} has none")
    if _is_method(func) and any(p.name == "self" for p in parameters[1:]):
        raise BadProgram(f"in a method, self comes before the state: def {func.__name__}(self, s, ...)")
    if any(p.name == "opts" for p in parameters):
        raise BadProgram("no parameter of a program can be called 'opts': that is how `run` takes its options")
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise BadProgram(f"{func.__name__} contains a `yield`; a program cannot be a generator")
    kind = AsyncProgram if inspect.iscoroutinefunction(func) else Program
    return kind(func, num_api_spec_tokens=num_api_spec_tokens)
