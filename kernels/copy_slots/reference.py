"""Moves the KV of an accepted path of a draft tree to the slots of its tokens' final positions."""

from collections.abc import Sequence

from torch import Tensor

from banyan.kernels.kv_layout import stacks


def copy_slots(pools: Sequence[Tensor], sources: Tensor, destinations: Tensor) -> None:
    """Copies each source slot to its destination in each pool, as if all sources were read first.

    pools                   [n_pages, page_size, ...], contiguous, changed in place; a slot is page * page_size + offset
    sources, destinations   int64 [n_paths, n_steps]; a source of -1: no copy. Paths have no slot in common. No
                            destination is the source of a later step of its path, which holds for a path whose
                            ascending rows move to the front of their tree
    """
    m = (sources >= 0) & (sources != destinations)
    source, destination = sources[m], destinations[m]
    for stack in stacks(pools):
        slots = stack.flatten(1, 2)
        slots.index_copy_(1, destination, slots.index_select(1, source))
