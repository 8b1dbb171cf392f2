"""From the names of drafters to the drafters."""

from __future__ import annotations

from collections.abc import Sequence

from banyan.runtime.engine.speculation.depth_control import DepthController
from banyan.runtime.engine.speculation.draft import Drafter
from banyan.runtime.engine.speculation.ngram import NgramDrafter
from banyan.runtime.engine.speculation.tree import TreeDrafter


def make(names: Sequence[str], computing: Drafter | None = None) -> DepthController:
    """`names`: of `config.DRAFTERS`, in the order of asking; computing: the one that needs a model, if one is named.
    The grammar's drafts need no verdict: they are jumps, and stand apart."""
    made: list[Drafter] = [maker() for maker in (TreeDrafter, NgramDrafter) if maker.name in names]
    return DepthController(made if computing is None else [*made, computing], jumps="grammar" in names)
