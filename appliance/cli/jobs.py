"""`appliance jobs`: list, show, follow and cancel jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from appliance.cli.failures import INTERRUPTED, JOB_FAILED, REFUSED, Failure
from appliance.cli.output import json_option, print_json, print_record, print_table, url_option

if TYPE_CHECKING:
    from appliance.client import Client, Job


@click.group()
def jobs() -> None:
    """List, show, follow and cancel training jobs."""


@jobs.command("list")
@click.option("--state", type=click.Choice(["queued", "running", "succeeded", "failed", "cancelled"]))
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@url_option
@json_option
def list_jobs(state: str | None, limit: int, url: str | None, as_json: bool) -> None:
    """List jobs, newest first."""
    from appliance.client import Client

    with Client(url) as client:
        found = client.jobs(state=state, limit=limit)
    if as_json:
        print_json(found)
        return
    columns = ["job", "state", "model", "step", "version", "promoted to", "submitted", "by", "error"]
    rows = [
        (
            job.id,
            job.state,
            job.model,
            job.step,
            job.version,
            job.result.get("promoted_to"),
            job.created_at,
            job.submitted_by,
            job.error,
        )
        for job in found
    ]
    print_table(columns, rows, "There are no jobs.")


@jobs.command()
@click.argument("job")
@url_option
@json_option
def show(job: str, url: str | None, as_json: bool) -> None:
    """Show a job."""
    from appliance.client import Client

    with Client(url) as client:
        report(client.job(job), as_json)


@jobs.command()
@click.argument("job")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@url_option
@json_option
def logs(job: str, follow: bool, url: str | None, as_json: bool) -> None:
    """Print what a job printed; with --json one object a line."""
    import json

    from appliance.cli.output import plain
    from appliance.client import Client

    with Client(url) as client:
        for line in client.logs(job, follow=follow):
            click.echo(json.dumps(plain(line), ensure_ascii=False) if as_json else line.line)


@jobs.command()
@click.argument("job")
@url_option
@json_option
def watch(job: str, url: str | None, as_json: bool) -> None:
    """Show the progress of a job until it has ended."""
    from appliance.client import Client

    with Client(url) as client:
        watch_to_end(client, job, as_json)


@jobs.command()
@click.argument("job")
@url_option
@json_option
def cancel(job: str, url: str | None, as_json: bool) -> None:
    """Ask a job to stop: it writes a checkpoint, then ends."""
    from appliance.client import Client

    with Client(url) as client:
        report(client.cancel(job), as_json)


def report(job: Job, as_json: bool) -> None:
    """Print a job."""
    if as_json:
        print_json(job)
    else:
        print_record(vars(job))


def watch_to_end(client: Client, job: str, as_json: bool) -> None:
    """Show the progress of a job, print how it ended, and fail if it did not succeed."""
    try:
        ended = client.watch(job, show="none" if as_json else "auto")
    except KeyboardInterrupt as error:
        hint = f"`appliance jobs watch {job}` shows it again, `appliance jobs cancel {job}` ends it"
        raise Failure(f"interrupted; the job goes on ({hint})", INTERRUPTED) from error
    _end_with(ended, as_json)


def _end_with(job: Job, as_json: bool) -> None:
    if as_json:
        print_json(job)
    if job.state != "succeeded":
        told = f": {job.error}" if job.error else ""
        raise Failure(
            f"job {job.id} {job.state}{told} (`appliance jobs logs {job.id}` has its log)", JOB_FAILED
        )
    if not as_json:
        click.echo(outcome(job))
    if job.result.get("promotion_refused"):
        raise Failure(f"not promoted to {job.promote}: {job.result['promotion_refused']}", REFUSED)


def outcome(job: Job) -> str:
    """Return in one line what came of a job that succeeded."""
    parts = [f"job {job.id} succeeded"]
    if job.version is not None:
        parts.append(f"registered as version {job.version} of {job.model}")
    if job.result.get("promoted_to"):
        parts.append(f"promoted to {job.result['promoted_to']}")
    return "; ".join(parts)
