"""`appliance registry history | events`: what changed, when, by whom and why."""

from __future__ import annotations

from typing import Any

import click

from appliance.cli.access import registry_access
from appliance.cli.options import limit_option, place_option
from appliance.cli.output import json_option, print_json, print_table

version_option = click.option("--version", type=click.IntRange(min=1), help="Only about this version.")
before_option = click.option(
    "--before", type=click.IntRange(min=1), metavar="ID", help="Only what has a lower id: the next page."
)


@click.command()
@click.argument("model")
@click.option("--label", help="Only the moves of this label.")
@version_option
@limit_option
@before_option
@place_option
@json_option
def history(model: str, url: str | None, as_json: bool, **query: Any) -> None:
    """List the moves of MODEL's labels, newest first."""
    with registry_access(url) as access:
        moves = access.history(model, **query)
    if as_json:
        print_json(moves)
        return
    columns = ["id", "at", "label", "action", "from", "to", "forced", "by", "reason"]
    rows = [
        (
            move.id,
            move.at,
            move.label,
            move.action,
            move.from_version,
            move.to_version,
            "yes" if move.forced else "",
            move.actor,
            move.reason,
        )
        for move in moves
    ]
    print_table(columns, rows, f"No label of model {model} has moved so.")


@click.command()
@click.argument("model")
@click.option(
    "--kind", "kinds", multiple=True, metavar="KIND", help="Only this kind: gate.refused, 'label.*', ..."
)
@click.option("--label", help="Only what is about this label.")
@version_option
@limit_option
@before_option
@place_option
@json_option
def events(model: str, url: str | None, as_json: bool, **query: Any) -> None:
    """List every change of MODEL and of all that belongs to it, newest first."""
    with registry_access(url) as access:
        found = access.model_events(model, **query)
    if as_json:
        print_json(found)
        return
    rows = [
        (event.id, event.at, event.kind, event.version, event.label, event.actor, event.reason)
        for event in found
    ]
    columns = ["id", "at", "what", "version", "label", "by", "reason"]
    print_table(columns, rows, f"Nothing of model {model} has changed so.")
