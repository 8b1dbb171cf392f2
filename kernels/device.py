"""What a launcher knows about the GPU without a call to the driver per launch."""

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton decides at import, for the whole process

_PROCESSORS = {"sm_80": 108, "sm_90": 132, "gfx942": 304, "interpreter": 2}


def architecture() -> str:
    """The architecture of the current device, such as sm_90 or gfx942; "interpreter" if kernels run as Python."""
    if INTERPRETED:
        return "interpreter"
    from triton.runtime import driver

    target = driver.active.get_current_target()
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)


def n_processors(arch: str) -> int:
    """Multiprocessors to plan for. Plans need only the order of magnitude, so unknown chips count as an A100."""
    return _PROCESSORS.get(arch, 108)
