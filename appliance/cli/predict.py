"""`appliance predict`: ask a served model."""

from __future__ import annotations

import json
from typing import Any, TextIO

import click

from appliance.cli.output import print_json, url_option


@click.command()
@click.argument("model")
@click.option("--instances", metavar="JSON", help="Rows: '[{\"x\": 1.0}, ...]'.")
@click.option("--inputs", metavar="JSON", help="Columns: '{\"x\": [1.0, ...]}'.")
@click.option(
    "--input-file",
    type=click.File(),
    help="A JSON file: rows (a list), columns (an object), or a whole request.",
)
@click.option("--version", type=click.IntRange(min=1), help="Ask this version.")
@click.option("--label", help="Ask the version behind this label.  [default: production]")
@click.option("--signature-name", help="[default: serving_default]")
@click.option("--json", "as_json", is_flag=True, help="The output is JSON in any case; this changes nothing.")
@url_option
def predict(
    model: str,
    instances: str | None,
    inputs: str | None,
    input_file: TextIO | None,
    version: int | None,
    label: str | None,
    signature_name: str | None,
    as_json: bool,
    url: str | None,
) -> None:
    """Print the predictions of MODEL, as JSON."""
    from appliance.client import Client

    request = request_of(instances, inputs, input_file)
    if signature_name is not None:
        request["signature_name"] = signature_name
    with Client(url) as client:
        print_json(client.predict(model, version=version, label=label, **request))


def request_of(instances: str | None, inputs: str | None, input_file: TextIO | None) -> dict[str, Any]:
    """Return the request that the options describe, of which exactly one is given."""
    if sum(given is not None for given in (instances, inputs, input_file)) != 1:
        raise click.UsageError("Give one of --instances, --inputs and --input-file.")
    if instances is not None:
        return {"instances": _json(instances, "--instances")}
    if inputs is not None:
        return {"inputs": _json(inputs, "--inputs")}
    assert input_file is not None
    try:
        text = input_file.read()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"Cannot read file {input_file.name!r} as JSON: it is no UTF-8.") from error
    read = _json(text, f"file {input_file.name!r}")
    if isinstance(read, list):
        return {"instances": read}
    if isinstance(read, dict) and read.keys() & {"instances", "inputs"}:
        unknown = read.keys() - {"instances", "inputs", "signature_name"}
        if unknown:
            raise click.UsageError(
                f"Cannot read the request of {input_file.name!r}: unknown {sorted(unknown)}."
            )
        return read
    return {"inputs": read}


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise click.UsageError(f"Cannot read {where} as JSON: {error}.") from error
