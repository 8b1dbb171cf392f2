"""A state: the running prompt of a program and its variables. Appends record; reads wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from banyan.execution.text_pieces import partials, pieces
from banyan.lang.branches import Branches, Step, beam
from banyan.lang.lazy_value import LazyValue, dist, meta_info, read, read_object, tool_calls
from banyan.lang.state_base import StateBase
from banyan.tools.toolbox import ToolCall
from banyan.views.state_views import page, timeline
from banyan.views.transcript import Renderer, messages
from banyan.views.usage import Usage

if TYPE_CHECKING:
    from banyan.views.run_page import Page


class State(StateBase):
    """The running prompt of a program, which `s += ...` makes longer, and its variables, which `s["x"]` reads.

    `+=` takes an expression, a string, or a list of them, records it and returns: nothing waits before a value is read.
    An expression is appended whole or, if there is something wrong with it, not at all.

    What reads (`s["x"]`, `text`, `messages`, `sync` and the others) waits until the value is known, at most as long as
    the runtime lives, and raises what happened instead: a ProgramError names the program, the line and the gen.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return self.text()

    # ---- variables -------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The variable: a str; a list of them for n > 1 and after a join; or what `s[name] = value` put there.

        UnknownVariable (a KeyError): there is none.
        """
        return read(self._lookup(name))

    get_var = __getitem__

    def value(self, name: str) -> Any:
        """The variable as the object that its gen's `type` asked for; else as `s[name]`. A list where that is one.

        BadOutput: the text is no such object, such as one that max_tokens cut.
        """
        return read_object(self._lookup(name))

    def partials(self, name: str) -> Iterator[Any]:
        """The object of a gen with a type, as it grows, in a program that streams; at last the object itself.

        What has come of an object or a list, as a dict or a list; its last string and its last number may still go on.
        Of a gen with `retries` it may begin anew, and what came before does not count. A type that is not written as
        JSON comes in one piece.
        """
        yield from partials(self._lookup(name))  # here: who reads holds the state, and a state that nobody holds ends

    def get_meta_info(self, name: str) -> Any:
        """What is known about how the variable was generated, as a dict; None for one that was not.

        finish_reason, prompt_tokens, completion_tokens, cached_tokens, time_to_first_token and e2e_latency (seconds
        since its turn had come) and, with return_logprob, output_token_logprobs and output_top_logprobs; for a select
        normalized_prompt_logprobs, input_token_logprobs and weights. A list of them for n > 1 and after a join.
        """
        return meta_info(self._lookup(name))

    def tool_calls(self, name: str) -> list[ToolCall]:
        """What the gen with tools called, in order, with what that gave; also of one that failed."""
        return tool_calls(self._lookup(name))  # type: ignore[no-any-return]

    def dist(self, name: str) -> dict[str, float]:
        """What the model gives for each choice of a select: choice -> probability, 1 in sum.

        It is the model's own law over them, the product of the probabilities of their tokens, whatever `choices_method`
        and `temperature` made of it. Unsupported: the backend does not tell.
        """
        return dist(self._lookup(name))  # type: ignore[no-any-return]

    @property
    def ret_value(self) -> Any:
        """What the program's body returned."""
        self._await_body()
        return self._record.ret_value

    def _lookup(self, name: str) -> Any:
        if name not in self._values and self._is_watched:
            for _ in self._names:  # raises what the body raised
                if name in self._values:
                    break
        return self._found(name)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """The whole prompt as the server has it, markers included."""
        self._await_body()
        return self._read(None).text()

    def messages(self) -> list[dict[str, Any]]:
        """The finished turns as `{"role": ..., "content": ...}`, contents stripped on the left."""
        self._await_body()
        return messages(self._transcript, self._record.backend.welcome.chat)

    def sync(self) -> None:
        """Wait until all that was appended is done, also in branches that were joined. Raises the first error."""
        self._await_body()
        refs = [item for item in self._transcript if isinstance(item, LazyValue)]
        if not all(ref.is_done for ref in refs):
            self._record.flush()
        for ref in refs:
            ref.wait()
        self._check_joined()

    def error(self) -> BaseException | None:
        """Wait as `sync` does, and give what it would raise, or None."""
        if self._record.error is not None:
            self._record.notice.is_given = True
            return self._record.error
        try:
            self.sync()
        except BaseException as e:
            if isinstance(e, Exception) or e is self._record.error:
                return e
            raise  # Ctrl-C while we waited
        return None

    @property
    def usage(self) -> Usage:
        """Tokens of all gens of this state and its branches, summed and one by one.

        Waits for them; what failed or was stopped counts nothing.
        """
        self._settle()
        return self._usage()

    def timeline(self, path: str | Path | None = None) -> dict[str, Any]:
        """When the body, the gens of this state and its branches, and tools ran, as a trace in Chrome's JSON format.

        Written to `path` too, if there is one, to be opened in https://ui.perfetto.dev. Waits as `usage` does.
        """
        self._settle()
        return timeline(self._record, self._lane.number, path)

    def show(self, path: str | Path | None = None) -> Page:
        """A page of HTML, complete in itself: what of each prompt was cached, computed and generated, the tree of the
        branches, where the time went, and the usage of each gen.

        Written to `path` too, if there is one; in a notebook it shows itself. Waits as `usage` does, and a few seconds
        for the tokens.
        """
        self._settle()
        return page(self._record, self._lane.number, path)

    def _settle(self) -> None:
        """Wait for all gens of this state and its branches, whatever becomes of them."""
        with suppress(Exception):  # a body that raised, or what was not sent and will never be known
            self._await_body()
            self._record.flush()
            for future in self._futures():
                future.exception()  # waits for it

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text as it comes, of one variable or of the whole state; in one piece if the program does not stream.

        That of a gen with `retries` comes in one piece: what was shown could not be taken back. Any number of readers,
        each from the start. Raises, where the text breaks off, what broke it.
        """
        if var_name is not None:
            yield from pieces(self._lookup(var_name))
        elif not self._record.options.stream:
            yield from pieces(self._read(None))
        else:
            render = Renderer(self._record.backend.welcome.chat)
            for item in self._transcript.follow(self._is_handle):
                yield from pieces(render(item), whole=True)

    def _await_body(self) -> None:
        if self._is_handle:
            for _ in self._record.ended:
                pass

    # ---- branching -------------------------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: None = None) -> Branches:
        """`size` states that begin with all that this one has: text, open turn, variables. None of it is sent again."""
        return Branches(self._forked(size, position_ids_offset), self)

    def beam(
        self,
        k: int,
        step: Step,
        *,
        depth: int = 1,
        width: int | None = None,
        key: Callable[[State], Any] | None = None,
    ) -> Branches:
        """Beam search over steps of any size: the best `k` branches after `depth` steps, the best first.

        In each step every branch that was kept is forked `width` (k) times, `step` is appended, an expression or a
        function from the branch to one, and the best `k` of all stay; the others are dropped. key: what a branch is
        worth; without one, the log-probability of all that was generated on its way. Go on with `adopt(beams[0])`.
        """
        return beam(self, k, step, depth, k if width is None else width, key)
