"""Run what README.md shows and write its output below it: `make readme`.

A comment says where an output stands and what gives it: `<!-- output of: COMMAND -->`, or `the above` in place of a
command for the Python block before it. What stands there is replaced; tests compare it with another run.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"(?P<mark><!-- output of: (?P<command>.*?) -->\n)(```text\n.*?```\n)?", re.DOTALL)


def output_of(command: str, before: str) -> str:
    """What a command, or the last Python block of `before`, writes to stdout. CalledProcessError if it fails."""
    python = [sys.executable, "-c", before.rpartition("```python\n")[2].partition("```")[0]]
    argv = python if command == "the above" else [sys.executable, *shlex.split(command.removeprefix("python "))]
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    return subprocess.run(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    page = ROOT / "README.md"
    text = page.read_text()

    def fresh(match: re.Match[str]) -> str:
        return f"{match['mark']}```text\n{output_of(match['command'], text[: match.start()]).strip()}\n```\n"

    page.write_text(MARK.sub(fresh, text))


if __name__ == "__main__":
    main()
