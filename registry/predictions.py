"""The rule that a model answers, within expected ranges.

    predict {"x": [[1.0, 2.0]]}
    predict {"x": [[1.0, 2.0]]} gives probability between 0 and 1
    predict score {"x": [[1.0]], "k": 3} gives low between -1e3 and 0, high between 0 and 1e3

The signature's name comes first (`serving_default` when left out), then the inputs by alias as JSON, then the
outputs to look at. All numbers of an output must lie in its range, bounds included; without ranges every
number of every output must be finite.

The registry has no TensorFlow: whoever promotes brings a `Predictor`. As a model takes its time to load, the
prediction is made outside of any transaction; a version never changes, so what came of it stays true.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from registry.errors import InvalidRule
from registry.records import GateCheck, Version
from registry.rules import Candidate, Rule

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_START = re.compile(r"predict(?:\s+(?P<signature>[\w./:-]+))?\s*(?=\{)")
_RANGE = rf"(?P<output>[\w./:-]+)\s+between\s+(?P<low>{_NUMBER})\s+and\s+(?P<high>{_NUMBER})"
_NEXT = re.compile(rf"\s*(?P<word>gives\s|,|and\s)\s*{_RANGE}")


class Predictor(Protocol):
    """Runs a version once."""

    def __call__(self, version: Version, signature_name: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs by alias, as arrays or nested lists.

        Args:
            version: a ready version.
            signature_name: of the signature to run.
            inputs: by alias, as JSON holds them: numbers, strings, booleans, nested lists of them, and for
                serialized `tf.Example`s objects of features.

        Raises:
            Exception: whatever; it then counts as not having predicted.
        """
        ...


class PredictionsMissing(Exception):
    """The gate asks for predictions that have not been made yet. Stays within the registry."""

    def __init__(self, version: Version, rules: Sequence[Predicts]) -> None:
        super().__init__(version, rules)
        self.version, self.rules = version, rules


@dataclass(frozen=True)
class Range:
    """The numbers of one output must lie between these two, both included."""

    output: str
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.output} between {self.low:g} and {self.high:g}"


@dataclass(frozen=True)
class Predicts:
    """`predict {"x": [[1.0]]} gives y between 0 and 1`."""

    text: str
    signature: str
    inputs: Mapping[str, Any]
    ranges: tuple[Range, ...]

    @property
    def wanted(self) -> str:
        """What would pass, in words."""
        return ", ".join(map(str, self.ranges)) or "finite outputs"

    def check(self, candidate: Candidate) -> GateCheck:
        """Return what came of the prediction made for the candidate."""
        return candidate.predictions[self.text]

    def predict(self, version: Version, predictor: Predictor | None) -> GateCheck:
        """Run the version and look at what it gives."""
        if predictor is None:
            why = "there is nothing here to run a model with; promote through the gateway"
            return self._failed(f"no prediction could be made: {why}")
        try:
            outputs = predictor(version, self.signature, self.inputs)
            found = {name: list(numbers(value)) for name, value in outputs.items()}
        except Exception as error:  # noqa: BLE001  # whatever the model or what runs it raises: it did not predict
            return self._failed(f"{self.signature} did not predict: {type(error).__name__}: {error}")
        problems = list(self._problems(found))
        measured = ", ".join(extent(name, values) for name, values in sorted(found.items()))
        detail = f"{self.signature} gave {'; '.join(problems) or measured}, wanted {self.wanted}"
        return GateCheck(self.text, not problems, measured, self.wanted, detail)

    def _failed(self, detail: str) -> GateCheck:
        return GateCheck(self.text, False, None, self.wanted, detail)

    def _problems(self, found: Mapping[str, list[float | None]]) -> Iterator[str]:
        known = ", ".join(sorted(found)) or "none"
        for wanted in self.ranges or [Range(name, -math.inf, math.inf) for name in found]:
            values = found.get(wanted.output)
            if values is None:
                yield f"no output {wanted.output} (outputs: {known})"
            elif self.ranges and (not values or None in values):
                yield f"no numbers in {wanted.output}"
            elif not all(
                value is None or (math.isfinite(value) and wanted.low <= value <= wanted.high)
                for value in values
            ):
                yield extent(wanted.output, values)


def numbers(value: Any) -> Iterator[float | None]:
    """Yield the numbers in an array or in nested lists; None for what is not a number, such as text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        for item in value:
            yield from numbers(item)
    else:
        yield float(value) if isinstance(value, int | float) else None


def extent(name: str, values: Sequence[float | None]) -> str:
    """Return the output and its range in words; a nan is named, for it has no place in a range."""
    known = [value for value in values if value is not None]
    if not known:
        return f"{name} without numbers"
    if any(math.isnan(value) for value in known):
        return f"{name} with nan"
    low, high = min(known), max(known)
    return f"{name} = {low:g}" if low == high else f"{name} from {low:g} to {high:g}"


def parse(text: str) -> Rule | None:
    """Return the rule that `text` says; None when it does not begin like a prediction.

    Raises:
        InvalidRule: it does, and the rest cannot be read.
    """
    start = _START.match(text)
    if start is None:
        return None
    try:
        inputs, end = json.JSONDecoder().raw_decode(text, start.end())
    except json.JSONDecodeError as error:
        raise InvalidRule(text, f"the inputs are no JSON: {error}") from error
    return Predicts(text, start["signature"] or "serving_default", inputs, tuple(_ranges(text, end)))


def _ranges(text: str, position: int) -> Iterator[Range]:
    first = True
    while position < len(text):
        match = _NEXT.match(text, position)
        if match is None or (match["word"].strip() == "gives") != first:
            raise InvalidRule(text, f"cannot read {text[position:].strip()!r}")
        low, high = float(match["low"]), float(match["high"])
        if low > high:
            raise InvalidRule(text, f"{low:g} is more than {high:g}")
        yield Range(match["output"], low, high)
        position, first = match.end(), False
