"""A running prompt: what a program appends, names and branches. Nothing here waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Literal, Self, TypeVar, overload

from msgspec.structs import replace

from banyan.execution.feed import Feed
from banyan.execution.program_record import ProgramRecord, StateHandle, part
from banyan.execution.run_limits import keep_time
from banyan.execution.source_line import source_line
from banyan.execution.text_pieces import pieces_async
from banyan.lang.expr import (
    DRAWS,
    NOTHING,
    Expression,
    GenExpr,
    ImageExpr,
    Leaf,
    RoleBegin,
    RoleEnd,
    SelectExpr,
    Seq,
    checked_name,
    leaves,
)
from banyan.lang.expr import role as turn
from banyan.lang.group import Group
from banyan.lang.lazy_value import JoinedValues, LazyValue, Thought, read
from banyan.lang.reasoning import SUFFIX
from banyan.lang.sampling import mix
from banyan.lang.state_kv import StateKV
from banyan.runtime.errors import BadProgram, BanyanError, Cancelled, ToolError, UnknownVariable, Unsupported
from banyan.runtime.future import ValueFuture
from banyan.runtime.protocol import wire
from banyan.views.state_views import snippet, usage
from banyan.views.transcript import Item, Renderer, Transcript
from banyan.views.usage import Usage

P = TypeVar("P", bound="StateBase")


class StateBase:
    """What all states share: the running prompt of a program, which `s += ...` makes longer, and its variables.

    `State` is one that waits where it is read; `AsyncState` is awaited there.
    """

    _instead = "append what you need of it, such as s['x']; a program goes on with a state by prog.inline(s, ...)"

    __slots__ = (
        "__weakref__",
        "_closed",
        "_is_handle",
        "_lane",
        "_names",
        "_numbers",
        "_record",
        "_seed",
        "_transcript",
        "_values",
    )

    def __init__(self, record: ProgramRecord, lane: StateHandle, seed: int | None, transcript: Transcript) -> None:
        """For programs and forks to make, not for users."""
        self._record, self._lane, self._seed, self._transcript = record, lane, seed, transcript
        self._values: dict[str, Any] = {}
        self._names: Feed[str] = Feed()  # of variables as they are set, for those who wait for one
        self._numbers: list[Any] = []  # those of its gens and, as lists inside it, of its branches' gens
        self._closed = ""  # what became of it, if it takes no more text
        self._is_handle = False  # for those outside of a body that runs on a thread of its own

    def __repr__(self) -> str:
        variables = ", ".join(self._values) or "none"
        return f"<State of program {self._record.name}, variables: {variables}>"

    @property
    def _is_watched(self) -> bool:
        """Whether we look on while the body runs: what is not there yet may still come."""
        return self._is_handle and not self._record.ended.is_closed

    def _as(self, kind: type[P]) -> P:
        """The same prompt, in the hands of others."""
        view = kind.__new__(kind)
        for slot in StateBase.__slots__[1:]:
            setattr(view, slot, getattr(self, slot))
        return view

    @property
    def index(self) -> int | None:
        """Which item of its batch it is; None outside of batches."""
        return self._record.index

    # ---- appending -------------------------------------------------------------------------------------------------

    def __iadd__(self, what: Expression) -> Self:
        self._append(what)
        return self

    def _append(self, what: Expression) -> None:
        self._check_open()
        flat = leaves(what)
        role, samplings = self._checked(flat)
        parts: list[wire.Part] = []
        items: list[Item] = []
        line = ""
        for leaf in flat:
            if isinstance(leaf, str):
                parts.append(leaf)
            elif isinstance(leaf, DRAWS):
                self._record.text(self._lane, parts)
                parts, line = [], line or source_line()
                leaf = self._generate(leaf, line, samplings)
            else:
                parts.append(part(leaf))
            items.append(leaf)
        self._record.text(self._lane, parts)
        self._transcript.own.extend(items)
        self._transcript.role = role

    def _check_open(self) -> None:
        if self._is_watched:
            raise BadProgram("this state belongs to a program that still runs; it can be read, but not appended to")
        if self._closed:
            raise BadProgram(f"this branch {self._closed}; it takes no more text")

    def _checked(self, flat: list[str | Leaf]) -> tuple[str | None, Iterator[wire.Sampling]]:
        """The turn that is open after `flat`, and how its gens draw. All that can be refused is refused here, before
        anything is recorded. BadProgram: turns in turns, or the end of one that is not open."""
        role = self._transcript.role
        samplings: list[wire.Sampling] = []
        for leaf in flat:
            if isinstance(leaf, str):
                continue
            if isinstance(leaf, RoleBegin):
                if role is not None:
                    raise BadProgram(f"a turn of {leaf.role!r} begins inside a turn of {role!r}; end that first")
                role = leaf.role
            elif isinstance(leaf, RoleEnd):
                if role != leaf.role:
                    raise BadProgram(f"a turn of {leaf.role!r} ends, but the open one is {role!r}")
                role = None
            elif isinstance(leaf, GenExpr):
                samplings.append(leaf.sampling(self._record.sampling))
                if leaf.tools is not None:
                    self._check_tools(role)
            elif isinstance(leaf, LazyValue) and leaf.record is not self._record:
                raise BadProgram(f"{leaf!r} is of another program; append its value: state[{leaf.name!r}]")
            elif isinstance(leaf, ImageExpr) and not self._record.backend.welcome.images:
                raise Unsupported(f"image: the model {self._record.backend.welcome.model} takes text alone")
        return role, iter(samplings)

    def _check_tools(self, role: str | None) -> None:
        if role != "assistant":
            raise BadProgram("a gen with tools stands in a turn of the assistant: bn.assistant(bn.gen(..., tools=...))")
        chat = self._record.backend.welcome.chat
        if chat is not None and chat.no_calls:
            raise ToolError(f"tools: {chat.no_calls}", program=self._record.name)

    def _generate(self, leaf: GenExpr | SelectExpr, line: str, samplings: Iterator[wire.Sampling]) -> LazyValue:
        record = self._record
        ref = self._transcript.last = LazyValue(record, self._lane, self._transcript.last, leaf.name or "", line)
        self._numbers.append(ref.number)
        self._transcript.n_draws += 1
        seed = mix(self._seed, self._transcript.n_draws)
        if isinstance(leaf, SelectExpr):
            record.add(self._select_op(leaf, ref, seed))
            self._keep_time(ref, leaf.timeout)
        else:
            record.add(self._gen_op(leaf, ref, next(samplings), seed))
            if record.limits is not None:
                record.limits.watch(ref)
            self._keep_time(ref, leaf.options.timeout)
        if record.events is not None:
            record.events.watch(ref, partial(usage, record, 0))
        if leaf.name is not None:
            self._set(leaf.name, ref)
            if isinstance(leaf, GenExpr) and leaf.reasoning is not None:
                self._set(leaf.name + SUFFIX, Thought(ref))
        return ref

    def _gen_op(self, leaf: GenExpr, ref: LazyValue, sampling: wire.Sampling, seed: int | None) -> wire.Gen:
        run, wishes = self._record.options, leaf.options
        seed = seed if wishes.seed is None else wishes.seed
        if seed is not None:
            sampling = replace(sampling, seed=seed)
        with_text = wishes.return_text_in_logprobs
        ref.with_text = bool(run.return_text_in_logprobs if with_text is None else with_text)
        ref.answer = leaf.answer
        tools = None if leaf.tools is None else leaf.tools.wire
        if tools is not None:
            from banyan.tools.caller import Caller  # here: it loads asyncio, and most programs have no tools

            ref.caller = Caller(self._record, self._lane.number, ref.number, ref.line, leaf.tools)
        retries = 0 if leaf.answer is None else (leaf.retries if leaf.retries is not None else run.retries) or 0
        if retries:
            from banyan.tools.checks import Checker  # here, as above

            ref.checker = Checker(self._record, self._lane.number, ref.number, leaf.answer)
        if run.stream:
            ref.stream()
        return wire.Gen(
            self._lane.number,
            ref.number,
            sampling,
            run.stream,
            ref.name,
            ref.line,
            tools,
            leaf.reasoning,
            retries,
            timeout=wishes.timeout or 0.0,
            budget=wishes.budget or 0,
            priority=wishes.priority,
            deadline=wishes.deadline or 0.0,
        )

    def _keep_time(self, ref: LazyValue, timeout: float | None) -> None:
        if timeout is not None:
            keep_time(ref, timeout, [item for item in self._transcript if isinstance(item, LazyValue)])

    def _select_op(self, leaf: SelectExpr, ref: LazyValue, seed: int | None) -> wire.Select:
        seed = seed if leaf.seed is None else leaf.seed
        ref.method, ref.choices = leaf.method, leaf.choices
        if leaf.decide is not None:
            from banyan.tools.checks import Chooser  # here, as above

            at = self._lane.number, ref.number
            ref.chooser = Chooser(self._record, *at, leaf.choices, leaf.decide, ref.name, ref.line)
        return wire.Select(
            self._lane.number,
            ref.number,
            leaf.choices,
            leaf.method,
            leaf.temperature,
            seed,
            ref.name,
            ref.line,
            leaf.timeout or 0.0,
            client_decides=leaf.decide is not None,
        )

    # ---- turns -----------------------------------------------------------------------------------------------------

    @overload
    def role(self, name: str, expr: None = None) -> AbstractContextManager[Self]: ...
    @overload
    def role(self, name: str, expr: Expression) -> Seq: ...
    def role(self, name: str, expr: Expression | None = None) -> AbstractContextManager[Self] | Seq:
        """Append a turn: of `expr`, at once, or of what a `with` block appends. It ends also where the block raises."""
        if expr is None:
            return self._turn(name)
        self._append(turn(name, expr))
        return NOTHING  # so that `s += s.user("x")` is one turn, not two

    @contextmanager
    def _turn(self, name: str) -> Iterator[Self]:
        begin, *_, end = turn(name).parts
        self._append(begin)
        try:
            yield self
        except BaseException:
            if self._transcript.role == name:
                self._append(end)
            raise
        self._append(end)

    @overload
    def system(self, expr: None = None) -> AbstractContextManager[Self]: ...
    @overload
    def system(self, expr: Expression) -> Seq: ...
    def system(self, expr: Expression | None = None) -> AbstractContextManager[Self] | Seq:
        """`role("system", expr)`."""
        return self.role("system", expr)

    @overload
    def user(self, expr: None = None) -> AbstractContextManager[Self]: ...
    @overload
    def user(self, expr: Expression) -> Seq: ...
    def user(self, expr: Expression | None = None) -> AbstractContextManager[Self] | Seq:
        """`role("user", expr)`."""
        return self.role("user", expr)

    @overload
    def assistant(self, expr: None = None) -> AbstractContextManager[Self]: ...
    @overload
    def assistant(self, expr: Expression) -> Seq: ...
    def assistant(self, expr: Expression | None = None) -> AbstractContextManager[Self] | Seq:
        """`role("assistant", expr)`."""
        return self.role("assistant", expr)

    # ---- variables -------------------------------------------------------------------------------------------------

    def __setitem__(self, name: str, value: Any) -> None:
        self._set(checked_name(name), value)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def set_var(self, name: str, value: Any) -> None:
        """`s[name] = value`."""
        self[name] = value

    def ref(self, name: str) -> Expression:
        """The text of a variable, to be appended to any state of this program, without waiting for it.

        Where the value is not known yet, the server puts it in when it is.
        """
        value = self._lookup(name)
        if isinstance(value, LazyValue | str):
            return value
        raise BadProgram(f"variable {name!r} holds no single text; append what you need of s[{name!r}]")

    @contextmanager
    def var_scope(self, name: str) -> Iterator[Self]:
        """`with s.var_scope("x"): ...` makes all text that the block appends, markers included, variable x."""
        self._check_open()
        checked_name(name)
        mark = self._record.new_marks(1)
        self._record.add(wire.Mark(self._lane.number, mark))
        try:
            yield self
        finally:
            self._set(name, self._read(mark, name))

    def _set(self, name: str, value: Any) -> None:
        self._values[name] = value
        self._names.put(name)

    def _lookup(self, name: str) -> Any:
        return self._found(name)

    async def _lookup_async(self, name: str) -> Any:
        if name not in self._values and self._is_watched:
            async for _ in self._names:
                if name in self._values:
                    break
        return self._found(name)

    def _found(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            if self._record.error is not None:  # the body never got there
                raise self._record.error from None
            have = ", ".join(map(repr, self._values)) or "none"
            raise UnknownVariable(
                f"there is no variable {name!r}; there are: {have}", program=self._record.name, line=source_line()
            ) from None

    @property
    def _joined(self) -> list[JoinedValues]:
        """The variables of branches that were joined."""
        return [value for value in self._values.values() if isinstance(value, JoinedValues)]

    def _check_joined(self) -> None:
        """Raise what failed in a branch that was joined; waits for what is not known yet."""
        for value in self._joined:
            try:
                read(value)
            except Cancelled:
                if self._record.failure is not None:
                    raise  # else it was dropped, and nobody misses it

    def cancel(self) -> None:
        """Stop what the program still does on the server. What is not finished raises Cancelled where it is read.

        A state that nobody holds any more does this by itself.
        """
        self._record.stop(Cancelled("the program was cancelled"))

    def _futures(self) -> list[ValueFuture[wire.Value]]:
        """Those of all its gens and of its branches' gens."""
        return [self._record.program.future(number) for number in _flat(self._numbers)]

    def _usage(self) -> Usage:
        return usage(self._record, self._lane.number)

    def _repr_html_(self) -> str:
        """For notebooks: what is known by now. Never waits."""
        return snippet(self._record, self._lane.number)

    @overload
    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: Literal[False] = False
    ) -> AsyncIterator[str]: ...
    @overload
    def text_async_iter(
        self, var_name: str | None = None, *, return_meta_data: Literal[True]
    ) -> AsyncIterator[tuple[str, Any]]: ...
    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """`text_iter` for an event loop, which it never holds up. With meta data: pairs of a piece and the meta info.

        Of a piece of a gen it is what is known by then (id, completion_tokens, log-probabilities so far, and None as
        finish_reason); a gen that streams ends with "" and all of `get_meta_info`. Of text that was not generated it is
        None.
        """
        async for text, meta in self._pairs_async(var_name):
            if return_meta_data:
                yield text, meta
            elif text:
                yield text

    async def _pairs_async(self, name: str | None) -> AsyncIterator[tuple[str, Any]]:
        if name is not None or not self._record.options.stream:
            value = self._read(None) if name is None else await self._lookup_async(name)
            async for pair in pieces_async(value):
                yield pair
            return
        render = Renderer(self._record.backend.welcome.chat)
        async for item in self._transcript.follow_async(self._is_handle):
            async for pair in pieces_async(render(item), whole=True):
                yield pair

    def _read(self, mark: int | None, name: str = "") -> LazyValue:
        ref = LazyValue(self._record, self._lane, self._transcript.last, name, source_line())
        self._record.add(wire.Read(self._lane.number, ref.number, mark))
        return ref

    # ---- branching -------------------------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: None = None) -> Group[Self]:
        """`size` states that begin with all that this one has: text, open turn, variables. None of it is sent again."""
        return Group(self._forked(size, position_ids_offset), self)

    def _forked(self, size: int, position_ids_offset: None = None) -> list[Self]:
        self._check_open()
        if position_ids_offset is not None:
            raise Unsupported("position_ids_offset: a branch goes on at the position of its parent; leave it out")
        if size < 1:
            raise BadProgram(f"a fork of {size} branches; it needs at least one")
        self._transcript.n_draws += 1
        children = [self._branch(i) for i in range(size)]
        numbers = tuple(child._lane.number for child in children)
        self._record.add(wire.Fork(self._lane.number, numbers))
        if self._record.events is not None:
            self._record.events.forked(self._lane.number, numbers)
        return children

    @contextmanager
    def copy(self, position_ids_offset: None = None) -> Iterator[Self]:
        """`with s.copy() as t: ...`: a fork of one, joined at the end of the block. Variables come as lists of one."""
        group = self.fork(1, position_ids_offset)
        try:
            yield group[0]
        finally:
            group.join()

    def _branch(self, i: int) -> Self:
        lane, seed = self._record.new_lane(self._lane), mix(self._seed, self._transcript.n_draws, i)
        child = type(self)(self._record, lane, seed, Transcript(self._transcript))
        child._values = dict(self._values)
        self._numbers.append(child._numbers)
        return child

    def adopt(self, branch: Self) -> None:
        """Go on as `branch`, with all that it has: text, variables, and its KV, which stays where it is.

        branch: one that was forked from this state, or from such a branch, since this was last appended to. It takes no
        more text. BadProgram: it is none.
        """
        self._check_open()
        branch._check_open()
        items = branch._transcript.since(self._transcript) if branch._record is self._record else None
        if items is None:
            raise BadProgram(
                "only a branch of this state can be adopted, and only while nothing was appended here since its fork"
            )
        for item in items:
            self._transcript.own.put(item)
        self._transcript.go_on_as(branch._transcript)
        self._seed = branch._seed
        for name, value in branch._values.items():
            if name not in self._values or self._values[name] is not value:
                self._set(name, value)
        branch._closed = "was adopted by its parent"
        self._record.add(wire.Join(self._lane.number, (branch._lane.number,), adopt=True))

    @property
    def kv(self) -> StateKV:
        """What becomes of its keys and values while it waits: `pin`, `expect`, `prefetch`."""
        self._check_open()
        return StateKV(self._record, self._lane.number)

    def drop(self) -> None:
        """Stop all work on this state and on its branches, and let their pages go first. Idempotent.

        It takes no more text; what is not finished raises Cancelled where it is read.
        """
        self._drop()
        with suppress(BanyanError):  # then there is nothing left to stop
            self._record.flush()

    def _drop(self) -> None:
        if self._is_watched:
            self._check_open()
        if not self._closed:
            self._closed = "was dropped"
            self._record.add(wire.Drop(self._lane.number, tree=True))


def _flat(numbers: list[Any]) -> Iterator[int]:
    for number in numbers:
        if isinstance(number, list):
            yield from _flat(number)
        else:
            yield number
