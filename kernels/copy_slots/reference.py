"""Move the accepted path of a tree of drafts to where its tokens stand in the text."""

from collections.abc import Sequence

from torch import Tensor

from banyan.kernels.kv_view import stacks


def copy_slots(pools: Sequence[Tensor], sources: Tensor, destinations: Tensor) -> None:
    """Copy each source slot to its destination, in each pool, as if all sources were read first.

    pools                   [n_pages, page_size, ...], contiguous, changed in place; a slot is page * page_size + offset
    sources, destinations   int64 [n_paths, n_steps]; a source of -1: no copy. No path touches the slots of another, and
                            no destination of a path is the source of a later step of it: so it is where a path, whose
                            rows ascend, moves to the front of its tree
    """
    m = (sources >= 0) & (sources != destinations)
    source, destination = sources[m], destinations[m]
    for stack in stacks(pools):
        slots = stack.flatten(1, 2)
        slots.index_copy_(1, destination, slots.index_select(1, source))
