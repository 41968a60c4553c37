"""`appliance registry`: versions, labels, gates and their history."""

from __future__ import annotations

from typing import Any

import click

from appliance.cli.access import is_remote, number_of, registry_access
from appliance.cli.failures import REFUSED, Failure
from appliance.cli.history import events, history
from appliance.cli.lineage import card, compare, show
from appliance.cli.options import expect_option, label_option, place_option, reason_option, wait_option
from appliance.cli.output import json_option, print_json, print_table
from appliance.cli.upkeep import export, gc, import_model, migrate, retention, verify
from appliance.cli.webhooks import webhook
from appliance.client.results import Model, Promotion, Version

STATES = ["pending", "ready", "failed", "deleted"]
MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"])


@click.group()
def registry() -> None:
    """List, promote, roll back and guard model versions."""


for command in (
    *(show, compare, card, history, events, webhook),
    *(verify, gc, retention, import_model, export, migrate),
):
    registry.add_command(command)


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
        # Lists carry neither these nor the manifest: `show` has all of a version.
        absent = ("signatures", "libraries", "data_fingerprint", "files")
        print_json(
            [
                {name: value for name, value in vars(version).items() if name not in absent}
                for version in versions
            ]
        )
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
@click.option("--remove", metavar="LABEL", help="Take this label away; a rollback brings it back.")
@reason_option
@expect_option
@place_option
@json_option
def label(
    model: str, remove: str | None, reason: str, expect: int | None, url: str | None, as_json: bool
) -> None:
    """List the labels of MODEL, or take one away. `promote` moves them."""
    with registry_access(url) as access:
        if remove is not None:
            access.remove_label(model, remove, expect=expect, reason=reason)
        found = access.labels(model)
    if as_json:
        print_json(found)
    else:
        print_table(["label", "version"], list(found.items()), f"Model {model} has no labels.")


@registry.command()
@click.argument("model")
@click.argument("version")
@label_option
@reason_option
@expect_option
@click.option("--force", is_flag=True, help="Pass over the gate, with a --reason; recorded.")
@wait_option
@place_option
@json_option
def promote(
    model: str,
    version: str,
    label: str,
    reason: str,
    expect: int | None,
    force: bool,
    wait: float | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Move a label of MODEL to VERSION, by number or by another label, if its gate lets it through."""
    if force and not reason.strip():
        raise click.UsageError("--force needs a --reason: the history keeps it.")
    with registry_access(url) as access:
        number = number_of(access, model, version)
        move = access.promote(
            model, number, label=label, expect=expect, reason=reason, force=force, wait=_wait(wait, url)
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
@label_option
@click.option("--rule", "rules", multiple=True, metavar="RULE", help="A rule, 'auc >= 0.69' for instance.")
@click.option("--clear", is_flag=True, help="Remove all rules.")
@click.option("--check", metavar="VERSION", help="Say whether VERSION, by number or label, would pass.")
@place_option
@json_option
def gate(
    model: str,
    label: str,
    rules: tuple[str, ...],
    clear: bool,
    check: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show, set or check the gate of a label: what a version must meet before the label moves to it."""
    if sum((bool(rules), clear, check is not None)) > 1:
        raise click.UsageError("Give one of --rule, --clear and --check.")
    with registry_access(url) as access:
        if check is not None:
            number = number_of(access, model, check)
            report = access.check_gate(model, number, label=label)
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
        raise Failure(f"the gate of {label} would refuse version {number} of {model}", REFUSED)


@registry.command()
@click.argument("model")
@click.argument("version", type=click.IntRange(min=1))
@place_option
@json_option
def delete(model: str, version: int, url: str | None, as_json: bool) -> None:
    """Delete VERSION of MODEL, which no label may need.

    Its files go too; but if a label was on it within the last day, they go with a `gc` after that.
    """
    with registry_access(url) as access:
        access.delete_version(model, version)
    if as_json:
        print_json({"model": model, "version": version, "state": "deleted"})
    else:
        click.echo(f"deleted version {version} of {model}")


@registry.command()
@click.argument("model")
@click.argument("tags", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--version", type=click.IntRange(min=1), help="[default: the model itself]")
@click.option("--remove", "removed", multiple=True, metavar="KEY", help="Take this tag away.")
@click.option("--description", help="Say this of it, in place of what is said.")
@place_option
@json_option
def tag(
    model: str,
    tags: tuple[str, ...],
    version: int | None,
    removed: tuple[str, ...],
    description: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Set or remove tags of MODEL or of one of its versions, or describe it; then show its tags."""
    if not all("=" in text for text in tags):
        raise click.UsageError("Write a tag as KEY=VALUE; --remove KEY takes one away.")
    given = dict(text.split("=", 1) for text in tags)
    with registry_access(url) as access:
        found: Model | Version = access.model(model) if version is None else access.version(model, version)
        wanted = {key: value for key, value in {**found.tags, **given}.items() if key not in removed}
        new_tags = wanted if wanted != found.tags else None
        changes: dict[str, Any] = {"tags": new_tags, "description": description}
        if any(value is not None for value in changes.values()):
            if version is None:
                found = access.describe_model(model, **changes)
            else:
                found = access.describe_version(model, version, **changes)
    if as_json:
        print_json(found)
    else:
        print_table(["tag", "value"], sorted(found.tags.items()), "It has no tags.")


@registry.command()
@click.argument("model")
@click.argument("version")
@label_option
@click.option("--comment", default="", help="What you have looked at.")
@place_option
@json_option
def approve(model: str, version: str, label: str, comment: str, url: str | None, as_json: bool) -> None:
    """Say that VERSION of MODEL, by number or label, may go under a label, where a gate asks for that."""
    with registry_access(url) as access:
        number = number_of(access, model, version)
        approval = access.approve(model, number, label=label, comment=comment)
    if as_json:
        print_json(approval)
    else:
        click.echo(f"approved version {number} of {model} for {label}")


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
