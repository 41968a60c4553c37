"""What starting a process of the appliance takes: settings, one-line errors, a log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from appliance.cli.failures import CANNOT_START, Failure
from appliance.log_lines import FieldsFormatter

if TYPE_CHECKING:
    from appliance.settings import Settings


def read_settings(**given: Any) -> Settings:
    """Return the settings of the environment; what is given goes before."""
    from pydantic import ValidationError

    from appliance.settings import Settings

    try:
        return Settings(**given)
    except ValidationError as error:
        raise Failure(_told(error), CANNOT_START) from error


def _told(error: Any) -> str:
    """Return what is wrong with the settings, in one line."""
    parts = []
    for entry in error.errors():
        name = "".join(f"APPLIANCE_{part}".upper() for part in entry["loc"][:1])
        text = entry["msg"].removeprefix("Value error, ")
        parts.append(f"{name}: {text} (given {entry['input']!r})" if name else text)
    return "; ".join(parts)


@contextmanager
def start_errors() -> Iterator[None]:
    """Tell errors of starting in one line, with the exit code that says another try would not help."""
    import registry.errors
    from appliance.startup import StartError

    try:
        yield
    except (StartError, registry.errors.DatabaseError, registry.errors.InvalidInput) as error:
        raise Failure(str(error), CANNOT_START) from error


def log_to_stderr() -> None:
    """Write the appliance's log to standard error, a line an event: time, level, event, fields."""
    handler = logging.StreamHandler()
    handler.setFormatter(FieldsFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
