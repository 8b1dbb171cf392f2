"""What a launcher may know about the device without asking it anything: its architecture."""

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton decides at import, for the whole process

_PROCESSORS = {"sm_80": 108, "sm_90": 132, "gfx942": 304, "interpreter": 2}


def architecture() -> str:
    """sm_90, gfx942 and the like, of the current device; "interpreter" where kernels run as Python."""
    if INTERPRETED:
        return "interpreter"
    from triton.runtime import driver

    target = driver.active.get_current_target()
    return f"sm_{target.arch}" if target.backend == "cuda" else target.arch


def n_processors(arch: str) -> int:
    """Multiprocessors to plan for; plans need no more than the order of magnitude."""
    return _PROCESSORS.get(arch, 108)
