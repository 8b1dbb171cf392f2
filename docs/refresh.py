"""Run the examples of README.md and docs/*.md and write their output below them: `make readme`.

In README.md and docs/http.md a comment marks an output and the command that prints it: `<!-- output of: COMMAND -->`,
or `the above` for the Python block before it. Commands of docs/http.md get the URL of a server with the pocket model.

In docs/*.md the Python blocks of a page run in order as one program. A `text` block right after a Python block is its
output; after `<!-- for example -->` it is one possible output, with numbers and words that change from run to run. A
block after `<!-- not run -->` needs something that is missing here, such as an API key, and is only compiled.

Existing outputs are replaced. Tests compare them with another run.
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

import banyan
from banyan.runtime import launch
from banyan.runtime.config import HTTPConfig

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "docs/deployment.md",
    "docs/language.md",
    "docs/migrating-from-guidance-and-outlines.md",
    "docs/migrating-from-sglang.md",
    "docs/migrating-from-vllm.md",
)
MARK = re.compile(r"(?P<mark><!-- output of: (?P<command>.*?) -->\n)(```text\n.*?```\n)?", re.DOTALL)
BLOCK = re.compile(
    r"(?P<skip><!-- not run -->\n)?```python\n(?P<code>.*?)```\n"
    r"(?P<between>\n?(?P<example><!-- for example -->\n)?```text\n(?P<output>.*?)```\n)?",
    re.DOTALL,
)


def output_of(command: str, before: str, argument: str) -> str:
    """The stdout of a command, or of the last Python block in `before`. CalledProcessError if it fails."""
    python = [sys.executable, "-c", before.rpartition("```python\n")[2].partition("```")[0]]
    argv = python if command == "the above" else [sys.executable, *shlex.split(f"{command} {argument}")[1:]]
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    return subprocess.run(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


class Block(NamedTuple):
    """A Python block of a page. line: of its first code line. output: what the page shows below it, or None."""

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
        """Whether the output shown is only one possible output."""
        return self.match["example"] is not None


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page."""
    return [Block(match, text.count("\n", 0, match.start("code")) + 1) for match in BLOCK.finditer(text)]


def played(path: Path) -> Iterator[tuple[Block, str]]:
    """Run a page; yields each block that runs and its output. Raises what a block raises."""
    text = path.read_text()
    page = ModuleType(path.stem.replace("-", "_"))
    sys.modules[page.__name__] = page  # for evaluating type hints
    try:
        for block in blocks(text):
            # Keep the line numbers of the page for errors and meta infos.
            code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
            out = io.StringIO()
            if block.is_run:
                with contextlib.redirect_stdout(out):
                    exec(code, page.__dict__)
                yield block, "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    finally:
        del sys.modules[page.__name__]


def refresh(path: Path) -> None:
    """Replace each output on the page by what its block prints now."""
    text, outputs = path.read_text(), {block.line: output for block, output in played(path)}
    for block in reversed(blocks(text)):
        if block.output is not None and block.is_run:
            start, end = block.match.span("output")
            text = f"{text[:start]}{outputs[block.line]}\n{text[end:]}"
    path.write_text(text)


def refresh_marked(path: Path, argument: str = "") -> None:
    """Replace each marked output on the page. argument: of all commands."""
    text = path.read_text()

    def fresh(match: re.Match[str]) -> str:
        output = output_of(match["command"], text[: match.start()], argument)
        return f"{match['mark']}```text\n{output.strip()}\n```\n"

    path.write_text(MARK.sub(fresh, text))


def main() -> None:
    refresh_marked(ROOT / "README.md")
    with banyan.Runtime() as server:
        http = HTTPConfig(socket=str(server.socket), address="0")
        with contextlib.closing(launch.start_gateway(http)) as gateway:
            refresh_marked(ROOT / "docs/http.md", gateway.url)
    for name in PAGES:
        refresh(ROOT / name)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        refresh(path)
    if not sys.argv[1:]:
        main()
