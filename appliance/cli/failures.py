"""How a command ends when it does not come about: one line on standard error, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

FAILED = 1
NOT_FOUND = 3
REFUSED = 4
UNREACHABLE = 5
UNAUTHORIZED = 6
JOB_FAILED = 7
CANNOT_START = 8
DAMAGED = 9
INTERRUPTED = 130

_OUR_PACKAGES = ("appliance", "registry", "serving")


class Failure(click.ClickException):
    """A command did not come about."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        """Take the reason and the exit code."""
        super().__init__(message)
        # click's own advice is to set it like this, though it declares it for the class.
        self.exit_code = exit_code  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the one line."""
        click.echo(f"error: {' '.join(self.message.split())}", file=file or sys.stderr)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn whatever goes wrong inside into a `Failure`."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit):
        raise
    except (KeyboardInterrupt, click.Abort) as error:
        raise Failure("interrupted", INTERRUPTED) from error
    except BrokenPipeError:
        raise  # click ends quietly when the reader of a pipe has gone
    except Exception as error:
        # The boundary to a person: nobody wants a traceback here.
        if os.environ.get("APPLIANCE_DEBUG"):
            raise
        raise failure_of(error) from error


def failure_of(error: Exception) -> Failure:
    """Return the failure that an error of any part of the appliance stands for."""
    from appliance.client import errors

    if isinstance(error, errors.ClientError):
        codes: list[tuple[type[Exception], int]] = [
            (errors.NotFound, NOT_FOUND),
            (errors.Conflict, REFUSED),
            (errors.ConnectionFailed, UNREACHABLE),
            (errors.Overloaded, UNREACHABLE),
            (errors.Unauthorized, UNAUTHORIZED),
        ]
        return Failure(str(error), next((code for kind, code in codes if isinstance(error, kind)), FAILED))
    if (
        isinstance(error, ModuleNotFoundError)
        and (name := (error.name or "").partition(".")[0]) not in _OUR_PACKAGES
    ):
        return Failure(
            f"The Python package {name!r} is not installed, and this command needs it. "
            "Install all that serving and training need: pip install 'estimator-appliance[serve,train]'.",
            CANNOT_START,
        )
    told = f"{type(error).__name__}: {error}"
    return Failure(f"{told} (this is a fault of the appliance; APPLIANCE_DEBUG=1 shows where)")
