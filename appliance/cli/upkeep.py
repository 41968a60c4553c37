"""`appliance registry verify | gc | retention | import | export | migrate`: the files and the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from appliance.cli.access import is_remote, number_of, open_registry, registry_access, registry_errors
from appliance.cli.failures import DAMAGED, Failure
from appliance.cli.options import place_option
from appliance.cli.output import json_option, print_json, print_record, print_table
from appliance.cli.start import read_settings
from appliance.client.results import Removed


@click.command()
@click.argument("model")
@click.argument("version", required=False)
@place_option
@json_option
def verify(model: str, version: str | None, url: str | None, as_json: bool) -> None:
    """Compare the files of VERSION of MODEL, by number or label, or of all, with what was published."""
    with registry_access(url) as access:
        found = access.verify(model, None if version is None else number_of(access, model, version))
    damaged = [entry for entry in found if entry.damages]
    if as_json:
        print_json(found)
    else:
        rows = [
            (entry.version, damage["file"], damage["problem"], damage["detail"])
            for entry in damaged
            for damage in entry.damages
        ]
        versions = "version is" if len(found) == 1 else "versions are"
        print_table(["version", "file", "is", ""], rows, f"{len(found)} {versions} as published.")
    if damaged:
        numbers = ", ".join(str(entry.version) for entry in damaged)
        raise Failure(f"damaged versions of {model}: {numbers}; restore their files, or delete them", DAMAGED)


@click.command()
@click.option("--dry-run", is_flag=True, help="Remove nothing; say what would be removed, and why.")
@place_option
@json_option
def gc(dry_run: bool, url: str | None, as_json: bool) -> None:
    """Delete what the retention policies let go, and remove files that nobody can use.

    Those are the leftovers of interrupted publishing and the files of failed and deleted versions. Nothing
    is taken of a version that is labelled, was lately, or is where a rollback would go to.
    """
    with registry_access(url) as access:
        removed = access.gc(dry_run=dry_run)
    stuck = [entry for entry in removed if entry.error]
    if as_json:
        print_json(removed)
    else:
        _print_removed([entry for entry in removed if not entry.error], dry_run)
    if stuck:
        places = "; ".join(f"{entry.uri} ({entry.error})" for entry in stuck)
        raise Failure(f"could not remove {places}: see that it may be removed, and run gc again")


def _print_removed(removed: list[Removed], dry_run: bool) -> None:
    verb, nothing = ("would go", "is") if dry_run else ("removed", "was")
    rows = [
        (entry.model, entry.version, f"{entry.size_bytes:,}", entry.uri, entry.reason) for entry in removed
    ]
    print_table(["model", "version", "bytes", verb, "why"], rows, f"There {nothing} nothing to remove.")
    if removed:
        total = sum(entry.size_bytes for entry in removed)
        click.echo(f"{total:,} bytes {'would be freed; nothing was removed' if dry_run else 'freed'}")


@click.command()
@click.argument("model")
@click.option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep the N newest ready ones.")
@click.option("--keep-all", is_flag=True, help="Keep every version.")
@click.option(
    "--keep-production/--drop-production",
    default=None,
    help="Whether to keep all that ever were in production.  [default: keep]",
)
@place_option
@json_option
def retention(
    model: str,
    keep_last: int | None,
    keep_all: bool,
    keep_production: bool | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show or set which versions of MODEL `gc` keeps.

    Labelled versions, those labelled lately, and those that a rollback would go to stay in any case.
    """
    if keep_last is not None and keep_all:
        raise click.UsageError("Give one of --keep-last and --keep-all.")
    if keep_production is not None and keep_last is None:
        raise click.UsageError("--keep-production and --drop-production go with --keep-last.")
    with registry_access(url) as access:
        if keep_last is None and not keep_all:
            policy = access.retention(model)
        else:
            policy = access.set_retention(
                model, keep_last=keep_last, keep_production=keep_production is not False
            )
    if as_json:
        print_json(policy)
        return
    last = "all versions" if policy.keep_last is None else f"the last {policy.keep_last}"
    production = " and all that ever were in production"
    keeps = last + (production if policy.keep_last is not None and policy.keep_production else "")
    click.echo(f"{model}: keep {keeps}")


@click.command("import")
@click.argument("model")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--metric", "metrics", multiple=True, metavar="NAME=NUMBER", help="What it was evaluated to.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE")
@click.option("--source-revision", default="", help="Of the code that made it.")
@click.option("--description", default="")
@json_option
def import_model(
    model: str,
    directory: Path,
    metrics: tuple[str, ...],
    tags: tuple[str, ...],
    source_revision: str,
    description: str,
    as_json: bool,
) -> None:
    """Register the SavedModel in DIRECTORY, made elsewhere, as the next version of MODEL.

    MODEL is made if it is new. Works where the database and the files are, not over HTTP.
    """
    from appliance.client.transport import default_actor

    _refuse_remote("import")
    numbers = {name: _number(name, value) for name, value in _pairs(metrics).items()}
    with open_registry() as store:
        version = store.import_model(
            model,
            directory,
            metrics=numbers,
            tags=_pairs(tags),
            source_revision=source_revision,
            description=description,
            actor=default_actor(),
        )
    shown: dict[str, Any] = {**vars(version), "files": len(version.manifest)}
    del shown["manifest"]
    if as_json:
        print_json(shown)
    else:
        print_record({**shown, "signatures": list(version.signatures)})


@click.command()
@click.argument("model")
@click.argument("version")
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
def export(model: str, version: str, directory: Path, as_json: bool) -> None:
    """Copy the files of VERSION of MODEL, by number or label, into the new folder DIRECTORY.

    They are compared with what was published. Works where the files are, not over HTTP.
    """
    _refuse_remote("export")
    with open_registry() as store:
        number = int(version) if version.isdecimal() else store.resolve(model, version).version
        folder = store.export_version(model, number, directory)
    if as_json:
        print_json({"model": model, "version": number, "directory": str(folder)})
    else:
        click.echo(f"version {number} of {model} is in {folder}")


@click.command()
@json_option
def migrate(as_json: bool) -> None:
    """Bring the database to this release. Works where the database is, not over HTTP."""
    _refuse_remote("migrate")
    with registry_errors():
        changes = _migrate(read_settings().database_url)
    if as_json:
        print_json(changes)
        return
    moved = [
        f"{owner} from {change['from'] or 'nothing'} to {change['to']}"
        for owner, change in changes.items()
        if change["from"] != change["to"]
    ]
    click.echo("the database is up to date" + (f": {', '.join(moved)}" if moved else ""))


def _migrate(database_url: str) -> dict[str, dict[str, str | None]]:
    """Migrate all tables; return for each owner of tables the revision before and the one now."""
    from appliance.trainer.jobs import JobStore
    from appliance.trainer.tables import VERSION_TABLE as OF_THE_TRAINER
    from registry.database import connect, revision_of
    from registry.store import VERSION_TABLE as OF_THE_REGISTRY
    from registry.store import migrate_registry

    tables = {"registry": OF_THE_REGISTRY, "trainer": OF_THE_TRAINER}
    engine = connect(database_url)
    try:
        before = {owner: revision_of(engine, table) for owner, table in tables.items()}
        migrate_registry(engine)
        JobStore(engine).close()
        return {
            owner: {"from": before[owner], "to": revision_of(engine, table)}
            for owner, table in tables.items()
        }
    finally:
        engine.dispose()


def _refuse_remote(command: str) -> None:
    if is_remote(None):
        raise Failure(
            f"{command} works on the database itself: unset APPLIANCE_URL, set APPLIANCE_DATABASE_URL"
        )


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    if not all("=" in text for text in texts):
        raise click.UsageError("Write metrics and tags as NAME=VALUE.")
    return dict(text.split("=", 1) for text in texts)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise click.UsageError(f"The metric {name} is {text!r}, which is no number.") from error
