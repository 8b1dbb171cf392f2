"""Which path of a tree of drafts is right: the one that the target model drew, token by token.

Every row of a tree is drawn from, each with the uniform number of its position. From the root on, the child whose token
is the one that was drawn is accepted and says what follows; where no child is, the draw counts and the path ends. So
each token said is a draw of the target model, and the output is distributed as without drafts; for one chain this is
rejection sampling (Leviathan et al., 2023) with one uniform number for both its choices (Daliri et al., 2024), for a
tree that of SpecInfer (Miao et al., 2024) with drafts that are certain of what they say. At temperature 0 a draw is the
argmax, and this the greedy law.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Accepted(NamedTuple):
    """Per request, padded with -1. The last two are for `copy_slots`: they bring the path's KV to where it belongs."""

    said: Tensor  # int64 [n, width]: the accepted tokens, then the one drawn behind them
    sources: Tensor  # int64 [n, width]: slots of the accepted rows
    destinations: Tensor  # int64 [n, width]: slots of the rows behind the root, in order, as many


def accept(drawn: Tensor, tokens: Tensor, parents: Tensor, starts: Tensor, slots: Tensor, width: int) -> Accepted:
    """Follow what was drawn down each request's tree.

    drawn    int64 [n_rows]: the token drawn from each row's logits; -1 (there was none) is said, and ends the path
    tokens   int64 [n_rows]: the token that each row stands for; of a root, which is the text's last, it is not read
    parents  int32 [n_rows]: the row that each row follows, counted from its request's first, which is the root; parents
             come first, and siblings' tokens differ
    starts   int32 [n + 1]: rows starts[i]:starts[i + 1] are request i's, at least one
    slots    int64 [n_rows]: where each row's K and V lie
    width    of the results: the rows of the largest tree
    """
    n = len(starts) - 1
    out = Accepted(*torch.full((3, n, width), -1, dtype=torch.int64, device=drawn.device))
    first, rows = starts.tolist(), list(zip(drawn.tolist(), tokens.tolist(), parents.tolist(), strict=True))
    for i in range(n):
        own, at = rows[first[i] : first[i + 1]], 0
        for step in range(len(own)):
            out.said[i, step] = own[at][0]
            below = [j for j in range(at + 1, len(own)) if own[j][1:] == (own[at][0], at)]
            if not below:
                break
            (at,) = below
            out.sources[i, step] = slots[first[i] + at]
            out.destinations[i, step] = slots[first[i] + 1 + step]
    return out
