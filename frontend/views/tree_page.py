"""The radix tree of a running server as an HTML page. Tokens run from left to right: a widely shared prefix is one
tall block."""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

from banyan.views.run_page import Page, card, document, tiles

WIDTH, ROW, GAP = 1120, 18, 2
MIN_WIDTH = 10.0
"""Width in pixels of a node without tokens. If the deepest path has many nodes, nodes are narrower."""
KINDS = {  # state: (CSS class, meaning)
    "in use": ("generated", "used by running requests"),
    "pinned": ("chosen", "pinned"),
    "expected": ("drafted", "a paused program will need it"),
    "": ("cached", "may be evicted; the paler, the sooner"),
    "host": ("given", "in host memory only"),
}


class TreeNode(NamedTuple):
    """A node of a server's radix tree, as the server reports it (`radix_cache.snapshot.NodeSnapshot`), and its
    children.

    n_before: how many pages will be evicted before this node; -1: the node cannot be evicted now. n_folded: how many
    descendants of the node the server left out of its report.
    """

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
    children: list[TreeNode]

    @property
    def state(self) -> str:
        """The first of these that applies to the node: "in use" (by running requests), "pinned" (by a program's hint),
        "expected" (a program is expected to need it again), "host" (its pages are in host memory only). "": none
        applies, or the node is a root."""
        if self.is_root:
            return ""
        states = ((self.n_locks, "in use"), (self.is_pinned, "pinned"), (self.is_expected, "expected"))
        return next((name for holds, name in states if holds), "" if self.n_pages else "host")

    @property
    def tier(self) -> str:
        """Where the pages of the node are: device, host or both."""
        if self.is_root:
            return ""
        return "both" if self.n_pages and self.n_host else "device" if self.n_pages else "host"

    @property
    def evicted_after(self) -> str:
        """How many pages are evicted before this node, as text; "" if it cannot be evicted now or has a `state`."""
        if self.state or self.is_root or self.n_before < 0:
            return ""
        return f"{self.n_before:,} page{'s' * (self.n_before > 1)}" if self.n_before else "next"

    def subtree(self) -> list[TreeNode]:
        """The node and all its descendants, each after its parent."""
        found = [self]
        for node in found:
            found += node.children
        return found


def nodes(snapshot: dict[str, Any]) -> list[TreeNode]:
    """Convert a server's report of its radix tree to linked nodes. Returns the roots. A root stands for a namespace: a
    part of the tree that shares no KV with the others."""
    created: list[TreeNode] = []
    roots: list[TreeNode] = []
    for fields in snapshot["nodes"]:
        is_root = fields["parent"] < 0
        name = f"namespace {fields['namespace'][:16]}" if fields["namespace"] else "tree"
        facts = {key: value for key, value in fields.items() if key in TreeNode._fields}
        text = name if is_root else printable(fields["text"])
        created.append(TreeNode(**facts | {"text": text, "is_root": is_root, "children": []}))
        (roots if is_root else created[fields["parent"]].children).append(created[-1])
    return roots


def printable(text: str) -> str:
    """The text on one line and without control characters for a terminal."""
    return "".join(c if c.isprintable() else "⏎" if c == "\n" else "·" for c in text)


def summary(snapshot: dict[str, Any]) -> list[tuple[str, str]]:
    """Figures of the whole tree, each as (figure, meaning)."""
    figures = [
        (f"{snapshot['n_nodes']:,}", "nodes"),
        (f"{snapshot['n_cached']:,}", "pages in the tree"),
        (f"{snapshot['n_leased']:,}", "pages being written"),
        (f"{snapshot['n_free']:,}", "pages free"),
    ]
    if snapshot["n_held"]:
        figures.append((f"{snapshot['n_held']:,}", "pages expected or pinned"))
    if snapshot["n_host_pages"]:
        figures.append((f"{snapshot['n_host_cached']:,}", f"of {snapshot['n_host_pages']:,} pages in host memory"))
    return figures


# ---- the page ------------------------------------------------------------------------------------------------------


def page(snapshot: dict[str, Any], roots: list[TreeNode]) -> Page:
    """The whole HTML page. snapshot: the server's report of its radix tree. roots: the result of `nodes(snapshot)`."""
    used = {node.state for root in roots for node in root.subtree() if not node.is_root}
    key = "".join(
        f'<span class="{name}"><i></i>{text}</span>' for state, (name, text) in KINDS.items() if state in used
    )
    drawings = [card(escape(root.text), _drawing(root, snapshot["n_cached"])) for root in roots if root.children]
    n_more = snapshot["n_roots"] - len(roots)
    body = [
        tiles(summary(snapshot)),
        f'<div class="key">{key}</div>',
        *(drawings or [card("tree", "Nothing is stored yet.")]),
        card("more", f"{n_more:,} more namespaces") if n_more else "",
    ]
    return document("The tree", "The tree", f"a page is {snapshot['page']} tokens", body)


def _drawing(root: TreeNode, n_cached: int) -> str:
    """Draw the tree below one root. Returns SVG. n_cached: the number of pages in the whole tree, which sets the scale
    of opacity."""
    order = root.subtree()
    n_rows: dict[int, int] = {}  # id(node) -> rows of its subtree, one per leaf and per folded group
    for node in reversed(order):
        n_rows[id(node)] = max(1, sum(n_rows[id(c)] for c in node.children) + bool(node.children and node.n_folded))
    depth = n_tokens = 0  # the maximum of nodes and of tokens on a path; a folded group counts as a node
    paths = [(root, 0, 0)]
    while paths:
        node, n, tokens = paths.pop()
        n, tokens = n + (not node.is_root) + bool(node.n_folded), tokens + node.n_tokens
        depth, n_tokens = max(depth, n), max(n_tokens, tokens)
        paths += [(child, n, tokens) for child in node.children]
    min_width = min(MIN_WIDTH, 0.5 * WIDTH / max(1, depth))
    scale = (WIDTH - min_width * (depth + 1)) / max(1, n_tokens)
    parts: list[str] = []
    stack: list[tuple[TreeNode, float, int]] = [(root, 0.0, 0)]
    while stack:
        node, x, row = stack.pop()
        if not node.is_root:
            width = min_width + scale * node.n_tokens
            parts.append(_block(node, x, row, width, n_rows[id(node)], n_cached))
            x += width
        for child in node.children:
            stack.append((child, x, row))
            row += n_rows[id(child)]
        if node.n_folded:
            title = f"{node.n_folded:,} more nodes, {node.n_folded_tokens:,} tokens"
            y = row * ROW + 12
            parts.append(f'<text x="{x + 4:.1f}" y="{y}">+ {node.n_folded:,}<title>{title}</title></text>')
    return f'<svg viewBox="0 0 {WIDTH} {n_rows[id(root)] * ROW}" role="img">{"".join(parts)}</svg>'


def _block(node: TreeNode, x: float, row: int, width: float, n_rows: int, n_cached: int) -> str:
    """The rectangle of one node, as SVG. A node that may be evicted is paler, the sooner this will happen.

    row: index of its first row. n_rows: its height in rows. x, width: pixels. n_cached: the number of pages in the
    whole tree. The opacity depends on the share of these pages that will be evicted before the node.
    """
    opacity = 0.9 if node.state else 0.35 + 0.5 * node.n_before / max(1, n_cached)
    y, height = row * ROW, n_rows * ROW - GAP
    facts = [f"{node.n_tokens:,} tokens, {node.n_pages or node.n_host:,} pages, {node.tier}"]
    facts += [f"shared by {node.n_locks:,} running requests"] if node.n_locks else []
    after = node.evicted_after
    facts += ["evicted next" if after == "next" else f"evicted after {after}"] if after else []
    title = escape("\n".join([node.text, *facts]))
    n_chars = int((width - 8) / 5.6)
    text = escape(node.text[:n_chars]) if n_chars > 3 else ""
    return (
        f'<g class="{KINDS[node.state][0]}"><rect class="fill" x="{x:.1f}" y="{y}" width="{max(width - 1, 1):.1f}" '
        f'height="{height}" rx="3" opacity="{opacity:.2f}"><title>{title}</title></rect>'
        + (f'<text class="name" x="{x + 4:.1f}" y="{y + height / 2 + 4:.1f}">{text}</text>' if text else "")
        + "</g>"
    )
