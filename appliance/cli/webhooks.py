"""`appliance registry webhook`: who is told of changes."""

from __future__ import annotations

import click

from appliance.cli.access import registry_access
from appliance.cli.options import limit_option, place_option
from appliance.cli.output import json_option, print_json, print_record, print_table


@click.group()
def webhook() -> None:
    """Tell others of changes, by signed requests to a URL of theirs."""


@webhook.command()
@click.argument("receiver", metavar="URL")
@click.option("--model", help="Only events of this model.  [default: of all]")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only this kind: 'label.*', ...")
@click.option("--secret-env", metavar="NAME", help="Take the key of the signatures from this variable.")
@click.option("--description", default="", help="What it is for.")
@place_option
@json_option
def add(
    receiver: str,
    model: str | None,
    kinds: tuple[str, ...],
    secret_env: str | None,
    description: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Tell the receiver at URL of events from now on. Prints the secret, which is never told again."""
    import os

    secret = "" if secret_env is None else os.environ.get(secret_env, "")
    if secret_env is not None and not secret:
        raise click.UsageError(f"The variable {secret_env} is empty.")
    with registry_access(url) as access:
        added = access.add_webhook(receiver, model=model, kinds=kinds, secret=secret, description=description)
    if as_json:
        print_json(added)
    else:
        print_record(vars(added))


@webhook.command("list")
@click.option("--model", help="Only those that hear of this model.")
@place_option
@json_option
def list_webhooks(model: str | None, url: str | None, as_json: bool) -> None:
    """List the webhooks."""
    with registry_access(url) as access:
        found = access.webhooks(model=model)
    if as_json:
        print_json(found)
        return
    rows = [
        (hook.id, hook.url, hook.model or "all", hook.kinds or "all", hook.actor, hook.description)
        for hook in found
    ]
    print_table(["id", "url", "model", "kinds", "added by", "description"], rows, "There are no webhooks.")


@webhook.command()
@click.argument("webhook_id", metavar="ID", type=int)
@place_option
@json_option
def remove(webhook_id: int, url: str | None, as_json: bool) -> None:
    """Tell the receiver no more, not even of what it has not been told yet."""
    with registry_access(url) as access:
        access.remove_webhook(webhook_id)
    if as_json:
        print_json({"id": webhook_id, "state": "removed"})
    else:
        click.echo(f"removed webhook {webhook_id}")


@webhook.command()
@click.argument("webhook_id", metavar="ID", type=int)
@click.option("--state", type=click.Choice(["pending", "delivered", "given_up", "dropped"]))
@limit_option
@place_option
@json_option
def deliveries(webhook_id: int, state: str | None, limit: int, url: str | None, as_json: bool) -> None:
    """List what a receiver was told or is still to be told, newest first."""
    with registry_access(url) as access:
        found = access.deliveries(webhook_id, state=state, limit=limit)
    if as_json:
        print_json(found)
        return
    rows = [
        (entry.id, entry.kind, entry.model, entry.state, entry.attempts, entry.next_at, entry.error)
        for entry in found
    ]
    columns = ["id", "kind", "model", "state", "attempts", "next", "error"]
    print_table(columns, rows, f"There are no such deliveries of webhook {webhook_id}.")


@webhook.command()
@click.argument("delivery", type=int)
@place_option
@json_option
def redeliver(delivery: int, url: str | None, as_json: bool) -> None:
    """Tell a receiver once more."""
    with registry_access(url) as access:
        again = access.redeliver(delivery)
    if as_json:
        print_json(again)
    else:
        click.echo(f"delivery {delivery} will be sent")
