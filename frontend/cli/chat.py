"""`banyan chat`: a conversation in this terminal. One program holds all of it: a turn sends only its own words."""

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
"""What the user says, line by line; None ends the program that reads them."""
HELP = "/reset starts anew · /history shows all turns · /help · /quit (or Ctrl-D) · Ctrl-C stops a reply"


@function
def _conversation(s: State, turns: list[tuple[str, str]], lines: Lines, options: dict[str, Any]) -> None:
    """The turns so far, then each line that comes, as a user's turn, and its reply: variables reply0, reply1, ..."""
    for name, text in turns:
        s += role(name, text)
    for i, text in enumerate(iter(lines.get, None)):
        s += user(text)
        s += assistant(gen(f"reply{i}", **options))


class Chat:
    """One conversation: its turns as (role, text), and the program on the server that holds them as KV."""

    def __init__(self, runtime: ServerBackend, system: str, **options: Any) -> None:
        self.runtime, self.system, self.options = runtime, system, options
        self.console = Console(highlight=False, soft_wrap=True)
        self.lines: Lines = SimpleQueue()
        self.reset()

    def reset(self) -> None:
        self.turns = [("system", self.system)] if self.system else []
        self.resume()

    def resume(self) -> None:
        """A fresh program with the turns so far; what the tree still holds of them is not computed again."""
        self.lines.put(None)
        self.lines = SimpleQueue()
        self.names = (f"reply{i}" for i in count())
        self.state = _conversation.run(self.turns[:], self.lines, self.options, stream=True, backend=self.runtime)

    def say(self, text: str) -> None:
        """One turn: stream the reply to stdout, then a line of counts. Ctrl-C keeps what was said until then."""
        start, said, name = time.perf_counter(), "", next(self.names)
        try:
            self.lines.put(text)
            for piece in self.state.text_iter(name):
                said += piece
                print(piece, end="", flush=True)
            print()
            self.turns += [("user", text), ("assistant", said)]
            self._count(self.state.get_meta_info(name), time.perf_counter() - start)
        except KeyboardInterrupt:
            self.console.print("[dim] ... stopped[/]")
            self.turns += [("user", text), ("assistant", said)]
            self.state.cancel()
            self.resume()
        except ProgramError as e:  # such as a prompt that is too long: what stands before this turn is still good
            self.console.print(f"{e.message}; /reset starts anew", style="red", markup=False)
            self.resume()

    def _count(self, meta: dict[str, int], seconds: float) -> None:
        generated, prompt, cached = meta["completion_tokens"], meta["prompt_tokens"], meta["cached_tokens"]
        self.console.print(
            f"[dim]{generated} tokens, {generated / seconds:.0f} tokens/s · prompt {prompt}: {cached} from the tree, "
            f"{prompt - cached} computed[/]"
        )

    def show(self) -> None:
        for name, text in self.turns:
            self.console.print(f"[bold]{name}[/]", end="  ")
            self.console.print(text, markup=False)


def talk(runtime: ServerBackend, *, system: str, temperature: float, max_tokens: int) -> int:
    """Read turns from stdin until /quit or its end."""
    chat = Chat(runtime, system, temperature=temperature, max_tokens=max_tokens)
    welcome = runtime.welcome
    chat.console.print(f"[bold]{welcome.model}[/], context {welcome.max_context} tokens\n[dim]{HELP}[/]")
    commands: dict[str, Callable[[], None]] = {
        "/reset": chat.reset,
        "/history": chat.show,
        "/help": lambda: chat.console.print(HELP),
    }
    while True:
        try:
            text = input("\n> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return 0
        if text == "/quit":
            return 0
        if text.startswith("/"):
            commands.get(text, commands["/help"])()
        elif text:
            chat.say(text)
