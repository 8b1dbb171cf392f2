"""`banyan kernels`: every op, what it costs, and what computes it on this machine."""

from __future__ import annotations

from rich.console import Console


def show() -> int:
    """Print the table of ops; builds the CPU library if it was not built yet."""
    from banyan.kernels import chosen

    console = Console(highlight=False, soft_wrap=True, markup=False)
    for op, file, why in chosen.choices():
        console.print(op.name, style="bold", end="  ")
        console.print(f"{op.name}/{file}.py: {why}")
        for what, text in (("shapes", op.shapes), ("bytes", op.n_bytes), ("flops", op.n_flops)):
            console.print(f"  {what:8}{text}", style="dim")
    return 0
