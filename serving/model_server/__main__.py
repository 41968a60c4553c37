"""`python -m serving.model_server`: a stand-in for tensorflow_model_server."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from serving.model_server import flags as flag_table
from serving.model_server import logs, settings, start
from serving.model_server.supervisor import Supervisor

BAD_USAGE = 255
"""tensorflow_model_server's exit status for a command line it cannot use."""


def main(arguments: Sequence[str]) -> int:
    """Run the server; return the exit status: 0 after a clean stop, 1 when it cannot start, 255 for a bad
    command line."""
    try:
        flags = flag_table.parse(arguments)
    except flag_table.FlagError as error:
        print(f"{error}\n\n{flag_table.usage()}", file=sys.stderr)
        return BAD_USAGE
    if flags.help:
        print(flag_table.usage(), end="")
        return 0
    if flags.version:
        print(_version())
        return 0
    return _run(flags)


def _version() -> str:
    try:
        own = metadata.version("estimator-appliance")
    except metadata.PackageNotFoundError:
        own = "not installed, run from its sources"
    return f"Appliance ModelServer: {own}\nTensorFlow Library: {metadata.version('tensorflow')}"


def _run(flags: flag_table.Flags) -> int:
    logs.set_up(several_processes=flags.workers > 1)
    for warning in flags.warnings:
        logging.getLogger(__name__).warning(warning)
    try:
        start.check(flags)
        if flags.workers > 1:
            return asyncio.run(Supervisor(flags).run())
        os.environ.update(settings.environment(flags))
        # TensorFlow is imported here, so that what is wrong with the command line is said at once.
        import uvloop

        from serving.model_server.server import serve

        uvloop.run(serve(flags))
    except start.StartFailed as error:
        print(error, file=sys.stderr)
        return start.FAILED
    except flag_table.FlagError as error:
        print(f"{error}\n\n{flag_table.usage()}", file=sys.stderr)
        return BAD_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
