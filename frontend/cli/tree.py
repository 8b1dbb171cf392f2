"""`banyan tree`: shows the radix tree of a running server, in the terminal or as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from banyan.views.tree_page import TreeNode, nodes, page, summary

COLUMNS = {"tokens": 7, "sharers": 7, "state": 8, "evict after": 12, "tier": 6}
"""The columns beside the tree, with their widths in characters. "evict after": how many pages are evicted before the
node."""
MAX_LINES, MAX_BLOCKS = 100, 1000
"""Default number of nodes in the terminal and on a page."""
STYLES = {"in use": "bold green", "pinned": "bold magenta", "expected": "cyan", "host": "dim", "": ""}


def show(runtime: Any, n_nodes: int | None = None, html: Path | None = None) -> int:
    """Draw the tree of the server that `runtime` is connected to. n_nodes: how many nodes to draw; the others are
    counted. html: write a page to this file instead."""
    snapshot = runtime.client.ask("tree", limit=n_nodes or (MAX_BLOCKS if html else MAX_LINES))
    roots = nodes(snapshot)
    if html is not None:
        print(f"the tree is drawn in {page(snapshot, roots).save(html)}")
    else:
        draw(snapshot, roots, Console(highlight=False))
    return 0


def draw(snapshot: dict[str, Any], roots: list[TreeNode], console: Console) -> None:
    """Print a table: the tree on the left, the facts of each node on the right."""
    facts = ", ".join(f"{figure} {what}" for figure, what in summary(snapshot))
    console.print(f"{facts}; a page is {snapshot['page']} tokens\n", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    rest = sum(COLUMNS.values()) + 2 * len(COLUMNS)
    width = max(24, console.width - rest)
    table.add_column("", no_wrap=True, overflow="ellipsis", max_width=width)
    for name, n_chars in COLUMNS.items():
        is_left = name in ("state", "tier")
        table.add_column(name, no_wrap=True, min_width=n_chars, justify="left" if is_left else "right")
    for root in roots:
        for guide, node in _lines(root):
            if len(guide) > width // 2:  # the other half is for the text
                guide = "…  " + guide[3 - width // 6 * 3 :]  # a level has 3 characters
            if isinstance(node, TreeNode):
                label = Text.assemble((guide, "dim"), (node.text, "bold" if node.is_root else STYLES[node.state]))
                tokens = "" if node.is_root else f"{node.n_tokens:,}"
                sharers = f"{node.n_locks:,}" if node.n_locks and not node.is_root else ""
                state = Text(node.state if node.state != "host" else "", STYLES[node.state])
                table.add_row(label, tokens, sharers, state, node.evicted_after, node.tier)
            else:
                n, n_tokens = node
                table.add_row(Text(f"{guide}… {n:,} more", "dim"), Text(f"{n_tokens:,}", "dim"))
    console.print(table)
    if n_more := snapshot["n_roots"] - len(roots):
        console.print(f"… {n_more:,} more namespaces", style="dim")


def _lines(root: TreeNode) -> Iterator[tuple[str, TreeNode | tuple[int, int]]]:
    """The lines of the drawing as (indentation, node), from the top. Nodes that are left out are replaced by (how
    many, their tokens). An only child is aligned with its parent, except below the root."""
    stack: list[tuple[str, str, TreeNode | tuple[int, int]]] = [("", "", root)]
    while stack:
        indent, branch, node = stack.pop()
        yield indent + branch, node
        if not isinstance(node, TreeNode):
            continue
        children: list[TreeNode | tuple[int, int]] = [*node.children]
        if node.n_folded:
            children.append((node.n_folded, node.n_folded_tokens))
        indent += {"├─ ": "│  ", "└─ ": "   "}.get(branch, branch)
        if len(children) == 1 and not node.is_root:
            stack.append((indent, "", children[0]))
        else:
            stack += [(indent, "├─ " if i else "└─ ", child) for i, child in enumerate(reversed(children))]
