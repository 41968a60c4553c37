"""Writes docs/cli.md from the commands themselves: `python -m appliance.cli.reference > docs/cli.md`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from appliance.cli.main import cli
from appliance.settings import Settings

WIDTH = 100

HEAD = """# The `appliance` command

*Made by `python -m appliance.cli.reference`; a test compares it with the commands.*

Every command that prints data takes `--json`. Errors are one line on standard error, `error: ...`; with
`APPLIANCE_DEBUG=1` the traceback of a fault is shown.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | it did not come about |
| 2 | wrong usage |
| 3 | not found |
| 4 | refused: a gate, a conflict, a version that will not load |
| 5 | no answer from the server, the database or the store of the files |
| 6 | the token is missing or wrong |
| 7 | the job failed or was cancelled |
| 8 | the appliance cannot start: a port, a folder, the database, a setting, a package that is not installed |
| 9 | `registry verify` found damaged files |
| 130 | interrupted |

The `registry` commands talk to the appliance at `--url` or `APPLIANCE_URL`; without either they work on the
database of the settings (`APPLIANCE_HOME`, `APPLIANCE_DATABASE_URL`), whether an appliance runs on it or not.

## Settings

The gateway and the trainer read them once, from their environment. The client and the command read
`APPLIANCE_URL` (`http://127.0.0.1:8501`), where the gateway is, and `APPLIANCE_TOKEN`. Each command warns, on
standard error, of a variable `APPLIANCE_...` that is none of these, and names the nearest.

| variable | default | meaning |
| --- | --- | --- |
"""


def render() -> str:
    """Return the reference as Markdown."""
    helps = (f"\n## {path}\n\n```text\n{text}\n```\n" for path, text in _helps(cli, "appliance", None))
    return HEAD + "".join(_settings()) + "".join(helps)


def _settings() -> Iterator[str]:
    """Yield a row of the table for each setting."""
    for name, field in Settings.model_fields.items():
        unset = field.default_factory is not None or field.default in ("", None, Path())
        default = "" if unset else f"`{str(field.default).lower()}`"
        yield f"| `APPLIANCE_{name.upper()}` | {default} | {field.description} |\n"


def _helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """Yield the path and the help of a command and of all below it."""
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        **command.context_settings,
    )
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from _helps(found, child, context)


if __name__ == "__main__":
    click.echo(render(), nl=False)
