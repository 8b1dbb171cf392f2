"""Each test violates one invariant by hand; `check` must name it."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from banyan.radix_cache.cache import Cache, Lease
from banyan.radix_cache.check import Corrupt, check
from banyan.radix_cache.node import Node


def ids(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


PROMPT = ids(*range(8))


class Scene:
    """A trunk of two pages with two branches of one page and an open leaf, all unlocked; and one lease on another
    prompt, whose last page is a copy."""

    def __init__(self) -> None:
        self.cache = Cache(32, 4)
        for tail in (ids(20, 20, 20, 20), ids(30, 30, 30, 30), ids(40, 40)):
            self.store(PROMPT + tail)
        self.store(ids(*range(50, 56)))
        self.lease: Lease = self.cache.open(ids(*range(50, 56)), limit=5)
        assert self.lease.grow(12)

    def store(self, some: bytes) -> None:
        with self.cache.open(some) as lease:
            lease.grow(len(some) // 4)
            lease.take_copies()
            lease.publish(some)

    @property
    def trunk(self) -> Node:
        return self.cache.tree.roots[b""].children[PROMPT[:16]]

    @property
    def branch(self) -> Node:
        return self.trunk.children[ids(20, 20, 20, 20)]

    @property
    def open_leaf(self) -> Node:
        return self.trunk.children[ids(40, 40)]


def lose_a_page(s: Scene) -> None:
    s.cache.pool.free.pop()


def free_a_page_twice(s: Scene) -> None:
    s.cache.pool.free.append(s.cache.pool.free[0])


def share_a_page(s: Scene) -> None:
    s.cache.pool.free.append(s.branch.pages[0])


def invent_a_page(s: Scene) -> None:
    s.cache.pool.free.append(32)


def miscount_leased(s: Scene) -> None:
    s.cache._n_leased += 1


def miscount_cached(s: Scene) -> None:
    s.cache.tree.n_pages -= 1


def miscount_evictable(s: Scene) -> None:
    s.branch.queue.n_pages += 1


def miscount_held(s: Scene) -> None:
    s.cache.tree.n_held += 1


def miscount_tokens(s: Scene) -> None:
    s.cache.tree.n_tokens += 1


def miscount_a_queue(s: Scene) -> None:
    """One queue counts a page too many, another one too few."""
    s.branch.queue.n_pages += 1
    s.cache.tree.queue(1).n_pages -= 1


def miscount_nodes(s: Scene) -> None:
    s.cache.tree.n_nodes += 1


def keep_an_empty_root(s: Scene) -> None:
    s.cache.tree.root(b"nobody")


def misname_a_root(s: Scene) -> None:
    s.cache.tree.roots[b""].namespace = b"other"


def lengthen_a_key(s: Scene) -> None:
    s.branch.key += ids(1)


def cut_a_key(s: Scene) -> None:
    s.branch.key = s.branch.key[:-1]


def begin_inside_a_page(s: Scene) -> None:
    s.branch.start += 1


def go_on_from_a_page_that_is_not_full(s: Scene) -> None:
    s.trunk.key = s.trunk.key[:-4]


def disorder_the_children(s: Scene) -> None:
    s.trunk.order.reverse()


def forget_the_order_below_a_root(s: Scene) -> None:
    s.cache.tree.roots[b""].order.clear()


def hide_a_child(s: Scene) -> None:
    child = s.trunk.children.pop(ids(20, 20, 20, 20))
    s.trunk.children[ids(21, 20, 20, 20)] = child
    s.trunk.order = sorted(s.trunk.children)


def keep_a_redundant_leaf(s: Scene) -> None:
    leaf, s.open_leaf.key = s.open_leaf, ids(20, 20)
    s.trunk.children = {node.key[:16]: node for node in s.trunk.children.values()}
    s.trunk.order = sorted(s.trunk.children)
    assert leaf is s.trunk.children[ids(20, 20)]


def orphan(s: Scene) -> None:
    s.branch.parent = None


def forget_a_lock(s: Scene) -> None:
    s.cache.tree.unlock(s.cache.open(PROMPT)._node)


def lock_for_nobody(s: Scene) -> None:
    s.cache.tree.lock(s.branch)


def lock_less_above(s: Scene) -> None:
    s.branch.n_locks += 1
    s.branch.queue.n_pages -= 1


def break_the_circle(s: Scene) -> None:
    s.branch.prev = s.branch


def leave_the_list(s: Scene) -> None:
    node = s.branch
    node.prev.next, node.next.prev = node.next, node.prev


def make_a_parent_the_oldest(s: Scene) -> None:
    node, ends = s.trunk, s.cache.tree.queues[0]
    node.prev.next, node.next.prev = node.next, node.prev
    node.prev, node.next = ends, ends.next
    ends.next.prev = node
    ends.next = node


def stand_in_a_lower_queue_than_a_child(s: Scene) -> None:
    s.cache.tree.queue(0).n_pages -= 1
    s.branch.queue = queue = s.cache.tree.queue(1)
    _relink(s.branch, queue)


def refer_to_another_queue(s: Scene) -> None:
    s.branch.queue = s.cache.tree.queue(1)
    s.cache.tree.queue(1).n_pages += 1
    s.cache.tree.queue(0).n_pages -= 1


def disorder_the_queues(s: Scene) -> None:
    s.cache.tree.queue(1)
    s.cache.tree.queues.reverse()


def close_a_queue_that_is_listed(s: Scene) -> None:
    s.cache.tree.queues[0].is_open = False


def forget_the_dead(s: Scene) -> None:
    s.cache.tree.mark_dead(s.branch)
    s.cache.tree.queues.pop(0)
    s.cache.tree.queues[0].n_pages += 1


def let_a_parent_die(s: Scene) -> None:
    s.cache.tree.mark_dead(s.trunk)


def hold_for_nobody(s: Scene) -> None:
    s.cache.tree.hold(s.branch)


def forget_a_hold(s: Scene) -> None:
    handle = s.cache.handle(PROMPT)
    handle.pin(1.0)
    s.cache.tree.unhold(s.trunk)


def hold_what_was_never_stored(s: Scene) -> None:
    handle = s.cache.handle(PROMPT + ids(20, 20, 20, 20))
    handle.pin(1.0)
    handle.ids = ids(7) * 12


def be_due_at_another_time(s: Scene) -> None:
    handle = s.cache.handle(PROMPT)
    handle.expect(3)
    handle.due = 4.0


def disorder_the_hints(s: Scene) -> None:
    for steps in (1, 2):
        s.cache.handle(PROMPT).expect(steps)
    s.cache.hints.expected.reverse()


def lie_nowhere(s: Scene) -> None:
    node = s.branch
    s.cache.tree.n_pages -= 1
    s.cache.tree.n_tokens -= 4
    node.queue.n_pages -= 1
    s.cache.pool.give(node.pages)
    node.pages = []


def _relink(node: Node, queue: Node) -> None:
    node.prev.next, node.next.prev = node.next, node.prev
    old_queue = node.queue
    node.prev, node.next = queue.prev, queue
    queue.prev.next = queue.prev = node
    old_queue.n_pages += len(node.pages)


def read_another_page(s: Scene) -> None:
    one = s.cache.open(PROMPT)
    one.pages[0], one.pages[1] = one.pages[1], one.pages[0]


def read_other_tokens(s: Scene) -> None:
    s.cache.open(PROMPT)._ids = ids(*range(1, 9))


def change_the_namespace(s: Scene) -> None:
    s.lease._namespace = b"other"


def list_a_closed_lease(s: Scene) -> None:
    s.lease.is_open = False


def know_more_than_there_is_room_for(s: Scene) -> None:
    s.lease._n_computed = 13


def fill_one_page_from_two_leases(s: Scene) -> None:
    one = s.cache.open(PROMPT + ids(40, 40))
    two = s.cache.open(PROMPT + ids(40, 40))
    assert one._node is s.open_leaf
    s.cache._give_back(two.pages[2:])
    two._release_source()
    s.cache.tree.lock(s.open_leaf, s.trunk)
    two._copies, two._node, two.pages = [], one._node, list(one.pages)


def copy_from_another_page(s: Scene) -> None:
    s.lease._copies = [(s.branch.pages[0], *s.lease._copies[0][1:])]


def copy_other_tokens(s: Scene) -> None:
    s.lease._ids = ids(50, 51, 52, 53, 99)


def copy_from_what_is_not_below(s: Scene) -> None:
    s.lease._release_source()
    s.lease._source = s.branch
    s.cache.tree.lock(s.branch, s.cache.tree.roots[b""])


def copy_from_a_page_that_may_go(s: Scene) -> None:
    s.lease._release_source()


def keep_something_while_off(s: Scene) -> None:
    s.cache.enabled = False


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lose_a_page, "page .* of 32 does not have exactly one owner: free 0, leased 0, in the tree 0 times"),
        (free_a_page_twice, "does not have exactly one owner: free 2"),
        (share_a_page, "does not have exactly one owner: free 1, leased 0, in the tree 1"),
        (invent_a_page, "page 32 of 32"),
        (miscount_leased, "counter of leased pages"),
        (miscount_cached, "counter of cached pages"),
        (miscount_evictable, "counter of evictable pages"),
        (miscount_held, "counter of held pages"),
        (miscount_tokens, "the tree counts"),
        (miscount_a_queue, "a queue counts"),
        (miscount_nodes, "counter of nodes"),
        (keep_an_empty_root, "is empty and unlocked"),
        (misname_a_root, "has the namespace"),
        (lengthen_a_key, "of 5 tokens has 1 pages of 4"),
        (cut_a_key, "whole tokens"),
        (begin_inside_a_page, "does not begin at a border"),
        (go_on_from_a_page_that_is_not_full, "behind a page that is not full"),
        (disorder_the_children, "the order of the children"),
        (forget_the_order_below_a_root, "the order of a root's children"),
        (hide_a_child, "is not in its parent's table"),
        (keep_a_redundant_leaf, "is redundant"),
        (orphan, "has no parent"),
        (forget_a_lock, "has 1 locks, but 2 leases"),
        (lock_for_nobody, "has 2 locks, but 1 leases"),
        (lock_less_above, "is locked more often than its parent"),
        (break_the_circle, "is not a circular list"),
        (leave_the_list, "do not have the nodes that are neither"),
        (make_a_parent_the_oldest, "is evicted before one below it"),
        (stand_in_a_lower_queue_than_a_child, "is evicted before one below it"),
        (refer_to_another_queue, "in another queue than it refers to"),
        (disorder_the_queues, "the queues are out of order"),
        (close_a_queue_that_is_listed, "a closed queue is listed"),
        (forget_the_dead, "a queue is open or has nodes"),
        (let_a_parent_die, "is evicted before one below it"),
        (hold_for_nobody, "has 1 holds, but 0 hints"),
        (forget_a_hold, "has 0 holds, but 1 hints"),
        (hold_what_was_never_stored, "holds other tokens than its own"),
        (be_due_at_another_time, "not at its place in the order"),
        (disorder_the_hints, "out of order"),
        (lie_nowhere, "has no pages"),
        (read_another_page, "reads other pages than the tree has"),
        (read_other_tokens, "a path of other tokens than its own"),
        (change_the_namespace, "in another namespace"),
        (list_a_closed_lease, "listed as open"),
        (know_more_than_there_is_room_for, "more tokens than it has room for"),
        (fill_one_page_from_two_leases, "two leases fill one page"),
        (copy_from_another_page, "reads another page than its source's"),
        (copy_other_tokens, "holds other tokens"),
        (copy_from_what_is_not_below, "not below its lease"),
        (copy_from_a_page_that_may_go, "has no locked source"),
        (keep_something_while_off, "the cache is off"),
    ],
)
def test_every_harm_is_named(harm: Callable[[Scene], None], says: str) -> None:
    scene = Scene()
    check(scene.cache)
    harm(scene)
    with pytest.raises(Corrupt, match=says):
        check(scene.cache)


def test_conservation_is_seen_by_the_counters_alone() -> None:
    scene = Scene()
    assert scene.cache.conserved()
    lose_a_page(scene)
    assert not scene.cache.conserved()


def test_to_check_changes_nothing() -> None:
    scene = Scene()
    before = scene.cache.stats()
    check(scene.cache)
    assert scene.cache.stats() == before
