"""Building a ragged batch."""

import pytest
import torch

from banyan.kernels.ops import ragged


def test_a_batch_is_what_its_counts_say() -> None:
    batch = ragged([1, 3, 0], [5, 6, 2], [[7, 9], [3, 1, 4], (8,)], 4)
    assert batch.q_start.tolist() == [0, 1, 4, 4]
    assert batch.kv_len.tolist() == [5, 6, 2]
    assert batch.page_table.tolist() == [[7, 9], [3, 1], [8, 0]]  # a page past the last token is not read
    assert batch.slots.tolist() == [9 * 4 + 0, 3 * 4 + 3, 1 * 4 + 0, 1 * 4 + 1]
    assert (batch.q_lens, batch.kv_lens) == ((1, 3, 0), (5, 6, 2))
    assert [list(own) for own in batch.pages or ()] == [[7, 9], [3, 1], [8]]
    assert batch.plans == {}
    types = [t.dtype for t in batch[:4]]
    assert types == [torch.int32, torch.int32, torch.int32, torch.int64]


def test_an_empty_batch() -> None:
    batch = ragged([], [], [], 16)
    assert batch.q_start.tolist() == [0]
    assert batch.slots.shape == (0,)


def test_too_few_tokens_or_pages_are_errors() -> None:
    with pytest.raises(ValueError, match="3 new rows but only 2 tokens"):
        ragged([3], [2], [[1]], 4)
    with pytest.raises(ValueError, match="5 tokens need 2 pages of 4, the request has 1"):
        ragged([1], [5], [[1]], 4)
