"""`appliance registry show | compare | card`: what is known of versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from appliance.cli.access import registry_access
from appliance.cli.failures import Failure
from appliance.cli.options import place_option
from appliance.cli.output import cell, json_option, print_json, print_record, print_table
from appliance.client.results import Promotion, Version, parse


@click.command()
@click.argument("model")
@click.argument("version")
@place_option
@json_option
def show(model: str, version: str, url: str | None, as_json: bool) -> None:
    """Show a VERSION of MODEL, by number or label: its facts, where it comes from, what became of it."""
    with registry_access(url) as access:
        lineage = access.lineage(model, version)
    if as_json:
        told = {name: value for name, value in lineage.items() if name != "version"}
        print_json({**lineage["version"], "lineage": told})
        return
    found = vars(parse(Version, lineage["version"]))
    job = {name: value for name, value in (lineage["job"] or {}).items() if value is not None}
    print_record({**found, "signatures": list(found["signatures"]), "job": job or found["job"]})
    _print_curves(lineage["curves"])
    _print_approvals(lineage["approvals"])
    for label, report in lineage["gate_reports"].items():
        click.echo(f"\ngate of {label}, {'passed' if report['passed'] else 'REFUSED'}")
        rows = [("passed" if entry["passed"] else "FAILED", entry["detail"]) for entry in report["checks"]]
        print_table(["check", "what it found"], rows, "")
    if lineage["moves"]:
        click.echo("\nmoves")
        names = ("at", "label", "action", "from_version", "to_version", "actor", "reason")
        moves = [parse(Promotion, move) for move in lineage["moves"]]
        rows = [tuple(getattr(move, name) for name in names) for move in moves]
        print_table(["at", "label", "action", "from", "to", "by", "reason"], rows, "")


def _print_curves(curves: dict[str, Any]) -> None:
    from appliance.card import KINDS, curve_rows, step_rows

    if not curves:
        return
    click.echo("\ncurves")
    print_table(["metric", "first", "last", "least", "greatest", "by step"], curve_rows(curves), "")
    for kind, heading in KINDS.items():
        columns, rows = step_rows(curves, kind)
        if rows:
            click.echo(f"\n{heading.lower()}")
            print_table(columns, rows, "")


def _print_approvals(approvals: Sequence[Mapping[str, Any]]) -> None:
    if approvals:
        click.echo("\napprovals")
        rows = [
            (datetime.fromisoformat(entry["at"]), entry["label"], entry["actor"], entry["comment"])
            for entry in approvals
        ]
        print_table(["at", "label", "by", "comment"], rows, "")


@click.command()
@click.argument("model")
@click.argument("versions", nargs=-1, required=True, metavar="VERSION VERSION...")
@click.option("--all", "show_all", is_flag=True, help="Also what is the same in all.")
@place_option
@json_option
def compare(model: str, versions: tuple[str, ...], show_all: bool, url: str | None, as_json: bool) -> None:
    """Show versions of MODEL, by number or label, side by side: what differs, and by how much."""
    from appliance.comparison import compare as compare_versions

    if len(versions) < 2:
        raise click.UsageError("Give two versions or more.")
    with registry_access(url) as access:
        found = [access.version(model, version) for version in versions]
    rows = compare_versions(found)
    if as_json:
        numbers = [version.version for version in found]
        told = [{**vars(row), "differs": row.differs, "change": row.change} for row in rows]
        print_json({"model": model, "versions": numbers, "rows": told})
        return
    shown = [
        (row.section, row.name, *map(cell, row.values), "" if row.change is None else f"{row.change:+.5g}")
        for row in rows
        if show_all or row.differs
    ]
    columns = ["", "name", *(f"version {version.version}" for version in found), "change"]
    print_table(columns, shown, f"These versions of model {model} differ in nothing.")


@click.command()
@click.argument("model")
@click.argument("version")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it into this file.")
@place_option
def card(model: str, version: str, output: Path | None, url: str | None) -> None:
    """Write the model card of a VERSION of MODEL, by number or label, in Markdown."""
    with registry_access(url) as access:
        text = access.card(model, version)
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text)
        click.echo(f"wrote {output}")


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(
            f"Cannot write the card to {str(output)!r}: {error.strerror}. Name another file."
        ) from error
