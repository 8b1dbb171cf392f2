"""Draw a token from each row of logits on a CPU, through the compiled library."""

import torch
from torch import Tensor

from banyan.kernels.draw import native, reference
from banyan.kernels.draw.rows import Rows
from banyan.kernels.native import build


def draw(logits: Tensor, rows: Rows) -> Tensor:
    """See `reference.draw`. Does not change the logits."""
    library = build.library()
    if library is None or logits.dtype != torch.float32 or logits.stride(1) != 1:
        return reference.draw(logits, rows)
    return native.draw(library, build.n_threads(logits.numel()), logits, rows)
