"""Compiles a constraint with llguidance, or with the library that its `engine` names."""

from __future__ import annotations

from banyan.runtime.constraint.guide import CompiledConstraint
from banyan.runtime.constraint.llg import LlgConstraint
from banyan.runtime.constraint.trigger import TriggeredConstraint
from banyan.runtime.constraint.vocabulary import Vocabulary
from banyan.runtime.errors import ConstraintCrashed, rust_panics_as
from banyan.runtime.protocol.wire import ConstraintSpec


def build(spec: ConstraintSpec, vocabulary: Vocabulary) -> CompiledConstraint:
    """Compile a spec that `canonical` returned. Raises a ConstraintError that says why the spec cannot be compiled."""
    with rust_panics_as(ConstraintCrashed, "the constraint could not be compiled: its compiler panicked"):
        if spec.engine == "outlines_core":
            from banyan.runtime.constraint.dfa import DfaConstraint  # here, because the module loads outlines_core

            return DfaConstraint(spec, vocabulary)
        value = LlgConstraint(spec, vocabulary)
    return TriggeredConstraint(spec, value, vocabulary) if spec.after else value
