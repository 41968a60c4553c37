"""`appliance train`: submit an experiment."""

from __future__ import annotations

import json
from typing import Any

import click

from appliance.cli.jobs import report, watch_to_end
from appliance.cli.output import json_option, url_option


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--model", metavar="NAME", help="Register the result under this name.")
@click.option(
    "--promote", metavar="LABEL", help="Move this label to the new version, `production` for instance."
)
@click.option(
    "--param", "params", multiple=True, metavar="KEY=VALUE", help="A parameter; the value may be JSON."
)
@click.option("--run-config", multiple=True, metavar="KEY=NUMBER", help="A field of the RunConfig.")
@click.option("--function", default="experiment", show_default=True, help="The function in FILE.")
@click.option("--name", default="", help="What to call the job.")
@click.option("--watch", is_flag=True, help="Show its progress until it has ended.")
@url_option
@json_option
def train(
    file: str,
    model: str | None,
    promote: str | None,
    params: tuple[str, ...],
    run_config: tuple[str, ...],
    function: str,
    name: str,
    watch: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Submit the folder around FILE and queue a training job.

    FILE holds a function `experiment(run_config, params)` that returns an Experiment.
    """
    from appliance.client import Client

    with Client(url) as client:
        job = client.submit(
            file,
            model=model,
            promote=promote,
            params=pairs(params, "--param"),
            run_config=pairs(run_config, "--run-config"),
            function=function,
            name=name,
        )
        if not watch:
            report(job, as_json)
            return
        if not as_json:
            click.echo(f"submitted {job.id}")
        watch_to_end(client, job.id, as_json)


def pairs(given: tuple[str, ...], option: str) -> dict[str, Any]:
    """Return `key=value` arguments as a dictionary; a value is read as JSON, or else is text."""
    read: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.UsageError(f"Cannot read {option} {text!r}: write KEY=VALUE.")
        try:
            read[key] = json.loads(value)
        except json.JSONDecodeError:
            read[key] = value
    return read
