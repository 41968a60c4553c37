"""The rule that whoever calls the version under a label can call the new version in the same way.

Every signature of the old version must be there, with each of its inputs and outputs, of the same dtype and a
compatible shape. A new input must have a default, for nobody sends it. An input may become wider but not
narrower: a size that was free must stay free. Of an output only what is known of both shapes must agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from registry.records import GateCheck
from registry.rules import Candidate, Rule
from registry.values import LABEL_NAME

_COMPATIBLE = re.compile(rf"signatures?\s+compatible\s+with\s+(?P<label>{LABEL_NAME.pattern})")
Shape = list[int | None] | None
Tensors = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Compatible:
    """`signatures compatible with production`."""

    text: str
    label: str

    def check(self, candidate: Candidate) -> GateCheck:
        """Compare with the version under the label; the rule passes while there is none."""
        other = candidate.labelled(self.label)
        if other is None:
            detail = f"{self.text}: no version is {self.label} yet"
            return GateCheck(self.text, True, None, "anything", detail)
        wanted = f"every signature of {self.label} version {other.version}"
        for version in (other, candidate.version):
            if not version.signatures:
                detail = f"{self.text}: of version {version.version} no signatures are recorded"
                return GateCheck(self.text, False, None, wanted, detail)
        broken = list(differences(other.signatures, candidate.version.signatures))
        measured = "; ".join(broken) or "compatible"
        return GateCheck(self.text, not broken, measured, wanted, f"{self.text}: {measured}")


def parse(text: str) -> Rule | None:
    """Return the rule that `text` says; None when it is not about signatures."""
    match = _COMPATIBLE.fullmatch(text)
    return Compatible(text, match["label"]) if match else None


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield, in words, all that would break a caller of the signatures `old` with the signatures `new`.

    Both as `registry.signatures.read_signatures` returns them.
    """
    for name, signature in old.items():
        if name not in new:
            yield f"signature {name} is gone"
            continue
        yield from _inputs(name, signature["inputs"], new[name]["inputs"])
        yield from _outputs(name, signature["outputs"], new[name]["outputs"])


def _inputs(name: str, old: Tensors, new: Tensors) -> Iterator[str]:
    for alias, tensor in old.items():
        place = f"input {alias} of {name}"
        if alias not in new:
            yield f"{place} is gone"
        elif tensor["dtype"] != new[alias]["dtype"]:
            yield f"{place} is {new[alias]['dtype']}, was {tensor['dtype']}"
        elif not takes(new[alias]["shape"], tensor["shape"]):
            yield f"{place} takes {shown(new[alias]['shape'])}, took {shown(tensor['shape'])}"
    for alias in new.keys() - old.keys():
        if not new[alias].get("optional"):
            yield f"input {alias} of {name} is new and has no default"


def _outputs(name: str, old: Tensors, new: Tensors) -> Iterator[str]:
    for alias, tensor in old.items():
        place = f"output {alias} of {name}"
        if alias not in new:
            yield f"{place} is gone"
        elif tensor["dtype"] != new[alias]["dtype"]:
            yield f"{place} is {new[alias]['dtype']}, was {tensor['dtype']}"
        elif not agree(new[alias]["shape"], tensor["shape"]):
            yield f"{place} is {shown(new[alias]['shape'])}, was {shown(tensor['shape'])}"


def takes(new: Shape, old: Shape) -> bool:
    """Return whether an input of shape `new` takes every tensor that one of shape `old` took.

    None stands for an unknown rank, and in a shape for an unknown size.
    """
    if new is None:
        return True
    if old is None or len(new) != len(old):
        return False
    return all(wide is None or wide == narrow for wide, narrow in zip(new, old, strict=True))


def agree(new: Shape, old: Shape) -> bool:
    """Return whether a tensor could have both shapes."""
    if new is None or old is None:
        return True
    return len(new) == len(old) and all(
        a is None or b is None or a == b for a, b in zip(new, old, strict=True)
    )


def shown(shape: Shape) -> str:
    """Return the shape as people write it: `[?, 4]`."""
    if shape is None:
        return "any shape"
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
