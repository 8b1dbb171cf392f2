"""From a spec to what guides are made of."""

from __future__ import annotations

from banyan.runtime.constraint.guide import CompiledConstraint
from banyan.runtime.constraint.llg import Matcher
from banyan.runtime.constraint.trigger import Triggered
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.errors import ConstraintCrashed, rust_panics_as
from banyan.runtime.protocol.wire import ConstraintSpec


def build(spec: ConstraintSpec, vocabulary: Vocabulary) -> CompiledConstraint:
    """Compile a spec that has passed `canonical`. Raises a ConstraintError that says why it cannot be."""
    with rust_panics_as(ConstraintCrashed, "the constraint could not be compiled: its compiler panicked"):
        if spec.engine == "outlines_core":
            from banyan.runtime.constraint.dfa import Dfa  # here: who does not ask for it does not load it

            return Dfa(spec, vocabulary)
        value = Matcher(spec, vocabulary)
    return Triggered(spec, value, vocabulary) if spec.after else value
