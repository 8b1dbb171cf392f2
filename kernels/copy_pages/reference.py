"""Copies the first slots of pages to other pages: copy-on-write of partly shared pages."""

from collections.abc import Sequence

from torch import Tensor

from banyan.kernels.kv_layout import stacks


def copy_pages(pools: Sequence[Tensor], copies: Tensor) -> None:
    """Copies n_slots slots in each pool, for each (source page, destination page, n_slots) of `copies`, int32 [n, 3].

    pools [n_pages, page_size, ...], contiguous, changed in place. Destinations are distinct, and none is a source.
    """
    for stack in stacks(pools):
        for source, destination, n_slots in copies.tolist():
            stack[:, destination, :n_slots] = stack[:, source, :n_slots]
