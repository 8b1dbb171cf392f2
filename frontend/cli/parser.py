"""The command line's parser: argparse with one-line errors and suggestions, without abbreviated flags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from banyan.cli.other_servers import hint as hint_of_other_servers

EPILOG = "An error is one line on stderr. The exit status is 2 for a bad command line and 1 for a command that failed."


def suggestion(word: str, known: Iterable[str]) -> str:
    """ "; did you mean ...?" with the word of `known` that is most similar to `word`, or "" if none is."""
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


class Parser(argparse.ArgumentParser):
    """The parser of one command, or of the whole command line. Exits with status 2 after an error."""

    def __init__(self, examples: str = "", **options: Any) -> None:
        """examples: command lines that the help shows."""
        epilog = f"examples:\n{examples}\n\n{EPILOG}" if examples else EPILOG
        kind = argparse.RawDescriptionHelpFormatter  # keeps the lines of the examples
        super().__init__(allow_abbrev=False, formatter_class=kind, epilog=epilog, **options)
        self._words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exit with an error: the parser does not know these words."""
        self._words = list(unknown)
        self.error(f"unrecognized arguments: {' '.join(unknown)}")

    def error(self, message: str) -> NoReturn:
        if message.startswith(("unrecognized", "the following arguments are required")):  # perhaps they were misspelt
            options = [option for option in self._option_string_actions if option.startswith("--")]
            names = [word.partition("=")[0] for word in self._words if word.startswith("--")]
            for name in names:
                if name not in options and (instead := hint_of_other_servers(name, options)):
                    message += instead
                elif name not in options and (hint := suggestion(name, options)):
                    message += hint if name in message else f"; there is no {name}{hint}"
        self.exit(2, f"banyan: {message} (try: {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check that `value` is one of the choices of `action`, for example the name of a command. ArgumentError: it is
        not; the message suggests the most similar choice."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as e:
            e.message += suggestion(str(value), map(str, action.choices or ()))
            raise


class ShowVersion(argparse.Action):
    """Print the version and exit. argparse's own action needs the version in advance, and reading it is slow."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        import banyan

        print(f"banyan {banyan.__version__}")
        parser.exit()
