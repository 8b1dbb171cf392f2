"""Prints the longest files, functions and folders of the product, for `make outliers`. There is no limit."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("frontend", "runtime", "radix_cache", "kernels")
N_SHOWN = 8


def main() -> None:
    files: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        files[name] = text.count("\n")
        folders[str(path.parent.relative_to(ROOT))] += 1
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                functions[f"{name}:{node.name}"] = node.end_lineno - node.lineno + 1
    for what, unit, found in (
        ("files", "lines", files),
        ("functions", "lines", functions),
        ("folders", "files", folders),
    ):
        print(f"{what} ({len(found)}), the largest by {unit}")
        print("\n".join(f"{n:6}  {name}" for name, n in found.most_common(N_SHOWN)))


if __name__ == "__main__":
    main()
