"""`appliance registry sweep | migrate`: looking after the database and the files."""

from __future__ import annotations

import click

from appliance.cli.access import is_remote, open_registry
from appliance.cli.failures import Failure
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.start import read_settings


@click.command()
@json_option
def sweep(as_json: bool) -> None:
    """Remove what interrupted publishing has left behind. Works where the database is, not over HTTP."""
    _refuse_remote("sweep")
    with open_registry() as house:
        removed = house.sweep()
    if as_json:
        print_json(removed)
    else:
        rows = [(entry.model, entry.version, entry.uri, entry.reason) for entry in removed]
        print_table(["model", "version", "removed", "why"], rows, "There was nothing to remove.")


@click.command()
def migrate() -> None:
    """Bring the database to this release. Works where the database is, not over HTTP."""
    _refuse_remote("migrate")
    with open_registry(migrate=True):
        from appliance.trainer.jobs import JobStore

        JobStore(read_settings().database_url).close()
    click.echo("the database is up to date")


def _refuse_remote(command: str) -> None:
    if is_remote(None):
        raise Failure(
            f"{command} works on the database itself: unset APPLIANCE_URL, set APPLIANCE_DATABASE_URL"
        )
