"""What a rule of a gate is, and what it may ask about the version that is held against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from registry.records import Approval, GateCheck, Version


@dataclass(frozen=True)
class Candidate:
    """A version that somebody wants under a label."""

    version: Version
    labelled: Callable[[str], Version | None] = lambda _label: None
    """Gives the version now under a label, or None."""
    approvals: Sequence[Approval] = ()
    """Of this version for this label."""
    actor: str = ""
    """Who wants it there; empty when the gate is only asked."""
    predictions: Mapping[str, GateCheck] = field(default_factory=dict)
    """By the text of the rule: what came of its prediction, which takes too long for a transaction."""


class Rule(Protocol):
    """One rule of a gate."""

    @property
    def text(self) -> str:
        """The rule as written."""
        ...

    def check(self, candidate: Candidate) -> GateCheck:
        """Hold the rule against the candidate."""
        ...
