"""State and Branches: the states of a `def` program. Reading a value blocks until the value is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from banyan.execution.async_body import refuse_to_block
from banyan.execution.program_record import CALLER
from banyan.execution.text_pieces import partials, pieces
from banyan.lang import branch_choice
from banyan.lang.lazy_value import check_wait, dist, meta_info, read, read_object, tool_calls
from banyan.lang.state_base import Group, OnError, StateBase, StateRead
from banyan.tools.toolbox import ToolCall
from banyan.views.state_views import page, text_so_far
from banyan.views.transcript import Renderer, messages

if TYPE_CHECKING:
    from banyan.runtime.future import ValueFuture
    from banyan.runtime.protocol import wire
    from banyan.views.run_page import Page

C = TypeVar("C", bound=branch_choice.BranchChoice[Any])
T = TypeVar("T")


class State(StateBase):
    """The running prompt of a program, which `s += ...` extends, and its variables, which `s["x"]` reads.

    `+=` takes an expression, a string, or a list of them. It records them and does not wait; if it raises, it records
    nothing. Reading waits until the value is known. If the value's gen failed, reading raises a ProgramError that names
    the program, the line and the gen. Where the wait would block the event loop of an `async def` program, which called
    this one, reading raises BadProgram instead.
    """

    __slots__ = ()

    def __str__(self) -> str:
        """The whole prompt, as `text()` returns it. If a part of it failed, only the text that is known, with a note in
        place of each missing output. After the run has raised, as for `error.state`, this does not wait. While the body
        runs, and in the body of another program, an error is raised instead, so that no note gets into a prompt."""
        if not self._record.has_raised:
            try:
                return self.text()
            except Exception:
                if not self._record.ended.is_closed or CALLER.get() is not None:
                    raise
        return text_so_far(self._record, self._handle.number, self._streamed())

    # ---- variables ---------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The value of a variable: a str; a list, for n > 1 or after a join; or the object that `s[name] = ...` stored.

        UnknownVariable (a KeyError): there is no such variable.
        """
        with StateRead(self):
            return read(self._lookup(name))

    get_var = __getitem__

    @overload
    def value(self, name: str) -> Any: ...
    @overload
    def value(self, name: str, type: type[T]) -> T: ...
    @overload
    def value(self, name: str, type: Any) -> Any: ...
    def value(self, name: str, type: Any = None) -> Any:
        """The value of a variable as an object of its gen's `type`. Without a type, the same as `s[name]`.

        type: the type of the object, as for `gen(type=...)`; a type checker then knows it. If the gen had another type
        or none, its text is converted. After a join, a variable holds one value of type T for each branch; read it as
        list[T]. BadOutput: the text is not a valid object, for example because max_tokens cut it.
        """
        with StateRead(self):
            return read_object(self._lookup(name), type)

    def partials(self, name: str) -> Iterator[Any]:
        """Yields the growing object of a gen with a type, in a program that streams. The last item is the final object.

        Objects and lists contain the items so far, and the last string or number may be incomplete. A gen with
        `retries` may start over. The value of a type that is not written as JSON comes in one piece.
        """
        with StateRead(self):
            yield from partials(self._lookup(name))  # `yield from`, so that the iterator keeps this state alive

    def get_meta_info(self, name: str) -> Any:
        """A dict that says how the text of a variable was generated; None for a variable that was not generated.

        All dicts have id, finish_reason, prompt_tokens, completion_tokens, cached_tokens, time_to_first_token and
        e2e_latency. The two times are seconds, from the moment when all earlier ops of the state were done to the first
        and to the last output token. If there is no output token, both are the time until the end.

        A gen also has drafts and spec_verify_ct. With return_logprob, it has output_token_logprobs,
        output_token_logprobs_length, output_top_logprobs, input_token_logprobs and input_top_logprobs. With tools or
        retries, it has `rounds`, a list with the token counts of each turn or attempt; prompt_tokens, cached_tokens and
        completion_tokens are the sums over this list.

        A select also has normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs and weights. All four
        are None if the backend reports no scores.

        Returns a list of dicts for n > 1 and after a join.
        """
        with StateRead(self):
            return meta_info(self._lookup(name))

    def tool_calls(self, name: str) -> list[ToolCall]:
        """The tool calls of a gen, in order, with their results. Also works for a gen that failed."""
        return tool_calls(self._lookup(name))  # type: ignore[no-any-return]

    def dist(self, name: str) -> dict[str, float]:
        """The probability that the model gives to the text of each choice of a select. The probabilities are scaled to
        add up to 1; `choices_method` and `temperature` do not affect them.

        Unsupported: the backend does not report the scores of choices.
        """
        with StateRead(self):
            return dist(self._lookup(name))  # type: ignore[no-any-return]

    def _lookup(self, name: str) -> Any:
        if name not in self._values and self._is_running_view:
            for _ in self._names:  # raises what the body raised
                if name in self._values:
                    break
        return self._stored(name)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """The whole prompt as the server has it, including role markers."""
        with StateRead(self):
            self._await_body()
            return self._read(None).text()

    def messages(self) -> list[dict[str, Any]]:
        """The finished turns as `{"role": ..., "content": ...}`. White space at the start of a content is removed."""
        with StateRead(self):
            self._await_body()
            return messages(self._transcript, self._record.backend.welcome.chat)

    def sync(self) -> None:
        """Wait until all gens of this state and of joined branches are done. Raises the first error.

        A text that is not valid for the type of its gen is no error here, only where `value` reads it.
        """
        with StateRead(self):
            self._sync()

    def _sync(self) -> None:
        self._await_body()
        refs = self._lazy_values()
        if not all(ref.is_done for ref in refs):
            self._record.flush()
        self._check_values(refs, self._joined)

    def error(self) -> BaseException | None:
        """Wait until all gens of this state and of joined branches are done. Returns the error that `sync` would raise,
        or None if there is none."""
        if self._record.error is not None:
            self._record.error_flag.is_seen = True
            return self._record.error
        if self._is_running_view:  # here: the error of a wait that is refused is not one of the run
            refuse_to_block("the end of the body", self._record.name)
        for value in (*self._lazy_values(), *self._joined):
            check_wait(value)
        try:
            self._sync()
        except BaseException as e:
            if isinstance(e, Exception) or e is self._record.error:
                return e
            raise  # Ctrl-C while waiting
        return None

    def show(self, path: str | Path | None = None) -> Page:
        """Waits for the gens of this state and its branches, and returns an HTML page: the origin of each part of each
        prompt, the tree of branches, times and usage. In a notebook the page displays itself.

        path: also write the page to this file, which needs no other files.
        """
        self._settle()
        return page(self._record, self._handle.number, path)

    def _settle(self) -> None:
        """Wait for all gens of this state and its branches. Errors of the run are ignored."""
        if self._is_running_view:
            refuse_to_block("the end of the body", self._record.name)
        unknown: list[ValueFuture[wire.Value]] = []
        with suppress(Exception):  # the body raised, or a message was never sent and its values will never be known
            self._await_body()
            self._record.flush()
            unknown += (future for future in self._futures() if not future.done())
        if unknown:
            refuse_to_block("an output", self._record.name)
        with suppress(Exception):
            for future in unknown:
                future.exception()  # waits

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Yields the text of a variable, or of the whole state, in pieces as it is generated; in one piece if the
        program does not stream, or if the gen has `retries`. An error is raised after the last piece."""
        with StateRead(self):
            if var_name is not None:
                yield from pieces(self._lookup(var_name))
            elif not self._record.options.stream:
                yield from pieces(self._read(None))
            else:
                self._record.has_reader = True
                render = Renderer(self._record.backend.welcome.chat)
                for item in self._transcript.follow(self._is_view):
                    yield from pieces(render(item), whole=True)

    def _await_body(self) -> None:
        self._note_reader()
        if self._is_view:
            for _ in self._record.ended:
                pass

    # ---- branching ---------------------------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: Any = None) -> Branches:
        """Create `size` branches, which start with this state's text, open turn and variables. They share its KV.
        position_ids_offset: ignored, as in SGLang."""
        return Branches(self._forked(size, position_ids_offset), self)

    def beam(
        self,
        k: int,
        step: branch_choice.Step,
        *,
        depth: int = 1,
        width: int | None = None,
        key: Callable[[State], Any] | None = None,
    ) -> Branches:
        """Beam search. Returns the best `k` branches after `depth` steps, the best first.

        Each step forks every branch `width` (default: k) times, appends `step` to each fork, and keeps the best `k`.
        step: an expression, or a function that returns an expression for a branch. key: a function that returns the
        score of a branch; default: the log-probability of the branch's outputs and choices.
        """
        width = branch_choice.checked_width(k, depth, width)
        states = [self]
        for _ in range(depth):
            states = Branches(branch_choice.expanded(states, step, width, key is None), self)._top(k, key, "collect")
        return Branches(states, self)


class Branches(Group[State]):
    """The branches of a fork. `best`, `first` and `vote` choose among them: they wait, and drop the other branches."""

    __slots__ = ()

    def as_completed(self) -> Iterator[State]:
        """Yields each branch when it has finished or failed (see its `error()`). Drops no branch."""
        return (self._states[i] for i in branch_choice.finishing(self._states))

    def best(self, key: Callable[[State], Any], on_error: OnError = "raise") -> State:
        """The branch with the greatest `key(branch)`; among equals the first one. The others are dropped. A branch with
        the score nan is the last; BadProgram: all are nan, one is None, or they cannot be ordered.

        on_error: with "raise", a failed branch raises a ForkError. With "collect", a failed branch cannot win, and
        ForkError is raised only if all branches fail. A branch for which the key raises BadOutput or ForkError counts
        as failed.
        """
        return self._top(1, key, on_error)[0]

    @overload
    def first(self) -> State: ...
    @overload
    def first(self, k: int) -> list[State]: ...
    def first(self, k: int | None = None) -> State | list[State]:
        """The branch that finishes first, or the first `k` in the order in which they finish. The others are dropped.

        A branch also counts as failed if the text of a variable is not valid for its type. But if the program has read
        the variable and handled the BadOutput, this variable does not count. ForkError: fewer than `k` branches did not
        fail.
        """
        winners = self._decide(branch_choice.Race(self._states, 1 if k is None else k)).winners()
        return winners[0] if k is None else winners

    def vote(self, name: str, key: Callable[[Any], Any] | None = None, on_error: OnError = "raise") -> State:
        """Returns a branch whose variable `name` has the most frequent value, and drops the others. Waits only until
        this value is certain. Of the branches that have this value by then, returns the first.

        key: a function that turns a value into what is compared (default: strips white space from the ends of a text).
        on_error: with "raise", a failed branch raises a ForkError; with "collect", it has no vote, and ForkError is
        raised only if all branches fail.
        """
        return self._decide(branch_choice.Ballot(self._states, name, key, on_error)).winner()

    def _decide(self, choice: C) -> C:
        any(choice.add(i) for i in branch_choice.finishing(self._states))
        return choice

    def _top(self, k: int, key: Callable[[State], Any] | None, on_error: OnError) -> list[State]:
        ranking = branch_choice.Ranking(self._states, on_error)
        for i in branch_choice.finishing(self._states):
            if not ranking.has_failed(i):
                with ranking.reading(i):
                    ranking.scores[i] = (key or branch_choice.likelihood)(self._states[i])
        return ranking.winners(k)
