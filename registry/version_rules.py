"""Rules about what people say of a version: its tags, and their approval."""

from __future__ import annotations

import re
from dataclasses import dataclass

from registry.records import GateCheck
from registry.rules import Candidate, Rule

_TAG = re.compile(r"tag\s+(?P<key>[\w./:@-]+)(?:\s*=\s*(?P<value>\S.*))?")
_APPROVED = re.compile(r"approved\s+by\s+another")


@dataclass(frozen=True)
class Tagged:
    """`tag owner`, `tag stage = prod`."""

    text: str
    key: str
    value: str | None

    def check(self, candidate: Candidate) -> GateCheck:
        """Look for the tag, and at its value when one is asked for."""
        tags = candidate.version.tags
        found = tags.get(self.key)
        wanted = f"tag {self.key}" if self.value is None else f"tag {self.key} = {self.value}"
        if found is None:
            known = ", ".join(sorted(tags)) or "none"
            detail = f"tag {self.key} is not set (tags: {known}), wanted {wanted}"
            return GateCheck(self.text, False, None, wanted, detail)
        measured = f"{self.key} = {found}"
        passed = self.value is None or found == self.value
        return GateCheck(self.text, passed, measured, wanted, f"tag {measured}, wanted {wanted}")


@dataclass(frozen=True)
class Approved:
    """`approved by another`."""

    text: str

    def check(self, candidate: Candidate) -> GateCheck:
        """Look for an approval by anyone but the promoter; by anyone when the gate is only asked."""
        by = [approval.actor for approval in candidate.approvals]
        others = [actor for actor in by if actor != candidate.actor]
        another = f"somebody other than {candidate.actor}" if candidate.actor else "somebody"
        wanted = f"approved by {another}"
        measured = f"approved by {', '.join(by)}" if by else "not approved"
        return GateCheck(self.text, bool(others), measured, wanted, f"{measured}, wanted {wanted}")


def parse(text: str) -> Rule | None:
    """Return the rule that `text` says; None when it is about neither tags nor approval."""
    if match := _TAG.fullmatch(text):
        return Tagged(text, match["key"], match["value"])
    if _APPROVED.fullmatch(text):
        return Approved(text)
    return None
