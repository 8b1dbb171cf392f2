"""States: the running prompt of a program, its variables and its branches. Appending records ops and never waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeVar, overload

from msgspec.structs import replace

from banyan.execution.events import ForkStart
from banyan.execution.feed import Feed
from banyan.execution.program_record import CALLER, ProgramRecord, StateHandle
from banyan.execution.run_limits import limit_gen
from banyan.execution.source_line import source_line, warn
from banyan.execution.text_pieces import pieces_async
from banyan.lang.expr import (
    APPENDED,
    NOTHING,
    REASONING_SUFFIX,
    Expr,
    Expression,
    GenExpr,
    ImageExpr,
    Leaf,
    RawExpr,
    RoleBegin,
    RoleEnd,
    SelectExpr,
    checked_name,
    leaves,
)
from banyan.lang.expr import role as turn
from banyan.lang.fstring import check_unicode, shown
from banyan.lang.lazy_value import JoinedValues, LazyValue, ReasoningText, read
from banyan.lang.sampling import mix
from banyan.runtime.errors import BadProgram, BanyanError, Cancelled, ToolError, UnknownVariable, Unsupported
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire
from banyan.runtime.protocol.limits import MAX_NAME
from banyan.templates.argument_slot import ArgumentSlot
from banyan.views.state_views import calls, live, snippet, timeline, usage
from banyan.views.transcript import Renderer, Transcript
from banyan.views.usage import Usage

P = TypeVar("P", bound="StateBase")
S = TypeVar("S", bound="StateBase")
E = TypeVar("E", bound=BaseException)
MAX_CALLS = 8
"""The note of a run's error lists at most this many calls: the last ones."""

Branchwise = list[Expression] | tuple[Expression, ...] | Callable[[int], Expression]
OnError = Literal["raise", "collect"]


class StateBase:
    """The base class of State and AsyncState. Reading a value of a State blocks the thread until the value is known; a
    value of an AsyncState is awaited instead."""

    _instead = "append one of its variables, such as s['x']; to continue it in another program, use prog.inline(s, ...)"

    __slots__ = (
        *("__weakref__", "_closed", "_handle", "_is_view", "_n_inherited", "_names", "_record", "_refs", "_seed"),
        *("_transcript", "_values"),
    )
    _is_async = False

    def __init__(self, record: ProgramRecord, handle: StateHandle, seed: int | None, transcript: Transcript) -> None:
        """Created by programs and forks. seed: the seed of the run or branch; None: its gens have random seeds."""
        self._record, self._handle, self._seed, self._transcript = record, handle, seed, transcript
        self._values: dict[str, Any] = {}
        self._n_inherited = 0  # how many of the values are inherited: the first ones
        self._names: Feed[str] = Feed()  # names of variables as they are set, for readers that wait for one
        self._refs: list[Any] = []  # the numbers of this state's values, with a nested list for each branch
        self._closed = ""  # why nothing more can be appended; "" while the state is open
        self._is_view = False  # whether this object belongs to code outside the body

    def __repr__(self) -> str:
        variables = ", ".join(self._values) or "none"
        return f"<State of program {self._record.name}, variables: {variables}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles only the state's repr, as an AbsentState. A state cannot leave its process, but an error that holds a
        state must be picklable."""
        return AbsentState, (repr(self),)

    def __copy__(self) -> NoReturn:
        raise BadProgram("a state cannot be copied; s.fork(1)[0] is a branch with its text and variables")

    def __deepcopy__(self, memo: object) -> Self:
        """Returns this state, so that a copy of an error or another object holds the same state as the original.
        BadProgram: the state itself is copied."""
        if not memo:
            self.__copy__()
        return self

    @property
    def _is_running_view(self) -> bool:
        """Whether this object belongs to code outside the body, and the body still runs and may set variables."""
        return self._is_view and not self._record.ended.is_closed

    def _note_reader(self) -> None:
        """Record that somebody reads this run, if this object belongs to code outside the body. The run then does not
        log the warning that nobody reads its stream."""
        self._record.has_reader |= self._is_view

    def _view(self, state_class: type[P]) -> P:
        """Another object for the same state, of class `state_class`."""
        view = state_class.__new__(state_class)
        for slot in StateBase.__slots__[1:]:
            setattr(view, slot, getattr(self, slot))
        return view

    @property
    def index(self) -> int | None:
        """The index of the batch item that this state belongs to; None outside a batch."""
        self._record.index_line = self._record.index_line or source_line()
        return self._record.index

    # ---- appending ---------------------------------------------------------------------------------------------------

    def __iadd__(self, what: Expression) -> Self:
        self._append(what)
        return self

    if not TYPE_CHECKING:  # type checkers should report it

        def __add__(self, what: object) -> NoReturn:
            raise BadProgram(
                "s + ... makes no new state: write s += ..., or, to leave s as it is, t = s.fork()[0] and t += ..."
            )

    def _append(self, what: Expression) -> None:
        self._check_open()
        flat = leaves(what)
        role, samplings = self._checked(flat)
        record, state = self._record, self._handle.number
        parts: list[wire.Part] = []
        items: list[Any] = []
        line = ""
        for leaf in flat:
            if isinstance(leaf, str):
                parts.append(leaf)
            elif type(leaf) is GenExpr or type(leaf) is SelectExpr:
                record.add_text(state, parts)
                parts, line = [], line or source_line()
                leaf = self._generate(leaf, line, samplings, items)
            else:
                parts.append(_wire_part(leaf))
                if isinstance(leaf, LazyValue):
                    leaf = leaf.spliced()
            items.append(leaf)
        record.add_text(state, parts)
        self._transcript.own.extend(items)
        self._transcript.role = role

    def _check_open(self) -> None:
        if self._is_running_view:
            raise BadProgram("this state belongs to a program that still runs; it can be read, but not appended to")
        if self._closed:
            raise BadProgram(f"this branch {self._closed}; it takes no more text")

    def _checked(self, flat: list[str | Leaf]) -> tuple[str | None, Iterator[wire.Sampling]]:
        """Check everything that a `+=` appends, before any of it is recorded. Returns (the role of the turn that is
        open after it, or None; the sampling parameters of each gen)."""
        role = self._transcript.role
        samplings: list[wire.Sampling] = []
        for leaf in flat:
            if isinstance(leaf, str):
                if not leaf.isascii():
                    check_unicode(leaf)
                if role is None:
                    self._warn_of_marker(leaf)
                continue
            if type(leaf) is RoleBegin:
                if role is not None:
                    raise BadProgram(f"a turn of {leaf.role!r} begins inside a turn of {role!r}; end that first")
                role = leaf.role
            elif type(leaf) is RoleEnd:
                if role != leaf.role:
                    raise BadProgram(f"a turn of {leaf.role!r} ends, but the open one is {role!r}")
                role = None
            elif type(leaf) is GenExpr:
                samplings.append(leaf.sampling(self._record.sampling))
                if leaf.tools is not None:
                    self._check_tools(role)
            elif type(leaf) is RawExpr:
                check_unicode(leaf.text)
            elif isinstance(leaf, LazyValue) and leaf.record is not self._record:
                raise BadProgram(
                    f"the ref {leaf.name!r} belongs to another program; append its value: state[{leaf.name!r}]"
                )
            elif isinstance(leaf, ImageExpr) and not self._record.backend.welcome.images:
                welcome = self._record.backend.welcome
                raise Unsupported(f"image: {welcome.no_images or f'the model {welcome.model} takes only text'}")
        return role, iter(samplings)

    def _warn_of_marker(self, text: str) -> None:
        """Warn if `text`, which is outside of turns, has the text that ends a turn. It is probably a prompt that was
        written for another runtime, whose turns would be plain text here."""
        backend = self._record.backend
        for stop in () if backend.welcome.chat is None else backend.welcome.chat.stop:
            if stop.startswith("<|") and stop in text and "raw" not in backend.refuses:  # </s> may be HTML
                warn(
                    f"the text contains {stop!r}, but is sent as plain text, in which nothing ends a turn; write turns "
                    "as bn.user(...) and bn.assistant(...), or, if no user can have written the text, use bn.raw(text)"
                )

    def _check_tools(self, role: str | None) -> None:
        if role != "assistant":
            raise BadProgram("a gen with tools must be in an assistant's turn: bn.assistant(bn.gen(..., tools=...))")
        chat = self._record.backend.welcome.chat
        if chat is not None and chat.no_calls:
            raise ToolError(f"tools: {chat.no_calls}", program=self._record.name)

    def _generate(
        self, leaf: GenExpr | SelectExpr, line: str, samplings: Iterator[wire.Sampling], items: list[Any]
    ) -> LazyValue:
        """Record a gen or select, and return its lazy value. line: the source line of the `+=`. samplings: the sampling
        parameters of the next gens. items: what the same `+=` appended before; these items are not in the transcript
        yet."""
        record, transcript = self._record, self._transcript
        ref = transcript.last = LazyValue(record, self._handle, transcript.last, leaf.name or "", line)
        self._refs.append(ref.number)
        transcript.n_draws += 1
        seed = mix(self._seed, transcript.n_draws)
        if isinstance(leaf, SelectExpr):
            kind, timeout = "select", leaf.timeout
            record.add(self._select_op(leaf, ref, seed))
        else:
            kind, timeout = "gen", leaf.options.timeout
            record.add(self._gen_op(leaf, ref, next(samplings), seed))
        if record.counters:
            record.watch(ref.future)
        if timeout is not None:
            before = [*transcript.since_timed(), *items]
            limit_gen(record, ref.number, kind, timeout, [one.future for one in before if isinstance(one, LazyValue)])
            transcript.n_before_timed = len(transcript.own.items) + len(items)
        if record.events is not None:
            record.events.watch(ref.name, ref.state, ref.future, partial(usage, record, 0))
        if leaf.name is not None:
            self._set(leaf.name, ref)
            if isinstance(leaf, GenExpr) and leaf.reasoning is not None:
                self._set(leaf.name + REASONING_SUFFIX, ReasoningText(ref))
        return ref

    def _gen_op(self, leaf: GenExpr, ref: LazyValue, sampling: wire.Sampling, seed: int | None) -> wire.Gen:
        run, options = self._record.options, leaf.options
        seed = seed if options.seed is None else options.seed
        if seed is not None:
            sampling = replace(sampling, seed=seed)
        with_text = options.return_text_in_logprobs
        ref.with_text = bool(run.return_text_in_logprobs if with_text is None else with_text)
        ref.has_logprobs = sampling.logprobs
        ref.output_type = leaf.output_type
        tools = None if leaf.tools is None else leaf.tools.wire
        if tools is not None:
            from banyan.tools.caller import Caller  # lazily: it imports asyncio

            ref.caller = Caller(
                self._record, self._handle.number, ref.number, ref.line, leaf.tools, is_async=self._is_async
            )
        retries = 0 if leaf.output_type is None else (leaf.retries if leaf.retries is not None else run.retries) or 0
        if retries:
            from banyan.tools.checks import Checker  # lazily: few programs need it

            ref.checker = Checker(self._record, self._handle.number, ref.number, leaf.output_type)
        if run.stream:
            ref.stream()
        return wire.Gen(
            self._handle.number,
            ref.number,
            sampling,
            bool(run.stream),
            ref.name[:MAX_NAME],
            ref.line,
            tools,
            leaf.reasoning,
            retries,
            timeout=options.timeout or 0.0,
            budget=options.budget or 0,
            priority=options.priority,
            deadline=options.deadline or 0.0,
            adapter=self._text_option("adapter", options.adapter),
            chat_template_kwargs=self._text_option("chat_template_kwargs", options.chat_template_kwargs),
        )

    def _select_op(self, leaf: SelectExpr, ref: LazyValue, seed: int | None) -> wire.Select:
        ref.method, ref.choices = leaf.method, leaf.choices
        state = self._handle.number
        if leaf.decide is not None:
            from banyan.tools.checks import Chooser  # lazily: few programs need it

            ref.chooser = Chooser(self._record, state, ref.number, leaf.choices, leaf.decide, ref.name, ref.line)
        return wire.Select(
            state,
            ref.number,
            leaf.choices,
            leaf.method,
            leaf.temperature,
            seed if leaf.seed is None else leaf.seed,
            ref.name[:MAX_NAME],
            ref.line,
            leaf.timeout or 0.0,
            self._text_option("adapter", leaf.adapter),
            client_decides=leaf.decide is not None,
            chat_template_kwargs=self._text_option("chat_template_kwargs", leaf.chat_template_kwargs),
        )

    def _text_option(self, name: Literal["adapter", "chat_template_kwargs"], own: Any) -> str:
        """The value of an option that is text by now (see GenOptions), for a gen or select; "": none. own: the value
        that was given to the gen or select; None: the run's value applies."""
        value: str | None = getattr(self._record.options, name) if own is None else own
        return value or ""

    def _lazy_values(self) -> list[LazyValue]:
        """The lazy values in the prompt of this state: the outputs of its gens and selects, and other values that were
        appended."""
        return [item for item in self._transcript if isinstance(item, LazyValue)]

    # ---- turns -------------------------------------------------------------------------------------------------------

    def role(self, name: str, expr: Expression = NOTHING) -> Any:
        """Append a turn with the content `expr`. Without `expr`, return a context manager: the turn contains what
        the `with` block appends, and ends even if the block raises."""
        if expr is NOTHING:
            return self._turn(name)
        self._append(turn(name, expr))
        return APPENDED

    @contextmanager
    def _turn(self, name: str) -> Iterator[Self]:
        begin, end = turn(name).parts
        self._append(begin)
        try:
            yield self
        except BaseException:
            if self._transcript.role == name:
                self._append(end)
            raise
        self._append(end)

    def system(self, expr: Expression = NOTHING) -> Any:
        """The same as `role("system", expr)`."""
        return self.role("system", expr)

    def user(self, expr: Expression = NOTHING) -> Any:
        """The same as `role("user", expr)`."""
        return self.role("user", expr)

    def assistant(self, expr: Expression = NOTHING) -> Any:
        """The same as `role("assistant", expr)`."""
        return self.role("assistant", expr)

    # ---- variables ---------------------------------------------------------------------------------------------------

    def __setitem__(self, name: str, value: Any) -> None:
        checked_name(name)
        if isinstance(value, GenExpr | SelectExpr):
            call = "gen" if isinstance(value, GenExpr) else "select"
            raise BadProgram(
                f"s[{name!r}] = ... only stores a value; to generate one, write s += bn.{call}({name!r}, ...)"
            )
        self._set(name, value)

    __iter__ = None  # otherwise Python would read s[0], s[1], ...

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def set_var(self, name: str, value: Any) -> None:
        """The same as `s[name] = value`."""
        self[name] = value

    def ref(self, name: str) -> Expression:
        """The text of a variable, to be appended to any state of this program. Does not wait for the text.

        If the text is not known yet, the server inserts it later.
        """
        value = self._lookup(name)
        if isinstance(value, LazyValue | str):
            return value
        raise BadProgram(f"variable {name!r} is not a single text; append the part of s[{name!r}] that you need")

    @contextmanager
    def var_scope(self, name: str) -> Iterator[Self]:
        """`with s.var_scope("x"): ...` stores all text that the block appends, role markers included, in variable x."""
        self._check_open()
        checked_name(name)
        mark = self._record.new_marks()
        self._record.add(wire.Mark(self._handle.number, mark))
        try:
            yield self
        finally:
            self._set(name, self._read(mark, name))

    def _set(self, name: str, value: Any) -> None:
        self._values[name] = value
        self._names.put(name)

    def _lookup(self, name: str) -> Any:
        """Returns a variable's value. State overrides this method to wait until a running body sets the variable."""
        return self._stored(name)

    async def _lookup_async(self, name: str) -> Any:
        if name not in self._values and self._is_running_view:
            async for _ in self._names:
                if name in self._values:
                    break
        return self._stored(name)

    def _stored(self, name: str) -> Any:
        self._note_reader()
        if name in self._values:
            return self._values[name]
        self._record.check_body()  # perhaps it raised before it set the variable
        have = ", ".join(map(repr, self._values)) or "none"
        if name in self._record.names_of({*flat(self._refs)}):
            have += f"; branches of this state have it: join() or adopt them, or read branches[i][{name!r}]"
        raise UnknownVariable(
            f"there is no variable {name!r}; the variables are: {have}", program=self._record.name, line=source_line()
        )

    @property
    def _joined(self) -> list[JoinedValues]:
        return [value for value in self._values.values() if isinstance(value, JoinedValues)]

    @property
    def _own_joined(self) -> list[JoinedValues]:
        """The values that `join` collected from branches of this state, without inherited variables."""
        values = tuple(self._values.values())[self._n_inherited :]
        return [value for value in values if isinstance(value, JoinedValues)]

    def _check_values(self, refs: Sequence[LazyValue], joined: Sequence[JoinedValues]) -> None:
        """Wait for `refs`, the values in the prompt, and for `joined`, the variables collected from branches. Raises
        the first error. A branch that was dropped is no error."""
        for ref in refs:
            ref.wait()
        for value in joined:
            try:
                read(value)
            except Cancelled:
                if self._record.failure is not None:
                    raise  # otherwise the branch was dropped, which is no error

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _await_body(self) -> None:
        """Does nothing here. State overrides this method to wait for the end of the body."""

    def _settle(self) -> None:
        """Does nothing here. State overrides this method to wait for all gens of this state and its branches."""

    @property
    def ret_value(self) -> Any:
        """What the program's body returned. A State waits until the body returns; an AsyncState has None until then."""
        self._await_body()
        return self._record.ret_value

    @property
    def usage(self) -> Usage:
        """Token counts of this state and its branches: the sums, and the counts of each gen.

        A State waits for its gens first. An AsyncState counts the gens that have finished. Failed gens are not counted.
        """
        self._settle()
        return usage(self._record, self._handle.number)

    def timeline(self, path: str | Path | None = None) -> dict[str, Any]:
        """A trace in Chrome's JSON format: when the body, the gens of this state and its branches, and tools ran.

        A State waits for its gens first. An AsyncState shows what has happened so far. path: also write the trace to
        this file, which https://ui.perfetto.dev opens.
        """
        self._settle()
        return timeline(self._record, self._handle.number, path)

    def cancel(self) -> None:
        """Stop the program's work on the server. Reading an unfinished value raises Cancelled.

        A program also stops when its states are garbage-collected, since nobody can read its values any more.
        """
        self._record.stop(Cancelled("the program was cancelled"))

    def _futures(self) -> list[ValueFuture[wire.Value]]:
        """The futures of all gens and selects of this state and its branches."""
        return [self._record.program.future(ref) for ref in flat(self._refs)]

    def _repr_html_(self) -> str:
        """The state in a notebook: the text and outputs that are known so far. Never waits."""
        return snippet(self._record, self._handle.number, self._streamed())

    def _ipython_display_(self) -> None:
        """Show a running state in a notebook, and update it until it is complete. NotImplementedError: the state does
        not run, or this is no notebook. IPython then shows the result of `_repr_html_`."""
        if not live(self._record, self._handle.number, self._streamed):
            raise NotImplementedError

    def _streamed(self) -> dict[int, str]:
        """Returns {number of a streaming gen: its text so far}."""
        found = {}
        for ref in self._lazy_values():
            if ref.deltas is not None and (deltas := [one for one in ref.deltas.items if not one.is_thought]):
                found[ref.number] = "".join(one.text for one in deltas if one.round == deltas[-1].round)
        return found

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """`text_iter` for an event loop: yields the text of a variable, or of the whole state, in pieces as it is
        generated. With `return_meta_data`, yields pairs of a piece and its meta info.

        The meta info is None for text that was not generated. While a gen streams, the meta info of a piece is what is
        known so far, with None as finish_reason. The last pair of a gen is "" and the result of `get_meta_info`.
        """
        async for text, meta in self._text_and_meta(var_name):
            if return_meta_data:
                yield text, meta
            elif text:
                yield text

    async def _text_and_meta(self, name: str | None) -> AsyncIterator[tuple[str, Any]]:
        if name is not None or not self._record.options.stream:
            value = self._read(None) if name is None else await self._lookup_async(name)
            async for pair in pieces_async(value):
                yield pair
            return
        render = Renderer(self._record.backend.welcome.chat)
        self._record.has_reader = True
        async for item in self._transcript.follow_async(self._is_view):
            async for pair in pieces_async(render(item), whole=True):
                yield pair

    def _read(self, mark: int | None, name: str = "") -> LazyValue:
        """Record an op that reads the text of the prompt. Returns the text as a lazy value. mark: the number of an
        earlier mark, from which the text starts; None: the whole prompt."""
        ref = LazyValue(self._record, self._handle, self._transcript.last, name, source_line())
        self._record.add(wire.Read(self._handle.number, ref.number, mark))
        return ref

    # ---- branching ---------------------------------------------------------------------------------------------------

    def _forked(self, size: int, position_ids_offset: Any = None) -> list[Self]:
        self._check_open()
        if position_ids_offset is not None:
            warn("position_ids_offset is ignored, as in SGLang: a branch continues at the position of its parent")
        if not hasattr(size, "__index__"):
            each = "; `branches += [...]` gives each branch its text" if isinstance(size, list | tuple) else ""
            raise BadProgram(f"fork({shown(size, 80)}): fork takes the number of branches{each}")
        if size < 0:
            raise BadProgram(f"a fork of {size} branches; their number must be 0 or more")
        if size == 0:  # nothing is recorded, so that a template draws the same seeds
            return []
        self._transcript.n_draws += 1
        children = [self._branch(i) for i in range(size)]
        numbers = tuple(child._handle.number for child in children)
        self._record.add(wire.Fork(self._handle.number, numbers))
        if self._record.events is not None:
            self._record.events.put(ForkStart(numbers, self._handle.number))
        return children

    @contextmanager
    def copy(self, position_ids_offset: Any = None) -> Iterator[Self]:
        """`with s.copy() as t: ...`: fork one branch `t`, and join it at the end of the block. Variables that the block
        sets become variables of `s`, as lists of one item. position_ids_offset: ignored, as in SGLang."""
        group = Group(self._forked(1, position_ids_offset), self)
        try:
            yield group[0]
        finally:
            group._gather("raise")  # without a warning: the block may have read what it needs

    def _branch(self, i: int) -> Self:
        handle, seed = self._record.new_handle(self._handle), mix(self._seed, self._transcript.n_draws, i)
        child = type(self)(self._record, handle, seed, Transcript(self._transcript))
        child._values, child._n_inherited = dict(self._values), len(self._values)
        self._refs.append(child._refs)
        return child

    def adopt(self, branch: Self) -> None:
        """Continue as `branch`: take over the branch's text, variables and KV. Nothing more can be appended to
        `branch`.

        BadProgram: `branch` does not descend from this state, or something was appended to this state after the fork.
        """
        self._check_open()
        branch._check_open()
        if branch._record is not self._record or not self._transcript.adopt(branch._transcript):
            raise BadProgram(
                "only a branch of this state can be adopted, and only while nothing was appended here since its fork"
            )
        self._seed = branch._seed
        for name, value in branch._values.items():
            if name not in self._values or self._values[name] is not value:
                self._set(name, value)
        branch._closed = "was adopted by its parent"
        self._record.add(wire.Join(self._handle.number, (branch._handle.number,), adopt=True))

    @property
    def kv(self) -> StateKV:
        """Hints about when the KV of this state will be needed: `pin`, `expect`, `prefetch`."""
        self._check_open()
        return StateKV(self._record, self._handle.number)

    def drop(self) -> None:
        """Stop all work on this state and its branches; their pages are evicted before all others. Idempotent.

        Nothing more can be appended to the state. Reading an unfinished value raises Cancelled.
        """
        self._drop()
        with suppress(BanyanError):  # the program was stopped anyway
            self._record.flush()

    def _drop(self) -> None:
        if self._is_running_view:
            self._check_open()
        if not self._closed:
            self._closed = "was dropped"
            self._record.add(wire.Drop(self._handle.number, tree=True))


class AbsentState(str):
    """The repr of a state, in a process to which the state was sent. BadProgram: it is used like the state."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def __getitem__(self, name: object) -> NoReturn:
        raise BadProgram(f"a state cannot leave its process, so {self} has no values here; send s[{name!r}] instead")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # other libraries look for such names
                raise AttributeError(name)
            raise BadProgram(f"a state cannot leave its process; send what you need of it instead of {self}")


def with_state(error: E, state: StateBase) -> E:
    """Add the state of a run to an error that the run raised, as `add_state` does. Returns the error."""
    state._record.has_raised = True
    add_state(error, state)
    return error


def add_state(error: BaseException, state: StateBase) -> None:
    """Add a state to an error: as its attribute `state`, and as a note that lists the gens and selects of the run. An
    error that already has a state keeps it: an inner run raised it. An error that refuses attributes, such as a frozen
    dataclass, is not changed."""
    if isinstance(error, Exception) and getattr(error, "state", None) is None:
        lines = calls(state._record)
        n = f"the last {MAX_CALLS} of {len(lines)} calls" if len(lines) > MAX_CALLS else "the calls so far"
        note = [f"error.state is the state of program {state._record.name}; {n}:", *(lines[-MAX_CALLS:] or ["none"])]
        with suppress(Exception):
            error.state = state  # type: ignore[attr-defined]
            error.add_note("\n  ".join(note))


class StateRead:
    """A `with` block that reads values of a state. After the body has ended, an error that the block raises gets the
    state; before that, `run` adds it to the error with which the body ends. In the body of another program, the error
    gets the state of that program in the same way."""

    __slots__ = ("_state",)

    def __init__(self, state: StateBase) -> None:
        self._state = state

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None and self._state._record.ended.is_closed and CALLER.get() is None:
            add_state(error, self._state)


def _wire_part(leaf: Leaf) -> wire.Part:
    """Convert a leaf that is not a gen or select to a message part."""
    if type(leaf) is RoleBegin:
        return wire.BeginTurn(leaf.role)
    if type(leaf) is RoleEnd:
        return _END
    match leaf:
        case LazyValue(number=number):
            return wire.Ref(number)
        case RawExpr(text=text):
            return wire.Raw(text)
        case ImageExpr(data=data, kind=kind):
            return wire.Image(data, kind)
        case ArgumentSlot(i=i):
            return wire.Arg(i)
    raise TypeError(f"{leaf!r} cannot be sent as text")


_END = wire.EndTurn()


def flat(refs: list[Any]) -> Iterator[int]:
    """Yields the numbers in nested lists. (A stack, since branches of branches may nest deeper than Python's calls.)"""
    stack = [iter(refs)]
    while stack:
        for ref in stack[-1]:
            if isinstance(ref, list):
                stack.append(iter(ref))
                break
            yield ref
        else:
            stack.pop()


class StateKV:
    """Hints for the KV that a state has at the time of the call. They never change an output; only a runtime uses them.

    Without hints, the runtime keeps the KV of a waiting state about as long as similar waits took before.
    """

    def __init__(self, record: ProgramRecord, state: int) -> None:
        self._record, self._state = record, state

    def pin(self, ttl: float) -> None:
        """For `ttl` seconds, evict the pages of this KV last, also after the program has ended. 0 unpins them.

        The hint is sent with the next message. If a request cannot run otherwise, pinned pages are evicted too.
        """
        self._add("pin", ttl, wire.CacheHint(self._state, pin=ttl))

    def expect(self, steps: float) -> None:
        """Tell the engine that this KV is needed again in about `steps` engine steps. Of all pages with such a hint,
        those that are needed last are evicted first."""
        self._add("expect", steps, wire.CacheHint(self._state, steps=steps))
        self._record.flush("kv.expect")

    def prefetch(self) -> None:
        """Load pages of this KV from `host_memory` into the free pages of the device."""
        self._record.add(wire.CacheHint(self._state, prefetch=True))
        self._record.flush("kv.prefetch")

    def _add(self, name: str, value: float, op: wire.CacheHint) -> None:
        if not 0 <= value < inf:
            raise BadProgram(f"kv.{name}({value}): it must be a number that is at least 0")
        self._record.add(op)


class Group(Generic[S]):
    """The branches of a fork, in order. Each branch begins with the text and variables of its parent."""

    _instead = "to append the texts of the branches, use join('concat')"

    __slots__ = ("_parent", "_states")

    def __init__(self, states: list[S], parent: StateBase) -> None:
        """Users do not create groups: `fork`, `beam` and `copy` of a state do."""
        self._states, self._parent = states, parent

    def __repr__(self) -> str:
        return f"<{len(self)} branches of program {self._parent._record.name}>"

    def __format__(self, spec: str) -> str:
        raise BadProgram(f"branches have no text for an f-string; {self._instead}")

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[S]:
        return iter(self._states)

    @overload
    def __getitem__(self, i: int) -> S: ...
    @overload
    def __getitem__(self, i: slice) -> list[S]: ...
    def __getitem__(self, i: int | slice) -> S | list[S]:
        return self._states[i]

    def __setitem__(self, i: int, state: S) -> None:
        """Accepts only the state that is at index `i` already: for `group[i] += ...`, Python appends to the state and
        then assigns it to `group[i]` again. BadProgram: `state` is another state."""
        if state is not self._states[i]:
            raise BadProgram(f"branch {i} cannot be replaced; append to it with group[{i}] += ...")

    def __iadd__(self, what: Expression | Branchwise) -> Self:
        """Append to every branch. what: an expression for all; a list or function: branch i gets what[i] or what(i)."""
        if isinstance(what, str | Expr):
            each: list[Expression] = [what] * len(self)
        elif callable(what):
            each = [what(i) for i in range(len(self))]
        elif isinstance(what, list | tuple):
            each = list(what)
            if len(each) != len(self):
                raise BadProgram(
                    f"a list of length {len(each)} was appended to {len(self)} branches; it needs one item for each"
                )
        else:
            raise BadProgram(f"branches take an expression, a list of them or a function, not {type(what).__name__}")
        for state, part in zip(self._states, each, strict=True):
            state._append(part)
        return self

    def join(
        self,
        mode: Literal["gather_variable", "concat", "concate_and_append"] = "gather_variable",
        on_error: OnError = "raise",
    ) -> None:
        """Merge the branches into their parent. Does not wait for them.

        gather_variable: each variable that the parent lacks becomes a list with the value of each branch, or None if a
        branch lacks it. A variable that the parent has stays as it is, with a warning if a branch has another value. If
        a branch failed, reading the variable and `sync()` raise a ForkError; with on_error="collect", the list contains
        that error instead. A branch that was dropped before its value was known counts as failed there; without
        "collect", reading the variable raises Cancelled.
        concat (SGLang: concate_and_append): the parent appends the text that each branch added since the fork, in
        order. Nothing more can be appended to the branches. If a branch failed, the parent fails.
        """
        check_on_error(on_error)
        self._parent._check_open()
        if mode == "gather_variable":
            if kept := self._gather(on_error):
                warn(
                    f"join: the parent does not get the branches' values of {', '.join(map(repr, kept))}, because it "
                    "has a variable of this name; use another name, or read branches[i]"
                )
        elif mode in ("concat", "concate_and_append"):
            if on_error != "raise":
                raise BadProgram(
                    "on_error='collect' needs mode 'gather_variable': a failed branch has no text to append"
                )
            self._concatenate()
        else:
            raise BadProgram(f"join mode is {mode!r}; it must be 'gather_variable' or 'concat'")

    def drop(self) -> None:
        """Stop all work on the branches. Their pages are evicted before all others, and nothing more can be appended to
        them."""
        for state in self._states:
            state.drop()

    def _gather(self, on_error: OnError) -> list[str]:
        """Returns the names of variables that the parent does not get, because it has another value for them."""
        parent = self._parent
        names = dict.fromkeys(name for branch in self._states for name in branch._values)  # in order of appearance
        kept: list[str] = []
        for name in names:
            values = [branch._values.get(name) for branch in self._states]
            if name not in parent._values:
                parent._set(name, JoinedValues(values, on_error == "collect"))
            elif not _is_known(values, parent._values[name]):
                kept.append(name)
        return kept

    def _concatenate(self) -> None:
        parent = self._parent
        for branch in self._states:
            branch._check_open()
            if branch._handle.parent is not parent._handle:
                raise BadProgram("these are branches of a branch, not of this state; adopt one of them instead")
            at_fork, own, now = branch._transcript.role_at_fork, branch._transcript.role, parent._transcript.role
            if not at_fork == own == now:  # the turns of the branch would not fit those of its parent
                role = f"is {own!r} in a branch" if own != now else f"was {at_fork!r} at the fork"
                raise BadProgram(
                    f"the open turn {role} and {now!r} in its parent now; they must be the same to be joined"
                )
        for branch in self._states:
            parent._transcript.own.extend(branch._transcript.own.items)
            branch._closed = "was appended to its parent"
        if self._states:
            parent._record.add(wire.Join(parent._handle.number, tuple(one._handle.number for one in self._states)))


def _is_known(values: list[Any], value: Any) -> bool:
    """Whether the values of branches are that of their parent, which they inherited or which was joined from them."""
    known = value.values if isinstance(value, JoinedValues) else ()
    return all(one is value for one in values) or [*map(id, values)] == [*map(id, known)]


def check_on_error(on_error: object) -> None:
    """BadProgram: `on_error` has an unknown value."""
    if on_error not in ("raise", "collect"):
        raise BadProgram(f"on_error is {on_error!r}; it must be 'raise' or 'collect'")
