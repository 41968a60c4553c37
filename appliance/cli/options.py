"""Options that commands of the registry share."""

from __future__ import annotations

import click

REMOTE = "Where the appliance is. Without it and APPLIANCE_URL the database of the settings is used directly."


def place_option(command):  # type: ignore[no-untyped-def]
    """Add `--url` to a registry command."""
    return click.option("--url", metavar="URL", help=REMOTE)(command)


label_option = click.option("--label", default="production", show_default=True)
reason_option = click.option("--reason", default="", help="Why, for the history.")
expect_option = click.option(
    "--expect",
    type=click.IntRange(min=0),
    help="Refuse unless the label is on this version now (0: on none).",
)
wait_option = click.option(
    "--wait",
    type=click.FloatRange(0, 600),
    help="For how many seconds to wait until it is served.  [default: 60 over HTTP, else 0]",
)
limit_option = click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many at most."
)
