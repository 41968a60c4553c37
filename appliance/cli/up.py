"""`appliance up` and `appliance down`: the whole appliance on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from appliance.cli.start import log_to_stderr, read_settings, start_errors


@click.command()
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where everything is kept.  [APPLIANCE_HOME]",
)
@click.option("--host", help="The address to listen on.  [APPLIANCE_HOST, or 127.0.0.1]")
@click.option(
    "--rest-port", type=click.IntRange(0, 65535), help="[APPLIANCE_REST_PORT, or 8501; 0: a free one]"
)
@click.option(
    "--grpc-port", type=click.IntRange(0, 65535), help="[APPLIANCE_GRPC_PORT, or 8500; 0: a free one]"
)
@click.option("--detach", is_flag=True, help="Return when it is up, and leave it running.")
def up(
    home: Path | None, host: str | None, rest_port: int | None, grpc_port: int | None, detach: bool
) -> None:
    """Start the gateway and the trainer, and keep them running until stopped.

    Stop it with Ctrl-C, SIGTERM or `appliance down`; nothing is left running, and everything is kept in its
    home.
    """
    given: dict[str, Any] = {"home": home, "host": host, "rest_port": rest_port, "grpc_port": grpc_port}
    settings = read_settings(**{name: value for name, value in given.items() if value is not None})
    with start_errors():
        if detach:
            from appliance.detached import start

            start(settings, click.echo)
            return
        from appliance.standalone import run

        log_to_stderr()
        run(settings, click.echo)


@click.command()
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it keeps everything.  [APPLIANCE_HOME]",
)
def down(home: Path | None) -> None:
    """Stop the appliance that runs on this machine, and wait until nothing of it is left.

    A job that is running writes a checkpoint, and goes on when the appliance is up again.
    """
    settings = read_settings() if home is None else read_settings(home=home)
    with start_errors():
        from appliance.detached import stop

        stop(settings, click.echo)
