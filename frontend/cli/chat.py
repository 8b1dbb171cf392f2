"""`banyan chat`: a conversation in this terminal. It is one program, so a message contains only the new turn."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from rich.console import Console

from banyan.lang.expr import assistant, gen, role, user
from banyan.lang.program import function
from banyan.lang.state import State
from banyan.runtime.errors import ProgramError

if TYPE_CHECKING:
    from banyan.backends.runtime import ServerBackend

Lines = SimpleQueue[str | None]
"""The user's lines; None ends the program that reads them."""
HELP = "/reset starts anew · /history shows all turns · /help · /quit (or Ctrl-D) · Ctrl-C stops a reply"


@function
def _conversation(s: State, turns: list[tuple[str, str]], lines: Lines, options: dict[str, Any]) -> None:
    """Append the turns so far; then, for each line, a user's turn and a reply, in the variables reply0, reply1, ..."""
    for name, text in turns:
        s += role(name, text)
    for i, text in enumerate(iter(lines.get, None)):
        s += user(text)
        s += assistant(gen(f"reply{i}", **options))


class Chat:
    """A conversation: its turns as (role, text), and the program whose KV the server holds."""

    def __init__(self, runtime: ServerBackend, system: str, **options: Any) -> None:
        """options: of each `gen`."""
        self.runtime, self.system, self.options = runtime, system, options
        self.console = Console(highlight=False, soft_wrap=True)
        self.lines: Lines = SimpleQueue()
        self.reset()

    def reset(self) -> None:
        """Forget all turns but the system prompt."""
        self.turns = [("system", self.system)] if self.system else []
        self.restart()

    def restart(self) -> None:
        """Start a new program with the turns so far. Most of their KV is still in the server's tree."""
        self.lines.put(None)
        self.lines = SimpleQueue()
        self.names = (f"reply{i}" for i in count())
        self.state = _conversation.run(self.turns[:], self.lines, self.options, stream=True, backend=self.runtime)

    def turn(self, text: str) -> None:
        """Stream the reply to stdout, then print token counts. Ctrl-C keeps the part of the reply that was printed."""
        start, reply, name = time.perf_counter(), "", next(self.names)
        try:
            self.lines.put(text)
            for piece in self.state.text_iter(name):
                reply += piece
                print(piece, end="", flush=True)
            print()
            self.turns += [("user", text), ("assistant", reply)]
            meta, seconds = self.state.get_meta_info(name), time.perf_counter() - start
            n, prompt, cached = meta["completion_tokens"], meta["prompt_tokens"], meta["cached_tokens"]
            rest = f"prompt {prompt}: {cached} cached, {prompt - cached} computed"
            self.console.print(f"[dim]{n} tokens, {n / seconds:.0f} tokens/s · {rest}[/]")
        except KeyboardInterrupt:
            self.console.print("[dim] ... stopped[/]")
            self.turns += [("user", text), ("assistant", reply)]
            self.state.cancel()
            self.restart()
        except ProgramError as e:  # such as PromptTooLong; the turns before this one are still valid
            self.console.print(f"{e.message}; /reset starts anew", style="red", markup=False)
            self.restart()

    def show_history(self) -> None:
        for name, text in self.turns:
            self.console.print(f"[bold]{name}[/]", end="  ")
            self.console.print(text, markup=False)


def talk(runtime: ServerBackend, *, system: str, temperature: float, max_tokens: int) -> int:
    """Read turns from stdin until /quit or end of file."""
    chat = Chat(runtime, system, temperature=temperature, max_tokens=max_tokens)
    welcome = runtime.welcome
    chat.console.print(f"[bold]{welcome.model}[/], context {welcome.max_context} tokens\n[dim]{HELP}[/]")
    commands: dict[str, Callable[[], None]] = {"/reset": chat.reset, "/history": chat.show_history}
    try:
        while (text := input("\n> " if sys.stdin.isatty() else "").strip()) != "/quit":
            if text.startswith("/"):
                commands.get(text, lambda: chat.console.print(HELP))()
            elif text:
                chat.turn(text)
    except EOFError:
        pass
    finally:
        chat.lines.put(None)  # ends the program, and the thread of its body
    return 0
