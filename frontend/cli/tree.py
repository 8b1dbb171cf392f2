"""`banyan tree`: what stands in the tree of a running server, in the terminal or as a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from banyan.views.tree_page import TreeNode, nodes, page, summary

COLUMNS = {"tokens": 7, "sharers": 7, "state": 8, "goes after": 12, "tier": 6}
"""Beside the tree, and how wide. What goes after so many pages is evicted once these are."""
MOST_LINES, MOST_BLOCKS = 100, 1000
"""Nodes in the terminal and on a page, where nobody says how many."""
STYLES = {"in use": "bold green", "pinned": "bold magenta", "expected": "cyan", "host": "dim", "": ""}


def show(runtime: Any, most: int | None = None, html: Path | None = None) -> int:
    """Draw the tree of the server that `runtime` is joined to: `most` of its nodes, the others as numbers."""
    sketch = runtime.client.ask("tree", limit=most or (MOST_BLOCKS if html else MOST_LINES))
    roots = nodes(sketch)
    if html is not None:
        path = page(sketch, roots).save(html)
        print(f"the tree is drawn in {path}")
        return 0
    draw(sketch, roots, Console(highlight=False))
    return 0


def draw(sketch: dict[str, Any], roots: list[TreeNode], console: Console) -> None:
    """As a table: the tree on the left, and what is known of each node on the right."""
    facts = ", ".join(f"{figure} {what}" for figure, what in summary(sketch))
    console.print(f"{facts}; a page is {sketch['page']} tokens\n", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    rest = sum(COLUMNS.values()) + 2 * len(COLUMNS)
    table.add_column("", no_wrap=True, overflow="ellipsis", max_width=max(24, console.width - rest))
    for name, width in COLUMNS.items():
        left = name in ("state", "tier")
        table.add_column(name, no_wrap=True, min_width=width, justify="left" if left else "right")
    for root in roots:
        for guide, node in _lines(root):
            if isinstance(node, TreeNode):
                label = Text.assemble((guide, "dim"), (node.text, "bold" if node.is_root else STYLES[node.state]))
                tokens = "" if node.is_root else f"{node.n_tokens:,}"
                sharers = f"{node.n_locks:,}" if node.n_locks and not node.is_root else ""
                state = Text(node.state if node.state != "host" else "", STYLES[node.state])
                table.add_row(label, tokens, sharers, state, node.age, node.tier)
            else:
                n, n_tokens = node
                table.add_row(Text(f"{guide}… {n:,} more", "dim"), Text(f"{n_tokens:,}", "dim"))
    console.print(table)
    if n_more := sketch["n_roots"] - len(roots):
        console.print(f"… {n_more:,} more namespaces", style="dim")


def _lines(root: TreeNode) -> Iterator[tuple[str, TreeNode | tuple[int, int]]]:
    """(what is drawn before it, a node) from the top to the bottom; for folded ones, how many, and their tokens.

    A child that has no sibling stands right below its parent, so that a long path is no staircase.
    """
    stack: list[tuple[str, str, TreeNode | tuple[int, int]]] = [("", "", root)]
    while stack:
        before, mine, node = stack.pop()
        yield before + mine, node
        if not isinstance(node, TreeNode):
            continue
        below: list[TreeNode | tuple[int, int]] = [*node.below]
        if node.n_folded:
            below.append((node.n_folded, node.n_folded_tokens))
        inner = before + {"├─ ": "│  ", "└─ ": "   "}.get(mine, mine)
        if len(below) == 1 and not node.is_root:
            stack.append((inner, "", below[0]))
            continue
        for i, one in enumerate(reversed(below)):
            stack.append((inner, "├─ " if i else "└─ ", one))
