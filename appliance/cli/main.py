"""The `appliance` command and the table of its subcommands."""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

from appliance import __version__, environment
from appliance.cli.failures import one_line_errors

COMMANDS = {
    "up": "appliance.cli.up:up",
    "down": "appliance.cli.up:down",
    "gateway": "appliance.cli.services:gateway",
    "trainer": "appliance.cli.services:trainer",
    "train": "appliance.cli.train:train",
    "jobs": "appliance.cli.jobs:jobs",
    "registry": "appliance.cli.registry:registry",
    "predict": "appliance.cli.predict:predict",
    "doctor": "appliance.cli.doctor:doctor",
}
"""Where each subcommand is; a module is imported when its command is asked for."""


class LazyGroup(click.Group):
    """A group whose commands are imported when needed, and whose errors are told in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        return getattr(importlib.import_module(module), name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, after a warning for each misspelt variable."""
        for line in environment.warnings(os.environ):
            click.echo(f"warning: {line}", err=True)
        with one_line_errors():
            return super().invoke(ctx)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="appliance")
def cli() -> None:
    """Train, register, promote and serve TensorFlow models.

    Settings come from environment variables APPLIANCE_...; APPLIANCE_URL and APPLIANCE_TOKEN say where the
    appliance is and let you in.
    """


def main() -> None:
    """Run the command of this process."""
    cli(prog_name="appliance")
