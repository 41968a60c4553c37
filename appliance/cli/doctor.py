"""`appliance doctor`: what is wrong, or would be."""

from __future__ import annotations

from pathlib import Path

import click

from appliance.cli.output import json_option, print_json, print_table


@click.group()
def doctor() -> None:
    """Look for trouble before it comes."""


@doctor.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
@click.pass_context
def migrate(context: click.Context, files: tuple[Path, ...], as_json: bool) -> None:
    """Report each tf.estimator symbol that FILES use, and what becomes of it.

    FILES are Python files, or folders to look through. Nothing is run and nothing is changed. The exit code
    is 1 when something has no counterpart here, or a file cannot be read.
    """
    from appliance.migration import scan_file

    reports = [scan_file(path) for path in _sources(files)]
    if as_json:
        print_json(
            [
                {
                    "path": report.path,
                    "error": report.error,
                    "findings": [
                        {"line": found.line, "symbol": found.symbol, **found.outcome._asdict()}
                        for found in report.findings
                    ],
                }
                for report in reports
            ]
        )
    else:
        rows = [
            (f"{report.path}:{found.line}", found.symbol, *found.outcome)
            for report in reports
            for found in report.findings
        ]
        columns = ("where", "symbol", "becomes", "of appliance", "note")
        print_table(columns, rows, "No tf.estimator symbol is used.")
        for report in reports:
            if report.error:
                click.echo(f"{report.path}: {report.error}", err=True)
    gone = any(found.outcome.kind == "gone" for report in reports for found in report.findings)
    if gone or any(report.error for report in reports):
        context.exit(1)


def _sources(files: tuple[Path, ...]) -> list[Path]:
    """Return the files, and the Python files in the folders."""
    found: list[Path] = []
    for path in files:
        found.extend(sorted(path.rglob("*.py")) if path.is_dir() else [path])
    return found
