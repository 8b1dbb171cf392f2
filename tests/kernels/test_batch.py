"""The construction of a ragged batch."""

from array import array

import pytest
import torch

from banyan.kernels.ops import ragged


def test_batch_has_offsets_lengths_pages_slots_and_positions() -> None:
    batch = ragged([1, 3, 0], [5, 6, 2], [[7, 9], [3, 1, 4], (8,)], 4)
    assert batch.q_start.tolist() == [0, 1, 4, 4]
    assert batch.kv_len.tolist() == [5, 6, 2]
    assert batch.page_table.tolist() == [[7, 9], [3, 1], [8, 0]]  # pages after the last token are dropped
    assert batch.slots.tolist() == [9 * 4 + 0, 3 * 4 + 3, 1 * 4 + 0, 1 * 4 + 1]
    assert (batch.q_lens, batch.kv_lens) == ((1, 3, 0), (5, 6, 2))
    assert batch.position is not None
    assert batch.position.tolist() == [4, 3, 4, 5]
    assert (batch.ancestors, batch.subtrees, batch.plans) == (None, (), {})
    types = [t.dtype for t in batch[:4]]
    assert types == [torch.int32, torch.int32, torch.int32, torch.int64]


def test_decode_layout_is_the_same_in_a_mixed_batch() -> None:
    kv_lens, pages = [5, 8, 1, 9], [[7, 9], range(3, 6), (8,), array("i", [1, 2, 6])]
    decodes = ragged([1] * 4, kv_lens, pages, 4)
    mixed = ragged([1] * 4 + [2], [*kv_lens, 2], [*pages, [0]], 4)
    for name in ("q_start", "kv_len", "page_table", "slots", "position"):
        actual, expected = getattr(decodes, name), getattr(mixed, name)
        assert actual.dtype == expected.dtype, name
        assert actual.tolist() == expected[: len(actual)].tolist(), name
    assert decodes.slots.tolist() == [9 * 4, 4 * 4 + 3, 8 * 4, 6 * 4]


def test_empty_batch_has_no_rows() -> None:
    batch = ragged([], [], [], 16)
    assert batch.q_start.tolist() == [0]
    assert batch.slots.shape == (0,)


def test_too_few_tokens_or_pages_raise() -> None:
    with pytest.raises(ValueError, match="3 new rows but only 2 tokens"):
        ragged([3], [2], [[1]], 4)
    with pytest.raises(ValueError, match="5 tokens need 2 pages of 4, but the request has 1"):
        ragged([1], [5], [[1]], 4)


def test_draft_tree_is_described_by_masks() -> None:
    batch = ragged([4, 2], [6, 9], [[1, 2], [3, 4, 5]], 4, parents=[[-1, 0, 0, -1], None])
    assert batch.ancestors is not None
    assert batch.position is not None
    masks = [f"{mask & (1 << 64) - 1:064b}"[:6][::-1] for mask in batch.ancestors.tolist()]  # six keys
    assert masks[:4] == ["111000", "111100", "111010", "110001"]
    assert batch.ancestors.tolist()[4:] == [-1, -1]
    assert batch.position.tolist() == [2, 3, 3, 2, 7, 8]
    assert batch.n_drafted == 4


@pytest.mark.parametrize("parents", [[-1], [-1, 1, 0], [-1, 0, -2], list(range(-1, 64))])
def test_invalid_tree_raises(parents: list[int]) -> None:
    n = max(3, len(parents))
    with pytest.raises(ValueError, match="no tree of"):
        ragged([n], [n], [[0]], 128, parents=[parents])


def test_requests_with_the_same_first_pages_share_a_subtree() -> None:
    pages = [[5, 6, 7, 8], [5, 6, 9, 3], [5, 6, 9, 4], [1, 2], [5, 10]]
    batch = ragged([1, 1, 2, 1, 3], [13, 13, 14, 5, 7], pages, 4)
    subtrees = [(sorted(tree.requests), tree.n_keys) for tree in batch.subtrees]
    assert subtrees == [([0, 1, 2, 4], 4), ([0, 1, 2], 8), ([1, 2], 12)]
    writes = ragged([1, 9], [13, 13], [[5, 6, 7, 8], [5, 6, 9, 3]], 4)  # 4 tokens of the second request are in KV
    assert [tree.n_keys for tree in writes.subtrees] == [4]


def test_tail_has_the_wanted_rows() -> None:
    tree = [*range(-1, 33), 33, 34, 33, 36]  # 34 rows of text, then four drafts
    pages = [range(8), range(8, 16), range(16, 24)]
    batch = ragged([90, 38, 1], [90, 47, 20], pages, 16, parents=[None, tree, None], wanted=[0, 5, 1])
    tail, decodes = batch.tail, ragged([5, 1], [47, 20], pages[1:], 16, parents=[[-1, 0, 1, 0, 3], None])
    assert tail is not None
    assert (tail.q_lens, tail.kv_lens, tail.tail) == (decodes.q_lens, decodes.kv_lens, None)
    for name in ("q_start", "kv_len", "page_table", "ancestors", "position", "slots"):
        assert torch.equal(getattr(tail, name), getattr(decodes, name)), name
    assert torch.equal(tail.position, batch.position[[123, 124, 125, 126, 127, 128]])  # type: ignore[arg-type,index]


def test_tail_is_built_only_for_many_unwanted_rows() -> None:
    pages = [range(8), range(8, 16)]
    assert ragged([64, 1], [64, 9], pages, 16, wanted=[1, 1]).tail is None
    assert ragged([65, 1], [65, 9], pages, 16, wanted=[1, 1]).tail is not None
    assert ragged([65, 1], [65, 9], pages, 16).tail is None
    empty_tail = ragged([100], [100], pages[:1], 16, wanted=[0]).tail
    assert empty_tail is not None
    assert empty_tail.q_lens == ()
