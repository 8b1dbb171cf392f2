"""A small cache, and functions that each violate one of its invariants."""

from __future__ import annotations

from collections.abc import Callable

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.node import Node
from cache_support import ids, open_published

PROMPT = ids(*range(8))


class Scene:
    """A cache with a trunk of two pages that has two branches of one page and an open leaf, all unlocked; and a lease
    on another prompt, whose last page is a copy."""

    def __init__(self) -> None:
        self.cache = Cache(32, 4)
        for tail in (ids(20, 20, 20, 20), ids(30, 30, 30, 30), ids(40, 40)):
            self.store(PROMPT + tail)
        self.store(ids(*range(50, 56)))
        self.lease: Lease = self.cache.open(ids(*range(50, 56)), limit=5)
        assert self.lease.grow(12)

    def store(self, prompt: bytes) -> None:
        open_published(self.cache, prompt).close()

    @property
    def trunk(self) -> Node:
        return self.cache.tree.roots[b""].children[PROMPT[:16]]

    @property
    def branch(self) -> Node:
        return self.trunk.children[ids(20, 20, 20, 20)]

    @property
    def open_leaf(self) -> Node:
        return self.trunk.children[ids(40, 40)]


def remove_free_page(scene: Scene) -> None:
    scene.cache.pool.free.pop()


def free_page_twice(scene: Scene) -> None:
    scene.cache.pool.free.append(scene.cache.pool.free[0])


def free_cached_page(scene: Scene) -> None:
    scene.cache.pool.free.append(scene.branch.pages[0])


def free_unknown_page(scene: Scene) -> None:
    scene.cache.pool.free.append(32)


def miscount_leased(scene: Scene) -> None:
    scene.cache._n_leased += 1


def miscount_cached(scene: Scene) -> None:
    scene.cache.tree.n_pages -= 1


def miscount_evictable(scene: Scene) -> None:
    scene.branch.queue.n_pages += 1


def miscount_held(scene: Scene) -> None:
    scene.cache.tree.n_held += 1


def miscount_tokens(scene: Scene) -> None:
    scene.cache.tree.n_tokens += 1


def miscount_queues(scene: Scene) -> None:
    """One queue counts a page too many, another one too few."""
    scene.branch.queue.n_pages += 1
    scene.cache.tree.queue(1).n_pages -= 1


def miscount_nodes(scene: Scene) -> None:
    scene.cache.tree.n_nodes += 1


def add_empty_root(scene: Scene) -> None:
    scene.cache.tree.root(b"unused")


def change_namespace_of_root(scene: Scene) -> None:
    scene.cache.tree.roots[b""].namespace = b"other"


def lengthen_key(scene: Scene) -> None:
    scene.branch.key += ids(1)


def cut_key_inside_token(scene: Scene) -> None:
    scene.branch.key = scene.branch.key[:-1]


def start_node_inside_page(scene: Scene) -> None:
    scene.branch.start += 1


def add_children_to_partial_page(scene: Scene) -> None:
    scene.trunk.key = scene.trunk.key[:-4]


def reverse_order_of_children(scene: Scene) -> None:
    scene.trunk.order.reverse()


def clear_order_below_root(scene: Scene) -> None:
    scene.cache.tree.roots[b""].order.clear()


def store_child_under_wrong_key(scene: Scene) -> None:
    child = scene.trunk.children.pop(ids(20, 20, 20, 20))
    scene.trunk.children[ids(21, 20, 20, 20)] = child
    scene.trunk.order = sorted(scene.trunk.children)


def add_redundant_leaf(scene: Scene) -> None:
    leaf, scene.open_leaf.key = scene.open_leaf, ids(20, 20)
    scene.trunk.children = {node.key[:16]: node for node in scene.trunk.children.values()}
    scene.trunk.order = sorted(scene.trunk.children)
    assert leaf is scene.trunk.children[ids(20, 20)]


def clear_parent(scene: Scene) -> None:
    scene.branch.parent = None


def remove_lock_of_lease(scene: Scene) -> None:
    scene.cache.tree.unlock(scene.cache.open(PROMPT).node)


def lock_without_lease(scene: Scene) -> None:
    scene.cache.tree.lock(scene.branch)


def lock_only_child(scene: Scene) -> None:
    scene.branch.n_locks += 1
    scene.branch.queue.n_pages -= 1


def break_queue_links(scene: Scene) -> None:
    scene.branch.prev = scene.branch


def unlink_from_queue(scene: Scene) -> None:
    node = scene.branch
    node.prev.next, node.next.prev = node.next, node.prev


def move_parent_to_front_of_queue(scene: Scene) -> None:
    node, head = scene.trunk, scene.cache.tree.queues[0]
    node.prev.next, node.next.prev = node.next, node.prev
    node.prev, node.next = head, head.next
    head.next.prev = node
    head.next = node


def move_child_to_higher_queue(scene: Scene) -> None:
    scene.cache.tree.queue(0).n_pages -= 1
    scene.branch.queue = queue = scene.cache.tree.queue(1)
    _relink(scene.branch, queue)


def change_queue_of_node(scene: Scene) -> None:
    scene.branch.queue = scene.cache.tree.queue(1)
    scene.cache.tree.queue(1).n_pages += 1
    scene.cache.tree.queue(0).n_pages -= 1


def reverse_queues(scene: Scene) -> None:
    scene.cache.tree.queue(1)
    scene.cache.tree.queues.reverse()


def close_listed_queue(scene: Scene) -> None:
    scene.cache.tree.queues[0].is_open = False


def unlist_queue_of_dead_nodes(scene: Scene) -> None:
    scene.cache.tree.mark_dead(scene.branch)
    scene.cache.tree.queues.pop(0)
    scene.cache.tree.queues[0].n_pages += 1


def mark_parent_dead(scene: Scene) -> None:
    scene.cache.tree.mark_dead(scene.trunk)


def hold_without_hint(scene: Scene) -> None:
    scene.cache.tree.hold(scene.branch)


def remove_hold_of_hint(scene: Scene) -> None:
    handle = scene.cache.handle(PROMPT)
    handle.pin(1.0)
    scene.cache.tree.unhold(scene.trunk)


def hint_at_other_tokens(scene: Scene) -> None:
    handle = scene.cache.handle(PROMPT + ids(20, 20, 20, 20))
    handle.pin(1.0)
    handle.ids = ids(7) * 12


def change_due_time(scene: Scene) -> None:
    handle = scene.cache.handle(PROMPT)
    handle.expect(3)
    handle.due = 4.0


def reverse_hints(scene: Scene) -> None:
    for steps in (1, 2):
        scene.cache.handle(PROMPT).expect(steps)
    scene.cache.hints.expected.reverse()


def remove_pages_of_node(scene: Scene) -> None:
    node = scene.branch
    scene.cache.tree.n_pages -= 1
    scene.cache.tree.n_tokens -= 4
    node.queue.n_pages -= 1
    scene.cache.pool.give(node.pages)
    node.pages = []


def _relink(node: Node, queue: Node) -> None:
    node.prev.next, node.next.prev = node.next, node.prev
    old_queue = node.queue
    node.prev, node.next = queue.prev, queue
    queue.prev.next = queue.prev = node
    old_queue.n_pages += len(node.pages)


def swap_pages_of_lease(scene: Scene) -> None:
    first = scene.cache.open(PROMPT)
    first.pages[0], first.pages[1] = first.pages[1], first.pages[0]


def change_tokens_of_lease(scene: Scene) -> None:
    scene.cache.open(PROMPT)._ids = ids(*range(1, 9))


def change_namespace_of_lease(scene: Scene) -> None:
    scene.lease._namespace = b"other"


def close_listed_lease(scene: Scene) -> None:
    scene.lease.is_open = False


def exceed_slots_of_lease(scene: Scene) -> None:
    scene.lease._n_computed = 13


def fill_page_from_two_leases(scene: Scene) -> None:
    first = scene.cache.open(PROMPT + ids(40, 40))
    second = scene.cache.open(PROMPT + ids(40, 40))
    assert first.node is scene.open_leaf
    scene.cache._give_back(second.pages[2:])
    second._release_source()
    scene.cache.tree.lock(scene.open_leaf, scene.trunk)
    second._copies, second.node, second.pages = [], first.node, first.pages[:]


def change_source_page_of_copy(scene: Scene) -> None:
    scene.lease._copies = [(scene.branch.pages[0], *scene.lease._copies[0][1:])]


def change_tokens_of_copy(scene: Scene) -> None:
    scene.lease._ids = ids(50, 51, 52, 53, 99)


def copy_from_node_outside_path(scene: Scene) -> None:
    scene.lease._release_source()
    scene.lease._source = scene.branch
    scene.cache.tree.lock(scene.branch, scene.cache.tree.roots[b""])


def copy_from_unlocked_source(scene: Scene) -> None:
    scene.lease._release_source()


def disable_filled_cache(scene: Scene) -> None:
    scene.cache.enabled = False


VIOLATIONS: list[tuple[Callable[[Scene], None], str]] = [  # (violation, part of the message of `check`)
    (remove_free_page, "page .* of 32 does not have exactly one owner: free 0, leased 0, in the tree 0 times"),
    (free_page_twice, "does not have exactly one owner: free 2"),
    (free_cached_page, "does not have exactly one owner: free 1, leased 0, in the tree 1"),
    (free_unknown_page, "page 32 of 32"),
    (miscount_leased, "counter of leased pages"),
    (miscount_cached, "counter of cached pages"),
    (miscount_evictable, "counter of evictable pages"),
    (miscount_held, "counter of held pages"),
    (miscount_tokens, "the tree counts"),
    (miscount_queues, "a queue counts"),
    (miscount_nodes, "counter of nodes"),
    (add_empty_root, "is empty and unlocked"),
    (change_namespace_of_root, "has the namespace"),
    (lengthen_key, "of 5 tokens has 1 pages of 4"),
    (cut_key_inside_token, "whole tokens"),
    (start_node_inside_page, "must begin at its parent's end"),
    (add_children_to_partial_page, "after a page that is not full"),
    (reverse_order_of_children, "the order of the children"),
    (clear_order_below_root, "the order of a root's children"),
    (store_child_under_wrong_key, "is not in its parent's table"),
    (add_redundant_leaf, "is redundant"),
    (clear_parent, "has no parent"),
    (remove_lock_of_lease, "has 1 locks, but 2 leases"),
    (lock_without_lease, "has 2 locks, but 1 leases"),
    (lock_only_child, "is locked more often than its parent"),
    (break_queue_links, "is not a circular list"),
    (unlink_from_queue, "do not have the nodes that are neither"),
    (move_parent_to_front_of_queue, "is evicted before one below it"),
    (move_child_to_higher_queue, "is evicted before one below it"),
    (change_queue_of_node, "is not in the queue that it refers to"),
    (reverse_queues, "the queues are out of order"),
    (close_listed_queue, "a closed queue is listed"),
    (unlist_queue_of_dead_nodes, "a queue is open or has nodes"),
    (mark_parent_dead, "is evicted before one below it"),
    (hold_without_hint, "has 1 holds, but 0 hints"),
    (remove_hold_of_hint, "has 0 holds, but 1 hints"),
    (hint_at_other_tokens, "holds tokens that are not its own"),
    (change_due_time, "not at its place in the order"),
    (reverse_hints, "out of order"),
    (remove_pages_of_node, "has no pages"),
    (swap_pages_of_lease, "reads pages that differ from the tree's"),
    (change_tokens_of_lease, "a path whose tokens are not its own"),
    (change_namespace_of_lease, "not in its own namespace"),
    (close_listed_lease, "listed as open"),
    (exceed_slots_of_lease, "more tokens than it has room for"),
    (fill_page_from_two_leases, "two leases fill one page"),
    (change_source_page_of_copy, "reads a page that is not its source's"),
    (change_tokens_of_copy, "holds other tokens"),
    (copy_from_node_outside_path, "not a descendant"),
    (copy_from_unlocked_source, "has no locked source"),
    (disable_filled_cache, "the cache is off"),
]
