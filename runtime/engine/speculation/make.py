"""From the names of drafters to the drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from banyan.runtime.engine.speculation.draft import Drafter
from banyan.runtime.engine.speculation.drafting import Drafting
from banyan.runtime.engine.speculation.ngram import Ngram
from banyan.runtime.engine.speculation.tree import Tree

_MAKERS: dict[str, Callable[[], Drafter]] = {"tree": Tree, "ngram": Ngram}


def make(names: Sequence[str]) -> Drafting:
    """`names`: of `config.DRAFTERS`. The grammar's drafts need no verdict: they are jumps, and stand apart."""
    return Drafting([_MAKERS[name]() for name in names if name in _MAKERS], jumps="grammar" in names)
