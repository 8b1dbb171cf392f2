"""How many threads the C++ library uses.

It is separate from torch's number: torch's ops wait for all of their threads at the end of each loop, which takes
longer than the work if other programs use the cores.
"""

import torch

ROW_NUMBERS = 1 << 16  # a pass over fewer numbers uses one thread: waking a second one costs more than it saves
PRODUCT_WORK = 1 << 18  # a product with fewer multiply-adds uses one thread, for the same reason

_n_threads = 0


def use(n_threads: int) -> None:
    """Sets the number of threads for this process; 0: as many as torch has."""
    global _n_threads
    _n_threads = n_threads


def n_max() -> int:
    """How many threads a large op uses."""
    return _n_threads or torch.get_num_threads()


def for_rows(n_numbers: int) -> int:
    """How many threads one pass over `n_numbers` numbers uses."""
    return 1 if n_numbers < ROW_NUMBERS else n_max()
