"""Functions that corrupt the cache of a running engine."""

from __future__ import annotations

from typing import Any

from banyan.radix_cache.node import Node


def most_used_node(e: Any) -> Node:
    """The node that most requests read."""
    nodes = [child for root in e.cache.tree.roots.values() for child in root.children.values()]
    return max(nodes, key=lambda node: (node.n_locks, len(node.pages)))


def lease_a_page_twice(e: Any) -> None:
    first, second = e.scheduler.running[:2]
    second.lease.pages[-1] = first.lease.pages[-1]
    e.cache._n_leased += 1


def corrupt_node_key(e: Any) -> None:
    node = most_used_node(e)
    node.key = node.key[:-4] + b"\xff\0\0\0"
