"""What the client may ask about webhooks."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.client.results import Delivery, Webhook, parse
from appliance.client.transport import Sender

_PATH = "/api/v1/webhooks"


class WebhookCalls:
    """The calls of a client that are about webhooks."""

    _transport: Sender

    def webhooks(self, *, model: str | None = None) -> list[Webhook]:
        """Return the webhooks, oldest first, without their secrets; with `model` those that hear of it."""
        return [parse(Webhook, entry) for entry in self._transport.get(_PATH, model=model)["webhooks"]]

    def add_webhook(
        self,
        url: str,
        *,
        model: str | None = None,
        kinds: Sequence[str] = (),
        secret: str = "",
        description: str = "",
    ) -> Webhook:
        """Tell a receiver of events from now on, and return it with its secret, which is never told again.

        Args:
            url: where to POST them.
            model: only events of this model; None: of all.
            kinds: kinds of events, `label.*` for instance; none: all.
            secret: the key of the signatures; by default a random one.
            description: what it is for.
        """
        body = {
            "url": url,
            "model": model,
            "kinds": list(kinds),
            "secret": secret,
            "description": description,
        }
        return parse(Webhook, self._transport.send("POST", _PATH, body))

    def remove_webhook(self, webhook: int) -> None:
        """Tell a receiver no more."""
        self._transport.send("DELETE", f"{_PATH}/{webhook}")

    def deliveries(
        self, webhook: int, *, state: str | None = None, limit: int = 100, before: int | None = None
    ) -> list[Delivery]:
        """Return what a receiver was told or is still to be told, newest first.

        Args:
            webhook: the webhook's id.
            state: `pending`, `delivered`, `given_up` or `dropped`; None: any.
            limit: how many at most, 1000 at most.
            before: only deliveries with lower ids.
        """
        path = f"{_PATH}/{webhook}/deliveries"
        found = self._transport.get(path, state=state, limit=limit, before=before)["deliveries"]
        return [parse(Delivery, entry) for entry in found]

    def redeliver(self, delivery: int) -> Delivery:
        """Tell a receiver once more."""
        return parse(Delivery, self._transport.send("POST", f"{_PATH}/deliveries/{delivery}/redeliver"))
