"""How many threads our library works with. torch's own ops may have fewer: at the end of each they wait for all of
theirs, which on a busy machine takes longer than the work, and what torch still does in a step is small."""

import torch

ROW_NUMBERS = 1 << 16  # of a pass over rows, and
PRODUCT_WORK = 1 << 18  # multiply-adds of a product, below which waking a second thread costs more than it saves

_n_threads = 0


def use(n_threads: int) -> None:
    """From now on, in this process; 0: as many as torch has."""
    global _n_threads
    _n_threads = n_threads


def most() -> int:
    return _n_threads or torch.get_num_threads()
