"""Copy the first slots of pages to other pages: copy-on-write of partly shared pages."""

from collections.abc import Sequence

from torch import Tensor

from banyan.kernels.kv_view import stacks


def copy_pages(pools: Sequence[Tensor], copies: Tensor) -> None:
    """For each (source page, destination page, n_slots) of `copies`, int32 [n, 3], and each pool, copy n_slots slots.

    pools [n_pages, page_size, ...], contiguous, changed in place. Destinations are distinct and none is also a source.
    """
    for stack in stacks(pools):
        for source, destination, n_slots in copies.tolist():
            stack[:, destination, :n_slots] = stack[:, source, :n_slots]
