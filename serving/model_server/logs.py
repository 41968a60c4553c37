"""What a server process writes to standard error: one line for each event, with its facts."""

from __future__ import annotations

import logging
import os
import sys

_PLAIN = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "facts", "taskName"}


def set_up(*, several_processes: bool = False) -> None:
    """Log to standard error; with the process's number, if there are several."""
    process = "[%(process)d] " if several_processes else ""
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {process}%(levelname)s %(name)s %(message)s%(facts)s",
        stream=sys.stderr,
    )
    # TensorFlow's own notices (deprecations, restored paths) say nothing to an operator.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for handler in logging.getLogger().handlers:
        handler.addFilter(_with_facts)


def _with_facts(record: logging.LogRecord) -> bool:
    """Put a record's extra fields into its line."""
    facts = {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
    record.facts = "".join(f" {name}={value!r}" for name, value in facts.items())
    return True
