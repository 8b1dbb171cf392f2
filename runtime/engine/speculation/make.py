"""From the names of drafters to the drafters."""

from __future__ import annotations

from collections.abc import Sequence

from banyan.runtime.engine.speculation.draft import Drafter
from banyan.runtime.engine.speculation.drafting import Drafting
from banyan.runtime.engine.speculation.ngram import Ngram
from banyan.runtime.engine.speculation.tree import Tree


def make(names: Sequence[str], computing: Drafter | None = None) -> Drafting:
    """`names`: of `config.DRAFTERS`, in the order of asking; computing: the one that needs a model, if one is named.
    The grammar's drafts need no verdict: they are jumps, and stand apart."""
    made: list[Drafter] = [maker() for maker in (Tree, Ngram) if maker.name in names]
    return Drafting(made if computing is None else [*made, computing], jumps="grammar" in names)
