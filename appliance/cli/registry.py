"""`appliance registry`: versions, labels, gates and their history."""

from __future__ import annotations

from typing import Any

import click

from appliance.cli.access import is_remote, open_registry, registry_access
from appliance.cli.failures import REFUSED, Failure
from appliance.cli.output import json_option, print_json, print_record, print_table
from appliance.cli.start import read_settings
from appliance.client.results import Model, Promotion

STATES = ["pending", "ready", "failed", "deleted"]
MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"])
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


@click.group()
def registry() -> None:
    """List, promote, roll back and guard model versions."""


@registry.command("list")
@click.argument("model", required=False)
@click.option(
    "--name", metavar="PATTERN", help="Without MODEL: only models like this, 'flights-*' for instance."
)
@click.option("--tag", "tags", multiple=True, metavar="KEY[=VALUE]", help="Only what has this tag.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="[default: all but deleted]"
)
@click.option(
    "--where", "metrics", multiple=True, metavar="CONDITION", help="A metric, 'auc > 0.7' for instance."
)
@click.option("--job", help="Only what this job made.")
@click.option("--label", help="Only what is under this label.")
@click.option("--since", type=MOMENT, help="Created at this time or later.")
@click.option("--until", type=MOMENT, help="Created before this time.")
@click.option(
    "--order",
    default="-version",
    show_default=True,
    metavar="ORDER",
    help="version, created or metrics.NAME; '-' first: the greatest first.",
)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many at most.")
@place_option
@json_option
def list_versions(
    model: str | None,
    name: str | None,
    tags: tuple[str, ...],
    url: str | None,
    limit: int,
    as_json: bool,
    **filters: Any,
) -> None:
    """List the models, or the versions of MODEL that meet everything given."""
    if model is None:
        with registry_access(url) as access:
            models = access.models(name or "", tags=tags, limit=limit)
        _print_models(models, as_json)
        return
    if name is not None:
        raise click.UsageError("--name finds models; leave out MODEL.")
    filters["created_from"], filters["created_before"] = filters.pop("since"), filters.pop("until")
    with registry_access(url) as access:
        versions = access.versions(model, tags=tags, limit=limit, **filters)
    if as_json:
        print_json(versions)
        return
    names = sorted({name for version in versions for name in version.metrics} - {"global_step"})
    rows = [
        (
            version.version,
            version.state,
            version.labels,
            version.step,
            *(version.metrics.get(name) for name in names),
            version.ready_at,
            version.error,
        )
        for version in versions
    ]
    columns = ["version", "state", "labels", "step", *names, "ready", "error"]
    print_table(columns, rows, f"Model {model} has no such versions.")


def _print_models(models: list[Model], as_json: bool) -> None:
    if as_json:
        print_json(models)
        return
    rows = [
        (entry.name, entry.labels, entry.newest_version, entry.tags, entry.created_at, entry.description)
        for entry in models
    ]
    columns = ["model", "labels", "newest", "tags", "created", "description"]
    print_table(columns, rows, "There are no models.")


@registry.command()
@click.argument("model")
@click.argument("version")
@place_option
@json_option
def show(model: str, version: str, url: str | None, as_json: bool) -> None:
    """Show a VERSION of MODEL, by number or label."""
    with registry_access(url) as access:
        found = access.version(model, version)
    if as_json:
        print_json(found)
    else:
        print_record({**vars(found), "signatures": list(found.signatures)})


@registry.command()
@click.argument("model")
@place_option
@json_option
def labels(model: str, url: str | None, as_json: bool) -> None:
    """List the labels of MODEL."""
    with registry_access(url) as access:
        found = access.labels(model)
    if as_json:
        print_json(found)
    else:
        print_table(["label", "version"], list(found.items()), f"Model {model} has no labels.")


@registry.command()
@click.argument("model")
@click.argument("version", type=click.IntRange(min=1))
@label_option
@reason_option
@expect_option
@click.option("--force", is_flag=True, help="Pass over the gate; recorded.")
@wait_option
@place_option
@json_option
def promote(
    model: str,
    version: int,
    label: str,
    reason: str,
    expect: int | None,
    force: bool,
    wait: float | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Move a label of MODEL to VERSION, if its gate lets it through."""
    with registry_access(url) as access:
        move = access.promote(
            model, version, label=label, expect=expect, reason=reason, force=force, wait=_wait(wait, url)
        )
    _report_move(move, as_json)


@registry.command()
@click.argument("model")
@label_option
@click.option("--to", type=click.IntRange(min=1), help="Go back to this version.  [default: the one before]")
@reason_option
@expect_option
@wait_option
@place_option
@json_option
def rollback(
    model: str,
    label: str,
    to: int | None,
    reason: str,
    expect: int | None,
    wait: float | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Move a label of MODEL back to the version it was on before."""
    with registry_access(url) as access:
        move = access.rollback(model, label=label, to=to, expect=expect, reason=reason, wait=_wait(wait, url))
    _report_move(move, as_json)


@registry.command()
@click.argument("model")
@click.option("--label", help="Only the moves of this label.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many at most.")
@click.option("--before", type=click.IntRange(min=1), metavar="ID", help="Only moves before this one.")
@place_option
@json_option
def history(
    model: str, label: str | None, limit: int, before: int | None, url: str | None, as_json: bool
) -> None:
    """List the moves of MODEL's labels, newest first."""
    with registry_access(url) as access:
        moves = access.history(model, label=label, limit=limit, before=before)
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
    print_table(columns, rows, f"No label of model {model} has moved.")


@registry.command()
@click.argument("model")
@label_option
@click.option("--rule", "rules", multiple=True, metavar="RULE", help="A rule, 'auc >= 0.69' for instance.")
@click.option("--clear", is_flag=True, help="Remove all rules.")
@click.option(
    "--check", type=click.IntRange(min=1), metavar="VERSION", help="Say whether VERSION would pass."
)
@place_option
@json_option
def gate(
    model: str,
    label: str,
    rules: tuple[str, ...],
    clear: bool,
    check: int | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show, set or check the gate of a label: what a version must meet before the label moves to it."""
    if sum((bool(rules), clear, check is not None)) > 1:
        raise click.UsageError("Give one of --rule, --clear and --check.")
    with registry_access(url) as access:
        if check is not None:
            report = access.check_gate(model, check, label=label)
        elif rules or clear:
            shown = access.set_gate(model, rules, label=label)
        else:
            shown = access.gate(model, label=label)
    if check is None:
        if as_json:
            print_json(shown)
        else:
            print_table(["rule"], [(rule,) for rule in shown.rules], f"Label {label} of {model} has no gate.")
        return
    if as_json:
        print_json(report)
    else:
        rows = [("passed" if entry["passed"] else "FAILED", entry["detail"]) for entry in report.checks]
        print_table(["check", "what it found"], rows, f"Label {label} of {model} has no gate.")
    if not report.passed:
        raise Failure(f"the gate of {label} would refuse version {check} of {model}", REFUSED)


@registry.command()
@click.argument("model")
@click.argument("version", type=click.IntRange(min=1))
@place_option
def delete(model: str, version: int, url: str | None) -> None:
    """Delete VERSION of MODEL, which no label may need."""
    with registry_access(url) as access:
        access.delete_version(model, version)
    click.echo(f"deleted version {version} of {model}")


@registry.command()
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


@registry.command()
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


def _wait(wait: float | None, url: str | None) -> float:
    """Return for how long to wait: without a server there may be nobody to wait for."""
    return wait if wait is not None else 60.0 if is_remote(url) else 0.0


def _report_move(move: Promotion, as_json: bool) -> None:
    if as_json:
        print_json(move)
    else:
        came_from = "no version" if move.from_version is None else f"version {move.from_version}"
        click.echo(f"{move.label} of {move.model}: {came_from} -> version {move.to_version}")
    if move.serving is False:
        raise Failure(f"version {move.to_version} of {move.model} is not served yet: it may still be loading")
