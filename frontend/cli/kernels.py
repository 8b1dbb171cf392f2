"""`banyan kernels`: prints every op, its cost, and its implementation on this machine."""

from __future__ import annotations

import logging


def show() -> int:
    """Print the table of ops. The first call builds the CPU library if necessary, and says so."""
    logging.basicConfig(format="banyan: %(message)s")
    logging.getLogger("banyan.kernels").setLevel(logging.INFO)
    from rich.console import Console  # here: it is slow to import, and `banyan size` needs only `short`

    from banyan.kernels import dispatch_report

    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(f"Costs are for {dispatch_report.EXAMPLE}.\n")
    console.print(f"{'op':13}{'moves':>10}{'computes':>13}{'flop/B':>8}  implementation", style="bold")
    for choice in dispatch_report.choices():
        op, n_bytes, n_flops = choice.op, choice.n_bytes, choice.n_flops
        console.print(f"{op.name:13}", style="bold", end="")
        costs = f"{short(n_bytes):>10}{short(n_flops, 'FLOP') if n_flops else '-':>13}"
        console.print(f"{costs}{n_flops / n_bytes:>8.1f}  {op.folder}/{choice.file}.py: {choice.why}")
        console.print(f"  takes  {op.shapes}", style="dim")
    return 0


def short(n: float, unit: str = "B") -> str:
    """`n` as text, with three digits, an SI prefix and the unit, such as 1.5 GB."""
    for prefix in ("", "k", "M", "G"):
        if n < 999.5:
            return f"{n:.3g} {prefix}{unit}"
        n /= 1000
    return f"{n:.3g} T{unit}"
