"""Two or more versions side by side: what they have in common is told once, what differs is told of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.client.results import Version

FACTS = ("step", "job", "source_revision", "data_fingerprint", "size_bytes")


@dataclass(frozen=True)
class Row:
    """One thing that versions are compared by."""

    section: str
    """`facts`, `metrics`, `params`, `signatures`, `libraries` or `tags`."""
    name: str
    values: tuple[Any, ...]
    """Of each version, in order; None: it has none."""

    @property
    def differs(self) -> bool:
        """Whether the versions differ in it; nan is like nan."""
        return any(not _same(value, self.values[0]) for value in self.values[1:])

    @property
    def change(self) -> float | None:
        """The last number less the first, when both are numbers and differ."""
        first, last = self.values[0], self.values[-1]
        both = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (first, last))
        return last - first if both and self.differs else None


def compare(versions: Sequence[Version]) -> list[Row]:
    """Return what the versions are compared by, section by section."""
    sections: dict[str, list[Mapping[str, Any]]] = {
        "facts": [{name: getattr(version, name) or None for name in FACTS} for version in versions],
        "metrics": [version.metrics for version in versions],
        "params": [_flat(version.params) for version in versions],
        "signatures": [_tensors(version.signatures) for version in versions],
        "libraries": [version.libraries for version in versions],
        "tags": [version.tags for version in versions],
    }
    return [
        Row(section, name, tuple(entry.get(name) for entry in entries))
        for section, entries in sections.items()
        for name in sorted({name for entry in entries for name in entry})
        if any(entry.get(name) is not None for entry in entries)
    ]


def _same(left: Any, right: Any) -> bool:
    return left == right or (left != left and right != right)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested parameters by dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _tensors(signatures: Mapping[str, Any]) -> dict[str, str]:
    """Return dtype and shape of each input and output, by `signature.inputs.name`."""
    return {
        f"{name}.{way}.{alias}": f"{tensor.get('dtype')} {tensor.get('shape')}"
        for name, signature in signatures.items()
        for way in ("inputs", "outputs")
        for alias, tensor in signature.get(way, {}).items()
    }
