"""`banyan completion`, and the words that it offers when the user presses the tab key. Uses argcomplete."""

from __future__ import annotations

import argparse
from typing import Any

SHELLS = ("bash", "zsh", "fish")
TO_INSTALL = """  eval "$(banyan completion bash)"      # in ~/.bashrc
  eval "$(banyan completion zsh)"       # in ~/.zshrc, after compinit
  banyan completion fish | source       # in ~/.config/fish/config.fish"""


def show(shell: str) -> int:
    """Print the code with which a shell completes commands and options."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["banyan"], shell=shell))
    return 0


def answer(parser: argparse.ArgumentParser) -> None:
    """If a shell started this process for a completion, print the words that can follow, and exit."""
    import argcomplete

    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            if action.metavar == "MODEL":
                action.completer = _models
    argcomplete.autocomplete(parser, always_complete_options="long")


def _models(prefix: str, **_: Any) -> list[str]:
    """The models on this machine and the directories whose names begin with `prefix`."""
    from argcomplete.completers import DirectoriesCompleter

    from banyan.cli.models import local_models

    names = [name for name, *_ in local_models() if name.startswith(prefix)]
    return [*names, *DirectoriesCompleter()(prefix)]
