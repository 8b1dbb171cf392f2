"""The tree of a running server, as nodes and as a page: tokens run from left to right there, so that what many share is
one tall block."""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

from banyan.views.run_page import Page, card, document, row_of_tiles

WIDTH, ROW, GAP = 1120, 18, 2
LEAST = 10.0
"""Pixels of the shortest node, unless the deepest path has too many."""
KINDS = {  # state: (class, meaning)
    "in use": ("generated", "read by requests that run"),
    "pinned": ("chosen", "pinned"),
    "expected": ("drafted", "a program waits, and will need it"),
    "": ("cached", "free to be evicted; the paler, the sooner"),
    "host": ("given", "in host memory alone"),
}


class TreeNode(NamedTuple):
    """A node as the server describes it (`radix_cache.snapshot.NodeSnapshot`), and what hangs below it."""

    n_tokens: int
    n_pages: int
    n_host: int
    n_locks: int
    n_before: int
    is_pinned: bool
    is_expected: bool
    n_folded: int
    n_folded_tokens: int
    text: str
    is_root: bool
    below: list[TreeNode]

    @property
    def state(self) -> str:
        """in use, pinned, expected, host, or nothing of these."""
        if self.is_root:
            return ""
        names = ((self.n_locks, "in use"), (self.is_pinned, "pinned"), (self.is_expected, "expected"))
        return next((name for holds, name in names if holds), "" if self.n_pages else "host")

    @property
    def tier(self) -> str:
        if self.is_root:
            return ""
        return "both" if self.n_pages and self.n_host else "device" if self.n_pages else "host"

    @property
    def age(self) -> str:
        """How soon it is evicted: once so many other pages are."""
        if self.state or self.is_root or self.n_before < 0:
            return ""
        return f"{self.n_before:,} page{'s' * (self.n_before > 1)}" if self.n_before else "next"


def nodes(sketch: dict[str, Any]) -> list[TreeNode]:
    """The roots of a sketch, each with all that is below it."""
    made: list[TreeNode] = []
    roots: list[TreeNode] = []
    for one in sketch["nodes"]:
        is_root = one["parent"] < 0
        text = _name(one["namespace"]) if is_root else printable(one["text"])
        fields = {name: one[name] for name in TreeNode._fields if name in one}
        made.append(TreeNode(**fields | {"text": text, "is_root": is_root, "below": []}))
        (roots if is_root else made[one["parent"]].below).append(made[-1])
    return roots


def _name(namespace: str) -> str:
    return f"namespace {namespace[:16]}" if namespace else "tree"


def printable(text: str) -> str:
    """On one line, and with nothing in it that steers a terminal."""
    return "".join(c if c.isprintable() else "⏎" if c == "\n" else "·" for c in text)


def summary(sketch: dict[str, Any]) -> list[tuple[str, str]]:
    """(figure, what it is) of the whole tree."""
    figures = [
        (f"{sketch['n_nodes']:,}", "nodes"),
        (f"{sketch['n_cached']:,}", "pages in the tree"),
        (f"{sketch['n_leased']:,}", "pages being written"),
        (f"{sketch['n_free']:,}", "pages free"),
    ]
    if sketch["n_held"]:
        figures.append((f"{sketch['n_held']:,}", "pages expected or pinned"))
    if sketch["n_host_pages"]:
        figures.append((f"{sketch['n_host_cached']:,}", f"of {sketch['n_host_pages']:,} pages in host memory"))
    return figures


# ---- the page ------------------------------------------------------------------------------------------------------


def page(sketch: dict[str, Any], roots: list[TreeNode]) -> Page:
    """The whole page. sketch: the server's answer; roots: the same, as nodes."""
    used = {node.state for root in roots for node in _all(root) if not node.is_root}
    key = "".join(
        f'<span class="{name}"><i></i>{text}</span>' for state, (name, text) in KINDS.items() if state in used
    )
    drawings = [card(escape(root.text), _drawing(root, sketch["n_cached"])) for root in roots if root.below]
    more = sketch["n_roots"] - len(roots)
    body = [
        row_of_tiles(summary(sketch)),
        f'<div class="key">{key}</div>',
        *(drawings or [card("tree", "Nothing is stored yet.")]),
        card("more", f"{more:,} more namespaces") if more else "",
    ]
    return document("The tree", "The tree", f"a page is {sketch['page']} tokens", body)


def _all(root: TreeNode) -> list[TreeNode]:
    found = [root]
    for node in found:
        found += node.below
    return found


def _drawing(root: TreeNode, n_cached: int) -> str:
    order = _all(root)
    rows: dict[int, int] = {}  # of each node, how many leaves and folded heaps it stands beside
    for node in reversed(order):
        rows[id(node)] = max(1, sum(rows[id(child)] for child in node.below) + bool(node.below and node.n_folded))
    depth, tokens = _extent(root)
    least = min(LEAST, 0.5 * WIDTH / max(1, depth))
    scale = (WIDTH - least * (depth + 1)) / max(1, tokens)
    parts: list[str] = []
    stack: list[tuple[TreeNode, float, int]] = [(root, 0.0, 0)]
    while stack:
        node, x, row = stack.pop()
        width = 0.0 if node.is_root else least + scale * node.n_tokens
        if not node.is_root:
            parts.append(_block(node, x, row, width, rows[id(node)], n_cached))
        x += width
        for child in node.below:
            stack.append((child, x, row))
            row += rows[id(child)]
        if node.n_folded:
            parts.append(_heap(node, x, row))
    height = rows[id(root)] * ROW
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _extent(root: TreeNode) -> tuple[int, int]:
    """(nodes, tokens) of the deepest and of the longest path; a folded heap counts as a node."""
    depth = tokens = 0
    stack = [(root, 0, 0)]
    while stack:
        node, n, n_tokens = stack.pop()
        n, n_tokens = n + (not node.is_root) + bool(node.n_folded), n_tokens + node.n_tokens
        depth, tokens = max(depth, n), max(tokens, n_tokens)
        stack += [(child, n, n_tokens) for child in node.below]
    return depth, tokens


def _block(node: TreeNode, x: float, row: int, width: float, n_rows: int, n_cached: int) -> str:
    """One node. Its fill fades as its turn to be evicted comes near."""
    name = KINDS[node.state][0]
    opacity = 0.9 if node.state else 0.35 + 0.5 * node.n_before / max(1, n_cached)
    y, height = row * ROW, n_rows * ROW - GAP
    facts = [f"{node.n_tokens:,} tokens, {node.n_pages or node.n_host:,} pages, {node.tier}"]
    facts += [f"shared by {node.n_locks:,} that run"] if node.n_locks else []
    facts += ["evicted next" if node.age == "next" else f"evicted after {node.age}"] if node.age else []
    title = escape("\n".join([node.text, *facts]))
    n_chars = int((width - 8) / 5.6)
    text = escape(node.text[:n_chars]) if n_chars > 3 else ""
    return (
        f'<g class="{name}"><rect class="fill" x="{x:.1f}" y="{y}" width="{max(width - 1, 1):.1f}" height="{height}" '
        f'rx="3" opacity="{opacity:.2f}"><title>{title}</title></rect>'
        + (f'<text class="name" x="{x + 4:.1f}" y="{y + height / 2 + 4:.1f}">{text}</text>' if text else "")
        + "</g>"
    )


def _heap(node: TreeNode, x: float, row: int) -> str:
    """What is below a node and not shown."""
    text = f"+ {node.n_folded:,}"
    title = f"{node.n_folded:,} more nodes, {node.n_folded_tokens:,} tokens"
    return f'<text x="{x + 4:.1f}" y="{row * ROW + 12}">{text}<title>{title}</title></text>'
