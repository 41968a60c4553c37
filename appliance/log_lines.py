"""How the appliance's log reads: a line an event, with its fields after its name."""

from __future__ import annotations

import logging

__all__ = ["FieldsFormatter"]


class FieldsFormatter(logging.Formatter):
    """Formats a record as `time level logger event key=value ...`."""

    _KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

    def __init__(self, layout: str = "%(asctime)s %(levelname)-7s %(name)s %(message)s") -> None:
        """Take the layout of the fixed part."""
        super().__init__(layout)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name logging calls
        """Return the line without a traceback."""
        fields = " ".join(
            f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in vars(record).items()
            if key not in self._KNOWN
        )
        return " ".join(filter(None, (super().formatMessage(record), fields)))
