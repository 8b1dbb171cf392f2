"""`banyan size`: prints what fits into memory."""

from __future__ import annotations

import msgspec

from banyan.cli.kernels import short
from banyan.runtime.engine.capacity import Capacity


def show(c: Capacity, is_json: bool) -> int:
    """Print a table, or one line of JSON with the same figures in bytes."""
    if is_json:
        print(msgspec.json.encode(c).decode())
        return 0
    each = "" if c.n_devices == 1 else f", each of {c.n_devices}"
    n, context = c.concurrent, f"{c.context:,} tokens"
    windows = [] if not c.window else [
        ("window pages", f"{c.n_window_pages:,}", f"of {short(c.window_page_bytes)}, of layers that see {c.window:,} "
         f"tokens; a request needs {c.request_window_pages:,} at most"),
    ]  # fmt: skip
    spare = "one spare page" + (" and two of layers with a window" if c.window else "")
    step = c.step_weight_bytes + c.step_kv_bytes
    left = c.memory - c.weight_bytes - c.kv_bytes
    of_left = (
        "for a step, and for everything else" if left >= 0 else "the memory is too small for the weights and a page"
    )
    rows = (
        ("memory", short(c.memory), f"free on {c.device}{each}, before the weights"),
        ("weights", short(c.weight_bytes), f"of {c.model}, computing in {c.dtype}"),
        ("KV a token", short(c.kv_token_bytes), c.kv_formula),
        ("page", short(c.page_bytes), f"{c.page} tokens"),
        ("KV pages", f"{c.n_pages:,}", f"{c.n_pages * c.page:,} tokens; {short(c.kv_bytes)}, with {spare}"),
        *windows,
        ("left" if left >= 0 else "missing", short(abs(left)), of_left),
        ("", "", ""),
        (f"{context} each", f"{c.n_fitting:,}", f"requests fit, of {c.request_pages:,} pages each"),
        (f"{n:,} at once", f"{c.longest_context:,}", "tokens each fit, prompt and output, if they share nothing"),
        ("last pages", short(c.fragmentation_bytes), f"unused on average, with {n:,} requests at once"),
        ("a decode step", short(step), f"to read: {short(c.step_weight_bytes)} of weights, {short(c.step_kv_bytes)} of "
         f"KV at {n:,} x {context}"),
    )  # fmt: skip
    for name, figure, text in rows:
        print(f"{name:20}{figure:>10}  {text}".rstrip())
    return 0
