"""Follow the drawn tokens down trees of drafts, one program per request; nothing waits for the host."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from banyan.kernels.accept.reference import Accepted


@triton.jit
def _accept(
    p_drawn, p_tokens, p_parents, p_starts, p_slots, p_said, p_sources, p_destinations, width, BLOCK: tl.constexpr
):
    i = tl.program_id(0)
    first = tl.load(p_starts + i)
    n = tl.load(p_starts + i + 1) - first
    o_out = i.to(tl.int64) * width
    o = tl.arange(0, BLOCK)
    m = (o > 0) & (o < n)
    b_token = tl.load(p_tokens + first + o, mask=m, other=-1)
    b_parent = tl.load(p_parents + first + o, mask=m, other=-1)
    at = first * 0  # the row that the path has come to; BLOCK: it has ended
    for step in range(width):
        token = tl.load(p_drawn + first + at, mask=at < n, other=-1)
        b_child = tl.where(m & (b_parent == at) & (b_token == token), o, BLOCK)
        child = tl.min(b_child, 0)
        source = tl.load(p_slots + first + child, mask=child < n, other=-1)
        destination = tl.load(p_slots + first + 1 + step, mask=child < n, other=-1)
        tl.store(p_said + o_out + step, token)
        tl.store(p_sources + o_out + step, source)
        tl.store(p_destinations + o_out + step, destination)
        at = child


def accept(drawn: Tensor, tokens: Tensor, parents: Tensor, starts: Tensor, slots: Tensor, width: int) -> Accepted:
    """See `reference.accept`."""
    for name, x in (("drawn", drawn), ("tokens", tokens), ("slots", slots)):
        assert x.dtype == torch.int64, f"{name} are int64"
    assert parents.dtype == starts.dtype == torch.int32, "parents and starts are int32"
    assert all(x.is_contiguous() for x in (drawn, tokens, parents, starts, slots)), "all must be contiguous"
    n = len(starts) - 1
    out = Accepted(*(torch.empty((n, width), dtype=torch.int64, device=drawn.device) for _ in range(3)))
    if n:
        block = triton.next_power_of_2(max(width, 2))
        _accept[(n,)](drawn, tokens, parents, starts, slots, *out, width, BLOCK=block, num_warps=1)
    return out
