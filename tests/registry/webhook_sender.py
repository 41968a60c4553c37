"""A process that sends webhooks until it is killed: `python -m tests.registry.webhook_sender URL ROOT`."""

import sys
import threading

from registry import Registry, outbox
from registry.webhooks import WebhookDispatcher


def main(database_url: str, root: str) -> None:
    outbox.LEASE_SECONDS = 1.0  # So that its deliveries fall due soon after its death.
    with Registry(database_url, root) as registry:
        WebhookDispatcher(registry, allow_private=True).start()
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
