"""`banyan chat`: a conversation in this terminal. The conversation is one program, so only the new text of each turn is
sent to the server."""

from __future__ import annotations

import re
import sys
import time
from itertools import count
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from banyan.cli.line_reader import BLOCK, LineReader
from banyan.cli.parser import suggestion
from banyan.lang.expr import assistant, gen, role, user
from banyan.lang.program import function
from banyan.lang.state import State
from banyan.runtime.errors import ProgramError, Unsupported

if TYPE_CHECKING:
    from banyan.backends.runtime import ServerBackend

Lines = SimpleQueue[str | None]
"""The user's lines; None ends the program that reads them."""
COMMANDS = {
    "/help": "show this",
    "/history": "show all turns",
    "/reset": "start anew, with the same system prompt",
    "/exit": "leave; so do /quit and Ctrl-D",
}
KEYS = {
    "Ctrl-C": "stop the reply, or drop the line",
    "Alt-Enter": f"a new line; pasted lines stay one message, and so do lines between {BLOCK} and {BLOCK}",
    "arrow keys": "edit the line, or recall messages of this and earlier chats; Ctrl-R searches them",
}


@function
def _conversation(s: State, turns: list[tuple[str, str]], lines: Lines, options: dict[str, Any]) -> None:
    """The program of a chat. Append `turns`, each as (role, text). Then, for each line, append a turn of the user and a
    reply of the assistant. The replies are in the variables reply0, reply1, ... options: the options of each gen."""
    for name, text in turns:
        s += role(name, text)
    for i, text in enumerate(iter(lines.get, None)):
        s += user(text)
        s += assistant(gen(f"reply{i}", **options))


class Chat:
    """A conversation: its turns as (role, text), and the running program, whose KV the server holds."""

    def __init__(self, runtime: ServerBackend, system: str, is_terminal: bool, **options: Any) -> None:
        """is_terminal: whether a person watches; otherwise only replies go to stdout. options: the options of each
        `gen`."""
        self.runtime, self.system, self.options, self.is_terminal = runtime, system, options, is_terminal
        self.has_failed = False
        self.console = Console(highlight=False, soft_wrap=True, emoji=False)
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
        """Send a message, and stream the reply to stdout. In a terminal, also print token counts, and let Ctrl-C stop
        the reply: the chat keeps the part that was printed, and continues. If the reply fails, print the error, and
        leave the message out of the chat."""
        start, reply, name = time.perf_counter(), "", next(self.names)
        try:
            self.lines.put(text)
            for piece in self.state.text_iter(name):
                reply += piece
                print(piece, end="", flush=True)
            print(flush=True)
            self.turns += [("user", text), ("assistant", reply)]
            if self.is_terminal:
                meta, seconds = self.state.get_meta_info(name), time.perf_counter() - start
                n, prompt, cached = meta["completion_tokens"], meta["prompt_tokens"], meta["cached_tokens"]
                rest = f"prompt {prompt}: {cached} cached, {prompt - cached} computed"
                self.console.print(f"[dim]{n} tokens, {n / seconds:.0f} tokens/s · {rest}[/]")
        except KeyboardInterrupt:
            if not self.is_terminal:
                raise
            self.console.print("[dim] ... stopped[/]")
            self.turns += [("user", text), ("assistant", reply)]
            self.state.cancel()
            self.restart()
        except ProgramError as e:  # such as PromptTooLong; the turns before this one are still valid
            self.has_failed = True
            if self.is_terminal:
                self.console.print(f"{e.message}; /reset starts over", style="red", markup=False)
            else:
                print(f"banyan: {e.message}", file=sys.stderr)
            self.restart()

    def obey(self, command: str) -> None:
        """Execute a command that starts with a slash."""
        match command:
            case "/reset":
                self.reset()
            case "/history":
                for name, text in self.turns:
                    self.console.print(f"[bold]{name}[/]", end="  ")
                    self.console.print(text, markup=False)
            case "/help":
                for key, text in (COMMANDS | KEYS).items():
                    self.console.print(f"[bold]{key:12}[/]{text}")
            case _:
                self.console.print(f"there is no {command}{suggestion(command, COMMANDS) or '; /help lists commands'}")


def talk(runtime: ServerBackend, *, system: str, temperature: float, max_tokens: int) -> int:
    """Read turns from stdin until end of file, or /exit at a terminal. Returns 1 if a reply failed and no person saw
    it, else 0.

    Unsupported: the model has no chat template.
    """
    if runtime.welcome.chat is None:
        raise Unsupported(
            f"{runtime.welcome.model} has no chat template, so it cannot chat: load its chat or instruct version, or "
            "write its prompts as plain text in a program"
        )
    is_typed = sys.stdin.isatty()  # else a line is a message, also if it looks like a command
    is_terminal = is_typed and sys.stdout.isatty()
    chat = Chat(runtime, system, is_terminal, temperature=temperature, max_tokens=max_tokens)
    reader = LineReader(tuple(COMMANDS), is_terminal)
    welcome = runtime.welcome
    if is_terminal:
        chat.console.print(f"[bold]{escape(welcome.model)}[/], context {welcome.max_context} tokens")
        chat.console.print("[dim]/help lists commands and keys; Ctrl-D leaves[/]")
    try:
        while True:
            try:
                text = reader.read()
            except KeyboardInterrupt:
                if not is_terminal:
                    raise
                chat.console.print("\n[dim]Ctrl-D leaves[/]", end="")
                continue
            is_command = is_typed and re.fullmatch("/[a-z]+", text)
            if is_command and text in ("/exit", "/quit"):
                break
            if is_command:
                chat.obey(text)
            elif text:
                chat.turn(text)
    except EOFError:
        if is_terminal:
            print()
    finally:
        chat.lines.put(None)  # ends the program, and the thread of its body
    return int(chat.has_failed and not is_terminal)
