"""`appliance gateway` and `appliance trainer`: the two processes of the appliance."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli.failures import UNREACHABLE, Failure
from appliance.cli.start import log_to_stderr, read_settings, start_errors

if TYPE_CHECKING:
    from appliance.settings import Settings


@click.command()
@click.option("--ready-file", type=click.Path(path_type=Path), hidden=True, help="Written once it listens.")
def gateway(ready_file: Path | None) -> None:
    """Serve predictions and the control plane.

    REST on APPLIANCE_REST_PORT (8501), gRPC on APPLIANCE_GRPC_PORT (8500).
    """
    settings = read_settings()
    log_to_stderr()
    with start_errors():
        from appliance.startup import check_database, check_folders, check_ports

        # Before TensorFlow is imported, which takes seconds and has a lot to say.
        check_folders(settings)
        check_ports(settings)
        check_database(settings)
        from appliance.api.server import serve

        serve(settings, ready_file)


@click.command()
@click.option(
    "--check", is_flag=True, help="Only say whether a worker lives on this host, for health checks."
)
def trainer(check: bool) -> None:
    """Run training jobs, one after the other."""
    settings = read_settings()
    if check:
        with start_errors():
            _check_worker(settings)
        return
    log_to_stderr()
    with start_errors():
        from appliance.startup import check_folders
        from appliance.trainer import service

        check_folders(settings)
        service.main(settings)


def _check_worker(settings: Settings) -> None:
    from appliance.trainer.jobs import JobStore

    jobs = JobStore(settings.database_url)
    try:
        names = [worker.name for worker in jobs.workers()]
    finally:
        jobs.close()
    host = socket.gethostname()
    here = [name for name in names if name.startswith(f"{host}-")]
    if not here:
        raise Failure(
            f"no worker of {host} was seen lately; workers: {', '.join(names) or 'none'}", UNREACHABLE
        )
    click.echo(", ".join(here))
