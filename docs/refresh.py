"""Run what README.md and the pages of docs/ show, and write its output below it: `make readme`.

In README.md a comment says where an output stands and what gives it: `<!-- output of: COMMAND -->`, or `the above` in
place of a command for the Python block before it.

In docs/*.md the Python blocks of a page run one after the other, as one program. A `text` block right behind one is
what it printed; behind `<!-- for example -->`, what it may print: numbers and words that change from run to run. A
block behind `<!-- not run -->` needs what is not here, such as a key, and is only compiled.

What stands there is replaced; tests compare it with another run.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/language.md", "docs/migrating-from-sglang.md")
MARK = re.compile(r"(?P<mark><!-- output of: (?P<command>.*?) -->\n)(```text\n.*?```\n)?", re.DOTALL)
BLOCK = re.compile(
    r"(?P<skip><!-- not run -->\n)?```python\n(?P<code>.*?)```\n"
    r"(?P<between>\n?(?P<example><!-- for example -->\n)?```text\n(?P<output>.*?)```\n)?",
    re.DOTALL,
)


def output_of(command: str, before: str) -> str:
    """What a command, or the last Python block of `before`, writes to stdout. CalledProcessError if it fails."""
    python = [sys.executable, "-c", before.rpartition("```python\n")[2].partition("```")[0]]
    argv = python if command == "the above" else [sys.executable, *shlex.split(command.removeprefix("python "))]
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    return subprocess.run(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


class Block(NamedTuple):
    """A Python block of a page. line: where its code begins. output: as the page shows it; None where it shows none."""

    match: re.Match[str]
    line: int

    @property
    def code(self) -> str:
        return self.match["code"]

    @property
    def output(self) -> str | None:
        return self.match["output"]

    @property
    def is_run(self) -> bool:
        return self.match["skip"] is None

    @property
    def is_example(self) -> bool:
        """Whether its output is only what it may print."""
        return self.match["example"] is not None


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page."""
    return [Block(match, text.count("\n", 0, match.start("code")) + 1) for match in BLOCK.finditer(text)]


def played(path: Path) -> Iterator[tuple[Block, str]]:
    """Run a page; gives each block that is run, and what it printed. Raises what a block raises."""
    text = path.read_text()
    page = ModuleType(path.stem.replace("-", "_"))
    sys.modules[page.__name__] = page  # type hints are looked up there
    try:
        for block in blocks(text):
            # Lines are those of the page, so that errors and meta infos name them.
            code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
            out = io.StringIO()
            if block.is_run:
                with contextlib.redirect_stdout(out):
                    exec(code, page.__dict__)
                yield block, "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    finally:
        del sys.modules[page.__name__]


def refresh(path: Path) -> None:
    """Write what the blocks of a page print below them, where the page shows an output."""
    text, outputs = path.read_text(), {block.line: output for block, output in played(path)}
    for block in reversed(blocks(text)):
        if block.output is not None and block.is_run:
            start, end = block.match.span("output")
            text = f"{text[:start]}{outputs[block.line]}\n{text[end:]}"
    path.write_text(text)


def main() -> None:
    page = ROOT / "README.md"
    text = page.read_text()

    def fresh(match: re.Match[str]) -> str:
        return f"{match['mark']}```text\n{output_of(match['command'], text[: match.start()]).strip()}\n```\n"

    page.write_text(MARK.sub(fresh, text))
    for name in PAGES:
        refresh(ROOT / name)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        refresh(path)
    if not sys.argv[1:]:
        main()
