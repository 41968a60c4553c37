"""What becomes of code written against tf.estimator: it reads source files and imports no TensorFlow."""

from __future__ import annotations

from appliance.migration.scan import Finding, Report, scan, scan_file
from appliance.migration.symbols import Outcome, outcome_of

__all__ = ["Finding", "Outcome", "Report", "outcome_of", "scan", "scan_file"]
